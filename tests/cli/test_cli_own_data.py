import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import anode
from anode.cli import app
from anode.experiments.judging import judge
from anode.experiments.material import material_of
from anode.experiments.options import TrainOptions
from anode.experiments.predicting import Predictor
from anode.experiments.single import load_saved
from anode.storage import read_json
from helpers.refusals import refused
from helpers.slow_command import SLOW

QUICK = ["--epochs", "3"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}

pytestmark = pytest.mark.usefixtures("one_thread")


def run(*arguments, **options):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"}, **options)


def done(*arguments, **options):
    """What a command prints, which has to succeed."""
    result = run(*arguments, **options)
    assert result.exit_code == 0, result.output
    return result.stdout


def write_table(path, rows=120, target=True, seed=0):
    """A table of which colour and size say what the kind is, with everything else that tables have."""
    generator = np.random.default_rng(seed)
    lines = ["id,day,size,colour,note" + (",kind" if target else "")]
    for i in range(rows):
        colour = generator.choice(["red", "blue"])
        size = generator.normal()
        kind = "big" if (size > 0) == (colour == "red") else "small"
        shown = "" if i % 17 == 5 else f"{size:.4f}"
        day = f"2024-01-{i % 28 + 1:02d}"
        lines.append(f'{i},{day},{shown},{colour},"row, {i}"' + (f",{kind}" if target else ""))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory, one_thread):
    """A run on a table, and the table."""
    place = tmp_path_factory.mktemp("own")
    write_table(place / "things.csv")
    done("train", place / "things.csv", "--target", "kind", "--epochs", 40, "--out", place / "run")
    return place


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


# Tables


def test_a_table_is_trained_on_with_what_was_done_to_it_and_a_score_beside_a_baseline(tmp_path):
    write_table(tmp_path / "things.csv")
    lines = done("train", tmp_path / "things.csv", "--target", "kind", *QUICK, "--out", tmp_path / "run").splitlines()
    assert lines[:4] == [
        "column 'kind' is the target, with 2 classes: classification",
        "column 'id' is left out: it numbers the rows; pass --numeric to use it",
        "column 'day' is left out: it holds dates",
        "column 'note' is left out: it holds a different text in every row, as names and identifiers do",
    ]
    assert lines[4].startswith(f"ANODE on {tmp_path / 'things.csv'}: ")
    assert re.fullmatch(r"trained for 3 epochs, 9 iterations, \d+\.\d+ s: loss \d\.\d+", lines[5])
    assert re.fullmatch(r"accuracy \d+\.\d% on 24 rows that were held out; guessing the largest class: .*%", lines[6])
    assert lines[7] == f"saved: {tmp_path / 'run'}"


def test_the_folder_is_named_after_table_and_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "things.csv")
    assert "saved: things-anode5" in done("train", "things.csv", "--target", "kind", *QUICK)
    assert "saved: things-node" in done("train", "things.csv", "--target", "kind", *QUICK, "--augment", 0)


def test_what_was_learned_is_better_than_a_guess(folder):
    result = read_json(folder / "run" / "result.json")
    assert result["scores"][0] > result["baseline"] + 0.2


def test_new_rows_get_classes_and_probabilities_in_their_order(folder, tmp_path):
    new = write_table(tmp_path / "new.csv", 30, target=False, seed=5)
    result = run("predict", folder / "run", new, "--out", tmp_path / "predictions.csv")
    assert (result.exit_code, result.stdout) == (0, f"predictions: {tmp_path / 'predictions.csv'}\n")
    found = rows_of((tmp_path / "predictions.csv").read_text())
    assert len(found) == 30
    assert list(found[0]) == ["prediction", "p(big)", "p(small)"]
    for row in found:
        assert float(row["p(big)"]) + float(row["p(small)"]) == pytest.approx(1, abs=1e-5)
        assert row["prediction"] == ("big" if float(row["p(big)"]) > 0.5 else "small")


def test_the_order_of_columns_does_not_matter_and_others_are_ignored_and_said(folder, tmp_path):
    new = write_table(tmp_path / "new.csv", 30, seed=5)
    rows = rows_of(new.read_text())
    other = tmp_path / "other.csv"
    with other.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["kind", "colour", "size"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    first, second = run("predict", folder / "run", new), run("predict", folder / "run", other)
    assert first.stdout == second.stdout
    assert f"{other}: the model does not use, and ignores: 'kind'" in second.stderr


def test_the_standard_input_and_output_can_be_used(folder, tmp_path):
    new = write_table(tmp_path / "new.csv", 5, target=False)
    result = run("predict", folder / "run", "-", input=new.read_text())
    assert result.exit_code == 0
    assert len(rows_of(result.stdout)) == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("size\n1\n", ["new.csv: has no column 'colour', which the model was trained with"]),
        ("size,color\n1,red\n", ["has no column 'colour'", "did you mean 'color'?"]),
        ("size,colour\nlarge,red\n", ["new.csv, line 2, column 'size': takes a number", "got 'large'"]),
        ("", ["new.csv: is empty"]),
        ("size,colour\n1,red\n2\n", ["new.csv, line 3: has 1 field, but the first line has 2"]),
    ],
    ids=str,
)
def test_new_rows_that_do_not_fit_are_one_line(folder, tmp_path, text, words):
    (tmp_path / "new.csv").write_text(text)
    refused(run("predict", folder / "run", tmp_path / "new.csv", "--out", tmp_path / "out.csv"), *words)
    assert not (tmp_path / "out.csv").exists()


def test_columns_are_kept_before_the_predictions_as_they_are_written(folder, tmp_path):
    (tmp_path / "new.csv").write_text("code,size,colour,day\n007,1,red,2024-01-01\n18446744073709551617,2,blue,\n")
    result = run("predict", folder / "run", tmp_path / "new.csv", "--keep", "day", "--keep", "code")
    assert result.exit_code == 0
    found = rows_of(result.stdout)
    assert list(found[0]) == ["day", "code", "prediction", "p(big)", "p(small)"]
    assert [(row["day"], row["code"]) for row in found] == [("2024-01-01", "007"), ("", "18446744073709551617")]
    assert "code" not in result.stderr  # it is not said to be ignored


def test_columns_that_cannot_be_kept_are_one_line(folder, pictures, tmp_path):
    (tmp_path / "new.csv").write_text("prediction,size,colour\nx,1,red\n")
    command = ["predict", folder / "run", tmp_path / "new.csv", "--keep"]
    refused(run(*command, "cod"), "keep: takes a column of", "got 'cod'")
    refused(run(*command, "prediction"), "keep: takes columns that the output does not have already")
    refused(run("predict", pictures / "run", pictures / "data", "--keep", "id"), "keep: takes no columns for pictures")


def test_shuffled_identifiers_are_left_out_unless_they_are_meant_as_numbers(tmp_path):
    generator = np.random.default_rng(0)
    size, ids = generator.normal(size=40), generator.permutation(40) + 100
    text = "".join(f"{i},{x:.3f},{'ab'[int(x > 0)]}\n" for i, x in zip(ids, size, strict=True))
    (tmp_path / "t.csv").write_text("id,x,y\n" + text)
    command = ["train", tmp_path / "t.csv", "--target", "y", "--epochs", 1]
    said = done(*command, "--out", tmp_path / "a")
    assert "column 'id' is left out: it numbers the rows; pass --numeric to use it" in said
    assert "left out" not in done(*command, "--numeric", "id", "--out", tmp_path / "b")
    assert [load_saved(tmp_path / name).description.sizes.inputs for name in "ab"] == [1, 2]
    both = ["--numeric", "id", "--category", "id"]
    refused(run(*command, *both, "--out", tmp_path / "c"), "numeric: takes columns that --category does not name")


def test_many_columns_that_are_left_out_for_one_reason_are_one_line(tmp_path):
    names = ",".join(f"e{i}" for i in range(30))
    rows = "".join(f"{i * i},{',' * 29},{'ab'[i % 2]}\n" for i in range(20))
    (tmp_path / "t.csv").write_text(f"x,{names},y\n{rows}")
    out = done("train", tmp_path / "t.csv", "--target", "y", "--epochs", 1, "--out", tmp_path / "run")
    assert "30 columns are left out: each is empty ('e0', 'e1', 'e2', ...)" in out


def test_a_new_category_is_said_and_predicted_all_the_same(folder, tmp_path):
    (tmp_path / "new.csv").write_text("size,colour\n1,green\n2,red\n3,green\n")
    result = run("predict", folder / "run", tmp_path / "new.csv")
    assert result.exit_code == 0
    assert "column 'colour': 2 values were not seen in training" in result.stderr
    assert len(rows_of(result.stdout)) == 3


def test_the_file_that_is_read_is_not_overwritten(folder, tmp_path):
    new = write_table(tmp_path / "new.csv", 5, target=False)
    before = new.read_bytes()
    refused(run("predict", folder / "run", new, "--out", new), "out: takes another file than the one that is read")
    assert new.read_bytes() == before


def test_python_predicts_what_the_command_does(folder, tmp_path):
    pandas = pytest.importorskip("pandas")
    new = write_table(tmp_path / "new.csv", 30, target=False, seed=5)
    predictor = Predictor.load(folder / "run")
    frame = pandas.read_csv(new)
    found = rows_of(done("predict", folder / "run", new))
    assert predictor.predict(frame).tolist() == [row["prediction"] for row in found]
    np.testing.assert_allclose(predictor.predict_proba(frame)[:, 0], [float(row["p(big)"]) for row in found], atol=1e-5)


def test_show_says_what_is_known_and_draws_it(folder):
    out = done("show", folder / "run")
    for words in (
        "rows: 84 for training, 12 for validation, 24 for test; 4 numbers each",
        "classes: 2 (big, small)",
        "numbers: size",
        "categories: colour (2)",
        "column 'id' is left out: it numbers the rows",
        "accuracy ",
        "true \\ predicted  big  small",
        "a prediction: ",
        f"picture: {folder / 'run' / 'show.png'}",
    ):
        assert words in out
    with Image.open(folder / "run" / "show.png") as picture:
        assert min(picture.size) > 500
    refused(run("show", folder / "run", "--out", folder / "x.bmp"), "out: takes a name that ends in")


def test_plot_and_check_take_a_run_on_a_table_without_the_table(folder, tmp_path):
    place = tmp_path / "moved"
    subprocess.run(["cp", "-r", folder / "run", place], check=True)
    assert "picture: " in done("plot", place)
    assert "The run was trained with rtol" in run("check", place).stdout


def test_numbers_are_predicted_in_their_units(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=200)
    text = "x,y\n" + "".join(f"{a:.4f},{1000 + 50 * np.sin(a):.4f}\n" for a in x)
    (tmp_path / "sine.csv").write_text(text)
    out = done("train", tmp_path / "sine.csv", "--target", "y", "--epochs", 30, "--out", tmp_path / "run")
    assert "column 'y' is the target, with numbers: regression; pass --task classification to change that" in out
    assert "on 40 rows that were held out, root mean squared error" in out
    (tmp_path / "new.csv").write_text("x\n0\n1.5\n")
    found = [float(row["prediction"]) for row in rows_of(done("predict", tmp_path / "run", tmp_path / "new.csv"))]
    assert found == pytest.approx([1000, 1050], abs=15)
    shown = done("show", tmp_path / "run")
    assert "picture: " in shown
    assert "20 for validation, 40 for test; 1 number each" in shown


def test_latin_1_is_read_if_it_is_named(tmp_path):
    path = write_table(tmp_path / "things.csv")
    path.write_bytes(path.read_text().replace("red", "rosé").encode("latin-1"))
    command = ["train", path, "--target", "kind", *QUICK, "--out", tmp_path / "run"]
    refused(run(*command), "column 'colour': is not UTF-8 text", "--encoding")
    assert not (tmp_path / "run").exists()
    done(*command, "--encoding", "latin-1")
    assert load_saved(tmp_path / "run").description.encoding.columns[1].categories == ("blue", "rosé")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["target: takes a column of", "pass --target COLUMN"]),
        (["--target", "knd"], ["target: takes a column of", "got 'knd'; did you mean 'kind'?"]),
        (["--target", "kind", "--drop", "colr"], ["drop: takes a column of"]),
        (["--target", "kind", "--drop", "kind"], ["drop: takes a column to predict from, not the target, got 'kind'"]),
        (["--target", "kind", "--filters", "3"], ["filters: does not apply to a table (", "leave it out"]),
        (["--target", "kind", "--loss", "mse"], ["loss: takes cross_entropy for classification, got 'mse'"]),
        (["--target", "kind", "--task", "regression"], ["line 2, column 'kind': takes a number"]),
        (["--target", "kind", "--test", "0"], ["test: takes a fraction between 0 and 1"]),
        (
            ["--target", "kind", "--test", "0.9"],
            ["test: takes a fraction", "with --validation 0.1, got 0.9"],
        ),
        (["--target", "kind", "--validation", "0.9"], ["validation: takes a fraction", "with --test 0.2, got 0.9"]),
        (["--target", "kind", "--repeats", "2"], ["repeats: does not apply to"]),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_and_creates_nothing(tmp_path, arguments, words):
    path = write_table(tmp_path / "things.csv")
    refused(run("train", path, *arguments, "--out", tmp_path / "new" / "run"), *words)
    assert [each.name for each in tmp_path.iterdir()] == ["things.csv"]


def test_a_file_that_is_not_there_and_one_of_another_kind_are_one_line(tmp_path):
    refused(run("train", tmp_path / "no.csv", "--target", "y"), "no.csv: No such file or directory")
    (tmp_path / "table.xlsx").write_bytes(b"PK")
    (tmp_path / "folder.csv").mkdir()
    refused(run("train", tmp_path / "folder.csv", "--target", "y"), "folder.csv: takes a file", "got a folder")
    refused(run("train", "-", "--target", "y"), "data: takes a file or a folder, got the standard input; save it")
    refused(run("train", "", "--target", "y"), "data: takes one of", "got ''")
    refused(run("train", tmp_path / "table.xlsx"), "a file that ends in .csv, .tsv, .parquet", "got the file")


def test_few_rows_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{i * i},{'ab'[i % 2]}\n" for i in range(6)))
    refused(run("train", tmp_path / "t.csv", "--target", "y"), "takes at least 10 rows with a target, got '6'")


@pytest.mark.parametrize("command", ["predict", "check", "export", "plot"])
@pytest.mark.parametrize("name", ["run.json", "data.json", "model.json", "model.safetensors"])
def test_a_damaged_run_is_one_line_of_every_command_and_nothing_is_written(folder, tmp_path, command, name):
    place = tmp_path / "copy"
    subprocess.run(["cp", "-r", folder / "run", place], check=True)
    (place / name).write_bytes((place / name).read_bytes()[:60])
    out = tmp_path / {"predict": "out.csv", "export": "out.onnx"}.get(command, "out.png")
    data = [folder / "things.csv"] if command == "predict" else []
    refused(run(command, place, *data, "--out", out), f"{place / name}: is ")
    assert [each.name for each in tmp_path.iterdir()] == ["copy"]


@pytest.mark.parametrize("name", ["data.json", "result.json", "held_out.safetensors", "model.json"])
@pytest.mark.parametrize("kind", ["half", "empty", "missing", "list"])
def test_a_damaged_run_is_named_in_one_line(folder, tmp_path, name, kind):
    place = tmp_path / "copy"
    subprocess.run(["cp", "-r", folder / "run", place], check=True)
    path = place / name
    content = path.read_bytes()
    path.unlink()
    if kind != "missing":
        path.write_bytes({"half": content[:60], "empty": b"", "list": b"[]"}[kind])
    refused(run("show", place), str(place))


@pytest.mark.parametrize(
    ("name", "command"),
    [
        *[("data", "predict"), ("model", "predict"), ("run", "predict"), ("history", "plot"), ("result", "show")],
        *[("held_out", "show"), ("run", "check"), ("history", "show")],
    ],
)
def test_files_of_another_run_on_the_same_table_are_noticed(folder, tmp_path, name, command):
    mixed = tmp_path / "mixed"
    subprocess.run(["cp", "-r", folder / "run", mixed], check=True)
    table = folder / "things.csv"
    done("train", table, "--target", "kind", "--seed", 1, "--epochs", 1, "--out", tmp_path / "other")
    together = "result" if name == "held_out" else name
    for path in [*(tmp_path / "other").glob(f"{name}.*"), *(tmp_path / "other").glob(f"{together}.*")]:
        (mixed / path.name).write_bytes(path.read_bytes())
    named = {"model": "run.json, data.json, history.json", "held_out": "result.json"}.get(name, f"{name}.json")
    said = f"{mixed}: is damaged: its model.json and {named} are of different runs; restore all of the same run"
    refused(run(command, mixed, *([table] if command == "predict" else [])), said)


def test_runs_of_earlier_versions_which_do_not_tie_their_files_are_still_read(folder, tmp_path):
    assert run("predict", untied(folder, tmp_path), folder / "things.csv").exit_code == 0


def untied(folder, tmp_path):
    """Return a copy of the run as an earlier version wrote it, whose model does not note the other files."""
    place = tmp_path / "copy"
    subprocess.run(["cp", "-r", folder / "run", place], check=True)
    content = read_json(place / "model.json")
    del content["notes"]
    (place / "model.json").write_text(json.dumps(content))
    return place


@pytest.mark.parametrize("wrong", [{"scores": ["x"]}, {"scores": []}, {"baseline": None}, {"errors": [1.0]}], ids=str)
def test_scores_that_are_not_numbers_are_named(folder, tmp_path, wrong):
    place = untied(folder, tmp_path)
    path = place / "result.json"
    path.write_text(json.dumps({**read_json(path), **wrong}))
    refused(run("show", place), f"{path}: is damaged (")


@pytest.mark.parametrize("name", ["run.json", "data.json", "model.json", "result.json", "history.json"])
def test_a_number_that_has_changed_is_noticed(folder, tmp_path, name):
    place = tmp_path / "copy"
    subprocess.run(["cp", "-r", folder / "run", place], check=True)
    whole = (place / name).read_text()
    changed = re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + 1) % 10), whole.partition('"digest"')[0])
    assert changed != whole.partition('"digest"')[0]
    (place / name).write_text(changed + whole[len(changed) :])
    refused(run("show", place), f"{name}: is damaged or was edited")


def test_data_that_are_no_text_and_a_target_without_a_mean_are_named(folder, tmp_path):
    place = tmp_path / "copy"
    subprocess.run(["cp", "-r", folder / "run", place], check=True)
    for name, part, wrong, words in [
        ("run.json", "options", {"data": 3}, "is damaged (data: takes a text, got 3)"),
        ("data.json", "target", {"name": "kind", "classes": [], "scale": 1.0}, "is damaged (KeyError('mean'))"),
    ]:
        content = read_json(folder / "run" / name)
        content[part] = {**content[part], **wrong} if name == "run.json" else wrong
        (place / name).write_text(json.dumps(content))
        refused(run("predict", place, folder / "things.csv"), f"{place / name}: {words}")
        (place / name).write_bytes((folder / "run" / name).read_bytes())


def test_points_without_classes_are_damaged(tmp_path):
    done("train", "moons", "--epochs", 1, "--out", tmp_path / "run")
    path = tmp_path / "run" / "data.json"
    path.write_text(json.dumps({**read_json(path), "classes": []}))
    (tmp_path / "new.csv").write_text("x,y\n0,1\n")
    refused(run("predict", tmp_path / "run", tmp_path / "new.csv"), f"{path}: is damaged (it has no classes)")


def test_columns_that_do_not_belong_to_the_model_are_noticed(folder, tmp_path):
    place = tmp_path / "copy"
    subprocess.run(["cp", "-r", folder / "run", place], check=True)
    content = read_json(place / "data.json")
    content["encoding"]["columns"].pop()
    (place / "data.json").write_text(json.dumps(content))
    refused(
        run("predict", place, folder / "things.csv"), "data.json: is damaged (its columns do not belong to its model)"
    )


# Going on


def test_a_run_goes_on_unless_the_table_has_changed(tmp_path):
    path = write_table(tmp_path / "things.csv")
    command = ["train", path, "--target", "kind", "--out", tmp_path / "run"]
    done(*command, "--epochs", 2)
    done(*command, "--epochs", 3)
    done(*command[:-1], tmp_path / "once", "--epochs", 3)
    for name in ("model.safetensors", "data.json", "held_out.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "once" / name).read_bytes()
    path.write_text(path.read_text().replace("red", "green", 1))
    refused(run(*command, "--epochs", 4), f"out: {tmp_path / 'run'} holds a run on other data")


def test_a_forgotten_target_is_named_also_where_a_run_is(folder):
    forgotten = run("train", folder / "things.csv", "--out", folder / "run")
    refused(forgotten, "target: takes a column of", "pass --target kind to continue the run in")


def test_a_run_on_a_table_that_is_killed_goes_on_to_the_same_bits(tmp_path):
    path, seen = write_table(tmp_path / "things.csv"), tmp_path / "seen"
    # Python's loop makes the iterations, so that it can be stopped between them.
    command = ["train", str(path), "--target", "kind", "--epochs", "4", "--engine", "torch"]
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, str(seen), *command, "--out", str(tmp_path / "run")],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        end = time.monotonic() + 120
        while not seen.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        process.kill()
        error = process.communicate(timeout=20)[1]
    assert process.returncode == -signal.SIGKILL, error
    refused(run("show", tmp_path / "run"), "holds an unfinished run")
    done(*command, "--out", tmp_path / "run")
    done(*command, "--out", tmp_path / "once")
    for name in ("model.safetensors", "data.json", "held_out.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "once" / name).read_bytes()


# Pictures


@pytest.fixture(scope="module")
def pictures(tmp_path_factory, one_thread):
    """Bright and dark pictures, and a run on them."""
    place = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for name, level in (("bright", 200), ("dark", 40)):
        (place / "data" / name).mkdir(parents=True)
        for i in range(20):
            pixels = generator.integers(level - 30, level + 30, (8, 8)).astype(np.uint8)
            Image.fromarray(pixels).save(place / "data" / name / f"{i}.png")
    quick = ["--filters", 4, "--epochs", 15, "--lr", 0.01, "--augment", 1]
    place_of_run = place / "run"
    (place / "said").write_text(done("train", place / "data", *quick, "--out", place_of_run))
    return place


def test_a_folder_of_pictures_is_trained_on_and_judged_by_some_that_were_held_out(pictures):
    said = (pictures / "said").read_text()
    assert re.search(r"accuracy \d+\.\d% on 8 pictures that were held out; guessing the largest class: 50.0%", said)
    found = load_saved(pictures / "run").description
    assert (found.classes, found.counts) == (("bright", "dark"), {"training": 28, "validation": 4, "test": 8})


def test_new_pictures_get_a_line_each(pictures, tmp_path):
    Image.fromarray(np.full((30, 20, 3), 220, np.uint8)).save(tmp_path / "white.jpg")
    Image.fromarray(np.full((8, 8), 20, np.uint8)).save(tmp_path / "black.png")
    found = rows_of(done("predict", pictures / "run", tmp_path))
    assert [row["file"] for row in found] == [str(tmp_path / "black.png"), str(tmp_path / "white.jpg")]
    assert [row["prediction"] for row in found] == ["dark", "bright"]
    assert list(found[0]) == ["file", "prediction", "p(bright)", "p(dark)"]


def test_show_takes_a_run_on_pictures(pictures):
    out = done("show", pictures / "run")
    assert "pictures: 28 for training, 4 for validation, 8 for test; 1x8x8" in out
    assert (pictures / "run" / "show.png").exists()


def test_a_table_for_pictures_and_pictures_for_a_table_are_one_line(pictures, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(run("predict", pictures / "run", tmp_path / "empty"), "takes PNG or JPEG pictures in it")
    refused(run("predict", pictures / "run", folder / "things.csv"), "things.csv: is not a PNG or JPEG picture")
    refused(run("predict", folder / "run", pictures / "data"), "data: takes a table, like the one")


# Built-in data


def test_moons_is_an_anode_with_an_accuracy_on_new_points(tmp_path):
    out = done("train", "moons", "--epochs", 2, "--out", tmp_path / "run")
    assert out.startswith("ANODE on moons: 1,583 parameters\ntrained for 2 epochs, 32 iterations, ")
    assert re.search(r"accuracy \d+\.\d% on 1,000 new points; guessing the largest class: 50.0%", out)
    assert "points: 1,000 for training, 1,000 for test; 2 numbers each" in done("show", tmp_path / "run")
    (tmp_path / "new.csv").write_text("x,y\n0,1\n1,-0.5\n")
    found = rows_of(done("predict", tmp_path / "run", tmp_path / "new.csv"))
    assert {row["prediction"] for row in found} <= {"-1", "1"}
    (tmp_path / "new.csv").write_text("x\n0\n")
    refused(run("predict", tmp_path / "run", tmp_path / "new.csv"), "takes 2 columns of numbers, got 1")
    (tmp_path / "new.csv").write_text("x,y\n0,1\n0,1e300\n")
    words = "new.csv, line 3, column 'y': takes a number near those of training, got 1e+300; correct it"
    refused(run("predict", tmp_path / "run", tmp_path / "new.csv"), words)


@pytest.mark.parametrize("model", [["--model", "resnet"], ["--repeats", "2"]], ids=str)
def test_show_takes_runs_without_a_flow_and_with_repeats(tmp_path, model):
    done("train", "moons", "--epochs", 1, *model, "--out", tmp_path / "run")
    assert "accuracy " in done("show", tmp_path / "run")
    assert (tmp_path / "run" / "show.png").exists()


def test_show_takes_a_run_on_images(tmp_path):
    quick = ["--train-size", 64, "--filters", 2, "--side", 4, "--epochs", 1]
    done("train", "digits", *quick, "--out", tmp_path / "run")
    assert "images: 64 for training, 355 for test; 1x4x4" in done("show", tmp_path / "run")


def test_a_run_whose_solves_fail_is_shown_without_a_score(tmp_path):
    run("train", "moons", "--epochs", 1, "--lr", 1e6, "--max-steps", 20, "--out", tmp_path / "run")
    out = done("show", tmp_path / "run")
    assert "no score on 1,000 new points: " in out


def test_a_run_of_an_earlier_version_is_named_with_what_to_do(tmp_path):
    done("train", "moons", "--epochs", 1, "--out", tmp_path / "run")
    for name in ("data.json", "result.json", "held_out.safetensors"):
        (tmp_path / "run" / name).unlink()
    assert "picture: " in done("plot", tmp_path / "run")
    refused(run("show", tmp_path / "run"), "has no data.json; run the command again that started the run")
    done("train", "moons", "--epochs", 1, "--out", tmp_path / "run")
    done("show", tmp_path / "run")


@pytest.mark.parametrize("name", ["iris", "diabetes"])
def test_the_tables_of_scikit_learn_are_trained_on_by_name(tmp_path, name):
    out = done("train", name, *QUICK, "--out", tmp_path / "run")
    assert "column 'target' is the target" in out
    assert "rows that were held out" in out


def test_predictions_that_are_not_finite_are_no_score():
    model = anode.ResNet(2, 1)
    with torch.no_grad():
        model.head.bias.fill_(float("inf"))
    result, sample = judge(model, material_of(TrainOptions("moons", model="resnet")))
    assert (result.scores, result.failure, len(sample.predicted)) == ([], "the predictions are not finite", 0)


def test_points_that_are_those_of_training_are_not_called_new(tmp_path):
    out = done("train", "g_1d", "--augment", 0, "--epochs", 1, "--out", tmp_path / "run")
    assert "on 2 points, which are those of training;" in out


@pytest.mark.parametrize("data", ["moons", "circles", "spirals", "checkerboard", "g", "separable"])
def test_new_points_are_not_those_of_training(data):
    material = material_of(TrainOptions(data))
    train, test = material.data.x, material.tests[0][0]
    assert train.shape == test.shape
    assert not (train[:, None] == test[None]).all(-1).any()


# Where the output goes


def in_shell(line: str) -> subprocess.CompletedProcess:
    """Run a line of bash in which $anode is the command."""
    line = f'anode="{sys.executable} -m anode"; {line}'
    usual = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=usual, timeout=120)


@pytest.fixture(scope="module")
def moons(tmp_path_factory):
    place = tmp_path_factory.mktemp("output")
    (place / "t.csv").write_text("x,y\n" + "".join(f"{i / 7},{i % 2}\n" for i in range(40)))
    done("train", place / "t.csv", "--target", "y", "--epochs", 1, "--out", place / "run")
    (place / "new.csv").write_text("x\n" + "1.5\n" * 20_000)
    return place


@pytest.mark.slow
def test_predictions_that_nobody_reads_to_the_end_are_no_error(moons):
    ended = in_shell(f"$anode predict {moons / 'run'} {moons / 'new.csv'} | head -1; echo ${{PIPESTATUS[0]}}")
    assert (ended.stdout, ended.stderr) == ("prediction,p(0),p(1)\n1\n", "")


@pytest.mark.slow
def test_a_closed_standard_output_is_one_line_that_says_what_to_do(moons):
    ended = in_shell(f"$anode predict {moons / 'run'} {moons / 'new.csv'} >&-")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "out: takes a file, because the standard output is closed" in ended.stderr


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["info", "predict {0}/run {0}/t.csv"])
def test_output_to_a_full_disk_is_one_line(moons, command):
    ended = in_shell(f"$anode {command.format(moons)} > /dev/full")
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == "error: [Errno 28] No space left on device"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("option", ["--version", "--help"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_so_is_help_that_cannot_be_written(option, unbuffered):
    ended = in_shell(f"PYTHONUNBUFFERED={unbuffered} $anode {option} > /dev/full")
    assert (ended.returncode, ended.stderr) == (2, "error: [Errno 28] No space left on device\n")
