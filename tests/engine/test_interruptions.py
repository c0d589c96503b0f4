"""What interrupts a trace, and what else looks on: the process and the next solve are as if nothing had happened."""

import cProfile
import gc
import pstats
import signal
import sys
import threading
import traceback

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import anode
from anode.engine.trace.calls import Calls
from anode.engine.trace.record import Recorder
from anode.engine.watch.reach import Reach

Y0 = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(8, 3)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.nfe = nn.Linear(3, 3).double(), 0

    def forward(self, t, y):
        self.nfe += 1
        return self.net(y).tanh() * t.expand(len(y), 1)


def assert_sane(f):
    assert sys.getprofile() is None
    assert not _get_current_dispatch_mode_stack()
    assert not _get_current_function_mode_stack()
    assert gc.isenabled()
    assert torch.is_grad_enabled()
    f.nfe = 0
    ours, expected = (anode.solve(f, Y0, (0.0, 1.0), engine=engine) for engine in ("native", "torch"))
    torch.testing.assert_close(ours.y1, expected.y1)
    assert f.nfe == ours.stats.nfe + expected.stats.nfe


def interrupting(method, number):
    """The same method, in which Ctrl-C comes in one of the calls."""
    calls = iter(range(number + 1))

    def interrupted(self, *args, **kwargs):
        result = method(self, *args, **kwargs)
        if next(calls, None) == number:
            signal.raise_signal(signal.SIGINT)
        return result

    return interrupted


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        (Reach, "enter", 0),
        (Recorder, "__enter__", 1),
        (Recorder, "_record", 0),
        (Recorder, "_record", 3),
        (Recorder, "__exit__", 0),
        (Calls, "__enter__", 0),
        (Calls, "__torch_function__", 2),
        (Calls, "__exit__", 1),
    ],
)
def test_ctrl_c_while_f_is_traced_leaves_nothing_behind(owner, name, number, monkeypatch):
    f = Field()
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, interrupting(getattr(owner, name), number))
        with pytest.raises(KeyboardInterrupt):
            anode.solve(f, Y0, (0.0, 1.0))
    assert_sane(f)


def test_ctrl_c_before_torch_has_left_a_mode_leaves_nothing_behind(monkeypatch):
    f = Field()
    with monkeypatch.context() as patched:
        patched.setattr(TorchDispatchMode, "__exit__", lambda *args: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            anode.solve(f, Y0, (0.0, 1.0))
    assert_sane(f)


class OwnError(Exception):
    pass


def test_an_error_of_f_comes_out_as_it_is():
    class Failing(Field):
        def forward(self, t, y):
            raise OwnError("of the user's own")

    with pytest.raises(OwnError, match="of the user's own") as caught:
        anode.solve(Failing(), Y0, (0.0, 1.0))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "forward"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert_sane(Field())


def test_an_error_that_only_a_trial_meets_is_no_error_of_the_solve():
    def f(t, y):
        if len(y) != 600:
            raise OwnError("takes 600 points")
        return -y

    solution = anode.solve(f, torch.ones(600, 1), (0.0, 1.0))
    assert str(solution.engine) == "torch (f raises OwnError when it is recorded with 5 points: takes 600 points)"


def test_a_profile_function_of_the_user_s_own_stays():
    def profile(frame, event, argument):
        seen.append(event)

    seen = []
    sys.setprofile(profile)
    try:
        solution = anode.solve(Field(), Y0, (0.0, 1.0))
        found, before = sys.getprofile(), len(seen)
        torch.ones(1).sum()
    finally:
        sys.setprofile(None)
    assert found is profile
    assert len(seen) > before
    assert str(solution.engine) == "native"


def test_a_debugger_stays():
    def follow(frame, event, argument):
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        solution = anode.solve(Field(), Y0, (0.0, 1.0))
        found = sys.gettrace()
    finally:
        sys.settrace(before)
    assert found is follow
    assert str(solution.engine) == "native"


def test_cprofile_goes_on_after_a_trace():
    def afterwards():
        return sum(range(3))

    profile = cProfile.Profile()
    solution = profile.runcall(lambda: (anode.solve(Field(), Y0, (0.0, 1.0)), afterwards())[0])
    assert str(solution.engine) == "native"
    names = {name for _, _, name in pstats.Stats(profile).stats}
    assert {"solve", "afterwards"} <= names


def test_threads_that_trace_one_module_at_once_find_the_same():
    f, found, barrier = Field(), {}, threading.Barrier(3)
    expected = anode.solve(f, Y0, (0.0, 1.0), engine="torch").y1

    def work(number):
        barrier.wait()
        found[number] = anode.solve(f, Y0, (0.0, 1.0)).y1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for y1 in found.values():
        torch.testing.assert_close(y1, expected)
    assert_sane(f)
