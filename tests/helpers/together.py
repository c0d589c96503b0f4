"""Runs that two processes do together, and one by itself; as a program, what each of the two does."""

import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import anode
from anode import Snapshots
from anode.data.toy import Dataset
from anode.storage import write_json, write_tensors
from anode.train import ranks
from helpers.trainings import data_of, fit, interrupt_after, model_of

DATA, CHECK = data_of(points=17), data_of(points=9, seed=1)  # in eights, the last batch has a point for one of two
LABELS = torch.arange(17) % 3


def steep(points: int = 17) -> Dataset:
    """Points some of which are harder than others, so that the processes' shares are not alike."""
    data = data_of(points=points)
    return Dataset("steep", data.x * torch.linspace(0, 5, points, dtype=torch.float64).unsqueeze(1), data.y)


def spoiled():
    """A model whose slope is not finite at the start of one point, which only one process sees."""
    model = model_of(gradient="stored")

    def spoil(field, given, slope):
        return slope.masked_fill((given[1][:, :2] == DATA.x[3]).all(1, keepdim=True), math.nan)

    model.flow.field.register_forward_hook(spoil)
    return model


def classifier():
    torch.manual_seed(0)
    return anode.NeuralODE(2, 3, 8, augment=1).double()


def trap(prediction, y):
    """A loss that is not finite where a certain point is in the batch, which only one process sees."""
    return torch.where(y == DATA.y[3], math.nan, (prediction - y).square())


RUNS = {
    "plain": (model_of, DATA, {"validation": CHECK, "snapshots": Snapshots(CHECK.x, [0, 4]), "check_every": 2}),
    "stored": (lambda: model_of(gradient="stored", atol=1e-5), steep(), {"weight_decay": 0.1}),
    "steep": (
        lambda: model_of("augmented", rtol=1e-6, atol=1e-6),
        steep(),
        {"evaluate_every": 2, "validation": steep(13), "check_every": 4},
    ),
    "classes": (classifier, (DATA.x, LABELS), {"loss": "cross_entropy", "validation": (DATA.x, LABELS)}),
    "ResNet": (lambda: model_of("ResNet"), DATA, {}),
    "fixed": (lambda: model_of(method="rk4", step_size=0.25), DATA, {}),
    "skip": (model_of, DATA, {"loss": trap, "on_failure": "skip"}),
    "stop": (model_of, DATA, {"loss": trap}),
    "budget": (lambda: model_of(max_steps=3, rtol=1e-9, atol=1e-9), DATA, {"on_failure": "skip", "check_every": 4}),
    "slope": (spoiled, DATA, {"on_failure": "skip"}),
    "kept": (model_of, DATA, {"validation": CHECK}),
}


def train(name: str, apart: float = 0.0, **more):
    """One of the runs: the model, moved by some number before, and its history."""
    build, data, options = RUNS[name]
    model = build()
    for parameter in model.parameters():
        parameter.data.add_(apart)
    return model, fit(model, data, **{"lr": 1e-2, "epochs": 3, **options, **more})


def attempt(action: Callable[[], object]) -> str:
    """The error that something raises."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def do_all(rank: int, out: Path, states: Path) -> None:
    """Every run."""
    told: list = []
    for name in RUNS:
        more = {"kept": {"checkpoint": states}, "plain": {"apart": rank, "progress": told.append}}.get(name, {})
        model, history = train(name, **more)
        history.save(out / f"{name}-{rank}.json")
        write_tensors(out / f"{name}-{rank}.safetensors", dict(model.named_parameters()))
        assert name == "ResNet" or model.flow.norm is None
    (out / f"told-{rank}").write_text(str(len(told)))


def do_what_goes_wrong(rank: int, states: Path) -> dict:
    """What is said where things end early, or cannot be done."""

    def failing(report) -> None:
        if report.done == 2:
            raise ZeroDivisionError("mine")

    _, interrupted = train("plain", progress=interrupt_after(4))
    _, late = train("plain", minutes=1e-9 if rank else 100.0)
    said = {
        "states": sorted(path.name for path in states.iterdir()) if states.exists() else None,
        "interrupted": [interrupted.stopped, len(interrupted)],
        "late": [late.stopped, len(late)],
        "listener": attempt(lambda: train("plain", progress=failing)),
        "raised": attempt(lambda: train("stop", on_failure="raise")),
        "unsolved": attempt(lambda: train("budget", on_failure="raise")),
        "stack": attempt(lambda: fit(anode.stack([model_of(), model_of()]), DATA)),
        "sample": attempt(lambda: fit(model_of(control="sample"), DATA)),
        "continuous": attempt(lambda: fit(model_of(gradient="continuous"), DATA)),
        "others": attempt(lambda: fit(model_of(), data_of(seed=rank))),
        "refused": attempt(lambda: train("plain", checkpoint=states)),
    }
    for path in states.glob("*.json"):
        path.write_text("{")
    return {**said, "damaged": attempt(lambda: train("kept", checkpoint=states))}


def kill(report) -> None:
    """A listener that ends its process in the fifth iteration."""
    if report.done == 5:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    with ranks.start() as rank:
        out = Path(sys.argv[1])
        states = out / f"states-of-{rank}"  # as on machines that share no disk
        if sys.argv[2] == "killed":
            train("kept", checkpoint=states, checkpoint_every=0, progress=kill)
        do_all(rank, out, states)
        write_json(out / f"said-{rank}.json", do_what_goes_wrong(rank, states))
