"""``anode.fit``, which trains single models and stacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
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
@torch.inference_mode(False)
@torch.enable_grad()
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
    """Train a model, or a stack of models, and return the training history.

    The members of a stack are independent. Each has its own random seed, order of data, learning rate and solver steps,
    and ends up exactly as if trained alone. The exception is ``gradient="continuous"``, whose adjoint has one step size
    for all members.

    If a solve fails, or a loss is not finite, ``history.failures`` reports it. A member of a stack is then frozen in
    its state before that iteration, and the other members continue. A single model stops training. See ``on_failure``.

    ``fit`` does not change the mode of modules, so that layers may stay in evaluation mode, such as frozen batch
    normalisation. Call ``model.train()`` first if the model was evaluated. Noise is an exception: an iteration always
    sees one path of it.

    Ctrl-C ends training after the current iteration and returns the history so far. ``history.engine`` reports whether
    the compiled engine ran the training and, if not, why.

    Args:
        model: The model, trained in place: an anode model, or any ``nn.Module`` that maps a batch to predictions.
        data: The training data, in one of these forms:

            * A dataset, ``(x, y)`` or ``(x, y, weights)``, with one weight per point. Only the ratios of weights
              matter. Images may be ``torch.uint8``; each batch is scaled to [0, 1].
            * For a stack, also a sequence of these, one per member and all of the same size.
            * Points ``x`` alone, for a model or a loss that needs no targets. The loss is then given targets of shape
              ``[n, 0]``. A conditional :class:`anode.DensityFlow` is given its contexts as targets.
            * Batches ``x``, ``(x, y)`` or ``(x, y, weights)``, whose weights are not normalized: a ``DataLoader``, any
              other iterable that can be iterated once per epoch, or a function that returns the batches of an epoch,
              given a seed. Only with a function does a resumed run give exactly the same result.
        epochs: Number of passes over the data.
        batch_size: Number of points per iteration. The last batch of an epoch may be smaller. Defaults to 64, or to the
            number of points if it is smaller.
        lr: Learning rate, or one per member. Defaults to 1e-3.
        weight_decay: Weight decay of the optimizer: an L2 penalty for Adam. Defaults to 0.
        optimizer: ``"adam"``, ``"adamw"``, ``"nadam"``, ``"radam"``, ``"rmsprop"``, ``"sgd"``, or a function that takes
            a list of parameters and returns a ``torch.optim.Optimizer``. With a function, ``lr`` and ``weight_decay``
            must not be given. For a stack, the optimizer must move every number by its own gradients, as most do.
        scheduler: A function that takes the optimizer and returns a scheduler of ``torch.optim.lr_scheduler``. It is
            stepped after every iteration, or after every evaluation if it is a ``ReduceLROnPlateau``.
        clip: Maximum norm of the gradient over all parameters of a member. Larger gradients are scaled down.
        loss: ``"huber"``, ``"mse"``, ``"cross_entropy"``, or a function of predictions and targets that returns losses.
            If the first parameter of the function is called ``outcome``, it is given the :class:`anode.Outcome` instead
            of the predictions. Defaults to the model's ``default_loss`` if it has one, such as that of
            :class:`anode.DensityFlow`. Otherwise it defaults to ``"cross_entropy"`` for integer targets, which are
            class indices, and to ``"huber"`` for others. For class indices, accuracies are recorded too.
        transform: A function applied to the points of every training batch, such as random flips of images. It must
            return the same number of points, in the same dtype. It is tried on one point before training.
        validation: Validation data, evaluated in batches of ``batch_size``. If a solve fails, the validation loss is
            NaN and training continues.
        evaluate_every: Number of iterations between evaluations. Defaults to one epoch. The model is also evaluated at
            the end of training, even if ``minutes`` have passed.
        check_every: Number of iterations between checks of the solver's accuracy with ``flow.check``, on up to 256
            points of the validation data, or of the training data if there is none. The first check is before training,
            the last at the end. ``history.check`` holds the errors. By default nothing is checked.
        patience: Stop if the validation loss has not improved for this number of evaluations. The model is always left
            with the parameters of the lowest validation loss. The evaluation at the end of training counts only if it
            was due anyway. Not available for stacks.
        seed: Random seed of the order of data, or one per member. With a single seed s, the members of a stack get
            s, s + 1, s + 2, ...
        snapshots: Features to record during training, see :class:`anode.Snapshots`.
        minutes: Time limit. Training ends after the iteration in which it passes.
        on_failure: What to do if a solve fails, or a loss or gradient is not finite:

            * ``"stop"``: a single model stops training, a member of a stack is frozen.
            * ``"skip"``: skip the batch and continue with the next. Not available for stacks.
            * ``"raise"``: raise :class:`anode.SolveError` or ``FloatingPointError``. The model is left as it was before
              the iteration.
        checkpoint: A folder for checkpoints. If it holds a checkpoint of the same model, data and settings, training
            resumes from it, whatever the current parameters of ``model``, and gives exactly the same result as without
            the interruption. ``epochs`` may be larger than before. The state of torch's random numbers is restored too.
        checkpoint_every: Seconds between checkpoints. Defaults to 60; 0 writes one per iteration. A last checkpoint is
            written when training ends.
        callbacks: Objects that are called during training, see :class:`anode.Callback`.
        progress: ``True`` for a progress bar, ``False`` for none, or a function that is called with a
            :class:`anode.Report` after every iteration. By default a bar is shown on a terminal.

    Returns:
        The losses, costs and failures of the run, see :class:`anode.History`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument has an invalid value, or does not fit the model.
        SolveError: If a solve fails and ``on_failure`` is ``"raise"``.
        FloatingPointError: If a loss or gradient is not finite and ``on_failure`` is ``"raise"``.

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
