import numpy as np
import pytest
import torch

import anode
from helpers.trainings import close, data_of, fit, model_of, stack_of, values_of

WHOLE = {"batch_size": 22, "lr": 0.01, "epochs": 5}


def weighted(weights, data=None):
    data = data or data_of()
    return data.x, data.y, torch.as_tensor(weights, dtype=torch.float64)


def trained(data, build=model_of, **options):
    model = build()
    return model, fit(model, data, **{**WHOLE, **options})


@pytest.mark.parametrize("weight", [1.0, 0.25, 300.0])
def test_equal_weights_of_any_size_change_nothing(weight):
    plain, before = trained(data_of())
    model, history = trained(weighted(torch.full((22,), weight)))
    assert np.allclose(history.loss, before.loss, rtol=1e-12)
    assert close(values_of(model), values_of(plain), 1e-9)


def one_step_size():
    """A model whose steps do not depend on which points are there."""
    return model_of(method="rk4", step_size=0.25)


def test_a_point_of_weight_two_is_two_points_and_one_of_weight_none_is_not_there():
    data, weights = data_of(), [2.0] * 5 + [0.0] * 4 + [1.0] * 13
    repeated = torch.repeat_interleave(torch.arange(22), torch.tensor(weights).long())
    model, history = trained(weighted(weights), one_step_size)
    other, expected = trained((data.x[repeated], data.y[repeated]), one_step_size, batch_size=len(repeated))
    assert np.allclose(history.loss, expected.loss, rtol=1e-10)
    assert close(values_of(model), values_of(other), 1e-8)


def test_members_have_weights_of_their_own():
    sets = [weighted(torch.rand(22, generator=torch.Generator().manual_seed(i)) + 0.1) for i in range(3)]
    together = stack_of()
    alone = anode.unstack(together)
    history = fit(together, sets, **WHOLE)
    for i, (model, data) in enumerate(zip(alone, sets, strict=True)):
        expected = fit(model, data, **WHOLE, seed=i)
        assert np.allclose(history.loss[:, i], expected.loss, rtol=1e-9)
        assert close(values_of(anode.unstack(together)[i]), values_of(model), 1e-8)


def test_the_validation_loss_is_weighted_too():
    validation, weights = data_of(points=9, seed=3), [0.0] * 8 + [1.0]
    _, history = trained(data_of(), validation=weighted(weights, validation), batch_size=4)
    _, only = trained(data_of(), validation=(validation.x[8:], validation.y[8:]), batch_size=4)
    assert np.allclose(history.validation, only.validation, rtol=1e-2)  # the batches, and so the steps, are others


def test_weights_are_a_part_of_what_a_checkpoint_belongs_to(tmp_path):
    trained(weighted(torch.arange(1.0, 23.0)), checkpoint=tmp_path)
    with pytest.raises(ValueError, match="data is different"):
        trained(data_of(), checkpoint=tmp_path)


def test_a_loss_of_ones_own_has_to_leave_the_points_apart():
    with pytest.raises(ValueError, match="loss: takes a function that returns losses per point"):
        trained(weighted(torch.ones(22)), loss=lambda p, y: (p - y).square().mean())


def test_classes_can_have_weights():
    torch.manual_seed(0)
    data = anode.datasets.load("moons")
    scores = []
    for favoured in (0, 1):
        model = anode.NeuralODE(2, 2, 8)
        weights = torch.where(data.labels == favoured, 20.0, 1.0)
        fit(model, (data.x, data.labels, weights), loss="cross_entropy", batch_size=100, epochs=3)
        with torch.no_grad():
            scores.append(float((model(data.x).argmax(-1) == favoured).float().mean()))
    assert min(scores) > 0.6
