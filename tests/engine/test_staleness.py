"""A program that no longer is what f computes must never be used: each change here would go unnoticed without a check.

The fields are multiplied by t, so that at the start, where the engine compares its slope with f's, every change is
without effect.
"""

import contextlib
import copy
import functools
import itertools
import operator
import pickle
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations, parametrize, prune

import anode
from anode.engine.memory import MOST_TRACES, memory_of

Y0 = torch.linspace(-1.0, 1.0, 8, dtype=torch.float64).reshape(4, 2)
RATE = 1.0
LIMITS = {"high": 1.0}
CONFIG = types.SimpleNamespace(rate=1.0)


class Field(nn.Module):
    gain = 1.0

    def __init__(self):
        super().__init__()
        self.first, self.act, self.drop = nn.Linear(2, 6), nn.Tanh(), nn.Dropout(0.5)
        self.second = nn.Linear(6, 2)
        self.register_buffer("shift", torch.linspace(0.1, 0.2, 2))
        self.register_buffer("order", torch.tensor([0, 1]))
        self.register_buffer("mask", torch.tensor([True, True]))
        self.k, self.factors, self.table, self.array = 1.0, [1.0, 2.0], {"a": 1.0}, np.ones(2)
        self.unused = torch.zeros(3, dtype=torch.float64)
        self.config, self.unfrozen = types.SimpleNamespace(rate=1.0), True

    def forward(self, t, y):
        h = self.second(self.drop(self.act(self.first(y + self.shift))))
        h = torch.where(self.mask, h[:, self.order], 0.5 * h) * self.k * self.gain * self.factors[0]
        h = h * self.unused.shape[0] * (1.0 if self.unused.dtype == torch.float64 else 2.0)
        return t * h * self.table["a"] * float(self.array[0]) * self.config.rate * RATE * LIMITS["high"] * CONFIG.rate


def field():
    torch.manual_seed(1)
    return Field().double().eval()


def gradients(y1, y0, f):
    wanted = [y0, *(p for p in f.parameters() if p.requires_grad)] if isinstance(f, nn.Module) else [y0]
    found = torch.autograd.grad((y1 * y1).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


def assert_fresh(f, y=Y0, **settings):
    """Solve with the engine, if it applies, and without, and compare; return who solved."""
    results = []
    for engine in ("auto", "torch"):
        y0 = y.clone().requires_grad_()
        solution = anode.solve(f, y0, (0.0, 1.0), engine=engine, **settings)
        results.append((solution, [solution.y1.detach(), *gradients(solution.y1, y0, f)]))
    tolerance = 1e-9 if y.dtype == torch.float64 else 1e-2  # the steps of float32 depend on rounding
    for x, expected in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(x, expected, rtol=tolerance, atol=tolerance)
    ours, plain = (torch.as_tensor(solution.stats.nfe) for solution, _ in results)
    assert torch.equal(ours, plain) or y.dtype == torch.float32
    return str(results[0][0].engine)


def patch_forward(f):
    f.forward = lambda t, y: -3.0 * t * y


def doubled(f):
    return {name: x * 2 if x.is_floating_point() else x for name, x in f.state_dict().items()}


def in_place(change):
    def apply(f):
        with torch.no_grad():
            change(f)

    return apply


CHANGES = {
    "weights in place": in_place(lambda f: f.first.weight.mul_(2.0)),
    "weights through .data": lambda f: f.first.weight.data.mul_(2.0),
    "data replaced": lambda f: setattr(f.first.weight, "data", f.first.weight.data * 2.0),
    "parameter replaced": lambda f: setattr(f.first, "weight", nn.Parameter(f.first.weight.detach() * 2.0)),
    "parameter frozen": lambda f: f.first.weight.requires_grad_(False),
    "all frozen": lambda f: f.requires_grad_(False),
    "layer replaced": lambda f: setattr(f, "first", nn.Linear(2, 6).double()),
    "wider layer": lambda f: (setattr(f, "first", nn.Linear(2, 9)), setattr(f, "second", nn.Linear(9, 2)), f.double()),
    "bias removed": lambda f: setattr(f.first, "bias", None),
    "activation replaced": lambda f: setattr(f, "act", nn.Softplus()),
    "activation's setting": lambda f: f.act.__dict__.update(inplace=True),
    "shape of a tensor": lambda f: f.unused.resize_(5),
    "shape of a tensor through .data": lambda f: setattr(f.unused, "data", torch.zeros(9, dtype=torch.float64)),
    "dtype of a tensor": lambda f: setattr(f.unused, "data", torch.zeros(3)),
    "buffer in place": lambda f: f.shift.add_(1.0),
    "buffer replaced": lambda f: setattr(f, "shift", f.shift + 1.0),
    "indices in place": lambda f: f.order.copy_(torch.tensor([1, 0])),
    "indices through .data": lambda f: f.order.data.copy_(torch.tensor([1, 0])),
    "indices through numpy": lambda f: f.order.numpy().__setitem__(slice(None), [1, 1]),
    "indices replaced": lambda f: setattr(f, "order", torch.tensor([1, 0])),
    "mask in place": lambda f: f.mask.logical_not_(),
    "mask replaced": lambda f: setattr(f, "mask", torch.tensor([False, True])),
    "number": lambda f: setattr(f, "k", 3.0),
    "number's type": lambda f: setattr(f, "k", torch.tensor(3.0, dtype=torch.float64)),
    "attribute of the class": lambda f: setattr(f, "gain", 3.0),
    "list": lambda f: f.factors.__setitem__(0, 3.0),
    "dict": lambda f: f.table.update(a=3.0),
    "array": lambda f: f.array.__setitem__(0, 3.0),
    "nested object": lambda f: setattr(f.config, "rate", 3.0),
    "forward patched": patch_forward,
    "state dict loaded": lambda f: f.load_state_dict(
        {k: v * 2 if v.is_floating_point() else v for k, v in f.state_dict().items()}
    ),
    "state dict assigned": lambda f: f.load_state_dict(doubled(f), assign=True),
    "moved there and back": lambda f: f.float().double(),
    "pruned": lambda f: prune.l1_unstructured(f.first, "weight", 0.5),
    "weight norm": lambda f: parametrizations.weight_norm(f.first),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_module_is_noticed(name):
    f = field()
    assert assert_fresh(f) == "native"
    before = anode.solve(f, Y0, (0.0, 1.0)).y1.detach()
    CHANGES[name](f)
    assert_fresh(f)
    after = anode.solve(f, Y0, (0.0, 1.0)).y1.detach()
    harmless = ("frozen", "setting", "moved", "norm")
    if not any(word in name for word in harmless):
        assert not torch.equal(before, after)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_module_is_noticed_without_gradients(name):
    f = field()
    with torch.no_grad():
        for change in (lambda f: None, CHANGES[name], lambda f: None):
            change(f)
            found, expected = (anode.solve(f, Y0, (0.0, 1.0), engine=engine).y1 for engine in ("auto", "torch"))
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_unfreezing_gives_gradients_again():
    f = field()
    f.first.requires_grad_(False)
    assert assert_fresh(f) == "native"
    f.first.requires_grad_(True)
    assert assert_fresh(f) == "native"


def test_a_change_of_a_class_or_of_a_global_is_noticed(monkeypatch):
    f = field()
    assert assert_fresh(f) == "native"
    monkeypatch.setattr(Field, "gain", 3.0)
    assert assert_fresh(f) == "native"
    monkeypatch.setitem(globals(), "RATE", 3.0)
    assert assert_fresh(f) == "native"
    monkeypatch.setitem(LIMITS, "high", 3.0)
    assert assert_fresh(f) == "native"
    monkeypatch.setattr(CONFIG, "rate", 3.0)
    assert assert_fresh(f) == "native"
    monkeypatch.setattr(Field, "forward", lambda self, t, y: -5.0 * t * self.second(self.first(y)))
    assert assert_fresh(f) == "native"
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 2.0 * nn.functional.linear(x, self.weight, self.bias))
    assert_fresh(f)


def test_a_change_of_a_closure_is_noticed():
    k, matrix = 1.0, torch.eye(2, dtype=torch.float64)

    def f(t, y):
        return t * k * (y @ matrix)

    assert assert_fresh(f) == "native"
    k = 3.0
    assert assert_fresh(f) == "native"
    matrix = 2.0 * matrix
    assert assert_fresh(f) == "native"
    matrix.mul_(2.0)
    assert assert_fresh(f) == "native"
    assert memory_of(f).traces.total() == 2  # a new tensor takes the place of the old one


def test_a_change_of_a_default_or_of_code_is_noticed():
    def f(t, y, k=1.0, *, rate=1.0):
        return t * k * rate * y

    assert assert_fresh(f) == "native"
    f.__defaults__ = (3.0,)
    assert_fresh(f)
    f.__kwdefaults__ = {"rate": 3.0}
    assert_fresh(f)
    f.__code__ = (lambda t, y, k=1.0, *, rate=1.0: -t * k * rate * y).__code__
    assert_fresh(f)


def test_shapes_and_dtypes_have_programs_of_their_own():
    f = field()
    for y in (Y0, Y0[:1], Y0.repeat(50, 1), Y0.reshape(4, 1, 2)[:, 0], Y0.t().contiguous().t(), Y0[:1].expand(3, 2)):
        assert assert_fresh(f, y) == "native"
    assert memory_of(f).traces.total() == 1
    f.float()
    assert assert_fresh(f, Y0.float()) == "native"
    f.double()
    assert assert_fresh(f) == "native"


def test_dropout_is_called_as_it_is_in_training_only():
    f = field()
    assert assert_fresh(f) == "native"
    f.train()
    torch.manual_seed(0)
    ours = anode.solve(f, Y0, (0.0, 1.0), step_size=0.1, method="rk4")
    torch.manual_seed(0)
    plain = anode.solve(f, Y0, (0.0, 1.0), step_size=0.1, method="rk4", engine="torch")
    assert "draws random numbers" in str(ours.engine)
    assert not torch.equal(ours.y1, anode.solve(f, Y0, (0.0, 1.0), step_size=0.1, method="rk4").y1)
    assert ours.y1.shape == plain.y1.shape
    f.eval()
    assert assert_fresh(f) == "native"


def test_hooks_are_called():
    f, seen = field(), []
    assert assert_fresh(f) == "native"
    handle = f.first.register_forward_hook(lambda module, args, output: seen.append(1) or 2.0 * output)
    solution = anode.solve(f, Y0, (0.0, 1.0))
    assert len(seen) == solution.stats.calls
    assert "hook" in assert_fresh(f)
    handle.remove()
    assert_fresh(f)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: seen.append(1))
    try:
        seen.clear()
        anode.solve(f, Y0, (0.0, 1.0))
        assert seen
    finally:
        handle.remove()


def test_tracing_runs_no_hooks_of_tensors_and_retains_no_gradients():
    leaf, seen = torch.eye(2, dtype=torch.float64, requires_grad=True), []
    matrix = 2.0 * leaf
    matrix.retain_grad()
    matrix.register_hook(seen.append)
    leaf.register_hook(seen.append)
    solution = anode.solve(lambda t, y: (y @ matrix @ leaf).tanh(), Y0, (0.0, 1.0))
    assert str(solution.engine) == "native"
    assert not seen
    assert matrix.grad is None
    (of_matrix,) = torch.autograd.grad(solution.y1.sum(), matrix, retain_graph=True)
    seen.clear()
    matrix.grad = None
    solution.y1.sum().backward()
    assert len(seen) == 2
    assert torch.equal(matrix.grad, of_matrix)


def test_autocast_and_transforms_are_left_to_python():
    f = field().float()
    y = Y0.float()
    assert str(anode.solve(f, y, (0.0, 1.0)).engine) == "native"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast" in str(anode.solve(f, y, (0.0, 1.0)).engine)
    f.double()
    reverse = torch.func.grad(lambda y: anode.solve(f, y, (0.0, 1.0), gradient="stored").y1.sum())(Y0)
    y0 = Y0.clone().requires_grad_()
    expected = torch.autograd.grad(anode.solve(f, y0, (0.0, 1.0)).y1.sum(), y0)[0]
    torch.testing.assert_close(reverse, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore")  # torch's own
@pytest.mark.parametrize("options", [{}, {"norm": lambda x: x.abs().max()}], ids=["engine", "loop"])
def test_a_derivative_that_torch_follows_forward_is_not_lost_in_a_tensor_that_f_closes_over(options):
    def last(scale):
        return anode.odeint(lambda t, y: scale * y, Y0, torch.tensor([0.0, 1.0]).double(), options=options)[-1]

    scale = torch.tensor(0.5, dtype=torch.float64)
    y1 = last(scale)  # which traces f
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(last(forward_ad.make_dual(scale, torch.ones_like(scale)))).tangent
    torch.testing.assert_close(tangent, y1, rtol=1e-5, atol=1e-6)


class Holder:
    __match_args__ = ("rate",)

    def __init__(self):
        self.rate, self.values = 1.0, [1.0]


def by_match(holder):
    match holder:
        case Holder(rate):
            return rate


@pytest.mark.parametrize(
    "reader",
    [
        lambda holder: functools.partial(operator.attrgetter("rate"), holder),
        lambda holder: functools.partial(getattr, holder, "rate"),
        lambda holder: functools.partial(holder.__getattribute__, "rate"),
        lambda holder: holder.values.__len__,
        lambda holder: functools.partial(by_match, holder),
    ],
)
def test_a_change_of_what_is_read_without_being_named_is_noticed(reader):
    holder = Holder()
    read = reader(holder)

    def f(t, y):
        return t * read() - y

    assert_fresh(f)
    holder.rate = 3.0
    holder.values.append(1.0)
    assert_fresh(f)


def test_a_change_of_a_metaclass_is_noticed():
    class Meta(type):
        rate = 1.0

    class Constants(metaclass=Meta):
        pass

    def f(t, y):
        return t * Constants.rate - y

    assert assert_fresh(f) == "native"
    Meta.rate = 3.0
    assert_fresh(f)


def test_weights_that_torch_has_cached_are_not_used_afterwards():
    net = parametrizations.weight_norm(nn.Linear(2, 2)).double()

    def f(t, y):
        return t * net(y) - y

    with torch.no_grad():
        for context in (parametrize.cached, contextlib.nullcontext, parametrize.cached):
            with context():
                found, expected = (anode.solve(f, Y0, (0.0, 1.0), engine=engine).y1 for engine in ("auto", "torch"))
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
            for parameter in net.parameters():
                parameter.mul_(2.0)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate, self.nfe, self.seen = nn.Parameter(torch.tensor(0.5, dtype=torch.float64)), 0, []

    def forward(self, t, y):
        self.nfe += 1
        return -self.rate * t * y


@pytest.mark.parametrize("settings", [{}, {"method": "euler", "step_size": 0.1}, {"control": "sample"}], ids=str)
def test_a_counter_says_what_was_evaluated(settings):
    f = Counting()
    for size in (4, 3, 4):
        for recording in (True, False):
            f.nfe = 0
            with torch.set_grad_enabled(recording):
                solution = anode.solve(f, Y0[:size], (0.0, 1.0), **settings)
            assert str(solution.engine) == "native"
            assert f.nfe == solution.stats.calls


class Appending(Counting):
    def forward(self, t, y):
        self.seen.append(float(t))
        return super().forward(t, y)


class Printing(Counting):
    def forward(self, t, y):
        print("evaluated")
        return super().forward(t, y)


def test_what_f_does_besides_is_done_every_time(capsys):
    f = Appending()
    for _ in range(2):
        f.seen.clear()
        solution = anode.solve(f, Y0, (0.0, 1.0))
        assert "list" in str(solution.engine)
        assert len(f.seen) == solution.stats.calls
    f = Printing()
    for _ in range(2):
        solution = anode.solve(f, Y0, (0.0, 1.0))
        assert "print" in str(solution.engine)
        assert capsys.readouterr().out.count("evaluated") == solution.stats.calls


def test_an_f_that_alternates_is_called_as_it_is():
    signs = itertools.cycle([1.0, -1.0])

    def f(t, y):
        return next(signs) * y

    assert str(anode.solve(f, Y0, (0.0, 1.0), method="rk4", step_size=0.25).engine) != "native"

    class Alternating(Counting):
        def forward(self, t, y):
            self.nfe += 1
            return y if self.nfe % 2 else -y

    assert "nfe" in str(anode.solve(Alternating(), Y0, (0.0, 1.0), method="rk4", step_size=0.25).engine)


def test_what_an_f_does_for_larger_batches_is_noticed():
    def f(t, y):
        return -t * y if len(y) < 50 else -3.0 * t * y

    assert assert_fresh(f) == "native"
    assert assert_fresh(f, Y0.repeat(20, 1)) != "native"


def test_times_of_ones_own_for_each_sample_may_not_be_mixed():
    def f(t, y):
        return -t.mean() * y * y

    y = torch.tensor([[1.0], [100.0]], dtype=torch.float64)
    assert assert_fresh(f, y) == "native"
    assert "mixes the points" in assert_fresh(f, y, control="sample")


def test_a_program_of_a_whole_state_is_not_used_for_samples():
    matrix = torch.linspace(-1.0, 1.0, 16, dtype=torch.float64).reshape(4, 4)

    def f(t, y):
        return torch.tanh(matrix @ y) * torch.cos(t)

    assert assert_fresh(f) == "native"
    assert assert_fresh(f, control="sample") != "native"
    assert assert_fresh(f) == "native"


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.tolist()[0],
        lambda x: float(x[0]),
        lambda x: float(f"{x[0]}"),
        lambda x: (x * 1.0).item(),
        lambda x: 5.0 if x.norm() > 2 else 1.0,
    ],
)
def test_values_that_f_reads_into_python_are_read_each_time(read):
    k = torch.ones(1, dtype=torch.float64)

    def f(t, y):
        return -t * y * read(k)

    assert_fresh(f)
    k.fill_(3.0)
    assert_fresh(f)


def test_gradients_that_end_where_the_state_leaves_its_first_region_are_not_taken_for_those_of_the_values():
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clamp(-1.0, 1.0)

        @staticmethod
        def backward(ctx, g):
            return g

    def without(t, y):
        with torch.no_grad():
            rest = y.clamp(-1.0, 1.0) - y
        return y + rest

    y = torch.full((2, 2), 0.9, dtype=torch.float64)
    for f in (lambda t, y: y + (y.clamp(-1.0, 1.0) - y).detach(), lambda t, y: Straight.apply(y), without):
        assert assert_fresh(f, y) != "native"


def test_fresh_lambdas_are_traced_once():
    net = field()
    for _ in range(5):
        f = lambda t, y: net(t, y) * 2.0  # noqa: E731
        assert assert_fresh(f) == "native"
        assert memory_of(f).traces.total() == 1


def test_functions_with_arguments_by_name_are_traced_once():
    def made(scale):
        def f(t, y, *, rate=scale):
            return -rate * y

        return f

    y0 = torch.ones(3, 1)
    for _ in range(2 * MOST_TRACES):
        assert str(anode.solve(made(2.0), y0, (0.0, 1.0)).engine) == "native"
    slower = anode.solve(made(1.0), y0, (0.0, 1.0))
    assert str(slower.engine) == "native"
    torch.testing.assert_close(slower.y1, torch.exp(-y0), rtol=1e-3, atol=1e-3)


def test_a_torch_module_that_remembers_its_program_can_be_traced_again():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    f = lambda t, y: net(y) * t  # noqa: E731
    assert assert_fresh(f) == "native"
    net[1] = nn.Softplus()
    assert assert_fresh(f) == "native"


def test_many_modules_in_lambdas_of_one_line_do_not_tire_the_engine():
    for seed in range(MOST_TRACES + 3):
        torch.manual_seed(seed)
        net = nn.Linear(2, 2).double()
        assert assert_fresh(lambda t, y: net(y) * t) == "native"  # noqa: B023


def test_a_function_that_refers_to_itself_is_compared_without_end():
    def make(k):
        def f(t, y):
            return -f.k * t * y

        f.k = k
        return f

    for k in (1.0, 1.0, 3.0):
        assert assert_fresh(make(k)) == "native"


def test_an_f_that_changes_all_the_time_is_called_as_it_is_in_the_end():
    f = field()
    for step in range(MOST_TRACES + 2):
        f.k = float(step)
        engine = assert_fresh(f)
    assert "has changed" in engine


def test_many_shapes_do_not_tire_the_engine():
    def f(t, y):
        return -t * y.sin()

    for width in range(1, MOST_TRACES + 4):
        assert assert_fresh(f, torch.linspace(-1.0, 1.0, 3 * width, dtype=torch.float64).reshape(3, width)) == "native"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_a_copy_of_a_traced_module_is_traced_by_itself(copied):
    f = field()
    assert assert_fresh(f) == "native"
    other = copied(f)
    other.k = 3.0
    assert assert_fresh(other) == "native"
    assert assert_fresh(f) == "native"
    assert memory_of(f) is not memory_of(other)


def test_a_pickled_module_does_not_mention_anode():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    assert assert_fresh(lambda t, y: net(y) * t) == "native"
    assert b"anode.engine" not in pickle.dumps(net)


ACTIVATIONS = (nn.Tanh, nn.ReLU, nn.Softplus, nn.SiLU, nn.ELU)
DTYPES = (torch.float64, torch.float32)


class Changing(nn.Module):
    """A field with something of everything that may change between solves."""

    def __init__(self, draw):
        super().__init__()
        width = int(draw.integers(1, 7))
        self.first, self.second, self.act = nn.Linear(3, width), nn.Linear(width, 2), nn.Tanh()
        self.noise = nn.Dropout(0.0)
        self.register_buffer("shift", torch.zeros(2))
        self.register_buffer("order", torch.tensor([0, 1]))
        self.k, self.flips, self.nfe = 0.5, False, 0

    def forward(self, t, y):
        self.nfe += 1
        time = torch.ones_like(y[:, :1]) * t
        h = self.second(self.act(self.first(torch.cat([y, time], 1)))) + self.shift * t
        h = self.noise(h[:, self.order])
        return -h * self.k * t if self.flips else h * t * self.k


def change(f, draw):
    """Change something, chosen at random: mostly numbers in tensors, now and then the module itself."""
    layer = f.first if draw.random() < 0.5 else f.second
    scale = float(draw.uniform(0.5, 1.5))
    cheap = [
        lambda: layer.weight.data.mul_(scale),
        lambda: layer.bias.data.add_(scale - 1.0),
        lambda: setattr(layer.weight, "data", layer.weight.data * scale),
        lambda: f.shift.add_(scale - 1.0),
        lambda: layer.weight.requires_grad_(bool(draw.random() < 0.5)),
        lambda: f.zero_grad(),
    ]
    rare = [
        lambda: setattr(f, "k", scale),
        lambda: setattr(f, "flips", not f.flips),
        lambda: setattr(f, "shift", f.shift + scale),
        lambda: setattr(f, "order", f.order.flip(0)),
        lambda: f.order.copy_(f.order.flip(0)),
        lambda: setattr(f, "act", ACTIVATIONS[draw.integers(len(ACTIVATIONS))]()),
        lambda: setattr(layer, "weight", nn.Parameter(layer.weight.detach() * scale)),
        lambda: setattr(f, "second", nn.Linear(f.second.in_features, 2).to(f.shift)),
        lambda: f.train(not f.training),
        lambda: f.to(DTYPES[draw.integers(2)]),
    ]
    with torch.no_grad():
        changes = rare if draw.random() < 0.3 else cheap
        changes[draw.integers(len(changes))]()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_thousand_solves_of_modules_that_change_are_those_of_the_loop_in_python(seed):
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    f, native = Changing(draw).double(), 0
    for _ in range(25):
        change(f, draw)
        size, dtype = int(draw.choice([1, 2, 7, 33])), f.shift.dtype
        y = torch.from_numpy(draw.standard_normal((size, 2))).to(dtype)
        settings = {} if draw.random() < 0.7 else {"control": "sample"}
        if draw.random() < 0.2:
            settings = {"method": "rk4", "step_size": 0.25}
        before = f.nfe
        with torch.set_grad_enabled(bool(draw.random() < 0.7)):
            if torch.is_grad_enabled():
                native += assert_fresh(f, y, rtol=1e-4, atol=1e-4, **settings) == "native"
            else:
                ours, plain = (anode.solve(f, y, (0.0, 1.0), engine=e, **settings) for e in ("auto", "torch"))
                torch.testing.assert_close(ours.y1, plain.y1, rtol=1e-4, atol=1e-4)
                assert f.nfe - before == ours.stats.calls + plain.stats.calls
                native += str(ours.engine) == "native"
    assert native >= 12


def test_a_tensor_that_is_stored_otherwise_is_traced_anew_if_f_asks():
    holder, square = types.SimpleNamespace(), torch.ones(2, 2, dtype=torch.float64)
    f = lambda t, y: -y + t * (1.0 if holder.square.is_contiguous() else 3.0)  # noqa: E731
    for holder.square in (square, square[:, :1].expand(2, 2), square.clone()):
        assert assert_fresh(f) == "native"
