"""Plans that are used again by later solves must not remember anything of the earlier ones."""

import gc
import weakref
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import anode
from anode.ode import plans


def decay(t, y):
    return -y


def test_solves_that_ask_for_the_same_share_a_plan(monkeypatch):
    made = []
    real = anode.Solver.plan
    monkeypatch.setattr(anode.Solver, "plan", lambda self, *args, **how: made.append(1) or real(self, *args, **how))
    monkeypatch.setattr(plans, "PLANS", plans.Recent(8))
    for y0 in (torch.ones(3), torch.zeros(3) + 0.5, torch.ones(4)):
        anode.solve(decay, y0, (0.0, 1.0), rtol=1e-5)
        anode.odeint(decay, y0, torch.tensor([0.0, 1.0]), rtol=1e-5)
    assert len(made) == 4  # two functions, two shapes


@pytest.mark.parametrize(
    "change", [{"rtol": 1e-3}, {"atol": 1e-2}, {"method": "bosh3"}, {"options": {"first_step": 0.3}}, {"t": 2.0}]
)
def test_whatever_is_asked_for_otherwise_is_done(change):
    def cost(t=1.0, **options):
        calls = []

        def f(t, y):
            calls.append(float(t))
            return -y

        y1 = anode.odeint(f, torch.ones(3), torch.tensor([0.0, t]), **{"rtol": 1e-7, "atol": 1e-9, **options})[-1]
        return calls, y1.tolist()

    first = cost()
    assert cost(**change) != first
    assert cost() == first


def test_a_tolerance_that_is_changed_in_place_counts_from_then_on():
    atol = (torch.tensor([1e-8]), torch.tensor([1e-8]))
    solver = anode.Solver(rtol=1e-12, atol=atol)
    state = (torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))

    def nfe():
        return anode.solve(lambda t, y: (-y[0], -y[1]), state, (0.0, 1.0), solver=solver).stats.nfe

    before = nfe()
    for part in atol:
        part.fill_(1e-2)
    assert nfe() < before


def test_no_state_is_kept_alive():
    y0 = torch.ones(1000, 3)
    gone = weakref.ref(y0)
    anode.odeint(decay, y0, torch.tensor([0.0, 1.0]))
    anode.solve(decay, y0, (0.0, 1.0))
    del y0
    gc.collect()
    assert gone() is None


def test_integers_and_truth_values_are_no_numbers_with_a_point():
    y0 = torch.ones(3)
    anode.solve(decay, y0, (0.0, 1.0), rtol=1.0, max_steps=1)
    with pytest.raises((TypeError, ValueError), match="rtol"):
        anode.solve(decay, y0, (0.0, 1.0), rtol=True, max_steps=1)


def test_parameters_that_become_of_another_precision_are_noticed():
    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 3)

        def forward(self, t, y):
            return self.net(y.to(self.net.weight.dtype)).to(y.dtype)

    f, y0 = Field(), torch.ones(5, 3)
    for _ in range(2):
        anode.solve(f, y0, (0.0, 1.0))
    f.double()
    solution = anode.solve(f, y0, (0.0, 1.0))
    expected = anode.solve(f, y0, (0.0, 1.0), engine="torch")
    torch.testing.assert_close(solution.y1, expected.y1)


def test_what_is_prepared_for_many_fields_is_forgotten():
    y0, gone = torch.ones(5, 3), []
    for _ in range(40):
        f = nn.Linear(3, 3)
        anode.solve(nn.Sequential(f), y0, (0.0, 1.0))
        gone.append(weakref.ref(f))
    del f
    gc.collect()
    assert sum(ref() is not None for ref in gone) <= 1
    made = next(reversed(plans.PLANS._values.values()))
    assert len(made.plan.prepared._values) <= 16


def test_every_solve_uses_the_gradient_that_it_was_given_and_no_equal_one():
    @dataclass
    class Counted(anode.Gradient):
        solves: list = field(default_factory=list, compare=False)

        def solve(self, problem):
            self.solves.append(1)
            return problem.unrecorded()

    first, second = Counted(), Counted()
    assert first == second
    for gradient in (first, second):
        anode.solve(decay, torch.ones(3, requires_grad=True), (0.0, 1.0), solver=anode.Solver(gradient=gradient))
    assert (len(first.solves), len(second.solves)) == (1, 1)


@pytest.mark.parametrize("span", [(-0.0, 1.0), (0.0, 1.0), [-0.0, 1.0]])
def test_zeros_among_the_times_are_positive(span):
    assert str(anode.solve(decay, torch.ones(3), span).times) == "[0.0, 1.0]"


def test_a_wrong_argument_is_refused_though_the_others_were_checked_before():
    y0 = torch.ones(3)
    anode.solve(decay, y0, (0.0, 1.0), event=lambda t, y: y.min() - 0.5)
    for wrong in ({"event": 5}, {"norm": 3}, {"dense": 1}, {"rtol": "1e-3"}, {"step_at": 0.5}, {"params": 3}):
        with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
            anode.solve(decay, y0, (0.0, 1.0), **wrong)
