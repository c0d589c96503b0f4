"""Pictures of two models for a page: numbers and arrays, packed into one message.

A message is the length of a JSON text as four bytes (little-endian), that text, padding to a multiple of four, and
arrays one after the other. The text lists them under ``arrays``: name, type and shape.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anode.models.nets import NeuralODE
from anode.play.pair import Pair, Side
from anode.train.history import History

Array = npt.NDArray[Any]

WIDE, HIGH = 2.4, 1.8
"""Half the width and half the height of the plane."""
COLUMNS, ROWS = 64, 48
"""Pixels of the surface."""
LATTICE_COLUMNS, LATTICE_ROWS = 25, 19
"""Columns and rows of the lattice that the flow moves."""
TIMES = 17
"""Number of states per path."""
PATHS = 400
"""Maximum number of data points whose paths are shown."""
CURVE = 300
"""Maximum number of points of a curve."""
CHECKED = 200
"""Number of points that the certificate is computed on."""


def picture(pair: Pair, head: dict[str, Any], certificates: list[dict[str, Any]]) -> bytes:
    """Return the current state of both models as one message."""
    data = pair.data
    arrays: dict[str, Array] = {
        "x": data.x.numpy(),
        "labels": data.labels.numpy().astype(np.uint8),
        "followed": followed(len(data)).astype(np.int32),
    }
    models = []
    for number, (side, certificate) in enumerate(zip(pair.sides, certificates, strict=True)):
        seen, found = sight(side, data.x, data.y)
        models.append({**seen, "certificate": certificate})
        arrays |= {f"{name}{number}": array for name, array in found.items()}
    shape = {
        "wide": WIDE,
        "high": HIGH,
        "columns": COLUMNS,
        "rows": ROWS,
        "lattice": [LATTICE_COLUMNS, LATTICE_ROWS],
        "times": TIMES,
    }
    return packed({**head, "view": shape, "models": models}, arrays)


def sight(side: Side, x: Tensor, y: Tensor) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the numbers and the arrays that describe a model."""
    model, history = side.model, side.history
    with torch.no_grad():
        outcome = model.run(mesh(COLUMNS, ROWS))
        surface = outcome.prediction[:, 0].clamp(-1, 1).nan_to_num(0.0)
        starts = torch.cat([mesh(LATTICE_COLUMNS, LATTICE_ROWS), x[followed(len(x))]])
        times = torch.linspace(0.0, model.flow.t1, TIMES, dtype=torch.float64).tolist()
        solved = model.flow.solve(starts, save_at=times)
        found = model.run(x)
    direction, weights, bias = axes(model)
    assert isinstance(solved.ys, Tensor)
    states = solved.ys @ direction.T if solved.success else torch.full((TIMES, len(starts), len(direction)), math.nan)
    right = (found.prediction[:, 0] > 0) == (y[:, 0] > 0)
    loss, epoch = history.loss, max(history.batches, 1)
    return {
        "name": side.name,
        "p": side.augment,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "iterations": len(history),
        "loss": finite(loss[-epoch:].mean()) if len(loss) else None,
        "nfe": finite(history.nfe[-epoch:].mean()) if len(loss) else None,
        "accuracy": finite(right.float().mean()),
        "ended": side.ended,
        "engine": history.engine,
        "head": [*weights, bias],
    }, {
        "surface": (127 * surface).round().to(torch.int8).numpy(),
        "paths": states.float().contiguous().numpy(),
        **curves(history),
    }


def mesh(columns: int, rows: int) -> Tensor:
    """Return a grid of points, from top left to bottom right, [rows * columns, 2]."""
    across, down = torch.linspace(-WIDE, WIDE, columns), torch.linspace(HIGH, -HIGH, rows)
    return torch.stack(torch.meshgrid(across, down, indexing="xy"), dim=-1).reshape(-1, 2)


def followed(points: int) -> npt.NDArray[np.int64]:
    """Return the indices of the data points whose paths are shown: evenly spread, to include both classes."""
    return np.linspace(0, points - 1, min(points, PATHS)).round().astype(np.int64)


def axes(model: NeuralODE) -> tuple[Tensor, list[float], float]:
    """Return the axes along which states are shown, and the weights and bias of the classifier on these axes.

    The first two axes are those of the plane. The third, if there are added dimensions, is the direction in them that
    the classifier uses. Its prediction is therefore exact in three dimensions, no matter how many are added.
    """
    weight, bias = model.head.weight.detach()[0], float(model.head.bias.detach())
    size, added = len(weight), weight[2:]
    direction = torch.eye(2, size)
    if size > 2:
        length = float(added.norm())
        unit = added / length if length > 0 and size > 3 else torch.eye(1, size - 2)[0]
        direction = torch.cat([direction, torch.cat([torch.zeros(2), unit]).unsqueeze(0)])
    return direction, [finite(each) or 0.0 for each in direction @ weight], finite(bias) or 0.0


def curves(history: History) -> dict[str, Array]:
    """Return loss and evaluations over the iterations, as means over at most ``CURVE`` windows of equal length."""
    count = len(history)
    width = max(math.ceil(count / CURVE), 1)
    starts = np.arange(0, count, width)
    sizes = np.diff(np.append(starts, count))
    curve = np.zeros((3, len(starts)), np.float32)
    if count:
        curve[0] = starts + sizes
        for row, series in zip(curve[1:], (history.loss, history.nfe), strict=True):
            row[:] = np.add.reduceat(series, starts, dtype=np.float64) / sizes
    return {"curve": curve}


def certificate(side: Side, x: Tensor) -> dict[str, Any]:
    """Return the loosest certified tolerance, and the evaluations that it takes."""
    found = side.model.flow.certify(x[followed(len(x))][:: max(min(len(x), PATHS) // CHECKED, 1)])
    return {"tolerance": finite(found.tolerance), "nfe": finite(found.nfe), "tightest": found.checks[-1].rtol}


def finite(value: Any) -> float | None:
    """Return a number, or ``None`` for NaN and infinity, which JSON does not have."""
    number = float(value)
    return number if math.isfinite(number) else None


def packed(head: dict[str, Any], arrays: dict[str, Array]) -> bytes:
    """Pack numbers and arrays into one message."""
    listed = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps({**head, "arrays": listed}, allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    parts = [len(text).to_bytes(4, "little"), text]
    for array in arrays.values():
        content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        parts += [content, b"\0" * (-len(content) % 4)]
    return b"".join(parts)
