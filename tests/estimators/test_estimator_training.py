import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import train_test_split

import anode
from anode import ANODEClassifier, ANODERegressor
from helpers.own_parts import Count, halving, sgd

X, Y = load_iris(return_X_y=True)
X_TRAIN, X_VAL, Y_TRAIN, Y_VAL = train_test_split(X, Y, test_size=30, random_state=0)
QUICK = {"epochs": 2, "hidden": 8, "random_state": 0}


def classifier(**options) -> ANODEClassifier:
    return ANODEClassifier(**{**QUICK, **options}).fit(X, Y)


# Optimizers


def test_an_optimizer_is_chosen_by_name():
    model = classifier(optimizer="adamw", lr=1e-2)
    assert {name: model.history_.settings[name] for name in ("optimizer", "lr", "weight_decay")} == {
        "optimizer": "adamw",
        "lr": 1e-2,
        "weight_decay": 2e-3,
    }


def test_an_optimizer_of_ones_own_is_made_of_the_parameters():
    seen = []
    model = classifier(optimizer=lambda parameters: seen.extend(parameters) or sgd(parameters))
    assert [id(p) for p in seen] == [id(p) for p in model.model_.parameters()]
    assert not np.array_equal(model.history_.loss, classifier().history_.loss)
    assert model.history_.engine == "native"


@pytest.mark.parametrize("options", [{"lr": 0.1}, {"weight_decay": 0.0}], ids=["lr", "weight_decay"])
def test_an_optimizer_of_ones_own_sets_rate_and_decay_itself(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}: takes None if optimizer is a function"):
        classifier(optimizer=sgd, **options)


def test_a_scheduler_changes_the_rate():
    rates = []

    class Watch(anode.Callback):
        def iteration(self, training):
            rates.append(training.optimizer.param_groups[0]["lr"])

    classifier(scheduler=halving, lr=0.08, epochs=5, callbacks=[Watch()])
    assert rates == [0.08] * 9 + [0.04] * 10 + [0.02] * 6


def test_gradients_are_clipped():
    start, clipped, free = (classifier(epochs=e, clip=c, optimizer=sgd) for e, c in ((0, None), (1, 1e-6), (1, None)))

    def moved(model):
        pairs = zip(model.model_.parameters(), start.model_.parameters(), strict=True)
        return max((a - b).abs().max().item() for a, b in pairs)

    assert moved(clipped) < 1e-6 < 1e-3 < moved(free)


def test_a_plateau_of_the_validation_loss_lowers_the_rate():
    def plateau(optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1e9)

    watch = Rate()
    ANODEClassifier(**QUICK, scheduler=plateau, callbacks=[watch]).fit(X_TRAIN, Y_TRAIN, validation=(X_VAL, Y_VAL))
    assert watch.rate == pytest.approx(5e-5)  # a tenth after each of two evaluations


class Rate(anode.Callback):
    def end(self, training):
        self.rate = training.optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "adamm"}, "optimizer: takes one of adam, .*did you mean 'adam'"),
        ({"optimizer": 3}, "optimizer: takes one of adam, .*or a function .*, got 3"),
        ({"scheduler": "cosine"}, "scheduler: takes a function"),
        ({"clip": -1.0}, "clip: takes a number above 0"),
        ({"callbacks": "bar"}, r"callbacks: takes a list of anode\.Callback objects"),
        ({"device": "nonsense"}, "device: takes a device that torch can use here, .*got 'nonsense'"),
        ({"device": 1.5}, "device: takes a device that torch can use here, .*got 1.5"),
    ],
    ids=str,
)
def test_a_mistake_is_named(options, said):
    with pytest.raises((ValueError, TypeError), match=said):
        classifier(**options)


# Callbacks


def test_callbacks_are_called_and_can_end_training():
    count = Count(most=7)
    model = classifier(callbacks=[count])
    assert (count.seen, len(model.history_), model.history_.stopped) == (7, 7, "that is enough")
    assert model.n_iter_ == 2


def test_a_callback_of_another_kind_is_refused():
    with pytest.raises(TypeError, match=r"callbacks: takes a list of anode\.Callback objects"):
        classifier(callbacks=[print])


# Devices


def test_a_device_changes_nothing_but_the_place():
    on_cpu, default = classifier(device="cpu"), classifier()
    assert np.array_equal(on_cpu.predict_proba(X), default.predict_proba(X))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_predictions_of_a_gpu_are_arrays():
    model = classifier(device="cuda")
    assert model.model_.head.weight.is_cuda
    assert isinstance(model.predict_proba(X), np.ndarray)
    assert isinstance(model.transform(X), np.ndarray)


# A validation set of one's own


def validated(**options) -> ANODEClassifier:
    return ANODEClassifier(**{**QUICK, **options}).fit(X_TRAIN, Y_TRAIN, validation=(X_VAL, Y_VAL))


def test_the_loss_on_a_validation_set_is_recorded():
    model = validated()
    assert model.history_.validation.shape == (2,)
    assert model.history_.validation[-1] == pytest.approx(log_loss(Y_VAL, model.predict_proba(X_VAL)), rel=1e-2)
    assert model.history_.validation_accuracy[-1] == pytest.approx(model.score(X_VAL, Y_VAL))


def test_targets_of_a_validation_set_are_scaled_like_the_others():
    def targets(rows):
        return np.stack([1000 + rows[:, 0], -rows[:, 1]], axis=1)

    model = ANODERegressor(**QUICK).fit(X_TRAIN, targets(X_TRAIN), validation=(X_VAL, targets(X_VAL)))
    unscaled = [(y - model.target_offset_) / model.target_scale_ for y in (targets(X_VAL), model.predict(X_VAL))]
    assert model.history_.validation[-1] == pytest.approx(mean_squared_error(*unscaled), rel=1e-2)


def test_looking_at_a_validation_set_changes_nothing():
    without = ANODEClassifier(**QUICK).fit(X_TRAIN, Y_TRAIN)
    assert np.array_equal(validated().predict_proba(X), without.predict_proba(X))


def test_early_stopping_uses_the_validation_set_instead_of_rows():
    model = validated(early_stopping=True, epochs=200, patience=2, lr=0.05)
    assert model.n_iter_ < 200
    assert model.history_.batches == 4  # of 32 of all 120 rows
    assert model.history_.validation.min() == pytest.approx(log_loss(Y_VAL, model.predict_proba(X_VAL)), rel=2e-2)


def test_texts_are_classes_of_a_validation_set_too():
    names = np.array(["a", "b", "c"])
    model = ANODEClassifier(**QUICK).fit(X_TRAIN, names[Y_TRAIN], validation=(X_VAL, names[Y_VAL]))
    assert np.array_equal(model.history_.validation, validated().history_.validation)


@pytest.mark.parametrize(
    ("validation", "said"),
    [
        (X_VAL, "validation: takes a pair"),
        ((X_VAL, Y_VAL, Y_VAL), r"validation: takes a pair \(X, y\), got a tuple of 3 elements"),
        ((X_VAL, Y_VAL + 1), r"validation: takes the classes of y: \[0, 1, 2\], got \[1, 2, 3\]"),
        ((X_VAL[:, :2], Y_VAL), "validation: X has 2 features, but ANODEClassifier is expecting 4"),
        ((X_VAL, Y_VAL[:3]), "validation: Found input variables with inconsistent numbers of samples"),
        ((np.full_like(X_VAL, np.nan), Y_VAL), "validation: Input X contains NaN"),
    ],
    ids=["no pair", "three", "classes", "columns", "rows", "NaN"],
)
def test_a_validation_set_that_does_not_fit_is_refused(validation, said):
    with pytest.raises(ValueError, match=said):
        ANODEClassifier(**QUICK).fit(X_TRAIN, Y_TRAIN, validation=validation)


def test_a_validation_set_with_other_targets_is_refused():
    with pytest.raises(ValueError, match="validation: takes 1 targets, as in y, got '2 targets'"):
        ANODERegressor(**QUICK).fit(X_TRAIN, Y_TRAIN, validation=(X_VAL, np.stack([Y_VAL, Y_VAL], axis=1)))


# What happened


def test_the_loss_curve_has_the_mean_loss_of_each_epoch():
    model = classifier()
    assert model.loss_curve_ == pytest.approx([model.history_.loss[:5].mean(), model.history_.loss[5:].mean()])
    assert not hasattr(ANODEClassifier(), "loss_curve_")
