import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anode
from anode import History, Snapshots
from anode.data.images import ImageData
from anode.models.layers import LinearHead
from anode.models.model import Model, Outcome
from anode.train.progress import Report, in_words
from helpers.trainings import Copies, fit, same, values_of


class Flat(Model):
    """Images in, logits out, by a flow of some of their pixels' sums."""

    def __init__(self, classes: int = 3, **solver) -> None:
        super().__init__()
        self.flow = anode.Flow(anode.MLPField(6, 5, activation="tanh"), **solver)
        self.head = LinearHead(6, classes)

    @property
    def members(self):
        return self.flow.members

    def run(self, x):
        flown = self.flow.run(x.flatten(2 if self.members else 1))
        return Outcome(self.head(flown.features), flown.features, flown.solution)


def model_of(seed: int = 0, **options) -> Flat:
    torch.manual_seed(seed)
    return Flat(**options).double()


def images_of(n: int = 22, seed: int = 0, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, 1, 2, 3), generator=generator, dtype=torch.uint8)
    return images, torch.randint(0, classes, (n,), generator=generator)


def as_numbers(data):
    return data[0].double() / 255, data[1]


def train(model, data, **options) -> History:
    return fit(model, data, **{"loss": "cross_entropy", "lr": 1e-2, **options})


# Images


@pytest.mark.parametrize("stacked", [False, True])
def test_images_of_bytes_are_the_numbers_from_0_to_1_that_they_stand_for(stacked):
    one, other = (anode.stack([model_of(i) for i in range(2)]) if stacked else model_of() for _ in range(2))
    data, check = images_of(), images_of(9, seed=1)
    ours = train(one, data, validation=check, snapshots=Snapshots(check[0], [3]))
    theirs = train(
        other, as_numbers(data), validation=as_numbers(check), snapshots=Snapshots(as_numbers(check)[0], [3])
    )
    assert same(values_of(one), values_of(other))
    for name in ("loss", "accuracy", "nfe", "validation", "validation_accuracy", "validation_nfe"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    np.testing.assert_array_equal(ours.snapshots[0].features, theirs.snapshots[0].features)


def test_only_a_batch_at_a_time_is_made_numbers():
    seen = []

    class Watching(Flat):
        def run(self, x):
            seen.append((len(x), x.dtype, float(x.max()) <= 1))
            return super().run(x)

    torch.manual_seed(0)
    train(Watching(), images_of(), validation=images_of(17), epochs=1)
    assert {dtype for _, dtype, _ in seen} == {torch.float32}
    assert max(size for size, _, _ in seen) == 8
    assert all(small for *_, small in seen)


def test_the_images_are_not_changed():
    data = images_of()
    before = data[0].clone()
    train(model_of(), data)
    assert torch.equal(data[0], before)
    assert data[0].dtype == torch.uint8


def test_labels_that_the_model_has_no_output_for_are_an_error_that_says_how_many_it_has():
    with pytest.raises(ValueError, match=r"data: takes class indices from 0 to 1, because .* 2 outputs, got 2"):
        train(model_of(classes=2), images_of())
    with pytest.raises(ValueError, match=r"validation: takes class indices from 0 to 2, .* got 4"):
        train(model_of(), images_of(), validation=images_of(seed=1, classes=5))


def test_image_data_is_its_images_and_labels():
    one, other, (images, labels) = model_of(), model_of(), images_of()
    data = ImageData("random", images, labels, 3)
    ours = train(one, data, validation=data)
    theirs = train(other, (images, labels), validation=(images, labels))
    assert same(values_of(one), values_of(other))
    np.testing.assert_array_equal(ours.validation, theirs.validation)
    together = anode.stack([model_of(), model_of(1)])
    assert train(together, data, validation=data).loss.shape == (6, 2)


def test_a_convolutional_model_learns_images():
    torch.manual_seed(0)
    model = anode.ImageNeuralODE((1, 4, 4), 2, 4, augment=1)
    labels = torch.arange(24) % 2
    images = (labels * 255).to(torch.uint8).reshape(24, 1, 1, 1).expand(24, 1, 4, 4)
    history = train(model, ImageData("black or white", images, labels, 2), epochs=5)
    assert history.accuracy[-3:].tolist() == [1.0, 1.0, 1.0]


# Accuracy


@pytest.mark.parametrize("stacked", [False, True])
def test_the_accuracy_is_that_of_the_batch_before_the_step(stacked):
    model = anode.stack([model_of(i) for i in range(2)]) if stacked else model_of()
    copies, data = Copies(model), as_numbers(images_of())
    history = train(model, data, progress=copies, seed=[5, 6] if stacked else 5)
    assert history.accuracy.shape == history.loss.shape
    assert history.accuracy.dtype == np.float32
    for member in range(2 if stacked else 1):
        for i, before in enumerate(copies.models[:-1]):
            generator = torch.Generator().manual_seed((5 + member) * 1_000_003 + i // 3)
            batch = torch.randperm(22, generator=generator).split(8)[i % 3]
            one = anode.unstack(before)[member] if stacked else before
            right = (one(data[0][batch]).argmax(1) == data[1][batch]).double().mean()
            assert history.accuracy.reshape(6, -1)[i, member] == pytest.approx(right.item())


def test_without_classes_there_is_no_accuracy():
    x, y = as_numbers(images_of())
    history = train(model_of(), (x, F.one_hot(y).double()), loss="mse", validation=(x, F.one_hot(y).double()))
    assert history.accuracy.shape == history.validation_accuracy.shape == (0,)
    stacked = anode.stack([model_of(i) for i in range(2)])
    history = train(stacked, (x, F.one_hot(y).double()), loss="mse")
    assert history.accuracy.shape == history.validation_accuracy.shape == (0, 2)


def test_a_report_tells_the_accuracy_where_there_is_one():
    told = []
    history = train(model_of(), images_of(), progress=told.append)
    assert [report.accuracy for report in told] == pytest.approx(history.accuracy.tolist())
    assert in_words(Report(3, 10, 0.25, 26.0, 0.912)) == "loss 0.2500  accuracy 91.2%  NFE 26"


def test_a_stack_reports_the_mean_accuracy_of_its_members():
    told = []
    history = train(anode.stack([model_of(i) for i in range(2)]), images_of(), progress=told.append)
    assert [report.accuracy for report in told] == pytest.approx(history.accuracy.mean(1).tolist())


# Evaluation


def test_the_validation_set_is_looked_at_in_batches_and_the_means_are_over_points():
    model, check = model_of(), as_numbers(images_of(19, seed=1))
    copies = Copies(model)
    history = train(model, images_of(), validation=check, progress=copies)
    assert history.validation_at.tolist() == [3, 6]
    assert history.validation_at.dtype == np.int64
    for i, at in enumerate(history.validation_at):
        losses, right, nfe = [], [], []
        with torch.no_grad():
            for x, y in zip(check[0].split(8), check[1].split(8), strict=True):
                outcome = copies.models[at].run(x)
                losses.append(F.cross_entropy(outcome.prediction, y, reduction="none"))
                right.append(outcome.prediction.argmax(1) == y)
                nfe.append(outcome.solution.stats.nfe)
        assert history.validation[i] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-6)
        assert history.validation_accuracy[i] == pytest.approx(torch.cat(right).double().mean().item(), rel=1e-6)
        assert history.validation_nfe[i] == pytest.approx(np.mean(nfe))


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(("every", "at"), [(None, [3, 6]), (1, [1, 2, 3, 4, 5, 6]), (4, [4, 6]), (3, [3, 6]), (9, [6])])
def test_it_is_looked_at_every_so_many_iterations_and_at_the_end(stacked, every, at):
    model = anode.stack([model_of(i) for i in range(2)]) if stacked else model_of()
    history = train(model, images_of(), validation=images_of(9), evaluate_every=every)
    assert history.validation_at.tolist() == at
    shape = (len(at), 2) if stacked else (len(at),)
    assert history.validation.shape == history.validation_accuracy.shape == history.validation_nfe.shape == shape
    assert ("evaluate_every" in history.settings) == (every is not None)


def test_without_a_validation_set_nothing_is_recorded_of_it():
    history = train(model_of(), images_of())
    for name in ("validation", "validation_accuracy", "validation_nfe", "validation_at"):
        assert getattr(history, name).shape == (0,)


class Noisy(Flat):
    """A model that draws random numbers, and one whose layers differ in training and in use."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(3)

    def run(self, x):
        outcome = super().run(x)
        return Outcome(self.norm(self.dropout(outcome.prediction)), outcome.features, outcome.solution)


def test_looking_at_a_model_changes_neither_its_random_numbers_nor_its_layers():
    results = []
    for options in (
        {},
        {"validation": images_of(9), "evaluate_every": 1, "snapshots": Snapshots(images_of(4)[0], [2])},
    ):
        torch.manual_seed(0)
        model = Noisy()
        model.norm.eval()  # as somebody may have wished
        torch.manual_seed(3)
        train(model, images_of(), **options)
        assert model.training
        assert not model.norm.training
        results.append(values_of(model) + [b.clone() for b in model.buffers()])
    assert same(*results)


def test_a_failed_solve_in_an_evaluation_is_nan_and_no_failure():
    class Spoiled(Flat):
        def run(self, x):
            spoiled = not self.training and len(x) == 3  # the last batch of 11 in eights
            change = {"rtol": 1e-12, "atol": 1e-12, "max_steps": 2} if spoiled else {"max_steps": 100}
            self.flow.solver = self.flow.solver.but(**change)
            return super().run(x)

    history = train(Spoiled().double(), images_of(), validation=images_of(11))
    assert not history.failures
    assert np.isnan(history.validation).all()
    assert np.isnan(history.validation_accuracy).all()


# On disk


@pytest.mark.parametrize("stacked", [False, True])
def test_a_history_with_accuracies_comes_back(tmp_path, stacked):
    model = anode.stack([model_of(i) for i in range(2)]) if stacked else model_of()
    history = train(model, images_of(), validation=images_of(9), evaluate_every=2)
    found = History.load(history.save(tmp_path / "history.json"))
    for name in ("accuracy", "validation", "validation_accuracy", "validation_nfe", "validation_at"):
        np.testing.assert_array_equal(getattr(found, name), getattr(history, name), strict=True)
    found = History.load(history.save(tmp_path / "history.csv"))
    np.testing.assert_array_equal(found.accuracy, history.accuracy, strict=True)
