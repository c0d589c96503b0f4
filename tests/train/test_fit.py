import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import anode
from anode import History, Snapshots
from helpers.trainings import (
    Copies,
    data_of,
    each_kind,
    each_solved,
    field_in,
    fit,
    member_of,
    model_of,
    same,
    stack_of,
    values_of,
)

PROPERTY = settings(max_examples=25)


class Seen:
    """A squared loss that keeps the targets it is shown, each the number of its point."""

    def __init__(self) -> None:
        self.batches: list[torch.Tensor] = []

    def __call__(self, prediction, y):
        self.batches.append(y[..., 0].long())
        return (prediction - y).square()


def order_of(points: int, batch_size: int, epochs: int, seed=0, members: int | None = None) -> list[torch.Tensor]:
    """The numbers of the points in every batch, as training shows them to a model."""
    torch.manual_seed(0)
    model = anode.ResNet(1, 1, 2, 1)
    if members is not None:
        model = anode.stack([model] * members)
    numbers, seen = torch.arange(float(points)).unsqueeze(1), Seen()
    fit(model, (numbers / points, numbers), batch_size=batch_size, epochs=epochs, seed=seed, loss=seen, lr=1e-9)
    return seen.batches


# Members are independent


@each_kind
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_member_trained_alone_ends_as_it_does_among_others(kind, weight_decay):
    members = 6
    rates = [1e-3, 1e-2, 3e-2, 1e-4, 5e-3, 1e-1]
    seeds = [7, 3, 3, 11, 0, 123]
    datasets = [data_of(kind, seed=i) for i in range(members)]
    checks = [data_of(kind, 9, seed=100 + i) for i in range(members)]
    shared = {"epochs": 3, "weight_decay": weight_decay, "snapshots": Snapshots(datasets[0].x[:4], [0, 5])}

    together = stack_of(kind, members)
    alone = anode.unstack(together)
    history = fit(together, datasets, lr=rates, seed=seeds, validation=checks, **shared)
    for i, model in enumerate(alone):
        own = fit(model, datasets[i], lr=rates[i], seed=seeds[i], validation=checks[i], **shared)
        found = member_of(history, i)
        np.testing.assert_allclose(found["loss"], own.loss, rtol=1e-6)
        np.testing.assert_allclose(found["validation"], own.validation, rtol=1e-6)
        for name in ("nfe", "accepted", "rejected"):
            np.testing.assert_array_equal(found[name], getattr(own, name), err_msg=name)
        for theirs, ours in zip(history.snapshots, own.snapshots, strict=True):
            np.testing.assert_allclose(theirs.features[i], ours.features, rtol=1e-9, atol=1e-9)
            assert np.broadcast_to(theirs.nfe, members)[i] == ours.nfe
        torch.testing.assert_close(values_of(together, i), values_of(model), rtol=1e-9, atol=1e-9)


@each_solved
def test_a_member_trained_alone_ends_as_it_does_among_others_with_a_recorded_gradient(kind):
    together = stack_of(kind, gradient="stored")
    alone = anode.unstack(together)
    history = fit(together, data_of(kind), lr=1e-2, seed=5)
    for i, model in enumerate(alone):
        own = fit(model, data_of(kind), lr=1e-2, seed=5 + i)
        np.testing.assert_array_equal(history.nfe[:, i], own.nfe)
        torch.testing.assert_close(values_of(together, i), values_of(model), rtol=1e-9, atol=1e-9)


@each_kind
def test_the_order_of_members_does_not_matter(kind):
    order = [2, 0, 3, 1]
    datasets, rates, seeds = [data_of(kind, seed=i) for i in range(4)], [1e-3, 1e-2, 3e-2, 1e-1], [4, 5, 6, 7]
    one = stack_of(kind, 4)
    members = anode.unstack(one)
    other = anode.stack([members[i] for i in order])
    history = fit(one, datasets, lr=rates, seed=seeds)
    turned = fit(other, [datasets[i] for i in order], lr=[rates[i] for i in order], seed=[seeds[i] for i in order])
    np.testing.assert_allclose(turned.loss, history.loss[:, order], rtol=1e-6)
    np.testing.assert_array_equal(turned.nfe, history.nfe[:, order])
    for place, i in enumerate(order):
        torch.testing.assert_close(values_of(other, place), values_of(one, i), rtol=1e-9, atol=1e-9)


def test_members_may_share_their_data_and_learn_to_classify():
    x, y = data_of().x, torch.arange(22) % 3
    together = anode.seeded(lambda: anode.NeuralODE(2, 3, 8), range(3)).double()
    alone = anode.unstack(together)
    history = fit(together, (x, y), loss="cross_entropy", seed=[1, 2, 3], lr=1e-2)
    for i, model in enumerate(alone):
        own = fit(model, (x, y), loss="cross_entropy", seed=i + 1, lr=1e-2)
        np.testing.assert_allclose(history.loss[:, i], own.loss, rtol=1e-6)
        torch.testing.assert_close(values_of(together, i), values_of(model), rtol=1e-9, atol=1e-9)


def test_members_that_are_equal_stay_equal():
    together = anode.stack([model_of()] * 3)
    history = fit(together, data_of(), seed=[4, 4, 4])
    assert (history.loss == history.loss[:, :1]).all()
    assert same(values_of(together, 0), values_of(together, 2))


@pytest.mark.xfail(strict=True, reason="the continuous adjoint has one step size for all members")
def test_a_member_is_independent_of_the_others_with_a_continuous_gradient_too():
    together = stack_of("augmented", gradient="continuous")
    alone = anode.unstack(together)[1]
    fit(together, data_of(), lr=1e-2, seed=[1, 2, 3])
    fit(alone, data_of(), lr=1e-2, seed=2)
    torch.testing.assert_close(values_of(together, 1), values_of(alone), rtol=1e-9, atol=1e-9)


# The order of the data


@PROPERTY
@given(st.data(), st.integers(1, 20), st.integers(1, 3), st.integers(0, 10**6))
def test_every_point_is_seen_once_in_every_epoch_and_the_last_batch_is_smaller(data, points, epochs, seed):
    batch_size = data.draw(st.integers(1, points))
    batches = order_of(points, batch_size, epochs, seed)
    each = math.ceil(points / batch_size)
    assert len(batches) == epochs * each
    for epoch in range(epochs):
        of_epoch = batches[epoch * each : (epoch + 1) * each]
        assert [len(batch) for batch in of_epoch[:-1]] == [batch_size] * (each - 1)
        assert len(of_epoch[-1]) == points - batch_size * (each - 1)
        assert sorted(torch.cat(of_epoch).tolist()) == list(range(points))


@PROPERTY
@given(st.integers(0, 10**6), st.integers(1, 13), st.integers(1, 13))
def test_the_order_does_not_depend_on_the_batch_size_or_the_number_of_epochs(seed, one, other):
    long = torch.cat(order_of(13, one, 3, seed))
    short = torch.cat(order_of(13, other, 2, seed))
    assert torch.equal(long[:26], short)


def test_the_order_differs_from_epoch_to_epoch_and_from_seed_to_seed():
    orders = [order.tolist() for seed in range(4) for order in torch.cat(order_of(30, 30, 4, seed)).reshape(4, 30)]
    assert len({tuple(order) for order in orders}) == 16
    assert list(range(30)) not in orders


def test_a_member_sees_the_order_of_its_seed():
    batches = order_of(11, 4, 2, seed=[5, 9, 5], members=3)
    assert [batch.shape for batch in batches[:3]] == [(3, 4), (3, 4), (3, 3)]
    together = torch.cat(batches, 1)
    for member, seed in enumerate([5, 9, 5]):
        assert torch.equal(together[member], torch.cat(order_of(11, 4, 2, seed)))


def test_one_seed_for_a_stack_gives_its_members_that_one_and_those_that_follow():
    together = torch.cat(order_of(11, 4, 2, seed=5, members=3), 1)
    for member in range(3):
        assert torch.equal(together[member], torch.cat(order_of(11, 4, 2, 5 + member)))


@pytest.mark.parametrize("stacked", [False, True])
def test_the_global_random_numbers_neither_matter_nor_move(stacked):
    results = []
    for seed in (1, 2):
        model = stack_of() if stacked else model_of()
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        fit(model, data_of())
        assert torch.equal(torch.get_rng_state(), state)
        results.append(values_of(model))
    assert same(*results)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    histories, models = [], [stack_of() for _ in range(3)]
    for model, seed in zip(models, (4, 4, 5), strict=True):
        histories.append(fit(model, data_of(), seed=seed))
    np.testing.assert_array_equal(histories[0].loss, histories[1].loss)
    assert same(values_of(models[0]), values_of(models[1]))
    assert not same(values_of(models[0]), values_of(models[2]))


# What is recorded


@each_kind
@pytest.mark.parametrize("stacked", [False, True])
def test_the_validation_is_the_mean_loss_after_every_epoch(kind, stacked):
    model, check = stack_of(kind) if stacked else model_of(kind), data_of(kind, 9, seed=5)
    copies = Copies(model)
    history = fit(model, data_of(kind), epochs=3, validation=check, progress=copies)
    assert history.validation.shape == ((3, 3) if stacked else (3,))
    for epoch in range(3):
        members = anode.unstack(copies.models[3 * (epoch + 1)]) if stacked else [copies.models[3 * (epoch + 1)]]
        batches = list(zip(check.x.split(8), check.y.split(8), strict=True))  # each solved by itself
        expected = [
            sum(F.smooth_l1_loss(member(x), y, reduction="sum").item() for x, y in batches) / check.y.numel()
            for member in members
        ]
        np.testing.assert_allclose(history.validation[epoch], expected if stacked else expected[0], rtol=1e-6)


def test_a_stack_is_validated_on_a_set_for_each_member_or_one_for_all():
    model, checks = stack_of(), [data_of(points=9, seed=i) for i in range(3)]
    own = fit(deepcopy(model), data_of(), validation=checks).validation
    for i, check in enumerate(checks):
        shared = fit(deepcopy(model), data_of(), validation=(check.x, check.y)).validation
        np.testing.assert_allclose(own[:, i], shared[:, i], rtol=1e-6)


def test_validation_does_not_change_the_training():
    one, other = model_of(), model_of()
    fit(one, data_of())
    fit(other, data_of(), validation=data_of(seed=3), snapshots=Snapshots(data_of().x, range(7)))
    assert same(values_of(one), values_of(other))


@each_kind
@pytest.mark.parametrize("stacked", [False, True])
def test_snapshots_are_features_and_cost_of_the_chosen_moments(kind, stacked):
    model, points = stack_of(kind) if stacked else model_of(kind), data_of(kind, 5, seed=5).x
    copies = Copies(model)
    wanted = Snapshots(points, [6, 0, 4, 100])
    history = fit(model, data_of(kind), lr=1e-2, snapshots=wanted, progress=copies)
    assert [snapshot.iteration for snapshot in history.snapshots] == [0, 4, 6]
    for snapshot in history.snapshots:
        x = points.expand(3, *points.shape) if stacked else points
        with torch.no_grad():
            outcome = copies.models[snapshot.iteration].run(x)
        np.testing.assert_array_equal(snapshot.features, outcome.features.numpy())
        nfe = 0 if outcome.solution is None else outcome.solution.stats.nfe
        np.testing.assert_array_equal(snapshot.nfe, nfe)
        assert snapshot.nfe.dtype == np.int64


@each_kind
@pytest.mark.parametrize("stacked", [False, True])
def test_a_history_has_an_entry_for_every_iteration(kind, stacked):
    model = stack_of(kind) if stacked else model_of(kind)
    history = fit(model, data_of(kind), lr=[1e-3] * 3 if stacked else 1e-3)
    shape = (6, 3) if stacked else (6,)
    for name, dtype in (("loss", np.float32), ("nfe", np.int64), ("accepted", np.int64), ("rejected", np.int64)):
        assert getattr(history, name).shape == shape
        assert getattr(history, name).dtype == dtype
    assert history.seconds.shape == history.nfe_backward.shape == (6,)
    assert (history.seconds > 0).all()
    assert (history.batches, history.epochs, history.stopped, history.failures) == (3, 2, "", [])
    assert history.validation.shape == ((0, 3) if stacked else (0,))
    steps = history.accepted + history.rejected
    np.testing.assert_array_equal(history.nfe, 0 * steps if kind == "ResNet" else 2 + 6 * steps)


@each_kind
def test_the_recorded_loss_is_that_of_the_batch_before_the_step(kind):
    model, seen = model_of(kind), []
    copies = Copies(model)

    def loss(prediction, y):
        losses = F.mse_loss(prediction, y, reduction="none")
        seen.append(losses.mean().item())
        return losses

    history = fit(model, data_of(kind), loss=loss, progress=copies)
    np.testing.assert_allclose(history.loss, seen, rtol=1e-6)


def test_a_history_says_how_it_was_trained(tmp_path):
    options = {"epochs": 2, "batch_size": 8, "lr": [1e-3, 1e-2, 1e-1], "weight_decay": 0.1, "seed": [3, 4, 5]}
    history = fit(stack_of("ResNet"), data_of(), loss="mse", **options)
    assert history.settings == {**options, "loss": "mse"}
    assert History.load(history.save(tmp_path / "history.json")).settings == history.settings

    def my_own(prediction, y):
        return (prediction - y).abs()

    assert fit(model_of("ResNet"), data_of(), loss=my_own).settings["loss"] == "my_own"
    assert "Seen" in fit(model_of("ResNet"), data_of(), loss=Seen()).settings["loss"]


@pytest.mark.parametrize(
    "options",
    [{"seed": range(3)}, {"seed": list(np.arange(3))}, {"seed": np.arange(3)}, {"lr": np.full(3, 1e-3)}],
    ids=str,
)
def test_a_history_can_be_saved_whatever_kind_of_numbers_were_given(options, tmp_path):
    history = fit(stack_of("ResNet"), data_of(), **options)
    assert len(History.load(history.save(tmp_path / "history.json"))) == 6


def test_no_epochs_change_nothing_but_take_the_first_snapshot():
    model = stack_of()
    before = values_of(model)
    history = fit(model, data_of(), epochs=0, validation=data_of(), snapshots=Snapshots(data_of().x, [0, 1]))
    assert (len(history), history.epochs, history.members, history.stopped) == (0, 0, 3, "")
    assert [snapshot.iteration for snapshot in history.snapshots] == [0]
    assert same(values_of(model), before)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_model_with_a_step_size_for_each_sample_can_be_trained(stacked):
    model = stack_of(control="sample") if stacked else model_of(control="sample")
    history = fit(model, data_of())
    assert history.nfe.shape == ((6, 3) if stacked else (6,))


# Training itself


@each_kind
@pytest.mark.parametrize("name", ["huber", "mse"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_training_is_the_loop_one_would_write_by_hand(kind, name, weight_decay):
    model, data, seen = model_of(kind), data_of(kind), Seen()
    other = deepcopy(model)
    fit(deepcopy(model), (data.x, torch.arange(22.0, dtype=torch.float64).unsqueeze(1)), loss=seen, seed=9)
    history = fit(model, data, lr=1e-2, weight_decay=weight_decay, seed=9, loss=name)

    optimiser = torch.optim.Adam(other.parameters(), lr=1e-2, weight_decay=weight_decay)
    losses, costs = [], []
    for batch in seen.batches:
        outcome = other.run(data.x[batch])
        loss = {"huber": F.smooth_l1_loss, "mse": F.mse_loss}[name](outcome.prediction, data.y[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        costs.append(0 if outcome.solution is None else outcome.solution.stats.nfe)
    torch.testing.assert_close(values_of(model), values_of(other), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(history.loss, losses, rtol=1e-6)
    np.testing.assert_array_equal(history.nfe, costs)


@pytest.mark.parametrize("kind", ["NeuralODE", "augmented", "ResNet"])
@pytest.mark.parametrize("stacked", [False, True])
def test_training_lowers_the_loss(kind, stacked):
    data = anode.datasets.separable(2, points=120)
    model = (stack_of(kind) if stacked else model_of(kind)).float()
    check = anode.datasets.separable(2, points=60, seed=1)
    history = fit(model, data, epochs=12, batch_size=40, lr=1e-2, validation=check)
    assert (history.per_epoch("loss")[-1] < 0.6 * history.per_epoch("loss")[0]).all()
    assert (history.validation[-1] < 0.7 * history.validation[0]).all()


def test_a_flow_learns_the_identity_but_not_to_cross():
    torch.manual_seed(0)
    losses = {}
    for name in ("identity_1d", "g_1d"):
        flow = anode.Flow(anode.MLPField(1, 16))
        losses[name] = fit(flow, anode.datasets.load(name), epochs=60, batch_size=2, lr=1e-2, loss="mse").loss[-1]
    assert losses["identity_1d"] < 0.01
    assert losses["g_1d"] > 0.5


def test_weight_decay_keeps_weights_small():
    sizes = []
    for weight_decay in (0.0, 1.0):
        model = model_of("ResNet")
        fit(model, data_of(), epochs=20, lr=1e-2, weight_decay=weight_decay)
        sizes.append(sum(p.square().sum() for p in values_of(model)))
    assert sizes[1] < 0.5 * sizes[0]


def test_parameters_that_need_no_gradient_stay():
    model = stack_of()
    model.head.requires_grad_(False)
    before, field = [p.clone() for p in model.head.parameters()], [p.clone() for p in field_in(model).parameters()]
    fit(model, data_of())
    assert same([p.detach() for p in model.head.parameters()], before)
    assert not same([p.detach() for p in field_in(model).parameters()], field)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_keeps_its_dtype(dtype):
    model, data = model_of().to(dtype), data_of()
    fit(model, (data.x.to(dtype), data.y.to(dtype)))
    assert all(p.dtype == dtype for p in model.parameters())


def test_a_dataset_and_its_tensors_are_the_same_data():
    one, other, data = model_of(), model_of(), data_of()
    fit(one, data)
    fit(other, (data.x, data.y))
    assert same(values_of(one), values_of(other))


def test_the_data_is_not_changed():
    data = data_of()
    x, y = data.x.clone(), data.y.clone()
    fit(stack_of(), data)
    assert torch.equal(data.x, x)
    assert torch.equal(data.y, y)


@pytest.mark.parametrize("batch_size", [1, 22])
def test_a_batch_may_be_one_point_or_all(batch_size):
    assert len(fit(stack_of("ResNet"), data_of(), batch_size=batch_size, epochs=1)) == 22 // batch_size


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_gradients_are_computed_even_where_the_caller_has_switched_them_off(mode, engine):
    torch.manual_seed(0)
    model, x = anode.NeuralODE(1, 1, hidden=4, engine=engine), torch.linspace(-1, 1, 20)[:, None]
    expected = anode.fit(deepcopy(model), (x, x), epochs=2)
    with mode():
        history = anode.fit(model, (x, x), epochs=2)
    np.testing.assert_array_equal(history.loss, expected.loss)
    assert not any(p.is_inference() for p in model.parameters())
