import pytest
import torch
from torch import Tensor, nn

import anode
from anode.models.compiled_conv import CompiledConvDerivative
from anode.models.wrapped import WrappedDerivative

FIELDS = {
    "second order": lambda: anode.SecondOrder(anode.ConvField(3, 5, inputs=6)),
    "heavy ball": lambda: anode.HeavyBall(anode.ConvField(3, 5)),
    "generalised heavy ball": lambda: anode.HeavyBall(anode.ConvField(3, 5, activation="tanh"), generalised=True),
    "data control": lambda: anode.DataControl(anode.ConvField(4, 5, inputs=6, time=False)),
    "heavy ball with data control": lambda: anode.HeavyBall(anode.DataControl(anode.ConvField(2, 5, inputs=3))),
}
each_field = pytest.mark.parametrize("name", FIELDS)
each_engine = pytest.mark.parametrize("engine", ["auto", "torch"])


def images(dtype: torch.dtype) -> Tensor:
    return torch.randn(3, 6, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def gradients(f, parameters, y0: Tensor, **options) -> list[Tensor]:
    y0 = y0.clone().requires_grad_()
    solution = anode.solve(f, y0, (0.0, 1.0), rtol=1e-3, atol=1e-3, **options).check()
    return [solution.y1.detach(), *torch.autograd.grad((solution.y1**2).sum(), (y0, *parameters))]


def made(name: str, dtype: torch.dtype) -> anode.models.wrapped.Wrapped:
    torch.manual_seed(0)
    return FIELDS[name]().to(dtype)


@each_field
@each_engine
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 5e-4), (torch.float64, 1e-10)])  # steps amplify rounding
def test_the_derivative_of_a_wrapped_image_field_equals_autograds(name, engine, dtype, within):
    field, y0 = made(name, dtype), images(dtype)
    parameters = tuple(field.parameters())
    ours = gradients(field, parameters, y0, engine=engine)
    theirs = gradients(lambda t, h: field(t, h), parameters, y0, engine="torch", gradient="stored")
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).abs().max() <= within * max(1.0, b.abs().max())


@each_field
def test_a_wrapped_image_field_is_evaluated_by_the_engine(name):
    field, y0 = made(name, torch.float32), images(torch.float32)
    derivative = field.derivative().compiled(y0)
    assert isinstance(derivative, WrappedDerivative)
    inner = derivative._inner
    while isinstance(inner, WrappedDerivative):
        inner = inner._inner
    assert isinstance(inner, CompiledConvDerivative)


@each_field
def test_memory_is_bounded_by_the_budget_of_the_inner_field(name, monkeypatch):
    monkeypatch.setenv("ANODE_KEEP_BYTES", "1000000")
    field, y0 = made(name, torch.float32), images(torch.float32)
    derivative = field.derivative().compiled(y0)
    assert derivative.steps_to_keep(y0, 7) == derivative._inner.steps_to_keep(field.given(y0), 7) > 0


def test_a_slope_can_be_pulled_back_twice():
    field, y0 = made("generalised heavy ball", torch.float64), images(torch.float64)
    derivative, t = field.derivative(), torch.tensor(0.5, dtype=torch.float64)
    slope = derivative.evaluate(t, y0)
    once, _ = derivative.pull(slope, torch.ones_like(slope))
    first = [g.clone() for g in derivative.take_gradients()]
    again, _ = derivative.pull(slope, torch.ones_like(slope))
    assert torch.equal(once, again)
    assert all(map(torch.equal, first, derivative.take_gradients()))


def test_frozen_parameters_of_the_wrapper_and_of_its_field_get_no_gradient():
    field, y0 = made("heavy ball", torch.float32), images(torch.float32)
    field.damping.requires_grad_(False)
    field.field.biases[1].requires_grad_(False)
    live = [p for p in field.parameters() if p.requires_grad]
    (anode.solve(field, y0, (0.0, 1.0)).y1 ** 2).sum().backward()
    assert field.damping.grad is None
    assert field.field.biases[1].grad is None
    assert all(p.grad.abs().max() > 0 for p in live)


def test_modules_that_a_subclass_adds_are_trained():
    class Scaled(anode.SecondOrder):
        def __init__(self, field: nn.Module) -> None:
            super().__init__(field)
            self.scale = nn.Conv2d(6, 6, 1, bias=False)

        def combine(self, h: Tensor, slope: Tensor) -> Tensor:
            return self.scale(super().combine(h, slope))

    torch.manual_seed(0)
    field, y0 = Scaled(anode.ConvField(3, 5, inputs=6)).double(), images(torch.float64)
    assert isinstance(field.derivative(), WrappedDerivative)
    ours = gradients(field, tuple(field.parameters()), y0)
    theirs = gradients(lambda t, h: field(t, h), tuple(field.parameters()), y0, engine="torch", gradient="stored")
    assert all(torch.allclose(a, b, rtol=1e-8, atol=1e-10) for a, b in zip(ours, theirs, strict=True))


def test_a_field_with_a_hook_is_left_to_autograd():
    field = made("second order", torch.float32)
    handle = field.field.register_forward_hook(lambda module, given, slope: 2 * slope)
    assert field.derivative() is None
    handle.remove()
    assert isinstance(field.derivative(), WrappedDerivative)
    field.register_forward_hook(lambda module, given, slope: 2 * slope)
    assert field.derivative() is None


def test_a_convolutional_field_with_more_inputs_is_no_right_hand_side_itself():
    field = anode.ConvField(4, 5, inputs=6)
    assert field.derivative() is None
    with pytest.raises(ValueError, match="f must return"):
        anode.solve(field, images(torch.float32), (0.0, 1.0))
