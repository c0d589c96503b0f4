import io
from itertools import pairwise

import pytest
from rich.console import Console

from anode.data import waiting
from anode.data.waiting import FIRST, LAST, Lines, patient_bar


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def console_of(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=20, color_system=None)


def written(console: Console) -> list[str]:
    return console.file.getvalue().splitlines()


def test_a_line_says_how_far_the_work_is_how_long_it_took_and_how_long_it_will_take():
    clock, console = Clock(), console_of()
    lines = Lines(console, clock)
    lines.show("[training]", 100, 500)
    clock.now = 60.0
    lines.show("[training]", 200, 500, "loss 0.25")  # 100 in a minute: those before were not part of it
    assert written(console) == ["[training]  40%  loss 0.25  0:01:00, 0:03:00 left"]


def test_work_that_makes_no_progress_has_no_end_in_sight():
    clock, console = Clock(), console_of()
    lines = Lines(console, clock)
    for clock.now in (0.0, 11.0):
        lines.show("drawing", 0, 4)
    assert written(console) == ["drawing   0%    0:00:11"]


def test_lines_become_rare_and_never_stop():
    clock, console = Clock(), console_of()
    lines = Lines(console, clock)
    for second in range(12 * 3600):
        clock.now = float(second)
        lines.show("training", 0, 12 * 3600)
    hours = (line.split()[-1].split(":") for line in written(console))
    moments = [3600 * int(h) + 60 * int(m) + int(s) for h, m, s in hours]
    between = [later - earlier for earlier, later in pairwise(moments)]
    assert moments[0] == FIRST
    assert between == sorted(between)
    assert between[-1] == LAST
    assert len(moments) < 200


def test_every_kind_of_work_has_lines_of_its_own():
    clock, console = Clock(), console_of()
    lines = Lines(console, clock)
    for clock.now in (0.0, FIRST):
        lines.show("one", 1 + clock.now, 100)
        lines.show("two", 1 + clock.now, 100)
    assert [line[:3] for line in written(console)] == ["one", "two"]


def test_there_are_no_lines_on_a_terminal():
    clock, console = Clock(), console_of(terminal=True)
    lines = Lines(console, clock)
    for clock.now in (0.0, 100.0):
        lines.show("training", clock.now, 200)
    assert written(console) == []


@pytest.mark.parametrize("first", [FIRST, 0.0])
def test_reading_that_takes_long_is_said_where_there_is_no_terminal(capsys, monkeypatch, first):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(waiting, "FIRST", first)
    with patient_bar("reading pictures", 4) as advance:
        advance(1)
    assert capsys.readouterr().err.startswith("" if first else "reading pictures  25%")
