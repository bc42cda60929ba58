"""The policy that learns from the run: how much of the rest of the way each H would buy with the rest of the budget.

Model of progress. A BS iteration with H steps leaves the fraction 1 − ρ φ(H) of the dual suboptimality:

* φ(H) = 1 − e^{−bH} is how much of its own problem a terminal solves in H steps, b = c/S for S rows. Terminals return
  their gain curves, and c is fitted to them.
* ρ is how much of all terminals' progress survives the merge. N_b updates for different rows, averaged, keep
  1 − (1 − 1/N_b)²; what the gains of successive rounds show pulls ρ away from that.
* BS iterations at a fixed anchor cannot do all: a share τ(1 − τ) waits for the cloud, where τ is the coupling of the
  tasks. There is nothing to wait for where they are independent (τ = 0).

Plan. With M more server iterations of K rounds each, every round gets an equal part of what is left, and H is the
most that this part pays. The plan is the (M, K) that leaves least. So the whole budget is used, the last round is
not a special case, and a plan is made anew with every server iteration. In front of the first round the model is
all prior: c = 1.15. Strongly coupled tasks get at least three server iterations if that costs little progress: in the
first the anchors know nothing, in the second only models that knew nothing of each other.

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
from rhfedmtl.resources.ladders import PASS_RATE, Ladder, ladders
from rhfedmtl.resources.planning import Observation, Plan, Situation

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Server iterations that coupled tasks should get, and the share of progress that may be given up for them.
COUPLED_ROUNDS = 3
WORTH = 0.75
# More passes in a round than this solve nothing that is not solved: free steps are no reason to take them.
MOST_PASSES = 20


class Outlook(NamedTuple):
    """The model of progress: c of a pass, share ρ that a merge keeps, share that waits for the cloud."""

    rate: float
    keep: float
    waits: float

    def log_left(self, phi: npt.ArrayLike, station_rounds: npt.ArrayLike = 1) -> FloatArray:
        """Logarithm of what a server iteration of K rounds leaves of the suboptimality, with φ done by terminals.

        The first round leaves q = 1 − ρ φ; K of them w + (1 − w) q^{K−1} of that, w the share that waits.
        """
        q = 1.0 - np.minimum(self.keep * np.asarray(phi, dtype=np.float64), 0.999)
        more = np.asarray(station_rounds, dtype=np.float64) - 1.0
        return np.asarray(np.log(q) + np.log(self.waits + (1.0 - self.waits) * q**more))


class Schedule(NamedTuple):
    """M server iterations of K rounds, H steps in the first of them, and the log of what all are predicted to leave."""

    cloud_rounds: int
    station_rounds: int
    local_steps: IntArray
    log_left: float


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
        best = self._held(situation) or self.schedule(situation)
        if best is None:
            return None
        return Plan.uniform(situation, best.local_steps, best.station_rounds, cloud_rounds=best.cloud_rounds)

    def _held(self, s: Situation) -> Schedule | None:
        """The schedule of an earlier round, while there is little new to learn: plans get rarer as a run goes on."""
        held: Schedule | None = s.memo.get("schedule")
        until: int = s.memo.get("schedule until", 0)
        if held is None or s.rounds >= until or held.cloud_rounds <= 2 or not self._payable(s, held):
            return None
        s.memo["schedule"] = held = held._replace(cloud_rounds=held.cloud_rounds - 1)
        return held

    def schedule(self, s: Situation) -> Schedule | None:
        """Best way to spend what is left, as the model sees it."""
        outlook = self.outlook(s)
        if not s.ledger.budget:
            steps = np.maximum(self.least_steps, s.sizes)
            return Schedule(1, 1, steps, float(outlook.log_left(-math.expm1(-outlook.rate))))
        room, cloud = s.ledger.room, self._cloud(s)
        wanted = COUPLED_ROUNDS - s.cloud_rounds if s.coupling >= 0.5 else 1
        cap = max(self.least_steps, MOST_PASSES * int(s.largest.max()))
        found = [self._search(outlook, ladder, room, cloud, wanted, cap) for ladder in ladders(s)]
        best = min(found, key=lambda schedule: schedule.log_left)
        if not self._payable(s, best):
            for_rounds = {name: limit - cloud.get(name, 0.0) for name, limit in room.items()}
            most = steps_affordable(s.prices, s.round_event(1), for_rounds, cap)
            if most < self.least_steps:
                return None
            best = best._replace(local_steps=np.clip(best.local_steps, self.least_steps, most))
        s.memo["schedule"], s.memo["schedule until"] = best, 2 * s.rounds + 1
        return best

    @staticmethod
    def _cloud(s: Situation) -> dict[str, float]:
        """What a server iteration costs by itself."""
        if "cloud" not in s.memo:
            s.memo["cloud"] = event_totals(s.prices, s.cloud_event())
        cost: dict[str, float] = s.memo["cloud"]
        return cost

    def _payable(self, s: Situation, schedule: Schedule) -> bool:
        round_ = event_totals(s.prices, s.round_event(schedule.local_steps))
        return s.ledger.can_afford({name: cost + round_[name] for name, cost in self._cloud(s).items()})

    def _search(
        self, outlook: Outlook, ladder: Ladder, room: dict[str, float], cloud: dict[str, float], wanted: int, most: int
    ) -> Schedule:
        """Try every number of server iterations, and of rounds in each; H follows from what they leave to pay.

        Fewer server iterations than ``wanted`` must promise clearly more.
        """
        free = all(cloud.get(name, 0.0) == 0.0 for name in room)
        K = np.array([1]) if free else np.unique(np.geomspace(1, 64, 16).astype(np.int64))
        least = ladder.cost(self.least_steps)
        prices = {name: least[name] + cloud.get(name, 0.0) for name in room}
        longest = min((room[name] / price for name, price in prices.items() if price > 0.0), default=1.0)
        M, K = (part.ravel() for part in np.meshgrid(_counts(longest), K, indexing="ij"))
        per_round = {name: (limit / M - cloud.get(name, 0.0)) / K * (1.0 + 1e-12) for name, limit in room.items()}
        h = ladder.affordable(per_round, most)
        possible = h >= self.least_steps
        left = np.where(possible, M * outlook.log_left(ladder.progress(outlook.rate, np.maximum(h, 1.0)), K), 0.0)
        left = np.where(wanted <= M, left, WORTH * left)
        i = int(np.argmin(left))
        steps = np.maximum(ladder.steps(max(float(h[i]), float(self.least_steps))), self.least_steps)
        return Schedule(int(M[i]), int(K[i]), steps, float(left[i]))

    def outlook(self, s: Situation) -> Outlook:
        """The model of progress, from prior belief and the last rounds."""
        rate = PASS_RATE
        if "rows" not in s.memo:
            s.memo["rows"] = mean_rows(s)
        rows: float = s.memo["rows"]
        members = float(np.mean(s.members[s.members > 0])) if np.any(s.members) else 1.0
        keep = 1.0 - (1.0 - 1.0 / members) ** 2
        recent = [seen for seen in s.observed[-self.memory :] if seen.answers.any() and seen.gains[:, -1].sum() > 0.0]
        if recent:
            rate = self._fit_rate(recent, s.samples, rows)
            keep = self._fit_keep(recent, s.samples, rate / rows, keep)
        return Outlook(rate, keep, s.coupling * (1.0 - s.coupling))

    def _fit_rate(self, recent: list[Observation], samples: FloatArray, rows: float) -> float:
        """c for which a(1 − e^{−ch/S}) fits the gain curves best, drawn towards what is believed."""
        rates = PASS_RATE * np.exp(np.linspace(-2.0, 2.0, 49))
        misfit = self.prior * 0.01 * np.log(rates / PASS_RATE) ** 2
        for seen in recent:
            h, g = _curve(seen, samples)
            F = -np.expm1(-np.outer(rates / rows, h))
            a = (F @ g) / np.square(F).sum(axis=1)
            misfit = misfit + np.square(a[:, None] * F - g).mean(axis=1)
        return float(rates[np.argmin(misfit)])

    def _fit_keep(self, recent: list[Observation], samples: FloatArray, rate: float, believed: float) -> float:
        """ρ from how the gains fall from round to round: G′/G = 1 − ρ φ(H), G the gain that more steps would reach."""
        phi = [-math.expm1(-rate * _working_steps(seen)) for seen in recent]
        reach = [_total_gain(seen, samples) / p for seen, p in zip(recent, phi, strict=True)]
        shown = [
            (1.0 - reach[k + 1] / reach[k]) / phi[k]
            for k in range(len(recent) - 1)
            if recent[k + 1].round == recent[k].round + 1
        ]
        shown = [min(max(x, believed / 10.0), 0.95) for x in shown]
        return float((self.prior * believed + sum(shown)) / (self.prior + len(shown)))


def mean_rows(s: Situation) -> float:
    """Rows of the terminal on which an average row lies."""
    sizes = s.sizes[s.layout.terminal_task >= 0].astype(np.float64)
    return float(np.sum(sizes * sizes) / np.sum(sizes)) if len(sizes) else 1.0


def _counts(longest: float) -> IntArray:
    """1 … 64, then a grid that gets coarser: neighbours far out differ by less than the model knows."""
    most = max(1, int(min(longest, 1e9) * (1.0 + 1e-12)))
    return np.unique(np.concatenate([np.arange(1, min(most, 64) + 1), np.geomspace(1, most, 48).astype(np.int64)]))


def _working_steps(seen: Observation) -> float:
    return float(seen.local_steps[seen.local_steps > 0].mean())


def _total_gain(seen: Observation, samples: FloatArray) -> float:
    return float(np.sum(seen.gains[:, -1] / np.maximum(samples, 1.0)))


def _curve(seen: Observation, samples: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Steps and dual gain, as a share of the last, at the points that every terminal reached."""
    least = int(seen.local_steps[seen.local_steps > 0].min())
    points = min(least.bit_length(), seen.gains.shape[1] - 1)
    gains = (seen.gains / np.maximum(samples, 1.0)[:, None]).sum(axis=0)
    h = np.append(2.0 ** np.arange(points), _working_steps(seen))
    return h, np.append(gains[:points], gains[-1]) / gains[-1]
