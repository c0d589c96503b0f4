import io
import sys

import pytest
import torch
from rich.console import Console

import anode
from anode.train import progress
from anode.train.progress import MOST_BARS, Bars, Report, in_words, listener


def console_of(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)


def pretend(monkeypatch, terminal: bool) -> io.StringIO:
    """Let standard error, as rich sees it, be a terminal or not; what is written there."""
    written = io.StringIO()

    def console(stderr: bool = False, force_terminal: bool | None = None) -> Console:
        assert stderr
        forced = terminal if force_terminal is None else force_terminal
        return Console(file=written, force_terminal=forced, width=120, color_system=None)

    monkeypatch.setattr("rich.console.Console", console)
    return written


def tiny() -> tuple[anode.ResNet, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return anode.ResNet(2, 1, 4, 1), (torch.rand(10, 2), torch.rand(10, 1))


# Reports


def test_a_report_in_words_says_the_loss_and_what_it_cost():
    assert in_words(Report(3, 10, 0.123456, 26.2)) == "loss 0.1235  NFE 26"


def test_a_model_without_a_solve_has_no_cost_to_report():
    assert in_words(Report(3, 10, 0.5, 0.0)) == "loss 0.5000"


def test_a_loss_that_is_not_a_number_can_be_reported():
    assert in_words(Report(3, 10, float("nan"), 20.0)) == "loss nan  NFE 20"


# Bars


def test_a_bar_shows_its_name_how_far_it_is_and_a_note():
    console = console_of(terminal=True)
    with Bars(console) as bars:
        bars.show("NeuralODE", 5, 20, "loss 0.25")
    written = console.file.getvalue()
    assert "NeuralODE" in written
    assert "25%" in written
    assert "loss 0.25" in written


def test_times_are_whole_on_a_terminal_of_80_columns():
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    with Bars(console) as bars:
        bars.show("ImageNeuralODE", 5, 20, "loss 0.4139  accuracy 99.1%  NFE 20")
    assert "NFE 20 0:00:00 --:-- left" in console.file.getvalue()


def test_every_name_has_one_bar():
    console = console_of(terminal=True)
    with Bars(console) as bars:
        for done in range(1, 4):
            bars.show("one", done, 4)
            bars.show("two", done, 8)
        assert [task.description for task in bars.progress.tasks] == ["one", "two"]
        assert [task.completed for task in bars.progress.tasks] == [3, 3]
        assert [task.total for task in bars.progress.tasks] == [4, 8]


def test_a_listener_moves_the_bar_of_its_name():
    with Bars(console_of(terminal=True)) as bars:
        tell = bars.listen("ResNet")
        tell(Report(1, 4, 0.5, 0.0))
        tell(Report(3, 4, 0.25, 14.0))
        (task,) = bars.progress.tasks
    assert (task.description, task.completed, task.total) == ("ResNet", 3, 4)
    assert task.fields["note"] == "loss 0.2500  NFE 14"


def test_where_there_is_no_terminal_nothing_is_written_at_first_and_lines_later(monkeypatch):
    console = console_of(terminal=False)
    with Bars(console) as bars:
        bars.listen("ResNet")(Report(1, 4, 0.5, 0.0))
        assert console.file.getvalue() == ""
        later = bars.lines.clock() + 60
        bars.lines.clock = lambda: later
        bars.listen("ResNet")(Report(2, 4, 0.25, 0.0))
    assert console.file.getvalue() == "ResNet  50%  loss 0.2500  0:01:00, 0:02:00 left\n"


def test_finished_bars_make_room_for_others_on_a_terminal():
    with Bars(console_of(terminal=True)) as bars:
        bars.show("all", 0, 30)
        for i in range(30):
            bars.show(f"run {i}", 1, 1)
        bars.show("last", 0, 1)
        shown = [task.description for task in bars.progress.tasks if task.visible]
    assert len(shown) == MOST_BARS
    assert (shown[0], shown[-2:]) == ("all", ["run 29", "last"])


def test_bars_end_when_something_goes_wrong():
    bars = Bars(console_of(terminal=True))

    def show_and_fail() -> None:
        with bars:
            bars.show("one", 1, 2)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        show_and_fail()
    assert not bars.progress.live.is_started


# Whom to tell


def test_false_tells_nobody(monkeypatch):
    written = pretend(monkeypatch, terminal=True)
    with listener(False, "name") as tell:
        assert tell is None
    assert written.getvalue() == ""


def test_by_default_there_is_a_bar_if_there_is_a_terminal(monkeypatch):
    written = pretend(monkeypatch, terminal=True)
    with listener(None, "NeuralODE") as tell:
        tell(Report(1, 2, 0.5, 14.0))
    assert "NeuralODE" in written.getvalue()


def test_by_default_there_is_none_if_there_is_no_terminal(monkeypatch):
    written = pretend(monkeypatch, terminal=False)
    with listener(None, "NeuralODE") as tell:
        assert tell is None
    assert written.getvalue() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_true_asks_for_a_bar_everywhere(monkeypatch, terminal):
    written = pretend(monkeypatch, terminal)
    with listener(True, "NeuralODE") as tell:
        tell(Report(1, 2, 0.5, 14.0))
    assert "NeuralODE" in written.getvalue()
    assert "50%" in written.getvalue()


def test_a_function_is_told_itself():
    told = []
    with listener(told.append, "name") as tell:
        tell(Report(1, 2, 0.5, 0.0))
    assert told == [Report(1, 2, 0.5, 0.0)]


# Without rich


@pytest.fixture
def plain(monkeypatch) -> None:
    """Nothing keeps a line from moving, and rich is not installed."""
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(progress, "BETWEEN", 0.0)


@pytest.mark.usefixtures("plain")
def test_without_rich_a_line_is_written_over(capsys):
    with listener(True, "NeuralODE") as tell:
        tell(Report(1, 4, 0.5, 14.0))
        tell(Report(4, 4, 0.25, 9.0))
    before, *states = capsys.readouterr().err.split("\r")
    assert before == ""
    assert [state.rstrip() for state in states] == [
        "NeuralODE  25%  loss 0.5000  NFE 14",
        "NeuralODE 100%  loss 0.2500  NFE 9",
    ]
    assert len(states[0]) == len(states[1].removesuffix("\n"))  # or the end of a longer one would stay


@pytest.mark.usefixtures("plain")
def test_without_rich_the_line_moves_now_and_then_and_at_the_end(capsys, monkeypatch):
    monkeypatch.setattr(progress, "BETWEEN", 1000.0)
    with listener(True, "ResNet") as tell:
        for done in range(1, 101):
            tell(Report(done, 100, 0.5, 0.0))
    assert [state.split()[1] for state in capsys.readouterr().err.split("\r")[1:]] == ["1%", "100%"]


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("terminal", [True, False])
def test_without_rich_there_is_a_line_by_default_if_there_is_a_terminal(capsys, monkeypatch, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with listener(None, "ResNet") as tell:
        assert (tell is not None) == terminal
    assert capsys.readouterr().err == ("\n" if terminal else "")


@pytest.mark.usefixtures("plain")
def test_without_rich_and_standard_error_nobody_is_told(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with listener(None, "ResNet") as tell:
        assert tell is None


@pytest.mark.usefixtures("plain")
def test_without_rich_the_line_ends_when_something_goes_wrong(capsys):
    def tell_and_fail() -> None:
        with listener(True, "ResNet") as tell:
            tell(Report(1, 4, 0.5, 0.0))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        tell_and_fail()
    assert capsys.readouterr().err.endswith("\n")


# In training


def test_a_function_is_told_of_every_iteration():
    model, data = tiny()
    told = []
    history = anode.fit(model, data, epochs=3, batch_size=4, progress=told.append)
    assert [(report.done, report.total) for report in told] == [(i, 9) for i in range(1, 10)]
    assert [report.loss for report in told] == history.loss.tolist()
    assert [report.nfe for report in told] == [0.0] * 9


def test_a_stack_reports_means_over_its_members():
    model = anode.seeded(lambda: anode.NeuralODE(2, 1, 4), range(3))
    told = []
    history = anode.fit(model, tiny()[1], epochs=1, batch_size=5, progress=told.append)
    assert [report.loss for report in told] == pytest.approx(history.loss.mean(1).tolist())
    assert [report.nfe for report in told] == pytest.approx(history.nfe.mean(1).tolist())


def test_training_without_a_terminal_writes_nothing(capfd, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    model, data = tiny()
    anode.fit(model, data, epochs=1, batch_size=5)
    assert capfd.readouterr() == ("", "")


def test_training_with_a_bar_writes_to_standard_error_alone(capfd):
    model, data = tiny()
    anode.fit(model, data, epochs=1, batch_size=5, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "ResNet" in err
    assert "100%" in err
    assert "loss" in err
