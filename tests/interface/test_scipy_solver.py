import math

import pytest
import torch
import torchdiffeq

import anode

TIMES = torch.linspace(0, 2, 5, dtype=torch.float64)
TIGHT = {"rtol": 1e-9, "atol": 1e-9}


def decay(t, y):
    return -y * torch.cos(t)


def start():
    return torch.tensor([[1.0, 2.0]], dtype=torch.float64)


@pytest.mark.parametrize("solver", ["LSODA", "RK45", "DOP853", "Radau", "BDF"])
@pytest.mark.parametrize("t", [TIMES, TIMES.flip(0), TIMES.float()])
def test_scipy_solves_what_anode_solves(solver, t):
    y0 = start().to(t)
    found = anode.odeint(decay, y0, t, method="scipy_solver", options={"solver": solver}, **TIGHT)
    exact = y0 * torch.exp(torch.sin(t[0]) - torch.sin(t)).reshape(-1, 1, 1)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6)
    assert found.dtype == y0.dtype


@pytest.mark.parametrize("library", [torchdiffeq, anode])
def test_callbacks_which_scipy_does_not_call_are_a_warning(library):
    class WithCallback(torch.nn.Module):
        def forward(self, t, y):
            return decay(t, y)

        def callback_step(self, t, y, dt):
            raise AssertionError("SciPy calls no callbacks")

    with pytest.warns(UserWarning, match="'scipy_solver' does not support .*callback_step"):
        library.odeint(WithCallback(), start(), TIMES, method="scipy_solver", options={"solver": "LSODA"})


def test_the_adjoint_is_integrated_by_scipy_too():
    found = []
    for library in (torchdiffeq, anode):
        rate, y0 = torch.ones(2, dtype=torch.float64, requires_grad=True), start().requires_grad_()
        ys = library.odeint_adjoint(
            lambda t, y, rate=rate: -rate * y,
            y0,
            TIMES,
            method="scipy_solver",
            adjoint_params=(rate,),
            **TIGHT,
        )
        ys.sum().backward()
        found.append((ys.detach(), y0.grad, rate.grad))
    for theirs, own in zip(*found, strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-6, atol=1e-6)


def test_odeint_does_not_record_it_as_in_torchdiffeq():
    for library in (torchdiffeq, anode):
        assert not library.odeint(decay, start().requires_grad_(), TIMES, method="scipy_solver").requires_grad


def test_tuples_and_their_tolerances_are_taken():
    y0 = torch.ones(2), torch.ones(3, 1)
    a, b = anode.odeint(lambda t, y: (-y[0], y[1]), y0, TIMES.float(), method="scipy_solver", rtol=(1e-6, 1e-5))
    assert (a.shape, b.shape) == ((5, 2), (5, 3, 1))
    assert a[-1, 0].item() == pytest.approx(math.exp(-2), rel=1e-4)


def test_a_single_time_returns_the_initial_state():
    assert torch.equal(anode.odeint(decay, start(), TIMES[:1], method="scipy_solver"), start()[None])


def test_a_stiff_problem_is_solved_by_an_implicit_method():
    calls = 0

    def stiff(t, y):
        nonlocal calls
        calls += 1
        return -1e5 * (y - torch.cos(t))

    y = anode.odeint(stiff, start(), TIMES, method="scipy_solver", options={"solver": "BDF"}, rtol=1e-5, atol=1e-7)[-1]
    torch.testing.assert_close(y, torch.cos(TIMES[-1]).expand(1, 2), rtol=1e-3, atol=1e-4)
    assert calls < 1000


def test_a_solution_that_blows_up_ends_with_an_error():
    with pytest.raises(anode.SolveError, match=r"NON_FINITE|UNDERFLOW"):
        anode.odeint(lambda t, y: y**2, start(), TIMES, method="scipy_solver", options={"solver": "RK45"})


def test_a_solve_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setattr("anode.interface.scipy_solver.MOST_EVALUATIONS", 500)
    with pytest.raises(anode.SolveError, match="MAX_STEPS"):
        anode.odeint(lambda t, y: y**2, start(), TIMES, method="scipy_solver")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"options": {"solver": "BFD"}}, "solver.*did you mean 'BDF'"),
        ({"event_fn": lambda t, y: y[0, 0], "t": TIMES[:2]}, "^method: takes a method of anode"),
    ],
)
def test_mistakes_are_named(arguments, said):
    with pytest.raises(ValueError, match=said):
        anode.odeint(decay, start(), arguments.pop("t", TIMES), method="scipy_solver", **arguments)
