"""The roles, message by message, in one process: the plain path that shows what every engine must reproduce."""

from __future__ import annotations

import contextlib

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation, FloatArray
from rhfedmtl.data.scaling import Moments, Scaler
from rhfedmtl.engines.network import BoolArray, Float64Array, IntArray, Outcome
from rhfedmtl.engines.registry import Execution
from rhfedmtl.maths.objective import Points
from rhfedmtl.resources.sizes import MessageSizes
from rhfedmtl.roles.message_sizes import message_sizes
from rhfedmtl.roles.messages import Anchor, Centring, Report, Scaling, StationSums
from rhfedmtl.roles.plausibility import ImplausibleError
from rhfedmtl.roles.round_zero import Spreads, together
from rhfedmtl.roles.station import BaseStation, Merged
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
        self.shape = self._y.shape[1], federation.n_features + method.intercept
        matrix, shared = (method.rows(self.shape[0]), self.shape[1]), method.shared_rows(self.shape[0])
        self.stations = [BaseStation(b, matrix, method, shared, seed=seed) for b in range(federation.n_tasks)]
        counts = np.diff(federation.terminal_offsets) if present is None else present
        self.terminals = [self._make_terminal(t, int(count), seed) for t, count in enumerate(counts)]
        self.station = federation.terminal_task.astype(np.int64)
        for terminal, b in zip(self.terminals, self.station, strict=True):
            with contextlib.suppress(ImplausibleError):
                self.stations[b].admit(terminal.join())
            self._strike(self.stations[b])

    def _make_terminal(self, t: int, count: int, seed: int) -> Terminal:
        X, y, weight = self._rows(t, 0, count)
        return Terminal(t, X, y, self.method, seed=seed, weight=weight)

    def _rows(self, t: int, first: int, last: int) -> tuple[FloatArray, Float64Array, Float64Array | None]:
        """Rows first … last − 1 of a terminal, as they are before scaling."""
        start = int(self._federation.terminal_offsets[t])
        rows = slice(start + first, start + last)
        weight = self._federation.sample_weight
        own_weight = None if weight is None else np.asarray(weight[rows], dtype=np.float64)
        return self._federation.X[rows], self._y[rows], own_weight

    @property
    def sizes(self) -> IntArray:
        """Samples of every terminal."""
        return np.array([terminal.n_samples for terminal in self.terminals])

    @property
    def message_sizes(self) -> MessageSizes:
        """Bytes of the messages of a round."""
        shared = self.method.shared_rows(self.shape[0])
        among = self.method.channel.masked_among(np.diff(self._federation.task_offsets))
        return message_sizes(self.stations[0].shape, shared, self.method.profile_length, self.method.channel, among)

    @property
    def V(self) -> Float64Array:
        """What the stations tell the cloud."""
        return np.array([station.v for station in self.stations])

    @property
    def models(self) -> Float64Array:
        """What orders start from."""
        return np.array([station.model for station in self.stations])

    def assign(self, anchors: list[Anchor]) -> None:
        """Hand each station its anchor."""
        for anchor in anchors:
            self.stations[anchor.task].receive_anchor(anchor)

    def round(self, number: int, local_steps: IntArray, arrives: BoolArray | None = None) -> Outcome:
        """One BS iteration: orders down, updates up, merge."""
        merged = [self._station_round(station, number, local_steps, arrives) for station in self.stations]
        return Outcome(
            np.array([len(m.answered) for m in merged]),
            np.array([m.factor for m in merged]),
            np.array([m.gains for m in merged]),
        )

    def _station_round(
        self, station: BaseStation, number: int, local_steps: IntArray, arrives: BoolArray | None
    ) -> Merged:
        steps = {t: int(local_steps[t]) for t in station.members if local_steps[t] > 0}
        for order in station.open_round(number, steps):
            update = self.terminals[order.terminal].work(order)
            if update is not None and (arrives is None or arrives[order.terminal]):
                with contextlib.suppress(ImplausibleError):  # the station takes it out when the round closes
                    station.receive(update)
        merged = station.close_round()
        self._strike(station)
        return merged

    def _strike(self, station: BaseStation) -> None:
        """Note who is under no station any more."""
        for t in station.quarantined:
            self.station[t] = -1

    def reports(self, cloud_round: int) -> list[Report]:
        """v_b of every station."""
        return [station.report(cloud_round) for station in self.stations]

    def sums(self, points: Points) -> list[StationSums | None]:
        """Probe every terminal, and add up at the stations."""
        return [self._station_sums(station, points) for station in self.stations]

    def _station_sums(self, station: BaseStation, points: Points) -> StationSums | None:
        probes = station.probes(points.models[:, station.task], points.combinations, gradient=points.gradient)
        answers = [self.terminals[probe.terminal].probe(probe) for probe in probes]
        found = station.add_sums([sums for sums in answers if sums is not None])
        self._strike(station)
        return found

    def station_shares(self) -> Float64Array:
        """Add up what every terminal has in its station's sum."""
        return np.array(
            [
                sum((member.share for _, member in sorted(station.members.items())), np.zeros(station.shape))
                for station in self.stations
            ]
        )

    def moments(self) -> list[Moments]:
        """Collect moments from every terminal, and add up at the stations."""
        return [self._moments(station) for station in self.stations]

    def _moments(self, station: BaseStation) -> Moments:
        if self.method.channel.sums_only:
            return together(Spreads.of_moments([self.terminals[t].moments() for t in sorted(station.members)])).moments
        found = station.add_moments({t: self.terminals[t].moments() for t in sorted(station.members)})
        self._strike(station)
        return found

    def labels(self) -> Float64Array:
        """Collect label sums from every terminal, and add up at the stations."""
        return np.array([self._labels(station) for station in self.stations])

    def _labels(self, station: BaseStation) -> Float64Array:
        told = {t: self.terminals[t].labels() for t in sorted(station.members)}
        if self.method.channel.sums_only:
            return together(Spreads.of_labels(np.array([each.sums for each in told.values()]))).labels
        found = station.add_labels(told)
        self._strike(station)
        return found

    def centre(self, levels: Float64Array) -> None:
        """Tell every terminal the level of its task; rows that are still to come lose it as well."""
        self._y = self._y - levels[self._federation.row_task][:, None]
        for station, level in zip(self.stations, levels.tolist(), strict=True):
            for t in station.members:
                self.terminals[t].centre(Centring(level))

    def scale(self, scalers: list[Scaler]) -> None:
        """Tell every terminal how to scale its rows."""
        self._scalers = scalers
        for station, scaler in zip(self.stations, scalers, strict=True):
            told = Scaling.of(scaler, self.method.channel.moments_dtype)
            station.scaled(told)
            for t in station.members:
                self.terminals[t].scale(told)

    def move(self, terminal: int, station: int) -> None:
        """Leave one station, join the other."""
        self._detach(terminal)
        if station >= 0:
            self.stations[station].admit(self.terminals[terminal].join())
        self.station[terminal] = station

    def grow(self, terminal: int, n_rows: int) -> None:
        """Leave, take in the next rows, join again."""
        mover, station = self.terminals[terminal], self.station[terminal]
        self._detach(terminal)
        X, y, weight = self._rows(terminal, mover.n_samples, mover.n_samples + n_rows)
        home = self._federation.terminal_task[terminal]
        mover.add_rows(self._scalers[home].transform(X), y, weight)
        if station >= 0:
            self.stations[station].admit(mover.join())

    def _detach(self, terminal: int) -> None:
        """Release, leave, goodbye."""
        mover, old = self.terminals[terminal], self.station[terminal]
        if old < 0:
            return
        leave = mover.leave(self.stations[old].release(terminal))
        if leave is not None:
            mover.goodbye(self.stations[old].remove(leave))


def network(
    federation: Federation, method: Method, *, seed: int, present: IntArray, execution: Execution
) -> MessagePassing:
    """Engine ``linked``."""
    return MessagePassing(federation, method, seed=seed, present=present)
