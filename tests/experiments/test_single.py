import json
import math
import time
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from PIL import Image

import anode
from anode.experiments import single as module
from anode.experiments.options import TrainOptions
from anode.experiments.pictures import draw_saved
from anode.experiments.single import Saved, load_saved, train_single
from anode.files import DamagedFileError, locked
from anode.models.flow import PAPER
from anode.storage import read_json
from anode.train.history import History
from helpers.editing import change

QUICK = TrainOptions("moons", augment=0, epochs=1, batch_size=250)
FILES = ["data.json", "held_out.safetensors", "history.csv", "history.json"]
FILES += ["model.json", "model.safetensors", "result.json", "run.json"]


def same_weights(first, second) -> bool:
    ours, theirs = first.state_dict(), second.state_dict()
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("single") / "first"
    train_single(QUICK, folder)
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    """The folder again, to be damaged."""
    for name in FILES:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    return tmp_path


def test_the_defaults_are_the_papers():
    single = TrainOptions("g")
    assert (single.hidden, single.epochs, single.batch_size, single.lr) == (32, 50, None, 1e-3)  # 64, or all
    assert single.solver == PAPER
    assert (single.activation, single.time, single.loss_of(classes=True)) == ("relu", True, "huber")
    assert (single.augment, TrainOptions("g", model="resnet").augment) == (5, 0)


def test_model_and_history_are_saved_so_that_they_can_be_read(tmp_path):
    history = train_single(QUICK, tmp_path / "new" / "run")
    folder = tmp_path / "new" / "run"
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint", *FILES]
    found = load_saved(folder)
    assert (found.name, found.single) == (str(folder), QUICK)
    assert len(found.history) == len(history) == 4
    np.testing.assert_array_equal(found.history.loss, history.loss)
    np.testing.assert_array_equal(History.load(folder / "history.csv").nfe, history.nfe)
    content = read_json(folder / "run.json")
    assert content["options"] == {name: value for name, value in asdict(QUICK).items() if name != "solver"}
    assert content["environment"]["torch"] == torch.__version__
    assert found.model(torch.rand(3, 2)).shape == (3, 1)


def test_the_same_options_give_the_same_bits(folder, tmp_path):
    torch.manual_seed(99)
    train_single(QUICK, tmp_path / "again")
    for name in ("model.safetensors", "model.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_the_model_is_the_one_that_was_trained(folder):
    torch.manual_seed(0)
    model = anode.NeuralODE(2, 1)
    anode.fit(model, anode.datasets.moons(seed=0), epochs=1, batch_size=250, seed=0)
    for ours, theirs in zip(load_saved(folder).model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_repeat_is_what_it_would_have_been_by_itself(tmp_path):
    together = train_single(replace(QUICK, repeats=3, augment=1), tmp_path / "three")
    alone = train_single(replace(QUICK, seed=2, augment=1), tmp_path / "one")
    assert together.loss.shape == (4, 3)
    np.testing.assert_allclose(together.loss[:, 2], alone.loss, rtol=1e-4)
    assert anode.load(tmp_path / "three" / "model").members == 3
    assert load_saved(tmp_path / "three").model.members is None


@pytest.mark.parametrize(
    "change",
    [
        {"model": "resnet"},
        {"model": "resnet", "layers": 2},
        {"augment": 2, "layers": 1},
        {"time": False, "activation": "tanh"},
        {"loss": "cross_entropy"},
        {"loss": "mse", "validation": 0.25},
        {"loss": "cross_entropy", "validation": 0.25},
        {"repeats": 2, "validation": 0.25},
        {"data": "g", "dim": 3, "batch_size": 1000},
        {"data": "g_1d", "batch_size": 2},
        {"solver": PAPER.but(method="tsit5", rtol=1e-4), "weight_decay": 1e-3, "lr": 1e-2},
    ],
    ids=str,
)
def test_every_option_is_used(tmp_path, change):
    single = replace(QUICK, **change)
    history = train_single(single, tmp_path / "run")
    found = load_saved(tmp_path / "run")
    assert found.single == single
    model = anode.load(tmp_path / "run" / "model")
    settings = model.settings
    assert single.model == "resnet" or model.flow.solver == single.solver
    wanted = {"augment", "layers", "time", "activation"} & set(settings) & set(change)
    assert all(settings[name] == change[name] for name in wanted)
    assert settings["out_features"] == (2 if single.loss == "cross_entropy" else 1)
    assert history.settings["weight_decay"] == single.weight_decay
    assert len(history.validation) == (1 if single.validation else 0)
    assert len(history) == math.ceil(
        {"moons": 1000, "g": 3000, "g_1d": 2}[single.data] * (1 - single.validation) / single.batch_size
    )


def test_validation_points_are_kept_from_training(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        module,
        "fit",
        lambda _, data, **options: (
            seen.append((data, options["validation"]))
            or anode.History(*[np.zeros(1, dtype=np.float32)] * 6, batches=1, validation=np.zeros(1, dtype=np.float32))
        ),
    )
    train_single(replace(QUICK, validation=0.3), tmp_path / "run")
    training, validation = ({tuple(point) for point in each.x.tolist()} for each in seen[0])
    assert (len(training), len(validation)) == (700, 300)
    assert not training & validation


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "moon"}, "data: takes one of .* did you mean 'moons'"),
        ({"model": "nodes"}, "model: takes one of node, resnet, got 'nodes'; did you mean 'node'"),
        ({"loss": "hubert"}, "loss: takes one of .* did you mean 'huber'"),
        ({"activation": "rely"}, "activation: takes one of .* did you mean 'relu'"),
        ({"augment": -1}, "augment: takes a whole number from 0, got -1"),
        ({"model": "resnet", "augment": 1}, "augment: does not apply to a resnet, which has no flow; leave it out"),
        ({"hidden": 0}, "hidden: takes a whole number above 0"),
        ({"data": "g", "dim": 0}, "dim: takes a whole number above 0, got 0"),
        ({"dim": 2}, "dim"),
        ({"epochs": -1}, "epochs: takes a whole number from 0"),
        ({"batch_size": 0}, "batch_size: takes a whole number above 0"),
        ({"batch_size": 1001}, "batch_size: takes at most the 1000 points"),
        ({"validation": 0.8}, "batch_size: takes at most the 200 points"),
        ({"validation": 1.0}, "validation: takes a fraction"),
        ({"patience": 3}, "patience: takes no value without --validation"),
        ({"validation": -0.1}, "validation: takes a fraction"),
        ({"lr": 0.0}, "lr: takes a number above 0"),
        ({"weight_decay": -1.0}, "weight_decay: takes a number from 0"),
        ({"repeats": 0}, "repeats: takes a whole number above 0"),
        ({"repeats": 2, "loss": "cross_entropy"}, "repeats: takes 1 beside"),
        ({"seed": -1}, "seed: takes a whole number from 0"),
        ({"layers": 0}, "layers: takes a whole number above 0"),
        ({"seed": 10**16}, "seed: takes"),
        ({"validation": 0.9999}, "validation: takes"),
    ],
    ids=str,
)
def test_a_mistake_is_named_and_nothing_is_created(tmp_path, change, message):
    with pytest.raises(ValueError, match=message) as error:
        train_single(replace(QUICK, **change), tmp_path / "new" / "run")
    assert "\n" not in str(error.value)
    assert not any(tmp_path.iterdir())


def test_a_folder_with_something_in_it_or_a_file_is_refused_and_left_alone(tmp_path):
    (tmp_path / "file").write_text("keep me")
    for target in (tmp_path, tmp_path / "file"):
        with pytest.raises(ValueError, match="is not an empty folder"):
            train_single(QUICK, target)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "keep me"


def test_an_empty_folder_is_taken(tmp_path):
    train_single(replace(QUICK, epochs=0), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", *FILES]


def test_a_folder_that_cannot_be_made_is_named_before_training(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(module, "fit", lambda *_, **__: trained.append(1) or 1 / 0)
    (tmp_path / "file").touch()
    with pytest.raises((OSError, ValueError)):
        train_single(QUICK, tmp_path / "file" / "run")
    assert trained == []


def test_several_runs_are_drawn_into_one_picture(folder, tmp_path):
    train_single(replace(QUICK, augment=1), tmp_path / "augmented")
    train_single(replace(QUICK, model="resnet"), tmp_path / "resnet")
    made = draw_saved([folder, tmp_path / "augmented", tmp_path / "resnet"], tmp_path / "new" / "all.runs.svg")
    assert made == tmp_path / "new" / "all.runs.svg"
    text = made.read_text()
    for words in (
        "training loss",
        "function evaluations",
        "first: inputs to features",
        "augmented: inputs to features",
    ):
        assert words in text
    assert "resnet: inputs to features" not in text
    assert "resnet" in text
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["all.runs.svg"]


def test_accuracies_on_points_kept_from_training_are_called_validation_once_for_all_runs(tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for seed, folder in enumerate(folders):
        train_single(replace(QUICK, loss="cross_entropy", validation=0.2, batch_size=200, seed=seed), folder)
    text = draw_saved(folders, tmp_path / "both.svg").read_text()
    assert text.count(">validation<") == 1
    assert "test images" not in text


@pytest.mark.parametrize(
    "change",
    [
        {"data": "g_1d", "batch_size": 2},
        {"augment": 5},
        {"data": "g", "dim": 5, "batch_size": 3000},
        {"model": "resnet"},
        {"repeats": 2, "loss": "mse"},
        {"loss": "cross_entropy"},
    ],
    ids=str,
)
def test_every_kind_of_run_is_drawn(tmp_path, change):
    train_single(replace(QUICK, **change), tmp_path / "run")
    with Image.open(draw_saved([tmp_path / "run"], tmp_path / "picture.png")) as picture:
        assert min(picture.size) > 300


@pytest.mark.parametrize(
    "suffix",
    [
        "png",
        "svg",
        "pdf",
    ],
)
def test_a_picture_may_have_any_of_the_formats_that_are_promised(folder, tmp_path, suffix):
    assert draw_saved([folder], tmp_path / f"picture.{suffix}").stat().st_size > 5000


def test_another_format_is_refused_and_nothing_is_written(folder, tmp_path):
    with pytest.raises(ValueError, match=r"out: takes a name that ends in \.png, \.svg or \.pdf"):
        draw_saved([folder], tmp_path / "new" / "picture.jpg")
    assert not any(tmp_path.iterdir())


def test_a_run_without_iterations_is_named(tmp_path):
    train_single(replace(QUICK, epochs=0), tmp_path / "run")
    with pytest.raises(ValueError) as error:
        draw_saved([tmp_path / "run"], None)
    assert str(tmp_path / "run") in str(error.value)


def test_a_run_that_failed_can_be_drawn(tmp_path):
    history = train_single(replace(QUICK, lr=1e6), tmp_path / "run")
    assert history.failures
    assert "1 failed" in repr(history)
    assert draw_saved([tmp_path / "run"], None).exists()


def damaged(name, content):
    def damage(folder):
        path = folder / name
        path.write_bytes(content(path.read_bytes()))
        return path

    return damage


DAMAGES = {
    "half of run.json": damaged("run.json", lambda old: old[:50]),
    "run.json is a list": damaged("run.json", lambda _: b"[]"),
    "options that are a number": damaged("run.json", lambda _: b'{"format": "anode train 1", "options": 3}'),
    "run.json of another format": damaged("run.json", lambda old: old.replace(b"train 1", b"train 9")),
    "an option that there is not": damaged("run.json", lambda old: old.replace(b'"hidden"', b'"hiden"')),
    "half of history.json": damaged("history.json", lambda old: old[:50]),
    "history.json is no history": damaged("history.json", lambda _: b"{}"),
    "half of model.json": damaged("model.json", lambda old: old[:50]),
    "model.json is no model": damaged("model.json", lambda _: b"{}"),
    "a model that there is not": damaged("model.json", lambda old: old.replace(b"NeuralODE", b"Neural0DE")),
    "half of the weights": damaged("model.safetensors", lambda old: old[:500]),
    "no weights": damaged("model.safetensors", lambda _: b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_named_in_one_line_and_nothing_is_written(copy, damage):
    path = DAMAGES[damage](copy)
    with pytest.raises(DamagedFileError) as error:
        draw_saved([copy], None)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert not (copy / "plot.png").exists()


def test_weights_of_another_model_are_named_in_one_line(copy):
    path = copy / "model.json"
    change(path, '"augment": 0', '"augment": 1')
    with pytest.raises(DamagedFileError) as error:
        load_saved(copy)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", [{"data": "g_1d"}, {"data": 7}, {"seed": "x"}], ids=str)
def test_options_that_do_not_fit_the_model_are_named(copy, change):
    content = read_json(copy / "run.json")
    content["options"] |= change
    (copy / "run.json").write_text(json.dumps(content))
    with pytest.raises(DamagedFileError) as error:
        draw_saved([copy], None)
    assert str(copy / "run.json") in str(error.value)


@pytest.mark.parametrize("name", ["history.json", "model.json", "model.safetensors"])
def test_a_missing_file_is_named(copy, name):
    (copy / name).unlink()
    with pytest.raises((DamagedFileError, OSError)) as error:
        load_saved(copy)
    assert name in str(error.value)


def test_a_folder_that_training_did_not_write_is_named(tmp_path):
    for folder, why in ((tmp_path / "missing", "it does not exist"), (tmp_path, r"it has no run\.json")):
        with pytest.raises(ValueError, match=f"is not a folder that anode train wrote: {why}"):
            load_saved(folder)
    assert not any(tmp_path.iterdir())


def test_what_is_read_is_the_first_of_several_repeats(tmp_path):
    train_single(replace(QUICK, repeats=2), tmp_path / "run")
    found = load_saved(tmp_path / "run")
    assert isinstance(found, Saved)
    stacked = anode.load(tmp_path / "run" / "model")
    assert same_weights(found.model, anode.unstack(stacked)[0])


@pytest.mark.parametrize("change", [{"lr": 0.5}, {"batch_size": 5000}, {}], ids=str)
def test_a_run_that_another_process_is_at_is_left_alone(tmp_path, change):
    with locked(tmp_path, "out"), pytest.raises(BlockingIOError, match="is in use by another process"):
        train_single(replace(QUICK, **change), tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_run_whose_first_solve_fails_leaves_nothing_if_that_is_an_error(tmp_path):
    hopeless = replace(QUICK, solver=PAPER.but(max_steps=1), on_failure="raise")
    with pytest.raises(anode.SolveError):
        train_single(hopeless, tmp_path / "new" / "run")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["layers", "hidden", "augment", "dim", "repeats"])
def test_options_that_ask_for_more_than_the_model_is_are_refused_at_once(copy, name):
    path = copy / "run.json"
    content = read_json(path)
    content["options"][name] = 10**9
    if name == "dim":
        content["options"]["data"] = "g"
    path.write_text(json.dumps(content))
    begin = time.monotonic()
    with pytest.raises(DamagedFileError, match=r"do not match the model next to it|run\.json are of different runs"):
        load_saved(copy)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    ("single", "name"),
    [
        (TrainOptions("moons", augment=0), "moons-node"),
        (TrainOptions("moons"), "moons-anode5"),
        (TrainOptions("g", model="resnet"), "g-resnet"),
        (TrainOptions("mnist", augment=1), "mnist-anode1"),
    ],
)
def test_a_run_has_a_name_of_its_data_and_model(single, name):
    assert single.name == name


@pytest.mark.parametrize(
    "single",
    [
        TrainOptions("moons", augment=2),
        TrainOptions("g", model="resnet", dim=3),
        TrainOptions("digits", side=4, augment=1),
    ],
)
def test_a_model_has_the_settings_that_the_options_say(single):
    model = single.build()
    assert model.settings == single.settings(single.sizes())


@pytest.mark.parametrize("family", ["hidden", "second-order"])
def test_a_member_of_the_family_is_trained_and_read_back(family, tmp_path):
    single = TrainOptions("moons", family=family, hidden=4, epochs=1, kinetic=0.1, steer=0.2)
    train_single(single, tmp_path / "run")
    saved = load_saved(tmp_path / "run")
    assert saved.single == single
    assert saved.history.settings["loss"] == "Regularised(Kinetic(0.1), Steer(0.2), loss='huber')"
    assert single.name == {"hidden": "moons-hidden5", "second-order": "moons-second-order"}[family]
    assert not replace(single, hidden=5).fits(saved.model)
    assert not replace(single, layers=10**9).fits(saved.model)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"family": "second"}, "family: takes one of zeros, constant"),
        ({"family": "linear", "model": "resnet"}, "family: does not apply to a resnet"),
        ({"kinetic": 0.1, "model": "resnet"}, "kinetic: does not apply to a resnet"),
        ({"kinetic": -1.0}, "kinetic: takes a number from 0, got -1"),
    ],
)
def test_options_of_the_family_that_make_no_sense_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        TrainOptions("moons", **options).check()
