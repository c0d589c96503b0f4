"""Works of the part ``module``: what users write themselves, for anode and for its rivals."""

from __future__ import annotations

from dataclasses import replace

from anode.bench.tasks import Task
from anode.bench.turns import Entry
from anode.models.family import FAMILY

ODEINT = ("odeint", "anode, your module")
SOLVE = ("solve", "anode, your module in solve")
FIT = ("fit", "anode, your module in fit")
LOOP = ("NeuralODE", "anode, your loop")
OURS = ("fit", "anode")

BOTH = ("torchdiffeq", "diffrax")
TANH = ("tanh", "tanh", "none")

DENSITY = Task(
    "gradient", (2, 64, 64, 64, 2), ("tanh", *TANH), time=True, batch=256, tol=1e-5, field="density"
)  # the tolerance of torchdiffeq's own example
SQUASH = Task("gradient", (2, 64, 64, 2), TANH, batch=256, tol=1e-5, field="squash")
CUBIC = Task("gradient", (2, 2), ("none",), t1=5.0, tol=1e-5, field="cubic")
CUBIC_NETWORK = Task("gradient", (2, 50, 2), ("tanh", "none"), t1=5.0, tol=1e-5, field="cubic network")
RATES = Task(
    "gradient", (2, 2), ("none",), batch=128, t1=2.0, tol=1e-5, field="lotka-volterra"
)  # to t = 5, torchdiffeq takes 434 or 452 evaluations, depending on how the start was rounded
SECOND_ORDER = Task("gradient", (4, 64, 64, 2), TANH, t1=5.0, tol=1e-5, field="second order")
SAMPLES = Task("solve", (2, 64, 64, 2), ("silu", "silu", "none"), time=True, batch=256, step=0.01)
TOLERANCES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)


def entries(task: Task, *ours: tuple[str, str], rivals: tuple[str, ...] = BOTH) -> tuple[Entry, ...]:
    """Return the entries of a task for some ways to use anode, and for its rivals."""
    return tuple(Entry(label, side, task) for label, side in (*ours, *((rival, rival) for rival in rivals)))


def members(toy: Task) -> dict[str, tuple[Entry, ...]]:
    """Return the training of every member of the family, by name."""
    return {
        name: entries(replace(toy, family=name, fused=True), OURS, LOOP, rivals=("torchdiffeq",)) for name in FAMILY
    }


def works(toy: Task, exact: Task) -> dict[str, tuple[Entry, ...]]:
    """Return all works by name.

    Args:
        toy: A training task with a perceptron.
        exact: A solve in double precision with a known exact solution.
    """
    fused = replace(toy, fused=True)
    made = {
        "own module, training loop": entries(toy, ODEINT, SOLVE, FIT),
        "our NeuralODE, training loop, fused Adam for ours only": (
            *entries(fused, LOOP, rivals=()),
            Entry("torchdiffeq", "torchdiffeq", toy),
        ),
        "our NeuralODE, training loop, both with fused Adam": entries(fused, LOOP, rivals=("torchdiffeq",)),
        "density flow, exact divergence": entries(DENSITY, ODEINT, SOLVE),
        "gates of time (ConcatSquash)": entries(SQUASH, ODEINT, SOLVE),
        "y³ A": entries(CUBIC, ODEINT, SOLVE),
        "network of y³": entries(CUBIC_NETWORK, ODEINT, SOLVE),
        "Lotka-Volterra, learned rates": entries(RATES, ODEINT, SOLVE),
        "second order": entries(SECOND_ORDER, ODEINT, SOLVE),
        "batch of one": entries(replace(toy, kind="gradient", batch=1), ODEINT, SOLVE),
        "100 output times": entries(replace(toy, kind="gradient", outputs=100), ODEINT, SOLVE),
    }
    for method in ("euler", "midpoint", "rk4"):
        rivals = BOTH if method != "rk4" else BOTH[:1]  # diffrax has no rk4
        task = replace(SAMPLES, method=method)
        made[f"{method}, 100 steps"] = entries(task, ODEINT, rivals=rivals)
        made[f"{method}, 100 steps, cannot be traced"] = entries(replace(task, field="opaque"), ODEINT, rivals=BOTH[:1])
    for tol in TOLERANCES:
        made[f"float64, tolerance {tol:.0e}"] = entries(replace(exact, tol=tol), SOLVE)
    return made
