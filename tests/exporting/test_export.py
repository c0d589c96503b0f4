from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits, load_iris
from torch import nn

import anode
from anode.exporting.steps import SteppedFlow, exact, least_steps, stepped

runtime = pytest.importorskip("onnxruntime")
TIGHT = anode.Solver(rtol=1e-5, atol=1e-5)
pytestmark = pytest.mark.usefixtures("one_thread")


def points(count: int = 60) -> torch.Tensor:
    return torch.randn(count, 2, generator=torch.Generator().manual_seed(0))


def model_of_points(**settings) -> anode.NeuralODE:
    torch.manual_seed(0)
    return anode.NeuralODE(2, 3, augment=1, **settings)


def run_onnx(path: Path, x: np.ndarray) -> list[np.ndarray]:
    return runtime.InferenceSession(path).run(None, {"x": x})


class Attention(nn.Module):
    """A field of the user's, which depends on time."""

    def __init__(self, dim: int = 3) -> None:
        super().__init__()
        self.keys, self.values = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, t, h):
        return self.values(h) * torch.softmax(self.keys(h) * t, -1)


class Infinite(nn.Module):
    """A head that overflows."""

    def forward(self, x):
        return x / 0.0


# Steps


@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4_classic", "tsit5", "dopri5"])
def test_equal_steps_are_those_of_the_solver(method):
    model, x = model_of_points(solver=anode.Solver(method=method, step_size=0.125)), points()
    assert torch.allclose(stepped(model, method, 8)(x), model(x), atol=1e-6)


def test_more_steps_come_nearer_in_the_order_of_the_method():
    model, x = model_of_points(activation="tanh").double(), points().double()
    wanted = exact(model, x)
    errors = [float((stepped(model, "rk4_classic", n)(x) - wanted).detach().abs().max()) for n in (2, 4, 8)]
    assert errors[0] / errors[1] > 10
    assert errors[1] / errors[2] > 10


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-5])
def test_the_steps_are_as_few_as_the_tolerance_allows(tolerance):
    model, x = model_of_points(), points()
    found = least_steps(model, x, tolerance)
    assert found.error <= tolerance
    wanted = exact(model, x)
    if found.count > 1:
        fewer = stepped(model, found.method, found.count - 1)(x).detach().double()
        assert float((fewer - wanted).abs().max() / wanted.abs().max()) > tolerance


def test_the_model_itself_stays_as_it_is():
    model, x = model_of_points(), points()
    before, weights = model.flow.solver, {name: p.clone() for name, p in model.named_parameters()}
    model.train()
    least_steps(model, x, 1e-3)
    assert model.flow.solver == before
    assert model.training
    assert not isinstance(model.flow, SteppedFlow)
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())


def test_a_tolerance_out_of_reach_is_refused():
    class Stiff(nn.Module):
        def forward(self, t, h):
            return -2e4 * h

    with pytest.raises(ValueError, match=r"tolerance: 1e-06 is not reached with 1024 equal steps"):
        least_steps(anode.Flow(Stiff()), points(), 1e-6)


def test_a_state_of_several_tensors_is_stepped_too():
    class Oscillator(nn.Module):
        def forward(self, t, state):
            return state[1], -state[0]

    class Still(anode.Augment):
        def forward(self, x):
            return x, torch.zeros_like(x)

    class First(nn.Module):
        def forward(self, state):
            return state[0]

    model = anode.NeuralODE(field=Oscillator(), head=First(), augment=Still(), t1=2.0)
    assert torch.allclose(stepped(model, "rk4_classic", 50)(points()), points() * np.cos(2.0), atol=1e-5)


def test_a_field_that_does_not_know_time_is_stepped_too():
    torch.manual_seed(0)
    model = anode.Flow(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)), rtol=1e-6, atol=1e-6)
    assert torch.allclose(stepped(model, "rk4_classic", 20)(points()), model(points()), atol=1e-4)


class SolvesItself(nn.Module):
    """A model of the user's that solves its flow and keeps the solution."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.flow, self.options = anode.Flow(Attention(2)), options

    def forward(self, x):
        return self.flow.solve(x, **self.options).y1


@pytest.mark.parametrize("model", [SolvesItself(), anode.DensityFlow(2, hidden=8, layers=1)])
def test_every_solve_of_a_model_is_stepped(model):
    once, twice = (stepped(model, "euler", count)(points()) for count in (1, 2))
    assert not torch.equal(once, twice)


def test_a_model_that_needs_states_before_the_end_time_is_refused():
    with pytest.raises(ValueError, match="save_at: takes nothing in a model to export"):
        least_steps(SolvesItself(save_at=[0.0, 0.5, 1.0]), points(), 1e-3)


def test_a_stepped_model_can_be_exported_strictly():  # as earlier versions of torch do by default
    x = points(2)
    model = stepped(nn.Sequential(model_of_points(), nn.Tanh()), "midpoint", 2)
    assert torch.equal(torch.export.export(model, (x,), strict=True).module()(x), model(x))


# Files


@pytest.mark.parametrize(
    "model", [model_of_points(), model_of_points(activation="gelu", time=False)], ids=["relu", "gelu"]
)
def test_onnxruntime_predicts_the_same_for_points(model, tmp_path):
    x = points()
    written = anode.export(model, tmp_path / "model.onnx", x, tolerance=1e-4)
    (found,) = run_onnx(written.path, x[:7].numpy())
    assert found == pytest.approx(exact(model, x[:7]).numpy(), abs=2e-4 * float(exact(model, x).abs().max()))
    assert found.shape == (7, 3)


def test_the_file_says_how_it_was_made(tmp_path):
    written = anode.export(model_of_points(), tmp_path / "model.onnx", points())
    notes = runtime.InferenceSession(written.path).get_modelmeta().custom_metadata_map
    assert notes["anode.method"] == written.steps.method
    assert int(notes["anode.steps"]) == written.steps.count
    assert float(notes["anode.error"]) == written.steps.error <= float(notes["anode.tolerance"]) == 1e-3
    assert f"{written.steps.evaluations} evaluations" in str(written)
    assert written.tolerance == 1e-3


def test_images_of_bytes_are_scaled_in_the_file(tmp_path):
    torch.manual_seed(0)
    model = anode.ImageNeuralODE((1, 8, 8), 10, 6, augment=2)
    x = torch.from_numpy(load_digits().images[:40, None].astype(np.uint8) * 15)
    written = anode.export(model, tmp_path / "model.onnx", x)
    (found,) = run_onnx(written.path, x[:5].numpy())
    wanted = exact(model, x)
    assert np.abs(found - wanted[:5].numpy()).max() <= 1.1e-3 * float(wanted.abs().max())


def test_a_field_and_a_module_of_the_users_own_are_exported(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), anode.Flow(Attention()), nn.Linear(3, 4), nn.Tanh())
    written = anode.export(model, tmp_path / "model.onnx", points())
    (found,) = run_onnx(written.path, points()[:9].numpy())
    assert np.abs(found - exact(model, points())[:9].numpy()).max() <= 1.1e-3


def test_torch_loads_its_own_format(tmp_path):
    model = model_of_points()
    written = anode.export(model, tmp_path / "model.pt2", points())
    extra = {"anode.steps": ""}
    again = torch.export.load(written.path, extra_files=extra).module()
    assert torch.equal(again(points()[:5]), stepped(model, written.steps.method, written.steps.count)(points()[:5]))
    assert int(extra["anode.steps"]) == written.steps.count


def test_a_model_without_a_solve_is_written_as_it_is(tmp_path):
    torch.manual_seed(0)
    model = anode.ResNet(2, 1)
    written = anode.export(model, tmp_path / "model.onnx", points())
    (found,) = run_onnx(written.path, points().numpy())
    assert found == pytest.approx(model(points()).detach().numpy(), abs=1e-5)
    assert "no solve" in str(written)


# Estimators


@pytest.mark.parametrize("named", [True, False])
def test_a_classifier_is_exported_with_its_scaling_and_classes(named, tmp_path):
    data = load_iris()
    y = data.target_names[data.target] if named else data.target * 10 - 7
    model = anode.ANODEClassifier(epochs=20, solver=TIGHT, random_state=0).fit(data.data, y)
    written = anode.export(model, tmp_path / "model.onnx", data.data)
    labels, probabilities = run_onnx(written.path, data.data.astype(np.float32))
    assert np.abs(probabilities - model.predict_proba(data.data)).max() < 0.01
    sure = np.sort(probabilities)[:, -1] - np.sort(probabilities)[:, -2] > 0.02
    assert sure.mean() > 0.9
    assert (labels == model.predict(data.data))[sure].all()


def test_a_classifier_of_images_takes_its_rows(tmp_path):
    data = load_digits()
    X, y = data.data[:200], data.target[:200]
    model = anode.ANODEClassifier(image=(1, 8, 8), filters=4, epochs=2, solver=TIGHT, random_state=0).fit(X, y)
    written = anode.export(model, tmp_path / "model.onnx", X[:50])
    _, probabilities = run_onnx(written.path, X[:20].astype(np.float32))
    assert np.abs(probabilities - model.predict_proba(X[:20])).max() < 0.01


@pytest.mark.parametrize("targets", [1, 2])
def test_a_regressor_is_exported_with_the_scale_of_its_targets(targets, tmp_path):
    X, y = load_diabetes(return_X_y=True)
    y = y if targets == 1 else np.stack([y, -2 * y], 1)
    model = anode.ANODERegressor(epochs=5, solver=TIGHT, random_state=0).fit(X, y)
    written = anode.export(model, tmp_path / "model.onnx", X, tolerance=1e-4)
    (values,) = run_onnx(written.path, X.astype(np.float32))
    assert values.shape == y.shape
    assert np.abs(values - model.predict(X)).max() < 0.01 * y.std()


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"path": "model.txt"}, r"path: takes a file that ends in one of .onnx, .pt2"),
        ({"tolerance": 0}, "tolerance: takes"),
        ({"x": [[1.0, 2.0]]}, "x: takes a tensor of inputs"),
        ({"x": np.ones((2, 2))}, r"x: takes a tensor of inputs, .*, got a NumPy array of shape \(2, 2\)"),
        ({"x": torch.tensor([[1.0, torch.nan]])}, "x: takes finite values, got NaN"),
        ({"model": nn.Sequential(model_of_points(), Infinite())}, "x: takes inputs whose predictions are finite"),
        ({"x": torch.empty(0, 2)}, "x: takes at least one input"),
        ({"model": 3}, "model: takes a torch.nn.Module, or a fitted ANODEClassifier"),
        ({"model": anode.ANODEDensity()}, "model: takes a torch.nn.Module, or a fitted ANODEClassifier"),
        (
            {"model": anode.DensityFlow(2)},
            r"model: takes a model without log-probabilities, .* anode.Flow\(model.field",
        ),
        ({"model": anode.stack([model_of_points(), model_of_points()])}, "anode.unstack"),
    ],
)
def test_mistakes_are_named(arguments, words, tmp_path):
    given = {"model": model_of_points(), "path": "model.pt2", "x": points(), "tolerance": 1e-3, **arguments}
    with pytest.raises((TypeError, ValueError), match=words):
        anode.export(given["model"], tmp_path / given["path"], given["x"], tolerance=given["tolerance"])
    assert not list(tmp_path.iterdir())


def test_the_flow_of_a_densitys_points_is_exported(tmp_path):
    torch.manual_seed(0)
    density = anode.DensityFlow(2, hidden=8, layers=1)
    flow = anode.Flow(density.field, t1=density.flow.t1, solver=density.flow.solver)
    written = anode.export(flow, tmp_path / "flow.pt2", points())
    found = torch.export.load(written.path).module()(points())
    torch.testing.assert_close(found, density.run(points()).features, rtol=1e-2, atol=1e-2)


def test_a_model_that_torch_cannot_export_is_refused_in_one_line(tmp_path):
    class Counting(nn.Module):
        def forward(self, t, h):
            return h * float(h.sum())

    with pytest.raises(ValueError, match="model: torch cannot export it") as caught:
        anode.export(anode.Flow(Counting()), tmp_path / "model.pt2", 0.01 * points())
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_an_estimator_that_is_not_fitted_is_refused(tmp_path):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        anode.export(anode.ANODEClassifier(), tmp_path / "model.onnx", np.zeros((3, 2)))
