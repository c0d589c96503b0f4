import json
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import anode
from anode.experiments.beyond import search
from anode.experiments.beyond.densities import ACCURATE, DRAWS, drawn
from anode.experiments.beyond.measures import MEASURES, jacobian, measures
from anode.experiments.beyond.points import APART, POINTS
from anode.experiments.beyond.protocols import all_runs, protocol
from anode.experiments.beyond.rates import RATES
from anode.experiments.beyond.runs import LABELS, by_epoch, cost_of
from anode.experiments.beyond.widths import WITHIN, counted, equal_widths, parameters, spread
from anode.experiments.runs import load, save
from helpers.tiny import NOWHERE
from helpers.tiny_beyond import REPEATS, shrunk, trained

RUNS = all_runs()


def compared() -> dict[tuple, list]:
    """The runs that are compared with each other, by what they have in common."""
    groups: dict[tuple, list] = {}
    for name, run in RUNS.items():
        group = name.split("-")[0]
        groups.setdefault((group, run.data, run.dim), []).append(run)
    groups["regularised", "g", 2] += [RUNS["g-d2-node"], RUNS["g-d2-zeros"]]
    return groups


@pytest.mark.parametrize("group", compared(), ids=str)
def test_models_that_are_compared_have_equally_many_parameters(group):
    counts = [parameters(run.build()) for run in compared()[group]]
    assert len(counts) > 1
    assert spread(counts) <= WITHIN


def test_numbers_of_parameters_are_predicted_from_small_models():
    def build(width):
        return anode.family.build("hidden", 3, 1, augment=2, hidden=width)

    found = counted(build)
    assert all(found[width] == parameters(build(width)) for width in (32, 47, 80))


def test_models_that_cannot_be_equal_are_refused():
    with pytest.raises(ValueError, match="builds: takes models that widths in"):
        equal_widths({"small": lambda w: torch.nn.Linear(1, w), "large": lambda w: torch.nn.Linear(10**6, w)})


def test_models_have_at_least_as_many_parameters_as_asked_for():
    builds = {name: lambda w: torch.nn.Linear(w, w) for name in "ab"}
    assert equal_widths(builds) == {"a": 32, "b": 32}
    assert equal_widths(builds, 51 * 50 + 1) == {"a": 51, "b": 51}


def test_every_learning_rate_was_searched_for_the_same_way():
    assert set(RATES) == set(search.searched())
    assert set(RATES.values()) <= set(search.CANDIDATES)
    assert not set(search.SEEDS) & {seed for run in RUNS.values() for seed in run.seeds}


def test_the_search_trains_every_rate_from_every_seed():
    run = shrunk(RUNS["swap-zeros"])
    found = search.losses(replace(run, epochs=3))
    assert list(found) == list(search.CANDIDATES)
    assert len({*found.values()}) == len(found)
    assert search.best({1e-3: 0.5, 1e-2: 0.1, 3e-3: np.inf}) == 1e-2


def test_one_bad_seed_does_not_decide_the_search_but_a_failed_one_does(monkeypatch):
    ends = {1e-3: [1e-2] * 5, 3e-3: [1e-4] * 4 + [0.5], 1e-2: [1e-6] * 4 + [np.nan], 3e-2: [1.0] * 5, 1e-1: [1.0] * 5}
    loss = np.concatenate([*ends.values()])[None]
    monkeypatch.setattr(search, "fit", lambda *args, **options: SimpleNamespace(per_epoch=lambda series: loss))
    found = search.losses(shrunk(RUNS["swap-zeros"]))
    assert found[1e-2] == np.inf
    assert search.best(found) == 3e-3


def test_the_search_writes_the_loss_of_every_rate(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(search, "searched", lambda: {"g-node": None})
    monkeypatch.setattr(search, "losses", lambda run: {1e-3: 0.5, 1e-2: np.inf})
    search.main(tmp_path / "search.json")
    assert json.loads((tmp_path / "search.json").read_text()) == {"g-node": {"0.001": 0.5, "0.01": None}}


@pytest.mark.parametrize("data", POINTS)
def test_points_come_from_their_seed_alone(data):
    dim = 1 if data == "swap" else 2
    x, y = POINTS[data](dim, 3)
    again, _ = POINTS[data](dim, 3)
    other, _ = POINTS[data](dim, 3 + APART)
    assert len(x) == len(y)
    assert torch.equal(x, again)
    assert torch.equal(x, other) == (data == "swap")  # whose two points are always the same


def test_nested_spheres_are_labelled_in_turns():
    x, y = POINTS["nested"](2, 0)
    radius = x.norm(dim=1)
    shells = [(0.0, 0.51, -1), (0.74, 1.01, 1), (1.24, 1.51, -1)]
    inside = [(low < radius) & (radius < high) for low, high, _ in shells]
    assert [int(each.sum()) for each in inside] == [500, 500, 500]
    assert all((y[each] == label).all() for each, (*_, label) in zip(inside, shells, strict=True))


def test_a_table_is_split_and_standardised_by_what_is_trained_on():
    some, rest = drawn("iris", 0)
    assert (some.shape, rest.shape) == ((100, 4), (50, 4))
    torch.testing.assert_close(some.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    assert not torch.equal(some, drawn("iris", 1)[0])


@pytest.mark.parametrize(
    "name", ["g-d2-hidden", "swap-second-order", "noise-d1-0.3", "regularised-node-kinetic-0.01", "density-moons-cnf"]
)
def test_a_run_is_the_same_every_time_and_comes_back_from_disk(name, tmp_path):
    result = trained(name)
    save(result, tmp_path)
    read = load(result.run, tmp_path)
    assert read.measured.keys() == result.measured.keys()
    again = result.run.train(None, NOWHERE)
    for other in (read, again):
        np.testing.assert_array_equal(result.history.loss, other.history.loss)
        for key, values in result.measured.items():
            np.testing.assert_array_equal(values, other.measured[key])
    assert (read.model is None) == (result.model is None) == (not result.run.kept)


@pytest.mark.parametrize("kind", LABELS)
def test_every_kind_is_trained_and_certified(kind):
    result = replace(shrunk(RUNS[f"swap-{kind}"]), epochs=2).train(None, NOWHERE)
    assert result.trained.all()
    assert np.isfinite(result.measured["held-out"]).all()
    assert np.isfinite(cost_of(result)).all()


def test_what_was_measured_of_another_number_of_repeats_is_damaged(tmp_path):
    result = trained("g-d2-hidden")
    save(replace(result, measured={"held-out": np.zeros(REPEATS + 1)}), tmp_path)
    with pytest.raises(anode.files.DamagedFileError, match="not of every repeat"):
        load(result.run, tmp_path)


def test_the_history_of_a_run_is_one_mean_per_epoch():
    run = replace(shrunk(RUNS["g-d2-zeros"]), epochs=3)
    _, history = run.fitted(None)
    short = by_epoch(history)
    assert (len(history), len(short), short.batches) == (6, 3, 1)
    np.testing.assert_allclose(short.loss, history.per_epoch("loss"), rtol=1e-6)


def test_a_run_has_the_repeats_and_seeds_that_are_asked_for():
    run = protocol("g-d5-linear", 3, 7)
    assert (run.repeats, [*run.seeds]) == (3, [7, 8, 9])
    assert {run.repeats for run in RUNS.values()} == {20}


# ------------------------------------------------------------------------------------------------------------ measures


class Rotation(anode.Field):
    """The field that turns the plane around the origin, half a turn in a unit of time; or stretches it."""

    def __init__(self, matrix):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.as_tensor(matrix, dtype=torch.float64))

    def forward(self, t, h):
        return h @ self.matrix.mT


def linear(matrix) -> anode.NeuralODE:
    """A stack of two models with a linear field, whose prediction is |.|-free: the first feature."""
    models = []
    for _ in range(2):
        model = anode.NeuralODE(2, 1, field=Rotation(matrix)).double()
        with torch.no_grad():
            model.head.weight.copy_(torch.tensor([[1.0, 0.0]]))
            model.head.bias.zero_()
        models.append(model)
    return anode.stack(models)


def on_circle(count: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.linspace(0.1, 2 * np.pi + 0.1, count, dtype=torch.float64)
    x = torch.stack([angle.cos(), angle.sin()], -1).expand(2, count, 2)
    return x, torch.where(x[..., :1] < 0, -1.0, 1.0).double()


def test_a_rotation_has_the_measures_that_are_known():
    half_turn = np.pi * np.array([[0.0, -1.0], [1.0, 0.0]])
    x, y = on_circle()
    found = measures(linear(half_turn), x, -y)  # the classes change sides
    assert list(found) == list(MEASURES)
    np.testing.assert_allclose(found["length"], np.pi, rtol=1e-3)
    np.testing.assert_allclose(found["straightness"], 2 / np.pi, rtol=1e-3)
    np.testing.assert_allclose(found["energy"], np.pi**2, rtol=1e-3)
    np.testing.assert_allclose(found["lipschitz"], np.pi, rtol=1e-6)
    np.testing.assert_allclose(found["condition"], 1, rtol=1e-3)
    np.testing.assert_allclose(found["curvature"], 0, atol=1e-4)


def test_a_stretch_is_as_badly_conditioned_as_it_stretches():
    found = measures(linear([[1.0, 0.0], [0.0, -1.0]]), *on_circle())
    np.testing.assert_allclose(found["condition"], np.exp(2), rtol=1e-3)
    np.testing.assert_allclose(found["lipschitz"], 1, rtol=1e-6)


def on_spheres():
    """Two models whose classes are parted by a sphere of radius 0.75, points inside and outside of it, and targets."""

    class Radius(torch.nn.Module):
        def forward(self, h):
            return h.norm(dim=-1, keepdim=True) - 0.75

    still = Rotation([[0.0, 0.0], [0.0, 0.0]])
    model = anode.stack([anode.NeuralODE(field=still, head=Radius()).double() for _ in range(2)])
    x, _ = on_circle()
    return model, 0.5 * x, 1.5 * x, torch.cat([-(x[..., :1] ** 0), x[..., :1] ** 0], 1)


def test_the_curvature_of_a_sphere_is_one_over_its_radius():
    model, inner, outer, y = on_spheres()
    np.testing.assert_allclose(measures(model, torch.cat([inner, outer], 1), y)["curvature"], 1 / 0.75, rtol=1e-2)


def test_curvature_is_measured_on_the_surface_alone():
    model, inner, outer, y = on_spheres()
    inner[:, ::3] *= 3  # a third of the points is on the wrong side
    inner[1] = outer[1]  # and all of the second model
    found = measures(model, torch.cat([inner, outer], 1), y)
    np.testing.assert_allclose(found["curvature"], [1 / 0.75, np.nan], rtol=1e-2)


@pytest.mark.parametrize("name", ["density-moons-cnf", "density-moons-augmented"])
def test_a_repeat_without_a_log_likelihood_leaves_that_of_the_others(name):
    result = trained(name)
    run, model = result.run, deepcopy(result.model)
    torch.manual_seed(run.seed)
    expected = model.log_prob(run.others(), samples=DRAWS if run.augment else 1, **ACCURATE).mean(1).double()
    np.testing.assert_array_equal(result.measured["log-likelihood"], expected.numpy(force=True))
    with torch.no_grad():
        next(model.parameters())[1] = torch.nan
    run.finish(broken := replace(result, model=model))
    np.testing.assert_array_equal(broken.measured["log-likelihood"], [expected[0].item(), np.nan])


def test_jacobians_are_those_of_autograd():
    torch.manual_seed(0)
    field = anode.MLPField(3, 8, activation="tanh").double()
    h = torch.randn(1, 4, 3, dtype=torch.float64)
    expected = torch.stack([torch.func.jacrev(lambda y: field(torch.tensor(0.0), y))(row) for row in h[0]])
    torch.testing.assert_close(jacobian(lambda y: field(torch.tensor(0.0), y), h)[0], expected, atol=1e-6, rtol=1e-5)


def test_the_cost_is_that_of_the_papers_tolerance():
    result = trained("g-d2-hidden")
    last = result.certificates["last"]
    np.testing.assert_array_equal(cost_of(result), last.nfe[last.tolerances.index(1e-3)])
