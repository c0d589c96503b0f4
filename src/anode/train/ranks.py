"""Data-parallel training: several processes train one model, each on a share of every batch, with PyTorch's engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anode.checks import require
from anode.models.flow import Flow


@contextmanager
def start() -> Iterator[int]:
    """Join the process group of ``torchrun`` for the duration of the block. Does nothing without ``torchrun``.

    In every process the model must be on its own GPU, or on the CPU.

    Yields:
        The rank of this process; 0 without ``torchrun``.

    Example:
        >>> with start() as rank:
        ...     rank
        0
    """
    started = {"RANK", "WORLD_SIZE"} <= os.environ.keys()
    if not started or not dist.is_available() or dist.is_initialized():
        yield dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class Share:
    """A process's share of a batch.

    Attributes:
        points: Indices of its points. A process without points gets one anyway, so that all take the same steps.
        weight: The share as a fraction of the batch; 0 for a process without points.
    """

    points: Tensor
    weight: float

    def of(self, value: Tensor) -> Tensor:
        """Return the contribution of this share to a mean over the batch."""
        return value * self.weight if self.weight else torch.zeros_like(value)  # 0 times NaN would be NaN


WHOLE = Share(torch.empty(0), 1.0)
"""The share of a process that takes whole batches."""


class SharedNorm:
    """The root mean square over the states of all processes, so that all take the same steps."""

    def __init__(self) -> None:
        self.counts = True  # whether this process has points; if not, its point belongs to another process

    def __call__(self, error: Tensor) -> Tensor:
        square = torch.linalg.vector_norm(error.detach()).double().square()
        sums = torch.stack([square, torch.full_like(square, error.numel())])
        if not self.counts:
            sums.zero_()
        dist.all_reduce(sums)
        return (sums[0] / sums[1]).sqrt()


class Ranks:
    """The processes that train together: those of ``torch.distributed``, or only this one.

    Args:
        device: The device of the model.
    """

    def __init__(self, device: torch.device) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        self.device, self.norm = device, SharedNorm()

    @property
    def alone(self) -> bool:
        """Whether there is only this process."""
        return self.size == 1

    @property
    def first(self) -> bool:
        """Whether this is the first process, which reports progress and saves checkpoints."""
        return self.rank == 0

    def check(self, model: nn.Module, members: int | None, is_stream: bool, protocol: Callable[[], str]) -> None:
        """Check that a model can be trained by several processes, and that all processes have the same arguments.

        Args:
            model: The model.
            members: Number of members of a stack; ``None`` for a single model.
            is_stream: Whether the data come in batches.
            protocol: Returns a digest of the arguments.
        """
        if self.alone:
            return
        require(members is None, "model", f"a stack of {members}", "a single model if several processes train it")
        require(not is_stream, "data", "batches", "tensors if several processes train a model, to share every batch")
        for flow in (module for module in model.modules() if isinstance(module, Flow)):
            takes = 'flows with control="joint" if several processes train a model'
            control, gradient = flow.solver.control, flow.solver.gradient_method
            require(control in ("auto", "joint", 0), "model", f"control={control!r}", takes)
            takes = 'flows with gradient="discrete" or "stored" if several processes train a model'
            require(gradient.across_processes, "model", f"gradient={flow.solver.gradient!r}", takes)
        name = protocol()
        (asked,) = self.from_first(lambda: [name.encode()])
        if any(self.any(asked.decode() != name)):
            raise ValueError("data, model: take the same data, model and settings in every process, got different ones")

    def share(self, batch: Tensor) -> Share:
        """Return this process's share of a batch, which is split as evenly as possible."""
        if self.alone:
            return Share(batch, 1.0)
        points = batch.tensor_split(self.size, dim=-1)[self.rank]
        self.norm.counts = points.shape[-1] > 0
        return Share(points if self.norm.counts else batch[..., :1], points.shape[-1] / batch.shape[-1])

    @contextmanager
    def joined(self, model: nn.Module) -> Iterator[None]:
        """Make the flows of a model choose their steps by the points of all processes, in the body."""
        flows = [] if self.alone else [module for module in model.modules() if isinstance(module, Flow)]
        before = [flow.norm for flow in flows]
        try:
            for flow in flows:
                flow.norm = self.norm
            yield
        finally:
            for flow, norm in zip(flows, before, strict=True):
                flow.norm = norm

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        if self.alone:
            return values
        sums = values.detach().to(self.device, torch.float64, copy=True)
        dist.all_reduce(sums)
        return sums

    def any(self, *flags: bool) -> list[bool]:
        """Return, for each flag, whether it is set in any process."""
        if self.alone:
            return list(flags)
        return (self.total(torch.tensor(flags, dtype=torch.float64)) > 0).tolist()

    def agree(self, values: dict[str, Tensor], statuses: Tensor, share: Share) -> tuple[dict[str, Tensor], Tensor]:
        """Return the means over the whole batch, and the largest status of all processes."""
        if self.alone:
            return values, statuses
        parts = torch.stack([share.of(value.double()) for value in values.values()]).cpu()
        seen = torch.zeros(16, dtype=torch.float64)  # how many processes have each status
        seen[statuses] = 1.0
        sums = self.total(torch.cat([parts, seen])).cpu()
        worst = sums[len(values) :].nonzero().max().reshape(1)
        return dict(zip(values, sums, strict=False)), worst

    @torch.no_grad()
    def sum_gradients(self, parameters: list[Tensor]) -> None:
        """Replace the gradients in every process by their sum; ``None`` if no process has one."""
        if self.alone:
            return
        there = torch.tensor([p.grad is not None for p in parameters], dtype=torch.float64, device=self.device)
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        sums = torch.cat([there.to(own[0].dtype), *(gradient.flatten() for gradient in own)])
        dist.all_reduce(sums)
        there, *parts = sums.split([len(parameters), *(p.numel() for p in parameters)])
        for parameter, part, some in zip(parameters, parts, there.tolist(), strict=True):
            parameter.grad = part.reshape(parameter.shape).to(parameter.dtype) if some else None

    @torch.no_grad()
    def copy_from_first(self, values: list[Tensor]) -> None:
        """Overwrite tensors with those of the first process."""
        for value in [] if self.alone else values:
            sent = value.to(self.device).contiguous()
            dist.broadcast(sent, 0)
            value.copy_(sent)

    def from_first(self, make: Callable[[], list[bytes]]) -> list[bytes]:
        """Call a function in the first process and return its result in all. If it raises an error, all do."""
        if self.alone:
            return make()
        error, parts = None, []
        if self.first:
            try:
                parts = make()
            except Exception as raised:
                error = raised
        described = json.dumps({"sizes": [len(part) for part in parts], "error": None if error is None else str(error)})
        header = json.loads(self._broadcast(described.encode() if self.first else None))
        if error is not None:
            raise error
        if header["error"] is not None:
            raise RuntimeError(f"the first process could not go on: {header['error']}")
        return [self._broadcast(parts[i] if self.first else None) for i in range(len(header["sizes"]))]

    def _broadcast(self, content: bytes | None) -> bytes:
        size = torch.tensor([0 if content is None else len(content)], device=self.device)
        dist.broadcast(size, 0)
        sent = torch.zeros(int(size), dtype=torch.uint8, device=self.device)
        if content is not None:
            sent.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else sent)
        dist.broadcast(sent, 0)
        return sent.cpu().numpy().tobytes()
