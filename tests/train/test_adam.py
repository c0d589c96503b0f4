import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anode.train.optimizers import Adam
from helpers.draws import normal

PROPERTY = settings(max_examples=25)
SHAPES = [(4, 3), (4,), (4, 2, 5)]
"""Shapes of parameters that share their first dimension, which may be one of members."""


def parameters(dtype=torch.float64) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(normal(*shape, seed=i, dtype=dtype)) for i, shape in enumerate(SHAPES)]


def gradients(step: int, dtype=torch.float64) -> list[torch.Tensor]:
    scale = 10.0 ** (step % 7 - 3)  # from tiny to large
    return [scale * normal(*shape, seed=100 * step + i, dtype=dtype) for i, shape in enumerate(SHAPES)]


def train(optimiser, ours: list[torch.nn.Parameter], steps: int, dtype=torch.float64, start: int = 0) -> None:
    for step in range(start, start + steps):
        for parameter, gradient in zip(ours, gradients(step, dtype), strict=True):
            parameter.grad = gradient
        optimiser.step()


def as_held(lr: float, dtype=torch.float64) -> torch.Tensor:
    """A learning rate as ``fit`` gives it to the optimiser, in the parameters' own precision."""
    return torch.tensor(lr, dtype=dtype)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("lr", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)], ids=str)
def test_adam_is_torchs_over_many_steps(lr, weight_decay, dtype, tolerance):
    ours, theirs = parameters(dtype), parameters(dtype)
    train(Adam(ours, as_held(lr, dtype), weight_decay=weight_decay), ours, 200, dtype)
    train(torch.optim.Adam(theirs, lr, weight_decay=weight_decay), theirs, 200, dtype)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * max(lr, 1e-2))
    assert not torch.equal(ours[0], parameters(dtype)[0])


def test_a_rate_may_be_a_float_of_full_precision():
    ours, theirs = parameters(), parameters()
    train(Adam(ours, 1e-2), ours, 20)
    train(torch.optim.Adam(theirs, 1e-2), theirs, 20)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@PROPERTY
@given(st.floats(1e-6, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 0.99), st.floats(0.5, 0.9999), st.floats(1e-10, 1e-2))
def test_adam_is_torchs_whatever_its_settings(lr, weight_decay, beta1, beta2, eps):
    ours, theirs = parameters(), parameters()
    train(Adam(ours, as_held(lr), (beta1, beta2), eps, weight_decay), ours, 10)
    train(torch.optim.Adam(theirs, lr, (beta1, beta2), eps, weight_decay), theirs, 10)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_rate_for_each_member_is_an_adam_for_each_member(weight_decay):
    rates = torch.tensor([1e-4, 1e-2, 1.0, 3e-3], dtype=torch.float64)
    ours = parameters()
    train(Adam(ours, rates, weight_decay=weight_decay), ours, 50)
    for member, rate in enumerate(rates.tolist()):
        alone = [torch.nn.Parameter(p.detach()[member].clone()) for p in parameters()]
        optimiser = torch.optim.Adam(alone, rate, weight_decay=weight_decay)
        for step in range(50):
            for parameter, gradient in zip(alone, gradients(step), strict=True):
                parameter.grad = gradient[member].clone()
            optimiser.step()
        for a, b in zip(ours, alone, strict=True):
            torch.testing.assert_close(a[member], b, rtol=1e-12, atol=1e-12)


def test_one_rate_for_all_members_is_the_same_rate_for_each():
    one, each = parameters(), parameters()
    train(Adam(one, as_held(1e-2)), one, 20)
    train(Adam(each, torch.full((4,), 1e-2, dtype=torch.float64)), each, 20)
    for a, b in zip(one, each, strict=True):
        assert torch.equal(a, b)


def test_adam_descends():
    parameter = torch.nn.Parameter(torch.tensor([5.0, -3.0], dtype=torch.float64))
    adam = Adam([parameter], 0.1)
    for _ in range(500):
        adam.zero_grad()
        (parameter - torch.tensor([1.0, 2.0])).square().sum().backward()
        adam.step()
    torch.testing.assert_close(parameter.detach(), torch.tensor([1.0, 2.0], dtype=torch.float64), atol=1e-3, rtol=0)


# Parameters that take no part


def test_a_parameter_without_a_gradient_stays():
    ours, theirs = parameters(), parameters()
    adam, optimiser = Adam(ours, as_held(1e-2), weight_decay=0.1), torch.optim.Adam(theirs, 1e-2, weight_decay=0.1)
    for each in (ours, theirs):
        each[0].grad = gradients(0)[0]
    adam.step()
    optimiser.step()
    assert torch.equal(ours[1], parameters()[1])
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=1e-12)


def test_a_closure_is_called_and_its_loss_returned():
    ours = parameters()
    assert Adam(ours, 1e-2).step(lambda: 3.0) == 3.0


def test_torchs_schedules_move_its_rate():
    adam = Adam(parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(adam, 0.5)
    adam.step()
    schedule.step()
    assert adam.param_groups[0]["lr"] == 5e-3


def test_zero_grad_forgets_the_gradients():
    ours = parameters()
    adam = Adam(ours, 1e-2)
    train(adam, ours, 1)
    adam.zero_grad()
    assert all(p.grad is None for p in ours)


def test_gradients_are_not_changed_by_a_step():
    ours = parameters()
    adam = Adam(ours, 1e-2, weight_decay=0.1)
    train(adam, ours, 1)
    for parameter, gradient in zip(ours, gradients(0), strict=True):
        assert torch.equal(parameter.grad, gradient)
