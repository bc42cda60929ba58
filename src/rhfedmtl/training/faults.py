"""Simulate faults of a run: lost updates, slow terminals, absent stations, and terminals that move, leave and return.

A run calls `FaultSchedule` before every round. The faults of a round depend only on the seed, the round and the faults
before it, so a run with faults is reproducible to the bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.network import BoolArray, Float64Array, IntArray, Network
from rhfedmtl.errors import ConfigError, nearest
from rhfedmtl.maths.coupling import check_weight
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.events import RoundEvent
from rhfedmtl.resources.waiting import deadlines, longest_wait
from rhfedmtl.roles.channel import group_starts

_DROPOUT, _STATION, _SLOW, _MOVE, _CHURN, _LATE = range(6)


@dataclass(frozen=True)
class Faults:
    """Rates of the faults; the default is a run without faults.

    Parameters
    ----------
    dropout, dropout_length
        Share of updates that are lost although the terminal did its work, and the mean length of a loss in rounds.
    slowdown, patience
        Spread of the time that work takes (standard deviation of its logarithm, never faster than priced). Stations
        wait ``patience`` times as long as planned and drop later updates. Needs a type that adds up as elapsed.
    station_away, station_away_length
        Share of rounds that a station misses, and the mean length of an absence in rounds.
    moves
        Mean number of moves of a terminal to another station per round.
    churn, absence
        Probability per round that a terminal leaves the network, and the mean length of its absence in rounds.
    late_rows, late_until
        Share of a terminal's rows that arrive during the run, and the round by which all rows have arrived.
    seed
        Seed of all faults.
    """

    dropout: float = 0.0
    dropout_length: float = 1.0
    slowdown: float = 0.0
    patience: float = 2.0
    station_away: float = 0.0
    station_away_length: float = 3.0
    moves: float = 0.0
    churn: float = 0.0
    absence: float = 5.0
    late_rows: float = 0.0
    late_until: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse shares, lengths and spreads outside their domain."""
        for name in ("dropout", "station_away", "churn", "late_rows"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{name} is a share and must be in [0, 1), got {getattr(self, name)}")
        for name in ("dropout_length", "station_away_length", "absence", "late_until", "patience"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 1):
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("slowdown", "moves"):
            check_weight(name, getattr(self, name))
        for name in ("dropout", "station_away"):
            share, length = getattr(self, name), getattr(self, f"{name}_length")
            shortest = share / (1.0 - share)
            if 1.0 < length < shortest * (1.0 - 1e-12):
                raise ConfigError(
                    f"{name}={share:g} is impossible in stretches of {length:g} rounds with a round between them: "
                    f"give {name}_length={shortest:.4g} or more, or 1 to draw every round independently"
                )
        if self.seed < 0:
            raise ConfigError(f"seed must be at least 0, got {self.seed}")

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> Faults:
        """Read faults from ``dropout=0.3,moves=0.1``."""
        types = {field.name: field.type for field in fields(cls)}
        values: dict[str, float | int] = {"seed": seed}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, value = part.partition("=")
            if name not in types:
                raise ConfigError(f"unknown fault {name!r}: choose from {', '.join(types)}{nearest(name, types)}")
            try:
                values[name] = int(value) if types[name] == "int" else float(value)
            except ValueError:
                raise ConfigError(f"fault {name} needs a number, got {value!r}") from None
        return cls(**values)  # type: ignore[arg-type]

    @property
    def any(self) -> bool:
        """True if any fault is possible."""
        rates = self.dropout, self.slowdown, self.station_away, self.moves, self.churn, self.late_rows
        return any(rates)

    def planning_prices(self, cost: Cost) -> Cost:
        """Return prices to plan and reserve by: time on terminals costs as much as stations may have to wait."""
        if not self.slowdown:
            return cost
        elapsed = {name: prices for name, prices in cost.types.items() if prices.adds == "elapsed"}
        if not elapsed:
            raise ConfigError("slowdown needs a resource type that adds up as elapsed, such as time=0.001,0.1")
        parts = ("terminal_step", "terminal_byte_up", "terminal_byte_down")
        slow_prices = {
            name: replace(prices, **{part: getattr(prices, part) * self.patience for part in parts})
            for name, prices in elapsed.items()
        }
        return Cost({**cost.types, **slow_prices})


class Conditions(NamedTuple):
    """Conditions of a round: mask of present stations, mask of lost updates, and slowdown of each terminal."""

    stations: BoolArray
    lost: BoolArray
    slowdown: Float64Array


def complete_groups(arrives: BoolArray, station: IntArray, group_size: int) -> BoolArray:
    """Return the mask of the updates that count in masked sums.

    An update counts if all updates of its group arrive; groups have at least ``group_size`` terminals.
    """
    counts = np.zeros_like(arrives)
    for b in np.unique(station[station >= 0]):
        members = np.flatnonzero(station == b)
        if len(starts := group_starts(len(members), group_size)):
            complete = np.logical_and.reduceat(arrives[members], starts)
            counts[members] = np.repeat(complete, np.diff([*starts, len(members)]))
    return counts


class FaultSchedule:
    """The faults of a run, round by round.

    With masked sums (``summed`` > 0) an update counts only if its complete group of ``summed`` or more arrives.
    """

    def __init__(self, faults: Faults, federation: Federation, summed: int = 0) -> None:
        self.faults, self._summed = faults, summed
        self._home = federation.terminal_task.astype(np.int64)
        self._n_stations = federation.n_tasks
        self.present: IntArray = federation.sizes
        self._arrivals: dict[int, IntArray] = {}
        if faults.late_rows:
            late = np.minimum((self.present * faults.late_rows).astype(np.int64), self.present - 1)
            self.present, self._arrivals = np.asarray(self.present - late), _arrivals(np.asarray(late), faults)
        self._dropped = np.zeros(0 if self.fault_free else len(self._home), dtype=bool)
        self._away = np.zeros(self._n_stations, dtype=bool)
        self._settled = 0

    @property
    def fault_free(self) -> bool:
        """True if no round can have a fault (terminals may still come and go)."""
        return not (self.faults.dropout or self.faults.station_away or self.faults.slowdown)

    def state(self) -> dict[str, Any]:
        """Return the state for the next round: lost updates, absent stations, and the last round with its changes."""
        return {"dropped": self._dropped, "away": self._away, "settled": self._settled}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from a value of `state`."""
        self._dropped, self._away, self._settled = state["dropped"], state["away"], state["settled"]

    def conditions(self, number: int) -> Conditions:
        """Return the faults of round ``number``; call this for all rounds in order."""
        f = self.faults
        self._dropped = self._chain(_DROPOUT, number, self._dropped, f.dropout, f.dropout_length)
        self._away = self._chain(_STATION, number, self._away, f.station_away, f.station_away_length)
        slow: Float64Array = np.broadcast_to(np.float64(1.0), len(self._home))
        if f.slowdown:
            slow = np.exp(np.abs(self._rng(_SLOW, number).normal(0.0, f.slowdown, len(slow))))
        return Conditions(~self._away, self._dropped, slow)

    def start_round(self, planned: RoundEvent, cost: Cost, network: Network) -> tuple[RoundEvent, BoolArray | None]:
        """Return the round with its stations and slowdowns, and the mask of updates that arrive (None: all)."""
        if self.fault_free:
            return planned, None
        conditions = self.conditions(planned.round)
        stations = conditions.stations if planned.stations is None else conditions.stations & planned.stations
        deadline = deadlines(cost, planned, self.faults.patience) if self.faults.slowdown else {}
        event = replace(planned, stations=stations, slowdown=conditions.slowdown, deadline=deadline or None)
        late = np.zeros(len(conditions.lost), dtype=bool)
        for name, limit in deadline.items():
            late |= longest_wait(cost[name], event) > limit * (1.0 + 1e-12)
        arrives = ~(conditions.lost | late)
        return event, complete_groups(arrives, network.station, self._summed) if self._summed else arrives

    def end_round(self, event: RoundEvent) -> RoundEvent:
        """Return the same round: `start_round` has drawn all faults."""
        return event

    def change(self, number: int, network: Network) -> bool:
        """Apply the moves, departures, returns and new rows that are due before round ``number``.

        Return True if anything changed.
        """
        before = self._settled
        self._settled = number
        changes = [self._moves(network, k) + self._churn(network, k) for k in range(before + 1, number + 1)]
        due = {t: int(np.sum((a > before) & (a <= number))) for t, a in self._arrivals.items()}
        for t, count in due.items():
            if count:
                network.grow(t, count)
        return any(changes) or any(due.values())

    def _moves(self, network: Network, number: int) -> int:
        if not self.faults.moves or self._n_stations < 2:
            return 0
        rng = self._rng(_MOVE, number)
        moved = 0
        for _ in range(rng.poisson(self.faults.moves)):
            movable = _movable(network, self._n_stations)
            if len(movable):
                t = int(rng.choice(movable))
                destinations = np.delete(np.arange(self._n_stations), network.station[t])
                network.move(t, int(rng.choice(destinations)))
                moved += 1
        return moved

    def _churn(self, network: Network, number: int) -> int:
        if not self.faults.churn:
            return 0
        chance = self._rng(_CHURN, number).random(len(self._home))
        back = np.flatnonzero((network.station < 0) & (chance < 1.0 / self.faults.absence))
        for t in back.tolist():
            network.move(t, int(self._home[t]))
        departures = 0
        for t in np.flatnonzero(chance > 1.0 - self.faults.churn).tolist():
            if t in _movable(network, self._n_stations) and t not in back:
                network.move(t, -1)
                departures += 1
        return len(back) + departures

    def _chain(self, kind: int, number: int, state: BoolArray, share: float, length: float) -> BoolArray:
        """Return the next state of chains that are on for ``share`` of the time, on average ``length`` rounds long."""
        if not share:
            return state
        chance = self._rng(kind, number).random(len(state))
        if number == 1 or length <= 1.0:
            return np.asarray(chance < share)
        start = min(1.0, share / (length * (1.0 - share)))
        return np.asarray(np.where(state, chance < 1.0 - 1.0 / length, chance < start))

    def _rng(self, kind: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self.faults.seed, kind, number])


def _movable(network: Network, n_stations: int) -> IntArray:
    """Return the terminals whose station has further members."""
    is_member = network.station >= 0
    members = np.bincount(network.station[is_member], minlength=n_stations)
    return np.flatnonzero(is_member & (members[np.maximum(network.station, 0)] > 1))


def _arrivals(late: IntArray, faults: Faults) -> dict[int, IntArray]:
    """Return, for every terminal with late rows, the rounds before which these arrive."""
    return {
        t: np.random.default_rng([faults.seed, _LATE, t]).integers(1, faults.late_until + 1, late[t])
        for t in np.flatnonzero(late).tolist()
    }
