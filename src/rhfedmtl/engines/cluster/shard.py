"""A shard: consecutive stations of a federation with their current terminals, in a process of a cluster.

A shard runs its stations with `InProcess` on its rows. Terminals have the same ids as in the whole federation, so the
numbers equal those of a single process with all stations. `engines.cluster.sharded` calls the methods of a shard.

Stations are numbered from the shard's first. Rows never travel between shards: a terminal that moves to another shard
takes its dual variables along, and the new shard reads the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation, offsets
from rhfedmtl.data.scaling import Moments, RowMap, Scaler
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.network import BoolArray, Float64Array, IntArray, Outcome, State
from rhfedmtl.errors import ProtocolError
from rhfedmtl.features.maps import Features
from rhfedmtl.maths.objective import Points
from rhfedmtl.maths.runs import Tally
from rhfedmtl.roles.messages import Anchor


class RowBatch(NamedTuple):
    """Training rows before scaling, with labels, and weights if there are any.

    The caller may overwrite writable rows. ``sizes`` are the rows of each terminal, if the caller does not know them.
    """

    X: npt.NDArray[Any]
    y: npt.NDArray[Any]
    weight: npt.NDArray[Any] | None
    sizes: IntArray | None = None

    def cut(self, first: int, last: int) -> RowBatch:
        """Return rows first … last − 1, without a copy."""
        weight = None if self.weight is None else self.weight[first:last]
        return RowBatch(self.X[first:last], self.y[first:last], weight)


class RowSource(Protocol):
    """Source of training rows, usable on any machine."""

    def rows(self, first: int, last: int) -> RowBatch:
        """Return rows first … last − 1 of the federation."""


class Part(NamedTuple):
    """Consecutive stations of a federation, with their terminals and rows; offsets start at 0.

    ``rows`` are the start and end of the rows. ``sizes`` are the rows of each terminal, if the source does not give
    them. ``present`` are the rows of each terminal that are present at the start, if not all are.
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
        """Return the part with stations first … last − 1."""
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

    def federation(self, batch: RowBatch) -> Federation:
        """Return the part as a federation without test rows."""
        sizes = batch.sizes if self.sizes is None else self.sizes
        assert sizes is not None
        return Federation.untested(
            batch.X,
            batch.y,
            offsets(sizes),
            self.task_offsets,
            task_names=self.task_names,
            class_names=self.class_names,
            feature_names=self.feature_names,
            sample_weight=batch.weight,
        )


class Visitor(NamedTuple):
    """Terminal from another shard: its id, the place of its rows, and the scaling and level of its first station."""

    terminal: int
    first: int
    last: int
    scaler: Scaler
    level: float | None


class Reported(NamedTuple):
    """Reports of a shard: the last round, and v_b, samples and membership count of every station."""

    round: int
    v: Float64Array
    n_samples: IntArray
    membership: IntArray


class Snapshot(NamedTuple):
    """State of a shard without its rows: its visitors, its present terminals, and the state of its network."""

    scalers: list[Scaler] | None
    levels: Float64Array | None
    visitors: list[Visitor]
    present: BoolArray
    state: State


class Shard:
    """Stations of a part, with their current terminals; terminals have their ids of the whole federation."""

    def __init__(
        self, part: Part, source: RowSource, method: Method, *, seed: int = 0, threads: int | None = None
    ) -> None:
        self._part, self._source, self._method = part, source, method
        self._seed, self._threads = seed, threads
        batch = source.rows(*part.rows)
        self._federation = part.federation(batch)
        self._writable = batch.X if batch.X.flags.writeable else None
        self._ids = part.terminal + np.arange(self._federation.n_terminals)
        self._present = np.ones(len(self._ids), dtype=bool)
        self._scalers: list[Scaler] | None = None
        self._levels: Float64Array | None = None
        self._visitors: list[Visitor] = []
        self._network = self._new_network(part.present)

    def moments(self, mappings: Sequence[RowMap] | None = None) -> list[Moments]:
        """Return the moments of the training rows of every station, as its mapping makes them."""
        return self._network.moments(mappings)

    def labels(self) -> Float64Array:
        """Return the label sums of every station."""
        return self._network.labels()

    def centre(self, levels: Float64Array) -> None:
        """Subtract its station's level from every label. A repeated call changes nothing."""
        if self._levels is None:
            self._levels = levels
            self._federation = replace(self._federation, y=self._federation.y - levels[self._federation.row_task])
            self._network = self._new_network(self._part.present)

    def scale(self, scalers: list[Scaler]) -> None:
        """Scale the rows of each station by its scaler. A repeated call changes nothing."""
        if self._scalers is not None:
            return
        self._scalers = scalers
        # Writable rows are scaled in place. Others are in shared memory, where small pages make access slow.
        X, scaled = self._federation.X, self._writable
        if scaled is None or self._method.features:
            scaled = np.empty((len(X), self._method.features.columns(X.shape[1])), X.dtype)
        bounds = self._federation.terminal_offsets[self._federation.task_offsets]
        for scaler, a, b in zip(scalers, bounds[:-1], bounds[1:], strict=True):
            scaler.transform(X[a:b], out=scaled[a:b])
        self._writable = None
        names = () if self._method.features else self._federation.feature_names
        self._federation = replace(self._federation, X=scaled, test_X=scaled[:0], feature_names=names)
        self._method = replace(self._method, features=Features())  # the rows are mapped now
        self._network = self._new_network(self._part.present)

    def assign(self, anchors: list[Anchor]) -> None:
        """Take the anchors of all stations."""
        self._network.assign(anchors)

    def round(
        self, number: int, steps: IntArray, by_station: bool, arrives: BoolArray | None, report: bool = False
    ) -> tuple[Outcome, Reported | None]:
        """Run a BS iteration; steps are per station, or per present terminal in the order of ids.

        With ``report``, return the reports too.
        """
        station = self._network.station
        ordered = np.where(station >= 0, steps[np.maximum(station, 0)], 0) if by_station else self._spread(steps)
        outcome = self._network.round(number, ordered, None if arrives is None else self._spread(arrives))
        return outcome, self.reports() if report else None

    def reports(self) -> Reported:
        """Return the reports of all stations."""
        reports = self._network.reports(0)
        counts = np.array([(report.n_samples, report.membership) for report in reports])
        return Reported(reports[0].round, np.array([report.v for report in reports]), counts[:, 0], counts[:, 1])

    def models(self) -> Float64Array:
        """Return the models of the orders, of every station."""
        return self._network.models

    def sums(self, points: Points) -> list[tuple[Float64Array | None, ...]]:
        """Return losses at each of the points, dual sums, gradient and residual sums of every station."""
        complete = (sums for sums in self._network.sums(points) if sums is not None)
        return [(sums.losses, sums.dual, sums.gradient, sums.residual) for sums in complete]

    def station_shares(self) -> Float64Array:
        """Return Σ_t X_tᵀα_t of every station."""
        return self._network.station_shares()

    def move(self, terminal: int, station: int) -> None:
        """Move a present terminal to a station of the shard, or under no station (−1)."""
        self._network.move(self._place(terminal), station)

    def grow(self, terminal: int, n_rows: int) -> None:
        """Let the next rows of a terminal arrive."""
        self._network.grow(self._place(terminal), n_rows)

    def release(self, terminal: int) -> tuple[int, Float64Array]:
        """Release a terminal to another shard, and return its samples and dual variables; its rows stay."""
        place = self._place(terminal)
        self._network.move(place, -1)
        self._present[place] = False
        return int(self._network.sizes[place]), self._network.alpha[self._span(place)].copy()

    def admit(self, visitor: Visitor, station: int, size: int, alpha: Float64Array) -> None:
        """Take in a terminal from another shard under a station, with its dual variables."""
        state = self._network.state()
        if visitor.terminal not in self._ids:
            rows, duals, residual = visitor.last - visitor.first, np.asarray(state.alpha), state.residual
            assert state.sizes is not None
            state = state._replace(
                station=np.append(state.station, -1),
                sizes=np.append(state.sizes, rows),
                alpha=np.concatenate([duals, np.zeros((rows, duals.shape[1]))]),
                residual=None if residual is None else np.concatenate([residual, np.zeros((1, *residual.shape[1:]))]),
            )
            self._visitors.append(visitor)
            self._append_rows([visitor])
        place = int(np.flatnonzero(self._ids == visitor.terminal)[0])
        assert state.sizes is not None
        state.alpha[self._span(place)] = alpha  # type: ignore[index]
        state.sizes[place] = size
        self._present[place] = True
        self._network.resume(state)
        self._network.move(place, station)

    def head(self) -> State:
        """Return the state of the stations, without dual variables."""
        return self._network.state()._replace(alpha=np.empty((0, 0)))

    def duals(self) -> tuple[IntArray, Float64Array]:
        """Return the ids of present terminals, and the dual variables of their rows."""
        places = np.flatnonzero(self._present)
        alpha = self._network.alpha
        return self._ids[places], np.concatenate([alpha[:0], *(alpha[self._span(place)] for place in places.tolist())])

    def residuals(self) -> tuple[IntArray, Float64Array]:
        """Return the ids of present terminals, and their residuals."""
        residual = self._network.state().residual
        assert residual is not None, "a channel that rounds has residuals"
        return self._ids[self._present], residual[self._present]

    def snapshot(self) -> Snapshot:
        """Return the snapshot from which a new shard of the same part can continue."""
        return Snapshot(self._scalers, self._levels, list(self._visitors), self._present.copy(), self._network.state())

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot; for a new shard of the same part."""
        if snapshot.levels is not None:
            self.centre(snapshot.levels)
        if snapshot.scalers is not None:
            self.scale(snapshot.scalers)
        self._visitors = list(snapshot.visitors)
        if self._visitors:
            self._append_rows(self._visitors)
        self._present = snapshot.present.copy()
        self._network.resume(snapshot.state)

    def _append_rows(self, visitors: list[Visitor]) -> None:
        """Append the rows of visitors, as terminals under no station."""
        old = self._federation
        batches = [self._source.rows(visitor.first, visitor.last) for visitor in visitors]
        pairs = list(zip(visitors, batches, strict=True))
        X = [v.scaler.transform(np.ascontiguousarray(batch.X)) for v, batch in pairs]
        weight = old.sample_weight
        sizes = [len(batch.X) for batch in batches]
        self._federation = replace(
            old,
            X=np.concatenate([old.X, *X]),
            y=np.concatenate([old.y, *(batch.y if v.level is None else batch.y - v.level for v, batch in pairs)]),
            sample_weight=None if weight is None else np.concatenate([weight, *(batch.weight for batch in batches)]),
            terminal_offsets=np.append(old.terminal_offsets, old.terminal_offsets[-1] + np.cumsum(sizes)),
            task_offsets=np.append(old.task_offsets[:-1], old.task_offsets[-1] + len(visitors)),
        )
        self._ids = np.append(self._ids, [visitor.terminal for visitor in visitors])
        self._present = np.append(self._present, np.zeros(len(visitors), dtype=bool))
        self._network = self._new_network()

    def _new_network(self, present: IntArray | None = None) -> InProcess:
        """Return a new network for the current rows, with dual variables at zero."""
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

    def _place(self, terminal: int) -> int:
        places = np.flatnonzero((self._ids == terminal) & self._present)
        if not len(places):
            raise ProtocolError(f"terminal {terminal} is not in the shard of stations from {self._part.station}")
        return int(places[0])

    def _span(self, place: int) -> slice:
        return slice(*self._federation.terminal_offsets[place : place + 2].tolist())

    def _spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values of present terminals, given in the order of ids, at the places of all terminals."""
        spread = np.zeros(len(self._ids), dtype=values.dtype)
        places = np.flatnonzero(self._present)
        spread[places[np.argsort(self._ids[places])]] = values
        return spread
