"""The driver's side of a network in shards: it calls the shards, wherever they are, and joins their answers.

It knows the shard of every terminal, and no rows or dual variables. Anchors, models and numbers of steps go down; steps
are sent per station if all its terminals have the same number. v_b, sums and gain curves come up. Stations and samples
of terminals stay in compressed form (`Runs`, `Tally`) until a terminal moves or rows arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, Protocol

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import Moments, RowMap, Scaler
from rhfedmtl.engines.cluster.shard import Part, Reported, Snapshot, Visitor
from rhfedmtl.engines.network import BoolArray, Float64Array, IntArray, Later, Outcome, State
from rhfedmtl.errors import PeerError, ProtocolError
from rhfedmtl.maths.objective import Points
from rhfedmtl.maths.runs import Runs, Tally, compact
from rhfedmtl.resources.sizes import MessageSizes
from rhfedmtl.roles.message_sizes import message_sizes
from rhfedmtl.roles.messages import Anchor, Report, StationSums

Calls = Mapping[int, tuple[Any, ...]]


class ShardActors(Protocol):
    """Access to the shards."""

    def post(self, shard: int, name: str, *args: Any) -> None:
        """Call a method of a shard without waiting; the call may be delayed until the next `ask`."""

    def ask(self, name: str, calls: Calls, *, changes: bool = False) -> dict[int, Any]:
        """Call a method of several shards at once, each with its own arguments, and return their answers.

        ``changes`` is True if the method also changes the shard.
        """

    def rest(self) -> None:
        """Take snapshots if they are due; called between rounds."""

    def close(self) -> None:
        """Release the shards."""


def share_out(federation: Federation, weights: Sequence[float], present: IntArray) -> list[Part]:
    """Return parts of the stations with rows in proportion to the weights; at most as many parts as stations."""
    rows = federation.terminal_offsets[federation.task_offsets]
    n = min(len(weights), federation.n_tasks)
    shares = np.cumsum(weights[:n])[:-1] / np.sum(weights[:n])
    cuts = np.searchsorted((rows[:-1] + rows[1:]) / 2.0, shares * rows[-1])
    # Each part needs a station.
    cuts = np.clip(cuts, np.arange(1, n), federation.n_tasks - np.arange(n - 1, 0, -1))
    bounds = [0, *cuts.tolist(), federation.n_tasks]
    for i in range(1, n):
        bounds[i] = max(bounds[i], bounds[i - 1] + 1)
    return [Part.of(federation, first, last, present) for first, last in pairwise(bounds)]


class Sharded:
    """Network with all stations and terminals in shards.

    Parameters
    ----------
    federation : Federation
        Federation or outline of all stations.
    method : Method
        Method of the training.
    parts : sequence of Part
        Stations of each shard.
    actors : ShardActors
        Access to the shards.
    close : callable, optional
        Releases the shards and their cluster; by default only the shards.
    """

    def __init__(
        self,
        federation: Federation,
        method: Method,
        parts: Sequence[Part],
        actors: ShardActors,
        close: Callable[[], None] | None = None,
    ) -> None:
        self.method = method
        self.actors, self.close = actors, close or actors.close
        columns = len(federation.class_names) if len(federation.class_names) > 2 else 1
        self.shape = columns, method.width(federation.n_features)
        self._matrix = method.rows(columns), self.shape[1]
        self._shared = method.shared_rows(columns)
        self._offsets = federation.terminal_offsets
        self._task_offsets = federation.task_offsets
        self._n_shards = len(parts)
        self._bounds = [*(part.station for part in parts), federation.n_tasks]
        self._shard_of_station = np.repeat(np.arange(len(parts)), np.diff(self._bounds))
        self._home: Any = Runs.repeat(np.arange(federation.n_tasks), np.diff(federation.task_offsets))
        self.station: Any = self._home
        self._detached: dict[int, int] = {}  # shard of each terminal under no station
        self._full: Any = federation.sizes
        self.sizes: Any = self._full
        if any(part.present is not None for part in parts):
            self.sizes = np.concatenate([part.present for part in parts])
        self._scalers: list[Scaler] = []
        self._levels: Float64Array | None = None
        self._reports: dict[int, Reported] | None = None
        self._wants_reports = False  # the next round also returns reports

    @property
    def message_sizes(self) -> MessageSizes:
        """Sizes of the messages of a round."""
        among = self.method.channel.masked_among(np.diff(self._task_offsets))
        return message_sizes(self._matrix, self._shared, self.method.profile_length, self.method.channel, among)

    @property
    def V(self) -> Float64Array:
        """v_b of every station, as reported."""
        return np.array([report.v for report in self.reports(0)])

    @property
    def models(self) -> Float64Array:
        """Models of the orders, of every station."""
        return np.concatenate(self._gathered("models"))

    def moments(self, mappings: Sequence[RowMap] | None = None) -> list[Moments]:
        """Round zero: return the moments of the training rows of every station, as its mapping makes them."""
        mapped = {s: (mappings and mappings[self._stations(s)],) for s in range(self._n_shards)}
        answers = self.actors.ask("moments", mapped)
        return list(chain.from_iterable(answers[s] for s in sorted(answers)))

    def labels(self) -> Float64Array:
        """Round zero of a regression: return the label sums of every station."""
        return np.concatenate(self._gathered("labels"))

    def centre(self, levels: Float64Array) -> None:
        """Round zero of a regression: subtract the level of its task from every label."""
        self._levels = levels
        for s in range(self._n_shards):
            self.actors.post(s, "centre", levels[self._stations(s)])

    def scale(self, scalers: list[Scaler]) -> None:
        """Round zero: scale the rows of every station."""
        self._scalers = scalers
        for s in range(self._n_shards):
            self.actors.post(s, "scale", scalers[self._stations(s)])

    def assign(self, anchors: list[Anchor]) -> None:
        """Pass the anchors of all stations, in their order, to the shards."""
        if [anchor.task for anchor in anchors] != list(range(len(self._shard_of_station))):
            raise ProtocolError(f"{len(anchors)} anchors for {len(self._shard_of_station)} stations: each needs one")
        for s in range(self._n_shards):
            shard_anchors = anchors[self._stations(s)]
            self.actors.post(s, "assign", [replace(anchor, task=b) for b, anchor in enumerate(shard_anchors)])
        self._reports = None

    def round(self, number: int, local_steps: IntArray, arrives: BoolArray | None = None) -> Outcome:
        """Run a BS iteration in all shards at once."""
        if np.shape(local_steps) != self.station.shape:
            raise ProtocolError(f"steps of shape {np.shape(local_steps)} for {len(self.station)} terminals")
        by_station = self._by_station(local_steps)
        shards = self._shards() if by_station is None or arrives is not None else None
        calls: dict[int, tuple[Any, ...]] = {}
        for s in range(self._n_shards):
            steps = local_steps[shards == s] if by_station is None else by_station[self._stations(s)]
            arriving = None if arrives is None else arrives[shards == s]
            calls[s] = number, steps, by_station is not None, arriving, self._wants_reports
        answers = self.actors.ask("round", calls, changes=True)
        self._reports = {s: reports for s, (_, reports) in answers.items()} if self._wants_reports else None
        self._wants_reports = False
        self.actors.rest()
        return Outcome(*(np.concatenate([answers[s][0][i] for s in sorted(answers)]) for i in range(3)))

    def reports(self, cloud_round: int) -> list[Report]:
        """Return the reports of all stations; the shards are called again only after a change.

        If reports are used after a round, the next round returns them too.
        """
        self._wants_reports = True
        if self._reports is None:
            self._reports = self.actors.ask("reports", dict.fromkeys(range(self._n_shards), ()))
        return [
            Report(cloud_round, self._bounds[s] + i, reports.round, v, int(n), int(membership))
            for s, reports in sorted(self._reports.items())
            for i, (v, n, membership) in enumerate(zip(*reports[1:], strict=True))
        ]

    def sums(self, points: Points) -> list[StationSums | None]:
        """Return the sums of every station at each of the points."""
        needed, models = (len(self._shard_of_station), *self.shape), points.models
        if models.ndim != 4 or models.shape[1:] != needed:
            raise PeerError(f"models of shape {models.shape} do not fit (any, *{needed})")
        parts = {s: (points._replace(models=models[:, self._stations(s)]),) for s in range(self._n_shards)}
        answers = self.actors.ask("sums", parts)
        sums = chain.from_iterable(answers[s] for s in sorted(answers))
        return [
            StationSums(r.task, r.round, losses, dual, slope, r.n_samples, r.membership, residual)
            for r, (losses, dual, slope, residual) in zip(self.reports(0), sums, strict=True)
        ]

    def station_shares(self) -> Float64Array:
        """Return Σ_t X_tᵀα_t of every station."""
        return np.concatenate(self._gathered("station_shares"))

    def move(self, terminal: int, station: int) -> None:
        """Move a terminal with its dual variables under another station, or under no station (−1)."""
        if not (0 <= terminal < len(self.station) and -1 <= station < len(self._shard_of_station)):
            raise ProtocolError(
                f"no move of terminal {terminal} to station {station}: there are {len(self.station)} terminals and "
                f"{len(self._shard_of_station)} stations"
            )
        old = self._shard_of(terminal)
        new = int(self._shard_of_station[station]) if station >= 0 else old
        place = station - self._bounds[new] if station >= 0 else -1
        if new == old:
            self.actors.post(old, "move", terminal, place)
        else:
            size, alpha = self.actors.ask("release", {old: (terminal,)}, changes=True)[old]
            self.actors.post(new, "admit", self._visitor(terminal), place, size, alpha)
        if isinstance(self.station, Runs):
            self.station = self.station.copy()
        self.station[terminal] = station
        self._detached.pop(terminal, None)
        if station < 0:
            self._detached[terminal] = old
        self._reports = None

    def grow(self, terminal: int, n_rows: int) -> None:
        """Let the next rows of a terminal arrive."""
        size = int(self.sizes[terminal]) + n_rows
        if n_rows < 1 or size > self._offsets[terminal + 1] - self._offsets[terminal]:
            raise ProtocolError(f"terminal {terminal} has no {n_rows} rows that could still arrive")
        self.actors.post(self._shard_of(terminal), "grow", terminal, n_rows)
        self.sizes = self.sizes.copy()
        self.sizes[terminal] = size
        self._reports = None

    def state(self) -> State:
        """Return all that the rounds so far have changed; a writer fetches the dual variables shard by shard."""
        heads = self._gathered("head")
        membership, U, center, lam, gradient, origin = (
            np.concatenate([getattr(head, name) for head in heads])
            for name in ("membership", "U", "center", "lam", "gradient", "origin")
        )
        sent_models = residual = None
        if self.method.channel.keeps_residual:
            sent_models = np.concatenate([head.told for head in heads])
            residual = np.zeros((len(self.station), *self._matrix))
            for ids, part in self._gathered("residuals"):
                residual[ids] = part
        alpha = Later((int(self._offsets[-1]), self.shape[0]), self._fill_duals)
        station, sizes = _copied(self.station), None if isinstance(self.sizes, Tally) else self.sizes.copy()
        stations = membership, U, center, lam, gradient
        return State(heads[0].round, station, sizes, *stations, alpha, residual, sent_models, origin)

    def resume(self, state: State) -> None:
        """Continue from a `state`, with any number of shards."""
        self.station = _copied(state.station)
        late = state.sizes is not None and state.sizes.sum() < self._offsets[-1]
        self.sizes = np.array(state.sizes) if late else self._full
        detached = np.flatnonzero(np.asarray(self.station) < 0)
        shards = self._shard_of_station[self._home[detached]]
        self._detached = dict(zip(detached.tolist(), shards.tolist(), strict=True))
        alpha = state.alpha.array() if isinstance(state.alpha, Later) else state.alpha
        for s in range(self._n_shards):
            self.actors.ask("restore", {s: (self._snapshot(s, state, alpha),)}, changes=True)
            self.actors.rest()
        self._reports = None

    def _gathered(self, name: str) -> list[Any]:
        """Return the answers of all shards, in their order."""
        answers = self.actors.ask(name, dict.fromkeys(range(self._n_shards), ()))
        return [answers[s] for s in sorted(answers)]

    def _shard_of(self, terminal: int) -> int:
        """Return the shard of a terminal."""
        station = int(self.station[terminal])
        return int(self._shard_of_station[station]) if station >= 0 else self._detached[terminal]

    def _shards(self) -> IntArray:
        """Return the shard of every terminal."""
        shards: IntArray = self._shard_of_station[np.asarray(self.station)]
        shards[list(self._detached)] = list(self._detached.values())
        return shards

    def _stations(self, shard: int) -> slice:
        return slice(self._bounds[shard], self._bounds[shard + 1])

    def _by_station(self, steps: IntArray) -> IntArray | None:
        """Return the steps of each station, unless two terminals of a station differ."""
        if steps.strides == (0,):
            return np.full(len(self._shard_of_station), steps[0])
        stations = np.asarray(self.station)
        attached = stations >= 0
        station, attached_steps = stations[attached], steps[attached]
        by_station = np.zeros(len(self._shard_of_station), dtype=np.int64)
        by_station[station] = attached_steps
        return by_station if np.array_equal(by_station[station], attached_steps) else None

    def _visitor(self, terminal: int) -> Visitor:
        first, last = self._offsets[terminal : terminal + 2].tolist()
        scaler = self._scalers[self._home[terminal]] if self._scalers else Scaler()
        level = None if self._levels is None else float(self._levels[self._home[terminal]])
        return Visitor(terminal, first, last, scaler, level)

    def _fill_duals(self, out: Float64Array) -> None:
        for s in range(self._n_shards):
            ids, alpha = self.actors.ask("duals", {s: ()})[s]
            # Consecutive ids are copied together.
            starts = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
            last_places = np.append(starts[1:], len(ids)) - 1
            start = 0
            for first, last in zip(ids[starts].tolist(), ids[last_places].tolist(), strict=True):
                a, b = self._offsets[[first, last + 1]].tolist()
                out[a:b] = alpha[start : start + b - a]
                start += b - a

    def _snapshot(self, shard: int, state: State, alpha: Float64Array) -> Snapshot:
        """Return the snapshot of a shard for a state of all shards."""
        stations = self._stations(shard)
        first, last = self._task_offsets[[stations.start, stations.stop]].tolist()
        in_shard = self._shards() == shard
        guests = np.flatnonzero(in_shard)
        guests = guests[(guests < first) | (guests >= last)]
        ids = np.append(np.arange(first, last), guests)
        present = in_shard[ids]
        station = np.where(present & (self.station[ids] >= 0), self.station[ids] - stations.start, -1)
        rows = [slice(int(self._offsets[first]), int(self._offsets[last]))]
        rows += [slice(*self._offsets[t : t + 2].tolist()) for t in guests.tolist()]
        parts = State(
            state.round,
            station,
            None if isinstance(self.sizes, Tally) else self.sizes[ids],
            state.membership[stations],
            state.U[stations],
            state.center[stations],
            state.lam[stations],
            state.gradient[stations],
            np.concatenate([alpha[span] for span in rows]),
            None if state.residual is None else np.where(present[:, None, None], state.residual[ids], 0.0),
            None if state.told is None else state.told[stations],
            None if state.origin is None else state.origin[stations],
        )
        scalers = self._scalers[stations] if self._scalers else None
        levels = None if self._levels is None else self._levels[stations]
        return Snapshot(scalers, levels, [self._visitor(t) for t in guests.tolist()], present, parts)


def _copied(values: IntArray) -> Any:
    """Return the numbers in compressed form or as a copy: a later change of ``values`` does not change the result."""
    compressed = compact(values)
    return compressed if isinstance(compressed, Runs) else compressed.copy()
