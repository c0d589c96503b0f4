"""The options of ``anode reproduce``, each described once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anode.experiments.options import option


@dataclass(frozen=True)
class Settings:
    """What to reproduce.

    Attributes:
        figures: Names of studies of one half of the paper, or the name of a half for all of its studies.
        root: The folder of the image datasets, if it is not the default one.
        device: The torch device to train the image half on.
        cluster: The address of a Dask scheduler whose workers train the runs; by default, this machine does.
    """

    figures: Sequence[str] = ("toy",)
    out: Path | None = option(  # noqa: RUF009
        None, "Folder for the results.", "results/mine/toy, .../images, .../beyond or .../beyond-images"
    )
    repeats: int | None = option(
        None,
        "Repeats of every run, each with its own seed; a verdict on a claim takes at least 5.",
        "20; 5 for images and beyond-images, 2 at scale smoke",
    )
    scale: str | None = option(
        None,
        "Size of the image runs: smoke (a minute), small (hours), medium (a day) or paper.",
        "small; medium for beyond-images",
    )
    seed: int = option(0, "First random seed; the repeats use consecutive seeds.")
    resume: bool = option(True, "Reuse the finished runs in the folder, or train them again.")
    jobs: int | None = option(None, "Runs to train in parallel.", "one per core; 1 on a GPU")
    root: Path | None = None
    device: str = "cpu"
    epochs: int | None = option(
        None, "Epochs on each image dataset, except for the models that overfit.", "set by the scale"
    )
    cluster: str | None = None
