"""The complete state of a training run, from which it resumes with exactly the same result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from anode.storage import tensors_from_bytes, tensors_to_bytes
from anode.train.formats import from_arrays, to_arrays
from anode.train.optimizers import add_groups, names_in_groups, plain_state, restore_state
from anode.train.record import Table

if TYPE_CHECKING:
    from anode.train.training import Training


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training run between two iterations.

    It does not include the position in the data, which follows from the number of iterations.

    Attributes:
        iteration: Number of iterations so far.
        content: Small values that JSON can hold.
        tensors: Everything else.
    """

    iteration: int
    content: dict[str, Any]
    tensors: dict[str, Tensor]

    def to_bytes(self) -> list[bytes]:
        """Return the content and the tensors as bytes, for another process."""
        return [json.dumps([self.iteration, self.content]).encode(), tensors_to_bytes(self.tensors)]

    @classmethod
    def from_bytes(cls, parts: list[bytes]) -> Checkpoint:
        """Return the checkpoint that :meth:`to_bytes` of another process described."""
        iteration, content = json.loads(parts[0])
        return cls(iteration, content, tensors_from_bytes(parts[1]))


def capture(training: Training) -> Checkpoint:
    """Return the state of a run."""
    members = training.members
    tensors = {f"model.{name}": value for name, value in values_of(training.model).items()}
    optimizer, moments = plain_state(training.optimizer)
    tensors |= {f"optimizer.{name}": value for name, value in moments.items()}
    for i, (_, values) in enumerate(members.set_aside):
        tensors |= {f"aside.{i}.{j}": value for j, value in enumerate(values)}
    history, arrays = to_arrays(training.history)
    tensors |= {name: torch.from_numpy(array) for name, array in arrays.items()}
    tensors |= {f"best.{name}": value for name, value in training.patience.best.items()}
    tensors["frozen"] = members.frozen
    tensors["random"] = torch.get_rng_state()
    if training.parameters[0].is_cuda:
        tensors["random.cuda"] = torch.cuda.get_rng_state(training.parameters[0].device)
    followed = {id(parameter) for parameter in training.parameters}
    names = {id(parameter): name for name, parameter in training.model.named_parameters()}
    content = {
        "optimizer": optimizer,
        "untrained": [name for name, p in training.model.named_parameters() if not p.requires_grad],
        "moved": names_in_groups(training.optimizer, names),
        "followed": [name for name, p in training.model.named_parameters() if id(p) in followed],
        "aside": [member for member, _ in members.set_aside],
        "history": history,
        "patience": [training.patience.lowest, training.patience.since] if training.patience.best else None,
    }
    return Checkpoint(len(training.record), content, tensors)


@torch.no_grad()
def restore(training: Training, state: Checkpoint) -> None:
    """Restore the state of a run with the same protocol.

    Args:
        training: The run, which has not started.
        state: The state to restore.
    """
    members, evaluation, tensors = training.members, training.evaluation, state.tensors
    for name, value in values_of(training.model).items():
        value.copy_(tensors[f"model.{name}"])
    if "followed" in state.content:  # checkpoints of version 0.2.0 do not have it, nor "moved"
        untrained, named = state.content["untrained"], dict(training.model.named_parameters())
        for name, parameter in named.items():
            parameter.requires_grad_(name not in untrained)
        training.parameters[:] = [named[name] for name in state.content["followed"]]
    members.frozen = tensors["frozen"]
    members.set_aside = [
        (member, [tensors[f"aside.{i}.{j}"].to(p.device) for j, p in enumerate(training.parameters)])
        for i, member in enumerate(state.content["aside"])
    ]
    history = from_arrays(state.content["history"], {name: tensor.numpy() for name, tensor in tensors.items()})
    training.failures, evaluation.snapshots = history["failures"], history["snapshots"]
    training.record.restore(history)
    evaluation.done = _restore_looks(training, evaluation.record, history, "validation_at")
    _restore_looks(training, evaluation.checks, history, "check_at")
    training.schedule.replay(state.iteration, evaluation.losses())
    moments = {
        name.removeprefix("optimizer."): value for name, value in tensors.items() if name.startswith("optimizer.")
    }
    add_groups(training.optimizer, state.content.get("moved", ()), dict(training.model.named_parameters()))
    restore_state(training.optimizer, state.content["optimizer"], moments)
    if state.content.get("patience"):
        training.patience.lowest, training.patience.since = state.content["patience"]
        training.patience.best = {
            name: tensors[f"best.{name}"].to(v.device) for name, v in values_of(training.model).items()
        }
    torch.set_rng_state(tensors["random"])
    if "random.cuda" in tensors and training.parameters[0].is_cuda:
        torch.cuda.set_rng_state(tensors["random.cuda"], training.parameters[0].device)


def _restore_looks(training: Training, table: Table, history: dict[str, Any], at: str) -> int:
    """Restore the results of evaluations or checks, and return the number of iterations before the last of them.

    The extra evaluation at the end of the earlier run is dropped if the resumed run has more epochs.

    Args:
        training: The run.
        table: The table to restore.
        history: The recorded series.
        at: Name of the series of iterations.
    """
    moments = history.get(at, np.empty(0, np.int64))
    wanted = training.protocol.checks_after if at == "check_at" else training.protocol.evaluates_after
    kept = [each == training.total or wanted(each) for each in moments.tolist()]
    if not any(kept):
        return 0
    table.restore({name: history[name][kept] for name in table.names})
    return int(moments[kept][-1])


def values_of(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
