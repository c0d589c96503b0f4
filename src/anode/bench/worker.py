"""A process that runs the tasks of one library on request.

It is started as ``python -m anode.bench.worker SIDE THREADS FIRST_PROCESSOR``. Every line of its input is a
request in JSON, every line of its output the answer.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer requests until there are no more."""
    side, threads, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if hasattr(os, "sched_setaffinity"):
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, processors[first : first + threads] or processors)
    answers, sys.stdout = sys.stdout, sys.stderr  # keep the output of libraries out of the answers
    import torch

    from anode.bench.sides import SIDES, Work
    from anode.bench.tasks import Task

    torch.set_num_threads(threads)
    module = importlib.import_module(f"anode.bench.sides.{SIDES[side]}")
    work: Work | None = None
    iterations = 1
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        if "task" in request:
            settings: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in request["task"].items()}
            task = Task(**settings)
            before = peak_megabytes(anew=True)
            work, iterations = module.work(task), task.iterations
            outcome = work.run()  # also warms up and compiles
            answer = {"outcome": outcome.ravel()[:200].tolist(), "megabytes": peak_megabytes() - before}
            answer |= {**counted(work.nfe()), "engine": work.engine()}
        else:
            assert work is not None
            answer = {"seconds": turn(work.run, request["seconds"]) / iterations}
        print(json.dumps(answer), file=answers, flush=True)


def counted(nfe: Any) -> dict[str, float]:
    """Return the NFE of the first solve, where all libraries have the same weights, and the mean over all solves."""
    return {"nfe": float(nfe.flat[0]), "mean_nfe": float(nfe.mean())}


def turn(run: Any, seconds: float) -> float:
    """Return the mean time of a task, repeated for some seconds and at least once."""
    count, start = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - start < seconds:
        run()
        count += 1
    return (time.perf_counter() - start) / count


def peak_megabytes(anew: bool = False) -> float:
    """Return the peak memory of this process; on Linux, ``anew`` resets the peak."""
    status = Path("/proc/self/status")
    if not status.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1024**2
    if anew:
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
