"""Kinds of data: built-in points and images, tables, folders of pictures. Only this module tells them apart."""

from __future__ import annotations

from pathlib import Path

from anode.checks import nearest
from anode.data.images import IMAGES as IMAGE_SETS
from anode.data.table_files import BUILT_IN, STANDARD_INPUT, SUFFIXES
from anode.data.toy import DATASETS

POINTS, IMAGES, TABLE, PICTURES = "points", "images", "table", "pictures"
FILES = (TABLE, PICTURES)
"""Kinds of data whose sizes are unknown before they are read."""


def kind_of(data: str) -> str:
    """Return the kind of data: by name for built-in data, by suffix for tables. Everything else is a folder."""
    if data in DATASETS:
        return POINTS
    if data in IMAGE_SETS:
        return IMAGES
    return TABLE if data in BUILT_IN or Path(data).suffix.lower() in SUFFIXES else PICTURES


def check_source(data: str) -> None:
    """Raise ``ValueError`` if the data do not exist. The message lists what exists and suggests the closest name."""
    kind, path = kind_of(data), Path(data)
    if data == STANDARD_INPUT:
        why = "to continue a run, the command reads the data again"
        raise ValueError(f"data: takes a file or a folder, got the standard input; save it to a file, because {why}")
    if kind != PICTURES or (data and path.is_dir()):
        return
    names = [*DATASETS, *IMAGE_SETS, *BUILT_IN]
    files = f"a file that ends in {', '.join(SUFFIXES)}; a folder of pictures with a folder for each class"
    got = f"the file {data!r}" if path.is_file() else f"{data!r}"
    hint = nearest(data, names, 0.65) or ("" if path.exists() else ", and there is no such file or folder")
    raise ValueError(f"data: takes one of {', '.join(names)}; {files}; got {got}{hint}")
