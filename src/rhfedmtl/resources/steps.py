"""Compute the number of local steps that a budget or a deadline still allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError
from rhfedmtl.resources.billing import event_totals, station_time, terminal_link
from rhfedmtl.resources.costs import SLACK, Cost, fits
from rhfedmtl.resources.events import Amount, IntArray, RoundEvent, count_nodes, pick
from rhfedmtl.resources.exact import exact_sum
from rhfedmtl.resources.prices import FloatArray, Prices

MOST_STEPS = 2**31 - 1
"""Cap on affordable steps if steps are free."""


class CostLines(NamedTuple):
    """Cost of a BS iteration as a function of a uniform H: max_i (fixed_i + slope_i H)."""

    fixed: FloatArray
    slope: FloatArray

    def at(self, local_steps: npt.ArrayLike) -> FloatArray:
        """Cost at each H."""
        h = np.asarray(local_steps, dtype=np.float64)
        result: FloatArray = (self.fixed[:, None] + self.slope[:, None] * h.ravel()).max(axis=0).reshape(h.shape)
        return result

    def largest(self, limit: float, max_steps: int) -> int:
        """Return the largest H <= max_steps within ``limit`` (0 if H = 1 costs more), up to rounding."""
        rising = self.slope > 0
        if np.any(self.fixed > limit):
            return 0
        h = np.min((limit - self.fixed[rising]) / self.slope[rising], initial=max_steps)
        return min(max_steps, math.floor(h))


def lines(cost: Cost, event: RoundEvent) -> dict[str, CostLines]:
    """Return the cost of ``event`` as a function of a uniform H, per type; ignore ``local_steps`` and ``deadline``."""
    event.layout.check(cost)
    return {name: _type_lines(prices, event) for name, prices in cost.types.items()}


def cost_curve(cost: Cost, event: RoundEvent, local_steps: npt.ArrayLike) -> dict[str, FloatArray]:
    """Return the cost of ``event``, per type, at each uniform H of ``local_steps``."""
    return {name: line.at(local_steps) for name, line in lines(cost, event).items()}


def steps_affordable(cost: Cost, event: RoundEvent, limits: Mapping[str, float], max_steps: int = MOST_STEPS) -> int:
    """Return the largest uniform H <= max_steps with which ``event`` stays within ``limits``; 0 if H = 1 does not."""

    def affordable(h: int) -> bool:
        return fits(event_totals(cost, replace(event, local_steps=h)), limits)

    cost_lines = lines(cost, event).items()
    guess = min((line.largest(limits.get(name, math.inf), max_steps) for name, line in cost_lines), default=max_steps)
    low, high = (guess, max_steps + 1) if affordable(guess) else (0, guess)
    if high > low + 1 and not affordable(low + 1):
        return low
    while high > low + 1:  # the guess is wrong only through rounding or a deadline in the event
        middle = (low + high) // 2
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return low


def steps_by_deadline(
    cost: Cost, event: RoundEvent, deadline: Mapping[str, float], max_steps: int | IntArray = MOST_STEPS
) -> IntArray:
    """Return the largest H_{b,t} <= max_steps that each terminal finishes before the deadline.

    The condition is station_round_b + H_{b,t} terminal_step_t + link_t <= deadline. The result is 0 for a terminal that
    takes no part or cannot finish a step in time.
    """
    event.layout.check(cost)
    ids = event.terminal_ids
    steps = np.broadcast_to(
        np.asarray(pick(max_steps, ids), dtype=np.float64), count_nodes(ids, event.layout.n_terminals)
    )
    for name, limit in deadline.items():
        if cost[name].adds != "elapsed":
            raise ConfigError(f"deadline {name}={limit:g}: '{name}' adds up as 'sum', a deadline needs 'elapsed'")
        steps = np.minimum(steps, _steps_in_time(cost[name], event, limit))
    full = np.zeros(event.layout.n_terminals, dtype=np.int64)
    full[slice(None) if ids is None else ids] = steps
    return full


def _type_lines(prices: Prices, event: RoundEvent) -> CostLines:
    """Return a single line for a ``sum``, and for ``elapsed`` the lines that no other line exceeds at every H."""
    ids, layout, stations = event.terminal_ids, event.layout, event.station_ids
    n = count_nodes(ids, layout.n_terminals)
    station = station_time(prices, event)
    step, link, active = pick(prices.terminal_step, ids), terminal_link(prices, event), pick(station, stations)
    if prices.adds == "sum":
        fixed_cost = _total(active, count_nodes(stations, layout.n_tasks)) + _total(link, n)
        return CostLines(np.array([fixed_cost]), np.array([_total(step, n)]))
    tasks = layout.terminal_task if ids is None else layout.terminal_task[ids]
    # A single line if all terminals pay the same prices.
    fixed, slope = np.broadcast_arrays(*map(np.atleast_1d, (link + pick(station, tasks), step)))
    return _upper_lines(np.append(fixed[:n], np.max(active, initial=0.0)), np.append(slope[:n], 0.0))


def _upper_lines(fixed: FloatArray, slope: FloatArray) -> CostLines:
    """Drop every line that never exceeds some other line for H >= 0."""
    star = int(np.argmax(fixed * slope.max() + slope * fixed.max()))  # is above most lines
    keep = (fixed > fixed[star]) | (slope > slope[star])
    keep[star] = True
    fixed, slope = fixed[keep], slope[keep]
    order = np.lexsort((-fixed, -slope))
    fixed, slope = fixed[order], slope[order]
    front = np.append(True, fixed[1:] > np.maximum.accumulate(fixed)[:-1])
    return CostLines(fixed[front], slope[front])


def _steps_in_time(prices: Prices, event: RoundEvent, limit: float) -> FloatArray:
    """Return the steps that each active terminal completes before ``limit``, after its station and its link."""
    ids, layout = event.terminal_ids, event.layout
    n = count_nodes(ids, layout.n_terminals)
    tasks = layout.terminal_task if ids is None else layout.terminal_task[ids]
    station = station_time(prices, event)
    spare = limit * (1 + SLACK) - terminal_link(prices, event) - pick(station, tasks)
    step = np.broadcast_to(np.float64(pick(prices.terminal_step, ids)), n)
    free = np.where(np.broadcast_to(spare, n) >= 0, np.inf, 0.0)
    with np.errstate(over="ignore"):
        steps: FloatArray = np.floor(np.divide(spare, step, out=free, where=step > 0))
    return np.maximum(0.0, steps)


def _total(amount: Amount, count: int) -> float:
    return exact_sum(amount) if isinstance(amount, np.ndarray) else amount * count
