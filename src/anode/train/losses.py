"""Losses by name, and their means per member."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anode.checks import describe
from anode.models.model import Outcome
from anode.ode.solution import SolveError


def _check_shapes(prediction: Tensor, target: Tensor) -> None:
    if prediction.shape != target.shape:  # torch would broadcast them against each other
        shapes = f"{tuple(prediction.shape)}, got {tuple(target.shape)}"
        raise ValueError(f"data: takes targets with the shape of the predictions, {shapes}")


def _huber(prediction: Tensor, target: Tensor) -> Tensor:
    _check_shapes(prediction, target)
    return F.smooth_l1_loss(prediction, target.to(prediction.dtype), reduction="none")


def _mse(prediction: Tensor, target: Tensor) -> Tensor:
    _check_shapes(prediction, target)
    return F.mse_loss(prediction, target.to(prediction.dtype), reduction="none")


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    each = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1), reduction="none")
    return each.reshape(target.shape)


VALUES_INSTEAD = (
    "loss 'cross_entropy' treats integers as classes; to predict values, pass them as floats, or choose another loss"
)
"""A hint for targets that were treated as class indices."""

Loss = Callable[..., Tensor]
"""Maps predictions, or a whole outcome, and targets to the losses of single elements or samples."""

LOSSES: dict[str, Loss] = {"huber": _huber, "mse": _mse, "cross_entropy": _cross_entropy}
"""Losses by name. ``cross_entropy`` takes logits and class indices; the others take two tensors of the same shape."""


def takes_outcome(loss: Loss) -> bool:
    """Whether a loss takes the whole :class:`anode.Outcome`: its first parameter is called ``outcome``."""
    try:
        called = loss.forward if isinstance(loss, nn.Module) else loss
        return next(iter(inspect.signature(called).parameters), "") == "outcome"
    except ValueError:  # a built-in function may have no signature
        return False


def default_loss(target: Tensor) -> str:
    """Return the default loss for targets: cross entropy for integers, which are class indices, otherwise Huber's."""
    whole = not (target.is_floating_point() or target.is_complex() or target.dtype == torch.bool)
    return "cross_entropy" if whole else "huber"


def check_targets(name: str, loss: str, prediction: Tensor, target: Tensor, dims: int) -> None:
    """Check that targets fit a built-in loss.

    Args:
        name: Name of the argument that holds the targets.
        loss: Name of the loss.
        prediction: The prediction for some points; their number may differ from that of the targets.
        target: All targets.
        dims: Number of leading dimensions that index members and points.
    """
    shape, got = (*target.shape[:dims], *prediction.shape[dims:]), tuple(target.shape)
    if target.numel() == 0:
        raise ValueError(f"{name}: takes points and targets (x, y) for loss {loss!r}, got only points")
    if target.is_complex():
        raise TypeError(f"{name}: takes real targets for loss {loss!r}, got {target.dtype}")
    if loss != "cross_entropy":
        if got != shape:
            hint = "" if target.is_floating_point() else '; for class indices, pass loss="cross_entropy"'
            takes = f"targets with the shape of the predictions, {shape}"
            raise ValueError(f"{name}: takes {takes}, for loss {loss!r}, got {got}{hint}")
        return
    if target.dtype != torch.int64:
        raise TypeError(
            f"{name}: takes class indices of dtype torch.int64 as targets for loss {loss!r}, got {target.dtype}; "
            "convert them with .long()"
        )
    if got not in (shape[:-1], (*shape[:-1], 1)):
        takes = f"one class index per point, shape {shape[:-1]}"
        raise ValueError(f"{name}: takes {takes}, got {got}; {VALUES_INSTEAD}")
    least, most = int(target.min()), int(target.max())
    if least < 0 or most >= shape[-1]:
        takes = f"class indices from 0 to {shape[-1] - 1}, because the model has {shape[-1]} outputs"
        raise ValueError(f"{name}: takes {takes}, got {least if least < 0 else most}; {VALUES_INSTEAD}")


def check_classes(name: str, loss: Loss, prediction: Tensor, dims: int) -> None:
    """Raise ``ValueError`` for torch's cross entropy with a single class, which is always 0.

    Args:
        name: Name of the argument that holds the targets.
        loss: The loss function.
        prediction: The prediction for some points.
        dims: Number of leading dimensions that index members and points.
    """
    if (isinstance(loss, nn.CrossEntropyLoss) or loss is F.cross_entropy) and prediction.shape[dims:] == (1,):
        hint = 'use "huber" or "mse" for values, and nn.BCEWithLogitsLoss() for two classes'
        takes = f"a loss other than cross entropy for a model with one output, where its value on {name} is always 0"
        raise ValueError(f"loss: takes {takes}, got {loss!r}; {hint}")


def losses_by(loss: Loss, given: Any, targets: Tensor, dims: int) -> Tensor:
    """Call the user's loss function, and check what it returns.

    Args:
        loss: The loss function.
        given: The predictions, or the outcome.
        targets: The targets.
        dims: Number of leading dimensions that index members and points.
    """
    try:
        losses = loss(given, targets)
    except (SolveError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        what = f"fails for {describe(given)}, with {describe(targets)} as targets"
        raise ValueError(f"loss: {what}: {error}") from error
    takes = "a function that returns a tensor: one loss, or losses per point"
    if not isinstance(losses, Tensor) or not losses.is_floating_point():
        raise TypeError(f"loss: takes {takes}, got one that returned {describe(losses)}")
    points = targets.shape[dims - 1]
    if losses.ndim >= dims and losses.numel() % points:
        raise ValueError(f"loss: takes {takes}, got shape {tuple(losses.shape)} for {points} points")
    prediction = given.prediction if isinstance(given, Outcome) else given
    rests = {tuple(each.shape[dims:]) for each in (prediction, targets) if isinstance(each, Tensor)}
    if rests == {(), (1,)} and losses.shape[dims - 1 :] == (points, points) and points > 1:
        shapes = f"predictions of shape {tuple(prediction.shape)} and targets of shape {tuple(targets.shape)}"
        raise ValueError(
            f"loss: returns a loss for every pair of points, because torch broadcasts {shapes}; reshape one"
        )
    if torch.is_grad_enabled() and not losses.requires_grad:
        hint = "compute them from the predictions with torch, without .detach(), .item() or NumPy"
        raise ValueError(
            f"loss: takes losses that depend on the model's parameters, got losses without a gradient; {hint}"
        )
    return losses


def mean(losses: Tensor, members: int | None, weights: Tensor | None = None) -> Tensor:
    """Return the mean of single losses: one number, or one per member.

    Args:
        losses: Losses of the points, [points, ...] or [members, points, ...].
        members: Number of members; ``None`` for a single model.
        weights: Factors for the losses of each point, [points] or [members, points].
    """
    if weights is not None:
        if losses.shape[: weights.ndim] != weights.shape:
            takes = "a function that returns losses per point, because the points have weights"
            raise ValueError(f"loss: takes {takes}, got one that returned shape {tuple(losses.shape)}")
        losses = losses * weights.reshape(weights.shape + (1,) * (losses.ndim - weights.ndim))
    if members is not None and losses.shape[:1] != (members,):
        takes = f"a function that returns losses per member, [{members}, ...]"
        raise ValueError(f"loss: takes {takes}, got one that returned shape {tuple(losses.shape)}")
    return losses.mean() if members is None else losses.reshape(members, -1).mean(1)


def accuracy(prediction: Tensor, target: Tensor, members: int | None) -> Tensor:
    """Return the fraction of points whose largest logit is that of their class: one number, or one per member."""
    right = prediction.argmax(-1) == target.reshape(prediction.shape[:-1])
    return mean(right.float(), members)
