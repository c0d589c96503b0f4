import math

import pytest
import torch
import torchdiffeq

import anode
from anode.ode.tableaus import TABLEAUS
from helpers.problems import EXACT, PROBLEMS, Watched, by_torchdiffeq

DOUBLE = torch.float64
STEPS = {1: 64, 2: 64, 3: 64, 4: 32, 5: 64, 8: 8}
ADAPTIVE = [name for name, tableau in TABLEAUS.items() if tableau.adaptive]
TIGHT = {"rtol": 1e-9, "atol": 1e-10}
LOOSE = {"rtol": 1e-5, "atol": 1e-7}


def decay(t, y):
    return -y


def wavy(t, y):
    """Works on states of any shape, and is harder for larger ones."""
    return torch.cos(3 * t) * y - y**3


def stiffness_inside(t, y):
    """Van der Pol's equation with mu as a third feature, so that every sample brings its own."""
    x, v, mu = y.unbind(-1)
    return torch.stack([v, mu * (1 - x * x) * v - x, torch.zeros_like(mu)], -1)


def mixed_samples(count=4):
    mu = torch.linspace(0.5, 12, count, dtype=DOUBLE)
    return torch.stack([torch.full_like(mu, 1.5), torch.full_like(mu, 0.3), mu], -1)


def double(*shape, scale=1.0, seed=0):
    return scale * torch.randn(shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def largest_error(solution, expected):
    return (solution.ys - expected).abs().max().item()


def measured_order(coarse, fine):
    return math.log2(coarse / fine)


# ------------------------------------------------------------------------------------------------------------- order


@pytest.mark.parametrize("problem", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("method", anode.METHODS)
def test_every_method_converges_with_its_order(method, problem):
    start, end = problem.span
    times = torch.linspace(start, end, 5, dtype=DOUBLE)

    def error(count):
        size = (end - start) / count
        solution = anode.solve(problem, problem.start(), problem.span, method=method, step_size=size, save_at=times)
        assert solution.stats.accepted == count
        return largest_error(solution, problem.solution(times))

    order, count = TABLEAUS[method].order, STEPS[TABLEAUS[method].order]
    assert measured_order(error(count), error(2 * count)) == pytest.approx(order, abs=0.3)


@pytest.mark.parametrize("problem", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("method", anode.METHODS)
def test_every_dense_output_converges_with_its_order(method, problem):
    start, end = problem.span
    tableau = TABLEAUS[method]

    def error(count):
        size = (end - start) / count
        solution = anode.solve(problem, problem.start(), problem.span, method=method, step_size=size, dense=True)
        inside = torch.arange(0, count, count // 4, dtype=DOUBLE)[:, None] + torch.tensor([0.3, 0.5, 0.8], dtype=DOUBLE)
        times = start + size * inside
        return (solution(times) - problem.solution(times)).abs().max().item()

    count = STEPS[tableau.order]
    # Inside one step the error is of one order more than the dense output's, from step to step of the method's.
    assert measured_order(error(count), error(2 * count)) > min(tableau.order, tableau.dense_order + 1) - 0.3


@pytest.mark.parametrize("method", ADAPTIVE)
def test_a_tolerance_a_hundred_times_smaller_makes_the_error_smaller_in_proportion(method):
    problem = EXACT["spiral"]
    times = torch.linspace(*problem.span, 9, dtype=DOUBLE)

    def error(rtol):
        options = {"rtol": rtol, "atol": rtol, "method": method, "save_at": times}
        return largest_error(anode.solve(problem, problem.start(), problem.span, **options), problem.solution(times))

    coarse, fine = error(1e-4), error(1e-6)
    assert coarse < 1000 * 1e-4
    assert fine < coarse / 10


# --------------------------------------------------------------------------------------------------- other solvers


@pytest.mark.parametrize(
    ("method", "name"),
    [("dopri5", name) for name in PROBLEMS]
    + [(method, name) for method in ("tsit5", "dopri8") for name in ("stiff van der Pol", "Arenstorf", "rotation")],
)
def test_solutions_agree_with_scipy(method, name):
    problem = PROBLEMS[name]
    solution = anode.solve(problem, problem.start(), problem.span, method=method, save_at=problem.times(8), **TIGHT)
    assert solution.success
    # The orbit passes close to the moon twice, which magnifies errors by about 1e4.
    assert largest_error(solution, problem.reference(8)) < (5e-5 if len(problem.y0) == 4 else 1e-7)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("tolerances", [{"rtol": 1e-3, "atol": 1e-6}, LOOSE], ids=["default", "tighter"])
def test_dopri5_takes_the_steps_that_torchdiffeq_takes(tolerances, problem):
    expected, theirs = by_torchdiffeq(problem, problem.start(), problem.times(8), method="dopri5", **tolerances)
    ours = Watched(problem)
    solution = anode.solve(ours, problem.start(), problem.span, save_at=problem.times(8), **tolerances)
    stats = solution.stats
    assert (stats.nfe, stats.accepted, stats.rejected) == (theirs.nfe, theirs.accepted, theirs.rejected)
    assert ours.nfe == stats.nfe == stats.calls
    # Equal times of all evaluations are equal starts and sizes of all steps, those that were rejected included.
    off = (torch.stack(ours.times) - torch.stack(theirs.times)).abs().max() / abs(problem.span[1] - problem.span[0])
    assert off < (1e-10 if tolerances is LOOSE else 1e-8)
    assert largest_error(solution, expected) < 1e-8


@pytest.mark.parametrize("name", ["van der Pol", "Lotka-Volterra backward", "rotation"])
@pytest.mark.parametrize("method", ["bosh3", "dopri8"])
def test_other_methods_accept_and_reject_what_torchdiffeq_does_and_cost_no_more(method, name):
    problem = PROBLEMS[name]
    tolerances = {"rtol": 1e-4, "atol": 1e-5}
    _, theirs = by_torchdiffeq(problem, problem.start(), problem.times(3), method=method, **tolerances)
    stats = anode.solve(problem, problem.start(), problem.span, method=method, **tolerances).stats
    assert (stats.accepted, stats.rejected) == (theirs.accepted, theirs.rejected)
    assert stats.nfe <= theirs.nfe


@pytest.mark.parametrize("problem", [PROBLEMS["rotation"], PROBLEMS["rotation backward"], *EXACT.values()])
def test_dopri5_needs_as_many_evaluations_as_torchdiffeq_in_single_precision(problem):
    y0, times = problem.start(torch.float32), torch.linspace(*problem.span, 8)
    # Tighter tolerances than these come near the rounding of single precision, which then decides about steps.
    tolerances = {"rtol": 1e-3, "atol": 3e-6}
    expected, theirs = by_torchdiffeq(problem, y0, times, method="dopri5", **tolerances)
    solution = anode.solve(problem, y0, problem.span, save_at=times, **tolerances)
    assert solution.stats.nfe == theirs.nfe
    torch.testing.assert_close(solution.ys, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["euler", "midpoint", "heun2", "heun3", "rk4"])
def test_steps_of_given_size_agree_with_torchdiffeq(method):
    problem = PROBLEMS["Lotka-Volterra"]
    times = torch.tensor([0.0, 2.5, 10.0], dtype=DOUBLE)
    expected = torchdiffeq.odeint(problem, problem.start(), times, method=method, options={"step_size": 0.0625})
    solution = anode.solve(problem, problem.start(), problem.span, method=method, step_size=0.0625, save_at=times)
    torch.testing.assert_close(solution.ys, expected, rtol=1e-9, atol=1e-9)


# ----------------------------------------------------------------------------------------------- outputs and states


@pytest.mark.parametrize("span", [(0.0, 2.0), (2.0, 0.0), (-1.0, -3.0)])
@pytest.mark.parametrize("fractions", [[0.25, 0.5], [0.0, 0.3], [0.3, 1.0], [0.0, 0.1, 0.9, 1.0], [0.0], [1.0], [0.5]])
def test_outputs_are_the_states_at_the_times_asked_for(span, fractions):
    times = [span[0] + x * (span[1] - span[0]) for x in fractions]
    y0 = double(3)
    solution = anode.solve(decay, y0, span, save_at=times, **TIGHT)
    assert solution.times == times
    assert solution.ts.dtype == DOUBLE
    assert solution.ys.shape == (len(times), 3)
    torch.testing.assert_close(solution.ys, y0 * torch.exp(span[0] - solution.ts)[:, None], rtol=1e-7, atol=0)
    torch.testing.assert_close(solution.y1, y0 * math.exp(span[0] - span[1]), rtol=1e-7, atol=0)
    if fractions[0] == 0.0:
        assert torch.equal(solution.ys[0], y0)


def test_without_save_at_the_outputs_are_the_two_ends():
    y0 = double(2, 3)
    solution = anode.solve(decay, y0, (0.0, 1.0))
    assert solution.times == [0.0, 1.0]
    assert solution.ys.shape == (2, 2, 3)
    assert torch.equal(solution.ys[0], y0)
    assert torch.equal(solution.ys[1], solution.y1)


@pytest.mark.parametrize("save_at", [[0.5, 0.4], [0.5, 0.5], [-0.1, 0.5], [0.5, 1.1], [float("nan")]])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_output_times_out_of_order_or_outside_the_span_are_refused(save_at, sign):
    with pytest.raises(ValueError, match="save_at"):
        anode.solve(decay, double(1), (0.0, sign), save_at=[sign * t for t in save_at])


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("method", ["dopri5", "dopri8", "bosh3"])
def test_asking_for_outputs_changes_neither_the_steps_nor_the_end(method, control):
    y0 = mixed_samples()
    plain = anode.solve(stiffness_inside, y0, (0.0, 3.0), method=method, control=control)
    saving = anode.solve(
        stiffness_inside, y0, (0.0, 3.0), method=method, control=control, save_at=[0.1, 0.2, 1.0, 2.9, 3.0]
    )
    assert torch.equal(plain.y1, saving.y1)
    assert torch.equal(saving.ys[-1], saving.y1)
    for name in ("nfe", "accepted", "rejected"):
        assert torch.equal(torch.as_tensor(getattr(plain.stats, name)), torch.as_tensor(getattr(saving.stats, name))), (
            name
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 3, 4), (2, 1, 3, 2), (2, 1, 2, 1, 2)])
def test_states_may_have_any_shape(shape, dtype):
    y0 = double(*shape).to(dtype)
    seen = []

    def f(t, y):
        seen.append((t.shape, t.dtype, y.shape, y.dtype))
        return -y

    solution = anode.solve(f, y0, (0.0, 1.0), save_at=[0.5, 1.0], rtol=1e-5)
    assert set(seen) == {((), dtype, shape, dtype)}
    assert solution.y1.shape == shape
    assert solution.ys.shape == (2, *shape)
    assert solution.y1.dtype == solution.ys.dtype == solution.ts.dtype == dtype
    torch.testing.assert_close(solution.y1, y0 * math.exp(-1), rtol=1e-4, atol=1e-5)


def test_single_precision_is_as_accurate_as_single_precision_allows():
    problem = PROBLEMS["rotation"]
    solution = anode.solve(problem, problem.start(torch.float32), (0.0, 2 * math.pi), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(solution.y1, problem.start(torch.float32), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_span_may_be_a_tensor(dtype):
    y0 = double(2)
    numbers = anode.solve(decay, y0, (0.25, 1.5), save_at=[0.5, 1.0])
    tensors = anode.solve(
        decay, y0, torch.tensor([0.25, 1.5], dtype=dtype), save_at=torch.tensor([0.5, 1.0], dtype=dtype)
    )
    assert torch.equal(numbers.ys, tensors.ys)
    assert torch.equal(numbers.y1, anode.solve(decay, y0, [torch.tensor(0.25), torch.tensor(1.5)]).y1)


@pytest.mark.parametrize("options", [{}, {"control": "sample"}, {"step_size": 0.1}, {"dense": True}], ids=str)
def test_an_empty_span_returns_the_start_without_evaluating(options):
    y0, f = double(3, 2), Watched(decay)
    with torch.no_grad():
        solution = anode.solve(f, y0, (1.0, 1.0), **options)
    assert torch.equal(solution.y1, y0)
    assert torch.equal(solution.ys, torch.stack([y0, y0]))
    assert solution.success
    assert torch.as_tensor(solution.status == anode.Status.SUCCESS).all()
    assert torch.as_tensor(solution.stats.nfe).sum() == f.nfe == 0


def test_going_there_and_back_again_returns_to_the_start():
    problem = PROBLEMS["Lotka-Volterra"]
    there = anode.solve(problem, problem.start(), (0.0, 2.0), **TIGHT)
    back = anode.solve(problem, there.y1, (2.0, 0.0), **TIGHT)
    torch.testing.assert_close(back.y1, problem.start(), rtol=1e-7, atol=1e-7)


def test_a_solve_that_fails_keeps_what_it_reached_and_says_where():
    f = Watched(stiffness_inside)
    solution = anode.solve(f, mixed_samples(1)[0], (0.0, 20.0), save_at=[0.01, 20.0], max_steps=10)
    assert solution.status == anode.Status.MAX_STEPS
    assert solution.stats.accepted + solution.stats.rejected == 10
    assert 0.01 < solution.t1 < 20.0
    assert solution.ys[0].isfinite().all()
    assert solution.ys[1].isnan().all()
    shorter = anode.solve(stiffness_inside, mixed_samples(1)[0], (0.0, solution.t1), **TIGHT)
    torch.testing.assert_close(solution.y1, shorter.y1, rtol=1e-2, atol=1e-2)
    with pytest.raises(anode.SolveError, match="max_steps") as caught:
        solution.check()
    assert caught.value.solution is solution


def test_the_end_that_a_failed_solve_did_not_reach_is_nan_without_save_at_too():
    solution = anode.solve(stiffness_inside, mixed_samples(1)[0], (0.0, 20.0), max_steps=10)
    assert solution.times == [0.0, 20.0]
    assert solution.y1.isfinite().all()
    assert solution.ys[1].isnan().all()


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("rtol", [1e-3, 1e-6])
def test_a_solution_that_blows_up_is_given_up_when_steps_become_too_small(rtol, control):
    options = {"rtol": rtol, "atol": rtol, "control": control, "max_steps": 1000}
    solution = anode.solve(lambda t, y: y * y, torch.ones(1, 1, dtype=DOUBLE), (0.0, 2.0), **options)
    assert solution.status in (anode.Status.UNDERFLOW, anode.Status.NON_FINITE)
    assert float(solution.t1) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("options", [{}, {"step_size": 0.1}, {"min_step": 0.01}], ids=str)
def test_nan_from_f_is_a_failure(options, control):
    def f(t, y):
        return torch.where(t < 0.5, -y, torch.nan)

    solution = anode.solve(f, torch.ones(1, 1, dtype=DOUBLE), (0.0, 1.0), control=control, **options)
    assert solution.status == anode.Status.NON_FINITE
    assert float(solution.t1) <= 0.5
    assert solution.y1.isfinite().all()


# -------------------------------------------------------------------------------------------------------------- tuples


def two_springs(t, state):
    (x, v) = state
    return v, -x * torch.tensor([1.0, 9.0, 25.0], dtype=DOUBLE)[: x.shape[-1]]


def two_springs_packed(t, y):
    return torch.cat(two_springs(t, y.split(3, -1)), -1)


def rms(x):
    return x.pow(2).mean().sqrt()


def test_a_tuple_is_solved_like_its_packed_equivalent():
    x, v = double(3, seed=1), double(3, seed=2)
    loose = anode.solve(two_springs, (x, v), (0.0, 5.0), save_at=[0.0, 2.5, 5.0])
    packed = anode.solve(
        two_springs_packed,
        torch.cat([x, v]),
        (0.0, 5.0),
        save_at=[0.0, 2.5, 5.0],
        norm=lambda error: torch.stack([rms(error[:3]), rms(error[3:])]).amax(),
    )
    assert isinstance(loose.y1, tuple)
    assert [part.shape for part in loose.ys] == [(3, 3), (3, 3)]
    torch.testing.assert_close(torch.cat(loose.ys, -1), packed.ys, rtol=1e-9, atol=1e-9)
    assert loose.stats == packed.stats


def test_a_tuple_takes_a_tolerance_for_each_component():
    x, v = double(3, seed=1), double(3, seed=2)
    each = torch.tensor([1e-3, 1e-4, 1e-5], dtype=DOUBLE)
    loose = anode.solve(two_springs, (x, v), (0.0, 5.0), rtol=(1e-3, 1e-6), atol=(each, 1e-7))
    packed = anode.solve(
        two_springs_packed,
        torch.cat([x, v]),
        (0.0, 5.0),
        rtol=torch.tensor([1e-3] * 3 + [1e-6] * 3, dtype=DOUBLE),
        atol=torch.cat([each, torch.full((3,), 1e-7, dtype=DOUBLE)]),
        norm=lambda error: torch.stack([rms(error[:3]), rms(error[3:])]).amax(),
    )
    torch.testing.assert_close(torch.cat(loose.y1, -1), packed.y1, rtol=1e-9, atol=1e-9)
    assert loose.stats.nfe == packed.stats.nfe
    assert loose.stats.nfe > anode.solve(two_springs, (x, v), (0.0, 5.0), rtol=1e-3, atol=1e-3).stats.nfe


@pytest.mark.parametrize("rtol", [(1e-3,), (1e-3, 1e-3, 1e-3), (1e-3, -1e-3), 0.0])
def test_tolerances_that_do_not_fit_the_state_are_refused(rtol):
    with pytest.raises(ValueError, match="rtol"):
        anode.solve(two_springs, (double(3), double(3)), (0.0, 1.0), rtol=rtol)


def test_the_components_of_a_tuple_may_have_different_shapes():
    y0 = (torch.tensor(2.0, dtype=DOUBLE), double(3), double(2, 2))
    solution = anode.solve(lambda t, y: tuple(-part for part in y), y0, (0.0, 1.0), save_at=[0.5, 1.0], **TIGHT)
    assert [part.shape for part in solution.ys] == [(2,), (2, 3), (2, 2, 2)]
    for part, start in zip(solution.y1, y0, strict=True):
        torch.testing.assert_close(part, start * math.exp(-1), rtol=1e-7, atol=1e-8)


def test_a_component_without_elements_is_no_obstacle():
    y0 = (double(2), torch.zeros(0, dtype=DOUBLE))
    full, empty = anode.solve(lambda t, y: (-y[0], -y[1]), y0, (0.0, 1.0)).y1
    torch.testing.assert_close(full, anode.solve(decay, y0[0], (0.0, 1.0)).y1, rtol=1e-14, atol=0.0)
    assert empty.shape == (0,)


def test_a_tuple_may_be_controlled_sample_by_sample():
    x, v = double(4, 3, seed=1), double(4, 3, scale=5.0, seed=2)
    together = anode.solve(two_springs, (x, v), (0.0, 2.0), control="sample", save_at=[1.0, 2.0])
    for i in range(4):
        alone = anode.solve(two_springs, (x[i], v[i]), (0.0, 2.0), save_at=[1.0, 2.0])
        for mine, single in zip(together.ys, alone.ys, strict=True):
            torch.testing.assert_close(mine[:, i], single, rtol=1e-9, atol=1e-9)
        assert together.stats.nfe[i] == alone.stats.nfe


# ------------------------------------------------------------------------------------------------- who shares a step


SHAPES = [
    ("sample", (4,), 1),
    ("sample", (4, 3), 1),
    ("sample", (2, 3, 2), 2),
    ("sample", (3, 2, 2, 2), 1),
    ("sample", (2, 2, 1, 2, 2), 2),
    ("member", (3, 2, 2), 1),
    ("member", (3, 4), 1),
    (2, (2, 3, 2, 2), 2),
    (3, (2, 1, 3), 3),
]


@pytest.mark.parametrize(("control", "shape", "dims"), SHAPES)
@pytest.mark.parametrize("span", [(0.0, 4.0), (4.0, 1.0)])
def test_a_batch_is_solved_as_if_one_by_one(control, shape, dims, span):
    y0 = double(*shape) * torch.logspace(-2, 0.7, shape[0], dtype=DOUBLE).reshape(-1, *[1] * (len(shape) - 1))
    y0 = y0 if span[1] > span[0] else 0.01 * y0
    times = torch.linspace(*span, 4, dtype=DOUBLE)
    seen = set()

    def f(t, y):
        seen.add((t.shape, t.dtype))
        return wavy(t, y)

    together = anode.solve(f, y0, span, control=control, save_at=times)
    groups, rest = shape[:dims], shape[dims:]
    assert seen == {((*groups, *[1] * len(rest)), DOUBLE)}
    assert together.status.shape == together.t1.shape == together.stats.nfe.shape == groups
    assert together.success
    counts = set()
    for index in torch.cartesian_prod(*(torch.arange(n) for n in groups)).reshape(-1, dims).tolist():
        alone = anode.solve(wavy, y0[tuple(index)], span, save_at=times)
        torch.testing.assert_close(together.ys[(slice(None), *index)], alone.ys, rtol=1e-9, atol=1e-12)
        stats = [getattr(together.stats, name)[tuple(index)].item() for name in ("nfe", "accepted", "rejected")]
        assert stats == [alone.stats.nfe, alone.stats.accepted, alone.stats.rejected]
        counts.add(alone.stats.nfe)
    assert len(counts) > 1
    assert together.stats.calls < together.stats.nfe.sum()


@pytest.mark.parametrize("method", ADAPTIVE)
def test_every_method_counts_a_sample_in_a_batch_as_it_counts_it_alone(method):
    y0 = mixed_samples()
    options = {"method": method, "save_at": [0.1, 1.0, 3.0], "rtol": 1e-3, "atol": 1e-4}
    together = anode.solve(stiffness_inside, y0, (0.0, 3.0), control="sample", **options)
    assert (together.stats.rejected > 0).any()
    for i, sample in enumerate(y0):
        alone = anode.solve(stiffness_inside, sample, (0.0, 3.0), **options)
        torch.testing.assert_close(together.ys[:, i], alone.ys, rtol=1e-8, atol=1e-9)
        stats = [getattr(together.stats, name)[i].item() for name in ("accepted", "rejected", "nfe")]
        assert stats == [alone.stats.accepted, alone.stats.rejected, alone.stats.nfe]


@pytest.mark.parametrize("method", anode.METHODS)
def test_steps_of_given_size_do_not_depend_on_who_shares_them(method):
    y0 = double(3, 2, scale=0.3)
    options = {"method": method, "step_size": 0.3, "save_at": [0.4, 0.7]}
    joint = anode.solve(wavy, y0, (0.0, 2.0), **options)
    each = anode.solve(wavy, y0, (0.0, 2.0), control="sample", **options)
    torch.testing.assert_close(each.ys, joint.ys, rtol=1e-12, atol=1e-12)
    assert each.stats.nfe.tolist() == [joint.stats.nfe] * 3
    assert each.stats.calls == joint.stats.calls


@pytest.mark.parametrize("control", ["joint", "sample"])
def test_outputs_where_steps_of_given_size_end_cost_nothing(control):
    options = {"method": "rk4", "step_size": 0.25, "control": control}
    plain = anode.solve(wavy, double(3, 2), (0.0, 2.0), **options)
    saving = anode.solve(wavy, double(3, 2), (0.0, 2.0), save_at=[0.25, 1.0, 1.5, 2.0], **options)
    assert torch.equal(plain.y1, saving.y1)
    assert saving.stats.calls == plain.stats.calls == 32


@pytest.mark.parametrize("controller", ["pi", "pid"])
def test_a_batch_is_solved_as_if_one_by_one_with_a_controller_that_remembers(controller):
    y0 = mixed_samples()
    together = anode.solve(stiffness_inside, y0, (0.0, 3.0), control="sample", controller=controller)
    for i, sample in enumerate(y0):
        alone = anode.solve(stiffness_inside, sample, (0.0, 3.0), controller=controller)
        torch.testing.assert_close(together.y1[i], alone.y1, rtol=1e-8, atol=1e-9)
        assert (together.stats.nfe[i], together.stats.rejected[i]) == (alone.stats.nfe, alone.stats.rejected)


def test_joint_control_takes_one_step_size_for_all():
    y0 = mixed_samples()
    solution = anode.solve(stiffness_inside, y0, (0.0, 3.0))
    flat = anode.solve(lambda t, y: stiffness_inside(t, y.reshape(4, 3)).flatten(), y0.flatten(), (0.0, 3.0))
    assert torch.equal(solution.y1.flatten(), flat.y1)
    assert solution.stats == flat.stats
    assert torch.equal(solution.y1, anode.solve(stiffness_inside, y0, (0.0, 3.0), control=0).y1)


def test_finished_samples_stop_moving_and_stop_being_counted():
    y0 = mixed_samples(2)
    calls = []

    def f(t, y):
        calls.append((t[0].item(), y[0].clone()))
        return stiffness_inside(t, y)

    solution = anode.solve(f, y0, (0.0, 3.0), control="sample")
    easy, hard = solution.stats.nfe.tolist()
    assert easy < hard == solution.stats.calls == len(calls)
    after = calls[easy:]
    assert len(after) > 10
    assert len({t for t, _ in after}) == 1
    assert after[0][0] >= 3.0
    assert all(torch.equal(y, after[0][1]) for _, y in after)


def test_a_hard_sample_does_not_change_the_others():
    y0 = mixed_samples(3)
    hard = torch.tensor([[1.5, 0.3, 300.0]], dtype=DOUBLE)
    alone = anode.solve(stiffness_inside, y0, (0.0, 2.0), control="sample")
    crowd = anode.solve(stiffness_inside, torch.cat([hard, y0]), (0.0, 2.0), control="sample")
    torch.testing.assert_close(crowd.y1[1:], alone.y1, rtol=1e-12, atol=0)
    assert torch.equal(crowd.stats.nfe[1:], alone.stats.nfe)
    assert torch.equal(crowd.stats.rejected[1:], alone.stats.rejected)
    assert crowd.stats.nfe[0] > 3 * alone.stats.nfe.max()


def test_a_sample_that_fails_leaves_the_others_alone():
    y0 = torch.tensor([[-1.0], [2.0], [0.1]], dtype=DOUBLE)
    solution = anode.solve(lambda t, y: y * y, y0, (0.0, 1.0), control="sample", max_steps=300, **LOOSE)
    assert (solution.status == anode.Status.SUCCESS).tolist() == [True, False, True]
    assert not solution.success
    assert solution.t1[1].item() == pytest.approx(0.5, abs=1e-4)
    assert solution.t1[[0, 2]].tolist() == [1.0, 1.0]
    torch.testing.assert_close(solution.y1[[0, 2]], (y0 / (1 - y0))[[0, 2]], rtol=1e-4, atol=0)
    assert solution.ys[1, 1].isnan().all()
    assert solution.y1[1].isfinite().all()
    with pytest.raises(anode.SolveError, match="1 of 3 groups"):
        solution.check()


@pytest.mark.parametrize("control", [3, -1, "samples", True, 1.0])
def test_control_that_the_state_has_no_dimensions_for_is_refused(control):
    with pytest.raises(ValueError, match="control"):
        anode.solve(decay, double(2, 3), (0.0, 1.0), control=control)


@pytest.mark.parametrize(
    "option", [{"norm": torch.linalg.vector_norm}, {"event": lambda t, y: y[0]}, {"step_at": [0.5]}], ids=lambda o: [*o]
)
def test_options_for_one_step_size_are_refused_beside_several(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        anode.solve(decay, double(2, 3), (0.0, 1.0), control="sample", **option)


# ---------------------------------------------------------------------------------------------------- bounds on steps


def jumping(t, y):
    return torch.where(t < 0.5, -y, 40.0 * torch.cos(8 * t))


@pytest.mark.parametrize(
    "landings", [[0.5], [0.7, 0.3], torch.tensor([0.25, 0.5, 1.0]), [0.0, 0.5, 3.0], [0.5, 0.5]], ids=str
)
@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)])
def test_steps_end_exactly_where_they_are_told_to(landings, span):
    f = Watched(PROBLEMS["rotation"])
    assert anode.solve(f, double(2), span, step_at=landings, first_step=0.01).success
    times = torch.stack(f.times) * (1 if span[1] > span[0] else -1)
    for landing in [float(t) for t in landings if t in span or 0 < t < 1]:
        landing = torch.tensor(landing if span[1] > span[0] else -landing, dtype=DOUBLE)
        beyond = times > landing
        # Nothing beyond is evaluated before the landing, and f sees each side of it from as near as possible.
        assert torch.equal(beyond, beyond.sort().values)
        for side, there in ((-math.inf, ~beyond), (math.inf, beyond)):
            assert not there.any() or torch.nextafter(landing, torch.tensor(side, dtype=DOUBLE)) in times


def test_landing_on_a_jump_is_cheaper_and_more_accurate_than_stumbling_over_it():
    y0 = torch.ones(1, dtype=DOUBLE)
    exact = math.exp(-0.5) + 5 * (math.sin(8) - math.sin(4))
    blind, landing = (anode.solve(jumping, y0, (0.0, 1.0), step_at=at, **LOOSE) for at in ([], [0.5]))
    assert landing.stats.nfe < 0.7 * blind.stats.nfe
    assert landing.stats.rejected < blind.stats.rejected
    error = [abs(solution.y1.item() - exact) for solution in (blind, landing)]
    assert error[1] < error[0]
    assert error[1] < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)])
def test_each_side_of_a_jump_is_solved_with_its_own_rate(span, dtype):
    def f(t, y):
        return torch.where(t < 0.1, torch.ones_like(y), -torch.ones_like(y))

    solution = anode.solve(f, torch.zeros(1, dtype=dtype), span, step_at=[0.1], save_at=[0.1, span[1]])
    expected = [0.1, -0.8] if span[1] > span[0] else [0.9, 0.8]
    assert solution.ys.flatten().tolist() == pytest.approx(expected, abs=1e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("speed", [1.0, 1e-3])
def test_f_is_not_evaluated_beyond_an_end_where_a_step_has_to_land(speed):
    f = Watched(lambda t, y: speed * y)
    solution = anode.solve(f, torch.ones(1, dtype=DOUBLE), (0.0, 1.0), step_at=[1.0])
    assert solution.y1.item() == pytest.approx(math.exp(speed), rel=1e-3)
    assert max(t.item() for t in f.times) <= 1.0


def test_steps_of_given_size_land_where_they_are_told_to():
    f = Watched(jumping)
    anode.solve(f, torch.ones(1, dtype=DOUBLE), (0.0, 1.0), method="euler", step_size=0.3, step_at=[0.5])
    assert min(abs(t.item() - 0.5) for t in f.times) < 1e-12


@pytest.mark.parametrize("control", ["joint", "sample"])
def test_the_first_step_has_the_size_it_is_given_and_needs_no_probe(control):
    f = Watched(decay)
    solution = anode.solve(f, torch.ones(1, 1, dtype=DOUBLE), (0.0, 1.0), first_step=1e-3, control=control)
    start, end = f.tried(first_slopes=1)
    assert (start[0].item(), end[0].item()) == (0.0, 1e-3)
    assert solution.stats.nfe == 1 + 6 * (solution.stats.accepted + solution.stats.rejected)
    chosen = anode.solve(decay, torch.ones(1, 1, dtype=DOUBLE), (0.0, 1.0), control=control).stats
    assert chosen.nfe == 2 + 6 * (chosen.accepted + chosen.rejected)


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)])
def test_no_step_is_longer_than_the_longest_allowed(span, control):
    f = Watched(decay)
    solution = anode.solve(f, torch.ones(1, 1, dtype=DOUBLE), span, max_step=0.05, control=control)
    start, end = f.tried()
    assert (end - start).abs().max().item() == pytest.approx(0.05, rel=1e-9)
    assert solution.stats.accepted >= 20


@pytest.mark.parametrize("control", ["joint", "sample"])
def test_no_step_is_shorter_than_the_shortest_allowed_and_those_are_accepted(control):
    f = Watched(stiffness_inside)
    y0 = torch.tensor([[1.5, 0.3, 12.0]], dtype=DOUBLE)
    solution = anode.solve(f, y0, (0.0, 1.0), min_step=0.05, control=control, rtol=1e-8)
    start, end = f.tried()
    assert (end - start).abs().min().item() == pytest.approx(0.05, rel=1e-9)
    assert solution.success
    assert 10 < solution.stats.accepted <= 21


@pytest.mark.parametrize("control", ["joint", "sample"])
def test_steps_of_the_smallest_size_are_never_taken_back(control):
    problem = PROBLEMS["van der Pol"]
    tolerances, sizes = {"rtol": 1e-11, "atol": 1e-11}, {"min_step": 0.05, "first_step": 0.05}
    _, theirs = by_torchdiffeq(problem, problem.start(), torch.tensor([0.0, 2.98]), options=sizes, **tolerances)
    stats = anode.solve(problem, problem.start()[None], (0.0, 2.98), control=control, **tolerances, **sizes).stats
    assert (stats.accepted, stats.rejected) == (theirs.accepted, theirs.rejected) == (60, 0)


@pytest.mark.parametrize("count", [1, 7, 200])
def test_the_step_budget_is_for_the_whole_solve_however_many_outputs(count):
    problem = PROBLEMS["van der Pol"]
    times = torch.linspace(*problem.span, count + 1, dtype=DOUBLE)[1:]
    needed = anode.solve(problem, problem.start(), problem.span).stats
    needed = needed.accepted + needed.rejected
    enough, short = (
        anode.solve(problem, problem.start(), problem.span, save_at=times, max_steps=budget)
        for budget in (needed, needed - 1)
    )
    assert enough.status == anode.Status.SUCCESS
    assert short.status == anode.Status.MAX_STEPS
    assert short.stats.accepted + short.stats.rejected == needed - 1


def test_the_step_budget_of_a_batch_stops_those_who_need_more():
    y0 = mixed_samples(3)
    stats = anode.solve(stiffness_inside, y0, (0.0, 3.0), control="sample").stats
    tries = stats.accepted + stats.rejected
    budget = tries.max().item() - 1
    solution = anode.solve(stiffness_inside, y0, (0.0, 3.0), control="sample", max_steps=budget)
    assert torch.equal(solution.status == anode.Status.MAX_STEPS, tries > budget)
    assert torch.equal(solution.t1 < 3.0, tries > budget)
    assert 0 < (tries > budget).sum() < 3


def test_the_norm_decides_whose_error_counts():
    problem = PROBLEMS["van der Pol"]

    def both(t, y):
        return torch.cat([problem(t, y[:2]), 50 * torch.stack([-y[3], y[2]])])

    y0 = torch.cat([problem.start(), problem.start()])
    ignoring = anode.solve(both, y0, (0.0, 5.0), norm=lambda error: rms(error[:2]))
    alone = anode.solve(problem, problem.start(), (0.0, 5.0))
    torch.testing.assert_close(ignoring.y1[:2], alone.y1, rtol=1e-9, atol=1e-9)
    assert ignoring.stats == alone.stats
    assert anode.solve(both, y0, (0.0, 5.0)).stats.accepted > 3 * alone.stats.accepted


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"max_steps": 0}, "max_steps"),
        ({"first_step": 0.0}, "first_step"),
        ({"min_step": -1.0}, "min_step"),
        ({"min_step": 2.0, "max_step": 1.0}, "min_step"),
        ({"step_size": 0.0}, "step_size"),
        ({"method": "rk4"}, "step_size"),
        ({"method": "dopri6"}, "did you mean"),
        ({"controller": "p"}, "controller"),
        ({"atol": 0.0}, "atol"),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused_by_name(options, name):
    with pytest.raises(ValueError, match=name):
        anode.solve(decay, double(2), (0.0, 1.0), **options)


def test_an_endless_span_without_an_event_is_refused():
    with pytest.raises(ValueError, match="finite"):
        anode.solve(decay, double(2), (0.0, math.inf))


def test_a_span_for_each_sample_is_refused_by_name():
    x = torch.ones(8, 1)
    with pytest.raises(ValueError, match=r"t_span: takes one number per time.*got a tensor of shape \(8,\)"):
        anode.solve(lambda t, y: -y, x, (torch.zeros(8), torch.ones(8)), control="sample")


@pytest.mark.parametrize("name", ["first_step", "step_size"])
@pytest.mark.parametrize("value", [math.inf, math.nan, 0.0, -1.0])
def test_a_step_that_is_no_finite_number_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}: takes a "):
        anode.solve(lambda t, y: -y, torch.ones(1), (0.0, 1.0), **{name: value})


@pytest.mark.parametrize("method", anode.METHODS)
@pytest.mark.parametrize("engine", ["torch", "native"])
@pytest.mark.parametrize("control", ["joint", "sample"])
def test_states_near_the_largest_number_do_not_overflow_within_a_step(method, engine, control):
    if engine == "native":
        pytest.importorskip("anode._native")
    decay = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
    torch.nn.init.constant_(decay[0].weight, -1.0)
    given = {"method": method, "engine": engine, "control": control}
    if not TABLEAUS[method].adaptive:
        given["step_size"] = 0.01
    with torch.no_grad():
        large = anode.solve(decay, torch.full((3, 1), 1e38), (0.0, 1.0), **given)
        usual = anode.solve(decay, torch.full((3, 1), 1e4), (0.0, 1.0), **given)
    assert large.success
    torch.testing.assert_close(large.y1 / 1e38, usual.y1 / 1e4, rtol=5e-3, atol=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"f": 3}, r"f: takes a function f\(t, y\), got 3"),
        ({"f": anode.MLPField}, r"f: takes a function .*; pass an object, MLPField\(\.\.\.\)"),
        ({"event": 3}, r"event: takes a function event\(t, y\), got 3"),
        ({"norm": "max"}, r"norm: takes a function norm\(error\), got 'max'"),
        ({"params": 3}, "params: takes a list of tensors, got a int"),
        ({"params": [3]}, "params: takes a list of tensors, got a int"),
    ],
)
def test_what_is_no_function_or_tensor_is_named(given, said):
    call = {"f": lambda t, y: -y, "y0": torch.ones(2), "t_span": (0.0, 1.0)} | given
    with pytest.raises(TypeError, match=said):
        anode.solve(**call)
