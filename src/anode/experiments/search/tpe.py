"""Search with Optuna, which chooses the settings; any number of processes can share a study."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anode.checks import number
from anode.experiments.search.grid import Judged
from anode.experiments.search.runs import LOOKS, Cross, SearchRun, losses
from anode.experiments.search.spaces import Setting, Space
from anode.extras import needs
from anode.files import make_folder
from anode.train.callbacks import Report
from anode.train.progress import Bars

if TYPE_CHECKING:
    import optuna

HEARTBEAT, GRACE = 10, 60
"""Seconds between heartbeats of a process, and without a heartbeat until its trial is given to another."""
STARTUP = 5
"""Number of trials before any trial is pruned, to have a basis for comparison."""


def optimise(
    model: str, space: Space, cross: Cross, storage: str, trials: int, bars: Bars, seed: int | None = None
) -> optuna.Study:
    """Try settings until a study has enough trials, finished or pruned, over all processes.

    Args:
        model: The model.
        space: The search space; settings lie between its smallest and largest values.
        cross: The cross-validation.
        storage: The storage of the study, see :func:`opened`.
        trials: Number of trials.
        bars: Shows the progress.
        seed: Seed of the sampler, for a reproducible search; processes that share a storage need different seeds.
    """
    number("trials", trials, whole=True)
    study = opened(model, space, cross, storage)
    import optuna

    if seed is not None:
        study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))

    done = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    name = f"{model}, d = {cross.dim}"

    def show(study: optuna.Study, *_: Any) -> None:
        count = len(study.get_trials(deepcopy=False, states=done))
        finished = study.get_trials(deepcopy=False, states=done[:1])
        best = min((trial.value for trial in finished if trial.value is not None), default=math.nan)
        bars.show(name, min(count, trials), trials, f"best loss {best:.2g}")

    show(study)
    if len(study.get_trials(deepcopy=False, states=done)) < trials:
        limit = optuna.study.MaxTrialsCallback(trials, states=done)
        study.optimize(lambda trial: judge(trial, model, space, cross), callbacks=[show, limit])
    return study


def opened(model: str, space: Space, cross: Cross, storage: str) -> optuna.Study:
    """Return the study of a model in a storage; it is created if it does not exist.

    Args:
        model, space, cross: What the study is about; a study of the same name about something else is refused.
        storage: The address of a database, as ``sqlite:///file.db`` or ``postgresql://…``, or ``journal:file``.
    """
    needs("sampler 'tpe'", "search")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    about = json.loads(json.dumps({"model": model, "space": dict(space), "cross": asdict(cross)}))
    with reachable(storage):
        study = optuna.create_study(
            study_name=f"anode-{model}-d{cross.dim}",
            storage=backend(storage),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP),
            load_if_exists=True,
        )
        if "about" not in study.user_attrs:
            study.set_user_attr("about", about)
    if study.user_attrs["about"] != about:
        raise ValueError(
            f"storage: {storage} has a study {study.study_name!r} with another grid or cross-validation; give another "
            "storage, or the options of that study"
        )
    return study


def backend(storage: str) -> Any:
    """Return Optuna's object for a storage."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    if storage.startswith("sqlite") and (not storage.partition("///")[2] or ":memory:" in storage):
        raise OSError("a study in memory is lost when the process ends")
    if storage.startswith("journal:"):
        path = Path(storage.removeprefix("journal:"))
        make_folder(path.parent)
        _check_journal(path)
        return optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    return _database(storage)


def _database(storage: str, attempts: int = 20) -> optuna.storages.RDBStorage:
    """Open a database of studies, and create its tables if it is new.

    If two processes start together, both create the tables, and Optuna fails in the slower one. It then tries again and
    finds them.
    """
    import optuna
    from sqlalchemy.exc import DatabaseError, IntegrityError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.storages.RDBStorage(
                storage,
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE,
                heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(),
            )
    except DatabaseError as error:
        created_meanwhile = isinstance(error, IntegrityError) or "already exists" in str(error.orig)
        if not created_meanwhile or attempts == 1:
            raise
    time.sleep(0.1)
    return _database(storage, attempts - 1)


def _check_journal(path: Path) -> None:
    """Raise an error if a file is not an Optuna journal: Optuna would write to it without checking."""
    if path.exists() and path.stat().st_size:
        with path.open(encoding="utf-8", errors="replace") as file:
            first = file.readline()
        if '"op_code"' not in first:
            raise OSError("the file is not an Optuna journal")


@contextmanager
def reachable(storage: str) -> Iterator[None]:
    """Turn errors of databases and their drivers into one line."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (StorageInternalError, SQLAlchemyError, ImportError, OSError) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        takes = "sqlite:///FILE, journal:FILE, or the address of a database whose driver is installed"
        raise ValueError(f"storage: takes {takes}, got {storage!r} ({reason})") from None


def judge(trial: optuna.Trial, model: str, space: Space, cross: Cross) -> float:
    """Return the loss of a setting that Optuna chose; the trial may be pruned."""
    import optuna

    run = SearchRun((suggested(trial, model, space),), cross)

    def tell(report: Report) -> None:
        if report.validation is None or report.done == report.total:
            return
        looks = round(LOOKS * report.done / report.total)  # the number of iterations depends on the batch size
        trial.report(math.inf if math.isnan(report.validation) else report.validation, looks)
        if trial.should_prune():
            raise optuna.TrialPruned

    found = losses(run.train(tell, Path()))[run.settings[0]]
    trial.set_user_attr("losses", [None if math.isnan(loss) else loss for loss in found.tolist()])
    mean = float(found.mean())
    return math.inf if math.isnan(mean) else mean


def found_in(study: optuna.Study, model: str, cross: Cross) -> list[Judged]:
    """Return the settings of the finished trials of a study, and their losses."""
    import optuna

    finished = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    return [
        Judged(
            Setting(model, **trial.params),
            cross.dim,
            [math.nan if loss is None else loss for loss in trial.user_attrs["losses"]],
        )
        for trial in finished
    ]


def suggested(trial: optuna.Trial, model: str, space: Space) -> Setting:
    """Suggest a setting within a space, with learning rates on a log scale and batch sizes from the given values."""
    values: dict[str, Any] = {}
    for name, given in space.items():
        low, high = min(given), max(given)
        if name == "batch_size":
            values[name] = trial.suggest_categorical(name, list(given))
        elif name == "lr":
            values[name] = trial.suggest_float(name, low, high, log=True)
        else:
            values[name] = trial.suggest_int(name, int(low), int(high))
    return Setting(model, **values)
