"""Whether a guard notices every change of what a right-hand side reads."""

import builtins
import dataclasses
import enum
import functools
import math
import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from anode.engine.watch import purity
from anode.engine.watch.guard import Guard
from anode.engine.watch.same import same

T, Y = torch.tensor(0.5), torch.ones(3, 2)
RATE = 2.0
LIMITS = {"low": 0.0, "high": 1.0}
HELPERS = types.ModuleType("helpers")
HELPERS.rate = 3.0


@dataclasses.dataclass
class Config:
    rate: float = 2.0
    widths: list = dataclasses.field(default_factory=lambda: [1.0, 2.0])


class Parent(nn.Module):
    def forward(self, t, y):
        return y


class Field(Parent):
    gain = 2.0
    bias = 0.0

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.register_buffer("shift", torch.zeros(2))
        self.scale, self.factors, self.config, self.table = 2.0, [1.0, 2.0], Config(), {"a": 1.0, "b": 2.0}
        self.array, self.act, self.choices = np.ones(2), torch.tanh, {1, 2}
        self.unread = 1.0

    @property
    def double(self):
        return 2 * self.scale

    def forward(self, t, y):
        y = self.second(self.first(y)) * self.scale + self.shift * self.gain + self.bias
        y = y * sum(self.factors) * self.config.rate * self.config.widths[0] * sum(self.table.values())
        y = y * float(self.array[0]) * len(self.choices) * self.double
        return self.act(super().forward(t, y))


def watch(f):
    observation = purity.observe(f, lambda: f(T, Y))
    assert observation.obstacle == ""
    assert observation.guard.holds()
    return observation.guard


@pytest.fixture
def f():
    return Field()


def swap_names(module):
    module._modules["first"] = module._modules.pop("first")  # the same module, in another place


def reorder(table):
    table["a"] = table.pop("a")


@pytest.mark.parametrize(
    "change",
    [
        lambda f: setattr(f, "scale", 3.0),
        lambda f: setattr(f, "scale", 2),
        lambda f: setattr(f, "gain", 2.0),
        lambda f: setattr(f, "act", torch.relu),
        lambda f: setattr(f, "factors", [1.0, 2.0]),
        lambda f: f.factors.__setitem__(1, 3.0),
        lambda f: f.factors.append(1.0),
        lambda f: f.factors.reverse(),
        lambda f: f.table.__setitem__("a", 3.0),
        lambda f: f.table.pop("a"),
        lambda f: reorder(f.table),
        lambda f: f.choices.add(3),
        lambda f: f.array.__setitem__(0, 5.0),
        lambda f: setattr(f.config, "rate", 3.0),
        lambda f: f.config.widths.__setitem__(0, 3.0),
        lambda f: setattr(f, "config", Config()),
        lambda f: setattr(f, "first", nn.Linear(2, 2)),
        lambda f: f.second.__setitem__(0, nn.Linear(2, 2)),
        lambda f: f.second.append(nn.Tanh()),
        lambda f: setattr(f.first, "weight", nn.Parameter(torch.eye(2))),
        lambda f: setattr(f.first, "bias", None),
        lambda f: f.first.weight.requires_grad_(False),
        lambda f: f.requires_grad_(False),
        lambda f: setattr(f, "shift", torch.ones(2)),
        lambda f: f.eval(),
        lambda f: setattr(f, "training", False),
        lambda f: f.second.eval(),
        lambda f: f.first.register_forward_hook(lambda *_: None),
        lambda f: f.first.register_forward_pre_hook(lambda *_: None),
        lambda f: f.register_full_backward_hook(lambda *_: None),
        lambda f: f.register_full_backward_pre_hook(lambda *_: None),
        lambda f: setattr(f, "forward", lambda t, y: y),
        lambda f: setattr(f.first, "forward", lambda y: y),
        lambda f: setattr(f, "__class__", type("Other", (Field,), {})),
        lambda f: setattr(f, "__dict__", dict(f.__dict__)),
        lambda f: f.__dict__.__setitem__("_parameters", {}),
        lambda f: delattr(f, "array"),
        swap_names,
    ],
)
def test_a_change_of_a_module_is_noticed(f, change):
    guard = watch(f)
    change(f)
    assert not guard.holds()


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (Field, "forward", lambda self, t, y: y),
        (Parent, "forward", lambda self, t, y: 2 * y),
        (nn.Linear, "forward", lambda self, y: y),
        (Field, "gain", 3.0),
        (Field, "double", 1.0),
        (Field, "__call__", lambda self, t, y: y),
    ],
)
def test_a_change_of_a_class_is_noticed(f, owner, name, value, monkeypatch):
    guard = watch(f)
    monkeypatch.setattr(owner, name, value)
    assert not guard.holds()
    monkeypatch.undo()
    assert guard.holds()


def test_a_hook_for_all_modules_is_noticed(f):
    guard = watch(f)
    for register in (
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_full_backward_hook,
        nn.modules.module.register_module_full_backward_pre_hook,
    ):
        handle = register(lambda *_: None)
        assert not guard.holds()
        handle.remove()
        nn.modules.module._global_is_full_backward_hook = None
        assert guard.holds()


@pytest.mark.parametrize(
    "leave",
    [
        lambda f: setattr(f, "unread", 5.0),
        lambda f: setattr(f, "scale", float("2.0")),
        lambda f: f.factors.__setitem__(0, float("1.0")),
        lambda f: f.first.weight.data.zero_(),
        lambda f: setattr(f, "new", 5.0),
        lambda f: f.train(),
    ],
)
def test_what_f_cannot_tell_apart_is_no_change(f, leave):
    guard = watch(f)
    leave(f)
    assert guard.holds()
    assert guard.holds()


def test_a_value_restored_is_no_change(f):
    guard = watch(f)
    f.scale = 3.0
    assert not guard.holds()
    f.scale = 2.0
    assert guard.holds()


def test_a_changed_global_is_noticed(monkeypatch):
    guard = watch(lambda t, y: y * RATE)
    monkeypatch.setitem(globals(), "RATE", 3.0)
    assert not guard.holds()


def test_a_changed_global_dict_is_noticed(monkeypatch):
    guard = watch(lambda t, y: y.clamp(LIMITS["low"], LIMITS["high"]))
    monkeypatch.setitem(LIMITS, "low", 0.5)
    assert not guard.holds()


def test_a_hidden_builtin_is_noticed(monkeypatch):
    guard = watch(lambda t, y: y * abs(-2.0))
    monkeypatch.setitem(globals(), "abs", lambda x: x)
    assert not guard.holds()


def test_a_changed_name_among_the_builtins_is_noticed(monkeypatch):
    monkeypatch.setattr(builtins, "RATE_OF_ALL", 2.0, raising=False)
    guard = watch(lambda t, y: y * RATE_OF_ALL)  # noqa: F821
    assert guard.holds()
    monkeypatch.setattr(builtins, "RATE_OF_ALL", 3.0)
    assert not guard.holds()


@pytest.fixture
def imported(monkeypatch):
    """A package with a module in it, both loaded."""
    package, module = types.ModuleType("package_of_f"), types.ModuleType("package_of_f.settings")
    package.settings, package.rate, module.rate = module, 2.0, 3.0
    for each in (package, module):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    return package


def import_module(t, y):
    import package_of_f.settings

    return y * package_of_f.settings.rate


def import_module_as(t, y):
    import package_of_f.settings as settings

    return y * settings.rate


def import_name(t, y):
    from package_of_f.settings import rate

    return y * rate


@pytest.mark.parametrize("f", [import_module, import_module_as, import_name])
def test_a_change_of_a_module_that_f_imports_is_noticed(f, imported, monkeypatch):
    guard = watch(f)
    assert guard.holds()
    with monkeypatch.context() as changes:
        changes.setattr(imported.settings, "rate", 4.0)
        assert not guard.holds()
    assert guard.holds()
    monkeypatch.setitem(sys.modules, "package_of_f.settings", types.ModuleType("package_of_f.settings"))
    assert not guard.holds()


def test_a_changed_attribute_of_a_python_module_is_noticed(monkeypatch):
    guard = watch(lambda t, y: y * HELPERS.rate)
    monkeypatch.setattr(HELPERS, "rate", 4.0)
    assert not guard.holds()


def test_a_changed_attribute_of_a_python_module_under_another_name_is_noticed(monkeypatch):
    def f(t, y):
        helpers = HELPERS
        return y * helpers.rate

    guard = watch(f)
    monkeypatch.setattr(HELPERS, "rate", 4.0)
    assert not guard.holds()


def test_a_changed_global_of_a_function_called_is_noticed(monkeypatch):
    def inner(y):
        return y * RATE

    def middle(y):
        return inner(y)

    guard = watch(lambda t, y: middle(y))
    monkeypatch.setitem(globals(), "RATE", 3.0)
    assert not guard.holds()


def test_a_changed_closure_is_noticed():
    rate = 2.0

    def f(t, y):
        return rate * y

    guard = watch(f)
    rate = 3.0
    assert not guard.holds()


def test_a_closure_without_a_value_is_noticed():
    cell = types.CellType(2.0)
    code = (lambda rate: lambda t, y: rate * y)(0).__code__
    guard = watch(types.FunctionType(code, globals(), closure=(cell,)))
    del cell.cell_contents
    assert not guard.holds()


def test_a_changed_list_in_a_closure_is_noticed():
    rates = [1.0, (2.0, [3.0])]
    guard = watch(lambda t, y: y * rates[1][1][0])
    rates[1][1][0] = 4.0
    assert not guard.holds()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("__code__", (lambda t, y, a=1.0, *, b=1.0: y).__code__),
        ("__defaults__", (5.0,)),
        ("__kwdefaults__", {"b": 5.0}),
    ],
)
def test_a_changed_function_is_noticed(name, value):
    def f(t, y, a=1.0, *, b=1.0):
        return a * b * y

    guard = watch(f)
    setattr(f, name, value)
    assert not guard.holds()


def test_a_changed_keyword_default_is_noticed():
    def f(t, y, *, b=1.0):
        return b * y

    guard = watch(f)
    f.__kwdefaults__["b"] = 2.0
    assert not guard.holds()


def test_a_changed_attribute_of_a_function_is_noticed():
    def f(t, y):
        return y * f.rate

    f.rate = 2.0
    guard = watch(f)
    f.rate = 3.0
    assert not guard.holds()


def test_a_changed_partial_is_noticed():
    f = functools.partial(lambda a, t, y, b: a[0] * b * y, [2.0], b=3.0)
    guard = watch(f)
    f.keywords["b"] = 4.0
    assert not guard.holds()
    f.keywords["b"] = 3.0
    f.args[0][0] = 5.0
    assert not guard.holds()
    f.args[0][0] = 2.0
    assert guard.holds()
    f.__setstate__((lambda a, t, y, b: y, f.args, f.keywords, None))
    assert not guard.holds()


def test_a_changed_owner_of_a_bound_method_is_noticed():
    class Fields:
        def __init__(self):
            self.rate = 2.0

        def decay(self, t, y):
            return -self.rate * y

    fields = Fields()
    guard = watch(fields.decay)
    fields.rate = 3.0
    assert not guard.holds()


def test_a_changed_class_of_an_object_that_f_makes_is_noticed(monkeypatch):
    guard = watch(lambda t, y: y * Config().rate)
    monkeypatch.setattr(Config, "__init__", lambda self: setattr(self, "rate", 5.0))
    assert not guard.holds()


def test_a_changed_attribute_with_a_computed_name_is_noticed(f):
    f.rate1 = 2.0
    guard = watch(lambda t, y: y * getattr(f, "rate" + str(1)))
    f.rate1 = 3.0
    assert not guard.holds()


def with_default(f, y):
    return y * getattr(f, "late", 2.0)


def with_computed_default(f, y):
    return y * getattr(f, "la" + "te"[:2], 2.0)


def with_error(f, y):
    try:
        return y * f.late
    except AttributeError:
        return y


@pytest.mark.parametrize("read", [with_default, with_computed_default, with_error])
def test_an_attribute_that_was_missing_is_noticed(f, read):
    guard = watch(lambda t, y: read(f, y))
    f.late = 3.0
    assert not guard.holds()


@pytest.mark.parametrize("read", [with_default, with_error])
def test_a_class_attribute_that_was_missing_is_noticed(f, read, monkeypatch):
    guard = watch(lambda t, y: read(f, y))
    monkeypatch.setattr(Parent, "late", 3.0, raising=False)
    assert not guard.holds()


def test_an_attribute_that_hides_a_parameter_is_noticed(f):
    guard = watch(lambda t, y: y @ f.first.weight)
    f.first.__dict__["weight"] = torch.eye(2)
    assert not guard.holds()


def test_a_changed_attribute_of_a_tensor_is_noticed():
    weight = torch.ones(2)
    weight.gain = 2.0
    guard = watch(lambda t, y: y * weight.gain)
    weight.gain = 3.0
    assert not guard.holds()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.gain if hasattr(x, "gain") else 1.0,
        lambda x: getattr(x, "gain", 1.0),
    ],
)
def test_the_first_attribute_of_a_tensor_is_noticed(read):
    weight = torch.ones(2)
    guard = watch(lambda t, y: y * read(weight))
    weight.gain = 3.0
    assert not guard.holds()


@pytest.mark.parametrize(
    ("base", "value"), [(int, 1), (float, 1.0), (str, "a"), (tuple, (1,)), (np.ndarray, 2)], ids=lambda x: str(x)
)
def test_a_changed_attribute_of_a_value_of_ones_own_class_is_noticed(base, value):
    number = type("Own", (base,), {})(value)
    number.gain = 2.0
    guard = watch(lambda t, y: y * number.gain)
    assert guard.holds()
    number.gain = 3.0
    assert not guard.holds()


def test_an_enumeration_of_integers_is_no_change(f):
    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 2

    levels = [Level.LOW]
    guard = watch(lambda t, y: y * levels[0] * Level.HIGH)
    assert guard.holds()
    levels[0] = Level.HIGH
    assert not guard.holds()


def test_changed_bases_of_a_class_are_noticed():
    class Slow:
        def rate(self):
            return 1.0

    class Fast(Slow):
        def rate(self):
            return 2.0

    class Mine(Slow):
        def __call__(self, t, y):
            return y * self.rate()

    guard = watch(Mine())
    Mine.__bases__ = (Fast,)
    assert not guard.holds()


def test_a_change_deep_inside_is_noticed(f):
    outer = types.SimpleNamespace(middle=Config())
    outer.middle.inner = (Config(), f.second)
    guard = watch(lambda t, y: outer.middle.inner[1](y) * outer.middle.inner[0].rate)
    outer.middle.inner[0].rate = 5.0
    assert not guard.holds()


def test_a_changed_setting_of_a_torch_layer_is_noticed():
    layer = nn.LeakyReLU(0.1)
    guard = watch(lambda t, y: layer(y))
    layer.negative_slope = 0.2
    assert not guard.holds()


def test_a_function_in_the_middle_of_a_decorator_is_noticed():
    def inner(t, y):
        return y * inner.rate

    inner.rate = 2.0
    guard = watch(torch.no_grad()(inner))
    inner.rate = 3.0
    assert not guard.holds()


def test_a_frozen_tensor_in_a_closure_is_noticed():
    weight = torch.ones(2, requires_grad=True)
    guard = watch(lambda t, y: y * weight)
    weight.requires_grad_(False)
    assert not guard.holds()


scalars = st.one_of(
    st.booleans(), st.integers(-2, 2), st.floats(), st.sampled_from([0.0, -0.0, math.nan, "a", "", b"a", None])
)


@given(scalars, scalars)
def test_scalars_are_the_same_only_if_type_and_digits_are(a, b):
    assert same(a, b) == (type(a) is type(b) and repr(a) == repr(b))
    assert same((1, a), (1, b)) == same(a, b)


@given(st.lists(scalars, max_size=4), st.lists(scalars, max_size=4))
def test_a_list_holds_only_if_all_elements_are_the_same(before, after):
    guard, watched = Guard(), list(before)
    guard.watch_contents(watched)
    assert guard.holds()
    watched[:] = after
    assert guard.holds() == (list(map(repr, before)) == list(map(repr, after)))


class Short(list):
    """A list that does not tell how many elements it has."""

    def __len__(self):
        return 1

    def __bool__(self):
        return False


def test_elements_beyond_a_containers_length_are_watched():
    rates = Short([1.0, 2.0, 3.0])

    class Rates:
        def __call__(self, t, y):
            return -y * rates[2]

    guard = watch(Rates())
    rates[2] = 9.0
    assert not guard.holds()
    rates[2] = 3.0
    assert guard.holds()
    rates.append(4.0)
    assert not guard.holds()


def test_a_variable_of_a_closure_that_is_gone_is_a_change():
    rate = torch.tensor(2.0)

    def f(t, y):
        return -y * rate  # noqa: F821  # it is deleted below

    guard = watch(f)
    del rate
    assert not guard.holds()
    assert guard.swap({}, ()) is None


def test_changes_can_be_undone():
    class Holder:
        pass

    holder = Holder()
    holder.kept, holder.items, holder.table, holder.empty = 1.0, [1, 2], {"a": 1}, {}

    def f(t, y):
        return y * (holder.kept + len(holder.items) + len(holder.table) + len(holder.empty))

    guard = watch(f)
    holder.kept, holder.table["a"], holder.table["b"], holder.empty["c"] = 2.0, 2, 3, 4
    holder.items.append(3)
    assert guard.undo()
    assert guard.holds()
    assert vars(holder) == {"kept": 1.0, "items": [1, 2], "table": {"a": 1}, "empty": {}}
    assert not guard.undo()
