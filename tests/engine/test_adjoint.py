"""Backward solves of the continuous adjoint by the engine, against those by Python, and torchdiffeq's."""

import pytest
import scipy.integrate
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anode
from anode.engine import native
from anode.engine.derivative import CompiledDerivative
from anode.engine.extension import extension

pytestmark = pytest.mark.skipif(extension is None, reason="the engine was not compiled")


class Mixed(nn.Module):
    """Uses time, one parameter twice, one not at all, and one that is frozen."""

    def __init__(self, dim=3, hidden=7):
        super().__init__()
        self.first, self.last = nn.Linear(dim, hidden), nn.Linear(hidden, dim, bias=False)
        self.rate, self.unused, self.frozen = (nn.Parameter(torch.tensor(x)) for x in (0.3, 2.0, 0.7))
        self.frozen.requires_grad_(False)
        self.nfe = 0

    def forward(self, t, y):
        self.nfe += 1
        return self.last(torch.tanh(self.first(y))) * torch.cos(t) - self.rate * y * self.rate + self.frozen


class Pair(nn.Module):
    """Two components with different numbers of features, which depend on each other."""

    def __init__(self):
        super().__init__()
        self.net, self.scale = nn.Linear(3, 2), nn.Parameter(torch.tensor([0.5]))

    def forward(self, t, state):
        z, trace = state
        return torch.tanh(self.net(torch.cat([z, trace], -1))), -(z**2).sum(-1, keepdim=True) * self.scale


def built(kind, dtype=torch.float64):
    torch.manual_seed(2)
    return kind().to(dtype)


def start(rows, dim=3, dtype=torch.float64):
    return torch.linspace(-0.9, 0.8, rows * dim, dtype=dtype).reshape(rows, dim)


class Spy:
    """Counts the backward solves that the engine makes."""

    def __init__(self, monkeypatch):
        self.made, run = 0, native.trace_of

        def counted(ends, last):
            self.made += last.ndim == 1  # an adjoint state is flat
            return run(ends, last)

        monkeypatch.setattr(native, "trace_of", counted)


def gradients(f, y0, times=4, **options):
    """Return the gradients of states and parameters, the time, and the evaluations in the backward pass."""
    states = tuple(y.clone().requires_grad_() for y in (y0 if isinstance(y0, tuple) else (y0,)))
    f.zero_grad()
    t = torch.linspace(0.1, 1.9, times, dtype=states[0].dtype)
    ys = anode.odeint_adjoint(f, states if isinstance(y0, tuple) else states[0], t, **options)
    before = getattr(f, "nfe", 0)
    sum((y.sin() * y).sum() for y in (ys if isinstance(ys, tuple) else (ys,))).backward()
    return [x.grad for x in (*states, *f.parameters())], getattr(f, "nfe", 0) - before


def in_both(monkeypatch, call):
    """Return what a call returns with and without the engine's loop; the first must use it."""
    spy = Spy(monkeypatch)
    ours = call()
    assert spy.made
    with monkeypatch.context() as patch:
        patch.setattr(CompiledDerivative, "adjoint_loop", lambda *_: None)
        before = spy.made
        theirs = call()
        assert spy.made == before
    return ours, theirs


def assert_close(ours, theirs, tolerance=1e-9):
    for x, expected in zip(ours, theirs, strict=True):
        assert (x is None) == (expected is None)
        if x is not None:
            torch.testing.assert_close(x, expected, rtol=tolerance, atol=tolerance)


OPTIONS = {
    "defaults": {},
    "loose": {"rtol": 1e-3, "atol": 1e-4},
    "a seminorm": {"adjoint_options": {"norm": "seminorm"}},
    "another method": {"adjoint_method": "dopri8"},
    "a method of low order": {"method": "bosh3", "rtol": 1e-5, "atol": 1e-6},
    "other tolerances": {"adjoint_rtol": 1e-4, "adjoint_atol": 1e-5},
    "steps given": {"method": "rk4"},
    "a step size": {"method": "midpoint", "options": {"step_size": 0.11}},
    "a first step": {"options": {"first_step": 0.05}},
    "long steps only": {"adjoint_options": {"min_step": 0.2}},
    "short steps only": {"adjoint_options": {"max_step": 0.1}},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", [Mixed, Pair])
def test_the_engine_takes_the_steps_that_python_takes(monkeypatch, kind, name):
    f, y = built(kind), start(13)
    y0 = y if kind is Mixed else (y[:, :2].contiguous(), y[:, 2:].contiguous())
    (ours, calls), (theirs, expected) = in_both(monkeypatch, lambda: gradients(f, y0, **OPTIONS[name]))
    # The error estimate of order 8 is near rounding errors, so that sizes of steps depend on them.
    assert_close(ours, theirs, 1e-6 if name == "another method" else 1e-9)
    assert calls == expected


@settings(deadline=None, max_examples=25)
@given(rows=st.integers(1, 150), dim=st.integers(1, 9), hidden=st.integers(1, 33), double=st.booleans())
def test_parts_of_any_size_are_integrated(rows, dim, hidden, double):
    dtype = torch.float64 if double else torch.float32
    torch.manual_seed(rows)
    f, y0 = Mixed(dim, hidden).to(dtype), start(rows, dim, dtype)
    # In single precision, rounding decides about the sizes of adaptive steps.
    options = {"rtol": 1e-4, "atol": 1e-5} if double else {"method": "rk4", "options": {"step_size": 0.4}}
    with pytest.MonkeyPatch.context() as patch:
        (ours, calls), (theirs, expected) = in_both(patch, lambda: gradients(f, y0, 2, **options))
    assert_close(ours, theirs, 1e-9 if double else 1e-4)
    assert calls == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_agree_with_torchdiffeq(dtype):
    torchdiffeq = pytest.importorskip("torchdiffeq")
    f, y0, t = built(Pair, dtype), start(20, dtype=dtype), torch.linspace(0.0, 1.0, 5, dtype=dtype)
    found = []
    for library in (anode, torchdiffeq):
        f.zero_grad()
        z, trace = library.odeint_adjoint(f, (y0[:, :2], y0[:, 2:]), t, rtol=1e-6, atol=1e-8)
        (z.sin().sum() + trace.square().sum()).backward()
        found.append([p.grad.clone() for p in f.parameters()])
    assert_close(*found, tolerance=1e-9 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("seminorm", [False, True])
@pytest.mark.parametrize("method", ["tsit5", "dopri5", "heun3", "adaptive_heun", "fehlberg2"])
def test_solve_uses_the_engine_for_fields_and_stacks(monkeypatch, method, seminorm):
    torch.manual_seed(0)
    fields = [anode.MLPField(3, hidden=8).double() for _ in range(2)]
    gradient = anode.Continuous(seminorm=seminorm)
    fixed = {"step_size": 0.2} if method == "heun3" else {"rtol": 1e-5, "atol": 1e-6}
    for f, y0 in ((fields[0], start(6)), (anode.stack(fields), start(12).reshape(2, 6, 3))):

        def call(f=f, y0=y0):
            f.zero_grad()
            solution = anode.solve(f, y0, (0.0, 1.0), method=method, gradient=gradient, **fixed)
            solution.y1.square().sum().backward()
            return [p.grad.clone() for p in f.parameters()], solution.stats.nfe_backward

        (ours, calls), (theirs, expected) = in_both(monkeypatch, call)
        assert_close(ours, theirs)
        assert calls == expected


def test_gradients_of_times_are_those_of_python(monkeypatch):
    f, t = built(Mixed), torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64, requires_grad=True)

    def call():
        ys = anode.odeint_adjoint(f, start(5), t, rtol=1e-8, atol=1e-8)
        return torch.autograd.grad((ys * ys).sum(), [t, f.rate])

    assert_close(*in_both(monkeypatch, call))


@pytest.mark.parametrize("name", ["a norm", "callbacks", "times to step at", "a norm of the forward solve", "SciPy"])
def test_what_the_engine_does_not_know_is_left_to_python(monkeypatch, name):
    f, spy = built(Mixed).requires_grad_(), Spy(monkeypatch)
    options = {
        "a norm": {"adjoint_options": {"norm": lambda parts: torch.stack([x.abs().max() for x in parts]).max()}},
        "callbacks": {},
        "times to step at": {"adjoint_options": {"step_t": torch.tensor([0.3], dtype=torch.float64)}},
        "a norm of the forward solve": {"options": {"norm": lambda y: y.abs().max()}},
        "SciPy": {"method": "rk4", "adjoint_method": "scipy_solver", "adjoint_options": {}},
    }[name]
    called = []
    monkeypatch.setattr(
        scipy.integrate,
        "solve_ivp",
        lambda *a, solve=scipy.integrate.solve_ivp, **k: called.append(a) or solve(*a, **k),
    )
    if name == "callbacks":
        f.callback_step_adjoint = lambda *_: None
    assert all(g is None or g.isfinite().all() for g in gradients(f, start(5), 2, **options)[0])
    assert not spy.made
    assert bool(called) == (name == "SciPy")


def test_a_backward_solve_that_fails_says_so_in_the_same_words(monkeypatch):
    f = built(Mixed)

    def call():
        with pytest.raises(anode.SolveError) as failure:
            gradients(f, start(4), 2, adjoint_options={"max_num_steps": 2})
        return str(failure.value)

    ours, theirs = in_both(monkeypatch, call)
    assert ours == theirs


def test_a_slope_that_is_not_finite_fails_the_backward_solve(monkeypatch):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(-1.0, dtype=torch.float64))

        def forward(self, t, y):
            return self.w * torch.sqrt(y)

    f, y0 = Root(), torch.full((3, 1), 0.25, dtype=torch.float64)  # y(t) = (1/2 - t/2)^2, which is 0 at t = 1

    def call():
        t = torch.tensor([0.0, 1.0], dtype=torch.float64)
        try:
            return torch.autograd.grad(anode.odeint_adjoint(f, y0, t, rtol=1e-6, atol=1e-8)[-1].sum(), f.w)[0].isnan()
        except anode.SolveError as error:
            return str(error)

    ours, theirs = in_both(monkeypatch, call)
    assert ours == theirs


def test_a_zero_gradient_stays_zero(monkeypatch):
    f = built(Mixed)
    with torch.no_grad():
        f.last.weight.zero_()
    (ours, _), (theirs, _) = in_both(monkeypatch, lambda: gradients(f, start(4), 2))
    assert_close(ours, theirs)
    names = [name for name, _ in f.named_parameters()]
    assert not ours[1 + names.index("first.weight")].any()


def test_tensors_that_do_not_begin_at_multiples_of_a_vector_are_read_and_written_right(monkeypatch):
    f = built(Mixed, torch.float32)
    y0 = torch.linspace(-1, 1, 40)[1:34].reshape(11, 3)
    (ours, _), (theirs, _) = in_both(monkeypatch, lambda: gradients(f, y0, 3, method="midpoint"))
    assert_close(ours, theirs, 1e-5)
