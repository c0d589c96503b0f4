"""Fields that ask how many points there are, or how a tensor is stored, and compute something else for another answer.

Each computes something else only late in the solve, where no slope is compared: only the question itself can tell.
"""

import pytest
import torch
from torch import nn

import anode
from anode.engine.trace.calls import Calls, calls_of


def late(t, y, answer):
    """-y, but y after the time 0.4 if the answer is yes."""
    return torch.where(t > 0.4, y, -y) if answer else -y


ASKING = {
    "is_contiguous": lambda t, y: late(t, y, y.is_contiguous()),
    "is_contiguous of a sum": lambda t, y: late(t, y, (y + 1).t().is_contiguous()),
    "is_contiguous by its class": lambda t, y: late(t, y, torch.Tensor.is_contiguous(y)),
    "stride": lambda t, y: late(t, y, y.stride(0) == 3),
    "storage_offset": lambda t, y: late(t, y, y.storage_offset() == 0),
    "requires_grad": lambda t, y: late(t, y, y.requires_grad),
    "requires_grad of time": lambda t, y: late(t, y, t.requires_grad),
    "is_leaf": lambda t, y: late(t, y, y.is_leaf),
    "grad_fn": lambda t, y: late(t, y, y.grad_fn is None),
    "is_grad_enabled": lambda t, y: late(t, y, torch.is_grad_enabled()),
    "inference": lambda t, y: late(t, y, torch.is_inference_mode_enabled()),
    "version": lambda t, y: late(t, y, y._version == 0),
    "view": lambda t, y: late(t, y, y._is_view()),
    "device": lambda t, y: late(t, y, y.device.type == "cpu"),
    "dtype": lambda t, y: late(t, y, y.dtype == torch.float64),
    "shape": lambda t, y: late(t, y, y.shape[0] > 100),
    "shape, even": lambda t, y: late(t, y, y.shape[0] % 2 == 0),
    "size": lambda t, y: late(t, y, y.size(0) > 100),
    "len": lambda t, y: late(t, y, len(y) > 100),
    "numel": lambda t, y: late(t, y, y.numel() > 100),
    "nbytes": lambda t, y: late(t, y, y.nbytes > 1000),
    "a factor": lambda t, y: -y * torch.where(t > 0.4, 2.0 if len(y) > 100 else 1.0, 1.0),
}
STATES = {
    "few": torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(8, 3),
    "turned": torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(3, 8).t(),
    "many": torch.linspace(-1, 1, 600, dtype=torch.float64).reshape(200, 3),
    "float32": torch.linspace(-1, 1, 24).reshape(8, 3),
}


def solved(f, y0, engine, recorded):
    y0 = y0.clone(memory_format=torch.preserve_format).requires_grad_(recorded)
    with torch.set_grad_enabled(recorded):
        solution = anode.solve(f, y0, (0.0, 1.0), method="rk4", step_size=0.25, engine=engine)
    gradients = torch.autograd.grad(solution.y1.square().sum(), y0) if recorded else ()
    return solution.y1.detach(), *gradients


@pytest.mark.parametrize("recorded", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("name", ASKING)
def test_what_f_is_answered_is_what_the_loop_in_python_would_answer(name, recorded):
    for y0 in (*STATES.values(), *STATES.values()):
        ours, expected = (solved(ASKING[name], y0, engine, recorded) for engine in ("auto", "torch"))
        for x, y in zip(ours, expected, strict=True):
            torch.testing.assert_close(x, y)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "is_contiguous",
            "f computes something else if a tensor is stored or differentiated otherwise (is_contiguous)",
        ),
        ("is_grad_enabled", "f uses torch.is_grad_enabled"),
        ("len", "f does not do the same with 200 points as with 5"),
    ],
)
def test_the_question_is_named(name, why):
    assert why in str(anode.solve(ASKING[name], STATES["many"], (0.0, 1.0)).engine)
    assert why in str(anode.explain(ASKING[name], STATES["many"]))


@pytest.mark.parametrize("recorded", [False, True], ids=["plain", "recorded"])
def test_to_detach_what_needs_no_gradient_is_to_do_nothing(recorded):
    torch.manual_seed(0)
    energy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def hamiltonian(t, y):
        with torch.enable_grad():
            y = y if y.requires_grad else y.detach().requires_grad_()
            (slope,) = torch.autograd.grad(energy(y).sum(), y, create_graph=True)
        return torch.cat([slope[:, 2:], -slope[:, :2]], 1)

    y0 = STATES["few"].reshape(6, 4)
    ours, expected = (solved(hamiltonian, y0, engine, recorded) for engine in ("native", "torch"))
    for x, y in zip(ours, expected, strict=True):
        torch.testing.assert_close(x, y)


def test_an_address_is_not_asked_for():
    solution = anode.solve(lambda t, y: late(t, y, y.data_ptr() % 128 == 0), STATES["few"], (0.0, 1.0))
    assert str(solution.engine) == "torch (f calls Tensor.data_ptr)"


def test_a_number_of_points_that_f_treats_otherwise_does_not_speak_against_the_others():
    f = ASKING["len"]
    engines = [str(anode.solve(f, STATES[name], (0.0, 1.0)).engine) for name in ("few", "many", "few")]
    assert engines[0] == engines[2] == "native"
    assert engines[1] != "native"


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.nfe = nn.Linear(4, 3), 0

    def forward(self, t, y):
        self.nfe += 1
        if not y.requires_grad:
            y = y.requires_grad_()
        time = t.expand(len(y), 1)
        return self.layer(torch.cat([y, time], 1).reshape(y.shape[0], -1)) / y.shape[1]


@pytest.mark.parametrize("points", [1, 5, 8, 64])
def test_questions_whose_answers_do_not_matter_are_no_obstacle_and_are_not_counted(points):
    counts = []
    for engine in ("native", "torch"):
        f = Counted()
        with torch.no_grad():
            anode.solve(f, torch.ones(points, 3), (0.0, 1.0), engine=engine)
            counts.append(f.nfe)
    assert counts[0] == counts[1]


def test_numbers_of_points_may_differ_between_calls_and_other_numbers_may_not():
    def f(scale):
        return lambda t, y: y.reshape(len(y) * 3).reshape(len(y), 3) * scale

    few, many, other = (calls_of(f(s), None, torch.ones(n, 3)) for s, n in ((2.0, 5), (2.0, 64), (3.0, 64)))
    assert few.repeated_by(many, (5, 64))
    assert not few.repeated_by(other, (5, 64))
    assert not few.repeated_by(Calls(), (5, 5))
    assert few.asked == {"__len__"}
