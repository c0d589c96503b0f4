import pytest
import torch
from torch import nn

import anode
from anode.engine import native
from anode.models import conv
from anode.models.backprop import PULLBACKS
from anode.models.compiled_conv import CompiledConvDerivative
from anode.models.conv import ConvDerivative, time_map
from anode.models.fields import ACTIVATIONS
from anode.ode.field import AutogradDerivative
from helpers.draws import normal

MODULES = {"relu": nn.ReLU, "softplus": nn.Softplus, "tanh": nn.Tanh, "silu": nn.SiLU, "gelu": nn.GELU}
TWO_IMAGES = 2 * 6 * 4 * 7 * 8
"""Bytes of an activation of two images of 6 by 4 pixels, with 7 filters, in float64."""


class Appended(nn.Module):
    """The field as its authors write it: a channel that holds the time, put before each convolution."""

    def __init__(self, field: anode.ConvField) -> None:
        super().__init__()
        self.time = field.time
        self.act = MODULES[field.activation]()
        self.convolutions = nn.ModuleList()
        for i, (weight, bias) in enumerate(zip(field.weights, field.biases, strict=True)):
            if field.time:
                weight = torch.cat([weight, field.time_weights[i].unsqueeze(1)], 1)
            size = weight.shape[-1]
            layer = nn.Conv2d(weight.shape[1], weight.shape[0], size, padding=size // 2, dtype=weight.dtype)
            layer.load_state_dict({"weight": weight, "bias": bias})
            self.convolutions.append(layer)

    def forward(self, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.convolutions):
            if self.time:
                h = torch.cat([h, (t * torch.ones_like(h[:, :1]))], 1)
            h = layer(h)
            h = self.act(h) if i < 2 else h
        return h


def field_of(activation: str = "tanh", time: bool = True, channels: int = 3, dtype=torch.float64) -> anode.ConvField:
    torch.manual_seed(0)
    return anode.ConvField(channels, 7, time=time, activation=activation).to(dtype)


def gradients(f, y0: torch.Tensor, parameters, **options) -> list[torch.Tensor]:
    y0 = y0.clone().requires_grad_()
    solution = anode.solve(f, y0, (0.0, 1.0), **{"rtol": 1e-6, "atol": 1e-6, **options})
    return list(torch.autograd.grad((solution.check().y1 ** 2).sum(), (y0, *parameters)))


each_time = pytest.mark.parametrize("time", [True, False])
each_clock = pytest.mark.parametrize("clock", ["one time", "a time for each image"])
each_layout = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])


def time_of(clock: str, images: int = 5) -> torch.Tensor:
    return torch.tensor(0.7, dtype=torch.float64) if clock == "one time" else normal(images, 1, 1, 1, seed=5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@each_time
@each_clock
def test_a_field_is_the_convolutions_with_a_channel_of_time_before_each(activation, time, clock):
    field = field_of(activation, time)
    t, h = time_of(clock), normal(5, 3, 6, 4).requires_grad_()
    network = Appended(field)
    expected, found = network(t, h), field(t, h)
    torch.testing.assert_close(found, expected)
    at_h, *layers = torch.autograd.grad(expected.square().sum(), (h, *network.parameters()))
    own_at_h, *own = torch.autograd.grad(found.square().sum(), (h, *field.parameters()))
    torch.testing.assert_close(own_at_h, at_h)
    weights, biases = (
        [weight[:, : w.shape[1]] for weight, w in zip(layers[::2], field.weights, strict=True)],
        layers[1::2],
    )
    timed = [weight[:, -1] for weight in layers[::2]] if time else []
    torch.testing.assert_close(own, [*weights, *biases, *timed])


@pytest.mark.parametrize("size", [1, 3, 5])
def test_the_map_of_time_is_what_the_convolution_makes_of_ones(size):
    weight = normal(4, size, size)
    layer = nn.Conv2d(1, 4, size, padding=size // 2, bias=False, dtype=torch.float64)
    layer.load_state_dict({"weight": weight.unsqueeze(1)})
    torch.testing.assert_close(time_map(weight, 6, 4), layer(torch.ones(1, 1, 6, 4, dtype=torch.float64))[0])


@pytest.mark.parametrize("activation", sorted(PULLBACKS))
@each_time
@each_clock
@each_layout
@pytest.mark.parametrize("slice_bytes", [1, TWO_IMAGES, 2**21])
def test_a_fields_own_derivative_is_autograds(activation, time, clock, layout, slice_bytes, monkeypatch):
    monkeypatch.setattr(conv, "BYTES_IN_SLICE", slice_bytes)
    field = field_of(activation, time)
    own, autograds = field.derivative(), AutogradDerivative(field, tuple(field.parameters()))
    assert isinstance(own, ConvDerivative)
    for seed in range(2):  # gradients add up until they are taken
        t = time_of(clock) + seed
        y, cotangent = (normal(5, 3, 6, 4, seed=s).contiguous(memory_format=layout) for s in (seed, seed + 10))
        slope, expected = own.evaluate(t, y), autograds.evaluate(t, y)
        torch.testing.assert_close(slope, expected)
        torch.testing.assert_close(own.rate(t, y), expected)
        torch.testing.assert_close(own.pull(slope, cotangent)[0], autograds.pull(expected, cotangent)[0])
    found, expected = own.take_gradients(), autograds.take_gradients()
    assert [g.shape for g in found] == [p.shape for p in field.parameters()]
    torch.testing.assert_close(list(found), list(expected))
    assert all(not g.any() for g in own.take_gradients())


@pytest.mark.parametrize("control", ["joint", 1])
@pytest.mark.parametrize("kept", [0, 1, 2**30], ids=["nothing", "almost nothing", "everything"])
@each_time
def test_gradients_of_a_solve_are_those_of_the_network_as_its_authors_write_it(control, kept, time, monkeypatch):
    monkeypatch.setenv("ANODE_KEEP_BYTES", str(kept))
    field, y0 = field_of(time=time), normal(5, 3, 6, 4)
    network = Appended(field)
    found = gradients(field, y0, field.parameters(), control=control)
    expected = gradients(network, y0, network.parameters(), control=control, gradient="stored")
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1][:, :3])
    torch.testing.assert_close(found[5], expected[4])  # the middle bias
    torch.testing.assert_close(found[2], expected[3][:, :7])
    if time:
        torch.testing.assert_close(found[8], expected[3][:, -1])


def test_gradcheck():
    field = anode.ConvField(2, 3, activation="tanh").double()
    y0 = normal(2, 2, 3, 3).requires_grad_()

    def end(y0, *_):
        return anode.solve(field, y0, (0.0, 1.0), method="rk4", step_size=0.5).y1

    assert torch.autograd.gradcheck(end, (y0, *field.parameters()), fast_mode=True)


def test_the_same_steps_are_taken_as_with_torchs_own_layers():
    field, y0 = field_of("relu", dtype=torch.float32), normal(5, 3, 6, 4, dtype=torch.float32)
    ours, theirs = (anode.solve(f, y0, (0.0, 1.0)).stats for f in (field, Appended(field)))
    assert (ours.nfe, ours.accepted, ours.rejected) == (theirs.nfe, theirs.accepted, theirs.rejected)


def test_gradients_may_be_taken_twice():
    field, y0 = field_of(), normal(2, 3, 6, 4)
    loss = anode.solve(field, y0, (0.0, 1.0)).y1.sum()
    first = torch.autograd.grad(loss, tuple(field.parameters()), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, tuple(field.parameters())), first)


def test_a_changed_field_is_differentiated_by_autograd():
    class Doubled(anode.ConvField):
        def forward(self, t, h):
            return 2 * super().forward(t, h)

    hooked, extended = field_of(), field_of()
    hooked.register_forward_hook(lambda *_: None)
    extended.extra = nn.Parameter(torch.ones(1))
    wide = anode.ConvField(3, 7)
    wide.weights[1] = nn.Parameter(torch.zeros(7, 7, 5, 5))
    for field in (Doubled(3, 7), hooked, extended, wide, anode.ConvField(3, 7, activation="gelu")):
        assert field.derivative() is None


def test_frozen_parameters_get_no_gradient():
    field = field_of()
    expected = gradients(field, normal(2, 3, 6, 4), [field.biases[0]])[1]
    field.weights.requires_grad_(False)
    torch.testing.assert_close(gradients(field, normal(2, 3, 6, 4), [field.biases[0]])[1], expected)


@pytest.mark.parametrize("shape", [(3,), (2, 6, 4), (2, 4, 6, 4), (1, 2, 3, 6, 4)], ids=str)
def test_a_state_of_another_shape_is_an_error_that_names_h(shape):
    with pytest.raises(ValueError, match=r"h: takes images of shape \[batch, 3, height, width\], got"):
        field_of()(torch.tensor(0.0), normal(*shape))


@pytest.mark.parametrize("size", [0, -1, 2.5, "2", None])
@pytest.mark.parametrize("name", ["channels", "filters"])
def test_a_bad_size_of_a_convolutional_field_is_an_error_that_names_it(name, size):
    with pytest.raises(ValueError, match=f"{name}: takes a whole number above 0"):
        anode.ConvField(**{"channels": 2, name: size})


def test_new_parameters_are_within_the_bounds_of_torchs_convolutions():
    field = anode.ConvField(3, 50)
    before = [p.clone() for p in field.parameters()]
    field.reset_parameters()
    assert all(not torch.equal(a, b) for a, b in zip(before, field.parameters(), strict=True))
    for weight, bound in zip(field.weights, (4**-0.5, (51 * 9) ** -0.5, 51**-0.5), strict=True):
        assert 0.8 * bound < weight.abs().max() <= bound


# ------------------------------------------------------------------------------------------------- the compiled engine

needs_engine = pytest.mark.skipif(not native.instruction_sets(), reason="there is no compiled engine")


def compiled_and_exact(field, instructions=""):
    """A field's derivative by the engine, and in double precision by torch."""
    exact = anode.ConvField(field.channels, field.filters, time=field.time, activation=field.activation).double()
    exact.load_state_dict(field.state_dict())
    parameters = [p.detach() for p in field.parameters()]
    return CompiledConvDerivative(parameters, field.activation, instructions), exact.derivative()


def differ_by_rounding(found, expected) -> bool:
    return found.shape == expected.shape and bool((found - expected).abs().max() <= 2e-5 * expected.abs().max())


@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize("activation", sorted(PULLBACKS))
@each_time
@each_clock
@pytest.mark.parametrize(
    ("channels", "filters", "size"),
    [
        (1, 1, (1, 1)),
        (3, 7, (3, 2)),
        (2, 33, (2, 1)),
        (17, 16, (4, 4)),
        (11, 24, (1, 9)),
        (6, 64, (12, 28)),
        (3, 92, (7, 7)),
    ],
    ids=str,
)
def test_the_compiled_field_and_its_derivative_are_torchs_up_to_rounding(
    instructions, activation, time, clock, channels, filters, size
):
    torch.manual_seed(0)
    own, exact = compiled_and_exact(anode.ConvField(channels, filters, time=time, activation=activation), instructions)
    for seed in range(2):  # gradients add up
        t = time_of(clock) + seed
        y, cotangent = (normal(5, channels, *size, seed=s, dtype=torch.float32) for s in (seed, seed + 10))
        slope, expected = own.evaluate(t.float(), y), exact.evaluate(t, y.double())
        assert differ_by_rounding(slope, expected)
        torch.testing.assert_close(own.rate(t.float(), y), slope, rtol=0, atol=0)
        assert differ_by_rounding(own.pull(slope, cotangent)[0], exact.pull(expected, cotangent.double())[0])
    for found, expected in zip(own.take_gradients(), exact.take_gradients(), strict=True):
        assert differ_by_rounding(found, expected)
    assert all(not g.any() for g in own.take_gradients())  # the sums begin anew


@needs_engine
@pytest.mark.parametrize("control", ["joint", 1])
def test_a_solve_by_the_compiled_field_takes_the_same_steps_to_the_same_gradients(control):
    torch.manual_seed(0)
    field = anode.ConvField(3, 20, activation="tanh")  # a relu's gradient jumps where rounding decides
    y0, found = torch.randn(5, 3, 9, 9, requires_grad=True), []
    for engine in ("auto", "torch"):
        solution = anode.solve(field, y0, (0.0, 1.0), rtol=1e-3, atol=1e-3, engine=engine, control=control)
        found.append((solution, torch.autograd.grad(solution.y1.square().sum(), [y0, *field.parameters()])))
    (one, gradients), (other, expected) = found
    assert torch.equal(torch.as_tensor(one.stats.nfe), torch.as_tensor(other.stats.nfe))
    assert one.gradient == other.gradient
    torch.testing.assert_close(one.y1, other.y1, rtol=1e-5, atol=1e-5)
    assert all(differ_by_rounding(*pair) for pair in zip(gradients, expected, strict=True))


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("control", ["joint", 1])
@pytest.mark.parametrize("time", [True, False])
def test_gradients_are_the_same_bits_however_much_memory_there_is(engine, control, time, monkeypatch):
    torch.manual_seed(0)
    field = anode.ConvField(3, 20, time=time)
    y0 = (3 * torch.randn(5, 3, 9, 9)).requires_grad_()
    found, again = [], []
    for budget in (0, 400_000, 2**30):  # nothing, some steps, everything
        monkeypatch.setenv("ANODE_KEEP_BYTES", str(budget))
        solution = anode.solve(field, y0, (0.0, 4.0), rtol=1e-5, atol=1e-5, engine=engine, control=control)
        found.append([solution.y1, *torch.autograd.grad(solution.y1.square().sum(), [y0, *field.parameters()])])
        again.append(int(torch.as_tensor(solution.stats.nfe_backward).max()))
    assert again[0] > again[1] > again[2]
    for one, *others in zip(*found, strict=True):
        assert all(torch.equal(one, other) for other in others)


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("control", [2, 3])
@each_time
def test_channels_and_pixels_cannot_have_times_of_their_own(engine, grad, control, time):
    field, y0 = anode.ConvField(3, 8, time=time), normal(4, 3, 5, 5, dtype=torch.float32)
    with torch.set_grad_enabled(grad), pytest.raises(ValueError, match='control: takes "joint" or 1 for images'):
        anode.solve(field, y0, (0.0, 1.0), control=control, engine=engine)


@needs_engine
def test_the_compiled_field_does_not_depend_on_the_number_of_threads(threads):
    torch.manual_seed(0)
    field, y = anode.ConvField(3, 40), torch.randn(9, 3, 28, 28)
    found = []
    for count in (1, 2, 3):
        threads(count)
        own = compiled_and_exact(field)[0]
        slope = own.evaluate(torch.tensor(0.5), y)
        found.append([slope, own.pull(slope, y)[0], *own.take_gradients()])
    for one, *others in zip(*found, strict=True):
        assert all(torch.equal(one, other) for other in others)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own forward mode
@needs_engine
def test_what_the_engine_has_no_convolutions_for_is_left_to_torch():
    field, y = anode.ConvField(3, 8), torch.rand(2, 3, 4, 4)
    assert isinstance(field.derivative().compiled(y), CompiledConvDerivative)
    double = anode.ConvField(3, 8).double()
    modes = torch.autograd.forward_ad
    with modes.dual_level():
        followed = modes.make_dual(y, torch.ones_like(y))
        for other, state in [(field, followed), (field, y.double()), (double, y.double())]:
            assert isinstance(other.derivative().compiled(state), ConvDerivative)


@needs_engine
@pytest.mark.parametrize("activation", sorted(PULLBACKS))
def test_the_compiled_field_passes_nan_on(activation):
    field, y = anode.ConvField(2, 8, activation=activation), torch.rand(3, 2, 12, 12)
    y[1, 0, 5, 5] = torch.nan
    own = compiled_and_exact(field)[0]
    slope = own.evaluate(torch.tensor(0.0), y)
    assert slope[1, :, 5, 5].isnan().all()
    assert slope[[0, 2]].isfinite().all()
    pulled = own.pull(slope, torch.ones_like(y))[0]
    assert bool(pulled[1].isnan().any()) is (activation != "relu")  # whose derivative is 0 or 1, in torch too
    assert pulled[[0, 2]].isfinite().all()


@needs_engine
def test_the_compiled_field_takes_weights_and_images_in_any_layout():
    field, y0 = anode.ConvField(2, 16), torch.rand(3, 2, 8, 8)
    expected = anode.solve(field, y0, (0.0, 1.0)).y1
    field.to(memory_format=torch.channels_last)
    assert not field.weights[1].is_contiguous()
    torch.testing.assert_close(anode.solve(field, y0, (0.0, 1.0)).y1, expected, rtol=0, atol=0)
    for state in (y0.contiguous(memory_format=torch.channels_last), torch.cat([y0, y0], 2)[:, :, 8:]):
        torch.testing.assert_close(anode.solve(field, state, (0.0, 1.0)).y1, expected, rtol=1e-4, atol=1e-5)


@needs_engine
@pytest.mark.parametrize("other", [torch.set_default_dtype, torch.set_default_device], ids=["dtype", "device"])
def test_the_gradients_of_the_compiled_field_do_not_depend_on_torchs_defaults(other):
    field, y0 = anode.ConvField(1, 16), torch.rand(3, 1, 8, 8)

    def gradients():
        return torch.autograd.grad(anode.solve(field, y0, (0.0, 1.0)).y1.sum(), list(field.parameters()))

    expected = gradients()
    try:
        other(torch.float64 if other is torch.set_default_dtype else "meta")
        found = gradients()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    for one, another in zip(found, expected, strict=True):
        torch.testing.assert_close(one, another, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own forward mode
@pytest.mark.parametrize("kind", [anode.MLPField, anode.ConvField])
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_forward_mode_goes_through_fields_without_autograd(kind, engine):
    torch.manual_seed(0)
    field = kind(3, 8, activation="tanh").double()
    y, tangent = (normal(2, 3, *((4, 4) if kind is anode.ConvField else ()), seed=s) for s in (1, 2))
    modes = torch.autograd.forward_ad

    def end(y):
        return anode.solve(field, y, (0.0, 1.0), method="rk4", step_size=0.25, engine=engine).y1

    with modes.dual_level(), torch.no_grad():
        found = modes.unpack_dual(end(modes.make_dual(y, tangent))).tangent
    torch.testing.assert_close(found, (end(y + 1e-6 * tangent) - end(y - 1e-6 * tangent)) / 2e-6, rtol=1e-5, atol=1e-8)
