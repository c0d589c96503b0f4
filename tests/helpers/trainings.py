"""Small models and data to train, shared by the tests of training."""

import os
import signal
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch

import anode
from anode import History
from anode.data.toy import Dataset
from anode.train.record import CHECKED, EVALUATED, MOMENTS, OPTIONAL, SERIES

ALL_SERIES = (*SERIES, "nfe_backward", *OPTIONAL, *EVALUATED, *MOMENTS, *CHECKED)
"""Everything that is recorded but for the time it took."""

BUILDERS = {
    "NeuralODE": lambda **options: anode.NeuralODE(2, 1, 8, **options),
    "augmented": lambda **options: anode.NeuralODE(2, 1, 8, augment=2, activation="tanh", **options),
    "ResNet": lambda **options: anode.ResNet(2, 1, 8, 2),
    "Flow": lambda **options: anode.Flow(anode.MLPField(1, 8, activation="softplus"), **options),
}
"""The kinds of models. Each takes points of 2 dimensions, and Flow those of 1."""

each_kind = pytest.mark.parametrize("kind", BUILDERS)
each_solved = pytest.mark.parametrize("kind", [kind for kind in BUILDERS if kind != "ResNet"])


def model_of(kind: str = "NeuralODE", seed: int = 0, **options):
    torch.manual_seed(seed)
    return BUILDERS[kind](**options).double()


def stack_of(kind: str = "NeuralODE", members: int = 3, **options):
    return anode.seeded(lambda: BUILDERS[kind](**options), range(members)).double()


def data_of(kind: str = "NeuralODE", points: int = 22, seed: int = 0) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(points, 1 if kind == "Flow" else 2, generator=generator, dtype=torch.float64)
    y = torch.randn(points, 1, generator=generator, dtype=torch.float64)
    return Dataset("noise", x, y)


def fit(model, data, **options) -> History:
    """Two epochs of three batches, the last of them smaller, unless told otherwise."""
    return anode.fit(model, data, **{"epochs": 2, "batch_size": 8, "progress": False, **options})


def field_in(model) -> anode.MLPField:
    return model.field if isinstance(model, anode.Flow) else model.flow.field


@torch.no_grad()
def spoil(model, member: int | None = None, scale: float = 1e3):
    """Make the field of a member, or of the model, too steep for its step budget."""
    for parameter in field_in(model).parameters():
        part = parameter if member is None else parameter[member]
        part *= scale
    return model


def values_of(model, member: int | None = None) -> list[torch.Tensor]:
    return [(p if member is None else p[member]).detach().clone() for p in model.parameters()]


def close(a: list[torch.Tensor], b: list[torch.Tensor], tolerance: float) -> bool:
    return len(a) == len(b) and all(torch.allclose(x, y, tolerance, tolerance) for x, y in zip(a, b, strict=True))


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def member_of(history: History, member: int) -> dict[str, np.ndarray]:
    return {name: getattr(history, name)[:, member] for name in ("loss", "nfe", "accepted", "rejected", "validation")}


def interrupt_after(iterations: int):
    """A listener that is Ctrl-C after so many iterations."""

    def listen(report) -> None:
        if report.done == iterations:
            raise KeyboardInterrupt

    return listen


def killed(script: str, folder: Path) -> None:
    """Run a script that trains with checkpoints in a folder, its argument, and kill it after the first of them."""
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}"}
    process = subprocess.Popen([sys.executable, "-c", script, str(folder)], env=environment)
    while not list(folder.glob("state-*.json")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()


def assert_same_history(a: History, b: History) -> None:
    """Check that two histories are the same to the bit, but for the time that things took."""
    for name in ALL_SERIES:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name, strict=True)
    for name in ("batches", "failures", "stopped", "settings"):
        assert getattr(a, name) == getattr(b, name), name
    assert len(a.snapshots) == len(b.snapshots)
    for one, other in zip(a.snapshots, b.snapshots, strict=True):
        assert one.iteration == other.iteration
        np.testing.assert_array_equal(one.features, other.features, strict=True)
        np.testing.assert_array_equal(one.nfe, other.nfe, strict=True)


def assert_trained_alike(results) -> None:
    """Check that two trainings, each a model and its history, are the same up to rounding."""
    (one, history), (other, expected) = results
    for name in ("loss", "accuracy", "validation"):
        np.testing.assert_allclose(getattr(history, name), getattr(expected, name), rtol=1e-6, atol=1e-8)
    for name in ("nfe", "accepted", "rejected"):
        np.testing.assert_array_equal(getattr(history, name), getattr(expected, name))
    for value, expected_value in zip(values_of(one), values_of(other), strict=True):
        torch.testing.assert_close(value, expected_value, rtol=1e-6, atol=1e-9)


class Copies:
    """A listener that keeps a copy of the model after every iteration, the untrained one first."""

    def __init__(self, model) -> None:
        self.model, self.models = model, [deepcopy(model)]

    def __call__(self, report) -> None:
        assert report.done == len(self.models)
        self.models.append(deepcopy(self.model))
