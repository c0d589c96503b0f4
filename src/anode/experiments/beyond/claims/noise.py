"""The claim about noise."""

from __future__ import annotations

import numpy as np

from anode.experiments.beyond.claims.common import held_out
from anode.experiments.beyond.protocols import NOISES
from anode.experiments.findings import Claim, Finding
from anode.experiments.study import Results, mean_std
from anode.experiments.toy.flows import FITTED


def noise_lets_a_node_learn(results: Results) -> Finding:
    """Claim 30."""
    losses = {scale: held_out(results[f"noise-d1-{scale:g}"]) for scale in NOISES}
    best = np.nanmin([each for scale, each in losses.items() if scale], axis=0)
    numbers = [(f"noise {scale:g}, held-out loss", mean_std(each)) for scale, each in losses.items()]
    return Finding(best < FITTED, [("best of all noise", mean_std(best)), *numbers])


CLAIMS = (
    Claim(
        30,
        "noise",
        "Noise in the state, which lets trajectories cross, lets a NODE learn g (the paper's future work).",
        f"for some strength of the noise, the held-out loss of a NODE on g in d = 1 is below {FITTED:.3f}",
        tuple(f"noise-d1-{scale:g}" for scale in NOISES),
        noise_lets_a_node_learn,
    ),
)
