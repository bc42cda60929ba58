"""The control algorithm of Wang et al. 2019 (IEEE JSAC 37(6)): the number of local steps τ that a budget calls for.

With c_m what a step and b_m what an aggregation costs of type m, and R′_m what is left of it, minimise over τ

    G(τ) = A(τ) + √(A(τ)² + ρ h(τ)/(ηφτ)) + ρ h(τ),   A(τ) = max_m (c_m τ + b_m)/(2ηφ R′_m τ),
    h(τ) = (δ/β)((ηβ + 1)^τ − 1) − ηδτ.

ρ, β, δ are estimated anew in every round; τ may grow tenfold at most from one round to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import BudgetError
from rhfedmtl.resources.billing import event_totals, lines, steps_affordable
from rhfedmtl.resources.planning import Plan, Situation

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AdaptiveControl:
    """``step`` is η, ``phi`` the control parameter φ (0.025 in the paper), ``growth`` how much τ may grow at once.

    Visits for the estimates (two for each of ``probes`` rows) come on top of τ.
    """

    step: float = 0.5
    probes: int = 2
    phi: float = 0.025
    growth: int = 10
    most: int = 100

    def plan(self, situation: Situation) -> Plan | None:
        """τ of the next round; None once not even one step can be paid."""
        if not situation.ledger.budget:
            raise BudgetError("adaptive-fl controls its steps by a budget: give one, as in energy=1400")
        extra = 2 * min(self.probes, int(situation.sizes.min()))
        affordable = steps_affordable(situation.prices, situation.round_event(1), self._room(situation))
        if affordable < 1:
            return None
        tau = self._tau(situation, extra)
        return Plan.uniform(situation, min(affordable, tau + extra), 1, tau=tau)

    def _room(self, s: Situation) -> dict[str, float]:
        cloud = event_totals(s.prices, s.cloud_event())
        return {name: limit - cloud.get(name, 0.0) for name, limit in s.ledger.room.items()}

    def _tau(self, s: Situation, extra: int) -> int:
        seen = [o for o in s.observed if o.answers.any()]
        if not seen:
            return 1
        last = seen[-1]
        before = max(1, int(last.local_steps.max()) - extra)
        rho, beta, delta = (float(last.gains[:, k].sum()) / self._samples(s) for k in range(3))
        taus = np.arange(1, min(self.most, self.growth * before) + 1)
        return int(taus[np.argmin(self.bound(s, taus, rho, beta, delta))])

    @staticmethod
    def _samples(s: Situation) -> float:
        return max(float(s.samples.sum()), 1.0)

    def bound(self, s: Situation, tau: npt.NDArray[np.int64], rho: float, beta: float, delta: float) -> FloatArray:
        """G(τ); lower is better."""
        A = np.zeros(len(tau))
        for name, room in self._room(s).items():
            curve = lines(s.prices, s.round_event(1))[name]
            cost = curve.at(tau)
            A = np.maximum(A, cost / (2.0 * self.step * self.phi * max(room, 1e-300) * tau))
        eta_beta = max(self.step * beta, 1e-12)
        with np.errstate(over="ignore"):
            h = self.step * delta * (np.expm1(tau * np.log1p(eta_beta)) / eta_beta - tau)
            h = np.maximum(h, 0.0)
            return np.asarray(A + np.sqrt(A * A + rho * h / (self.step * self.phi * tau)) + rho * h)
