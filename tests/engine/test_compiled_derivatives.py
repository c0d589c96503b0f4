"""Solves whose steps Python takes and whose f is compiled, against those that call f and against torchdiffeq."""

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anode
from anode.engine import dispatch
from anode.engine.derivative import CompiledDerivative
from anode.engine.extension import extension
from anode.interface.options import problem_from
from anode.ode.continuous import Continuous
from anode.ode.field import AutogradDerivative
from helpers.own_fields import Cubic, Decay, Gated, Idle, TimeConcatenated

torchdiffeq = pytest.importorskip("torchdiffeq")
pytestmark = pytest.mark.skipif(extension is None, reason="the engine was not compiled")

FIELDS = {"time": TimeConcatenated, "gates": Gated, "cubic": Cubic, "computed": Decay, "idle": Idle}
CLOSE = {torch.float32: {"rtol": 2e-3, "atol": 2e-4}, torch.float64: {"rtol": 1e-8, "atol": 1e-9}}


class Own(anode.PID):
    """A controller that is not plainly a PID."""


OBSTACLES = {
    "an event": {"event": lambda t, y: t - 0.7},
    "ends of steps": {"step_at": [0.4]},
    "a norm": {"norm": lambda error: error.abs().max()},
    "tensors as tolerances": {"rtol": torch.tensor(1e-4, dtype=torch.float64)},
    "the continuous adjoint": {"gradient": "continuous"},
    "its seminorm": {"gradient": anode.Continuous(rtol=1e-5, seminorm=True)},
    "given steps": {"step_at": [0.4], "method": "rk4", "step_size": 0.3},
}


def built(kind, dtype=torch.float64):
    torch.manual_seed(3)
    return FIELDS[kind]().to(dtype)


def start(rows, dtype=torch.float64, dim=5):
    return torch.linspace(-0.8, 0.9, rows * dim, dtype=dtype).reshape(rows, dim).requires_grad_()


def found(f, y0, engine, **options):
    """The solution, its values and all its gradients, and how often f says it was evaluated before and after these."""
    before = getattr(f, "nfe", 0)
    solution = anode.solve(f, y0, (0.0, 1.0), engine=engine, **{"rtol": 1e-5, "atol": 1e-6, **options})
    outputs = solution.ys if isinstance(solution.ys, tuple) else (solution.ys,)
    if options.get("dense"):
        inside = solution(torch.tensor([0.21, 0.83], dtype=outputs[0].dtype))
        outputs += inside if isinstance(inside, tuple) else (inside,)
    forward = getattr(f, "nfe", 0) - before
    total = sum((y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in outputs)
    of = [*(y0 if isinstance(y0, tuple) else (y0,)), *(f.parameters() if isinstance(f, nn.Module) else ())]
    gradients = torch.autograd.grad(total, of, allow_unused=True)
    return solution, [*outputs, *(g for g in gradients if g is not None)], (forward, getattr(f, "nfe", 0) - before)


def assert_same(f, y0, **options):
    (ours, values, calls), (plain, expected, plain_calls) = (found(f, y0, e, **options) for e in ("auto", "torch"))
    assert str(ours.engine).endswith("; f is compiled)"), str(ours.engine)
    assert not plain.engine.compiled
    dtype = values[0].dtype
    for value, other in zip(values, expected, strict=True):
        torch.testing.assert_close(value, other, **CLOSE[dtype])
    names = ["nfe", "accepted", "rejected", "calls"]
    if not isinstance(f, anode.MLPField):  # whose first slope is kept too
        names += ["nfe_backward"] * (options.get("gradient") != "stored")
    for name in names if dtype == torch.float64 else ():
        one, other = (torch.as_tensor(getattr(solution.stats, name)) for solution in (ours, plain))
        assert torch.equal(one, other), name
    if options.get("gradient") == "continuous" or isinstance(options.get("gradient"), anode.Continuous):
        assert dtype == torch.float32 or calls == plain_calls
    else:
        assert calls[0] == calls[1], "the backward pass does not call f"
        assert dtype == torch.float32 or calls[0] == plain_calls[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("why", OBSTACLES)
def test_whatever_keeps_the_loop_in_python_leaves_f_compiled(why, kind, dtype):
    if (kind, dtype) == ("idle", torch.float32):
        pytest.skip("has a constant in double precision")
    assert_same(built(kind, dtype), start(7, dtype), **OBSTACLES[why])


@pytest.mark.parametrize("gradient", ["discrete", "stored"])
@pytest.mark.parametrize("options", [{"event": lambda t, y: t - 0.7}, {"step_at": [0.4]}], ids=["event", "step_at"])
def test_both_exact_gradients_are_the_same(options, gradient):
    assert_same(built("time"), start(70), gradient=gradient, **options)


def test_a_controller_of_the_users_leaves_f_compiled():
    assert_same(built("time"), start(7), controller=Own())


@pytest.mark.parametrize("control", ["sample", "joint"])
@pytest.mark.parametrize("rows", [1, 3, 64, 65, 1100])
def test_step_sizes_of_their_own_leave_f_compiled(rows, control):
    assert_same(
        built("time") if control == "joint" else built("cubic"), start(rows), control=control, rtol=torch.tensor(1e-5)
    )


class Pair(nn.Module):
    """Two components of a state that drive each other."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(3, 2), nn.Linear(2, 3)

    def forward(self, t, state):
        x, v = state
        return torch.tanh(self.one(v)) * torch.cos(t), self.other(x)


TUPLES = {**OBSTACLES, "a norm": {"norm": lambda parts: parts[0].abs().max()}}


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("why", TUPLES)
def test_states_that_are_tuples_are_evaluated_too(why, control):
    if control == "sample" and TUPLES[why].keys() & {"event", "step_at", "norm"}:
        pytest.skip("for one step size only")
    torch.manual_seed(0)
    assert_same(Pair().double(), (start(6, dim=2), start(6, dim=3)), control=control, **TUPLES[why])


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("options", [{"gradient": "continuous"}, {"rtol": torch.tensor(1e-4)}], ids=str)
def test_stacked_members_are_evaluated_together(options, activation):
    torch.manual_seed(0)
    field = anode.stack([anode.MLPField(2, hidden=9, activation=activation).double() for _ in range(3)])
    y0 = start(30, dim=2).detach().reshape(3, 10, 2).requires_grad_()
    assert_same(field, y0, **options)


def test_the_gradient_of_a_field_that_tells_what_it_computes_is_the_engines():
    assert_same(anode.MLPField(5, hidden=7).double(), start(9), event=lambda t, y: t - 0.6)


@pytest.mark.parametrize("options", [{}, {"step_at": [0.5]}], ids=["native", "f is compiled"])
def test_a_stored_solve_can_be_differentiated_twice_also_if_the_start_depends_on_f(options):
    second = []
    for engine in ("auto", "torch"):
        f, x = built("time"), start(4)
        y0 = f.out(torch.tanh(f.into(torch.cat([x, x[:, :1]], 1))))
        y1 = anode.solve(f, y0, (0.0, 1.0), gradient="stored", engine=engine, rtol=1e-6, **options).y1
        of = [x, *f.parameters()]
        first = torch.autograd.grad(y1.square().sum(), of, create_graph=True)
        second.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), of)])
    for ours, plain in zip(*second, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("control", ["joint", "sample"])
def test_dense_output_without_gradients_is_compiled(kind, control):
    if (kind, control) == ("gates", "sample"):
        pytest.skip("takes one time")
    f, y0, times = built(kind), start(5).detach(), torch.tensor([0.21, 0.83], dtype=torch.float64)
    with torch.no_grad():
        ours, plain = (
            anode.solve(f, y0, (0.0, 1.0), dense=True, control=control, engine=engine) for engine in ("auto", "torch")
        )
    assert str(ours.engine) == "torch (dense=True keeps slopes; f is compiled)"
    torch.testing.assert_close(ours(times), plain(times), rtol=1e-9, atol=1e-9)


def test_gradients_for_times_are_compiled_where_f_knows_no_time():
    for kind, is_compiled in (("cubic", True), ("time", False)):
        results = []
        for engine in ("auto", "torch"):
            f, y0, end = built(kind), start(4), torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
            solution = anode.solve(f, y0, (0.0, end), engine=engine)
            assert solution.engine.compiled == (is_compiled and engine == "auto")
            results.append(torch.autograd.grad(solution.y1.square().sum(), [end, y0, *f.parameters()]))
        for ours, plain in zip(*results, strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-9)


def test_only_the_parameters_that_are_given_get_gradients():
    f, y0 = built("time"), start(4)
    given_params = [f.out.bias, f.into.weight]
    solution = anode.solve(f, y0, (0.0, 1.0), params=given_params)
    assert str(solution.engine) == "torch (params are given; f is compiled)"
    solution.y1.square().sum().backward()
    assert f.into.bias.grad is None
    ours = [p.grad.clone() for p in given_params]
    f.zero_grad()
    anode.solve(f, y0, (0.0, 1.0), params=given_params, engine="torch").y1.square().sum().backward()
    for one, p in zip(ours, given_params, strict=True):
        torch.testing.assert_close(one, p.grad, rtol=1e-9, atol=1e-9)


def adjoint(door, f, y0, params, **options):
    t = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64, requires_grad=True)
    f.nfe = 0
    y = door.odeint_adjoint(f, y0, t, rtol=1e-6, atol=1e-8, adjoint_params=params, **options)
    total = (y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view_as(y)).sum()
    of = [y0, t, *(f.parameters() if params is None else params)]
    return [y.detach(), *torch.autograd.grad(total, of)], f.nfe


ADJOINTS = {
    "plain": {},
    "seminorm": {"adjoint_options": {"norm": "seminorm"}},
    "a norm": {"adjoint_options": {"norm": lambda parts: torch.stack([x.abs().max() for x in parts]).max()}},
    "other tolerances": {"adjoint_rtol": 1e-4, "adjoint_atol": 1e-5},
    "another method": {"adjoint_method": "bosh3"},
    "given steps": {"method": "rk4", "options": {"step_size": 0.1}},
}


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("why", ADJOINTS)
def test_the_adjoint_of_torchdiffeq_is_compiled(why, kind, monkeypatch):
    f, y0 = built(kind), start(6)
    params = [p for name, p in f.named_parameters() if not name.startswith("idle")]
    ours, calls = adjoint(anode, f, y0, params, **ADJOINTS[why])
    theirs, _ = adjoint(torchdiffeq, f, y0, params, **ADJOINTS[why])
    monkeypatch.setenv("ANODE_ENGINE", "torch")
    plain, plain_calls = adjoint(anode, f, y0, params, **ADJOINTS[why])
    for one, same, other in zip(ours, plain, theirs, strict=True):
        torch.testing.assert_close(one, same, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)  # which takes other steps back
    assert kind != "time" or calls == plain_calls > 0


def test_the_adjoint_gives_gradients_for_some_parameters_only():
    f, y0 = built("time"), start(6)
    ours, _ = adjoint(anode, f, y0, (f.out.weight,))
    theirs, _ = adjoint(torchdiffeq, f, y0, (f.out.weight,))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_adjoint_reaches_what_a_tensor_was_computed_from():
    y0, raw = start(6), torch.linspace(0.1, 0.5, 5, dtype=torch.float64, requires_grad=True)
    rate = raw.exp()
    gradients = []
    for door in (anode, torchdiffeq):
        f = lambda t, y: -rate * y  # noqa: E731
        y = door.odeint_adjoint(f, y0, torch.tensor([0.0, 1.0]).double(), adjoint_params=(raw,))
        gradients.append(torch.autograd.grad(y[-1].square().sum(), [raw, y0], retain_graph=True))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_python_calls_f_once_in_a_solve_and_once_in_its_adjoint():
    f, y0, t = built("time"), start(5), torch.tensor([0.0, 1.0]).double()
    calls = []

    def watch(frame, event, _):
        calls.append(event == "call" and frame.f_code is TimeConcatenated.forward.__code__)

    for _ in range(2):  # the first of which traces
        calls.clear()
        sys.setprofile(watch)
        try:
            anode.odeint_adjoint(f, y0, t, rtol=1e-5, atol=1e-7)[-1].sum().backward()
        finally:
            sys.setprofile(None)
    assert sum(calls) == 2  # to see that it still is what was traced


def test_an_f_that_changes_is_traced_anew_and_one_with_side_effects_is_called():
    f, y0 = built("time"), start(4)
    options = {"event": lambda t, y: t - 0.7}
    assert_same(f, y0, **options)
    f.out = nn.Linear(8, 5, bias=False).double()
    assert_same(f, y0, **options)
    f.out.register_forward_hook(lambda *_: None)
    solution = anode.solve(f, y0, (0.0, 1.0), **options)
    assert str(solution.engine) == "torch (there is an event)"


def test_the_first_slope_decides_whether_the_program_holds(monkeypatch):
    f, y0 = built("cubic"), start(4)
    monkeypatch.setattr(CompiledDerivative, "agrees", lambda *_: False)
    solution = anode.solve(f, y0, (0.0, 1.0), step_at=[0.5])
    assert str(solution.engine) == "torch (there are times where a step has to end)"


def test_callbacks_see_what_f_has_counted():
    counts = []
    for engine in ("native", "torch"):
        f, y0 = built("time"), start(4)
        seen = []
        f.callback_step = lambda *_, f=f, seen=seen: seen.append(f.nfe)
        with pytest.MonkeyPatch.context() as patch:
            if engine == "torch":
                patch.setenv("ANODE_ENGINE", "torch")
            anode.odeint(f, y0, torch.tensor([0.0, 1.0]).double()).sum().backward()
        counts.append(seen)
    assert counts[0] == counts[1]


@given(kind=st.sampled_from(sorted(FIELDS)), rows=st.integers(1, 200), several=st.booleans(), threads=st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_an_evaluation_and_its_pullback_are_autograds_and_the_same_for_all_threads(kind, rows, several, threads):
    f, y0 = built(kind), start(rows).detach()
    several = several and kind not in ("gates",)  # which takes one time
    problem = problem_from(f, y0, torch.tensor([0.0, 1.0]).double(), 1e-5, 1e-7, None, None, None)
    dispatch.compile_field(problem, Continuous())
    derivative, plain = problem.compiled, AutogradDerivative(f, problem.compiled.parameters)
    t = torch.linspace(0.0, 1.0, rows, dtype=torch.float64)[:, None] if several else torch.tensor(0.3).double()
    g = y0.flip(0).cos()
    results = []
    for each, count in ((derivative, threads), (derivative, 1), (plain, 1)):
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        slope = each.evaluate(t, y0)
        at_y, _ = each.pull(slope, g)
        again, _ = each.pull(each.evaluate(t, y0), g)
        results.append([slope, each.rate(t, y0), at_y, again, *each.take_gradients()])
        torch.set_num_threads(before)
    for one, same, other in zip(*results, strict=True):
        assert torch.equal(one, same)
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


class Swinging(nn.Module):
    """Uses a tensor as it is, and another one to compute a third."""

    def __init__(self, rate, amplitude):
        super().__init__()
        self.rate, self.amplitude = rate, amplitude

    def forward(self, t, y):
        return -self.rate * y + self.amplitude * torch.sin(y + t)


LOOPS = {"the engine": {}, **{why: options for why, options in OBSTACLES.items() if "gradient" not in options}}


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("why", LOOPS)
def test_what_f_uses_may_have_been_computed_from_what_it_uses(why, twice):
    raw, y0 = torch.tensor(0.5, dtype=torch.float64, requires_grad=True), start(4)

    f = Swinging(None, raw)

    def gradients(engine):
        f.rate = raw * y0.sum().exp()
        solution = anode.solve(f, y0, (0.0, 1.0), engine=engine, gradient="stored", **LOOPS[why])
        first = torch.autograd.grad(solution.ys.square().sum(), [raw, y0], create_graph=twice)
        return [*first, *(torch.autograd.grad(first[0], [raw, y0]) if twice else ())]

    expected = gradients("torch")
    for _ in range(2):  # the first time, f is traced
        for ours, plain in zip(gradients("auto"), expected, strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("why", LOOPS)
def test_one_tensor_may_take_the_place_of_two(why, twice):
    y0 = start(4)

    def gradients(engine, rate, amplitude):
        f = lambda t, y: amplitude * torch.sin(y + t) + rate * y  # noqa: E731
        solution = anode.solve(f, y0, (0.0, 1.0), engine=engine, gradient="stored", **LOOPS[why])
        return torch.autograd.grad(solution.ys.square().sum(), [rate, y0], create_graph=twice)

    one, other = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.4, 0.6))
    for parts in (1.0, 2.0):  # leaves, and tensors that were computed
        gradients("auto", one if parts == 1.0 else one * parts, other if parts == 1.0 else other * parts)
        both = other if parts == 1.0 else one * parts
        for ours, plain in zip(gradients("auto", both, both), gradients("torch", both, both), strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("gradient", ["discrete", "continuous"])
def test_parameters_that_are_given_may_depend_on_each_other_or_occur_twice(gradient, engine):
    raw, y0 = torch.tensor(0.5, dtype=torch.float64, requires_grad=True), start(4)
    rate = raw.exp()
    f, settings = Swinging(rate, raw), {"rtol": 1e-9, "atol": 1e-9}
    (expected,) = torch.autograd.grad(
        anode.solve(f, y0, (0.0, 1.0), gradient="stored", engine="torch", **settings).y1.sum(), raw, retain_graph=True
    )
    for params in ((raw, rate), (rate, raw, rate, raw)):
        y1 = anode.solve(f, y0, (0.0, 1.0), gradient=gradient, params=params, engine=engine, **settings).y1
        (ours,) = torch.autograd.grad(y1.sum(), raw, retain_graph=True)
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-7)


def test_the_adjoint_takes_parameters_that_depend_on_each_other_or_occur_twice(monkeypatch):
    raw, y0, t = torch.tensor(0.5, dtype=torch.float64, requires_grad=True), start(4), torch.tensor([0.0, 1.0]).double()
    rate = raw.exp()
    f = Swinging(rate, raw)
    (expected,) = torch.autograd.grad(torchdiffeq.odeint(f, y0, t)[-1].sum(), raw, retain_graph=True)
    for engine in ("auto", "torch"):
        monkeypatch.setenv("ANODE_ENGINE", engine)
        y1 = anode.odeint_adjoint(f, y0, t, adjoint_params=(raw, rate, raw))[-1]
        torch.testing.assert_close(torch.autograd.grad(y1.sum(), raw, retain_graph=True)[0], expected)


@pytest.mark.parametrize("why", [why for why in LOOPS if why != "the engine"])
def test_gradients_reach_what_was_computed_before_the_first_solve_of_f(why):
    raw = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    f = Swinging(raw.exp(), raw.cos())
    solution = anode.solve(f, start(4).detach(), (0.0, 1.0), **LOOPS[why])
    assert solution.engine.compiled
    (ours,) = torch.autograd.grad(solution.ys.sum(), raw, retain_graph=True)
    plain = anode.solve(f, start(4).detach(), (0.0, 1.0), engine="torch", **LOOPS[why])
    torch.testing.assert_close(ours, torch.autograd.grad(plain.ys.sum(), raw)[0], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"step_at": [0.5]}], ids=["the engine's loop", "the loop in Python"])
def test_only_code_of_the_user_is_called_in_every_solve(options):
    layers, y0 = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double(), start(4, dim=4)
    users = Calling(layers)
    for f, expected in ((layers, 0), (anode.SecondOrder(anode.MLPField(2, inputs=4)).double(), 0), (users, 1)):
        anode.solve(f, y0, (0.0, 1.0), **options)
        assert len(calls_of_modules(lambda f=f: anode.solve(f, y0, (0.0, 1.0), **options), f)) == expected


class Calling(nn.Module):
    """A module with code of its own."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, t, y):
        return self.layers(y)


def calls_of_modules(call, f):
    """Return the calls of f's forward method while another function runs."""
    found, code = [], type(f).forward.__code__

    def profile(frame, event, _):
        if event == "call" and frame.f_code is code and frame.f_locals["self"] is f:
            found.append(frame)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found
