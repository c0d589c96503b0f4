import math

import numpy as np
import pytest

import anode
from anode.ode.tableaus import DOPRI5, DOPRI8, EULER, RK4, RK4_CLASSIC, TABLEAUS, TSIT5

EVERY = pytest.mark.parametrize("tableau", TABLEAUS.values(), ids=TABLEAUS)
ADAPTIVE = {name: tableau for name, tableau in TABLEAUS.items() if tableau.adaptive}
INSIDE = np.linspace(0, 1, 11)


def grow(tree):
    yield tuple(sorted((*tree, ())))
    for i, child in enumerate(tree):
        for grown in grow(child):
            yield tuple(sorted((*tree[:i], grown, *tree[i + 1 :])))


def rooted_trees(order):
    """Every rooted tree of that many nodes, as the sorted tuple of its branches."""
    trees = {()}
    for _ in range(order - 1):
        trees = {grown for tree in trees for grown in grow(tree)}
    return sorted(trees)


def size(tree):
    return 1 + sum(map(size, tree))


def density(tree):
    return size(tree) * math.prod(map(density, tree))


def matrix(tableau):
    """The rows of a, square, with the end slope's row b below them."""
    rows = (*tableau.a, tableau.b)
    return np.array([[*row, *[0.0] * (len(rows) - len(row))] for row in rows])


def elementary_weights(tableau, tree):
    """The tree's factor of every slope, the end slope last."""
    factors = [matrix(tableau) @ elementary_weights(tableau, branch) for branch in tree]
    return np.prod([np.ones(len(tableau.b) + 1), *factors], axis=0)


def padded(tableau, weights):
    return np.array([*weights, *[0.0] * (len(tableau.b) + 1 - len(weights))])


def residuals(tableau, weights, orders, at=1.0):
    """How far a sum of slopes is from the Taylor series of the solution at ``at``, tree by tree."""
    trees = [tree for order in orders for tree in rooted_trees(order)]
    return np.array([weights @ elementary_weights(tableau, t) - at ** size(t) / density(t) for t in trees])


def dense(tableau, x):
    return np.array([sum(c * x**n for n, c in enumerate(p, start=1)) for p in tableau.polynomials])


def dense_derivative(tableau, x):
    return np.array([sum(n * c * x ** (n - 1) for n, c in enumerate(p, start=1)) for p in tableau.polynomials])


def test_there_are_as_many_rooted_trees_as_the_literature_counts():
    assert [len(rooted_trees(order)) for order in range(1, 9)] == [1, 1, 2, 4, 9, 20, 48, 115]


def test_the_methods_are_the_names_of_the_tableaus():
    assert list(anode.METHODS) == list(TABLEAUS)
    assert all(tableau.name == name for name, tableau in TABLEAUS.items())


@EVERY
def test_rows_sum_to_where_the_slope_is_evaluated(tableau):
    assert [len(row) for row in tableau.a] == list(range(len(tableau.b)))
    np.testing.assert_allclose(matrix(tableau).sum(1), [*tableau.c, 1.0], rtol=0, atol=1e-13)


@EVERY
def test_weights_satisfy_every_order_condition_up_to_the_order_and_no_further(tableau):
    weights = padded(tableau, tableau.b)
    np.testing.assert_allclose(residuals(tableau, weights, range(1, tableau.order + 1)), 0, rtol=0, atol=1e-13)
    assert abs(residuals(tableau, weights, [tableau.order + 1])).max() > 1e-6


@EVERY
def test_weights_integrate_powers_of_time(tableau):
    for q in range(1, tableau.order + 1):
        assert np.dot(tableau.b, np.power(tableau.c, q - 1)) == pytest.approx(1 / q, abs=1e-13)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_error_weights_vanish_up_to_the_order_of_the_comparison_and_no_further(name):
    tableau = ADAPTIVE[name]
    error = padded(tableau, tableau.error)
    assert sum(tableau.error) == pytest.approx(0, abs=1e-13)
    comparison = padded(tableau, tableau.b) - error
    np.testing.assert_allclose(residuals(tableau, comparison, range(1, tableau.order)), 0, rtol=0, atol=1e-13)
    assert abs(residuals(tableau, comparison, [tableau.order])).max() > 1e-6


@EVERY
def test_fsal_methods_weigh_the_end_slope_in_their_error_and_others_have_none(tableau):
    assert tableau.fsal == (tableau.adaptive and len(tableau.error) == len(tableau.b) + 1)
    assert not tableau.fsal or tableau.error[-1] != 0


@EVERY
def test_dense_output_ends_where_the_step_does(tableau):
    assert len(tableau.polynomials) == len(tableau.b) + 1
    np.testing.assert_allclose(dense(tableau, 1.0), [*tableau.b, 0.0], rtol=0, atol=1e-12)


@EVERY
def test_dense_output_satisfies_every_order_condition_up_to_its_order(tableau):
    orders = range(1, tableau.dense_order + 1)
    for x in INSIDE:
        np.testing.assert_allclose(residuals(tableau, dense(tableau, x), orders, at=x), 0, rtol=0, atol=1e-13)


@EVERY
def test_dense_output_integrates_powers_of_time(tableau):
    for q in range(1, tableau.dense_order + 1):
        for x in INSIDE:
            integral = dense(tableau, x) @ np.power([*tableau.c, 1.0], q - 1)
            assert integral == pytest.approx(x**q / q, abs=1e-13)


@EVERY
def test_dense_output_leaves_and_arrives_along_the_slopes_at_the_ends(tableau):
    first, last = np.eye(len(tableau.polynomials))[[0, -1]]
    np.testing.assert_allclose(dense_derivative(tableau, 0.0), first, rtol=0, atol=0)
    np.testing.assert_allclose(dense_derivative(tableau, 1.0), last, rtol=0, atol=1e-10)


def test_rk4_is_the_three_eighths_rule_and_rk4_classic_is_not():
    assert RK4.c == (0, 1 / 3, 2 / 3, 1)
    assert RK4.a == ((), (1 / 3,), (-1 / 3, 1), (1, -1, 1))
    assert RK4.b == (1 / 8, 3 / 8, 3 / 8, 1 / 8)
    assert RK4_CLASSIC.c == (0, 1 / 2, 1 / 2, 1)
    assert RK4_CLASSIC.b == (1 / 6, 1 / 3, 1 / 3, 1 / 6)


@pytest.mark.parametrize(("tableau", "order"), [(EULER, 1), (RK4, 3), (DOPRI5, 4), (TSIT5, 4), (DOPRI8, 5)])
def test_dense_order_is_what_it_is_said_to_be(tableau, order):
    assert tableau.dense_order == order


@EVERY
def test_linear_changes_the_dense_output_into_a_straight_line_and_nothing_else(tableau):
    linear = tableau.linear
    assert linear.dense_order == 1
    assert not linear.dense_needs_end_slope
    for x in INSIDE:
        np.testing.assert_allclose(dense(linear, x), [*(x * b for b in tableau.b), 0.0], rtol=1e-15)
    assert (linear.name, linear.order, linear.c, linear.a, linear.b) == (
        tableau.name,
        tableau.order,
        tableau.c,
        tableau.a,
        tableau.b,
    )
    assert (linear.error, linear.fsal) == (tableau.error, tableau.fsal)


@EVERY
def test_stages_hold_the_rows_of_the_tableau(tableau):
    for (c, row), expected_c, expected in zip(
        tableau.stages, (*tableau.c[1:], 1.0), (*tableau.a[1:], tableau.b), strict=True
    ):
        weights = np.zeros(len(expected))
        weights[row.first] = row.scale
        for i, weight in row.rest:
            weights[i] = row.scale * weight
        assert c == expected_c
        np.testing.assert_allclose(weights, expected, rtol=1e-15, atol=0)


@EVERY
def test_feeds_are_the_columns_of_the_tableau(tableau):
    columns = matrix(tableau).T
    for i, feeds in enumerate(tableau.feeds):
        assert dict(feeds) == {j: w for j, w in enumerate(columns[i]) if w != 0}
