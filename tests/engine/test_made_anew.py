"""Modules and objects that are made for a single solve, around a network that stays: traced once, never mixed up."""

import pytest
import torch
from torch import nn

import anode
from anode.engine.extension import extension
from anode.engine.memory import MOST_TRACES, kin_of, memory_of

pytestmark = pytest.mark.skipif(extension is None, reason="the engine was not compiled")
Y0 = torch.linspace(-1.0, 1.0, 8, dtype=torch.float64).reshape(4, 2)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)).double()


class Part:
    """An object within the function, such as an interpolation of data."""

    def __init__(self, shift):
        self.shift = shift

    def at(self, t):
        return self.shift * t


class Wrapper(nn.Module):
    """Multiplied by t, so that the first slopes of all wrappers are equal, whatever they hold."""

    def __init__(self, net, shift, gain=1.0, part=None, factors=(1.0,), table=None, more=None):
        super().__init__()
        self.net, self.shift, self.gain, self.part, self.factors = net, shift, gain, part, factors
        self.table, self.more, self.nfe = table, more, 0

    def forward(self, t, y):
        self.nfe += 1
        slope = self.gain * self.net(y) + self.shift
        if self.part is not None:
            slope = slope + self.part.at(t)
        for factor in self.factors:
            slope = slope * factor
        if self.table is not None:
            slope = slope + self.table["shift"]
        if self.more is not None:
            slope = slope + self.more(y)
        return slope * t


class Caller:
    """The same as an object that is no module."""

    def __init__(self, net, shift, gain=1.0):
        self.net, self.shift, self.gain = net, shift, gain

    def __call__(self, t, y):
        return (self.gain * self.net(y) + self.shift) * t

    def method(self, t, y):
        return self(t, y)


def shift(seed, rows=(2,), grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, dtype=torch.float64, generator=generator).requires_grad_(grad)


def check(f, *wanted):
    """Values and gradients are those of Python."""
    found = []
    for engine in ("auto", "torch"):
        y0 = Y0.clone().requires_grad_()
        solution = anode.solve(f, y0, (0.0, 1.0), rtol=1e-6, atol=1e-8, gradient="stored", engine=engine)
        found.append([solution.y1, *torch.autograd.grad(solution.y1.sum(), [y0, *wanted])])
        if engine == "auto":
            assert solution.engine.name == "native", solution.engine
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def traces(f):
    kin = kin_of(f)
    return (memory_of(f) if kin is None else kin).traces.total()


@pytest.mark.parametrize("make", [Wrapper, Caller, lambda *args: Caller(*args).method])
def test_one_trace_serves_all_that_differ_in_their_tensors_only(net, make):
    for seed in range(4):
        moved = shift(seed, grad=True)
        f = make(net, moved)
        check(f, moved, *net.parameters())
    assert traces(f) == 1


def test_one_trace_serves_a_function_that_calls_an_object_made_anew(net):
    def made(part):
        return lambda t, y: (net(y) + part.at(t)) * t

    for seed in range(4):
        f = made(Part(shift(seed)))
        check(f)
    assert memory_of(f).traces.total() == 1


class Scaled(nn.Module):
    """Has a new module in front of the network, such as the interpolation of a controlled differential equation."""

    def __init__(self, net, moved):
        super().__init__()
        self.control, self.net = Timesaver(moved), net

    def forward(self, t, y):
        return self.control(self.net(y)) * t


@pytest.mark.parametrize("made", [Scaled, lambda net, moved: plain(Timesaver(moved), net)])
def test_a_new_module_in_front_of_the_network_is_no_reason_to_trace_again(net, made):
    for seed in range(4):
        f = made(net, shift(seed))
        check(f)
    assert traces(f) == 1


def plain(a_control, net):
    return lambda t, y: a_control(net(y)) * t


def test_a_variable_may_have_a_value_in_some_functions_only(net):
    """As the noise of a divergence, which is drawn only if the divergence is not computed exactly."""

    def made(moved, scaled):
        if scaled:
            factor = moved.exp()
        return lambda t, y: net(y) * factor * t if scaled else (net(y) + moved) * t

    for seed in range(6):
        f = made(shift(seed), scaled=seed % 3 == 2)
        check(f)
    assert memory_of(f).traces.total() == 2


def test_every_module_counts_its_own_calls(net):
    first, second = Wrapper(net, shift(0)), Wrapper(net, shift(1))
    for f in (first, second):
        solution = anode.solve(f, Y0, (0.0, 1.0))
        assert f.nfe == solution.stats.calls
    before = first.nfe
    anode.solve(second, Y0, (0.0, 1.0))
    assert first.nfe == before
    assert traces(second) == 1


@pytest.mark.parametrize(
    "others",
    [
        {"gain": 2.0},
        {"factors": (1.0, 2.0)},
        {"factors": [1.0]},
        {"part": Part(torch.ones(2, dtype=torch.float64))},
        {"table": {"shift": torch.ones(2, dtype=torch.float64)}},
        {"more": nn.Linear(2, 2).double()},
    ],
    ids=lambda others: str(next(iter(others.items())))[:20],
)
def test_one_that_differs_in_anything_else_is_traced_anew(net, others):
    check(Wrapper(net, shift(0)))
    f = Wrapper(net, shift(0), **others)
    check(f)
    check(Wrapper(net, shift(0)))
    check(f)
    assert traces(f) == 2


@pytest.mark.parametrize(
    "held",
    [
        lambda seed: {"part": Part(shift(seed))},
        lambda seed: {"table": {"shift": shift(seed)}},
        lambda seed: {"factors": [shift(seed), 2.0]},
        lambda seed: {"more": Timesaver(shift(seed))},
        lambda seed: {"part": Part(shift(seed)), "table": {"shift": shift(seed), "shape": shift(seed).shape}},
    ],
    ids=["object", "dict", "list", "module", "shape"],
)
def test_tensors_are_found_wherever_they_are_held(net, held):
    for seed in range(3):
        f = Wrapper(net, shift(0), **held(seed))
        check(f)
    assert traces(f) == 1


class Timesaver(nn.Module):
    """A module with a buffer."""

    def __init__(self, moved):
        super().__init__()
        self.register_buffer("moved", moved)

    def forward(self, y):
        return y * self.moved


def test_one_tensor_in_two_places_is_not_taken_for_two(net):
    one, two = shift(1), shift(2)
    check(Wrapper(net, one, part=Part(one)))
    check(Wrapper(net, one, part=Part(two)))
    check(Wrapper(net, two, part=Part(two)))


def test_a_tensor_that_the_network_holds_too_is_replaced_only_where_it_is(net):
    net[0].extra = net[2].extra = shift(3)

    class Reading(Wrapper):
        def forward(self, t, y):
            return (self.net(y) + self.shift * self.net[0].extra) * t

    check(Reading(net, net[0].extra))
    check(Reading(net, shift(4)))
    net[0].extra = shift(5)
    check(Reading(net, shift(4)))


def test_a_change_of_the_first_is_not_taken_for_one_of_the_second(net):
    first, second = Wrapper(net, shift(0)), Wrapper(net, shift(1))
    check(first)
    check(second)
    first.gain = 3.0
    check(second)
    check(first)
    second.shift = shift(7)
    check(second)


class Noted(Wrapper):
    """Holds what it does not read, beside what it reads in one branch or by a computed name."""

    def __init__(self, net, moved, **notes):
        super().__init__(net, moved)
        for name, value in notes.items():
            setattr(self, name, value)

    def forward(self, t, y):
        slope = super().forward(t, y)
        if self.gain > 1.0:
            return slope * self.scale
        return slope


class Named(nn.Module):
    def __init__(self, net, moved, **notes):
        super().__init__()
        self.net, self.moved = net, moved
        for name, value in notes.items():
            setattr(self, name, value)

    def forward(self, t, y):
        return (self.net(y) + self.moved) * t * getattr(self, "fac" + "tor", 1.0)


def test_what_f_does_not_read_may_differ(net):
    for i in range(MOST_TRACES + 2):
        f = Noted(net, shift(i), epoch=i, losses=[0.1] * i, batch=torch.ones(i, 3), **({"late": i} if i > 5 else {}))
        check(f)
    assert traces(f) == 1


@pytest.mark.parametrize(
    ("make", "notes"),
    [
        (Noted, [{"gain": 2.0, "scale": 1.0}, {"gain": 2.0, "scale": 3.0}]),
        (Noted, [{"gain": 1.0}, {"gain": 2.0, "scale": 3.0}]),
        (Named, [{}, {"factor": 2.0}, {"factor": 3.0}, {}]),
    ],
)
def test_what_f_reads_in_some_cases_may_not_differ(net, make, notes):
    for each in notes:
        check(make(net, shift(0), **each))


def test_new_parameters_are_a_new_network(net):
    for seed in range(3):
        f = Wrapper(net, nn.Parameter(shift(seed)))
        check(f, f.shift)


def test_a_network_that_changes_is_noticed_by_all_around_it(net):
    check(Wrapper(net, shift(0)))
    net[1] = nn.Sigmoid()
    check(Wrapper(net, shift(1)))
    net[0].weight.requires_grad_(False)
    check(Wrapper(net, shift(2)))


def test_what_cannot_be_traced_is_tried_once(net):
    class Random(Wrapper):
        def forward(self, t, y):
            return self.net(y) * torch.rand((), dtype=y.dtype)

    for seed in range(5):
        f = Random(net, shift(seed))
        assert "random" in str(anode.solve(f, Y0, (0.0, 1.0), method="rk4", step_size=0.5).engine)
    assert traces(f) == 1


def test_modules_that_differ_each_time_are_called_in_python_in_the_end(net):
    for i in range(MOST_TRACES + 2):
        f = Wrapper(net, shift(0), gain=1.0 + i)
        solution = anode.solve(f, Y0, (0.0, 1.0))
    assert "has changed" in str(solution.engine)
    torch.testing.assert_close(solution.y1, anode.solve(f, Y0, (0.0, 1.0), engine="torch").y1)


class Sentinel:
    """An object without attributes, so that all of them look alike."""


FIRST, SECOND = Sentinel(), Sentinel()
NAMES, GAINS = {}, {}


class Telling(Wrapper):
    """Tells objects apart that have the same attributes."""

    best = None

    def __init__(self, net, mode=None, one=None, two=None):
        super().__init__(net, 1.0)
        self.mode, self.one, self.two = mode, one, two

    def forward(self, t, y):
        gain = 3.0 if self.mode is FIRST or self.one is self.two or self is Telling.best else 1.0
        return gain * GAINS.get(self.mode, 1.0) * NAMES.get(self, 1.0) * self.net(y) * t


def named(net, gain):
    f = Telling(net, one=Sentinel())
    NAMES[f] = gain
    return f


def both(value):
    return {"one": value, "two": value}


def best(net):
    Telling.best = Telling(net, one=Sentinel())
    return [Telling.best, Telling(net, one=Sentinel())]


@pytest.mark.parametrize(
    "alike",
    [
        lambda net: [Telling(net, mode, one=Sentinel()) for mode in (FIRST, SECOND)],
        lambda net: [Telling(net, mode, one=Sentinel()) for mode in (SECOND, FIRST)],
        lambda net: [Telling(net, one=Sentinel(), two=Sentinel()), Telling(net, one=FIRST, two=FIRST)],
        lambda net: [Telling(net, one=[1.0], two=[1.0]), Telling(net, one=FIRST.__dict__, two=FIRST.__dict__)],
        lambda net: [Telling(net, one=[1.0], two=[1.0]), Telling(net, **both([1.0]))],
        lambda net: [Telling(net, one=shift(0), two=shift(1)), Telling(net, **both(shift(0)))],
        best,
        lambda net: [named(net, gain) for gain in (2.0, 5.0)],
        lambda net: [Telling(net, mode, one=Sentinel()) for mode in GAINS],
    ],
    ids=["first", "second", "objects", "dicts", "lists", "tensors", "class", "key", "attribute as key"],
)
def test_objects_with_equal_attributes_are_told_apart_where_f_does(net, alike, monkeypatch):
    monkeypatch.setitem(GAINS, Sentinel(), 2.0)
    monkeypatch.setitem(GAINS, Sentinel(), 5.0)
    monkeypatch.setattr(Telling, "best", None)
    for f in alike(net) * 2:
        check(f)
    NAMES.clear()


def test_an_attribute_that_becomes_the_same_tensor_as_another_is_noticed(net):
    f = Telling(net, one=shift(0), two=shift(1))
    for two in (shift(2), f.one, shift(3), f.one):
        f.two = two
        check(f)
