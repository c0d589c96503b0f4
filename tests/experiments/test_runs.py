import json
import math
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from anode import storage
from anode.data import toy
from anode.experiments import runs
from anode.experiments.runs import load, paths, save
from anode.experiments.toy import protocols
from anode.experiments.toy import runs as toy_runs
from anode.experiments.toy.runs import MODELS, ToyRun
from anode.files import DamagedFileError
from anode.models.ensemble import seeded, unstack
from anode.storage import read_json
from anode.train.record import Failure
from helpers.editing import change
from helpers.tiny import NOWHERE, PAPER, RUNS, same, tiny

KINDS = ("map-g", "g-d1-resnet", "g-d2-node", "g-d1-anode", "slices-d2-anode", "separable-d2-node")


@pytest.fixture(scope="module")
def result():
    return tiny("g-d2-node", snapshots=3).train(None, NOWHERE)


def test_the_defaults_of_a_run_are_the_papers_best_settings():
    run = ToyRun("any", "g", 2, "NODE")
    found = {name: getattr(run, name) for name in ("hidden", "layers", "epochs", "batch_size", "lr", "loss", "repeats")}
    assert found == {
        "hidden": 32,
        "layers": 5,
        "epochs": 50,
        "batch_size": 64,
        "lr": 1e-3,
        "loss": "huber",
        "repeats": 20,
    }
    assert (run.augment, run.slices, run.seed) == (0, 0, 0)
    assert protocols.P == 5


@pytest.mark.parametrize("name", PAPER)
def test_every_run_of_the_paper_has_its_settings(name):
    run = PAPER[name]
    kind = name.rpartition("-")[2]
    assert run.name == name
    assert (run.hidden, run.layers, run.lr, run.seed) == (32, 5, 1e-3, 0)
    if name.startswith("map"):
        assert (run.dim, run.model, run.loss, run.augment, run.batch_size) == (1, "flow", "mse", 0, 2)
        return
    assert (run.epochs, run.batch_size, run.loss) == (50, 64, "huber")
    assert run.label == {"node": "NODE", "anode": "ANODE", "resnet": "ResNet"}[kind]
    assert run.augment == {"node": 0, "resnet": 0, "anode": 1 if name.startswith("drawn") else 5}[kind]
    assert f"d{run.dim}" in name
    assert run.slices == (3 if name.startswith("slices") else 0)
    assert run.repeats == (3 if name.startswith("drawn") else 20)


def test_the_models_are_the_papers():
    node = MODELS["NODE"](PAPER["g-d2-anode"])
    field, solver = node.flow.field, node.flow.solver
    assert (field.dim, field.hidden, field.layers, field.time, field.activation) == (7, 32, 2, True, "relu")
    assert (solver.method, solver.rtol, solver.atol, node.flow.t1) == ("dopri5", 1e-3, 1e-3, 1.0)
    assert node.head.weight.shape == (1, 7)
    assert len(MODELS["ResNet"](PAPER["g-d2-resnet"]).blocks) == 5
    assert [name for name, _ in MODELS["flow"](PAPER["map-g"]).named_children()] == ["field", "augment"]


@pytest.mark.parametrize("dim", [1, 2])
def test_the_data_are_the_papers(dim):
    (data,), validation = ToyRun("any", "g", dim, "NODE", repeats=1).datasets()
    radii = data.x.norm(dim=1)
    assert validation is None
    assert ((data.y == -1).sum(), (data.y == 1).sum()) == (1000, 2000)
    assert radii[data.labels == 0].max() <= 0.5
    assert radii[data.labels == 1].min() >= 1
    assert radii.max() <= 1.5


def test_asking_for_repeats_changes_repeats_and_seed_alone_and_few_are_only_drawn():
    for name in PAPER:
        run = protocols.protocol(name, 7, 3)
        assert replace(run, repeats=PAPER[name].repeats, seed=0) == PAPER[name]
        assert (run.repeats, run.seed) == (3 if name.startswith("drawn") else 7, 3)
    assert protocols.protocol("drawn-d2-anode", 2, 0).repeats == 2


@pytest.mark.parametrize("name", ["g-d1-node", "g-d2-node", "separable-d2-node", "slices-d2-node"])
def test_every_repeat_has_data_of_its_own(name):
    data, _ = tiny(name, repeats=3, seed=5).datasets()
    assert not any(torch.equal(a.x, b.x) for a, b in combinations(data, 2))


def test_the_data_of_a_repeat_are_those_of_its_seed():
    run = tiny("separable-d2-node", repeats=3, seed=5)
    for seed, data in zip((5, 6, 7), run.datasets()[0], strict=True):
        torch.testing.assert_close(data.x, toy.separable(seed=seed).x, rtol=0, atol=0)


def test_slices_that_are_held_out_are_absent_from_training():
    run = tiny("slices-d2-node", repeats=4)
    training, validation = run.datasets()
    assert len({len(each) for each in training}) == len({len(each) for each in validation}) == 1
    for seed, seen, unseen in zip(run.seeds, training, validation, strict=True):
        slices = toy.slices(3, seed=seed)
        assert sum(end - start for start, end in slices) == pytest.approx(0.3 * 2 * math.pi)
        held = []
        for data in (seen, unseen):
            angle = torch.atan2(data.x[:, 1].double(), data.x[:, 0].double()) % (2 * math.pi)
            held.append(torch.stack([(start <= angle) & (angle < end) for start, end in slices]).any(0))
        assert not held[0].any()
        assert held[1].all()
        assert (len(seen), len(unseen)) == (2000, 800)
        assert {*seen.y.flatten().tolist()} == {*unseen.y.flatten().tolist()} == {-1.0, 1.0}
        whole = {tuple(point) for point in toy.g(seed=seed).x.tolist()}
        points = [tuple(point) for point in (*seen.x.tolist(), *unseen.x.tolist())]
        assert len(set(points)) == len(points)
        assert set(points) <= whole


def test_the_slices_of_every_repeat_are_others():
    assert len({tuple(toy.slices(3, seed=seed)) for seed in range(5)}) == 5


def test_a_result_is_read_as_it_was_written(result, tmp_path):
    save(result, tmp_path)
    found = load(result.run, tmp_path)
    same(result, found)
    np.testing.assert_array_equal(found.history.seconds, result.history.seconds)
    assert found.run == result.run
    assert found.environment == result.environment
    assert found.seconds == pytest.approx(result.seconds, abs=0.01)
    assert found.history.batches == result.history.batches
    assert found.history.stopped == ""
    assert found.model.members == 2
    x = torch.rand(2, 9, 2)
    assert torch.equal(found.model(x), result.model(x))


def test_validation_and_failures_are_read_as_they_were_written(tmp_path):
    result = tiny("slices-d2-anode").train(None, NOWHERE)
    result.history.failures = [Failure(1, 2, "MAX_STEPS: too many", "MAX_STEPS")]
    result.history.loss[2:, 1] = result.history.validation[-1, 1] = np.nan
    save(result, tmp_path)
    same(result, load(result.run, tmp_path))
    text = paths(result.run, tmp_path)[0].read_text()
    assert "NaN" not in text
    assert json.loads(text)["final loss"][1] is None


def test_a_file_of_a_result_says_how_it_came_about(result, tmp_path):
    save(result, tmp_path)
    content = read_json(tmp_path / "g-d2-node.json")
    assert content["protocol"] == asdict(result.run)
    assert content["protocol"]["seed"] == 0
    assert {"anode", "torch", "revision", "date"} <= set(content["environment"])
    assert content["final loss"] == pytest.approx(result.final_loss.tolist(), abs=1e-6)


def test_nothing_is_found_where_nothing_was_saved(tmp_path):
    assert load(RUNS["g-d2-node"], tmp_path) is None
    assert load(RUNS["g-d2-node"], tmp_path / "missing") is None


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 3},
        {"lr": 2e-3},
        {"seed": 1},
        {"repeats": 3},
        {"hidden": 16},
        {"augment": 1},
        {"batch_size": 999},
        {"loss": "mse"},
        {"slices": 3},
        {"snapshots": 4},
        {"data": "separable"},
    ],
    ids=str,
)
def test_a_result_of_another_protocol_is_not_taken_for_this_one(result, tmp_path, change):
    save(result, tmp_path)
    assert load(replace(result.run, **change), tmp_path) is None


def test_a_result_of_another_format_is_not_taken_for_one_of_this(result, tmp_path):
    save(result, tmp_path)
    path = paths(result.run, tmp_path)[0]
    change(path, runs.FORMAT, "anode run 0")
    assert load(result.run, tmp_path) is None


def without(*keys):
    def damage(described, _):
        content = read_json(described)
        described.write_text(json.dumps({key: value for key, value in content.items() if key not in keys}))

    return damage


def written_over(**changes):
    def damage(described, _):
        described.write_text(json.dumps(read_json(described) | changes))

    return damage


def other_arrays(described, arrays):
    save(tiny("g-d2-anode", name=arrays.stem).train(None, NOWHERE), arrays.parent / "other")
    (arrays.parent / "other" / arrays.name).replace(arrays)


DAMAGES = {
    "half of the JSON": lambda described, _: described.write_text(described.read_text()[:300]),
    "no JSON": lambda described, _: described.write_bytes(b"\xff\xfe\x00"),
    "empty JSON": lambda described, _: described.write_text(""),
    "a list": lambda described, _: described.write_text("[]"),
    "null": lambda described, _: described.write_text("null"),
    "no format": without("format"),
    "no protocol": without("protocol"),
    "no batches": without("batches"),
    "no environment": without("environment"),
    "odd failures": written_over(failures=[{"who": 1}]),
    "odd snapshots": written_over(snapshots=[{"iteration": 0}]),
    "more snapshots than arrays": written_over(snapshots=[{"iteration": i, "nfe": 14} for i in range(9)]),
    "half of the arrays": lambda _, arrays: arrays.write_bytes(arrays.read_bytes()[:2000]),
    "few bytes of the arrays": lambda _, arrays: arrays.write_bytes(arrays.read_bytes()[:5]),
    "no bytes of the arrays": lambda _, arrays: arrays.write_bytes(b""),
    "no arrays": lambda _, arrays: arrays.unlink(),
    "arrays of another model": other_arrays,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_result_is_named_in_one_line(result, tmp_path, damage):
    save(result, tmp_path)
    described, arrays = paths(result.run, tmp_path)
    DAMAGES[damage](described, arrays)
    with pytest.raises(DamagedFileError) as error:
        load(result.run, tmp_path)
    message = str(error.value)
    assert str(described) in message or str(arrays) in message
    assert "\n" not in message
    assert "remove" in message


def test_records_of_another_shape_are_named_too(result, tmp_path):
    save(result, tmp_path)
    described, arrays = paths(result.run, tmp_path)
    tensors = storage.read_tensors(arrays)
    changed = tensors | {"history.loss": tensors["history.loss"][:3, :1].clone()}
    storage.write_described(described, storage.read_json(described), arrays, changed)
    with pytest.raises(DamagedFileError):
        load(result.run, tmp_path)


def test_a_result_whose_readable_file_was_not_written_is_not_there(result, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(result, tmp_path)
    assert load(result.run, tmp_path) is None


@pytest.mark.parametrize("name", KINDS)
def test_the_same_run_gives_the_same_bits(name):
    torch.manual_seed(123)
    first = RUNS[name].train(None, NOWHERE)
    torch.manual_seed(321)
    torch.rand(5)
    same(first, RUNS[name].train(None, NOWHERE))


def test_training_leaves_torchs_random_numbers_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    RUNS["map-g"].train(None, NOWHERE)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", KINDS)
def test_a_repeat_is_the_same_among_others_and_by_itself(name):
    together, alone = tiny(name, repeats=4).train(None, NOWHERE), tiny(name, repeats=1, seed=2).train(None, NOWHERE)
    assert alone.history.loss.shape[1:] == (1,)
    np.testing.assert_allclose(together.history.loss[:, 2], alone.history.loss[:, 0], rtol=1e-4)
    np.testing.assert_array_equal(together.history.nfe[:, 2], alone.history.nfe[:, 0])
    for ours, theirs in zip(together.member(2).parameters(), alone.member(0).parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_weights_of_a_repeat_are_drawn_from_its_seed():
    run = tiny("g-d2-anode", repeats=3, seed=4, epochs=0)
    expected = seeded(lambda: MODELS["NODE"](run), [6])
    found = seeded(lambda: MODELS["NODE"](run), run.seeds)
    assert torch.equal(unstack(found)[2].head.weight, expected.head.weight[0])
    assert not torch.equal(found.head.weight[0], found.head.weight[1])


def test_an_interrupted_run_gives_no_result():
    def interrupt(report):
        if report.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RUNS["g-d1-anode"].train(interrupt, NOWHERE)


def test_a_listener_is_told_of_every_iteration():
    told = []
    RUNS["g-d1-resnet"].train(told.append, NOWHERE)
    assert [(report.done, report.total) for report in told] == [(i, 6) for i in range(1, 7)]


def test_snapshots_show_the_typical_repeat_from_before_to_after_training(result):
    moments = [snapshot.iteration for snapshot in result.history.snapshots]
    assert (moments[0], moments[-1]) == (0, 6)
    x, labels = toy_runs.snapshot_points(result.run)
    assert x.shape == (400, 2)
    assert {*labels.tolist()} == {0, 1}
    after = result.member(result.typical).features(x)
    torch.testing.assert_close(torch.from_numpy(result.history.snapshots[-1].features), after, rtol=1e-3, atol=1e-3)
    before = unstack(seeded(lambda: MODELS["NODE"](result.run), result.run.seeds))[result.typical].features(x)
    torch.testing.assert_close(torch.from_numpy(result.history.snapshots[0].features), before, rtol=1e-3, atol=1e-3)


def with_losses(result, *losses):
    history = replace(result.history, loss=np.array([losses] * 6, dtype=np.float32))
    return replace(result, history=history)


def test_the_typical_repeat_is_the_median_and_the_best_the_lowest_of_those_that_did_not_fail(result):
    assert with_losses(result, 3, 1, 2, 5, 4).typical == 0
    assert with_losses(result, 3, 1, 2, 5, 4).best == 1
    assert with_losses(result, 3, math.nan, 2, 1, math.nan).typical == 2
    assert with_losses(result, 3, math.nan, 2, 1, math.nan).best == 3
    assert with_losses(result, math.nan, 2.0).typical == 1


@pytest.mark.parametrize("name", PAPER)
def test_a_protocol_is_described_in_words_that_are_true(name):
    run = PAPER[name]
    said = run.described()
    assert all(isinstance(value, str | int) for value in said.values())
    assert said["run"] == name
    assert said["model"].startswith(run.label)
    assert ("layers" in said["network"]) == (run.model == "ResNet") == (said["solver"] == "none")
    assert ("held out" in said["data"]) == bool(run.slices)
    assert said["seeds"] == f"0 to {run.repeats - 1}"
