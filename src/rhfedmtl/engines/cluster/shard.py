"""Some stations of a federation with the terminals that are under them now: what one process of a cluster holds.

Stations that lie one after the other form a shard. Inside, all is batched as in `InProcess`, over the shard's own rows
with the ids that the terminals have in the whole: so the numbers are those of one process that holds everything.

Stations are counted from the shard's first. Rows never travel between shards: a terminal that moves to another shard
takes its duals along, and its rows are read where it arrives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation, offsets
from rhfedmtl.data.scaling import Moments, Scaler
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.network import BoolArray, Float64Array, IntArray, Outcome, State
from rhfedmtl.errors import ProtocolError
from rhfedmtl.maths.objective import Points
from rhfedmtl.maths.runs import Tally
from rhfedmtl.roles.messages import Anchor


class Taken(NamedTuple):
    """Training rows as they are before scaling, their labels, and their weights if they have any.

    Rows that can be written to belong to whoever asked. ``sizes`` is how many of them each terminal has; None
    where whoever asks knows.
    """

    X: npt.NDArray[Any]
    y: npt.NDArray[Any]
    weight: npt.NDArray[Any] | None
    sizes: IntArray | None = None

    def cut(self, first: int, last: int) -> Taken:
        """Rows first … last − 1 of these, where they lie."""
        weight = None if self.weight is None else self.weight[first:last]
        return Taken(self.X[first:last], self.y[first:last], weight)


class RowSource(Protocol):
    """Where training rows come from, on any machine."""

    def rows(self, first: int, last: int) -> Taken:
        """Rows first … last − 1 of the federation."""


class Part(NamedTuple):
    """Stations that lie one after the other in a federation, with their terminals and rows; offsets start at 0.

    ``rows`` are the first row and the one behind the last. ``sizes`` is how many rows each terminal has, None where
    the source has to say; ``present`` how many of them are there at the start, None for all.
    """

    station: int
    terminal: int
    rows: tuple[int, int]
    task_offsets: IntArray
    sizes: IntArray | None
    present: IntArray | None
    task_names: tuple[str, ...]
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]

    @classmethod
    def of(cls, federation: Federation, first: int, last: int, present: IntArray) -> Part:
        """Stations first … last − 1."""
        terminals = slice(int(federation.task_offsets[first]), int(federation.task_offsets[last]))
        start, end = federation.terminal_offsets[[terminals.start, terminals.stop]].tolist()
        sizes: Any = federation.sizes
        return cls(
            first,
            terminals.start,
            (start, end),
            np.asarray(federation.task_offsets[first : last + 1] - terminals.start, dtype=np.int64),
            None if isinstance(sizes, Tally) else sizes[terminals],
            None if present is sizes else present[terminals],
            federation.task_names[first:last],
            federation.class_names,
            federation.feature_names,
        )

    def federation(self, taken: Taken) -> Federation:
        """The part as a federation of its own, without test rows."""
        sizes = taken.sizes if self.sizes is None else self.sizes
        assert sizes is not None
        return Federation.untested(
            taken.X,
            taken.y,
            offsets(sizes),
            self.task_offsets,
            task_names=self.task_names,
            class_names=self.class_names,
            feature_names=self.feature_names,
            sample_weight=taken.weight,
        )


class Visitor(NamedTuple):
    """A terminal from another shard: its id, where its rows lie, and how they are scaled and centred at home."""

    terminal: int
    first: int
    last: int
    scaler: Scaler
    level: float | None


class Reported(NamedTuple):
    """Reports of a shard: as of which round, and v_b, samples and membership count of every station."""

    round: int
    v: Float64Array
    n_samples: IntArray
    membership: IntArray


class Snapshot(NamedTuple):
    """All of a shard but its rows: who is known here and who is here now, and the state by these terminals."""

    scalers: list[Scaler] | None
    levels: Float64Array | None
    visitors: list[Visitor]
    here: BoolArray
    state: State


class Shard:
    """The stations of a part, and whoever is under them; terminals go by the ids that they have in the whole."""

    def __init__(
        self, part: Part, source: RowSource, method: Method, *, seed: int = 0, threads: int | None = None
    ) -> None:
        self._part, self._source, self._method = part, source, method
        self._seed, self._threads = seed, threads
        taken = source.rows(*part.rows)
        self._federation = part.federation(taken)
        self._own = taken.X if taken.X.flags.writeable else None
        self._ids = part.terminal + np.arange(self._federation.n_terminals)
        self._here = np.ones(len(self._ids), dtype=bool)
        self._scalers: list[Scaler] | None = None
        self._levels: Float64Array | None = None
        self._visitors: list[Visitor] = []
        self._network = self._batched(part.present)

    def moments(self) -> list[Moments]:
        """Moments of the training rows of every station."""
        return self._network.moments()

    def labels(self) -> Float64Array:
        """Label sums of every station."""
        return self._network.labels()

    def centre(self, levels: Float64Array) -> None:
        """Subtract its station's level from every label. Told again, it changes nothing."""
        if self._levels is None:
            self._levels = levels
            self._federation = replace(self._federation, y=self._federation.y - levels[self._federation.row_task])
            self._network = self._batched(self._part.present)

    def scale(self, scalers: list[Scaler]) -> None:
        """Scale the rows of each station by its scaler. Told again, it changes nothing."""
        if self._scalers is not None:
            return
        self._scalers = scalers
        # Own rows are scaled where they lie; others are in shared memory, whose small pages make rows slow to reach.
        X, scaled = self._federation.X, self._own
        if scaled is None:
            scaled = np.empty_like(X)
        bounds = self._federation.terminal_offsets[self._federation.task_offsets]
        for scaler, a, b in zip(scalers, bounds[:-1], bounds[1:], strict=True):
            scaler.transform(X[a:b], out=scaled[a:b])
        self._own = None
        self._federation = replace(self._federation, X=scaled)
        self._network = self._batched(self._part.present)

    def assign(self, anchors: list[Anchor]) -> None:
        """Take the anchors of all stations."""
        self._network.assign(anchors)

    def round(
        self, number: int, steps: IntArray, by_station: bool, arrives: BoolArray | None, report: bool = False
    ) -> tuple[Outcome, Reported | None]:
        """One BS iteration; steps by station, or by the terminals that are here in the order of their ids.

        ``report`` asks for the reports at the same time.
        """
        station = self._network.station
        ordered = np.where(station >= 0, steps[np.maximum(station, 0)], 0) if by_station else self._spread(steps)
        outcome = self._network.round(number, ordered, None if arrives is None else self._spread(arrives))
        return outcome, self.reports() if report else None

    def reports(self) -> Reported:
        """What the stations tell the cloud."""
        known = self._network.reports(0)
        counts = np.array([(report.n_samples, report.membership) for report in known])
        return Reported(known[0].round, np.array([report.v for report in known]), counts[:, 0], counts[:, 1])

    def models(self) -> Float64Array:
        """What orders start from, of every station."""
        return self._network.models

    def sums(self, points: Points) -> list[tuple[Float64Array | None, ...]]:
        """Of every station, losses at each of the points, dual sums, gradient, and what is told of residuals."""
        known = (sums for sums in self._network.sums(points) if sums is not None)
        return [(sums.losses, sums.dual, sums.gradient, sums.residual) for sums in known]

    def station_shares(self) -> Float64Array:
        """Σ_t X_tᵀα_t of every station."""
        return self._network.station_shares()

    def move(self, terminal: int, station: int) -> None:
        """Move a terminal that is here to a station of the shard, or out of the network (−1)."""
        self._network.move(self._place(terminal), station)

    def grow(self, terminal: int, n_rows: int) -> None:
        """Let the next rows of a terminal arrive."""
        self._network.grow(self._place(terminal), n_rows)

    def release(self, terminal: int) -> tuple[int, Float64Array]:
        """Let a terminal go to another shard: its samples and its duals; its rows stay, in case it comes back."""
        place = self._place(terminal)
        self._network.move(place, -1)
        self._here[place] = False
        return int(self._network.sizes[place]), self._network.alpha[self._span(place)].copy()

    def admit(self, visitor: Visitor, station: int, size: int, alpha: Float64Array) -> None:
        """Take in a terminal from another shard, with its duals, under a station."""
        state = self._network.state()
        if visitor.terminal not in self._ids:
            state = self._lengthened(state, visitor)
            self._visitors.append(visitor)
            self._seat([visitor])
        place = int(np.flatnonzero(self._ids == visitor.terminal)[0])
        assert state.sizes is not None
        state.alpha[self._span(place)] = alpha  # type: ignore[index]
        state.sizes[place] = size
        self._here[place] = True
        self._network.resume(state)
        self._network.move(place, station)

    def head(self) -> State:
        """The state of the stations alone."""
        return self._network.state()._replace(alpha=np.empty((0, 0)))

    def duals(self) -> tuple[IntArray, Float64Array]:
        """Who is here, and the duals of all of their rows, one after the other."""
        places = np.flatnonzero(self._here)
        alpha = self._network.alpha
        return self._ids[places], np.concatenate([alpha[:0], *(alpha[self._span(place)] for place in places.tolist())])

    def residuals(self) -> tuple[IntArray, Float64Array]:
        """Who is here, and what the channel keeps back of the updates of each."""
        kept = self._network.state().residual
        assert kept is not None, "a channel that rounds keeps something back"
        return self._ids[self._here], kept[self._here]

    def snapshot(self) -> Snapshot:
        """All that a new shard of the same part needs to be this one."""
        return Snapshot(self._scalers, self._levels, list(self._visitors), self._here.copy(), self._network.state())

    def restore(self, snapshot: Snapshot) -> None:
        """Become the shard of which this is a snapshot; for a new shard."""
        if snapshot.levels is not None:
            self.centre(snapshot.levels)
        if snapshot.scalers is not None:
            self.scale(snapshot.scalers)
        self._visitors = list(snapshot.visitors)
        if self._visitors:
            self._seat(self._visitors)
        self._here = snapshot.here.copy()
        self._network.resume(snapshot.state)

    def _seat(self, visitors: list[Visitor]) -> None:
        """Put the rows of visitors behind the others, as rows of terminals that are under no station yet."""
        old = self._federation
        taken = [self._source.rows(visitor.first, visitor.last) for visitor in visitors]
        pairs = list(zip(visitors, taken, strict=True))
        X = [v.scaler.transform(np.ascontiguousarray(t.X)) for v, t in pairs]
        weight = old.sample_weight
        sizes = [len(t.X) for t in taken]
        self._federation = replace(
            old,
            X=np.concatenate([old.X, *X]),
            y=np.concatenate([old.y, *(t.y if v.level is None else t.y - v.level for v, t in pairs)]),
            sample_weight=None if weight is None else np.concatenate([weight, *(t.weight for t in taken)]),
            terminal_offsets=np.append(old.terminal_offsets, old.terminal_offsets[-1] + np.cumsum(sizes)),
            task_offsets=np.append(old.task_offsets[:-1], old.task_offsets[-1] + len(visitors)),
        )
        self._ids = np.append(self._ids, [visitor.terminal for visitor in visitors])
        self._here = np.append(self._here, np.zeros(len(visitors), dtype=bool))
        self._network = self._batched()

    def _batched(self, present: IntArray | None = None) -> InProcess:
        """The rows as they are now, at the start."""
        return InProcess(
            self._federation,
            self._method,
            seed=self._seed,
            threads=self._threads,
            present=present,
            ids=self._ids,
            first_station=self._part.station,
            constant=self._scalers[0].constant(self._federation.n_features) if self._scalers else 1.0,
        )

    @staticmethod
    def _lengthened(state: State, visitor: Visitor) -> State:
        """The state with room for a terminal that is under no station."""
        rows = visitor.last - visitor.first
        alpha, kept = np.asarray(state.alpha), state.residual
        assert state.sizes is not None
        return state._replace(
            station=np.append(state.station, -1),
            sizes=np.append(state.sizes, rows),
            alpha=np.concatenate([alpha, np.zeros((rows, alpha.shape[1]))]),
            residual=None if kept is None else np.concatenate([kept, np.zeros((1, *kept.shape[1:]))]),
        )

    def _place(self, terminal: int) -> int:
        found = np.flatnonzero((self._ids == terminal) & self._here)
        if not len(found):
            raise ProtocolError(f"terminal {terminal} is not in the shard of stations from {self._part.station}")
        return int(found[0])

    def _span(self, place: int) -> slice:
        return slice(*self._federation.terminal_offsets[place : place + 2].tolist())

    def _spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values of those who are here, given in the order of ids, at the places of all."""
        spread = np.zeros(len(self._ids), dtype=values.dtype)
        places = np.flatnonzero(self._here)
        spread[places[np.argsort(self._ids[places])]] = values
        return spread
