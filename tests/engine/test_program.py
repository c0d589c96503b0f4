"""Programs by the compiled engine against the same computations by torch, in double precision."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.programs import BINARY, UNARY, compare

from anode.engine.extension import extension
from anode.engine.program.layout import Layout, Space
from anode.engine.program.program import Builder

pytestmark = pytest.mark.skipif(extension is None, reason="the engine was not compiled")
SMOOTH = sorted(set(BINARY) - {"divide", "power"})


@st.composite
def expressions(draw):
    """A random field: its dimension, the shapes of its tensors, and how it is put together."""
    dim = draw(st.integers(1, 5))
    steps = draw(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10**6), st.integers(0, 10**6)), max_size=14))
    shapes = [(4, dim), (4,), (dim, 4), (3,), (3, 4)]

    def build(b):
        random = np.random.default_rng(len(steps))
        tensors = [b.tensor(shape) for shape in shapes]
        pool = [b.state(dim), b.time().reshape(1), tensors[3], b.numbers(np.array([0.5, -1.5]))]

        def pick(i):
            return pool[i % len(pool)]

        for kind, i, j in steps:
            a, c = pick(i), pick(j)
            if kind <= 2:
                x = b.unary(sorted(UNARY)[j % len(UNARY)], a, 1.0, 20.0)
                x = b.unary("tanh", x) if kind else x
            elif kind <= 5:
                size = max(len(a), len(c))
                x = b.binary(SMOOTH[(i + j) % len(SMOOTH)], np.resize(a, size), np.resize(c, size))
            elif kind == 6:
                x = np.concatenate([a, c])[random.permutation(len(a) + len(c))][:7]
            elif kind == 7:
                x = b.unary("tanh", b.linear(np.resize(a, dim), tensors[0], tensors[1] if i % 2 else None))
            elif kind == 8:
                x = b.unary("sigmoid", b.linear(np.resize(a, 4), tensors[4]))
            elif kind == 9:
                x = b.sum(np.resize(a, (2, 3 + j % 5)), (j % 2,))
            else:
                x = b.where(b.binary("less", np.resize(a, len(c)), c), c, np.resize(a, len(c)))
            pool.append(x)
        mixed = b.unary("tanh", np.resize(np.concatenate(pool[4:] or [pool[0]])[::-1], 4))
        return b.linear(mixed, tensors[2])

    return dim, shapes, build


@settings(max_examples=150)
@given(expressions(), st.integers(1, 70))
def test_random_programs_and_their_gradients_are_torchs(made, points):
    dim, shapes, build = made
    compare(build, dim, shapes, points)


@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary_functions_and_their_derivatives_are_torchs(name):
    compare(lambda b: b.unary(name, b.state(3), 1.0, 20.0), 3, [])


@pytest.mark.parametrize("name", sorted(set(BINARY) - {"power"}))
def test_binary_functions_of_rows_and_tensors_are_torchs(name):
    compare(lambda b: b.binary(name, b.state(3), b.tensor((3,))), 3, [(3,)])
    compare(lambda b: b.binary(name, b.tensor((1,)), b.state(3)), 3, [(1,)])
    compare(lambda b: b.binary(name, b.state(3), b.state(3)[::-1]), 3, [])


def test_powers_of_positive_numbers_have_both_derivatives():
    compare(lambda b: b.binary("power", b.unary("exp", b.state(2)), b.tensor((2,))), 2, [(2,)])


def test_the_largest_sends_its_cotangent_to_the_largest():
    compare(lambda b: b.binary("subtract", b.state(6), b.largest(b.state(6).reshape(2, 3), (1,)).repeat(3)), 6, [])


def test_a_slope_may_be_made_of_states_tensors_numbers_and_time():
    compare(lambda b: np.concatenate([b.state(3)[1:], b.time().reshape(1)]), 3, [])
    compare(lambda b: np.concatenate([b.tensor((1,)), b.numbers(np.array([2.0]))]), 2, [(1,)])


def test_one_weight_may_serve_several_maps_and_parts_of_it():
    def build(b):
        weight = b.tensor((3, 3))
        x = b.unary("tanh", b.linear(b.state(3), weight))
        x = b.linear(x, weight.T, weight[0])
        return b.linear(x, weight[::-1], weight[:, 1])

    compare(build, 3, [(3, 3)])


def test_what_is_computed_twice_is_computed_once():
    b = Builder(2)
    x, t = b.state(2), b.time()
    one = b.binary("multiply", b.unary("tanh", x), b.unary("sin", np.broadcast_to(t, (2,))))
    two = b.binary("multiply", b.unary("tanh", x), b.unary("sin", t))
    program = b.finish(b.binary("add", one, two))
    assert [op.rows for op in program.operations if op.name == "sin"] == [1]
    assert [op.name for op in program.operations].count("multiply") == 1


def test_what_is_not_needed_is_left_out():
    b = Builder(2)
    b.unary("exp", b.state(2))
    assert [op.name for op in b.finish(b.unary("tanh", b.state(2))).operations] == ["tanh"]


def test_literal_numbers_are_folded():
    b = Builder(1)
    product = b.binary("multiply", b.numbers(2.0), b.numbers(3.0))
    assert b.value(product) == 6.0
    x = b.binary("add", b.binary("multiply", b.state(1), b.numbers(1.0)), b.numbers(0.0))
    assert x.tolist() == b.state(1).tolist()


def test_activations_become_part_of_the_map_before_them():
    b = Builder(2)
    hidden = b.unary("tanh", b.linear(b.state(2), b.tensor((4, 2)), b.tensor((4,))))
    program = b.finish(b.linear(hidden, b.tensor((2, 4)), b.tensor((2,))))
    assert [(op.kind, op.activation) for op in program.operations] == [("affine", "tanh"), ("affine", "none")]


def test_a_map_whose_result_is_used_besides_keeps_it():
    def build(b):
        x = b.linear(b.state(2), b.tensor((2, 2)), b.tensor((2,)))
        return b.binary("add", b.unary("tanh", x), x)

    compare(build, 2, [(2, 2), (2,)])


def test_memory_is_reused_where_values_are_no_longer_needed():
    b = Builder(2)
    x = b.state(2)
    for i in range(20):
        x = b.binary("add", x, b.numbers(float(i + 1)))
    layout = Layout(b.finish(x), extension.UNARY, extension.BINARY)
    assert layout.sizes[Space.SCRATCH] + layout.sizes[Space.KEPT] <= 4
