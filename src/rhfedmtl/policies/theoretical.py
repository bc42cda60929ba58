"""The paper's procedure: H and K from a bound on the number of rounds, before anything is measured."""

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
from rhfedmtl.resources.billing import cost_curve

Bound = Literal["paper", "authors", "sound"]


class TheoryCurve(NamedTuple):
    """What theory says of every H = 1, 2, …: rounds K, and the cost of M K rounds as a share of the budget."""

    K: FloatArray
    cost: dict[str, FloatArray]
    share: FloatArray
    beta: FloatArray


@dataclass(frozen=True)
class Theoretical:
    """H by the paper's procedure, K by one of three bounds (MATHS.md, section 7), until the budget is spent.

    ``paper``: K = (1 − β) L, necessary and not sufficient; ``authors``: the curve behind the paper's cost figure;
    ``sound``: guaranteed, and very large. The choice of H uses the whole budget, as the paper does, so it is the
    same in every server iteration. ``planned_cloud_rounds`` is the M of the predicted cost.
    """

    bound: Bound = "paper"
    bound_target: float = 0.01
    planned_cloud_rounds: int = 1

    def __post_init__(self) -> None:
        """Refuse targets that make no sense."""
        check_count("planned_cloud_rounds", self.planned_cloud_rounds)
        check_weight("bound_target", self.bound_target, positive=True)

    def plan(self, situation: Situation) -> Plan | None:
        """Return the H of the procedure and the K of the bound, both from the budget as it was at the start."""
        forecast = self.forecast(situation, int(situation.sizes.max()) + 1)
        choice = theory.paper_choice(forecast.share, 1.0, situation.sizes)
        K = forecast.K[int(choice.H.min()) - 1]
        rounds = int(min(max(1.0, math.ceil(K)), 1e9))
        return Plan.uniform(situation, choice.H, rounds, case=choice.case)

    def forecast(self, situation: Situation, most: int) -> TheoryCurve:
        """K and cost for H = 1 … most."""
        budget = situation.ledger.budget
        if not budget:
            raise BudgetError(f"policy '{self.bound}' chooses H from a budget: give one, as in energy=1400")
        H = np.arange(1, most + 1)
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
        """β(H), with σ bounded by the sizes alone: nobody has to share data for a plan."""
        theta = theory.Theta(H[:, None], s.samples, s.largest, s.lam, s.gamma, s.radius).max(axis=1)
        eta = theory.eta(s.samples, theory.sigma_size_bound(s.largest, s.radius), s.lam, s.gamma)
        return theory.beta(theta, eta, s.members)


def authors(bound_target: float = 1e-4, planned_cloud_rounds: int = 2) -> Theoretical:
    """As in the authors' code, with the target and the M of their figure."""
    return Theoretical("authors", bound_target, planned_cloud_rounds)


def sound(bound_target: float = 0.01) -> Theoretical:
    """The bound that is guaranteed."""
    return Theoretical("sound", bound_target)
