"""The control algorithm of Wang et al. 2019 (IEEE JSAC 37(6)): choose the number of local steps τ for a budget.

The baseline adaptive-fl uses this policy. Let c_m be the cost of a step in type m, b_m the cost of an aggregation, R_m
the budget, and R′_m = R_m − b_m − c_m. The algorithm minimises

    G(τ) = A(τ) + √(A(τ)² + ρ h(τ)/(ηφτ)) + ρ h(τ),   A(τ) = max_m (c_m τ + b_m)/(2ηφ R′_m τ),
    h(τ) = (δ/β)((ηβ + 1)^τ − 1) − ηδτ

over τ = 1 … 100. It estimates ρ, β and δ in every round. τ starts at 1 and grows at most tenfold from round to round.
If the budget does not pay for the last round in full, that round gets fewer steps. δ is the root mean square distance
of the terminals' gradients from their mean. It follows from sums: δ² = mean ‖∇F_t‖² − ‖mean ∇F_t‖².
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
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.steps import lines, steps_affordable


class Estimates(NamedTuple):
    """Lipschitz constants of the loss (ρ) and its gradient (β), and distance of terminals' gradients (δ)."""

    rho: float
    beta: float
    delta: float


@dataclass(frozen=True)
class AdaptiveControl:
    """The policy of Wang et al. 2019.

    Parameters
    ----------
    step, decay
        η of the first round, and the decay of the step: η of round k is step / (1 + decay k).
    probes
        Rows visited twice for the estimates. These visits come on top of τ and count as a cost of the aggregation.
    phi
        The control parameter φ (0.025 in the paper's experiments).
    growth, largest_tau
        The search for τ ends at ``growth`` times the last τ, and at ``largest_tau``.
    """

    step: float = 0.5
    decay: float = 0.0
    probes: int = 2
    phi: float = 0.025
    growth: int = 10
    largest_tau: int = 100

    def __post_init__(self) -> None:
        """Refuse a control parameter that is not positive."""
        check_weight("phi", self.phi, positive=True)

    def plan(self, situation: Situation) -> Plan | None:
        """Return a plan with τ and the visits for its estimates, or None if the budget does not pay for a step."""
        if not situation.ledger.budget:
            raise BudgetError("adaptive-fl controls its steps by a budget: give one, as in energy=1400")
        affordable = steps_affordable(situation.prices, situation.round_event(1), _remaining(situation))
        if affordable < 1:
            return None
        current, tau = estimates(situation), 1
        if current is not None:
            before = max(1, int(situation.observed[-1].local_steps.max()) - 2 * self.probes)
            taus = np.arange(1, min(self.largest_tau, self.growth * before) + 1)
            tau = int(taus[np.argmin(self.bound(situation, taus, current))])
        return Plan.uniform(situation, min(affordable, tau + 2 * self.probes), 1, tau=tau)

    def bound(self, s: Situation, tau: npt.NDArray[np.int64], current: Estimates) -> FloatArray:
        """Return G(τ); lower is better."""
        eta = self.step / (1.0 + self.decay * s.rounds)
        A = self._share(s, tau) / (2.0 * eta * self.phi * tau)
        eta_beta = max(eta * current.beta, 1e-9)
        with np.errstate(over="ignore"):
            h = eta * current.delta * np.maximum(np.expm1(tau * np.log1p(eta_beta)) / eta_beta - tau, 0.0)
            return np.asarray(A + np.sqrt(A * A + current.rho * h / (eta * self.phi * tau)) + current.rho * h)

    def _share(self, s: Situation, tau: npt.NDArray[np.int64]) -> FloatArray:
        """Return max_m (c_m τ + b_m)/R′_m."""
        cloud, curves = event_totals(s.prices, s.cloud_event()), lines(s.prices, s.round_event(1))
        share = np.zeros(len(tau))
        for name, limit in s.ledger.budget.items():
            fixed = cloud.get(name, 0.0)
            smallest = fixed + float(curves[name].at(1))
            cost = fixed + curves[name].at(tau + 2 * self.probes)
            share = np.maximum(share, cost / max(limit - smallest, np.finfo(float).tiny))
        return share


def estimates(s: Situation) -> Estimates | None:
    """Return ρ and β of the last round and δ of the previous round, or None before two rounds with estimates.

    δ needs the mean gradient of its round, which terminals receive and report in the next round.
    """
    probed = [observation for observation in s.observed[-2:] if observation.gains[:, SAMPLES].any()]
    if len(probed) < 2:
        return None
    rho, beta, mean_square = (_mean(s, probed[1], column) for column in (RHO, BETA, MEAN_SQUARE))
    return Estimates(rho, beta, float(np.sqrt(max(_mean(s, probed[0], SQUARE) - mean_square, 0.0))))


def _mean(s: Situation, observation: Observation, column: int) -> float:
    """Return the mean of a column of the gains, weighted like the average of the models.

    Within a station it is the mean over the samples of the terminals that answered. Stations are weighted by all of
    their samples.
    """
    answered = observation.gains[:, SAMPLES] > 0.0
    means = observation.gains[answered, column] / observation.gains[answered, SAMPLES]
    return float(np.average(means, weights=np.maximum(s.samples[answered], 1.0)))


def _remaining(s: Situation) -> dict[str, float]:
    """Return the remaining budget after the next server iteration, without its rounds."""
    cloud = event_totals(s.prices, s.cloud_event())
    return {name: limit - cloud.get(name, 0.0) for name, limit in s.ledger.remaining.items()}
