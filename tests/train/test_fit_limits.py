import math
import time

import numpy as np
import pytest
import torch

import anode
from helpers.trainings import Copies, data_of, fit, model_of, same, spoil, stack_of, values_of

# Time


def test_training_ends_after_the_iteration_in_which_time_is_up(monkeypatch):
    model, clock = model_of(), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    copies = Copies(model)

    def listen(report) -> None:
        copies(report)
        clock[0] += 25.0

    history = fit(model, data_of(), minutes=1, progress=listen, validation=data_of(points=9))
    assert (history.stopped, len(history)) == ("time is up", 3)
    assert same(values_of(model), values_of(copies.models[3]))
    assert history.validation_at.tolist() == [3]


def test_the_end_by_time_is_looked_at_like_any_other():
    history = fit(stack_of(), data_of(), minutes=1e-9, validation=data_of(points=9))
    assert (history.stopped, len(history), history.validation_at.tolist()) == ("time is up", 1, [1])
    assert np.isfinite(history.validation).all()


def test_time_that_is_up_with_the_last_iteration_has_stopped_nothing():
    history = fit(model_of(), data_of(), epochs=1, batch_size=22, minutes=1e-9)
    assert (history.stopped, len(history)) == ("", 1)


# What is done about failures


class Trap:
    """A squared loss that is not finite, or has no finite gradient, whenever it is computed for the nth time."""

    def __init__(self, *calls: int, what: str = "loss") -> None:
        self.traps, self.what, self.calls = calls, what, 0

    def __call__(self, prediction, y):
        self.calls += 1
        if self.calls not in self.traps:
            return (prediction - y).square()
        return prediction * math.nan if self.what == "loss" else (prediction - prediction.detach()).square().sqrt()


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_skipped_iteration_changes_nothing_and_the_next_batch_has_its_turn(what):
    model = model_of()
    copies = Copies(model)
    history = fit(model, data_of(), loss=Trap(2, 5, what=what), on_failure="skip", progress=copies)
    assert (history.stopped, len(history)) == ("", 6)
    assert [(f.iteration, f.status) for f in history.failures] == [(1, what.upper()), (4, what.upper())]
    assert np.isnan(history.loss).tolist() == [False, True, False, False, True, False]
    assert (history.nfe > 0).all()
    for i in range(6):
        unchanged = same(values_of(copies.models[i]), values_of(copies.models[i + 1]))
        assert unchanged == (i in (1, 4))


def test_a_failed_solve_is_skipped_with_what_it_cost():
    model = spoil(model_of(max_steps=20))
    before = values_of(model)
    history = fit(model, data_of(), on_failure="skip")
    assert [failure.status for failure in history.failures] == ["MAX_STEPS"] * 6
    assert history.nfe.tolist() == [122] * 6
    assert np.isnan(history.loss).all()
    assert same(values_of(model), before)
    assert history.settings["on_failure"] == "skip"


def test_the_accuracy_of_a_skipped_iteration_is_not_a_number():
    torch.manual_seed(0)
    model, labels = spoil(anode.NeuralODE(2, 3, 8, max_steps=20).double()), torch.arange(22) % 3
    history = fit(model, (data_of().x, labels), loss="cross_entropy", on_failure="skip", epochs=1)
    assert np.isnan(history.accuracy).all()


def test_members_of_a_stack_cannot_skip():
    with pytest.raises(ValueError, match=r'on_failure: takes "stop" or "raise" for a stack of models.*, got .skip'):
        fit(stack_of(), data_of(), on_failure="skip")


@pytest.mark.parametrize("stacked", [False, True])
def test_a_failed_solve_is_raised_and_the_model_is_as_before(stacked):
    model = spoil(stack_of(max_steps=20), 1) if stacked else spoil(model_of(max_steps=20))
    before = values_of(model)
    with pytest.raises(anode.SolveError, match="in iteration 0 of training, MAX_STEPS: the step budget") as caught:
        fit(model, data_of(), on_failure="raise")
    assert not caught.value.solution.success
    assert same(values_of(model), before)


@pytest.mark.parametrize(("what", "said"), [("loss", "the loss is not finite"), ("gradient", "a gradient is not")])
@pytest.mark.parametrize("stacked", [False, True])
def test_what_is_not_finite_is_raised_and_the_model_is_as_before_that_iteration(what, said, stacked):
    model = stack_of("ResNet") if stacked else model_of("ResNet")
    copies = Copies(model)
    with pytest.raises(FloatingPointError, match=f'in iteration 2 of training, {said}.*on_failure="skip"'):
        fit(model, data_of(), loss=Trap(3, what=what), on_failure="raise", progress=copies)
    assert same(values_of(model), values_of(copies.models[2]))


def test_a_backward_solve_that_fails_is_raised():
    torch.manual_seed(0)
    model = anode.NeuralODE(2, 1, 4, gradient=anode.Continuous(rtol=1e-14, atol=1e-30), max_steps=30)
    with pytest.raises(anode.SolveError, match="in iteration 0 of training, in the backward solve"):
        anode.fit(model, anode.datasets.moons(points=20), epochs=1, batch_size=10, on_failure="raise")
    history = anode.fit(model, anode.datasets.moons(points=20), epochs=1, batch_size=10, on_failure="skip")
    assert [failure.status for failure in history.failures] == ["NON_FINITE"] * 2


def test_a_failure_says_its_status():
    assert fit(spoil(model_of(max_steps=20)), data_of()).failures[0].status == "MAX_STEPS"
    assert fit(spoil(stack_of(), 1, math.inf), data_of()).failures[0].status == "NON_FINITE"
    assert fit(model_of(), data_of(), loss=Trap(1)).failures[0].status == "LOSS"
    assert fit(model_of(), data_of(), loss=Trap(1, what="gradient")).failures[0].status == "GRADIENT"


# Arguments


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"minutes": 0}, "minutes: takes a number above 0, got 0"),
        ({"minutes": "1"}, "minutes: takes a number above 0, got '1'"),
        ({"evaluate_every": 0}, "evaluate_every: takes a whole number above 0, got 0"),
        ({"evaluate_every": 1.5}, "evaluate_every: takes a whole number above 0, got 1.5"),
        ({"on_failure": "skp"}, "on_failure: takes one of stop, skip, raise, got 'skp'; did you mean 'skip'"),
    ],
    ids=str,
)
def test_a_limit_that_is_none_is_an_error_that_names_it(options, said):
    model = model_of()
    before = values_of(model)
    with pytest.raises(ValueError, match=said):
        fit(model, data_of(), **options)
    assert same(values_of(model), before)
