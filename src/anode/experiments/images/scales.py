"""Every training run of the image half of the paper, as data, at three scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from anode.data.images import IMAGES
from anode.experiments.images.runs import ImageRun

AUGMENTS = (0, 1, 2, 5, 10)
"""The numbers of added channels that the paper compares; 0 is the plain NODE."""

CHOSEN = {"mnist": 5, "cifar10": 10, "svhn": 10, "tiny_imagenet": 5}
"""The augmentation of the ANODE that the paper compares with a NODE of the same size."""

TOO_MANY = 100
"""Added channels that the paper found to be too many, on MNIST."""

WEIGHT_DECAY = 1e-3
"""The paper does not say how much."""

EPOCHS = {"mnist": 8, "cifar10": 10, "svhn": 10, "tiny_imagenet": 2}
"""Passes over each dataset at the scale ``paper``. The paper does not say how many; these are ours.

For MNIST and CIFAR-10 they are those of an independent reproduction. Tiny ImageNet gets 2, because one epoch takes its
NODE about 10 hours on two cores (not measured: the time of CIFAR-10's NODE, times the arithmetic).
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
"""The runs of table 1 in the order in which the scale ``paper`` trains them: what takes least first."""


@dataclass(frozen=True)
class Size:
    """How much of a dataset is used.

    Attributes:
        data: The dataset that is read: the one meant, or one that stands in for it.
        side: Height and width of the images.
        train, test: Numbers of images.
        epochs: Passes over them.
    """

    data: str
    side: int
    train: int
    test: int
    epochs: int


@dataclass(frozen=True)
class Scale:
    """How much work the image half is.

    Attributes:
        name: What it is called on the command line.
        reduced: In words, how it differs from the paper.
        filters: Of all models but those that are matched in size.
        batch_size: Images in an iteration.
        lr: Adam's learning rate.
        evaluations: How often the test images are looked at in a run; ``None`` for once an epoch.
        repeats: Of every run.
        sizes: By the dataset that is meant.
        overfitted: The MNIST images that models are made to overfit.
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
        """The same with another number of epochs, except for the models that are made to overfit."""
        sizes = {name: replace(size, epochs=epochs) for name, size in self.sizes.items()}
        said = f" Every dataset is trained on for {epochs} epochs, as asked for with --epochs."
        return replace(self, sizes=sizes, reduced=self.reduced + said)


SCALES: dict[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            "smoke",
            "scikit-learn's digits (8x8 grey pixels) stand in for every dataset, 4 filters, 6 iterations with batches "
            "of 64: it shows that everything works, and nothing about the paper's claims.",
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
            "images averaged over areas of 4x4 pixels (8x8 for Tiny ImageNet), 16 filters instead of 64, batches of 64 "
            "instead of 256, 16,000 training images of each dataset for 10 epochs (8,000 of Tiny ImageNet for 20), "
            "1,000 test images; 256 images for 600 epochs where models overfit. As this is short, the learning rate is "
            "2e-3 instead of 1e-3. Repeats and tolerances are the paper's; weight decay, which it does not give, is "
            f"{WEIGHT_DECAY:g}.",
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
            "paper",
            "as in the paper, where it says how. The paper does not give its number of epochs. Ours are "
            f"{EPOCHS['mnist']} for MNIST, {EPOCHS['cifar10']} for CIFAR-10, {EPOCHS['svhn']} for SVHN and "
            f"{EPOCHS['tiny_imagenet']} for Tiny ImageNet. Nor does it give its weight decay (ours: {WEIGHT_DECAY:g}), "
            "or say how models were made to overfit (here: 1,024 images of MNIST for 500 epochs). Its numbers of "
            "parameters leave out the time channels, which are used here.",
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
    """The runs of a NODE and an ANODE of the same size."""
    return {"NODE": f"{data}-node", "ANODE": f"{data}-p{CHOSEN[data]}"}


def runs(scale: Scale) -> dict[str, ImageRun]:
    """All runs at a scale, by their names."""
    made = [run(scale, f"{data}-p{p}", data, augment=p) for data in ("mnist", "cifar10", "svhn") for p in AUGMENTS]
    made.append(run(scale, "tiny_imagenet-p5", "tiny_imagenet", augment=5))
    for data in CHOSEN:
        made.append(run(scale, f"{data}-node", data, filters=matching_filters(scale, data)))
    for data in ("mnist", "cifar10", "svhn"):  # the linear layer sees what it sees of a NODE
        channels = IMAGES[scale.sizes[data].data].shape[0]
        made.append(run(scale, f"{data}-head", data, augment=CHOSEN[data], head_channels=channels))
    node = matching_filters(scale, "mnist")
    made += [
        run(scale, "mnist-node-decay", "mnist", filters=node, weight_decay=WEIGHT_DECAY),
        run(scale, "mnist-p5-decay", "mnist", augment=5, weight_decay=WEIGHT_DECAY),
        run(scale, f"mnist-p{TOO_MANY}", "mnist", augment=TOO_MANY),
        run(scale, "overfit-node", "mnist", scale.overfitted, filters=node),
        run(scale, "overfit-anode", "mnist", scale.overfitted, augment=5),
    ]
    return {each.name: each for each in made}


def run(scale: Scale, name: str, data: str, size: Size | None = None, **settings: object) -> ImageRun:
    """A run on some dataset, with the scale's settings where no others are given."""
    size = size or scale.sizes[data]
    batch_size = min(scale.batch_size, size.train)
    iterations = size.epochs * -(-size.train // batch_size)
    every = None if scale.evaluations is None else -(-iterations // scale.evaluations)
    chosen = {"filters": scale.filters, "lr": scale.lr, "repeats": scale.repeats, **settings}
    return ImageRun(
        name,
        size.data,
        size.side,
        size.train,
        size.test,
        epochs=size.epochs,
        batch_size=batch_size,
        evaluate_every=every,
        **chosen,  # type: ignore[arg-type]
    )


def matching_filters(scale: Scale, data: str) -> int:
    """With how many filters a NODE has as many parameters as the ANODE it is compared with.

    Counted as the paper counts: without time, and with ten classes, whatever the dataset has. At the paper's scale
    these are its own numbers: 92, 125, 125 and 164.
    """
    channels, side = IMAGES[scale.sizes[data].data].shape[0], scale.sizes[data].side
    wanted = parameters(channels, side, scale.filters, CHOSEN[data])
    filters = range(scale.filters, 8 * scale.filters)
    return min(filters, key=lambda each: abs(parameters(channels, side, each, 0) - wanted))


def parameters(channels: int, side: int, filters: int, augment: int) -> int:
    """How many parameters a model has, as the paper counts them."""
    state = channels + augment
    field = (state + 1) * filters + (9 * filters + 1) * filters + (filters + 1) * state
    return field + state * side * side * 10 + 10
