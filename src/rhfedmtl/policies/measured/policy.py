"""The policy that learns from the run: how much of the rest of the way each H would buy with the rest of the budget.

How progress is modelled, and fitted to the gains that terminals return, is in `rhfedmtl.policies.measured.progress`.

Plan. With M more server iterations of K rounds each, every round gets an equal part of what is left, and H is the
most that this part pays. The plan is the (M, K) that leaves least. So the whole budget is used, and the last round is
not a special case. The model is fitted and the plan made before every server iteration.

If terminals differ in speed and time is limited, a second way to share out a round is compared (`allocation.py`): by a
deadline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rhfedmtl.maths.quasi_newton import ASCENT, NEWTON, Solver
from rhfedmtl.policies.base import IntArray, Plan, Situation, least_of
from rhfedmtl.policies.measured.allocation import Allocation, BestLevel, EqualSteps, Grid, by_deadline, by_rows
from rhfedmtl.policies.measured.progress import PASS_RATE, Evidence, ProgressModel, waiting
from rhfedmtl.policies.measured.solver import (
    LOOK,
    UNLIMITED,
    newton_rounds,
    promised_by_ascent,
    promised_by_newton,
)
from rhfedmtl.resources.billing import event_totals, steps_affordable
from rhfedmtl.resources.costs import fits

__all__ = ["Measured", "ProgressModel", "Schedule"]

# More passes in a round than this solve nothing that is not solved: free steps are no reason to take them.
MOST_PASSES = 20
# Numbers that are tried: of server iterations (more of them on a coarser grid), and of rounds in one that has a price.
_FEW = 64
_ROUNDS = tuple(np.unique(np.geomspace(1, 64, 16).astype(np.int64)).tolist())


class Schedule(NamedTuple):
    """M server iterations of K rounds, H steps in the first of them, and the log of what all are predicted to leave.

    ``cost`` is that of the first round and of a server iteration by itself.
    """

    cloud_rounds: int
    station_rounds: IntArray
    local_steps: IntArray
    log_left: float
    cost: dict[str, float]


class PlanInputs:
    """What a plan needs and what stays the same while members, sizes and prices do."""

    def __init__(self, s: Situation, least_steps: int) -> None:
        self.least_steps = least_of(s, least_steps)
        self.least_level = self.least_steps if isinstance(self.least_steps, int) else 1
        self.evidence = Evidence(s)
        self.cloud = s.server_iteration()
        self.free_cloud = not any(self.cloud[name] for name in s.ledger.budget)
        self.most_steps = max(self.least_level, MOST_PASSES * int(s.largest.max()))
        least = self.least_steps
        alike: Allocation = EqualSteps(s) if isinstance(least, int) else by_rows(s, least)
        self.allocations: list[Allocation] = [alike, *by_deadline(s, least)]
        self.least = {name: cost + self.cloud[name] for name, cost in alike.cost(self.least_level).items()}

    @classmethod
    def of(cls, s: Situation, least_steps: int) -> PlanInputs:
        """The one of this situation, for the types that are limited."""
        key = f"inputs for {least_steps} {' '.join(s.ledger.budget)}"
        found: PlanInputs | None = s.memo.get(key)
        if found is None:
            found = s.memo[key] = cls(s, least_steps)
        return found


@dataclass(frozen=True)
class Measured:
    """Buy the most dual progress with what is left of the budget; see the top of this file.

    ``memory`` rounds are looked back on; ``prior`` is the weight, in rounds, of what is believed without them.
    ``least_steps`` is the smallest H that it will ask for: with H = 1 an update is a scaled data row; 0 is one pass
    over each terminal's own rows.
    """

    memory: int = 4
    prior: float = 4.0
    least_steps: int = 1

    def plan(self, situation: Situation) -> Plan | None:
        """Plan the next server iteration; None once not even the smallest round can be paid."""
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
        """A quasi-Newton round, where it promises more than ascent with what is left; looked at now and then.

        A search goes on for a while after members or weights have changed: duals are those of a gradient, from which
        ascent would begin far away.
        """
        if NEWTON not in s.solvers:
            return None
        if ASCENT not in s.solvers:
            return self._pass(s) if newton_rounds(s) else None
        before = s.observed[-1].solver if s.observed else ASCENT
        goes_on = before == NEWTON and "solver" not in s.memo
        if goes_on or s.rounds >= s.memo.get("solver until", LOOK):
            s.memo["solver"] = NEWTON if goes_on else self._better(s, before)
            s.memo["solver until"] = s.rounds + LOOK
        if s.memo.get("solver") != NEWTON or not newton_rounds(s):
            return None
        return self._pass(s)

    @staticmethod
    def _pass(s: Situation) -> Plan:
        """Return a plan for a quasi-Newton round: a pass over all rows."""
        return Plan(s.one_pass, np.ones(s.layout.n_tasks, dtype=np.int64), NEWTON)

    def _better(self, s: Situation, before: Solver) -> Solver:
        """Return the solver that promises more."""
        if s.ledger.budget:
            best = self.schedule(s)
            if best is None:
                return before
            rounds, predicted = best.cloud_rounds * int(best.station_rounds.max()), -best.log_left
        else:
            rounds = UNLIMITED
            predicted = -float(self.outlook(s).log_left(1.0 - math.exp(-PASS_RATE))) * rounds
        return NEWTON if promised_by_newton(s) > promised_by_ascent(s, predicted, rounds) else ASCENT

    def schedule(self, s: Situation) -> Schedule | None:
        """Best way to spend what is left of a budget, as the model sees it now; None where no round can be paid."""
        payable = fits(PlanInputs.of(s, self.least_steps).least, s.ledger.remaining)
        return self._best(s, self.outlook(s)) if payable else None

    def outlook(self, s: Situation) -> ProgressModel:
        """The model of progress, from prior belief and the last rounds."""
        seen = [each for each in s.observed if each.solver == ASCENT]
        rate, keep = PlanInputs.of(s, self.least_steps).evidence.fit(seen[-self.memory :], self.prior)
        return ProgressModel(rate, keep, waiting(s.coupling))

    def _best(self, s: Situation, outlook: ProgressModel) -> Schedule:
        inputs = PlanInputs.of(s, self.least_steps)
        grid = self._grid(s, inputs)
        levels = (allocation.search(outlook, grid) for allocation in inputs.allocations)
        best = self._scheduled(s, inputs, min(levels, key=lambda level: level.log_left))
        if fits(best.cost, grid.room):
            return best
        for_rounds = {name: limit - inputs.cloud[name] for name, limit in grid.room.items()}
        most = steps_affordable(s.prices, s.round_event(1), for_rounds, inputs.most_steps)
        steps = np.maximum(np.minimum(best.local_steps, most), inputs.least_steps)
        return best._replace(local_steps=steps, cost=event_totals(s.prices, s.cloud_event(), s.round_event(steps)))

    def _grid(self, s: Situation, inputs: PlanInputs) -> Grid:
        """All that can be paid."""
        room = s.ledger.remaining
        longest = min((room[name] / price for name, price in inputs.least.items() if price > 0.0), default=1.0)
        rounds = (1,) if inputs.free_cloud else _ROUNDS
        return Grid(_counts(longest), rounds, room, inputs.cloud, inputs.least_level, inputs.most_steps)

    def _scheduled(self, s: Situation, inputs: PlanInputs, found: BestLevel) -> Schedule:
        left, cloud_rounds, station_rounds, level, allocation = found
        level = max(level, float(inputs.least_level))
        cost = {name: price + inputs.cloud[name] for name, price in allocation.cost(level).items()}
        return Schedule(cloud_rounds, np.full(s.layout.n_tasks, station_rounds), allocation.steps(level), left, cost)


def _counts(longest: float) -> Sequence[int]:
    """1 … 64, then a grid that gets coarser: neighbours far out differ by less than the model knows."""
    most = max(1, int(min(longest, 1e9) * (1.0 + 1e-12)))
    if most <= _FEW:
        return range(1, most + 1)
    return sorted({*range(1, _FEW + 1), *np.geomspace(1, most, 48).astype(np.int64).tolist()})
