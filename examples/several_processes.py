"""Train one model with several processes, on one machine or many, and compare with a single process.

The training code stays the same. Each process computes its share of every batch. Together they take the same steps, and
compute the same gradient, as one process with the whole batch. Run ``python examples/several_processes.py``, which
starts two processes, or start them with ``torchrun --nproc-per-node 2 examples/several_processes.py``. It takes about
20 seconds, most of them to start.
"""

from __future__ import annotations

import os
import subprocess
import sys

import torch

import anode
from anode.train import ranks


def train() -> tuple[float, int]:
    """Train on images of digits. Return the validation loss, and the evaluations of the last batch."""
    torch.manual_seed(0)  # the same model in every process
    data = anode.images.load("digits").subset(512)
    model = anode.ImageNeuralODE(data.shape, data.classes, filters=8, augment=3)
    test = anode.images.load("digits", "test")
    history = anode.fit(model, data, epochs=3, lr=1e-2, batch_size=64, validation=test, progress=False)
    return float(history.validation[-1]), int(history.nfe[-1])


def main() -> None:
    if "RANK" not in os.environ:
        torch.set_num_threads(1)
        loss, nfe = train()
        print(f"alone: validation loss {loss:.6f}, {nfe} evaluations", flush=True)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return
    with ranks.start() as rank:
        loss, nfe = train()
        if rank == 0:
            print(f"{os.environ['WORLD_SIZE']} processes: validation loss {loss:.6f}, {nfe} evaluations")


if __name__ == "__main__":
    main()
