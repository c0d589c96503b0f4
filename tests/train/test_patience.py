import numpy as np
import pytest
import torch

import anode
from anode.train.evaluation import Patience
from helpers.trainings import Copies, data_of, fit, model_of, same, stack_of, values_of


def overfitting(**options):
    """Few points of noise to learn by heart, and others that this does not help."""
    model = model_of("augmented")
    copies = Copies(model)
    settings = {"validation": data_of(points=9, seed=7), "batch_size": 22, "lr": 0.03, "epochs": 60, "progress": copies}
    return model, copies, fit(model, data_of(), **{**settings, **options})


def test_training_ends_when_the_validation_loss_has_not_become_lower_and_the_model_is_the_best():
    model, copies, history = overfitting(patience=5)
    best = int(history.validation.argmin())
    assert history.stopped == "the validation loss has not improved for 5 validations"
    assert len(history.validation) == best + 6 < 60
    assert same(values_of(model), values_of(copies.models[int(history.validation_at[best])]))


def test_without_an_end_before_the_last_epoch_the_model_is_the_best_as_well():
    model, copies, history = overfitting(patience=1000)
    best = int(history.validation.argmin())
    assert (history.stopped, len(history)) == ("", 60)
    assert best < 59
    assert same(values_of(model), values_of(copies.models[int(history.validation_at[best])]))


def test_what_is_recorded_does_not_depend_on_patience():
    *_, patient = overfitting(patience=5)
    *_, other = overfitting()
    assert np.array_equal(patient.loss, other.loss[: len(patient)])
    assert np.array_equal(patient.validation, other.validation[: len(patient)])


@pytest.mark.parametrize("epochs", [4, 9, 30])
def test_patience_survives_an_interruption(tmp_path, epochs):
    whole, _, expected = overfitting(patience=5)
    overfitting(patience=5, epochs=min(epochs, len(expected)), checkpoint=tmp_path)
    model, _, history = overfitting(patience=5, checkpoint=tmp_path, progress=False)
    assert history.stopped == expected.stopped
    assert np.array_equal(history.validation, expected.validation)
    assert same(values_of(model), values_of(whole))


def test_a_run_that_ended_by_itself_ends_again_at_once(tmp_path):
    whole, _, expected = overfitting(patience=5, checkpoint=tmp_path)
    model, _, history = overfitting(patience=5, checkpoint=tmp_path, epochs=80)
    assert len(history) == len(expected)
    assert history.stopped == expected.stopped
    assert same(values_of(model), values_of(whole))


def test_a_loss_that_is_not_a_number_is_no_lower_one():
    patience = Patience(torch.nn.Linear(1, 1), 2)
    for loss in (float("nan"), 1.0, float("nan")):
        patience.look(loss)
        assert not patience.reason
    patience.look(1.0)
    assert patience.reason


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"patience": 0}, "patience: takes a whole number above 0, got 0"),
        ({"patience": 3, "validation": None}, r"patience: takes None without validation data \(pass .*, got 3"),
    ],
)
def test_patience_that_cannot_be_is_an_error(options, said):
    with pytest.raises(ValueError, match=said):
        overfitting(**options)


def test_patience_is_for_models_by_themselves():
    with pytest.raises(ValueError, match="patience: takes None for a stack"):
        anode.fit(stack_of(), data_of(), batch_size=8, validation=data_of(), patience=3)
