"""A network in shards, wherever these are: the side that speaks to them.

It knows who is where, and nothing of rows and duals. What goes down are anchors, models and numbers of steps (by
station, where all terminals of one have the same); what comes up are v_b, sums and gain curves. Stations and samples
of terminals are not kept one by one (`Runs`, `Tally`) until somebody moves, or samples arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, Protocol

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import Moments, Scaler
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
    """The shards, and the way to them."""

    def post(self, shard: int, name: str, *given: Any) -> None:
        """Call a method of a shard for what it does; it may wait until the shard is asked something."""

    def ask(self, name: str, calls: Calls, *, changes: bool = False) -> dict[int, Any]:
        """Call a method of several shards at once, each with its own arguments, for what they answer.

        ``changes`` says that it does something, too.
        """

    def rest(self) -> None:
        """Called between rounds: time to put the shards away."""

    def close(self) -> None:
        """Give the shards back."""


def share_out(federation: Federation, weights: Sequence[float], present: IntArray) -> list[Part]:
    """Cut the stations into parts with rows in proportion to the weights; fewer parts where stations are few."""
    rows = federation.terminal_offsets[federation.task_offsets]
    n = min(len(weights), federation.n_tasks)
    shares = np.cumsum(weights[:n])[:-1] / np.sum(weights[:n])
    cuts = np.searchsorted((rows[:-1] + rows[1:]) / 2.0, shares * rows[-1])
    # Each part has a station at least.
    cuts = np.clip(cuts, np.arange(1, n), federation.n_tasks - np.arange(n - 1, 0, -1))
    bounds = [0, *cuts.tolist(), federation.n_tasks]
    for i in range(1, n):
        bounds[i] = max(bounds[i], bounds[i - 1] + 1)
    return [Part.of(federation, first, last, present) for first, last in pairwise(bounds)]


class Sharded:
    """All stations and terminals, in shards."""

    def __init__(
        self,
        federation: Federation,
        method: Method,
        parts: Sequence[Part],
        actors: ShardActors,
        close: Callable[[], None] | None = None,
    ) -> None:
        """``close`` gives back the shards and what they run on; without it, the shards alone."""
        self.method = method
        self.actors, self.close = actors, close or actors.close
        columns = len(federation.class_names) if len(federation.class_names) > 2 else 1
        self.shape = columns, federation.n_features + method.intercept
        self._matrix = method.rows(columns), self.shape[1]
        self._shared = method.shared_rows(columns)
        self._offsets = federation.terminal_offsets
        self._task_offsets = federation.task_offsets
        self._bounds = [*(part.station for part in parts), federation.n_tasks]
        self._of_station = np.repeat(np.arange(len(parts)), np.diff(self._bounds))
        self._home: Any = Runs.repeat(np.arange(federation.n_tasks), np.diff(federation.task_offsets))
        self.station: Any = self._home
        self._away: dict[int, int] = {}  # shard of those who are under no station
        self._full: Any = federation.sizes
        self.sizes: Any = self._full
        if any(part.present is not None for part in parts):
            self.sizes = np.concatenate([part.present for part in parts])
        self._scalers: list[Scaler] = []
        self._levels: Float64Array | None = None
        self._reports: dict[int, Reported] | None = None
        self._reported = False

    @property
    def message_sizes(self) -> MessageSizes:
        """Bytes of the messages of a round."""
        among = self.method.channel.masked_among(np.diff(self._task_offsets))
        return message_sizes(self._matrix, self._shared, self.method.profile_length, self.method.channel, among)

    @property
    def V(self) -> Float64Array:
        """What the stations tell the cloud."""
        return np.array([report.v for report in self.reports(0)])

    @property
    def models(self) -> Float64Array:
        """What orders start from, of every station."""
        return np.concatenate(self._gathered("models"))

    def moments(self) -> list[Moments]:
        """Round zero: moments of the training rows of every station."""
        return list(chain.from_iterable(self._gathered("moments")))

    def labels(self) -> Float64Array:
        """Round zero: label sums of every station."""
        return np.concatenate(self._gathered("labels"))

    def centre(self, levels: Float64Array) -> None:
        """Round zero: subtract from the labels of every terminal the level of its station."""
        self._levels = levels
        for s in range(self._n_shards):
            self.actors.post(s, "centre", levels[self._stations(s)])

    def scale(self, scalers: list[Scaler]) -> None:
        """Round zero: scale the rows of every terminal as its station says."""
        self._scalers = scalers
        for s in range(self._n_shards):
            self.actors.post(s, "scale", scalers[self._stations(s)])

    def assign(self, anchors: list[Anchor]) -> None:
        """Carry anchors from the cloud to the stations: those of all of them, in their order."""
        if [anchor.task for anchor in anchors] != list(range(len(self._of_station))):
            raise ProtocolError(f"{len(anchors)} anchors for {len(self._of_station)} stations: each needs one")
        for s in range(self._n_shards):
            own = anchors[self._stations(s)]
            self.actors.post(s, "assign", [replace(anchor, task=b) for b, anchor in enumerate(own)])
        self._reports = None

    def round(self, number: int, local_steps: IntArray, arrives: BoolArray | None = None) -> Outcome:
        """One BS iteration of all shards at once."""
        if np.shape(local_steps) != self.station.shape:
            raise ProtocolError(f"steps of shape {np.shape(local_steps)} for {len(self.station)} terminals")
        by_station = self._by_station(local_steps)
        where = self._where() if by_station is None or arrives is not None else None
        calls: dict[int, tuple[Any, ...]] = {}
        for s in range(self._n_shards):
            steps = local_steps[where == s] if by_station is None else by_station[self._stations(s)]
            given = None if arrives is None else arrives[where == s]
            calls[s] = number, steps, by_station is not None, given, self._reported
        found = self.actors.ask("round", calls, changes=True)
        self._reports = {s: reported for s, (_, reported) in found.items()} if self._reported else None
        self._reported = False
        self.actors.rest()
        return Outcome(*(np.concatenate([found[s][0][i] for s in sorted(found)]) for i in range(3)))

    def reports(self, cloud_round: int) -> list[Report]:
        """Carry the stations' reports to the cloud; they are asked once, as long as nothing happens.

        Reports that are wanted after a round come along with the next one.
        """
        self._reported = True
        if self._reports is None:
            self._reports = self.actors.ask("reports", self._each())
        return [
            Report(cloud_round, self._bounds[s] + i, known.round, v, int(n), int(membership))
            for s, known in sorted(self._reports.items())
            for i, (v, n, membership) in enumerate(zip(*known[1:], strict=True))
        ]

    def sums(self, points: Points) -> list[StationSums | None]:
        """Sums of every station at each of the points, for the certificate."""
        needed, models = (len(self._of_station), *self.shape), points.models
        if models.ndim != 4 or models.shape[1:] != needed:
            raise PeerError(f"models of shape {models.shape} do not fit (any, *{needed})")
        parts = {s: (points._replace(models=models[:, self._stations(s)]),) for s in range(self._n_shards)}
        found = self.actors.ask("sums", parts)
        told = [each for s in sorted(found) for each in found[s]]
        return [
            StationSums(r.task, r.round, losses, dual, slope, r.n_samples, r.membership, kept)
            for r, (losses, dual, slope, kept) in zip(self.reports(0), told, strict=True)
        ]

    def station_shares(self) -> Float64Array:
        """Σ_t X_tᵀα_t of every station."""
        return np.concatenate(self._gathered("station_shares"))

    def move(self, terminal: int, station: int) -> None:
        """Move a terminal, with its duals, under another station, or out of the network (−1)."""
        if not (0 <= terminal < len(self.station) and -1 <= station < len(self._of_station)):
            raise ProtocolError(
                f"no move of terminal {terminal} to station {station}: there are {len(self.station)} terminals and "
                f"{len(self._of_station)} stations"
            )
        old = self._shard_of(terminal)
        new = int(self._of_station[station]) if station >= 0 else old
        place = station - self._bounds[new] if station >= 0 else -1
        if new == old:
            self.actors.post(old, "move", terminal, place)
        else:
            size, alpha = self.actors.ask("release", {old: (terminal,)}, changes=True)[old]
            self.actors.post(new, "admit", self._visitor(terminal), place, size, alpha)
        if isinstance(self.station, Runs):
            self.station = self.station.copy()
        self.station[terminal] = station
        self._away.pop(terminal, None)
        if station < 0:
            self._away[terminal] = old
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
        """All that the rounds so far have changed; the duals are fetched shard by shard when they are written."""
        heads = self._gathered("head")
        membership, U, center, lam, gradient, origin = (
            np.concatenate([getattr(head, name) for head in heads])
            for name in ("membership", "U", "center", "lam", "gradient", "origin")
        )
        told = np.concatenate([head.told for head in heads]) if self.method.channel.keeps_residual else None
        alpha = Later((int(self._offsets[-1]), self.shape[0]), self._fill_duals)
        station, sizes = _apart(self.station), None if isinstance(self.sizes, Tally) else self.sizes.copy()
        stations = membership, U, center, lam, gradient
        return State(heads[0].round, station, sizes, *stations, alpha, self._residuals(), told, origin)

    def resume(self, state: State) -> None:
        """Go on from what `state` gave, for whatever number of shards."""
        self.station = _apart(state.station)
        late = state.sizes is not None and state.sizes.sum() < self._offsets[-1]
        self.sizes = np.array(state.sizes) if late else self._full
        gone = np.flatnonzero(np.asarray(self.station) < 0)
        self._away = dict(zip(gone.tolist(), self._of_station[self._home[gone]].tolist(), strict=True))
        alpha = state.alpha.array() if isinstance(state.alpha, Later) else state.alpha
        for s in range(self._n_shards):
            self.actors.ask("restore", {s: (self._snapshot(s, state, alpha),)}, changes=True)
            self.actors.rest()
        self._reports = None

    @property
    def _n_shards(self) -> int:
        return len(self._bounds) - 1

    def _each(self) -> Calls:
        return dict.fromkeys(range(self._n_shards), ())

    def _gathered(self, name: str) -> list[Any]:
        """What all shards answer, in their order."""
        found = self.actors.ask(name, self._each())
        return [found[s] for s in sorted(found)]

    def _shard_of(self, terminal: int) -> int:
        """Where a terminal is."""
        station = int(self.station[terminal])
        return int(self._of_station[station]) if station >= 0 else self._away[terminal]

    def _where(self) -> IntArray:
        """Shard of every terminal."""
        found: IntArray = self._of_station[np.asarray(self.station)]
        found[list(self._away)] = list(self._away.values())
        return found

    def _stations(self, shard: int) -> slice:
        return slice(self._bounds[shard], self._bounds[shard + 1])

    def _by_station(self, steps: IntArray) -> IntArray | None:
        """Steps of each station, where all of its terminals have the same."""
        if steps.strides == (0,):
            return np.full(len(self._of_station), steps[0])
        whole = np.asarray(self.station)
        here = whole >= 0
        station, own = whole[here], steps[here]
        each = np.zeros(len(self._of_station), dtype=np.int64)
        each[station] = own
        return each if np.array_equal(each[station], own) else None

    def _visitor(self, terminal: int) -> Visitor:
        first, last = self._offsets[terminal : terminal + 2].tolist()
        scaler = self._scalers[self._home[terminal]] if self._scalers else Scaler()
        level = None if self._levels is None else float(self._levels[self._home[terminal]])
        return Visitor(terminal, first, last, scaler, level)

    def _residuals(self) -> Float64Array | None:
        """What each terminal keeps back of its updates, where the channel rounds them."""
        if not self.method.channel.keeps_residual:
            return None
        kept = np.zeros((len(self.station), *self._matrix))
        for ids, part in self._gathered("residuals"):
            kept[ids] = part
        return kept

    def _fill_duals(self, out: Float64Array) -> None:
        for s in range(self._n_shards):
            ids, alpha = self.actors.ask("duals", {s: ()})[s]
            start = 0
            for first, last in _stretches(ids):
                a, b = self._offsets[[first, last + 1]].tolist()
                out[a:b] = alpha[start : start + b - a]
                start += b - a

    def _snapshot(self, shard: int, state: State, alpha: Float64Array) -> Snapshot:
        """What a shard has to become, for a state of the whole."""
        own = self._stations(shard)
        first, last = self._task_offsets[[own.start, own.stop]].tolist()
        mine = self._where() == shard
        guests = np.flatnonzero(mine)
        guests = guests[(guests < first) | (guests >= last)]
        ids = np.append(np.arange(first, last), guests)
        here = mine[ids]
        station = np.where(here & (self.station[ids] >= 0), self.station[ids] - own.start, -1)
        rows = [slice(int(self._offsets[first]), int(self._offsets[last]))]
        rows += [slice(*self._offsets[t : t + 2].tolist()) for t in guests.tolist()]
        parts = State(
            state.round,
            station,
            None if isinstance(self.sizes, Tally) else self.sizes[ids],
            state.membership[own],
            state.U[own],
            state.center[own],
            state.lam[own],
            state.gradient[own],
            np.concatenate([alpha[span] for span in rows]),
            None if state.residual is None else np.where(here[:, None, None], state.residual[ids], 0.0),
            None if state.told is None else state.told[own],
            None if state.origin is None else state.origin[own],
        )
        scalers = self._scalers[own] if self._scalers else None
        levels = None if self._levels is None else self._levels[own]
        return Snapshot(scalers, levels, [self._visitor(t) for t in guests.tolist()], here, parts)


def _apart(values: IntArray) -> Any:
    """The same numbers, as stretches or as a copy: what happens to the given ones is nothing to them."""
    found = compact(values)
    return found if isinstance(found, Runs) else found.copy()


def _stretches(ids: IntArray) -> list[tuple[int, int]]:
    """First and last of ids that follow each other, stretch by stretch."""
    starts = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
    ends = np.append(starts[1:], len(ids))
    return [(int(ids[a]), int(ids[b - 1])) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
