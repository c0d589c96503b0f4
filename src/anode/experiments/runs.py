"""Training runs: protocols, results, and results on disk."""

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
from anode.files import DamagedFileError
from anode.models.ensemble import unstack
from anode.models.model import Model
from anode.storage import read_described, read_json, write_described
from anode.train.formats import as_list, from_arrays, to_arrays
from anode.train.history import History
from anode.train.progress import Listener
from anode.train.record import Array

FORMAT = "anode run 1"
SOLVER = "dopri5, rtol = atol = 1e-3"
"""The paper's solver, in words."""


@dataclass(frozen=True)
class Place:
    """Where runs are trained. It does not change their results.

    Attributes:
        root: The folder of the image datasets; ``None`` for the default folder.
        device: The torch device to train on.
    """

    root: Path | None = None
    device: str = "cpu"


HERE = Place()
"""The default place."""


class Run(ABC):
    """The protocol of a training run: everything its result depends on. Subclasses are frozen dataclasses.

    Attributes:
        name: The name of the run, also on disk.
        augment: Number of added dimensions or channels.
        epochs: Number of epochs.
        batch_size: Batch size of each repeat.
        lr: Learning rate of Adam.
        repeats: Number of repeats. Each has its own seed for data, weights and order of the data.
        seed: The first seed.
    """

    name: str
    augment: int
    epochs: int
    batch_size: int
    lr: float
    repeats: int
    seed: int

    def protocol(self) -> dict[str, Any]:
        """Return the protocol as JSON."""
        return asdict(self)  # type: ignore[call-overload]

    @property
    def seeds(self) -> range:
        """The seed of every repeat."""
        return range(self.seed, self.seed + self.repeats)

    @property
    @abstractmethod
    def label(self) -> str:
        """The paper's name of the model."""

    @property
    @abstractmethod
    def cost(self) -> float:
        """Relative training time; the longest runs start first."""

    @property
    @abstractmethod
    def evaluations(self) -> int:
        """Number of evaluations of the validation set in a complete run; 0 without one."""

    skips_failures = False
    """Whether failed iterations are skipped, so that every repeat is trained to the end."""

    may_lack_models = False
    """Whether results without weights, from earlier versions, are accepted."""

    def check(self, root: Path | None) -> None:  # noqa: B027, most runs need nothing
        """Raise an error if data that the run needs is missing.

        Args:
            root: The folder of the datasets; ``None`` for the default folder.
        """

    def with_data(self, root: Path | None) -> tuple[Run, str]:
        """Return the run on the data that is available, and in words what is missing; empty if nothing is.

        Args:
            root: The folder of the datasets; ``None`` for the default folder.
        """
        return self, ""

    def forecast(self, folder: Path, place: Place = HERE) -> float | None:
        """Return about how many more seconds the run takes; ``None`` if it is too short for a forecast.

        Args:
            folder: The folder of its checkpoints.
            place: Where it is trained.
        """
        return None

    def parts(self) -> Sequence[Run]:
        """Return parts that can be trained separately, in any order, before :meth:`train` combines them.

        A part leaves checkpoints in the folder, from which :meth:`train` of the whole run continues. By default, a run
        has no parts.
        """
        return ()

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Return the protocol in words, for the report."""

    def training(self) -> dict[str, Any]:
        """Return how the run is trained, in words, for the report."""
        return {
            "optimiser": f"Adam, {self.lr:g}",
            "batch size": self.batch_size,
            "epochs": self.epochs,
            "repeats": self.repeats,
            "seeds": f"{self.seeds[0]} to {self.seeds[-1]}",
        }

    @abstractmethod
    def train(self, tell: Listener | None, folder: Path, place: Place = HERE) -> Result:
        """Train the run; raises ``KeyboardInterrupt`` if interrupted. The folder may keep checkpoints."""

    def certify(self, result: Result, place: Place = HERE) -> dict[str, Certificates]:
        """Certify the models of a result; empty if no claim is about their evaluations."""
        return {}

    def clean(self, folder: Path) -> None:  # noqa: B027, most runs keep nothing
        """Remove the checkpoints that :meth:`train` kept."""

    @abstractmethod
    def models(self) -> Model | nn.ModuleList | None:
        """Return the untrained models, stacked or as a list; ``None`` if results do not keep models."""


@dataclass
class Result:
    """The result of a run.

    Attributes:
        run: The protocol.
        model: The trained models, stacked or as a list; ``None`` if they were not kept.
        history: The training history. Its snapshots are those of the typical repeat.
        seconds: Elapsed time of training, which includes pauses of the process.
        environment: Versions and machine.
        certificates: Certificates of the models after the last epoch (``"last"``) and, in the toy half, after the first
            (``"first"``); empty if the models were not certified.
        measured: What else was measured of the final models, by name: a number for each repeat, NaN if it has none.
    """

    run: Any  # a Run; studies and claims know its class
    model: Any
    history: History
    seconds: float
    environment: dict[str, Any] = field(default_factory=dict)
    certificates: dict[str, Certificates] = field(default_factory=dict)
    measured: dict[str, Array] = field(default_factory=dict)

    @property
    def final_loss(self) -> Array:
        """Mean loss of each repeat over the last epoch; NaN if it failed or skipped the last tenth of training."""
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
        """Validation loss at each evaluation, [evaluations, repeats]; NaN after a repeat failed."""
        return _padded(self.history.validation, self.run.evaluations)

    def per_epoch(self, series: str) -> Array:
        """Return the mean of a series over each epoch, [epochs, repeats]; NaN after a repeat failed."""
        lost = np.isnan(self.history.per_epoch("loss"))
        return _padded(np.where(lost, np.nan, self.history.per_epoch(series)), self.run.epochs)

    @property
    def typical(self) -> int:
        """The repeat with the median final loss, which figures draw."""
        return middle(self.final_loss)

    @property
    def trained(self) -> NDArray[np.bool_]:
        """Whether each repeat was trained to the end."""
        return np.isfinite(self.final_loss)

    @property
    def best(self) -> int:
        """The repeat with the lowest final loss."""
        return int(np.argsort(self.final_loss)[0])  # NaN comes last

    def member(self, index: int) -> Any:
        """Return the model of one repeat."""
        return self.model[index] if isinstance(self.model, nn.ModuleList) else unstack(self.model)[index]


def middle(values: Array) -> int:
    """Return the repeat with the median value, or the lower one of two; NaN counts as highest."""
    order = np.argsort(values)  # NaN comes last
    return int(order[max(np.isfinite(values).sum() - 1, 0) // 2])


def _padded(values: Array, length: int) -> Array:
    """Pad values with NaN for epochs that never started because every repeat had failed."""
    return np.pad(values, ((0, length - len(values)), (0, 0)), constant_values=np.nan)


# ------------------------------------------------------------------------------------------------------------- on disk


def paths(run: Run, folder: Path) -> tuple[Path, Path]:
    """Return the two files of a run: a readable description, and arrays."""
    return folder / f"{run.name}.json", folder / f"{run.name}.safetensors"


def save(result: Result, folder: Path) -> None:
    """Write a result. The JSON file is written last: if it exists, the result is complete."""
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


def certify(result: Result, folder: Path, place: Place = HERE) -> None:
    """Certify the models of a saved result that has no certificates, and save it again."""
    if result.model is not None and not result.certificates:
        result.certificates = result.run.certify(result, place)
        if result.certificates:
            save(result, folder)


def load(run: Run, folder: Path) -> Result | None:
    """Read a result; ``None`` if there is none of this protocol. Raises ``DamagedFileError`` if it is damaged."""
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
        stored = content.get("certificates", {})  # absent before version 0.2
        certificates = {name: Certificates.from_json(each, run.repeats) for name, each in stored.items()}
        measured = {name: np.array(each, dtype=float) for name, each in content.get("measured", {}).items()}
        if any(each.shape != (run.repeats,) for each in measured.values()):
            raise ValueError("what was measured is not of every repeat")
        return Result(run, model, history, content["seconds"], content["environment"], certificates, measured)
    except DamagedFileError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, FileNotFoundError) as error:
        what = str(error).splitlines()[0] if str(error) else repr(error)
        raise DamagedFileError(f"{described}: is damaged ({what}); remove it to train the run again") from None


def _check_shapes(run: Run, history: History) -> None:
    """Raise ``ValueError`` unless a history has the repeats and evaluations of its run."""
    evaluations = len(history.validation) if history.stopped else run.evaluations
    for name, length in (("loss", len(history)), ("validation", evaluations)):
        found = getattr(history, name).shape
        if found != (length, run.repeats):
            raise ValueError(f"{name} takes shape {(length, run.repeats)}, got {found}")
