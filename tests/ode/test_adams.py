import math
from fractions import Fraction

import pytest
import torch
import torchdiffeq
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck

import anode
from anode.ode.adams import MOST_SLOPES, adams_weights

METHODS = ("explicit_adams", "implicit_adams")
BOTH = pytest.mark.parametrize("method", METHODS)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.float64, generator=generator))
        self.nfe = 0

    def forward(self, t, y):
        self.nfe += 1
        return torch.tanh(y @ self.weight) * torch.cos(t) - 0.1 * y


def start():
    return torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def times(steps, end=2.0):
    return torch.linspace(0, end, steps + 1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("newest", "weights"),
    [
        (0, ["55/24", "-59/24", "37/24", "-3/8"]),  # Hairer, Norsett and Wanner, (III.1.5')
        (1, ["9/24", "19/24", "-5/24", "1/24"]),  # (III.1.9')
    ],
)
def test_the_weights_of_order_4_are_those_of_the_textbook(newest, weights):
    assert adams_weights(newest, 4) == tuple(float(Fraction(w)) for w in weights)


@given(newest=st.sampled_from([0, 1]), count=st.integers(1, MOST_SLOPES), power=st.integers(0, MOST_SLOPES - 1))
def test_the_weights_integrate_polynomials_exactly(newest, count, power):
    if power < count:
        slopes = [(newest - i) ** power for i in range(count)]
        found = math.fsum(w * s for w, s in zip(adams_weights(newest, count), slopes, strict=True))
        size = max(abs(w * s) for w, s in zip(adams_weights(newest, count), slopes, strict=True))
        assert found == pytest.approx(1 / (power + 1), rel=0, abs=1e-14 * max(size, 1))


@pytest.mark.parametrize(("method", "order"), [("explicit_adams", 3), ("implicit_adams", 4)])
def test_the_error_falls_with_the_order_of_the_method(method, order):
    def error(steps):
        tight = {"rtol": 1e-14, "atol": 1e-14, "options": {"max_order": 4, "max_iters": 50}}
        y = anode.odeint(lambda t, y: -y, torch.ones(1, dtype=torch.float64), times(steps), method=method, **tight)[-1]
        return abs(y.item() - math.exp(-2))

    assert math.log2(error(80) / error(160)) == pytest.approx(order, abs=0.1)


@BOTH
@pytest.mark.parametrize("options", [{}, {"max_order": 5}, {"max_order": 3}, {"perturb": True}])
@pytest.mark.parametrize("rtol", [1e-3, 1e-9])
@pytest.mark.filterwarnings("ignore:.*(did not converge|max_order is below)")
def test_steps_and_gradients_are_those_of_torchdiffeq(method, options, rtol):
    found = []
    for library in (torchdiffeq, anode):
        for odeint in (library.odeint, library.odeint_adjoint):
            field, y0 = Field(), start().requires_grad_()
            options = {"max_order": 8, **options}  # with more slopes, rounding errors grow
            ys = odeint(field, y0, times(40), method=method, rtol=rtol, atol=rtol, options=options)
            nfe = field.nfe
            ys.square().sum().backward()
            found.append((ys.detach(), y0.grad, field.weight.grad, nfe))
    for theirs, own in zip(found[:2], found[2:], strict=True):
        for a, b in zip(theirs, own, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-11)


@BOTH
def test_gradients_are_those_of_the_steps(method):
    field, t = Field(), times(6).requires_grad_()

    def solve(y0, weight, t):
        field.weight = nn.Parameter(weight.detach(), requires_grad=False)
        rate = lambda t, y: torch.tanh(y @ weight) * torch.cos(t)  # noqa: E731
        return anode.odeint(rate, y0, t, method=method, rtol=1e-6, atol=1e-6, options={"max_iters": 20})

    y0, weight = start()[:2].requires_grad_(), field.weight.detach().clone().requires_grad_()
    assert gradcheck(lambda y0, weight: solve(y0, weight, t.detach()), (y0, weight))


@BOTH
def test_solves_without_a_gradient_evaluate_compiled_code_and_agree(method):
    field, y0 = Field(), start()
    recorded = anode.odeint(field, y0, times(40), method=method, options={"max_order": 6})
    before = field.nfe
    with torch.no_grad():
        plain = anode.odeint(field, y0, times(40), method=method, options={"max_order": 6})
    torch.testing.assert_close(plain, recorded.detach(), rtol=1e-12, atol=1e-12)
    assert field.nfe == 2 * before


@BOTH
def test_a_step_of_another_size_starts_anew_and_stays_accurate(method):
    exact = anode.odeint(Field(), start(), times(1), rtol=1e-12, atol=1e-12)[-1].detach()
    grid = torch.cat([times(40, 1.0), 1 + times(13, 1.0)[1:]])

    def error(library):
        options = {"max_order": 6, "max_iters": 20}
        ys = library.odeint(Field(), start(), grid, method=method, rtol=1e-9, atol=1e-9, options=options)
        return (ys[-1].detach() - exact).abs().max()

    assert 5 * error(anode) < error(torchdiffeq)  # which uses the slopes of short steps as if the steps were long


@BOTH
@pytest.mark.parametrize("interp", ["linear", "cubic"])
def test_outputs_between_steps_are_interpolated_as_in_torchdiffeq(method, interp):
    t = torch.tensor([0.0, 0.33, 1.01, 2.0], dtype=torch.float64)
    options = {"step_size": 0.05, "interp": interp, "max_order": 8}
    theirs, own = (
        library.odeint(Field(), start(), t, method=method, rtol=1e-3, options=options)
        for library in (torchdiffeq, anode)
    )
    torch.testing.assert_close(own, theirs, rtol=1e-10, atol=1e-12)


@BOTH
def test_states_may_be_tuples_and_complex(method):
    y0 = torch.tensor([1.0 + 0j], dtype=torch.complex128), torch.tensor([1.0], dtype=torch.complex128)
    turned, decayed = anode.odeint(
        lambda t, y: (1j * y[0], -y[1]), y0, times(100, 1.0), method=method, options={"max_order": 6}
    )
    torch.testing.assert_close(turned[-1], torch.exp(torch.tensor([1j], dtype=torch.complex128)), rtol=1e-7, atol=0)
    torch.testing.assert_close(decayed[-1], torch.exp(-y0[1]), rtol=1e-7, atol=0)


@BOTH
def test_an_event_ends_the_solve(method):
    time, ys = anode.odeint_event(
        lambda t, y: y,
        torch.ones(1, dtype=torch.float64, requires_grad=True),
        torch.tensor(0.0, dtype=torch.float64),
        event_fn=lambda t, y: y[0] - 2,
        method=method,
        options={"step_size": 0.01, "interp": "cubic"},
    )
    assert time.item() == pytest.approx(math.log(2), abs=1e-6)
    assert ys[-1].item() == pytest.approx(2, abs=1e-6)


def test_an_implicit_step_that_does_not_converge_is_warned_about():
    with pytest.warns(UserWarning, match="did not converge in 4 iterations; use smaller steps"):
        anode.odeint(lambda t, y: -30 * y, torch.ones(1), torch.linspace(0, 1, 11), method="implicit_adams")


@pytest.mark.parametrize("options", [{"max_order": 13}, {"max_order": 0}, {"max_order": 2.5}, {"max_iters": 0}])
def test_limits_that_make_no_sense_are_named(options):
    with pytest.raises(ValueError, match=rf"^options\['{next(iter(options))}'\]: takes a whole number from 1"):
        anode.odeint(Field(), start(), times(3), method="implicit_adams", options=options)


def test_the_older_name_of_the_implicit_method_is_known():
    by_name = [
        anode.odeint(Field(), start(), times(30), method=m, rtol=1e-3) for m in ("fixed_adams", "implicit_adams")
    ]
    assert torch.equal(*by_name)
