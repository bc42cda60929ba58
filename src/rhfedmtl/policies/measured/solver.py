"""Which solver brings more with what is left of the budget: coordinate ascent, or quasi-Newton on the joint problem.

A quasi-Newton round costs a pass over all rows, however few rows a terminal has and however many terminals there are:
its progress depends on neither. Coordinate ascent is ahead while a round of a few terminals solves much of their
problems. Both are judged by how fast the certified gap fell: before it was seen, by what is believed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rhfedmtl.policies.base import ASCENT, NEWTON, Observation, Situation, Solver
from rhfedmtl.resources.billing import event_totals

# How much of the logarithm of the gap a quasi-Newton round takes away, and how many rounds go by before it does.
NEWTON_RATE, NEWTON_START = 0.15, 4
# Rounds of a solver over which its progress is measured, and the weight, in rounds, of what is believed without them.
WINDOW, PRIOR = 12, 4.0
# A solver in use is left only for one that promises so much more.
BETTER = 1.1


def newton_rounds(s: Situation) -> int:
    """Passes over all rows that what is left would pay."""
    price = event_totals(s.prices, s.cloud_event(), s.round_event(s.sizes))
    room = s.ledger.room
    return int(min((room[name] / cost for name, cost in price.items() if cost > 0.0 and name in room), default=10**6))


def promised_by_newton(s: Situation) -> float:
    """Fall of the logarithm of the gap that the rest of the budget buys by quasi-Newton."""
    seen = _last(s.observed, NEWTON)
    running = len(seen)
    fell = _fall(seen[NEWTON_START:]) if running > NEWTON_START + 1 else 0.0
    rounds = max(running - NEWTON_START - 1, 0)
    rate = (PRIOR * NEWTON_RATE + fell) / (PRIOR + rounds)
    return rate * max(newton_rounds(s) - max(NEWTON_START - running, 0), 0)


def calibration(s: Situation, predicted: Sequence[float]) -> float:
    """How much of the fall that the model of progress predicted for rounds of ascent the certified gap really fell."""
    seen = _last(s.observed, ASCENT)
    believed = sum(predicted[-(len(seen) - 1) :]) if len(seen) > 1 else 0.0
    return (PRIOR + _fall(seen)) / (PRIOR + believed) if believed > 0.0 else 1.0


def _last(observed: Sequence[Observation], solver: Solver) -> list[Observation]:
    """The certified rounds of a solver since it was last taken up, the latest ``WINDOW`` of them at most."""
    found: list[Observation] = []
    for each in reversed(observed):
        if each.solver != solver or len(found) > WINDOW + NEWTON_START:
            break
        if each.gap > 0.0:
            found.append(each)
    return found[::-1]


def _fall(seen: Sequence[Observation]) -> float:
    """Fall of the logarithm of the gap from the first to the last of these rounds."""
    return max(0.0, math.log(seen[0].gap / seen[-1].gap)) if len(seen) > 1 else 0.0
