"""The policy ``measured``: choose the H and K that buy the most progress with the remaining budget.

The default policy of RHFedMTL. Module `progress` predicts progress from the gains that terminals return, `allocation`
distributes a round over terminals, and `solver` compares coordinate ascent with quasi-Newton.

Theory of operation. Suppose that M more server iterations of K rounds follow. Every round gets an equal part of the
remaining budget, and H is the largest number of steps that this part pays. The policy chooses the (M, K) that leaves
the smallest predicted suboptimality. So it spends the complete budget. It fits the
model and makes the plan before every server iteration.

If terminals differ in speed and time is limited, the policy also compares an allocation by a deadline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rhfedmtl.maths.quasi_newton import ASCENT, NEWTON, Solver
from rhfedmtl.policies.base import IntArray, Plan, Situation, smallest_steps
from rhfedmtl.policies.measured.allocation import Allocation, EqualSteps, Grid, by_deadline, by_rows
from rhfedmtl.policies.measured.progress import PASS_RATE, Evidence, ProgressModel, share_of_cloud
from rhfedmtl.policies.measured.solver import (
    COMPARE_EVERY,
    ascent_pace,
    newton_forecast,
    newton_pace,
    newton_rounds,
)
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.costs import fits
from rhfedmtl.resources.steps import steps_affordable

__all__ = ["Measured", "ProgressModel", "Schedule"]

# If all terminals take the same H, a round has at most this many passes over the largest terminal, also if steps are
# free: after them a terminal's own problem is solved. `allocation` limits H that differs.
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.02 points, +0.01 ± 0.02 decades;
# ×2: −0.00 ± 0.01 points, +0.00 ± 0.00 decades.
MOST_PASSES = 20
# Plans try every number of server iterations up to this, and a coarser grid beyond it.
# Measured: benchmarks/results/constants.md; ×0.5: −0.00 ± 0.00 points, +0.00 ± 0.00 decades;
# ×2: same digits.
_DENSE_COUNTS = 64
# Plans try these numbers of rounds per server iteration, if a server iteration has a price.
# Measured: benchmarks/results/constants.md; ×0.5: −0.08 ± 0.11 points, −0.00 ± 0.01 decades;
# ×2: −0.01 ± 0.15 points, +0.00 ± 0.04 decades.
_STATION_ROUNDS = tuple(np.unique(np.geomspace(1, 64, 16).astype(np.int64)).tolist())


class Schedule(NamedTuple):
    """M server iterations of K rounds, H of the first round, and the log of the predicted remaining suboptimality.

    ``cost`` is the cost of the first round plus the cost of a server iteration.
    """

    cloud_rounds: int
    station_rounds: IntArray
    local_steps: IntArray
    log_left: float
    cost: dict[str, float]


class PlanInputs:
    """Inputs of a plan that depend only on members, sizes and prices."""

    def __init__(self, s: Situation, least_steps: int) -> None:
        self.min_steps = smallest_steps(s, least_steps)
        self.min_level = self.min_steps if isinstance(self.min_steps, int) else 1
        self.evidence = Evidence(s)
        self.cloud = s.server_iteration()
        self.free_cloud = not any(self.cloud[name] for name in s.ledger.budget)
        self.max_steps = max(self.min_level, MOST_PASSES * int(s.largest.max()))
        min_steps = self.min_steps
        equal: Allocation = EqualSteps(s) if isinstance(min_steps, int) else by_rows(s, min_steps)
        self.allocations: list[Allocation] = [equal, *by_deadline(s, min_steps)]
        self.min_cost = {name: cost + self.cloud[name] for name, cost in equal.cost(self.min_level).items()}

    @classmethod
    def of(cls, s: Situation, least_steps: int) -> PlanInputs:
        """Return the inputs of this situation for its limited types, from the memo if possible."""
        key = f"inputs for {least_steps} {' '.join(s.ledger.budget)}"
        inputs: PlanInputs | None = s.memo.get(key)
        if inputs is None:
            inputs = s.memo[key] = cls(s, least_steps)
        return inputs


@dataclass(frozen=True)
class Measured:
    """Buy the most dual progress with the remaining budget; see the top of this file.

    Parameters
    ----------
    memory
        Number of past rounds that the model is fitted to.
    prior
        Weight of the prior values, in rounds.
    least_steps
        Smallest H of a plan; 0 is a pass over each terminal's rows. With H = 1 an update is a scaled data row.
    """

    memory: int = 4
    prior: float = 4.0
    least_steps: int = 1

    def plan(self, situation: Situation) -> Plan | None:
        """Plan the next server iteration, or return None if the budget does not pay for the smallest round."""
        plan = self._newton(situation)
        if plan is not None or ASCENT not in situation.solvers:
            return plan
        if not situation.ledger.budget:
            return Plan.uniform(situation, np.maximum(self.least_steps, situation.sizes), 1)
        best = self.schedule(situation)
        if best is None:
            return None
        return Plan(best.local_steps, best.station_rounds, why={"cloud_rounds": best.cloud_rounds})

    def _newton(self, s: Situation) -> Plan | None:
        """Return a quasi-Newton round if it promises more than ascent with the remaining budget, else None.

        The comparison takes place every ``COMPARE_EVERY`` rounds.
        After members or weights have changed, a quasi-Newton search
        continues until the next comparison: its duals follow from a gradient and are a bad start for ascent.
        """
        if NEWTON not in s.solvers:
            return None
        if ASCENT not in s.solvers:
            return self._pass(s) if newton_rounds(s) else None
        before = s.observed[-1].solver if s.observed else ASCENT
        continues = before == NEWTON and "solver" not in s.memo
        if continues or s.rounds >= s.memo.get("solver until", COMPARE_EVERY):
            s.memo["solver"] = NEWTON if continues else self._better(s, before)
            s.memo["solver until"] = s.rounds + COMPARE_EVERY
        if s.memo.get("solver") != NEWTON or not newton_rounds(s):
            return None
        return self._pass(s)

    @staticmethod
    def _pass(s: Situation) -> Plan:
        """Return a plan for a quasi-Newton round: a pass over all rows."""
        return Plan(s.one_pass, np.ones(s.layout.n_tasks, dtype=np.int64), NEWTON)

    def _better(self, s: Situation, before: Solver) -> Solver:
        """Return the solver that promises more with the remaining budget; without a budget, in a round."""
        if not s.ledger.budget:
            predicted = -float(self.progress_model(s).log_left(1.0 - math.exp(-PASS_RATE)))
            return NEWTON if newton_pace(s) > ascent_pace(s, predicted) else ASCENT
        best = self.schedule(s)
        if best is None:
            return before
        rounds = best.cloud_rounds * int(best.station_rounds.max())
        return NEWTON if newton_forecast(s) > ascent_pace(s, -best.log_left / rounds) * rounds else ASCENT

    def schedule(self, s: Situation) -> Schedule | None:
        """Return the best schedule for the remaining budget, or None if the budget does not pay for a round."""
        payable = fits(PlanInputs.of(s, self.least_steps).min_cost, s.ledger.remaining)
        return self._best(s, self.progress_model(s)) if payable else None

    def progress_model(self, s: Situation) -> ProgressModel:
        """Return the progress model, fitted to the last rounds of ascent."""
        ascent_rounds = [observation for observation in s.observed if observation.solver == ASCENT]
        rate, keep = PlanInputs.of(s, self.least_steps).evidence.fit(ascent_rounds[-self.memory :], self.prior)
        return ProgressModel(rate, keep, share_of_cloud(s.coupling))

    def _best(self, s: Situation, model: ProgressModel) -> Schedule:
        inputs = PlanInputs.of(s, self.least_steps)
        grid = self._grid(s, inputs)
        levels = (allocation.search(model, grid) for allocation in inputs.allocations)
        log_left, cloud_rounds, station_rounds, level, allocation = min(levels, key=lambda level: level.log_left)
        level = max(level, float(inputs.min_level))
        cost = {name: price + inputs.cloud[name] for name, price in allocation.cost(level).items()}
        K = np.full(s.layout.n_tasks, station_rounds)
        best = Schedule(cloud_rounds, K, allocation.steps(level), log_left, cost)
        if fits(best.cost, grid.remaining):
            return best
        for_rounds = {name: limit - inputs.cloud[name] for name, limit in grid.remaining.items()}
        affordable = steps_affordable(s.prices, s.round_event(1), for_rounds, inputs.max_steps)
        steps = np.maximum(np.minimum(best.local_steps, affordable), inputs.min_steps)
        return best._replace(local_steps=steps, cost=event_totals(s.prices, s.cloud_event(), s.round_event(steps)))

    def _grid(self, s: Situation, inputs: PlanInputs) -> Grid:
        """Return the grid of all affordable numbers of server iterations and rounds."""
        remaining = s.ledger.remaining
        longest = min((remaining[name] / price for name, price in inputs.min_cost.items() if price > 0.0), default=1.0)
        rounds = (1,) if inputs.free_cloud else _STATION_ROUNDS
        return Grid(_counts(longest), rounds, remaining, inputs.cloud, inputs.min_level, inputs.max_steps)


def _counts(longest: float) -> Sequence[int]:
    """Return 1 … 64 and then a coarser grid: the model cannot distinguish neighbouring large numbers."""
    largest = max(1, int(min(longest, 1e9) * (1.0 + 1e-12)))
    if largest <= _DENSE_COUNTS:
        return range(1, largest + 1)
    return sorted({*range(1, _DENSE_COUNTS + 1), *np.geomspace(1, largest, 48).astype(np.int64).tolist()})
