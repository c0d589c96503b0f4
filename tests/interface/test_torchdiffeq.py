import math
from functools import partial

import numpy as np
import pytest
import torch
import torchdiffeq
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import anode
from anode.engine.dispatch import run
from anode.engine.extension import extension
from anode.interface.options import UNSUPPORTED, problem_from
from anode.ode.stored import Stored

BOTH = pytest.mark.parametrize("library", [torchdiffeq, anode])
SAME_STEPS = ["dopri5", "bosh3", "dopri8", "adaptive_heun", "fehlberg2"]
SAME_EVALUATIONS = ["dopri5", "adaptive_heun", "fehlberg2"]
RTOL = {"adaptive_heun": 1e-4}
"""A method of order 2 takes hundreds of steps as it is."""
FIXED = ["euler", "midpoint", "heun2", "heun3", "rk4"]
FORWARD = torch.linspace(0, 3, 7, dtype=torch.float64)
BACKWARD = torch.linspace(2, -1, 4, dtype=torch.float64)


class Field(nn.Module):
    """Non-autonomous and nonlinear; counts its evaluations and notes its steps."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.float64, generator=generator))
        self.nfe, self.tried, self.accepted, self.rejected = 0, [], [], []

    def forward(self, t, y):
        self.nfe += 1
        return torch.tanh(y @ self.weight) * torch.cos(3 * t) - 0.1 * y

    def callback_step(self, t, y, dt):
        self.tried.append((t.item(), dt.item()))


class Noting(Field):
    def callback_accept_step(self, t, y, dt):
        self.accepted.append((t.item(), dt.item()))

    def callback_reject_step(self, t, y, dt):
        self.rejected.append((t.item(), dt.item()))


def start():
    return torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def solve_and_differentiate(odeint, field, y0, t, **arguments):
    y0, t = y0.clone().requires_grad_(), t.clone().requires_grad_()
    ys = odeint(field, y0, t, **arguments)
    nfe = field.nfe
    ys.square().sum().backward()
    return ys.detach(), y0.grad, field.weight.grad, t.grad, nfe


@pytest.mark.parametrize("t", [FORWARD, BACKWARD], ids=["forward", "backward"])
@pytest.mark.parametrize("method", SAME_STEPS)
def test_adaptive_methods_take_the_steps_that_torchdiffeq_takes(method, t):
    fields, rtol = [], RTOL.get(method, 1e-5)
    for library in (torchdiffeq, anode):
        fields.append(Noting())
        library.odeint(fields[-1], start(), t, method=method, rtol=rtol, atol=rtol / 100)
    theirs, ours = fields
    assert len(ours.tried) == len(ours.accepted) + len(ours.rejected)
    for name in ("tried", "accepted", "rejected"):
        torch.testing.assert_close(
            torch.tensor(getattr(ours, name)), torch.tensor(getattr(theirs, name)), rtol=1e-5, atol=0
        )


@pytest.mark.parametrize("t", [FORWARD, BACKWARD], ids=["forward", "backward"])
@pytest.mark.parametrize("method", SAME_EVALUATIONS)
def test_methods_agree_with_torchdiffeq_in_values_gradients_and_evaluations(method, t):
    rtol = 1e-8 if method == "dopri5" else RTOL.get(method, 1e-5)
    theirs, ours = (
        solve_and_differentiate(library.odeint, Field(), start(), t, method=method, rtol=rtol, atol=rtol / 100)
        for library in (torchdiffeq, anode)
    )
    assert ours[-1] == theirs[-1]
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=1e-12)
    # torchdiffeq also differentiates the size of the first step, which moves gradients by about the tolerance
    close = 100 * min(rtol, 1e-5)
    torch.testing.assert_close(ours[1:4], theirs[1:4], rtol=close, atol=close)


@pytest.mark.parametrize("method", SAME_EVALUATIONS)
def test_the_adjoint_takes_the_evaluations_that_torchdiffeq_takes(method):
    class Autonomous(Field):
        def forward(self, t, y):
            return super().forward(torch.zeros_like(t), y)

    counts = []
    for library in (torchdiffeq, anode):
        field = Autonomous()
        library.odeint_adjoint(field, start(), FORWARD, method=method, rtol=1e-5, atol=1e-6).sum().backward()
        counts.append(field.nfe)
    assert counts[0] == counts[1]


def test_the_adjoint_spends_no_steps_on_a_cotangent_of_time():
    class Driven(nn.Module):
        def __init__(self):
            super().__init__()
            self.nfe, self.net = 0, nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 2)).double()

        def forward(self, t, y):
            self.nfe += 1
            return self.net(torch.cat([y, torch.sin(20 * t).expand(len(y), 1)], dim=-1))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        f, y0 = Driven(), torch.randn(16, 2, dtype=torch.float64)
    counts, gradients = [], []
    for library in (torchdiffeq, anode):
        y1 = library.odeint_adjoint(f, y0, torch.tensor([0.0, 1.0]).double(), rtol=1e-6, atol=1e-6)[-1]
        f.nfe = 0
        gradients.append(torch.autograd.grad(y1.square().sum(), tuple(f.parameters())))
        counts.append(f.nfe)
    assert counts[1] < counts[0] / 2
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("method", ["adaptive_heun", "fehlberg2"])
def test_a_jump_is_not_stepped_over_by_reused_stages(method):
    found = []
    for library in (torchdiffeq, anode):
        field = Field()
        y = library.odeint(
            lambda t, y, f=field: f(t, y) * (1.0 if t < 1.1 else -2.0),
            start(),
            FORWARD,
            method=method,
            rtol=1e-5,
            atol=1e-6,
            options={"jump_t": torch.tensor([1.1], dtype=torch.float64)},
        )
        found.append((y.detach(), field.nfe))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("t", [FORWARD, BACKWARD], ids=["forward", "backward"])
@pytest.mark.parametrize("method", FIXED)
def test_fixed_steps_agree_with_torchdiffeq_to_rounding(method, t):
    theirs, ours = (
        solve_and_differentiate(library.odeint, Field(), start(), t, method=method) for library in (torchdiffeq, anode)
    )
    assert ours[-1] == theirs[-1]
    torch.testing.assert_close(ours[:4], theirs[:4], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("options", [{"step_size": 0.37}, {"step_size": 0.37, "interp": "cubic"}, {"perturb": True}])
@pytest.mark.parametrize("method", FIXED)
def test_options_of_fixed_steps_mean_what_they_mean_in_torchdiffeq(method, options):
    theirs, ours = (
        solve_and_differentiate(library.odeint, Field(), start(), FORWARD, method=method, options=dict(options))
        for library in (torchdiffeq, anode)
    )
    torch.testing.assert_close(ours[:4], theirs[:4], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "options",
    [
        {"first_step": 0.02},
        {"safety": 0.8, "ifactor": 3.0, "dfactor": 0.4},
        {"step_t": torch.tensor([0.7, 1.9])},
        {"jump_t": torch.tensor([1.1])},
        {"min_step": 0.02, "max_step": 0.1},
        {"norm": lambda error: error.abs().max()},
        {"dtype": torch.float64},
    ],
    ids=lambda options: "-".join(options),
)
def test_options_of_adaptive_steps_mean_what_they_mean_in_torchdiffeq(options):
    fields, results = [], []
    for library in (torchdiffeq, anode):
        fields.append(Field())
        results.append(library.odeint(fields[-1], start(), FORWARD, rtol=1e-6, atol=1e-8, options=dict(options)))
    assert fields[0].nfe == fields[1].nfe
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("rtol", "atol"), [((1e-4, 1e-7), (1e-5, 1e-8)), (torch.tensor(1e-6), torch.tensor(1e-8)), (1e-6, 1e-8)]
)
def test_tuples_of_tensors_and_their_tolerances_agree_with_torchdiffeq(rtol, atol):
    def f(t, state):
        x, v = state
        return v, -x * torch.cos(t)[None]

    y0 = (torch.ones(3, 2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64))
    theirs, ours = (library.odeint(f, y0, FORWARD, rtol=rtol, atol=atol) for library in (torchdiffeq, anode))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_gradients_of_the_adjoint_agree_with_torchdiffeq():
    for options in ({}, {"adjoint_options": {"norm": "seminorm"}}, {"adjoint_rtol": 1e-9, "adjoint_method": "dopri8"}):
        theirs, ours = (
            solve_and_differentiate(library.odeint_adjoint, Field(), start(), FORWARD, rtol=1e-7, atol=1e-9, **options)
            for library in (torchdiffeq, anode)
        )
        torch.testing.assert_close(ours[:4], theirs[:4], rtol=1e-5, atol=1e-5)


def test_an_adjoint_without_a_module_asks_for_its_parameters():
    with pytest.raises(ValueError, match="adjoint_params"):
        anode.odeint_adjoint(lambda t, y: -y, torch.ones(2), torch.tensor([0.0, 1.0]))
    weight = torch.tensor(2.0, requires_grad=True)
    anode.odeint_adjoint(lambda t, y: -weight * y, torch.ones(1), torch.tensor([0.0, 1.0]), adjoint_params=(weight,))[
        -1
    ].backward()
    torch.testing.assert_close(weight.grad, -torch.exp(torch.tensor(-2.0)), rtol=1e-4, atol=1e-4)


def test_custom_adjoint_norms_see_the_components_of_a_tuple():
    seen = []

    def norm(parts):
        seen.append([tuple(part.shape) for part in parts])
        return torch.stack([part.abs().max() for part in parts]).max()

    weight = torch.ones(7, requires_grad=True)
    y0 = (torch.tensor(1.0), torch.ones(2, 2, requires_grad=True))
    ys = anode.odeint_adjoint(
        lambda t, y: y, y0, torch.tensor([0.0, 1.0]), adjoint_params=(weight,), adjoint_options={"norm": norm}
    )
    ys[1].sum().backward()
    assert seen[0] == [(), (), (2, 2), (), (2, 2), (7,)]
    assert weight.grad.shape == (7,)
    assert not weight.grad.any()


def test_adjoint_callbacks_are_called_in_the_backward_solve():
    class Watched(Field):
        def callback_step_adjoint(self, t, state, dt):
            self.rejected.append(len(state))

    field = Watched()
    ys = anode.odeint_adjoint(field, start(), FORWARD)
    assert not field.rejected
    ys.sum().backward()
    assert set(field.rejected) == {4}  # the cotangents of t and y, y itself, and one parameter


class Halving(nn.Module):
    """A right-hand side with a callback that changes the state in place."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def callback_step(self, t, y, dt):
        (y[0] if isinstance(y, tuple) else y).mul_(0.5)

    def forward(self, t, y):
        return tuple(map(self.slope, y)) if isinstance(y, tuple) else self.slope(y)

    def slope(self, y):
        return torch.tanh(self.rate * y) + y


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
@pytest.mark.parametrize("method", ["euler", "rk4", "dopri5"])
def test_a_callback_may_change_the_state_in_place(method, interface, mode):
    if (method, interface, mode) == ("dopri5", "odeint", torch.enable_grad):
        pytest.skip("autograd raises an error in both libraries")
    results = []
    for library in (anode, torchdiffeq):
        f = Halving()
        with mode():
            y0 = start().requires_grad_(mode is torch.enable_grad)
            ys = getattr(library, interface)(f, y0 * 1.0, FORWARD, method=method, rtol=1e-3, atol=1e-4)
            gradients = torch.autograd.grad(ys[-1].sum(), (y0, f.rate)) if y0.requires_grad else ()
            results.append((ys, gradients))
    tolerance = 1e-3 if method == "dopri5" else 1e-9
    torch.testing.assert_close(results[0], results[1], rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(extension is None, reason="the engine was not compiled")
@pytest.mark.parametrize(
    ("callback", "is_compiled"),
    [
        (lambda t, y, dt: None, True),
        (lambda t, y, dt, times=[]: times.append(t.item()), True),
        (lambda t, y, dt: y.mul_(0.5), False),
        (lambda t, y, dt: [y.mul_(0.5) for _ in range(1)], False),
        (lambda t, y, dt: [(lambda: y.mul_(0.5))()], False),
        (lambda t, *others: others[0].mul_(0.5), False),
        (partial(lambda t, y, dt: y.mul_(0.5)), False),
    ],
)
def test_f_stays_compiled_with_callbacks_that_do_not_use_the_state(callback, is_compiled):
    f, y0 = of_two_features()
    f.callback_step = callback
    problem = problem_from(f, y0 * 1.0, FORWARD, 1e-5, 1e-5, "rk4", None, None)
    assert run(problem, Stored()).engine.compiled == is_compiled


@torch.no_grad()
@pytest.mark.parametrize("method", ["euler", "rk4"])
@pytest.mark.parametrize("write", [lambda y: y.data.mul_(0.5), lambda y: np.multiply(y.numpy(), 0.5, out=y.numpy())])
def test_a_callback_may_change_the_state_without_torch_noticing(method, write):
    class Halved:
        def __call__(self, t, y):
            return -y

        def callback_step(self, t, y, dt):
            write(y)

    times = torch.tensor([0.0, 0.5, 1.0])
    with torch.no_grad():
        ours, theirs = (each.odeint(Halved(), torch.ones(1), times, method=method) for each in (anode, torchdiffeq))
    assert torch.allclose(ours, theirs)


def test_a_callback_may_change_a_tuple_in_place():
    results = []
    for library in (anode, torchdiffeq):
        state = (torch.ones(2, 2), torch.ones(1))
        results.append(library.odeint(Halving().float(), state, FORWARD, method="euler"))
    torch.testing.assert_close(results[0], results[1])


class Forwarding(nn.Module):
    """Has the attributes of the module that it calls, like a module compiled by ``torch.compile``."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, t, y):
        return self.inner(t, y)

    def __getattr__(self, name):
        return super().__getattr__(name) if name == "inner" else getattr(self.inner, name)


def test_callbacks_of_a_wrapped_module_are_called():
    counts = []
    for library in (anode, torchdiffeq):
        field = Field()
        library.odeint(Forwarding(field), start(), FORWARD, method="rk4")
        counts.append(len(field.tried))
    assert counts[0] == counts[1] == len(FORWARD) - 1


def test_a_callback_may_be_a_module():
    class Count(nn.Module):
        count = 0

        def forward(self, t, y, dt):
            self.count += 1

    counts = []
    for library in (anode, torchdiffeq):
        field = OfTheState(nn.Linear(3, 3).double())
        field.callback_step = Count()
        library.odeint(field, start(), FORWARD, method="rk4")
        counts.append(field.callback_step.count)
    assert counts[0] == counts[1] == len(FORWARD) - 1


@pytest.mark.parametrize("t", [FORWARD, FORWARD.float()], ids=["double", "single"])
@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_callbacks_get_times_of_the_dtype_that_torchdiffeq_gives_them(method, t):
    seen = []
    for library in (anode, torchdiffeq):
        field, dtypes = Field(), set()
        field.callback_step = lambda t, y, dt, dtypes=dtypes: dtypes.add((t.dtype, dt.dtype))
        library.odeint(field, start(), t, method=method, rtol=1e-4)
        seen.append(dtypes)
    assert seen[0] == seen[1]


@BOTH
def test_callbacks_that_a_method_lacks_are_warned_about(library):
    with pytest.warns(UserWarning, match="callback"):
        library.odeint(Noting(), start(), FORWARD, method="rk4")


@BOTH
def test_unknown_options_are_warned_about(library):
    with pytest.warns(UserWarning, match="colour"):
        library.odeint(Field(), start(), FORWARD, options={"colour": "blue"})


def test_grid_points_are_jumps():
    evaluations = []
    for options in ({}, {"grid_points": torch.tensor([0.5])}, {"jump_t": torch.tensor([0.5])}):
        calls = []

        def f(t, y, calls=calls):
            calls.append(float(t))
            return -0.5 * y if t < 0.5 else y**2

        anode.odeint(f, torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.6]), options=options)
        evaluations.append(len(calls))
    assert evaluations[1] == evaluations[2] < evaluations[0]


def test_a_grid_may_be_constructed():
    grid = torch.linspace(0, 1, 11)
    y = anode.odeint(
        lambda t, y: y, torch.ones(1), grid[[0, -1]], method="euler", options={"grid_constructor": lambda f, y, t: grid}
    )
    torch.testing.assert_close(y[-1], torch.tensor([1.1**10]))


@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
def test_a_grid_is_constructed_for_the_flat_state(interface):
    seen = []
    for library in (torchdiffeq, anode):
        shapes = []

        def grid(f, y, t, shapes=shapes):
            shapes.append((y.shape, f(t[0], y).shape, t.tolist()))
            return torch.linspace(float(t[0]), float(t[-1]), 5, dtype=t.dtype)

        y0 = torch.ones(1, requires_grad=True), torch.zeros(2)
        more = {"adjoint_params": ()} if interface == "odeint_adjoint" else {}
        ys = getattr(library, interface)(
            lambda t, y: (-y[0], y[1]), y0, FORWARD[:2], method="rk4", options={"grid_constructor": grid}, **more
        )
        ys[0].sum().backward()
        seen.append(shapes)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("interface", [anode.odeint, anode.odeint_adjoint])
def test_one_time_returns_the_initial_state(interface):
    y0 = start()
    torch.testing.assert_close(interface(Field(), y0, FORWARD[:1]), y0[None])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_states_rotate(dtype):
    y = anode.odeint(
        lambda t, y: 1j * y, torch.ones(2, dtype=dtype), torch.tensor([0.0, torch.pi]), rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(y[-1], torch.full((2,), -1.0, dtype=dtype), rtol=1e-4, atol=1e-4)


# --------------------------------------------------------------------------------------------------------------- events


def falling(t, state):
    speed = state[1]
    return speed, torch.full_like(speed, -9.81)


def on_the_ground(t, state):
    return state[0]


@BOTH
@pytest.mark.parametrize("adjoint", [False, True])
def test_the_time_of_an_event_has_the_right_gradient(library, adjoint):
    height = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    interface = library.odeint_adjoint if adjoint else library.odeint
    arguments = {"adjoint_params": ()} if adjoint else {}
    t, (heights, speeds) = library.odeint_event(
        falling,
        (height, torch.zeros(1, dtype=torch.float64)),
        torch.tensor(0.0, dtype=torch.float64),
        event_fn=on_the_ground,
        odeint_interface=interface,
        **arguments,
    )
    exact = (2 * height.detach() / 9.81).sqrt()
    torch.testing.assert_close(t.detach(), exact[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(speeds[-1], -9.81 * exact, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(t, height, retain_graph=True)
    torch.testing.assert_close(gradient, 1 / (9.81 * exact), rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(speeds[-1].sum(), height)
    torch.testing.assert_close(gradient, -1 / exact, rtol=1e-5, atol=1e-5)
    assert heights.shape == (2, 1)


def test_events_are_found_backward_in_time_and_among_several_conditions():
    start_time = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    t, ys = anode.odeint_event(
        lambda t, y: torch.ones_like(y),
        torch.zeros(1, dtype=torch.float64),
        start_time,
        event_fn=lambda t, y: torch.cat([y + 2.0, y + 0.5]),
        reverse_time=True,
    )
    torch.testing.assert_close(t.item(), -0.5, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ys[-1].item(), -0.5, rtol=1e-6, atol=1e-6)
    assert torch.autograd.grad(t, start_time)[0].item() == pytest.approx(1.0)


@BOTH
def test_the_time_of_an_event_is_as_precise_as_the_start_time(library):
    t, _ = library.odeint_event(
        lambda t, y: -y,
        torch.ones(2),
        torch.tensor(1e6).double(),
        event_fn=lambda t, y: t - 1000000.3,
        rtol=1e-5,
        atol=1e-6,
    )
    assert t.item() == pytest.approx(1000000.3, rel=0, abs=1e-5)


def test_the_time_of_an_event_has_the_right_gradient_if_the_state_is_complex():
    y0 = torch.ones(1, dtype=torch.complex128, requires_grad=True)
    t, ys = anode.odeint_event(
        lambda t, y: 1j * y, y0, torch.tensor(0.0), event_fn=lambda t, y: y[0].real, rtol=1e-9, atol=1e-9
    )
    assert t.item() == pytest.approx(math.pi / 2)
    for loss, gradient in ((t, -1j), (ys[-1].imag.sum(), 1.0)):  # y(T) = i |y0|, T = pi/2 - angle of y0
        (found,) = torch.autograd.grad(loss, y0, retain_graph=True)
        torch.testing.assert_close(found, torch.full_like(y0, gradient), rtol=1e-6, atol=1e-6)


@BOTH
def test_an_event_of_time_alone_has_a_gradient_of_zero(library):
    y0 = torch.ones(2, requires_grad=True)
    t, _ = library.odeint_event(lambda t, y: -y, y0, torch.tensor(0.0), event_fn=lambda t, y: t - 0.37)
    t.backward()
    assert not y0.grad.any()


@torch.no_grad()
def test_an_event_without_gradients_takes_the_evaluations_that_torchdiffeq_takes():
    counts = []
    for library in (anode, torchdiffeq):
        field = Field()
        library.odeint_event(field, start(), torch.tensor(0.0), event_fn=lambda t, y: t - 0.37, rtol=1e-5, atol=1e-5)
        counts.append(field.nfe)
    assert counts[0] == counts[1]


def test_the_parameters_of_an_event_get_gradients():
    level = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    t, _ = anode.odeint_event(
        lambda t, y: -y, torch.ones(1, dtype=torch.float64), torch.tensor(0.0), event_fn=lambda t, y: y[0] - level
    )
    t.backward()
    assert t.item() == pytest.approx(0.6931472, abs=1e-6)
    assert level.grad.item() == pytest.approx(-2.0, abs=1e-5)


class Gradient(nn.Module):
    """The gradient of a network. Like many Hamiltonian fields, it leaves it to the caller to switch on autograd."""

    def __init__(self, kind=nn.Linear):
        super().__init__()
        torch.manual_seed(0)
        conv = [nn.Conv1d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv1d(3, 1, 3)]
        self.energy = nn.Sequential(*([nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)] if kind is nn.Linear else conv))
        self.double()

    def forward(self, t, y):
        if not y.requires_grad:
            y = y.requires_grad_()
        energy = self.energy(y.unsqueeze(1)).sum() * torch.cos(t)
        return torch.autograd.grad(energy, y, create_graph=True)[0]


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv1d], ids=["compiled", "in Python"])
@pytest.mark.parametrize(
    "arguments",
    [
        *({"method": method} for method in ("dopri5", "adaptive_heun", "rk4", "explicit_adams")),
        {"options": {"step_t": torch.tensor([0.4])}},
    ],
    ids=str,
)
def test_f_may_differentiate_if_autograd_is_on_around_odeint(arguments, kind):
    field, found = Gradient(kind), []
    for library in (anode, torchdiffeq):
        y = library.odeint(field, start(), FORWARD[:2], rtol=1e-6, atol=1e-8, **arguments)
        found.append([y, *torch.autograd.grad(y.sum(), tuple(field.parameters())[:-1])])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    nothing_to_differentiate = anode.odeint(field.requires_grad_(False), start(), FORWARD[:2], **arguments)
    torch.testing.assert_close(nothing_to_differentiate, found[0][0], rtol=1e-4, atol=1e-5)


def test_f_may_differentiate_until_an_event():
    event_time, _ = anode.odeint_event(
        Gradient(), start(), FORWARD[0], event_fn=lambda t, y: t - 0.4 + 0 * y.sum(), rtol=1e-6, atol=1e-8
    )
    assert event_time.item() == pytest.approx(0.4)
    event_time.backward()


@pytest.mark.parametrize("method", FIXED)
def test_events_work_with_fixed_steps(method):
    t, ys = anode.odeint(
        lambda t, y: torch.ones_like(y),
        torch.zeros(1),
        torch.tensor([0.0, 1.0]),
        method=method,
        options={"step_size": 0.3},
        event_fn=lambda t, y: y[0] - 2.0,
    )
    assert t.item() == pytest.approx(2.0, abs=1e-5)
    assert ys.shape == (2, 1)


def test_dense_solutions_can_be_evaluated_anywhere():
    solution = anode.odeint_dense(lambda t, y: -y, torch.ones(2), torch.tensor(0.0), torch.tensor(1.0))
    torch.testing.assert_close(solution(torch.tensor([0.25, 0.5]))[:, 0], torch.exp(-torch.tensor([0.25, 0.5])))


@BOTH
def test_the_times_of_a_dense_solution_may_have_one_element(library):
    solution = library.odeint_dense(lambda t, y: -y, torch.ones(2), torch.tensor([0.0]), torch.tensor([1.0]))
    torch.testing.assert_close(solution(torch.tensor(0.5)), torch.full((2,), math.exp(-0.5)))


def test_a_dense_solution_takes_the_steps_of_its_method_and_options():
    t0, t1, options = torch.tensor(0.0), torch.tensor(1.0), {"step_size": 0.5}
    solution = anode.odeint_dense(lambda t, y: -y, torch.ones(2), t0, t1, method="euler", options=options)
    torch.testing.assert_close(solution(torch.tensor([0.5, 1.0])), torch.tensor([[0.5, 0.5], [0.25, 0.25]]))


def test_the_time_of_an_event_keeps_its_precision():
    oscillate = lambda t, y: torch.stack([y[1], -y[0]])  # noqa: E731
    t, _ = anode.odeint(
        oscillate,
        torch.tensor([1.0, 0.0], dtype=torch.float64),
        torch.tensor([0.0, 1.0], dtype=torch.float64),
        rtol=1e-10,
        atol=1e-12,
        event_fn=lambda t, y: y[0],
    )
    assert t.item() == pytest.approx(torch.pi / 2, abs=1e-9)


# ------------------------------------------------------------------------------------------------------- what can fail


def test_a_constant_slope_may_be_one_tensor():
    slope = torch.ones(2)
    torch.testing.assert_close(anode.odeint(lambda t, y: slope, torch.zeros(2), torch.tensor([0.0, 1.0]))[-1], slope)


def test_options_of_none_and_tolerances_as_lists_are_taken():
    options = {"step_t": None, "jump_t": torch.tensor(0.5)}
    y = anode.odeint(lambda t, y: -y, torch.ones(2), torch.tensor([0.0, 1.0]), rtol=[1e-5, 1e-6], options=options)
    torch.testing.assert_close(y[-1], torch.exp(-torch.ones(2)), rtol=1e-4, atol=1e-4)


def test_a_scalar_component_takes_a_tolerance_of_its_own():
    y0 = (torch.tensor(1.0), torch.ones(3))
    y, _ = anode.odeint(lambda t, y: (-y[0], -y[1]), y0, torch.tensor([0.0, 1.0]), rtol=(1e-5, 1e-6), atol=(1e-6, 1e-6))
    torch.testing.assert_close(y[-1], torch.exp(torch.tensor(-1.0)), rtol=1e-4, atol=1e-4)


def test_many_outputs_do_not_use_up_the_step_budget():
    field, t = Field(), torch.linspace(0, 3, 100, dtype=torch.float64)
    ys = anode.odeint(field, start(), t, options={"max_num_steps": 20})
    assert len(field.tried) > 20  # the budget is for the way from one output to the next, as in torchdiffeq
    torch.testing.assert_close(ys, torchdiffeq.odeint(Field(), start(), t), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", UNSUPPORTED)
def test_unsupported_methods_are_refused_by_name(method):
    with pytest.raises(ValueError, match=rf"^method: '{method}' is not supported"):
        anode.odeint(Field(), start(), FORWARD, method=method)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "dopri55"}, "did you mean 'dopri5'"),
        ({"t": torch.tensor([0.0, 1.0, 0.5])}, "^t: "),
        ({"t": torch.tensor([[0.0, 1.0]])}, "^t: "),
        ({"rtol": -1.0}, "^rtol: "),
        ({"atol": [1e-3, 1e-3]}, "^atol: "),
        ({"method": "rk4", "options": {"step_size": 0.1, "grid_constructor": print}}, "step_size"),
        ({"method": "rk4", "options": {"interp": "quintic"}}, "^interp: "),
        ({"method": "rk4", "options": {"step_size": 0.0}}, "step_size.*above 0"),
        ({"method": "rk4", "options": {"step_size": -0.1}}, "step_size.*above 0"),
        ({"options": {"step_t": torch.tensor([0.5]), "jump_t": torch.tensor([0.5])}}, "step_t, jump_t"),
        ({"event_fn": lambda t, y: y.sum()}, "event_fn"),
        ({"method": "rk4", "event_fn": lambda t, y: y.sum(), "t": FORWARD[:2]}, "step_size"),
    ],
)
def test_mistakes_are_named(arguments, message):
    t = arguments.pop("t", FORWARD)
    with pytest.raises(ValueError, match=message):
        anode.odeint(Field(), start(), t, **arguments)


def test_integer_times_are_refused():
    with pytest.raises(TypeError, match=r"^t: "):
        anode.odeint(Field(), start(), torch.tensor([0, 1]))


@BOTH
def test_a_failed_solve_is_an_assertion_error(library):
    with pytest.raises(AssertionError):
        library.odeint(Field(), start(), FORWARD[[0, -1]], options={"max_num_steps": 3})


@BOTH
@pytest.mark.parametrize(
    ("f", "options", "words"),
    [
        (lambda t, y: y**2, {}, "underflow in dt"),
        (lambda t, y: y * math.nan, {}, "underflow in dt"),
        (lambda t, y: y**2, {"max_num_steps": 2}, "max_num_steps exceeded"),
    ],
    ids=["pole", "nan", "steps"],
)
def test_the_error_of_a_failed_solve_contains_the_words_of_torchdiffeq(library, f, options, words):
    with pytest.raises(AssertionError, match=words):
        library.odeint(f, torch.ones(1), torch.tensor([0.0, 2.0]), options=options)


@BOTH
def test_the_error_of_a_failed_backward_solve_contains_the_words_of_torchdiffeq(library):
    f, y0 = OfTheState(nn.Linear(1, 1)), torch.ones(1, requires_grad=True)
    y1 = library.odeint_adjoint(f, y0, torch.tensor([0.0, 1.0]), adjoint_options={"max_num_steps": 1})[-1]
    with pytest.raises(AssertionError, match="max_num_steps exceeded"):
        y1.sum().backward()


def test_a_failed_solve_carries_what_was_solved():
    with pytest.raises(anode.SolveError, match="max_num_steps") as caught:
        anode.odeint(Field(), start(), FORWARD[[0, -1]], options={"max_num_steps": 3})
    assert caught.value.solution.stats.accepted == 3
    assert caught.value.solution.ys[0].isfinite().all()


class Spectral(nn.Module):
    """A real state and complex parameters."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex128, generator=torch.Generator().manual_seed(0)))

    def forward(self, t, y):
        return torch.fft.irfft(self.weight * torch.fft.rfft(y), n=8)


def test_the_adjoint_of_complex_parameters_beside_a_real_state_is_complex():
    f, y0 = Spectral(), torch.arange(8.0, dtype=torch.float64)
    t, weights = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.linspace(-1, 2, 8, dtype=torch.float64)
    found = []
    for solve in (anode.odeint, anode.odeint_adjoint):
        loss = solve(f, y0, t, rtol=1e-9, atol=1e-9)[-1] @ weights
        found.append(torch.autograd.grad(loss, f.weight)[0])
    assert found[0].imag.abs().max() > 0.1
    torch.testing.assert_close(found[1], found[0])


def test_the_adjoint_of_real_parameters_beside_a_complex_state_is_real():
    rate = nn.Parameter(torch.tensor([0.5, 2.0], dtype=torch.float64))
    y0, t = torch.tensor([1.0 + 1j, 2.0], dtype=torch.complex128), torch.tensor([0.0, 1.0], dtype=torch.float64)

    def f(t, y):
        return 1j * rate * y

    loss = anode.odeint_adjoint(f, y0, t, adjoint_params=(rate,))[-1].real.sum()
    (found,) = torch.autograd.grad(loss, rate)
    torch.testing.assert_close(found, -(y0 * torch.exp(1j * rate.detach())).imag)


def test_f_may_have_computed_something_from_its_parameters_before_the_solve():
    class Prepared(nn.Module):
        def __init__(self):
            super().__init__()
            self.raw = nn.Parameter(torch.tensor([0.3, -0.2], dtype=torch.float64))

        def forward(self, t, y):
            return -self.rate * y

    found = []
    for library in (anode, torchdiffeq):
        f = Prepared()
        f.rate = f.raw.exp()
        library.odeint_adjoint(f, torch.ones(2).double(), torch.tensor([0.0, 1.0])).sum().backward()
        found.append(f.raw.grad)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_the_adjoint_follows_the_parameters_that_a_module_names():
    class Hiding(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.hidden = [nn.Linear(3, 3).double()]

        def parameters(self, recurse=True):
            return self.hidden[0].parameters(recurse)

        def forward(self, t, y):
            return torch.tanh(self.hidden[0](y))

    gradients = []
    for library in (anode, torchdiffeq):
        f = Hiding()
        library.odeint_adjoint(f, start(), FORWARD, rtol=1e-8, atol=1e-9).sum().backward()
        gradients.append([p.grad for p in f.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=1e-6)


def test_a_replica_of_data_parallel_has_its_parameters_found():
    f, y0, t = nn.Linear(2, 2), torch.ones(1, 2), torch.tensor([0.0, 1.0])

    class Replica(nn.Module):
        def forward(self, t, y):
            return nn.functional.linear(y, self.weight, self.bias)

    replica = Replica()
    copies = {"weight": f.weight * 1, "bias": f.bias * 1}  # which it has in place of parameters
    replica.__dict__.update(copies, _is_replica=True, _former_parameters={**copies, "tied": copies["weight"]})
    anode.odeint_adjoint(replica, y0, t).sum().backward()
    expected = torch.autograd.grad(anode.odeint(lambda t, y: f(y), y0, t).sum(), list(f.parameters()))
    for p, gradient in zip(f.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_what_comes_of_a_cotangent_that_is_not_finite_is_nan(factor):
    f = nn.Linear(2, 2)
    y0 = torch.ones(1, 2, requires_grad=True)
    y1 = anode.odeint_adjoint(OfTheState(f), y0, torch.tensor([0.0, 1.0]))[-1]
    (y1.sum() * factor).backward()
    assert all(x.grad.isnan().all() for x in (y0, *f.parameters()))


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_with_fixed_steps_it_is_what_torchdiffeq_makes_of_it(factor):
    f = OfTheState(nn.Linear(2, 2))
    factors = torch.tensor([[1.0], [factor], [-2.0]])
    found = []
    for library in (torchdiffeq, anode):
        y0 = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.1]], requires_grad=True)
        y1 = library.odeint_adjoint(f, y0, torch.tensor([0.0, 0.5, 1.0]), method="rk4")[-1]
        found.append(torch.autograd.grad((y1 * factors).sum(), (y0, *f.parameters())))
        assert found[-1][0][[0, 2]].isfinite().all()
        assert not found[-1][0][1].isfinite().any()
        assert not any(gradient.isfinite().any() for gradient in found[-1][1:])
    torch.testing.assert_close(*(each[0][[0, 2]] for each in found))


class OfTheState(nn.Module):
    """A module of the state alone, as f(t, y)."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, t, y):
        return self.net(y)


def test_a_backward_solve_that_fails_says_that_it_is_the_backward_one():
    class Fine(nn.Module):
        def forward(self, t, y):
            return -y if torch.is_grad_enabled() is self.backward else y * math.nan

    f, y0 = Fine(), torch.ones(2, requires_grad=True)
    f.backward = False
    y1 = anode.odeint_adjoint(f, y0, torch.tensor([0.0, 1.0]))[-1]
    with pytest.raises(anode.SolveError, match="in the backward solve of the continuous adjoint"):
        y1.sum().backward()


@pytest.mark.parametrize("end", [0.3, 0.6, 0.7, 0.8, 1.0])
def test_times_in_single_precision_add_no_tiny_step(end):
    counts = []
    for library in (anode, torchdiffeq):
        calls = []

        def f(t, y, calls=calls):
            calls.append(None)
            return -y

        library.odeint(f, torch.ones(1), torch.tensor([0.0, end]), method="rk4", options={"step_size": 0.1})
        counts.append(len(calls))
    assert counts[0] == counts[1]


def test_an_event_may_come_with_an_absolute_tolerance_of_zero():
    t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    when, _ = anode.odeint(
        lambda t, y: -y, torch.ones(1).double(), t, atol=0.0, event_fn=lambda t, y: y[0] - 0.5, rtol=1e-9
    )
    assert float(when) == pytest.approx(math.log(2), abs=1e-8)


def test_a_sequential_serves_until_an_event_too():
    net = nn.Sequential(nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        net[0].weight.fill_(-1.0)
    when, _ = anode.odeint_event(net, torch.ones(1), torch.tensor(0.0), event_fn=lambda t, y: y[0] - 0.5)
    assert float(when.detach()) == pytest.approx(math.log(2), abs=1e-4)


def test_a_tuple_that_f_writes_into_is_an_error():
    y0, t = (torch.ones(2), torch.ones(1)), torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match="must not modify its state in place"):
        anode.odeint(lambda t, y: (y[0].mul_(-1), y[1]), y0, t)


@pytest.mark.parametrize("options", [{"dfactor": 1.0}, {"safety": 1.1}, {"ifactor": 0.5}])
def test_factors_that_make_no_sense_are_named_as_they_were_given(options):
    with pytest.raises(ValueError, match="options: takes 0 < dfactor < 1 <= ifactor and 0 < safety <= 1"):
        anode.odeint(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]), options=options)


@pytest.mark.parametrize("times", [[0.0, 1.0, 0.5], [0.0, 0.0], [1.0, 0.5, 0.5]])
def test_times_out_of_order_are_the_error_that_torchdiffeq_raises(times):
    for library in (torchdiffeq, anode):
        with pytest.raises(AssertionError):
            library.odeint(lambda t, y: -y, torch.ones(2), torch.tensor(times))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rtol": "small"}, "rtol: takes numbers from 0, got 'small'"),
        ({"options": 3}, "options: takes a dictionary of torchdiffeq's options, got a int"),
        ({"options": {"norm": 3}}, r'options\["norm"\]: takes a function of the state that returns one number, got 3'),
        ({"options": {"first_step": "a"}}, r"options\['first_step'\]: takes a number, got 'a'"),
        ({"options": {"max_num_steps": 0}}, r'options\["max_num_steps"\]: takes a number from 1, got 0'),
        ({"func": 3}, r"func: takes a function func\(t, y\), got 3"),
        ({"func": anode.MLPField}, r"func: takes a function .*; pass an object, MLPField\(\.\.\.\)"),
    ],
)
def test_a_wrong_argument_is_named(given, said):
    call = {"func": lambda t, y: -y, "y0": torch.ones(2), "t": torch.tensor([0.0, 1.0])} | given
    with pytest.raises((TypeError, ValueError), match=said):
        anode.odeint(**call)


def test_wrong_arguments_of_events_and_adjoints_are_named():
    y0, t, line = torch.ones(2), torch.tensor([0.0, 1.0]), anode.MLPField(2)
    with pytest.raises(TypeError, match=r"t0: takes a floating point tensor of one time, such as .*, got a float"):
        anode.odeint_event(line, y0, 0.0, event_fn=lambda t, y: y[0])
    with pytest.raises(TypeError, match=r"event_fn: takes a function event_fn\(t, y\), got None"):
        anode.odeint_event(line, y0, t[0], event_fn=None)
    with pytest.raises(TypeError, match=r"norm.\]: takes a function .* or .seminorm., got 'semi'"):
        anode.odeint_adjoint(line, y0, t, adjoint_options={"norm": "semi"})
    with pytest.raises(TypeError, match="adjoint_params: takes a list of tensors, got a int"):
        anode.odeint_adjoint(line, y0, t, adjoint_params=3)


def test_the_warning_about_an_unknown_option_points_to_the_caller():
    with pytest.warns(UserWarning, match="options: method '.*' ignores") as found:
        anode.odeint(lambda t, y: -y, torch.ones(2), torch.tensor([0.0, 1.0]), options={"stepsize": 1})
    assert found[0].filename == __file__


def test_a_solve_of_fixed_steps_runs_fewer_operations_than_torchdiffeq():
    class Count(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += 1
            return func(*args, **(kwargs or {}))

    seen = []

    def f(t, y):
        seen.append(t)  # so that it has to be called as it is
        return -y

    y0, t = torch.ones(4, 2), torch.tensor([0.0, 1.0])
    for method in ("euler", "midpoint", "rk4"):
        counts = []
        for solve in (torchdiffeq.odeint, anode.odeint):
            with torch.no_grad(), Count() as operations:
                solve(f, y0, t, method=method, options={"step_size": 0.01})
            counts.append(operations.count)
        assert 2 * counts[1] < counts[0]


@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4"])
def test_f_may_write_into_the_time_of_a_fixed_step(method):
    def f(t, y):
        return t.mul_(2.0) * y

    y0, t = torch.ones(2, dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    options = {"step_size": 0.01}
    expected = torchdiffeq.odeint(lambda t, y: 2 * t * y, y0, t, method=method, options=options)
    torch.testing.assert_close(anode.odeint(f, y0, t, method=method, options=options), expected)


@pytest.mark.parametrize("solve", [anode.odeint, anode.odeint_adjoint], ids=["odeint", "odeint_adjoint"])
def test_an_argument_that_there_is_not_is_named_with_the_nearest_one(solve):
    said = rf"^rtoll: is not an argument of {solve.__name__}, which takes func, .*; did you mean 'rtol'\?$"
    with pytest.raises(TypeError, match=said):
        solve(anode.MLPField(2), torch.ones(2), torch.tensor([0.0, 1.0]), rtoll=1e-3)


class Counting(OfTheState):
    def __init__(self, net):
        super().__init__(net)
        self.nfe = 0

    def forward(self, t, y):
        self.nfe += 1
        return super().forward(t, y)


def of_two_features():
    torch.manual_seed(0)
    field = Counting(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)).double())
    return field, torch.linspace(-1, 1, 6, dtype=torch.float64).view(3, 2).requires_grad_()


@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_solve_is_repeated_as_it_was(interface, reentrant):
    results, counts = [], []
    for library in (anode, torchdiffeq):
        field, y0 = of_two_features()
        solve = partial(getattr(library, interface), field, t=FORWARD, method="rk4")
        ys = checkpoint(solve, y0, use_reentrant=reentrant)
        ys.square().sum().backward()
        results.append([ys.detach(), y0.grad, *(p.grad for p in field.parameters())])
        counts.append(field.nfe)
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("options", [{}, {"norm": lambda y: y.abs().max()}], ids=["", "norm"])
def test_many_gradients_are_taken_at_once_as_in_torchdiffeq(options):
    """Python takes the steps if there is a norm, otherwise compiled code does."""
    results = []
    for library in (anode, torchdiffeq):
        field, y0 = of_two_features()
        y1 = library.odeint(field, y0, FORWARD, method="rk4", options=options)[-1]
        rows = torch.eye(6, dtype=torch.float64).view(6, 3, 2)
        results.append(torch.autograd.grad(y1, [y0, *field.parameters()], rows, is_grads_batched=True))
        assert not any(gradient.requires_grad for gradient in results[-1])
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("t", "arguments"),
    [
        (torch.tensor([0.0, 0.3]).double(), {"method": "euler", "options": {"step_size": 0.1}}),
        (FORWARD, {"rtol": 1e-5, "atol": 1e-5, "options": {"jump_t": FORWARD[-1:]}}),
    ],
)
def test_an_evaluation_that_changes_nothing_is_saved(t, arguments):
    counts = []
    for library in (anode, torchdiffeq):
        field, y0 = of_two_features()
        library.odeint(field, y0, t, **arguments)
        counts.append(field.nfe)
    assert counts[0] == counts[1] - 1


def test_the_adjoint_says_what_to_use_for_second_derivatives():
    field, y0 = of_two_features()
    y1 = anode.odeint_adjoint(field, y0, FORWARD)[-1]
    (gradient,) = torch.autograd.grad(y1.sum(), y0, create_graph=True)
    with pytest.raises(RuntimeError, match="use odeint instead of odeint_adjoint"):
        gradient.square().sum().backward()
