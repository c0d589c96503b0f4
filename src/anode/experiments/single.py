"""One model on one dataset: what ``anode train`` does and ``anode plot`` draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.ticker import MaxNLocator

from anode.data import toy
from anode.data.toy import Dataset
from anode.experiments.environment import environment
from anode.files import DamagedFileError, read_json, write_json
from anode.models.ensemble import seeded, unstack
from anode.models.nets import NeuralODE, ResNet
from anode.ode.inputs import lookup, number, require
from anode.ode.solution import SolveError
from anode.plots import curves, flows, style
from anode.train import checkpoint
from anode.train.fit import fit
from anode.train.history import Array, History
from anode.train.losses import LOSSES

FORMAT = "anode training 1"


@dataclass(frozen=True)
class Single:
    """What to train: the options of ``anode train``."""

    data: str
    model: str = "node"
    augment: int = 0
    hidden: int = 32
    layers: int | None = None
    activation: str = "relu"
    time: bool = True
    method: str = "dopri5"
    rtol: float = 1e-3
    atol: float = 1e-3
    step_size: float | None = None
    dim: int | None = None
    epochs: int = 50
    batch_size: int | None = None
    lr: float = 1e-3
    weight_decay: float = 0.0
    loss: str = "huber"
    validation: float = 0.0
    repeats: int = 1
    seed: int = 0

    def dataset(self, seed: int) -> Dataset:
        """The data that belongs to a seed."""
        lookup("data", self.data, toy.DATASETS)
        options = {} if self.dim is None else {"dim": self.dim}
        return toy.load(self.data, **options, seed=seed)

    def build(self, in_features: int) -> NeuralODE | ResNet:
        """A new model."""
        outputs = 2 if self.loss == "cross_entropy" else 1
        if lookup("model", self.model, {"node": True, "resnet": False}):
            solver: dict[str, Any] = {
                "method": self.method,
                "rtol": self.rtol,
                "atol": self.atol,
                "step_size": self.step_size,
            }
            return NeuralODE(
                in_features,
                outputs,
                self.hidden,
                augment=self.augment,
                layers=2 if self.layers is None else self.layers,
                time=self.time,
                activation=self.activation,
                **solver,
            )
        for name in ("augment", "time", "method", "rtol", "atol", "step_size"):
            value, default = getattr(self, name), Single.__dataclass_fields__[name].default
            require(value == default, name, value, f"{default} for a resnet, which has no flow")
        return ResNet(
            in_features, outputs, self.hidden, 5 if self.layers is None else self.layers, activation=self.activation
        )


def train_single(single: Single, folder: Path) -> History:
    """Train, and save model and history into a new folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"out: {folder} exists and is not an empty folder; give a new one")
    number("repeats", single.repeats, whole=True)
    number("seed", single.seed, whole=True, zero=True)
    require(0 <= single.validation < 1, "validation", single.validation, "a fraction from 0 to below 1")
    lookup("loss", single.loss, LOSSES)
    seeds = range(single.seed, single.seed + single.repeats)
    whole = [single.dataset(seed) for seed in seeds]
    kept = round(single.validation * len(whole[0]))
    fits = kept < len(whole[0]) and (kept > 0) == (single.validation > 0)
    require(
        fits, "validation", single.validation, f"a fraction that leaves some of {len(whole[0])} points on either side"
    )
    parts = []
    if single.validation:
        parts = [each.split(1 - single.validation, seed) for each, seed in zip(whole, seeds, strict=True)]
    data = [part[0] for part in parts] or whole
    model = seeded(lambda: single.build(whole[0].dim), seeds)
    if single.repeats == 1:
        model = unstack(model)[0]
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)  # before the work: if it cannot be made, nothing is lost
    try:
        history = fit(
            model,
            _targets(data, single),
            epochs=single.epochs,
            batch_size=min(64, len(data[0])) if single.batch_size is None else single.batch_size,
            lr=single.lr,
            weight_decay=single.weight_decay,
            loss=single.loss,
            validation=_targets([part[1] for part in parts], single) if parts else None,
            seed=single.seed,
        )
    except (ValueError, TypeError):  # a mistake in the options, found before training
        for each in new:
            each.rmdir()
        raise
    checkpoint.save(model, folder / "model")
    history.save(folder / "history.csv")
    history.save(folder / "history.json")
    write_json(
        folder / "run.json", {"format": FORMAT, "options": asdict(single), "environment": environment()}, indent=1
    )
    return history


def _targets(data: Sequence[Dataset], single: Single) -> Any:
    """The data as training takes it: with classes for cross entropy, and without a list for a single model."""
    if single.loss != "cross_entropy":
        return data[0] if single.repeats == 1 else data
    require(single.repeats == 1, "repeats", single.repeats, "1 beside --loss cross_entropy")
    return data[0].x, data[0].labels


@dataclass(frozen=True)
class Saved:
    """What ``anode train`` saved."""

    name: str
    single: Single
    model: Any
    history: History


def load_saved(folder: Path) -> Saved:
    """Read a folder of ``anode train``."""
    if not (folder / "run.json").is_file():
        raise ValueError(f"{folder}: is not a folder of anode train, it has no run.json")
    content = read_json(folder / "run.json")
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
        single = Single(**content["options"])
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{folder / 'run.json'}: is damaged ({error})") from None
    model, history = checkpoint.load(folder / "model"), History.load(folder / "history.json")
    model = model if model.members is None else unstack(model)[0]
    try:
        fits = repr(model) == repr(single.build(single.dataset(single.seed).dim))
    except (ValueError, TypeError):
        fits = False
    if not fits:
        raise DamagedFileError(f"{folder / 'run.json'}: its options do not belong to the model beside it")
    return Saved(str(folder), single, model, history)


def draw_saved(folders: Sequence[Path], picture: Path | None) -> Path:
    """Draw saved runs into one picture: losses, evaluations, and the flow of each."""
    runs = [load_saved(folder) for folder in folders]
    picture = picture or folders[0] / "plot.png"
    require(picture.suffix in (".png", ".svg", ".pdf"), "out", str(picture), "a name that ends in .png, .svg or .pdf")
    for folder, run in zip(folders, runs, strict=True):
        require(len(run.history) > 0, str(folder), "no iterations", "a run that was trained")
    flows_of = [(run, *flow) for run in runs if (flow := _paths(run)) is not None]
    columns = max(2, len(flows_of))
    three_d = [columns + i for i, (_, paths, _) in enumerate(flows_of) if paths.shape[2] >= 3]
    made = style.figure(4.0 * columns, 7.4 if flows_of else 3.7, 2 if flows_of else 1, columns, three_d=three_d)
    for ax, series in zip(made.axes, ("loss", "nfe"), strict=False):
        for run, color in zip(runs, cycle(curves.OTHER_COLORS), strict=False):
            values = run.history.per_epoch(series)
            if series == "nfe" and not values.any():
                continue  # a model without a solver
            curves.band(ax, np.arange(1, len(values) + 1), values.reshape(len(values), -1), _label(run), color)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set(xlabel="epoch", title={"loss": "training loss", "nfe": "function evaluations"}[series])
    style.legend(made.axes[0])
    for ax, (run, paths, labels) in zip(made.axes[columns:], flows_of, strict=False):
        ax.set_title(f"{_label(run)}: inputs to features")
        _draw_flow(ax, run, paths, labels)
    for ax in [*made.axes[2:columns], *made.axes[columns + len(flows_of) :]]:
        ax.remove()
    return style.save(made, picture.with_suffix(""), (picture.suffix[1:],))[0]


def _label(run: Saved) -> str:
    """The name of a run, of a long one its end, so that there is room for the picture."""
    return run.name if len(run.name) <= 30 else f"…{run.name[-29:]}"


@torch.no_grad()
def _paths(run: Saved) -> tuple[Array, Array] | None:
    """Trajectories of some of the points that a run was trained on, and their labels; ``None`` if there is no flow."""
    if run.single.model != "node":
        return None
    data = run.single.dataset(run.single.seed)
    if len(data) > 150:
        data, _ = data.split(150 / len(data))
    try:
        return run.model.flow.trajectory(data.x, 40).numpy(force=True), data.labels.numpy(force=True)
    except SolveError:
        return None  # training ended because of that


def _draw_flow(ax: Any, run: Saved, paths: Array, labels: Array) -> None:
    if paths.shape[2] == 1:
        flows.flow_1d(ax, np.linspace(0, 1, len(paths)), paths, labels)
    elif paths.shape[2] == 2:
        flows.flow_2d(ax, paths, labels)
    else:
        inputs = min(run.model.in_features, 3)
        flows.flow_3d(ax, flows.project_3d(paths, inputs), labels)
