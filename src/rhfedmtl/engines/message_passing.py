"""Engine ``message-passing``: the roles, message by message, in this process.

It is the plain reference: every other exact engine gives the same numbers. Messages are direct calls and never get
lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation, FloatArray
from rhfedmtl.data.scaling import Moments, RowMap, Scaler
from rhfedmtl.engines.network import BoolArray, Float64Array, IntArray, Outcome
from rhfedmtl.engines.registry import Execution
from rhfedmtl.maths.objective import Points
from rhfedmtl.resources.sizes import MessageSizes
from rhfedmtl.roles.message_sizes import message_sizes
from rhfedmtl.roles.messages import Anchor, Centring, Report, Scaling, StationSums
from rhfedmtl.roles.plausibility import ImplausibleError
from rhfedmtl.roles.round_zero import Spreads, together
from rhfedmtl.roles.station import BaseStation
from rhfedmtl.roles.terminal import Terminal


class MessagePassing:
    """Stations and terminals as role objects, joined by direct calls."""

    def __init__(
        self, federation: Federation, method: Method, *, seed: int = 0, present: IntArray | None = None
    ) -> None:
        method.check(federation)
        self.method = method
        self._federation = federation
        self._y = federation.targets()
        self._scalers = [Scaler()] * federation.n_tasks
        self.shape = self._y.shape[1], method.width(federation.n_features)
        matrix, shared = (method.rows(self.shape[0]), self.shape[1]), method.shared_rows(self.shape[0])
        self.stations = [BaseStation(b, matrix, method, shared, seed=seed) for b in range(federation.n_tasks)]
        counts = np.diff(federation.terminal_offsets) if present is None else present
        self.terminals = []
        for t, count in enumerate(counts.tolist()):
            X, y, weight = self._rows(t, 0, count)
            self.terminals.append(Terminal(t, X, y, method, seed=seed, weight=weight))
        self.station = federation.terminal_task.astype(np.int64)
        for terminal, b in zip(self.terminals, self.station, strict=True):
            with contextlib.suppress(ImplausibleError):
                self.stations[b].roster.admit(terminal.join())
            self._strike(self.stations[b])

    def _rows(self, t: int, first: int, last: int) -> tuple[FloatArray, Float64Array, Float64Array | None]:
        """Return rows first … last − 1 of a terminal, before scaling."""
        start = int(self._federation.terminal_offsets[t])
        rows = slice(start + first, start + last)
        weights = self._federation.sample_weight
        weight = None if weights is None else np.asarray(weights[rows], dtype=np.float64)
        return self._federation.X[rows], self._y[rows], weight

    @property
    def sizes(self) -> IntArray:
        """Samples of every terminal."""
        return np.array([terminal.n_samples for terminal in self.terminals])

    @property
    def message_sizes(self) -> MessageSizes:
        """Sizes of the messages of a round."""
        shared = self.method.shared_rows(self.shape[0])
        among = self.method.channel.masked_among(np.diff(self._federation.task_offsets))
        return message_sizes(self.stations[0].shape, shared, self.method.profile_length, self.method.channel, among)

    @property
    def V(self) -> Float64Array:
        """v_b of every station, as reported."""
        return np.array([station.v for station in self.stations])

    @property
    def models(self) -> Float64Array:
        """Models of the orders, of every station."""
        return np.array([station.model for station in self.stations])

    def assign(self, anchors: list[Anchor]) -> None:
        """Pass each station its anchor."""
        for anchor in anchors:
            self.stations[anchor.task].receive_anchor(anchor)

    def round(self, number: int, local_steps: IntArray, arrives: BoolArray | None = None) -> Outcome:
        """Run a BS iteration: orders down, updates up, merge."""
        merged = []
        for station in self.stations:
            steps = {t: int(local_steps[t]) for t in station.members if local_steps[t] > 0}
            for order in station.open_round(number, steps):
                update = self.terminals[order.terminal].work(order)
                if update is not None and (arrives is None or arrives[order.terminal]):
                    with contextlib.suppress(ImplausibleError):  # the station quarantines it when the round closes
                        station.receive(update)
            merged.append(station.close_round())
            self._strike(station)
        return Outcome(
            np.array([len(m.answered) for m in merged]),
            np.array([m.factor for m in merged]),
            np.array([m.gains for m in merged]),
        )

    def _strike(self, station: BaseStation) -> None:
        """Record that quarantined terminals are under no station."""
        for t in station.quarantined:
            self.station[t] = -1

    def reports(self, cloud_round: int) -> list[Report]:
        """Return the reports of all stations."""
        return [station.report(cloud_round) for station in self.stations]

    def sums(self, points: Points) -> list[StationSums | None]:
        """Probe every terminal, and return the sums of every station."""
        sums = []
        for station in self.stations:
            probes = station.probes(points.models[:, station.task], points.combinations, gradient=points.gradient)
            answers = [self.terminals[probe.terminal].probe(probe) for probe in probes]
            sums.append(station.add_sums([answer for answer in answers if answer is not None]))
            self._strike(station)
        return sums

    def station_shares(self) -> Float64Array:
        """Return the sum of the members' shares, of every station."""
        return np.array(
            [
                sum((member.share for _, member in sorted(station.members.items())), np.zeros(station.shape))
                for station in self.stations
            ]
        )

    def moments(self, mappings: Sequence[RowMap] | None = None) -> list[Moments]:
        """Round zero: return the moments of the training rows of every station, as its mapping makes them."""
        each: Sequence[RowMap | None] = mappings or [None] * len(self.stations)
        return [self._moments(station, mapping) for station, mapping in zip(self.stations, each, strict=True)]

    def _moments(self, station: BaseStation, mapping: RowMap | None) -> Moments:
        if self.method.channel.sums_only:
            return together(
                Spreads.of_moments([self.terminals[t].moments(mapping) for t in sorted(station.members)])
            ).moments
        reports = {t: self.terminals[t].moments(mapping) for t in sorted(station.members)}
        moments = station.roster.add_moments(reports, mapping)
        self._strike(station)
        return moments

    def labels(self) -> Float64Array:
        """Round zero of a regression: return the label sums of every station."""
        return np.array([self._labels(station) for station in self.stations])

    def _labels(self, station: BaseStation) -> Float64Array:
        reports = {t: self.terminals[t].labels() for t in sorted(station.members)}
        if self.method.channel.sums_only:
            return together(Spreads.of_labels(np.array([report.sums for report in reports.values()]))).labels
        labels = station.roster.add_labels(reports)
        self._strike(station)
        return labels

    def centre(self, levels: Float64Array) -> None:
        """Round zero of a regression: subtract the level of its task from every label, also of rows to come."""
        self._y = self._y - levels[self._federation.row_task][:, None]
        for station, level in zip(self.stations, levels.tolist(), strict=True):
            for t in station.members:
                self.terminals[t].centre(Centring(level))

    def scale(self, scalers: list[Scaler]) -> None:
        """Round zero: let every terminal scale its rows."""
        self._scalers = scalers
        for station, scaler in zip(self.stations, scalers, strict=True):
            scaling = Scaling.of(scaler, self.method.channel.moments_dtype)
            station.roster.scaled(scaling)
            for t in station.members:
                self.terminals[t].scale(scaling)

    def move(self, terminal: int, station: int) -> None:
        """Move a terminal under another station (−1: no station)."""
        self._detach(terminal)
        if station >= 0:
            self.stations[station].roster.admit(self.terminals[terminal].join())
        self.station[terminal] = station

    def grow(self, terminal: int, n_rows: int) -> None:
        """Let a terminal leave, take in its next rows, and join again."""
        role, station = self.terminals[terminal], self.station[terminal]
        self._detach(terminal)
        X, y, weight = self._rows(terminal, role.n_samples, role.n_samples + n_rows)
        home = self._federation.terminal_task[terminal]
        role.add_rows(self._scalers[home].transform(X), y, weight)
        if station >= 0:
            self.stations[station].roster.admit(role.join())

    def _detach(self, terminal: int) -> None:
        """Exchange release, leave and goodbye."""
        role, b = self.terminals[terminal], self.station[terminal]
        if b < 0:
            return
        station = self.stations[b]
        leave = role.leave(station.roster.release(terminal, station.round))
        if leave is not None:
            role.goodbye(station.roster.remove(leave))


def network(
    federation: Federation, method: Method, *, seed: int, present: IntArray, execution: Execution
) -> MessagePassing:
    """Return a network of engine ``message-passing``."""
    return MessagePassing(federation, method, seed=seed, present=present)
