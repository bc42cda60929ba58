"""Follow a policy through a budget without training: the policy plans, and the module prices its server iterations.

`plan` and `Pilot` call `dry_run`. The result has the first plan, the numbers of rounds and steps, their cost, and the
remaining suboptimality that the progress model of the policy ``measured`` predicts. A dry run looks at no data. It
charges a copy of the ledger, never the ledger itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.policies.base import Plan, Policy, Situation
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.measured.policy import Measured, ProgressModel
from rhfedmtl.policies.measured.progress import LocalProgress
from rhfedmtl.policies.theoretical import Theoretical
from rhfedmtl.resources.billing import CLOUD, Charge, event_totals
from rhfedmtl.resources.costs import times_affordable
from rhfedmtl.resources.waiting import waiting_times

IntArray = npt.NDArray[np.int64]
Totals = dict[str, float]

MOST_ROUNDS = 1_000_000
"""Round at which a dry run stops if neither the policy nor a budget ends it."""
_MOST_PLANS = 200
_MOST_WORK = 10_000_000
_SINGLE, _LEAP = 16, 6  # If more than 16 iterations remain, the policy plans again after a sixth of the rest.


@dataclass(frozen=True, eq=False)
class DryRun:
    """Outcome of a dry run: the first plan, the work that the budget pays, and its cost.

    ``log_left`` is the logarithm of the remaining share of the dual suboptimality, by the model of progress.
    ``least_steps`` and ``most_steps`` are the smallest and the largest H of the dry run.
    """

    first: Plan | None
    rounds: int
    cloud_rounds: int
    terminal_steps: int
    least_steps: int
    most_steps: int
    spent: Totals
    log_left: float
    stopped: str

    def then(self, rest: DryRun) -> DryRun:
        """Return this dry run followed by ``rest``."""
        if rest.first is None:
            return replace(self, stopped=rest.stopped)
        if self.first is None:
            return rest
        return DryRun(
            self.first,
            self.rounds + rest.rounds,
            self.cloud_rounds + rest.cloud_rounds,
            self.terminal_steps + rest.terminal_steps,
            min(self.least_steps, rest.least_steps),
            max(self.most_steps, rest.most_steps),
            {name: amount + rest.spent.get(name, 0.0) for name, amount in self.spent.items()},
            self.log_left + rest.log_left,
            rest.stopped,
        )


def dry_run(
    policy: Policy, situation: Situation, progress_model: ProgressModel | None = None, most_rounds: int = MOST_ROUNDS
) -> DryRun:
    """Follow ``policy`` from ``situation`` until the policy or the budget ends it.

    The ledger of ``situation`` does not change.
    """
    ledger = situation.ledger.with_budget(situation.ledger.budget)
    now = replace(situation, ledger=ledger)
    progress_model = progress_model or Measured().progress_model(situation)
    total = empty_dry_run(ledger.cost)
    most_plans = min(_MOST_PLANS, max(4, _MOST_WORK // max(1, len(situation.sizes))))
    for number in range(most_plans):
        plan = policy.plan(now) if total.rounds < most_rounds else None
        if plan is None:
            return replace(total, stopped=_why(now, limited=total.rounds >= most_rounds))
        stage = _server_iteration(now, plan, progress_model, most_rounds - total.rounds)
        if stage is None:
            return replace(total, stopped="budget spent")
        complete = stage.rounds == int(plan.station_rounds.max())
        max_times = max(1, (most_rounds - total.rounds) // stage.rounds)
        if isinstance(policy, Fixed) and policy.cloud_rounds is not None:
            max_times = min(max_times, policy.cloud_rounds - now.cloud_rounds)
        times = max(1, times_affordable(stage.spent, now.ledger.remaining, max_times)) if complete else 1
        if not is_constant(policy) and number < most_plans - 1:
            times = max(1, (times - _SINGLE) // _LEAP)
        total = total.then(_charge(now, stage, times))
        now = replace(now, rounds=now.rounds + times * stage.rounds, cloud_rounds=now.cloud_rounds + times)
    return replace(total, stopped=_why(now, limited=total.rounds >= most_rounds))


def empty_dry_run(cost: Iterable[str]) -> DryRun:
    """Return a dry run without any work."""
    return DryRun(None, 0, 0, 0, 0, 0, dict.fromkeys(cost, 0.0), 0.0, "")


@dataclass(frozen=True, eq=False)
class Frozen:
    """Policy that returns the same plan in every server iteration."""

    same: Plan

    def plan(self, situation: Situation) -> Plan | None:
        """Return the plan."""
        return self.same


def is_constant(policy: Policy) -> bool:
    """Return True if the policy gives the same plan in every server iteration."""
    return isinstance(policy, Fixed | Theoretical | Frozen)


def steps_of(situation: Situation, plan: Plan) -> IntArray:
    """Return H of the terminals that are members."""
    return np.asarray(plan.local_steps[situation.member_index], dtype=np.int64)


def effort(situation: Situation, outlook: ProgressModel, local_steps: int | IntArray) -> float:
    """Return φ, the mean over rows of the share of its local problem that a terminal solves in a round."""
    steps = np.broadcast_to(np.asarray(local_steps), len(situation.sizes))
    if steps.strides == (0,) and len(steps):
        if "local progress" not in situation.memo:
            sizes = np.maximum(situation.sizes[situation.member_index], 1)
            situation.memo["local progress"] = LocalProgress(sizes, max_sizes=len(sizes))
        local_progress: LocalProgress = situation.memo["local progress"]
        return local_progress.progress(outlook.rate, int(steps[0]))
    rows = np.maximum(situation.sizes[situation.member_index], 1)
    return float(-np.expm1(-outlook.rate * steps[situation.member_index] / rows) @ rows / rows.sum())


def _why(s: Situation, *, limited: bool) -> str:
    """Return the reason why a policy plans no further round, in the words of a run."""
    if limited:
        return "limit on rounds reached"
    smallest = event_totals(s.prices, s.cloud_event(), s.round_event(1))
    return "plan completed" if s.ledger.can_afford(smallest) else "budget spent"


class _Stage(NamedTuple):
    """A priced server iteration."""

    plan: Plan
    rounds: int
    terminal_steps: int
    spent: Totals
    log_left: float


def _server_iteration(s: Situation, plan: Plan, outlook: ProgressModel, most_rounds: int) -> _Stage | None:
    """Price the anchors and up to K rounds that the budget pays; return None if it does not pay the first round."""
    remaining = s.ledger.remaining
    spent = s.server_iteration()
    rounds = terminal_steps = 0
    waiting = None
    min_rounds, max_rounds = int(plan.station_rounds.min()), int(plan.station_rounds.max())
    # If K_b differ, the working stations change from round to round.
    for count, stations in (
        [(max_rounds, None)] if min_rounds == max_rounds else [(1, plan.station_rounds > k) for k in range(max_rounds)]
    ):
        event = replace(s.round_event(plan.local_steps, stations), ahead=waiting)
        price, waiting = event_totals(s.prices, event), waiting_times(s.prices, event)
        affordable = {name: limit - spent[name] for name, limit in remaining.items()}
        if not rounds and min(affordable.values(), default=0.0) < 0.0:
            return None
        times = times_affordable(price, affordable, min(count, most_rounds - rounds))
        working = slice(None) if stations is None else stations[s.layout.terminal_task]
        terminal_steps += times * int(plan.local_steps[working].sum())
        spent = {name: amount + times * price[name] for name, amount in spent.items()}
        rounds += times
        if times < count:
            break
    if not rounds:
        return None
    K = min(float(rounds), float(plan.station_rounds.mean()))
    log_left = float(outlook.log_left(effort(s, outlook, plan.local_steps), K))
    return _Stage(plan, rounds, terminal_steps, spent, log_left)


def _charge(s: Situation, stage: _Stage, times: int) -> DryRun:
    """Charge ``times`` equal server iterations as one sum: the policy sees only the remaining budget."""
    spent = {name: times * amount for name, amount in stage.spent.items()}
    remaining = s.ledger.remaining
    s.ledger.charge(
        Charge.make(s.rounds, CLOUD, name, s.layout, None, min(amount, remaining.get(name, math.inf)))
        for name, amount in spent.items()
    )
    H = steps_of(s, stage.plan)
    return DryRun(
        stage.plan,
        times * stage.rounds,
        times,
        times * stage.terminal_steps,
        int(H.min()),
        int(H.max()),
        spent,
        times * stage.log_left,
        "",
    )
