"""Training runs: what a protocol is, what comes of it, and results on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from anode.experiments.certificates import Certificates
from anode.files import DamagedFileError, read_described, read_json, write_described
from anode.models.ensemble import unstack
from anode.models.model import Model
from anode.train.formats import as_list, from_arrays, to_arrays
from anode.train.history import History
from anode.train.progress import Listener
from anode.train.record import Array

FORMAT = "anode run 1"


@dataclass(frozen=True)
class Place:
    """Where runs are done, which makes no other experiment of them.

    Attributes:
        root: Where image datasets lie; ``None`` for the usual place.
        device: What computes: a device of torch.
    """

    root: Path | None = None
    device: str = "cpu"


HERE = Place()
"""The usual place."""


class Run(ABC):
    """The protocol of a training run: everything its result depends on. Subclasses are frozen dataclasses.

    Attributes:
        name: What the run is called, here and on disk.
        augment: How many dimensions, or channels, are added.
        epochs: Passes over the data.
        repeats: How many times everything is done, from other seeds: data, weights and order of the data.
        seed: The first of the seeds.
    """

    name: str
    augment: int
    epochs: int
    repeats: int
    seed: int

    def protocol(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return asdict(self)  # type: ignore[call-overload]

    @property
    def seeds(self) -> range:
        """The seed of every repeat."""
        return range(self.seed, self.seed + self.repeats)

    @property
    @abstractmethod
    def label(self) -> str:
        """The model's name as the paper has it."""

    @property
    @abstractmethod
    def cost(self) -> float:
        """Which runs take longer than others: the longest are begun first."""

    @property
    @abstractmethod
    def evaluations(self) -> int:
        """How often the validation set is evaluated, if training comes to its end; 0 without one."""

    skips_failures = False
    """Whether an iteration that fails is left out; a repeat is trained to the end all the same."""

    may_lack_models = False
    """Whether results of earlier versions, which have no weights, are read all the same."""

    def check(self, root: Path | None) -> None:  # noqa: B027, most runs need nothing
        """Raise an error if what the run needs is not there.

        Args:
            root: Where datasets lie; ``None`` for the usual place.
        """

    def with_data(self, root: Path | None) -> tuple[Run, str]:
        """Return the run on as much data as there is, and what it lacks in words; nothing if it lacks nothing.

        Args:
            root: Where datasets lie; ``None`` for the usual place.
        """
        return self, ""

    def forecast(self, folder: Path, place: Place = HERE) -> float | None:
        """Return about how many seconds it will take from here; ``None`` if so few that nobody needs to know.

        Args:
            folder: Where it keeps what is not finished.
            place: Where it is done.
        """
        return None

    def parts(self) -> Sequence[Run]:
        """What can be trained apart, in any order, before :meth:`train` puts it together; by default nothing.

        A part leaves in the folder what :meth:`train` of the whole run goes on from.
        """
        return ()

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """The protocol in words, for the report."""

    @abstractmethod
    def train(self, tell: Listener | None, folder: Path, place: Place = HERE) -> Result:
        """Do it; ``KeyboardInterrupt`` if that was interrupted. What was not finished may be kept in the folder."""

    def certify(self, result: Result, place: Place = HERE) -> dict[str, Certificates]:
        """Certify the models of a result; empty if nothing is said about their evaluations."""
        return {}

    def clean(self, folder: Path) -> None:  # noqa: B027, most runs keep nothing
        """Remove what :meth:`train` kept of it while it was not finished."""

    @abstractmethod
    def models(self) -> Model | nn.ModuleList | None:
        """The models before training, stacked or as a list; ``None`` if they are not kept with the results."""


@dataclass
class Result:
    """What came of a run.

    Attributes:
        run: The protocol.
        model: The trained models, stacked or as a list; ``None`` if they were not kept.
        history: What happened. Its snapshots are those of one repeat, the typical one.
        seconds: How long it took.
        environment: The machine.
        certificates: Of the models after the last epoch (``"last"``) and, in the toy half, after the first
            (``"first"``); empty if the models were not certified.
        measured: What else was measured of the final models, by name: a number for each repeat, NaN if it has none.
    """

    run: Any  # a Run: studies and claims know of which kind
    model: Any
    history: History
    seconds: float
    environment: dict[str, Any] = field(default_factory=dict)
    certificates: dict[str, Certificates] = field(default_factory=dict)
    measured: dict[str, Array] = field(default_factory=dict)

    @property
    def final_loss(self) -> Array:
        """The mean loss of each repeat over the last epoch; NaN for one that failed, or skipped the last tenth."""
        loss = self.history.loss
        last = loss[(self.run.epochs - 1) * self.history.batches :]
        if not len(last):
            return np.full(self.run.repeats, np.nan)
        number = np.isfinite(last).sum(0)
        end = loss[-max(1, len(loss) // 10) :] if self.run.skips_failures else last[-1:]
        lost = np.isnan(end).all(0) | (number == 0)
        return np.where(lost, np.nan, np.nansum(last, 0, dtype=np.float64) / np.maximum(number, 1))

    @property
    def validation(self) -> Array:
        """The validation loss at each evaluation, [evaluations, repeats]; NaN from where a repeat failed."""
        return _padded(self.history.validation, self.run.evaluations)

    def per_epoch(self, series: str) -> Array:
        """The mean of a series over each epoch, [epochs, repeats]; NaN from where a repeat failed."""
        lost = np.isnan(self.history.per_epoch("loss"))
        return _padded(np.where(lost, np.nan, self.history.per_epoch(series)), self.run.epochs)

    @property
    def typical(self) -> int:
        """The repeat whose final loss is the median: the one to draw."""
        order = np.argsort(self.final_loss)  # NaN comes last
        return int(order[max(self.trained.sum() - 1, 0) // 2])

    @property
    def trained(self) -> NDArray[np.bool_]:
        """Which repeats were trained to the end."""
        return np.isfinite(self.final_loss)

    @property
    def best(self) -> int:
        """The repeat with the lowest final loss."""
        return int(np.argsort(self.final_loss)[0])  # NaN comes last

    def member(self, index: int) -> Any:
        """One of the models."""
        return self.model[index] if isinstance(self.model, nn.ModuleList) else unstack(self.model)[index]


def _padded(values: Array, length: int) -> Array:
    """Values with NaN for what was not begun, because every repeat had failed."""
    return np.pad(values, ((0, length - len(values)), (0, 0)), constant_values=np.nan)


# ------------------------------------------------------------------------------------------------------------- on disk


def paths(run: Run, folder: Path) -> tuple[Path, Path]:
    """The two files of a run: what can be read, and arrays."""
    return folder / f"{run.name}.json", folder / f"{run.name}.safetensors"


def save(result: Result, folder: Path) -> None:
    """Write a result. The readable file comes last: where it is, the result is complete."""
    described, arrays = paths(result.run, folder)
    told, series = to_arrays(result.history)
    tensors = {} if result.model is None else {f"model.{name}": p for name, p in result.model.state_dict().items()}
    content = {
        "format": FORMAT,
        "protocol": result.run.protocol(),
        "environment": result.environment,
        "seconds": round(result.seconds, 2),
        **told,
        "certificates": {name: each.to_json() for name, each in result.certificates.items()},
        **({"measured": {name: as_list(each) for name, each in result.measured.items()}} if result.measured else {}),
        "final loss": [None if np.isnan(value) else round(float(value), 6) for value in result.final_loss],
    }
    write_described(described, content, arrays, tensors | {name: torch.from_numpy(a) for name, a in series.items()})


def load(run: Run, folder: Path) -> Result | None:
    """Read a result; ``None`` if there is none of exactly this protocol, ``DamagedFileError`` if it is damaged."""
    described, arrays = paths(run, folder)
    if not described.exists():
        return None
    content = read_json(described)
    try:
        if content["format"] != FORMAT or content["protocol"] != run.protocol():
            return None
        content, tensors = read_described(described, arrays)
        weights = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
        model = run.models() if weights or not run.may_lack_models else None
        if model is not None:
            model.load_state_dict(weights)
        series = {name: tensor.numpy() for name, tensor in tensors.items() if not name.startswith("model.")}
        history = History(**from_arrays(content, series), settings=content["protocol"])
        _check_shapes(run, history)
        stored = content.get("certificates", {})  # not written before version 0.2
        certificates = {name: Certificates.from_json(each, run.repeats) for name, each in stored.items()}
        measured = {name: np.array(each, dtype=float) for name, each in content.get("measured", {}).items()}
        if any(each.shape != (run.repeats,) for each in measured.values()):
            raise ValueError("what was measured is not of every repeat")
        return Result(run, model, history, content["seconds"], content["environment"], certificates, measured)
    except DamagedFileError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, FileNotFoundError) as error:
        what = str(error).splitlines()[0] if str(error) else repr(error)
        raise DamagedFileError(f"{described}: is damaged ({what}); remove it, and the run is done again") from None


def _check_shapes(run: Run, history: History) -> None:
    """Raise ``ValueError`` unless a history has as many repeats and evaluations as its run."""
    evaluations = len(history.validation) if history.stopped else run.evaluations
    for name, length in (("loss", len(history)), ("validation", evaluations)):
        found = getattr(history, name).shape
        if found != (length, run.repeats):
            raise ValueError(f"{name} takes shape {(length, run.repeats)}, got {found}")
