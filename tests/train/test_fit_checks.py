"""Checks of the solves on the way: ``anode.fit(..., check_every=n)``."""

import json

import numpy as np
import pytest
import torch

import anode
from anode import History
from anode.storage import read_json
from helpers.own_parts import Scaled
from helpers.trainings import (
    Copies,
    assert_same_history,
    close,
    data_of,
    each_solved,
    fit,
    interrupt_after,
    model_of,
    same,
    spoil,
    stack_of,
    values_of,
)


def flow_in(model) -> anode.Flow:
    return model if isinstance(model, anode.Flow) else model.flow


@each_solved
def test_what_is_recorded_is_what_flow_check_says_of_the_model_at_that_moment(kind):
    model, data = model_of(kind), data_of(kind)
    copies = Copies(model)
    history = fit(model, data, check_every=4, progress=copies)
    assert history.check_at.tolist() == [0, 4, 6]
    expected = [float(flow_in(copies.models[at]).check(data.x).overall) for at in (0, 4, 6)]
    np.testing.assert_array_equal(history.check, np.float32(expected), strict=True)
    assert history.settings["check_every"] == 4


def test_the_flow_of_a_model_of_your_own_is_checked():
    model, data = Scaled(model_of("Flow")).double(), data_of("Flow")
    history = fit(model, data, check_every=100)
    assert history.check[-1] == np.float32(model.inner.check(data.x).overall)


def test_every_member_of_a_stack_has_its_own_error():
    models, data = stack_of(), data_of()
    history = fit(models, data, check_every=3)
    assert history.check.shape == (3, 3)
    for member, alone in enumerate(anode.unstack(models)):
        assert history.check[-1, member] == pytest.approx(float(alone.flow.check(data.x).overall), rel=1e-4)


def test_the_points_are_the_first_of_the_validation_data_and_at_most_256():
    model, validation = model_of(), data_of(points=300, seed=1)
    history = fit(model, data_of(), validation=validation, check_every=100)
    assert history.check_at.tolist() == [0, 6]
    assert history.check[-1] == np.float32(model.flow.check(validation.x[:256]).overall)


def test_batches_that_somebody_else_makes_are_checked_on_their_first():
    data = data_of(points=300)
    model = model_of()
    history = fit(model, [(data.x, data.y)], batch_size=None, check_every=1)
    assert history.check[-1] == np.float32(model.flow.check(data.x[:256]).overall)


class Drawing(anode.NeuralODE):
    """Draws random numbers in training and in use, and differs between the two."""

    def run(self, x, **options):
        outcome = super().run(x + 0.01 * torch.randn_like(x), **options)
        return outcome if self.training else anode.Outcome(2 * outcome.prediction, outcome.features, outcome.solution)


@pytest.mark.parametrize("build", [model_of, stack_of, lambda: Drawing(2, 1, 8).double().train()])
def test_checking_changes_nothing_in_training(build):
    results = []
    for check_every in (None, 1):
        torch.manual_seed(0)
        model = build()
        history = fit(model, data_of(), check_every=check_every)
        results.append((values_of(model), history.loss, model.training, torch.rand(2)))
    (plain, loss, mode, drawn), (checked, same_loss, same_mode, same_drawn) = results
    assert same(plain, checked)
    np.testing.assert_array_equal(loss, same_loss)
    assert mode == same_mode
    assert torch.equal(drawn, same_drawn)


@pytest.mark.parametrize("members", [None, 3])
def test_the_compiled_engine_stops_for_checks_and_python_finds_the_same(members):
    found = []
    for engine in ("native", "torch"):
        model = model_of(engine=engine) if members is None else stack_of(engine=engine)
        found.append((fit(model, data_of(), epochs=4, check_every=5), values_of(model)))
    (native, values), (python, others) = found
    assert (native.engine, native.check_at.tolist()) == ("native", [0, 5, 10, 12])
    assert python.check_at.tolist() == [0, 5, 10, 12]
    np.testing.assert_allclose(native.check, python.check, rtol=1e-3)
    assert close(values, others, 1e-8)


@pytest.mark.parametrize("build", [model_of, stack_of])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_run_that_goes_on_has_the_checks_of_one_that_was_not_interrupted(build, after, tmp_path):
    whole, half, other = build(), build(), spoil(build())
    options = {"check_every": 2, "epochs": 3}
    expected = fit(whole, data_of(), **options)
    fit(half, data_of(), **options, checkpoint=tmp_path, progress=interrupt_after(after))
    history = fit(other, data_of(), **options, checkpoint=tmp_path)
    assert history.check_at.tolist() == [0, 2, 4, 6, 8, 9]
    assert_same_history(history, expected)
    assert same(values_of(other), values_of(whole))


def test_the_check_at_an_end_that_was_not_the_last_is_forgotten(tmp_path):
    whole, other = model_of(), model_of()
    expected = fit(whole, data_of(), check_every=4, epochs=3)
    assert fit(other, data_of(), check_every=4, epochs=1, checkpoint=tmp_path).check_at.tolist() == [0, 3]
    assert_same_history(fit(other, data_of(), check_every=4, epochs=3, checkpoint=tmp_path), expected)


def test_a_folder_of_a_run_with_other_checks_is_refused(tmp_path):
    fit(model_of(), data_of(), checkpoint=tmp_path)
    with pytest.raises(ValueError, match="check_every was None and is 2"):
        fit(model_of(), data_of(), checkpoint=tmp_path, check_every=2)


def test_a_solve_that_fails_is_infinite_and_comes_back_so_from_a_file(tmp_path):
    model = spoil(model_of(max_steps=5), scale=30)
    history = fit(model, data_of(), check_every=2, on_failure="skip", epochs=1)
    assert np.isinf(history.check).all()
    assert "reconstruction error inf%" in repr(history)
    np.testing.assert_array_equal(History.load(history.save(tmp_path / "history.json")).check, history.check)


def test_a_member_that_has_failed_has_no_error_and_the_others_have():
    history = fit(spoil(stack_of(max_steps=20), member=1), data_of(), check_every=3)
    assert [failure.member for failure in history.failures] == [1]
    assert np.isinf(history.check[0]).tolist() == [False, True, False]
    assert np.isnan(history.check[1:]).tolist() == [[False, True, False]] * 2
    largest = np.nanmax(history.check[-1])
    assert f"reconstruction error up to {largest:.2%}" in repr(history)


def test_reports_have_the_last_error():
    told = []
    history = fit(model_of(), data_of(), check_every=2, epochs=1, progress=told.append)
    np.testing.assert_allclose([report.check for report in told], history.check[[0, 1, 1]])
    told.clear()
    fit(model_of(), data_of(), epochs=1, progress=told.append)
    assert {report.check for report in told} == {None}


@pytest.mark.parametrize(
    "build", [lambda: model_of("ResNet"), lambda: torch.nn.Sequential(torch.nn.Linear(2, 1)).double()]
)
def test_a_model_without_a_flow_has_nothing_to_check(build):
    with pytest.raises(ValueError, match="check_every: takes None for a model without a flow"):
        fit(build(), data_of(), check_every=2)


@pytest.mark.parametrize("every", [0, -1, 1.5])
def test_a_number_that_is_none_is_named(every):
    with pytest.raises(ValueError, match="check_every: takes a whole number above 0"):
        fit(model_of(), data_of(), check_every=every)


def test_a_history_from_before_there_were_checks_is_read(tmp_path):
    path = fit(model_of(), data_of()).save(tmp_path / "history.json")
    content = read_json(path)
    del content["check"], content["check_at"]
    path.write_text(json.dumps(content))
    assert History.load(path).check.shape == (0,)


@pytest.mark.parametrize("build", [model_of, stack_of])
def test_errors_are_drawn_on_an_axis_of_their_own_with_the_bound(build):
    history = fit(build(), data_of(), check_every=2)
    history.check[1] = np.inf
    *_, ax = history.plot().axes
    assert (ax.get_ylabel(), ax.get_yscale()) == ("relative error", "log")
    lines = {line.get_label(): line for line in ax.lines}
    assert list(lines) == ["forward and back", "bound, 1 %", "a solve failed"]
    assert lines["bound, 1 %"].get_ydata() == [0.01, 0.01]
    assert lines["a solve failed"].get_xdata().tolist() == [2]
    assert lines["forward and back"].get_xdata().tolist() == [0, 2, 4, 6]
    assert len(history.plot().axes) == 3


def test_a_data_frame_has_the_errors_in_the_rows_of_their_iterations():
    history = fit(model_of(), data_of(), check_every=2)
    column = history.to_pandas()["check"]
    assert column.dropna().index.tolist() == [1, 3, 5]
    np.testing.assert_array_equal(column.dropna(), history.check[1:])
