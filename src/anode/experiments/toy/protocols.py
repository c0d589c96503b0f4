"""Every training run of the toy half of the paper, as data."""

from __future__ import annotations

from dataclasses import replace

from anode.experiments.toy.runs import ToyRun

P = 5
"""The augmentation that the paper found best, in d = 1 and d = 2."""

DRAWN = 3
"""Repeats of the runs that are only drawn; figures show the median repeat."""

RUNS = {
    run.name: run
    for run in (
        # Two points in one dimension, mapped by a flow alone (text and fig03).
        ToyRun("map-identity", "identity_1d", 1, "flow", epochs=500, batch_size=2, loss="mse"),
        ToyRun("map-g", "g_1d", 1, "flow", epochs=500, batch_size=2, loss="mse"),
        # A ball within a shell.
        ToyRun("g-d1-resnet", "g", 1, "ResNet"),
        ToyRun("g-d1-node", "g", 1, "NODE"),
        ToyRun("g-d1-anode", "g", 1, "NODE", augment=P),
        ToyRun("g-d2-resnet", "g", 2, "ResNet"),
        ToyRun("g-d2-node", "g", 2, "NODE", snapshots=25),
        ToyRun("g-d2-anode", "g", 2, "NODE", augment=P),
        # Two separable curves.
        ToyRun("separable-d2-resnet", "separable", 2, "ResNet"),
        ToyRun("separable-d2-node", "separable", 2, "NODE", snapshots=25),
        # Slices of the plane held out from training.
        ToyRun("slices-d2-node", "g", 2, "NODE", slices=3),
        ToyRun("slices-d2-anode", "g", 2, "NODE", augment=P, slices=3),
        # With one added dimension, the whole flow can be drawn without a projection.
        ToyRun("drawn-d1-anode", "g", 1, "NODE", augment=1, repeats=DRAWN),
        ToyRun("drawn-d2-anode", "g", 2, "NODE", augment=1, repeats=DRAWN, snapshots=25),
        ToyRun("drawn-separable-d2-anode", "separable", 2, "NODE", augment=1, repeats=DRAWN),
    )
}


def protocol(name: str, repeats: int, seed: int) -> ToyRun:
    """Return a run with the given number of repeats and first seed."""
    run = RUNS[name]
    return replace(run, repeats=min(repeats, DRAWN) if name.startswith("drawn") else repeats, seed=seed)
