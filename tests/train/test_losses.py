import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import anode
from anode.train.losses import LOSSES, mean

PROPERTY = settings(max_examples=30)

TORCHS = {"huber": F.smooth_l1_loss, "mse": F.mse_loss}


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def classes_of(*shape: int) -> torch.Tensor:
    return torch.randint(4, shape, generator=torch.Generator().manual_seed(3))


def test_these_losses_have_names():
    assert set(LOSSES) == {*TORCHS, "cross_entropy"}


@pytest.mark.parametrize("name", TORCHS)
@pytest.mark.parametrize("shape", [(7, 1), (7, 3), (7,)], ids=str)
def test_the_mean_of_a_loss_is_torchs(name, shape):
    prediction, target = normal(*shape).requires_grad_(), normal(*shape, seed=2)
    each = LOSSES[name](prediction, target)
    assert each.shape == shape
    expected = TORCHS[name](prediction, target)
    torch.testing.assert_close(mean(each, None), expected)
    ours, theirs = (torch.autograd.grad(value, prediction)[0] for value in (mean(each, None), expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("shape", [(7,), (7, 1)], ids=str)
def test_cross_entropy_is_torchs_for_classes_in_a_row_or_a_column(shape):
    logits, target = normal(7, 4).requires_grad_(), classes_of(7)
    each = LOSSES["cross_entropy"](logits, target.reshape(shape))
    assert each.shape == shape
    torch.testing.assert_close(mean(each, None), F.cross_entropy(logits, target))
    torch.testing.assert_close(each.flatten(), -logits.log_softmax(1)[range(7), target])


@pytest.mark.parametrize("name", LOSSES)
def test_each_member_has_a_loss_of_its_own(name):
    prediction = normal(3, 7, 4).requires_grad_()
    target = classes_of(3, 7) if name == "cross_entropy" else normal(3, 7, 4, seed=2)
    losses = mean(LOSSES[name](prediction, target), 3)
    assert losses.shape == (3,)
    for i in range(3):
        torch.testing.assert_close(losses[i], mean(LOSSES[name](prediction[i], target[i]), None))
    (gradient,) = torch.autograd.grad(losses[1], prediction)
    assert gradient[1].any()
    assert not gradient[[0, 2]].any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", LOSSES)
def test_a_prediction_that_is_not_finite_spoils_its_own_member_alone(name, bad):
    prediction = normal(3, 7, 4)
    prediction[1, 2, 0] = bad
    target = classes_of(3, 7) if name == "cross_entropy" else normal(3, 7, 4, seed=2)
    assert mean(LOSSES[name](prediction, target), 3).isfinite().tolist() == [True, False, True]


@PROPERTY
@given(st.floats(-50, 50), st.floats(-50, 50))
def test_huber_is_quadratic_near_and_linear_far(prediction, target):
    away = abs(prediction - target)
    expected = away**2 / 2 if away < 1 else away - 0.5
    found = LOSSES["huber"](
        torch.tensor([prediction], dtype=torch.float64), torch.tensor([target], dtype=torch.float64)
    )
    assert found.item() == pytest.approx(expected, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("name", TORCHS)
def test_a_perfect_prediction_costs_nothing(name):
    assert not LOSSES[name](normal(5, 2), normal(5, 2)).any()


def test_all_outputs_of_a_sample_count_alike():
    losses = torch.tensor([[[1.0, 3.0], [5.0, 7.0]], [[0.0, 0.0], [0.0, 4.0]]])
    assert mean(losses, 2).tolist() == [4.0, 1.0]
    assert mean(losses, None).item() == 2.5
    assert mean(torch.tensor(3.0), None).item() == 3.0


@pytest.mark.parametrize("loss", ["huber", "mse"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_targets_may_be_of_another_dtype_than_the_model(loss, dtype):
    x, y = torch.rand(12, 2), (torch.rand(12, 1) * 9).to(dtype)
    histories = [
        anode.fit(
            anode.models.ensemble.from_seed(lambda: anode.ResNet(2, 1), 0),
            (x, each),
            epochs=2,
            batch_size=4,
            loss=loss,
            progress=False,
        )
        for each in (y, y.float())
    ]
    assert histories[0].loss.tolist() == histories[1].loss.tolist()
