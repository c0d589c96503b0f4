"""The studies: the figures of the paper, grouped by what they show."""

from anode.experiments.study import Study
from anode.experiments.toy.studies import diagrams, features, fig03, fig09, flows, losses

_ALL = (*diagrams.STUDIES, *flows.STUDIES, *losses.STUDIES, *features.STUDIES, fig03.STUDY, fig09.STUDY)

STUDIES: dict[str, Study] = {study.id: study for study in sorted(_ALL, key=lambda study: study.id)}
"""All studies by their id, in the order of the paper."""
