"""The processes that tests start, as /proc shows them."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def wait_until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait until a condition is true, and return what it returned."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def children(parent: int) -> Iterator[int]:
    """The ids of the training processes that a process has started."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            owner = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_text()
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        if owner == parent and "spawn_main" in command:
            yield int(folder.name)


def hears_ctrl_c(process: int) -> bool:
    """Whether a process neither ignores nor blocks SIGINT, as those that train do once they have begun."""
    status = Path(f"/proc/{process}/status").read_text()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigIgn:", "SigBlk:"))]
    return not any(mask >> (signal.SIGINT - 1) & 1 for mask in masks)


def alive_with(mark: str) -> list[int]:
    """The ids of all processes whose environment holds a text, but for those that have ended and wait to be read."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes() and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except OSError:
            continue
    return found
