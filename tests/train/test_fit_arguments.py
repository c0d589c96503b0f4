import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anode
from anode import Snapshots
from helpers.trainings import data_of, fit, model_of, same, stack_of, values_of


def broken(part: str, *rows: int, value: float = math.nan) -> tuple[torch.Tensor, torch.Tensor]:
    """Data with a value in some rows that is not finite."""
    x, y = data_of().x.clone(), data_of().y.clone()
    (x if part == "x" else y)[list(rows), 0] = value
    return x, y


def refuses(model, error: type[Exception], said: str, data=None, **options) -> None:
    """Check that training is refused with these words, before anything has been changed."""
    before = values_of(model)
    with pytest.raises(error, match=said):
        fit(model, data_of() if data is None else data, **options)
    assert same(values_of(model), before)
    assert all(p.grad is None for p in model.parameters())


each_way = pytest.mark.parametrize("stacked", [False, True])
x, y = data_of().x, data_of().y


@each_way
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": -1}, "epochs: takes a whole number from 0, got -1"),
        ({"epochs": 1.5}, "epochs: takes a whole number"),
        ({"epochs": "2"}, "epochs: takes a whole number"),
        ({"epochs": None}, "epochs: takes a whole number"),
        ({"epochs": True}, "epochs: takes a whole number"),
        ({"batch_size": 0}, "batch_size: takes a whole number above 0, got 0"),
        ({"batch_size": -8}, "batch_size: takes a whole number above 0"),
        ({"batch_size": 2.5}, "batch_size: takes a whole number above 0"),
        ({"batch_size": "all"}, "batch_size: takes a whole number above 0"),
        ({"batch_size": 23}, "batch_size: takes at most the 22 points that there are, got 23"),
        ({"lr": 0.0}, "lr: takes a number above 0, got 0.0"),
        ({"lr": -1e-3}, "lr: takes a number above 0"),
        ({"lr": math.nan}, "lr: takes a number above 0"),
        ({"lr": "fast"}, "lr: takes "),
        ({"weight_decay": -0.1}, "weight_decay: takes a number from 0, got -0.1"),
        ({"weight_decay": math.nan}, "weight_decay: takes a number from 0"),
        ({"loss": "hubr"}, "loss: takes one of huber, mse, cross_entropy, got 'hubr'; did you mean 'huber'"),
        ({"loss": "crossentropy"}, "did you mean 'cross_entropy'"),
        ({"lr": [1e-3, 1e-3]}, r"lr: takes one number.*, got \[0.001, 0.001\]"),
        ({"lr": []}, "lr: takes one number"),
        ({"seed": [1, 2]}, r"seed: takes one number.*, got \[1, 2\]"),
        ({"seed": "first"}, "seed: takes one number.*, got 'first'"),
        ({"seed": 0.5}, "seed: takes a whole number from 0 to .*, got 0.5"),
        ({"seed": 2**63}, "seed: takes a whole number from 0 to .*, got 9223372036854775808"),
        ({"seed": -1}, "seed: takes a whole number from 0 to .*, got -1"),
        ({"seed": [1, 2, 3, 4]}, "seed: takes one number"),
        ({"data": (x, y[:-1])}, r"data: takes as many x as y, got \(\(22, 2\), \(21, 1\)\)"),
        ({"data": (x[:0], y[:0])}, "data: takes at least one point"),
        ({"data": (torch.tensor(1.0), y)}, "data: takes as many x as y"),
        ({"data": broken("x", 3)}, "data, x: takes finite values, got NaN or infinity in 1 of 22 rows"),
        ({"data": broken("x", 3, 4, value=math.inf)}, "data, x: takes finite values, .* in 2 of 22 rows"),
        ({"data": broken("y", 0, 1, 2)}, "data, y: takes finite values, got NaN or infinity in 3 of 22 rows"),
        ({"validation": broken("x", 3)}, "validation, x: takes finite values, .* in 1 of 22 rows"),
        ({"validation": broken("y", 3)}, "validation, y: takes finite values, .* in 1 of 22 rows"),
        ({"validation": (x, y[:3])}, "validation: takes as many x as y"),
        ({"data": (x, y, y)}, r"data, weights: takes one number per point, shape \(22,\), got \(22, 1\)"),
        ({"data": (x, y, torch.full((22,), math.nan))}, "data, weights: takes finite values"),
        ({"data": (x, y, torch.zeros(22))}, "data, weights: takes numbers from 0, not all of them 0, got 'only 0'"),
        ({"validation": (x, y, -torch.ones(22))}, "validation, weights: takes numbers from 0, .*got -1"),
        ({"data": (torch.cat([x, x], 1), y)}, "x: takes 2 features in the last dimension, got shape"),
    ],
    ids=str,
)
def test_a_bad_argument_is_an_error_that_names_it_and_nothing_has_changed(options, said, stacked):
    refuses(stack_of() if stacked else model_of(), ValueError, said, **options)


@each_way
@pytest.mark.parametrize("name", ["data", "validation"])
@pytest.mark.parametrize(
    "given_as",
    [3, "moons", [x, y], (x, y, x, y), (x.numpy(), y.numpy()), (x.tolist(), y.tolist()), {"x": x, "y": y}],
    ids=["number", "name", "list", "four", "numpy", "lists", "dict"],
)
def test_what_is_no_data_is_an_error_that_says_what_is(name, given_as, stacked):
    said = rf"{name}: takes a Dataset, an ImageData, tensors \(x, y\) or \(x, y, weights\), or batches of these" + (
        ".*; or 3 datasets, one per member" if stacked else ""
    )
    refuses(stack_of() if stacked else model_of(), (TypeError, ValueError), said, **{name: given_as})


@each_way
@pytest.mark.parametrize("name", ["data", "validation"])
def test_points_alone_are_an_error_for_a_loss_that_needs_targets(name, stacked):
    said = rf"{name}: takes points and targets \(x, y\) for loss 'huber', got only points"
    refuses(stack_of() if stacked else model_of(), ValueError, said, **{name: x})


def test_datasets_for_each_member_are_only_for_stacks():
    refuses(
        model_of(),
        TypeError,
        r"data: takes a Dataset, an ImageData, tensors \(x, y\) or .*, got a list of 1 parts \(Dataset\)",
        [data_of()],
    )


@pytest.mark.parametrize("name", ["data", "validation"])
@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_another_number_of_datasets_than_members_is_an_error(name, count):
    refuses(stack_of(), (TypeError, ValueError), f"{name}: takes .*; or 3 datasets", **{name: [data_of()] * count})


def test_the_error_says_how_many_datasets_there_were():
    refuses(stack_of(), ValueError, r"data: takes .*or 3 datasets, one per member, got 2", [data_of()] * 2)


@pytest.mark.parametrize("name", ["data", "validation"])
def test_datasets_of_different_sizes_are_an_error_that_lists_them(name):
    sets = [data_of(points=22), data_of(points=20), data_of(points=22)]
    said = rf"{name}: takes data and targets of the same shape for all members, got \[\(\(20, 2\), .*\(\(22, 2\), "
    refuses(stack_of(), ValueError, said, **{name: sets})
    sets = [data_of(), data_of(), data_of("Flow")]
    refuses(stack_of(), ValueError, rf"{name}: takes data and targets of the same shape", **{name: sets})


def test_a_list_that_is_not_all_datasets_is_an_error():
    refuses(stack_of(), TypeError, "data: takes .*; or 3 datasets", [data_of(), data_of(), 3])


@pytest.mark.parametrize(
    "rates", [[1e-3, 0.0, 1e-3], [1e-3, -1.0, 1e-3], [1e-3, "fast", 1e-3], [1e-3, None, 1e-3], [1e-3, math.nan, 1e-3]]
)
def test_one_bad_rate_among_many_is_an_error(rates):
    refuses(stack_of(), ValueError, "lr: takes a number above 0, got", lr=rates)


def test_a_rate_in_a_list_is_only_for_stacks():
    refuses(model_of(), ValueError, "lr: takes one number", lr=[1e-3])


@pytest.mark.parametrize("name", ["lr", "seed"])
def test_the_error_for_a_model_by_itself_does_not_speak_of_members(name):
    refuses(model_of(), ValueError, f"{name}: (?!.*None)", **{name: [1, 2]})


@each_way
@pytest.mark.parametrize(
    "options",
    [
        {"seed": None},
        {"lr": math.inf},
        {"weight_decay": math.inf},
        {"loss": 3},
        {"loss": ["huber"]},
        {"snapshots": [0, 1]},
        {"progress": "bar"},
        {"data": (x.long(), y)},
    ],
    ids=["no seed", "lr", "decay", "number", "losses", "list", "bar", "whole x"],
)
def test_an_argument_of_another_kind_is_an_error_that_names_it_and_nothing_has_changed(options, stacked):
    refuses(stack_of() if stacked else model_of(), (TypeError, ValueError), f"{next(iter(options))}: ", **options)


@each_way
@pytest.mark.parametrize("name", ["data", "validation"])
def test_data_in_another_precision_than_the_model_is_converted_or_refused_by_name(name, stacked):
    model = stack_of() if stacked else model_of()
    before, other = values_of(model), (x.float(), y.float())
    try:
        history = fit(model, **{"data": data_of(), name: other})
    except (TypeError, ValueError) as error:
        assert f"{name}: " in str(error)  # noqa: PT017
        assert same(values_of(model), before)
    else:
        assert len(history) == 6


@each_way
@pytest.mark.parametrize(
    "options",
    [
        {"validation": (torch.cat([x, x], 1), y)},
        {"snapshots": Snapshots(torch.cat([x, x], 1), [4])},
        {"snapshots": Snapshots(x * math.nan, [4])},
    ],
    ids=["validation", "snapshots", "NaN"],
)
def test_points_for_later_are_looked_at_before_training(options, stacked):
    refuses(stack_of() if stacked else model_of(), ValueError, rf"{next(iter(options))}(\.x)?: ", **options)


@each_way
def test_targets_of_another_shape_than_predictions_are_an_error(stacked):
    refuses(stack_of() if stacked else model_of(), ValueError, r"(data|y)\b.*22", (x, y[:, 0]))


@pytest.mark.parametrize(
    "labels", [y[:, 0], torch.full((22,), 3), torch.full((22,), -1)], ids=["floats", "3 of 3", "-1"]
)
def test_targets_that_are_no_class_numbers_are_an_error(labels):
    model = anode.NeuralODE(2, 3, 8).double()
    refuses(model, (TypeError, ValueError), "data: ", (x, labels), loss="cross_entropy")


def test_a_loss_that_adds_up_members_is_an_error_that_names_it():
    refuses(stack_of(), ValueError, "loss: ", loss=F.mse_loss)


def test_a_loss_that_is_one_number_is_fine_for_a_model_by_itself():
    one, other = model_of(), model_of()
    fit(one, data_of(), loss=F.mse_loss)
    fit(other, data_of(), loss="mse")
    torch.testing.assert_close(values_of(one), values_of(other), rtol=1e-10, atol=1e-10)


class Still(nn.Module):
    def forward(self, t, h):
        return -h


@pytest.mark.parametrize(
    "model",
    [lambda x: x, anode.Flow(Still()), model_of().requires_grad_(False), None],
    ids=["a function", "no parameters", "all frozen", "nothing"],
)
def test_what_cannot_be_trained_is_an_error_that_names_the_model(model):
    with pytest.raises((TypeError, ValueError), match="model: "):
        fit(model, (x, x if isinstance(model, anode.Flow) else y))


# What nobody gave


@pytest.mark.parametrize(("points", "taken"), [(1, 1), (16, 16), (64, 64), (65, 64)])
def test_the_default_batch_size_is_cut_to_the_data(points, taken):
    history = anode.fit(anode.NeuralODE(2, 1), (torch.rand(points, 2), torch.rand(points, 1)), epochs=1, progress=False)
    assert history.settings["batch_size"] == taken
    with pytest.raises(ValueError, match=rf"batch_size: takes at most the {points} points that there are, got 66"):
        anode.fit(anode.NeuralODE(2, 1), (torch.rand(points, 2), torch.rand(points, 1)), batch_size=66)


def test_integer_targets_mean_cross_entropy_unless_a_loss_is_given():
    x, classes = torch.rand(16, 2), torch.arange(16) % 3
    model = anode.NeuralODE(2, 3)
    history = anode.fit(model, (x, classes), validation=(x, classes), epochs=1, progress=False)
    assert history.settings["loss"] == "cross_entropy"
    assert len(history.accuracy) == len(history)
    assert anode.fit(model, (x, torch.rand(16, 3)), epochs=1, progress=False).settings["loss"] == "huber"
    whole = torch.zeros(16, 3, dtype=torch.int64)
    assert anode.fit(model, (x, whole), epochs=1, loss="mse", progress=False).settings["loss"] == "mse"


def test_an_image_model_is_trained_on_image_data_without_further_ado():
    digits = anode.images.load("digits").subset(20)
    history = anode.fit(anode.ImageNeuralODE(digits.shape, digits.classes, 4), digits, epochs=1, progress=False)
    assert history.settings["loss"] == "cross_entropy"
    assert history.settings["batch_size"] == 20


@pytest.mark.parametrize(
    ("outputs", "targets", "options", "said"),
    [
        (
            3,
            torch.arange(16),
            {"loss": "huber"},
            r"for loss 'huber', got \(16,\); for class indices, pass loss=\"cross_e",
        ),
        (
            1,
            torch.ones(16, 1).long(),
            {},
            "class indices from 0 to 0, .* got 1; loss 'cross_entropy' treats integers as",
        ),
        (
            3,
            torch.ones(16, 3).long(),
            {},
            "one class index per point, .* got .*; loss 'cross_entropy' treats integers as",
        ),
        (
            3,
            torch.ones(16).int(),
            {},
            r"class indices of dtype torch\.int64 .* got torch\.int32; convert them with \.long\(\)",
        ),
    ],
)
def test_targets_that_do_not_fit_a_loss_are_an_error_that_says_which_and_what_to_do(outputs, targets, options, said):
    with pytest.raises((ValueError, TypeError), match=said):
        anode.fit(anode.NeuralODE(2, outputs), (torch.rand(16, 2), targets), **options)
