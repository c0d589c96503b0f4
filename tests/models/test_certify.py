"""Whether the solves of a flow can be trusted."""

import math

import pytest
import torch
from torch import nn

import anode


class Rotation(nn.Module):
    """Turns the plane by an angle in all, which a solver has to follow."""

    def __init__(self, angle):
        super().__init__()
        self.angle = angle

    def forward(self, t, h):
        return self.angle * torch.stack([-h[..., 1], h[..., 0]], dim=-1)


class Explosion(nn.Module):
    """Reaches infinity before the end."""

    def forward(self, t, h):
        return 3 * h * h


def points(count=50, dtype=torch.float64):
    return torch.randn(count, 2, dtype=dtype, generator=torch.Generator().manual_seed(0))


def test_the_reconstruction_is_what_comes_back_over_the_size_of_the_states():
    flow, x = anode.Flow(Rotation(9.0), rtol=1e-2, atol=1e-2), points()
    back = flow.inverse(flow(x))
    typical = x.square().sum(1).mean().sqrt()
    check = flow.check(x)
    torch.testing.assert_close(check.reconstruction, (back - x).norm(dim=1) / typical)
    assert check.overall == pytest.approx(float(check.reconstruction.square().mean().sqrt()))


def test_the_error_is_that_against_the_exact_flow():
    flow, x = anode.Flow(Rotation(9.0), rtol=1e-3, atol=1e-3), points()
    turn = torch.tensor([[math.cos(9), math.sin(9)], [-math.sin(9), math.cos(9)]], dtype=torch.float64)
    wrong = (flow(x) - x @ turn).norm(dim=1) / x.square().sum(1).mean().sqrt()
    torch.testing.assert_close(flow.check(x).error, wrong, rtol=0.05, atol=1e-9)


def test_the_loosest_tolerance_that_passes_is_found():
    flow, x = anode.Flow(Rotation(20.0)), points()
    certificate = flow.certify(x, bound=1e-3)
    *failed, last = certificate.checks
    assert failed
    assert not any(check.passes for check in failed)
    assert last.passes
    assert certificate.passes
    assert float(certificate.tolerance) == last.rtol
    assert float(certificate.nfe) == flow.solve(x, rtol=last.rtol, atol=last.rtol).stats.nfe


def test_the_tolerances_keep_their_proportion():
    flow, x = anode.Flow(Rotation(3.0), rtol=1e-3, atol=1e-5), points()
    (check,) = flow.certify(x, bound=1.0, tolerances=[1e-2]).checks
    assert check.nfe == flow.solve(x, rtol=1e-2, atol=1e-4).stats.nfe


def test_every_member_of_a_stack_is_judged_as_it_would_be_alone():
    torch.manual_seed(0)
    models = anode.seeded(lambda: anode.NeuralODE(2, 1, augment=1), seeds=range(3))
    with torch.no_grad():
        for scale, parameter in (
            (s, p) for p in models.flow.field.parameters() for s in [torch.tensor([1.0, 2.0, 3.0])]
        ):
            parameter.mul_(scale.reshape(3, *[1] * (parameter.ndim - 1)))
    x = points(30, torch.float32)
    together = models.flow.certify(x.expand(3, *x.shape))
    for member, alone in enumerate(anode.unstack(models)):
        certificate = alone.flow.certify(x)
        torch.testing.assert_close(together.tolerance[member], certificate.tolerance)
        torch.testing.assert_close(together.nfe[member], certificate.nfe)
    assert len(set(together.nfe.tolist())) > 1


def test_a_member_that_cannot_be_solved_leaves_the_others_their_errors():
    torch.manual_seed(0)
    models = anode.seeded(lambda: anode.NeuralODE(2, 1, augment=1, max_steps=20), seeds=range(3))
    with torch.no_grad():
        for parameter in models.flow.field.parameters():
            parameter[1] *= 100
    x = points(30, torch.float32)
    check = models.flow.check(x.expand(3, *x.shape))
    assert check.passed.tolist() == [True, False, True]
    assert check.overall.isinf().tolist() == check.error_overall.isinf().tolist() == [False, True, False]
    assert "2 of 3 pass" in str(check)
    assert "MAX_STEPS" in check.failure
    for member in (0, 2):
        alone = anode.unstack(models)[member].flow.check(x)
        torch.testing.assert_close(check.overall[member], alone.overall, rtol=1e-3, atol=1e-6)


def test_a_sample_that_cannot_be_solved_leaves_the_others_their_errors():
    check = anode.Flow(Explosion(), control="sample").check(torch.tensor([[0.1, 0.1], [1.0, 1.0], [0.2, 0.1]]))
    assert check.reconstruction.isinf().tolist() == [False, True, False]
    assert not check.passes


def test_images_are_checked_like_points():
    torch.manual_seed(0)
    model = anode.ImageNeuralODE((1, 6, 6), 10, augment=1, filters=4)
    check = model.flow.check(torch.rand(5, 1, 6, 6))
    assert check.reconstruction.shape == (5,)
    assert check.passes


def test_a_flow_that_cannot_be_solved_says_so_with_the_table():
    certificate = anode.Flow(Explosion()).certify(torch.ones(3, 2), tolerances=[1e-2, 1e-3])
    assert not certificate.passes
    assert certificate.tolerance.isnan()
    assert "stopped at t =" in str(certificate)
    assert "No tolerance down to 1e-03 brings the states back to within 1 %" in str(certificate)


def test_a_solver_with_steps_of_given_size_is_checked_and_not_certified():
    flow, x = anode.Flow(Rotation(1.0), method="rk4", step_size=0.1), points()
    check = flow.check(x, bound=1e-4)
    assert check.passes
    turn = torch.tensor([[math.cos(1), math.sin(1)], [-math.sin(1), math.cos(1)]], dtype=torch.float64)
    wrong = (flow(x) - x @ turn).norm(dim=1) / x.square().sum(1).mean().sqrt()
    torch.testing.assert_close(check.error, wrong, rtol=0.05, atol=1e-12)
    with pytest.raises(ValueError, match=r"solver: takes one with adaptive steps, got step_size=0\.1"):
        flow.certify(x)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"bound": -1.0}, "bound: takes a number above 0"),
        ({"tolerances": []}, "tolerances: takes at least one"),
        ({"tolerances": [0.0]}, "tolerances: takes a number above 0"),
    ],
)
def test_wrong_arguments_are_named(arguments, said):
    with pytest.raises((TypeError, ValueError), match=said):
        anode.Flow(Rotation(1.0)).certify(points(), **arguments)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.tensor([[0.0, math.nan], [1.0, 1.0]]), "x: takes finite values, got NaN or infinity in 1 of 2 rows"),
        (torch.ones(0, 2), "x: takes at least one point"),
        ([1.0, 2.0], "x: takes a tensor"),
    ],
    ids=["nan", "empty", "list"],
)
def test_inputs_that_cannot_be_checked_are_named(x, said):
    with pytest.raises((TypeError, ValueError), match=said):
        anode.Flow(Rotation(1.0)).check(x)


def test_an_error_is_unknown_where_no_tighter_solve_is_possible():
    flow, x = anode.Flow(Rotation(9.0)), points(dtype=torch.float32)
    known, unknown = (flow.check(x, rtol=tolerance, atol=tolerance) for tolerance in (1e-4, 1e-6))
    assert known.error.isfinite().all()
    assert unknown.error.isnan().all()
    assert "unknown" in str(unknown)
    assert unknown.passes  # which is judged by the way back alone


def test_errors_of_states_that_are_all_zero_are_absolute():
    assert anode.Flow(Rotation(1.0)).check(torch.zeros(4, 2)).overall == 0.0


def test_a_certificate_is_drawn_with_its_bound():
    figure = anode.Flow(Rotation(9.0)).certify(points()).plot()
    errors, evaluations = figure.axes
    assert [line.get_label() for line in errors.lines] == [
        "forward and back",
        "against a tighter solve",
        "bound, 1 %",
    ]
    assert (errors.get_ylabel(), evaluations.get_ylabel()) == ("relative error", "function evaluations")
    assert errors.get_xlim()[0] > errors.get_xlim()[1]  # tighter to the right
