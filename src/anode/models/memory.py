"""How much memory a solve may keep for its backward pass."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from torch import Tensor

VARIABLE = "ANODE_KEEP_BYTES"
"""The environment variable that sets the budget of every solve, in bytes."""

SHARE = 0.5
"""The share of the available memory that all processors together may use."""

FALLBACK = 2**30
"""The budget in bytes where the available memory is unknown: not on Linux, or not on a CPU."""

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def bytes_to_keep(y: Tensor) -> int:
    """Return the number of bytes that a solve may keep for its backward pass. Results do not depend on it.

    ``ANODE_KEEP_BYTES`` sets it. By default it is half of the memory that is available now, times the share of the
    processors that this process computes with. Processes that train side by side, with one thread each, thus divide the
    memory among themselves. Reading it takes less than 0.1 ms.

    Args:
        y: A state of the solve.

    Raises:
        ValueError: If ``ANODE_KEEP_BYTES`` is not a whole number from 0.
    """
    given = os.environ.get(VARIABLE, "").strip()
    if given:
        if not re.fullmatch(r"[0-9]+", given):
            raise ValueError(f"{VARIABLE}: takes a whole number of bytes, got {given!r}")
        return int(given)
    available = available_bytes() if y.device.type == "cpu" else None
    if available is None:
        return FALLBACK
    processors = os.cpu_count() or 1
    return int(SHARE * available * min(torch.get_num_threads(), processors) / processors)


def available_bytes() -> int | None:
    """Return the memory that new allocations can use without swapping; ``None`` if the system does not say.

    This is Linux's ``MemAvailable``, or what is left of the limit of the process's container if that is less.
    """
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", MEMINFO.read_text(), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    available = 1024 * int(found[1])
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return available
    return min(available, max(0, int(limit) - int(used))) if limit.isdigit() else available
