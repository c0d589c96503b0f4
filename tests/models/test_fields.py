import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import anode
from anode.models.backprop import PULLBACKS
from anode.models.fields import ACTIVATIONS
from helpers.draws import normal

MODULES = {"relu": nn.ReLU, "softplus": nn.Softplus, "tanh": nn.Tanh, "silu": nn.SiLU, "gelu": nn.GELU}


def field_of(activation: str = "tanh", time: bool = True, layers: int = 2, dtype=torch.float64) -> anode.MLPField:
    torch.manual_seed(0)
    return anode.MLPField(3, hidden=7, layers=layers, time=time, activation=activation).to(dtype)


def sequential_of(field: anode.MLPField) -> nn.Sequential:
    """The same network out of torch's own layers, for an input with time appended."""
    layers: list[nn.Module] = []
    for i, (weight, bias) in enumerate(zip(field.weights, field.biases, strict=True)):
        if i == 0 and field.time:
            weight = torch.cat([weight, field.time_weight.unsqueeze(-1)], -1)
        linear = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
        linear.load_state_dict({"weight": weight, "bias": bias})
        layers += [linear, MODULES[field.activation]()]
    return nn.Sequential(*layers[:-1])


def time_of(kind: str, shape: tuple[int, ...], dtype=torch.float64) -> torch.Tensor:
    """A time for everybody, one for each member or one for each sample."""
    groups = {"scalar": 0, "member": 1, "sample": len(shape) - 1}[kind]
    return 0.7 * normal(*shape[:groups], *(1,) * (len(shape) - groups if groups else 0), seed=5, dtype=dtype)


each_activation = pytest.mark.parametrize("activation", ACTIVATIONS)
each_activation_with_own_derivative = pytest.mark.parametrize("activation", list(PULLBACKS))
each_time = pytest.mark.parametrize("time", [True, False])
each_shape = pytest.mark.parametrize(
    ("shape", "clock"),
    [
        ((3,), "scalar"),
        ((5, 3), "scalar"),
        ((5, 3), "sample"),
        ((2, 5, 3), "scalar"),
        ((2, 5, 3), "member"),
        ((2, 5, 3), "sample"),
    ],
    ids=str,
)


def test_every_activation_has_a_module_to_be_compared_with():
    assert set(MODULES) == set(ACTIVATIONS)


@each_activation
@each_time
@each_shape
@pytest.mark.parametrize("layers", [1, 3])
def test_a_field_is_the_sequential_network_with_time_appended_to_its_input(activation, time, shape, clock, layers):
    field = field_of(activation, time, layers)
    network = sequential_of(field)
    t, h = time_of(clock, shape), normal(*shape).requires_grad_()
    appended = torch.cat([h, t.expand(*shape[:-1], 1)], -1) if time else h
    expected, result = network(appended), field(t, h)
    torch.testing.assert_close(result, expected)

    cotangent = normal(*shape, seed=2)
    at_h, *at_layers = torch.autograd.grad(expected, (h, *network.parameters()), cotangent)
    names, parameters = zip(*field.named_parameters(), strict=True)
    own_at_h, *own = torch.autograd.grad(result, (h, *parameters), cotangent)
    by_name = dict(zip(names, own, strict=True))
    torch.testing.assert_close(own_at_h, at_h)
    for i, (weight, bias) in enumerate(zip(at_layers[::2], at_layers[1::2], strict=True)):
        if i == 0 and time:
            torch.testing.assert_close(by_name["time_weight"], weight[:, -1])
            weight = weight[:, :-1]
        torch.testing.assert_close(by_name[f"weights.{i}"], weight)
        torch.testing.assert_close(by_name[f"biases.{i}"], bias)


@each_time
@pytest.mark.parametrize(("dim", "hidden", "layers"), [(1, 4, 1), (3, 7, 2), (2, 32, 4)])
def test_the_number_of_parameters_is_that_of_the_sequential_network(dim, hidden, layers, time):
    field = anode.MLPField(dim, hidden, layers=layers, time=time)
    expected = (dim + time) * hidden + hidden + (layers - 1) * (hidden * hidden + hidden) + hidden * dim + dim
    assert sum(p.numel() for p in field.parameters()) == expected


@each_activation_with_own_derivative
@each_time
@each_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fields_own_derivative_is_autograds(activation, time, shape, clock, dtype):
    field = field_of(activation, time, dtype=dtype)
    derivative = field.derivative()
    parameters = tuple(field.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for seed in range(3):  # gradients add up until they are taken
        t, h = time_of(clock, shape, dtype) + seed, normal(*shape, seed=seed, dtype=dtype).requires_grad_()
        cotangent = normal(*shape, seed=seed + 10, dtype=dtype)
        expected = field(t, h)
        at_h, *rest = torch.autograd.grad(expected, (h, *parameters), cotangent)
        total = [a + b for a, b in zip(total, rest, strict=True)]
        slope = derivative.evaluate(t, h.detach())
        torch.testing.assert_close(slope, expected)
        torch.testing.assert_close(derivative.rate(t, h.detach()), expected.detach())
        assert not slope.requires_grad
        at_state, _ = derivative.pull(slope, cotangent)
        torch.testing.assert_close(at_state, at_h)
    taken = derivative.take_gradients()
    assert [g.shape for g in taken] == [p.shape for p in parameters]
    torch.testing.assert_close(list(taken), total)
    assert all(not g.any() for g in derivative.take_gradients())


@each_activation_with_own_derivative
def test_a_fields_own_derivative_survives_large_inputs(activation):
    field, h = field_of(activation), (200 * normal(5, 3)).requires_grad_()
    (expected,) = torch.autograd.grad(field(torch.tensor(0.5), h).sum(), h)
    derivative = field.derivative()
    slope = derivative.evaluate(torch.tensor(0.5, dtype=torch.float64), h.detach())
    torch.testing.assert_close(derivative.pull(slope, torch.ones_like(slope))[0], expected)


def test_gradients_add_up_the_same_however_many_stages_fit_into_memory(monkeypatch):
    field, y0 = field_of(), normal(5, 3)

    def gradients():
        solution = anode.solve(field, y0, (0.0, 2.0), rtol=1e-6)
        return torch.autograd.grad((solution.y1**2).sum(), tuple(field.parameters()))

    roomy = gradients()
    monkeypatch.setattr("anode.models.backprop.ELEMENTS_KEPT", 500)
    torch.testing.assert_close(gradients(), roomy)


@each_time
def test_a_state_dict_makes_an_equal_field(time):
    field, other = field_of(time=time), anode.MLPField(3, hidden=7, time=time, activation="tanh").double()
    t, h = torch.tensor(0.3, dtype=torch.float64), normal(5, 3)
    assert not torch.equal(field(t, h), other(t, h))
    assert other.load_state_dict(field.state_dict()) == ([], [])
    assert torch.equal(field(t, h), other(t, h))


def test_reset_parameters_draws_new_ones_within_the_bounds_of_linear_layers():
    field = anode.MLPField(3, hidden=50)
    before = [p.clone() for p in field.parameters()]
    field.reset_parameters()
    assert all(not torch.equal(a, b) for a, b in zip(before, field.parameters(), strict=True))
    assert field.weights[0].abs().max() <= 4**-0.5
    assert field.time_weight.abs().max() <= 4**-0.5
    assert field.weights[1].abs().max() <= 50**-0.5


def test_a_field_shows_its_settings():
    shown = repr(anode.MLPField(2, hidden=5, layers=3, time=False, activation="tanh"))
    assert all(part in shown for part in ("MLPField(", "2", "hidden=5", "layers=3", "time=False", "'tanh'"))


@pytest.mark.parametrize("size", [0, -1, 2.5, "2", None])
@pytest.mark.parametrize("name", ["dim", "hidden", "layers"])
def test_a_bad_size_is_an_error_that_names_it(name, size):
    with pytest.raises(ValueError, match=f"{name}: takes a whole number above 0"):
        anode.MLPField(**{"dim": 2, name: size})


@pytest.mark.parametrize(("wrong", "near"), [("rleu", "relu"), ("soft_plus", "softplus"), ("Tanh", "tanh")])
def test_an_unknown_activation_is_an_error_that_suggests_the_nearest(wrong, near):
    with pytest.raises(ValueError, match=f"activation: .*{wrong}.*did you mean '{near}'"):
        anode.MLPField(2, activation=wrong)


@pytest.mark.parametrize("features", [1, 4])
def test_a_wrong_number_of_features_is_an_error_that_names_h(features):
    with pytest.raises(ValueError, match=rf"h: .*3 features.*got .*{features}"):
        field_of()(torch.tensor(0.0), normal(5, features))


@pytest.mark.parametrize("gradient", ["discrete", "stored", "continuous"])
@pytest.mark.parametrize("frozen", ["time_weight", "weights", "biases", "everything"])
def test_frozen_parameters_stay_out_of_the_gradient(frozen, gradient):
    field, y0 = field_of(), normal(5, 3).requires_grad_()
    options = {"rtol": 1e-8, "atol": 1e-10}
    names = [name for name, _ in field.named_parameters()]
    full = anode.solve(field, y0, (0.0, 1.0), **options)
    at_y0, *rest = torch.autograd.grad((full.y1**2).sum(), (y0, *field.parameters()))
    expected = dict(zip(names, rest, strict=True))

    for name, parameter in field.named_parameters():
        parameter.requires_grad_(not (frozen == "everything" or name.startswith(frozen)))
    solution = anode.solve(field, y0, (0.0, 1.0), gradient=gradient, **options)
    assert solution.gradient == gradient
    (solution.y1**2).sum().backward()
    torch.testing.assert_close(y0.grad, at_y0, rtol=1e-5, atol=1e-6)
    for name, parameter in field.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-6)
        else:
            assert parameter.grad is None


def test_a_frozen_field_with_a_fixed_start_is_solved_without_gradients():
    field = field_of().requires_grad_(False)
    solution = anode.solve(field, normal(5, 3), (0.0, 1.0))
    assert solution.gradient == "none"
    assert not solution.y1.requires_grad


class Decay(anode.MLPField):
    def forward(self, t, h):
        return -h + 0 * super().forward(t, h)


def test_a_subclass_may_change_what_the_field_does():
    y1 = anode.solve(Decay(3).double(), torch.ones(2, 3, dtype=torch.float64), (0.0, 1.0), rtol=1e-8).y1
    torch.testing.assert_close(y1, torch.full_like(y1, torch.e**-1), rtol=1e-6, atol=1e-6)


def test_hooks_are_called():
    field, calls = anode.MLPField(3), []
    field.register_forward_hook(lambda module, args, output: calls.append(1))
    solution = anode.solve(field, torch.ones(2, 3), (0.0, 1.0))
    assert len(calls) == solution.stats.nfe


def test_parametrized_weights_get_the_right_gradient():
    torch.manual_seed(0)
    field = anode.MLPField(3, hidden=3).double()
    torch.nn.utils.parametrizations.weight_norm(field.weights, "0")
    y0, grads = torch.ones(2, 3, dtype=torch.float64), []
    for gradient in ("discrete", "stored"):
        y1 = anode.solve(field, y0, (0.0, 1.0), gradient=gradient).y1
        grads.append(torch.autograd.grad(y1.square().sum(), tuple(field.parameters())))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gradient", ["discrete", "stored", "continuous"])
def test_autocast_lowers_the_precision_of_the_field_alone(gradient):
    torch.manual_seed(0)
    field, y0 = anode.MLPField(3, activation="tanh"), torch.ones(4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y1 = anode.solve(field, y0, (0.0, 1.0), rtol=1e-2, atol=1e-2, gradient=gradient).y1
    assert y1.dtype == torch.float32
    y1.sum().backward()
    low = torch.cat([p.grad.flatten() for p in field.parameters()])
    field.zero_grad()
    anode.solve(field, y0, (0.0, 1.0)).y1.sum().backward()
    full = torch.cat([p.grad.flatten() for p in field.parameters()])
    assert 0 < (low - full).norm() < 0.02 * full.norm()


# Stacks of fields

MEMBERS, ROWS = 3, 5
each_clock = pytest.mark.parametrize("clock", ["scalar", "member", "sample"])


def fields_of(activation: str = "tanh", time: bool = True, layers: int = 2, dtype=torch.float64) -> list:
    torch.manual_seed(0)
    build = {"hidden": 7, "layers": layers, "time": time, "activation": activation}
    return [anode.MLPField(3, **build).to(dtype) for _ in range(MEMBERS)]


def time_of_member(t: torch.Tensor, member: int) -> torch.Tensor:
    """The time that a stack sees, as one of its members alone would see it."""
    if t.ndim == 0:
        return t
    return t[member, 0, 0] if t.shape[1] == 1 else t[member]


@each_activation
@each_time
@each_clock
@pytest.mark.parametrize("layers", [1, 3])
def test_a_stacked_field_is_each_member_alone(activation, time, clock, layers):
    fields = fields_of(activation, time, layers)
    stacked, shape = anode.stack(fields), (MEMBERS, ROWS, 3)
    assert stacked.members == MEMBERS
    t, h = time_of(clock, shape), normal(*shape).requires_grad_()
    cotangent, result = normal(*shape, seed=2), stacked(t, h)
    at_h, *rest = torch.autograd.grad(result, (h, *stacked.parameters()), cotangent)
    for i, field in enumerate(fields):
        own = h[i].detach().requires_grad_()
        expected = field(time_of_member(t, i), own)
        torch.testing.assert_close(result[i], expected)
        own_at_h, *own_rest = torch.autograd.grad(expected, (own, *field.parameters()), cotangent[i])
        torch.testing.assert_close(at_h[i], own_at_h)
        torch.testing.assert_close([g[i] for g in rest], own_rest)


@each_activation_with_own_derivative
@each_time
@each_clock
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stacked_fields_own_derivative_is_that_of_each_member_alone(activation, time, clock, dtype):
    fields = fields_of(activation, time, dtype=dtype)
    stacked, shape = anode.stack(fields), (MEMBERS, ROWS, 3)
    derivative, alone = stacked.derivative(), [field.derivative() for field in fields]
    for seed in range(3):  # gradients add up until they are taken
        t, h = time_of(clock, shape, dtype) + seed, normal(*shape, seed=seed, dtype=dtype)
        cotangent = normal(*shape, seed=seed + 10, dtype=dtype)
        slope = derivative.evaluate(t, h)
        torch.testing.assert_close(derivative.rate(t, h), slope)
        at_state, at_time = derivative.pull(slope, cotangent)
        assert at_time is None
        for i, own in enumerate(alone):
            own_slope = own.evaluate(time_of_member(t, i), h[i])
            torch.testing.assert_close(slope[i], own_slope)
            torch.testing.assert_close(at_state[i], own.pull(own_slope, cotangent[i])[0])
    taken = derivative.take_gradients()
    assert [g.shape for g in taken] == [p.shape for p in stacked.parameters()]
    for i, own in enumerate(alone):
        torch.testing.assert_close([g[i] for g in taken], list(own.take_gradients()))
    assert [g.shape for g in derivative.take_gradients()] == [p.shape for p in stacked.parameters()]
    assert all(not g.any() for g in derivative.take_gradients())


@each_time
@pytest.mark.parametrize("gradient", ["discrete", "stored"])
@pytest.mark.parametrize("control", ["member", "sample"])
def test_a_stacked_solves_gradient_is_that_of_each_member_alone(time, gradient, control):
    fields = fields_of("softplus", time)
    with torch.no_grad():
        fields[1].weights[0].mul_(30)  # so that the members take different steps
    stacked, y0 = anode.stack(fields), normal(MEMBERS, ROWS, 3).requires_grad_()
    solution = anode.solve(stacked, y0, (0.0, 1.0), control=control, gradient=gradient)
    assert len(set(solution.stats.nfe.flatten().tolist())) > 1
    at_y0, *rest = torch.autograd.grad(solution.y1.square().sum(), (y0, *stacked.parameters()))
    for i, field in enumerate(fields):
        own = y0[i].detach().requires_grad_()
        joint = "joint" if control == "member" else control
        alone = anode.solve(field, own, (0.0, 1.0), control=joint, gradient=gradient)
        torch.testing.assert_close(solution.y1[i], alone.y1, rtol=1e-10, atol=1e-10)
        own_at_y0, *own_rest = torch.autograd.grad(alone.y1.square().sum(), (own, *field.parameters()))
        torch.testing.assert_close(at_y0[i], own_at_y0, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close([g[i] for g in rest], own_rest, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gradient", ["discrete", "stored"])
def test_a_step_that_overflows_in_one_member_and_is_kept_by_another_leaves_no_nan_in_the_gradient(gradient):
    torch.manual_seed(0)
    fields = [anode.MLPField(2, 4, layers=1) for _ in range(2)]
    with torch.no_grad():
        for weight in fields[1].weights:
            weight.mul_(1e6)  # a step of 1 overflows single precision, one of 1e-12 does not
    stacked, y0 = anode.stack(fields), torch.ones(2, ROWS, 2)
    options = {"first_step": 1.0, "gradient": gradient}
    solution = anode.solve(stacked, y0, (0.0, 1e-12), control="member", **options).check()
    assert solution.stats.rejected.tolist()[0] == 0 < solution.stats.rejected.tolist()[1]
    found = torch.autograd.grad(solution.y1.sum(), tuple(stacked.parameters()))
    for i, field in enumerate(fields):
        y1 = anode.solve(field, y0[i], (0.0, 1e-12), **options).check().y1
        expected = torch.autograd.grad(y1.sum(), tuple(field.parameters()))
        torch.testing.assert_close([g[i] for g in found], list(expected), rtol=1e-4, atol=1e-16)


def test_the_gradients_of_one_member_do_not_reach_another():
    stacked, h = anode.stack(fields_of()), normal(MEMBERS, ROWS, 3)
    y1 = anode.solve(stacked, h, (0.0, 1.0), control="member").y1
    for gradient in torch.autograd.grad(y1[1].square().sum(), tuple(stacked.parameters())):
        assert not gradient[[0, 2]].any()
        assert gradient[1].any()


@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 5, 3), (1, 5, 3), (3, 5, 2), (2, 3, 5, 3)], ids=str)
@pytest.mark.parametrize("solved", [False, True])
def test_a_state_of_the_wrong_shape_for_a_stack_is_an_error_that_names_h(shape, solved):
    stacked, h = anode.stack(fields_of()), normal(*shape)
    with pytest.raises(ValueError, match=r"h: takes (shape \[members, batch, features\]|3 features)"):
        anode.solve(stacked, h, (0.0, 1.0)) if solved else stacked(torch.tensor(0.0), h)


def conv_field() -> anode.ConvField:
    torch.manual_seed(0)
    return anode.ConvField(2, filters=5)


def gradients_by_name(field, y0, **settings) -> dict[str, torch.Tensor]:
    field.zero_grad()
    anode.solve(field, y0, (0.0, 1.0), rtol=1e-6, atol=1e-6, **settings).y1.pow(2).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in field.named_parameters()}


def pruned(field):
    """A field some of whose parameters were pruned for good, so that they now come last among its parameters."""
    for name in ("0", "1"):
        prune.random_unstructured(field.weights, name, amount=0.3)
        prune.remove(field.weights, name)
    prune.random_unstructured(field.biases, "0", amount=0.3)
    return field


FIELDS = {"mlp": (lambda: field_of(dtype=torch.float32), (5, 3)), "conv": (conv_field, (3, 2, 6, 6))}
each_field = pytest.mark.parametrize(("make", "shape"), FIELDS.values(), ids=FIELDS)
each_engine = pytest.mark.parametrize("engine", ["auto", "torch"])


@each_field
@each_engine
def test_gradients_go_to_the_parameters_they_belong_to_in_whatever_order_these_are(make, shape, engine):
    field, y0 = pruned(make()), normal(*shape, dtype=torch.float32)
    found = gradients_by_name(field, y0, engine=engine)
    assert "biases.0_orig" in found

    field = pruned(make())
    expected = gradients_by_name(field, y0, gradient="stored", engine="torch")
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=2e-3, atol=2e-4)


@each_engine
def test_tied_weights_get_the_sum_of_their_gradients(engine):
    def tied():
        field = field_of(layers=3)
        field.weights[2] = field.weights[1]
        return field

    y0 = normal(5, 3)
    found = gradients_by_name(tied(), y0, engine=engine)
    expected = gradients_by_name(tied(), y0, gradient="stored", engine="torch")
    assert len(found) == 8
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-12)


@each_field
@each_engine
def test_frozen_parameters_get_no_gradient_and_the_others_theirs(make, shape, engine):
    y0 = normal(*shape, dtype=torch.float32)
    everything = gradients_by_name(make(), y0, engine=engine)
    field = make()
    field.weights[1].requires_grad_(False)
    anode.solve(field, y0, (0.0, 1.0), rtol=1e-6, atol=1e-6, engine=engine).y1.pow(2).sum().backward()
    assert field.weights[1].grad is None
    for name, parameter in field.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, everything[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "register", [nn.modules.module.register_module_forward_hook, nn.modules.module.register_module_forward_pre_hook]
)
@pytest.mark.parametrize(
    "make", [lambda: field_of(), lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double()], ids=["field", "layers"]
)
def test_hooks_of_all_modules_are_called_with_every_evaluation(make, register):
    field, calls = make(), []
    handle = register(lambda module, *_: calls.append(module))
    try:
        solution = anode.solve(field, normal(5, 3), (0.0, 1.0))
    finally:
        handle.remove()
    assert calls.count(field) == solution.stats.nfe


@each_field
def test_an_activation_that_is_changed_changes_the_field_and_its_solves_alike(make, shape):
    field, y0 = make(), normal(*shape, dtype=torch.float32)
    before = anode.solve(field, y0, (0.0, 1.0)).y1
    field.activation = "softplus"
    for engine in ("auto", "torch"):
        changed = anode.solve(field, y0, (0.0, 1.0), engine=engine).y1
        expected = anode.solve(lambda t, y: field(t, y), y0, (0.0, 1.0)).y1
        torch.testing.assert_close(changed, expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(changed, before, rtol=1e-3)
    with pytest.raises(ValueError, match=r"activation: takes one of .*, got 'cube'"):
        field.activation = "cube"


def test_parameters_of_a_shape_that_only_broadcasts_are_differentiated_all_the_same():
    field = field_of()
    field.biases[0] = nn.Parameter(torch.randn(1, dtype=torch.float64))
    found = gradients_by_name(field, normal(5, 3))
    expected = gradients_by_name(field, normal(5, 3), gradient="stored", engine="torch")
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-12)


def test_a_field_that_is_called_in_its_own_way_is_called_so():
    class Doubled(anode.MLPField):
        def __call__(self, t, y):
            return 2 * super().__call__(t, y)

    field, y0 = Doubled(3), torch.rand(5, 3)
    plain = anode.solve(lambda t, y: field(t, y), y0, (0.0, 1.0)).y1
    torch.testing.assert_close(anode.solve(field, y0, (0.0, 1.0)).y1, plain)
