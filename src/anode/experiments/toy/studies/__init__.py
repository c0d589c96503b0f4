"""The studies: a module for each figure of the paper."""

from anode.experiments.study import Study
from anode.experiments.toy.studies import diagrams, fig01, fig03, fig05, fig06, fig07, fig08, fig09, fig17, fig20, fig25

_ALL = (
    *diagrams.STUDIES,
    *(module.STUDY for module in (fig01, fig03, fig05, fig06, fig07, fig08, fig09, fig17, fig20, fig25)),
)

STUDIES: dict[str, Study] = {study.id: study for study in sorted(_ALL, key=lambda study: study.id)}
"""All studies by their id, in the order of the paper."""
