"""Run a model on one point of each dataset before training, so that mistakes are found early."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from anode.checks import describe, finite_rows, require, whole_number
from anode.models.augment import Zeros
from anode.models.flow import Flow
from anode.models.misfit import MISTAKES
from anode.models.model import AnyModule, Model, Outcome, as_input, check_input, observed
from anode.models.nets import NeuralODE
from anode.models.randomness import evaluating
from anode.ode.field import Field
from anode.train.evaluation import Snapshots
from anode.train.losses import check_classes, check_targets, default_loss
from anode.train.points import Points

if TYPE_CHECKING:
    from anode.train.protocol import Protocol


def try_on(model: Model, protocol: Protocol, like: Tensor) -> bool:
    """Check that model, data and loss fit together.

    Args:
        model: The model.
        protocol: The settings of the run.
        like: A trained parameter.

    Returns:
        Whether the targets are classes.
    """
    classifies = False
    for name, data in (("data", protocol.data), ("validation", protocol.validation)):
        if data is None:
            continue
        x, y, _ = data.first(like)
        outcome = _outcome(name, model, x, like, protocol if name == "data" else None, y)
        if outcome.unfinished:  # as training will tell
            continue
        prediction = outcome.prediction
        if protocol.has_loss_of_ours:
            if not isinstance(prediction, Tensor):
                takes = f"a module that returns one tensor if loss is {protocol.loss_name!r}, or pass your own loss"
                raise TypeError(f"model: takes {takes}, got one that returns {describe(prediction)}")
            targets = data.y if isinstance(data, Points) else y
            check_targets(name, protocol.loss_name, prediction, targets, protocol.dims)
        elif isinstance(prediction, Tensor):
            check_classes(name, protocol.loss, prediction, protocol.dims)
            classes = default_loss(y) == "cross_entropy" and y.ndim == protocol.dims
            classifies = classes and prediction.ndim == protocol.dims + 1
    if protocol.snapshots is not None:
        points = _snapshot_points(protocol.snapshots, protocol.members)
        outcome = _outcome("snapshots.x", model, points, like)
        features, takes = outcome.features, "None for a model whose features are not one tensor"
        require(isinstance(features, Tensor) or outcome.unfinished, "snapshots", type(features).__name__, takes)
    return classifies or (protocol.has_loss_of_ours and protocol.loss_name == "cross_entropy")


def _snapshot_points(snapshots: Snapshots, members: int | None) -> Tensor:
    if not (isinstance(snapshots, Snapshots) and isinstance(snapshots.x, Tensor)):
        raise TypeError(f"snapshots: takes anode.Snapshots of a tensor, got {snapshots!r}")
    finite_rows("snapshots.x", snapshots.x)
    moments = [whole_number(at) for at in snapshots.at] if isinstance(snapshots.at, Iterable) else [None]
    fits = all(at is not None and at >= 0 for at in moments)
    require(fits, "snapshots.at", snapshots.at, "a list of iterations, whole numbers from 0")
    return snapshots.points(members)


def _outcome(
    name: str, model: Model, x: Tensor, like: Tensor, protocol: Protocol | None = None, y: Tensor | None = None
) -> Outcome:
    """Return the outcome of a model on the first point of x, with its target y if there is one.

    The point is transformed if the protocol has a transform.
    """
    if like.is_floating_point() and (x.is_floating_point() or not _may_embed(model)):
        check_input(x, like, name)
    with evaluating(model):
        dim = 0 if model.members is None else 1
        x = as_input(x.narrow(dim, 0, 1), like)
        options = {} if y is None else model.options_for(y.narrow(dim, 0, 1))
        if protocol is not None:
            x = protocol.transformed(x)
        try:
            return observed(model, x, **options)[0]
        except MISTAKES as error:
            if type(error) not in MISTAKES:
                raise
            raise ValueError(f"{name}: does not fit the model: {_why(model, x, error)}") from error


def _may_embed(model: Model) -> bool:
    """Whether a model may take whole numbers, as an embedding does: any module, or an augmentation of the user."""
    flow = model.first_flow()
    return isinstance(model, AnyModule) or not (flow is None or isinstance(flow.augment, Zeros))


def _why(model: Model, x: Tensor, error: Exception) -> str:
    """Return why a model cannot be called with x, and what to do about it."""
    if isinstance(model, AnyModule):
        hint = "" if x.is_floating_point() else "; convert whole numbers with x.float()"
        if isinstance(model.module, Field):
            hint = "; train a field f(t, h) as anode.Flow(field), or as anode.NeuralODE(field=field, head=head)"
        return f"{type(model.module).__name__} cannot be called with {describe(x)}: {error}{hint}"
    return str(error) if isinstance(model, Flow | NeuralODE) else f"{describe(x)}: {error}"
