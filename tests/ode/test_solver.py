import inspect
import json
import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

import anode
from anode import PID, Continuous, Solver, Tableau
from anode.ode.order import trees
from anode.ode.solver import SETTINGS
from anode.ode.tableaus import TABLEAUS

RALSTON = Tableau("ralston", 2, c=[0, 2 / 3], a=[[], [2 / 3]], b=[1 / 4, 3 / 4])
OWN = [
    Solver(),
    Solver(rtol=1e-7, atol=(1e-6, 1e-8), controller="pid", control=2, max_steps=7),
    Solver(RALSTON, step_size=0.1, gradient="stored", engine="torch"),
    Solver(controller=PID(p=0.1), gradient=Continuous(rtol=1e-4, seminorm=True), first_step=0.1, max_step=1.0),
    Solver(gradient=Continuous(method="bosh3"), min_step=1e-9, control="sample"),
]


@pytest.mark.parametrize("solver", OWN, ids=str)
def test_a_solver_comes_back_from_json_as_it_was(solver):
    text = json.dumps(solver.to_json(), allow_nan=False)
    assert Solver.from_json(json.loads(text)) == solver
    assert hash(Solver.from_json(json.loads(text))) == hash(solver)


@pytest.mark.parametrize("solver", OWN, ids=str)
def test_solvers_with_other_settings_are_not_equal(solver):
    assert [solver == other for other in OWN].count(True) == 1
    assert solver != solver.but(max_steps=solver.max_steps + 1)


def test_a_solver_prints_what_is_not_usual():
    assert repr(Solver()) == "Solver()"
    assert repr(Solver(rtol=1e-5, gradient="stored")) == "Solver(rtol=1e-05, gradient='stored')"


def test_objects_with_a_short_name_are_that_name():
    named = Solver(TABLEAUS["tsit5"], controller=PID(), gradient=anode.Stored())
    assert named == Solver("tsit5", controller="integral", gradient="stored")
    assert (named.method, named.controller, named.gradient) == ("tsit5", "integral", "stored")


def test_a_solver_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Solver().rtol = 1.0  # type: ignore[misc]


def test_tolerances_that_are_tensors_compare_by_their_values():
    assert Solver(rtol=torch.tensor([1e-3, 1e-4])) == Solver(rtol=torch.tensor([1e-3, 1e-4]))
    assert Solver(rtol=torch.tensor([1e-3, 1e-4])) != Solver(rtol=torch.tensor([1e-3, 1e-5]))
    assert Solver(rtol=torch.tensor(1e-3)) != Solver(rtol=1e-3)
    with pytest.raises(TypeError, match=r"rtol: only numbers, names, .* can be written as JSON, got tensor"):
        Solver(rtol=torch.tensor([1e-5])).to_json()


def test_a_controller_of_ones_own_is_refused_as_json_by_name():
    class Mine(anode.Controller):
        def start(self, order):
            return None

        def decide(self, ratio, memory):
            return ratio <= 1, 0.5, memory

    with pytest.raises(TypeError, match=r"controller: only .*PID.* can be written as JSON"):
        Solver(controller=Mine()).to_json()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "dopri"}, "method: takes one of .*; did you mean 'dopri"),
        ({"method": "rk4"}, "step_size: takes a number above 0 for method 'rk4'"),
        ({"rtol": 0.0}, "rtol: takes a number above 0, got 0.0"),
        ({"atol": math.inf}, "atol: takes a finite number, got inf"),
        ({"rtol": torch.tensor([1.0, -1.0])}, "rtol: takes numbers above 0"),
        ({"controller": "p"}, "controller: takes one of integral, pi, pid, got 'p'"),
        (
            {"controller": PID},
            r"controller: takes a name \(integral, pi, pid\) or an anode.Controller object",
        ),
        ({"method": 5}, r"method: takes a name .* or an anode.Tableau object, got 5"),
        ({"solver": "tsit5"}, "solver: takes an anode.Solver, or None"),
        ({"control": "samples"}, "control: takes one of .*; did you mean 'sample'"),
        ({"gradient": "exact"}, "gradient: takes one of discrete, stored, continuous, got 'exact'"),
        ({"max_steps": 0}, "max_steps: takes a whole number above 0"),
        ({"first_step": math.inf}, "first_step: takes a finite number"),
        ({"min_step": 2.0, "max_step": 1.0}, "min_step: takes at most 1.0"),
        ({"engine": "fast"}, "engine: takes 'auto', 'native', 'torch', got 'fast'"),
    ],
    ids=str,
)
def test_a_bad_setting_is_refused_by_name_wherever_it_is_given(settings, said):
    field = anode.MLPField(2)
    for make in (
        *(() if "solver" in settings else (lambda: Solver(**settings), lambda: Solver().but(**settings))),
        lambda: anode.Flow(field, **settings),
        lambda: anode.solve(field, torch.ones(3, 2), (0.0, 1.0), **settings),
    ):
        with pytest.raises(ValueError, match=said):
            make()


def test_an_unknown_setting_is_refused_with_the_nearest_name():
    for make in (lambda: Solver().but(rtoll=1.0), lambda: anode.Flow(anode.MLPField(2), rtoll=1.0)):
        with pytest.raises(
            TypeError, match=r"rtoll: is not (a setting of anode.Solver|an argument of Flow), .*did you mean 'rtol'"
        ):
            make()


def test_settings_take_the_place_of_those_of_a_solver():
    y0 = torch.ones(2, dtype=torch.float64)
    tight = Solver(rtol=1e-10, atol=1e-10)
    one = anode.solve(lambda t, y: -y, y0, (0.0, 1.0), solver=tight, method="tsit5")
    other = anode.solve(lambda t, y: -y, y0, (0.0, 1.0), rtol=1e-10, atol=1e-10, method="tsit5")
    assert torch.equal(one.y1, other.y1)
    assert one.stats == other.stats


def test_help_lists_every_setting():
    assert set(SETTINGS) <= set(inspect.signature(anode.solve).parameters)
    assert all(f"{name}:" in anode.Solver.__doc__ or f"{name}," in anode.Solver.__doc__ for name in SETTINGS)


def test_a_stacked_field_has_one_step_size_per_member_unless_told_otherwise():
    fields = anode.stack([anode.MLPField(2) for _ in range(3)])
    y0 = torch.rand(3, 5, 2)
    assert anode.solve(fields, y0, (0.0, 1.0)).stats.nfe.shape == (3,)
    assert isinstance(anode.solve(fields, y0, (0.0, 1.0), control="joint").stats.nfe, int)


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_a_method_of_ones_own_is_solved_by_both_engines(engine):
    if engine == "native":
        pytest.importorskip("anode._native")
    field = anode.MLPField(2, activation="tanh").double()
    y0 = torch.rand(5, 2, dtype=torch.float64)
    exact = anode.solve(field, y0, (0.0, 1.0), rtol=1e-11, atol=1e-11).y1
    solve = [anode.solve(field, y0, (0.0, 1.0), method=RALSTON, step_size=h, engine=engine) for h in (0.1, 0.05)]
    assert solve[0].engine.name == engine
    coarse, fine = (float((each.y1 - exact).abs().max().detach()) for each in solve)
    assert coarse / fine == pytest.approx(4, rel=0.2)  # second order


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"c": (0.0,)}, "c: takes 2 values, one per weight in b"),
        ({"a": ((), (0.5, 0.5))}, r"a: takes rows of \[0, 1\] weights, or a square .*, got rows of \[0, 2\]$"),
        ({"a": ((0.0, 0.5), (1.0, 0.0))}, r"a: takes rows of \[0, 1\] weights, or a square .*, got rows of \[2, 2\]$"),
        ({"a": 3}, "a: takes a sequence of numbers, got 3"),
        ({"c": 0}, "c: takes a sequence of numbers, got 0"),
        ({"b": ("a", "b")}, r"b: takes numbers, got \('a', 'b'\)"),
        ({"name": 3}, "name: takes a text, got 3"),
        ({"order": -3}, "order: takes a whole number above 0, got -3"),
        ({"order": "3"}, "order: takes a whole number above 0, got '3'"),
        ({"order": 3}, "order: takes at most 2, which is the order that these weights give, got 3"),
        ({"a": ((), (0.5,))}, "a: takes weights that add up to c"),
        ({"b": (0.5, 0.6)}, "b: takes weights that add up to 1"),
        ({"error": (0.5, 0.5)}, "error: takes weights that add up to 0"),
        ({"error": (0.5, -0.5, 0.0)}, "error: takes 2 weights"),
        ({"polynomials": ((1.0,),)}, "polynomials: takes 3, one per slope"),
        ({"b": ()}, "b: takes at least one weight"),
    ],
    ids=str,
)
def test_a_tableau_that_does_not_fit_together_is_refused(change, said):
    given = {"name": "mine", "order": 2, "c": (0.0, 1.0), "a": ((), (1.0,)), "b": (0.5, 0.5)}
    with pytest.raises(ValueError, match=said):
        Tableau(**{**given, **change})


@pytest.mark.parametrize("tableau", TABLEAUS.values(), ids=TABLEAUS)
def test_every_method_has_the_order_it_says(tableau):
    assert tableau.order_conditions(up_to=9 if tableau.order == 8 else 8).order == tableau.order


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor], ids=["list", "numpy", "torch"])
def test_a_square_matrix_is_cut_to_its_lower_triangle(convert):
    square = [[0.0, 0.0, 0.0], [1 / 3, 0.0, 0.0], [0.0, 2 / 3, 0.0]]
    weights = {"c": [0.0, 1 / 3, 2 / 3], "a": square, "b": [1 / 4, 0.0, 3 / 4]}
    heun = Tableau("heun3", 3, **{name: convert(value) for name, value in weights.items()})
    if convert is not torch.tensor:  # which rounds to float32
        assert heun == TABLEAUS["heun3"]
    assert [len(row) for row in heun.a] == [0, 1, 2]


def test_tableaus_and_order_conditions_are_shown_in_short():
    assert repr(TABLEAUS["dopri5"]) == "Tableau('dopri5', order=5, slopes=6)"
    assert repr(TABLEAUS["heun2"].order_conditions(2)) == "OrderConditions(order=2, residuals=(0.0, 0.0))"


def test_coefficients_of_seven_digits_are_accepted():
    Tableau("heun3", 3, c=(0.0, 0.3333333, 0.6666667), a=((), (0.3333333,), (0.0, 0.6666667)), b=(0.25, 0.0, 0.75))


def test_a_method_that_claims_too_much_is_found_out():
    midpoint = Tableau("midpoint", 2, c=(0.0, 0.5), a=((), (0.5,)), b=(0.0, 1.0))
    conditions = midpoint.order_conditions(up_to=4)
    assert conditions.order == 2
    assert conditions.residuals[2] == pytest.approx(1 / 6)  # of the tree whose weight is 0


def test_rooted_trees_are_counted_as_by_cayley():
    assert [len(trees(n)) for n in range(1, 9)] == [1, 1, 2, 4, 9, 20, 48, 115]
    assert all(len(set(trees(n))) == len(trees(n)) for n in range(1, 9))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, ""),
        ({"engine": "torch"}, 'engine="torch" was asked for'),
        ({"gradient": "stored"}, ""),
        ({"gradient": "continuous"}, 'gradient="continuous" is not compiled'),
        ({"event": lambda t, y: y[0, 0] + 100}, "there is an event"),
    ],
)
def test_a_solution_says_who_did_the_work_and_why(settings, why, monkeypatch):
    pytest.importorskip("anode._native")
    monkeypatch.delenv("ANODE_ENGINE")
    solution = anode.solve(anode.MLPField(2), torch.rand(3, 2), (0.0, 1.0), **settings)
    assert (solution.engine.name, solution.engine.obstacle) == ("torch" if why else "native", why)
    says = f"torch ({why}{'; f is compiled' if solution.engine.compiled else ''})"
    assert solution.engine.compiled == (bool(why) and "engine" not in settings)
    assert str(solution.engine) == (says if why else "native")


class LastState(anode.Gradient):
    """The gradient of one Euler step over the whole span, whatever steps were taken."""

    def solve(self, problem):
        with torch.no_grad():
            trace = problem.integrate(problem.y0)
        t, span = torch.tensor(problem.plan.times[0]), problem.plan.times[-1] - problem.plan.times[0]
        guess = problem.y0 + span * problem.rate(t, problem.y0)
        last = trace.y + guess - guess.detach()
        return problem.solution(trace, [o + guess - guess.detach() for o in trace.outputs], last, self.name)


def test_a_gradient_of_ones_own_runs_itself():
    y0 = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    solution = anode.solve(lambda t, y: -0.5 * y, y0, (0.0, 1.0), gradient=LastState(), rtol=1e-8)
    assert solution.gradient == "laststate"
    assert solution.y1[0].item() == pytest.approx(math.exp(-0.5), rel=1e-6)
    torch.testing.assert_close(torch.autograd.grad(solution.y1.sum(), y0)[0], torch.full((2,), 0.5).double())
