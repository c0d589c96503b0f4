"""Peak memory of a training step as the number of solver steps grows, for each gradient and for torchdiffeq.

Run ``python benchmarks/memory.py``. Each number is the peak resident memory of its own process, minus that of a process
that takes a single step. The field is a 4-2048-4 network with batch size 256. A state takes 4 KiB, and the activations
of one evaluation take 4 MiB.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import torch
import torchdiffeq
from torch import nn

import anode

STEPS = (1, 10, 20, 40)
SIDES = ("anode discrete", "anode continuous", "anode stored", "torchdiffeq odeint", "torchdiffeq odeint_adjoint")


def training_step(side: str, steps: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = nn.Sequential(nn.Linear(4, 2048), nn.Tanh(), nn.Linear(2048, 4))

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.network(y)

    field, y0, library, gradient = Field(), torch.rand(256, 4), *side.split()
    if library == "anode":
        y1 = anode.solve(field, y0, (0.0, 1.0), method="rk4", step_size=1 / steps, gradient=gradient).y1
    else:
        options = {"method": "rk4", "options": {"step_size": 1 / steps}}
        y1 = getattr(torchdiffeq, gradient)(field, y0, torch.tensor([0.0, 1.0]), **options)[-1]
    y1.sum().backward()


def peak_megabytes(side: str, steps: int) -> float:
    run = subprocess.run([sys.executable, __file__, side, str(steps)], capture_output=True, text=True, check=True)
    return float(run.stdout)


def main() -> None:
    if len(sys.argv) == 3:
        training_step(sys.argv[1], int(sys.argv[2]))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    print(f"{'rk4 steps':28}" + "".join(f"{steps:>10}" for steps in STEPS[1:]))
    for side in SIDES:
        first, *others = (peak_megabytes(side, steps) for steps in STEPS)
        print(f"{side:28}" + "".join(f"{peak - first:7.1f} MB" for peak in others))


if __name__ == "__main__":
    main()
