"""Claims beyond the paper, by its authors and others, as code. Most were stated before the repeats were trained.

``docs/beyond.md`` tells which changed, and what had been trained by then.
"""

from collections.abc import Sequence

from anode.experiments.beyond.claims import densities, family, how_many, noise, on_images, parity, regularisers, why
from anode.experiments.findings import Claim

CLAIMS: Sequence[Claim] = sorted(
    (claim for module in (family, parity, how_many, why, noise, regularisers, densities) for claim in module.CLAIMS),
    key=lambda claim: claim.number,
)
"""All claims about points, by number."""

IMAGE_CLAIMS: Sequence[Claim] = on_images.CLAIMS
"""All claims about images. Their numbers follow those about points."""
