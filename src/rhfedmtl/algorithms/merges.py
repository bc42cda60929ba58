"""Merges: rules for the factor that a base station applies to the sum of the updates that arrived in time.

Terminals scale their Δα by the same factor, so U_b = Σ_t X_tᵀα_t stays true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError, nearest
from rhfedmtl.maths.kernels.rounds import FACTORS
from rhfedmtl.maths.quasi_newton import ASCENT, NEWTON

AUTO = "auto"
CHOICES = (AUTO, ASCENT, NEWTON)


class Arrived(NamedTuple):
    """Input of a merge: R answers, their sum Δ, the station's model, λ_b n_b, the profile, and R's samples.

    ``gradient`` is true in a gradient round.
    """

    answers: int
    delta: npt.NDArray[np.float64]
    model: npt.NDArray[np.float64]
    scale: float
    profile: npt.NDArray[np.float64]
    samples: int = 0
    gradient: bool = False


class Merge(Protocol):
    """Interface of a merge. ``line_search`` requests from terminals the profile of their dual sum along Δα."""

    @property
    def line_search(self) -> bool:
        """True if terminals must report the profile."""

    def sigma(self, n_terminals: int) -> float:
        """Return σ′ of the terminals' subproblems: how strongly they expect others to move the same way."""

    def factor(self, arrived: Arrived) -> float:
        """Return the factor on the sum of updates."""


@dataclass(frozen=True)
class Average:
    """Mean of the updates (CoCoA, and the paper): safe by concavity, even if some updates do not arrive."""

    line_search: ClassVar[bool] = False

    def sigma(self, n_terminals: int) -> float:
        """Return 1: each terminal solves its problem without regard to others."""
        return 1.0

    def factor(self, arrived: Arrived) -> float:
        """Return 1/R."""
        return 1.0 / arrived.answers


@dataclass(frozen=True)
class Add:
    """Sum of cautious updates (CoCoA+): terminals assume σ′ = N_b."""

    line_search: ClassVar[bool] = False

    def sigma(self, n_terminals: int) -> float:
        """Return N_b: safe for any updates of the others. A station without terminals gets 1."""
        return float(max(n_terminals, 1))

    def factor(self, arrived: Arrived) -> float:
        """Return 1: the station applies the full sum."""
        return 1.0


@dataclass(frozen=True)
class LineSearch:
    """Best factor along the sum of updates, within the box: never less dual gain than the average."""

    line_search: ClassVar[bool] = True

    def sigma(self, n_terminals: int) -> float:
        """Return 1, like `Average`."""
        return 1.0

    def factor(self, arrived: Arrived) -> float:
        """Return the maximiser of profile(η) − η wᵀΔ − η²‖Δ‖²/(2λn)."""
        slope = float(np.sum(arrived.model * arrived.delta))
        curvature = float(np.sum(arrived.delta * arrived.delta)) / arrived.scale
        if len(arrived.profile) == 3:
            linear, quadratic, end = (float(x) for x in arrived.profile)
            total_curvature = quadratic + curvature
            if total_curvature > 0.0:
                return min(max((linear - slope) / total_curvature, 0.0), end)
            # A linear profile (hinge, zero rows) is largest at an end of the box.
            return end if linear > slope and np.isfinite(end) else 0.0
        gains = arrived.profile - slope * FACTORS - curvature * FACTORS**2 / 2.0
        return _best_on_grid(gains, 1.0 / arrived.answers)


def _best_on_grid(gains: npt.NDArray[np.float64], average: float) -> float:
    """Return the best factor of the grid, or the average's factor if that might be better.

    Between two grid points a concave function lies below the extended chords of the neighbouring intervals.
    """
    inside = np.isfinite(gains)
    factors, gains = FACTORS[inside], gains[inside]
    if len(factors) == 0:
        return average
    best = int(np.argmax(gains))
    right = int(np.searchsorted(factors, average))
    bounds = [
        gains[j] + (average - factors[j]) * (gains[k] - gains[j]) / (factors[k] - factors[j])
        for j, k in ((right - 1, right - 2), (right, right + 1))
        if min(j, k) >= 0 and max(j, k) < len(factors)
    ]
    ceiling = min(bounds, default=np.inf)
    return float(factors[best]) if gains[best] >= ceiling else average


@dataclass(frozen=True)
class Auto(Add):
    """`Add` in a run that may also take quasi-Newton steps on the joint problem.

    ``solver`` is "dual-ascent", "quasi-newton" or "auto": in every round the solver with the larger expected gain.
    """

    solver: str = AUTO

    def __post_init__(self) -> None:
        """Raise ConfigError for other solvers."""
        if self.solver not in CHOICES:
            raise ConfigError(f"solver {self.solver!r}: take {', '.join(CHOICES)}{nearest(self.solver, CHOICES)}")
