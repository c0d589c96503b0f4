"""The score of a model on data that it was not trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.data.waiting import patient_bar
from anode.experiments.descriptions import Description
from anode.experiments.material import Material
from anode.experiments.ties import check_tied
from anode.files import DamagedFileError
from anode.models.ensemble import unstack
from anode.models.model import as_input
from anode.ode.solution import SolveError
from anode.storage import read_described, write_described

FORMAT = "anode result 1"
NAME, SAMPLE = "result.json", "held_out.safetensors"
AT_ONCE, IMAGES_AT_ONCE = 4096, 256
"""Number of points and of images that are computed at once."""
KEPT, IMAGES_KEPT = 300, 100
"""Number of points and of images that are saved for drawing."""


@dataclass(frozen=True)
class Result:
    """The score of a model.

    Attributes:
        scores: Accuracy or R² of each repeat; empty if a solve failed.
        baseline: Score of always predicting the largest class, or the mean.
        errors: Root mean squared error of each repeat, followed by that of the baseline; empty for classes.
        confusion: Confusion matrix over all repeats. Rows are true classes, columns are predicted classes.
        nfe: Mean number of evaluations of the field per point or image.
        failure: Why there is no score; empty if there is one.
    """

    scores: list[float]
    baseline: float
    errors: list[float]
    confusion: list[list[int]]
    nfe: float
    failure: str = ""


@dataclass(frozen=True)
class Sample:
    """A part of the test data, for drawing.

    Attributes:
        x: Inputs.
        y: Class indices or targets.
        predicted: Predictions; empty if a solve failed.
    """

    x: Tensor
    y: Tensor
    predicted: Tensor


def predictions(model: Any, x: Tensor, what: str = "predicting") -> Iterator[tuple[Tensor, Tensor]]:
    """Yield predictions and numbers of evaluations in chunks. Every point has its own step size.

    Args:
        model: The model.
        x: Inputs, or images as ``uint8``.
        what: Text of the progress bar, which appears if it takes long.

    Raises:
        SolveError: A solve failed.
    """
    like = next(model.parameters())
    model.eval()
    with torch.no_grad(), patient_bar(what, len(x)) as advance:
        for part in x.split(IMAGES_AT_ONCE if x.ndim == 4 else AT_ONCE):
            outcome = model.run(as_input(part, like), control=1).check()
            nfe = torch.zeros(1) if outcome.solution is None else outcome.solution.stats.nfe
            yield outcome.prediction.cpu(), torch.as_tensor(nfe, dtype=torch.float64).cpu().reshape(-1)
            advance(len(part))


def in_units(description: Description, prediction: Tensor) -> Tensor:
    """Return predictions as class indices, or as numbers in the units of the target."""
    if not description.classes:
        assert description.target is not None
        return prediction[:, 0].double() * description.target.scale + description.target.mean
    return (prediction[:, 0] > 0).long() if prediction.shape[1] == 1 else prediction.argmax(1)


def judge(model: Any, material: Material) -> tuple[Result, Sample]:
    """Measure the score of a model, or of a stack of models, on the test data."""
    models = [model] if model.members is None else unstack(model)
    described, found, nfe = material.description, [], []
    x, y = material.tests[0]
    some = torch.from_numpy(np.random.default_rng(0).permutation(len(x))[: IMAGES_KEPT if x.ndim == 4 else KEPT])
    baseline, errors = _baseline(described, y)
    try:
        for each, (inputs, _) in zip(models, material.tests, strict=True):
            parts = list(predictions(each, inputs, "judging"))
            predicted = torch.cat([part for part, _ in parts])
            if not predicted.isfinite().all():
                raise FloatingPointError("the predictions are not finite")
            found.append(in_units(described, predicted))
            nfe.append(float(torch.cat([evaluations for _, evaluations in parts]).mean()))
    except (SolveError, FloatingPointError) as error:
        failed = Result([], baseline, [], [], 0.0, str(error).splitlines()[0])
        return failed, Sample(x[some], y[some], y[:0])
    truths = [truth for _, truth in material.tests]
    if described.classes:
        scores = [float((guess == truth).double().mean()) for guess, truth in zip(found, truths, strict=True)]
        result = Result(scores, baseline, [], _confusion(len(described.classes), truths, found), float(np.mean(nfe)))
    else:
        made = [_rmse(guess, truth) for guess, truth in zip(found, truths, strict=True)]
        scores = [_r2(guess, truth) for guess, truth in zip(found, truths, strict=True)]
        result = Result(scores, baseline, [*made, *errors], [], float(np.mean(nfe)))
    return result, Sample(x[some], y[some], found[0][some])


def _baseline(described: Description, y: Tensor) -> tuple[float, list[float]]:
    """Return the score of always predicting the largest class, or the mean; for the mean also its error."""
    if described.classes:
        return float((y == int(np.argmax(described.frequencies))).double().mean()), []
    assert described.target is not None
    mean = torch.full_like(y, described.target.mean)
    return _r2(mean, y), [_rmse(mean, y)]


def _confusion(classes: int, truths: Sequence[Tensor], guesses: Sequence[Tensor]) -> list[list[int]]:
    pairs = torch.cat(list(truths)) * classes + torch.cat(list(guesses))
    return pairs.bincount(minlength=classes**2).reshape(classes, classes).tolist()


def _r2(guess: Tensor, truth: Tensor) -> float:
    total = float(((truth - truth.mean()) ** 2).sum())
    return 1 - float(((guess - truth) ** 2).sum()) / total if total else 0.0


def _rmse(guess: Tensor, truth: Tensor) -> float:
    return float(((guess - truth) ** 2).mean().sqrt())


def save_result(folder: Path, result: Result, sample: Sample) -> None:
    """Write score and sample to the folder of a run."""
    content = {"format": FORMAT, **asdict(result)}
    tensors = {"x": sample.x, "y": sample.y, "predicted": sample.predicted}
    write_described(folder / NAME, content, folder / SAMPLE, tensors)


def load_result(folder: Path, description: Description) -> tuple[Result, Sample]:
    """Read what :func:`save_result` wrote.

    Raises:
        DamagedFileError: The files are damaged, or belong to another run or to other data.
    """
    if not (folder / NAME).exists():
        raise ValueError(f"{folder}: has no {NAME}; run the command again that started the run, to write it")
    check_tied(folder, [NAME])
    content, tensors = read_described(folder / NAME, folder / SAMPLE)
    try:
        given = {name: value for name, value in content.items() if name not in ("format", "sha256")}
        result, sample = Result(**given), Sample(**tensors)
        inputs = description.sizes.inputs
        wide = (inputs,) if isinstance(inputs, int) else inputs
        known = description.classes and (int(sample.y.min()) < 0 or int(sample.y.max()) >= len(description.classes))
        sizes = {len(row) for row in result.confusion} | {len(result.confusion)}
        if content["format"] != FORMAT or tuple(sample.x.shape[1:]) != wide or known:
            raise ValueError("it belongs to other data")
        errors = 0 if description.classes or result.failure else len(result.scores) + 1
        torch.tensor(result.scores + result.errors + [result.baseline, result.nfe], dtype=torch.float64)  # all numbers
        if bool(result.scores) == bool(result.failure) or len(result.errors) != errors:
            raise ValueError("its scores are incomplete")
        if result.confusion and sizes != {len(description.classes)}:
            raise ValueError("its classes are others")
        return result, sample
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        how = "run the command again that started the run, to repair it"
        raise DamagedFileError(f"{folder / NAME}: is damaged ({error}); {how}") from None
