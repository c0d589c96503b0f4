"""Small files in the formats of the official ones."""

import gzip
import io
import struct
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

WNIDS = [f"n{10_000_000 + 7 * i}" for i in range(200)][::-1]  # not in the order of their names


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(values: np.ndarray) -> bytes:
    """An array of bytes in the idx format."""
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_mnist(folder: Path, count: int = 20) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Four files; returns images and labels by split."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {}
    for seed, (split, prefix) in enumerate({"train": "train", "test": "t10k"}.items()):
        images, labels = noise(count, 28, 28, seed=seed), np.arange(count, dtype=np.uint8) % 10
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
        content[split] = images[:, None], labels
    return content


def write_cifar(folder: Path, count: int = 4) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Six files in their folder; returns images and labels by split."""
    inside = folder / "cifar-10-batches-bin"
    inside.mkdir(parents=True, exist_ok=True)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    batches = []
    for seed, name in enumerate(names):
        records = noise(count, 3073, seed=seed)
        records[:, 0] %= 10
        (inside / name).write_bytes(records.tobytes())
        batches.append(records)
    parts = {"train": np.concatenate(batches[:5]), "test": batches[5]}
    return {split: (part[:, 1:].reshape(-1, 3, 32, 32), part[:, 0]) for split, part in parts.items()}


def mat(images: np.ndarray, labels: np.ndarray, compressed: bool = True, **others) -> bytes:
    """A MATLAB 5.0 file of images [n, channels, height, width] and labels as they are."""
    file = io.BytesIO()
    arrays = {"X": images.transpose(2, 3, 1, 0), "y": labels[:, None], **others}
    savemat(file, arrays, do_compression=compressed)
    return file.getvalue()


def write_svhn(folder: Path, count: int = 5) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Two files; returns images and labels by split."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {}
    for seed, split in enumerate(("train", "test")):
        images, labels = noise(count, 3, 32, 32, seed=seed), np.arange(10, 10 - count, -1, dtype=np.uint8)
        (folder / f"{split}_32x32.mat").write_bytes(mat(images, labels, compressed=seed == 0))
        content[split] = images, labels % 10
    return content


def jpeg(colour: tuple[int, int, int] | int, side: int = 64, kind: str = "JPEG") -> bytes:
    """An image of one colour, or of one grey."""
    file = io.BytesIO()
    Image.new("L" if isinstance(colour, int) else "RGB", (side, side), colour).save(file, kind, quality=95)
    return file.getvalue()


def write_tiny(folder: Path) -> Path:
    """A tree with one training image a class and two test images; every tenth is grey. Returns its folder."""
    tree = folder / "tiny-imagenet-200"
    (tree / "val" / "images").mkdir(parents=True)
    (tree / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    for i, name in enumerate(WNIDS):
        (tree / "train" / name / "images").mkdir(parents=True)
        colour = i if i % 10 == 0 else (i, 255 - i, 30)
        (tree / "train" / name / "images" / f"{name}_0.JPEG").write_bytes(jpeg(colour))
    lines = []
    for i, number in enumerate((7, 150)):
        (tree / "val" / "images" / f"val_{i}.JPEG").write_bytes(jpeg((200 * i, 10, 90)))
        lines.append(f"val_{i}.JPEG\t{WNIDS[number]}\t0\t0\t62\t62\n")
    (tree / "val" / "val_annotations.txt").write_text("".join(lines))
    return tree
