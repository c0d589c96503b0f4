import csv
import json
import math
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from anode import History
from anode.files import DamagedFileError
from anode.plots import figure
from anode.storage import read_json
from anode.train.formats import as_list, from_arrays, to_arrays
from anode.train.record import SERIES, SHARED, Failure, Snapshot

PROPERTY = settings(max_examples=30)

each_kind = pytest.mark.parametrize("members", [None, 1, 3])


def history_of(members: int | None = None, iterations: int = 7, batches: int = 3, validated: int = 2) -> History:
    """A history with something in every place."""
    draws = np.random.default_rng(0)
    width = () if members is None else (members,)
    loss = draws.exponential(size=(iterations, *width)).astype(np.float32)
    validation = draws.exponential(size=(validated, *width)).astype(np.float32)
    if loss.size > 3:
        loss[-2:, ...] = np.nan
    snapshots = [
        Snapshot(
            at,
            draws.normal(size=(*width, 4, 2)).astype(np.float32),
            np.asarray(14 if members is None else [14] * members),
        )
        for at in (0, 3)
    ]
    return History(
        loss=loss,
        nfe=draws.integers(8, 200, (iterations, *width)),
        accepted=draws.integers(1, 20, (iterations, *width)),
        rejected=draws.integers(0, 5, (iterations, *width)),
        nfe_backward=draws.integers(0, 50, iterations),
        seconds=draws.exponential(size=iterations).astype(np.float32),
        batches=batches,
        validation=validation,
        failures=[Failure(0, max(0, iterations - 2), 'MAX_STEPS: the budget, "all" of it,\nwas used up', "MAX_STEPS")],
        stopped="interrupted",
        snapshots=snapshots,
        settings={"epochs": 3, "lr": [1e-3, 1e-4], "loss": "huber", "seed": 0, "weight_decay": 0.0},
    )


def checked(members: int | None) -> History:
    """One with checks, of which one failed and another was of a member that had failed before."""
    history, width = history_of(members), () if members is None else (members,)
    history.check = np.arange(3 * (members or 1), dtype=np.float32).reshape(3, *width) / 7
    history.check.reshape(-1)[-2:] = [np.nan, np.inf]
    history.check_at = np.array([0, 3, 7])
    return history


def assert_same_series(a: History, b: History) -> None:
    for name in (*SERIES, *SHARED):
        ours, theirs = getattr(a, name), getattr(b, name)
        assert ours.dtype == theirs.dtype == {**SERIES, **SHARED}[name], name
        np.testing.assert_array_equal(ours, theirs, err_msg=name, strict=True)


def assert_same(a: History, b: History) -> None:
    assert_same_series(a, b)
    for name in ("validation", "check", "check_at"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name, strict=True)
    for name in ("batches", "failures", "stopped", "settings", "members", "epochs"):
        assert getattr(a, name) == getattr(b, name), name
    assert len(a.snapshots) == len(b.snapshots)
    for ours, theirs in zip(a.snapshots, b.snapshots, strict=True):
        assert ours.iteration == theirs.iteration
        np.testing.assert_array_equal(ours.features, theirs.features, strict=True)
        np.testing.assert_array_equal(ours.nfe, theirs.nfe, strict=True)


# What a history says


def test_a_history_knows_its_length_members_and_epochs():
    plain, stacked = history_of(), history_of(3)
    assert (len(plain), plain.members, plain.epochs) == (7, None, 3)
    assert (len(stacked), stacked.members, stacked.epochs) == (7, 3, 3)
    assert history_of(iterations=6).epochs == 2
    assert history_of(iterations=0, validated=0).epochs == 0


@each_kind
def test_the_last_loss_and_check_leave_out_what_is_not_finite(members):
    history = checked(members)
    history.batches = len(history)
    history.loss[:], history.loss[0], history.loss[1] = np.nan, 3.0, 5.0
    assert history.last_loss == 4.0
    assert history.last_check == np.nanmax(history.check[-1])
    history.loss[:] = np.nan
    history.check[-1] = np.nan
    assert history.last_loss is None
    assert history.last_check is None


@each_kind
def test_the_mean_over_each_epoch_includes_an_epoch_that_was_cut_short(members):
    history = history_of(members)
    expected = [history.nfe[:3].mean(0), history.nfe[3:6].mean(0), history.nfe[6:].mean(0)]
    np.testing.assert_allclose(history.per_epoch("nfe"), expected)
    assert history.per_epoch("seconds").shape == (3,)
    assert np.isnan(history.per_epoch("loss")[1:]).all()


@pytest.mark.parametrize(("members", "shape"), [(None, (0,)), (3, (0, 3))])
def test_a_history_without_iterations_has_no_epochs_to_take_the_mean_of(members, shape):
    assert history_of(members, iterations=0, validated=0).per_epoch("loss").shape == shape


def recorded(loss, **series) -> History:
    """A history with this loss."""
    loss = np.asarray(loss, dtype=np.float32)
    zeros = np.zeros(loss.shape, dtype=np.int64)
    given = {"nfe": zeros, "accepted": zeros, "rejected": zeros, "nfe_backward": np.zeros(len(loss), dtype=np.int64)}
    given |= {"seconds": np.zeros(len(loss), dtype=np.float32), "validation": np.empty(0, dtype=np.float32)}
    return History(loss=loss, batches=2, **{**given, **{name: np.asarray(each) for name, each in series.items()}})


@each_kind
@pytest.mark.parametrize("count", [1, 3, 7, 12, 100])
def test_stretches_of_training_share_out_all_iterations_evenly(members, count):
    width = () if members is None else (members,)
    loss = np.random.default_rng(0).exponential(size=(12, *width)).astype(np.float32)
    ends, means = recorded(loss).windows("loss", count)
    assert len(ends) == min(count, 12)
    assert ends[-1] == 12
    sizes = np.diff([0, *ends])
    assert sizes.max() - sizes.min() <= 1
    assert means.shape == (len(ends), *width)
    starts = [0, *ends[:-1]]
    expected = [loss[start:end].mean(0, dtype=float) for start, end in zip(starts, ends, strict=True)]
    np.testing.assert_allclose(means, expected)


def test_losses_of_skipped_iterations_are_left_out_but_what_they_cost_is_not():
    nan = np.nan
    history = recorded(
        [1, nan, 3, 5, nan, nan], nfe=[10, 999, 30, 50, 999, 999], accuracy=np.float32([1, nan, 0, 1, nan, nan])
    )
    ends, loss = history.windows("loss", 3)
    assert ends.tolist() == [2, 4, 6]
    np.testing.assert_array_equal(loss, [1, 4, nan])
    np.testing.assert_array_equal(history.windows("nfe", 3)[1], [504.5, 40, 999])
    np.testing.assert_array_equal(history.windows("accuracy", 3)[1], [1, 0.5, nan])


def test_each_member_has_skipped_iterations_of_its_own_and_a_frozen_one_costs_nothing():
    nan = np.nan
    loss = [[1, nan], [3, nan], [nan, 4], [nan, nan]]
    history = recorded(loss, nfe=[[10, 0], [20, 0], [99, 40], [99, 0]], seconds=np.float32([1, 2, 3, 4]))
    np.testing.assert_array_equal(history.windows("loss", 2)[1], [[2, nan], [nan, 4]])
    np.testing.assert_array_equal(history.windows("nfe", 2)[1], [[15, nan], [99, 40]])
    np.testing.assert_array_equal(history.windows("seconds", 2)[1], [1.5, 3.5])


@pytest.mark.parametrize("series", ["validation", "accuracy"])
def test_stretches_of_what_was_not_recorded_of_every_iteration_are_refused(series):
    with pytest.raises(ValueError, match=f"series: takes .* with one value per iteration, got '{series}'"):
        recorded([1.0, 2.0]).windows(series, 2)


@pytest.mark.parametrize(("members", "shape"), [(None, (0,)), (3, (0, 3))])
def test_a_history_without_iterations_has_no_stretches(members, shape):
    ends, means = history_of(members, iterations=0, validated=0).windows("loss", 5)
    assert (ends.shape, means.shape) == ((0,), shape)


def test_a_history_prints_the_loss_of_an_epoch_without_the_iterations_that_were_skipped():
    assert "loss 2 at" in repr(recorded([5, 5, 2, np.nan]))


def test_a_history_prints_as_one_line():
    history = history_of(3)
    history.loss = np.full((7, 3), 0.25, np.float32)
    history.nfe = np.full((7, 3), 20)
    history.validation, history.validation_accuracy = np.full((2, 3), 0.5), np.array([[0.5] * 3, [0.5, 0.75, 1.0]])
    assert (
        repr(history)
        == "History(3 members, 7 iterations, loss 0.25, nfe 20 at the end, validation loss 0.5, accuracy 75.0%, "
        "1 failed, stopped: interrupted)"
    )
    history.loss[:, 1] = np.nan  # a member that failed
    assert "loss 0.25" in repr(history)
    history.failures, history.stopped = [], ""
    history.validation = history.validation_accuracy = np.empty((0, 3))
    assert repr(history) == "History(3 members, 7 iterations, loss 0.25, nfe 20 at the end)"
    assert "no iterations" in repr(history_of(iterations=0, validated=0))


@each_kind
def test_a_history_that_ended_in_failure_prints_without_a_warning(members):
    assert "1 failed" in repr(history_of(members))


# JSON


@each_kind
def test_json_holds_all_of_it(members, tmp_path):
    history = checked(members)
    path = history.save(tmp_path / "history.json")
    assert path == tmp_path / "history.json"
    assert_same(History.load(path), history)
    assert_same(History.load(str(path)), history)


@each_kind
def test_a_history_with_nothing_special_comes_back(members, tmp_path):
    history = history_of(members)
    history.failures, history.stopped, history.snapshots, history.settings = [], "", [], {}
    assert_same(History.load(history.save(tmp_path / "history.json")), history)


@pytest.mark.parametrize("members", [None, 3])
def test_a_history_without_validation_comes_back(members, tmp_path):
    history = history_of(members, validated=0)
    assert_same(History.load(history.save(tmp_path / "history.json")), history)


@pytest.mark.parametrize("members", [None, 3])
def test_a_history_without_iterations_comes_back(members, tmp_path):
    history = history_of(members, iterations=0, validated=0)
    assert_same(History.load(history.save(tmp_path / "history.json")), history)


@pytest.mark.parametrize("name", ["accuracy", "validation_accuracy", "validation_nfe", "validation_at"])
def test_a_series_that_is_shorter_than_the_others_is_noticed(name, tmp_path):
    path = history_of().save(tmp_path / "history.json")
    path.write_text(json.dumps({**read_json(path), name: [1]}))
    with pytest.raises(DamagedFileError, match=f"{name}: takes the shape"):
        History.load(path)


def test_features_in_double_precision_come_back(tmp_path):
    history = history_of()
    history.snapshots = [Snapshot(0, np.random.default_rng(0).normal(size=(4, 2)), np.asarray(14))]
    assert_same(History.load(history.save(tmp_path / "history.json")), history)


@PROPERTY
@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 3)), elements=st.floats(width=32)))
def test_every_loss_comes_back_to_the_bit_and_what_is_not_finite_as_nan(tmp_path, loss):
    history = history_of(loss.shape[1], len(loss))
    history.loss = loss
    found = History.load(history.save(tmp_path / "history.json")).loss
    np.testing.assert_array_equal(found, np.where(np.isfinite(loss), loss, np.nan), strict=True)


@PROPERTY
@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.float64]),
        arrays.array_shapes(min_dims=0, max_dims=3),
        elements=st.floats(width=32),
    )
)
def test_lists_are_those_of_numpy_with_none_for_what_is_not_finite(values):
    def expected(item):
        if isinstance(item, list):
            return [expected(part) for part in item]
        return item if math.isfinite(item) else None

    def numbers(item):
        return [numbers(part) for part in item] if isinstance(item, list) else item and np.float32(item)

    assert numbers(as_list(values)) == numbers(expected(values.tolist()))


def test_json_is_strict_and_small(tmp_path):
    path = history_of(3).save(tmp_path / "history.json")
    content = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert content["format"] == "anode history 1"
    assert content["loss"][-1] == [None] * 3
    assert max(len(repr(value)) for row in content["loss"] for value in row) <= 15


def test_saving_again_replaces_the_file(tmp_path):
    path = tmp_path / "history.json"
    history_of(3).save(path)
    history_of(None).save(path)
    assert History.load(path).members is None
    assert [file.name for file in tmp_path.iterdir()] == ["history.json"]


def test_a_history_whose_settings_are_not_json_leaves_the_old_file(tmp_path):
    path = history_of().save(tmp_path / "history.json")
    other = history_of(3)
    other.settings = {"loss": object()}
    with pytest.raises(TypeError):
        other.save(path)
    assert_same(History.load(path), history_of())


# CSV


@each_kind
def test_csv_holds_the_series(members, tmp_path):
    history = history_of(members)
    found = History.load(history.save(tmp_path / "history.csv"))
    assert_same_series(found, history)
    assert (found.batches, found.epochs, found.members) == (history.batches, history.epochs, history.members)
    assert found.validation.shape == ((0,) if members is None else (0, members))
    assert found.failures == found.snapshots == []


@each_kind
def test_csv_is_a_row_for_each_iteration_and_member(members, tmp_path):
    history = history_of(members)
    text = history.save(tmp_path / "history.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert list(rows[0]) == ["iteration", "epoch", "member", *SERIES, *SHARED]
    assert len(rows) == 7 * (members or 1)
    last = rows[-1]
    assert (last["iteration"], last["epoch"]) == ("6", "2")
    assert last["member"] == ("" if members is None else str(members - 1))
    assert last["nfe"] == str(history.nfe.reshape(7, -1)[-1, -1])
    assert last["loss"] == "nan"


@PROPERTY
@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 3)), elements=st.floats(width=32)))
def test_every_loss_comes_back_from_csv_to_the_bit(tmp_path, loss):
    history = history_of(loss.shape[1], len(loss))
    history.loss = loss
    found = History.load(history.save(tmp_path / "history.csv")).loss
    np.testing.assert_array_equal(found, loss, strict=True)


def test_a_history_without_iterations_comes_back_from_csv(tmp_path):
    history = history_of(iterations=0, validated=0)
    assert len(History.load(history.save(tmp_path / "history.csv"))) == 0


# Arrays with JSON beside them


@each_kind
@pytest.mark.parametrize("build", [checked, history_of, partial(history_of, validated=0)])
def test_arrays_and_what_is_beside_them_hold_all_but_the_settings(members, build):
    history = build(members)
    content, kept = to_arrays(history)
    found = History(**from_arrays(json.loads(json.dumps(content)), kept), settings=history.settings)
    assert_same(found, history)


def test_arrays_are_as_small_as_their_numbers_and_what_is_empty_is_left_out():
    history = history_of(3)
    history.nfe[0, 0], history.rejected[:] = 1000, 1
    _, kept = to_arrays(history)
    assert (kept["history.nfe"].dtype, kept["history.rejected"].dtype) == (np.int16, np.int8)
    assert "history.accuracy" not in kept
    assert "history.validation" in to_arrays(history_of(3, validated=0))[1]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("nfe", lambda values: values[1:]),
        ("nfe", lambda values: values[:, 1:]),
        ("nfe", lambda values: values + 0.5),
        ("seconds", lambda values: values[:, None]),
        ("validation", lambda values: values[:, 1:]),
    ],
)
def test_arrays_that_do_not_fit_together_are_noticed(name, change):
    content, kept = to_arrays(history_of(3))
    kept[f"history.{name}"] = change(kept[f"history.{name}"])
    with pytest.raises(ValueError, match=f"{name}: takes"):
        from_arrays(content, kept)


# Data frames


def evaluated(members: int | None) -> History:
    """A history that says when the validation set was evaluated."""
    history = history_of(members)
    history.validation_at = np.array([3, 7])
    return history


@each_kind
def test_a_data_frame_has_the_rows_and_columns_of_the_csv_file(members, tmp_path):
    history = history_of(members)
    frame, table = history.to_pandas(), pd.read_csv(history.save(tmp_path / "history.csv"))
    table["member"] = table["member"].fillna(0).astype(int)  # a model by itself has none there
    pd.testing.assert_frame_equal(frame, table, check_dtype=False, rtol=1e-6)
    assert frame["nfe"].dtype == np.int64


@each_kind
def test_what_was_found_at_an_evaluation_is_in_the_row_of_its_iteration(members):
    history = evaluated(members)
    frame = history.to_pandas()
    rows = frame[frame["validation"].notna()]
    assert rows["iteration"].tolist() == [at for at in (2, 6) for _ in range(members or 1)]
    np.testing.assert_array_equal(rows["validation"], history.validation.reshape(-1))
    assert "validation_accuracy" not in frame


def test_accuracies_are_columns_where_there_are_classes():
    history = evaluated(3)
    history.accuracy, history.validation_accuracy = np.full((7, 3), 0.5), np.full((2, 3), 0.25)
    frame = history.to_pandas()
    assert (frame["accuracy"] == 0.5).all()
    assert frame["validation_accuracy"].dropna().tolist() == [0.25] * 6


def test_a_data_frame_of_no_iterations_has_no_rows():
    frame = history_of(iterations=0, validated=0).to_pandas()
    assert (len(frame), list(frame)) == (0, ["iteration", "epoch", "member", *SERIES, *SHARED])


def test_without_pandas_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"^to_pandas needs pandas, .*: run `pip install pandas`$"):
        history_of().to_pandas()


# Pictures


def lines_in(ax) -> dict[str, tuple[list, list]]:
    return {line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in ax.lines}


def test_a_picture_has_the_loss_on_a_logarithmic_axis_and_the_nfe_beside_it():
    loss, nfe = [1.0, 0.5, 0.25, 0.125], [20, 20, 26, 32]
    left, right = recorded(loss, nfe=nfe).plot().axes
    assert lines_in(left) == {"training": ([1, 2, 3, 4], loss)}
    assert lines_in(right) == {"NFE": ([1, 2, 3, 4], nfe)}
    assert (left.get_yscale(), right.get_yscale()) == ("log", "linear")
    assert (left.get_xlabel(), left.get_ylabel()) == ("iteration", "loss")
    assert right.get_ylabel() == "function evaluations"


def test_a_model_without_a_solve_has_no_nfe_to_draw():
    assert [ax.get_ylabel() for ax in recorded([1.0, 0.5]).plot().axes] == ["loss"]


def test_the_picture_of_a_stack_has_means_over_its_members_and_bands():
    loss = np.array([[1.0, 3.0], [0.5, 1.5], [0.25, np.nan]])
    (ax,) = recorded(loss).plot().axes
    assert lines_in(ax) == {"training": ([1, 2, 3], [2.0, 1.0, 0.25])}
    corners = ax.collections[0].get_paths()[0].vertices
    assert {1.0, 3.0} <= set(corners[corners[:, 0] == 1, 1])


def test_validation_losses_are_drawn_where_they_were_found():
    history = recorded([1.0, 0.5, 0.25], validation=[0.75, 0.5], validation_at=[1, 3])
    (ax,) = history.plot().axes
    assert lines_in(ax)["validation"] == ([1, 3], [0.75, 0.5])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["training", "validation"]


def test_a_single_evaluation_is_a_dot():
    (ax,) = recorded([1.0, 0.5], validation=[0.75], validation_at=[2]).plot().axes
    assert [line.get_marker() for line in ax.lines] == ["None", "o"]


def test_a_long_training_is_drawn_as_means_over_stretches():
    (ax,) = recorded(np.arange(1.0, 61.0)).plot().axes  # two iterations make an epoch
    ends, means = lines_in(ax)["training"]
    assert (len(ends), ends[-1]) == (40, 60)
    assert means == recorded(np.arange(1.0, 61.0)).windows("loss", 40)[1].tolist()


def test_the_loss_can_be_drawn_on_axes_of_ones_own():
    made = figure(columns=2)
    assert recorded([1.0, 0.5], nfe=[20, 20]).plot(made.axes[1]) is made
    assert [len(ax.lines) for ax in made.axes] == [0, 1]


def test_a_history_without_iterations_cannot_be_drawn():
    with pytest.raises(ValueError, match="history: plot takes a history of at least one iteration, got none"):
        history_of(iterations=0, validated=0).plot()


# Names of files


@pytest.mark.parametrize("name", ["history", "history.txt", "history.json.gz", ".json", "history.JSON"])
def test_a_name_that_ends_in_something_else_is_an_error_and_nothing_is_written(tmp_path, name):
    with pytest.raises(ValueError, match=r"path: takes a path that ends in \.json or \.csv, got "):
        history_of().save(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["none.json", "none.csv"])
def test_a_file_that_is_not_there_is_not_damaged(tmp_path, name):
    with pytest.raises(FileNotFoundError):
        History.load(tmp_path / name)


# Damage


def changed(**content) -> object:
    """Damage that replaces entries of a history's content."""
    return lambda whole: {**whole, **content}


def without(name: str) -> object:
    return lambda whole: {key: value for key, value in whole.items() if key != name}


NOTICED = {
    "null": lambda whole: None,
    "number": lambda whole: 3,
    "list": lambda whole: [whole],
    "text": lambda whole: "loss",
    "empty": lambda whole: {},
    "other format": changed(format="anode history 99"),
    "format of a model": changed(format="anode model 1"),
    **{f"no {name}": without(name) for name in ("format", "batches", "stopped", "failures", "settings", "snapshots")},
    **{f"no {name}": without(name) for name in (*SERIES, *SHARED, "validation")},
    "shorter loss": lambda whole: {**whole, "loss": whole["loss"][:-1]},
    "longer nfe": lambda whole: {**whole, "nfe": [*whole["nfe"], whole["nfe"][0]]},
    "shorter seconds": lambda whole: {**whole, "seconds": whole["seconds"][1:]},
    "words for losses": lambda whole: {**whole, "loss": ["much"] * len(whole["loss"])},
    "ragged losses": lambda whole: {**whole, "loss": [[0.1, 0.2], *whole["loss"][1:]]},
    "losses by name": changed(loss={"a": 1}),
    "no losses": changed(loss=None),
    "one loss": changed(loss=0.5),
    "checks without moments": changed(check=[0.1]),
    "moments without checks": changed(check_at=[0]),
    "words for checks": changed(check=["bad"], check_at=[0]),
    "failures by number": changed(failures=[1]),
    "failures of other kinds": changed(failures=[{"member": 0}]),
    "failures with more": changed(failures=[{"member": 0, "iteration": 1, "reason": "", "how": 3}]),
    "no failures": changed(failures=None),
    "snapshots by number": changed(snapshots=[1]),
    "snapshots without features": changed(snapshots=[{"iteration": 0, "nfe": 14}]),
    "snapshots with ragged features": changed(snapshots=[{"iteration": 0, "nfe": 14, "features": [[1, 2], [3]]}]),
}

UNNOTICED = {
    "batches of 0": changed(batches=0),
    "batches below 0": changed(batches=-3),
    "batches in words": changed(batches="3"),
    "batches in parts": changed(batches=2.5),
    "no number of evaluations": lambda whole: {**whole, "nfe": [None] * len(whole["nfe"])},
    "a part of an evaluation": lambda whole: {**whole, "nfe": [14.5] * len(whole["nfe"])},
    "other members": lambda whole: {**whole, "nfe": [[14] * 5] * len(whole["nfe"])},
    "members that share nothing": lambda whole: {**whole, "seconds": [[0.1] * 2] * len(whole["seconds"])},
    "validation of other members": changed(validation=[[0.1] * 5]),
    "validation of nobody": changed(validation=0.5),
    "losses beyond all numbers": lambda whole: {**whole, "loss": [10**400] * len(whole["loss"])},
    "failures in words": changed(failures=[{"member": "first", "iteration": 1, "reason": ""}]),
    "settings in words": changed(settings="all of them"),
    "a number for a reason": changed(stopped=3),
    "snapshots without cost": changed(snapshots=[{"iteration": 0, "features": [[1.0, 2.0]], "nfe": None}]),
}


@each_kind
@pytest.mark.parametrize("damage", NOTICED)
def test_a_file_that_is_no_history_is_an_error_that_names_it(members, damage, tmp_path):
    path = history_of(members).save(tmp_path / "history.json")
    path.write_text(json.dumps(NOTICED[damage](read_json(path))))
    with pytest.raises(DamagedFileError, match=r"history\.json: is not a history .*; remove it or restore it"):
        History.load(path)


@pytest.mark.parametrize("members", [None, 3])
@pytest.mark.parametrize("damage", UNNOTICED)
def test_a_history_that_makes_no_sense_is_an_error_that_names_it(members, damage, tmp_path):
    path = history_of(members).save(tmp_path / "history.json")
    path.write_text(json.dumps(UNNOTICED[damage](read_json(path))))
    with pytest.raises(DamagedFileError, match=r"history\.json: "):
        History.load(path)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_cut_json_file_is_an_error_that_names_it(share, tmp_path):
    path = history_of(3).save(tmp_path / "history.json")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DamagedFileError, match=r"history\.json: is not a JSON file"):
        History.load(path)


@pytest.mark.parametrize("name", ["history.json", "history.csv"])
@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00\x01", b"hello\nworld\n", b"\x80\x04\x95cos\nsystem\n"])
def test_a_file_of_something_else_is_an_error_that_names_it(name, damage, tmp_path):
    path = tmp_path / name
    path.write_bytes(damage)
    with pytest.raises(DamagedFileError, match=rf"{name}: is not a"):
        History.load(path)


def rows_without(column: str):
    def damage(lines: list[str]) -> list[str]:
        rows = list(csv.reader(lines))
        place = rows[0].index(column)
        return [",".join(row[:place] + row[place + 1 :]) for row in rows]

    return damage


def with_cell(column: str, value: str):
    def damage(lines: list[str]) -> list[str]:
        rows = list(csv.reader(lines))
        rows[-1][rows[0].index(column)] = value
        return [",".join(row) for row in rows]

    return damage


@pytest.mark.parametrize(
    ("members", "damage"),
    [
        *(
            (members, rows_without(name))
            for members in (None, 3)
            for name in ("iteration", "epoch", "member", *SERIES, *SHARED)
        ),
        (3, lambda lines: lines[:-1]),
        (None, lambda lines: [*lines[:3], *lines[4:]]),
        (3, lambda lines: [*lines[:3], *lines[4:]]),
        (None, with_cell("loss", "much")),
        (3, with_cell("nfe", "many")),
        (3, with_cell("iteration", "last")),
        (None, with_cell("iteration", "1000")),
        (None, lambda lines: lines[1:]),
    ],
)
def test_a_damaged_csv_file_is_an_error_that_names_it(members, damage, tmp_path):
    path = history_of(members).save(tmp_path / "history.csv")
    path.write_text("\n".join(damage(path.read_text().splitlines())) + "\n")
    with pytest.raises(DamagedFileError, match=r"history\.csv: is not a history"):
        History.load(path)


@pytest.mark.parametrize(
    ("members", "damage"),
    [
        (None, lambda lines: [*lines[:-1], lines[-1].rsplit(",", 2)[0]]),  # cut within the last line
        (3, lambda lines: [*lines[:-1], lines[-1].rsplit(",", 2)[0]]),
        (None, with_cell("nfe", "nan")),
        (None, with_cell("nfe", "14.5")),
        (None, with_cell("iteration", "-1")),
        (3, lambda lines: [lines[0], *lines[4:7], *lines[1:4], *lines[7:]]),  # iterations out of order
        (None, with_cell("nfe", "1" * 200_000)),
    ],
)
def test_a_csv_file_that_makes_no_sense_is_an_error_that_names_it(members, damage, tmp_path):
    path = history_of(members).save(tmp_path / "history.csv")
    path.write_text("\n".join(damage(path.read_text().splitlines())) + "\n")
    with pytest.raises(DamagedFileError, match=r"history\.csv: "):
        History.load(path)
