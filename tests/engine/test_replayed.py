"""Programs as torch operations: they compute what f computes, and so do their first and second derivatives."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anode
from anode.engine.extension import extension
from anode.engine.replayed import BINARY, UNARY

pytestmark = pytest.mark.skipif(extension is None, reason="the engine was not compiled")

T = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
Y0 = torch.linspace(-1.0, 1.1, 12, dtype=torch.float64).reshape(4, 3)
W = torch.linspace(-0.6, 0.5, 9, dtype=torch.float64).reshape(3, 3)


def gradient_of_an_energy(t, y, w):
    with torch.enable_grad():
        inner = y if y.requires_grad else y.requires_grad_()
        energy = torch.tanh(inner @ w).square().sum() + torch.sigmoid(inner).sum()
        return -torch.autograd.grad(energy, inner, create_graph=True)[0]


FIELDS = {
    "affine maps": lambda t, y, w: torch.tanh(y @ w) @ w + torch.sin(t) * y,
    "relu": lambda t, y, w: F.relu(y @ w) - y,
    "gelu": lambda t, y, w: F.gelu(y @ w) + F.gelu(y, approximate="tanh"),
    "silu": lambda t, y, w: F.silu(y @ w) + F.softplus(y, 2.0, 5.0) + F.softplus(y @ w),
    "elu": lambda t, y, w: F.elu(y, 0.7) + F.leaky_relu(y @ w, 0.2),
    "softmax": lambda t, y, w: torch.softmax(y @ w, -1) - torch.logsumexp(y, -1, keepdim=True),
    "elementary": lambda t, y, w: (
        torch.exp(-y) * torch.cos(y) + torch.log1p(y * y) + torch.sqrt(y * y + 1) / (2 + w[0] * y)
    ),
    "hyperbolic": lambda t, y, w: torch.sinh(0.3 * y) - torch.atan(y) + torch.erf(y) + torch.expm1(-y) * w[0],
    "choices": lambda t, y, w: torch.where(y > 0.2, y @ w, -y) + y.clamp(-0.4, 0.6) + torch.maximum(y, w[1]),
    "powers": lambda t, y, w: (y * y + 0.5) ** 1.5 * w[2] - y**3 + (1.2 + y).abs(),
    "reductions": lambda t, y, w: (
        y.sum(-1, keepdim=True) * w[0] + y.amax(-1, keepdim=True) - y.norm(dim=-1, keepdim=True)
    ),
    "an inner derivative": gradient_of_an_energy,
    "parameters of parameters": lambda t, y, w: y @ (w - w.t()) * torch.exp(w).sum(),
    "time alone": lambda t, y, w: torch.sin(3 * t) * w[0] + t * torch.ones_like(y),
}


def second_derivatives(library, f, y0, w, **options):
    """The solution of a field whose factor changes after the solve, its gradients, and gradients of these."""
    y0, w, box = [x.clone().requires_grad_() for x in y0], w.clone().requires_grad_(), {"factor": 1.0}

    def field(t, y):
        found = f(t, y, w)
        scaled = tuple(box["factor"] * x for x in (found if isinstance(found, tuple) else (found,)))
        return scaled if isinstance(found, tuple) else scaled[0]

    ys = library.odeint(field, y0[0] if len(y0) == 1 else tuple(y0), T, method="rk4", options=options)
    ys = ys if isinstance(ys, tuple) else (ys,)
    box["factor"] = 5.0
    first = torch.autograd.grad(sum((y**2).sum() for y in ys), [*y0, w], create_graph=True)
    return [*ys, *first, *torch.autograd.grad(sum((g**2).sum() for g in first), [*y0, w])]


@pytest.mark.parametrize("options", [{}, {"norm": lambda x: x.abs().max()}], ids=["engine", "loop"])
@pytest.mark.parametrize("name", FIELDS)
def test_gradients_of_gradients_are_those_of_f_as_it_was(name, options):
    torchdiffeq = pytest.importorskip("torchdiffeq")
    found, expected = (second_derivatives(each, FIELDS[name], [Y0], W, **options) for each in (anode, torchdiffeq))
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("states", [[Y0, Y0[:, :1]], [Y0[0], Y0[:2, 0]]], ids=["points", "one point"])
def test_gradients_of_gradients_of_a_tuple_are_those_of_f_as_it_was(states):
    torchdiffeq = pytest.importorskip("torchdiffeq")

    def f(t, y, w):
        return torch.tanh(y[0] @ w) * y[1].sum(-1, keepdim=True), -t * y[1] * y[0].sum(-1, keepdim=True)

    found, expected = (second_derivatives(each, f, states, W) for each in (anode, torchdiffeq))
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"norm": lambda x: x.abs().max()}], ids=["engine", "loop"])
def test_several_gradients_at_once_leave_the_graph_of_derived_tensors_alone(options):
    w, y0 = W.clone().requires_grad_(), Y0.clone().requires_grad_()
    total = anode.odeint(lambda t, y: torch.tanh(y @ (w - w.t()) * torch.exp(w).sum()), y0, T, options=options)[-1].sum(
        0
    )
    for _ in range(2):
        found = torch.autograd.grad(total, [w, y0], torch.eye(3).double(), is_grads_batched=True, retain_graph=True)
    for i in range(3):
        for x, y in zip(found, torch.autograd.grad(total[i], [w, y0], retain_graph=True), strict=True):
            torch.testing.assert_close(x[i], y, rtol=1e-9, atol=1e-9)


def test_callbacks_are_not_called_when_a_solve_is_repeated_for_second_derivatives():
    class Field(nn.Module):
        def forward(self, t, y):
            return -(y**3)

        def callback_accept_step(self, t, y, dt):
            steps.append(dt)

    steps, y0 = [], Y0.clone().requires_grad_()
    y1 = anode.odeint(Field(), y0, T)[-1]
    count = len(steps)
    torch.autograd.grad(y1.sum(), y0, create_graph=True)
    assert len(steps) == count > 0


def test_every_function_of_the_engine_can_be_replayed():
    assert set(extension.UNARY) <= set(UNARY)
    assert {name for name in extension.BINARY if not name.endswith("_bend")} <= set(BINARY)


def test_parameters_that_functional_call_has_put_into_a_module_get_second_derivatives():
    torchdiffeq = pytest.importorskip("torchdiffeq")

    class Flow(nn.Module):
        def __init__(self, odeint):
            super().__init__()
            torch.manual_seed(0)
            self.field, self.odeint = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double(), odeint

        def forward(self, y):
            return self.odeint(lambda t, y: self.field(y), y, T, method="rk4")[-1]

    results = []
    for library in (anode, torchdiffeq):
        flow = Flow(library.odeint)
        fast = dict(flow.named_parameters())
        for _ in range(3):
            loss = torch.func.functional_call(flow, fast, (Y0,)).square().mean()
            slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {name: x - 0.3 * g for (name, x), g in zip(fast.items(), slopes, strict=True)}
        results.append(torch.autograd.grad(torch.func.functional_call(flow, fast, (Y0,)).sum(), flow.parameters()))
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)
