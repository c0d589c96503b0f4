import pytest
import torch
from torch import nn

import anode
from anode.models.divergence import Divergence, parts

NOW = torch.tensor(0.3, dtype=torch.float64)


def points(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def network(dim: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(dim, 8), nn.Softplus(), nn.Linear(8, dim)).double()


def perceptron(dim: int = 3, **options) -> anode.MLPField:
    torch.manual_seed(0)
    return anode.MLPField(dim, 8, activation="tanh", **options).double()


def jacobians(field: nn.Module, z: torch.Tensor) -> torch.Tensor:
    """The Jacobian of each point by itself, by autograd."""
    call = field if isinstance(field, nn.Sequential) else lambda each: field(NOW, each)
    return torch.stack([torch.autograd.functional.jacobian(call, each) for each in z])


def extended(z: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    return torch.cat([z, torch.zeros_like(z[..., :1]), *others], -1)


@pytest.mark.parametrize("field", [network(), perceptron(), perceptron(layers=3), network(1)], ids=str)
def test_the_exact_trace_is_that_of_the_jacobian(field):
    z = points(5, 1 if isinstance(field, nn.Sequential) and field[0].in_features == 1 else 3)
    slope, trace, _ = parts(Divergence(field)(NOW, extended(z)), "exact")
    torch.testing.assert_close(slope, field(z) if isinstance(field, nn.Sequential) else field(NOW, z))
    torch.testing.assert_close(trace[:, 0], jacobians(field, z).diagonal(dim1=1, dim2=2).sum(1))


@pytest.mark.parametrize("field", [network(), perceptron()], ids=["sequential", "perceptron"])
def test_the_estimate_is_the_quadratic_form_of_the_noise(field):
    z, noise = points(5, 3), points(5, 3).sign()
    slope, estimate, still = parts(Divergence(field, "hutchinson")(NOW, extended(z, noise)), "hutchinson")
    torch.testing.assert_close(estimate[:, 0], torch.einsum("ni,nij,nj->n", noise, jacobians(field, z), noise))
    assert slope.shape == (5, 3)
    assert not still.any()


def test_the_mean_of_the_estimate_over_all_noise_is_the_trace():
    field, z = perceptron(), points(1, 3)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)
    _, estimates, _ = parts(Divergence(field, "hutchinson")(NOW, extended(z.expand(8, 3), signs)), "hutchinson")
    torch.testing.assert_close(estimates.mean(), jacobians(field, z).diagonal(dim1=1, dim2=2).sum())


@pytest.mark.parametrize("trace", ["exact", "hutchinson"])
def test_the_divergence_of_a_point_does_not_depend_on_the_others(trace):
    field, z, noise = perceptron(), points(6, 3), points(6, 3).sign()
    state = extended(z, noise) if trace == "hutchinson" else extended(z)
    together = Divergence(field, trace)(NOW, state)
    alone = torch.cat([Divergence(field, trace)(NOW, state[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(together, alone)


def test_a_field_that_depends_on_time_alone_has_no_divergence():
    class Wind(nn.Module):
        def __init__(self):
            super().__init__()
            self.speed = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, t, z):
            return (self.speed * t).expand_as(z)

    assert Divergence(Wind())(NOW, extended(points(4, 2)))[:, 2].tolist() == [0.0] * 4


@pytest.mark.parametrize("trace", ["exact", "hutchinson"])
def test_a_slope_without_a_gradient_has_no_divergence(trace):
    class Drift(nn.Module):
        def forward(self, t, z):
            return t * torch.ones_like(z)

    state = extended(points(4, 2), points(4, 2).sign()) if trace == "hutchinson" else extended(points(4, 2))
    found = Divergence(Drift(), trace)(NOW, state)
    assert found[:, :2].eq(NOW).all()
    assert not found[:, 2:].any()


def test_it_is_described_and_says_what_traces_there_are():
    field = Divergence(perceptron(), "hutchinson")
    assert field.settings == {"field": field.field, "trace": "hutchinson"}
    assert "trace='hutchinson'" in repr(field)
    with pytest.raises(ValueError, match="trace: takes one of exact, hutchinson, got 'exakt'; did you mean 'exact'"):
        Divergence(perceptron(), "exakt")
