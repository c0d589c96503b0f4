"""The studies beyond the paper, one module each."""

from anode.experiments.beyond.studies import densities, family, how_many, noise, on_images, parity, regularisers, why
from anode.experiments.study import Study

STUDIES: dict[str, Study] = {
    study.id: study
    for study in (
        family.STUDY,
        parity.STUDY,
        how_many.STUDY,
        why.STUDY,
        noise.STUDY,
        regularisers.STUDY,
        *densities.STUDIES,
    )
}
"""All studies of points by their id."""

IMAGE_STUDIES: dict[str, Study] = {study.id: study for study in on_images.STUDIES}
"""All studies of images by their id."""
