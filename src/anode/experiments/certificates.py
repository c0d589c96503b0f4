"""Certified tolerances of trained models, and their evaluations at each tolerance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.models.certify import BOUND, TOLERANCES
from anode.models.flow import Flow
from anode.ode.solution import Status
from anode.train.formats import as_list
from anode.train.record import Array

PAPER_TOLERANCE = 1e-3
"""The paper's tolerance, for ``rtol`` and ``atol``."""


@dataclass(frozen=True)
class Certificates:
    """The certified tolerance of each repeat, and its evaluations.

    Attributes:
        tolerances: The values of ``rtol`` that were tried, loosest first; ``atol`` is the same.
        loosest: The loosest certified tolerance, [repeats]; NaN if no tolerance is certified.
        nfe: Evaluations of a solve at each tolerance, [tolerances, repeats]; NaN if the solve fails.
    """

    tolerances: tuple[float, ...]
    loosest: Array
    nfe: Array

    def at(self, tolerance: Array) -> Array:
        """Return the evaluations of each repeat at its given tolerance; NaN if that is NaN or was not tried."""
        chosen = np.array(self.tolerances)[:, None] == tolerance
        return np.where(chosen.any(0), np.where(chosen, self.nfe, 0.0).sum(0), np.nan)

    @property
    def own(self) -> Array:
        """Evaluations of each repeat at its own loosest certified tolerance."""
        return self.at(self.loosest)

    def to_json(self) -> dict[str, Any]:
        """Return the content as JSON, which :meth:`from_json` reads."""
        return {"tolerances": list(self.tolerances), "loosest": as_list(self.loosest), "nfe": as_list(self.nfe)}

    @classmethod
    def from_json(cls, content: dict[str, Any], repeats: int) -> Certificates:
        """Read what :meth:`to_json` wrote; raises ``ValueError`` if it does not fit the number of repeats."""
        made = cls(
            tuple(content["tolerances"]),
            np.array(content["loosest"], dtype=float),  # None becomes NaN
            np.array(content["nfe"], dtype=float),
        )
        wanted = (len(made.tolerances), repeats)
        if made.nfe.shape != wanted or made.loosest.shape != wanted[1:]:
            raise ValueError(f"certificates take shape {wanted}, got {made.nfe.shape}")
        return made


def certificates(flows: Iterable[Flow], inputs: Iterable[Tensor], tightest: float) -> Certificates:
    """Certify the flow of every repeat.

    Args:
        flows: One per repeat, or stacks of them.
        inputs: A few dozen inputs for each, in the precision of the flows; [members, points, ...] for a stack.
        tightest: The tightest tolerance to try.
    """
    tolerances = tuple(t for t in TOLERANCES if t >= tightest)
    found = [_certified(flow, x, tolerances) for flow, x in zip(flows, inputs, strict=True)]
    return Certificates(tolerances, np.hstack([loosest for loosest, _ in found]), np.hstack([nfe for _, nfe in found]))


def _certified(flow: Flow, x: Tensor, tolerances: Sequence[float]) -> tuple[Array, Array]:
    """Return the loosest certified tolerance of each member, and its evaluations at every tolerance."""
    certificate = flow.certify(x, BOUND, tolerances)
    nfe = [check.nfe.where(check.overall.isfinite(), torch.nan) for check in certificate.checks]
    for tolerance in tolerances[len(nfe) :]:  # tighter than needed here, but a model to compare with may need it
        solution = flow.solve(x, rtol=tolerance, atol=tolerance)
        solved = torch.as_tensor(solution.status) == Status.SUCCESS
        nfe.append(torch.as_tensor(solution.stats.nfe).double().where(solved, torch.nan))
    return certificate.tolerance.numpy(force=True), torch.stack(nfe).reshape(len(nfe), -1).numpy(force=True)


def shared(compared: Iterable[Certificates]) -> Array:
    """Return each repeat's tolerance at which models are compared: the tightest of their own; NaN if one has none.

    A model is not checked again at a tolerance that is tighter than its own. Its error nearly always falls with the
    tolerance: of 608 such checks of four toy runs, three exceed the bound of 1 %, by at most 0.15 percentage points.
    """
    return np.min([each.loosest for each in compared], axis=0)
