import json

import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor
from typer.testing import CliRunner

from anode.cli import app
from anode.estimators.classifier import ANODEClassifier
from anode.experiments import tabular
from anode.experiments.tabular import CLASSIFIERS, MODELS, REGRESSORS, TABLES, bench, markdown, measured
from anode.files import DamagedFileError
from anode.train.progress import Bars


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Small models of ours, and rivals that learn nothing."""
    for name in MODELS:
        monkeypatch.setitem(CLASSIFIERS, name, lambda seed: DummyClassifier())
        monkeypatch.setitem(REGRESSORS, name, lambda seed: DummyRegressor())
    for name, augment in (("NODE", 0), ("ANODE", 1)):
        monkeypatch.setitem(
            CLASSIFIERS, name, lambda seed, p=augment: ANODEClassifier(augment=p, hidden=4, epochs=1, random_state=seed)
        )


def run(*arguments):
    return CliRunner().invoke(app, ["bench", "tabular", *map(str, arguments)])


def test_every_table_can_be_read_and_has_a_model_for_it():
    assert set(TABLES) == {*tabular.CLASSIFICATION, *tabular.REGRESSION}
    for load in (tabular.CLASSIFICATION | tabular.REGRESSION).values():
        rows, targets = load()
        assert len(rows) == len(targets) > 100
    assert list(CLASSIFIERS) == list(REGRESSORS)


def test_a_model_is_cross_validated_and_its_settings_are_kept():
    cell = measured("iris", "ANODE", 3)
    assert len(cell.scores) == len(cell.seconds) == 5
    assert all(0 <= score <= 1 for score in cell.scores)
    assert "random_state=3" in cell.settings
    assert "lr=" in cell.settings


@pytest.mark.slow
def test_the_command_measures_draws_and_goes_on(tmp_path, monkeypatch):
    result = run("iris", "diabetes", "--out", tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "planes.png",
        "planes.svg",
        "scores.png",
        "scores.svg",
        "tabular.json",
        "tabular.md",
    ]
    before = (tmp_path / "tabular.md").read_text()
    monkeypatch.setattr(tabular, "measured", None)  # nothing is to be measured again
    bench(tmp_path, ["iris"], 0, Bars())
    assert (tmp_path / "tabular.md").read_text() == before


def test_what_was_measured_is_kept_when_it_is_interrupted(tmp_path, monkeypatch):
    real, done = tabular.measured, []

    def interrupted(table, model, seed):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(model)
        return real(table, model, seed)

    monkeypatch.setattr(tabular, "measured", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path, ["iris"], 0, Bars())
    assert [cell["model"] for cell in json.loads((tmp_path / "tabular.json").read_text())["cells"]] == done


def test_a_model_with_other_settings_is_measured_again(tmp_path, monkeypatch):
    bench(tmp_path, ["iris"], 0, Bars())
    monkeypatch.setitem(CLASSIFIERS, "MLP", lambda seed: DummyClassifier(strategy="uniform", random_state=1))
    cells = {cell.model: cell for cell in bench(tmp_path, ["iris"], 0, Bars())}
    assert "uniform" in cells["MLP"].settings
    assert "uniform" not in cells["SVM"].settings


def test_scores_of_another_seed_are_left_alone(tmp_path):
    bench(tmp_path, ["iris"], 0, Bars())
    before = (tmp_path / "tabular.json").read_bytes()
    result = run("iris", "--seed", 1, "--out", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: out: takes a new folder, or one measured with seed")
    assert (tmp_path / "tabular.json").read_bytes() == before


@pytest.mark.parametrize("content", ["{}", '{"format": 1}', "[]", "{"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "tabular.json").write_text(content)
    with pytest.raises(DamagedFileError, match=r"tabular\.json"):
        bench(tmp_path, ["iris"], 0, Bars())


def test_an_unknown_table_is_one_line(tmp_path):
    result = run("irises", "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: table: takes one of iris, ")
    assert not (tmp_path / "out").exists()


def test_a_table_has_a_row_for_each_dataset():
    text = markdown([measured("iris", model, 0) for model in ("linear", "SVM")])
    assert "| iris |  |  |  | 0.333 ± 0.000 | 0.333 ± 0.000 |  |  |" in text
