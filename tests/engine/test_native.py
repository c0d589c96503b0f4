"""The compiled engine against the loop in Python, which is its reference."""

import math
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad

import anode
from anode.engine import native
from anode.models.fields import ACTIVATIONS
from anode.ode.tableaus import TABLEAUS

pytestmark = pytest.mark.skipif(not native.instruction_sets(), reason="there is no compiled engine")


def field_of(dim, hidden=8, members=None, dtype=torch.float64, scale=2.0, seed=0, **options):
    torch.manual_seed(seed)
    fields = [anode.MLPField(dim, hidden, **options) for _ in range(members or 1)]
    field = (fields[0] if members is None else anode.stack(fields)).to(dtype)
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.mul_(scale)
    return field


def start(*shape, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def both(field, y0, span=(0.0, 1.0), **options):
    """Solutions and gradients of both engines, the compiled one first."""
    results = []
    for engine in ("native", "torch"):
        solution = anode.solve(field, y0, span, engine=engine, **options)
        ys = torch.stack(list(solution.outputs))
        weights = torch.linspace(-1, 1, ys.numel(), dtype=ys.dtype).reshape(ys.shape)
        loss = (torch.where(ys.isnan(), 0.0, ys) * weights).sum() + (solution.y1 * solution.y1).sum()
        inputs = [y0, *field.parameters()]
        grads = torch.autograd.grad(loss, inputs, allow_unused=True)
        results.append(
            (solution, [torch.zeros_like(x) if g is None else g for g, x in zip(grads, inputs, strict=True)])
        )
    return results


def assert_same(results, rtol=1e-7):
    (one, grads), (other, expected) = results
    for name in ("nfe", "accepted", "rejected"):
        assert torch.equal(torch.as_tensor(getattr(one.stats, name)), torch.as_tensor(getattr(other.stats, name))), name
    assert torch.equal(torch.as_tensor(one.status), torch.as_tensor(other.status))
    torch.testing.assert_close(torch.as_tensor(one.t1), torch.as_tensor(other.t1), rtol=rtol, atol=rtol)
    for a, b in zip([*one.outputs, one.y1, *grads], [*other.outputs, other.y1, *expected], strict=True):
        largest = float(b.detach().nan_to_num().abs().max()) + 1e-9
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * largest, equal_nan=True)


CONTROLS = [
    (None, "joint", (70, 3)),
    (None, "sample", (70, 3)),
    (None, 1, (4, 9, 3)),
    (None, "joint", (3,)),
    (3, "member", (3, 20, 3)),
    (3, "joint", (3, 20, 3)),
    (3, "sample", (3, 20, 3)),
]
each_control = pytest.mark.parametrize(("members", "control", "shape"), CONTROLS)


@each_control
@pytest.mark.parametrize("method", TABLEAUS)
def test_every_method_takes_the_same_steps_to_the_same_results(method, members, control, shape):
    options = {} if TABLEAUS[method].adaptive else {"step_size": 0.21}
    results = both(
        field_of(3, members=members, activation="tanh"),
        start(*shape),
        method=method,
        control=control,
        save_at=[0.0, 0.3, 1.0],
        **options,
    )
    assert results[0][0].success
    assert_same(results, rtol=1e-6)  # rounding also enters through the sizes of steps


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("time", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_every_shape_of_field_is_the_same(activation, time, layers):
    field = field_of(5, 19, activation=activation, time=time, layers=layers, scale=1.5)
    assert_same(both(field, start(33, 5)))


@settings(max_examples=60)
@given(
    dim=st.integers(1, 9),
    hidden=st.integers(1, 37),
    layers=st.integers(1, 3),
    rows=st.integers(1, 150),
    members=st.none() | st.integers(1, 5),
    grouping=st.sampled_from(["joint", "own", "sample"]),
    method=st.sampled_from(["dopri5", "bosh3", "adaptive_heun", "rk4"]),
    controller=st.sampled_from(["integral", "pi", "pid"]),
    activation=st.sampled_from(list(ACTIVATIONS)),
    backward_in_time=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_random_shapes_are_the_same(
    dim, hidden, layers, rows, members, grouping, method, controller, activation, backward_in_time, seed
):
    field = field_of(dim, hidden, members, layers=layers, activation=activation, seed=seed, scale=1.0)
    y0 = start(*(() if members is None else (members,)), rows, dim, seed=seed + 1)
    control = {"joint": "joint", "own": "joint" if members is None else "member", "sample": "sample"}[grouping]
    span, times = ((1.0, -0.5), [0.7, 0.1]) if backward_in_time else ((-0.5, 1.0), [0.1, 0.7])
    options = {"step_size": 0.3} if method == "rk4" else {"rtol": 1e-3, "atol": 1e-4}
    assert_same(
        both(field, y0, span, save_at=times, control=control, controller=controller, method=method, **options),
        rtol=1e-5,
    )


def test_single_precision_is_the_same_up_to_its_rounding():
    field, y0 = field_of(3, 16, dtype=torch.float32, scale=1.0, activation="tanh"), start(70, 3, dtype=torch.float32)
    assert_same(both(field, y0, atol=1e-3), rtol=2e-3)


def test_gradients_are_those_of_finite_differences():
    field, y0 = field_of(2, 5, activation="tanh"), start(3, 2)
    names = [name for name, _ in field.named_parameters()]

    def end(y0, *parameters):
        copy = field_of(2, 5, activation="tanh")
        for name, value in zip(names, parameters, strict=True):
            copy.get_parameter(name).data.copy_(value)
        solution = anode.solve(copy, y0, (0.0, 1.0), method="rk4", step_size=0.25, engine="native")
        return torch.autograd.grad(solution.y1.sin().sum(), [y0, *copy.parameters()])

    values = [y0, *field.parameters()]
    gradients = end(*values)
    for which, gradient in enumerate(gradients):
        direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(which), dtype=torch.float64)

        def loss(step, which=which, direction=direction):
            moved = [v.detach() + step * direction if i == which else v.detach() for i, v in enumerate(values)]
            copy = field_of(2, 5, activation="tanh")
            for name, value in zip(names, moved[1:], strict=True):
                copy.get_parameter(name).data.copy_(value)
            with torch.no_grad():
                return anode.solve(copy, moved[0], (0.0, 1.0), method="rk4", step_size=0.25).y1.sin().sum().item()

        slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
        assert math.isclose(slope, float((gradient * direction).sum()), rel_tol=1e-6, abs_tol=1e-8)


@each_control
def test_many_rows_without_a_gradient_are_the_same(members, control, shape):
    field = field_of(3, 16, members=members)
    y0 = start(*shape[:-2], 3000, 3) if len(shape) > 1 else start(*shape)
    with torch.no_grad():
        one, other = (anode.solve(field, y0, (0.0, 1.0), control=control, engine=e) for e in ("native", "torch"))
    assert torch.equal(torch.as_tensor(one.stats.nfe), torch.as_tensor(other.stats.nfe))
    torch.testing.assert_close(one.y1, other.y1, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", native.DTYPES)
@pytest.mark.parametrize("activation", ["tanh", "softplus", "silu", "gelu", "relu"])
def test_activations_are_exact_to_a_few_units_in_the_last_place(activation, dtype):
    field = anode.MLPField(1, 1, layers=1, time=False, activation=activation).to(dtype)
    with torch.no_grad():
        for parameter, value in zip(field.parameters(), (1.0, 1.0, 0.0, 0.0), strict=True):
            parameter.fill_(value)
    x = torch.cat([torch.linspace(-30, 30, 4001), torch.logspace(-12, 0, 500), -torch.logspace(-12, 0, 500)])
    y0 = x.to(dtype).unsqueeze(1)
    with torch.no_grad():
        y1 = anode.solve(field, y0, (0.0, 1.0), method="euler", step_size=1.0, engine="native").y1
    exact = y0.double() + ACTIVATIONS[activation](y0.double())
    scale = (y0.abs().double() + ACTIVATIONS[activation](y0.double()).abs()).clamp_min(1e-30)
    assert float(((y1.double() - exact) / scale).abs().max()) <= 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("control", ["joint", "sample"])
def test_a_field_that_is_not_finite_ends_as_it_does_in_python(bad, control):
    field = field_of(3)
    with torch.no_grad():
        field.biases[-1][0] = bad
    results = both(field, start(20, 3), control=control)
    assert torch.as_tensor(results[0][0].status).eq(anode.Status.NON_FINITE).all()
    assert_same(results)


def test_a_point_that_blows_up_does_not_disturb_the_others():
    field = anode.MLPField(1, 1, layers=1, time=False).double()
    with torch.no_grad():
        for parameter, value in zip(field.parameters(), (1.0, 1e155, 0.0, 0.0), strict=True):
            parameter.fill_(value)
    y0 = torch.tensor([[-1.0], [1e160], [-2.0]], dtype=torch.float64, requires_grad=True)
    results = both(field, y0, control="sample")
    assert results[0][0].status.tolist() == [0, 3, 0]
    assert results[0][1][0].isfinite().all()
    (one, _), (other, _) = results
    assert torch.equal(one.status, other.status)
    torch.testing.assert_close(one.y1, other.y1)


@settings(max_examples=40)
@given(
    rows=st.integers(1, 300),
    members=st.none() | st.integers(1, 3),
    method=st.sampled_from(["dopri5", "bosh3", "dopri8"]),
    max_steps=st.sampled_from([4, 1000]),
    bad=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 1000),
)
def test_a_point_does_not_depend_on_which_points_finish_before_it(rows, members, method, max_steps, bad, dtype, seed):
    field = field_of(3, members=members, dtype=dtype, scale=3.0, seed=seed)
    y0 = start(*(() if members is None else (members,)), rows, 3, dtype=dtype, seed=seed).detach()
    y0 *= torch.linspace(0.01, 4, rows, dtype=dtype)[torch.randperm(rows), None]  # so that steps differ
    if bad:
        y0[..., rows // 2, :] = torch.finfo(dtype).max
    settings = {"method": method, "control": "sample", "max_steps": max_steps, "save_at": [0.0, 0.4, 1.0]}
    recorded = anode.solve(field, y0, (0.0, 1.0), engine="native", **settings)  # whose points stay where they are
    with torch.no_grad():
        plain = anode.solve(field, y0, (0.0, 1.0), engine="native", **settings)
    for name in ("nfe", "accepted", "rejected"):
        assert torch.equal(getattr(plain.stats, name), getattr(recorded.stats, name)), name
    assert torch.equal(plain.status, recorded.status)
    assert torch.equal(plain.t1, recorded.t1)
    for a, b in zip((*plain.outputs, plain.y1), (*recorded.outputs, recorded.y1), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@each_control
def test_running_out_of_steps_keeps_what_was_reached(members, control, shape):
    results = both(field_of(3, members=members, scale=6.0), start(*shape), control=control, max_steps=3, rtol=1e-6)
    assert torch.as_tensor(results[0][0].status).eq(anode.Status.MAX_STEPS).any()
    assert_same(results)


@each_control
def test_steps_too_many_to_be_kept_are_taken_again(members, control, shape):
    field, y0 = field_of(3, 64, members=members, scale=1.0), start(*shape)
    rows = y0.numel() // 3
    y0 = y0.detach().repeat(*([1] * (y0.ndim - 2)), 1 + 4096 // rows, 1).requires_grad_() if y0.ndim > 1 else y0
    results = both(field, y0, control=control, method="rk4", step_size=0.1)
    assert results[0][0].stats.calls == 40
    if y0.ndim > 1:
        assert results[0][0].stats.nfe_backward > 0
    assert_same(results)


def test_backward_can_be_repeated():
    field, y0 = field_of(3), start(70, 3)
    loss = anode.solve(field, y0, (0.0, 1.0), engine="native").y1.square().sum()
    one = torch.autograd.grad(loss, [y0, *field.parameters()], retain_graph=True)
    two = torch.autograd.grad(loss, [y0, *field.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@each_control
def test_bits_do_not_depend_on_the_number_of_threads(threads, members, control, shape):
    field, y0 = field_of(3, members=members), start(*(*shape[:-2], 300, 3) if len(shape) > 1 else shape)
    found = []
    for count in (1, 2, 3):
        threads(count)
        y1 = anode.solve(field, y0, (0.0, 1.0), control=control, engine="native").y1
        found.append([y1, *torch.autograd.grad(y1.square().sum(), [y0, *field.parameters()])])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_options_of_the_step_size_are_obeyed():
    for options in ({"first_step": 0.01}, {"max_step": 0.05}, {"min_step": 0.2, "rtol": 1e-9}, {"step_size": 0.3}):
        assert_same(both(field_of(3), start(20, 3), **options))


def test_states_that_do_not_lie_in_order_are_taken_as_they_are():
    y0 = start(3, 40).t()
    assert not y0.is_contiguous()
    assert_same(both(field_of(3), y0.detach().requires_grad_()))


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("keeps slopes", {"dense": True}),
        ("there is an event", {"event": lambda t, y: y.sum() - 100}),
        ("there is a norm", {"norm": lambda x: x.abs().max()}),
        ("a step has to end", {"step_at": [0.5]}),
        ("tolerance is a tensor", {"rtol": torch.tensor(1e-3)}),
        ("is not compiled", {"gradient": "continuous"}),
        ("params are given", {"params": ()}),
    ],
)
def test_asked_for_where_it_does_not_apply_the_engine_says_why_not(why, options):
    field, y0 = field_of(3), start(4, 3)
    with pytest.raises(ValueError, match=f"engine: .*{why}"):
        anode.solve(field, y0, (0.0, 1.0), engine="native", **options)
    anode.solve(field, y0, (0.0, 1.0), **options)


def test_a_function_that_does_more_than_compute_is_left_to_python():
    with pytest.raises(ValueError, match=r'got "native", but f calls print'):
        anode.solve(lambda t, y: print() or -y, torch.ones(3), (0.0, 1.0), engine="native")


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Softplus, nn.SiLU, nn.GELU])
@pytest.mark.parametrize("bias", [True, False])
def test_a_sequence_of_torchs_layers_is_integrated_too(activation, bias):
    torch.manual_seed(0)
    layers = [nn.Linear(3, 20, bias=bias), activation(), nn.Linear(20, 7), activation(), nn.Linear(7, 3)]
    net = nn.Sequential(*layers).double()
    assert_same(both(net, start(70, 3)))
    y0 = start(70, 3)
    function = anode.solve(lambda t, y: net(y), y0, (0.0, 1.0)).y1
    torch.testing.assert_close(anode.solve(net, y0, (0.0, 1.0)).y1, function, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Softplus, nn.SiLU, nn.GELU])
@pytest.mark.parametrize(
    "layers",
    [
        lambda act: [nn.Linear(3, 3)],
        lambda act: [nn.Linear(3, 3), act()],
        lambda act: [nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 3), act()],
        lambda act: [nn.Linear(3, 8), act(), nn.Linear(8, 9), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3)],
    ],
    ids=["linear", "one layer", "an activation at the end", "mixed"],
)
def test_every_layer_may_have_an_activation_of_its_own(layers, activation):
    torch.manual_seed(0)
    assert_same(both(nn.Sequential(*layers(activation)).double(), start(70, 3)))


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Tanh(), nn.Linear(3, 3)),
        nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Tanh(), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(3, 8), nn.GELU(approximate="tanh"), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(3, 8), nn.Softplus(beta=2), nn.Linear(8, 3)),
        nn.Sequential(nn.Tanh()),
        nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
    ],
    ids=str,
)
def test_other_sequences_are_integrated_as_well(net):
    assert_same(both(net.double(), start(9, 3)))


@pytest.mark.parametrize("shape", [(8, 1), (3, 5), (4,)])
def test_a_state_of_another_width_than_the_network_is_torchs_error(shape):
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh()).double()
    for engine in ("native", "auto"):
        with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|size mismatch"):
            anode.solve(net, start(*shape), (0.0, 1.0), engine=engine)


def test_a_field_with_a_hook_is_left_to_python():
    field = field_of(3)
    field.register_forward_hook(lambda module, inputs, output: output * 2)
    with pytest.raises(ValueError, match="hook"):
        anode.solve(field, start(4, 3), (0.0, 1.0), engine="native")


def test_a_field_with_layers_of_other_sizes_is_integrated_as_it_is():
    field = field_of(2, 64)
    for name in ("weights", "biases"):
        getattr(field, name)[0] = torch.nn.Parameter(getattr(field, name)[0].detach()[:16].clone())
    field.time_weight = torch.nn.Parameter(field.time_weight.detach()[:16].clone())
    field.weights[1] = torch.nn.Parameter(field.weights[1].detach()[:, :16].clone())
    assert_same(both(field, start(5, 2)))


class Careful(anode.PID):
    def factor(self, errors, order, smallest):
        return min(super().factor(errors, order, smallest), 1.0)


def test_a_controller_of_the_users_own_is_left_to_python():
    field, y0 = field_of(3), start(4, 3)
    nfe = [anode.solve(field, y0, (0.0, 1.0), controller=Careful(), engine=e).stats.nfe for e in ("auto", "torch")]
    assert nfe[0] == nfe[1]


@pytest.mark.filterwarnings("ignore")  # torch's own
def test_forward_mode_derivatives_are_left_to_python():
    field, y0 = field_of(3), start(4, 3).detach()
    found = [
        torch.func.jvp(lambda y, e=e: anode.solve(field, y, (0.0, 1.0), engine=e, gradient="stored").y1, (y0,), (y0,))
        for e in ("auto", "torch")
    ]
    assert torch.equal(found[0][1], found[1][1])
    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(y0, torch.ones_like(y0))
        assert forward_ad.unpack_dual(anode.solve(field, dual, (0.0, 1.0)).y1).tangent is not None


@pytest.mark.filterwarnings("ignore")  # torch's own
def test_a_model_can_be_compiled_by_torch():
    model, x = anode.NeuralODE(2, 1, 8).double(), start(5, 2).detach()
    torch.testing.assert_close(torch.compile(model, backend="eager")(x), model(x))


def test_the_default_device_does_not_matter():
    field, y0 = field_of(3), start(4, 3)
    with torch.device("meta"):
        y1 = anode.solve(field, y0, (0.0, 1.0), engine="native").y1
        y1.sum().backward()
    assert y1.device.type == y0.grad.device.type == "cpu"


def test_a_state_that_is_negated_lazily_is_taken_with_its_sign():
    y0 = torch.tensor([[1.0 + 2.0j]], dtype=torch.complex128).conj().imag
    assert y0.is_neg()
    one, other = (anode.solve(field_of(1), y0, (0.0, 1.0), engine=e).y1 for e in ("native", "torch"))
    torch.testing.assert_close(one, other)


def test_a_budget_of_steps_beyond_all_bounds_is_no_error():
    assert anode.solve(field_of(3), start(4, 3), (0.0, 1.0), max_steps=10**20, engine="native").success


@pytest.mark.parametrize("activation", ["silu", "gelu", "softplus"])
def test_far_below_zero_the_derivative_is_zero(activation):
    field = anode.MLPField(1, 1, layers=1, time=False, activation=activation)
    with torch.no_grad():
        for parameter, value in zip(field.parameters(), (-1.0, 1.0, 0.0, 0.0), strict=True):
            parameter.fill_(value)
    y0 = torch.full((1, 1), 1e20, requires_grad=True)
    y1 = anode.solve(field, y0, (0.0, 1.0), method="euler", step_size=1.0, engine="native").y1
    at_y0, at_weight, *_ = torch.autograd.grad(y1.sum(), [y0, *field.parameters()])
    assert (at_y0.item(), at_weight.item()) == (1.0, 0.0)


@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize("dtype", native.DTYPES)
def test_every_instruction_set_computes_the_same(monkeypatch, instructions, dtype):
    monkeypatch.setattr(native, "instructions", instructions)
    for activation in ACTIVATIONS:
        field, y0 = field_of(3, 16, dtype=dtype, scale=1.0, activation=activation), start(70, 3, dtype=dtype)
        tolerance = 1e-7 if dtype == torch.float64 else 2e-4
        assert_same(both(field, y0, method="rk4", step_size=0.1), rtol=tolerance)


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="engine: takes 'auto', 'native', 'torch', got 'cuda'"):
        anode.solve(lambda t, y: -y, torch.ones(3), (0.0, 1.0), engine="cuda")


def test_a_second_derivative_is_refused():
    field, y0 = field_of(3), start(4, 3)
    (gradient,) = torch.autograd.grad(
        anode.solve(field, y0, (0.0, 1.0), engine="native").y1.square().sum(), y0, create_graph=True
    )
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        gradient.sum().backward()


def test_parameters_changed_before_backward_are_noticed():
    field, y0 = field_of(3), start(4, 3)
    loss = anode.solve(field, y0, (0.0, 1.0), engine="native").y1.sum()
    with torch.no_grad():
        field.biases[0].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("shape", [(1,), (5, 8)])
def test_a_bias_of_another_shape_is_broadcast_as_torch_does(shape):
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    net[0].bias = nn.Parameter(torch.rand(shape, dtype=torch.float64))
    assert_same(both(net, start(5, 3)))


@pytest.mark.filterwarnings("ignore")  # torch's own
def test_forward_mode_derivatives_for_parameters_are_left_to_torch():
    field, y0 = field_of(3), start(4, 3).detach()
    with torch.no_grad(), forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(p.detach(), torch.ones_like(p)) for name, p in field.named_parameters()}

        def run(engine):
            with torch.nn.utils.stateless._reparametrize_module(field, duals):
                return forward_ad.unpack_dual(anode.solve(field, y0, (0.0, 1.0), engine=engine).y1).tangent

        torch.testing.assert_close(run("auto"), run("torch"))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("control", ["joint", "sample"])
def test_a_slope_that_is_not_finite_at_the_start_ends_a_solve_at_once(rows, control):
    field, y0 = field_of(3), start(rows, 3)
    with torch.no_grad():
        field.biases[0].fill_(math.nan)
    for engine in ("native", "torch"):
        solution = anode.solve(field, y0, (0.0, 1.0), engine=engine, control=control)
        assert bool(torch.as_tensor(solution.status == anode.Status.NON_FINITE).all())
        assert int(torch.as_tensor(solution.stats.nfe).max()) == 1


def test_what_is_kept_for_the_backward_pass_goes_with_it():
    field, y0 = field_of(3), start(4, 3)
    for engine, attribute in (("native", "solve"), ("torch", "steps")):
        y1 = anode.solve(field, y0, (0.0, 1.0), engine=engine).y1
        node = y1.grad_fn
        y1.sum().backward(retain_graph=True)
        assert getattr(node, attribute)
        y1.sum().backward()
        assert not getattr(node, attribute)
        with pytest.raises(RuntimeError, match="second time"):
            y1.sum().backward()


LONG = """
import os, signal, threading, time, torch, anode
from torch import nn
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are begun without
torch.set_num_threads(1)
torch.manual_seed(0)
field, y0 = anode.MLPField(4, 32), torch.rand(2048, 4)
y1 = anode.solve(field, y0, (0.0, 1.0), method="rk4", step_size=1e-3, engine="native").y1
def backward():
    start = time.perf_counter()
    try:
        y1.sum().backward(retain_graph=True)
    except KeyboardInterrupt:
        print("interrupted", end=" ")
    return time.perf_counter() - start
whole = backward()
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
print(backward() < 0.6 * whole or whole)

net = nn.Sequential(nn.Linear(2, 2, bias=False))  # turns for ever
with torch.no_grad():
    net[0].weight.copy_(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    print("begun", flush=True)
    anode.solve(net, torch.rand(64, 2), (0.0, 1e12), rtol=1e-6, max_steps=10**12, engine="native")
"""


def test_ctrl_c_ends_a_backward_pass_and_a_solve():
    with subprocess.Popen(
        [sys.executable, "-c", LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as one:
        try:
            assert one.stdout.readline() == "interrupted True\n"
            assert one.stdout.readline() == "begun\n"
            time.sleep(0.5)
            one.send_signal(signal.SIGINT)
            assert one.communicate(timeout=60)[1].rstrip().endswith("KeyboardInterrupt")
        finally:
            one.kill()


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_two_threads_may_walk_back_over_one_graph(engine):
    field, y0 = field_of(3, 32), start(64, 3)
    y1 = anode.solve(field, y0, (0.0, 1.0), engine=engine).y1
    inputs = (y0, *field.parameters())
    expected = torch.autograd.grad(y1.sum(), inputs, retain_graph=True)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: torch.autograd.grad(y1.sum(), inputs, retain_graph=True), range(20)))
    for each in found:
        assert all(torch.equal(one, other) for one, other in zip(each, expected, strict=True))
