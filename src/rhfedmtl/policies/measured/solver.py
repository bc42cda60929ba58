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

# How much of the logarithm of the gap a quasi-Newton round takes away (measured: 1 to 2; of losses that are not smooth
# little is known), and how many rounds go by before it does: a quarter of the root of the numbers in a model (measured:
# 2 to 4 for 20, 5 to 8 for 600), but no fewer than this. Where λ is below FIRM it takes less, as its root
# (measured where numbers are more than rows: 0.24 and 0.78 for λ1 = 1e-4 and 1e-3); so does ascent, but not where
# nothing is merged.
NEWTON_RATE, FIRM, ROUGH_RATE, LEAST_START = 1.0, 2e-3, 0.03, 3
# Rounds of ascent over which its progress is measured, and the weight, in rounds, of what is believed without them.
# The certified gap of a search falls in jumps, a dozen rounds apart: all of its rounds count, few of them little.
WINDOW, PRIOR, NEWTON_PRIOR = 8, 1.5, 8.0
# Ascent slows down as it goes on: of the pace of its last rounds the rest of the way keeps so much. Where stations
# merge several terminals the gap falls no faster than this power of the number of rounds (measured: 0.9 to 2).
FADES, POWER = 0.6, 1.7
# Passes with which a search is worth beginning after the first round, where ascent is astray or tasks are coupled so
# strongly that it is slow; and rounds to compare where no budget ends them.
FEW_PASSES, STRONG, UNLIMITED = 10, 0.98, 1000
# Rounds between two looks at the choice, and before the first: the first rounds of ascent buy most.
LOOK = 3
# A solver in use is left only for one that promises so much more.
BETTER = 1.05


def newton_rounds(s: Situation) -> int:
    """Passes over all rows that what is left would pay."""
    room = s.ledger.room
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


def searches_at_once(s: Situation) -> bool:
    """Whether to leave ascent before both can be compared: with few passes a search would only get going."""
    if not s.observed or s.observed[-1].solver != ASCENT:
        return False
    slow = s.coupling > STRONG and all(each.solver == ASCENT for each in s.observed)
    return (slow or s.observed[-1].astray) and newton_rounds(s) >= FEW_PASSES


def promised_by_newton(s: Situation) -> float:
    """Fall of the logarithm of the gap that the rest of the budget buys by quasi-Newton."""
    seen, start = _last(s.observed, NEWTON), newton_start(s)
    under_way = len(seen) if s.observed and s.observed[-1].solver == NEWTON else 0
    # Without a smooth loss little is known of a search beforehand: less is hoped for, and what is seen counts sooner.
    smooth = NEWTON_RATE * (min(1.0, math.sqrt(_least_curvature(s) / FIRM)) if s.alone else 1.0)
    believed, prior = (smooth, NEWTON_PRIOR) if s.gamma > 0.0 else (ROUGH_RATE, PRIOR)
    rate = _blend(believed, seen[start:], prior=prior)
    return rate * max(newton_rounds(s) - max(start - under_way, 0), 0)


def promised_by_ascent(s: Situation, predicted: float, rounds: int) -> float:
    """The same by ascent in so many rounds; the model of progress predicts a fall, but not for one that is astray."""
    seen = _last(s.observed, ASCENT)[-WINDOW:]
    believed = 0.0 if seen and seen[-1].astray else predicted / rounds
    linear = _blend(believed, seen, FADES) * rounds
    if s.alone:
        return linear
    done = 1 + sum(each.solver == ASCENT for each in s.observed)
    return min(linear, POWER * math.log1p(rounds / done))


def _least_curvature(s: Situation) -> float:
    """λ of what tasks have in common, λ1 for `mean`, where rows do not tell of all numbers in a model; else of all."""
    few = float(np.mean(s.samples)) < s.bytes.order / 8.0
    return s.lam * (1.0 - s.coupling) if few else s.lam


def stay(s: Situation, before: Solver, now: Solver) -> int:
    """Rounds before the choice is looked at again: a search that has just begun has nothing to show yet."""
    return newton_start(s) + LOOK if now == NEWTON != before else LOOK


def _blend(believed: float, seen: Sequence[Observation], keeps: float = 1.0, prior: float = PRIOR) -> float:
    """Fall in a round: what is believed, drawn to what is kept of the pace that these rounds have shown."""
    shown = max(len(seen) - 1, 0)
    return (prior * believed + keeps * _fall(seen)) / (prior + shown)


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
