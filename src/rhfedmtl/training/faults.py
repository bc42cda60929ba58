"""What the world does to a run: lost updates, slow terminals, stations that are away, terminals that come and go.

All of it is drawn from a seed and addressed by round, so that a run with faults can be repeated to the bit.
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
from rhfedmtl.resources.billing import RoundEvent, deadlines, longest_wait
from rhfedmtl.resources.costs import Cost
from rhfedmtl.roles.channel import group_starts

_DROPOUT, _STATION, _SLOW, _MOVE, _CHURN, _LATE = range(6)


@dataclass(frozen=True)
class Faults:
    """How much goes wrong; nothing by default.

    Parameters
    ----------
    dropout, dropout_length
        Share of updates that do not arrive although the terminal did its work, and how many rounds in a row that
        lasts on average.
    slowdown, patience
        Spread of the time that work takes (standard deviation of its logarithm, never faster than priced). Stations
        wait ``patience`` times as long as planned; who is later is dropped. Needs a type that adds up as elapsed.
    station_away, station_away_length
        Share of rounds that a station misses, and for how many rounds in a row on average.
    moves
        Moves of a terminal to another station, per round.
    churn, absence
        Chance per round that a terminal leaves the network, and how many rounds it stays away on average.
    late_rows, late_until
        Share of a terminal's rows that arrive during the run, and by which round they all have.
    seed
        Seed of all of it.
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
        """Refuse what is no chance, no length or no spread."""
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
            least = share / (1.0 - share)
            if 1.0 < length < least * (1.0 - 1e-12):
                raise ConfigError(
                    f"{name}={share:g} in stretches of {length:g} rounds cannot be, with a round between two of them: "
                    f"give {name}_length={least:.4g} or more, or 1 to draw every round anew"
                )
        if self.seed < 0:
            raise ConfigError(f"seed must be at least 0, got {self.seed}")

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> Faults:
        """Faults from ``dropout=0.3,moves=0.1``."""
        known = {field.name: field.type for field in fields(cls)}
        given: dict[str, float | int] = {"seed": seed}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, value = part.partition("=")
            if name not in known:
                raise ConfigError(f"unknown fault {name!r}: choose from {', '.join(known)}{nearest(name, known)}")
            try:
                given[name] = int(value) if known[name] == "int" else float(value)
            except ValueError:
                raise ConfigError(f"fault {name} needs a number, got {value!r}") from None
        return cls(**given)  # type: ignore[arg-type]

    @property
    def any(self) -> bool:
        """True if anything can happen."""
        chances = self.dropout, self.slowdown, self.station_away, self.moves, self.churn, self.late_rows
        return any(chances)

    def planning_prices(self, cost: Cost) -> Cost:
        """Prices to plan and reserve by: time on terminals as long as stations may have to wait for it."""
        if not self.slowdown:
            return cost
        elapsed = {name: prices for name, prices in cost.types.items() if prices.adds == "elapsed"}
        if not elapsed:
            raise ConfigError("slowdown needs a resource type that adds up as elapsed, such as time=0.001,0.1")
        longer = ("terminal_step", "terminal_byte_up", "terminal_byte_down")
        waited = {
            name: replace(prices, **{part: getattr(prices, part) * self.patience for part in longer})
            for name, prices in elapsed.items()
        }
        return Cost({**cost.types, **waited})


class Conditions(NamedTuple):
    """What one round meets with: stations that are there, updates that get lost, and how slow each terminal is."""

    stations: BoolArray
    lost: BoolArray
    slowdown: Float64Array


def whole_groups(arrives: BoolArray, station: IntArray, least: int) -> BoolArray:
    """Updates that count where sums are masked: of groups of ``least`` or more of which all arrive."""
    found = np.zeros_like(arrives)
    for b in np.unique(station[station >= 0]):
        members = np.flatnonzero(station == b)
        if len(starts := group_starts(len(members), least)):
            whole = np.logical_and.reduceat(arrives[members], starts)
            found[members] = np.repeat(whole, np.diff([*starts, len(members)]))
    return found


class FaultSchedule:
    """The faults of one run, round by round. Masked sums are over groups of ``summed``, all of one or none."""

    def __init__(self, faults: Faults, federation: Federation, summed: int = 0) -> None:
        self.faults, self._summed = faults, summed
        self._home = federation.terminal_task.astype(np.int64)
        self._n_stations = federation.n_tasks
        self.present: IntArray = federation.sizes
        self._arrivals: dict[int, IntArray] = {}
        if faults.late_rows:
            late = np.minimum((self.present * faults.late_rows).astype(np.int64), self.present - 1)
            self.present, self._arrivals = np.asarray(self.present - late), _arrivals(np.asarray(late), faults)
        self._dropped = np.zeros(0 if self.calm else len(self._home), dtype=bool)
        self._away = np.zeros(self._n_stations, dtype=bool)
        self._settled = 0

    @property
    def calm(self) -> bool:
        """Whether no round ever meets with a fault (terminals may still come and go)."""
        return not (self.faults.dropout or self.faults.station_away or self.faults.slowdown)

    def state(self) -> dict[str, Any]:
        """What the rounds so far leave for the next: who is dropped or away, and up to which round all have moved."""
        return {"dropped": self._dropped, "away": self._away, "settled": self._settled}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._dropped, self._away, self._settled = state["dropped"], state["away"], state["settled"]

    def conditions(self, number: int) -> Conditions:
        """Faults of round ``number``; rounds are asked for in their order."""
        f = self.faults
        self._dropped = self._chain(_DROPOUT, number, self._dropped, f.dropout, f.dropout_length)
        self._away = self._chain(_STATION, number, self._away, f.station_away, f.station_away_length)
        slow: Float64Array = np.broadcast_to(np.float64(1.0), len(self._home))
        if f.slowdown:
            slow = np.exp(np.abs(self._rng(_SLOW, number).normal(0.0, f.slowdown, len(slow))))
        return Conditions(~self._away, self._dropped, slow)

    def start_round(self, planned: RoundEvent, cost: Cost, network: Network) -> tuple[RoundEvent, BoolArray | None]:
        """Return the round with the members present and their speed, and whose updates arrive, if not all."""
        if self.calm:
            return planned, None
        conditions = self.conditions(planned.round)
        stations = conditions.stations if planned.stations is None else conditions.stations & planned.stations
        deadline = deadlines(cost, planned, self.faults.patience) if self.faults.slowdown else {}
        event = replace(planned, stations=stations, slowdown=conditions.slowdown, deadline=deadline or None)
        late = np.zeros(len(conditions.lost), dtype=bool)
        for name, limit in deadline.items():
            late |= longest_wait(cost[name], event) > limit * (1.0 + 1e-12)
        arrives = ~(conditions.lost | late)
        return event, whole_groups(arrives, network.station, self._summed) if self._summed else arrives

    def end_round(self, event: RoundEvent) -> RoundEvent:
        """Return the same round: `start_round` has drawn all faults."""
        return event

    def change(self, number: int, network: Network) -> bool:
        """Let terminals move, go and come, and rows arrive, as is due before round ``number``; False if none did."""
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
                others = np.delete(np.arange(self._n_stations), network.station[t])
                network.move(t, int(rng.choice(others)))
                moved += 1
        return moved

    def _churn(self, network: Network, number: int) -> int:
        if not self.faults.churn:
            return 0
        chance = self._rng(_CHURN, number).random(len(self._home))
        back = np.flatnonzero((network.station < 0) & (chance < 1.0 / self.faults.absence))
        for t in back.tolist():
            network.move(t, int(self._home[t]))
        gone = 0
        for t in np.flatnonzero(chance > 1.0 - self.faults.churn).tolist():
            if t in _movable(network, self._n_stations) and t not in back:
                network.move(t, -1)
                gone += 1
        return len(back) + gone

    def _chain(self, kind: int, number: int, state: BoolArray, share: float, length: float) -> BoolArray:
        """Next state of chains that are on for ``share`` of the time and ``length`` rounds in a row on average."""
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
    """Terminals whose station would not be left empty."""
    here = network.station >= 0
    members = np.bincount(network.station[here], minlength=n_stations)
    return np.flatnonzero(here & (members[np.maximum(network.station, 0)] > 1))


def _arrivals(late: IntArray, faults: Faults) -> dict[int, IntArray]:
    """For every terminal that has late rows, the rounds before which they arrive."""
    return {
        t: np.random.default_rng([faults.seed, _LATE, t]).integers(1, faults.late_until + 1, late[t])
        for t in np.flatnonzero(late).tolist()
    }
