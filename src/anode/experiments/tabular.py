"""``anode bench tabular``: anode's estimators and scikit-learn's on small tables."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold, cross_validate
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from threadpoolctl import threadpool_limits

from anode.checks import lookup, require
from anode.data import toy
from anode.estimators.classifier import ANODEClassifier
from anode.estimators.regressor import ANODERegressor
from anode.experiments.environment import environment
from anode.files import DamagedFileError, locked, make_folder, write_text
from anode.storage import read_json, write_json
from anode.train.progress import Bars

FORMAT = "anode tabular 1"
FOLDS = 5
Array = NDArray[Any]
Loader = Callable[[], tuple[Array, Array]]
Builder = Callable[[int], Any]


def plane(name: str, **options: Any) -> tuple[Array, Array]:
    """Return points of the plane and their classes."""
    data = toy.load(name, **options, seed=0)
    return data.x.double().numpy(), data.labels.numpy()


def with_scaled_targets(estimator: Any) -> Any:
    """Return an estimator that standardises its targets, as anode's regressor always does."""
    return TransformedTargetRegressor(estimator, transformer=StandardScaler())


CLASSIFICATION: dict[str, Loader] = {
    "iris": partial(load_iris, return_X_y=True),
    "wine": partial(load_wine, return_X_y=True),
    "breast cancer": partial(load_breast_cancer, return_X_y=True),
    "digits": partial(load_digits, return_X_y=True),
    "moons": partial(plane, "moons", noise=0.3),
    "circles": partial(plane, "circles", noise=0.1),
    "spirals": partial(plane, "spirals"),
}
REGRESSION: dict[str, Loader] = {"diabetes": partial(load_diabetes, return_X_y=True)}
TABLES = (*CLASSIFICATION, *REGRESSION)

CLASSIFIERS: dict[str, Builder] = {
    "ANODE": lambda seed: ANODEClassifier(random_state=seed),
    "NODE": lambda seed: ANODEClassifier(augment=0, random_state=seed),
    "MLP": lambda seed: make_pipeline(StandardScaler(), MLPClassifier(random_state=seed)),
    "linear": lambda seed: make_pipeline(StandardScaler(), LogisticRegression()),
    "SVM": lambda seed: make_pipeline(StandardScaler(), SVC()),
    "random forest": lambda seed: RandomForestClassifier(random_state=seed),
    "gradient boosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
}
REGRESSORS: dict[str, Builder] = {
    "ANODE": lambda seed: ANODERegressor(random_state=seed),
    "NODE": lambda seed: ANODERegressor(augment=0, random_state=seed),
    "MLP": lambda seed: with_scaled_targets(make_pipeline(StandardScaler(), MLPRegressor(random_state=seed))),
    "linear": lambda seed: make_pipeline(StandardScaler(), Ridge()),
    "SVM": lambda seed: with_scaled_targets(make_pipeline(StandardScaler(), SVR())),
    "random forest": lambda seed: RandomForestRegressor(random_state=seed),
    "gradient boosting": lambda seed: HistGradientBoostingRegressor(random_state=seed),
}
MODELS = tuple(CLASSIFIERS)


@dataclass(frozen=True)
class Cell:
    """The scores of a model on a table.

    Attributes:
        table, model: Their names.
        settings: All settings of the model.
        scores: Accuracy, or R² for regression, per fold.
        seconds: Fit time per fold.
    """

    table: str
    model: str
    settings: str
    scores: list[float]
    seconds: list[float]

    @property
    def score(self) -> str:
        """Mean and standard deviation of the scores."""
        return f"{np.mean(self.scores):.3f} ± {np.std(self.scores):.3f}"

    @property
    def mean_seconds(self) -> float:
        """Mean fit time."""
        return float(np.mean(self.seconds))


def measured(table: str, model: str, seed: int) -> Cell:
    """Cross-validate a model on a table, with one thread."""
    is_classes = table in CLASSIFICATION
    rows, targets = (CLASSIFICATION | REGRESSION)[table]()
    estimator = build(table, model, seed)
    folds = (StratifiedKFold if is_classes else KFold)(FOLDS, shuffle=True, random_state=seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # every estimator keeps its default settings
            found = cross_validate(estimator, rows, targets, cv=folds, error_score="raise")
    finally:
        torch.set_num_threads(threads)
    scores, seconds = ([round(float(value), 6) for value in found[name]] for name in ("test_score", "fit_time"))
    return Cell(table, model, settings_of(estimator), scores, seconds)


def build(table: str, model: str, seed: int) -> Any:
    """Return a new estimator."""
    return (CLASSIFIERS if table in CLASSIFICATION else REGRESSORS)[model](seed)


def settings_of(estimator: Any) -> str:
    """Return all settings of an estimator in one line, without nested estimators, whose own settings are listed."""
    settings = estimator.get_params()
    return ", ".join(f"{name}={value!r}" for name, value in sorted(settings.items()) if not hasattr(value, "fit"))


def bench(out: Path, tables: Sequence[str], seed: int, bars: Bars) -> list[Cell]:
    """Measure all models on some tables. Measurements that the folder already has are reused.

    Args:
        out: The folder.
        tables: Names of tables.
        seed: Random seed of the folds and the models.
        bars: Shows the progress.
    """
    for name in tables:
        lookup("table", name, dict.fromkeys(TABLES))
    make_folder(out)
    with locked(out, "out"):
        known = earlier(out, seed)
        wanted = [(table, model) for table in tables for model in MODELS]
        cells = dict(known)
        for done, (table, model) in enumerate(wanted):
            bars.show("cross-validating", done, len(wanted), f"{model} on {table}")
            before = known.get((table, model))
            if before is None or before.settings != settings_of(build(table, model, seed)):
                cells[table, model] = measured(table, model, seed)
                keep(out, seed, list(cells.values()))
        bars.show("cross-validating", len(wanted), len(wanted))
        kept = [cells[table, model] for table in TABLES for model in MODELS if (table, model) in cells]
        keep(out, seed, kept)
        write_text(out / "tabular.md", markdown(kept))
    return kept


def earlier(out: Path, seed: int) -> dict[tuple[str, str], Cell]:
    """Return earlier measurements."""
    path = out / "tabular.json"
    if not path.exists():
        return {}
    content = read_json(path)
    try:
        theirs = [content[name] for name in ("format", "seed", "scikit-learn")]
        cells = [Cell(**cell) for cell in content["cells"]]
    except (KeyError, TypeError):
        raise DamagedFileError(f"{path}: is damaged; remove it or restore it") from None
    ours = [FORMAT, seed, sklearn.__version__]
    takes = f"a new folder, or one measured with seed {seed} and scikit-learn {sklearn.__version__}"
    require(theirs == ours, "out", f"{out}, with seed {theirs[1]} and scikit-learn {theirs[2]}", takes)
    return {(cell.table, cell.model): cell for cell in cells}


def keep(out: Path, seed: int, cells: Sequence[Cell]) -> None:
    """Write the measurements."""
    content = {
        "format": FORMAT,
        "seed": seed,
        "scikit-learn": sklearn.__version__,
        "environment": environment(),
        "cells": [asdict(cell) for cell in cells],
    }
    write_json(out / "tabular.json", content, indent=1)


def markdown(cells: Sequence[Cell]) -> str:
    """Return two tables: scores and fit times."""
    parts = [
        "Accuracy (R² for diabetes): mean ± standard deviation over 5 folds.",
        table_of(cells, lambda cell: cell.score),
        "Seconds to fit one fold, with one thread.",
        table_of(cells, lambda cell: f"{cell.mean_seconds:.2f}"),
    ]
    return "\n\n".join(parts) + "\n"


def table_of(cells: Sequence[Cell], show: Callable[[Cell], str]) -> str:
    """Return a Markdown table with one row per dataset and one column per model."""
    found = {(cell.table, cell.model): show(cell) for cell in cells}
    tables = dict.fromkeys(cell.table for cell in cells)
    rows = [[table, *(found.get((table, model), "") for model in MODELS)] for table in tables]
    lines = [["", *MODELS], ["---"] * (len(MODELS) + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
