"""Noise in the state: its size, its gradient, and where it makes no sense."""

import pytest
import torch

import anode

NOISY = anode.Solver(method="euler", step_size=0.25, noise=0.3)


def zero(t, y):
    return torch.zeros_like(y)


def test_noise_adds_up_to_its_scale_in_a_unit_of_time():
    torch.manual_seed(0)
    for span, expected in ((1.0, 0.3), (4.0, 0.6)):
        y = anode.solve(zero, torch.zeros(40_000), (0.0, span), solver=NOISY).y1
        assert y.std().item() == pytest.approx(expected, rel=0.02)
        assert abs(y.mean().item()) < 0.01


def test_a_step_is_that_of_euler_and_maruyama():
    torch.manual_seed(3)
    y = anode.solve(lambda t, y: -2 * y, torch.ones(5, 2), (0.0, 0.5), solver=NOISY).y1
    torch.manual_seed(3)
    draws = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
    expected = torch.ones(5, 2)
    for _ in range(2):
        expected = expected - 2 * 0.25 * expected + 0.3 * 0.25**0.5 * torch.randn(5, 2, generator=draws)
    assert torch.allclose(y, expected)


@pytest.mark.parametrize("settings", [{}, {"gradient": "stored"}, {"engine": "torch", "method": "dopri5"}])
def test_gradients_are_those_of_the_path_that_was_taken(settings):
    torch.manual_seed(0)
    model = anode.NeuralODE(2, 1, 4, activation="tanh", solver=NOISY.but(**settings)).double()
    x = torch.rand(3, 2, dtype=torch.float64, requires_grad=True)

    def run(x):
        torch.manual_seed(5)
        return model(x)

    assert torch.autograd.gradcheck(run, (x,))
    if settings.get("gradient") == "stored":  # the solve is repeated, with the same noise
        assert torch.autograd.gradgradcheck(run, (x,))


def test_f_is_compiled_though_python_takes_the_steps(monkeypatch):
    monkeypatch.delenv("ANODE_ENGINE", raising=False)
    engine = anode.NeuralODE(2, 1, solver=NOISY).run(torch.rand(4, 2)).solution.engine
    assert str(engine) == "torch (noise is added to the state after every step; f is compiled)"


def test_a_model_in_use_predicts_the_mean_over_paths():
    torch.manual_seed(0)
    model = anode.NeuralODE(1, 1, 4, solver=NOISY.but(noise=anode.Noise(0.3, paths=50)))
    x = torch.zeros(200, 1)
    with torch.no_grad():
        one, mean = model(x).std(), model.eval()(x).std()
    assert mean.item() == pytest.approx(one.item() / 50**0.5, rel=0.3)


def test_options_of_a_call_say_how_many_paths_are_averaged():
    noisy, calls = anode.NeuralODE(1, 1, 4, solver=NOISY).eval(), []
    plain = anode.NeuralODE(1, 1, 4, solver=NOISY.but(noise=None)).eval()
    for model in (noisy, plain):
        model.head.register_forward_hook(lambda *_: calls.append(1))
    for model, options, expected in (
        (noisy, {}, 10),
        (noisy, {"noise": None}, 1),
        (noisy, {"noise": anode.Noise(0.3, paths=3)}, 3),
        (noisy, {"solver": NOISY.but(noise=None)}, 1),
        (plain, {"noise": 0.2}, 10),
    ):
        calls.clear()
        model.run(torch.zeros(2, 1), **options)
        assert len(calls) == expected


class Bounded(torch.nn.Module):
    """A field that is not finite beyond a bound."""

    def forward(self, t, h):
        return torch.where(h.abs() > 1.5, torch.nan, 0 * h)


@pytest.mark.parametrize("control", [1, "joint"])
def test_a_mean_has_failed_where_any_of_its_paths_has(control):
    model = anode.NeuralODE(1, 1, field=Bounded(), solver=NOISY.but(noise=0.8, control=control)).eval()
    torch.manual_seed(0)
    outcome = model.run(torch.zeros(8, 1))
    torch.manual_seed(0)
    each = [model.flow.run(torch.zeros(8, 1)).solution for _ in range(10)]
    failed = torch.stack([torch.as_tensor(one.status) for one in each]) != 0
    assert 0 < failed.sum() < failed.numel()
    assert torch.equal(torch.as_tensor(outcome.solution.status) != 0, failed.any(0))
    stopped = torch.as_tensor(outcome.solution.t1) < 1
    assert torch.equal(stopped, failed.any(0))
    with pytest.raises(anode.SolveError, match="NON_FINITE"):
        outcome.check()


def test_integrals_are_means_over_paths_too():
    torch.manual_seed(0)
    model, loss = anode.NeuralODE(2, 1, 4, solver=NOISY).eval(), anode.Regularised(anode.Kinetic())
    x, options = torch.rand(4, 2), loss.options(model.flow)
    torch.manual_seed(1)
    (found,) = model.run(x, **options).integrals
    torch.manual_seed(1)
    each = torch.stack([model.flow.run(x, **options).integrals[0] for _ in range(10)])
    assert torch.allclose(found, each.mean(0))


@pytest.mark.parametrize("terms", [[], [anode.Kinetic(0.1)]], ids=["plain", "regularised"])
def test_training_sees_one_path_in_either_mode(terms):
    data, losses = anode.datasets.load("moons", points=64), []
    for mode in (True, False):
        torch.manual_seed(0)
        model = anode.NeuralODE(2, 1, 4, solver=NOISY).train(mode)
        loss = anode.Regularised(*terms) if terms else None
        losses.append(anode.fit(model, data, epochs=2, loss=loss).loss.tolist())
        assert model.training is mode
    assert losses[0] == losses[1]


def test_the_number_of_paths_of_a_call_can_be_given():
    torch.manual_seed(0)
    model = anode.NeuralODE(1, 1, 4, solver=NOISY)
    x = torch.zeros(400, 1)
    with torch.no_grad():
        assert model.run(x, paths=100).prediction.std() < model.run(x).prediction.std() / 5
    with pytest.raises(ValueError, match="paths: takes a whole number above 0, got 0"):
        model.run(x, paths=0)


def test_members_of_a_stack_and_samples_get_noise_of_their_own():
    torch.manual_seed(0)
    together = anode.seeded(lambda: anode.NeuralODE(2, 1, 4, solver=NOISY), seeds=[1, 1])
    y = together.features(torch.zeros(2, 3, 2))
    assert y.detach().unique().numel() == y.numel()
    solution = anode.solve(zero, torch.zeros(4, 2), (0.0, 1.0), solver=NOISY, control="sample")
    assert solution.y1.unique().numel() == 8


def test_training_is_reproducible_and_says_who_made_the_iterations(monkeypatch):
    monkeypatch.delenv("ANODE_ENGINE", raising=False)
    data = anode.datasets.load("moons", points=64)

    def train():
        torch.manual_seed(0)
        model = anode.NeuralODE(2, 1, 4, solver=NOISY)
        return anode.fit(model, data, epochs=2, validation=data, progress=False)

    one, other = train(), train()
    assert (one.loss == other.loss).all()
    assert (one.validation == other.validation).all()
    assert one.engine == "torch (noise is added to the state after every step)"


def test_it_is_a_setting_that_can_be_saved(tmp_path):
    model = anode.NeuralODE(2, 1, solver=NOISY)
    assert anode.load(anode.save(model, tmp_path / "model")).flow.solver == NOISY
    assert anode.Solver.from_json(NOISY.to_json()).noise == anode.Noise(0.3, paths=10)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"step_size": None}, "noise: takes None with adaptive steps"),
        ({"gradient": "continuous"}, 'noise: takes None with gradient="continuous"'),
        ({"noise": -1.0}, "scale: takes a number above 0, got -1.0"),
    ],
)
def test_noise_that_makes_no_sense_is_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        NOISY.but(method="dopri5", **settings)


def test_a_noisy_flow_has_no_inverse_no_check_and_no_file(tmp_path):
    model = anode.NeuralODE(2, 1, solver=NOISY)
    flow, x = model.flow, torch.rand(4, 2)
    with pytest.raises(ValueError, match="noise: takes None for an inverse"):
        flow.inverse(x)
    with pytest.raises(ValueError, match="noise: takes None for a check"):
        flow.check(x)
    with pytest.raises(ValueError, match="model: takes a model without noise"):
        anode.export(model, tmp_path / "model.pt2", x)
    assert torch.isfinite(flow.inverse(x, noise=None)).all()


def test_a_model_whose_run_takes_no_options_is_trained_with_noise():
    class Scaled(anode.NeuralODE):
        def run(self, x):
            return super().run(2 * x)

    model = Scaled(2, 1, augment=1, solver=anode.Solver(noise=0.1, method="rk4", step_size=0.25))
    history = anode.fit(model, (torch.rand(8, 2), torch.rand(8, 1)), epochs=1, progress=False)
    assert not history.failures


def test_where_noise_is_added_is_asked_without_side_effects():
    class Normed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2)

        def forward(self, t, h):
            return self.norm(self.linear(h))

    field = Normed()
    counts = []
    for noise in (None, 0.1):
        solver = anode.Solver(method="euler", step_size=0.5, noise=noise, engine="torch")
        model = anode.NeuralODE(2, 1, augment=anode.WithInput(0), field=anode.DataControl(field), solver=solver)
        before = int(field.norm.num_batches_tracked)
        model.run(torch.randn(5, 2))
        counts.append(int(field.norm.num_batches_tracked) - before)
    assert counts[0] == counts[1]
