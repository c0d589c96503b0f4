"""The whole state of a training run, from which it goes on as if nothing had happened."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anode.files import tensors_from_bytes, tensors_to_bytes
from anode.train.optimizers import plain_state, restore_state
from anode.train.record import Array, Failure, Snapshot, Table

if TYPE_CHECKING:
    from anode.train.fit import Training


@dataclass(frozen=True)
class Checkpoint:
    """A training run between two iterations.

    The position in the data is not a part of it: that is a function of the number of iterations.

    Attributes:
        iteration: How many iterations have been made.
        content: What is small, as JSON has it.
        tensors: Everything else.
    """

    iteration: int
    content: dict[str, Any]
    tensors: dict[str, Tensor]

    def to_bytes(self) -> list[bytes]:
        """What is small and the tensors, for another process."""
        return [json.dumps([self.iteration, self.content]).encode(), tensors_to_bytes(self.tensors)]

    @classmethod
    def from_bytes(cls, parts: list[bytes]) -> Checkpoint:
        """The same from another process."""
        iteration, content = json.loads(parts[0])
        return cls(iteration, content, tensors_from_bytes(parts[1]))


def capture(training: Training) -> Checkpoint:
    """The state of a run."""
    members, evaluation = training.members, training.evaluation
    tensors = {f"model.{name}": value for name, value in values_of(training.model).items()}
    optimizer, moments = plain_state(training.optimizer)
    tensors |= {f"optimizer.{name}": value for name, value in moments.items()}
    for i, (_, values) in enumerate(members.set_aside):
        tensors |= {f"aside.{i}.{j}": value for j, value in enumerate(values)}
    for name, table in (("record", training.record), ("evaluation", evaluation.record)):
        tensors |= {f"{name}.{column}": torch.from_numpy(array) for column, array in table.arrays().items()}
    for i, snapshot in enumerate(evaluation.snapshots):
        tensors[f"snapshot.{i}.features"] = torch.from_numpy(snapshot.features)
        tensors[f"snapshot.{i}.nfe"] = torch.as_tensor(snapshot.nfe)
    tensors |= {f"best.{name}": value for name, value in training.patience.best.items()}
    tensors["frozen"] = members.frozen
    tensors["random"] = torch.get_rng_state()
    if training.parameters[0].is_cuda:
        tensors["random.cuda"] = torch.cuda.get_rng_state(training.parameters[0].device)
    content = {
        "optimizer": optimizer,
        "aside": [member for member, _ in members.set_aside],
        "failures": [asdict(failure) for failure in training.failures],
        "snapshots": [snapshot.iteration for snapshot in evaluation.snapshots],
        "patience": [training.patience.lowest, training.patience.since] if training.patience.best else None,
    }
    return Checkpoint(len(training.record), content, tensors)


@torch.no_grad()
def restore(training: Training, state: Checkpoint, total: int) -> None:
    """Take up a run where another of the same protocol was.

    Args:
        training: The run, which has not begun.
        state: That of the other.
        total: How many iterations are to be made in all.
    """
    members, evaluation, tensors = training.members, training.evaluation, state.tensors
    for name, value in values_of(training.model).items():
        value.copy_(tensors[f"model.{name}"])
    members.frozen = tensors["frozen"]
    members.set_aside = [
        (member, [tensors[f"aside.{i}.{j}"].to(p.device) for j, p in enumerate(training.parameters)])
        for i, member in enumerate(state.content["aside"])
    ]
    training.failures = [Failure(**failure) for failure in state.content["failures"]]
    training.record.restore(_columns(training.record, "record", tensors))
    seen = _columns(evaluation.record, "evaluation", tensors)
    # A run that was to end here has looked at its last iteration; one that goes on would not have.
    kept = [at == total or training.protocol.evaluates_after(at) for at in seen["validation_at"].tolist()]
    evaluation.record.restore({name: column[kept] for name, column in seen.items()})
    evaluation.done = int(seen["validation_at"][kept][-1]) if any(kept) else 0
    training.schedule.replay(state.iteration, evaluation.losses())
    moments = {
        name.removeprefix("optimizer."): value for name, value in tensors.items() if name.startswith("optimizer.")
    }
    restore_state(training.optimizer, state.content["optimizer"], moments)
    evaluation.snapshots = [
        Snapshot(at, tensors[f"snapshot.{i}.features"].numpy(), tensors[f"snapshot.{i}.nfe"].numpy())
        for i, at in enumerate(state.content["snapshots"])
    ]
    if state.content.get("patience"):
        training.patience.lowest, training.patience.since = state.content["patience"]
        training.patience.best = {
            name: tensors[f"best.{name}"].to(v.device) for name, v in values_of(training.model).items()
        }
    torch.set_rng_state(tensors["random"])
    if "random.cuda" in tensors and training.parameters[0].is_cuda:
        torch.cuda.set_rng_state(tensors["random.cuda"], training.parameters[0].device)


def values_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _columns(table: Table, name: str, tensors: dict[str, Tensor]) -> dict[str, Array]:
    return {column: tensors[f"{name}.{column}"].numpy() for column in table.names}
