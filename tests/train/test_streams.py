import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import anode
from helpers.trainings import assert_same_history, data_of, fit, interrupt_after, model_of, same, stack_of, values_of


def batches(seed):
    """The batches of an epoch, from its seed."""
    data = data_of()
    order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(seed))
    for batch in order.split(8):
        yield data.x[batch], data.y[batch]


def loader(**options):
    data = data_of()
    return DataLoader(TensorDataset(data.x, data.y), batch_size=8, **options)


def train(model, data, **options):
    return fit(model, data, batch_size=None, **options)


@pytest.mark.parametrize("build", [model_of, stack_of])
def test_batches_of_a_function_train_as_points_in_that_order_do(build):
    one, other = build(), build()
    seed = {"seed": 0} if build is model_of else {"seed": [0, 0, 0]}  # of batches, all members see the same
    expected = fit(one, data_of(), **seed)
    found = train(other, batches)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-5)
    assert found.batches == 3
    assert found.engine == "native"


@pytest.mark.parametrize(
    "data",
    [loader(), loader(shuffle=True), list(batches(0)), loader(drop_last=True)],
    ids=["in order", "shuffled", "a list", "without the rest"],
)
def test_loaders_and_lists_of_batches_train(data):
    history = train(model_of(), data, validation=loader())
    assert (history.batches, len(history)) == (len(data), 2 * len(data))
    assert len(history.validation) == 2
    assert np.isfinite(history.validation).all()


def test_validation_in_batches_is_the_mean_over_points():
    history = fit(model_of(), data_of(), validation=data_of(seed=1))
    data = data_of(seed=1)
    found = fit(model_of(), data_of(), validation=[(data.x[:5], data.y[:5]), (data.x[5:], data.y[5:])])
    np.testing.assert_allclose(found.validation, history.validation, rtol=1e-3)


class Endless(IterableDataset):
    """Of which nobody says how long it is."""

    def __iter__(self):
        return batches(0)


def test_batches_that_nobody_counts_are_counted():
    assert train(model_of(), DataLoader(Endless(), batch_size=None)).batches == 3


def test_a_function_of_a_seed_is_taken_up_to_the_same_bits(tmp_path):
    options = {"epochs": 3, "lr": 1e-2}
    expected = train(whole := model_of(), batches, **options)
    train(model_of(), batches, **options, checkpoint=tmp_path, progress=interrupt_after(5))
    found = train(other := model_of(seed=2), batches, **options, checkpoint=tmp_path)
    assert same(values_of(other), values_of(whole))
    assert_same_history(found, expected)


def test_a_loader_is_taken_up_too_and_says_that_bits_may_differ(tmp_path):
    with pytest.warns(
        UserWarning, match="data: with the batches of a DataLoader, a resumed run does not give exactly the same"
    ) as caught:
        train(model_of(), loader(shuffle=True), checkpoint=tmp_path, progress=interrupt_after(4))
    assert "contextlib" not in caught[0].filename  # but that of the caller
    with pytest.warns(UserWarning, match="a resumed run does not give exactly the same result"):
        assert len(train(model_of(), loader(shuffle=True), checkpoint=tmp_path)) == 6


def test_weights_in_batches_count():
    data = data_of()
    heavy = torch.zeros(22, dtype=torch.float64)
    heavy[:4] = 22 / 4
    one = train(model_of(), [(data.x, data.y, heavy)], epochs=1)
    other = train(model_of(), [(data.x[:4], data.y[:4])], epochs=1)
    np.testing.assert_allclose(one.loss, other.loss, rtol=1e-3)


def test_a_transform_is_applied_to_what_is_trained_on_and_to_nothing_else():
    data = data_of()
    seen = []

    def double(x):
        seen.append(len(x))
        return 2 * x

    found = fit(model_of(), data, transform=double, validation=data)
    expected = fit(model_of(), (2 * data.x, data.y), validation=data)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-5)
    np.testing.assert_allclose(found.validation, expected.validation, rtol=1e-4)
    assert seen == [1, 8, 8, 6, 8, 8, 6]  # one point is tried first


@pytest.mark.parametrize("name", ["data", "validation"])
@pytest.mark.parametrize("make", [batches, lambda seed: map(tuple, batches(seed)), lambda seed: iter([*batches(seed)])])
def test_what_can_be_iterated_only_once_is_refused(name, make):
    given = {"data": data_of(), "validation": data_of(), name: make(0)}
    with pytest.raises(ValueError, match=f"{name}: takes an iterable that can be iterated once per epoch; pass a func"):
        fit(model_of(), given["data"], validation=given["validation"])
    assert len(list(given[name])) == 3  # nothing was taken from it


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (batches(0), "data: takes an iterable that can be iterated once per epoch; pass a function"),
        (lambda seed: [], "data: takes at least one batch per epoch, got none"),
        (lambda: None, "data: takes a function of a seed that returns the batches of an epoch, got .*too many"),
        (lambda seed: None, "data: takes a function of a seed that returns the batches of an epoch, got .*NoneType"),
        (lambda seed: [(data_of().x, data_of().y[:3])], r"data: takes batches .*the same length .*got \[22, 3\]"),
        (lambda seed: [(data_of().x, data_of().y, -torch.ones(22))], "data, weights: takes numbers from 0, got -1"),
        (lambda seed: [(data_of().x, data_of().y, torch.ones(22) / 0)], "data, weights: takes finite values"),
        (
            lambda seed: [(data_of().x.long(), data_of().y)],
            r"data: takes torch\.float64, .*int64; convert it",
        ),
        ([(1, 2)], "data: takes a Dataset"),
        (lambda seed: [data_of().x], r"data: takes points and targets \(x, y\) for loss 'huber', got only points"),
        (
            lambda seed: [(data_of().x.float(), data_of().y)],
            r"data: takes torch\.float64, the dtype of the model's parameters",
        ),
        (lambda seed: [(data_of().x[:, :1], data_of().y)], "data: does not fit the model: x: takes 2 features"),
    ],
    ids=[
        "a generator",
        "nothing",
        "no argument",
        "no iterable",
        "numbers of points",
        "negative weights",
        "infinite weights",
        "whole numbers",
        "numbers",
        "no targets",
        "dtype",
        "features",
    ],
)
def test_what_are_no_batches_is_named(data, said):
    with pytest.raises((TypeError, ValueError), match=said):
        train(model_of(), data)


def test_an_epoch_with_fewer_batches_is_an_error_that_counts_them():
    with pytest.raises(
        ValueError, match="data: takes the same number of batches in every epoch, 3, got 2 batches in epoch 1"
    ):
        train(model_of(), lambda seed: list(batches(seed))[: 2 if seed else 3])


def test_a_batch_size_beside_batches_is_refused():
    with pytest.raises(ValueError, match="batch_size: takes None if the data come in batches, got 8"):
        fit(model_of(), loader())


# Any module


@pytest.mark.parametrize("members", [None, 3])
def test_any_module_that_predicts_can_be_trained(members, tmp_path):
    def build():
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    model = build() if members is None else anode.seeded(build, range(members))
    before = values_of(model)
    history = fit(model, data_of(), epochs=20, lr=1e-2, checkpoint=tmp_path)
    assert history.members == members
    assert history.loss[-3:].mean() < history.loss[:3].mean()
    assert not any(torch.equal(a, b) for a, b in zip(before, values_of(model), strict=True))
    assert "not a NeuralODE" in history.engine


# Losses that see the outcome


def test_a_loss_whose_first_parameter_is_called_outcome_sees_all_of_it():
    seen = []

    def loss(outcome, target):
        seen.append((outcome.features.shape[-1], outcome.solution.stats.nfe))
        return (outcome.prediction - target).square() + 0.1 * outcome.features.square().sum(-1, keepdim=True)

    model = model_of("augmented")
    history = fit(model, data_of(), loss=loss, validation=data_of(), epochs=1)
    assert {features for features, _ in seen} == {4}
    assert history.loss[0] > 0
    assert [nfe for _, nfe in seen][:1] == [int(history.nfe[0])]


def test_accuracies_are_recorded_for_a_loss_of_ones_own_on_classes():
    x = torch.randn(60, 2)
    y = (x[:, 0] > 0).long()

    def smoothed(prediction, target):
        return nn.functional.cross_entropy(prediction, target, label_smoothing=0.1, reduction="none")

    model = anode.NeuralODE(2, 2, 16)
    history = anode.fit(model, (x, y), loss=smoothed, epochs=40, lr=1e-2, validation=(x, y), progress=False)
    assert history.accuracy[-1] > 0.9
    assert history.validation_accuracy[-1] > 0.9


class Penalised(nn.Module):
    def forward(self, outcome, target):
        return (outcome.prediction - target).square() + outcome.features.square().mean()


def test_a_module_may_be_a_loss_of_the_outcome():
    assert np.isfinite(fit(model_of(), data_of(), loss=Penalised(), epochs=1).loss).all()


def test_a_loss_of_ones_own_on_pixels_is_no_classification():
    images, masks = torch.rand(8, 1, 3, 3), torch.randint(3, (8, 3, 3))
    loss = nn.functional.cross_entropy
    history = anode.fit(nn.Conv2d(1, 3, 3, padding=1), (images, masks), loss=loss, epochs=1, progress=False)
    assert history.accuracy.size == 0


def with_statistics():
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()


def test_statistics_of_a_batch_that_failed_are_forgotten():
    model = with_statistics()
    fit(model, data_of(), loss=lambda p, y: (p - y) * torch.nan, on_failure="skip")
    assert torch.equal(model[1].running_mean, torch.zeros(4))
    assert model[1].num_batches_tracked == 0


class Gained(nn.Module):
    """Has a parameter that is a number."""

    def __init__(self):
        super().__init__()
        self.gain, self.line = nn.Parameter(torch.ones(())), nn.Linear(2, 1)

    def forward(self, x):
        return self.gain * self.line(x)


def test_members_may_have_numbers_as_parameters_and_losses_of_their_own():
    stack = anode.seeded(lambda: Gained().double(), range(3))
    history = fit(stack, data_of(), loss=lambda p, y: (p - y).square().mean((1, 2)), clip=1.0)
    assert history.loss.shape == (6, 3)
