import errno
import math
import os
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import anode
from anode import Snapshots
from anode.files import DamagedFileError, temporary
from anode.models.model import Outcome
from anode.train.checkpoint.folder import opened
from helpers.folders import names_in
from helpers.trainings import (
    assert_same_history,
    data_of,
    each_kind,
    fit,
    interrupt_after,
    model_of,
    same,
    spoil,
    stack_of,
    values_of,
)

DATA, CHECK = data_of(), data_of(points=11, seed=1)
OPTIONS = {"lr": 1e-2, "validation": CHECK, "snapshots": Snapshots(CHECK.x[:4], [0, 2, 5])}

each_way = pytest.mark.parametrize("stacked", [False, True])


def built(stacked: bool, kind: str = "NeuralODE", **options):
    return stack_of(kind, **options) if stacked else model_of(kind, **options)


def spoiled(model):
    """Another model of the same kind: what is kept must not depend on it."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    return model


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# The same bits


@each_kind
@each_way
@pytest.mark.parametrize("after", [1, 3, 4])
def test_a_run_that_goes_on_ends_as_if_it_had_not_been_interrupted(kind, stacked, after, tmp_path):
    data, check = data_of(kind), data_of(kind, 11, seed=1)
    options = {"validation": check, "evaluate_every": 2, "snapshots": Snapshots(check.x[:4], [0, 2, 5])}
    whole, half, other = (built(stacked, kind) for _ in range(3))
    expected = fit(whole, data, **options)
    first = fit(half, data, **options, checkpoint=tmp_path, progress=interrupt_after(after))
    assert (first.stopped, len(first)) == ("interrupted", after)
    history = fit(spoiled(other), data, **options, checkpoint=tmp_path)
    assert_same_history(history, expected)
    assert same(values_of(other), values_of(whole))
    assert history.seconds.shape == (6,)


@each_way
def test_it_may_be_interrupted_after_every_iteration(stacked, tmp_path):
    whole, last = built(stacked), None
    expected = fit(whole, DATA, **OPTIONS)
    for i in range(1, 7):
        last = built(stacked) if i == 1 else spoiled(built(stacked))
        history = fit(last, DATA, **OPTIONS, checkpoint=str(tmp_path), progress=interrupt_after(i))
        assert len(history) == i
    history = fit(last, DATA, **OPTIONS, checkpoint=tmp_path)
    assert_same_history(history, expected)
    assert same(values_of(last), values_of(whole))


@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_members_that_were_set_aside_are_set_aside_again(after, tmp_path):
    def model():
        return spoil(stack_of(members=4, max_steps=20), 2)

    options = {**OPTIONS, "lr": [1e-3, 1e2, 1e-3, 1e-3]}  # another member fails in the second iteration
    whole, other = model(), spoiled(model())
    expected = fit(whole, DATA, **options)
    assert [failure.iteration for failure in expected.failures] == [0, 1]
    fit(model(), DATA, **options, checkpoint=tmp_path, progress=interrupt_after(after))
    assert_same_history(fit(other, DATA, **options, checkpoint=tmp_path), expected)
    assert same(values_of(other), values_of(whole))


@each_way
def test_a_run_that_failed_is_not_begun_again(stacked, tmp_path):
    def model():
        return spoil(built(stacked, max_steps=20))

    one, other = model(), model()
    expected = fit(one, DATA, **OPTIONS, checkpoint=tmp_path)
    assert len(expected) == 1
    assert_same_history(fit(spoiled(other), DATA, **OPTIONS, checkpoint=tmp_path), expected)
    assert same(values_of(one), values_of(other))


def test_skipped_iterations_stay_skipped(tmp_path):
    options = {"on_failure": "skip", "lr": 1e2}
    whole, other = model_of(max_steps=20), model_of(max_steps=20)
    expected = fit(whole, DATA, **options)
    assert expected.failures
    fit(model_of(max_steps=20), DATA, **options, checkpoint=tmp_path, progress=interrupt_after(4))
    assert_same_history(fit(other, DATA, **options, checkpoint=tmp_path), expected)
    assert same(values_of(other), values_of(whole))


class Noisy(anode.NeuralODE):
    """A model that draws random numbers and remembers what it saw."""

    def __init__(self) -> None:
        super().__init__(2, 3, 8)
        self.dropout, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(3)

    def run(self, x):
        outcome = super().run(x)
        return Outcome(self.norm(self.dropout(outcome.prediction)), outcome.features, outcome.solution)


def test_random_numbers_and_buffers_go_on_as_well(tmp_path):
    def train(**options):
        torch.manual_seed(0)
        model = Noisy().double()
        history = fit(model, (DATA.x, torch.arange(22) % 3), loss="cross_entropy", lr=1e-2, **options)
        return history, values_of(model) + [b.clone() for b in model.buffers()], torch.rand(3)

    expected, values, drawn = train(validation=(CHECK.x, torch.arange(11) % 3))
    options = {"validation": (CHECK.x, torch.arange(11) % 3), "checkpoint": tmp_path}
    train(**options, progress=interrupt_after(2))
    torch.rand(5)
    history, found, after = train(**options)
    assert_same_history(history, expected)
    assert same(found, values)
    assert torch.equal(after, drawn)


class Freezing(anode.Callback):
    """Freezes the head after the second iteration, and nothing later."""

    def iteration(self, training):
        if training.report.done == 2:
            training.model.head.requires_grad_(False)


@each_way
@pytest.mark.parametrize("after", [3, 4])
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_parameters_that_a_callback_has_frozen_stay_frozen(stacked, after, engine, tmp_path):
    options = {"callbacks": [Freezing()], "lr": 1e-2}
    if stacked:
        options["lr"] = [1e-2, 1e2, 1e-2]  # a member fails
    whole, half, other = (built(stacked, max_steps=20, engine=engine) for _ in range(3))
    expected = fit(whole, DATA, **options)
    assert len(expected.failures) == stacked
    fit(half, DATA, **options, checkpoint=tmp_path, progress=interrupt_after(after))
    assert_same_history(fit(spoiled(other), DATA, **options, checkpoint=tmp_path), expected)
    assert same(values_of(other), values_of(whole))
    assert not other.head.weight.requires_grad


class Adding(anode.Callback):
    """Unfreezes the flow after the second iteration, as in fine-tuning."""

    def iteration(self, training):
        if training.report.done == 2:
            flow = training.model.flow.requires_grad_(True)
            training.optimizer.add_param_group({"params": list(flow.parameters()), "lr": 1e-3})


@pytest.mark.parametrize("after", [1, 2, 4])
@pytest.mark.parametrize("options", [{"lr": 1e-2}, {"optimizer": "adamw"}], ids=["adam", "adamw"])
def test_groups_that_a_callback_has_added_are_added_again(options, after, tmp_path):
    whole, half, other = (model_of() for _ in range(3))
    for model in (whole, half, other):
        model.flow.requires_grad_(False)
    options = {**options, "callbacks": [Adding()]}
    expected = fit(whole, DATA, **options)
    fit(half, DATA, **options, checkpoint=tmp_path, progress=interrupt_after(after))
    assert_same_history(fit(spoiled(other), DATA, **options, checkpoint=tmp_path), expected)
    assert same(values_of(other), values_of(whole))


def test_a_group_of_parameters_outside_the_model_cannot_be_kept(tmp_path):
    class Outside(anode.Callback):
        def begin(self, training):
            training.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})

    fit(model_of(), DATA, callbacks=[Outside()])
    with pytest.raises(ValueError, match="optimizer: takes one that moves only parameters of the model if checkpoint"):
        fit(model_of(), DATA, callbacks=[Outside()], checkpoint=tmp_path)


@each_way
@pytest.mark.parametrize("evaluate_every", [None, 2, 4, 7])
def test_more_epochs_may_be_asked_for_later(stacked, evaluate_every, tmp_path):
    options = {**OPTIONS, "evaluate_every": evaluate_every}
    whole, other = built(stacked), built(stacked)
    expected = fit(whole, DATA, **options, epochs=4)
    assert fit(other, DATA, **options, epochs=1, checkpoint=tmp_path).stopped == ""
    assert fit(other, DATA, **options, epochs=3, checkpoint=tmp_path).validation_at[-1] == 9
    assert_same_history(fit(other, DATA, **options, epochs=4, checkpoint=tmp_path), expected)
    assert same(values_of(other), values_of(whole))


@each_way
def test_a_finished_run_returns_its_history_and_weights_at_once(stacked, tmp_path, monkeypatch):
    whole, other = built(stacked), spoiled(built(stacked))
    options = {**OPTIONS, "evaluate_every": 4}
    expected = fit(whole, DATA, **options, checkpoint=tmp_path)
    before = content_of(tmp_path)
    monkeypatch.setattr(anode.train.training.Training, "iterate", None)
    monkeypatch.setattr(anode.train.evaluation.Evaluation, "means", None)
    assert_same_history(fit(other, DATA, **options, checkpoint=tmp_path), expected)
    assert same(values_of(other), values_of(whole))
    assert content_of(tmp_path) == before


def test_a_run_that_ran_out_of_time_goes_on_and_forgets_the_look_it_took_there(tmp_path):
    whole, other = model_of(), model_of()
    expected = fit(whole, DATA, **OPTIONS)
    first = fit(other, DATA, **OPTIONS, checkpoint=tmp_path, minutes=1e-9)
    assert (first.stopped, len(first), first.validation_at.tolist()) == ("time is up", 1, [1])
    while (history := fit(other, DATA, **OPTIONS, checkpoint=tmp_path, minutes=1e-9)).stopped:
        assert history.stopped == "time is up"
    assert_same_history(history, expected)
    assert same(values_of(other), values_of(whole))


def test_what_is_kept_does_not_change_what_comes_out(tmp_path):
    one, other = model_of(), model_of()
    expected = fit(one, DATA, **OPTIONS)
    assert_same_history(fit(other, DATA, **OPTIONS, checkpoint=tmp_path, checkpoint_every=0), expected)
    assert same(values_of(one), values_of(other))


def test_no_state_is_kept_of_half_an_iteration(tmp_path):
    calls = []

    def loss(prediction, y):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return (prediction - y).square()

    history = fit(model_of(), DATA, loss=loss, checkpoint=tmp_path, checkpoint_every=0)
    assert (history.stopped, len(history)) == ("interrupted", 3)
    assert names_in(tmp_path)[-1] == "state-3.safetensors"
    calls.clear()
    calls += [1] * 10
    whole, other = model_of(), model_of()
    expected = fit(whole, DATA, loss=loss)
    assert_same_history(fit(other, DATA, loss=loss, checkpoint=tmp_path), expected)
    assert same(values_of(other), values_of(whole))


@pytest.mark.usefixtures("default_handler")
def test_ctrl_c_keeps_the_state_of_the_iteration_it_waited_for(tmp_path):
    def listen(report) -> None:
        if report.done == 2:
            signal.raise_signal(signal.SIGINT)

    history = fit(model_of(), DATA, checkpoint=tmp_path, progress=listen)
    assert (history.stopped, len(history)) == ("interrupted", 2)
    assert names_in(tmp_path) == ["state-2.json", "state-2.safetensors"]


# The folder


def test_the_last_two_states_are_kept(tmp_path):
    folder = tmp_path / "some" / "where"
    fit(model_of(), DATA, checkpoint=folder, checkpoint_every=0)
    assert names_in(folder) == [*(f"state-{i}.{s}" for i in (5, 6) for s in ("json", "safetensors"))]


def test_by_default_only_the_end_of_a_short_run_is_kept(tmp_path):
    fit(model_of(), DATA, checkpoint=tmp_path)
    assert names_in(tmp_path) == ["state-6.json", "state-6.safetensors"]


def kept(folder: Path) -> None:
    """States after the third and the fourth iteration."""
    fit(model_of(), DATA, **OPTIONS, checkpoint=folder, checkpoint_every=0, progress=interrupt_after(4))
    assert names_in(folder) == [*(f"state-{i}.{s}" for i in (3, 4) for s in ("json", "safetensors"))]


def flip(path: Path, share: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(share * (len(content) - 1))] ^= 0x55
    path.write_bytes(bytes(content))


def cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


DAMAGES = {
    **{f"flipped at {share}": lambda path, share=share: flip(path, share) for share in (0.0, 0.01, 0.3, 0.6, 1.0)},
    **{f"cut at {share}": lambda path, share=share: cut(path, share) for share in (0.0, 0.5, 0.99)},
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.filterwarnings("ignore:.*training goes on from iteration 3")
def test_a_damaged_state_is_noticed_and_the_one_before_it_taken(suffix, damage, tmp_path, recwarn):
    kept(tmp_path)
    DAMAGES[damage](tmp_path / f"state-4.{suffix}")
    whole, other, seen = model_of(), spoiled(model_of()), []
    expected = fit(whole, DATA, **OPTIONS)
    history = fit(other, DATA, **OPTIONS, checkpoint=tmp_path, progress=seen.append)
    assert seen[0].done == 4
    assert len(recwarn) == (0 if (suffix, damage) == ("json", "missing") else 1)
    assert_same_history(history, expected)
    assert same(values_of(other), values_of(whole))
    assert names_in(tmp_path) == [*(f"state-{i}.{s}" for i in (3, 6) for s in ("json", "safetensors"))]


def test_where_no_state_can_be_read_the_error_says_which_folder_to_remove(tmp_path):
    kept(tmp_path)
    flip(tmp_path / "state-3.json", 0.5)
    cut(tmp_path / "state-4.safetensors", 0.5)
    before, model = content_of(tmp_path), model_of()
    values = values_of(model)
    with pytest.raises(
        DamagedFileError, match=r"checkpoint: no checkpoint in .*state-4\.safetensors.*remove the folder"
    ):
        fit(model, DATA, **OPTIONS, checkpoint=tmp_path)
    assert content_of(tmp_path) == before
    assert same(values_of(model), values)


def my_loss(prediction, y):
    return (prediction - y).square()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"lr": 1e-3}, "lr was 0.01 and is 0.001"),
        ({"batch_size": 7}, "batch_size was 8 and is 7"),
        ({"weight_decay": 0.1}, "weight_decay was 0.0 and is 0.1"),
        ({"seed": 5}, "seed was 0 and is 5"),
        ({"loss": "mse"}, "loss was 'huber' and is 'mse'"),
        ({"loss": my_loss}, "loss was 'huber' and is 'my_loss'"),
        ({"on_failure": "skip"}, "on_failure was None and is 'skip'"),
        ({"evaluate_every": 2}, "evaluate_every was None and is 2"),
        ({"data": data_of(seed=1)}, "data is different"),
        ({"data": data_of(points=23)}, "data is different"),
        ({"validation": data_of()}, "validation is different"),
        ({"validation": None}, "validation is different"),
        ({"snapshots": Snapshots(CHECK.x[:4], [0, 2, 4])}, "snapshots is different"),
        ({"model": model_of(rtol=1e-4)}, "model is different"),
        ({"model": model_of("augmented")}, "model is different"),
        ({"model": stack_of()}, "model is different"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_folder_of_another_run_is_refused_by_what_differs_and_left_alone(changed, said, tmp_path):
    kept(tmp_path)
    before = content_of(tmp_path)
    options = {"model": model_of(), "data": DATA, **OPTIONS, **changed}
    values = values_of(options["model"])
    with pytest.raises(ValueError, match=f"checkpoint: .* belongs to another training run: .*{said}.*another folder"):
        fit(**options, checkpoint=tmp_path)
    assert content_of(tmp_path) == before
    assert same(values_of(options["model"]), values)


def test_fewer_epochs_than_have_been_made_are_an_error(tmp_path):
    kept(tmp_path)
    with pytest.raises(ValueError, match=r"epochs: takes at least 2, because .* holds 4 iterations, 3 per epoch"):
        fit(model_of(), DATA, **OPTIONS, epochs=1, checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"checkpoint": 3}, TypeError, "checkpoint: takes the path of a folder, got 3"),
        ({"checkpoint": __file__}, ValueError, "checkpoint: takes a folder, which need not exist, got the file"),
        ({"checkpoint_every": -1.0}, ValueError, "checkpoint_every: takes a number from 0, got -1.0"),
        ({"checkpoint_every": math.nan}, ValueError, "checkpoint_every: takes a number from 0, got nan"),
    ],
)
def test_a_checkpoint_that_is_none_is_an_error_that_names_it(options, error, said):
    with pytest.raises(error, match=said):
        fit(model_of(), DATA, **options)


@pytest.mark.parametrize("content", [b"", b"mine", b"\x02\0\0\0\0\0\0\0{}", b"\xff" * 20])
def test_a_file_that_is_only_called_like_a_state_is_left_alone(content, tmp_path):
    mine = tmp_path / "state-1.safetensors"
    mine.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"checkpoint: .*state-1\.safetensors is not a checkpoint of anode; choose another"
    ):
        kept(tmp_path)
    assert content_of(tmp_path) == {mine.name: content}
    mine.unlink()
    kept(tmp_path)
    mine.write_bytes(content)
    fit(model_of(), DATA, **OPTIONS, checkpoint=tmp_path)
    assert mine.read_bytes() == content


def test_what_a_killed_process_left_behind_is_removed_and_what_is_not_ours_stays(tmp_path):
    for name in ("state-7.json", "state-12.safetensors"):
        temporary(tmp_path / name).write_text("half")
    for name in ("notes.txt", ".notes-0123abcd.txt"):
        (tmp_path / name).write_text("mine")
    kept(tmp_path / "other")  # of which a state is left whose other half was never written
    (tmp_path / "other" / "state-4.safetensors").replace(tmp_path / "state-9.safetensors")
    shutil.rmtree(tmp_path / "other")
    history = fit(model_of(), DATA, checkpoint=tmp_path)
    assert len(history) == 6
    assert names_in(tmp_path) == [".notes-0123abcd.txt", "notes.txt", "state-6.json", "state-6.safetensors"]


def test_a_folder_in_use_is_refused(tmp_path):
    with opened(tmp_path, {}, 60.0), pytest.raises(BlockingIOError, match=r"checkpoint: .* is in use by another"):
        fit(model_of(), DATA, checkpoint=tmp_path)
    assert len(fit(model_of(), DATA, checkpoint=tmp_path)) == 6


# A full disk


@pytest.mark.parametrize("calls", [6, 7, 8])
def test_where_the_disk_is_full_the_error_names_the_file_and_the_state_before_stays(calls, tmp_path, monkeypatch):
    fsync, made = os.fsync, []

    def full(descriptor: int) -> None:
        made.append(1)
        if len(made) > calls:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    whole, model, other = model_of(), model_of(), model_of()
    expected = fit(whole, DATA, **OPTIONS)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        fit(model, DATA, **OPTIONS, checkpoint=tmp_path, checkpoint_every=0)
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename is None or Path(caught.value.filename).name.startswith("state-3.")
    assert all(name.startswith("state-") for name in names_in(tmp_path))
    assert_same_history(fit(other, DATA, **OPTIONS, checkpoint=tmp_path), expected)
    assert same(values_of(other), values_of(whole))


def test_a_limit_on_the_size_of_files_is_like_a_full_disk(tmp_path):
    whole, other = model_of(), model_of()
    expected = fit(whole, DATA, **OPTIONS)
    fit(model_of(), DATA, **OPTIONS, checkpoint=tmp_path, progress=interrupt_after(2))
    before, limits = content_of(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: .*state-3\.safetensors"):
            fit(model_of(), DATA, **OPTIONS, checkpoint=tmp_path, checkpoint_every=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert content_of(tmp_path) == before
    assert_same_history(fit(other, DATA, **OPTIONS, checkpoint=tmp_path), expected)
    assert same(values_of(other), values_of(whole))


def test_an_error_in_keeping_gives_failed_members_their_parameters_back(tmp_path, monkeypatch):
    model = spoil(stack_of(max_steps=20), 1)
    before = values_of(model, 1)
    monkeypatch.setattr(anode.train.checkpoint.folder.Folder, "write", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fit(model, DATA, checkpoint=tmp_path, checkpoint_every=0)
    assert same(values_of(model, 1), before)


def test_large_data_are_told_apart_by_a_part_of_them(monkeypatch, tmp_path):
    monkeypatch.setattr(anode.train.checkpoint.fingerprint, "MOST_BYTES", 64)
    fit(model_of(), DATA, checkpoint=tmp_path, progress=interrupt_after(1))
    other = (DATA.x.clone(), DATA.y)
    other[0][0] += 1
    with pytest.raises(ValueError, match="data is different"):
        fit(model_of(), other, checkpoint=tmp_path)
    assert np.isfinite(fit(model_of(), DATA, checkpoint=tmp_path).loss).all()
