"""``anode check``: which tolerance the solves of a saved run need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from anode.checks import number, require
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
    """The result of a check.

    Attributes:
        certificate: Errors and evaluations at each tolerance.
        trained: A sentence about the tolerance that the run was trained with.
        picture: The picture that was written.
    """

    certificate: Certificate
    trained: str
    picture: Path


def check_saved(folder: Path, bound: float, points: int, picture: Path | None, root: Path | None) -> Checked:
    """Find the loosest tolerance at which solving forward and back returns to the inputs, and draw the errors.

    Args:
        folder: Folder of the run.
        bound: Largest reconstruction error that passes, as a fraction of the size of the states.
        points: Largest number of the run's points or images to solve for.
        picture: The file to write. Defaults to ``certificate.png`` in the folder.
        root: Where datasets are stored.
    """
    number("bound", bound, finite=True)
    number("points", points, whole=True)
    picture = picture or folder / "certificate.png"
    require(picture.suffix in (".png", ".svg", ".pdf"), "out", str(picture), "a name that ends in .png, .svg or .pdf")
    run = load_saved(folder)
    model = run.repeats
    if not isinstance(model, NeuralODE):
        raise ValueError(f"{folder}: holds a {type(model).__name__}, which has no solve to check")
    size = model.flow.solver.step_size
    if size is not None:
        raise ValueError(
            f"{folder}: was trained with step_size {size}, which no tolerance changes; check such a solve in Python, "
            "with model.flow.check(x)"
        )
    x = inputs_of(run, points, root)
    certificate = model.flow.certify(x, bound)
    trained = in_words(model.flow.check(x, bound))
    return Checked(
        certificate, trained, style.save(certificate.plot(), picture.with_suffix(""), (picture.suffix[1:],))[0]
    )


def inputs_of(run: Saved, points: int, root: Path | None) -> Tensor:
    """Return the first points or images of the validation or test set; training points if there is neither."""
    single, like = run.single, next(run.repeats.parameters())
    if single.repeats != (run.repeats.members or 1):
        raise DamagedFileError(f"{Path(run.name) / 'run.json'}: its options do not belong to the model beside it")
    if single.kind in FILES:  # the files may be gone; the run keeps a sample
        assert run.description is not None
        return as_input(load_result(Path(run.name), run.description)[1].x[:points], like)
    material = material_of(single, root)
    kept = material.data if material.validation is None else material.validation
    found = points_of("data", kept, run.repeats.members)
    return found.take(found.in_turn(points)[0], like)[0]


def in_words(check: Check) -> str:
    """Return a sentence about the check of the run's own tolerance."""
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
