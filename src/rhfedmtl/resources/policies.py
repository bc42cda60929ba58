"""Policies decide how much work the next server iteration does: H for every terminal, K for every station.

The ledger, not the policy, is what makes a budget hard; a good policy never runs into it.

Add a policy: write a frozen dataclass with ``plan``, add it to ``POLICIES``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import BudgetError, ConfigError
from rhfedmtl.maths import theory
from rhfedmtl.resources.billing import cost_curve
from rhfedmtl.resources.measured import Measured
from rhfedmtl.resources.planning import Plan, Policy, Situation

FloatArray = npt.NDArray[np.float64]
MOST_COUNT = 10**9
Bound = Literal["paper", "authors", "sound"]


@dataclass(frozen=True)
class Fixed:
    """The same H and K in each server iteration, M of them or until the budget is spent: HFedMTL."""

    local_steps: int = 2
    station_rounds: int = 1
    cloud_rounds: int | None = None

    def __post_init__(self) -> None:
        """Refuse counts below one."""
        for name in ("local_steps", "station_rounds", "cloud_rounds"):
            check_count(name, getattr(self, name), optional=name == "cloud_rounds")

    def plan(self, situation: Situation) -> Plan | None:
        """Return the same plan until M server iterations are done."""
        if self.cloud_rounds is not None and situation.cloud_rounds >= self.cloud_rounds:
            return None
        return Plan.uniform(situation, self.local_steps, self.station_rounds)


class Forecast(NamedTuple):
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
    epsilon: float = 0.01
    planned_cloud_rounds: int = 1

    def __post_init__(self) -> None:
        """Refuse targets that make no sense."""
        check_count("planned_cloud_rounds", self.planned_cloud_rounds)
        if not (math.isfinite(self.epsilon) and self.epsilon > 0.0):
            raise ConfigError(f"epsilon must be a finite number > 0, got {self.epsilon}")

    def plan(self, situation: Situation) -> Plan | None:
        """Return the H of the procedure and the K of the bound, both from the budget as it was at the start."""
        forecast = self.forecast(situation, int(situation.sizes.max()) + 1)
        choice = theory.paper_choice(forecast.share, 1.0, situation.sizes)
        K = forecast.K[int(choice.H.min()) - 1]
        rounds = int(min(max(1.0, math.ceil(K)), 1e9))
        return Plan.uniform(situation, choice.H, rounds, case=choice.case)

    def forecast(self, situation: Situation, most: int) -> Forecast:
        """K and cost for H = 1 … most."""
        budget = situation.ledger.budget
        if not budget:
            raise BudgetError(f"policy '{self.bound}' chooses H from a budget: give one, as in energy=1400")
        H = np.arange(1, most + 1)
        L = max(theory.log_target(situation.samples, self.epsilon), 0.0)
        beta = self._beta(situation, H)
        K = {
            "paper": theory.rounds_paper(beta, L),
            "sound": theory.rounds_sound(beta, L),
            "authors": theory.rounds_authors(H, float(situation.largest.max()), L),
        }[self.bound]
        per_round = cost_curve(situation.prices, situation.round_event(1), H)
        cost = {name: theory.predicted_cost(K, curve, self.planned_cloud_rounds) for name, curve in per_round.items()}
        share = theory.budget_share([cost[name] for name in budget], list(budget.values()))
        return Forecast(K, cost, share, beta)

    @staticmethod
    def _beta(s: Situation, H: npt.NDArray[np.int64]) -> FloatArray:
        """β(H), with σ bounded by the sizes alone: nobody has to share data for a plan."""
        theta = theory.Theta(H[:, None], s.samples, s.largest, s.lam, s.gamma, s.radius).max(axis=1)
        eta = theory.eta(s.samples, theory.sigma_size_bound(s.largest, s.radius), s.lam, s.gamma)
        return theory.beta(theta, eta, s.members)


def check_count(name: str, count: Any, *, optional: bool = False) -> None:
    """Refuse what is not a whole number of at least 1."""
    if optional and count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_COUNT:
        raise ConfigError(f"{name} must be a whole number from 1 to {MOST_COUNT}, got {count!r}")


POLICIES: dict[str, Callable[..., Policy]] = {
    "fixed": Fixed,
    "paper": Theoretical,
    "authors": lambda **settings: Theoretical("authors", **{"epsilon": 1e-4, "planned_cloud_rounds": 2} | settings),
    "sound": lambda **settings: Theoretical("sound", **settings),
    "measured": Measured,
}
