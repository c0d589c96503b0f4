"""Reading results, with complaints that say in one line what is wrong and where."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from anode.files import DamagedFileError, read_json

DASH = "\N{EN DASH}"
# A name of a study or an image: it cannot leave its folder, needs no quoting in an address, and since it does not start
# with an underscore, as the page's own anchors do, cannot be one of them.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# What a file of a kind starts with, and where and how its width and height are stored.
IMAGES = {".png": (b"\x89PNG\r\n\x1a\n", 16, ">II"), ".gif": (b"GIF8", 6, "<HH")}


def require(condition: bool, where: str, problem: str) -> None:
    """Raise :class:`DamagedFileError` about a place in a file unless the condition holds."""
    if not condition:
        raise DamagedFileError(f"{where}: {problem}")


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; Python's JSON reader lets others pass."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_path(path: Any) -> bool:
    """Whether something is a list of points in three dimensions."""
    points = path if isinstance(path, list) else []
    return bool(points) and all(isinstance(p, list) and len(p) == 3 and all(map(is_number, p)) for p in points)


class Record:
    """A JSON object that knows where it stands, so that what is wrong with it can be said in one line."""

    def __init__(self, where: str, content: Any) -> None:
        require(isinstance(content, dict), where, f"takes an object, got {shortened(content)}")
        self.where = where
        self.content: dict[str, Any] = content

    def get(self, key: str) -> Any:
        """What stands under a key, which must be there."""
        require(key in self.content, self.where, f"has no {key!r}")
        return self.content[key]

    def check(self, condition: bool, key: str, takes: str) -> None:
        """Complain about what stands under a key unless the condition holds."""
        require(condition, self.where, f"{key!r} takes {takes}, got {shortened(self.content[key])}")

    def text(self, key: str) -> str:
        """A text."""
        value = self.get(key)
        self.check(isinstance(value, str), key, "a text")
        return value

    def number(self, key: str) -> float:
        """A number from 0; a whole one stays whole."""
        value = self.get(key)
        self.check(is_number(value) and value >= 0, key, "a number from 0")
        return value

    def items(self, key: str) -> list[Any]:
        """A list."""
        value = self.get(key)
        self.check(isinstance(value, list), key, "a list")
        return value

    def texts(self, key: str, usual: list[str]) -> list[str]:
        """A list of texts, as many as the usual ones, which stand in where the key is missing."""
        if key not in self.content:
            return usual
        texts = self.items(key)
        right = len(texts) == len(usual) and all(isinstance(text, str) for text in texts)
        self.check(right, key, f"{len(usual)} texts")
        return texts

    def records(self, key: str) -> list[Record]:
        """A list of objects."""
        return [Record(f"{self.where}, {key}[{i}]", item) for i, item in enumerate(self.items(key))]

    def record(self, key: str) -> Record:
        """An object."""
        return Record(f"{self.where}, {key}", self.get(key))

    def shown(self, key: str) -> str:
        """A value of any simple kind, as it is shown in a table; nothing, or none at all, is a dash."""
        return cell(self.content.get(key), f"{self.where}, {key}")


def read(path: Path) -> Record:
    """A file that holds an object."""
    require(path.is_file(), str(path), "is missing; run anode reproduce again")
    return Record(str(path), read_json(path))


def study_names(results: Record) -> list[str]:
    """The studies, each of which may be listed once."""
    names = results.items("studies")
    plain = all(isinstance(name, str) and NAME.fullmatch(name) for name in names)
    results.check(plain and len(set(names)) == len(names), "studies", "plain names, none twice")
    return names


def read_study(folder: Path, name: str) -> Record:
    """The file of a study."""
    study = read(folder / f"{name}.json")
    require(study.text("id") == name, study.where, f"is about {shortened(study.text('id'))}, not {name!r}")
    return study


def image_path(folder: Path, name: Any, where: str) -> Path:
    """Where an image lies: in the folder, and nowhere else."""
    plain = isinstance(name, str) and NAME.fullmatch(name) is not None
    require(plain, where, f"'images' takes plain file names, got {shortened(name)}")
    path = folder / name
    require(path.suffix in (*IMAGES, ".svg"), where, f"'images' takes .png, .gif and .svg files, got {name!r}")
    require(path.is_file(), where, f"names the image {name!r}, which is missing")
    return path


def cell(value: Any, where: str) -> str:
    """A value of a table as text."""
    if isinstance(value, list):
        return ", ".join(cell(item, where) for item in value) or DASH
    require(not isinstance(value, dict), where, f"takes a text or a number, got {shortened(value)}")
    if value is None or isinstance(value, bool):
        return {None: DASH, True: "yes", False: "no"}[value]
    return str(value)
