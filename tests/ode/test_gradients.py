import contextlib
import gc
import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

import anode
from anode import Continuous
from anode.models import backprop, fields
from anode.ode.tableaus import TABLEAUS

MODES = ("discrete", "stored", "continuous")
EXACT = ("discrete", "stored")
CONTROLS = ("joint", "member", "sample")
ADAPTIVE = [method for method in anode.METHODS if TABLEAUS[method].adaptive]

HALVING = anode.PID(i=0.0, safety=0.5)
"""Halves a rejected step and repeats an accepted one: the sizes depend on decisions only, not on values."""


def double(*values: float, grad: bool = True) -> Tensor:
    return torch.tensor(values if len(values) > 1 else values[0], dtype=torch.float64, requires_grad=grad)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, grad: bool = True) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(dtype).requires_grad_(grad)


def steps_of(method: str, size: float, **halving) -> dict:
    """Options under which a method's steps are constants."""
    if not TABLEAUS[method].adaptive:
        return {"method": method, "step_size": size}
    return {"method": method, "first_step": size, "controller": HALVING, **halving}


class Counted:
    """A right-hand side that counts how often it is called."""

    def __init__(self, f):
        self.f, self.calls = f, 0

    def __call__(self, t, y):
        self.calls += 1
        return self.f(t, y)


class Net(nn.Module):
    """A small network that depends on time and counts how often it is called; one of its parameters is not used."""

    def __init__(self, dim: int = 2, hidden: int = 5, seed: int = 0):
        super().__init__()
        self.inner = nn.Parameter(normal(dim, hidden, seed=seed))
        self.outer = nn.Parameter(normal(hidden, dim, seed=seed + 1) / hidden)
        self.unused = nn.Parameter(normal(3, 4, seed=seed + 2))
        self.calls = 0

    def forward(self, t, y):
        self.calls += 1
        return torch.tanh(y @ self.inner + t) @ self.outer


def gradients_of(loss: Tensor, tensors) -> list[Tensor]:
    grads = torch.autograd.grad(loss, tensors, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, grads, strict=True)]


def assert_same(left, right, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


# -------------------------------------------------------------------------------------------------- finite differences


SPEEDS = torch.tensor([[[0.3]], [[4.0]]], dtype=torch.float64)
"""Of two groups, the second of which needs smaller steps."""


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("gradient", EXACT)
@pytest.mark.parametrize("method", anode.METHODS)
def test_exact_gradients_match_finite_differences(method, gradient, control):
    tol = {"adaptive_heun": 3e-2, "bosh3": 1e-3, "fehlberg2": 1e-4}.get(method, 1e-5)
    options = steps_of(method, 0.3, rtol=tol, atol=tol)

    def run(y0, matrix, t0, t1, *saved):
        def f(t, y):
            return SPEEDS * (torch.sin(y @ matrix + t) - y * t)

        solution = anode.solve(f, y0, (t0, t1), save_at=saved, gradient=gradient, control=control, **options)
        assert solution.gradient == gradient
        rejected = torch.as_tensor(solution.stats.rejected).flatten()
        assert rejected[-1] > (0 if control == "joint" else rejected[0]) or method not in ADAPTIVE
        return solution.ys, solution.y1

    inputs = (normal(2, 1, 2), normal(2, 2, seed=2), double(0.1), double(0.87), double(0.53), double(0.81))
    assert gradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("method", anode.METHODS)
def test_continuous_gradients_match_finite_differences(method, control):
    order = TABLEAUS[method].order
    tol = 1e-4 if method == "adaptive_heun" else 1e-6
    options = {"method": method, "rtol": tol, "atol": tol}
    if not TABLEAUS[method].adaptive:
        options["step_size"] = {1: 0.006, 2: 0.025}.get(order, 0.06)

    def run(y0, matrix, t0, t1, saved):
        def f(t, y):
            return torch.sin(y @ matrix + t) - y * y * t

        solution = anode.solve(f, y0, (t0, t1), save_at=[saved], gradient="continuous", control=control, **options)
        assert solution.gradient == "continuous"
        return solution.ys[0], solution.y1

    y0 = torch.stack([0.1 * normal(1, 2), normal(1, 2, seed=1)]).detach().requires_grad_()
    # The solver's own error, of size h^order, is what separates this gradient from the differences.
    inputs = (y0, normal(2, 2, seed=2), double(0.1), double(0.45), double(0.333))
    assert gradcheck(run, inputs, atol={1: 1e-2, 2: 1e-3}.get(order, 1e-4), rtol=0.0, fast_mode=True)


@pytest.mark.parametrize("gradient", MODES)
@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("method", ["dopri5", "bosh3", "rk4"])
def test_gradients_of_tuples_solved_backward_in_time_match_finite_differences(method, control, gradient):
    options = steps_of(method, 0.2, rtol=1e-3, atol=1e-3)
    if gradient == "continuous":
        options = {"method": method, "rtol": 1e-6, "atol": 1e-6, "step_size": 0.05 if method == "rk4" else None}

    def run(x0, v0, stiffness, t0, t1):
        def f(t, state):
            x, v = state
            return v.sum(-1, keepdim=True), -stiffness * torch.sin(x) * v + t

        solution = anode.solve(f, (x0, v0), (t0, t1), gradient=gradient, control=control, **options)
        return solution.y1

    inputs = (normal(2, 1), normal(2, 2, seed=1), double(1.3), double(0.5), double(-0.13))
    assert gradcheck(run, inputs, **({"atol": 1e-4, "rtol": 0.0} if gradient == "continuous" else {}), fast_mode=True)


# ---------------------------------------------------------------------------------------------------- discrete = stored


def same_both_ways(f, y0, params, **options):
    """Solve with both exact gradients, check that they agree, and return them."""
    found = []
    for gradient in EXACT:
        solution = anode.solve(f, y0, gradient=gradient, **options)
        assert solution.gradient == gradient
        assert solution.success
        assert torch.as_tensor(solution.stats.rejected).sum() > 0
        states = [*tree_leaves(solution.ys), *tree_leaves(solution.y1)]
        value = sum((state * torch.linspace(-1, 2, state.numel()).view_as(state)).sum() for state in states)
        found.append(gradients_of(value, (*tree_leaves(y0), *params)))
    tolerance = 1e-9 if found[0][0].dtype == torch.float64 else 2e-4
    assert_same(*found, rtol=tolerance, atol=tolerance * 1e-2)
    assert any(g.abs().sum() > 0 for g in found[0])
    return found[0]


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("method", ADAPTIVE)
def test_discrete_equals_stored_for_a_module(method, control):
    net = Net()
    rtol = {2: 1e-3, 3: 1e-4}.get(TABLEAUS[method].order, 1e-8)
    options = {"t_span": (0.2, 1.7), "save_at": [0.2, 0.9, 1.7], "rtol": rtol, "first_step": 1.4}
    same_both_ways(net, normal(2, 3, 2), tuple(net.parameters()), method=method, control=control, **options)


@pytest.mark.parametrize("controller", ["integral", "pi", "pid"])
@pytest.mark.parametrize("control", CONTROLS)
def test_discrete_equals_stored_for_a_closure_over_leaves(control, controller):
    matrix, shift = normal(2, 2, seed=1), normal(2, seed=2)
    same_both_ways(
        lambda t, y: torch.cos(y @ matrix + shift * t) - y,
        normal(2, 3, 2),
        (matrix, shift),
        t_span=(1.0, -1.0),
        save_at=[0.5, -0.25],
        first_step=1.0,
        control=control,
        controller=controller,
    )


@pytest.mark.parametrize("control", ["joint", "sample"])
def test_discrete_equals_stored_for_tuples(control):
    a, b = double(1.5), normal(3, seed=5)

    def f(t, state):
        x, y = state
        return torch.sin(a * y.sum(-1)) - x, b * torch.cos(x).unsqueeze(-1) - y * t

    y0 = (normal(4), normal(4, 3, seed=1))
    same_both_ways(f, y0, (a, b), t_span=(0.0, 2.0), save_at=[1.0], first_step=2.0, control=control)


def test_discrete_equals_stored_for_an_f_that_differentiates_inside():
    scale = double(0.7)

    def f(t, y):
        with torch.enable_grad():
            y = y if y.requires_grad else y.detach().requires_grad_()
            energy = (torch.cos(y[..., 0]) + scale * y[..., 1] ** 4).sum()
            (force,) = torch.autograd.grad(energy, y, create_graph=True)
        return force.flip(-1) * torch.tensor([1.0, -1.0], dtype=y.dtype)

    same_both_ways(f, normal(3, 2), (scale,), t_span=(0.0, 1.0), first_step=1.0, rtol=1e-5)


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("gradient", MODES)
def test_f_may_differentiate_if_autograd_is_on_around_solve(gradient, frozen, engine, monkeypatch):
    monkeypatch.setattr("anode.ode.field.BYTES_KEPT", 0)  # evaluate again what would be kept
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double().requires_grad_(not frozen)

    def force(t, y):
        y = y.requires_grad_()
        energy = net(torch.cat([y, t.expand(len(y), 1)], dim=1))
        return torch.autograd.grad(energy.sum(), y, create_graph=True)[0]

    settings = {"gradient": gradient, "engine": engine, "rtol": 1e-6}
    solution = anode.solve(force, normal(3, 2, grad=False), (0.0, 1.0), **settings)
    assert solution.success
    if not frozen:
        solution.y1.sum().backward()
        assert all(p.grad is not None for p in net.parameters() if p is not net[-1].bias)
    failed = anode.solve(force, normal(3, 2, grad=False), (0.0, 1.0), max_steps=2, **settings)
    assert failed.status is anode.Status.MAX_STEPS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3)])
@pytest.mark.parametrize("time", [True, False])
@pytest.mark.parametrize("activation", fields.ACTIVATIONS)
def test_discrete_equals_stored_for_an_mlp(activation, time, shape, control, dtype):
    torch.manual_seed(0)
    field = anode.MLPField(3, hidden=8, time=time, activation=activation).to(dtype)
    for parameter in field.parameters():
        parameter.data *= 2
    same_both_ways(
        field,
        normal(*shape, dtype=dtype),
        tuple(field.parameters()),
        t_span=(0.0, 1.5),
        save_at=[0.7],
        first_step=1.5,
        rtol=1e-6,
        control=control,
        controller=HALVING,  # otherwise the rounding of error estimates decides where relu's kinks fall
    )


# ----------------------------------------------------------------------------------------------------------- continuous


def test_continuous_gradients_converge_to_the_discrete_ones():
    net, y0, t1 = Net(), normal(4, 2), double(1.5)
    wanted = (y0, *net.parameters(), t1)

    def gradient(kind, tol):
        solution = anode.solve(net, y0, (0.0, t1), gradient=kind, rtol=tol, atol=tol)
        return torch.cat([g.flatten() for g in gradients_of((solution.y1**2).sum(), wanted)])

    exact = gradient("discrete", 1e-12)
    errors = [(gradient("continuous", tol) - exact).norm() / exact.norm() for tol in (1e-3, 1e-5, 1e-7, 1e-9)]
    assert all(later < 0.2 * earlier for earlier, later in pairwise(errors))
    assert errors[-1] < 1e-8


@pytest.mark.parametrize("control", ["joint", "sample"])
def test_the_seminorm_saves_evaluations_and_agrees(control):
    net, y0 = Net(hidden=30), normal(4, 2)

    def backward(seminorm):
        options = {"rtol": 1e-6, "atol": 1e-9, "control": control}
        solution = anode.solve(net, y0, (0.0, 3.0), gradient=Continuous(seminorm=seminorm), **options)
        grads = gradients_of((solution.y1**2).sum(), (y0, *net.parameters()))
        return grads, solution.stats.nfe_backward

    (full, full_cost), (semi, semi_cost) = backward(False), backward(True)
    assert semi_cost < full_cost
    assert_same(semi, full, rtol=1e-3, atol=1e-5)


def test_the_backward_solve_takes_its_own_method_and_tolerances():
    net, y0 = Net(), normal(4, 2)

    def cost(**adjoint):
        solution = anode.solve(net, y0, (0.0, 1.0), method="bosh3", gradient=Continuous(**adjoint))
        solution.y1.sum().backward()
        return solution.stats.nfe_backward

    assert cost(rtol=1e-8, atol=1e-8) > 4 * cost()
    assert cost(rtol=1e-8, atol=1e-8, method="dopri8") < cost(rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rtol": -1.0}, "rtol: takes a number above 0, got -1.0"),
        ({"atol": 0}, "atol: takes a number above 0, got 0"),
        ({"method": "dopri"}, "method: takes one of .*, got 'dopri'; did you mean 'dopri"),
        ({"seminorm": "yes"}, "seminorm: takes True or False, got 'yes'"),
    ],
)
def test_a_bad_setting_of_the_backward_solve_is_refused_when_it_is_given(settings, said):
    with pytest.raises(ValueError, match=said):
        Continuous(**settings)


def test_a_backward_method_that_cannot_adapt_its_steps_is_refused_before_the_forward_solve():
    with pytest.raises(ValueError, match=r"gradient: takes an adaptive method .*, got 'rk4'"):
        anode.solve(Net(), normal(4, 2), (0.0, 1.0), gradient=Continuous(method="rk4"))


def test_the_continuous_adjoint_keeps_to_the_steps_it_was_told_to_end():
    rate = double(0.8)

    def f(t, y):
        if not 0 <= t <= 1:
            raise RuntimeError("f was evaluated outside of its domain")
        return rate * y

    found = []
    for gradient in ("discrete", "continuous"):
        solution = anode.solve(f, double(1.0, 2.0), (0.0, 1.0), step_at=[0.0, 1.0], gradient=gradient, rtol=1e-8)
        found.append(gradients_of(solution.y1.sum(), (rate,)))
    assert_same(*found, rtol=1e-6)


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
@pytest.mark.parametrize("gradient", MODES)
def test_a_span_of_no_length_passes_gradients_straight_through(gradient, method):
    y0, rate = normal(3), double(2.0)
    options = {"method": method, "step_size": None if method == "dopri5" else 0.1}
    solution = anode.solve(lambda t, y: rate * y, y0, (1.0, 1.0), gradient=gradient, **options)
    assert_same(gradients_of(solution.y1.sum(), (y0, rate)), (torch.ones_like(y0), torch.zeros_like(rate)))


# ---------------------------------------------------------------------------------------------------------------- times


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("gradient", MODES)
def test_the_gradient_of_the_end_time_is_the_slope_there(gradient, control):
    net, y0, cotangent = Net(), normal(3, 2, grad=False), normal(3, 2, seed=9, grad=False)
    t0, t1 = double(0.3), double(1.1)
    options = {"rtol": 1e-10, "atol": 1e-12, "method": "tsit5"}
    solution = anode.solve(net, y0, (t0, t1), gradient=gradient, control=control, **options)
    at_start, at_end = gradients_of((solution.y1 * cotangent).sum(), (t0, t1))
    slope = net(t1, solution.y1).detach()
    torch.testing.assert_close(at_end, (slope * cotangent).sum(), rtol=1e-6, atol=1e-7)
    # Moving the start along the flow would change nothing, so moving it alone undoes the slope there.
    tangent = torch.autograd.functional.jvp(
        lambda y: anode.solve(net, y, (0.3, 1.1), gradient="stored", **options).y1, y0, net(t0, y0).detach()
    )[1]
    torch.testing.assert_close(at_start, -(tangent * cotangent).sum(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("gradient", MODES)
def test_times_alone_can_be_differentiated(gradient):
    t1 = double(1.0)
    solution = anode.solve(lambda t, y: -y, torch.ones(2, dtype=torch.float64), (0.0, t1), gradient=gradient, rtol=1e-8)
    assert solution.gradient == gradient
    assert_same(gradients_of(solution.y1.sum(), (t1,)), (double(-2 / math.e),), rtol=1e-5)


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
@pytest.mark.parametrize("gradient", MODES)
def test_moving_the_start_does_not_move_the_jumps_of_f(gradient, method):
    t0, t1, before, after = double(0.0), double(1.0), double(1.0), double(3.0)
    solution = anode.solve(
        lambda t, y: torch.where(t < 0.5, before, after).expand_as(y),
        torch.zeros(1, dtype=torch.float64),
        (t0, t1),
        step_at=[0.5],
        gradient=gradient,
        method=method,
        step_size=0.25 if method == "rk4" else None,
    )
    expected = double(-1.0), double(3.0), double(0.5), double(0.5)
    assert_same(gradients_of(solution.y1.sum(), (t0, t1, before, after)), expected, rtol=1e-6)


@pytest.mark.parametrize("gradient", MODES)
def test_saving_at_both_ends_gives_each_end_its_gradient(gradient):
    y0, t0, t1 = double(1.0, 2.0), double(0.0), double(1.0)
    options = {"rtol": 1e-9, "atol": 1e-9, "gradient": gradient}
    solution = anode.solve(lambda t, y: -y, y0, (t0, t1), save_at=[t0, t1], **options)
    start, end = solution.ys
    assert_same(gradients_of(start.sum(), (y0, t0, t1)), (torch.ones_like(y0), double(0.0), double(0.0)))
    solution = anode.solve(lambda t, y: -y, y0, (t0, t1), save_at=[t0, t1], **options)
    start, end = solution.ys
    expected = (torch.full_like(y0, 1 / math.e), double(3 / math.e), double(-3 / math.e))
    assert_same(gradients_of(end.sum(), (y0, t0, t1)), expected, rtol=1e-6)


# ---------------------------------------------------------------------------------------------------- what f depends on


@pytest.mark.parametrize("gradient", ["discrete", "continuous"])
def test_unused_parameters_get_zeros_of_their_own_shape(gradient):
    net = Net()
    anode.solve(net, normal(3, 2), (0.0, 1.0), gradient=gradient).y1.sum().backward()
    assert torch.equal(net.unused.grad, torch.zeros(3, 4, dtype=torch.float64))
    assert net.inner.grad.abs().sum() > 0


@pytest.mark.parametrize("gradient", MODES)
def test_an_f_that_ignores_the_state_is_differentiated(gradient):
    y0, slope, idle = normal(2), normal(2, seed=1), double(3.0)
    solution = anode.solve(lambda t, y: slope * t + 0 * idle, y0, (0.0, 2.0), gradient=gradient)
    expected = (torch.ones_like(y0), torch.full_like(slope, 2.0), torch.zeros_like(idle))
    assert_same(gradients_of(solution.y1.sum(), (y0, slope, idle)), expected)


@pytest.mark.parametrize("gradient", MODES)
def test_an_f_that_returns_a_leaf_as_it_is_is_differentiated(gradient):
    slope = normal(2)
    solution = anode.solve(lambda t, y: slope, normal(2, seed=1), (0.0, 2.0), gradient=gradient)
    assert_same(gradients_of(solution.y1.sum(), (slope,)), (torch.full_like(slope, 2.0),))


@pytest.mark.parametrize("gradient", ["discrete", "continuous"])
def test_a_leaf_that_only_a_later_branch_uses_is_not_lost_silently(gradient):
    early, late = double(-1.0), double(-2.0)
    with pytest.raises(RuntimeError, match="params"):
        anode.solve(
            lambda t, y: (early if t < 0.5 else late) * y, double(1.0), (0.0, 1.0), rtol=1e-6, gradient=gradient
        ).y1.sum().backward()


def test_a_computed_tensor_makes_discrete_fall_back_to_stored():
    root = double(0.5)
    rate = root**2
    solution = anode.solve(lambda t, y: -rate * y, double(1.0, 2.0), (0.0, 1.0), rtol=1e-8, atol=1e-8)
    assert solution.gradient == "stored"
    expected = -3 * 2 * 0.5 * math.exp(-0.25)
    assert_same(gradients_of(solution.y1.sum(), (root,)), (double(expected),), rtol=1e-6)


@pytest.mark.parametrize("gradient", ["discrete", "continuous"])
def test_naming_a_computed_tensor_in_params_keeps_the_gradient_asked_for(gradient):
    root = double(0.5)
    rate = root**2
    options = {"rtol": 1e-8, "atol": 1e-8, "gradient": gradient, "params": (rate,)}
    solution = anode.solve(lambda t, y: -rate * y, double(1.0, 2.0), (0.0, 1.0), **options)
    assert solution.gradient == gradient
    assert_same(gradients_of(solution.y1.sum(), (root,)), (double(-3 * 2 * 0.5 * math.exp(-0.25)),), rtol=1e-6)


def test_a_computed_tensor_beside_the_continuous_adjoint_is_an_error_that_names_params():
    rate = double(0.5) ** 2
    with pytest.raises(ValueError, match="params"):
        anode.solve(lambda t, y: -rate * y, double(1.0), (0.0, 1.0), gradient="continuous")


def test_params_limit_what_is_differentiated():
    net, y0 = Net(), normal(3, 2)
    solution = anode.solve(net, y0, (0.0, 1.0), params=(net.outer,))
    inner, outer = torch.autograd.grad(solution.y1.sum(), (net.inner, net.outer), allow_unused=True)
    assert inner is None
    full = gradients_of(anode.solve(net, y0, (0.0, 1.0)).y1.sum(), (net.outer,))
    assert_same((outer,), full)


# --------------------------------------------------------------------------------------------------- nothing to be done


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("gradient", MODES)
@pytest.mark.parametrize("why", ["no_grad", "nothing requires grad"])
def test_without_gradients_f_is_called_just_as_often_as_counted(why, gradient, control):
    rate = double(-1.0, grad=why == "no_grad")
    f = Counted(lambda t, y: rate * y * y)
    y0 = normal(3, 2, grad=why == "no_grad")
    with torch.no_grad() if why == "no_grad" else contextlib.nullcontext():
        solution = anode.solve(f, y0, (0.0, 1.0), gradient=gradient, control=control, save_at=[0.5])
    assert solution.gradient == "none"
    assert not solution.y1.requires_grad
    assert not solution.ys.requires_grad
    assert f.calls == solution.stats.calls
    assert control == "sample" or f.calls == solution.stats.nfe


# ----------------------------------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("gradient", [*MODES, "dense"])
@pytest.mark.parametrize("method", ["dopri5", "adaptive_heun", "rk4"])
def test_every_call_of_f_is_counted(method, gradient, control):
    net, t1 = Net(), double(1.5)
    options = {"rtol": 1e-5, "first_step": 1.0} if TABLEAUS[method].adaptive else {"step_size": 0.2}
    how = {"dense": True} if gradient == "dense" else {"gradient": gradient}
    solution = anode.solve(
        net, normal(3, 2), (0.0, t1), method=method, control=control, save_at=[0.4], **how, **options
    )
    stats, forward = solution.stats, net.calls
    assert stats.nfe_backward == 0
    (solution.y1.sum() + solution.ys.sum()).backward()
    assert {"forward": stats.calls, "backward": stats.nfe_backward} == {
        "forward": forward,
        "backward": net.calls - forward,
    }
    assert control == "sample" or stats.nfe == stats.calls
    assert (stats.nfe_backward == 0) == (gradient in ("stored", "dense"))


def test_every_call_of_f_is_counted_when_discrete_falls_back_to_stored():
    rate = double(0.5) ** 2
    f = Counted(lambda t, y: -rate * y)
    assert anode.solve(f, normal(2), (0.0, 1.0)).stats.nfe == f.calls


# ----------------------------------------------------------------------------------------------------- autograd's rules


@pytest.mark.parametrize("method", ["dopri5", "bosh3", "rk4"])
def test_stored_gradients_can_be_differentiated_again(method):
    options = steps_of(method, 0.3, rtol=1e-3, atol=1e-3)

    def run(y0, rate, t1):
        return anode.solve(lambda t, y: -rate * y**2 * t, y0, (0.2, t1), gradient="stored", **options).y1

    assert gradgradcheck(run, (double(1.0, 0.5), double(0.7), double(1.0)))


def test_the_stored_second_derivative_is_the_closed_form():
    def end(rate):
        y0 = torch.tensor([1.0, 2.0], dtype=torch.float64)
        return anode.solve(lambda t, y: rate * y, y0, (0.0, 2.0), gradient="stored", rtol=1e-9, atol=1e-9).y1.sum()

    hessian = torch.autograd.functional.hessian(end, double(-0.5))
    torch.testing.assert_close(hessian, double(3 * 4 * math.exp(-1), grad=False), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("gradient", ["discrete", "continuous"])
@pytest.mark.parametrize("use", ["backward", "penalty", "hessian"])
def test_other_gradients_refuse_to_be_differentiated_again(use, gradient):
    rate = double(-0.5)

    def loss(rate):
        y1 = anode.solve(lambda t, y: rate * y, double(1.0), (0.0, 1.0), gradient=gradient, params=(rate,)).y1
        return y1 if use == "penalty" else y1**2

    def differentiate_twice():
        if use == "hessian":
            return torch.autograd.functional.hessian(loss, rate)
        value = loss(rate)
        (first,) = torch.autograd.grad(value, rate, create_graph=True)
        return (first if use == "backward" else value + first**2).backward()

    with pytest.raises(RuntimeError, match="differentiat"):
        differentiate_twice()


@pytest.mark.parametrize("gradient", MODES)
@pytest.mark.parametrize("kind", ["module", "field"])
def test_backward_twice_over_a_retained_graph_gives_the_same(kind, gradient):
    torch.manual_seed(0)
    f = Net() if kind == "module" else anode.MLPField(2, hidden=6, activation="tanh").double()
    inputs = (normal(3, 2), *f.parameters())
    loss = (anode.solve(f, inputs[0], (0.0, 1.0), gradient=gradient).y1 ** 2).sum()
    first = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
    again = torch.autograd.grad(loss, inputs, allow_unused=True)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("gradient", MODES)
@pytest.mark.parametrize("kind", ["module", "field", "closure"])
def test_changing_a_parameter_before_backward_is_an_error(kind, gradient):
    rate = double(-1.0)
    f = {"module": Net(), "field": anode.MLPField(2).double(), "closure": lambda t, y: rate * y}[kind]
    solution = anode.solve(f, normal(3, 2), (0.0, 1.0), gradient=gradient)
    with torch.no_grad():
        for parameter in (rate,) if kind == "closure" else f.parameters():
            parameter.add_(0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        solution.y1.sum().backward()


# ----------------------------------------------------------------------------------------------- failures and gradients


@pytest.mark.parametrize("gradient", EXACT)
@pytest.mark.parametrize("method", ["dopri5", "bosh3", "rk4"])
def test_a_rejected_or_failed_group_does_not_poison_the_gradients_of_the_others(method, gradient):
    # The root is NaN where a step that is too long overshoots zero. With adaptive steps the second group then takes
    # smaller ones and succeeds; with given steps it fails.
    options = {"step_size": 0.25} if method == "rk4" else {"first_step": 0.5, "rtol": 1e-5}
    speeds = torch.tensor([[1.0], [30.0], [2.0]], dtype=torch.float64)

    def solve(rows):
        rate, y0 = double(1.0), torch.tensor([[1.0, 2.0], [1.0, 3.0], [2.0, 1.0]], dtype=torch.float64)[rows]
        y0.requires_grad_()
        solution = anode.solve(
            lambda t, y: -rate * speeds[rows] * y * torch.sqrt(y),
            y0,
            (0.0, 1.0),
            method=method,
            gradient=gradient,
            control="sample",
            **options,
        )
        return rate, y0, solution

    rate, y0, solution = solve([0, 1, 2])
    good = solution.status == anode.Status.SUCCESS
    assert good.tolist() == [True, method != "rk4", True]
    assert torch.as_tensor(solution.stats.rejected)[1] > 0
    at_rate, at_y0 = gradients_of(solution.y1[good].sum(), (rate, y0))
    expected = torch.zeros_like(rate)
    for row in good.nonzero().flatten().tolist():
        alone, start, single = solve([row])
        part, at_start = gradients_of(single.y1.sum(), (alone, start))
        expected = expected + part
        assert_same((at_y0[row],), (at_start[0],))
    assert_same((at_rate,), (expected,))
    assert good[1] or torch.equal(at_y0[1], torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("gradient", EXACT)
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_every_call_of_f_is_counted_when_a_group_leaves_the_domain_of_f(method, gradient):
    speeds = torch.tensor([[1.0], [30.0]], dtype=torch.float64)
    f = Counted(lambda t, y: -speeds * y * torch.sqrt(y))
    options = {"method": method, "gradient": gradient, "control": "sample"}
    options |= {"step_size": 0.25} if method == "rk4" else {"first_step": 0.5, "rtol": 1e-5}
    assert (
        anode.solve(f, (1 + normal(2, 2) ** 2).detach().requires_grad_(), (0.0, 1.0), **options).stats.calls == f.calls
    )


@pytest.mark.parametrize("gradient", EXACT)
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_a_group_without_a_finite_slope_does_not_poison_the_gradients_of_the_others(method, gradient):
    rate, y0 = double(-0.5), torch.tensor([[1.0], [-1.0]], dtype=torch.float64, requires_grad=True)
    options = {"method": method, "step_size": 0.25 if method == "rk4" else None, "rtol": 1e-6}
    solution = anode.solve(
        lambda t, y: rate * torch.sqrt(y), y0, (0.0, 1.0), gradient=gradient, control="sample", **options
    )
    assert solution.status.tolist() == [anode.Status.SUCCESS, anode.Status.NON_FINITE]
    at_rate, at_y0 = gradients_of(solution.y1[0].sum(), (rate, y0))
    end = 1 - 0.25  # the root of y moves by rate / 2 a unit of time
    assert_same((at_rate, at_y0), (double(end), torch.tensor([[end], [0.0]], dtype=torch.float64)), rtol=1e-4)


@pytest.mark.parametrize("gradient", MODES)
def test_gradients_of_a_failed_solve_flow_through_the_part_that_was_solved(gradient):
    rate, y0 = double(-1.0), normal(2)
    adjoint = Continuous(rtol=1e-2, atol=1e-2) if gradient == "continuous" else gradient  # has to keep to max_steps too
    options = {"rtol": 1e-6, "atol": 1e-8, "gradient": adjoint}
    solution = anode.solve(lambda t, y: rate * y, y0, (0.0, 50.0), max_steps=7, save_at=[0.1, 40.0], **options)
    assert solution.status == anode.Status.MAX_STEPS
    assert 0.1 < solution.t1 < 40
    reached = gradients_of(solution.ys[0].sum() + solution.y1.sum(), (rate, y0))
    whole = anode.solve(lambda t, y: rate * y, y0, (0.0, solution.t1), save_at=[0.1], **options)
    assert_same(reached, gradients_of(whole.ys[0].sum() + whole.y1.sum(), (rate, y0)), rtol=1e-7)


@pytest.mark.parametrize("gradient", EXACT)
def test_gradients_of_failed_groups_flow_through_the_part_that_was_solved(gradient):
    rate, y0 = double(-1.0), torch.tensor([[1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    stiff = torch.tensor([[1.0], [100.0]], dtype=torch.float64)
    options = {"rtol": 1e-4, "gradient": gradient, "control": "sample", "save_at": [0.01, 0.5]}
    solution = anode.solve(lambda t, y: rate * stiff * y, y0, (0.0, 1.0), max_steps=20, **options)
    assert solution.status.tolist() == [anode.Status.SUCCESS, anode.Status.MAX_STEPS]
    loss = solution.y1.sum() + solution.ys[0].sum() + solution.ys[1, 0].sum()
    reached, expected = solution.t1[1].item(), double(-1.0)
    ends = expected * torch.tensor([1.0, 100 * reached], dtype=torch.float64)
    saved = expected * torch.tensor([0.01, 1.0], dtype=torch.float64)
    exact = (torch.tensor([1.0, 2.0]) * (ends.exp() + saved.exp())).sum() + (0.5 * expected).exp()
    assert_same(gradients_of(loss, (rate,)), gradients_of(exact, (expected,)), rtol=2e-3)


# ---------------------------------------------------------------------------------------------------------------- dense


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("method", ["dopri5", "bosh3", "rk4", "dopri8"])
def test_the_dense_output_is_differentiable(method, control):
    options = steps_of(method, 0.3, rtol=1e-3, atol=1e-5)

    def run(y0, rate, t0, t1, t):
        solution = anode.solve(
            lambda t, y: torch.sin(rate * y + t), y0, (t0, t1), dense=True, control=control, **options
        )
        assert solution.gradient == "stored"
        return solution(t)

    y0 = torch.tensor([[0.3], [4.0]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(run, (y0, double(3.0), double(0.1), double(0.95), double(0.25, 0.83)))


# --------------------------------------------------------------------------------------------------------------- memory


class LiveMemory(TorchDispatchMode):
    """Knows how many bytes of the tensors made under it are still alive."""

    def __init__(self):
        super().__init__()
        self._storages = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._storages[tensor.untyped_storage()] = None
        return result

    def bytes(self) -> int:
        gc.collect()
        return sum(storage.nbytes() for storage in self._storages)


def bytes_held(f, y0, gradient, steps, method="rk4"):
    with LiveMemory() as memory:
        solution = anode.solve(f, y0, (0.0, 1.0), gradient=gradient, method=method, step_size=1 / steps, engine="torch")
    held = memory.bytes()
    solution.y1.sum().backward()
    return held, solution.stats


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_discrete_holds_one_state_a_step_where_stored_holds_the_activations(method, monkeypatch):
    monkeypatch.setattr("anode.ode.field.BYTES_KEPT", 0)
    batch, hidden = 16, 256
    net, y0 = Net(hidden=hidden), normal(batch, 2, grad=False)

    def growth(gradient):
        (few, _), (many, _) = (bytes_held(net, y0, gradient, steps, method) for steps in (5, 15))
        return (many - few) / 10

    state, activations = batch * 2 * 8, batch * hidden * 8
    assert growth("discrete") == state
    assert growth("continuous") == 0
    assert growth("stored") >= len(TABLEAUS[method].stages) * activations


def test_graphs_of_evaluations_are_kept_while_they_fit_into_the_budget(monkeypatch):
    net, y0 = Net(hidden=256), normal(16, 2, grad=False)
    budget = 10 * 4 * (2 * 16 * 256 * 8)  # about what ten steps take
    monkeypatch.setattr("anode.ode.field.BYTES_KEPT", budget)
    (few, early), (many, late), (more, _) = (bytes_held(net, y0, "discrete", steps) for steps in (4, 40, 60))
    assert early.nfe_backward == 1  # at the start, where f was evaluated to see what it depends on
    assert 0 < late.nfe_backward < 40 * 4
    assert few < many <= 2 * budget
    times = 20 * 4 * 8  # those of many steps are in one tensor, which graphs that are kept hold
    assert more - many == 20 * y0.nbytes + times  # beyond the budget only states


def test_a_field_keeps_no_more_activations_than_it_may():
    torch.manual_seed(0)
    field, batch, stages = anode.MLPField(2, hidden=256), 64, 4
    y0, width = torch.ones(batch, 2), 2 + 256 + 256
    fitting = backprop.ELEMENTS_KEPT // (stages * width * batch)
    assert fitting > 2
    kept = {steps: bytes_held(field, y0, "discrete", steps) for steps in (fitting - 2, fitting, fitting + 5)}
    some, full, more = (held for held, _ in kept.values())
    assert full - some >= 2 * stages * 2 * 256 * batch * 4  # below the bound everything is kept
    assert full <= 4 * (backprop.ELEMENTS_KEPT + fitting * (stages + 2) * y0.numel())
    assert more - full <= 5 * y0.nbytes + 4 * width * batch  # above it only states
    assert [stats.nfe_backward for _, stats in kept.values()] == [0, 0, 5 * stages]


def test_a_field_too_wide_to_be_kept_holds_only_states(monkeypatch):
    monkeypatch.setattr(backprop, "ELEMENTS_KEPT", 1000)
    field, y0 = anode.MLPField(2, hidden=64), torch.ones(32, 2)
    (few, _), (many, stats) = (bytes_held(field, y0, "discrete", steps) for steps in (5, 15))
    assert many - few == 10 * y0.nbytes
    assert stats.nfe_backward == 15 * 4


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("gradient", MODES)
def test_an_f_that_captures_the_initial_state_is_differentiated_through_both(gradient, leaf):
    start = double(1.0)
    y0 = start if leaf else start * 1.0
    options = {} if leaf or gradient != "continuous" else {"params": (y0,)}
    solution = anode.solve(
        lambda t, y: -(y - 0.5 * y0), y0, (0.0, 1.0), gradient=gradient, rtol=1e-8, atol=1e-8, **options
    )
    (at_start,) = torch.autograd.grad(solution.y1.sum(), start)
    assert at_start.item() == pytest.approx(0.5 + 0.5 * math.exp(-1), abs=1e-6)


@pytest.mark.parametrize("gradient", ["discrete", "continuous"])
def test_parameters_frozen_before_the_backward_pass_get_no_gradient(gradient):
    field = torch.nn.Linear(2, 2).double()
    y0 = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    y1 = anode.solve(lambda t, y: field(y), y0, (0.0, 1.0), gradient=gradient).y1
    field.requires_grad_(False)
    (at_y0,) = torch.autograd.grad(y1.sum(), y0)
    assert at_y0.isfinite().all()


def test_a_hook_of_a_parameter_runs_once():
    gradients = []
    for engine in ("auto", "torch"):
        net, seen = Net().double(), []
        net.inner.register_hook(lambda gradient, seen=seen: seen.append(gradient) or 0.5 * gradient)
        anode.solve(net, normal(4, 2), (0.0, 1.0), engine=engine).y1.sum().backward()
        assert len(seen) == 1
        gradients.append(net.inner.grad)
    torch.testing.assert_close(*gradients)


def test_a_module_that_comes_to_use_another_tensor_is_refused():
    class Late(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.late = torch.nn.Parameter(double(1.0)), (double(2.0),)

        def forward(self, t, y):
            return -self.weight * y if t < 0.5 else -self.weight * y * self.late[0]

    with pytest.raises(RuntimeError, match="params"):
        anode.solve(Late(), double(1.0), (0.0, 1.0)).y1.sum().backward()


def test_parameters_that_were_replaced_before_the_gradient_are_an_error_not_zeros():
    class Model(torch.nn.Module):
        def __init__(self, **settings):
            super().__init__()
            self.f, self.settings = Field(), settings

        def forward(self, y):
            return anode.solve(self.f, y, (0.0, 1.0), **self.settings).y1

    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.map = torch.nn.Linear(2, 2).requires_grad_(False)

        def forward(self, t, y):
            return torch.tanh(self.map(y))

    for settings in ({"gradient": "stored"}, {}):
        model = Model(**settings)
        given = {name: (2 * value).clone().requires_grad_() for name, value in model.named_parameters()}
        y1 = torch.func.functional_call(model, given, (torch.rand(4, 2),))
        if settings:
            assert all(g.abs().max() > 0 for g in torch.autograd.grad(y1.sum(), list(given.values())))
        else:
            with pytest.raises(RuntimeError, match=r"were replaced .* use gradient=\"stored\""):
                y1.sum().backward()


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("gradient", ["discrete", "stored"])
def test_a_field_may_differentiate_with_torch_func(gradient, engine):
    weight = torch.tensor([[0.3, -0.2], [0.1, 0.4]], dtype=torch.float64, requires_grad=True)

    def f(t, y):
        return torch.vmap(torch.func.jacrev(lambda row: torch.tanh(weight @ row)))(y).sum(-1)

    def by_hand(t, y):
        return (1 - torch.tanh(y @ weight.T) ** 2) * weight.sum(1)

    y0 = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)
    found = [
        torch.autograd.grad(anode.solve(each, y0, (0.0, 1.0), gradient=gradient, engine=engine).y1.sum(), weight)[0]
        for each in (f, by_hand)
    ]
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


SPARSE = torch.tensor([[0.0, 2.0], [-1.0, 0.0]], dtype=torch.float64).to_sparse()


@pytest.mark.filterwarnings("ignore")  # torch's own
@pytest.mark.parametrize(
    "pull",
    [
        lambda y, rate: torch.sparse.mm(SPARSE, y) - rate * y,
        lambda y, rate: -torch.func.vmap(torch.func.hessian(lambda z: (rate.exp() * z**4).sum()))(y).sum(-1) * y,
    ],
    ids=["sparse", "torch.func"],
)
@pytest.mark.parametrize("solve", [anode.solve, anode.odeint])
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_f_may_compute_with_tensors_that_have_no_memory_of_their_own(pull, solve, engine, monkeypatch):
    monkeypatch.setenv("ANODE_ENGINE", engine)
    y0, rate, accuracy = normal(2, 2, seed=1), normal(2), {"rtol": 1e-7, "atol": 1e-9}

    def f(t: Tensor, y: Tensor) -> Tensor:
        return pull(y, rate)

    if solve is anode.solve:
        y1 = solve(f, y0, (0.0, 1.0), **accuracy).y1
    else:
        y1 = solve(f, y0, double(0.0, 1.0, grad=False), **accuracy)[-1]
    expected = anode.solve(f, y0, (0.0, 1.0), gradient="stored", engine="torch", **accuracy).y1
    for ours, plain in zip(*(torch.autograd.grad(y.sum(), (y0, rate)) for y in (y1, expected)), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-9)
