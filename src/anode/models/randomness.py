"""Random numbers: torch has one generator for all threads of a process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import RLock

import torch

_ONE_AT_A_TIME = RLock()


@contextmanager
def apart(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Restore the state of torch's random number generators after the block.

    Threads wait for each other here: one that puts the stream back while another draws from it would change what that
    one gets.

    Args:
        devices: GPUs, whose random numbers are treated alike.
    """
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=list(devices)):
        yield
