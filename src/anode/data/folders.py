"""Folders of pictures: one folder per class, or ``train`` and ``test`` with one folder per class each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from anode.checks import number, require
from anode.data.images import SPLITS, ImageData
from anode.extras import needs

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg")
OTHER_SPLITS = ("val", "valid", "validation", "dev")
"""Names of folders that are splits elsewhere, and hardly classes."""
LARGEST = 64
"""Largest height and width of pictures of one size that are not resized by default."""
SMALL = 32
"""Height and width that other pictures are resized to by default."""
MOST_BYTES = 2**31
"""Largest size of all pictures in memory."""
GREY, COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
"""Pillow's names for pictures of 8 bits per value."""
ORIENTATION, ON_THEIR_SIDE = 0x0112, (5, 6, 7, 8)
"""Where EXIF data say how the camera was held, and the values for pictures whose width is stored as their height."""

Tell = Callable[[int], None]
"""Called with the number of pictures read since the last call."""


@dataclass(frozen=True)
class Pictures:
    """The pictures of a folder.

    Attributes:
        train: Pictures to train on.
        test: Pictures of the folder ``test``; ``None`` if there is no such folder.
        classes: Names of the classes.
        sha256: Checksum of all pixels and labels.
        notes: Lines for the user about what was done with the pictures.
    """

    train: ImageData
    test: ImageData | None
    classes: tuple[str, ...]
    sha256: str
    notes: tuple[str, ...]


def read_pictures(folder: str | Path, side: int | None = None, tell: Tell | None = None) -> Pictures:
    """Read a folder of pictures into memory.

    Args:
        folder: Contains one folder of PNG and JPEG files per class, or ``train`` and ``test`` that do. Hidden files and
            folders are ignored.
        side: Height and width to resize to. By default, pictures of one size of at most 64 are not resized, and others
            are resized to 32.
        tell: Called with the number of pictures read since the last call.

    Raises:
        ValueError: The folder contains something else. The message says what to do.
    """
    needs("reading pictures", "plots", "pillow")
    root = Path(folder)
    found, ignored = _by_class(root)
    classes = tuple(sorted({name for _, name, _ in found}))
    _check_classes(root, found, classes)
    shape, notes = _shape([path for path, _, _ in found], number("side", side, whole=True, optional=True), len(found))
    images = torch.empty((len(found), *shape), dtype=torch.uint8)
    for i, (path, _, _) in enumerate(found):
        images[i] = read_picture(path, shape)
        if tell is not None:
            tell(1)
    labels = torch.tensor([classes.index(name) for _, name, _ in found])
    is_test = torch.tensor([split == "test" for _, _, split in found])
    parts = [
        ImageData(root.name, images[mask], labels[mask], len(classes)) for mask in (~is_test, is_test) if mask.any()
    ]
    if ignored:
        files = "1 file that is" if ignored == 1 else f"{ignored:,} files that are"
        notes.append(f"ignored: {files} neither PNG nor JPEG")
    checksum = sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()
    return Pictures(parts[0], parts[1] if len(parts) > 1 else None, classes, checksum, tuple(notes))


def _by_class(root: Path) -> tuple[list[tuple[Path, str, str]], int]:
    """Return the pictures in order, each with its class and its split; and the number of other files."""
    top = _folders(root)
    names = {path.name for path in top}
    other = sorted(names & set(OTHER_SPLITS))
    if "train" in names and other:
        how = f"rename {other[0]!r} to 'test', or move its pictures to 'train' and let --validation choose some"
        raise ValueError(f"{root}: takes folders 'train' and 'test', or a folder per class, got {other[0]!r}; {how}")
    if names in ({"train"}, set(SPLITS)):
        classes = [(path, split.name) for split in reversed(top) for path in _folders(split)]
    else:
        classes = [(path, "train") for path in top]
    if not classes:
        direct = pictures_in(root)
        what = f"has {len(direct)} pictures and no folders" if direct else "has no folders"
        raise ValueError(f"{root}: takes a folder of pictures per class, but it {what}; sort the pictures into folders")
    found, ignored = [], 0
    for folder, split in classes:
        pictures = pictures_in(folder)
        ignored += len(_files(folder)) - len(pictures)
        found += [(path, folder.name, split) for path in pictures]
        if not pictures:
            raise ValueError(f"{folder}: takes PNG or JPEG pictures of its class, but has none; add some or remove it")
    return found, ignored


def pictures_in(folder: Path) -> list[Path]:
    """Return all PNG and JPEG files below a folder, sorted by path, without hidden files and folders."""
    return [path for path in _files(folder) if path.suffix.lower() in SUFFIXES]


def _files(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted by path; also broken links, which are errors when they are opened.

    A pipe is not a file: opening it would wait for a writer forever.
    """
    paths = (path for path in folder.rglob("*") if path.is_file() or not path.exists())
    return sorted(path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _check_classes(root: Path, found: Sequence[tuple[Path, str, str]], classes: Sequence[str]) -> None:
    """Raise ``ValueError`` about a single class, a class that only the test has, or a class of one picture."""
    require(len(classes) > 1, str(root), classes[0], "folders of at least two classes")
    counts = Counter((split, name) for _, name, split in found)
    has_test = any(split == "test" for split, _ in counts)
    for name in classes:
        if not counts["train", name]:
            raise ValueError(f"{root / 'test' / name}: is a class that {root / 'train'} does not have; add it there")
        if counts["train", name] == 1 and not has_test:
            path = next(path for path, each, _ in found if each == name)
            raise ValueError(f"{path}: is the only picture of class {name!r}; a class takes at least 2, add some")


def _shape(paths: Sequence[Path], side: int | None, count: int) -> tuple[tuple[int, int, int], list[str]]:
    """Return the channels, height and width of all pictures, and notes about resizing."""
    looks = [_look(path) for path in paths]
    sizes = {size for size, _ in looks}
    channels = 3 if any(is_colour for _, is_colour in looks) else 1
    (width, height), notes = min(sizes), []
    if side is not None or len(sizes) > 1 or max(width, height) > LARGEST:
        new, large = side or SMALL, max(sizes)
        were = f"{width}x{height}" if len(sizes) == 1 else f"{width}x{height} to {large[0]}x{large[1]}"
        if sizes != {(new, new)}:
            how = "" if side else "; pass --side to change that"
            notes.append(f"pictures of {were} pixels are resized to {new}x{new}{how}")
        width = height = new
    size = f"{count:,} pictures of {channels}x{height}x{width}"
    takes = f"a smaller size: {size} need more than {MOST_BYTES / 1e9:.0f} GB"
    require(count * channels * height * width <= MOST_BYTES, "side", height, takes)
    return (channels, height, width), notes


def _look(path: Path) -> tuple[tuple[int, int], bool]:
    """Return width and height of a picture, turned upright, and whether it has colours. Pixels are not read."""
    with _opened(path) as picture:
        try:
            turned = picture.getexif().get(ORIENTATION) in ON_THEIR_SIDE
        except (OSError, SyntaxError, ValueError) as error:
            raise _damaged(path, error) from None
        width, height = picture.size
        return (height, width) if turned else (width, height), picture.mode in COLOUR


def read_picture(path: Path, shape: Sequence[int]) -> Tensor:
    """Read a picture as uint8 of a given shape, [channels, height, width]: turned upright, converted and resized."""
    from PIL import Image, ImageOps

    channels, height, width = shape
    with _opened(path) as picture:
        try:
            upright = ImageOps.exif_transpose(picture)  # cameras store how they were held
            opaque = upright.convert("RGBA") if upright.mode in ("P", "PA") else upright
            made = opaque.convert("RGB" if channels == 3 else "L")
        except (OSError, SyntaxError, ValueError) as error:
            raise _damaged(path, error) from None
    if made.size != (width, height):
        made = made.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    return torch.from_numpy(np.array(made).reshape(height, width, channels)).permute(2, 0, 1)


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path}: is a damaged picture ({error}); replace or remove it")


def _opened(path: Path) -> Image.Image:
    """Open a picture without reading its pixels."""
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(path, formats=("PNG", "JPEG"))
    except UnidentifiedImageError:
        raise ValueError(f"{path}: is not a PNG or JPEG picture, whatever its name says; remove it") from None
    except Image.DecompressionBombError:
        raise ValueError(f"{path}: has more pixels than Pillow reads; make it smaller or remove it") from None
    except (OSError, SyntaxError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system cannot open the file
            raise
        raise _damaged(path, error) from None
    if picture.mode not in GREY + COLOUR:  # Pillow would clip other values at 255
        picture.close()
        raise ValueError(f"{path}: takes 8 bits per value, got pixels of type {picture.mode}; convert it to 8 bits")
    return picture
