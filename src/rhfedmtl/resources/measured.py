"""The policy that learns from the run: how much of the rest of the way each H would buy with the rest of the budget.

How progress is modelled, and fitted to the gains that terminals return, is in `rhfedmtl.resources.progress`.

Plan. With M more server iterations of K rounds each, every round gets an equal part of what is left, and H is the
most that this part pays. The plan is the (M, K) that leaves least. So the whole budget is used, the last round is
not a special case. Strongly coupled tasks get at least three server iterations if that costs little progress: in the
first the anchors know nothing, in the second only models that knew nothing of each other. Plans are made anew after
1, 3, 7, … rounds, when there is as much again to learn from, and for the last two server iterations.

Where stations or terminals differ in price, speed or size, three ways to share out the work of a round are compared
(`ladders.py`): alike, by what a step buys at each station, and by a deadline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.resources.billing import event_totals, steps_affordable
from rhfedmtl.resources.ladders import Alike, Ladder, shapes
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.planning import Plan, Situation
from rhfedmtl.resources.progress import Evidence, Outlook

__all__ = ["Measured", "Outlook", "Schedule"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Server iterations that coupled tasks should get, and the share of progress that may be given up for them.
COUPLED_ROUNDS = 3
WORTH = 0.75
# More passes in a round than this solve nothing that is not solved: free steps are no reason to take them.
MOST_PASSES = 20
# Numbers that are tried: of server iterations (more of them on a coarser grid), and of rounds in one that has a price.
_FEW = np.arange(1.0, 65.0)
_SLACK = 1.0 + 1e-12
_ROUNDS = np.unique(np.geomspace(1, 64, 16).astype(np.int64)).astype(np.float64)


class Schedule(NamedTuple):
    """M server iterations of K rounds, H steps in the first of them, and the log of what all are predicted to leave.

    ``cost`` is that of the first round and of a server iteration by itself.
    """

    cloud_rounds: int
    station_rounds: IntArray
    local_steps: IntArray
    log_left: float
    cost: dict[str, float]


class Found(NamedTuple):
    """The best rung of a ladder, with the M and K that go with it."""

    log_left: float
    cloud_rounds: int
    station_rounds: int
    rung: float
    ladder: Ladder


class Held(NamedTuple):
    """A schedule, and the model behind it, that stand until so many rounds are done; for this ledger."""

    schedule: Schedule
    outlook: Outlook
    until: int
    ledger: Ledger


class Basis:
    """What a plan needs and what stays the same while members, sizes and prices do."""

    def __init__(self, s: Situation, least_steps: int) -> None:
        self.evidence = Evidence(s)
        self.cloud = event_totals(s.prices, s.cloud_event())
        self.free_cloud = not any(self.cloud[name] for name in s.ledger.budget)
        self.most_steps = max(least_steps, MOST_PASSES * int(s.largest.max()))
        self.ladders: list[Ladder] = [Alike(s), *shapes(s, least_steps)] if s.ledger.budget else []

    @classmethod
    def of(cls, s: Situation, least_steps: int) -> Basis:
        """The one of this situation, for the types that are limited."""
        key = ("basis", least_steps, *s.ledger.budget)
        found: Basis | None = s.memo.get(key)
        if found is None:
            found = s.memo[key] = cls(s, least_steps)
        return found


@dataclass(frozen=True)
class Measured:
    """Buy the most dual progress with what is left of the budget; see the top of this file.

    ``memory`` rounds are looked back on; ``prior`` is the weight, in rounds, of what is believed without them.
    ``least_steps`` is the smallest H that it will ask for: with H = 1 an update is a scaled data row.
    """

    memory: int = 4
    prior: float = 4.0
    least_steps: int = 1

    def plan(self, situation: Situation) -> Plan | None:
        """Plan the next server iteration; None once not even the smallest round can be paid."""
        held = self._held(situation)
        best = (self._next(situation, held) if held else None) or self.schedule(situation, held)
        if best is None:
            return None
        return Plan(best.local_steps, best.station_rounds, {"cloud_rounds": best.cloud_rounds})

    def _held(self, s: Situation) -> Held | None:
        """What was planned in an earlier round, while there is little new to learn."""
        held: Held | None = s.memo.get("held")
        return held if held and s.rounds < held.until and s.ledger is held.ledger else None

    def _next(self, s: Situation, held: Held) -> Schedule | None:
        """The rest of a schedule, unless it nears its end or cannot be paid any more."""
        schedule = held.schedule
        if schedule.cloud_rounds <= 2 or not s.ledger.can_afford(schedule.cost):
            return None
        schedule = schedule._replace(cloud_rounds=schedule.cloud_rounds - 1)
        s.memo["held"] = held._replace(schedule=schedule)
        return schedule

    def schedule(self, s: Situation, held: Held | None = None) -> Schedule | None:
        """Best way to spend what is left, as the model sees it: fitted now, or held."""
        outlook = held.outlook if held else self.outlook(s)
        best = self._best(s, outlook)
        if best is not None:
            s.memo["held"] = Held(best, outlook, held.until if held else 2 * s.rounds + 1, s.ledger)
        return best

    def outlook(self, s: Situation) -> Outlook:
        """The model of progress, from prior belief and the last rounds."""
        rate, keep = Basis.of(s, self.least_steps).evidence.fit(s.observed[-self.memory :], self.prior)
        return Outlook(rate, keep, s.coupling * (1.0 - s.coupling))

    def _best(self, s: Situation, outlook: Outlook) -> Schedule | None:
        if not s.ledger.budget:
            left = float(outlook.log_left(-math.expm1(-outlook.rate)))
            return Schedule(1, _same(s, 1), np.maximum(self.least_steps, s.sizes), left, {})
        basis = Basis.of(s, self.least_steps)
        found = min((self._search(s, outlook, basis, each) for each in basis.ladders), key=lambda each: each.log_left)
        best = self._scheduled(s, basis, found)
        if s.ledger.can_afford(best.cost):
            return best
        for_rounds = {name: limit - basis.cloud[name] for name, limit in s.ledger.room.items()}
        most = steps_affordable(s.prices, s.round_event(1), for_rounds, basis.most_steps)
        if most < self.least_steps:
            return None
        steps = np.clip(best.local_steps, self.least_steps, most)
        return best._replace(local_steps=steps, cost=event_totals(s.prices, s.cloud_event(), s.round_event(steps)))

    def _search(self, s: Situation, outlook: Outlook, basis: Basis, ladder: Ladder) -> Found:
        """Try every number of server iterations, and of rounds in each; H follows from what they leave to pay.

        Fewer server iterations than coupled tasks should get must promise clearly more.
        """
        room, cloud, K = s.ledger.room, basis.cloud, None if basis.free_cloud else _ROUNDS
        least = ladder.cost(self.least_steps)
        longest = [room[name] / price for name in room if (price := least[name] + cloud[name]) > 0.0]
        M = _counts(min(longest, default=1.0))
        if K is None:
            limits = {name: limit * _SLACK / M for name, limit in room.items()}
        else:
            M = M[:, None]
            limits = {name: (limit / M - cloud[name]) / K * _SLACK for name, limit in room.items()}
        h = ladder.affordable(limits, basis.most_steps)
        h[h < self.least_steps] = 0.0
        left = M * outlook.log_left(ladder.progress(outlook.rate, h), K)
        if s.coupling >= 0.5 and s.cloud_rounds < COUPLED_ROUNDS - 1:
            left[: COUPLED_ROUNDS - 1 - s.cloud_rounds] *= WORTH
        i = int(left.argmin())
        m, k = (i, 1) if K is None else (i // len(K), int(K[i % len(K)]))
        return Found(float(left.flat[i]), int(M.flat[m]), k, float(h.flat[i]), ladder)

    def _scheduled(self, s: Situation, basis: Basis, found: Found) -> Schedule:
        left, cloud_rounds, station_rounds, rung, ladder = found
        rung = max(rung, float(self.least_steps))
        steps = ladder.steps(rung)
        cost = {name: price + basis.cloud[name] for name, price in ladder.cost(rung).items()}
        return Schedule(cloud_rounds, _same(s, station_rounds), steps, left, cost)


def _same(s: Situation, station_rounds: int) -> IntArray:
    return np.full(s.layout.n_tasks, station_rounds)


def _counts(longest: float) -> FloatArray:
    """1 … 64, then a grid that gets coarser: neighbours far out differ by less than the model knows."""
    most = max(1, int(min(longest, 1e9) * (1.0 + 1e-12)))
    if most <= len(_FEW):
        return _FEW[:most]
    return np.unique(np.concatenate([_FEW, np.floor(np.geomspace(1, most, 48))]))
