"""The control algorithm of Wang et al. 2019 (IEEE JSAC 37(6)): the number of local steps τ that a budget calls for.

With c_m what a step and b_m what an aggregation costs of type m, R_m its budget and R′_m = R_m − b_m − c_m, minimise

    G(τ) = A(τ) + √(A(τ)² + ρ h(τ)/(ηφτ)) + ρ h(τ),   A(τ) = max_m (c_m τ + b_m)/(2ηφ R′_m τ),
    h(τ) = (δ/β)((ηβ + 1)^τ − 1) − ηδτ

over τ = 1 … 100. ρ, β and δ are estimated anew in every round; τ starts at 1 and grows tenfold at most from one round
to the next; a last round that cannot be paid in full is cut. δ is taken as the root mean square of the distances of
the terminals' gradients from their mean, which sums can tell: δ² = mean ‖∇F_t‖² − ‖mean ∇F_t‖².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import BudgetError
from rhfedmtl.maths.coupling import check_weight
from rhfedmtl.maths.kernels.rounds import BETA, MEAN_SQUARE, RHO, SAMPLES, SQUARE
from rhfedmtl.policies.base import FloatArray, Observation, Plan, Situation
from rhfedmtl.resources.billing import event_totals, lines, steps_affordable

GROWTH, MOST = 10, 100
"""How much τ may grow at once, and the largest τ."""


class Estimates(NamedTuple):
    """How strongly the loss (ρ) and its gradient (β) change, and how far terminals are from their mean (δ)."""

    rho: float
    beta: float
    delta: float


@dataclass(frozen=True)
class AdaptiveControl:
    """``step`` is η of the first round, ``phi`` the control parameter φ (0.025 in the paper's experiments).

    Visits for the estimates (two for each of ``probes`` rows) come on top of τ and count as a cost of the aggregation.
    """

    step: float = 0.5
    decay: float = 0.0
    probes: int = 2
    phi: float = 0.025

    def __post_init__(self) -> None:
        """Refuse a control parameter that makes no bound."""
        check_weight("phi", self.phi, positive=True)

    def plan(self, situation: Situation) -> Plan | None:
        """τ of the next round and the visits for its estimates; None once not even one step can be paid."""
        if not situation.ledger.budget:
            raise BudgetError("adaptive-fl controls its steps by a budget: give one, as in energy=1400")
        affordable = steps_affordable(situation.prices, situation.round_event(1), _room(situation))
        if affordable < 1:
            return None
        tau = self._tau(situation)
        return Plan.uniform(situation, min(affordable, tau + 2 * self.probes), 1, tau=tau)

    def _tau(self, s: Situation) -> int:
        found = estimates(s)
        if found is None:
            return 1
        before = max(1, int(s.observed[-1].local_steps.max()) - 2 * self.probes)
        taus = np.arange(1, min(MOST, GROWTH * before) + 1)
        return int(taus[np.argmin(self.bound(s, taus, found))])

    def bound(self, s: Situation, tau: npt.NDArray[np.int64], found: Estimates) -> FloatArray:
        """G(τ); lower is better."""
        eta = self.step / (1.0 + self.decay * s.rounds)
        A = self._share(s, tau) / (2.0 * eta * self.phi * tau)
        eta_beta = max(eta * found.beta, 1e-9)
        with np.errstate(over="ignore"):
            h = eta * found.delta * np.maximum(np.expm1(tau * np.log1p(eta_beta)) / eta_beta - tau, 0.0)
            return np.asarray(A + np.sqrt(A * A + found.rho * h / (eta * self.phi * tau)) + found.rho * h)

    def _share(self, s: Situation, tau: npt.NDArray[np.int64]) -> FloatArray:
        """max_m (c_m τ + b_m)/R′_m."""
        cloud, curves = event_totals(s.prices, s.cloud_event()), lines(s.prices, s.round_event(1))
        share = np.zeros(len(tau))
        for name, limit in s.ledger.budget.items():
            fixed = cloud.get(name, 0.0)
            least = fixed + float(curves[name].at(1))
            cost = fixed + curves[name].at(tau + 2 * self.probes)
            share = np.maximum(share, cost / max(limit - least, np.finfo(float).tiny))
        return share


def estimates(s: Situation) -> Estimates | None:
    """ρ and β of the last round, and δ of the one before, whose mean gradient the last round brought back."""
    probed = [seen for seen in s.observed[-2:] if seen.gains[:, SAMPLES].any()]
    if len(probed) < 2:
        return None
    rho, beta, mean_square = (_mean(s, probed[1], place) for place in (RHO, BETA, MEAN_SQUARE))
    return Estimates(rho, beta, float(np.sqrt(max(_mean(s, probed[0], SQUARE) - mean_square, 0.0))))


def _mean(s: Situation, seen: Observation, place: int) -> float:
    """Mean over the samples of those who answered, stations by all of their samples: as the models are averaged."""
    there = seen.gains[:, SAMPLES] > 0.0
    means = seen.gains[there, place] / seen.gains[there, SAMPLES]
    return float(np.average(means, weights=np.maximum(s.samples[there], 1.0)))


def _room(s: Situation) -> dict[str, float]:
    cloud = event_totals(s.prices, s.cloud_event())
    return {name: limit - cloud.get(name, 0.0) for name, limit in s.ledger.remaining.items()}
