"""Fields as users write them, on states of 5 features, shared by the tests of tracing and of training."""

import torch
from torch import nn


class TimeConcatenated(nn.Module):
    """Time as one more feature, and a counter, as in most published code."""

    def __init__(self, dim=5, hidden=8):
        super().__init__()
        self.into, self.out, self.nfe = nn.Linear(dim + 1, hidden), nn.Linear(hidden, dim), 0

    def forward(self, t, y):
        self.nfe += 1
        return self.out(torch.tanh(self.into(torch.cat([torch.ones_like(y[:, :1]) * t, y], 1))))


class Gated(nn.Module):
    """Two layers with gates and shifts that depend on time, as FFJORD's ConcatSquash has them."""

    def __init__(self, dim=5, hidden=8):
        super().__init__()
        self.maps = nn.ModuleList([nn.Linear(dim, hidden), nn.Linear(hidden, dim)])
        self.gates = nn.ModuleList([nn.Linear(1, hidden), nn.Linear(1, dim)])
        self.shifts = nn.ModuleList([nn.Linear(1, hidden, bias=False), nn.Linear(1, dim, bias=False)])

    def forward(self, t, y):
        time = t.reshape(1, 1)
        for i, (linear, gate, shift) in enumerate(zip(self.maps, self.gates, self.shifts, strict=True)):
            y = linear(y) * torch.sigmoid(gate(time)) + shift(time)
            y = torch.nn.functional.softplus(y) if i == 0 else y
        return y


class Cubic(nn.Module):
    """The cube of the state and a matrix, with a scale that is not trained."""

    def __init__(self, dim=5):
        super().__init__()
        self.matrix = nn.Parameter(0.1 * torch.randn(dim, dim))
        self.register_buffer("scale", torch.linspace(0.5, 1.0, dim))

    def forward(self, t, y):
        return self.scale * (y**3).clamp(-5, 5) @ self.matrix


class Decay(nn.Module):
    """Rates that are positive because they are computed from parameters."""

    def __init__(self, dim=5):
        super().__init__()
        self.raw = nn.Parameter(torch.randn(dim))

    def forward(self, t, y):
        return -torch.nn.functional.softplus(self.raw) * y


class Idle(nn.Module):
    """A layer that is used, one that is not, and a constant that is no parameter."""

    def __init__(self, dim=5):
        super().__init__()
        self.used, self.unused = nn.Linear(dim, dim), nn.Linear(dim, 3)
        self.constant = torch.linspace(-1.0, 1.0, dim, dtype=torch.float64)
        self.factor = 1.0

    def forward(self, t, y):
        return torch.sin(self.used(y)) * self.factor + self.constant * t


class Loud(TimeConcatenated):
    """Prints."""

    def forward(self, t, y):
        print("f")
        return self.out(torch.tanh(self.into(torch.cat([torch.ones_like(y[:, :1]) * t, y], 1))))


class Mixing(nn.Module):
    """Looks at the whole batch."""

    def __init__(self, dim=5):
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, t, y):
        return self.linear(y - y.mean(0))


def sequence():
    """Layers that are no perceptron of ours, and do not know of time."""
    return nn.Sequential(nn.Linear(5, 8), nn.Hardtanh(), nn.LayerNorm(8), nn.Linear(8, 5))


TRACED = {"time": TimeConcatenated, "gates": Gated, "cubes": Cubic, "idle": Idle, "sequence": sequence}
"""Fields that the compiled engine can train."""
