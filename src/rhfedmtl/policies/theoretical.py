"""The paper's procedure: choose H and K from a bound on the number of rounds, without measurements.

The policies ``paper``, ``authors`` and ``sound`` use it. The plan depends only on sizes, prices and limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import BudgetError
from rhfedmtl.maths import theory
from rhfedmtl.maths.coupling import check_weight
from rhfedmtl.policies.base import FloatArray, Plan, Situation, check_count
from rhfedmtl.resources.steps import cost_curve

Bound = Literal["paper", "authors", "sound"]


class TheoryCurve(NamedTuple):
    """Forecast by theory for every H = 1, 2, …: rounds K, and the cost of M K rounds as a share of the budget."""

    K: FloatArray
    cost: dict[str, FloatArray]
    share: FloatArray
    beta: FloatArray


@dataclass(frozen=True)
class Theoretical:
    """Choose H by the paper's procedure and K by a bound (MATHS.md, section 7), until the budget is spent.

    The choice of H uses the complete budget, as in the paper, so it is the same in every server iteration.

    Parameters
    ----------
    bound
        ``paper``: K = (1 − β) L, necessary and not sufficient. ``authors``: the curve behind the paper's cost figure.
        ``sound``: guaranteed, and very large.
    bound_target
        Gap that the bound aims at.
    planned_cloud_rounds
        The M of the predicted cost.
    """

    bound: Bound = "paper"
    bound_target: float = 0.01
    planned_cloud_rounds: int = 1

    def __post_init__(self) -> None:
        """Refuse a target or a number of server iterations that is not positive."""
        check_count("planned_cloud_rounds", self.planned_cloud_rounds)
        check_weight("bound_target", self.bound_target, positive=True)

    def plan(self, situation: Situation) -> Plan | None:
        """Return the H of the procedure and the K of the bound, both from the initial budget."""
        forecast = self.forecast(situation, int(situation.sizes.max()) + 1)
        choice = theory.paper_choice(forecast.share, 1.0, situation.sizes)
        K = forecast.K[int(choice.H.min()) - 1]
        rounds = int(min(max(1.0, math.ceil(K)), 1e9))
        return Plan.uniform(situation, choice.H, rounds, case=choice.case)

    def forecast(self, situation: Situation, max_steps: int) -> TheoryCurve:
        """Return K and cost for H = 1 … max_steps."""
        budget = situation.ledger.budget
        if not budget:
            raise BudgetError(f"policy '{self.bound}' chooses H from a budget: give one, as in energy=1400")
        H = np.arange(1, max_steps + 1)
        L = max(theory.log_target(situation.samples, self.bound_target), 0.0)
        beta = self._beta(situation, H)
        K = {
            "paper": theory.rounds_paper(beta, L),
            "sound": theory.rounds_sound(beta, L),
            "authors": theory.rounds_authors(H, float(situation.largest.max()), L),
        }[self.bound]
        per_round = cost_curve(situation.prices, situation.round_event(1), H)
        cost = {name: theory.predicted_cost(K, curve, self.planned_cloud_rounds) for name, curve in per_round.items()}
        share = theory.budget_share([cost[name] for name in budget], list(budget.values()))
        return TheoryCurve(K, cost, share, beta)

    @staticmethod
    def _beta(s: Situation, H: npt.NDArray[np.int64]) -> FloatArray:
        """Return β(H); σ is bounded by the sizes, because a plan must not need data."""
        theta = theory.Theta(H[:, None], s.samples, s.largest, s.lam, s.gamma, s.radius).max(axis=1)
        eta = theory.eta(s.samples, theory.sigma_size_bound(s.largest, s.radius), s.lam, s.gamma)
        return theory.beta(theta, eta, s.members)


def authors(bound_target: float = 1e-4, planned_cloud_rounds: int = 2) -> Theoretical:
    """Return the policy of the authors' code, with the target and the M of their figure."""
    return Theoretical("authors", bound_target, planned_cloud_rounds)


def sound(bound_target: float = 0.01) -> Theoretical:
    """Return the policy with the guaranteed bound."""
    return Theoretical("sound", bound_target)
