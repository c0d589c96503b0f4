"""The elementwise kernels of the compiled engine on rows: layouts of operands, sums, moves."""

import numpy as np
import pytest

from anode.engine import native
from anode.engine.extension import extension

pytestmark = pytest.mark.skipif(not native.instruction_sets(), reason="there is no compiled engine")

each_set = pytest.mark.parametrize("instructions", native.instruction_sets())

WIDTH = 32


def block(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, WIDTH))


def operands(rows):
    """All ways to give rows: the operand for the kernel, what keeps its numbers alive, and the rows themselves."""
    matrix, apart = block(rows), block(2 * rows, 1)
    column = np.ascontiguousarray(apart[:, 0])
    yield (matrix.ctypes.data, WIDTH, False), matrix, matrix
    yield (apart.ctypes.data, 2 * WIDTH, False), apart, apart[::2]
    yield (matrix.ctypes.data, 0, False), matrix, np.broadcast_to(matrix[0], matrix.shape)
    yield (column.ctypes.data, 2, True), column, np.repeat(column[::2, None], WIDTH, 1)
    yield (column.ctypes.data, 0, True), column, np.full(matrix.shape, column[0])


@each_set
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_operands_may_be_laid_out_in_every_way(rows, add, instructions):
    engine, start = extension, block(rows, 2)
    subtract, square = engine.BINARY.index("subtract"), engine.UNARY.index("square")
    for a, _, left in operands(rows):
        out, slope = start.copy(), np.empty_like(start)
        engine.unary_rows(square, a, rows, WIDTH, out.ctypes.data, slope.ctypes.data, add, instructions)
        np.testing.assert_allclose(out, left**2 + add * start, rtol=1e-13, atol=1e-15)
        np.testing.assert_array_equal(slope, 2 * left)
        for b, _, right in operands(rows):
            out = start.copy()
            engine.binary_rows(subtract, a, b, rows, WIDTH, out.ctypes.data, add, instructions)
            np.testing.assert_allclose(out, left - right + add * start, rtol=1e-13, atol=1e-15)
            condition = (block(rows, 3) > 0).astype(float)
            out = start.copy()
            c = (condition.ctypes.data, WIDTH, False)
            engine.select_rows(c, a, b, rows, WIDTH, out.ctypes.data, add, instructions)
            np.testing.assert_allclose(out, np.where(condition, left, right) + add * start, rtol=1e-13)


@each_set
@pytest.mark.parametrize(
    ("groups", "outer", "length", "inner"), [(3, 4, 4, 1), (4, 1, 3, 4), (1, 0, 12, 1), (12, 1, 1, 1)]
)
def test_rows_are_joined_in_groups(groups, outer, length, inner, instructions):
    a, start = block(12), block(groups, 1)
    members = np.stack([a[[g * outer + i * inner for i in range(length)]] for g in range(groups)])
    for add in (False, True):
        out = start.copy()
        shape = (groups, outer, length, inner, WIDTH)
        extension.join_rows(True, a.ctypes.data, *shape, out.ctypes.data, add, instructions)
        np.testing.assert_allclose(out, members.sum(1) + add * start, rtol=1e-13, atol=1e-14)
    extension.join_rows(False, a.ctypes.data, *shape, out.ctypes.data, False, instructions)
    np.testing.assert_array_equal(out, members.max(1))


@each_set
def test_the_largest_of_anything_and_nan_is_nan(instructions):
    a, out = block(3), block(1)
    a[1, 5] = np.nan
    extension.join_rows(False, a.ctypes.data, 1, 0, 3, 1, WIDTH, out.ctypes.data, False, instructions)
    np.testing.assert_array_equal(np.isnan(out[0]), np.arange(WIDTH) == 5)


@each_set
def test_points_are_summed_and_rows_moved(instructions):
    a, engine = block(4), extension
    for stride in (WIDTH, 0):
        sums = np.arange(8.0)
        engine.sum_points(a.ctypes.data, stride, 4, WIDTH, sums.ctypes.data, 2, instructions)
        totals = a.sum(1) if stride else np.full(4, a[0].sum())
        np.testing.assert_allclose(sums, np.arange(8) + np.stack([totals, np.zeros(4)], 1).ravel(), rtol=1e-13)


@each_set
@pytest.mark.parametrize("narrow", [WIDTH // 2, WIDTH])
def test_products_are_summed_over_pieces_of_points(narrow, instructions):
    for a, _, left in operands(3):
        for b, _, right in operands(3):
            out = np.empty((3, narrow))
            extension.fold(a, b, 3, WIDTH, narrow, out.ctypes.data, instructions)
            expected = (left * right).reshape(3, -1, narrow).sum(1)
            np.testing.assert_allclose(out, expected, rtol=1e-13, atol=1e-14)
