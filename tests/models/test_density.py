"""Densities: against closed forms and integrals, both ways, stacked, saved; and what is refused."""

import math
import pickle

import pytest
import torch
from torch import nn

import anode
from anode.engine import native
from anode.models.augment import Zeros
from anode.models.divergence import DensityStart
from helpers.draws import normal as points

TIGHT = {"rtol": 1e-8, "atol": 1e-8}
MATRIX = torch.tensor([[0.3, -0.8], [0.5, 0.2]], dtype=torch.float64)


class Linear(nn.Module):
    """dz/dt = A z."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(MATRIX.clone())

    def forward(self, t, z):
        return z @ self.matrix.mT


@anode.register
class Rotor(nn.Module):
    """A field as a user writes it."""

    def __init__(self, dim: int = 2) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, 8), nn.Tanh(), nn.Linear(8, dim))

    def forward(self, t, z):
        return self.net(torch.cat([z, t.expand_as(z[..., :1])], -1))


def small(dim: int = 2, *, seed: int = 0, **options) -> anode.DensityFlow:
    torch.manual_seed(seed)
    own = {} if "field" in options else {"hidden": 8, "layers": 2}
    return anode.DensityFlow(dim, **{**own, **TIGHT, **options}).double()


def integral(model: anode.DensityFlow, reach: float = 9.0, side: int = 121) -> float:
    """The integral of a density over a square, by the trapezoidal rule, which is exact to rounding for such ones."""
    at = torch.linspace(-reach, reach, side, dtype=torch.float64)
    with torch.no_grad():
        return float(model.log_prob(torch.cartesian_prod(at, at)).exp().sum() * (at[1] - at[0]) ** 2)


# What is computed


def test_the_log_probability_of_a_linear_flow_is_that_of_its_normal_distribution():
    x, model = points(7, 2), small(field=Linear(), t1=1.5)
    into = torch.linalg.matrix_exp(1.5 * MATRIX)
    expected = torch.distributions.MultivariateNormal(x.new_zeros(2), precision_matrix=into.mT @ into).log_prob(x)
    torch.testing.assert_close(model.log_prob(x), expected, rtol=1e-7, atol=1e-7)


def test_a_density_integrates_to_one_before_and_after_training():
    model = small(rtol=1e-5, atol=1e-5)
    assert integral(model) == pytest.approx(1, abs=1e-4)
    anode.fit(model, 0.5 * points(200, 2) + 1, epochs=10, lr=1e-2)
    assert integral(model) == pytest.approx(1, abs=1e-4)


def test_samples_have_the_density_that_log_prob_says():
    model, wide = small(field=Linear()), 20_000
    torch.manual_seed(0)
    back = torch.linalg.matrix_exp(-MATRIX)
    drawn = model.sample(wide)
    assert drawn.dtype == torch.float64
    assert not drawn.requires_grad
    assert float((drawn.T.cov() - back @ back.mT).abs().max()) < 4 * float((back @ back.mT).max()) * wide**-0.5
    entropy = 0.5 * torch.logdet(2 * math.pi * math.e * back @ back.mT)
    assert float(model.log_prob(drawn).detach().mean() + entropy) == pytest.approx(0, abs=4 * wide**-0.5)


def test_points_come_back_from_where_they_flow_to():
    model, x = small(), points(9, 2)
    torch.testing.assert_close(model.inverse(model.features(x)), x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"field": Rotor()}, {"augment": 1}], ids=["perceptron", "own", "augmented"])
@pytest.mark.parametrize("trace", ["exact", "hutchinson"])
def test_gradients_are_right_for_points_and_parameters(options, trace):
    model = small(**options, trace=trace, method="rk4", step_size=0.5, hidden=None if "field" in options else 3)
    x = points(2, 2).requires_grad_()

    def log_prob(*_):  # the parameters are changed where they are
        torch.manual_seed(0)
        return model.log_prob(x)

    assert torch.autograd.gradcheck(log_prob, (x, *model.parameters()))


def test_inference_mode_changes_nothing():
    for model in (small(), small(engine="torch"), small(trace="hutchinson", augment=1)):
        torch.manual_seed(0)
        expected = model.log_prob(points(5, 2)).detach()
        with torch.inference_mode():
            x = points(5, 2)
            torch.manual_seed(0)
            assert torch.equal(model.log_prob(x), expected)
            assert model.sample(3).shape == (3, 2)


class Decay(nn.Module):
    """A field without parameters, or with a buffer in their place."""

    def __init__(self, speed: torch.Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("speed", speed)

    def forward(self, t, z):
        return -z if self.speed is None else -self.speed * z


def test_a_field_without_parameters_computes_in_the_precision_of_its_points_or_of_its_buffers():
    expected = -math.log(2 * math.pi) - 2
    for dtype in (torch.float32, torch.float64):
        free, tied = anode.DensityFlow(2, field=Decay()), anode.DensityFlow(2, field=Decay(torch.ones(2))).to(dtype)
        for model in (free, tied):
            found = model.log_prob(torch.zeros(3, 2, dtype=dtype))
            assert found.dtype == dtype
            assert found.tolist() == pytest.approx([expected] * 3, abs=1e-4)
    assert tied.sample(3).dtype == torch.float64
    with pytest.raises(TypeError, match=r"x: takes torch\.float64"):
        tied.log_prob(torch.zeros(3, 2))


# Estimates and bounds


def test_the_mean_of_estimates_is_the_exact_log_probability():
    model, x = small(dim=3, trace="hutchinson", rtol=1e-5, atol=1e-5), points(2, 3)
    torch.manual_seed(0)
    draws = torch.stack([model.run(x).prediction.detach() for _ in range(300)])
    mean = model.log_prob(x, samples=2000)
    model.trace = "exact"
    exact = model.log_prob(x)
    assert bool((draws.std(0) > 1e-3).all())
    assert bool(((mean - exact).abs() < 5 * draws.std(0) / 2000**0.5).all())


def test_the_noise_of_an_estimate_is_one_of_signs_per_point_and_frozen_for_a_solve():
    start = DensityStart(1, "hutchinson")
    torch.manual_seed(0)
    state = start(points(500, 2))
    assert state.shape == (500, 3 + 1 + 3)
    assert set(state[:, 4:].flatten().tolist()) == {-1.0, 1.0}
    assert abs(float(state[:, 4:].mean())) < 0.1
    torch.testing.assert_close(start.remove(state), points(500, 2))
    model = small(augment=1, trace="hutchinson")
    torch.manual_seed(0)
    solution = model.flow.solve(points(500, 2))
    assert torch.equal(solution.y1[:, 4:], state[:, 4:])


def test_the_augmented_bound_is_below_the_log_likelihood_and_more_draws_make_it_tighter():
    model = small(dim=1, augment=1, field=Rotor().double(), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 3  # a flow that mixes both coordinates, or the bound would be close to what it bounds
    both = anode.DensityFlow(2, field=model.field, rtol=1e-5, atol=1e-5)
    x, e = torch.tensor([-1.0, 0.2, 1.3], dtype=torch.float64), torch.linspace(-12, 12, 2001, dtype=torch.float64)
    with torch.no_grad():
        joint = both.log_prob(torch.cartesian_prod(x, e)).reshape(3, -1)
        normal, step = torch.distributions.Normal(0.0, 1.0).log_prob(e), e[1] - e[0]
        truth = (joint.logsumexp(1) + step.log()).squeeze()
        bound = (normal.exp() * (joint - normal)).sum(1) * step
        torch.manual_seed(0)
        draws = model.run(x.repeat(4000)[:, None]).prediction.reshape(4000, 3)
        several = model.log_prob(x[:, None], samples=5000)
    assert bool((bound < truth - 0.01).all())
    assert bool(((draws.mean(0) - bound).abs() < 5 * draws.std(0) / 4000**0.5).all())
    assert bool(((several - truth).abs() < 0.2 * (truth - bound) + 0.05).all())


def test_bounds_of_estimates_are_means_of_logarithms():
    model, x = small(augment=1, trace="hutchinson"), points(3, 2)
    torch.manual_seed(0)
    found = model.log_prob(x, samples=5)
    torch.manual_seed(0)
    torch.testing.assert_close(found, model.run(x.repeat(5, 1)).prediction.reshape(5, 3).mean(0))


def test_samples_of_an_augmented_flow_are_points():
    model = small(augment=3)
    assert model.sample(6).shape == (6, 2)
    assert model.features(points(4, 2)).shape == (4, 5)


# On the engine, stacked, trained, saved


@pytest.mark.skipif(not native.instruction_sets(), reason="there is no compiled engine")
@pytest.mark.parametrize("trace", ["exact", "hutchinson"])
@pytest.mark.parametrize("kind", ["perceptron", "own"])
def test_the_engine_solves_it_and_each_member_of_a_stack_as_alone(kind, trace):
    def build():
        return (
            anode.DensityFlow(2, 8, trace=trace)
            if kind == "perceptron"
            else anode.DensityFlow(2, field=Rotor(), trace=trace)
        )

    stacked = anode.seeded(build, range(3))
    members, x = anode.unstack(stacked), points(3, 5, 2).float()
    assert stacked.members == 3
    assert stacked.sample(4).shape == (3, 4, 2)
    torch.manual_seed(0)
    state = stacked.flow.augment(x)
    together = stacked.flow.solve_from(state, (0.0, 1.0))
    assert str(together.engine) == "native"
    for i, member in enumerate(members):
        alone = member.flow.solve_from(state[i], (0.0, 1.0))
        assert str(alone.engine) == "native"
        assert int(alone.stats.nfe) == int(together.stats.nfe[i])
        torch.testing.assert_close(together.y1[i], alone.y1, rtol=1e-5, atol=1e-6)


def test_log_probabilities_of_a_stack_are_those_of_its_members():
    stacked, x = anode.seeded(lambda: small(), range(2)), points(2, 5, 2)
    found = stacked.log_prob(x)
    for i, member in enumerate(anode.unstack(stacked)):
        torch.testing.assert_close(found[i], member.log_prob(x[i]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"field": nn.Sequential(nn.Linear(3, 3))}], ids=["perceptron", "own"])
def test_the_joint_density_of_a_stack_is_that_of_its_members(options):
    stacked, z = anode.stack([small(augment=1, seed=seed, **options) for seed in range(2)]), points(2, 5, 3)
    found = stacked.joint().log_prob(z)
    for i, member in enumerate(anode.unstack(stacked)):
        torch.testing.assert_close(found[i], member.joint().log_prob(z[i]), rtol=1e-6, atol=1e-6)


def test_training_a_stack_is_training_each_member_on_points_of_its_own():
    build = lambda: anode.DensityFlow(2, 4, layers=1, rtol=1e-4)  # noqa: E731
    data = [points(40, 2, seed=i).float() for i in range(2)]
    stacked = anode.seeded(build, range(2))
    history = anode.fit(stacked, data, epochs=2, batch_size=20, lr=1e-2, seed=3)
    for i in range(2):
        model = anode.unstack(anode.seeded(build, [i]))[0]
        alone = anode.fit(model, data[i], epochs=2, batch_size=20, lr=1e-2, seed=3 + i)
        torch.testing.assert_close(torch.tensor(history.loss[:, i]), torch.tensor(alone.loss), rtol=1e-4, atol=1e-5)


def test_fit_learns_where_points_are_and_says_what_it_minimises():
    model, x = small(rtol=1e-4, atol=1e-4), 0.3 * points(256, 2) + 1
    history = anode.fit(model, x, epochs=25, lr=2e-2, validation=x[:64], check_every=50)
    best = -torch.distributions.MultivariateNormal(x.mean(0), x.T.cov()).log_prob(x).mean()
    assert history.settings["loss"] == "negative_log_likelihood"
    assert history.loss[-4:].mean() == pytest.approx(float(best), abs=0.2)
    assert history.validation[-1] == pytest.approx(-model.log_prob(x[:64]).mean().item(), abs=1e-3)
    assert history.check[-1] < 1e-2


def test_batches_of_points_and_weights_are_data_too():
    x = points(32, 2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=16)
    batches = anode.fit(small(), lambda seed: [x[:16], x[16:]], epochs=1)
    assert anode.fit(small(), loader, epochs=1).loss.tolist() == batches.loss.tolist()
    weights = torch.cat([torch.ones(16), torch.zeros(16)])
    weighted = anode.fit(small(), (x, x.new_empty(32, 0), weights), epochs=1, batch_size=32).loss[0]
    assert weighted == pytest.approx(-small().log_prob(x[:16]).mean().item())


@pytest.mark.parametrize(
    "options", [{}, {"augment": 1}, {"trace": "hutchinson"}, {"field": Rotor()}, {"t1": 2.0}], ids=str
)
def test_a_saved_model_is_the_same_to_the_bit(tmp_path, options):
    for model in (small(**options), anode.stack([small(**options), small(**options)])):
        x = points(4, 2) if model.members is None else points(2, 4, 2)
        anode.save(model, tmp_path / "model")
        loaded = anode.load(tmp_path / "model")
        results = []
        for each in (model, loaded):
            torch.manual_seed(0)
            results.append((each.log_prob(x), each.sample(3)))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        assert loaded.flow.solver == model.flow.solver
        assert loaded.trace == model.trace


def test_its_defaults_are_those_of_the_paper():
    model = anode.DensityFlow(2)
    assert (model.field.hidden, model.field.layers, model.field.activation, model.trace) == (64, 3, "tanh", "exact")
    assert (model.flow.solver.rtol, model.flow.solver.atol, model.augment) == (1e-5, 1e-5, 0)


# What is refused


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"dim": 0}, ValueError, "dim: takes a whole number above 0, got 0"),
        ({"augment": Zeros(2)}, TypeError, "augment: takes a whole number from 0.*must be normal, got Zeros"),
        ({"augment": -1}, ValueError, "augment: takes a whole number from 0, got -1"),
        ({"dim": 65}, ValueError, 'trace: takes "hutchinson" for a state of 65 numbers'),
        ({"dim": 60, "augment": 5}, ValueError, 'trace: takes "hutchinson" for a state of 65 numbers'),
        ({"trace": "stochastic"}, ValueError, "trace: takes one of exact, hutchinson, got 'stochastic'"),
        ({"field": anode.MLPField(3)}, ValueError, "field: takes states of 2 numbers, .* takes 3 features"),
        ({"field": 3}, ValueError, r"field: takes a torch.nn.Module f\(t, z\), got 3"),
        ({"field": Rotor(), "hidden": 3}, ValueError, "hidden: takes None with field="),
        ({"rtoll": 1e-3}, TypeError, "rtoll: is not an argument of DensityFlow"),
    ],
    ids=str,
)
def test_a_bad_argument_is_named_with_what_to_use_instead(options, kind, said):
    with pytest.raises(kind, match=said):
        anode.DensityFlow(**{"dim": 2, **options})


def test_a_state_too_large_for_an_exact_trace_has_an_estimate():
    model = anode.DensityFlow(65, 4, layers=1, trace="hutchinson")
    assert model.log_prob(torch.zeros(2, 65)).shape == (2,)
    with pytest.raises(ValueError, match='trace: takes "hutchinson" for a state of 65 numbers'):
        model.trace = "exact"


def test_noise_is_refused_wherever_it_is_given():
    noisy = {"method": "euler", "step_size": 0.5, "noise": 0.1}
    model, said = small(), r"noise: takes None for a density, .*got Noise\(scale=0\.1, paths=10\)"
    for call in (
        lambda: small(**noisy),
        lambda: model.log_prob(points(4, 2), **noisy),
        lambda: model.log_prob(points(4, 2), solver=anode.Solver(**noisy)),
        lambda: model.inverse(points(4, 2), **noisy),
        lambda: model.sample(4, **noisy),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    model.flow.solver = model.flow.solver.but(**noisy)
    with pytest.raises(ValueError, match=said):
        model.log_prob(points(4, 2))
    assert model.log_prob(points(4, 2), noise=None).shape == (4,)


def test_points_of_another_size_or_kind_are_refused():
    model = small()
    with pytest.raises(ValueError, match="x: takes 2 features in the last dimension, got shape"):
        model.log_prob(points(4, 3))
    with pytest.raises(ValueError, match=r"x: takes points of shape \[batch, 2\], got \(2,\)"):
        model.log_prob(points(2))
    with pytest.raises(ValueError, match="z: takes 2 features"):
        model.inverse(points(4, 3))
    with pytest.raises(TypeError, match=r"x: takes torch\.float64"):
        model.log_prob(points(4, 2).float())
    with pytest.raises(TypeError, match="x: takes a tensor, got a list"):
        model.log_prob([[0.0, 0.0]], samples=2)
    with pytest.raises(ValueError, match="field: does not fit x of shape"):
        small(field=Rotor(3)).log_prob(points(4, 2))
    for samples in (0, 1.5):
        with pytest.raises(ValueError, match="samples: takes a whole number above 0"):
            model.log_prob(points(4, 2), samples=samples)
    with pytest.raises(ValueError, match="n: takes a whole number above 0"):
        model.sample(0)


def test_a_log_probability_that_is_not_finite_is_an_error_that_says_what_to_do():
    model = anode.DensityFlow(2, 4)
    with pytest.raises(FloatingPointError, match=r"log_prob: is not finite for 1 of 2 points.*float64"):
        model.log_prob(torch.tensor([[0.0, 0.0], [1e25, 0.0]]))
    assert model.run(torch.tensor([[1e25, 0.0]])).prediction.tolist() == [-math.inf]


def test_a_solve_that_fails_is_an_error_and_can_be_looked_at():
    model = small(max_steps=1)
    with pytest.raises(anode.SolveError):
        model.log_prob(points(4, 2))
    assert not model.run(points(4, 2)).solution.success


def test_a_density_pickled_by_an_earlier_version_can_be_used():
    model = anode.DensityFlow(2, trace="hutchinson")
    model.start.__dict__.pop("noise", None)  # it had none
    assert pickle.loads(pickle.dumps(model)).log_prob(torch.zeros(3, 2)).shape == (3,)


def test_batch_normalisation_that_mixes_points_is_refused():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8)
    model = anode.DensityFlow(2, field=nn.Sequential(nn.Linear(2, 8), norm, nn.Tanh(), nn.Linear(8, 2)))
    x = torch.randn(5, 2)
    with pytest.raises(ValueError, match=r"field: takes no batch normalisation in training mode, because a density"):
        model.log_prob(x)
    model.eval()
    assert torch.allclose(model.log_prob(x), torch.cat([model.log_prob(each) for each in x.split(1)]), atol=1e-4)
