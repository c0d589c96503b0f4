"""A history as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from anode.train.record import EVALUATED, MOMENTS, OPTIONAL, SERIES, SHARED, Array, Failure, Snapshot

if TYPE_CHECKING:
    from anode.train.history import History

FORMAT = "anode history 1"
TYPES: dict[str, Any] = {**SERIES, **SHARED, **OPTIONAL, **EVALUATED, **MOMENTS}

# ---------------------------------------------------------------------------------------------------------------- JSON


def to_json(history: History) -> dict[str, Any]:
    """All of a history, of lists, numbers and text."""
    return {
        "format": FORMAT,
        "members": history.members,
        "batches": history.batches,
        "stopped": history.stopped,
        "failures": [asdict(failure) for failure in history.failures],
        "settings": history.settings,
        "engine": history.engine,
        **{name: as_list(getattr(history, name)) for name in TYPES},
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
    """The arguments of a history from what :func:`to_json` made, checked."""
    if content["format"] != FORMAT:
        raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
    losses = _array("loss", content["loss"], np.float32)
    members = content["members"]
    _check("members", members, members is None or _is_whole(members, 1), "a whole number above 0 or null")
    width = () if members is None else (members,)
    found: dict[str, Any] = _series_from_json(content, len(losses), width)
    found |= {name: content[name] for name in ("batches", "stopped", "settings")}
    found["engine"] = content.get("engine", "")  # versions before 0.2 did not write it
    found["failures"] = [Failure(**failure) for failure in content["failures"]]
    found["snapshots"] = [_snapshot(each, width) for each in content["snapshots"]]
    _check("batches", found["batches"], _is_whole(found["batches"], 1), "a whole number above 0")
    for name in ("stopped", "engine"):
        _check(name, found[name], isinstance(found[name], str), "text")
    _check("settings", found["settings"], isinstance(found["settings"], dict), "a table")
    for each in found["failures"]:
        texts = isinstance(each.reason, str) and isinstance(each.status, str)
        fits = _is_whole(each.member) and _is_whole(each.iteration) and texts
        _check("failures", each, fits, "a whole member and iteration, a reason and a status")
    return found


def _series_from_json(content: dict[str, Any], iterations: int, width: tuple[int, ...]) -> dict[str, Array]:
    evaluations = len(_array("validation", content["validation"], np.float32))
    found = {}
    for name, dtype in TYPES.items():
        always = name in SERIES or name in SHARED or name == "validation"
        values = content[name]
        length = evaluations if name in EVALUATED or name in MOMENTS else iterations
        shape = (length if always or len(values) else 0, *(() if name in SHARED or name in MOMENTS else width))
        found[name] = _array(name, values, dtype, shape)
    return found


def _snapshot(content: dict[str, Any], width: tuple[int, ...]) -> Snapshot:
    dtype = content.get("dtype", "float32")
    _check("dtype", dtype, dtype in ("float32", "float64"), "float32 or float64")
    _check("iteration", content["iteration"], _is_whole(content["iteration"]), "a whole number from 0")
    features, nfe = _array("features", content["features"], np.dtype(dtype)), _array("nfe", content["nfe"], np.int64)
    _check("features", features.shape, features.ndim > 1 and features.shape[: len(width)] == width, "one for a member")
    _check("nfe", nfe.shape, nfe.shape in ((), width), "one number or one a member")
    return Snapshot(content["iteration"], features, nfe)


# ----------------------------------------------------------------------------------------------------------------- CSV


def to_csv(history: History) -> str:
    """A row for each iteration and member."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    optional = [name for name in OPTIONAL if getattr(history, name).size]
    rows.writerow(["iteration", "epoch", "member", *SERIES, *SHARED, *optional])
    members = history.members or 1
    series = [getattr(history, name).reshape(len(history), members) for name in SERIES]
    more = [getattr(history, name).reshape(len(history), members) for name in optional]
    for i in range(len(history)):
        shared = [getattr(history, name)[i] for name in SHARED]
        for member in range(members):
            who = "" if history.members is None else member
            of_member = [values[i, member] for values in series]
            rows.writerow([i, i // history.batches, who, *of_member, *shared, *(values[i, member] for values in more)])
    return text.getvalue()


def from_csv(lines: Iterable[str]) -> dict[str, Any]:
    """The arguments of a history from what :func:`to_csv` wrote, checked."""
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


def as_list(values: Array) -> Any:
    """An array as lists of numbers, float32 with no more digits than it has; ``None`` for what is not finite."""
    flat = values.reshape(-1).tolist()
    if values.dtype == np.float32:
        flat = [float(f"{value:.9g}") if math.isfinite(value) else None for value in flat]
    elif values.dtype.kind == "f":
        flat = [value if math.isfinite(value) else None for value in flat]
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
