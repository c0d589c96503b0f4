"""Training runs: their protocols as data, the training itself, and their results on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anode.data import toy
from anode.data.toy import Dataset
from anode.experiments.environment import environment
from anode.files import DamagedFileError, read_json, read_tensors, write_json, write_tensors
from anode.models.ensemble import seeded, unstack
from anode.models.fields import MLPField
from anode.models.flow import Flow
from anode.models.model import Model
from anode.models.nets import NeuralODE, ResNet
from anode.train.fit import Snapshots, fit
from anode.train.history import SERIES, SHARED, Array, Failure, History, Snapshot
from anode.train.progress import Listener

FORMAT = "anode run 1"
MODELS: dict[str, Callable[[Run], Model]] = {
    "ResNet": lambda run: ResNet(run.dim, 1, run.hidden, run.layers),
    "NODE": lambda run: NeuralODE(run.dim, 1, run.hidden, augment=run.augment),
    "flow": lambda run: Flow(MLPField(run.dim, run.hidden)),
}
SNAPSHOT_POINTS = 400
TRAIN_POINTS, VALIDATION_POINTS = 2000, 800
"""With slices held out: a little less than the 2100 and 900 that are to be expected outside and inside of three."""


@dataclass(frozen=True)
class Run:
    """The protocol of a training run: everything its result depends on. The defaults are the paper's best settings.

    Attributes:
        name: What the run is called, here and on disk.
        data: One of the toy datasets.
        dim: Its dimension.
        model: ``"NODE"`` (augmented if ``augment`` is above 0), ``"ResNet"``, or ``"flow"``, which has no linear layer.
        layers: Of a ResNet.
        slices: How many random slices of the plane, each a tenth of it, are kept from training, for validation.
        snapshots: At how many moments the features are recorded, closer together in the beginning, where most happens.
        repeats: How many times everything is done, from other seeds: data, weights and order of the data.
        seed: The first of the seeds.
    """

    name: str
    data: str
    dim: int
    model: str
    augment: int = 0
    hidden: int = 32
    layers: int = 5
    epochs: int = 50
    batch_size: int = 64
    lr: float = 1e-3
    loss: str = "huber"
    slices: int = 0
    snapshots: int = 0
    repeats: int = 20
    seed: int = 0

    @property
    def seeds(self) -> range:
        """The seed of every repeat."""
        return range(self.seed, self.seed + self.repeats)

    @property
    def label(self) -> str:
        """The model's name as the paper has it."""
        return "ANODE" if self.augment else "NODE" if self.model == "flow" else self.model

    def described(self) -> dict[str, Any]:
        """The protocol in words, for the report."""
        network = f"{self.hidden} hidden units"
        if self.model == "ResNet":
            network += f", {self.layers} layers"
        data = self.data if self.data.endswith("1d") else f"{self.data}, d = {self.dim}"
        return {
            "run": self.name,
            "data": data + (f", {self.slices} slices held out" if self.slices else ""),
            "model": self.label + (f", p = {self.augment}" if self.augment else ""),
            "network": network,
            "solver": "none" if self.model == "ResNet" else "dopri5, rtol = atol = 1e-3",
            "loss": self.loss,
            "optimiser": f"Adam, {self.lr:g}",
            "batch size": self.batch_size,
            "epochs": self.epochs,
            "repeats": self.repeats,
            "seeds": f"{self.seeds[0]} to {self.seeds[-1]}",
        }

    def datasets(self) -> tuple[list[Dataset], list[Dataset] | None]:
        """The training set of every repeat, and the validation set if slices are held out."""
        options = {"dim": self.dim} if self.data in ("g", "separable") else {}
        whole = [toy.load(self.data, **options, seed=seed) for seed in self.seeds]
        if not self.slices:
            return whole, None
        parts = [each.holdout(toy.slices(self.slices, seed=seed)) for each, seed in zip(whole, self.seeds, strict=True)]
        train, validation = TRAIN_POINTS, VALIDATION_POINTS
        return [_some(part[0], train) for part in parts], [_some(part[1], validation) for part in parts]


def _some(data: Dataset, size: int) -> Dataset:
    """So many random points: repeats can be trained together if their data are of one size."""
    return data.split(size / len(data))[0]


@dataclass
class Result:
    """What came of a run.

    Attributes:
        run: The protocol.
        model: The trained models, stacked.
        history: What happened. Its snapshots are those of one repeat, the typical one.
        seconds: How long it took.
    """

    run: Run
    model: Model
    history: History
    seconds: float
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def final_loss(self) -> Array:
        """The mean loss of each repeat over the last epoch; NaN for one that failed."""
        return self.per_epoch("loss")[-1]

    @property
    def validation(self) -> Array:
        """The validation loss after each epoch, [epochs, repeats]; NaN from where a repeat failed."""
        return self._of_all_epochs(self.history.validation)

    def per_epoch(self, series: str) -> Array:
        """The mean of a series over each epoch, [epochs, repeats]; NaN from where a repeat failed."""
        lost = np.isnan(self.history.per_epoch("loss"))
        return self._of_all_epochs(np.where(lost, np.nan, self.history.per_epoch(series)))

    def _of_all_epochs(self, values: Array) -> Array:
        """Also of those that were not begun, because every repeat had failed."""
        return np.pad(values, ((0, self.run.epochs - len(values)), (0, 0)), constant_values=np.nan)

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
        return unstack(self.model)[index]


def train(run: Run, tell: Listener | None) -> Result:
    """Do a run; ``KeyboardInterrupt`` if it was interrupted."""
    start = time.perf_counter()
    data, validation = run.datasets()
    model = seeded(lambda: MODELS[run.model](run), run.seeds)
    snapshots = None
    if run.snapshots:
        iterations = run.epochs * -(-len(data[0]) // run.batch_size)
        at = (iterations * np.linspace(0, 1, run.snapshots) ** 2).round().astype(int).tolist()
        snapshots = Snapshots(snapshot_points(run)[0], at)
    history = fit(
        model,
        data,
        epochs=run.epochs,
        batch_size=run.batch_size,
        lr=run.lr,
        loss=run.loss,
        validation=validation,
        seed=run.seeds,
        snapshots=snapshots,
        progress=tell or False,
    )
    if history.stopped == "interrupted":
        raise KeyboardInterrupt
    result = Result(run, model, history, time.perf_counter() - start, environment())
    one = result.typical
    history.snapshots = [replace(s, features=s.features[one], nfe=s.nfe[one]) for s in history.snapshots]
    return result


def snapshot_points(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """The points whose features are recorded during a run, and their labels."""
    data, _ = toy.load(run.data, dim=run.dim, seed=run.seed).split(SNAPSHOT_POINTS / 3000, seed=run.seed)
    return data.x, data.labels


# ------------------------------------------------------------------------------------------------------------- on disk


def paths(run: Run, folder: Path) -> tuple[Path, Path]:
    """The two files of a run: what can be read, and arrays."""
    return folder / f"{run.name}.json", folder / f"{run.name}.safetensors"


def save(result: Result, folder: Path) -> None:
    """Write a result. The readable file is written last: where it is, the result is complete."""
    described, arrays = paths(result.run, folder)
    history = result.history
    tensors = {f"model.{name}": p for name, p in result.model.state_dict().items()}
    for name in (*SERIES, *SHARED, "validation"):
        tensors[f"history.{name}"] = torch.from_numpy(_narrow(getattr(history, name)))
    for i, snapshot in enumerate(history.snapshots):
        tensors[f"snapshot.{i}"] = torch.from_numpy(snapshot.features)
    write_tensors(arrays, tensors)
    content = {
        "format": FORMAT,
        "protocol": asdict(result.run),
        "environment": result.environment,
        "seconds": round(result.seconds, 2),
        "batches": history.batches,
        "failures": [asdict(failure) for failure in history.failures],
        "stopped": history.stopped,
        "snapshots": [{"iteration": s.iteration, "nfe": int(s.nfe)} for s in history.snapshots],
        "final loss": [None if np.isnan(value) else round(float(value), 6) for value in result.final_loss],
    }
    write_json(described, content, indent=1)


def _narrow(values: Array) -> Array:
    """Whole numbers in the smallest type that holds them."""
    if values.dtype.kind != "i" or not values.size:
        return values
    types = (np.int8, np.int16, np.int32, np.int64)
    return values.astype(next(t for t in types if values.max() <= np.iinfo(t).max))  # none is below 0


def load(run: Run, folder: Path) -> Result | None:
    """Read a result; ``None`` if there is none of exactly this protocol, ``DamagedFileError`` if it is damaged."""
    described, arrays = paths(run, folder)
    if not described.exists():
        return None
    content = read_json(described)
    try:
        if content["format"] != FORMAT or content["protocol"] != asdict(run):
            return None
        tensors = read_tensors(arrays)
        model = seeded(lambda: MODELS[run.model](run), run.seeds)
        model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
        types: dict[str, Any] = {**SERIES, **SHARED, "validation": np.float32}
        series: dict[str, Any] = {n: tensors[f"history.{n}"].numpy().astype(dtype) for n, dtype in types.items()}
        history = History(
            **series,
            batches=content["batches"],
            failures=[Failure(**failure) for failure in content["failures"]],
            stopped=content["stopped"],
            snapshots=[
                Snapshot(s["iteration"], tensors[f"snapshot.{i}"].numpy(), np.asarray(s["nfe"]))
                for i, s in enumerate(content["snapshots"])
            ],
            settings=content["protocol"],
        )
        _check_shapes(run, history)
        return Result(run, model, history, content["seconds"], content["environment"])
    except (KeyError, TypeError, RuntimeError, FileNotFoundError) as error:
        what = str(error).splitlines()[0] if str(error) else repr(error)
        raise DamagedFileError(f"{described}: is damaged ({what}); remove it, and the run is done again") from None


def _check_shapes(run: Run, history: History) -> None:
    iterations = len(history.loss)
    shapes = dict.fromkeys(SERIES, (iterations, run.repeats)) | dict.fromkeys(SHARED, (iterations,))
    shapes["validation"] = (history.epochs if run.slices and not history.stopped else 0, run.repeats)
    for name, shape in shapes.items():
        found = getattr(history, name).shape
        if found != shape and not (name == "validation" and history.stopped):
            raise TypeError(f"{name} takes shape {shape}, got {found}")
