"""Times training iterations on images against torchdiffeq, with the same model, weights and batch.

Run ``python benchmarks/images.py`` (half an hour on two cores). The rival is the model as it is usually written. It
concatenates time as a channel before each convolution. It solves with torchdiffeq's ``odeint_adjoint``, as the paper's
authors do, or differentiates through its ``odeint``. The sides take turns, and the median over the turns is reported.
Memory is the peak of a separate process that runs two iterations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torchdiffeq
from torch import Tensor, nn

import anode

SOLVER = {"rtol": 1e-3, "atol": 1e-3, "method": "dopri5"}
SIDES = ("anode", "odeint", "odeint_adjoint")


@dataclass(frozen=True)
class Case:
    """A model and its batch."""

    name: str
    image: tuple[int, int, int]
    augment: int
    filters: int = 64
    batch: int = 256


CASES = {
    "mnist": Case("MNIST, ANODE p = 5", (1, 28, 28), 5),
    "cifar10": Case("CIFAR-10, ANODE p = 10", (3, 32, 32), 10),
}


class TimeConv(nn.Conv2d):
    """A convolution with the time as one more input channel, the last."""

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        """The convolution."""
        return super().forward(torch.cat([x, torch.ones_like(x[:, :1]) * t], 1))


class Usual(nn.Module):
    """The model written the usual way."""

    def __init__(self, case: Case, solver: Callable[..., Tensor]) -> None:
        super().__init__()
        channels, height, width = case.image
        state = channels + case.augment
        self.first = TimeConv(state + 1, case.filters, 1)
        self.middle = TimeConv(case.filters + 1, case.filters, 3, padding=1)
        self.last = TimeConv(case.filters + 1, state, 1)
        self.head = nn.Linear(state * height * width, 10)
        self.augment, self.solver = case.augment, solver
        self.field = Rate(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        zeros = x.new_zeros(len(x), self.augment, *x.shape[2:])
        ends = self.solver(self.field, torch.cat([x, zeros], 1), torch.tensor([0.0, 1.0]), **SOLVER)
        return self.head(ends[-1].flatten(1))


class Rate(nn.Module):
    """The field: it shares the convolutions of a model, and counts."""

    def __init__(self, model: Usual) -> None:
        super().__init__()
        self.first, self.middle, self.last = model.first, model.middle, model.last
        self.nfe = 0

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """dh/dt."""
        self.nfe += 1
        return self.last(t, torch.relu(self.middle(t, torch.relu(self.first(t, h)))))


def new_models(case: Case) -> tuple[anode.ImageNeuralODE, Usual, Usual]:
    """Our model and two of the usual kind."""
    torch.manual_seed(0)
    ours = anode.ImageNeuralODE(case.image, 10, case.filters, augment=case.augment)
    usual = Usual(case, torchdiffeq.odeint), Usual(case, torchdiffeq.odeint_adjoint)
    for model in usual:
        copy_weights(ours, model)
    return ours, *usual


@torch.no_grad()
def copy_weights(ours: anode.ImageNeuralODE, usual: Usual) -> None:
    field = ours.flow.field
    for i, layer in enumerate((usual.first, usual.middle, usual.last)):
        layer.weight.copy_(torch.cat([field.weights[i], field.time_weights[i].unsqueeze(1)], 1))
        layer.bias.copy_(field.biases[i])
    usual.head.load_state_dict(ours.head.state_dict())


def iterations(case: Case, ours: anode.ImageNeuralODE, *usual: Usual) -> dict[str, Callable[[], tuple[float, int]]]:
    """A training iteration of each side, which returns its loss and its forward NFE."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(case.batch, *case.image, generator=generator)
    y = torch.randint(0, 10, (case.batch,), generator=generator)

    def step(model: nn.Module, predict: Callable[[], tuple[Tensor, int]]) -> Callable[[], tuple[float, int]]:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

        def run() -> tuple[float, int]:
            optimizer.zero_grad()
            logits, nfe = predict()
            loss = nn.functional.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            return loss.item(), nfe

        return run

    def of_ours(model: anode.ImageNeuralODE) -> Callable[[], tuple[Tensor, int]]:
        def predict() -> tuple[Tensor, int]:
            outcome = model.run(x)
            return outcome.prediction, outcome.solution.stats.nfe

        return predict

    def of_usual(model: Usual) -> Callable[[], tuple[Tensor, int]]:
        def predict() -> tuple[Tensor, int]:
            model.field.nfe = 0
            logits = model(x)
            return logits, model.field.nfe

        return predict

    return {
        "anode": step(ours, of_ours(ours)),
        **{side: step(model, of_usual(model)) for side, model in zip(SIDES[1:], usual, strict=True)},
    }


def timed(case: Case, turns: int) -> dict[str, float | int]:
    """Median seconds of an iteration of every side, and its NFE; stops if they do not agree."""
    ours, *usual = new_models(case)
    sides = iterations(case, ours, *usual)
    record: dict[str, list[float]] = {side: [] for side in sides}
    outcomes: dict[str, list[tuple[float, int]]] = {side: [] for side in sides}
    for turn in range(turns + 1):
        for model in usual:  # gradients of the adjoint differ slightly; start every turn from the same weights
            copy_weights(ours, model)
        for side, iterate in sides.items():
            start = time.perf_counter()
            outcomes[side].append(iterate())
            if turn:  # the first turn warms up
                record[side].append(time.perf_counter() - start)
            print(f"  turn {turn}, {side}: {time.perf_counter() - start:.2f} s", file=sys.stderr, flush=True)
    for side in SIDES[1:]:
        for (loss, nfe), (other, others) in zip(outcomes["anode"], outcomes[side], strict=True):
            assert nfe == others, f"{side} took {others} evaluations, anode {nfe}"
            assert abs(loss - other) < 1e-3 * abs(loss), f"{side} has the loss {other}, anode {loss}"
    medians: dict[str, float | int] = {side: statistics.median(values) for side, values in record.items()}
    return {**medians, "nfe": outcomes["anode"][-1][1]}


def own_peak_megabytes() -> float:
    """Return the peak memory of this process; ``getrusage`` would include that of its parent."""
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) / 1024


def peak_megabytes(case: str, side: str, batch: int, threads: int) -> float:
    options = ["--memory", case, side, "--batch", str(batch), "--threads", str(threads)]
    run = subprocess.run([sys.executable, __file__, *options], capture_output=True, text=True, check=True)
    return float(run.stdout)


def images_per_second(case: Case, turns: int) -> dict[str, float]:
    """Predictions of a batch without gradients, ours and through torchdiffeq's ``odeint``."""
    ours, usual, _ = new_models(case)
    x = torch.rand(case.batch, *case.image)
    times: dict[str, list[float]] = {"anode": [], "odeint": []}
    with torch.no_grad():
        for turn in range(turns + 1):
            for side, model in (("anode", ours), ("odeint", usual)):
                start = time.perf_counter()
                model(x)
                if turn:
                    times[side].append(time.perf_counter() - start)
    return {side: case.batch / statistics.median(values) for side, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=f"cases to measure: {', '.join(CASES)}")
    parser.add_argument("--turns", type=int, default=3, help="timed iterations per side (default: 3)")
    parser.add_argument("--batch", type=int, default=256, help="batch size (default: 256)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default: 2)")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "SIDE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory:
        case, side = arguments.memory
        chosen = replace(CASES[case], batch=arguments.batch)
        iterate = iterations(chosen, *new_models(chosen))[side]
        for _ in range(2):
            iterate()
        print(own_peak_megabytes())
        return
    results = {}
    for name in arguments.cases:
        case = replace(CASES[name], batch=arguments.batch)
        row: dict[str, object] = {**timed(case, arguments.turns)}
        row["peak MB"] = {side: peak_megabytes(name, side, arguments.batch, arguments.threads) for side in SIDES}
        row["images/s"] = images_per_second(case, arguments.turns)
        results[name] = row
        print(f"{case.name}, {case.filters} filters, batch {case.batch}, {arguments.threads} threads, NFE {row['nfe']}")
        for side in SIDES:
            ratio = row[side] / row["anode"]  # type: ignore[operator]
            share = row["peak MB"][side] / row["peak MB"]["anode"]  # type: ignore[index]
            memory = f"{row['peak MB'][side]:7.0f} MB ({share:.2f}x)"  # type: ignore[index]
            print(f"  {side:16}{row[side]:7.2f} s per iteration ({ratio:.2f}x) {memory}")
        rates = row["images/s"]
        print(f"  inference: anode {rates['anode']:.0f} images/s, odeint {rates['odeint']:.0f}")  # type: ignore[index]
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
