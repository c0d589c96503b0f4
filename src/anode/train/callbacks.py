"""What is called on the way: reports, and callbacks that users write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anode.checks import check_call

if TYPE_CHECKING:
    from anode.train.training import Training


@dataclass(frozen=True)
class Report:
    """How far a training run is.

    Attributes:
        done, total: Iterations.
        loss, nfe, accuracy: Those of the last iteration, means over members; no accuracy where there are no classes.
        validation, validation_accuracy: The loss and accuracy on the validation set, if it was evaluated after the last
            iteration; means over members.
        check: The last reconstruction error, of a stack the largest, if the solves are checked; see ``check_every`` of
            :func:`anode.fit`.
    """

    done: int
    total: int
    loss: float
    nfe: float
    accuracy: float | None = None
    validation: float | None = None
    validation_accuracy: float | None = None
    check: float | None = None


class Callback:
    """Called in the course of training; override the methods that you need.

    Each is given the training run: ``training.model`` (what :func:`anode.fit` was given), ``training.report`` (a
    :class:`Report` of the last iteration), ``training.history`` (an :class:`anode.History` of all of them so far),
    ``training.optimizer``, and ``training.stop(reason)``, which ends training after the present iteration.

    A callback that overrides :meth:`iteration` sees the model after every single one. Otherwise the compiled engine may
    make many iterations in one call.

    Example:
        >>> import anode
        >>> class StopAt(anode.Callback):
        ...     def __init__(self, loss):
        ...         self.loss = loss
        ...     def iteration(self, training):
        ...         if training.report.loss < self.loss:
        ...             training.stop(f"the loss is below {self.loss}")
        >>> data = anode.datasets.load("moons")
        >>> history = anode.fit(anode.NeuralODE(2, 1, augment=1), data, lr=1e-2, callbacks=[StopAt(0.3)])
        >>> history.stopped
        'the loss is below 0.3'
    """

    def begin(self, training: Training) -> None:
        """Before the first iteration, or the first one after a checkpoint."""

    def iteration(self, training: Training) -> None:
        """After an iteration."""

    def evaluation(self, training: Training) -> None:
        """After the validation set was evaluated."""

    def epoch(self, training: Training) -> None:
        """After the last iteration of an epoch."""

    def end(self, training: Training) -> None:
        """After the last iteration, with the model as it will stay."""


def checked_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Callbacks as :func:`anode.fit` takes them, or ``TypeError``."""
    takes = "a list of objects of anode.Callback"
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        hint = "; put it in a list" if isinstance(callbacks, Callback) else ""
        raise TypeError(f"callbacks: takes {takes}, got {callbacks!r}{hint}")
    found = tuple(callbacks)
    for each in found:
        if not isinstance(each, Callback):
            hint = f"; pass an object, {each.__name__}(...)" if isinstance(each, type) else ""
            raise TypeError(f"callbacks: takes {takes}, got {each!r}{hint}")
        for name in ("begin", "iteration", "evaluation", "epoch", "end"):
            takes_training = f"objects whose method {name}(self, training) takes the training run"
            check_call("callbacks", getattr(each, name), 1, takes_training)
    return found
