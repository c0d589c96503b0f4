import math

import pytest
import torch
import torchdiffeq

import anode

DOUBLE = torch.float64
GRAVITY = 9.81
TIGHT = {"rtol": 1e-9, "atol": 1e-10}


def falling(t, y):
    return torch.stack([y[1], torch.full_like(y[1], -GRAVITY)])


def on_the_ground(t, y):
    return y[0]


def ball(height=10.0, speed=0.0, dtype=DOUBLE):
    return torch.tensor([height, speed], dtype=dtype)


LANDING = math.sqrt(2 * 10.0 / GRAVITY)


@pytest.mark.parametrize("method", ["dopri5", "tsit5", "dopri8", "bosh3", "adaptive_heun"])
@pytest.mark.parametrize("end", [10.0, math.inf])
def test_a_falling_ball_stops_where_it_hits_the_ground(method, end):
    solution = anode.solve(falling, ball(), (0.0, end), method=method, event=on_the_ground)
    assert solution.status == anode.Status.SUCCESS
    assert solution.t1 == pytest.approx(LANDING, abs=1e-4)
    assert solution.y1.tolist() == pytest.approx([0.0, -GRAVITY * LANDING], abs=1e-3)


@pytest.mark.parametrize("atol", [1e-4, 1e-6, 1e-10])
def test_the_time_of_the_event_is_as_exact_as_the_tolerance(atol):
    solution = anode.solve(
        lambda t, y: -y, ball()[:1], (0.0, math.inf), rtol=1e-11, atol=atol, event=lambda t, y: y - 1
    )
    assert solution.t1 == pytest.approx(math.log(10.0), abs=2 * atol)
    assert solution.y1.item() == pytest.approx(math.exp(-solution.t1) * 10, abs=10 * atol)


def test_single_precision_is_enough_for_an_event():
    solution = anode.solve(falling, ball(dtype=torch.float32), (0.0, 10.0), event=on_the_ground)
    assert solution.t1 == pytest.approx(LANDING, abs=1e-4)
    assert solution.y1.dtype == torch.float32


@pytest.mark.parametrize("method", ["rk4", "heun2", "dopri5"])
def test_steps_of_given_size_stop_at_events_too(method):
    solution = anode.solve(falling, ball(), (0.0, 10.0), method=method, step_size=0.1, event=on_the_ground)
    assert solution.t1 == pytest.approx(LANDING, abs=1e-5)
    assert solution.stats.accepted == math.ceil(LANDING / 0.1)


def test_steps_of_given_size_need_no_end_time_beside_an_event():
    solution = anode.solve(falling, ball(), (0.0, math.inf), method="rk4", step_size=0.1, event=on_the_ground)
    assert solution.t1 == pytest.approx(LANDING, abs=1e-5)


def test_the_first_of_several_conditions_ends_the_solve():
    def conditions(t, y):
        return torch.stack([y[0] - 2.0, y[0] - 6.0, t - 100.0, y[1] + 50.0])

    solution = anode.solve(falling, ball(), (0.0, math.inf), event=conditions)
    assert solution.t1 == pytest.approx(math.sqrt(2 * 4.0 / GRAVITY), abs=1e-5)
    assert solution.y1[0].item() == pytest.approx(6.0, abs=1e-4)


def test_the_first_of_several_zeros_ends_the_solve():
    solution = anode.solve(
        lambda t, y: torch.stack([-y[1], y[0]]), ball(1.0, 0.0), (0.0, 20.0), event=lambda t, y: y[0], max_step=0.5
    )
    assert solution.t1 == pytest.approx(math.pi / 2, abs=1e-3)


def test_an_event_may_depend_on_time_alone():
    solution = anode.solve(falling, ball(), (0.0, math.inf), event=lambda t, y: t - 0.7)
    assert solution.t1 == pytest.approx(0.7, abs=2e-6)
    assert solution.y1.tolist() == pytest.approx([10 - GRAVITY * 0.245, -GRAVITY * 0.7], abs=1e-4)


@pytest.mark.parametrize("rising", [1.0, -1.0])
def test_either_change_of_sign_is_an_event(rising):
    solution = anode.solve(falling, ball(), (0.0, 10.0), event=lambda t, y: rising * y[0])
    assert solution.t1 == pytest.approx(LANDING, abs=1e-5)


def test_events_are_found_backward_in_time():
    solution = anode.solve(falling, ball(0.0, -GRAVITY), (1.0, -math.inf), event=lambda t, y: y[1])
    assert solution.t1 == pytest.approx(0.0, abs=1e-5)
    assert solution.y1[0].item() == pytest.approx(GRAVITY / 2, abs=1e-4)


def test_tuple_states_reach_the_event_as_tuples():
    def f(t, state):
        return state[1], torch.full_like(state[1], -GRAVITY)

    y0 = (torch.full((2,), 10.0, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE))
    solution = anode.solve(f, y0, (0.0, math.inf), event=lambda t, state: state[0].min())
    assert solution.t1 == pytest.approx(LANDING, abs=1e-5)
    assert [part.shape for part in solution.y1] == [(2,), (2,)]


def test_the_time_is_the_one_that_torchdiffeq_finds():
    theirs, states = torchdiffeq.odeint_event(
        falling, ball(), torch.tensor(0.0, dtype=DOUBLE), event_fn=on_the_ground, **TIGHT
    )
    solution = anode.solve(falling, ball(), (0.0, math.inf), event=on_the_ground, **TIGHT)
    assert solution.t1 == pytest.approx(theirs.item(), abs=2e-10)
    torch.testing.assert_close(solution.y1, states[-1], rtol=0, atol=1e-8)


@pytest.mark.parametrize("options", [{}, {"step_size": 0.1}], ids=str)
def test_a_span_that_ends_before_the_event_has_no_event(options):
    solution = anode.solve(falling, ball(), (0.0, 0.5), event=on_the_ground, **options)
    assert solution.status == anode.Status.NO_EVENT
    assert not solution.success
    with pytest.raises(anode.SolveError, match="NO_EVENT"):
        solution.check()


def test_a_span_without_an_event_is_solved_to_its_end_and_no_further():
    solution = anode.solve(falling, ball(), (0.0, 0.5), save_at=[0.25, 0.5], event=lambda t, y: t - 1e3)
    assert solution.status == anode.Status.NO_EVENT
    assert solution.ys[:, 0].tolist() == pytest.approx([10 - GRAVITY * t * t / 2 for t in (0.25, 0.5)], abs=1e-6)
    assert solution.t1 == 0.5
    assert torch.equal(solution.y1, solution.ys[-1])


def test_an_event_beyond_the_end_of_the_span_is_none_even_if_the_last_step_passes_it():
    solution = anode.solve(lambda t, y: -y, ball()[:1], (0.0, 1.0), event=lambda t, y: t - 1.001)
    assert solution.status == anode.Status.NO_EVENT


def test_outputs_before_the_event_are_kept_and_those_after_it_are_nan():
    times = [0.0, 0.5, 1.0, 1.5, 2.0]
    solution = anode.solve(falling, ball(), (0.0, 3.0), save_at=times, event=on_the_ground)
    assert solution.success
    heights = [10 - GRAVITY * t * t / 2 for t in times if t < LANDING]
    assert solution.ys[: len(heights), 0].tolist() == pytest.approx(heights, abs=1e-6)
    assert solution.ys[len(heights) :].isnan().all()
    assert solution.y1[0].item() == pytest.approx(0.0, abs=1e-4)


def test_an_output_at_the_end_of_the_span_does_not_become_the_events():
    solution = anode.solve(falling, ball(), (0.0, 3.0), save_at=[1.0, 3.0], event=on_the_ground)
    assert solution.t1 == pytest.approx(LANDING, abs=1e-5)
    assert solution.y1[0].item() == pytest.approx(0.0, abs=1e-4)
    assert solution.ys[1].isnan().all()


def test_the_dense_output_ends_with_the_event():
    solution = anode.solve(falling, ball(), (0.0, math.inf), event=on_the_ground, dense=True)
    torch.testing.assert_close(solution(torch.tensor(solution.t1, dtype=DOUBLE)), solution.y1, rtol=0, atol=1e-9)
    torch.testing.assert_close(solution(0.5)[0].item(), 10 - GRAVITY * 0.125, rtol=0, atol=1e-6)
    with pytest.raises(ValueError):
        solution(LANDING + 0.01)


def test_an_endless_span_whose_event_never_happens_uses_up_its_steps():
    solution = anode.solve(
        falling, ball(), (0.0, math.inf), event=lambda t, y: y[0] - 100.0, max_steps=30, max_step=1.0
    )
    assert solution.status == anode.Status.MAX_STEPS
    assert solution.stats.accepted + solution.stats.rejected == 30


def test_events_and_landings_work_together():
    def gust(t, y):
        return torch.stack([y[1], -GRAVITY * (t < 1.0).to(y.dtype)])

    solution = anode.solve(gust, ball(), (0.0, math.inf), step_at=[1.0], event=on_the_ground, **TIGHT)
    assert solution.t1 == pytest.approx(1.0 + (10 - GRAVITY / 2) / GRAVITY, abs=1e-8)


@pytest.mark.parametrize("gradient", ["discrete", "stored"])
def test_the_end_of_the_span_has_no_gradient_where_the_event_comes_before_it(gradient):
    end = torch.tensor(10.0, dtype=torch.float64, requires_grad=True)
    y0 = torch.ones(1, dtype=torch.float64, requires_grad=True)
    solution = anode.solve(
        lambda t, y: -y, y0, (0.0, end), event=lambda t, y: y[0] - 0.5, gradient=gradient, rtol=1e-8, atol=1e-8
    )
    solution.y1.sum().backward()
    assert end.grad is None or float(end.grad) == 0
    assert float(y0.grad) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_event_that_never_comes_at_a_state_of_rest_ends_the_solve(dtype):
    y0 = torch.ones(2, dtype=dtype)
    for span in ((0.0, math.inf), (0.0, -math.inf)):
        solution = anode.solve(lambda t, y: 0 * y, y0, span, event=lambda t, y: y[0] - 2)
        assert solution.status == anode.Status.NO_EVENT
        assert torch.equal(solution.y1, y0)
    with pytest.raises(anode.SolveError, match="before the event"):
        anode.odeint_event(lambda t, y: 0 * y, y0, torch.tensor(0.0), event_fn=lambda t, y: y - 2)
