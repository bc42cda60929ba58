"""Turn events into charges and totals, and compute the work that a budget still affords.

Policies price planned events here, and the ledger charges events that took place. This module records nothing.

An event (`RoundEvent`, `CloudEvent`) fully determines its charges. Charges are columnar: the terminals of a round
share an array, or a single number if all pay the same. For an ``elapsed`` type only the critical path is charged. So
the charges of a round add up to its elapsed time and name the nodes that determined it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.runs import Runs, bincount
from rhfedmtl.resources.costs import SLACK, Cost, FloatArray, Prices, fits

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Amount = float | FloatArray

TERMINAL, TERMINAL_LINK, STATION, STATION_LINK, CLOUD = TIERS = (
    "terminal",
    "terminal-link",
    "station",
    "station-link",
    "cloud",
)
_BY_STATION = ("request_bytes", "result_bytes")
MOST_STEPS = 2**31 - 1
"""Cap on affordable steps if steps are free."""


@dataclass(frozen=True, eq=False)
class Placement:
    """The station of every terminal; -1 for a terminal id that is not (or no longer) a member.

    Terminal ids are global and survive a move: a move makes a new layout with the same ids.
    """

    terminal_task: IntArray
    n_tasks: int
    n_terminals: int = field(init=False)
    _priced_by: list[Cost] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the stations and freeze the array."""
        stations: Any = self.terminal_task
        task = stations if isinstance(stations, Runs) else np.array(stations, dtype=np.int64)
        if len(task.shape) != 1 or (len(task) and not (task.min() >= -1 and task.max() < self.n_tasks)):
            raise ConfigError(f"terminal_task must hold stations 0 to {self.n_tasks - 1} or -1, got {task[:8]}")
        if isinstance(task, np.ndarray):
            task.flags.writeable = False
        object.__setattr__(self, "terminal_task", task)
        object.__setattr__(self, "n_terminals", len(task))

    @cached_property
    def complete(self) -> bool:
        """True if every terminal id is a member."""
        return bool(self.terminal_task.min(initial=0) >= 0)

    @cached_property
    def members(self) -> IntArray:
        """Number of terminals of each station."""
        task = self.terminal_task if self.complete else self.terminal_task[self.terminal_task >= 0]
        return bincount(task, self.n_tasks)

    def check(self, cost: Cost) -> None:
        """Check the sizes of price arrays, once per cost."""
        for checked in self._priced_by:
            if cost is checked:
                return
        cost.check(self.n_terminals, self.n_tasks)
        self._priced_by[:] = [*self._priced_by[-3:], cost]

    def equals(self, layout: Placement) -> bool:
        """Return True if both place the same terminals under the same stations."""
        return self is layout or (self.n_tasks == layout.n_tasks and self.matches(layout.terminal_task))

    def matches(self, terminal_task: IntArray) -> bool:
        """Return True if the terminals belong to these stations."""
        return self.terminal_task is terminal_task or np.array_equal(self.terminal_task, terminal_task)


@dataclass(frozen=True, eq=False)
class RoundEvent:
    """A BS iteration that took place or is planned.

    Parameters
    ----------
    round
        Number of the BS iteration, counted through the run.
    layout
        Stations of the terminals.
    local_steps
        Rows visited, for all or per terminal. Work counts even if its update was lost.
    stations, terminals
        Masks of the stations and terminals that take part (None: all). Terminals of an absent station do not take part.
    bytes_down, bytes_up
        Bytes from station to terminal and back, for all or per terminal.
    request_bytes, result_bytes
        Bytes of the request from cloud to station and of the result back, for all or per station.
    merges
        True if the station's iteration is charged; False for an event that only sends messages, as in round zero.
    deadline
        Per ``elapsed`` type: the longest time that stations wait for a terminal, for all or per terminal.
    slowdown
        Factor by which a terminal's work took longer than its price says (``elapsed`` types), for all or per terminal.
    ahead
        Per ``elapsed`` type: the time that each station has waited for the slowest since the server iteration started.
        Only time beyond this is charged.
    """

    round: int
    layout: Placement
    local_steps: int | IntArray
    stations: BoolArray | None = None
    terminals: BoolArray | None = None
    bytes_down: Amount = 0.0
    bytes_up: Amount = 0.0
    request_bytes: Amount = 0.0
    result_bytes: Amount = 0.0
    merges: bool = True
    deadline: Mapping[str, Amount] | None = None
    slowdown: Amount = 1.0
    ahead: Mapping[str, FloatArray] | None = None

    def __post_init__(self) -> None:
        """Check sizes and signs."""
        layout = self.layout
        for name, waiting_time in (self.ahead or {}).items():
            _check_amount(f"ahead of {name}", waiting_time, layout.n_tasks)
        for name, deadline in (self.deadline or {}).items():
            _check_amount(f"deadline of {name}", deadline, layout.n_terminals)
        for name in ("local_steps", "bytes_down", "bytes_up", "slowdown", "request_bytes", "result_bytes"):
            value: Any = getattr(self, name)
            if isinstance(value, np.ndarray) or not 0 <= value < math.inf:
                _check_amount(name, value, layout.n_tasks if name in _BY_STATION else layout.n_terminals)
        if self.stations is not None:
            _check_mask("stations", self.stations, layout.n_tasks)
        if self.terminals is not None:
            _check_mask("terminals", self.terminals, layout.n_terminals)

    @cached_property
    def terminal_ids(self) -> IntArray | None:
        """Terminals that take part, or None for all."""
        masks = [] if self.layout.complete else [self.layout.terminal_task >= 0]
        if self.terminals is not None:
            masks.append(self.terminals)
        if self.stations is not None:
            masks.append(self.stations[self.layout.terminal_task])
        return _ids(masks)

    @cached_property
    def station_ids(self) -> IntArray | None:
        """Stations that take part, or None for all."""
        return _ids([] if self.stations is None else [self.stations])

    @property
    def steps(self) -> IntArray:
        """H of every terminal, 0 if it takes no part; a view that takes no memory if all are equal."""
        steps = np.asarray(np.broadcast_to(self.local_steps, self.layout.n_terminals))
        if self.terminal_ids is None:
            return steps
        active = np.zeros_like(steps)
        active[self.terminal_ids] = steps[self.terminal_ids]
        return active


@dataclass(frozen=True, eq=False)
class CloudEvent:
    """A server iteration after BS iteration ``round``: the stations that take part, and bytes per station."""

    round: int
    layout: Placement
    stations: BoolArray | None = None
    bytes_down: Amount = 0.0
    bytes_up: Amount = 0.0
    merges: bool = True

    def __post_init__(self) -> None:
        """Check sizes and signs."""
        for name in ("bytes_down", "bytes_up"):
            value: Any = getattr(self, name)
            if isinstance(value, np.ndarray) or not 0 <= value < math.inf:
                _check_amount(name, value, self.layout.n_tasks)
        if self.stations is not None:
            _check_mask("stations", self.stations, self.layout.n_tasks)

    @cached_property
    def station_ids(self) -> IntArray | None:
        """Stations that take part, or None for all."""
        return _ids([] if self.stations is None else [self.stations])


@dataclass(frozen=True, eq=False)
class ReleaseEvent:
    """A release outside of the rounds, after BS iteration ``round``, and the amount of each type that it used."""

    round: int
    layout: Placement
    amounts: Mapping[str, float]


Event = RoundEvent | CloudEvent | ReleaseEvent


def round_zero_events(layout: Placement, terminal: tuple[int, int], station: tuple[int, int]) -> list[Event]:
    """Return the events of round zero from the bytes (up, down) of a terminal and a station.

    The list is empty if terminals send nothing.
    """
    (up, down), (station_up, station_down) = ((float(a), float(b)) for a, b in (terminal, station))
    if not up:
        return []
    return [
        RoundEvent(0, layout, 0, bytes_up=up, bytes_down=down, merges=False),
        CloudEvent(0, layout, bytes_up=station_up, bytes_down=station_down, merges=False),
    ]


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
    return dict.fromkeys(cost, 0.0) | totals(charge for event in events for charge in charges(cost, event))


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
    steps = np.broadcast_to(np.asarray(_pick(max_steps, ids), dtype=np.float64), _count(ids, event.layout.n_terminals))
    for name, limit in deadline.items():
        if cost[name].adds != "elapsed":
            raise ConfigError(f"deadline {name}={limit:g}: '{name}' adds up as 'sum', a deadline needs 'elapsed'")
        steps = np.minimum(steps, _steps_in_time(cost[name], event, limit))
    full = np.zeros(event.layout.n_terminals, dtype=np.int64)
    full[slice(None) if ids is None else ids] = steps
    return full


def longest_wait(prices: Prices, event: RoundEvent) -> FloatArray:
    """Return the time that its station waits for each terminal: work and link, 0 if the terminal takes no part."""
    ids = event.terminal_ids
    work = _pick(event.local_steps, ids) * _pick(prices.terminal_step, ids) * _pick(event.slowdown, ids)
    full = np.zeros(event.layout.n_terminals)
    full[slice(None) if ids is None else ids] = work + _terminal_link(prices, event)
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
            times = _station_times(name, prices, event)
            active = slice(None) if event.station_ids is None else event.station_ids
            latest = max(0.0, float(np.max((times - before)[active], initial=0.0)))
            result[name] = np.maximum(0.0, before - times + latest)
    return result or None


def _station_times(name: str, prices: Prices, event: RoundEvent) -> FloatArray:
    """Return the time that a round takes each station: 0 if the station takes no part."""
    waits = longest_wait(prices, event)
    if event.deadline and name in event.deadline:
        waits = np.minimum(waits, event.deadline[name])
    times = _slowest(waits, event.layout)
    active = slice(None) if event.station_ids is None else event.station_ids
    times[active] += _pick(_station_time(prices, event), event.station_ids)
    return times


def _slowest(waits: FloatArray, layout: Placement) -> FloatArray:
    """Return the longest wait of each station; 0 if it has no terminal."""
    slowest = np.zeros(layout.n_tasks)
    members = slice(None) if layout.complete else layout.terminal_task >= 0
    np.maximum.at(slowest, layout.terminal_task[members], waits[members])
    return slowest


def exact_sum(values: FloatArray) -> float:
    """Return the sum, rounded only at the end: the errors of vectorised additions are collected and added."""
    errors = [0.0]
    while len(values) > 512:
        half = len(values) // 2
        a, b = values[:half], values[half : 2 * half]
        s = a + b
        t = s - a
        errors.append(float(np.sum((a - (s - t)) + (b - t))))
        errors.extend(values[2 * half :].tolist())
        values = s
    return math.fsum(values.tolist() + errors)


def _round_charges(event: RoundEvent, name: str, prices: Prices, measured: Parts | None) -> list[Charge]:
    ids, layout = event.terminal_ids, event.layout
    if measured is None:
        work = _pick(event.local_steps, ids) * _pick(prices.terminal_step, ids)
        if prices.adds == "elapsed":
            work = work * _pick(event.slowdown, ids)
        link = _terminal_link(prices, event)
        station, station_link = prices.station_round if event.merges else 0.0, _station_link(prices, event)
    else:
        work, link = (_measured(part, layout.n_terminals, ids) for part in measured[:2])
        station, station_link = _measured(measured.station, layout.n_tasks, None), 0.0
    if prices.adds == "elapsed":
        return _critical_path(event, name, work, link, station + station_link)
    entries = (
        (TERMINAL, ids, work),
        (TERMINAL_LINK, ids, link),
        (STATION, event.station_ids, _pick(station, event.station_ids)),
        (STATION_LINK, event.station_ids, _pick(station_link, event.station_ids)),
    )
    return _nonzero(event.round, name, layout, entries)


def _critical_path(event: RoundEvent, name: str, work: Amount, link: Amount, station: Amount) -> list[Charge]:
    """Charge only the slowest station and its slowest terminal; of equally slow nodes, charge the first."""
    ids, layout = event.terminal_ids, event.layout
    if event.deadline and name in event.deadline:
        deadline = _pick(event.deadline[name], ids)
        work = np.minimum(work, deadline)
        link = np.minimum(link, deadline - work)
    n_terminals = _count(ids, layout.n_terminals)
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
    link = _pick(event.bytes_down, ids) * _pick(prices.station_byte_down, ids)
    link = link + _pick(event.bytes_up, ids) * _pick(prices.station_byte_up, ids)
    cloud = prices.cloud_round if event.merges else 0.0
    nodes: IntArray | None = ids
    if prices.adds == "elapsed" and _count(ids, event.layout.n_tasks):
        i = int(np.argmax(np.broadcast_to(link, _count(ids, event.layout.n_tasks))))
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


def _terminal_link(prices: Prices, event: RoundEvent) -> Amount:
    """Return the cost of the bytes of each terminal that takes part."""
    ids = event.terminal_ids
    down: Amount = _pick(event.bytes_down, ids) * _pick(prices.terminal_byte_down, ids)
    up: Amount = _pick(event.bytes_up, ids) * _pick(prices.terminal_byte_up, ids)
    return down + up


def _station_link(prices: Prices, event: RoundEvent) -> Amount:
    """Return the cost of the bytes between each station and the cloud."""
    return event.request_bytes * prices.station_byte_down + event.result_bytes * prices.station_byte_up


def _station_time(prices: Prices, event: RoundEvent) -> Amount:
    """Return the time, or cost, that a station adds to its terminals: its iteration and its link."""
    return (prices.station_round if event.merges else 0.0) + _station_link(prices, event)


def _type_lines(prices: Prices, event: RoundEvent) -> CostLines:
    """Return a single line for a ``sum``, and for ``elapsed`` the lines that no other line exceeds at every H."""
    ids, layout, stations = event.terminal_ids, event.layout, event.station_ids
    n = _count(ids, layout.n_terminals)
    station = _station_time(prices, event)
    step, link, active = _pick(prices.terminal_step, ids), _terminal_link(prices, event), _pick(station, stations)
    if prices.adds == "sum":
        fixed_cost = _total(active, _count(stations, layout.n_tasks)) + _total(link, n)
        return CostLines(np.array([fixed_cost]), np.array([_total(step, n)]))
    tasks = layout.terminal_task if ids is None else layout.terminal_task[ids]
    # A single line if all terminals pay the same prices.
    fixed, slope = np.broadcast_arrays(*map(np.atleast_1d, (link + _pick(station, tasks), step)))
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
    n = _count(ids, layout.n_terminals)
    tasks = layout.terminal_task if ids is None else layout.terminal_task[ids]
    station = _station_time(prices, event)
    spare = limit * (1 + SLACK) - _terminal_link(prices, event) - _pick(station, tasks)
    step = np.broadcast_to(np.float64(_pick(prices.terminal_step, ids)), n)
    free = np.where(np.broadcast_to(spare, n) >= 0, np.inf, 0.0)
    with np.errstate(over="ignore"):
        steps: FloatArray = np.floor(np.divide(spare, step, out=free, where=step > 0))
    return np.maximum(0.0, steps)


def _measured(amount: Amount, count: int, ids: IntArray | None) -> Amount:
    """Check a measured amount and copy it, because the caller may reuse its arrays."""
    _check_amount("a measured amount", amount, count)
    copy: Amount = _pick(np.array(amount, dtype=np.float64), ids) if isinstance(amount, np.ndarray) else amount
    return copy


def _pick(values: Any, ids: IntArray | None) -> Any:
    """Return the values of these nodes; a number stands for all nodes."""
    return values[ids] if ids is not None and isinstance(values, np.ndarray) else values


def _total(amount: Amount, count: int) -> float:
    return exact_sum(amount) if isinstance(amount, np.ndarray) else amount * count


def _at(values: Amount, i: int) -> float:
    return float(values[i]) if isinstance(values, np.ndarray) and values.ndim else float(values)


def _count(ids: IntArray | None, n_nodes: int) -> int:
    return n_nodes if ids is None else len(ids)


def _ids(masks: list[BoolArray]) -> IntArray | None:
    """Return the nodes inside all masks, or None for all nodes."""
    if not masks:
        return None
    mask = masks[0] if len(masks) == 1 else np.logical_and.reduce(masks)
    return None if mask.all() else np.flatnonzero(mask)


def _check_amount(name: str, value: Any, count: int) -> None:
    if isinstance(value, np.ndarray):
        if value.shape != (count,):
            raise ConfigError(f"{name} has shape {value.shape}, expected a value for each of {count} nodes")
        if value.size and not (value.min() >= 0 and value.max() < math.inf):
            raise ConfigError(f"{name} holds {value.min():g} to {value.max():g}: it must be finite and >= 0")
    elif not 0 <= value < math.inf:
        raise ConfigError(f"{name}={value}: it must be finite and >= 0")


def _check_mask(name: str, mask: BoolArray, count: int) -> None:
    if mask.dtype != np.bool_ or mask.shape != (count,):
        raise ConfigError(f"{name} must be a mask of {count} booleans, got {mask.dtype} of shape {mask.shape}")
