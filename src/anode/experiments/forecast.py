"""Forecasts of how long runs take, corrected while they run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from anode.train.callbacks import Report
from anode.train.progress import Bars, Listener, Patient
from anode.words import duration

WINDOW = 256
"""Number of latest reports of a run that its speed is computed from: about one epoch with its evaluation."""

ENOUGH = 5
"""Number of iterations after which the measured speed replaces the forecast."""

PAUSED = 5.0
"""An iteration that takes this many times the median includes a pause of the process, which is not counted."""


class Forecast:
    """The forecast of the time that some runs take.

    Args:
        seconds: The forecast of each run, by name, in the order in which they start; ``None`` if a run has none.
            Unless all runs have one, there is no forecast, and the bar of all runs shows how many are finished.
        jobs: Number of parallel runs.
        bars: Shows the progress.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        seconds: Mapping[str, float | None],
        jobs: int,
        bars: Bars,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        known = {name: value for name, value in seconds.items() if value is not None}
        self.paces = {name: Pace(value) for name, value in known.items()} if len(known) == len(seconds) else {}
        self.jobs, self.bars, self.clock = jobs, bars, clock
        self.whole = self.left
        self.parts = dict.fromkeys(seconds, 0.0)  # how much of each run is done, from 0 to 1

    def announce(self) -> None:
        """Show the bar of all runs, and print the forecast for all runs together and for each."""
        self._show_all()
        if self.paces:
            each = ", ".join(f"{name} {duration(pace.forecast)}" for name, pace in self.paces.items())
            side = f" with {self.jobs} in parallel" if self.jobs > 1 else ""
            self.bars.say(f"about {duration(self.left)} for all runs{side}: {each}")
            self.bars.say(
                "(estimated from a first iteration, or from the last iterations of an interrupted run; it takes "
                "longer if other programs use the CPU, or if solves need more evaluations later)"
            )

    @property
    def left(self) -> float:
        """Seconds until all runs are finished."""
        known = [correction for pace in self.paces.values() if (correction := pace.correction) is not None]
        typical = median(known) if known else 1.0
        return lasting([pace.left(typical) for pace in self.paces.values()], self.jobs)

    def listen(self, name: str, shown: Listener | None = None) -> Listener:
        """Return a listener for a run.

        Args:
            name: The name of the run.
            shown: Shows its progress; defaults to its own bar.
        """
        shown = shown or self.bars.listen(name)
        return Patient(lambda report: self._note(name, report, shown))

    def _note(self, name: str, report: Report, shown: Listener) -> None:
        shown(report)
        self.parts[name] = report.done / report.total
        if self.paces:
            self._note_pace(name, report)
        self._show_all()

    def _show_all(self) -> None:
        """Show how much of all runs is done, unless there is only one."""
        if self.paces:
            left = self.left
            self.whole = max(self.whole, left)
            self.bars.show("all runs", self.whole - left, self.whole, f"about {duration(left)} left")
        elif len(self.parts) > 1:
            finished, count = sum(part == 1 for part in self.parts.values()), len(self.parts)
            self.bars.show("all runs", sum(self.parts.values()), count, f"{finished} of {count} finished")

    def _note_pace(self, name: str, report: Report) -> None:
        """Correct the forecast of a run, and print a line about each of its evaluations in a log file."""
        pace = self.paces[name]
        pace.note(self.clock(), report)
        if report.validation is not None:
            looked = "" if report.validation_accuracy is None else f" ({100 * report.validation_accuracy:.2f} %)"
            self.bars.log(
                f"{time.strftime('%a %H:%M')} {name}: iteration {report.done:,} of {report.total:,}, "
                f"loss {report.loss:.4f}, NFE {report.nfe:.0f}, test loss {report.validation:.4f}{looked}; "
                f"about {duration(pace.left(1.0))} left, {duration(self.left)} for all runs"
            )


class Pace:
    """The speed of a run.

    Args:
        forecast: Its forecast in seconds.
    """

    def __init__(self, forecast: float) -> None:
        self.forecast = forecast
        self.begun_at: int | None = None  # number of iterations done before
        self.total = 0
        self.seen: deque[tuple[float, int, bool]] = deque(
            maxlen=WINDOW
        )  # time, iterations done, whether it was evaluated

    def note(self, now: float, report: Report) -> None:
        """Record a report of the run."""
        if self.begun_at is None or report.done < self.done:  # started, or restarted from a checkpoint
            self.begun_at = report.done - 1
            self.seen.clear()
        self.total = report.total
        self.seen.append((now, report.done, report.validation is not None))

    @property
    def done(self) -> int:
        """Number of iterations done."""
        return self.seen[-1][1] if self.seen else 0

    @property
    def each(self) -> float | None:
        """Seconds per iteration, including evaluations; ``None`` while there are too few."""
        steps = [(b[0] - a[0], b[1] - a[1], b[2]) for a, b in pairwise(self.seen) if b[1] > a[1]]
        count = sum(iterations for _, iterations, _ in steps)
        if count < ENOUGH:
            return None
        kinds = {evaluated for _, _, evaluated in steps}
        usual = {kind: median([s / n for s, n, evaluated in steps if evaluated == kind]) for kind in kinds}
        lasted = ((s, n * usual[evaluated]) for s, n, evaluated in steps)
        return sum(usually if seconds > PAUSED * usually else seconds for seconds, usually in lasted) / count

    @property
    def correction(self) -> float | None:
        """Actual time divided by forecast; ``None`` while unknown."""
        if self.begun_at is None or self.each is None:
            return None
        return self.each * (self.total - self.begun_at) / self.forecast

    def left(self, typical: float) -> float:
        """Return the seconds until the run is finished.

        Args:
            typical: Typical correction of the other runs' forecasts.
        """
        if self.begun_at is None:
            return typical * self.forecast
        each = self.each
        if each is None:
            each = typical * self.forecast / (self.total - self.begun_at)
        return each * (self.total - self.done)


def lasting(seconds: Sequence[float], jobs: int) -> float:
    """Return how long some jobs take in this order, with ``jobs`` in parallel."""
    lanes = [0.0] * jobs
    for each in seconds:
        lanes[lanes.index(min(lanes))] += each
    return max(lanes)
