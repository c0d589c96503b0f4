import json
from pathlib import Path

import numpy as np
import pytest
import torch

from anode.experiments.exporting import export_saved
from anode.experiments.options import TrainOptions
from anode.experiments.predicting import Predictor
from anode.experiments.single import load_saved, train_single

runtime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, one_thread) -> Path:
    made = tmp_path_factory.mktemp("run") / "g"
    train_single(TrainOptions("g", augment=1, epochs=1, repeats=2), made)
    return made


def test_the_first_of_several_repeats_is_exported(folder, tmp_path):
    written = export_saved(folder, tmp_path / "g.onnx", 1e-3, 50, None)
    assert written.inputs == 50
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    (found,) = runtime.InferenceSession(written.path).run(None, {"x": x})
    wanted = load_saved(folder).model.run(torch.from_numpy(x), rtol=1e-6, atol=1e-6).prediction
    assert found == pytest.approx(wanted.detach().numpy(), abs=0.01)


def test_a_folder_that_holds_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not a folder that anode train wrote"):
        export_saved(tmp_path, tmp_path / "g.onnx", 1e-3, 50, None)


def test_a_file_of_another_kind_is_refused_by_the_name_of_the_option(folder, tmp_path):
    with pytest.raises(ValueError, match=r"out: takes a file that ends in one of \.onnx, \.pt2"):
        export_saved(folder, tmp_path / "g.txt", 1e-3, 50, None)


# Runs on tables and pictures: the file takes what their users have


def exported(run, tmp_path, x):
    """What onnxruntime makes of inputs, by the name of the output; and the metadata."""
    written = export_saved(run, tmp_path / "model.onnx", 1e-4, 50, None)
    session = runtime.InferenceSession(written.path)
    names = [each.name for each in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"x": x.astype(np.float32)}), strict=True))
    return found, session.get_modelmeta().custom_metadata_map, str(written).splitlines()


@pytest.fixture(scope="module")
def table(tmp_path_factory, one_thread) -> Path:
    """A run on numbers and categories, some of which are missing."""
    place = tmp_path_factory.mktemp("table")
    generator = np.random.default_rng(0)
    lines = ["size,colour,price,kind"]
    for i in range(80):
        size, price = generator.normal(50, 20), generator.normal()
        colour = ["red", "blue", ""][i % 3]
        lines.append(f"{size:.3f},{colour},{price:.3f},{'big' if size > 50 else 'small'}")
    lines.append(",red,0.5,big")
    (place / "things.csv").write_text("\n".join(lines) + "\n")
    train_single(TrainOptions(str(place / "things.csv"), target="kind", epochs=3), place / "run")
    return place / "run"


def test_a_table_is_exported_with_the_encoding_of_its_columns(table, tmp_path):
    rows = {
        "size": [40.0, 60.0, np.nan, 55.0, 70.0],
        "colour": ["red", "blue", "red", "", "green"],
        "price": [0.0, 1.0, -1.0, np.nan, 0.3],
    }
    codes = {"blue": 0, "red": 1, "": np.nan, "green": -1}
    x = np.stack([rows["size"], [codes[colour] for colour in rows["colour"]], rows["price"]], 1)
    found, notes, said = exported(table, tmp_path, x)
    predictor = Predictor.load(table)
    assert found["label"].tolist() == predictor.predict(rows).tolist()
    np.testing.assert_allclose(found["probabilities"], predictor.predict_proba(rows), atol=1e-3)
    assert json.loads(notes["anode.columns"]) == [
        {"name": "size", "kind": "number"},
        {"name": "colour", "kind": "category", "categories": ["blue", "red"]},
        {"name": "price", "kind": "number"},
    ]
    assert said[1:] == [
        "input x: float32 [rows, 3], NaN for a missing value, the columns:",
        "  0: size, a number",
        "  1: colour, a category: 0 = blue, 1 = red; another number if it is unknown",
        "  2: price, a number",
        "outputs label: [rows]; probabilities: float32 [rows, 2] of big, small",
    ]


def test_a_regression_is_exported_in_the_units_of_its_target(table, tmp_path):
    source = str(table.parent / "things.csv")
    train_single(TrainOptions(source, target="size", drop=["colour", "kind"], epochs=3), tmp_path / "run")
    found, _, said = exported(tmp_path / "run", tmp_path, np.array([[0.5], [-0.5]]))
    wanted = Predictor.load(tmp_path / "run").predict({"price": [0.5, -0.5]})
    np.testing.assert_allclose(found["value"], wanted, rtol=1e-3)
    assert said[-1] == "output value: float32 [rows]"


def test_images_are_exported_with_classes_and_probabilities(tmp_path):
    options = TrainOptions("digits", augment=0, filters=2, train_size=64, side=4, epochs=1)
    train_single(options, tmp_path / "run")
    x = np.random.default_rng(0).random((3, 1, 4, 4), np.float32)
    found, _, said = exported(tmp_path / "run", tmp_path, x)
    scores = load_saved(tmp_path / "run").model(torch.from_numpy(x)).softmax(1).detach().numpy()
    np.testing.assert_allclose(found["probabilities"], scores, atol=1e-2)
    assert found["label"].tolist() == [str(number) for number in found["probabilities"].argmax(1)]
    assert said[1] == "input x: float32 [rows, 1, 4, 4], pixels from 0 to 1"


def test_torch_runs_an_exported_table_too(table, tmp_path):
    written = export_saved(table, tmp_path / "model.pt2", 1e-3, 50, None)
    notes = {"anode.classes": "", "anode.columns": ""}
    program = torch.export.load(written.path, extra_files=notes).module()
    label, probabilities = program(torch.tensor([[40.0, 1.0, 0.0], [60.0, float("nan"), 1.0], [1.0, 0.0, 0.0]]))
    rows = {"size": [40.0, 60.0, 1.0], "colour": ["red", None, "blue"], "price": [0.0, 1.0, 0.0]}
    names = notes["anode.classes"].split("\n")
    assert [names[i] for i in label.tolist()] == Predictor.load(table).predict(rows).tolist()
    assert probabilities.shape == (3, 2)
    assert len(json.loads(notes["anode.columns"])) == 3
