"""The two halves of the paper, and the studies beyond it: their figures, claims and runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from anode.experiments.beyond import on_images
from anode.experiments.beyond.claims import CLAIMS as BEYOND_CLAIMS
from anode.experiments.beyond.claims import IMAGE_CLAIMS as FAMILY_CLAIMS
from anode.experiments.beyond.protocols import NOTE as BEYOND_NOTE
from anode.experiments.beyond.protocols import protocol as beyond_protocol
from anode.experiments.beyond.studies import IMAGE_STUDIES as FAMILY_STUDIES
from anode.experiments.beyond.studies import STUDIES as BEYOND_STUDIES
from anode.experiments.findings import Claim
from anode.experiments.images import scales
from anode.experiments.images.claims import CLAIMS as IMAGE_CLAIMS
from anode.experiments.images.runs import ImageRun
from anode.experiments.images.scales import SCALES, Scale
from anode.experiments.images.studies import STUDIES as IMAGE_STUDIES
from anode.experiments.runs import Run
from anode.experiments.study import Study
from anode.experiments.toy.claims import CLAIMS as TOY_CLAIMS
from anode.experiments.toy.protocols import protocol
from anode.experiments.toy.studies import STUDIES as TOY_STUDIES


@dataclass(frozen=True)
class Protocols:
    """The runs of a half at one scale.

    Attributes:
        repeats: Default number of repeats of every run.
        note: How this differs from the paper, in words; empty if it does not.
        run: Returns a run for a name, a number of repeats and a first seed.
        first: Names of the runs to train before all others, in this order.
        lasting: Returns the same protocols with another number of epochs; ``None`` if epochs cannot be changed.
    """

    repeats: int
    note: str
    run: Callable[[str, int, int], Run]
    first: tuple[str, ...] = ()
    lasting: Callable[[int], Protocols] | None = None


@dataclass(frozen=True)
class Half:
    """A half of the paper, or what lies beyond it.

    Attributes:
        name: Its name on the command line.
        title: The title of its report.
        studies: Its figures and tables, by id.
        claims: The paper's claims about it.
        scales: Its runs by scale; the first scale is the default.
        any_device: Whether its runs can be trained on other devices than the CPU.
    """

    name: str
    title: str
    studies: Mapping[str, Study]
    claims: Sequence[Claim]
    scales: Mapping[str, Protocols]
    any_device: bool = False


def image_protocols(scale: Scale) -> Protocols:
    """Return the runs of the image half at a scale."""
    return _on_images(scale, scales.runs, scale.reduced, image_protocols, scale.first)


def family_protocols(scale: Scale) -> Protocols:
    """Return the runs of the family on images at a scale."""
    return _on_images(scale, on_images.runs, on_images.note(scale), family_protocols)


def _on_images(
    scale: Scale,
    runs: Callable[[Scale], Mapping[str, ImageRun]],
    note: str,
    protocols: Callable[[Scale], Protocols],
    first: tuple[str, ...] = (),
) -> Protocols:
    def run(name: str, repeats: int, seed: int) -> Run:
        return replace(runs(scale)[name], repeats=repeats, seed=seed)

    return Protocols(scale.repeats, note, run, first, lambda epochs: protocols(scale.lasting(epochs)))


HALVES: dict[str, Half] = {
    half.name: half
    for half in (
        Half(
            "toy",
            "Augmented Neural ODEs: the toy experiments",
            TOY_STUDIES,
            TOY_CLAIMS,
            {"paper": Protocols(20, "", protocol)},
        ),
        Half(
            "images",
            "Augmented Neural ODEs: the image experiments",
            IMAGE_STUDIES,
            IMAGE_CLAIMS,
            {name: image_protocols(SCALES[name]) for name in ("small", "smoke", "medium", "paper")},
            any_device=True,
        ),
        Half(
            "beyond",
            "Beyond the paper: the family of augmented neural ODEs",
            BEYOND_STUDIES,
            BEYOND_CLAIMS,
            {"points": Protocols(20, BEYOND_NOTE, beyond_protocol)},
        ),
        Half(
            "beyond-images",
            "Beyond the paper: the family on images",
            FAMILY_STUDIES,
            FAMILY_CLAIMS,
            {name: family_protocols(SCALES[name]) for name in ("medium", "smoke")},
            any_device=True,
        ),
    )
}
