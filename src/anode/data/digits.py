"""The handwritten digits that come with scikit-learn, for a first try: nothing has to be downloaded."""

from __future__ import annotations

from pathlib import Path

import torch

from anode.data.reading import Pair
from anode.extras import needs


def read(folder: Path, split: str) -> Pair:
    """Read one split: 10 classes of grey images, 8 by 8. The folder is not looked at.

    Of every class, each fifth image is in the test split, so that both splits have all classes in the same shares.
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
    """For each image, how many of the same class come before it."""
    same = torch.nn.functional.one_hot(labels)
    return (same.cumsum(0) * same).sum(1) - 1
