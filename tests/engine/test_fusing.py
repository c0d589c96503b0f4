"""What becomes part of an affine map, and that values and gradients stay the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.programs import compare

from anode.engine.extension import extension
from anode.engine.program.program import Builder

pytestmark = pytest.mark.skipif(extension is None, reason="the engine was not compiled")


def perceptron(b, order, after="tanh"):
    """A layer of three units on two features, to which terms are added in a given order, and a linear map."""
    weight, bias, times, last = b.tensor((3, 2)), b.tensor((3,)), b.tensor((3,)), b.tensor((2, 3))
    product, moved = b.linear(b.state(2), weight), b.binary("multiply", times, b.time())
    add = b.binary
    x = {
        "(wx + b) + ct": lambda: add("add", add("add", product, bias), moved),
        "(wx + ct) + b": lambda: add("add", add("add", product, moved), bias),
        "ct + (b + wx)": lambda: add("add", moved, add("add", bias, product)),
        "wx + (b + ct)": lambda: add("add", product, add("add", bias, moved)),
        "(ct + b) + wx": lambda: add("add", add("add", moved, bias), product),
    }[order]()
    return b.linear(b.unary(after, x), last)


SHAPES = [(3, 2), (3,), (3,), (2, 3)]
ORDERS = ["(wx + b) + ct", "(wx + ct) + b", "ct + (b + wx)", "wx + (b + ct)", "(ct + b) + wx"]


def operations(build, dim):
    b = Builder(dim)
    return b.finish(build(b)).operations


@pytest.mark.parametrize("order", ORDERS)
def test_bias_time_and_activation_become_part_of_the_map_in_any_order(order):
    assert [(op.kind, op.activation) for op in operations(lambda b: perceptron(b, order), 2)] == [
        ("affine", "tanh"),
        ("affine", "none"),
    ]
    compare(lambda b: perceptron(b, order), 2, SHAPES)


def test_an_activation_the_engine_does_not_fuse_stays_behind_the_map():
    made = operations(lambda b: perceptron(b, ORDERS[0], "sin"), 2)
    assert [op.kind for op in made] == ["affine", "unary", "affine"]


def test_a_map_with_a_bias_takes_no_second_one():
    def build(b):
        x = b.linear(b.state(2), b.tensor((2, 2)), b.tensor((2,)))
        return b.binary("add", x, b.tensor((2,)))

    assert [op.kind for op in operations(build, 2)] == ["affine", "binary"]
    compare(build, 2, [(2, 2), (2,), (2,)])


def test_a_map_with_a_bias_takes_no_sum_of_a_bias_and_time():
    def build(b):
        x = b.linear(b.state(2), b.tensor((2, 2)), b.tensor((2,)))
        return b.binary("add", x, b.binary("add", b.tensor((2,)), b.binary("multiply", b.tensor((2,)), b.time())))

    assert [op.kind for op in operations(build, 2)] == ["affine", "binary", "binary", "binary"]
    compare(build, 2, [(2, 2), (2,), (2,), (2,)])


def test_time_stays_apart_if_the_map_does_not_begin_with_the_state():
    def build(b):
        hidden = b.unary("sin", b.linear(b.state(2), b.tensor((3, 2))))
        return b.binary("add", b.linear(hidden, b.tensor((2, 3))), b.binary("multiply", b.tensor((2,)), b.time()))

    assert [op.kind for op in operations(build, 2)] == ["affine", "unary", "affine", "binary", "binary"]
    compare(build, 2, [(3, 2), (2, 3), (2,)])


def test_a_map_of_the_first_features_takes_the_time_and_one_of_the_others_does_not():
    def build(b, features):
        product = b.linear(b.state(3)[features], b.tensor((3, 2)))
        return b.binary("add", product, b.binary("multiply", b.tensor((3,)), b.time()))

    for features, kinds in ((slice(2), ["affine"]), (slice(1, 3), ["affine", "binary", "binary"])):
        assert [op.kind for op in operations(lambda b, at=features: build(b, at), 3)] == kinds
        compare(lambda b, at=features: build(b, at), 3, [(3, 2), (3,)])


def test_a_map_of_one_feature_to_one_takes_bias_and_time():
    def build(b):
        moved = b.binary("multiply", b.time(), b.tensor((1,)))
        return b.binary("add", b.binary("add", moved, b.linear(b.state(1), b.tensor((1, 1)))), b.tensor((1,)))

    assert [op.kind for op in operations(build, 1)] == ["affine"]
    compare(build, 1, [(1,), (1, 1), (1,)])


def test_a_sum_that_is_read_besides_keeps_its_own_operation():
    def build(b):
        product, bias = b.linear(b.state(2), b.tensor((2, 2))), b.tensor((2,))
        return b.binary("multiply", b.binary("add", product, bias), product)

    assert [op.kind for op in operations(build, 2)] == ["affine", "binary", "binary"]
    compare(build, 2, [(2, 2), (2,)])


def test_a_map_added_to_itself_is_no_bias():
    def build(b):
        product = b.linear(b.state(2), b.tensor((2, 2)))
        return b.binary("add", product, product)

    compare(build, 2, [(2, 2)])


@settings(max_examples=60)
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(
        st.sampled_from(["bias", "part", "number", "time", "both", "square", "uniform", "tanh", "relu"]), max_size=5
    ),
    st.integers(1, 70),
)
def test_whatever_follows_a_map_gives_torchs_values_and_gradients(dim, width, steps, points):
    def build(b):
        x = b.linear(b.state(dim), b.tensor((width, dim)))
        biases, times = b.tensor((6, width)), b.tensor((6, width))
        for i, step in enumerate(steps):
            moved = b.binary("multiply", times[i], b.time())
            if step in ("tanh", "relu"):
                x = b.unary(step, x)
                continue
            term = {
                "bias": biases[i],
                "part": np.broadcast_to(biases[i, :1], (width,)),
                "number": b.numbers(np.full(width, 0.5)),
                "time": moved,
                "both": b.binary("add", biases[i], moved),
                "square": b.binary("multiply", moved, b.time()),
                "uniform": b.unary("sin", moved),
            }[step]
            x = b.binary("add", *((x, term) if i % 2 else (term, x)))
        return b.linear(x, b.tensor((dim, width)))

    compare(build, dim, [(width, dim), (6, width), (6, width), (dim, width)], points)
