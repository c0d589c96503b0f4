"""Training: one function for every model, alone or stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor, nn

from anode.checks import names_arguments, number
from anode.models.model import as_model
from anode.train.between import Between
from anode.train.callbacks import Callback, checked_callbacks
from anode.train.checkpoint.resume import resumed
from anode.train.evaluation import Snapshots
from anode.train.history import History
from anode.train.losses import Loss
from anode.train.optimizers import MakeOptimizer, MakeScheduler
from anode.train.progress import Listener, listener
from anode.train.protocol import Protocol
from anode.train.streams import Data
from anode.train.training import Training

__all__ = ["Snapshots", "fit"]


@names_arguments
def fit(
    model: nn.Module,
    data: Data,
    *,
    epochs: int = 50,
    batch_size: int | None = None,
    lr: float | Sequence[float] | None = None,
    weight_decay: float | None = None,
    optimizer: str | MakeOptimizer = "adam",
    scheduler: MakeScheduler | None = None,
    clip: float | None = None,
    loss: str | Loss | None = None,
    transform: Callable[[Tensor], Tensor] | None = None,
    validation: Data | None = None,
    evaluate_every: int | None = None,
    check_every: int | None = None,
    patience: int | None = None,
    seed: int | Sequence[int] = 0,
    snapshots: Snapshots | None = None,
    minutes: float | None = None,
    on_failure: str = "stop",
    checkpoint: str | Path | None = None,
    checkpoint_every: float | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | Listener | None = None,
) -> History:
    """Train a model, or a stack of models.

    The members of a stack are independent: each has its own seed, order of data, learning rate and step size, and ends
    as it would have ended alone. A member whose solve fails, or whose loss is no longer finite, is frozen as it was
    before that iteration and reported in ``history.failures``; the others go on. Training a model by itself ends there.
    With ``gradient="continuous"`` members are not quite independent: the adjoint has one step size for all of them.

    Ctrl-C ends training after the present iteration; the model and the history are those of that moment.

    ``history.engine`` reports whether the compiled engine made the iterations and, if it did not, why not.

    Args:
        model: What to train, in place: an anode model, or any ``nn.Module`` that maps a batch to predictions.
        data: A dataset, ``(x, y)`` or ``(x, y, weights)`` with one weight per point, whose scale has no meaning; for a
            stack also a sequence of these, one per member and all of one size. Points ``x`` alone are data as well, for
            a model or a loss that needs no targets; a loss is then given targets of shape ``[n, 0]``. Images may be
            ``torch.uint8``: they stay so, and the model sees each batch scaled to [0, 1]. Or batches of ``x``,
            ``(x, y)``, or ``(x, y, weights)`` whose weights are used as they are: a ``DataLoader``, any other iterable
            that can be gone through once per epoch, or a function that makes the batches of an epoch from a seed. Only
            the function's batches can be resumed to the same bits.
        epochs: Passes over the data.
        batch_size: Points in an iteration; the last batch of an epoch may be smaller. Defaults to 64, or to all points
            if there are fewer.
        lr: The learning rate, or one per member. Defaults to 1e-3.
        weight_decay: As the optimizer takes it: an L2 penalty for Adam. Defaults to 0.
        optimizer: ``"adam"``, ``"adamw"``, ``"nadam"``, ``"radam"``, ``"rmsprop"``, ``"sgd"``, or a function from a
            list of parameters to a ``torch.optim.Optimizer``, which then sets ``lr`` and ``weight_decay`` itself.
        scheduler: A function from the optimizer to a scheduler of ``torch.optim.lr_scheduler``. It is stepped after
            every iteration; ``ReduceLROnPlateau`` after every evaluation.
        clip: Largest norm of the gradient, taken over all parameters of a member; larger ones are scaled down to it.
        loss: ``"huber"``, ``"mse"``, ``"cross_entropy"``, or a function from predictions and targets to losses. A
            function whose first parameter is called ``outcome`` is given the whole :class:`anode.Outcome` in place of
            the predictions. Defaults to the model's ``default_loss`` if it has one, such as that of
            :class:`anode.DensityFlow`. Otherwise it defaults to ``"cross_entropy"`` if the targets are integers, which
            are then class numbers, and to ``"huber"`` if not. If the targets are class numbers, accuracies are recorded
            too.
        transform: A function applied to the points of every training batch, such as random flips of images. It returns
            as many points, in the same dtype; one point is tried first.
        validation: Data whose loss is recorded on the way, in batches of ``batch_size``. It is NaN where a solve fails,
            which is no failure of the training.
        evaluate_every: How many iterations pass between evaluations; by default an epoch. The model is also evaluated
            at the end of training, even if time is up.
        check_every: How many iterations pass between checks of the solves with ``flow.check``, on at most 256 points of
            the validation data, or else of the training data. The first check comes before training, the last at its
            end. ``history.check`` has the errors. By default the solves are not checked.
        patience: End when the validation loss has not improved for so many evaluations, and in any case leave the model
            as it was at its lowest; only for models by themselves. An evaluation at the very end counts if it would
            have been done there anyway.
        seed: Random seed of the order of data. A stack takes one per member; from a single seed its members get that
            one and those that follow it.
        snapshots: Which features to record, and when.
        minutes: End after the iteration in which so much time has passed.
        on_failure: What to do when a solve fails, or a loss or gradient is not finite. ``"stop"``: as above.
            ``"skip"``: leave the model as it is and go on with the next batch; only for models by themselves.
            ``"raise"``: raise :class:`anode.SolveError`, or ``FloatingPointError``; the model is as before.
        checkpoint: A folder to keep the state of training in. If it holds one of the same model, data and settings,
            training goes on from there, to the same bits as without the interruption, whatever the parameters of
            ``model`` are; you may ask for more ``epochs`` than before. Random numbers that the model draws from torch
            go on as well.
        checkpoint_every: How many seconds pass between two states, 60 by default; 0 keeps every iteration's. The last
            one is kept in any case, unless the process is killed.
        callbacks: Objects that are called on the way, see :class:`anode.Callback`.
        progress: True for a progress bar, False for none, or a function that is told of every iteration. By default a
            bar if there is a terminal.

    Returns:
        What happened, see :class:`anode.History`.

    Example:
        >>> import anode
        >>> model = anode.NeuralODE(2, 1, augment=2)
        >>> history = anode.fit(model, anode.datasets.load("moons"), epochs=2, batch_size=100)
        >>> len(history), bool(history.loss[-1] < history.loss[0]), history.engine
        (20, True, 'native')
    """
    epochs = number("epochs", epochs, whole=True, zero=True)
    minutes = number("minutes", minutes, optional=True)
    callbacks = checked_callbacks(callbacks)
    network = as_model(model)
    protocol = Protocol(
        network,
        data,
        validation,
        batch_size=batch_size,
        lr=lr,
        weight_decay=weight_decay,
        optimizer=optimizer,
        scheduler=scheduler,
        clip=clip,
        transform=transform,
        loss=loss,
        seed=seed,
        snapshots=snapshots,
        evaluate_every=evaluate_every,
        check_every=check_every,
        patience=patience,
        on_failure=on_failure,
    )
    training = Training(model, network, protocol, epochs)
    with (
        listener(progress if training.ranks.first else False, type(model).__name__) as tell,
        resumed(training, checkpoint, checkpoint_every) as folder,
    ):
        training.run(Between(training, minutes, tell, callbacks, folder))
    return training.history
