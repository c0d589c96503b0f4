"""Read the handwritten digits of scikit-learn, which need no download."""

from __future__ import annotations

from pathlib import Path

import torch

from anode.data.reading import Pair
from anode.extras import needs


def read(folder: Path, split: str) -> Pair:
    """Read one split: greyscale images of 8x8 pixels in 10 classes. The folder is ignored.

    Every fifth image of each class is in the test split, so both splits have the same class proportions.
    """
    needs("the dataset digits", "sklearn")
    from sklearn.datasets import load_digits

    content = load_digits()
    values = torch.from_numpy(content.images).long()  # from 0 to 16
    images = ((values * 255 + 8) // 16).to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(content.target).long()
    is_test = _place_in_class(labels) % 5 == 4
    chosen = is_test if split == "test" else ~is_test
    return images[chosen], labels[chosen]


def _place_in_class(labels: torch.Tensor) -> torch.Tensor:
    """Return for each image the number of earlier images of the same class."""
    same = torch.nn.functional.one_hot(labels)
    return (same.cumsum(0) * same).sum(1) - 1
