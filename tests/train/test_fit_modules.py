"""Training any module that solves ODEs in some of its parts."""

import numpy as np
import pytest
import torch
from torch import nn

import anode

X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
DATA = X, (X.norm(dim=1) > 1).long()
SPAN = torch.tensor([0.0, 1.0])


class Counted(nn.Module):
    """A field that counts its calls."""

    def __init__(self, size):
        super().__init__()
        self.layer, self.calls = nn.Linear(size, size), 0

    def forward(self, t, h):
        self.calls += 1
        return torch.tanh(self.layer(h))


class Block(nn.Module):
    """An ODE block as programs for torchdiffeq write it."""

    def __init__(self, solve, **options):
        super().__init__()
        self.field, self.solve, self.options = Counted(3), solve, options

    def forward(self, x):
        return self.solve(self.field, x, SPAN, rtol=1e-3, atol=1e-3, **self.options)[-1]


class Own(anode.Model):
    """A model of two flows whose outcome tells of neither."""

    def __init__(self):
        super().__init__()
        self.flows = nn.ModuleList([anode.Flow(Counted(2)), anode.Flow(Counted(2))])

    def run(self, x, **options):
        for flow in self.flows:
            x = flow(x)
        return anode.Outcome(x, x)


def built(name):
    torch.manual_seed(0)
    return {
        "flow": lambda: nn.Sequential(nn.Linear(2, 3), anode.Flow(Counted(4), augment=1), nn.Linear(4, 2)),
        "two flows": lambda: nn.Sequential(anode.Flow(Counted(2)), anode.Flow(Counted(2), t1=2.0, rtol=1e-5)),
        "odeint": lambda: nn.Sequential(nn.Linear(2, 3), Block(anode.odeint), nn.Linear(3, 2)),
        "adjoint": lambda: nn.Sequential(nn.Linear(2, 3), Block(anode.odeint_adjoint), nn.Linear(3, 2)),
        "own": Own,
    }[name]()


MODELS = ["flow", "two flows", "odeint", "adjoint", "own"]


@pytest.mark.parametrize("name", MODELS)
def test_the_evaluations_of_all_solves_of_a_module_are_counted(name, monkeypatch):
    monkeypatch.setenv("ANODE_ENGINE", "torch")
    model = built(name)
    with torch.no_grad():
        model(X)  # without a gradient, f is called for nothing else
    calls = sum(part.calls for part in model.modules() if isinstance(part, Counted))
    history = anode.fit(model, DATA, epochs=1, batch_size=60, lr=1e-9, validation=DATA)
    assert history.nfe.tolist() == history.validation_nfe.tolist() == [calls]
    if name in ("odeint", "adjoint"):
        assert bool(history.nfe_backward.any()) == (name == "adjoint")


@pytest.mark.parametrize("name", MODELS)
def test_the_engine_counts_as_many(name, monkeypatch):
    found = []
    for engine in ("auto", "torch"):
        monkeypatch.setenv("ANODE_ENGINE", engine)
        history = anode.fit(built(name), DATA, epochs=1, batch_size=30, lr=1e-6)
        found.append((history.nfe.tolist(), history.accepted.tolist()))
    assert found[0] == found[1]


def test_two_flows_take_the_evaluations_of_both():
    model = built("two flows")
    expected = []

    class Each(anode.Callback):
        def iteration(self, training):
            with torch.no_grad():
                first = model[0].solve(DATA[0])
                expected.append(first.stats.nfe + model[1].solve(first.y1).stats.nfe)

    Each().iteration(None)
    history = anode.fit(model, DATA, epochs=2, batch_size=60, callbacks=[Each()])
    assert history.nfe.tolist() == expected[:-1]


def test_a_module_without_solves_says_nothing_of_evaluations():
    history = anode.fit(nn.Linear(2, 2), DATA, epochs=1)
    assert not history.nfe.any()
    assert "nfe" not in repr(history)


def stiff():
    torch.manual_seed(0)
    flow = anode.Flow(anode.MLPField(3), max_steps=1, rtol=1e-6, atol=1e-6)
    return nn.Sequential(nn.Linear(2, 3), flow, nn.Linear(3, 2))


@pytest.mark.parametrize("on_failure", ["stop", "skip"])
def test_a_solve_that_fails_in_a_part_is_recorded_as_that_of_a_model(on_failure):
    model = stiff()
    before = [p.clone() for p in model.parameters()]
    history = anode.fit(
        model,
        DATA,
        epochs=2,
        batch_size=60,
        on_failure=on_failure,
        validation=DATA,
        snapshots=anode.Snapshots(X[:3], at=[0]),
    )
    assert [failure.status for failure in history.failures] == ["MAX_STEPS"] * (1 if on_failure == "stop" else 2)
    assert np.isnan(history.loss).all()
    assert np.isnan(history.validation).all()
    assert (history.nfe > 0).all()
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_a_solve_that_fails_in_a_part_is_raised_if_asked_for():
    with pytest.raises(anode.SolveError, match="in iteration 0 of training, MAX_STEPS"):
        anode.fit(stiff(), DATA, epochs=1, on_failure="raise")


def test_a_module_that_solves_again_after_a_failure_does_not_fail():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.flow = stiff()[1]

        def forward(self, x):
            try:
                return self.flow(x)
            except anode.SolveError:
                return self.flow.solve(x, max_steps=1000).check().y1

    model = nn.Sequential(nn.Linear(2, 3), Twice(), nn.Linear(3, 2))
    history = anode.fit(model, DATA, epochs=1, batch_size=60)
    assert history.failures == []
    assert np.isfinite(history.loss).all()
    assert history.rejected.sum() + history.accepted.sum() > 2


def test_predictions_of_the_whole_solve_count_every_path_of_noise():
    model = anode.NeuralODE(2, 2, noise=anode.Noise(0.1, paths=4), step_size=0.25, method="euler")
    history = anode.fit(model, DATA, epochs=1, batch_size=60, validation=DATA)
    assert history.validation_nfe.tolist() == [4 * history.nfe[0]]


def test_the_failure_of_torchdiffeqs_functions_names_their_options():
    model = nn.Sequential(nn.Linear(2, 3), Block(anode.odeint, options={"max_num_steps": 1}), nn.Linear(3, 2))
    history = anode.fit(model, DATA, epochs=1)
    assert "options={'max_num_steps'" in history.stopped
