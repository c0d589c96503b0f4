"""``anode.export``, which writes a model to a file that runs without anode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anode.checks import describe, number, require
from anode.exporting.formats import WRITERS
from anode.exporting.steps import Steps, flows_in, least_steps, stepped
from anode.extras import needs
from anode.files import write_bytes
from anode.models.divergence import Divergence
from anode.models.model import as_model
from anode.version import __version__
from anode.words import counted


@dataclass(frozen=True)
class Graph:
    """What to export.

    Attributes:
        model: The model whose flows are replaced by equal steps.
        around: Maps the stepped model to the module that is exported.
        data: Inputs of the model on which the error is measured.
        inputs: Two or more example inputs of the exported module.
        outputs: Names of the module's outputs.
        labels: Names of the classes if the first output is a class index; otherwise empty.
        notes: Further metadata of the file.
        about: A description of the file's inputs and outputs, one line each.
    """

    model: nn.Module
    around: Any
    data: Tensor
    inputs: Tensor
    outputs: tuple[str, ...]
    labels: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    about: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exported:
    """The result of :func:`anode.export`.

    Attributes:
        path: The file.
        steps: The fixed steps that replace the adaptive solves, and their error.
        tolerance: The tolerance that was passed.
        inputs: Number of inputs on which the error was measured.
        about: A description of the file's inputs and outputs, one line each; empty for a plain module.
    """

    path: Path
    steps: Steps
    tolerance: float
    inputs: int
    about: tuple[str, ...] = ()

    def __str__(self) -> str:
        steps = self.steps
        taken = f"{counted(steps.count, 'step')} of {steps.method}"
        cost = f"{taken} ({steps.evaluations} evaluations of the field)" if steps.count else "no solve in it"
        return "\n".join([f"{self.path}: {cost}, error {steps.error:.1e} on {self.inputs} inputs", *self.about])


@singledispatch
def graph_of(model: Any, x: Any) -> Graph:
    """Return the graph to export for a model and the user's inputs."""
    raise TypeError(
        f"model: takes a torch.nn.Module, or a fitted ANODEClassifier or ANODERegressor, got {describe(model)}"
    )


@graph_of.register
def _(model: nn.Module, x: Any) -> Graph:
    require(isinstance(x, Tensor), "x", x, "a tensor of inputs, to measure the error of the steps on")
    require(len(x) > 0, "x", x, "at least one input")
    require(
        as_model(model).members is None, "model", describe(model), "a single model; call anode.unstack on a stack first"
    )
    refuse_density(model)
    return Graph(model, lambda module: module, x, two_of(x), ("prediction",))


def refuse_density(model: nn.Module) -> None:
    """Raise ``ValueError`` if a model computes a divergence, for which a file would need autograd."""
    density = next((part for part in model.modules() if isinstance(part, Divergence)), None)
    takes = "a model without log-probabilities, whose divergence torch cannot export; to export the flow of a "
    takes += "density's points, pass anode.Flow(model.field, t1=model.flow.t1, solver=model.flow.solver)"
    require(density is None, "model", describe(model), takes)


def two_of(x: Tensor) -> Tensor:
    """Return two inputs, because a graph that is traced with one input would take only one."""
    return torch.cat([x[:1], x[-1:]])


def export(model: Any, path: str | Path, x: Any, *, tolerance: float = 1e-3) -> Exported:
    """Export a model to a file that runs without anode: ONNX, or a torch exported program.

    These formats cannot hold an adaptive solve, whose number of steps depends on the input. Each solve is replaced by
    the smallest number of equal steps that keeps the error of the predictions within the tolerance. Several methods are
    tried, and the one with the fewest evaluations is used. The file's metadata states method, steps and error.

    Args:
        model: An :class:`anode.NeuralODE`, any ``nn.Module`` that contains flows, or a fitted classifier or regressor.
            An estimator is exported with its scaling and classes: the file maps rows to classes and probabilities, or
            to values.
        path: Path of the file, which ends in ``.onnx`` (requires the extra ``onnx``), or in ``.pt2`` for
            ``torch.export.load``.
        x: Inputs of the model on which the error is measured. A few hundred are enough.
        tolerance: Largest error of a prediction, relative to the largest prediction.

    Returns:
        The path, the steps and the measured error. Print it for a summary.

    Raises:
        ValueError: If an argument is invalid, the tolerance cannot be reached, or torch cannot export the model.
        TypeError: If ``model`` is neither a module nor a fitted estimator.
        MissingPackageError: If ``path`` ends in ``.onnx`` and the extra ``onnx`` is not installed.

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
    if path.suffix == ".onnx":
        needs("anode.export to ONNX", "onnx")
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
        **graph.notes,
    }
    told = {f"anode.{name}": str(value) for name, value in notes.items()}
    content = WRITERS[path.suffix](module.eval(), graph.inputs, graph.outputs, graph.labels, told)
    write_bytes(path, content)
    return Exported(path, steps, tolerance, len(graph.data), graph.about)
