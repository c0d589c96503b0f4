"""Calls that leave no traces: random numbers, of which torch has one generator for all threads, and modes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import RLock

import torch
from torch import nn

_ONE_AT_A_TIME = RLock()


@contextmanager
def apart(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Restore the state of torch's random number generators after the block.

    Only one thread at a time runs such a block, because restoring the state would change another thread's numbers.

    Args:
        devices: GPUs whose random number generators are restored too.
    """
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=list(devices)):
        yield


@contextmanager
def with_seed(seed: int, devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Seed torch's random number generators for the block, and restore their state afterwards; see :func:`apart`."""
    with apart(devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Disable gradients, switch to evaluation mode, and restore modes and random numbers afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    with torch.no_grad(), apart(devices):
        module.eval()
        try:
            yield
        finally:
            for part, mode in modes:
                part.training = mode
