"""Problems with known or independently computed solutions, shared by the tests of the solver."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torchdiffeq
from scipy.integrate import solve_ivp

ARENSTORF = (0.994, 0.0, 0.0, -2.00158510637908252)
ARENSTORF_PERIOD = 17.0652165601579625


@dataclass(frozen=True)
class Problem:
    """An ODE written on the components of its state, so that numbers and tensors can go through it."""

    rate: object
    y0: tuple[float, ...]
    span: tuple[float, float]

    def __call__(self, t, y):
        return torch.stack(torch.broadcast_tensors(*self.rate(t, *y.unbind(-1))), -1)

    def start(self, dtype=torch.float64):
        return torch.tensor(self.y0, dtype=dtype)

    def times(self, count):
        return torch.linspace(*self.span, count, dtype=torch.float64)

    @lru_cache  # noqa: B019
    def reference(self, count):
        """The states at ``times(count)`` by SciPy."""
        answer = solve_ivp(
            lambda t, y: self.rate(t, *y.tolist()),
            self.span,
            self.y0,
            method="DOP853",
            t_eval=self.times(count).numpy(),
            rtol=1e-12,
            atol=1e-13,
        )
        assert answer.success
        return torch.from_numpy(np.ascontiguousarray(answer.y.T))


@dataclass(frozen=True)
class Exact:
    """An ODE with a solution in closed form."""

    f: object
    solution: object
    span: tuple[float, float]

    def __call__(self, t, y):
        return self.f(t, y)

    def start(self, dtype=torch.float64):
        return self.solution(torch.tensor(self.span[0], dtype=dtype))


def van_der_pol(mu):
    return lambda t, y, v: (v, mu * (1 - y * y) * v - y)


def lotka_volterra(t, prey, hunters):
    return 1.5 * prey - prey * hunters, prey * hunters - 3 * hunters


def rotation(t, x, y):
    return -y, x


def arenstorf(t, x, y, u, v):
    moon = 0.012277471
    earth = 1 - moon
    far = ((x + moon) ** 2 + y * y) ** 1.5
    near = ((x - earth) ** 2 + y * y) ** 1.5
    return (
        u,
        v,
        x + 2 * v - earth * (x + moon) / far - moon * (x - earth) / near,
        y - 2 * u - earth * y / far - moon * y / near,
    )


PROBLEMS = {
    "van der Pol": Problem(van_der_pol(1.0), (2.0, 0.0), (0.0, 10.0)),
    "van der Pol backward": Problem(van_der_pol(1.0), (0.5, 0.5), (5.0, 0.0)),
    "stiff van der Pol": Problem(van_der_pol(50.0), (1.2, -0.05), (0.0, 6.0)),
    "stiff van der Pol backward": Problem(van_der_pol(50.0), (0.1, 0.1), (2.0, 0.0)),
    "Lotka-Volterra": Problem(lotka_volterra, (1.0, 1.0), (0.0, 10.0)),
    "Lotka-Volterra backward": Problem(lotka_volterra, (1.0, 1.0), (0.0, -10.0)),
    "Arenstorf": Problem(arenstorf, ARENSTORF, (0.0, ARENSTORF_PERIOD)),
    "Arenstorf backward": Problem(arenstorf, ARENSTORF, (ARENSTORF_PERIOD, 0.0)),
    "rotation": Problem(rotation, (1.0, 0.0), (0.0, 20.0)),
    "rotation backward": Problem(rotation, (1.0, 0.0), (3.0, -17.0)),
}


def spiral(t, y):
    """Solved by cos(t^2), -sin(t^2); the other terms vanish on the solution but not beside it."""
    a, b = y
    a_off, b_off = a - torch.cos(t * t), b + torch.sin(t * t)
    return torch.stack([2 * t * b - a_off, -2 * t * a + 0.5 * torch.cos(t) * b_off])


EXACT = {
    "logistic": Exact(lambda t, y: 4 * y * (1 - y), lambda t: torch.sigmoid(4 * t), (-1.0, 0.5)),
    "spiral": Exact(spiral, lambda t: torch.stack([torch.cos(t * t), -torch.sin(t * t)], -1), (0.0, 2.0)),
}


class Watched:
    """f, with every time it is given written down and, for torchdiffeq, every step counted."""

    def __init__(self, f):
        self.f, self.times, self.accepted, self.rejected = f, [], 0, 0

    def __call__(self, t, y):
        self.times.append(t.detach().clone())
        return self.f(t, y)

    @property
    def nfe(self):
        return len(self.times)

    def callback_accept_step(self, t, y, dt):
        self.accepted += 1

    def callback_reject_step(self, t, y, dt):
        self.rejected += 1

    def tried(self, first_slopes=2):
        """Starts and ends of the steps of a dopri5 solve, from the times of its six new slopes a step."""
        slopes = torch.stack(self.times[first_slopes:]).reshape(-1, 6)
        ends = slopes[:, -1]
        return ends - (ends - slopes[:, 0]) / (1 - 1 / 5), ends


def by_torchdiffeq(f, y0, times, **options):
    """What torchdiffeq makes of it, and the watched f that it used."""
    watched = Watched(f)
    return torchdiffeq.odeint(watched, y0, times, **options), watched
