"""Convert a history to and from JSON, arrays with JSON, and tables."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from anode.train.record import CHECKED, EVALUATED, MOMENTS, OPTIONAL, SERIES, SHARED, Array, Failure, Snapshot

if TYPE_CHECKING:
    from anode.train.history import History

FORMAT = "anode history 1"
TYPES: dict[str, Any] = {**SERIES, **SHARED, **OPTIONAL, **EVALUATED, **MOMENTS, **CHECKED}
ALWAYS = {*SERIES, *SHARED, "validation"}
"""Series that are always present, even if empty; other series may be missing."""
LATER = {*CHECKED, "check_at"}
"""Series of checks, which versions before 0.2 did not write."""
INFINITY = "inf"
"""Infinity in JSON, which marks a failed solve in a series of checks; in other series it becomes null."""

# ---------------------------------------------------------------------------------------------------------------- JSON


def to_json(history: History) -> dict[str, Any]:
    """Return the whole history as lists, numbers and text."""
    return {
        "format": FORMAT,
        "members": history.members,
        **_facts(history),
        "settings": history.settings,
        **{name: as_list(getattr(history, name)) for name in TYPES if name not in CHECKED},
        **{name: as_list(getattr(history, name), infinity=INFINITY) for name in CHECKED},
        "snapshots": [
            {
                "iteration": s.iteration,
                "dtype": str(s.features.dtype),
                "features": as_list(s.features),
                "nfe": as_list(s.nfe),
            }
            for s in history.snapshots
        ],
    }


def from_json(content: dict[str, Any]) -> dict[str, Any]:
    """Check what :func:`to_json` returned, and return it as the arguments of a history."""
    if content["format"] != FORMAT:
        raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
    members = content["members"]
    _check("members", members, members is None or _is_whole(members, 1), "a whole number above 0 or null")
    width = () if members is None else (members,)
    _check("settings", content["settings"], isinstance(content["settings"], dict), "a table")
    return {
        **_series({name: content.get(name, []) if name in LATER else content[name] for name in TYPES}, width),
        **_from_facts(content),
        "settings": content["settings"],
        "snapshots": [_snapshot(each, width) for each in content["snapshots"]],
    }


def _facts(history: History) -> dict[str, Any]:
    """Return the parts of a history that are not arrays."""
    failures = [asdict(failure) for failure in history.failures]
    texts = {"stopped": history.stopped, "engine": history.engine}
    return {"batches": history.batches, **texts, "failures": failures}


def _from_facts(content: dict[str, Any]) -> dict[str, Any]:
    """Check what :func:`_facts` returned, and return it as arguments of a history."""
    batches = content["batches"]
    texts = {"stopped": content["stopped"], "engine": content.get("engine", "")}  # not written before version 0.2
    failures = [Failure(**failure) for failure in content["failures"]]
    _check("batches", batches, _is_whole(batches, 1), "a whole number above 0")
    for name, text in texts.items():
        _check(name, text, isinstance(text, str), "text")
    for each in failures:
        worded = isinstance(each.reason, str) and isinstance(each.status, str)
        fits = _is_whole(each.member) and _is_whole(each.iteration) and worded
        _check("failures", each, fits, "whole numbers for member and iteration, and text for reason and status")
    return {"batches": batches, **texts, "failures": failures}


def _series(given: Mapping[str, Any], width: tuple[int, ...]) -> dict[str, Array]:
    """Check the series of a history and return them as arrays of the right dtype and shape."""
    counted = {"loss": [*SERIES, *SHARED, *OPTIONAL], "validation": [*EVALUATED, "validation_at"], "check": [*LATER]}
    lengths = {name: len(given.get(first, ())) for first, names in counted.items() for name in names}
    found = {}
    for name, values in given.items():
        length = lengths[name]
        kept = length if name in ALWAYS or name in LATER or len(values) else 0
        shape = (kept, *(() if name in SHARED or name in MOMENTS else width))
        found[name] = _array(name, values, TYPES[name], shape)
    return found


def _snapshot(content: dict[str, Any], width: tuple[int, ...]) -> Snapshot:
    dtype = content.get("dtype", "float32")
    _check("dtype", dtype, dtype in ("float32", "float64"), "float32 or float64")
    _check("iteration", content["iteration"], _is_whole(content["iteration"]), "a whole number from 0")
    features, nfe = _array("features", content["features"], np.dtype(dtype)), _array("nfe", content["nfe"], np.int64)
    _check("features", features.shape, features.ndim > 1 and features.shape[: len(width)] == width, "one per member")
    _check("nfe", nfe.shape, nfe.shape in ((), width), "one number, or one per member")
    return Snapshot(content["iteration"], features, nfe)


# -------------------------------------------------------------------------------------------------- Arrays beside JSON


def to_arrays(history: History) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the parts of a history that are not arrays, for JSON, and its arrays by name; without the settings."""
    series = {name: getattr(history, name) for name in TYPES}
    arrays = {f"history.{name}": _narrow(each) for name, each in series.items() if each.size or name in ALWAYS}
    arrays |= {f"snapshot.{i}": snapshot.features for i, snapshot in enumerate(history.snapshots)}
    snapshots = [{"iteration": s.iteration, "nfe": as_list(s.nfe)} for s in history.snapshots]
    return {**_facts(history), "snapshots": snapshots}, arrays


def from_arrays(content: dict[str, Any], arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Check what :func:`to_arrays` returned, and return it as the arguments of a history, without the settings."""
    names = [name for name in TYPES if name in ALWAYS or f"history.{name}" in arrays]
    series = {name: arrays[f"history.{name}"] for name in names}
    snapshots = [
        Snapshot(each["iteration"], arrays[f"snapshot.{i}"], np.asarray(each["nfe"]))
        for i, each in enumerate(content["snapshots"])
    ]
    return {**_series(series, series["loss"].shape[1:]), **_from_facts(content), "snapshots": snapshots}


def _narrow(values: Array) -> Array:
    """Convert integers to the smallest dtype that holds them."""
    if values.dtype.kind != "i" or not values.size:
        return values
    types = (np.int8, np.int16, np.int32, np.int64)
    return values.astype(next(t for t in types if values.max() <= np.iinfo(t).max))  # none is below 0


# --------------------------------------------------------------------------------------------------------------- Table


def to_columns(history: History) -> dict[str, Array]:
    """Return the columns, by name, of a table with one row per iteration and member."""
    members = history.members or 1
    iteration = np.arange(len(history)).repeat(members)
    member = np.tile(np.arange(members), len(history))
    columns = {"iteration": iteration, "epoch": iteration // history.batches, "member": member}
    columns |= {name: getattr(history, name).reshape(-1) for name in SERIES}
    columns |= {name: getattr(history, name).repeat(members) for name in SHARED}
    return columns | {name: getattr(history, name).reshape(-1) for name in OPTIONAL if getattr(history, name).size}


def to_evaluated_columns(history: History) -> dict[str, Array]:
    """Return further columns of that table: the results of evaluations and checks; NaN in other rows."""
    columns = {}
    moments = dict.fromkeys(EVALUATED, history.validation_at) | dict.fromkeys(CHECKED, history.check_at)
    for name, at in moments.items():
        values = getattr(history, name)
        if values.size and len(at):
            column = np.full((len(history), history.members or 1), np.nan, values.dtype)
            made = at > 0  # there is no row before the first iteration
            column[at[made] - 1] = values.reshape(len(values), -1)[made]
            columns[name] = column.reshape(-1)
    return columns


def to_csv(history: History) -> str:
    """Return the table of :func:`to_columns` as CSV; the member is empty for a single model."""
    columns = to_columns(history)
    if history.members is None:
        columns["member"] = np.full(len(history), "")
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(columns)
    rows.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def from_csv(lines: Iterable[str]) -> dict[str, Any]:
    """Check what :func:`to_csv` returned, and return it as the arguments of a history."""
    table = csv.DictReader(lines)
    rows = list(table)
    named = list(table.fieldnames or [])
    columns = ["iteration", "epoch", "member", *SERIES, *SHARED]
    _check("columns", named, named in (columns, [*columns, *OPTIONAL]), ", ".join(columns))
    _check("rows", "others", all(None not in (*row, *row.values()) for row in rows), "a cell for every column")
    stacked = bool(rows) and rows[0]["member"] != ""
    each = sum(row["iteration"] == "0" for row in rows) if rows else 1
    batches = sum(row["epoch"] == "0" for row in rows) // max(each, 1) if rows else 1
    iterations = len(rows) // max(each, 1)
    places = [(row["iteration"], row["epoch"], row["member"]) for row in rows]
    members = [str(member) for member in range(each)] if stacked else [""]
    expected = [(str(i), str(i // max(batches, 1)), member) for i in range(iterations) for member in members]
    _check("rows", "others", places == expected, "every iteration and member once, in their order")

    def read(name: str) -> Array:
        cells = np.array([row[name] for row in rows]).astype(np.float64).reshape(iterations, each)
        return _array(name, cells if stacked and name not in SHARED else cells[:, 0], TYPES[name])

    validation = np.empty((0, each) if stacked else 0, dtype=np.float32)
    return {**{name: read(name) for name in named[3:]}, "batches": batches, "validation": validation}


# -------------------------------------------------------------------------------------------------------------- Values


def as_list(values: Array, infinity: str | None = None) -> Any:
    """Return an array as lists of numbers, with 9 digits for float32, and ``None`` for values that are not finite.

    Args:
        values: The array.
        infinity: The value for positive infinity. Defaults to ``None``.
    """
    flat = values.reshape(-1).tolist()
    special = {math.inf: infinity}
    if values.dtype == np.float32:
        flat = [float(f"{value:.9g}") if math.isfinite(value) else special.get(value) for value in flat]
    elif values.dtype.kind == "f":
        flat = [value if math.isfinite(value) else special.get(value) for value in flat]
    for size in values.shape[:0:-1]:
        flat = [flat[i : i + size] for i in range(0, len(flat), size)]
    return flat if values.ndim else flat[0]


def _array(name: str, values: Any, dtype: Any, shape: tuple[int, ...] | None = None) -> Array:
    array = np.array(values, dtype=np.float64)  # None becomes NaN
    if shape is not None:
        array = array.reshape(shape) if array.size == 0 == math.prod(shape) else array
        _check(name, array.shape, array.shape == shape, f"the shape {shape}")
    if np.dtype(dtype).kind == "i":
        whole = bool((np.isfinite(array) & (array % 1 == 0) & (abs(array) < 2**53)).all())
        _check(name, "others", whole, "whole numbers")
    with np.errstate(over="ignore"):
        found = array.astype(dtype)
    _check(name, "larger ones", bool((np.isfinite(found) | ~np.isfinite(array)).all()), f"numbers of {np.dtype(dtype)}")
    return found


def _is_whole(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check(name: str, got: Any, fits: bool, takes: str) -> None:
    if not fits:
        raise ValueError(f"{name}: takes {takes}, got {got!r}")
