"""All training runs of the image half, as data, at four scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from anode.data.images import IMAGES
from anode.experiments.images.runs import ImageRun

AUGMENTS = (0, 1, 2, 5, 10)
"""The numbers of added channels that the paper compares; 0 is the plain NODE."""

CHOSEN = {"mnist": 5, "cifar10": 10, "svhn": 10, "tiny_imagenet": 5}
"""Added channels of the ANODE that the paper compares with a NODE of the same size."""

TOO_MANY = 100
"""Added channels that the paper found too many on MNIST."""

WEIGHT_DECAY = 1e-3
"""Our choice; the paper does not give its weight decay."""

EPOCHS = {"mnist": 8, "cifar10": 10, "svhn": 10, "tiny_imagenet": 2}
"""Epochs on each dataset at the scale ``paper``. These are our choice; the paper does not give them.

For MNIST and CIFAR-10 they are those of an independent reproduction. Tiny ImageNet gets 2, because one epoch of its
NODE takes about 10 hours on two cores (an estimate: the time of CIFAR-10's NODE, scaled by the arithmetic).
"""

TABLE_ORDER = (
    "mnist-p5",
    "mnist-head",
    "mnist-node",
    "cifar10-p10",
    "cifar10-head",
    "svhn-p10",
    "svhn-head",
    "cifar10-node",
    "svhn-node",
)
"""The runs of table 1 in the order in which the scale ``paper`` trains them: the fastest first."""

CLAIMS_ORDER = (
    "mnist-p0",
    "mnist-p10",
    "cifar10-p0",
    "cifar10-p10",
    "mnist-node",
    "mnist-p5",
    "cifar10-node",
    "mnist-node-decay",
    "mnist-p5-decay",
    "tiny_imagenet-node",
    "tiny_imagenet-p5",
    f"mnist-p{TOO_MANY}",
    "svhn-node",
    "svhn-p10",
    "overfit-node",
    "overfit-anode",
)
"""The runs that the scale ``medium`` trains first, one claim after another.

The last are those of claim 15: if a NODE becomes unstable, its solves take 50 times longer.
"""


@dataclass(frozen=True)
class Size:
    """How much of a dataset is used.

    Attributes:
        data: The dataset to load: the paper's, or a substitute.
        side: Height and width of the images.
        train, test: Number of images.
        epochs: Number of epochs.
        batch_size: Images in an iteration; ``None`` for those of the scale.
        max_steps: Number of steps after which a solve fails.
    """

    data: str
    side: int
    train: int
    test: int
    epochs: int
    batch_size: int | None = None
    max_steps: int = 1_000


@dataclass(frozen=True)
class Scale:
    """The size of the image half.

    Attributes:
        name: What it is called on the command line.
        reduced: How it differs from the paper, in words.
        filters: Number of filters of all models, except those that are matched in size.
        batch_size: Images in an iteration.
        lr: Adam's learning rate.
        evaluations: Number of evaluations on the test images per run; ``None`` for one per epoch.
        repeats: Repeats of every run.
        sizes: Size of each of the paper's datasets.
        overfitted: Size of the MNIST subset that models overfit.
        first: Names of the runs that are trained before all others, in this order.
    """

    name: str
    reduced: str
    filters: int
    batch_size: int
    lr: float
    evaluations: int | None
    repeats: int
    sizes: Mapping[str, Size]
    overfitted: Size
    first: tuple[str, ...] = ()

    def lasting(self, epochs: int) -> Scale:
        """Return the same scale with another number of epochs, except for the models that overfit."""
        sizes = {name: replace(size, epochs=epochs) for name, size in self.sizes.items()}
        said = f" With --epochs {epochs}, models train for {epochs} epochs, except those that overfit."
        return replace(self, sizes=sizes, reduced=self.reduced + said)


SCALES: dict[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            "smoke",
            "Every dataset is replaced by scikit-learn's digits (8x8 grey pixels). Models have 4 filters and train "
            "for 6 iterations with batch size 64. This tests that everything works; it says nothing about the "
            "paper's claims.",
            filters=4,
            batch_size=64,
            lr=1e-3,
            evaluations=3,
            repeats=2,
            sizes={name: Size("digits", 8, 192, 64, 2) for name in CHOSEN},
            overfitted=Size("digits", 8, 64, 64, 6),
        ),
        Scale(
            "small",
            "Images are averaged over areas of 4x4 pixels (8x8 for Tiny ImageNet). Models have 16 filters instead of "
            "64. The batch size is 64 instead of 256. Each dataset has 16,000 training images for 10 epochs (Tiny "
            "ImageNet: 8,000 for 20), and 1,000 test images. Models that overfit train on 256 images for 600 epochs. "
            "Because training is short, the learning rate is 2e-3 instead of 1e-3. Repeats and tolerances are the "
            f"paper's. The weight decay is {WEIGHT_DECAY:g}; the paper does not give its own.",
            filters=16,
            batch_size=64,
            lr=2e-3,
            evaluations=10,
            repeats=5,
            sizes={
                "mnist": Size("mnist", 7, 16_000, 1_000, 10),
                "cifar10": Size("cifar10", 8, 16_000, 1_000, 10),
                "svhn": Size("svhn", 8, 16_000, 1_000, 10),
                "tiny_imagenet": Size("tiny_imagenet", 8, 8_000, 1_000, 20),
            },
            overfitted=Size("mnist", 7, 256, 1_000, 600),
        ),
        Scale(
            "medium",
            "Images are averaged over areas of 2x2 pixels (4x4 for Tiny ImageNet). Models have 32 filters instead of "
            "64. The batch size is 64 instead of 256. Models train on all training images of MNIST for 4 epochs and of "
            "CIFAR-10 for 4, on 32,000 images of SVHN for 4, and on 10,000 of Tiny ImageNet for 12. There are 5,000 "
            "test images (Tiny ImageNet: 2,000; overfitting: 1,000). Models that overfit train on 256 images of the "
            "full size for 100 epochs, with a batch size of 8; their solves fail after 200 steps, which are more than "
            "1,000 evaluations. Learning rate, repeats and tolerances are the "
            f"paper's. The weight decay is {WEIGHT_DECAY:g}; the paper does not give its own.",
            filters=32,
            batch_size=64,
            lr=1e-3,
            evaluations=10,
            repeats=5,
            sizes={
                "mnist": Size("mnist", 14, 60_000, 5_000, 4),
                "cifar10": Size("cifar10", 16, 50_000, 5_000, 4),
                "svhn": Size("svhn", 16, 32_000, 5_000, 4),
                "tiny_imagenet": Size("tiny_imagenet", 16, 10_000, 2_000, 12),
            },
            overfitted=Size("mnist", 28, 256, 1_000, 100, batch_size=8, max_steps=200),
            first=CLAIMS_ORDER,
        ),
        Scale(
            "paper",
            "The protocol is the paper's, as far as the paper describes it. It does not give the number of epochs. "
            f"Ours are {EPOCHS['mnist']} for MNIST, {EPOCHS['cifar10']} for CIFAR-10, {EPOCHS['svhn']} for SVHN and "
            f"{EPOCHS['tiny_imagenet']} for Tiny ImageNet. It does not give the weight decay (ours: "
            f"{WEIGHT_DECAY:g}), or how models were made to overfit (ours: 1,024 images of MNIST for 500 epochs). Its "
            "parameter counts leave out the time channels, which are used here.",
            filters=64,
            batch_size=256,
            lr=1e-3,
            evaluations=None,
            repeats=5,
            sizes={
                name: Size(name, source.shape[1], source.counts["train"], source.counts["test"], EPOCHS[name])
                for name, source in IMAGES.items()
                if name in CHOSEN
            },
            overfitted=Size("mnist", 28, 1_024, 10_000, 500),
            first=TABLE_ORDER,
        ),
    )
}


def equal(data: str) -> dict[str, str]:
    """Return the names of the runs of a NODE and an ANODE of the same size."""
    return {"NODE": f"{data}-node", "ANODE": f"{data}-p{CHOSEN[data]}"}


def runs(scale: Scale) -> dict[str, ImageRun]:
    """Return all runs at a scale, by name."""
    made = [run(scale, f"{data}-p{p}", data, augment=p) for data in ("mnist", "cifar10", "svhn") for p in AUGMENTS]
    made.append(run(scale, "tiny_imagenet-p5", "tiny_imagenet", augment=5))
    for data in CHOSEN:
        made.append(run(scale, f"{data}-node", data, filters=matching_filters(scale, scale.sizes[data], CHOSEN[data])))
    for data in ("mnist", "cifar10", "svhn"):  # the linear layer reads as many channels as a NODE's
        channels = IMAGES[scale.sizes[data].data].shape[0]
        made.append(run(scale, f"{data}-head", data, augment=CHOSEN[data], head_channels=channels))
    node, overfits = (
        matching_filters(scale, size, CHOSEN["mnist"]) for size in (scale.sizes["mnist"], scale.overfitted)
    )
    made += [
        run(scale, "mnist-node-decay", "mnist", filters=node, weight_decay=WEIGHT_DECAY),
        run(scale, "mnist-p5-decay", "mnist", augment=5, weight_decay=WEIGHT_DECAY),
        run(scale, f"mnist-p{TOO_MANY}", "mnist", augment=TOO_MANY),
        run(scale, "overfit-node", "mnist", scale.overfitted, filters=overfits),
        run(scale, "overfit-anode", "mnist", scale.overfitted, augment=5),
    ]
    return {each.name: each for each in made}


def run(
    scale: Scale, name: str, data: str, size: Size | None = None, make: type[ImageRun] = ImageRun, **settings: object
) -> ImageRun:
    """Return a run on a dataset, with the settings of the scale as defaults."""
    size = size or scale.sizes[data]
    batch_size = min(size.batch_size or scale.batch_size, size.train)
    iterations = size.epochs * -(-size.train // batch_size)
    every = None if scale.evaluations is None else -(-iterations // scale.evaluations)
    chosen = {"filters": scale.filters, "lr": scale.lr, "repeats": scale.repeats, **settings}
    return make(
        name,
        size.data,
        size.side,
        size.train,
        size.test,
        epochs=size.epochs,
        batch_size=batch_size,
        max_steps=size.max_steps,
        evaluate_every=every,
        **chosen,  # type: ignore[arg-type]
    )


def matching_filters(scale: Scale, size: Size, augment: int) -> int:
    """Return the number of filters with which a NODE has as many parameters as the ANODE it is compared with.

    Parameters are counted as in the paper: without time channels, and for ten classes on every dataset. At the scale
    ``paper`` this gives the paper's own numbers: 92, 125, 125 and 164.

    Args:
        scale: Gives the filters of the ANODE.
        size: Gives the images of both.
        augment: Channels that the ANODE adds.
    """
    channels = IMAGES[size.data].shape[0]
    wanted = parameters(channels, size.side, scale.filters, augment)
    filters = range(scale.filters, 8 * scale.filters)
    return min(filters, key=lambda each: abs(parameters(channels, size.side, each, 0) - wanted))


def parameters(channels: int, side: int, filters: int, augment: int) -> int:
    """Return the number of parameters of a model, counted as in the paper."""
    state = channels + augment
    field = (state + 1) * filters + (9 * filters + 1) * filters + (filters + 1) * state
    return field + state * side * side * 10 + 10
