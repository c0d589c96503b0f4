import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anode
from anode.ode.tableaus import TABLEAUS

PROPERTY = settings(max_examples=15)
TIGHT = {"rtol": 1e-8, "atol": 1e-10}

seeds = st.integers(0, 2**16)
times = st.floats(-2.0, 2.0)
lengths = st.floats(0.1, 2.0).flatmap(lambda length: st.sampled_from([length, -length]))
accurate = st.sampled_from(["tsit5", "dopri5", "dopri8"])
adaptive = st.sampled_from([method for method in anode.METHODS if TABLEAUS[method].adaptive])
methods = st.sampled_from(anode.METHODS)
controls = st.sampled_from(["joint", "member", "sample"])
gradients = st.sampled_from(["discrete", "stored", "none"])


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def swirl(seed: int, dim: int):
    """A smooth autonomous field that stays bounded."""
    matrix, shift = normal(seed, dim, dim), normal(seed + 1, dim)
    return lambda t, y: torch.sin(y @ matrix + shift)


def assert_close(left, right, tol: float) -> None:
    torch.testing.assert_close(left, right, rtol=tol, atol=tol)


@PROPERTY
@given(seed=seeds, t0=times, length=lengths, method=accurate, control=controls)
def test_solving_there_and_back_returns_to_the_start(seed, t0, length, method, control):
    field, y0 = swirl(seed, 2), normal(seed + 2, 3, 2)
    options = {"method": method, "control": control, **TIGHT}

    def f(t, y):
        return field(t, y) * torch.cos(t)

    there = anode.solve(f, y0, (t0, t0 + length), **options).check()
    back = anode.solve(f, there.y1, (t0 + length, t0), **options).check()
    assert_close(back.y1, y0, 1e-5)
    assert (there.y1 - y0).abs().max() > 1e-3


@PROPERTY
@given(seed=seeds, shift=st.floats(-10.0, 10.0), length=lengths, method=adaptive, control=controls)
def test_an_autonomous_solve_does_not_know_what_time_it_is(seed, shift, length, method, control):
    field, y0 = swirl(seed, 2), normal(seed + 2, 2, 3, 2)
    options = {"method": method, "control": control, "rtol": 1e-4}
    here = anode.solve(field, y0, (0.0, length), save_at=[length / 3], **options)
    there = anode.solve(field, y0, (shift, shift + length), save_at=[shift + length / 3], **options)
    assert_close(here.y1, there.y1, 1e-7)
    assert_close(here.ys, there.ys, 1e-7)


@PROPERTY
@given(seed=seeds, length=lengths, method=methods, a=st.floats(-3.0, 3.0), b=st.floats(-3.0, 3.0), fixed=st.booleans())
def test_the_flow_of_a_linear_field_is_linear(seed, length, method, a, b, fixed):
    matrix, x, y = normal(seed, 3, 3), normal(seed + 1, 4, 3), normal(seed + 2, 4, 3)
    exact = fixed or not TABLEAUS[method].adaptive
    options = {"step_size": 0.3} if exact else {"rtol": 1e-4, "atol": 1e-4}

    def flow(start):
        return anode.solve(lambda t, y: y @ matrix, start, (0.0, length), method=method, **options).check().y1

    scale = max(1.0, flow(x).abs().max().item(), flow(y).abs().max().item())
    assert_close(flow(a * x + b * y) / scale, (a * flow(x) + b * flow(y)) / scale, 1e-12 if exact else 2e-2)


@PROPERTY
@given(seed=seeds, batch=st.integers(1, 5), dim=st.integers(1, 3), length=lengths, method=adaptive, how=gradients)
def test_samples_solved_together_are_solved_as_each_alone(seed, batch, dim, length, method, how):
    y0 = normal(seed, batch, dim).abs() * torch.logspace(-1, 0.7, batch, dtype=torch.float64).unsqueeze(-1)
    y0.requires_grad_(how != "none")
    options = {
        "method": method,
        "control": "sample",
        "rtol": 1e-3,
        "gradient": "stored" if how == "stored" else "discrete",
    }

    def f(t, y):
        return t - y / (1 + y * y)

    together = anode.solve(f, y0, (0.0, length), save_at=[length / 2], **options)
    assert together.gradient == how
    for i in range(batch):
        alone = anode.solve(f, y0[i : i + 1], (0.0, length), save_at=[length / 2], **options)
        assert_close(together.y1[i], alone.y1[0], 1e-9)
        assert_close(together.ys[:, i], alone.ys[:, 0], 1e-9)
        assert together.stats.accepted[i] == alone.stats.accepted
        assert together.stats.rejected[i] == alone.stats.rejected
        assert together.stats.nfe[i] == alone.stats.nfe
        assert together.status[i] == alone.status


@PROPERTY
@given(seed=seeds, batch=st.integers(2, 6), length=lengths, method=adaptive, control=controls)
def test_permuting_the_batch_permutes_the_solution(seed, batch, length, method, control):
    field, y0 = swirl(seed, 2), normal(seed + 2, batch, 2)
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    options = {"method": method, "control": control, "rtol": 1e-4}
    plain = anode.solve(field, y0, (0.0, length), save_at=[length / 2], **options)
    mixed = anode.solve(field, y0[order], (0.0, length), save_at=[length / 2], **options)
    assert_close(mixed.y1, plain.y1[order], 1e-7)
    assert_close(mixed.ys, plain.ys[:, order], 1e-7)


@PROPERTY
@given(
    seed=seeds, first=st.integers(1, 3), second=st.integers(1, 3), length=lengths, method=methods, fixed=st.booleans()
)
def test_a_tuple_is_solved_like_its_parts_laid_side_by_side(seed, first, second, length, method, fixed):
    field, whole = swirl(seed, first + second), normal(seed + 2, 4, first + second)
    exact = fixed or not TABLEAUS[method].adaptive
    options = {"step_size": 0.3} if exact else {"rtol": 1e-5, "atol": 1e-5}

    def f(t, state):
        return field(t, torch.cat(state, -1)).split([first, second], -1)

    parts = anode.solve(f, whole.split([first, second], -1), (0.0, length), method=method, **options)
    joined = anode.solve(field, whole, (0.0, length), method=method, **options)
    assert [part.shape for part in parts.y1] == [(4, first), (4, second)]
    assert_close(torch.cat(parts.y1, -1), joined.y1, 1e-12 if exact else 1e-2)
    assert_close(torch.cat(parts.ys, -1), joined.ys, 1e-12 if exact else 1e-2)


@PROPERTY
@given(seed=seeds, t0=times, length=lengths, where=st.floats(0.05, 0.95), method=accurate, control=controls)
def test_a_span_can_be_split_anywhere_inside(seed, t0, length, where, method, control):
    field, y0 = swirl(seed, 2), normal(seed + 2, 3, 2)
    middle, end = t0 + where * length, t0 + length
    options = {"method": method, "control": control, **TIGHT}

    def f(t, y):
        return field(t, y) + t * y

    whole = anode.solve(f, y0, (t0, end), save_at=[middle], **options)
    first = anode.solve(f, y0, (t0, middle), **options)
    second = anode.solve(f, first.y1, (middle, end), **options)
    assert_close(whole.ys[0], first.y1, 1e-5)
    assert_close(whole.y1, second.y1, 1e-5)


@PROPERTY
@given(
    shape=st.lists(st.integers(1, 3), max_size=5).map(tuple),
    data=st.data(),
    saved=st.integers(0, 4),
    length=lengths,
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_states_of_any_shape_are_solved(shape, data, saved, length, dtype):
    control = data.draw(st.integers(0, len(shape)))
    method = data.draw(adaptive)
    y0 = normal(0, *shape).to(dtype)
    save_at = [length * (i + 1) / (saved + 1) for i in range(saved)] or None
    solution = anode.solve(
        lambda t, y: -y, y0, (0.0, length), method=method, control=control, save_at=save_at, rtol=1e-4
    )
    assert solution.check().y1.shape == shape
    assert solution.y1.dtype == dtype
    assert solution.ys.shape == (saved or 2, *shape)
    assert solution.ts.tolist() == pytest.approx(save_at or [0.0, length])
    torch.testing.assert_close(solution.y1, y0 * math.exp(-length), rtol=3e-2, atol=1e-3)
    if control:
        assert solution.t1.shape == solution.status.shape == shape[:control]
