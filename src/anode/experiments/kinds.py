"""Which kind of data a name, a file or a folder is: the only place that decides it."""

from __future__ import annotations

from pathlib import Path

from anode.checks import nearest
from anode.data.images import IMAGES as IMAGE_SETS
from anode.data.table_files import BUILT_IN, SUFFIXES
from anode.data.toy import DATASETS

POINTS, IMAGES, TABLE, PICTURES = "points", "images", "table", "pictures"
FILES = (TABLE, PICTURES)
"""The kinds of data that have to be read to know what is in them."""


def kind_of(data: str) -> str:
    """Return the kind of some data: a name has its kind, a file that of its suffix, and the rest are folders."""
    if data in DATASETS:
        return POINTS
    if data in IMAGE_SETS:
        return IMAGES
    return TABLE if data in BUILT_IN or Path(data).suffix.lower() in SUFFIXES else PICTURES


def check_source(data: str) -> None:
    """Raise ``ValueError`` unless there is such data, with all that there is and the name that is most like it."""
    kind, path = kind_of(data), Path(data)
    if kind != PICTURES or path.is_dir():
        return
    names = [*DATASETS, *IMAGE_SETS, *BUILT_IN]
    files = f"a file that ends in {', '.join(SUFFIXES)}; a folder of pictures with a folder for each class"
    got = f"the file {data!r}" if path.exists() else f"{data!r}"
    hint = nearest(data, names, 0.65) or ("" if path.exists() else ", and there is no such file or folder")
    raise ValueError(f"data: takes one of {', '.join(names)}; {files}; got {got}{hint}")
