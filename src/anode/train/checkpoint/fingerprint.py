"""Fingerprints of training runs: a short description of everything that the result depends on."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import torch
from torch import Tensor

from anode.models.alike import configuration
from anode.models.model import Model
from anode.train.points import Points
from anode.train.protocol import Protocol
from anode.train.streams import Stream

MOST_BYTES = 2**28
"""Maximum number of bytes of a tensor that are hashed; a larger tensor is sampled evenly."""


def fingerprint(model: Model, protocol: Protocol) -> dict[str, Any]:
    """Return what must be the same to resume a training run, by the names of the arguments of :func:`anode.fit`.

    It does not include the number of epochs and the values of the model's parameters.
    """
    snapshots = protocol.snapshots
    parameters = {
        name: [str(p.dtype), list(p.shape), p.requires_grad]
        for name, p in model.named_parameters(remove_duplicate=False)
    }
    described = {
        **protocol.settings(),
        "model": [configuration(model), parameters],
        "data": _points(protocol.data),
        "validation": None if protocol.validation is None else _points(protocol.validation),
        "snapshots": None if snapshots is None else [_tensor(snapshots.x), [int(at) for at in snapshots.at]],
        "loss": _without_addresses(protocol.loss_name),
    }
    return json.loads(json.dumps(described))


def differences(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Return descriptions of the differences between two fingerprints."""
    found = []
    for name in sorted(now.keys() | before.keys()):
        if (ours := now.get(name)) == (theirs := before.get(name)):
            continue
        short = all(value is None or isinstance(value, int | float | str) for value in (ours, theirs))
        found.append(f"{name} was {theirs!r} and is {ours!r}" if short else f"{name} is different")
    return found


def _points(points: Points | Stream) -> list[Any]:
    if isinstance(points, Stream):
        return [points.kind, points.batches]
    return [_tensor(part) for part in (points.x, points.y, points.weights) if part is not None]


def _tensor(values: Tensor) -> list[Any]:
    shape = list(values.shape)
    if values.ndim and values.stride(0) == 0:
        values = values[0]  # all members share the same data
    values = values.detach().contiguous()
    size = values.numel() * values.element_size()
    if size > MOST_BYTES:
        values = values[:: -(-size // MOST_BYTES)].contiguous()
    content = values.cpu().reshape(-1).view(torch.uint8).numpy()
    return [shape, str(values.dtype), hashlib.sha256(content.data).hexdigest()]


def _without_addresses(text: str) -> str:
    """Remove memory addresses, which differ in every process, from a text."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
