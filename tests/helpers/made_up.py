"""Results of image runs that were never trained: made up, so that what must come of them is known."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anode.experiments.images.runs import ImageRun
from anode.experiments.images.scales import SCALES, runs
from anode.experiments.runs import Result
from anode.train.history import History
from anode.train.record import Failure

ITERATIONS = 100
"""They are cut into 25 stretches of 4 iterations, and into 10 of 10."""
STRETCHES = 25
RUNS = runs(SCALES["paper"])


def made(loss: Any = 1.0, nfe: Any = 20, accuracy: float = 0.9, test_loss: float = 0.5) -> dict[str, Any]:
    """What one repeat of a run came to: losses and evaluations, as a number or one for each stretch of training."""
    return {"loss": loss, "nfe": nfe, "accuracy": accuracy, "test_loss": test_loss}


def falls(stretch: int, low: float = 0.5, high: float = 2.0) -> list[float]:
    """A series that is high, and low from a stretch on."""
    return [high] * stretch + [low] * (STRETCHES - stretch)


def spread_out(values: Any) -> Any:
    """A number, or one for each stretch, for every iteration."""
    values = np.atleast_1d(np.asarray(values, dtype=float))
    return np.repeat(values, ITERATIONS // len(values))


def results_of(repeats: Sequence[Mapping[str, dict[str, Any]]]) -> dict[str, Result]:
    """Results by run, from what each repeat came to."""
    return {name: result_of(name, [repeat[name] for repeat in repeats]) for name in repeats[0]}


def result_of(
    name: str,
    columns: Sequence[dict[str, Any]],
    failures: Sequence[Failure] = (),
    among: Mapping[str, ImageRun] = RUNS,
) -> Result:
    """The result of a run, by default of the paper, in two epochs with three looks at the test images."""
    loss = np.stack([spread_out(column["loss"]) for column in columns], 1)
    nfe = np.stack([spread_out(column["nfe"]) for column in columns], 1).astype(np.int64)
    looks = {key: np.array([[c[key] for c in columns]] * 3, np.float32) for key in ("accuracy", "test_loss")}
    looks["accuracy"][:2] = 0.0  # only the last one counts
    looks["test_loss"][:2] = 9.0
    history = History(
        loss=loss.astype(np.float32),
        nfe=nfe,
        accepted=nfe // 6,
        rejected=0 * nfe,
        nfe_backward=nfe.sum(1),
        seconds=np.zeros(ITERATIONS, np.float32),
        batches=ITERATIONS // 2,
        validation=looks["test_loss"],
        failures=list(failures),
        accuracy=np.broadcast_to(looks["accuracy"][-1], loss.shape).copy(),
        validation_accuracy=looks["accuracy"],
        validation_nfe=np.full((3, len(columns)), 20, np.float32),
        validation_at=np.array([34, 68, ITERATIONS]),
    )
    return Result(replace(among[name], repeats=len(columns), epochs=2), None, history, 1.0)
