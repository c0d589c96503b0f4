"""The data of a run: training set, validation set and test set."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.checks import require
from anode.data import images
from anode.data.encoding import choose, learn
from anode.data.folders import read_pictures
from anode.data.images import ImageData
from anode.data.table_files import BUILT_IN, read_table
from anode.data.tables import Array, Table
from anode.data.targets import Target, check_columns, choose_target, find_column, held_out, with_target
from anode.data.toy import Dataset
from anode.data.waiting import patient_bar
from anode.experiments.descriptions import Description
from anode.experiments.kinds import IMAGES, PICTURES, POINTS, TABLE, kind_of
from anode.experiments.options import Sizes, TrainOptions

FRESH = 2**31
"""Added to the seed of the training points to make the seed of the test points. torch uses 32 bits of a seed."""
FEWEST_ROWS = 10
MOST_LINES = 10
"""Columns left out for the same reason, up to which each has a line of its own."""


@dataclass(frozen=True)
class Material:
    """The data of a run.

    Attributes:
        data, validation: Training set and validation set, as :func:`anode.fit` takes them.
        tests: Test sets, one per repeat: inputs, and class indices or targets.
        description: Description of the data.
    """

    data: Any
    validation: Any
    tests: list[tuple[Tensor, Tensor]]
    description: Description


def material_of(single: TrainOptions, root: Path | None = None) -> Material:
    """Read or generate the data of a run.

    Args:
        single: The options.
        root: Where image datasets are stored.

    Raises:
        ValueError: Something is wrong with the data. The message says what to do.
    """
    makers = {POINTS: _points, IMAGES: lambda single: _images(single, root), TABLE: _table, PICTURES: _pictures}
    return makers[single.kind](single)


def _points(single: TrainOptions) -> Material:
    """Return points generated from a seed, and new points as the test set."""
    seeds = range(single.seed, single.seed + single.repeats)
    whole = [single.dataset(seed) for seed in seeds]
    fresh = [single.dataset(seed + FRESH) for seed in seeds]
    train, validation = whole, None
    if single.validation:
        share = 1 - checked_share("validation", single.validation, len(whole[0]))
        parts = [each.split(share, seed) for each, seed in zip(whole, seeds, strict=True)]
        train, validation = [part[0] for part in parts], targets([part[1] for part in parts], single)
    labels = train[0].labels
    same = torch.equal(whole[0].x, fresh[0].x)  # of g_1d, which has two points
    described = Description(
        kind=POINTS,
        sizes=single.sizes(),
        classes=("-1", "1"),
        counts={"training": len(labels), "validation": len(whole[0]) - len(labels), "test": len(fresh[0])},
        frequencies=tuple(labels.bincount(minlength=2).tolist()),
        judged_by=f"{len(fresh[0]):,} {'points, which are those of training' if same else 'new points'}",
    )
    return Material(targets(train, single), validation, [(each.x, each.labels) for each in fresh], described)


def targets(data: Sequence[Dataset], single: TrainOptions) -> Any:
    """Return points as :func:`anode.fit` takes them: with classes for cross entropy, as a list for several models."""
    if single.loss_of(classes=True) != "cross_entropy":
        return data[0] if single.repeats == 1 else data
    require(single.repeats == 1, "repeats", single.repeats, "1 beside --loss cross_entropy")
    return data[0].x, data[0].labels


def checked_share(option: str, share: float | None, size: int) -> float:
    """Return a fraction after checking that it leaves points or images on both sides."""
    takes = f"a fraction that leaves some of the {size:,} on both sides"
    assert share is not None
    require(0 < round(share * size) < size, option, share, takes)
    return share


def _images(single: TrainOptions, root: Path | None) -> Material:
    """Return an image set. Without a validation fraction, the test images are the validation set."""
    train, test = (images.load(single.data, split, root) for split in ("train", "test"))
    train, seen = _fewer(train, single), test
    if single.validation:
        train, seen = train.split(1 - checked_share("validation", single.validation, len(train)), single.seed)
    if single.side is not None:
        train, seen, test = (each.resize(single.side) for each in (train, seen, test))
    described = _images_described(single, train, seen if single.validation else None, test)
    return Material(train, seen, [(test.images, test.labels)], described)


def _pictures(single: TrainOptions) -> Material:
    """Return a folder of pictures. Some are held out if there is no folder ``test``."""
    count = sum(1 for path in Path(single.data).rglob("*") if path.is_file())
    with patient_bar("reading pictures", count) as advance:
        found = read_pictures(single.data, single.side, advance)
    train, test, seen = found.train, found.test, None
    if test is None:
        train, test = _apart(train, "test", single.test, single.seed)
    train = _fewer(train, single)
    if single.validation:
        share = single.validation if found.test else single.validation / (1 - (single.test or 0.0))
        train, seen = _apart(train, "validation", share, single.seed)
    described = replace(
        _images_described(single, train, seen, test),
        classes=found.classes,
        judged_by=f"{len(test):,} pictures {'of the folder test' if found.test else 'that were held out'}",
        notes=found.notes,
        sha256=found.sha256,
    )
    return Material(train, seen, [(test.images, test.labels)], described)


def _fewer(train: ImageData, single: TrainOptions) -> ImageData:
    """Return the number of images that the user asked for."""
    if single.train_size is None:
        return train
    takes = f"at most {len(train):,}, the number of images"
    require(single.train_size <= len(train), "train_size", single.train_size, takes)
    return train.subset(single.train_size, single.seed)


def _apart(data: ImageData, option: str, share: float | None, seed: int) -> tuple[ImageData, ImageData]:
    """Hold out a share of every class; return the remaining images and those held out."""
    mask = torch.from_numpy(held_out(data.labels.numpy(), checked_share(option, share, len(data)), seed))
    return data.part(~mask), data.part(mask)


def _images_described(single: TrainOptions, train: ImageData, seen: ImageData | None, test: ImageData) -> Description:
    return Description(
        kind=single.kind,
        sizes=Sizes(train.shape, train.classes),
        classes=tuple(map(str, range(train.classes))),
        counts={"training": len(train), "validation": 0 if seen is None else len(seen), "test": len(test)},
        frequencies=tuple(train.labels.bincount(minlength=train.classes).tolist()),
        judged_by=f"{len(test):,} test images",
    )


def _table(single: TrainOptions) -> Material:
    """Return a table whose columns are encoded and whose rows are split into three parts."""
    table, target, notes = _read(single)
    without = {target.name, *(single.drop or ())}
    choice = choose(table, without, single.category or (), single.numeric or ())
    y = target.values(table)
    is_test, is_seen = _parts(single, table, y if target.classes else np.zeros(len(y)))
    is_train = ~is_test & ~is_seen
    if not target.classes:
        target = target.scaled(table.take(is_train))
    encoding = learn(table.take(is_train), choice)
    x = torch.from_numpy(encoding.encode(table)[0])
    aim = torch.from_numpy(y) if target.classes else torch.from_numpy((y - target.mean) / target.scale).float()[:, None]
    data, seen = ((x[mask], aim[mask]) for mask in map(torch.from_numpy, (is_train, is_seen)))
    notes += [*left_out_lines(choice.left_out), *choice.notes]
    described = Description(
        kind=TABLE,
        sizes=Sizes(encoding.width, len(target.classes) or 1),
        classes=target.classes,
        counts={"training": len(data[0]), "validation": len(seen[0]), "test": int(is_test.sum())},
        frequencies=tuple(np.bincount(y[is_train], minlength=len(target.classes)).tolist()) if target.classes else (),
        judged_by=f"{int(is_test.sum()):,} rows that were held out",
        notes=tuple(notes),
        sha256=table.sha256,
        encoding=encoding,
        target=target,
    )
    judged_by = x[is_test], torch.from_numpy(y)[is_test]
    return Material(data, seen if is_seen.any() else None, [judged_by], described)


def left_out_lines(left_out: dict[str, str]) -> list[str]:
    """Return which columns are left out and why: a line per column, or one for many columns with the same reason."""
    lines = []
    for why in dict.fromkeys(left_out.values()):
        names = [name for name, each in left_out.items() if each == why]
        if len(names) > MOST_LINES:
            shown = ", ".join(map(repr, names[:3]))
            lines.append(f"{len(names):,} columns are left out: each {why} ({shown}, ...)")
        else:
            lines += [f"column {name!r} is left out: it {why}" for name in names]
    return lines


def read_patiently(source: str, encoding: str | None, keep: Collection[str] = ()) -> Table:
    """Read a table, with a progress bar if that takes long; see :func:`anode.data.table_files.read_table`."""
    size = Path(source).stat().st_size if kind_of(source) == TABLE and source not in BUILT_IN else 1
    with patient_bar(f"reading {source}", size) as advance:
        return read_table(source, encoding=encoding, keep=keep, tell=advance)


def _read(single: TrainOptions) -> tuple[Table, Target, list[str]]:
    """Return the rows of a table that have a target, the target, and notes for the user."""
    table = read_patiently(single.data, single.encoding)
    name = find_column(table, "target", single.target)
    for option in ("drop", "category", "numeric"):
        named = getattr(single, option) or ()
        check_columns(table, option, named)
        require(name not in named, option, name, "a column to predict from, not the target")
    table, lost = with_target(table, name)
    target = choose_target(table, name, single.task)
    require(len(table) >= FEWEST_ROWS, table.name, f"{len(table)}", f"at least {FEWEST_ROWS} rows with a target")
    other = "regression" if target.classes else "classification"
    what = f"{len(target.classes):,} classes" if target.classes else "numbers"
    changes = single.task is None and not table.columns[name].texts
    how = f"; pass --task {other} to change that" if changes else ""
    notes = [f"column {name!r} is the target, with {what}: {target.task}{how}"]
    if lost:
        rows = "1 row is" if lost == 1 else f"{lost:,} rows are"
        notes.append(f"{rows} left out: column {name!r} is empty there")
    return table, target, notes


def _parts(single: TrainOptions, table: Table, groups: Array) -> tuple[Array, Array]:
    """Return masks of the test rows and of the validation rows, each of shape [rows]."""
    assert single.test is not None
    assert single.validation is not None
    is_test = held_out(groups, checked_share("test", single.test, len(table)), single.seed)
    is_seen = np.zeros(len(table), bool)
    if single.validation:
        rest = np.flatnonzero(~is_test)
        share = checked_share("validation", single.validation / (1 - single.test), len(rest))
        is_seen[rest[held_out(groups[rest], share, single.seed)]] = True
    return is_test, is_seen
