"""Reports on the progress of training, and callbacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anode.checks import check_function

if TYPE_CHECKING:
    from anode.train.training import Training


@dataclass(frozen=True)
class Report:
    """The progress of a training run after an iteration. Values are means over the members of a stack.

    Attributes:
        done, total: Number of iterations so far and in total.
        loss, nfe, accuracy: Loss, number of function evaluations and accuracy of the last iteration; the accuracy is
            ``None`` unless the targets are classes.
        validation, validation_accuracy: Loss and accuracy on the validation set, if it was evaluated after the last
            iteration; otherwise ``None``.
        check: The latest reconstruction error, for a stack the largest, if ``check_every`` was passed to
            :func:`anode.fit`; otherwise ``None``.
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
    """Base class of callbacks. Override the methods that you need.

    Each method is given the training run, with

    * ``training.model``: the model that was passed to :func:`anode.fit`;
    * ``training.report``: a :class:`Report` on the last iteration;
    * ``training.history``: an :class:`anode.History` of all iterations so far;
    * ``training.optimizer``: the optimizer;
    * ``training.stop(reason)``: a method that ends training after the current iteration.

    Overriding :meth:`iteration` slows training down: otherwise the compiled engine may run many iterations in one call.

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
        """Called before the first iteration, or the first one after a checkpoint was loaded.

        A checkpoint has restored the optimizer, with the groups that callbacks had added.
        """

    def iteration(self, training: Training) -> None:
        """Called after every iteration."""

    def evaluation(self, training: Training) -> None:
        """Called after every evaluation of the validation set."""

    def epoch(self, training: Training) -> None:
        """Called after the last iteration of every epoch."""

    def end(self, training: Training) -> None:
        """Called after training, when the model has its final parameters."""


def checked_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Check the callbacks and return them as a tuple, or raise ``TypeError``."""
    takes = "a list of anode.Callback objects"
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
            check_function("callbacks", getattr(each, name), takes_training, 1)
    return found
