"""Search spaces: the paper's grids, or your own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from anode.checks import lookup, number, require
from anode.storage import read_json

Space = Mapping[str, Sequence[float]]
"""The values of each hyperparameter."""

COMMON: dict[str, tuple[float, ...]] = {"batch_size": (64, 128), "lr": (1e-3, 5e-4, 1e-4), "hidden": (16, 32)}
PAPER_GRIDS: dict[str, Space] = {
    "ResNet": {**COMMON, "layers": (2, 5, 10)},
    "NODE": COMMON,
    "ANODE": {**COMMON, "augment": (1, 2, 5)},
}
"""The paper's grids, with 36, 12 and 36 settings."""


@dataclass(frozen=True)
class Setting:
    """One setting: a point of a search space.

    Attributes:
        model: ``"ResNet"``, ``"NODE"`` or ``"ANODE"``.
        layers: Layers of a ResNet; 0 for the others.
        augment: Added dimensions of an ANODE; 0 for the others.
    """

    model: str
    batch_size: int
    lr: float
    hidden: int
    layers: int = 0
    augment: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in self.searched.items())

    @property
    def searched(self) -> dict[str, float]:
        """The hyperparameters that this model has."""
        return {name: value for name, value in asdict(self).items() if name in PAPER_GRIDS[self.model]}


PAPERS_BEST = {
    "ResNet": Setting("ResNet", 64, 1e-3, 32, layers=5),
    "NODE": Setting("NODE", 64, 1e-3, 32),
    "ANODE": Setting("ANODE", 64, 1e-3, 32, augment=5),
}
"""The paper's best settings, the same for d = 1 and d = 2."""


def settings(model: str, space: Space) -> Iterator[Setting]:
    """Yield all settings of a search space."""
    for values in product(*space.values()):
        yield Setting(model, **dict(zip(space, values, strict=True)))  # type: ignore[arg-type]


def complete_spaces(spaces: Any) -> dict[str, Space]:
    """Return search spaces by model, with the paper's values as defaults; raises ``ValueError`` if they are invalid."""
    if not isinstance(spaces, Mapping) or not spaces:
        raise ValueError(f"grid: takes a table of models, such as {{'NODE': {{'lr': [0.001], ...}}}}, got {spaces!r}")
    for model, space in spaces.items():
        known = lookup("grid", model, PAPER_GRIDS)
        require(isinstance(space, Mapping), f"grid, {model}", space, "a table of hyperparameters")
        for name, values in space.items():
            lookup(f"grid, {model}", name, dict(known))
            of = f"grid, {model}, {name}"
            require(isinstance(values, Sequence) and len(values) > 0, of, values, "a list of at least one number")
            require(not isinstance(values, str), of, values, "a list of numbers")
            for value in values:
                number(of, value, whole=name != "lr", finite=True)
            require(len(set(values)) == len(values), of, list(values), "different numbers")
    return {
        model: {name: tuple(space.get(name, known)) for name, known in PAPER_GRIDS[model].items()}
        for model, space in spaces.items()
    }


def read(path: Path) -> dict[str, Space]:
    """Read search spaces from a JSON file."""
    return complete_spaces(read_json(path))
