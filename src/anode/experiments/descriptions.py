"""The description of a run's data (``data.json``): everything about the data that predictions need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anode.data.encoding import Encoding
from anode.data.targets import Target
from anode.experiments.kinds import TABLE
from anode.experiments.options import Sizes
from anode.files import DamagedFileError
from anode.storage import read_json, write_sealed

FORMAT = "anode data 1"
NAME = "data.json"


@dataclass(frozen=True)
class Description:
    """Description of the data of a run.

    Attributes:
        kind: The kind of data, see :mod:`anode.experiments.kinds`.
        sizes: The sizes that the model is built from.
        classes: Names of the classes; empty for a regression.
        counts: Number of points or images for ``training``, ``validation`` and ``test``.
        frequencies: Number of training points or images per class.
        judged_by: The test set in words.
        notes: Lines for the user about what was done with the data.
        sha256: Checksum of the file or the pictures; empty for built-in data.
        encoding, target: How the columns of a table are used.
    """

    kind: str
    sizes: Sizes
    classes: tuple[str, ...]
    counts: dict[str, int]
    frequencies: tuple[int, ...]
    judged_by: str
    notes: tuple[str, ...] = ()
    sha256: str = ""
    encoding: Encoding | None = None
    target: Target | None = None

    def save(self, folder: Path) -> None:
        """Write the description to the folder of a run."""
        content = {
            "format": FORMAT,
            "kind": self.kind,
            "inputs": self.sizes.inputs,
            "outputs": self.sizes.outputs,
            "classes": self.classes,
            "counts": self.counts,
            "frequencies": self.frequencies,
            "judged_by": self.judged_by,
            "notes": self.notes,
            "sha256": self.sha256,
            "encoding": None if self.encoding is None else self.encoding.to_json(),
            "target": None if self.target is None else self.target.to_json(),
        }
        write_sealed(folder / NAME, content, indent=1)

    @classmethod
    def load(cls, folder: Path) -> Description:
        """Read the description from the folder of a run; raise ``DamagedFileError`` if it is damaged."""
        content = read_json(folder / NAME)
        try:
            if content["format"] != FORMAT:
                raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
            return _from_json(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = error if isinstance(error, ValueError) else repr(error)
            raise DamagedFileError(f"{folder / NAME}: is damaged ({why}); restore it, or train again") from None


def _from_json(content: dict[str, Any]) -> Description:
    inputs = content["inputs"]
    found = Description(
        kind=str(content["kind"]),
        sizes=Sizes(tuple(map(int, inputs)) if isinstance(inputs, list) else int(inputs), int(content["outputs"])),
        classes=tuple(map(str, content["classes"])),
        counts={name: int(content["counts"][name]) for name in ("training", "validation", "test")},
        frequencies=tuple(map(int, content["frequencies"])),
        judged_by=str(content["judged_by"]),
        notes=tuple(map(str, content["notes"])),
        sha256=str(content["sha256"]),
        encoding=None if content["encoding"] is None else Encoding.from_json(content["encoding"]),
        target=None if content["target"] is None else Target.from_json(content["target"]),
    )
    if found.kind == TABLE:
        if found.encoding is None or found.target is None:
            raise ValueError("it does not say how the columns are used")
        if found.encoding.width != found.sizes.inputs or found.target.classes != found.classes:
            raise ValueError("its columns do not belong to its model")
    if not found.classes and found.target is None:
        raise ValueError("it has no classes")
    if found.classes and len(found.frequencies) != len(found.classes):
        raise ValueError("its classes are not counted")
    return found


def check_same(folder: Path, now: Description) -> None:
    """Raise ``ValueError`` if the data have changed since the run in a folder was started."""
    if (folder / NAME).exists() and Description.load(folder).sha256 != now.sha256:
        raise ValueError(f"out: {folder} holds a run on other data, because the data have changed; pass a new folder")
