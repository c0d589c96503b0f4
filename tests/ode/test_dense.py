import math

import pytest
import torch

import anode
from helpers.problems import PROBLEMS

DOUBLE = torch.float64
TIGHT = {"rtol": 1e-10, "atol": 1e-12}
SPANS = pytest.mark.parametrize("span", [(0.0, 2.0), (2.0, 0.0), (-1.0, -4.0)], ids=str)


def decay(t, y):
    return -y


def start(*shape):
    return torch.linspace(0.5, 2.0, math.prod(shape), dtype=DOUBLE).reshape(shape)


def at(fraction, span):
    return span[0] + fraction * (span[1] - span[0])


@SPANS
@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("method", ["dopri5", "tsit5", "dopri8", "bosh3"])
def test_a_solution_is_right_at_any_time(method, control, span):
    y0 = start(3, 2)
    tolerances = TIGHT if method != "bosh3" else {"rtol": 1e-7, "atol": 1e-9}
    solution = anode.solve(decay, y0, span, method=method, control=control, dense=True, **tolerances)
    times = at(torch.linspace(0, 1, 17, dtype=DOUBLE), span)
    expected = y0 * torch.exp(span[0] - times)[:, None, None]
    torch.testing.assert_close(solution(times), expected, rtol=1e-6 if method == "bosh3" else 1e-8, atol=0)


@pytest.mark.parametrize("t", [0.3, 1, 1.7])
@pytest.mark.parametrize("control", ["joint", "sample"])
def test_a_number_is_not_rounded_to_single_precision(control, t):
    solution = anode.solve(decay, start(3, 2), (0.1, 2.0), control=control, dense=True, **TIGHT)
    torch.testing.assert_close(solution(t), start(3, 2) * math.exp(0.1 - t), rtol=1e-9, atol=0)


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3)])
def test_the_result_has_the_shape_of_the_times_followed_by_that_of_the_state(shape, control):
    solution = anode.solve(decay, start(3, 2), (0.0, 1.0), control=control, dense=True)
    times = torch.linspace(0.1, 0.9, math.prod(shape), dtype=DOUBLE).reshape(shape)
    values = solution(times)
    assert values.shape == (*shape, 3, 2)
    for index, t in enumerate(times.flatten()):
        assert torch.equal(values.reshape(-1, 3, 2)[index], solution(t))


@SPANS
@pytest.mark.parametrize("control", ["joint", "sample"])
def test_it_starts_at_y0_and_ends_at_y1_and_passes_through_the_outputs(control, span):
    times = [at(fraction, span) for fraction in (0.0, 0.21, 0.5, 1.0)]
    solution = anode.solve(decay, start(3, 2), span, control=control, dense=True, save_at=times)
    values = solution(torch.tensor(times, dtype=DOUBLE))
    assert torch.equal(values[0], start(3, 2))
    torch.testing.assert_close(values, solution.ys, rtol=1e-12, atol=0)
    torch.testing.assert_close(values[-1], solution.y1, rtol=1e-12, atol=0)


@pytest.mark.parametrize("step_size", [None, 0.3])
def test_it_joins_its_steps_without_a_gap_or_a_kink(step_size):
    problem = PROBLEMS["Lotka-Volterra"]
    solution = anode.solve(problem, problem.start(), (0.0, 3.0), dense=True, rtol=1e-4, step_size=step_size)
    times = torch.linspace(0, 3, 301, dtype=DOUBLE)
    values = solution(times)
    slopes = torch.stack([problem(t, y) for t, y in zip(times, values, strict=True)])
    central = (values[2:] - values[:-2]) / 0.02
    assert (central - slopes[1:-1]).abs().max() < 0.05 * slopes.abs().max()


@SPANS
@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("fraction", [-0.01, 1.01])
def test_times_outside_the_span_are_refused(fraction, control, span):
    solution = anode.solve(decay, start(3, 2), span, control=control, dense=True)
    outside = at(fraction, span)
    with pytest.raises(ValueError, match=r"^t: takes times from .* to .*, the part that was solved"):
        solution(outside)
    with pytest.raises(ValueError, match=f"{outside:.3g}"):
        solution(torch.tensor([at(0.5, span), outside], dtype=DOUBLE))


def test_nan_is_refused_as_a_time():
    solution = anode.solve(decay, start(2), (0.0, 1.0), dense=True)
    with pytest.raises(ValueError, match="nan"):
        solution(math.nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("span", [(0.0, 0.1), (0.1, 0.7), (0.7, 0.1)], ids=str)
def test_both_ends_belong_to_the_span_in_either_precision(span, dtype):
    solution = anode.solve(decay, start(2).to(dtype), span, dense=True)
    assert solution(0.1).dtype == dtype
    torch.testing.assert_close(solution(span[0]), start(2).to(dtype), rtol=1e-6, atol=0)
    torch.testing.assert_close(solution(span[1]), solution.y1, rtol=1e-6, atol=0)
    torch.testing.assert_close(solution(torch.tensor(span, dtype=dtype))[1], solution.y1, rtol=1e-6, atol=0)


def test_without_dense_it_cannot_be_evaluated():
    with pytest.raises(ValueError, match="dense=True"):
        anode.solve(decay, start(2), (0.0, 1.0))(0.5)


def test_tuples_come_back_as_tuples():
    y0 = (start(2), start(2, 3))
    solution = anode.solve(lambda t, y: (-y[0], -2 * y[1]), y0, (0.0, 1.0), dense=True, **TIGHT)
    first, second = solution(torch.tensor([0.25, 0.5], dtype=DOUBLE))
    torch.testing.assert_close(first[1], y0[0] * math.exp(-0.5), rtol=1e-9, atol=0)
    torch.testing.assert_close(second[1], y0[1] * math.exp(-1.0), rtol=1e-9, atol=0)
    assert (first.shape, second.shape) == ((2, 2), (2, 2, 3))


@pytest.mark.parametrize("control", ["joint", "sample"])
def test_an_empty_span_has_one_time(control):
    solution = anode.solve(decay, start(3, 2), (1.0, 1.0), dense=True, control=control)
    assert torch.equal(solution(1.0), start(3, 2))
    with pytest.raises(ValueError):
        solution(1.5)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_solve_that_failed_can_be_evaluated_as_far_as_it_came(sign):
    problem = PROBLEMS["van der Pol"]
    solution = anode.solve(
        lambda t, y: sign * problem(t, y), problem.start(), (0.0, 10.0 * sign), dense=True, max_steps=12
    )
    assert solution.status == anode.Status.MAX_STEPS
    last = torch.tensor(solution.t1, dtype=DOUBLE)
    torch.testing.assert_close(solution(last), solution.y1, rtol=1e-9, atol=1e-9)
    assert solution(0.5 * solution.t1).isfinite().all()
    with pytest.raises(ValueError):
        solution(1.01 * solution.t1)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_beside_a_sample_that_failed_the_others_can_be_evaluated_to_the_end(sign):
    y0 = torch.tensor([[-1.0], [2.0], [0.1]], dtype=DOUBLE)
    options = {"rtol": 1e-6, "atol": 1e-8, "max_steps": 300}
    solution = anode.solve(lambda t, y: sign * y * y, y0, (0.0, sign), control="sample", dense=True, **options)
    assert (solution.status == anode.Status.SUCCESS).tolist() == [True, False, True]
    values = solution(torch.tensor([0.25 * sign, 0.75 * sign], dtype=DOUBLE))
    torch.testing.assert_close(values[0], y0 / (1 - 0.25 * y0), rtol=1e-4, atol=0)
    torch.testing.assert_close(values[1][[0, 2]], (y0 / (1 - 0.75 * y0))[[0, 2]], rtol=1e-4, atol=0)
    assert values[1][1].isnan().all()
