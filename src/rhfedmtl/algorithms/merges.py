"""How a base station merges the updates that arrived in time: the factor that it applies to their sum.

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
    """What a station knows when it merges: R answers, their sum Δ, its model, λ_b n_b, the profile, R's samples.

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
    """A rule for merging. ``line_search`` asks terminals for the profile of their dual sum along Δα."""

    @property
    def line_search(self) -> bool:
        """Whether terminals must report the profile."""

    def sigma(self, n_terminals: int) -> float:
        """σ′ of the terminals' subproblems: how strongly they expect others to move the same way."""

    def factor(self, arrived: Arrived) -> float:
        """Factor on the sum of updates."""


@dataclass(frozen=True)
class Average:
    """Mean of the updates (CoCoA, and the paper): safe by concavity, also when some do not arrive."""

    line_search: ClassVar[bool] = False

    def sigma(self, n_terminals: int) -> float:
        """Each terminal solves its own problem as if alone."""
        return 1.0

    def factor(self, arrived: Arrived) -> float:
        """1/R."""
        return 1.0 / arrived.answers


@dataclass(frozen=True)
class Add:
    """Sum of cautious updates (CoCoA+): terminals reckon with σ′ = N_b."""

    line_search: ClassVar[bool] = False

    def sigma(self, n_terminals: int) -> float:
        """N_b: safe whatever the others do; a station may be without terminals for a while."""
        return float(max(n_terminals, 1))

    def factor(self, arrived: Arrived) -> float:
        """Apply the whole sum."""
        return 1.0


@dataclass(frozen=True)
class LineSearch:
    """Best factor along the sum of updates, within the box: never less dual gain than the average."""

    line_search: ClassVar[bool] = True

    def sigma(self, n_terminals: int) -> float:
        """As for the average."""
        return 1.0

    def factor(self, arrived: Arrived) -> float:
        """Maximise profile(η) − η wᵀΔ − η²‖Δ‖²/(2λn)."""
        slope = float(np.sum(arrived.model * arrived.delta))
        curvature = float(np.sum(arrived.delta * arrived.delta)) / arrived.scale
        if len(arrived.profile) == 3:
            linear, quadratic, room = (float(x) for x in arrived.profile)
            bend = quadratic + curvature
            if bend > 0.0:
                return min(max((linear - slope) / bend, 0.0), room)
            # A straight profile (hinge, on rows that are zero): as far as the box allows, or nowhere.
            return room if linear > slope and np.isfinite(room) else 0.0
        gains = arrived.profile - slope * FACTORS - curvature * FACTORS**2 / 2.0
        return _best_on_grid(gains, 1.0 / arrived.answers)


def _best_on_grid(gains: npt.NDArray[np.float64], average: float) -> float:
    """Best factor of the grid, unless the average might be better: then the average.

    Between two grid points a concave function lies below the chords of the neighbouring intervals, extended.
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
    """As `Add`; a run may also take quasi-Newton steps on the joint problem.

    ``solver`` is "dual-ascent", "quasi-newton" or "auto": in every round the solver that promises more.
    """

    solver: str = AUTO

    def __post_init__(self) -> None:
        """Refuse other solvers."""
        if self.solver not in CHOICES:
            raise ConfigError(f"solver {self.solver!r}: take {', '.join(CHOICES)}{nearest(self.solver, CHOICES)}")
