"""What is remembered of functions: the same program serves where nothing but tensors was replaced."""

import copy
import gc
import pickle
import types
import weakref
from functools import partial

import pytest
import torch
from torch import nn

import anode
from anode.engine.compiling import compiled, known_of
from anode.engine.extension import extension
from anode.engine.memory import MOST_FUNCTIONS, MOST_TRACES, memory_of
from anode.interface.options import problem_from
from anode.recent import Recent

pytestmark = pytest.mark.skipif(extension is None, reason="the engine was not compiled")


class Conditioned(nn.Module):
    """A field with a context that is set before every solve; it does not show at t = 0."""

    def __init__(self):
        super().__init__()
        self.map, self.context = nn.Linear(2, 2), None

    def forward(self, t, y):
        return torch.tanh(self.map(y)) * self.context * t


def check(f, y0, leaf, is_native=True):
    """A solve by the engine, and its gradient for a leaf, against the loop in Python."""
    ours, theirs = (anode.solve(f, y0, (0.0, 1.0), engine=engine) for engine in ("auto", "torch"))
    assert (str(ours.engine) == "native") == is_native
    torch.testing.assert_close(ours.y1, theirs.y1, rtol=1e-9, atol=1e-9)
    found = [torch.autograd.grad(x.y1.sum(), leaf, retain_graph=True)[0] for x in (ours, theirs)]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return nn.Linear(4, 2).double()


def test_a_context_that_is_set_anew_is_used_without_tracing_again(encoder):
    field, y0 = Conditioned().double(), torch.rand(5, 2, dtype=torch.float64)
    for i in range(2 * MOST_TRACES):
        if i % 3 < 2:  # and is kept now and then
            field.context = encoder(torch.rand(4, dtype=torch.float64))
        check(field, y0, encoder.weight)
    assert memory_of(field).traces.total() == 1


def test_a_closure_over_a_new_tensor_is_used_without_tracing_again(encoder):
    net, y0 = nn.Linear(2, 2).double(), torch.rand(5, 2, dtype=torch.float64)
    for _ in range(2 * MOST_TRACES):
        context = encoder(torch.rand(4, dtype=torch.float64))
        f = lambda t, y, net=net: context * net(y) * t  # noqa: B023, E731
        check(f, y0, encoder.weight)
    assert memory_of(f).traces.total() == 1


def test_new_tensors_as_default_arguments_are_used_without_tracing_again(encoder):
    net, y0 = nn.Linear(2, 2).double(), torch.rand(5, 2, dtype=torch.float64)
    for i in range(2 * MOST_TRACES):
        context, other = (encoder(torch.rand(4, dtype=torch.float64)) for _ in range(2))
        f = lambda t, y, z=context, *, w=other, gain=1.0 + i // MOST_TRACES: gain * (z * net(y) + w) * t  # noqa: E731
        check(f, y0, encoder.weight)
    assert memory_of(f).traces.total() == 2


def test_a_context_that_is_set_together_with_a_number_is_used_when_the_number_is_set_back():
    class Scaled(Conditioned):
        scale = 1.0

        def forward(self, t, y):
            return self.scale * super().forward(t, y)

    field, y0 = Scaled().double(), torch.rand(5, 2, dtype=torch.float64)
    field.scale = 1.0
    for scale in (1.0, 2.0, 1.0, 2.0):
        field.scale, field.context = scale, torch.rand(2, dtype=torch.float64)
        check(field, y0, field.map.weight)
    first = field.context
    for scale, context in ((1.0, torch.rand(2, dtype=torch.float64)), (3.0, first), (1.0, first)):
        field.scale, field.context = scale, context
        check(field, y0, field.map.weight)


def test_a_context_of_another_shape_is_traced_anew(encoder):
    field, y0 = Conditioned().double(), torch.rand(5, 2, dtype=torch.float64)
    for shape in ((2,), (1,), (2,)):
        field.context = torch.rand(shape, dtype=torch.float64)
        check(field, y0, field.map.weight)


def test_a_context_with_an_attribute_is_traced_anew():
    def f(t, y):
        return t * box.context * box.context.gain - y

    box, y0 = types.SimpleNamespace(), torch.rand(5, 2, dtype=torch.float64, requires_grad=True)
    for gain in (1.0, 3.0):
        box.context = torch.ones(2, dtype=torch.float64)
        box.context.gain = gain
        check(f, y0, y0)


def test_a_matrix_that_becomes_sparse_is_traced_anew():
    def f(t, y):
        return t * (1.0 if box.matrix.is_sparse else 2.0) * y

    box, y0 = types.SimpleNamespace(), torch.rand(5, 2, dtype=torch.float64, requires_grad=True)
    for matrix in (torch.eye(2), torch.eye(2).to_sparse()):
        box.matrix = matrix
        check(f, y0, y0)


def test_a_tensor_that_is_not_found_from_f_is_not_part_of_a_program():
    weight = torch.ones(2, dtype=torch.float64, requires_grad=True)
    y0 = torch.rand(5, 2, dtype=torch.float64, requires_grad=True)

    def f(t, y):
        return t * weight.grad - y

    for gradient in (1.0, 3.0):
        weight.grad = torch.full_like(weight, gradient)
        check(f, y0, y0, is_native=False)


def test_step_sizes_of_samples_are_not_those_of_features():
    stiffness = torch.tensor([[1.0], [10.0], [100.0]])
    f, y0 = lambda t, y: -stiffness * (y - torch.cos(t)) + y.sum(), torch.zeros(3, 1)  # mixes what would be points
    assert anode.solve(f, y0, (0.0, 5.0)).engine.name == "native"
    assert anode.solve(f, y0, (0.0, 5.0), control="sample").engine.name == "torch"


def test_what_is_known_of_a_module_is_neither_copied_nor_pickled():
    torch.manual_seed(0)
    field, y0 = nn.Sequential(nn.Linear(2, 2), nn.Tanh()).double(), torch.rand(5, 2, dtype=torch.float64)
    anode.solve(field, y0, (0.0, 1.0))
    assert memory_of(field).entries
    for other in (copy.deepcopy(field), pickle.loads(pickle.dumps(field)), copy.copy(field)):
        assert not memory_of(other).entries
        with torch.no_grad():
            other[0].weight = nn.Parameter(2 * field[0].weight)
        ours, theirs = (anode.solve(other, y0, (0.0, 1.0), engine=engine).y1 for engine in ("auto", "torch"))
        torch.testing.assert_close(ours, theirs)


def test_a_module_is_forgotten_with_what_is_known_of_it():
    field = Conditioned()
    field.context = torch.ones(2)
    anode.solve(field, torch.rand(5, 2), (0.0, 1.0))
    gone = weakref.ref(field)
    del field
    gc.collect()
    assert gone() is None


class Decay:
    """A right-hand side that is no module."""

    def __init__(self, rate=1.0):
        self.rates = torch.tensor([rate, 2.0])

    def f(self, t, y):
        return -y * self.rates * t

    __call__ = f


FORMS = pytest.mark.parametrize(
    "function", [lambda x: x.f, lambda x: lambda t, y: x.f(t, y), lambda x: x, lambda x: partial(x.f)]
)


@pytest.fixture
def nothing_known(monkeypatch):
    monkeypatch.setattr("anode.engine.memory.FUNCTIONS", Recent(MOST_FUNCTIONS))


@FORMS
def test_only_the_last_of_many_objects_is_kept_alive(function, nothing_known):
    alive = weakref.WeakSet()
    for _ in range(2 * MOST_TRACES):
        decay = Decay()
        alive.add(decay)
        anode.solve(function(decay), torch.rand(5, 2), (0.0, 1.0))
        del decay
    gc.collect()
    assert len(alive) <= 1


@FORMS
def test_objects_that_are_solved_in_turn_stay_compiled(function, nothing_known):
    objects, y0 = [Decay(rate) for rate in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)], torch.rand(5, 2)
    memory = memory_of(function(objects[0]))
    for _ in range(3):
        traces = memory.traces.total()
        for each in objects:
            ours, theirs = (anode.solve(function(each), y0, (0.0, 1.0), engine=engine) for engine in ("auto", "torch"))
            assert ours.engine.name == "native"
            torch.testing.assert_close(ours.y1, theirs.y1)
    assert memory.traces.total() == traces


def test_an_object_that_changes_is_not_traced_for_ever(nothing_known):
    first, second, y0 = Decay(), Decay(), torch.rand(5, 2)
    for each in (first, second, first):
        anode.solve(each, y0, (0.0, 1.0))
    for _ in range(MOST_TRACES):
        first.rates = nn.Parameter(torch.ones(2))  # which no other can replace
        solution = anode.solve(first, y0, (0.0, 1.0))
    assert solution.engine.name == "torch"


def test_what_is_known_is_not_taken_for_something_that_f_reads():
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    for control in ("joint", "sample"):
        for dtype in (torch.float32, torch.float64):
            solution = anode.solve(net.to(dtype), torch.rand(5, 2, dtype=dtype), (0.0, 1.0), control=control)
            assert str(solution.engine) == "native"


def assert_right(f):
    """The fields here show a tensor only where t is not 0, so that the slope at the start does not give it away."""
    y0 = torch.linspace(-1.0, 1.0, 8, dtype=torch.float64).reshape(4, 2)
    ours, expected = (anode.solve(f, y0, (0.0, 1.0), engine=engine).y1 for engine in ("native", "torch"))
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def full(value):
    return torch.full((2,), value, dtype=torch.float64)


def test_a_function_is_made_again_after_the_variable_of_the_first_was_set():
    def make(z):
        def f(t, y):
            return z * t - y

        def put(value):
            nonlocal z
            z = value

        return f, put

    first, put = make(full(1.0))
    assert_right(first)
    put(full(2.0))
    assert_right(first)
    second, _ = make(full(3.0))
    for f in (second, first, second):
        assert_right(f)
    assert memory_of(first).traces.total() == 1


class Places(nn.Module):
    shared = None

    def __init__(self, read):
        super().__init__()
        one = full(1.0)
        self.context, self.bag, self.pair, self.table = one, [one], (one,), {"one": one}
        self.register_buffer("buffer", one)
        Places.shared = one
        self.read = read

    def forward(self, t, y):
        return self.context * t + self.read(self) * t * t - y


@pytest.mark.parametrize(
    "read",
    [
        lambda f: f.bag[0],
        lambda f: f.pair[0],
        lambda f: f.table["one"],
        lambda f: f.buffer,
        lambda f: f.shared,
    ],
)
def test_a_tensor_that_is_replaced_in_one_place_stays_in_the_others(read):
    f = Places(read)
    assert_right(f)
    f.context = full(4.0)
    assert_right(f)


def test_a_tensor_that_is_replaced_in_a_closure_stays_in_the_others():
    def make(inner, z):
        return lambda t, y: inner(t) + z * t - y

    one = full(1.0)
    holder = Places(lambda f: f.buffer)
    for inner in (lambda t: holder.context * t * t, lambda t: one * t * t):
        assert_right(make(inner, one))
        assert_right(make(inner, full(4.0)))


def test_a_tensor_that_is_replaced_in_a_closure_and_in_a_module_is_one():
    net = nn.Linear(2, 2).double()

    def make(z):
        net.z = z
        return lambda t, y: net(y) * z + net.z * t

    for i in range(4):
        f = make(full(1.0 + i))
        assert_right(f)
    assert memory_of(f).traces.total() == 1
    last = f
    net.z = full(9.0)
    for f in (last, make(full(5.0)), last):
        assert_right(f)
    net.z = full(1.0)
    assert_right(last)


def test_tensors_that_f_computes_from_replaced_ones_are_computed_anew():
    net, y0 = nn.Linear(2, 2).double(), torch.rand(5, 2, dtype=torch.float64)

    def make(weight, code):
        return lambda t, y: (net(y) @ weight.t() @ (weight @ weight) + torch.tanh(2 * code)) * t

    for _ in range(4):
        weight, code = (torch.rand(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 2), (2,)))
        f = make(weight, code)
        check(f, y0, weight)
        check(f, y0, code)
    assert memory_of(f).traces.total() == 1
    named = dict(anode.explain(f, y0).computed)
    assert {"weight", "code"} == {name for of in named.values() for name in of}
    turned = weight.detach().t().requires_grad_()
    check(make(turned, code), y0, turned)


def test_a_tensor_that_is_replaced_stays_in_its_methods():
    one = full(1.0)
    holder, product = Places(lambda f: f.buffer), one.mul
    for value in (one, full(4.0)):
        holder.context = value
        assert_right(lambda t, y: product(y) * t + holder.context * t * t)


class Sharing(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, t, y):
        return self.first.reshape(-1, 2)[0] * y + self.second * t


@pytest.mark.parametrize("by_data", [True, False])
@pytest.mark.parametrize(
    "tensors",
    [
        lambda one: (one, one.detach()),
        lambda one: (one.repeat(3, 1), one.repeat(3, 1)[0]),
        lambda one: (rows := one.repeat(3, 1), rows[0]),
        lambda one: (nn.Parameter(one, requires_grad=False), nn.Parameter(one, requires_grad=False)),
    ],
)
def test_tensors_that_share_memory_may_part(tensors, by_data):
    f = Sharing(*tensors(full(1.0)))
    assert_right(f)
    new = full(5.0)
    if by_data:
        f.second.data = new
    else:
        f.second = nn.Parameter(new, requires_grad=False) if isinstance(f.second, nn.Parameter) else new
    assert_right(f)
    f.second.fill_(7.0)
    assert_right(f)


def test_a_solve_keeps_its_tensors_while_another_thread_finds_others():
    y0, t = torch.rand(5, 2, dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)

    def problem(context):
        return problem_from(lambda t, y: context * y, y0, t, 1e-6, 1e-6, None, None, None)

    contexts = [torch.rand(2, dtype=torch.float64) for _ in range(3)]
    problems = [problem(context) for context in contexts]
    knowns, memory = [known_of(each) for each in problems], memory_of(problems[0].f)
    assert memory.traces.total() == 1
    for context, known, each in zip(contexts, knowns, problems, strict=True):
        assert compiled(known, each).tensors[0] is context
    memory.forget(knowns[-1])
    assert not memory.entries


def test_a_copy_of_a_sequential_is_another_function():
    torch.manual_seed(0)
    net, y0 = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)).double(), torch.rand(3, 2).double()

    def y1(f):
        return anode.solve(f, y0, (0.0, 1.0)).y1

    before = y1(net)
    assert torch.equal(y1(net), before)
    assert torch.equal(y1(copy.copy(net)), before)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(y1(other), before)
        other[1] = nn.ReLU()
        expected = anode.solve(other, y0, (0.0, 1.0), engine="torch").y1
        torch.testing.assert_close(y1(other), expected)
        assert not torch.equal(expected, before)
        assert torch.equal(y1(net), before)
