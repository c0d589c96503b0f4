"""Training runs of the image half: one repeat after another, each of which can be resumed."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import torch
from torch import nn

from anode.data import images
from anode.data.images import SPLITS, ImageData
from anode.experiments.certificates import Certificates, certificates
from anode.experiments.environment import environment, together
from anode.experiments.runs import HERE, SOLVER, Place, Result, Run
from anode.files import DamagedFileError
from anode.models.ensemble import from_seed
from anode.models.nets import ImageNeuralODE
from anode.storage import read_json, write_json
from anode.train.checkpoint.folder import last_history
from anode.train.fit import fit
from anode.train.history import History
from anode.train.progress import Listener
from anode.train.record import EVALUATED, MOMENTS, OPTIONAL, SERIES, SHARED

WORTH_MEASURING = 1e10
"""Runs above this cost, which is about a second of training, get a forecast."""

EVALUATION = 0.22
"""The time to evaluate a batch, as a fraction of the time to train on it (0.19 to 0.24 for CIFAR-10's NODE)."""

PROBED = 64
"""Images in the iteration that a forecast is measured on. The time of an iteration is proportional to this number."""

USUAL_NFE = 20
"""Evaluations per solve after a little training; untrained models take fewer."""

CERTIFIED_IMAGES = 64
"""Number of test images that trained models are certified on; every repeat uses the same images."""

TIGHTEST = 1e-6
"""The tightest tolerance to try; float32 gains nothing from tighter ones.

Rounding does not decide: for MNIST's ANODE at the scale ``paper``, the reconstruction errors in float32 and in float64
agree to four digits at 1e-4, 3e-5 and 1e-5.
"""

RECENT = 50
"""The last iterations of an interrupted run, whose median time gives its forecast."""


@dataclass(frozen=True)
class ImageRun(Run):
    """A run on images.

    Attributes:
        data: One of the image datasets.
        side: Height and width that the images are resized to.
        train_size, test_size: Number of images used from each split; each repeat trains on its own subset.
        train_pool, test_pool: Number of images that these are drawn from; ``None`` for the official number.
        filters: Number of channels of the field's hidden layers.
        head_channels: Number of feature channels that the linear layer reads; ``None`` for all.
        evaluate_every: Iterations between evaluations on the test images; ``None`` for one per epoch.
    """

    name: str
    data: str
    side: int
    train_size: int
    test_size: int
    augment: int = 0
    filters: int = 64
    head_channels: int | None = None
    time: bool = True
    epochs: int = 50
    batch_size: int = 256
    lr: float = 1e-3
    weight_decay: float = 0.0
    max_steps: int = 1_000
    evaluate_every: int | None = None
    repeats: int = 5
    seed: int = 0
    train_pool: int | None = None
    test_pool: int | None = None

    skips_failures = True
    may_lack_models = True

    def check(self, root: Path | None) -> None:
        for split in SPLITS:
            images.require_files(self.data, split, root)

    def protocol(self) -> dict[str, Any]:
        """Return the protocol as JSON, without pools of the official size, which earlier versions do not have."""
        pools = ("train_pool", "test_pool")
        return {name: value for name, value in super().protocol().items() if value is not None or name not in pools}

    @property
    def label(self) -> str:
        return "ANODE" if self.augment else "NODE"

    @property
    def batches(self) -> int:
        """Iterations in an epoch."""
        return -(-self.train_size // self.batch_size)

    @property
    def cost(self) -> float:
        """Arithmetic of the field over all images and epochs; plain NODEs need more evaluations."""
        channels = images.IMAGES[self.data].shape[0] + self.augment
        pixel = 9 * self.filters**2 + 2 * channels * self.filters
        return self.repeats * self.epochs * self.train_size * self.side**2 * pixel * (1.0 if self.augment else 1.5)

    @property
    def evaluations(self) -> int:
        every = self.evaluate_every or self.batches
        return -(-self.epochs * self.batches // every)

    def described(self) -> dict[str, Any]:
        seen = "1 channel" if self.head_channels == 1 else f"{self.head_channels} channels"
        head = "" if self.head_channels is None else f", the linear layer sees {seen}"
        used = f"{self.counted('train')} images, {self.counted('test')} to test"
        return {
            "run": self.name,
            "data": f"{self.data}, {self.side}x{self.side}, {used}",
            "model": self.label + (f", p = {self.augment}" if self.augment else ""),
            "network": f"{self.filters} filters, time {'appended' if self.time else 'not used'}{head}",
            "parameters": f"{self.parameters:,}",
            "solver": SOLVER,
            "loss": "cross entropy",
            **self.training(),
        }

    def training(self) -> dict[str, Any]:
        decay = f", weight decay {self.weight_decay:g}" if self.weight_decay else ""
        told = super().training()
        return {**told, "optimiser": told["optimiser"] + decay}

    def counted(self, split: str) -> str:
        """Return the number of images used from a split, and the official number if it differs."""
        used, official = self.sizes[split], images.IMAGES[self.data].counts[split]
        return f"{used}" if used == official else f"{used} of {official}"

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images used from each split."""
        return {"train": self.train_size, "test": self.test_size}

    def with_data(self, root: Path | None) -> tuple[ImageRun, str]:
        return self.with_counts({split: images.count(self.data, split, root) for split in self.sizes})

    def with_counts(self, counts: Mapping[str, int]) -> tuple[ImageRun, str]:
        """Return the same as :meth:`with_data`, given the number of images of each split."""
        changes: dict[str, Any] = {}
        lacks = []
        for split, wanted in self.sizes.items():
            found, official = counts[split], images.IMAGES[self.data].counts[split]
            if found < wanted:
                changes[f"{split}_size"] = found
                meant = f"the official {wanted:,}" if wanted == official else f"the {wanted:,} of this scale"
                lacks.append(f"The {split} split of {self.data} used here has {found:,} images, not {meant}.")
            elif found < official:
                changes[f"{split}_pool"] = found
                drawn = f"{found:,} of the official {official:,} images, from which {wanted:,} are drawn"
                lacks.append(f"The {split} split of {self.data} used here has {drawn}.")
        return replace(self, **changes), " ".join(lacks)

    def build(self) -> ImageNeuralODE:
        """Return a new model."""
        source = images.IMAGES[self.data]
        return ImageNeuralODE(
            (source.shape[0], self.side, self.side),
            source.classes,
            self.filters,
            augment=self.augment,
            time=self.time,
            head_channels=self.head_channels,
            max_steps=self.max_steps,
        )

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        with torch.device("meta"):
            return sum(p.numel() for p in self.build().parameters())

    def models(self) -> nn.ModuleList:
        return nn.ModuleList(from_seed(self.build, seed) for seed in self.seeds)

    def forecast(self, folder: Path, place: Place = HERE) -> float | None:
        if self.cost < WORTH_MEASURING:
            return None
        iterations, looks = self.epochs * self.batches, self.evaluations * -(-self.test_size // self.batch_size)
        begun = [history for seed in self.seeds if (history := last_history(self.unfinished(folder, seed)))]
        done = sum(map(len, begun))
        recent = [np.median(history.seconds[-RECENT:]) for history in begun]  # a pause is one very long iteration
        each = float(recent[-1]) if recent else self.measured(place)
        left = 1 - done / (self.repeats * iterations)
        return each * self.repeats * left * (iterations + EVALUATION * looks)

    def parts(self) -> list[ImageRun]:
        return [replace(self, repeats=1, seed=seed) for seed in self.seeds] if self.repeats > 1 else []

    def measured(self, place: Place) -> float:
        """Return the seconds of a training iteration, measured on a few images and an untrained model.

        On a CPU this is processor time: one iteration is too short to see the share that other programs take.
        """
        clock = time.process_time if place.device == "cpu" else time.perf_counter
        threads = torch.get_num_threads() if place.device == "cpu" else 1
        model = from_seed(self.build, self.seed).to(place.device)
        size = min(PROBED, self.batch_size)
        x = images.load(self.data, "train", place.root).subset(size).resize(self.side).scaled().to(place.device)
        seconds, nfe = 0.0, USUAL_NFE
        for _ in range(2):  # the first one allocates memory and prepares the engine
            start = clock()
            outcome = model.run(x)
            outcome.prediction.logsumexp(1).mean().backward()
            if x.is_cuda:
                torch.cuda.synchronize(x.device)
            assert outcome.solution is not None, "the model has one"
            seconds, nfe = (clock() - start) / threads, int(outcome.solution.stats.nfe)
        return seconds * self.batch_size / size * max(1.0, USUAL_NFE / nfe)

    def unfinished(self, folder: Path, seed: int) -> Path:
        """Return the checkpoint folder of a repeat."""
        return folder / f"{self.name}.part" / f"seed-{seed}"

    def train(self, tell: Listener | None, folder: Path, place: Place = HERE) -> Result:
        start = time.perf_counter()
        train, test = (images.load(self.data, split, place.root) for split in ("train", "test"))
        test = test.subset(self.test_size).resize(self.side)
        histories, models = [], []
        for i, seed in enumerate(self.seeds):
            model = from_seed(self.build, seed).to(place.device)
            kept = self.unfinished(folder, seed)  # fit refuses checkpoints of another protocol
            if not self.is_complete(kept):
                self.note_environment(folder, seed)
            histories.append(self.train_one(model, seed, train, test, later(tell, i, self.repeats), kept))
            models.append(model)
        seconds = sum(float(history.seconds.sum()) for history in histories)
        spent = max(time.perf_counter() - start, seconds)  # includes earlier calls that were interrupted
        environments = together([each for seed in self.seeds for each in self.environments(folder, seed)])
        return Result(self, nn.ModuleList(models).cpu(), side_by_side(histories), spent, environments)

    def is_complete(self, checkpoint: Path) -> bool:
        """Whether a repeat has been trained to the end."""
        history = last_history(checkpoint)
        return history is not None and len(history) == self.epochs * self.batches

    def environments(self, folder: Path, seed: int) -> list[dict[str, Any]]:
        """Return the environments in which a repeat was trained so far."""
        path = self.unfinished(folder, seed).with_suffix(".json")
        found = read_json(path) if path.exists() else [environment()]
        if not (isinstance(found, list) and all(isinstance(each, dict) for each in found)):
            raise DamagedFileError(f"{path}: is damaged; remove it or restore it")
        return found

    def note_environment(self, folder: Path, seed: int) -> None:
        """Add the environment of this process to those of a repeat."""
        noted, here = self.environments(folder, seed), environment()
        everything = noted if here in noted else [*noted, here]
        write_json(self.unfinished(folder, seed).with_suffix(".json"), everything, indent=1)

    def certify(self, result: Result, place: Place = HERE) -> dict[str, Certificates]:
        test = images.load(self.data, "test", place.root).subset(self.test_size).resize(self.side)
        x = test.subset(min(CERTIFIED_IMAGES, len(test))).scaled().to(place.device)
        flows = (copy.deepcopy(model.flow).to(place.device) for model in result.model)
        return {"last": certificates(flows, [x] * self.repeats, TIGHTEST)}

    def train_one(
        self,
        model: ImageNeuralODE,
        seed: int,
        train: ImageData,
        test: ImageData,
        tell: Listener | None,
        checkpoint: Path,
    ) -> History:
        """Train one repeat, or resume it."""
        data = train.subset(self.train_size, seed).resize(self.side)
        history = fit(
            model,
            data,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            weight_decay=self.weight_decay,
            loss="cross_entropy",
            validation=test,
            evaluate_every=self.evaluate_every,
            on_failure="skip",
            seed=seed,
            checkpoint=checkpoint,
            progress=tell or False,
        )
        if history.stopped == "interrupted":
            raise KeyboardInterrupt
        return history

    def clean(self, folder: Path) -> None:
        rmtree(folder / f"{self.name}.part", ignore_errors=True)


def later(tell: Listener | None, repeat: int, repeats: int) -> Listener | None:
    """Return a listener for one of several repeats, which reports the progress of all."""
    if tell is None:
        return None
    return lambda report: tell(replace(report, done=repeat * report.total + report.done, total=repeats * report.total))


def side_by_side(histories: Sequence[History]) -> History:
    """Combine histories of single models of the same length into the history of a stack."""
    names = [*SERIES, *OPTIONAL, *EVALUATED]
    series: dict[str, Any] = {name: np.stack([getattr(history, name) for history in histories], 1) for name in names}
    series |= {name: sum(getattr(history, name) for history in histories) for name in SHARED}
    series |= {name: getattr(histories[0], name) for name in MOMENTS}
    failures = [replace(failure, member=i) for i, history in enumerate(histories) for failure in history.failures]
    return History(**series, batches=histories[0].batches, failures=failures)
