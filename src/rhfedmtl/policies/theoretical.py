"""Procedure 1 of the paper: choose H and K from a bound on the number of rounds, without measurements.

The plan depends only on sizes, prices and limits. `maths.theory` has the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from rhfedmtl.errors import BudgetError, ConfigError, nearest
from rhfedmtl.maths import theory
from rhfedmtl.maths.coupling import check_weight
from rhfedmtl.policies.base import FloatArray, Plan, Situation
from rhfedmtl.resources.steps import cost_curve

Bound = Literal["drawn", "text", "sound"]
BOUNDS: tuple[Bound, ...] = get_args(Bound)
DEFAULT_TARGETS = {"drawn": 1e-4, "text": 0.01, "sound": 0.01}
"""Gap that each bound aims at: the figure is drawn for 1e-4, and the text says 0.01."""
PLANNED_CLOUD_ROUNDS = {"drawn": 2, "text": 1, "sound": 1}
"""M of the predicted cost."""


class TheoryCurve(NamedTuple):
    """Forecast by theory for every H = 1, 2, …: rounds K, and the cost of M K rounds as a share of the budget."""

    K: FloatArray
    cost: dict[str, FloatArray]
    share: FloatArray
    beta: FloatArray


@dataclass(frozen=True)
class Theoretical:
    """Choose H by Procedure 1 of the paper and K by a bound, until the budget is spent.

    The choice of H uses the complete budget, as in the paper, so it is the same in every server iteration.

    Parameters
    ----------
    bound
        ``drawn``: the curve in the paper's cost figure, ⌊L (1 − 1/ñ)^H⌋. ``text``: the bound that the paper prints,
        (1 − β) L, necessary and not sufficient. ``sound``: L / −log(1 − β), guaranteed, and very large.
    bound_target
        Gap that the bound aims at; by default the paper's for this bound.
    """

    bound: Bound = "drawn"
    bound_target: float | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown bound, or a target that is not positive."""
        if self.bound not in BOUNDS:
            raise ConfigError(f"no bound {self.bound!r}: choose from {', '.join(BOUNDS)}{nearest(self.bound, BOUNDS)}")
        check_weight("bound_target", self.target, positive=True)

    @property
    def target(self) -> float:
        """Gap that the bound aims at."""
        return DEFAULT_TARGETS[self.bound] if self.bound_target is None else self.bound_target

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
            raise BudgetError("Procedure 1 chooses H from a budget: give one, as in energy=1400")
        H = np.arange(1, max_steps + 1)
        L = max(theory.log_target(situation.samples, self.target), 0.0)
        s = situation
        theta = theory.Theta(H[:, None], s.samples, s.largest, s.lam, s.gamma, s.radius).max(axis=1)
        # σ is bounded by the sizes, because a plan must not need data.
        eta = theory.eta(s.samples, theory.sigma_size_bound(s.largest, s.radius), s.lam, s.gamma)
        beta = theory.beta(theta, eta, s.members)
        K = {
            "drawn": theory.rounds_drawn(H, float(situation.largest.max()), L),
            "text": theory.rounds_text(beta, L),
            "sound": theory.rounds_sound(beta, L),
        }[self.bound]
        per_round = cost_curve(situation.prices, situation.round_event(1), H)
        M = PLANNED_CLOUD_ROUNDS[self.bound]
        cost = {name: theory.predicted_cost(K, curve, M) for name, curve in per_round.items()}
        share = theory.budget_share([cost[name] for name in budget], list(budget.values()))
        return TheoryCurve(K, cost, share, beta)
