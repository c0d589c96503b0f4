"""``anode check``: find the tolerance that a saved model needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from anode.checks import number
from anode.experiments.judging import load_result
from anode.experiments.kinds import FILES
from anode.experiments.material import material_of
from anode.experiments.single import Saved, load_saved
from anode.files import DamagedFileError
from anode.models.certify import Certificate, Check
from anode.models.model import as_input
from anode.models.nets import NeuralODE
from anode.plots import style
from anode.train.points import points_of


@dataclass(frozen=True)
class Checked:
    """The outcome of checking a saved run.

    Attributes:
        certificate: Errors and evaluations at each tolerance.
        trained: A sentence about the tolerance that the run was trained with.
        picture: The figure that was written.
    """

    certificate: Certificate
    trained: str
    picture: Path


def check_saved(folder: Path, bound: float, points: int, picture: Path | None, root: Path | None) -> Checked:
    """Find the loosest tolerance that recovers the inputs of a saved run, and plot the outcome.

    Args:
        folder: The folder of the run.
        bound: The largest reconstruction error that passes, as a fraction of the size of the states.
        points: Maximum number of points or images to use.
        picture: The file to write; defaults to ``certificate.png`` in the folder.
        root: The folder of the datasets.
    """
    number("bound", bound, finite=True)
    number("points", points, whole=True)
    picture = picture or folder / "certificate.png"
    style.check_picture(picture)
    run = load_saved(folder)
    model = run.repeats
    if not isinstance(model, NeuralODE):
        raise ValueError(f"{folder}: has a {type(model).__name__}, which has no ODE solve to check")
    size = model.flow.solver.step_size
    if size is not None:
        raise ValueError(
            f"{folder}: was trained with step_size {size}, so its solves have no tolerance; check them in Python with "
            "model.flow.check(x)"
        )
    x = inputs_of(run, points, root)
    certificate = model.flow.certify(x, bound)
    trained = in_words(model.flow.check(x, bound))
    return Checked(certificate, trained, style.save(certificate.plot(), picture)[0])


def inputs_of(run: Saved, points: int, root: Path | None) -> Tensor:
    """Return the first points or images held out from training; if there are none, the first training points."""
    single, like = run.single, next(run.repeats.parameters())
    if single.repeats != (run.repeats.members or 1):
        raise DamagedFileError(f"{Path(run.name) / 'run.json'}: its options do not match the model next to it")
    if single.kind in FILES:  # the original files may be gone
        assert run.description is not None
        return as_input(load_result(Path(run.name), run.description)[1].x[:points], like)
    material = material_of(single, root)
    kept = material.data if material.validation is None else material.validation
    found = points_of("data", kept, run.repeats.members)
    return found.take(found.in_turn(points)[0], like)[0]


def in_words(check: Check) -> str:
    """Return the outcome of a check of the run's own tolerance, in a sentence."""
    passed, error = check.passed.flatten(), float(check.overall.median())
    alone = len(passed) == 1
    verdict = (
        ("passes" if check.passes else "does not pass") if alone else f"passes for {passed.sum()} of {len(passed)}"
    )
    size = (
        "a solve failed"
        if math.isinf(error)
        else f"the {'' if alone else 'median '}reconstruction error is {error:.2%}"
    )
    return f"The run was trained with rtol = {check.rtol:.0e}, which {verdict}: {size}."
