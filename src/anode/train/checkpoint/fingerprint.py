"""Whether two training runs are the same one: a short description of everything that their results depend on."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import torch
from torch import Tensor

from anode.models.description import configuration
from anode.models.model import Model
from anode.train.points import Points
from anode.train.protocol import Protocol
from anode.train.streams import Stream

MOST_BYTES = 2**28
"""Of larger data only as much as this is looked at, evenly spread."""


def fingerprint(model: Model, protocol: Protocol) -> dict[str, Any]:
    """What has to be the same for a training run to be taken up, by the names of the arguments of :func:`anode.fit`.

    The number of epochs is not among it, nor are the values of the model's parameters.
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


def digest(content: Any) -> str:
    """A short name for anything JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def differences(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """What differs between two fingerprints, in words."""
    found = []
    for name in sorted(now.keys() | before.keys()):
        if (ours := now.get(name)) == (theirs := before.get(name)):
            continue
        short = all(value is None or isinstance(value, int | float | str) for value in (ours, theirs))
        found.append(f"{name} was {theirs!r} and is {ours!r}" if short else f"{name} is another")
    return found


def _points(points: Points | Stream) -> list[Any]:
    if isinstance(points, Stream):
        return [points.kind, points.batches]
    return [_tensor(part) for part in (points.x, points.y, points.weights) if part is not None]


def _tensor(values: Tensor) -> list[Any]:
    shape = list(values.shape)
    if values.ndim and values.stride(0) == 0:
        values = values[0]  # all members have the same
    values = values.detach().contiguous()
    size = values.numel() * values.element_size()
    if size > MOST_BYTES:
        values = values[:: -(-size // MOST_BYTES)].contiguous()
    content = values.cpu().reshape(-1).view(torch.uint8).numpy()
    return [shape, str(values.dtype), hashlib.sha256(content.data).hexdigest()]


def _without_addresses(text: str) -> str:
    """The text without places in memory, which are others in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
