"""The errors of torchdiffeq's functions name the arguments of torchdiffeq's functions."""

import re

import pytest
import torch

import anode
from anode import odeint, odeint_adjoint, odeint_event

Y, SPAN = torch.ones(2), torch.tensor([0.0, 1.0])
OURS = re.compile(r"\b(f|max_steps|step_at|t_span|save_at|params)\b")


def stiff(t, y):
    return -1e7 * (y - torch.cos(t))


def noisy(t, y):
    return torch.randn(2)


ERRORS = {
    "jump": (lambda: odeint(lambda t, y: y**2, Y, 2 * SPAN), "list the jumps in options={'jump_t'"),
    "steps": (lambda: odeint(lambda t, y: -y, Y, SPAN, options={"max_num_steps": 1}), "{'max_num_steps'.*func has"),
    "not finite": (lambda: odeint(lambda t, y: y / 0, Y, SPAN), "func returned NaN"),
    "stiff": (lambda: odeint(stiff, Y, 100 * SPAN, options={"max_num_steps": 500}), "Radau.*func.*max_num_steps"),
    "random": (lambda: odeint(noisy, Y, SPAN, options={"max_num_steps": 50}), "func returns.*options={'step_size'"),
    "shape": (lambda: odeint(lambda t, y: torch.ones(3), Y, SPAN), "func must return a tensor of shape"),
    "tuple": (lambda: odeint(lambda t, y: y[:1], (Y, Y), SPAN), "func must return slopes of"),
    "complex": (lambda: odeint(lambda t, y: y * 1j, Y, SPAN), "func must return"),
    "writes": (lambda: odeint(lambda t, y: y.mul_(2), Y, SPAN), "func must not modify its state"),
    "arguments": (lambda: odeint(lambda y: y, Y, SPAN), r"func: .* called as func\(t, y\).*lambda t, y: func\(y\)"),
    "module": (lambda: odeint(torch.nn.Linear(2, 2), Y, SPAN), r"pass torch.nn.Sequential\(func\)"),
    "event": (lambda: odeint_event(noisy, Y, SPAN[0], event_fn=lambda t, y: 1.0), r"event_fn: .* event_fn\(t, y\)"),
    "times": (lambda: odeint(noisy, Y, SPAN, options={"jump_t": ["now"]}), "options\\['jump_t'\\]: takes .* times"),
    "adjoint": (
        lambda: odeint_adjoint(noisy, Y, SPAN, adjoint_params=(), options={"max_num_steps": 50}),
        "func returns different values",
    ),
    "no event": (
        lambda: odeint_event(
            lambda t, y: -y, Y, SPAN[0], event_fn=lambda t, y: y + 1, method="euler", options={"step_size": 1e-4}
        ),
        "enlarge options={'step_size'",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_torchdiffeqs_functions_uses_their_words(name):
    call, said = ERRORS[name]
    with pytest.raises((TypeError, ValueError, anode.SolveError), match=said) as caught:
        call()
    assert not OURS.search(str(caught.value).replace("torch.nn", "")), caught.value


def test_an_error_of_scipys_solver_suggests_no_option_that_it_lacks():
    from anode.interface import scipy_solver

    failed = anode.solve(lambda t, y: y**2, Y, (0.0, 2.0))
    failed.names = scipy_solver.WORDS
    with pytest.raises(anode.SolveError, match="or solve from jump to jump"):
        failed.check()


def test_an_error_of_solve_keeps_its_own_words():
    with pytest.raises(anode.SolveError, match="list the jumps in step_at"):
        anode.solve(lambda t, y: y**2, Y, (0.0, 2.0)).check()
    with pytest.raises(anode.SolveError, match=r"raise max_steps, .* whether f has") as caught:
        anode.solve(lambda t, y: -y, Y, (0.0, 1.0), max_steps=1).check()
    assert "max_num_steps" not in str(caught.value)
