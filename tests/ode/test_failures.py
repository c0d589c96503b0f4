import math
import pickle
import re

import pytest
import torch

import anode
from anode import SolveError, Status
from anode.ode.tableaus import TABLEAUS

ADAPTIVE = [method for method in anode.METHODS if TABLEAUS[method].adaptive]


def ones(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def decay(t, y):
    return -y


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize(
    ("f", "error"),
    [
        (lambda t, y: y[:, :1], ValueError),
        (lambda t, y: y[:1], ValueError),
        (lambda t, y: y.sum(), ValueError),
        (lambda t, y: y.unsqueeze(0), ValueError),
        (lambda t, y: y.flatten(), ValueError),
        (lambda t, y: y.float(), ValueError),
        (lambda t, y: y.tolist(), TypeError),
        (lambda t, y: (y,), TypeError),
        (lambda t, y: 0.0, TypeError),
        (lambda t, y: None, TypeError),
    ],
    ids=["one column", "one row", "scalar", "extra dim", "flat", "float32", "list", "tuple", "number", "nothing"],
)
def test_an_f_that_returns_something_else_than_a_slope_is_an_error(f, error, control, grad):
    with pytest.raises(error, match="f must return"):
        anode.solve(f, ones(3, 2).requires_grad_(grad), (0.0, 1.0), control=control)


def test_an_f_whose_result_changes_shape_later_is_an_error():
    with pytest.raises(ValueError, match="f must return"):
        anode.solve(lambda t, y: y if t < 0.5 else y[:1], ones(3), (0.0, 1.0))


@pytest.mark.parametrize("grad", [True, False])
def test_a_field_that_returns_a_slope_of_the_wrong_shape_is_an_error(grad):
    class Wrong(anode.Field):
        def __init__(self):
            super().__init__()
            self.rate = torch.nn.Parameter(ones(1), requires_grad=grad)

        def forward(self, t, y):
            return y[:, :1] * self.rate

    with pytest.raises(ValueError, match="f must return"):
        anode.solve(Wrong(), ones(3, 2), (0.0, 1.0))


@pytest.mark.parametrize("gradient", ["discrete", "stored"])
def test_a_field_given_the_wrong_number_of_features_is_an_error_that_names_them(gradient):
    with pytest.raises(ValueError, match="h: "):
        anode.solve(anode.MLPField(2).double(), ones(3, 5), (0.0, 1.0), gradient=gradient)


@pytest.mark.parametrize(
    "f",
    [
        lambda t, y: (y[0],),
        lambda t, y: y[0],
        lambda t, y: (*y, y[0]),
        lambda t, y: (y[0], y[0]),
        lambda t, y: (y[0], y[1].float()),
        lambda t, y: (y[0], 0.0),
    ],
    ids=["short", "tensor", "long", "shape", "dtype", "number"],
)
def test_an_f_that_returns_something_else_than_a_tuple_of_slopes_is_an_error(f):
    with pytest.raises((TypeError, ValueError), match="f must return"):
        anode.solve(f, (ones(3), ones(2, 2)), (0.0, 1.0))


@pytest.mark.parametrize(
    "y0",
    [
        torch.tensor([1.0, math.nan]),
        (torch.ones(2), torch.tensor([math.inf])),
        torch.ones(0),
        torch.ones(0, 3),
        (),
        torch.ones(3, dtype=torch.int64),
        torch.ones(3, dtype=torch.bool),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        1.0,
        [1.0, 2.0],
        None,
    ],
    ids=["nan", "inf", "empty", "no rows", "no parts", "int", "bool", "mixed", "number", "list", "nothing"],
)
@pytest.mark.parametrize("control", ["joint", "sample"])
def test_a_bad_initial_state_is_an_error_that_names_it(y0, control):
    with pytest.raises((TypeError, ValueError), match="y0"):
        anode.solve(decay, y0, (0.0, 1.0), control=control)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("t_span", (0.0,)),
        ("t_span", (0.0, 0.5, 1.0)),
        ("t_span", (0.0, math.nan)),
        ("t_span", (math.nan, 1.0)),
        ("t_span", (math.inf, 1.0)),
        ("t_span", (0.0, math.inf)),
        ("t_span", (0.0, -math.inf)),
        ("t_span", torch.tensor([0.0, 0.5, 1.0])),
        ("t_span", 1.0),
        ("t_span", None),
        ("save_at", [0.5, 0.25]),
        ("save_at", [0.5, 0.5]),
        ("save_at", [-0.5, 0.5]),
        ("save_at", [0.5, 1.5]),
        ("save_at", [0.5, math.nan]),
        ("save_at", torch.tensor([1.0, 0.5])),
        ("save_at", 0.5),
        ("rtol", 0.0),
        ("rtol", -1e-3),
        ("rtol", math.nan),
        ("rtol", torch.tensor([1e-3, 0.0])),
        ("rtol", (1e-3, 1e-3)),
        ("rtol", torch.full((3,), 1e-3)),
        ("rtol", "small"),
        ("atol", 0.0),
        ("atol", -1e-3),
        ("atol", math.nan),
        ("atol", torch.tensor([1e-3, math.nan])),
        ("max_steps", 0),
        ("max_steps", -1),
        ("max_steps", 2.5),
        ("first_step", 0.0),
        ("first_step", -0.1),
        ("first_step", math.nan),
        ("min_step", -0.1),
        ("min_step", math.nan),
        ("max_step", 0.0),
        ("max_step", -1.0),
        ("step_size", 0.0),
        ("step_size", -0.1),
        ("step_size", math.nan),
        ("step_size", math.inf),
        ("control", "Sample"),
        ("control", 2),
        ("control", -1),
        ("control", None),
        ("method", None),
        ("method", 5),
        ("controller", "something"),
        ("controller", None),
        ("gradient", "adjoint of some kind"),
        ("gradient", None),
    ],
    ids=repr,
)
@pytest.mark.parametrize("grad", [True, False])
def test_a_bad_argument_is_an_error_that_names_it(name, value, grad):
    arguments = {"t_span": (0.0, 1.0), name: value}
    with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b"):
        anode.solve(decay, ones(2).requires_grad_(grad), **arguments)


@pytest.mark.parametrize(
    ("name", "wrong", "near"),
    [
        ("method", "dorpi5", "dopri5"),
        ("method", "tsit", "tsit5"),
        ("method", "rk", "rk4"),
        ("controller", "integrl", "integral"),
        ("gradient", "discreet", "discrete"),
        ("gradient", "continous", "continuous"),
        ("control", "samples", "sample"),
        ("control", "members", "member"),
    ],
)
def test_an_unknown_name_is_an_error_that_suggests_the_nearest(name, wrong, near):
    with pytest.raises(ValueError, match=rf"{name}: .*{wrong}.*did you mean '{near}'"):
        anode.solve(decay, ones(2, 2), (0.0, 1.0), **{name: wrong})


@pytest.mark.parametrize("method", [method for method in anode.METHODS if method not in ADAPTIVE])
def test_a_method_without_an_error_estimate_asks_for_a_step_size(method):
    with pytest.raises(ValueError, match=rf"step_size.*{method}"):
        anode.solve(decay, ones(2), (0.0, 1.0), method=method)


@pytest.mark.parametrize("control", ["member", "sample", 1])
@pytest.mark.parametrize(
    ("name", "value"),
    [("norm", torch.linalg.vector_norm), ("event", lambda t, y: y.sum() - 0.5), ("step_at", [0.5])],
    ids=["norm", "event", "step_at"],
)
def test_what_needs_one_step_size_refuses_several(name, value, control):
    with pytest.raises(ValueError, match=rf"{name}.*joint"):
        anode.solve(decay, ones(3, 2), (0.0, 1.0), control=control, **{name: value})


@pytest.mark.parametrize("option", [{"dense": True}, {"event": lambda t, y: y.sum() - 0.5}], ids=["dense", "event"])
def test_what_needs_the_steps_refuses_the_continuous_adjoint(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        anode.solve(decay, ones(2).requires_grad_(), (0.0, 1.0), gradient="continuous", **option)


def test_components_that_share_no_groups_are_an_error_that_names_control():
    with pytest.raises(ValueError, match="control"):
        anode.solve(lambda t, y: y, (ones(3, 2), ones(2, 2)), (0.0, 1.0), control="sample")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"t_span": "01"}, "t_span: takes a sequence of times, got '01'"),
        ({"t_span": ("0", "1")}, r"t_span: takes a sequence of numbers, got \('0', '1'\)"),
        ({"save_at": "a"}, "save_at: takes a sequence of times, got 'a'"),
        ({"save_at": [None]}, r"save_at: takes a sequence of numbers, got \[None\]"),
        ({"step_at": "x"}, "step_at: takes a sequence of times, got 'x'"),
        ({"step_at": 0.5}, "step_at: takes a sequence of times, got 0.5"),
        ({"dense": 3}, "dense: takes True or False, got 3"),
        ({"event": lambda t, y: None}, r"event: takes a function event\(t, y\) .*, got .*returned a NoneType"),
        ({"event": lambda t, y: y > 0}, r"event: takes a function event\(t, y\) .*, got .*torch\.bool"),
        ({"norm": lambda error: None}, r"norm: takes a function norm\(error\) .* one number, got .* a NoneType"),
        ({"norm": lambda error: error}, r"norm: takes a function norm\(error\) .* one number, got .* \(3, 2\)"),
        ({"y0": [1.0, 2.0]}, r"y0: takes a tensor .*, got a list of 2 numbers; convert it with torch\.tensor\("),
        ({"y0": 1.0}, r"y0: takes a tensor .*, got a float; convert it with torch\.tensor\("),
        ({"y0": (torch.ones(2), 1.0)}, "y0: takes a tensor or a tuple of tensors, got a float"),
    ],
    ids=range(14),
)
def test_an_argument_that_cannot_be_used_is_named(options, said):
    with pytest.raises((ValueError, TypeError), match=f"^{said}"):
        anode.solve(**{"f": decay, "y0": ones(3, 2), "t_span": (0.0, 1.0), **options})


def test_a_norm_may_return_a_number_of_python():
    assert anode.solve(decay, ones(3, 2), (0.0, 1.0), norm=lambda error: error.abs().max().item()).success


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize(
    ("f", "said"),
    [
        (torch.nn.Linear(2, 2).double(), r"got Linear\(input.*too many positional .*; .*pass torch.nn.Sequential\(f\)"),
        (lambda y: y, r"got .*<lambda>\(y\): too many positional .*; .*pass lambda t, y: f\(y\)"),
        (lambda t, y, z: y, r"got .*<lambda>\(t, y, z\): missing a required argument: 'z'$"),
    ],
    ids=["module", "one", "three"],
)
def test_an_f_with_another_number_of_arguments_is_told_how_it_is_called(f, said, engine):
    calls = (
        lambda: anode.solve(f, ones(3, 2), (0.0, 1.0), engine=engine),
        lambda: anode.solve(lambda t, y: f(t, y) if t < 0 else y + "text", ones(3, 2), (0.0, 1.0), engine=engine),
    )
    with pytest.raises(TypeError, match=rf"^f: takes a function that can be called as f\(t, y\), {said}") as found:
        calls[0]()
    assert "argument" in str(found.value.__cause__)  # Python's own error
    with pytest.raises(TypeError, match=r"unsupported operand|can't convert|must be Tensor"):  # of f itself
        calls[1]()


def test_an_exception_inside_f_reaches_the_caller():
    def f(t, y):
        if t > 0.5:
            raise ZeroDivisionError("of f itself")
        return y

    with pytest.raises(ZeroDivisionError, match="of f itself"):
        anode.solve(f, ones(2).requires_grad_(), (0.0, 1.0))


# -------------------------------------------------------------------------------------------------------- failed solves


def nan_after(limit: float):
    return lambda t, y: torch.where(t > limit, math.nan, -y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("method", ADAPTIVE)
def test_a_solution_that_blows_up_ends_in_underflow_near_the_pole(method, control, dtype):
    calls = 0

    def f(t, y):
        nonlocal calls
        calls += 1
        return y * y

    solution = anode.solve(f, ones(1, 1, dtype=dtype), (0.0, 2.0), method=method, control=control)
    # Close to the pole a stage may leave the range of float32 before time stands still.
    allowed = {Status.UNDERFLOW, Status.NON_FINITE} if dtype == torch.float32 else {Status.UNDERFLOW}
    assert Status(int(solution.status)) in allowed
    assert float(solution.t1) == pytest.approx(1.0, abs=0.1)
    assert solution.y1.isfinite().all()
    assert solution.y1.item() > 1e5
    assert calls < 50_000


@pytest.mark.parametrize("gradient", ["discrete", "stored", "continuous", "none"])
@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("method", ADAPTIVE)
def test_an_f_that_turns_to_nan_ends_there_and_keeps_the_finite_part(method, control, gradient):
    y0 = ones(1, 2)
    if gradient != "none":
        y0, how = y0.requires_grad_(), {"gradient": gradient}
    else:
        how = {}
    solution = anode.solve(nan_after(0.5), y0, (0.0, 1.0), method=method, control=control, save_at=[0.2, 0.7], **how)
    assert Status(int(solution.status)) is Status.NON_FINITE
    assert float(solution.t1) == pytest.approx(0.5, abs=1e-6)
    torch.testing.assert_close(solution.y1, torch.full_like(y0, math.exp(-0.5)), rtol=1e-2, atol=0.0)
    assert solution.ys[0].isfinite().all()
    assert solution.ys[1].isnan().all()


@pytest.mark.parametrize("control", ["joint", "sample"])
def test_steps_of_the_smallest_size_are_not_accepted_into_nan(control):
    solution = anode.solve(nan_after(0.5), ones(1, 2), (0.0, 1.0), min_step=1e-3, control=control)
    assert Status(int(solution.status)) is Status.NON_FINITE
    assert solution.y1.isfinite().all()
    assert float(solution.t1) <= 0.5


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_an_f_that_is_never_finite_ends_where_it_began(method, value, control):
    options = {"method": method, "step_size": 0.1 if method == "rk4" else None, "control": control}
    solution = anode.solve(lambda t, y: y * value, ones(1, 2), (0.5, 1.0), **options)
    assert Status(int(solution.status)) is Status.NON_FINITE
    assert float(solution.t1) == 0.5
    assert torch.equal(solution.y1, ones(1, 2))
    assert int(solution.stats.accepted) == 0


@pytest.mark.parametrize("control", ["joint", "sample"])
def test_a_stiff_problem_beyond_the_budget_ends_in_max_steps(control):
    solution = anode.solve(lambda t, y: -1e6 * (y - t), ones(1, 1), (0.0, 1.0), max_steps=100, control=control)
    assert Status(int(solution.status)) is Status.MAX_STEPS
    assert int(solution.stats.accepted + solution.stats.rejected) == 100
    assert 0 < float(solution.t1) < 1
    assert solution.y1.isfinite().all()


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("method", ["euler", "rk4", "dopri5"])
def test_steps_of_a_given_size_that_overflow_end_in_non_finite(method, control):
    solution = anode.solve(
        lambda t, y: y**3, 2 * ones(1, 1), (0.0, 10.0), method=method, step_size=0.5, control=control, save_at=[0.5, 9]
    )
    assert Status(int(solution.status)) is Status.NON_FINITE
    assert 0 < float(solution.t1) < 10
    assert solution.y1.isfinite().all()
    assert solution.ys[0].isfinite().all()
    assert solution.ys[1].isnan().all()


@pytest.mark.parametrize("control", ["joint", "sample"])
def test_steps_of_a_given_size_keep_to_the_budget(control):
    options = {"method": "euler", "step_size": 0.1, "max_steps": 4, "control": control}
    solution = anode.solve(lambda t, y: torch.ones_like(y), ones(1, 1), (0.0, 1.0), **options)
    assert Status(int(solution.status)) is Status.MAX_STEPS
    assert float(solution.t1) == pytest.approx(0.4)
    assert solution.y1.item() == pytest.approx(1.4)


@pytest.mark.slow
@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("engine", ["torch", "native"])
def test_a_state_that_overflows_between_finite_slopes_is_not_a_success(control, engine):
    if engine == "native":
        pytest.importorskip("anode._native")
    constant = torch.nn.Sequential(torch.nn.Linear(1, 1))
    torch.nn.init.zeros_(constant[0].weight)
    torch.nn.init.constant_(constant[0].bias, 1e38)
    y0 = torch.full((1, 1), 3e38, dtype=torch.float32)
    solution = anode.solve(constant, y0, (0.0, 10.0), control=control, engine=engine)
    assert Status(int(solution.status)) is Status.NON_FINITE
    assert solution.y1.isfinite().all()


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("controller", ["integral", "pi", "pid"])
def test_a_slope_of_zero_is_no_failure(controller, control):
    solution = anode.solve(lambda t, y: 0 * y, ones(1, 1), (0.0, 100.0), controller=controller, control=control)
    assert solution.success
    assert torch.equal(solution.y1, ones(1, 1))


def test_an_event_ends_steps_of_a_given_size_on_an_infinite_span():
    event, options = (lambda t, y: y[0] - 0.5), {"method": "rk4", "step_size": 0.1}
    solution = anode.solve(decay, ones(1), (0.0, math.inf), event=event, **options)
    assert solution.success
    assert float(solution.t1) == pytest.approx(math.log(2), abs=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("grad", [False, True])
def test_outputs_are_nan_exactly_where_the_solve_did_not_reach(grad, control, reverse):
    sign = -1.0 if reverse else 1.0
    times = [sign * t for t in (0.0, 0.1, 0.3, 0.499, 0.6, 1.0)]
    y0 = (ones(2, 2).requires_grad_(grad), ones(2, 3))

    def f(t, state):
        return tuple(torch.where(sign * t > 0.5, math.nan, sign * part) for part in state)

    solution = anode.solve(f, y0, (0.0, sign), save_at=times, control=control)
    for part in solution.ys:
        assert part.isnan().flatten(1).all(1).tolist() == [abs(t) > 0.5 for t in times]
        assert part.isnan().flatten(1).any(1).tolist() == [abs(t) > 0.5 for t in times]
    reached = torch.as_tensor(solution.t1).abs()
    assert (reached - 0.5).abs().max() < 1e-6


def test_without_saved_times_a_failed_solve_has_nan_at_the_end_of_the_span():
    solution = anode.solve(nan_after(0.5), ones(2), (0.0, 1.0))
    assert solution.ts.tolist() == [0.0, 1.0]
    assert torch.equal(solution.ys[0], ones(2))
    assert solution.ys[1].isnan().all()
    assert solution.y1.isfinite().all()


@pytest.mark.parametrize("gradient", ["discrete", "stored", "none"])
def test_only_the_bad_samples_fail(gradient):
    kinds = torch.tensor([[0.0], [1.0], [2.0], [3.0], [0.0]], dtype=torch.float64)

    def f(t, y):
        slow, pole = -y, y * y
        nan = torch.where(t > 0.25, math.nan, -y)
        stiff = -1e7 * (y - torch.cos(t))
        return torch.where(kinds == 0, slow, torch.where(kinds == 1, pole, torch.where(kinds == 2, nan, stiff)))

    how = {} if gradient == "none" else {"gradient": gradient}
    y0 = ones(5, 1).requires_grad_(gradient != "none")
    solution = anode.solve(f, y0, (0.0, 2.0), control="sample", max_steps=400, save_at=[0.2, 1.9], **how)
    expected = [Status.SUCCESS, Status.UNDERFLOW, Status.NON_FINITE, Status.MAX_STEPS, Status.SUCCESS]
    assert [Status(s) for s in solution.status.tolist()] == expected
    assert not solution.success
    good = [0, 4]
    torch.testing.assert_close(solution.y1[good], torch.full((2, 1), math.exp(-2)).double(), rtol=5e-3, atol=0.0)
    assert solution.t1[good].tolist() == [2.0, 2.0]
    assert solution.t1[1:4].tolist() == pytest.approx([1.0, 0.25, solution.t1[3].item()], abs=1e-3)
    assert solution.y1.isfinite().all()
    assert solution.ys.isnan().squeeze(-1).tolist() == [
        [False, False, False, True, False],
        [False, True, True, True, False],
    ]


def test_check_returns_the_solution_of_a_solve_that_succeeded():
    solution = anode.solve(decay, ones(2), (0.0, 1.0))
    assert solution.success
    assert solution.check() is solution


@pytest.mark.parametrize("kind", [RuntimeError, AssertionError])
def test_check_raises_an_error_with_help_and_the_part_that_was_solved(kind):
    solution = anode.solve(nan_after(0.5), ones(2), (0.0, 1.0))
    assert not solution.success
    with pytest.raises(kind, match=r"t = 0\.5.*NON_FINITE") as caught:
        solution.check()
    assert isinstance(caught.value, SolveError)
    assert caught.value.solution is solution
    assert Status.NON_FINITE.help in str(caught.value)


def test_check_says_how_many_groups_failed_and_which_was_the_first():
    y0 = torch.tensor([[0.1], [1.0], [0.1], [2.0]])
    solution = anode.solve(lambda t, y: y * y, y0, (0.0, 2.0), control="sample", max_steps=200)
    with pytest.raises(SolveError, match=re.escape("2 of 4 groups (first: 1)")):
        solution.check()


def test_every_status_comes_with_help_of_its_own():
    texts = [status.help for status in Status]
    assert len(set(texts)) == len(Status)
    assert all(len(text) > 20 for text in texts)


def test_statuses_compare_as_integers():
    assert Status.SUCCESS == 0
    assert torch.equal(torch.tensor([0, 2]) == Status.UNDERFLOW, torch.tensor([False, True]))


def test_an_f_that_changes_the_state_in_place_is_refused():
    with pytest.raises(ValueError, match="in place"):
        anode.solve(lambda t, y: y.mul_(-1.0), torch.ones(3), (0.0, 1.0))


def test_a_solution_and_a_status_print_as_one_line():
    solution = anode.solve(lambda t, y: -y, torch.ones(3), (0.0, 1.0))
    assert str(solution.status) == "SUCCESS"
    how = f"nfe: {solution.stats.nfe}, gradient: none, engine: torch"
    assert repr(solution) == f"Solution(SUCCESS, y1: (3,), 2 times, {how})"


@pytest.mark.parametrize("dense", [False, True])
def test_an_error_comes_through_to_another_process_with_what_was_solved(dense):
    y0 = torch.ones(2, requires_grad=True)
    solution = anode.solve(lambda t, y: y / (t - 0.5).relu(), y0, (0.0, 1.0), dense=dense)
    with pytest.raises(anode.SolveError) as caught:
        solution.check()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.solution.status == solution.status
    assert torch.equal(copy.solution.y1, solution.y1)


def test_a_tolerance_for_each_component_of_a_tuple_is_a_tuple():
    y0 = (torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match=r"rtol: takes a number, or a tuple with .* per component"):
        anode.solve(lambda t, y: y, y0, (0.0, 1.0), rtol=torch.tensor([1e-3, 1e-5]))


@pytest.mark.parametrize("gradient", ["discrete", "stored"])
@pytest.mark.parametrize("method", ["dopri5", "bosh3", "heun2", "rk4"])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_failed_group_leaves_the_gradients_of_its_neighbours_exact_and_has_none_itself(gradient, method, broken):
    y0 = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.5, 0.1]], dtype=torch.float64)
    rates = torch.tensor([[1.0], [broken], [2.0]], dtype=torch.float64)
    given = {"method": method, "control": "sample", "gradient": gradient, "save_at": [0.3, 1.0]}
    if method in ("heun2", "rk4"):
        given["step_size"] = 0.1

    def gradients(rows):
        x, k = (part[rows].clone().requires_grad_() for part in (y0, rates))
        solution = anode.solve(lambda t, y: -k * y, x, (0.0, 1.0), **given)
        healthy = [i for i, row in enumerate(rows) if row != 1]
        (solution.ys[:, healthy].pow(2).sum() + solution.y1[healthy].sum()).backward()
        return solution.status, x.grad, k.grad

    status, at_start, at_rates = gradients([0, 1, 2])
    assert status.tolist() == [Status.SUCCESS, Status.NON_FINITE, Status.SUCCESS]
    _, start_alone, rates_alone = gradients([0, 2])
    torch.testing.assert_close(at_start[[0, 2]], start_alone, rtol=1e-12, atol=0)
    torch.testing.assert_close(at_rates[[0, 2]], rates_alone, rtol=1e-12, atol=0)
    assert at_start[1].tolist() == [0, 0]


@pytest.mark.parametrize("gradient", ["discrete", "stored"])
def test_a_group_that_fails_on_the_way_keeps_the_gradient_of_what_it_solved(gradient):
    blowing_up = torch.tensor([[0.1], [2.0]], dtype=torch.float64, requires_grad=True)

    def f(t, y):  # no slope beyond 3, which only the second sample reaches
        return torch.where(y < 3, y, torch.nan)

    given = {"control": "sample", "gradient": gradient, "method": "heun2", "step_size": 0.05}
    solution = anode.solve(f, blowing_up, (0.0, 1.0), **given)
    assert solution.status.tolist() == [Status.SUCCESS, Status.NON_FINITE]
    first, second = torch.autograd.grad(solution.y1.sum(), blowing_up)[0].flatten().tolist()
    assert first == pytest.approx(math.e, rel=1e-3)
    assert second == pytest.approx(solution.y1[1].item() / 2.0, rel=1e-9)


@pytest.mark.parametrize("method", ["bosh3", "tsit5", "dopri5"])
def test_a_rejected_group_whose_end_slope_is_not_finite_leaves_stored_gradients_finite(method):
    found = []
    for gradient in ("stored", "discrete"):
        w = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
        y0 = torch.tensor([[0.3], [0.0]], dtype=torch.float64, requires_grad=True)
        settings = {"method": method, "control": "sample", "gradient": gradient, "first_step": 0.3}
        solution = anode.solve(
            lambda t, x, w=w: w * torch.log(1 - x) + 2 * w, y0, (0.0, 0.5), rtol=1e-2, atol=1e-2, **settings
        )
        assert solution.success
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(solution.y1.sum(), (y0, w))]))
    assert found[0].isfinite().all()
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("method", ["bosh3", "dopri5"])
def test_infinite_derivatives_on_the_way_to_failure_reach_nobody(method):
    w = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)

    def gradients(start):
        y0 = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        solution = anode.solve(
            lambda t, x: w * torch.asin(x), y0, (0.0, 1.0), method=method, control="sample", rtol=1e-3, atol=1e-3
        )
        return solution.status, *torch.autograd.grad(solution.y1[0].sum(), (y0, w))

    status, at_start, at_w = gradients([[0.3], [0.75]])
    assert status.tolist() == [Status.SUCCESS, Status.NON_FINITE]
    _, start_alone, w_alone = gradients([[0.3]])
    torch.testing.assert_close(at_start, torch.cat([start_alone, torch.zeros(1, 1, dtype=torch.float64)]))
    torch.testing.assert_close(at_w, w_alone)


def test_times_between_start_and_end_have_their_own_argument():
    with pytest.raises(ValueError, match="got 3 values; pass the times between them as save_at"):
        anode.solve(lambda t, y: -y, torch.ones(1), (0.0, 0.5, 1.0))
