"""What keeps a right-hand side from being replaced by a recording."""

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import gc
import itertools
import logging
import math
import random
import sys
import time
import types
import warnings
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anode
from anode.engine.watch.purity import Counter, observe

T, Y = torch.tensor(0.5), torch.ones(3, 2)
HISTORY = []
COUNT = 0
CACHE = None
SCALE = 2.0
SQUARE = torch.square
ACTIVATIONS = {"tanh": torch.tanh, "double": lambda y: 2 * y}


def seen(f):
    return observe(f, lambda: f(T, Y))


def accepted(f):
    observation = seen(f)
    assert observation.obstacle == ""
    assert observation.guard.holds()
    return observation


def refused(f, words):
    observation = seen(f)
    assert words in observation.obstacle
    assert observation.counters == ()
    return observation


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        self.register_buffer("shift", torch.zeros(2))
        self.scale, self.history, self.cache, self.nfe, self.last = 2.0, [], {}, 0, None

    def forward(self, t, y):
        for layer in self.layers:
            y = torch.tanh(layer(y)) * self.scale + self.shift
        return y


def net(forward, base=Net):
    """A module of class ``base`` with another ``forward``."""
    return type("Mine", (base,), {"forward": forward})()


def double(y):
    return y * SCALE


# Accepted


def test_the_usual_module_is_accepted_and_its_result_returned():
    f = Net()
    observation = accepted(f)
    torch.testing.assert_close(observation.result, f(T, Y))
    assert observation.counters == ()


def test_torch_layers_and_sequentials_are_accepted():
    f = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.LayerNorm(8), nn.Dropout(0.0), nn.Linear(8, 2))
    assert observe(f, lambda: f(Y)).obstacle == ""


def test_a_lambda_with_a_closure_is_accepted():
    a = 3.0
    accepted(lambda t, y: a * y)


def test_a_variable_without_a_value_is_accepted_until_it_has_one():
    observation = accepted(lambda t, y: y if SCALE else factor * y)
    factor = 2.0
    assert not observation.guard.holds()


def test_functools_partial_is_accepted():
    accepted(functools.partial(lambda a, t, y, b=1.0: a * y + b, 2.0, b=3.0))


def test_a_bound_method_is_accepted():
    class Fields:
        rate = 2.0

        def decay(self, t, y):
            return -self.rate * y

    accepted(Fields().decay)


def test_a_callable_object_is_accepted():
    class Decay:
        def __init__(self):
            self.rate = 2.0

        def __call__(self, t, y):
            return -self.rate * y

    accepted(Decay())


def test_lists_and_dicts_of_the_call_itself_may_change():
    def forward(self, t, y):
        outs, named, kinds = [], {}, set()
        for i, layer in enumerate(self.layers):
            outs.append(layer(y))
            named[i] = outs[-1]
            named.update({"last": y})
            named.setdefault("first", y)
            kinds.add(type(layer))
        outs += [y]
        outs.extend([y, y])
        outs.pop()
        return sum(outs) + len(named) + sum(x for x in outs) + torch.stack([o * 2 for o in outs]).sum(0)

    accepted(net(forward))


def test_a_helper_may_fill_a_list_that_the_call_made():
    def fill(out, y):
        out.append(y)

    def f(t, y):
        out = []
        fill(out, y)
        return out[0]

    accepted(f)


def test_functional_calls_and_user_functions_are_accepted():
    accepted(lambda t, y: F.softplus(double(y)) + F.linear(y, torch.eye(2)) + SQUARE(y) * math.sin(SCALE))


def test_super_forward_is_accepted():
    class Child(Net):
        def forward(self, t, y):
            return super().forward(t, y) * 2

    accepted(Child())


def test_properties_static_and_class_methods_are_accepted():
    class Child(Net):
        factor = 3

        @property
        def doubled(self):
            return 2 * self.scale

        @staticmethod
        def square(y):
            return y * y

        @classmethod
        def times(cls, y):
            return cls.factor * y

        def forward(self, t, y):
            return self.square(y) * self.doubled + self.times(y)

    accepted(Child())


def test_a_config_object_is_accepted():
    @dataclasses.dataclass
    class Config:
        scale: float = 2.0
        widths: tuple = (1, 2)

    f = net(lambda self, t, y: y * self.config.scale * self.config.widths[1])
    f.config = Config()
    accepted(f)


def test_new_objects_may_be_filled():
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

    class Point(NamedTuple):
        x: torch.Tensor

    accepted(lambda t, y: Pair(y, y).a + Point(y).x)


def test_generators_walrus_and_comprehensions_are_accepted():
    def halves(y, n):
        for _ in range(n):
            yield y / 2

    accepted(lambda t, y: sum(h * k for h in halves(y, 2) if (k := 3)) + torch.stack([y for _ in range(2)]).sum(0))


def test_inner_functions_may_change_variables_of_the_call():
    def f(t, y):
        total = y

        def add(x):
            nonlocal total
            total = total + x

        add(y)
        return total

    accepted(f)


def test_indexed_assignment_to_a_new_tensor_is_accepted():
    def f(t, y):
        out = torch.zeros_like(y)
        out[:, 0] = y[:, 1]
        return out

    accepted(f)


def test_a_call_that_does_not_run_is_accepted_until_it_does():
    def forward(self, t, y):
        if self.verbose:
            print(y)
        return y

    f = net(forward)
    f.verbose = False
    guard = accepted(f).guard
    f.verbose = True
    assert not guard.holds()
    refused(f, "f calls print")


def test_a_function_with_side_effects_that_is_handed_on_is_an_obstacle():
    def forward(self, t, y):
        return y if self.last is None else sum(map(print, y))

    refused(net(forward), "f calls print")


class Kind(enum.Enum):
    DOUBLE = 2


def test_keys_of_a_dict_may_be_hashed():
    accepted(lambda t, y: y * {Kind.DOUBLE: 2.0}[Kind.DOUBLE])


def test_functions_in_a_global_dict_are_accepted():
    accepted(lambda t, y: ACTIVATIONS["double"](ACTIVATIONS["tanh"](y)))


def test_attributes_by_computed_names_are_accepted():
    f = net(lambda self, t, y: getattr(self, "layer" + str(1))(y))
    f.layer1 = nn.Linear(2, 2)
    accepted(f)


def test_numpy_constants_are_accepted():
    accepted(lambda t, y: torch.sin(np.pi * y).sum() * np.float64(2.0) * y)


def test_torch_decorators_and_contexts_are_accepted():
    @torch.no_grad()
    def f(t, y):
        with torch.enable_grad():
            return double(y)

    accepted(f)


def test_context_managers_of_contextlib_are_accepted():
    @contextlib.contextmanager
    def scope(a):
        yield a

    def f(t, y):
        with scope(2.0) as a:
            return a * y

    accepted(f)


def test_gradients_and_transforms_inside_of_f_are_accepted():
    def divergence(t, y):
        with torch.enable_grad():
            y = y.detach().requires_grad_(True)
            slope = torch.tanh(y)
            (gradient,) = torch.autograd.grad(slope.sum(), y, create_graph=True)
        return slope + gradient

    accepted(divergence)
    accepted(lambda t, y: torch.func.vmap(torch.sin)(y) + torch.func.grad(lambda x: x.sin().sum())(y))


def test_abstract_classes_are_accepted():
    class Base(abc.ABC):
        @abc.abstractmethod
        def __call__(self, t, y): ...

    class Decay(Base):
        def __call__(self, t, y):
            return -y if isinstance(self, Base) else y

    accepted(Decay())


def test_importing_a_loaded_module_is_accepted():
    def f(t, y):
        import math

        return y * math.pi

    accepted(f)


def test_importing_from_the_own_package_is_an_obstacle():
    def f(t, y):
        from . import pi

        return y * pi

    of_torch = types.FunctionType(f.__code__, {"__name__": "torch_fields", "__package__": "torch"})
    refused(of_torch, "f imports .")


def test_unread_attributes_of_any_kind_are_accepted():
    f = Net()
    f.logger, f.counter, f.history = logging.getLogger("anode.test"), itertools.count(), [object()] * 10_000
    accepted(f)


def test_the_garbage_collector_is_not_taken_for_part_of_f():
    def callback(phase, info):
        print(end="")

    def f(t, y):
        rings = [[] for _ in range(5000)]
        for ring in rings:
            ring.append(ring)
        return y

    gc.callbacks.append(callback)
    try:
        accepted(f)
    finally:
        gc.callbacks.remove(callback)
    assert gc.isenabled()


# Counters


def test_a_counter_is_found_and_advanced():
    def forward(self, t, y):
        self.nfe += 1
        return y

    f = net(forward)
    observation = accepted(f)
    assert observation.counters == (Counter(f, "nfe", 1),)
    assert observation.counters == seen(f).counters
    observation.counters[0].advance(10)
    assert f.nfe == 12
    assert observation.guard.holds()


@pytest.mark.parametrize("step", [1, 1.0])
def test_a_counter_may_be_a_float(step):
    def by_one(self, t, y):
        self.nfe += 1
        return y

    def by_one_point(self, t, y):
        self.nfe += 1.0
        return y

    f = net(by_one if type(step) is int else by_one_point)
    f.nfe = 0.0
    assert accepted(f).counters == (Counter(f, "nfe", 1),)
    solution = anode.solve(f, Y, (0.0, 1.0), method="rk4", step_size=0.25)
    assert solution.engine.name == "native"
    assert (f.nfe, type(f.nfe)) == (17.0, float)


def test_a_counter_written_in_full_or_in_an_inner_object_is_found():
    class Stats:
        def __init__(self):
            self.n = 0

    def forward(self, t, y):
        self.nfe = self.nfe + 2
        self.stats.n += 3
        return y

    f = net(forward)
    f.stats = Stats()
    assert set(accepted(f).counters) == {Counter(f, "nfe", 2), Counter(f.stats, "n", 3)}


def test_a_counter_that_advances_only_sometimes_differs_between_observations():
    def forward(self, t, y):
        if float(y.sum()) > 0:
            self.nfe += 1
        return y

    f = net(forward)
    first, second = observe(f, lambda: f(T, Y)), observe(f, lambda: f(T, -Y))
    assert first.obstacle == second.obstacle == ""
    assert first.counters != second.counters


def test_counters_of_different_objects_differ():
    assert Counter(Net(), "nfe", 1) != Counter(Net(), "nfe", 1)


def increment_by_value(self, t, y):
    self.nfe += len(y)
    return y


def compute_with_it(self, t, y):
    self.nfe += 1
    return y * self.nfe


def compute_with_it_by_name(self, t, y):
    self.nfe += 1
    return y * getattr(self, "nfe")  # noqa: B009


@pytest.mark.parametrize("forward", [increment_by_value, compute_with_it, compute_with_it_by_name])
def test_what_is_more_than_a_counter_is_an_obstacle(forward):
    refused(net(forward), "'nfe'")


def test_a_counter_of_fractions_is_an_obstacle():
    """Their sum depends on how often it was rounded."""

    def forward(self, t, y):
        self.scale += 0.1
        return y

    refused(net(forward), "f sets the attribute 'scale' of Mine")


# Refused


def store_on_self(self, t, y):
    self.last = y
    return y


def delete(self, t, y):
    del self.last
    return y


def store_by_setattr(self, t, y):
    setattr(self, "last", y)  # noqa: B010
    return y


def store_by_object(self, t, y):
    object.__setattr__(self, "last", y)
    return y


def store_by_dict(self, t, y):
    self.__dict__["last"] = y
    return y


def store_on_class(self, t, y):
    type(self).last = y
    return y


def store_on_tensor(self, t, y):
    y.note = 1
    return y


def store_on_alias(self, t, y):
    me = self
    me.last = y
    return y


def append(self, t, y):
    self.history.append(t)
    return y


def append_by_alias(self, t, y):
    keep = [self.history]
    keep[0].append(t)
    return y


def append_to_class_list(self, t, y):
    self.shared.append(t)
    return y


def extend_in_place(self, t, y):
    self.history += [t]
    return y


def append_global(self, t, y):
    HISTORY.append(1)
    return y


def append_by_map(self, t, y):
    list(map(HISTORY.append, [1]))
    return y


def fill_cache(self, t, y):
    self.cache[0.5] = y
    return y


def register(self, t, y):
    self.register_buffer("late", y)
    return y


def freeze(self, t, y):
    self.layers.requires_grad_(False)
    return y


def switch(self, t, y):
    self.eval()
    return y


class WithList(Net):
    shared = []  # noqa: RUF012


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (store_on_self, "f sets the attribute 'last' of Mine"),
        (delete, "f sets the attribute 'last' of Mine"),
        (store_by_setattr, "f calls setattr"),
        (store_by_object, "f uses __setattr__"),
        (store_by_dict, "f uses __dict__"),
        (store_on_class, "f sets the attribute 'last'"),
        (store_on_tensor, "f sets the attribute 'note' of Tensor"),
        (store_on_alias, "f sets the attribute 'last'"),
        (append, "f appends to a list (list.append)"),
        (append_by_alias, "f appends to a list (list.append)"),
        (append_to_class_list, "f appends to a list (list.append)"),
        (extend_in_place, "f changes a list"),
        (append_global, "f appends to a list (list.append)"),
        (append_by_map, "f changes a list"),
        (fill_cache, "f changes a dict"),
        (register, "f changes a dict"),
        (freeze, "f sets the attribute 'requires_grad' of Parameter"),
        (switch, "f sets the attribute 'training' of"),
    ],
)
def test_changing_what_outlives_the_call_is_an_obstacle(forward, words):
    refused(net(forward, WithList), words)


class Rate:
    def __init__(self):
        self.value = 2.0


def store_if_absent(self, t, y):
    if self.last is None:
        self.last = torch.ones(2)
    return y * self.last


def store_by_hasattr(self, t, y):
    if not hasattr(self, "late"):
        self.late = nn.Linear(2, 2)
    return self.late(y)


def store_the_same(self, t, y):
    self.width = y.shape[1]
    return y * self.width


def store_and_set_back(self, t, y):
    self.last = 2.0
    y = y * self.last
    self.last = None
    return y


@pytest.mark.parametrize("forward", [store_if_absent, store_by_hasattr, store_the_same])
def test_what_the_first_call_makes_is_an_obstacle_to_that_call_alone(forward):
    f = net(forward)
    first = refused(f, "f ")
    assert not first.guard.holds()
    accepted(f)


def test_an_attribute_that_is_set_back_is_accepted():
    accepted(net(store_and_set_back))


def test_a_global_that_is_made_once_is_an_obstacle_to_that_call_alone(monkeypatch):
    def f(t, y):
        global CACHE
        if CACHE is None:
            CACHE = torch.ones(2)
        return y * CACHE

    monkeypatch.setattr(sys.modules[__name__], "CACHE", None)
    refused(f, "f changes the global CACHE")
    guard = accepted(f).guard
    sys.modules[__name__].CACHE = None
    assert not guard.holds()


def test_an_attribute_that_f_may_set_is_watched_even_if_nothing_reads_it():
    def forward(self, t, y):
        if len(y) > 3:
            self.seen = True
        return y

    f = net(forward)
    guard = accepted(f).guard
    f(T, torch.ones(5, 2))
    assert [change.name for change in guard.changes()] == ["seen"]
    guard.undo()
    assert guard.holds()
    assert not hasattr(f, "seen")


def test_an_obstacle_holds_for_as_long_as_nothing_has_changed():
    def forward(self, t, y):
        self.nfe += 1
        if self.last is not None:
            self.last.append(y)
        return y

    f = net(forward)
    f.last = []
    first = refused(f, "f appends to a list")
    f.last.clear()
    f(T, Y)
    f.last.clear()
    assert first.guard.holds()
    f.last = None
    assert not first.guard.holds()
    accepted(f)


def test_changing_an_object_in_a_helper_or_a_loop_is_an_obstacle():
    rates = [Rate(), Rate()]

    def double_it(rate):
        rate.value = rate.value * 2

    def helper(t, y):
        double_it(rates[0])
        return y

    def loop(t, y):
        for rate in rates:
            rate.value = 3.0
        return y

    refused(helper, "f sets the attribute 'value' of Rate")
    refused(loop, "f sets the attribute 'value'")


def test_a_memo_is_an_obstacle_only_while_it_is_filled():
    memo = {}

    def f(t, y):
        if "shift" not in memo:
            memo["shift"] = 1.0
        return y + memo["shift"]

    refused(f, "f changes a dict")
    guard = accepted(f).guard
    memo.clear()
    assert not guard.holds()


def test_changing_an_outer_variable_is_an_obstacle():
    n = 0

    def f(t, y):
        nonlocal n
        n += 1
        return y

    refused(f, "f changes n, a variable outside of it")


def test_changing_a_global_is_an_obstacle():
    def f(t, y):
        global COUNT
        COUNT += 1
        return y

    refused(f, "f changes the global COUNT")


def test_changing_a_list_default_or_an_array_is_an_obstacle():
    array, values = np.zeros(2), [1.0]

    def default(t, y, memory=values):
        memory[0] = y
        return y

    def fill(t, y):
        array[0] += 1
        return y

    refused(default, "f changes a list")
    refused(fill, "f changes a ndarray")


def test_consuming_an_iterator_from_outside_is_an_obstacle():
    numbers = itertools.count()
    refused(lambda t, y: y * next(numbers), "count, whose changes cannot be noticed")
    generator = (i for i in range(100))
    refused(lambda t, y: y * next(generator), "generator, whose changes cannot be noticed")


def warn(t, y):
    with contextlib.suppress(UserWarning):
        warnings.warn("careful", stacklevel=1)
    return y


def write(t, y):
    with open("/dev/null", "w") as file:
        file.write("x")
    return y


def to_numpy(t, y):
    return torch.tensor(y.numpy())


def backward(t, y):
    x = y.clone().requires_grad_()
    x.sum().backward()
    return x.grad


def import_new(t, y):
    import this  # noqa: F401

    return y


LOGGER = logging.getLogger("anode.test")


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda t, y: (print("x"), y)[1], "f calls print"),
        (lambda t, y: (list(map(print, [])), y)[1], "f calls print"),
        (lambda t, y: (logging.info("x"), y)[1], "f uses logging.info"),
        (lambda t, y: (LOGGER.info("x"), y)[1], "f uses logging.Logger"),
        (lambda t, y: y * random.random(), "f uses random.random"),
        (lambda t, y: y * time.time(), "f uses time.time"),
        (lambda t, y: y * datetime.now().year, "f uses datetime.datetime.now"),
        (lambda t, y: (sys.stdout.write(""), y)[1], "f uses sys.stdout"),
        (lambda t, y: y * np.random.rand(), "f uses numpy.random"),
        (lambda t, y: y * float(np.sin(0.5)), "f leaves torch for NumPy"),
        (lambda t, y: torch.as_tensor(np.dot(np.eye(2), np.eye(2))), "f leaves torch for NumPy"),
        (lambda t, y: torch.as_tensor(np.linalg.norm(np.eye(2))), "f leaves torch for NumPy"),
        (to_numpy, "f calls Tensor.numpy"),
        (warn, "f uses warnings.warn"),
        (write, "f calls open"),
        (lambda t, y: (torch.manual_seed(0), y)[1], "f uses torch.manual_seed"),
        (backward, "f uses torch._tensor.backward"),
        (import_new, "f imports this"),
        (lambda t, y: (exec("1"), y)[1], "f calls exec"),
        (lambda t, y: y * (hash(HISTORY.append) % 2), "f calls hash"),
    ],
)
def test_leaving_pure_computation_is_an_obstacle(f, words):
    refused(f, words)
    sys.modules.pop("this", None)


def test_a_function_that_cannot_be_found_again_is_an_obstacle():
    hidden = slice(lambda y: 2.0 * y, None)
    refused(lambda t, y: hidden.start(y), "<lambda>, which cannot be found from f")


def test_functions_of_a_metaclass_are_found():
    class Names(type):
        def __getattr__(cls, name):
            return 2.0

    class Rates(metaclass=Names):
        pass

    observation = seen(lambda t, y: y * Rates.fast)
    assert not observation.obstacle
    assert observation.guard.holds()
    Rates.fast = 3.0
    assert not observation.guard.holds()


def test_a_cached_function_is_an_obstacle():
    cached = functools.lru_cache(lambda: 2.0)
    refused(lambda t, y: y * cached(), "cannot be noticed")


def test_objects_that_cannot_be_watched_are_obstacles():
    class Slotted:
        __slots__ = ("a",)

    class PartlySlotted:
        __slots__ = ("__dict__", "a")

    slotted, partly, large, many = Slotted(), PartlySlotted(), np.zeros(5000), [[i] for i in range(3000)]
    slotted.a = partly.a = 2.0
    refused(lambda t, y: y * slotted.a, "Slotted, whose changes cannot be noticed")
    refused(lambda t, y: y * partly.a, "PartlySlotted, whose changes cannot be noticed")
    refused(lambda t, y: y * large[0], "a NumPy array of 5000 elements")
    refused(lambda t, y: y * many[0][0], "3000 elements")
    nest = [[[i] for i in range(1500)], [[i] for i in range(1500)]]
    refused(lambda t, y: y * nest[0][0][0], "more than 2000")


def test_what_torch_compile_has_compiled_is_an_obstacle():
    module = torch.compile(torch.nn.Linear(2, 2), backend="eager")
    assert observe(module, lambda: None).obstacle == "f uses a module compiled by torch.compile"
    function = torch.compile(lambda t, y: -y, backend="eager")
    assert observe(function, lambda: None).obstacle == "f uses a function compiled by torch.compile"


def test_hooks_are_obstacles():
    f = Net()
    handle = f.layers[0].register_forward_hook(lambda *_: None)
    refused(f, "a hook is registered on Linear")
    handle.remove()
    accepted(f)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    refused(f, "a hook is registered for all modules")
    handle.remove()


def test_a_defaultdict_that_grows_when_read_is_an_obstacle():
    table = collections.defaultdict(float)
    refused(lambda t, y: y * table["a"], "f changes a defaultdict")


def test_errors_of_f_pass_through_and_profiling_ends():
    def f(t, y):
        raise KeyError("mine")

    def profile(*_):
        pass

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        with pytest.raises(KeyError, match="mine"):
            seen(f)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(previous)
