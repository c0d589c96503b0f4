"""``anode.export``: a model as one file that other programs run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anode.checks import describe, number, require
from anode.exporting.formats import WRITERS
from anode.exporting.steps import Steps, flows_in, least_steps, stepped
from anode.files import write_bytes
from anode.models.model import as_model
from anode.version import __version__


@dataclass(frozen=True)
class Graph:
    """What is exported.

    Attributes:
        model: The model that predicts, whose flows come to take equal steps.
        around: Maps the stepped model to the module whose graph is written.
        data: Inputs of the model, on which errors are measured.
        inputs: Inputs of the module around it: two or more.
        outputs: What the module's outputs are called.
        labels: The names of the classes, where the first output is their number; empty otherwise.
    """

    model: nn.Module
    around: Any
    data: Tensor
    inputs: Tensor
    outputs: tuple[str, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        path: The file.
        steps: The steps that take the place of the adaptive solve.
        tolerance: The error that was allowed.
        inputs: On how many inputs the error was measured.
    """

    path: Path
    steps: Steps
    tolerance: float
    inputs: int

    def __str__(self) -> str:
        steps = self.steps
        if not steps.count:
            return f"{self.path}: no solve in it, error {steps.error:.1e} on {self.inputs} inputs"
        taken = f"{steps.count} {'step' if steps.count == 1 else 'steps'} of {steps.method}"
        cost = f"{steps.evaluations} evaluations of the field"
        return f"{self.path}: {taken} ({cost}), error {steps.error:.1e} on {self.inputs} inputs"


@singledispatch
def graph_of(model: Any, x: Any) -> Graph:
    """What to export of a model, and of inputs as its user gives them."""
    raise TypeError(f"model: takes a torch.nn.Module or a fitted anode estimator, got {describe(model)}")


@graph_of.register
def _(model: nn.Module, x: Any) -> Graph:
    require(isinstance(x, Tensor), "x", x, "a tensor of inputs, on which the error of the steps is measured")
    require(len(x) > 0, "x", x, "at least one input")
    require(as_model(model).members is None, "model", model, "one model; anode.unstack gives those of a stack")
    return Graph(model, lambda module: module, x, two_of(x), ("prediction",))


def two_of(x: Tensor) -> Tensor:
    """Two inputs: a graph that was made from one would take no more."""
    return torch.cat([x[:1], x[-1:]])


def export(model: Any, path: str | Path, x: Any, *, tolerance: float = 1e-3) -> Exported:
    """Write a model as a file that runs without anode: ONNX, or an exported program of torch.

    An adaptive solve is a loop whose length depends on the input, which these formats cannot hold. Each solve becomes
    equal steps: as few as keep the predictions within a tolerance, by the cheapest of some methods. The
    file says which, and what the error was.

    Args:
        model: An :class:`anode.NeuralODE`, any ``nn.Module`` with flows in it, or a fitted estimator. An estimator is
            exported with its scaling and classes: rows in, classes and probabilities, or values, out.
        path: The file: ``.onnx`` (extra ``onnx``), or ``.pt2`` for ``torch.export.load``.
        x: Inputs as the model takes them, a few hundred: the error is measured on these.
        tolerance: The largest error of a prediction, as a fraction of the largest prediction.

    Returns:
        What was written. Print it.

    Example:
        >>> import tempfile, torch, anode
        >>> model = anode.NeuralODE(2, 3, augment=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = anode.export(model, f"{folder}/model.pt2", torch.randn(100, 2))
        ...     again = torch.export.load(written.path).module()
        >>> x = torch.randn(5, 2)
        >>> bool((again(x) - model(x)).abs().max() < 0.01)
        True
    """
    path = Path(path)
    number("tolerance", tolerance, finite=True)
    kinds = ", ".join(WRITERS)
    require(path.suffix in WRITERS, "path", str(path), f"a file that ends in one of {kinds}")
    writer = WRITERS[path.suffix]
    writer.check()
    graph = graph_of(model, x)
    noisy = next((flow.solver.noise for flow in flows_in(graph.model) if flow.solver.noise is not None), None)
    takes = "a model without noise, which a file cannot hold; set model.flow.solver = model.flow.solver.but(noise=None)"
    require(noisy is None, "model", noisy, takes)
    steps = least_steps(graph.model, graph.data, tolerance)
    module = graph.around(stepped(graph.model, steps.method, steps.count) if steps.count else graph.model)
    notes = {
        "version": __version__,
        "method": steps.method,
        "steps": steps.count,
        "evaluations": steps.evaluations,
        "error": steps.error,
        "tolerance": tolerance,
        "inputs": len(graph.data),
    }
    told = {f"anode.{name}": str(value) for name, value in notes.items()}
    write_bytes(path, writer.content(module.eval(), graph.inputs, graph.outputs, graph.labels, told))
    return Exported(path, steps, tolerance, len(graph.data))
