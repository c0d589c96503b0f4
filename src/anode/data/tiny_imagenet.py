"""Read the files of Tiny ImageNet: folders of JPEGs of 64x64 pixels, some of them greyscale."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from torch import Tensor

from anode.data.reading import MOST_IMAGES, Pair, damaged
from anode.data.waiting import patient_bar
from anode.extras import needs
from anode.files import DamagedFileError
from anode.storage import read_tensors, write_tensors

FOLDER = "tiny-imagenet-200"
NAMES = {
    "train": (f"{FOLDER}/wnids.txt", f"{FOLDER}/train"),
    "test": (f"{FOLDER}/wnids.txt", f"{FOLDER}/val/val_annotations.txt", f"{FOLDER}/val/images"),
}
CLASSES = 200
SIDE = 64
CHUNK = 256
"""Images that a thread decodes in one go."""


def read(folder: Path, split: str) -> Pair:
    """Read one split: colour images of 64x64 pixels in 200 classes, in the order of wnids.txt.

    If the folder is writable, the decoded images are cached next to the JPEGs. The cache is used until the JPEGs
    change.
    """
    tree = folder / FOLDER
    classes = read_classes(tree / "wnids.txt")
    paths, numbers = list_train(tree, classes) if split == "train" else list_test(tree, classes)
    labels = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    key, kept = fingerprint(paths, numbers), folder / f"decoded-{split}.safetensors"
    images = _recall(kept, key, len(paths))
    if images is None:
        images = decode(paths)
        _keep(kept, key, images)
    return images, labels


def read_classes(path: Path) -> dict[str, int]:
    """Return the index of each class by its name, such as n01443537."""
    names = _lines(path)
    wrong = next((name for name in names if not re.fullmatch(r"n\d{8}", name)), None)
    if wrong is not None:  # the names become folders, so that nothing else must pass
        raise damaged(path, "names such as n01443537, one a line", repr(wrong[:40]))
    if len(names) != CLASSES or len(set(names)) != CLASSES:
        raise damaged(path, f"{CLASSES} different names", f"{len(set(names))} in {len(names)} lines")
    return {name: number for number, name in enumerate(names)}


def list_train(tree: Path, classes: dict[str, int]) -> tuple[list[Path], list[int]]:
    """Return the training images and their labels, sorted by class and name."""
    folders = {entry.name for entry in os.scandir(tree / "train") if entry.is_dir() and entry.name[0] != "."}
    if unknown := sorted(folders - set(classes)):
        raise damaged(tree / "train", "the classes in wnids.txt", f"a folder {unknown[0]} besides")
    paths: list[Path] = []
    numbers: list[int] = []
    for name, number in classes.items():
        inside = _images(tree / "train" / name / "images")
        if not inside:
            raise damaged(tree / "train" / name / "images", "a folder of .JPEG files", "none")
        paths += inside
        numbers += [number] * len(inside)
    return _limited(tree / "train", paths), numbers


def list_test(tree: Path, classes: dict[str, int]) -> tuple[list[Path], list[int]]:
    """Return the images and labels of the validation folder. The official test folder has no labels."""
    path, folder = tree / "val" / "val_annotations.txt", tree / "val" / "images"
    numbers: dict[str, int] = {}
    for line in _lines(path):
        name, label, *_ = [*line.split("\t"), "", ""]
        if not re.fullmatch(r"\w+\.JPEG", name) or label not in classes or name in numbers:
            takes = "lines of an image and its class in wnids.txt, no image twice"
            raise damaged(path, takes, repr(line[:60]))
        numbers[name] = classes[label]
    there = {image.name for image in _images(folder)}
    if set(numbers) != there:
        got = f"{len(numbers):,}, of which {len(there & set(numbers)):,} are there"
        raise damaged(path, f"a line for each of the {len(there):,} images in {folder}", got)
    if not there:
        raise damaged(path, "at least one image", "none")
    return _limited(folder, [folder / name for name in numbers]), list(numbers.values())


def decode(paths: Sequence[Path]) -> Tensor:
    """Decode JPEGs in several threads. Pillow releases the interpreter lock while it decodes."""
    needs("decoding tiny_imagenet", "paper", "pillow", "rich")
    images = np.empty((len(paths), 3, SIDE, SIDE), np.uint8)

    def fill(start: int) -> int:
        part = paths[start : start + CHUNK]
        for i, path in enumerate(part, start):
            images[i] = read_jpeg(path).transpose(2, 0, 1)
        return len(part)

    pool = ThreadPoolExecutor(min(os.cpu_count() or 1, 16))
    try:
        with patient_bar("decoding", len(paths)) as advance:
            for done in pool.map(fill, range(0, len(paths), CHUNK)):
                advance(done)
    finally:
        pool.shutdown(cancel_futures=True)  # after an error, or Ctrl-C, the rest need not be waited for
    return torch.from_numpy(images)


def read_jpeg(path: Path) -> npt.NDArray[np.uint8]:
    """Decode one JPEG to [height, width, 3], or raise :class:`anode.files.DamagedFileError`."""
    from PIL import Image

    with path.open("rb") as file:
        try:
            with Image.open(file, formats=["JPEG"]) as image:
                size = image.size
                # Looked at before anything is decoded, since a small file can hold an enormous image.
                pixels = np.asarray(image.convert("RGB")) if size == (SIDE, SIDE) else None
        except Exception as error:  # what Pillow raises about a damaged file can be almost anything
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise damaged(path, "a JPEG", f"something else or a damaged one ({first[:120]})") from None
    if pixels is None:
        raise damaged(path, f"an image of {SIDE}x{SIDE}", f"one of {size[0]}x{size[1]}")
    return pixels


def fingerprint(paths: Sequence[Path], numbers: Sequence[int]) -> Tensor:
    """Return a checksum of the names, dates, sizes and labels of the images, but not of their contents."""
    digest = hashlib.sha256()
    for path, number in zip(paths, numbers, strict=True):
        info = path.stat()
        digest.update(f"{path.parent.parent.name}/{path.name} {info.st_size} {info.st_mtime_ns} {number}\n".encode())
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def checksum(images: Tensor) -> Tensor:
    """Return a checksum of decoded images."""
    return torch.frombuffer(bytearray(hashlib.sha256(images.numpy().data).digest()), dtype=torch.uint8)


def _recall(path: Path, key: Tensor, count: int) -> Tensor | None:
    """Return the cached images; ``None`` if there are none or the JPEGs have changed."""
    try:
        content = read_tensors(path)
    except (OSError, DamagedFileError):
        return None  # they can be made again
    images, found = content.get("images"), content.get("key")
    if images is None or found is None or images.shape != (count, 3, SIDE, SIDE) or images.dtype != torch.uint8:
        return None
    return images if torch.equal(found, torch.cat([key, checksum(images)])) else None


def _keep(path: Path, key: Tensor, images: Tensor) -> None:
    """Cache decoded images."""
    # Data may lie where nothing can be written, or on a full disk; then they are decoded every time.
    with suppress(OSError, SafetensorError):
        write_tensors(path, {"images": images, "key": torch.cat([key, checksum(images)])})


def _images(folder: Path) -> list[Path]:
    """Return the JPEGs in a folder, sorted by name; none if the folder does not exist."""
    return sorted(path for path in folder.glob("*.JPEG") if not path.name.startswith("."))


def _limited(folder: Path, paths: list[Path]) -> list[Path]:
    """Return the same paths. Raise an error if there are too many."""
    if len(paths) > MOST_IMAGES:
        raise damaged(folder, f"at most {MOST_IMAGES:,} images", f"{len(paths):,}")
    return paths


def _lines(path: Path) -> list[str]:
    """Return the non-empty lines of a text file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise damaged(path, "a text file", f"something else ({error.reason})") from None
    return [line.strip() for line in text.splitlines() if line.strip()]
