import math
import pickle

import pytest
import torch

import anode
from anode.ode.tableaus import TABLEAUS

ADAPTIVE = [name for name, tableau in TABLEAUS.items() if tableau.adaptive]


@pytest.fixture
def checks_often(monkeypatch):
    monkeypatch.setattr("anode.ode.clocks.CHECK_EVERY", 500)


def robertson(t, y):
    a, b, c = y.unbind(-1)
    slow, fast, last = 0.04 * a, 1e4 * b * c, 3e7 * b * b
    return torch.stack([fast - slow, slow - fast - last, last], -1)


def lorenz(t, y):
    a, b, c = y.unbind(-1)
    return torch.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c], -1)


def van_der_pol(t, y):
    return torch.stack([y[1], 1000 * (1 - y[0] ** 2) * y[1] - y[0]])


def oscillator(t, y):
    return torch.stack([y[1], -y[0]])


def pure(dtype=torch.float64):
    return torch.tensor([1.0, 0.0, 0.0], dtype=dtype)


def message_of(solution):
    with pytest.raises(anode.SolveError) as caught:
        solution.check()
    return str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", [name for name in ADAPTIVE if name != "fehlberg2"])
def test_a_stiff_problem_that_runs_out_of_steps_says_so(method, dtype):
    solution = anode.solve(robertson, pure(dtype), (0.0, 1e5), method=method, rtol=1e-6, atol=1e-9, max_steps=1500)
    message = message_of(solution)
    assert f"the problem looks stiff: {method} is unstable" in message
    assert f"stopped at t = {solution.t1:.6g}, after {solution.stats.accepted} steps" in message
    assert "Radau" in message


def test_the_steps_that_are_still_needed_are_foreseen():
    rate = 1e4
    solution = anode.solve(lambda t, y: -rate * (y - torch.cos(t)), torch.ones(1), (0.0, 100.0), max_steps=1000)
    needed = (100.0 - solution.t1) * rate / 3.31
    assert f"at least {needed:.2g} more" in message_of(solution)


def test_the_compiled_engine_says_so_too():
    net = torch.nn.Sequential(torch.nn.Linear(1, 1))
    with torch.no_grad():
        net[0].weight.fill_(-1e4)
    solution = anode.solve(net, torch.ones(3, 1), (0.0, 100.0), max_steps=500, engine="native")
    assert "looks stiff" in message_of(solution)


def test_the_first_group_that_failed_is_described():
    rates = torch.tensor([[1.0], [1e5], [1e4]])
    solution = anode.solve(lambda t, y: -rates * (y - 1), torch.zeros(3, 1), (0.0, 10.0), control=1, max_steps=400)
    assert solution.status.tolist() == [0, 1, 1]
    message = message_of(solution)
    assert message.startswith("2 of 3 groups (first: 1) stopped")
    assert f"steps above {3.31 / 1e5:.2g}" in message


@pytest.mark.parametrize("rtol", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("method", ["dopri5", "bosh3", "tsit5"])
def test_other_problems_that_run_out_of_steps_are_not_called_stiff(method, rtol):
    options = {"rtol": rtol, "atol": rtol, "max_steps": 300, "method": method}
    for f, y0 in ((lorenz, torch.tensor([1.0, 1.0, 20.0])), (oscillator, torch.tensor([1.0, 0.0]))):
        message = message_of(anode.solve(f, y0.double(), (0.0, 1e6), **options))
        assert "looks stiff" not in message
        assert "raise max_steps" in message


@pytest.mark.slow
def test_torchdiffeq_s_door_gives_a_stiff_problem_up_early():
    calls = []

    def f(t, y):
        calls.append(None)
        return robertson(t, y)

    with pytest.raises(AssertionError, match="looks stiff") as caught:
        anode.odeint(f, pure(), torch.tensor([0.0, 1e5]), rtol=1e-6, atol=1e-9)
    stats = caught.value.solution.stats
    assert stats.accepted + stats.rejected == 10_000
    assert len(calls) < 6 * 10_000 + 50


@pytest.mark.usefixtures("checks_often")
def test_a_stiff_problem_with_an_end_in_sight_is_solved():
    y0 = torch.zeros(1, dtype=torch.float64)
    solution = anode.odeint_dense(
        lambda t, y: -1e4 * (y - torch.cos(t)), y0, torch.tensor(0.0), torch.tensor(0.5), rtol=1e-4, atol=1e-4
    )
    assert solution.stats.accepted + solution.stats.rejected > 1000
    assert solution.y1.item() == pytest.approx(math.cos(0.5), abs=1e-3)


@pytest.mark.usefixtures("checks_often")
def test_a_long_solve_that_is_not_stiff_goes_on():
    y0 = torch.tensor([1.0, 0.0], dtype=torch.float64)
    t = torch.tensor([0.0, 30.0], dtype=torch.float64)
    options = {"max_step": 0.025}  # 1,200 steps
    torch.testing.assert_close(anode.odeint(oscillator, y0, t, options=options)[-1, 0], torch.cos(t[-1]))


@pytest.mark.usefixtures("checks_often")
def test_a_limit_of_steps_that_was_given_is_kept_to():
    with pytest.raises(anode.SolveError) as caught:
        anode.odeint(robertson, pure(), torch.tensor([0.0, 1e5]), options={"max_num_steps": 1_234})
    stats = caught.value.solution.stats
    assert stats.accepted + stats.rejected == 1_234


@pytest.mark.usefixtures("checks_often")
def test_an_event_that_a_stiff_problem_never_reaches_ends_with_the_sentence(monkeypatch):
    monkeypatch.setattr("anode.interface.options.STIFF_STEPS", 800)
    with pytest.raises(anode.SolveError, match=r"looks stiff: .* whatever the tolerances\. Use"):
        anode.odeint(
            lambda t, y: -1e4 * (y - torch.cos(t)),
            torch.ones(1),
            torch.tensor([0.0, 1.0]),
            method="bosh3",
            rtol=1e-3,
            atol=1e-3,
            event_fn=lambda t, y: y[0] + 5,
        )


def test_the_sentence_survives_pickling():
    solution = anode.solve(van_der_pol, torch.tensor([2.0, 0.0]).double(), (0.0, 2000.0), max_steps=500)
    assert "looks stiff" in message_of(pickle.loads(pickle.dumps(solution)))


@pytest.mark.parametrize(("method", "limit"), [("euler", 2.0), ("rk4", 2.785), ("bosh3", 2.513), ("dopri5", 3.307)])
def test_the_reach_of_stability_is_the_known_one(method, limit):
    assert TABLEAUS[method].stability == pytest.approx(limit, abs=0.011)


@pytest.mark.parametrize("control", ["auto", "sample"])
def test_a_random_function_is_not_called_stiff(control):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    solution = anode.solve(net, torch.rand(8, 2), (0.0, 1.0), rtol=1e-8, max_steps=100, control=control)
    message = message_of(solution)
    assert "f returns different values for the same t and y, as dropout does in training" in message
    assert "stiff" not in message
    assert anode.solve(net.eval(), torch.rand(8, 2), (0.0, 1.0), rtol=1e-8, max_steps=100).success
