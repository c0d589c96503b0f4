"""Times the Python core against torchdiffeq on a user's own right-hand side, in one process.

Run ``python benchmarks/core.py`` (about two minutes). Every row solves the same problem with the same tolerances on one
thread. The two libraries take turns, and the table shows the median over the turns. ``ratio`` is how many times faster
anode is. ``anode bench speed`` compares the compiled engine, also with other libraries.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torchdiffeq
from torch import Tensor, nn

import anode

TOY = {"rtol": 1e-3, "atol": 1e-3, "method": "dopri5"}
SMALL = {"rtol": 1e-6, "atol": 1e-6, "method": "dopri5"}


@dataclass
class Row:
    """One comparison: median milliseconds and evaluations of f in the forward solve, for each side."""

    name: str
    torchdiffeq_ms: float
    anode_ms: float
    torchdiffeq_nfe: int
    anode_nfe: int

    @property
    def ratio(self) -> float:
        """How many times faster anode is."""
        return self.torchdiffeq_ms / self.anode_ms


class Counted(nn.Module):
    """A right-hand side written as users write it, which counts its evaluations."""

    def __init__(self, network: nn.Module, time: bool) -> None:
        super().__init__()
        self.network, self.time, self.nfe = network, time, 0

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        """Time is appended to the state as one more column."""
        self.nfe += 1
        return self.network(torch.cat([y, t.expand(len(y), 1)], dim=1) if self.time else y)


def toy_network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 7))


def small_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 32), nn.Softplus(), nn.Linear(32, 4), nn.Tanh())


def training_step(field: nn.Module, solve: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[], None]:
    """Solve, linear head, Huber loss, gradient, Adam: the toy experiments' iteration for d = 2, p = 5, batch 64."""
    torch.manual_seed(0)
    x = torch.cat([torch.rand(64, 2) * 2 - 1, torch.zeros(64, 5)], dim=1)
    target = torch.sign(x[:, :1])
    head = nn.Linear(7, 1)
    optimizer = torch.optim.Adam([*field.parameters(), *head.parameters()], lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(head(solve(field, x)), target).backward()
        optimizer.step()

    return step


def compare(name: str, rival: Callable[[], int], ours: Callable[[], int], seconds: float) -> Row:
    """Time two functions that return their NFE, in turns."""
    nfe = [side() for side in (rival, ours)]
    times: list[list[float]] = [[], []]
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times[0]) < 5:
        for side, record in zip((rival, ours), times, strict=True):
            begin = time.perf_counter()
            side()
            record.append(time.perf_counter() - begin)
    medians = [1e3 * statistics.median(record) for record in times]
    return Row(name, medians[0], medians[1], nfe[0], nfe[1])


def counting(field: Counted, run: Callable[[], object]) -> Callable[[], int]:
    """``run``, returning how often it evaluated the field in its forward solve."""

    def counted() -> int:
        field.nfe = 0
        run()
        return field.nfe

    return counted


def toy_rows(seconds: float) -> list[Row]:
    span = torch.tensor([0.0, 1.0])
    torch.manual_seed(0)
    network = toy_network()

    def fresh() -> Counted:
        field = Counted(toy_network(), time=True)
        field.network.load_state_dict(network.state_dict())
        return field

    def with_odeint(odeint: Callable[..., Tensor]) -> Callable[[], int]:
        field = fresh()
        return counting(field, training_step(field, lambda f, x: odeint(f, x, span, **TOY)[-1]))

    def with_solve(field: nn.Module, gradient: str) -> Callable[[], int]:
        nfe = []

        def solve(f: nn.Module, x: Tensor) -> Tensor:
            solution = anode.solve(f, x, (0.0, 1.0), gradient=gradient, **TOY)
            nfe.append(solution.stats.nfe)
            return solution.y1

        step = training_step(field, solve)

        def run() -> int:
            step()
            return nfe[-1]

        return run

    def without_solver() -> Callable[[], int]:
        """Call the field as often as a solve does, each on the last result: the time that no solver can save."""
        field = fresh()

        def chain(f: nn.Module, y: Tensor) -> Tensor:
            for _ in range(20):
                y = f(span[0], y)
            return y

        return counting(field, training_step(field, chain))

    own = "toy training step"
    pairs = [
        (f"{own}, odeint", torchdiffeq.odeint, with_odeint(anode.odeint)),
        (f"{own}, solve", torchdiffeq.odeint, with_solve(fresh(), "discrete")),
        (f"{own}, odeint_adjoint", torchdiffeq.odeint_adjoint, with_odeint(anode.odeint_adjoint)),
        (f"{own}, f alone, without a solver", torchdiffeq.odeint, without_solver()),
    ]
    return [compare(name, with_odeint(rival), ours, seconds) for name, rival, ours in pairs]


def small_rows(seconds: float) -> list[Row]:
    """The shape of diffrax's small benchmark: a 4-32-4 network, batch 64, from 0 to 100, tolerances 1e-6."""
    torch.manual_seed(0)
    field = Counted(small_network(), time=False)
    y0, span = torch.rand(64, 4), torch.tensor([0.0, 100.0])

    def forward(odeint: Callable[..., Tensor]) -> Callable[[], int]:
        return counting(field, torch.no_grad()(lambda: odeint(field, y0, span, **SMALL)))

    def with_gradient(odeint: Callable[..., Tensor]) -> Callable[[], int]:
        def run() -> None:
            field.zero_grad()
            odeint(field, y0, span, **SMALL)[-1].sum().backward()

        return counting(field, run)

    return [
        compare("4-32-4, t1 = 100, forward", forward(torchdiffeq.odeint), forward(anode.odeint), seconds),
        compare(
            "4-32-4, t1 = 100, with gradient", with_gradient(torchdiffeq.odeint), with_gradient(anode.odeint), seconds
        ),
    ]


def cheap_row(seconds: float) -> Row:
    """Time the solver loop itself, with an f of one multiplication."""
    y0, span, calls = torch.ones(2), torch.tensor([0.0, 10.0]), [0]

    def f(t: Tensor, y: Tensor) -> Tensor:
        calls[0] += 1
        return y * -1.0

    def run(odeint: Callable[..., Tensor]) -> Callable[[], int]:
        def once() -> int:
            calls[0] = 0
            with torch.no_grad():
                odeint(f, y0, span, rtol=1e-6, atol=1e-6)
            return calls[0]

        return once

    return compare("y' = -y, the loop itself", run(torchdiffeq.odeint), run(anode.odeint), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to time each row (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [*toy_rows(options.seconds), *small_rows(options.seconds), cheap_row(options.seconds)]
    print(
        f"torch {torch.__version__}, torchdiffeq {torchdiffeq.__version__}, one thread, medians of interleaved turns\n"
    )
    print(f"{'':44} {'torchdiffeq':>14} {'anode':>10} {'ratio':>7}   NFE")
    for row in rows:
        nfe = f"{row.torchdiffeq_nfe} / {row.anode_nfe}"
        print(f"{row.name:44} {row.torchdiffeq_ms:11.2f} ms {row.anode_ms:7.2f} ms {row.ratio:6.2f}x   {nfe}")
    if options.json:
        options.json.write_text(json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
