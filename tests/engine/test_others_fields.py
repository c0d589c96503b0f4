"""Fields as other people write them: solved by the engine or with a stated reason, and always with the same result."""

import pytest
import torch
import torchdiffeq
from torch import nn

import anode
from anode.engine.dispatch import run
from anode.interface.options import problem_from
from anode.ode.stored import Stored
from helpers import others_fields as theirs

TIMES = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64)
POINTS = torch.linspace(-0.9, 1.1, 24, dtype=torch.float64)


def state(*shape):
    return POINTS.roll(sum(shape))[: int(torch.Size(shape).numel())].reshape(shape).clone()


def flow(layer, **settings):
    field = theirs.Flow(theirs.Layers(layer), **settings)
    field.before_odeint(state(5, 2).sign())
    return field


def regularized():
    field = theirs.RegularizedFlow(theirs.Layers(theirs.ConcatSquash))
    field.before_odeint(state(5, 2).cos())
    return field


def many():
    field = flow(theirs.ConcatSquash, approximate=True)
    field.before_odeint(torch.ones(300, 2).double())
    return field


def density():
    return state(5, 2), torch.zeros(5, 1, dtype=torch.float64)


def path():
    return theirs.CubicPath(torch.linspace(0, 1, 4, dtype=torch.float64), state(4, 3))


CASES = {
    "anode": (theirs.AugmentedMLP, lambda: state(5, 3)),
    "anode, no time, softplus": (lambda: theirs.AugmentedMLP(3, 8, False, "softplus"), lambda: state(4, 3)),
    "concat": (lambda: theirs.Layers(theirs.ConcatLinear), lambda: state(5, 2)),
    "concat squash": (lambda: theirs.Layers(theirs.ConcatSquash, (2, 6, 5, 2)), lambda: state(5, 2)),
    "ignore": (lambda: theirs.Layers(theirs.IgnoreLinear, nonlinearity="softplus"), lambda: state(5, 2)),
    "hyper": (lambda: theirs.Layers(theirs.HyperLinear), lambda: state(5, 2)),
    "blend": (lambda: theirs.Layers(theirs.BlendLinear), lambda: state(5, 2)),
    "exact divergence": (lambda: flow(theirs.ConcatSquash), density),
    "divergence of a hypernetwork": (lambda: flow(theirs.HyperLinear), density),
    "states at rest": (lambda: flow(theirs.ConcatLinear), lambda: (*density(), state(5, 1))),
    "noise per point": (lambda: flow(theirs.ConcatSquash, approximate=True), density),
    "regularizers": (regularized, lambda: (*density(), *density()[1:] * 2)),
    "noise for each of many points": (many, lambda: (torch.ones(300, 2).double(), torch.zeros(300, 1).double())),
    "neural cde": (lambda: theirs.ControlledField(path()), lambda: state(4, 2)),
    "latent ode": (theirs.LatentODEFunc, lambda: state(3, 4)),
    "latent ode, samples and trajectories": (theirs.LatentODEFunc, lambda: state(3, 2, 4)),
    "second order": (theirs.SecondOrder, lambda: state(3, 4)),
    "second order, tuple": (theirs.SecondOrderTuple, lambda: (state(3, 2), state(3, 2) + 0.1)),
    "hamiltonian": (theirs.Hamiltonian, lambda: state(4, 4)),
    "lagrangian": (theirs.Lagrangian, lambda: state(4, 2)),
    "cubes": (theirs.Lambda, lambda: state(3, 2)),
    "spiral": (theirs.SpiralFunc, lambda: state(1, 2)),
    "cnf": (theirs.CNF, density),
    "gru-ode": (theirs.GRUODECell, lambda: state(4, 3)),
    "graph": (theirs.GraphField, lambda: state(5, 3)),
    "siren": (theirs.Siren, lambda: state(4, 2)),
    "time gate": (theirs.TimeGate, lambda: state(4, 2)),
    "attention": (theirs.FeatureAttention, lambda: state(4, 3)),
    "lotka-volterra": (theirs.LotkaVolterra, lambda: state(4, 2).abs()),
    "lorenz": (theirs.Lorenz, lambda: state(3)),
    "lorenz, batch": (theirs.Lorenz, lambda: state(4, 3)),
    "pendulum": (theirs.Pendulum, lambda: state(4, 2)),
}
FALLING_BACK = {
    "anode, images": (theirs.AugmentedConv, lambda: state(1, 2, 3, 3), "aten.convolution is not among the operations"),
    "concat conv": (
        lambda: theirs.Layers(theirs.ConcatConv, (2, 2)),
        lambda: state(1, 2, 3, 3),
        "aten.convolution is not among the operations",
    ),
    "time in single precision": (
        lambda: theirs.AugmentedMLP(like=torch.float32),
        lambda: state(5, 3),
        "f computes in torch.float32, the state is torch.float64",
    ),
}


def made(build):
    torch.manual_seed(3)
    return build().double()


def components(y):
    return y if isinstance(y, tuple) else (y,)


def leaves(y):
    parts = tuple(part.clone().requires_grad_() for part in components(y))
    return parts if isinstance(y, tuple) else parts[0]


def differentiated(ys, y0, f):
    """States, and the gradients of all of them for y0 and the parameters."""
    wanted = [*components(y0), *f.parameters()]
    total = sum((part * torch.linspace(0.5, 1.5, part.numel()).view_as(part)).sum() for part in components(ys))
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]
    return [*(part.detach() for part in components(ys)), *gradients]


def assert_close(ours, others, tolerance):
    for x, y in zip(ours, others, strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def solved(f, y, engine):
    y0 = leaves(y)
    # FFJORD's states at rest are new leaves on every call, which only stored graphs can follow.
    gradient = "stored" if isinstance(y, tuple) and len(y) == 3 else "discrete"
    solution = anode.solve(f, y0, (0.0, 1.0), save_at=TIMES, rtol=1e-5, atol=1e-5, engine=engine, gradient=gradient)
    return solution, differentiated(solution.ys, y0, f)


def assert_same_by_both(build, y):
    """Solve and differentiate with the engine and without, twice each, so that a remembered program is used too."""
    f = made(build)
    for _ in range(2):
        (ours, found), (plain, expected) = solved(f, y, "auto"), solved(f, y, "torch")
        assert ours.stats.nfe == plain.stats.nfe
        assert_close(found, expected, 1e-9)
    return ours


@pytest.mark.parametrize("name", CASES)
def test_the_engine_solves_other_peoples_fields_as_the_loop_in_python_does(name):
    build, y = CASES[name]
    assert str(assert_same_by_both(build, y()).engine) == "native"


@pytest.mark.parametrize("name", FALLING_BACK)
def test_what_the_engine_cannot_do_is_said_and_done_in_python(name):
    build, y, why = FALLING_BACK[name]
    assert why in str(assert_same_by_both(build, y()).engine)


class Counted(nn.Module):
    """Counts the calls of a field, as torchdiffeq's users do."""

    def __init__(self, field):
        super().__init__()
        self.field, self.calls = field, 0

    def forward(self, t, y):
        self.calls += 1
        return self.field(t, y)


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
@pytest.mark.parametrize("name", [*CASES, *FALLING_BACK])
def test_odeint_takes_as_many_evaluations_as_torchdiffeq_and_finds_the_same(name, method, monkeypatch):
    build, y = {**CASES, **FALLING_BACK}[name][:2]
    results, calls = [], []
    for odeint, engine in ((anode.odeint, "auto"), (torchdiffeq.odeint, ""), (anode.odeint, "torch")):
        monkeypatch.setenv("ANODE_ENGINE", engine)
        f = Counted(made(build))
        for _ in range(2):
            y0 = leaves(y())
            f.calls = 0
            ys = odeint(f, y0, TIMES, rtol=1e-5, atol=1e-5, method=method)
            calls.append(f.calls)
        results.append((components(ys), differentiated(ys, y0, f)))
    assert len(set(calls)) == 1
    assert_close(results[0][0], results[1][0], 1e-9)
    assert_close(results[0][1], results[2][1], 1e-9)
    if method == "rk4":  # where steps adapt, torchdiffeq's gradients are also those of the step sizes
        assert_close(results[0][1], results[1][1], 1e-9)


@pytest.mark.parametrize("method", ["adaptive_heun", "fehlberg2"])
def test_methods_whose_steps_begin_with_the_last_stage_do_so_in_odeint_and_in_solve_do_not(method):
    f = Counted(made(theirs.AugmentedMLP))
    y0, found = state(5, 3), []
    for odeint in (torchdiffeq.odeint, anode.odeint):
        f.calls = 0
        with torch.no_grad():
            found.append((odeint(f, y0, TIMES, rtol=1e-3, atol=1e-3, method=method)[-1], f.calls))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-9, atol=1e-9)
    assert found[0][1] == found[1][1]
    assert str(anode.solve(f, y0, (0.0, 1.0), method=method).engine) == "native"


def test_the_counters_of_others_tell_the_same_with_the_engine_as_without():
    counts = []
    for engine in ("auto", "torch"):
        f = made(theirs.AugmentedMLP)
        for _ in range(3):
            with torch.no_grad():
                anode.solve(f, state(5, 3), (0.0, 1.0), engine=engine)
            counts.append(f.nfe)
    assert counts[:3] == counts[3:]
    assert counts[0] > 0


def test_a_ball_bounces_in_python_because_there_is_an_event():
    f = made(theirs.BouncingBall)
    y0 = tuple(torch.tensor([x], dtype=torch.float64) for x in (10.0, 0.0, -2.0))
    problem = problem_from(f, y0, torch.tensor([0.0, 1.0]).double(), 1e-7, 1e-9, None, None, f.event_fn)
    assert str(run(problem, Stored()).engine) == "torch (there is an event; f is compiled)"
    ours, theirs_ = (
        door.odeint_event(f, y0, torch.tensor(0.0).double(), event_fn=f.event_fn)[0] for door in (anode, torchdiffeq)
    )
    torch.testing.assert_close(ours, theirs_, rtol=1e-9, atol=1e-9)


def test_noise_that_is_drawn_anew_for_each_solve_is_used():
    """FFJORD replaces its noise before every solve; the one before must not be used again."""
    f = made(lambda: flow(theirs.ConcatSquash, approximate=True))
    for seed in range(3):
        f.before_odeint(torch.randn(5, 2, generator=torch.Generator().manual_seed(seed)).double())
        (_, found), (_, expected) = solved(f, density(), "auto"), solved(f, density(), "torch")
        assert_close(found, expected, 1e-9)
