"""Turn events into charges and totals.

Policies price planned events here, and the ledger charges events that took place. This module records nothing.

An event (`events`) fully determines its charges. Charges are columnar: the terminals of a round share an array, or a
single number if all pay the same. For an ``elapsed`` type only the critical path is charged. So the charges of a round
add up to its elapsed time and name the nodes that determined it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.events import (
    Amount,
    CloudEvent,
    Event,
    IntArray,
    Placement,
    ReleaseEvent,
    RoundEvent,
    check_amount,
    count_nodes,
    pick,
)
from rhfedmtl.resources.exact import exact_sum
from rhfedmtl.resources.prices import FloatArray, Prices

TERMINAL, TERMINAL_LINK, STATION, STATION_LINK, CLOUD = TIERS = (
    "terminal",
    "terminal-link",
    "station",
    "station-link",
    "cloud",
)


class Parts(NamedTuple):
    """Measured use of a type in a round: each part is a number for all, or a value per terminal or station."""

    terminal: Amount = 0.0
    terminal_link: Amount = 0.0
    station: Amount = 0.0


class Charge(NamedTuple):
    """The amounts of a type that the nodes of a tier pay in a round.

    ``nodes`` are terminal ids (terminal tiers) or stations (station tiers), None for all of the layout. ``amount``
    is a single number if all nodes pay the same. ``total`` is the sum over the nodes.
    """

    round: int
    tier: str
    type: str
    layout: Placement
    nodes: IntArray | None
    amount: Amount
    total: float

    @classmethod
    def make(
        cls, round_: int, tier: str, type_: str, layout: Placement, nodes: IntArray | None, amount: Amount
    ) -> Charge:
        """Return the charge in its unique compact form: equal charges have equal fields."""
        n_nodes = {CLOUD: 1, STATION: layout.n_tasks, STATION_LINK: layout.n_tasks}.get(tier, layout.n_terminals)
        if nodes is not None and len(nodes) == n_nodes:
            nodes = None
        if isinstance(amount, np.ndarray):
            if amount.size and not (amount == amount[0]).all():
                return cls(round_, tier, type_, layout, nodes, amount, exact_sum(amount))
            amount = float(amount[0]) if amount.size else 0.0
        return cls(round_, tier, type_, layout, nodes, amount, amount * (n_nodes if nodes is None else len(nodes)))

    def columns(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Return task, terminal and amount of every single charge; -1 if it has no task or terminal."""
        if self.tier == CLOUD:
            return np.array([-1]), np.array([-1]), np.array([self.amount])
        if self.tier in (STATION, STATION_LINK):
            task = np.arange(self.layout.n_tasks) if self.nodes is None else self.nodes
            terminal = np.full(len(task), -1)
        else:
            terminal = np.arange(self.layout.n_terminals) if self.nodes is None else self.nodes
            task = self.layout.terminal_task[terminal]
        return task, terminal, np.broadcast_to(np.float64(self.amount), len(task))

    def equals(self, charge: Charge) -> bool:
        """Return True if both charge the same amounts to the same nodes."""
        return (
            self[:3] == charge[:3]
            and self.layout.equals(charge.layout)
            and np.array_equal(self.nodes, charge.nodes)  # type: ignore[arg-type]
            and np.array_equal(self.amount, charge.amount)
        )


def charges(cost: Cost, event: Event, measured: Mapping[str, Parts] | None = None) -> tuple[Charge, ...]:
    """Return the charges of an event.

    Types in ``measured`` are charged by the measurement instead of the prices. A server iteration is not measured
    separately, so these types charge nothing for it.
    """
    if event.layout.priced_by is not cost:
        event.layout.check(cost)
    if isinstance(event, ReleaseEvent):
        entries = event.amounts.items()
        return tuple(Charge.make(event.round, CLOUD, name, event.layout, None, amount) for name, amount in entries)
    result: list[Charge] = []
    for name, prices in cost.types.items():
        parts = measured.get(name) if measured else None
        if isinstance(event, RoundEvent):
            result += _round_charges(event, name, prices, parts)
        elif parts is None:
            result += _cloud_charges(event, name, prices)
    return tuple(result)


def totals(entries: Iterable[Charge]) -> dict[str, float]:
    """Sum the charges per type."""
    sums: dict[str, float] = {}
    for charge in entries:
        sums[charge.type] = sums.get(charge.type, 0.0) + charge.total
    return sums


def event_totals(cost: Cost, *events: Event) -> dict[str, float]:
    """Return the total cost of the events per type; 0 for a type that they do not use."""
    sums = dict.fromkeys(cost.types, 0.0)
    for event in events:
        for charge in charges(cost, event):
            sums[charge.type] = sums.get(charge.type, 0.0) + charge.total
    return sums


def _round_charges(event: RoundEvent, name: str, prices: Prices, measured: Parts | None) -> list[Charge]:
    ids, layout = event.terminal_ids, event.layout
    if measured is None:
        work = pick(event.local_steps, ids) * pick(prices.terminal_step, ids)
        if prices.adds == "elapsed":
            work = work * pick(event.slowdown, ids)
        link = terminal_link(prices, event)
        station, messages = prices.station_round if event.merges else 0.0, station_link(prices, event)
    else:
        work, link = (_measured(part, layout.n_terminals, ids) for part in measured[:2])
        station, messages = _measured(measured.station, layout.n_tasks, None), 0.0
    if prices.adds == "elapsed":
        return _critical_path(event, name, work, link, station + messages)
    entries = (
        (TERMINAL, ids, work),
        (TERMINAL_LINK, ids, link),
        (STATION, event.station_ids, pick(station, event.station_ids)),
        (STATION_LINK, event.station_ids, pick(messages, event.station_ids)),
    )
    return _nonzero(event.round, name, layout, entries)


def _critical_path(event: RoundEvent, name: str, work: Amount, link: Amount, station: Amount) -> list[Charge]:
    """Charge only the slowest station and its slowest terminal; of equally slow nodes, charge the first."""
    ids, layout = event.terminal_ids, event.layout
    if event.deadline and name in event.deadline:
        deadline = pick(event.deadline[name], ids)
        work = np.minimum(work, deadline)
        link = np.minimum(link, deadline - work)
    n_terminals = count_nodes(ids, layout.n_terminals)
    stations = np.arange(layout.n_tasks) if event.station_ids is None else event.station_ids
    entries: list[tuple[str, IntArray | None, Amount]] = []
    base = np.broadcast_to(np.float64(station), layout.n_tasks)
    waited = event.ahead.get(name) if event.ahead else None
    late = base if waited is None else base - waited
    slowest = int(stations[np.argmax(late[stations])]) if len(stations) else -1
    if n_terminals:
        tasks = layout.terminal_task if ids is None else layout.terminal_task[ids]
        path = np.broadcast_to(np.asarray(work + link), n_terminals)
        arrival = path if late is base and not isinstance(station, np.ndarray) else path + late[tasks]
        i = int(np.argmax(arrival))
        if path[i] + late[tasks[i]] >= late[slowest]:
            slowest = int(tasks[i])
            node = np.array([i if ids is None else ids[i]])
            entries += [(TERMINAL, node, _at(work, i)), (TERMINAL_LINK, node, _at(link, i))]
    if slowest >= 0:
        entries.append((STATION, np.array([slowest]), float(base[slowest])))
        if waited is not None:
            entries = list(_beyond(entries, float(waited[slowest])))
    return _nonzero(event.round, name, layout, entries)


def _beyond(
    entries: Iterable[tuple[str, IntArray | None, Amount]], waited: float
) -> Iterator[tuple[str, IntArray | None, Amount]]:
    """Yield the entries of a path of single nodes without the time that the station has already waited."""
    for tier, node, amount in entries:
        yield tier, node, max(0.0, _at(amount, 0) - waited)
        waited = max(0.0, waited - _at(amount, 0))


def _cloud_charges(event: CloudEvent, name: str, prices: Prices) -> list[Charge]:
    ids = event.station_ids
    link = pick(event.bytes_down, ids) * pick(prices.station_byte_down, ids)
    link = link + pick(event.bytes_up, ids) * pick(prices.station_byte_up, ids)
    cloud = prices.cloud_round if event.merges else 0.0
    nodes: IntArray | None = ids
    if prices.adds == "elapsed" and count_nodes(ids, event.layout.n_tasks):
        i = int(np.argmax(np.broadcast_to(link, count_nodes(ids, event.layout.n_tasks))))
        nodes, link = np.array([i if ids is None else ids[i]]), _at(link, i)
    return _nonzero(event.round, name, event.layout, ((STATION_LINK, nodes, link), (CLOUD, None, cloud)))


def _nonzero(
    round_: int, name: str, layout: Placement, entries: Iterable[tuple[str, IntArray | None, Amount]]
) -> list[Charge]:
    """Return the charges of the entries that are not zero."""
    result = []
    for tier, nodes, amount in entries:
        if isinstance(amount, np.ndarray) or amount:
            charge = Charge.make(round_, tier, name, layout, nodes, amount)
            if charge.total:
                result.append(charge)
    return result


def terminal_link(prices: Prices, event: RoundEvent) -> Amount:
    """Return the cost of the bytes of each terminal that takes part."""
    ids = event.terminal_ids
    down: Amount = pick(event.bytes_down, ids) * pick(prices.terminal_byte_down, ids)
    up: Amount = pick(event.bytes_up, ids) * pick(prices.terminal_byte_up, ids)
    return down + up


def station_link(prices: Prices, event: RoundEvent) -> Amount:
    """Return the cost of the bytes between each station and the cloud."""
    return event.request_bytes * prices.station_byte_down + event.result_bytes * prices.station_byte_up


def station_time(prices: Prices, event: RoundEvent) -> Amount:
    """Return the time, or cost, that a station adds to its terminals: its iteration and its link."""
    return (prices.station_round if event.merges else 0.0) + station_link(prices, event)


def _measured(amount: Amount, count: int, ids: IntArray | None) -> Amount:
    """Check a measured amount and copy it, because the caller may reuse its arrays."""
    check_amount("a measured amount", amount, count)
    copy: Amount = pick(np.array(amount, dtype=np.float64), ids) if isinstance(amount, np.ndarray) else amount
    return copy


def _at(values: Amount, i: int) -> float:
    return float(values[i]) if isinstance(values, np.ndarray) and values.ndim else float(values)
