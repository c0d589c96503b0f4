"""What torchdiffeq lets pass and its users lean on; ``anode.solve`` stays strict."""

from types import MappingProxyType

import pytest
import torch
import torchdiffeq
from torch import nn

import anode

T = torch.linspace(0, 1, 5)
WEIGHT = torch.tensor([[0.3, -0.5, 0.2], [0.1, 0.4, -0.7], [-0.2, 0.3, 0.1]])
POINTS = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]])
PAIR = (POINTS, torch.ones(2))
FIXED = ["euler", "rk4"]
METHODS = [*FIXED, "dopri5"]
INTERFACES = pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])


class Linear(nn.Module):
    """A right-hand side made of ``slope(t, y, weight)``."""

    def __init__(self, slope):
        super().__init__()
        self.weight = nn.Parameter(WEIGHT.clone())
        self.slope = slope

    def forward(self, t, y):
        return self.slope(t, y, self.weight)


def differentiated(library, interface, slope, y0, method, t=T, **options):
    """The states at all times, then the gradients of y0 and of the weight."""
    f = Linear(slope)
    parts = [part.clone().requires_grad_() for part in (y0 if isinstance(y0, tuple) else (y0,))]
    ys = getattr(library, interface)(
        f, tuple(parts) if isinstance(y0, tuple) else parts[0], t, method=method, **options
    )
    ys = ys if isinstance(ys, tuple) else (ys,)
    gradients = torch.autograd.grad(sum(y.square().sum() for y in ys), [*parts, f.weight])
    return [y.detach() for y in ys], gradients


def agree(interface, slope, y0, method, rtol=1e-4, atol=1e-5, **options):
    """Compare values, dtypes, shapes and gradients with torchdiffeq's."""
    theirs, ours = (
        differentiated(library, interface, slope, y0, method, **options) for library in (torchdiffeq, anode)
    )
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)


# ------------------------------------------------------------------------------------------------------ dtype and shape


@INTERFACES
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("state", "slope"), [(torch.float32, torch.float64), (torch.float64, torch.float32)], ids=["wider", "narrower"]
)
def test_a_slope_of_another_dtype_is_converted(interface, method, state, slope):
    agree(interface, lambda t, y, w: y.to(slope) @ w.to(slope), POINTS.to(state), method)


@INTERFACES
@pytest.mark.parametrize("method", METHODS)
def test_a_tuple_may_mix_dtypes(interface, method):
    y0 = (POINTS, torch.ones(2, dtype=torch.float64))
    agree(interface, lambda t, s, w: (s[0] @ w.to(s[0]), -s[1]), y0, method)
    agree(interface, lambda t, s, w: (s[0].float() @ w, -s[1].float()), y0, method)


@INTERFACES
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("slope", "y0"),
    [
        (lambda t, s, w: (s[0] @ w, -s[1].sum() * s[1][:, None]), PAIR),
        (lambda t, s, w: (s[0] @ w, -s[1].reshape(1)), (POINTS, torch.tensor(1.0))),
        (lambda t, s, w: torch.stack([s[0] @ w, -s[1]]), (POINTS, torch.ones(2, 3))),
        (lambda t, s, w: torch.cat([(s[0] @ w).flatten(), -s[1]]), PAIR),
    ],
    ids=["a column for a vector", "a vector for a number", "stacked", "flat"],
)
def test_in_a_tuple_only_the_number_of_elements_counts(interface, method, slope, y0):
    agree(interface, slope, y0, method)


@INTERFACES
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("whole", [torch.arange(3), torch.tensor([True, False])], ids=["integers", "booleans"])
def test_a_component_of_a_tuple_may_hold_whole_numbers(whole, method, interface):
    results = []
    for library in (torchdiffeq, anode):
        f = Linear(lambda t, y, w: (torch.tanh(y[0] @ w), 0.5 * y[1]))
        ys = getattr(library, interface)(f, (POINTS, whole), T, method=method)
        sum(y.square().sum() for y in ys).backward()
        results.append((ys, f.weight.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_slope_may_have_fewer_dimensions_but_not_fewer_elements(method):
    agree("odeint", lambda t, y, w: torch.tanh(y[0] @ w), POINTS[:1], method)


def test_slopes_in_the_wrong_order_are_refused():
    y0 = (torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match=r"slopes of \[2, 3\] elements"):
        anode.odeint(lambda t, s: (s[1], s[0]), y0, T)


@pytest.mark.parametrize("method", FIXED)
@pytest.mark.parametrize(
    "slope",
    [lambda t, y, w: (y @ w).sum(-1, keepdim=True), lambda t, y, w: (y @ w).sum(), lambda t, y, w: (y @ w)[None]],
    ids=["column", "number", "leading dimension"],
)
def test_slopes_are_broadcast_with_fixed_steps(method, slope):
    agree("odeint", lambda t, y, w: slope(t, y.reshape(2, 3), w), POINTS, method)
    # torchdiffeq's adjoint fails here, so compare with the exact gradient of small steps
    found, expected = (
        differentiated(anode, interface, slope, POINTS, "rk4", options={"step_size": 0.05})
        for interface in ("odeint_adjoint", "odeint")
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("library", [torchdiffeq, anode])
def test_a_number_may_be_a_slope_with_fixed_steps(library):
    y = library.odeint(lambda t, y: 1.0, POINTS, T, method="rk4")
    torch.testing.assert_close(y[-1], POINTS + 1)


@pytest.mark.parametrize("library", [torchdiffeq, anode])
@pytest.mark.parametrize(
    ("method", "slope"),
    [("dopri5", lambda t, y: y.sum(-1, keepdim=True)), ("rk4", lambda t, y: y[..., None]), ("rk4", lambda t, y: "y")],
)
def test_what_cannot_be_a_slope_is_an_error(library, method, slope):
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        library.odeint(slope, POINTS, T, method=method)


def test_a_complex_slope_of_a_real_state_is_an_error():
    with pytest.raises(ValueError, match="complex64"):
        anode.odeint(lambda t, y: 1j * y, POINTS, T)


@INTERFACES
@pytest.mark.parametrize("method", FIXED)
def test_empty_batches_are_solved_with_fixed_steps(interface, method):
    agree(interface, lambda t, y, w: y @ w, torch.zeros(0, 3), method)
    agree(interface, lambda t, s, w: (s[0] @ w, -s[1]), (torch.zeros(0, 3), torch.zeros(0)), method)


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_an_empty_batch_may_follow_another(method):
    f = nn.Linear(3, 3)
    for batch in (5, 0, 2):
        y0 = torch.ones(batch, 3)
        assert anode.odeint(lambda t, y: f(y), y0, T, method=method).shape == (len(T), batch, 3)


@INTERFACES
@pytest.mark.parametrize("y0", [torch.zeros(0, 3), (torch.zeros(0, 3), torch.zeros(0))], ids=["tensor", "tuple"])
def test_empty_batches_are_solved_with_adaptive_steps_too(interface, y0):
    ys, gradients = differentiated(
        anode, interface, lambda t, s, w: (s[0] @ w, -s[1]) if isinstance(s, tuple) else s @ w, y0, "dopri5"
    )
    assert ys[0].shape == (5, 0, 3)
    assert not gradients[-1].any()


# --------------------------------------------------------------------------------------------------------- one buffer


def with_out():
    buffer = torch.empty(2, 3)
    return lambda t, y: torch.mul(y, -1.0, out=buffer)


def with_writes():
    buffer = torch.empty(2, 3)

    def f(t, y):
        buffer[:, 0], buffer[:, 1:] = -y[:, 0], -y[:, 1:]
        return buffer

    return f


def with_another_object_each_time():
    buffer = torch.empty(2, 3)

    def f(t, y):
        buffer.copy_(-y)
        return buffer.detach()

    return f


BUFFERS = pytest.mark.parametrize("make", [with_out, with_writes, with_another_object_each_time])


@BUFFERS
@pytest.mark.parametrize("method", [*METHODS, "bosh3"])
def test_f_may_return_the_same_buffer_every_time(make, method):
    found, expected = (anode.odeint(f, POINTS, T, method=method) for f in (make(), lambda t, y: -y))
    torch.testing.assert_close(found, expected)
    if method in ("euler", "dopri5"):  # elsewhere torchdiffeq itself is wrong
        torch.testing.assert_close(found, torchdiffeq.odeint(make(), POINTS, T, method=method), rtol=1e-4, atol=1e-5)


def test_f_may_return_the_same_buffer_in_inference_mode():
    with torch.inference_mode():
        torch.testing.assert_close(
            anode.odeint(with_out(), POINTS, T)[-1], POINTS * torch.exp(torch.tensor(-1.0)), rtol=1e-4, atol=1e-5
        )


@INTERFACES
@pytest.mark.parametrize("method", METHODS)
def test_a_buffer_that_autograd_follows_is_differentiated(interface, method):
    def slope(t, y, w):
        slope.buffer = slope.buffer.detach()
        slope.buffer[:] = y @ w
        return slope.buffer

    slope.buffer = torch.empty(2, 3)
    found, expected = (
        differentiated(anode, interface, each, POINTS, method) for each in (slope, lambda t, y, w: y @ w)
    )
    torch.testing.assert_close(found, expected)


@BUFFERS
def test_solve_refuses_a_buffer(make):
    with pytest.raises(ValueError, match="new tensor"):
        anode.solve(make(), POINTS, (0.0, 1.0))


def test_solve_takes_slopes_from_different_parts_of_one_tensor():
    memory, calls = torch.empty(1000, 2, 3), iter(range(1000))

    def f(t, y):
        row = memory[next(calls)]
        return row.copy_(-y)

    torch.testing.assert_close(
        anode.solve(f, POINTS, (0.0, 1.0), rtol=1e-6, atol=1e-6).y1,
        POINTS * torch.exp(torch.tensor(-1.0)),
        rtol=1e-4,
        atol=1e-4,
    )


# ------------------------------------------------------------------------------------------------- NaN and infinity


@INTERFACES
@pytest.mark.parametrize("method", FIXED)
def test_fixed_steps_return_infinity_where_a_solution_blows_up(interface, method):
    t = torch.linspace(0, 2, 10)
    theirs, ours = (
        getattr(library, interface)(Linear(lambda t, y, w: y**3), torch.tensor([1.0, 9.0]), t, method=method)
        for library in (torchdiffeq, anode)
    )
    assert ours.isinf().any()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)


@INTERFACES
@pytest.mark.parametrize("method", FIXED)
@pytest.mark.parametrize("options", [{}, {"step_size": 0.3}, {"step_size": 0.3, "interp": "cubic"}])
def test_one_sample_of_nan_leaves_the_others_alone(interface, method, options):
    y0 = torch.cat([POINTS, torch.full((1, 3), torch.nan)])
    agree(interface, lambda t, y, w: torch.sin(y) @ w, y0, method, options=options)
    ys, (at_y0, _) = differentiated(anode, interface, lambda t, y, w: torch.sin(y) @ w, y0, method)
    assert ys[0][:, :2].isfinite().all()
    assert at_y0[:2].isfinite().all()


@INTERFACES
@pytest.mark.parametrize("method", FIXED)
def test_one_sample_of_nan_leaves_the_others_alone_if_f_is_not_compiled(interface, method):
    y0 = torch.cat([POINTS, torch.full((1, 3), torch.nan)])
    agree(interface, lambda t, y, w: torch.special.i0(y) @ w, y0, method)


@pytest.mark.parametrize("library", [torchdiffeq, anode])
@pytest.mark.parametrize("method", ["dopri5", "bosh3", "adaptive_heun"])
@pytest.mark.parametrize(
    ("bad", "slope"),
    [(torch.nan, lambda t, y: -y), (torch.nan, lambda t, y: torch.ones_like(y)), (torch.inf, lambda t, y: -y)],
    ids=["nan", "nan of a finite slope", "infinity"],
)
def test_a_state_that_is_not_finite_is_an_assertion_error_with_adaptive_steps(library, method, bad, slope):
    with pytest.raises(AssertionError):
        library.odeint(slope, torch.tensor([1.0, bad]), T, method=method)


# --------------------------------------------------------------------------------------------------- solve is strict


@pytest.mark.parametrize(
    ("f", "y0", "message"),
    [
        (lambda t, y: -y.double(), POINTS, "float64"),
        (lambda t, y: y.sum(), POINTS, "shape"),
        (lambda t, s: (-s[0], -s[1][:, None]), PAIR, "shape"),
        (lambda t, s: (-s[0], -s[1]), (POINTS, torch.ones(2).double()), "the same dtype"),
        (lambda t, y: -y, torch.zeros(0, 3), "at least one element"),
        (lambda t, y: -y, POINTS * torch.nan, "finite"),
    ],
)
def test_solve_refuses_what_odeint_converts(f, y0, message):
    with pytest.raises(ValueError, match=message):
        anode.solve(f, y0, (0.0, 1.0))


def test_solve_reports_infinity_with_fixed_steps():
    solution = anode.solve(lambda t, y: y**3, torch.tensor([1.0, 9.0]), (0.0, 2.0), method="euler", step_size=0.2)
    assert solution.status is anode.Status.NON_FINITE


# --------------------------------------------------------------------------------------------------------------- events


@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint", "odeint_event"])
def test_an_event_may_be_a_boolean(interface):
    results = []
    for library in (anode, torchdiffeq):
        solve = getattr(library, interface)
        more = {"t0": T[0]} if interface == "odeint_event" else {"t": T[[0, -1]]}
        results.append(solve(Linear(lambda t, y, w: -y), torch.ones(1), **more, event_fn=lambda t, y: y[0] > 0.7))
    torch.testing.assert_close(results[0], results[1])


# -------------------------------------------------------------------------------------------------------------- options


@pytest.mark.filterwarnings("ignore:.*did not converge")
@pytest.mark.parametrize(
    "options", [{"max_order": 4.0}, {"implicit": False}, MappingProxyType({"max_order": 6, "step_size": 0.01})], ids=str
)
def test_options_are_taken_in_every_form(options):
    t = torch.linspace(0, 1, 21, dtype=torch.float64)
    theirs, ours = (
        library.odeint(lambda t, y: torch.sin(y) * t, POINTS.double(), t, method="implicit_adams", options=given)
        for library, given in ((torchdiffeq, dict(options)), (anode, options))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


# -------------------------------------------------------------------------------------------------------------- results


class Pair(nn.Module):
    """A right-hand side of a tuple, with a callback that changes its second component in place."""

    def __init__(self, with_callback):
        super().__init__()
        self.weight = nn.Parameter(WEIGHT.clone())
        if with_callback:
            self.callback_step = lambda t, y, dt: y[1].mul_(0.5)

    def forward(self, t, y):
        return torch.tanh(y[0] @ self.weight), y[0].sum(1, keepdim=True) - y[1]


@pytest.mark.parametrize("times", [2, 5])
@pytest.mark.parametrize("what", ["plain", "callback", "event"])
def test_the_components_of_a_result_may_be_changed_in_place(what, times):
    results = []
    for library in (torchdiffeq, anode):
        f, y0 = Pair(what == "callback"), (POINTS.clone().requires_grad_(), torch.zeros(2, 1))
        how = {"method": "rk4", "options": {"step_size": 0.25}}
        if what == "event":
            _, (states, logs) = library.odeint_event(f, y0, T[0], event_fn=lambda t, y: t - 0.6, **how)
        else:
            states, logs = library.odeint(f, y0, torch.linspace(0, 1, times), **how)
        logs[-1] -= states[-1].sum(1, keepdim=True)
        states[:, 0] = 0.0
        (logs.square().sum() + states.square().sum()).backward()
        results.append((states, logs, y0[0].grad, f.weight.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


@INTERFACES
@pytest.mark.parametrize("method", METHODS)
def test_states_in_another_memory_layout_give_contiguous_results(interface, method):
    torch.manual_seed(0)
    f = nn.Conv2d(3, 3, 3, padding=1).to(memory_format=torch.channels_last)
    y0 = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()

    class Convolution(nn.Module):
        def forward(self, t, y):
            return f(y)

    for more in ({}, {"event_fn": lambda t, y: t - 0.5, "options": {"step_size": 0.25} if method in FIXED else {}}):
        ys = getattr(anode, interface)(Convolution(), y0, T[[0, -1]], method=method, **more)
        (ys[1] if more else ys)[-1].view(2, -1)
