"""Forecast the progress of coordinate ascent and of quasi-Newton on the joint problem with the remaining budget.

`Measured` takes the solver with the larger forecast. A quasi-Newton round costs a pass over
all rows. Its progress depends neither on the rows of a terminal nor on the number of terminals. Coordinate ascent is
better while a round of a few terminals solves much of their problems. Each forecast is the measured fall of the
certified gap, blended with a prior value.
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
    """Return the number of passes over all rows that the remaining budget pays for."""
    remaining = s.ledger.remaining
    if "pass" not in s.memo:
        s.memo["pass"] = _pass(s)
    cost = s.memo["pass"]
    affordable = (remaining[name] / price for name, price in cost.items() if price > 0.0 and name in remaining)
    return int(min(affordable, default=UNLIMITED))


def _pass(s: Situation) -> dict[str, float]:
    """Return the cost of a server iteration with a pass over all rows and its certificate.

    Every quasi-Newton round needs a certificate. If all terminals have the same price, the totals of their sizes
    suffice, which is faster.
    """
    cloud, types = s.cloud_event(), s.prices.types
    certificate = (s.certificate_event(),) if s.certificates_cost else ()
    if any(isinstance(price, np.ndarray) for prices in types.values() for price in _of_terminals(prices)):
        return event_totals(s.prices, cloud, *certificate, s.round_event(s.one_pass))
    largest, station = s.largest.astype(np.int64), s.layout.terminal_task
    longest = int(largest[0]) if (largest == largest[0]).all() else largest[np.maximum(station, 0)]
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
    """Return the number of first rounds in which a quasi-Newton search gains nothing."""
    return max(LEAST_START, round(math.sqrt(s.bytes.order / 8.0) / 4.0))


def newton_forecast(s: Situation) -> float:
    """Return the fall of the logarithm of the gap that the remaining budget buys with quasi-Newton."""
    rounds, start = _last(s.observed, NEWTON), newton_start(s)
    under_way = len(rounds) if s.observed and s.observed[-1].solver == NEWTON else 0
    rate = _blend(NEWTON_RATE if s.gamma > 0.0 else ROUGH_RATE, rounds[start:])
    return rate * max(newton_rounds(s) - max(start - under_way, 0), 0)


def ascent_forecast(s: Situation, predicted: float, rounds: int) -> float:
    """Return the fall of the logarithm of the gap in ``rounds`` rounds of ascent.

    ``predicted`` is the prior value, from the progress model. It is 0 for a run that has diverged.
    """
    measured = _last(s.observed, ASCENT)[-WINDOW:]
    prior = 0.0 if measured and measured[-1].astray else predicted / rounds
    return _blend(prior, measured) * rounds


def _blend(prior: float, measured: Sequence[Observation]) -> float:
    """Return the fall per round: the mean of prior and measured fall; the prior counts like ``PRIOR`` rounds."""
    count = max(len(measured) - 1, 0)
    return (PRIOR * prior + _fall(measured)) / (PRIOR + count)


def _last(observed: Sequence[Observation], solver: Solver) -> list[Observation]:
    """Return the certified rounds of the most recent stretch of rounds with this solver."""
    stretch: list[Observation] = []
    for observation in reversed(observed):
        if stretch and observation.solver != solver:
            break
        if observation.solver == solver and observation.gap > 0.0:
            stretch.append(observation)
    return stretch[::-1]


def _fall(rounds: Sequence[Observation]) -> float:
    """Return the fall of the logarithm of the gap from the first to the last of these rounds."""
    return max(0.0, math.log(rounds[0].gap / rounds[-1].gap)) if len(rounds) > 1 else 0.0
