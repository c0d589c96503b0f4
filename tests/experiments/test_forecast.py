import io

import pytest
from rich.console import Console

from anode.experiments.forecast import PAUSED, Forecast, Pace, lasting
from anode.train.progress import Bars, Report


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def bars(terminal: bool = False) -> Bars:
    return Bars(Console(file=io.StringIO(), force_terminal=terminal, width=200, color_system=None))


def written(shown: Bars) -> list[str]:
    return shown.console.file.getvalue().splitlines()


def report(done: int, total: int = 100, **looked) -> Report:
    return Report(done, total, 0.25, 20.0, 0.9, **looked)


def test_runs_side_by_side_take_as_long_as_the_busiest_process():
    assert lasting([3, 2, 2], 1) == 7
    assert lasting([3, 2, 2], 2) == 4
    assert lasting([3, 2, 2], 5) == 3
    assert lasting([], 2) == 0


def test_the_forecast_is_said_before_anything_is_trained():
    shown = bars()
    Forecast({"mnist-p5": 3060.0, "mnist-node": 7200.0}, 2, shown).announce()
    assert written(shown)[0] == "about 2 h 0 min for all runs with 2 in parallel: mnist-p5 51 min, mnist-node 2 h 0 min"
    shown = bars()
    Forecast({"mnist-p5": 3060.0, "mnist-node": 7200.0}, 1, shown).announce()
    assert written(shown)[0] == "about 2 h 51 min for all runs: mnist-p5 51 min, mnist-node 2 h 0 min"


@pytest.mark.parametrize("seconds", [{}, {"one": None}, {"one": None, "two": 5.0}], ids=str)
def test_nothing_is_said_if_runs_are_too_short_to_be_measured(seconds):
    shown = bars()
    forecast = Forecast(seconds, 2, shown)
    forecast.announce()
    for name in seconds:
        forecast.listen(name)(report(1, validation=0.5))
    assert written(shown) == []


def test_the_forecast_follows_the_time_that_iterations_take():
    clock = Clock()
    forecast = Forecast({"one": 100.0, "two": 300.0}, 1, bars(), clock)
    assert forecast.left == 400
    tell = forecast.listen("one")
    for done in range(1, 11):
        clock.now = 2.0 * done  # twice as long as was thought
        tell(report(done))
    assert forecast.left == pytest.approx(2 * 90 + 2 * 300)
    for done in range(11, 101):
        clock.now = 2.0 * done
        tell(report(done))
    assert forecast.left == pytest.approx(600)


def test_one_run_that_takes_far_longer_does_not_change_the_forecast_of_those_to_come():
    clock = Clock()
    forecast = Forecast(dict.fromkeys(("one", "two", "slow", "next"), 100.0), 1, bars(), clock)
    for name, each in (("one", 1.0), ("two", 1.0), ("slow", 50.0)):
        tell, start = forecast.listen(name), clock.now
        for done in range(1, 101):
            clock.now = start + each * done
            tell(report(done))
    assert forecast.left == pytest.approx(100.0)


def test_a_run_that_goes_on_is_forecast_from_where_it_was():
    pace = Pace(50.0)
    pace.note(0.0, report(51))
    assert pace.left(1.0) == pytest.approx(49)
    for i in range(1, 11):
        pace.note(3.0 * i, report(51 + i))
    assert pace.left(1.0) == pytest.approx(3 * 39)
    assert pace.correction == pytest.approx(3.0)


def test_time_in_which_the_process_was_stopped_does_not_count():
    pace = Pace(100.0)
    for i in range(1, 21):
        pace.note(i + (PAUSED * 2 if i > 10 else 0), report(i))
    assert pace.each == pytest.approx(1.0)


def test_evaluations_count_however_long_they_last():
    pace = Pace(100.0)
    for i in range(1, 22):
        pace.note(i + 30 * (i // 10), report(i, validation=0.5 if i % 10 == 0 else None))
    assert pace.each == pytest.approx((20 + 2 * 30) / 20)


def test_a_run_that_another_worker_takes_up_is_measured_anew():
    pace = Pace(100.0)
    for i in range(1, 51):
        pace.note(float(i), report(i))
    for i in range(1, 11):
        pace.note(60.0 + 2 * i, report(30 + i))
    assert pace.each == pytest.approx(2.0)
    assert pace.left(1.0) == pytest.approx(2 * 60)


def test_a_log_file_gets_a_plain_line_for_every_evaluation():
    clock, shown = Clock(), bars()
    tell = Forecast({"mnist-p5": 100.0}, 1, shown, clock).listen("mnist-p5")
    for done in range(1, 11):
        clock.now = float(done)
        tell(report(done, validation=0.5 if done == 10 else None, validation_accuracy=0.9 if done == 10 else None))
    (line,) = written(shown)
    assert line.split(" ", 2)[2] == (
        "mnist-p5: iteration 10 of 100, loss 0.2500, NFE 20, test loss 0.5000 (90.00 %); about 90 s left, "
        "90 s for all runs"
    ).replace("90 s", "1 min 30 s")
    assert "\x1b" not in line


def test_on_a_terminal_a_bar_says_how_long_all_runs_take():
    clock, shown = Clock(), bars(terminal=True)
    with shown:
        tell = Forecast({"one": 100.0, "two": 500.0}, 1, shown, clock).listen("one")
        for done in range(1, 11):
            clock.now = float(done)
            tell(report(done, validation=0.5))
        (task,) = [task for task in shown.progress.tasks if task.description == "all runs"]
    assert task.fields["note"] == "about 9 min 50 s left"
    assert task.completed == pytest.approx(10)
    assert "iteration 10 of 100" not in shown.console.file.getvalue()


def test_without_a_forecast_the_bar_of_all_runs_says_how_many_are_finished():
    shown = bars(terminal=True)
    forecast = Forecast({"one": None, "two": None}, 2, shown)
    forecast.announce()
    (whole,) = shown.progress.tasks  # the first one, so that a terminal never cuts it off
    assert (whole.description, whole.completed, whole.total) == ("all runs", 0, 2)
    forecast.listen("one")(report(100))
    forecast.listen("two")(report(50))
    assert (whole.completed, whole.fields["note"]) == (1.5, "1 of 2 finished")


def test_a_single_run_without_a_forecast_has_one_bar():
    shown = bars(terminal=True)
    forecast = Forecast({"one": None}, 1, shown)
    forecast.announce()
    forecast.listen("one")(report(100))
    assert [task.description for task in shown.progress.tasks] == ["one"]
