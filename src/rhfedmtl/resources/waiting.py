"""Compute how long stations wait for their terminals, for resource types that add up as ``elapsed``."""

from __future__ import annotations

import numpy as np

from rhfedmtl.resources.billing import station_time, terminal_link
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.events import Placement, RoundEvent, pick
from rhfedmtl.resources.prices import FloatArray, Prices


def longest_wait(prices: Prices, event: RoundEvent) -> FloatArray:
    """Return the time that its station waits for each terminal: work and link, 0 if the terminal takes no part."""
    ids = event.terminal_ids
    work = pick(event.local_steps, ids) * pick(prices.terminal_step, ids) * pick(event.slowdown, ids)
    full = np.zeros(event.layout.n_terminals)
    full[slice(None) if ids is None else ids] = work + terminal_link(prices, event)
    return full


def deadlines(cost: Cost, event: RoundEvent, patience: float) -> dict[str, FloatArray]:
    """Return the deadline per ``elapsed`` type and terminal.

    It is ``patience`` times as long as the terminal's station would wait for its slowest terminal.
    """
    result = {}
    for name, prices in cost.types.items():
        if prices.adds == "elapsed":
            result[name] = patience * _slowest(longest_wait(prices, event), event.layout)[event.layout.terminal_task]
    return result


def waiting_times(cost: Cost, event: RoundEvent) -> dict[str, FloatArray] | None:
    """Return the ``ahead`` of the next round: the time that each station has waited in this server iteration.

    Stations do not wait for each other between two server iterations. So the K_b rounds of all stations together take
    max_b of the time that the rounds of station b take, not the sum of the slowest of each round.
    """
    result = {}
    for name, prices in cost.types.items():
        if prices.adds == "elapsed":
            before = event.ahead[name] if event.ahead else np.zeros(event.layout.n_tasks)
            waits = longest_wait(prices, event)
            if event.deadline and name in event.deadline:
                waits = np.minimum(waits, event.deadline[name])
            times = _slowest(waits, event.layout)  # 0 for a station that takes no part
            active = slice(None) if event.station_ids is None else event.station_ids
            times[active] += pick(station_time(prices, event), event.station_ids)
            latest = max(0.0, float(np.max((times - before)[active], initial=0.0)))
            result[name] = np.maximum(0.0, before - times + latest)
    return result or None


def _slowest(waits: FloatArray, layout: Placement) -> FloatArray:
    """Return the longest wait of each station; 0 if it has no terminal."""
    slowest = np.zeros(layout.n_tasks)
    members = slice(None) if layout.complete else layout.terminal_task >= 0
    np.maximum.at(slowest, layout.terminal_task[members], waits[members])
    return slowest
