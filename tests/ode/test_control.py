import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

import anode
from anode.ode.control import CONTROLLERS, PID, largest_rms, rms
from helpers.problems import PROBLEMS

DOUBLE = torch.float64
ORDERS = [2, 3, 5, 8]


def relaxing(t, y):
    """Pulled towards cos(t) two hundred times faster than that moves."""
    return -200 * (y - torch.cos(t)) - torch.sin(t)


def factor(controller, errors, order=5):
    """The controller's factor, with the errors of the last steps newest first."""
    return controller.decide(errors[0], (order, *errors[1:]))[1]


def integral(ratio, order):
    return factor(PID(), (ratio, 1.0, 1.0), order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ratio", [1.01, 2.0, 30.0])
@pytest.mark.parametrize("controller", CONTROLLERS.values(), ids=CONTROLLERS)
def test_a_rejected_step_shrinks_by_its_own_error_whatever_is_remembered(controller, ratio, order):
    exponent = -(controller.p + controller.i + controller.d) / order
    expected = pytest.approx(max(0.9 * ratio**exponent, 0.2), rel=1e-14)
    for remembered in ((1.0, 1.0), (1e-4, 1.0), (1.0, 1e-4)):
        assert factor(controller, (ratio, *remembered), order) == expected


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ratio", [1e-3, 0.1, 0.5])
def test_an_accepted_step_grows_by_the_integral_rule(ratio, order):
    assert integral(ratio, order) == pytest.approx(min(max(0.9 * ratio ** (-1 / order), 1.0), 10.0), rel=1e-15)


def test_an_accepted_step_is_never_followed_by_a_smaller_one():
    assert 0.9 * 0.99 ** (-1 / 5) < 1
    assert integral(0.99, 5) == 1.0


@pytest.mark.parametrize("order", ORDERS)
def test_no_error_at_all_asks_for_the_largest_factor(order):
    assert integral(0.0, order) == 10.0
    assert integral(1e-300, order) == 10.0


@pytest.mark.parametrize("ratio", [1e9, math.inf, math.nan])
def test_an_error_beyond_measure_shrinks_a_rejected_step_as_far_as_allowed(ratio):
    assert integral(ratio, 5) == 0.2
    assert factor(PID(min_factor=0.05), (ratio, 1.0, 1.0)) == 0.05


@pytest.mark.parametrize("controller", CONTROLLERS.values(), ids=CONTROLLERS)
def test_remembered_errors_enter_with_the_exponents_of_the_pid_rule(controller):
    now, last, before = 0.02, 0.5, 0.1
    p, i, d = controller.p, controller.i, controller.d
    expected = 0.9 * now ** (-(p + i + d) / 5) * last ** ((p + 2 * d) / 5) * before ** (-d / 5)
    assert 1 < expected < 10
    assert factor(controller, (now, last, before)) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("controller", CONTROLLERS.values(), ids=CONTROLLERS)
def test_a_remembered_error_that_is_but_rounding_does_not_matter(controller):
    assert factor(controller, (0.02, 1e-17, 3e-15)) == factor(controller, (0.02, 2e-13, 0.0))


ERRORS = [0.0, 1e-12, 0.3, 1.0, 1.7, 1e6, math.inf, math.nan]


@pytest.mark.parametrize("controller", CONTROLLERS.values(), ids=CONTROLLERS)
@pytest.mark.parametrize("order", ORDERS)
def test_numbers_and_tensors_are_decided_alike(controller, order):
    cases = [(now, last, before) for now in ERRORS for last in ERRORS[:4] for before in ERRORS[:4]]
    now, last, before = (torch.tensor(column, dtype=DOUBLE) for column in zip(*cases, strict=True))
    accept, together, memory = controller.decide(now, (order, last, before))
    for i, (ratio, *remembered) in enumerate(cases):
        alone = controller.decide(ratio, (order, *remembered))
        assert accept[i].item() == alone[0]
        assert together[i].item() == pytest.approx(alone[1], rel=1e-13)
        assert (memory[1][i].item(), memory[2][i].item()) == alone[2][1:]


class Stubborn(anode.Controller):
    """Rejects what is not good enough and asks for the same step again."""

    def start(self, order):
        return ()

    def decide(self, ratio, memory):
        accept = ratio <= 1
        return accept, 1.0 + 0.0 * ratio, memory


@pytest.mark.parametrize("control", ["joint", "sample"])
def test_a_rejected_step_is_followed_by_a_smaller_one_whatever_the_controller_says(control):
    y0 = torch.ones(2, 1, dtype=DOUBLE)
    solution = anode.solve(relaxing, y0, (0.0, 0.1), controller=Stubborn(), control=control, first_step=0.1)
    assert solution.success
    assert torch.as_tensor(solution.stats.rejected).max() < 10
    torch.testing.assert_close(solution.y1, torch.full_like(y0, math.cos(0.1)), rtol=0, atol=2e-3)


class Own(anode.Controller):
    """Decides by a function of the ratio."""

    def __init__(self, decision):
        self.decision = decision

    def start(self, order):
        return None

    def decide(self, ratio, memory):
        return self.decision(ratio)


RETURNS = r"controller: takes a decide\(ratio, memory\) that returns whether .*, got one that returned"


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize(
    ("decide", "said"),
    [
        (lambda ratio: (ratio <= 1, 1.0), rf"{RETURNS} \("),
        (lambda ratio: None, f"{RETURNS} a NoneType"),
        (lambda ratio: "abc", f"{RETURNS} a str"),
        (lambda ratio: (True, "1", None), rf"{RETURNS} \(True, '1', None\)"),
        (lambda ratio: (ratio == ratio, math.nan * ratio, None), "controller: takes .*that returns a factor above 0"),
        (lambda ratio: (ratio == ratio, -1.0, None), "controller: takes .*that returns a factor above 0, got -1.0"),
    ],
    ids=["two", "None", "text", "factor", "NaN", "negative"],
)
def test_a_controller_that_breaks_the_protocol_is_told_what_it_wants(decide, said, control):
    y0 = torch.ones(2, 1, dtype=DOUBLE)
    with pytest.raises((ValueError, TypeError), match=said):
        anode.solve(lambda t, y: -y, y0, (0.0, 1.0), controller=Own(decide), control=control)


@pytest.mark.parametrize("control", ["joint", "sample"])
def test_a_factor_may_be_no_number_where_the_error_is_none(control):
    def f(t, y):
        return torch.where(y > 1.05, math.nan, torch.ones_like(y))  # where the first step leads

    y0 = torch.ones(2, 1, dtype=DOUBLE)
    own = Own(lambda ratio: (ratio <= 1, 0.5 + 0.5 * (ratio <= 1) + 0 * ratio, None))
    solution = anode.solve(f, y0, (0.0, 0.04), controller=own, control=control, first_step=0.5)
    assert solution.success
    assert torch.as_tensor(solution.stats.rejected).min() > 0


def test_a_controller_that_knows_only_numbers_is_told_of_tensors():
    own = Own(lambda ratio: (True, 1.0, None) if ratio < 1 else (False, 0.5, None))
    y0 = torch.ones(2, 1, dtype=DOUBLE)
    assert anode.solve(lambda t, y: -y, y0, (0.0, 1.0), controller=own).success
    with pytest.raises(TypeError, match=r'controller: decide is given a tensor .*torch\.where .*control="joint"'):
        anode.solve(lambda t, y: -y, y0, (0.0, 1.0), controller=own, control="sample")


def test_other_errors_of_a_controller_stay_as_they_are():
    def fail(ratio):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match=r"^mine$"):
        anode.solve(lambda t, y: -y, torch.ones(2, 1), (0.0, 1.0), controller=Own(fail), control="sample")


def test_the_hint_at_a_controller_ignores_the_case():
    with pytest.raises(ValueError, match=r"controller: takes one of integral, .*, got 'PI'; did you mean 'pi'"):
        anode.Solver(controller="PI")


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None, True])
@pytest.mark.parametrize("name", ["p", "i", "d"])
def test_coefficients_that_are_no_numbers_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}: takes a finite number, got {value!r}"):
        PID(**{name: value})


def test_coefficients_of_numpy_are_written_as_json():
    solver = anode.Solver(controller=PID(p=np.float32(0.5)))
    assert json.loads(json.dumps(solver.to_json())) == {"controller": {"pid": {**asdict(PID()), "p": 0.5}}}


def test_an_unknown_coefficient_is_refused_with_the_nearest_name():
    with pytest.raises(TypeError, match=r"safty: is not an argument of PID, .*did you mean 'safety'"):
        PID(safty=0.5)


@pytest.mark.parametrize("engine", ["torch", "native"])
@pytest.mark.parametrize("control", ["joint", "sample"])
def test_no_step_size_is_rejected_for_ever(engine, control):
    # From this start van der Pol's oscillator left a PID controller with a step size that was always rejected.
    def van_der_pol(t, y):
        return torch.stack([y[..., 1], 5 * (1 - y[..., 0] ** 2) * y[..., 1] - y[..., 0]], -1)

    if engine == "native":
        pytest.importorskip("anode._native")
        torch.manual_seed(1)
        field = anode.MLPField(2, hidden=16, activation="tanh")
        with torch.no_grad():
            field.weights[-1].mul_(40)
    else:
        field = van_der_pol
    generator = torch.Generator().manual_seed(0)
    starts = torch.cat([torch.tensor([[0.3, -0.85]]), 4 * torch.rand(40, 2, generator=generator) - 2])
    for start in starts.unsqueeze(1) if control == "joint" else (starts,):
        solution = anode.solve(field, start, (0.0, 20.0), controller="pid", control=control, atol=1e-3, engine=engine)
        assert solution.success
        assert (torch.as_tensor(solution.stats.rejected) <= torch.as_tensor(solution.stats.accepted)).all()


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("control", ["joint", "sample"])
def test_steps_without_any_error_are_no_obstacle(controller, control):
    y0 = torch.ones(2, 1, dtype=DOUBLE)
    solution = anode.solve(
        lambda t, y: torch.zeros_like(y), y0, (0.0, 1.0), controller=controller, control=control, first_step=1e-3
    )
    assert torch.equal(solution.y1, y0)
    assert torch.as_tensor(solution.stats.accepted == 4).all()


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_an_unreadable_region_is_approached_with_the_smallest_factor(controller):
    sizes = []

    def f(t, y):
        sizes.append(t.item())
        return torch.where(t < 0.5, torch.ones_like(y), torch.nan)

    solution = anode.solve(f, torch.ones(1, dtype=DOUBLE), (0.0, 1.0), controller=controller, first_step=1.0)
    first, second = (sizes[1 + 6 * i] for i in range(2))
    assert second == pytest.approx(0.2 * first, rel=1e-12)
    assert solution.status == anode.Status.NON_FINITE
    assert solution.t1 == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("controller", ["pi", "pid", anode.PID(p=0.1, i=0.5)], ids=str)
@pytest.mark.parametrize("name", ["van der Pol", "stiff van der Pol", "rotation backward"])
def test_controllers_that_remember_reach_the_accuracy_asked_for(controller, name):
    problem = PROBLEMS[name]
    solution = anode.solve(
        problem, problem.start(), problem.span, controller=controller, save_at=problem.times(8), rtol=1e-7, atol=1e-8
    )
    torch.testing.assert_close(solution.ys, problem.reference(8), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("controller", ["pi", "pid"])
@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3"])
def test_controllers_that_remember_reject_far_less_where_stability_limits_the_step(controller, method):
    y0 = torch.ones(1, dtype=DOUBLE)
    plain, remembering = (
        anode.solve(relaxing, y0, (0.0, 3.0), method=method, controller=c) for c in ("integral", controller)
    )
    assert plain.stats.rejected > 20
    assert remembering.stats.rejected < plain.stats.rejected / 2
    assert remembering.stats.nfe < plain.stats.nfe
    assert remembering.y1.item() == pytest.approx(math.cos(3.0), abs=2e-3)


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_factor": 0.0},
        {"min_factor": 1.0},
        {"min_factor": -0.5},
        {"max_factor": 0.9},
        {"safety": 0.0},
        {"safety": 1.1},
        {"safety": math.nan},
        {"safety": "0.9"},
    ],
    ids=str,
)
def test_bounds_that_contradict_themselves_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        PID(**arguments)


def test_a_controllers_own_bounds_are_kept():
    controller = PID(safety=0.5, min_factor=0.4, max_factor=2.0)
    assert factor(controller, (1e-9, 1.0, 1.0)) == 2.0
    assert factor(controller, (1e9, 1.0, 1.0)) == 0.4
    assert factor(controller, (0.25, 1.0, 1.0), 1) == pytest.approx(2.0)


def test_rms_is_the_root_mean_square_of_everything_or_of_each_group():
    x = torch.arange(24, dtype=DOUBLE).reshape(2, 3, 4)
    assert rms(0, 24)(x).item() == pytest.approx(x.pow(2).mean().sqrt().item())
    torch.testing.assert_close(rms(1, 12)(x), x.pow(2).mean((1, 2)).sqrt())
    torch.testing.assert_close(rms(2, 4)(x), x.pow(2).mean(2).sqrt())


@pytest.mark.parametrize("dims", [0, 1])
def test_largest_rms_is_that_of_the_worst_component(dims):
    x = torch.arange(10, dtype=DOUBLE).reshape(2, 5)[: 1 + dims]
    x = x if dims else x[0]
    parts = [part.pow(2).mean(-1).sqrt() for part in x.split([2, 3], -1)]
    torch.testing.assert_close(largest_rms(dims, [2, 3])(x), torch.stack(parts).amax(0))
