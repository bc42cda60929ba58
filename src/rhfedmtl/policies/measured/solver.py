"""Which solver brings more with what is left of the budget: coordinate ascent, or quasi-Newton on the joint problem.

A quasi-Newton round costs a pass over all rows, however few rows a terminal has and however many terminals there are:
its progress depends on neither. Coordinate ascent is ahead while a round of a few terminals solves much of their
problems. Both are judged by how fast the certified gap fell: before it was seen, by what is believed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rhfedmtl.maths.quasi_newton import ASCENT, NEWTON, Solver
from rhfedmtl.policies.base import Observation, Situation
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.costs import Price, Prices

# Fall of log(gap) in a quasi-Newton round (measured: 1 to 2), and with a loss that is not smooth (a guess). The first
# rounds gain nothing: a quarter of the root of the numbers in a model (measured: 2 to 4 of 20 numbers, 5 to 8 of 600),
# and at least LEAST_START.
NEWTON_RATE, ROUGH_RATE, LEAST_START = 1.0, 0.03, 3
# The measured pace is that of the last WINDOW rounds of ascent. The pace believed before counts as PRIOR rounds.
WINDOW, PRIOR = 8, 1.5
# Rounds to compare if no budget ends the run.
UNLIMITED = 1000
# Rounds between two comparisons of the solvers, and before the first.
LOOK = 3


def newton_rounds(s: Situation) -> int:
    """Passes over all rows that what is left would pay."""
    room = s.ledger.remaining
    if "pass" not in s.memo:
        s.memo["pass"] = _pass(s)
    cost = s.memo["pass"]
    paid = (room[name] / price for name, price in cost.items() if price > 0.0 and name in room)
    return int(min(paid, default=UNLIMITED))


def _pass(s: Situation) -> dict[str, float]:
    """Cost of a server iteration with one pass and its certificate, without which a search cannot go on.

    Where terminals have one price, sizes of each need not be known.
    """
    cloud, types = s.cloud_event(), s.prices.types
    certificate = (s.certificate_event(),) if s.certificates_cost else ()
    if any(isinstance(price, np.ndarray) for prices in types.values() for price in _of_terminals(prices)):
        return event_totals(s.prices, cloud, *certificate, s.round_event(s.one_pass))
    largest, home = s.largest.astype(np.int64), s.layout.terminal_task
    longest = int(largest[0]) if (largest == largest[0]).all() else largest[np.maximum(home, 0)]
    slowest = event_totals(s.prices, cloud, *certificate, s.round_event(longest))
    price = event_totals(s.prices, cloud, *certificate, s.round_event(1))
    more = float(s.samples.sum() - s.members.sum())
    return {
        name: price[name] + more * float(prices.terminal_step) if prices.adds == "sum" else slowest[name]
        for name, prices in types.items()
    }


def _of_terminals(prices: Prices) -> tuple[Price, ...]:
    return prices.terminal_step, prices.terminal_byte_up, prices.terminal_byte_down


def newton_start(s: Situation) -> int:
    """Rounds before a search gets going."""
    return max(LEAST_START, round(math.sqrt(s.bytes.order / 8.0) / 4.0))


def promised_by_newton(s: Situation) -> float:
    """Fall of the logarithm of the gap that the rest of the budget buys by quasi-Newton."""
    seen, start = _last(s.observed, NEWTON), newton_start(s)
    under_way = len(seen) if s.observed and s.observed[-1].solver == NEWTON else 0
    rate = _blend(NEWTON_RATE if s.gamma > 0.0 else ROUGH_RATE, seen[start:])
    return rate * max(newton_rounds(s) - max(start - under_way, 0), 0)


def promised_by_ascent(s: Situation, predicted: float, rounds: int) -> float:
    """The same by ascent in so many rounds; the model of progress predicts a fall, but not for one that is astray."""
    seen = _last(s.observed, ASCENT)[-WINDOW:]
    believed = 0.0 if seen and seen[-1].astray else predicted / rounds
    return _blend(believed, seen) * rounds


def _blend(believed: float, seen: Sequence[Observation]) -> float:
    """Fall in a round: mean of the believed pace, with the weight of ``PRIOR`` rounds, and the measured pace."""
    shown = max(len(seen) - 1, 0)
    return (PRIOR * believed + _fall(seen)) / (PRIOR + shown)


def _last(observed: Sequence[Observation], solver: Solver) -> list[Observation]:
    """The certified rounds of a solver when it was last in use."""
    found: list[Observation] = []
    for each in reversed(observed):
        if found and each.solver != solver:
            break
        if each.solver == solver and each.gap > 0.0:
            found.append(each)
    return found[::-1]


def _fall(seen: Sequence[Observation]) -> float:
    """Fall of the logarithm of the gap from the first to the last of these rounds."""
    return max(0.0, math.log(seen[0].gap / seen[-1].gap)) if len(seen) > 1 else 0.0
