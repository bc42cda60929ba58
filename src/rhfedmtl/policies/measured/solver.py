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

# Prior for the fall of log(gap) in a quasi-Newton round (observed: 1 to 2).
# Measured: benchmarks/results/constants.md; ×0.5: +0.06 ± 0.12 points, +0.14 ± 0.25 decades;
# ×2: −0.07 ± 0.12 points, −0.03 ± 0.07 decades.
NEWTON_RATE = 1.0
# The same for a loss that is not smooth.
# Measured: benchmarks/results/constants.md; ×0.5: same digits;
# ×2: +0.08 ± 0.20 points.
ROUGH_RATE = 0.03
# The first quasi-Newton rounds gain nothing: at least so many. Otherwise a quarter of the root of a model's numbers
# (observed: 2 to 4 rounds for 20 numbers, 5 to 8 for 600).
# Measured: benchmarks/results/constants.md; ×0.5: same digits;
# ×2: −0.05 ± 0.11 points, −0.03 ± 0.07 decades.
LEAST_START = 3
# The pace of ascent is measured over its last rounds, this many.
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.00 points, +0.00 ± 0.00 decades;
# ×2: +0.00 ± 0.00 points, +0.00 ± 0.00 decades.
PACE_ROUNDS = 8
# The prior pace counts as much as this many measured rounds.
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.00 points, +0.00 ± 0.00 decades;
# ×2: −0.07 ± 0.12 points, −0.03 ± 0.07 decades.
PRIOR_ROUNDS = 1.5
# Compare the solvers every so many rounds, for the first time after as many.
# Measured: benchmarks/results/constants.md; ×0.5: −0.01 ± 0.02 points, +0.02 ± 0.05 decades;
# ×2: −0.07 ± 0.13 points, +0.07 ± 0.16 decades.
COMPARE_EVERY = 3


def newton_rounds(s: Situation) -> float:
    """Return the number of passes over all rows that the remaining budget pays for; infinite without a budget."""
    remaining = s.ledger.remaining
    if "pass" not in s.memo:
        s.memo["pass"] = _pass(s)
    cost = s.memo["pass"]
    affordable = (remaining[name] / price for name, price in cost.items() if price > 0.0 and name in remaining)
    return min(map(math.floor, affordable), default=math.inf)


def _pass(s: Situation) -> dict[str, float]:
    """Return the cost of a server iteration with a pass over all rows and its certificate.

    Every quasi-Newton round needs a certificate. If all terminals have the same price, the totals of their sizes
    suffice, which is faster.
    """
    cloud, types = s.cloud_event(), s.prices.types
    certificate = (s.certificate_event(),) if s.certificates_cost else ()
    of_terminals = [(p.terminal_step, p.terminal_byte_up, p.terminal_byte_down) for p in types.values()]
    if any(isinstance(price, np.ndarray) for prices in of_terminals for price in prices):
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


def newton_start(s: Situation) -> int:
    """Return the number of first rounds in which a quasi-Newton search gains nothing."""
    return max(LEAST_START, round(math.sqrt(s.bytes.order / 8.0) / 4.0))


def newton_forecast(s: Situation) -> float:
    """Return the fall of the logarithm of the gap that the remaining budget buys with quasi-Newton."""
    under_way = len(_last(s.observed, NEWTON)) if s.observed and s.observed[-1].solver == NEWTON else 0
    return newton_pace(s) * max(newton_rounds(s) - max(newton_start(s) - under_way, 0), 0)


def newton_pace(s: Situation) -> float:
    """Return the fall of the logarithm of the gap in a quasi-Newton round, after the first rounds."""
    return _blend(NEWTON_RATE if s.gamma > 0.0 else ROUGH_RATE, _last(s.observed, NEWTON)[newton_start(s) :])


def ascent_pace(s: Situation, predicted: float) -> float:
    """Return the fall of the logarithm of the gap in a round of ascent.

    ``predicted`` is the prior value, from the progress model. It is 0 for a run that has diverged.
    """
    measured = _last(s.observed, ASCENT)[-PACE_ROUNDS:]
    return _blend(0.0 if measured and measured[-1].astray else predicted, measured)


def _blend(prior: float, measured: Sequence[Observation]) -> float:
    """Return the fall per round: the mean of prior and measured fall; the prior counts like ``PRIOR_ROUNDS`` rounds."""
    count = max(len(measured) - 1, 0)
    fall = max(0.0, math.log(measured[0].gap / measured[-1].gap)) if count else 0.0
    return (PRIOR_ROUNDS * prior + fall) / (PRIOR_ROUNDS + count)


def _last(observed: Sequence[Observation], solver: Solver) -> list[Observation]:
    """Return the certified rounds of the most recent stretch of rounds with this solver."""
    stretch: list[Observation] = []
    for observation in reversed(observed):
        if stretch and observation.solver != solver:
            break
        if observation.solver == solver and observation.gap > 0.0:
            stretch.append(observation)
    return stretch[::-1]
