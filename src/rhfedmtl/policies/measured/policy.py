"""The policy that learns from the run: how much of the rest of the way each H would buy with the rest of the budget.

How progress is modelled, and fitted to the gains that terminals return, is in `rhfedmtl.policies.measured.progress`.

Plan. With M more server iterations of K rounds each, every round gets an equal part of what is left, and H is the
most that this part pays. The plan is the (M, K) that leaves least. So the whole budget is used, and the last round is
not a special case. Of the first server iteration of coupled tasks a share counts for nothing, because its anchors
know nothing: to solve much there is to solve the wrong problem. The model is fitted and the plan made anew after 3, 15,
63, … rounds, when there is much more to learn from (more often buys nothing that can be measured), and the plan also
for the last two server iterations.

Where stations or terminals differ in price, speed or size, three ways to share out the work of a round are compared
(`allocation.py`): alike, by what a step buys at each station, and by a deadline. Where stations differ in price or
speed, each may have a number of rounds of its own, K_b (`station_rounds.py`), once the anchors know something.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rhfedmtl.maths.quasi_newton import ASCENT, NEWTON, Solver
from rhfedmtl.policies.base import IntArray, Plan, Situation, least_of
from rhfedmtl.policies.measured.allocation import Allocation, BestLevel, EqualSteps, Grid, by_rows, shapes
from rhfedmtl.policies.measured.progress import PASS_RATE, Evidence, ProgressModel, unknown, waiting
from rhfedmtl.policies.measured.solver import (
    BETTER,
    LOOK,
    UNLIMITED,
    newton_rounds,
    promised_by_ascent,
    promised_by_newton,
    searches_at_once,
    stay,
)
from rhfedmtl.policies.measured.station_rounds import StationRounds
from rhfedmtl.resources.billing import event_totals, steps_affordable
from rhfedmtl.resources.costs import fits, times_affordable
from rhfedmtl.resources.ledger import Ledger

__all__ = ["Measured", "ProgressModel", "Schedule"]

# Server iterations of coupled tasks after which stations may have K_b of their own.
COUPLED_ROUNDS = 3
# More passes in a round than this solve nothing that is not solved: free steps are no reason to take them.
MOST_PASSES = 20
# Least passes of a round where a loss with corners lets rows rest, nothing is merged and tasks are coupled by no more
# than this, if as many rounds can be paid.
PASSES_ALONE, COUPLED_ALONE, ROUNDS_ALONE = 5, 0.5, 8
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


@dataclass
class KeptSchedule:
    """A schedule, and the model behind it, that stand until so many rounds are done; for this ledger."""

    schedule: Schedule
    outlook: ProgressModel
    until: int
    ledger: Ledger
    cloud_rounds: int


class PlanInputs:
    """What a plan needs and what stays the same while members, sizes and prices do."""

    def __init__(self, s: Situation, least_steps: int) -> None:
        self._s, self.least_steps = s, least_of(s, least_steps)
        self.least_level = self.least_steps if isinstance(self.least_steps, int) else 1
        self.evidence = Evidence(s)
        self.cloud = s.server_iteration()
        self.free_cloud = not any(self.cloud[name] for name in s.ledger.budget)
        self.most_steps = max(self.least_level, MOST_PASSES * int(s.largest.max()))
        least, self._shaped = self.least_steps, shapes(s, self.least_steps)
        alike: Allocation = EqualSteps(s) if isinstance(least, int) else by_rows(s, least)
        self.allocations: list[Allocation] = [alike, *self._shaped]
        self.least = {name: cost + self.cloud[name] for name, cost in alike.cost(self.least_level).items()}

    @cached_property
    def station_rounds(self) -> StationRounds | None:
        """Ways to plan different K_b, where there are any."""
        return StationRounds.of(self._s, self._shaped, self.least_steps)

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
    over each terminal's own rows. With ``same_rounds`` all stations make the same number of rounds, however fast or
    cheap they are.
    """

    memory: int = 4
    prior: float = 4.0
    least_steps: int = 1
    same_rounds: bool = False

    def plan(self, situation: Situation) -> Plan | None:
        """Plan the next server iteration; None once not even the smallest round can be paid."""
        if (plan := self._passes(situation) or self._newton(situation)) is not None:
            return plan
        if not situation.ledger.budget:
            return Plan.uniform(situation, np.maximum(self.least_steps, situation.sizes), 1)
        held: KeptSchedule | None = situation.memo.get("held")
        if held is not None and (situation.rounds >= held.until or situation.ledger is not held.ledger):
            held = None
        if held is not None and held.cloud_rounds > 2:
            held.cloud_rounds -= 1
            return _plan(held)
        if not self._payable(situation):
            return None
        outlook = self.outlook(situation) if held is None else held.outlook
        best = self._best(situation, outlook)
        until = 4 * situation.rounds + 3 if held is None else held.until
        held = situation.memo["held"] = KeptSchedule(best, outlook, until, situation.ledger, best.cloud_rounds)
        return _plan(held)

    def _passes(self, s: Situation) -> Plan | None:
        """Rounds of several passes that leave out rows that rest, where each terminal is alone with its station."""
        if s.gamma > 0.0 or s.coupling > COUPLED_ALONE or not s.alone:
            return None
        if "passes" not in s.memo:
            s.memo["passes"] = self._choose_passes(s)
        steps = np.maximum(self.least_steps, s.memo["passes"] * s.one_pass)
        payable = s.memo["passes"] and fits(self._cost(s, steps), s.ledger.room)
        return Plan.uniform(s, steps, 1) if payable else None

    def _choose_passes(self, s: Situation) -> int:
        """Passes of a round: more where what a round costs beside them is more; 0 where few such rounds can be paid."""
        one, two = (self._cost(s, k * s.one_pass) for k in (1, 2))
        dear = (one[name] / (two[name] - one[name]) - 1.0 for name in s.ledger.budget if two[name] > one[name])
        dearer = max(1.0, min(dear, default=1.0))
        passes = min(MOST_PASSES, round(PASSES_ALONE * math.sqrt(dearer)))
        paid = times_affordable(self._cost(s, passes * s.one_pass), s.ledger.room, ROUNDS_ALONE)
        return passes if paid == ROUNDS_ALONE else 0

    @staticmethod
    def _cost(s: Situation, steps: IntArray) -> dict[str, float]:
        """Cost of a server iteration of one round."""
        cloud = s.server_iteration()
        return {name: price + cloud[name] for name, price in event_totals(s.prices, s.round_event(steps)).items()}

    def _newton(self, s: Situation) -> Plan | None:
        """A quasi-Newton round, where it promises more than ascent with what is left; looked at now and then.

        A search goes on for a while after members or weights have changed: duals are those of a gradient, from which
        ascent would begin far away.
        """
        if NEWTON not in s.solvers:
            return None
        before = s.observed[-1].solver if s.observed else ASCENT
        at_once = searches_at_once(s) or (before == NEWTON and "solver" not in s.memo)
        if at_once or s.rounds >= s.memo.get("solver until", LOOK):
            s.memo["solver"] = NEWTON if at_once else self._better(s, before)
            s.memo["solver until"] = s.rounds + stay(s, before, s.memo["solver"])
        return self._pass(s) if s.memo.get("solver") == NEWTON and newton_rounds(s) else None

    def _better(self, s: Situation, before: Solver) -> Solver:
        """The solver that promises more; the one in use is left only for one that promises clearly more."""
        if s.ledger.budget:
            best = self.schedule(s)
            if best is None:
                return before
            rounds, predicted = best.cloud_rounds * int(best.station_rounds.max()), -best.log_left
        else:
            rounds = UNLIMITED
            predicted = -float(self.outlook(s).log_left(1.0 - math.exp(-PASS_RATE))) * rounds
        ascent, newton = promised_by_ascent(s, predicted, rounds), promised_by_newton(s)
        return NEWTON if newton > ascent * (BETTER if before == ASCENT else 1.0 / BETTER) else ASCENT

    @staticmethod
    def _pass(s: Situation) -> Plan:
        s.memo.pop("held", None)
        return Plan(s.one_pass, np.ones(s.layout.n_tasks, dtype=np.int64), NEWTON)

    def schedule(self, s: Situation) -> Schedule | None:
        """Best way to spend what is left of a budget, as the model sees it now; None where no round can be paid."""
        return self._best(s, self.outlook(s)) if self._payable(s) else None

    def _payable(self, s: Situation) -> bool:
        """Whether the smallest round can be paid."""
        return fits(PlanInputs.of(s, self.least_steps).least, s.ledger.room)

    def outlook(self, s: Situation) -> ProgressModel:
        """The model of progress, from prior belief and the last rounds."""
        seen = [each for each in s.observed if each.solver == ASCENT]
        rate, keep = PlanInputs.of(s, self.least_steps).evidence.fit(seen[-self.memory :], self.prior)
        return ProgressModel(rate, keep, waiting(s.coupling))

    def _best(self, s: Situation, outlook: ProgressModel) -> Schedule:
        inputs = PlanInputs.of(s, self.least_steps)
        grid = self._grid(s, inputs)
        found = min(
            (allocation.search(outlook, grid) for allocation in inputs.allocations), key=lambda each: each.log_left
        )
        if not (self.same_rounds or _knows_little(s)) and inputs.station_rounds:
            found = inputs.station_rounds.search(outlook, grid) or found
        best = self._scheduled(s, inputs, found)
        if fits(best.cost, grid.room):
            return best
        for_rounds = {name: limit - inputs.cloud[name] for name, limit in grid.room.items()}
        most = steps_affordable(s.prices, s.round_event(1), for_rounds, inputs.most_steps)
        steps = np.maximum(np.minimum(best.local_steps, most), inputs.least_steps)
        return best._replace(local_steps=steps, cost=event_totals(s.prices, s.cloud_event(), s.round_event(steps)))

    def _grid(self, s: Situation, inputs: PlanInputs) -> Grid:
        """All that can be paid."""
        room = s.ledger.room
        longest = min((room[name] / price for name, price in inputs.least.items() if price > 0.0), default=1.0)
        lost = 0.0 if s.cloud_rounds else unknown(s)
        rounds = (1,) if inputs.free_cloud else _ROUNDS
        return Grid(_counts(longest), rounds, room, inputs.cloud, inputs.least_level, inputs.most_steps, lost)

    def _scheduled(self, s: Situation, inputs: PlanInputs, found: BestLevel) -> Schedule:
        left, cloud_rounds, station_rounds, level, allocation = found
        level = max(level, float(inputs.least_level))
        cost = {name: price + inputs.cloud[name] for name, price in allocation.cost(level).items()}
        return Schedule(cloud_rounds, _same(s, station_rounds), allocation.steps(level), left, cost)


def _knows_little(s: Situation) -> bool:
    """Whether anchors of coupled tasks are still far from what they will be."""
    return s.coupling >= 0.5 and s.cloud_rounds < COUPLED_ROUNDS - 1


def _plan(held: KeptSchedule) -> Plan:
    return Plan(held.schedule.local_steps, held.schedule.station_rounds, why={"cloud_rounds": held.cloud_rounds})


def _same(s: Situation, station_rounds: int | IntArray) -> IntArray:
    return np.full(s.layout.n_tasks, station_rounds)


def _counts(longest: float) -> Sequence[int]:
    """1 … 64, then a grid that gets coarser: neighbours far out differ by less than the model knows."""
    most = max(1, int(min(longest, 1e9) * (1.0 + 1e-12)))
    if most <= _FEW:
        return range(1, most + 1)
    return sorted({*range(1, _FEW + 1), *np.geomspace(1, most, 48).astype(np.int64).tolist()})
