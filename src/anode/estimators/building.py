"""Build the model of an estimator from the estimator's parameters."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from copy import deepcopy
from itertools import count
from typing import Any

import numpy as np
from torch import nn

from anode.checks import Words, check_function, describe, flag, require, whole_number
from anode.models.alike import configuration
from anode.models.augment import Augment, Zeros, as_augment, augmented_size
from anode.models.layers import ImageHead
from anode.models.misfit import MisfitError
from anode.models.model import Model
from anode.models.nets import ImageNeuralODE, NeuralODE
from anode.models.randomness import evaluating

AUGMENT = 5
"""The value of ``augment="auto"``: the number that the paper uses."""
SHAPE: tuple[str, ...] = ("hidden", "layers", "activation", "time", "filters")
"""The parameters that configure a field; each kind of field uses some of them."""


def build(given: dict[str, Any], changed: Collection[str], features: int, outputs: int) -> NeuralODE:
    """Build a new model.

    Args:
        given: The estimator's parameters.
        changed: Which of :data:`SHAPE` are not at their defaults.
        features: Number of columns of X.
        outputs: Number of values to predict.
    """
    _check_shape(given, changed)
    shape = (features,) if given["image"] is None else _image(given["image"], features)
    augment = _augment(given["augment"], shape)
    if given["field"] is not None:
        return _with_field(given["field"], shape, outputs, augment, given["solver"])
    flag("time", given["time"])
    options = {"augment": augment, **{name: given[name] for name in ("time", "activation", "solver")}}
    if given["image"] is None:
        return NeuralODE(features, outputs, given["hidden"], layers=given["layers"], **options)
    return ImageNeuralODE(shape, outputs, given["filters"], **options)


def _check_shape(given: dict[str, Any], changed: Collection[str]) -> None:
    """Raise ``ValueError`` for parameters that would have no effect."""
    if given["field"] is not None:
        unused, why = SHAPE, "with field, which replaces the network that it configures"
    elif given["image"] is not None:
        unused, why = ("hidden", "layers"), "with image, whose network has filters instead"
    else:
        unused, why = ("filters",), "without image"
    for name in unused:
        require(name not in changed, name, given[name], f"no value {why}; leave it at its default")


def _image(image: Any, features: int) -> tuple[int, ...]:
    """Check channels, height and width, and return them as ints."""
    given = list(image) if isinstance(image, Sequence | np.ndarray) else []
    sizes = tuple(size for size in map(whole_number, given) if size is not None and size > 0)
    fits = len(sizes) == len(given) == 3 and math.prod(sizes) == features
    takes = f"three numbers, channels, height and width, whose product is {features}, the number of columns of X"
    require(fits, "image", image, takes)
    return sizes


def _augment(augment: Any, shape: tuple[int, ...]) -> Augment:
    """Return the augmentation of rows or images; a user's augmentation is copied, and the copy is trained."""
    dim = -len(shape)
    takes = '"auto", a whole number from 0, or an anode.Augment'
    require(not isinstance(augment, str) or augment == "auto", "augment", augment, takes)
    made = as_augment(AUGMENT if augment == "auto" else deepcopy(augment), dim)
    fits = type(made) is not Zeros or made.dim == dim
    require(fits, "augment", augment, f"zeros that are appended to dimension {dim}, as by Zeros(extra, dim={dim})")
    return made


def state_shape(augment: Augment, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the state of a row, (features,), or of an image, (channels, height, width)."""
    return augmented_size(augment, shape, -len(shape)), *shape[1:]


def _with_field(field: Any, shape: tuple[int, ...], outputs: int, augment: Augment, solver: Any) -> NeuralODE:
    """Return a model with the user's field."""
    state = state_shape(augment, shape)
    module = field_of(field, state[0] if len(shape) == 1 else state)
    if len(shape) == 1:
        return NeuralODE(shape[0], outputs, field=module, augment=augment, solver=solver)
    seen = augment.shown(state[0], shape[0])
    return NeuralODE(field=module, head=ImageHead((seen, *state[1:]), outputs), augment=augment, solver=solver)


def field_of(field: Any, state: int | tuple[int, ...]) -> nn.Module:
    """Call the user's function with the size of the state and return its field."""
    takes = "a function or class that is given the size of the state and returns a torch.nn.Module f(t, h)"
    require(not isinstance(field, nn.Module), "field", describe(field), takes)
    check_function("field", field, takes, 1)
    module = field(state)
    returned = Words(f"{field!r}, which returned {describe(module)}")
    require(isinstance(module, nn.Module), "field", returned, takes)
    assert isinstance(module, nn.Module)
    return module


def check_field(model: Model, shape: tuple[int, ...], state: tuple[int, ...]) -> None:
    """Try a user's field before training, with one time for all rows and with one time per row.

    Args:
        model: The model that contains the field.
        shape: The shape of a row or an image.
        state: The shape of its state.

    Raises:
        ValueError: If the field raises an error, which is the cause of this one.
    """
    rows = next(number for number in count(2) if number not in state)  # so that no wrong dimension fits by chance
    x = next(model.parameters()).new_zeros(rows, *shape)
    times = [rows, *(1 for _ in shape)]
    advice = "write f(t, h) so that t broadcasts against h, as in h * t or torch.cat([h, t.expand_as(h[:, :1])], 1)"
    attempts: dict[str, dict[str, Any]] = {
        f"fails on states of shape {[rows, *state]}": {},
        f"fails with one time per row, t of shape {times}, which predictions need; {advice}": {"control": 1},
    }
    with evaluating(model):
        for what, options in attempts.items():
            try:
                model.run(x, **options)
            except Exception as error:
                why = error.__cause__ if isinstance(error, MisfitError) else error
                raise ValueError(f"field: {what} ({type(why).__name__}: {why})") from error


def check_alike(model: Any, first: Any) -> None:
    """Raise ``ValueError`` unless a model has the architecture of the first fit; the solvers may differ."""
    now, before = model.settings, first.settings
    for name in ("field", *now, *before):
        got, expected = now.get(name), before.get(name)
        alike = name == "solver" or configuration(got) == configuration(expected)
        takes = "a module built" if isinstance(expected, nn.Module) else repr(expected)
        shown = describe(got) if isinstance(got, nn.Module) else got
        require(alike, name, shown, f"{takes} as in the first fit, because warm_start is set")
