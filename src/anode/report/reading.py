"""Reads results. Errors say in one line what is wrong and where."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from anode.files import DamagedFileError
from anode.storage import read_json

DASH = "\N{EN DASH}"
# A name of a study or an image. It cannot leave its folder and needs no quoting in a URL. It does not start with an
# underscore, so it cannot collide with the page's own anchors, which do.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# For each kind of file: its signature, and the offset and layout of its width and height.
IMAGES = {".png": (b"\x89PNG\r\n\x1a\n", 16, ">II"), ".gif": (b"GIF8", 6, "<HH")}


def require(condition: bool, where: str, problem: str) -> None:
    """Raise :class:`DamagedFileError` for a place in a file unless the condition holds."""
    if not condition:
        raise DamagedFileError(f"{where}: {problem}")


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number; Python's JSON reader also accepts NaN and infinity."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_path(path: Any) -> bool:
    """Return whether a value is a list of points in three dimensions."""
    points = path if isinstance(path, list) else []
    return bool(points) and all(isinstance(p, list) and len(p) == 3 and all(map(is_number, p)) for p in points)


class Record:
    """A JSON object that knows its place in a file, for error messages."""

    def __init__(self, where: str, content: Any) -> None:
        require(isinstance(content, dict), where, f"takes an object, got {shortened(content)}")
        self.where = where
        self.content: dict[str, Any] = content

    def get(self, key: str) -> Any:
        """Return the value of a required key."""
        require(key in self.content, self.where, f"has no {key!r}")
        return self.content[key]

    def check(self, condition: bool, key: str, takes: str) -> None:
        """Raise an error about the value of a key unless the condition holds."""
        require(condition, self.where, f"{key!r} takes {takes}, got {shortened(self.content[key])}")

    def text(self, key: str) -> str:
        """Return a text."""
        value = self.get(key)
        self.check(isinstance(value, str), key, "a text")
        return value

    def number(self, key: str) -> float:
        """Return a non-negative number; integers stay integers."""
        value = self.get(key)
        self.check(is_number(value) and value >= 0, key, "a number from 0")
        return value

    def items(self, key: str) -> list[Any]:
        """Return a list."""
        value = self.get(key)
        self.check(isinstance(value, list), key, "a list")
        return value

    def texts(self, key: str, usual: list[str]) -> list[str]:
        """Return a list of as many texts as ``usual`` has; ``usual`` itself if the key is missing."""
        if key not in self.content:
            return usual
        texts = self.items(key)
        right = len(texts) == len(usual) and all(isinstance(text, str) for text in texts)
        self.check(right, key, f"{len(usual)} texts")
        return texts

    def records(self, key: str) -> list[Record]:
        """Return a list of objects."""
        return [Record(f"{self.where}, {key}[{i}]", item) for i, item in enumerate(self.items(key))]

    def record(self, key: str) -> Record:
        """Return an object."""
        return Record(f"{self.where}, {key}", self.get(key))

    def shown(self, key: str) -> str:
        """Return a simple value as a table shows it; a missing value or ``None`` is a dash."""
        return cell(self.content.get(key), f"{self.where}, {key}")


def read(path: Path) -> Record:
    """Read a file that holds an object."""
    require(path.is_file(), str(path), "is missing; run anode reproduce again")
    return Record(str(path), read_json(path))


def study_names(results: Record) -> list[str]:
    """Return the names of the studies; each may be listed once."""
    names = results.items("studies")
    plain = all(isinstance(name, str) and NAME.fullmatch(name) for name in names)
    results.check(plain and len(set(names)) == len(names), "studies", "plain names without duplicates")
    return names


def read_study(folder: Path, name: str) -> Record:
    """Read the file of a study."""
    study = read(folder / f"{name}.json")
    require(study.text("id") == name, study.where, f"is about {shortened(study.text('id'))}, not {name!r}")
    return study


def image_path(folder: Path, name: Any, where: str) -> Path:
    """Return the path of an image, which must be in the folder."""
    plain = isinstance(name, str) and NAME.fullmatch(name) is not None
    require(plain, where, f"'images' takes plain file names, got {shortened(name)}")
    path = folder / name
    require(path.suffix in (*IMAGES, ".svg"), where, f"'images' takes .png, .gif and .svg files, got {name!r}")
    require(path.is_file(), where, f"names the image {name!r}, which is missing")
    return path


def cell(value: Any, where: str) -> str:
    """Return a value of a table as text."""
    if isinstance(value, list):
        return ", ".join(cell(item, where) for item in value) or DASH
    require(not isinstance(value, dict), where, f"takes a text or a number, got {shortened(value)}")
    if value is None or isinstance(value, bool):
        return {None: DASH, True: "yes", False: "no"}[value]
    return str(value)
