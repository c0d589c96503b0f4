"""The environment in which results were computed."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anode
from anode.engine import native


def environment() -> dict[str, Any]:
    """Return versions, machine and git revision."""
    return {
        "anode": anode.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "engine": engine(),
        "revision": revision(),
        "date": date.today().isoformat(),
    }


def together(environments: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the environments of several runs; values that differ are listed."""
    keys = dict.fromkeys(key for each in environments for key in each)
    found = {key: list(dict.fromkeys(each.get(key, "not recorded") for each in environments)) for key in keys}
    return {key: values[0] if len(values) == 1 else "; ".join(map(str, values)) for key, values in found.items()}


def engine() -> str:
    """Return the engine that computes on a CPU, with its instruction set."""
    sets = native.instruction_sets()
    return f"native, {sets[0]}" if sets else "torch"


def revision() -> str:
    """Return the git revision of the source, marked if it was modified; empty outside of the repository."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return ""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        # Only the source: the results may just be changing.
        return git("describe", "--always", "--abbrev=10") + (
            "-dirty" if git("status", "--porcelain", "--", "src", "native") else ""
        )
    except (OSError, subprocess.SubprocessError):
        return ""
