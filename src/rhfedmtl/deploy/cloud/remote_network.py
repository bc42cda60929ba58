"""`RemoteNetwork`: the stations as a `Network` of arrays, so the usual training loop runs over real nodes.

`Run` calls it in the training thread, exactly as it calls a simulated network. It turns each call into a request to
every station, and the answers into arrays.

Theory of operation.

1. Every request goes through `ActiveStations` and the journal. After a kill the same calls therefore return the same
   arrays.
2. Before a server iteration, `sync` asks for the members if a station has reported a change. ``station`` and ``sizes``
   have an entry for every terminal number; a terminal without a station has −1.
3. Each server iteration is an ``assign``, some ``round`` and a ``report``. A station that is away for too long misses a
   round with all its terminals.
4. A certificate needs all stations that are not excluded: `ActiveStations.from_all` raises `IncompleteError` if an
   answer is missing.
5. Reports and sums are checked against the bounds of the station's rows (`checks.StationBounds`). A station that sends
   impossible numbers is excluded until `rhfedmtl network reset`.
6. `Standing` remembers the position of each station, so a station that was restored from an old copy is detected.

`state` and `resume` are part of the checkpoint. Their keys are a file format: do not rename them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation, Origin, offsets
from rhfedmtl.data.scaling import NO_MOMENTS, Moments, RowMap, Scaler
from rhfedmtl.deploy.cloud.active_stations import ActiveStations, bodies
from rhfedmtl.deploy.cloud.checks import StationBounds
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.journal import Answers, TrainingJournal
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.engines.network import BoolArray, Float64Array, IntArray, NoisedTerms, Outcome
from rhfedmtl.errors import ConfigError, IncompleteError
from rhfedmtl.maths.kernels.rounds import CURVE
from rhfedmtl.maths.objective import Points
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT, NEWTON
from rhfedmtl.resources.sizes import MessageSizes
from rhfedmtl.roles.message_sizes import message_sizes
from rhfedmtl.roles.messages import Anchor, Centring, MomentsRequest, Noising, Report, Scaling, StationSums
from rhfedmtl.roles.plausibility import ImplausibleError
from rhfedmtl.training.privacy import PrivatePlan


class Round(NamedTuple):
    """Answers of the stations in the last round, and the efforts of the terminals."""

    answers: Answers
    efforts: dict[int, wire.Effort]
    unknown: frozenset[int]
    """Stations that received the request and did not answer: their terminals may have worked."""


class Standing(NamedTuple):
    """Position of a station when it last answered a round. Within an epoch, round and membership never decrease."""

    epoch: str
    round: int
    membership: int


class RemoteNetwork:
    """The `Network` of a training whose stations are processes on other machines.

    It never draws a random number, and never changes the members.

    Parameters
    ----------
    config : CloudConfig
        Configuration of the cloud.
    method : Method
        Method of the algorithm that the network runs.
    journal : TrainingJournal
        Carries the requests, and replays answers after a kill.
    memberships : Callable[[], dict[int, int]]
        Returns the number of membership changes of each station, as it last reported.
    """

    def __init__(
        self, config: CloudConfig, method: Method, journal: TrainingJournal, memberships: Callable[[], dict[int, int]]
    ) -> None:
        self.config, self.method, self._journal = config, method, journal
        self._latest_memberships = memberships
        self._job = config.learning.job()
        self.shape = jobs.shape_of(self._job, method)
        self._matrix, self._shared = jobs.matrix_of(self._job, method)
        self.n_stations = len(config.stations)
        self.partners = ActiveStations(config, journal)
        self.excluded = self.partners.excluded
        self.station: IntArray = np.empty(0, dtype=np.int64)
        """Station of every terminal; −1 if it has none."""
        self.sizes: IntArray = np.empty(0, dtype=np.int64)
        """Samples of every terminal, as last reported."""
        self._memberships: dict[int, int] = {}
        self.silent: dict[int, str] = {}
        """Stations that did not report their members, with the reason."""
        self.deadline = config.resources.deadline
        self.last_round = Round({}, {}, frozenset())
        self.scalers: list[Scaler] | None = None
        self.levels: Float64Array | None = None
        self.noising: Noising | None = None
        self.anchors: dict[int, Anchor] = {}
        self.announced = 0
        """The last round in the journal."""
        self._standing: dict[int, Standing] = {}
        self._reported: dict[int, tuple[int, int, Float64Array]] = {}  # round, membership and v_b of the last reports

    def is_behind(self, station: int, hello: wire.Hello) -> bool:
        """Return True if a station is behind its last report: its state was put back from an old copy."""
        standing = self._standing.get(station)
        if standing is None or standing.epoch != hello.epoch:
            return False
        return hello.round < standing.round or hello.membership < standing.membership

    def agreed(self, station: int) -> jobs.Agreement:
        """Return the agreements of round zero for a station and its terminals."""
        return jobs.Agreement(
            None if self.scalers is None else Scaling.of(self.scalers[station], self.method.channel.moments_dtype),
            None if self.levels is None else Centring(float(self.levels[station])),
            self.noising,
        )

    @property
    def message_sizes(self) -> MessageSizes:
        """Bytes of the messages of a round, which declared prices of bytes use."""
        channel, stations = self.method.channel, self.station[self.station >= 0]
        largest_station = int(np.bincount(stations).max(initial=0)) if channel.sums_only else 0
        return message_sizes(self._matrix, self._shared, self.method.profile_length, channel, largest_station)

    @property
    def models(self) -> Float64Array:
        """Model of every station, from which its orders start."""
        answers = self.partners.ask("models", None, self.partners.each(lambda b: wire.Request(models=wire.Nothing())))
        models = np.zeros((self.n_stations, *self._matrix))
        for b, tensor in self.partners.from_all(answers, "models").items():
            models[b] = codec.array(tensor, "models")
        return models

    def sync(self, *, first: bool = False) -> bool:
        """Ask the stations for their members if a station has reported a change; return True if members changed.

        The ``first`` call always asks.
        """

        def changed_memberships() -> dict[str, Any] | None:
            memberships = self._latest_memberships()
            if not first and memberships == self._memberships:
                return None
            return {str(b): number for b, number in memberships.items()}

        if self._journal.write_once("news", changed_memberships) is None:
            return False
        answers = self.partners.ask("roster", None, self.partners.each(lambda b: wire.Request(roster=wire.Nothing())))
        old_station = self.station
        self._take_rosters(answers)
        return not np.array_equal(old_station, self.station) or first

    def _take_rosters(self, answers: Answers) -> None:
        """Update the station and the size of every terminal; a station without an answer keeps its members."""
        rosters = bodies(answers, "roster")
        self.silent = {b: answer.trouble for b, answer in answers.items() if b not in rosters}
        highest = max((seat.terminal for roster in rosters.values() for seat in roster.seats), default=-1)
        n = max(highest + 1, len(self.station))
        station, sizes = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
        station[: len(self.station)], sizes[: len(self.sizes)] = self.station, self.sizes
        for b, roster in rosters.items():
            station[station == b] = -1
            self._memberships[b] = roster.membership
            for seat in roster.seats:
                station[seat.terminal], sizes[seat.terminal] = b, seat.n_samples
        self.station, self.sizes = station, sizes

    def assign(self, anchors: list[Anchor]) -> None:
        """Send the anchors of a server iteration to the stations."""
        self.anchors = {a.task: a for a in anchors}
        requests = {b: wire.Request(assign=codec.to_wire(a)) for b, a in self.anchors.items()}
        solver = NEWTON if anchors[0].work == GRADIENT else ASCENT
        self.partners.overhead.note(self.partners.ask("assign", [anchors[0].cloud_round, solver], requests))

    def round(self, number: int, local_steps: IntArray, arrives: BoolArray | None = None) -> Outcome:
        """Run a BS iteration on all stations; a station that is away for too long misses it.

        Parameters
        ----------
        number : int
            Number of the round.
        local_steps : IntArray
            H of every terminal; a terminal with 0 gets no order.
        arrives : BoolArray, optional
            Unused: which updates arrive is a fact here, and a choice only in a simulation.
        """
        requests: dict[int, wire.Request] = {}
        for b in self.partners.numbers:
            terminals = np.flatnonzero((self.station == b) & (local_steps > 0))
            content = wire.RoundRequest(
                round=number,
                terminals=terminals.tolist(),
                local_steps=local_steps[terminals].tolist(),
                deadline=self.deadline,
            )
            requests[b] = wire.Request(round=content)
        self.announced = max(self.announced, number)
        seconds = self.deadline + self.partners.patience
        # A single number is enough if all are equal: the journal stays short.
        equal = len(local_steps) and (local_steps == local_steps[0]).all()
        steps = (local_steps[:1] if equal else local_steps).tolist()
        answers = self.partners.ask("round", [number, *steps], requests, seconds)
        answers |= {b: wire.Answer(away=True) for b in self.excluded}
        by_station = bodies(answers, "round")
        efforts = {effort.terminal: effort for result in by_station.values() for effort in result.efforts}
        unknown = frozenset(b for b, a in answers.items() if b not in by_station and not a.away)
        self.last_round = Round(answers, efforts, unknown)
        self._standing |= {b: Standing(r.epoch, r.round, r.membership) for b, r in by_station.items()}
        results = [by_station.get(b) for b in range(self.n_stations)]
        counts = [sum(effort.answered for effort in r.efforts) if r else 0 for r in results]
        gains = [codec.array(r.gains, "gains") if r else np.zeros(CURVE) for r in results]
        factors = [r.factor if r else 0.0 for r in results]
        return Outcome(np.array(counts), np.array(factors), np.array(gains))

    def reports(self, cloud_round: int) -> list[Report]:
        """Return the reports of all stations that answer and pass the check."""
        requests = self.partners.each(lambda b: wire.Request(report=cloud_round))
        answers = self.partners.ask("report", cloud_round, requests)
        self.partners.overhead.note(answers)
        reports = [codec.from_wire(Report, report) for report in bodies(answers, "report").values()]
        checked = []
        for report in reports:
            members = int(np.count_nonzero(self.station == report.task))
            if self._passes(report.task, partial(self._bounds.check_report, report, members)):
                checked.append(report)
        self._reported |= {report.task: (report.round, report.membership, report.v) for report in checked}
        return checked

    @property
    def _bounds(self) -> StationBounds:
        """Bounds for numbers of stations; the scalers of all stations give rows of the same length."""
        intercept = self.method.intercept
        norm = math.inf if self.scalers is None else self.scalers[0].radius(self.shape[1], intercept=intercept)
        return StationBounds(self.method, self.config.limits, self.shape[0], norm)

    def _passes(self, station: int, check: Callable[[], None]) -> bool:
        """Return True if the check passes; otherwise exclude the station.

        Raise a `PeerError` if the training cannot continue without it.
        """
        try:
            check()
        except ImplausibleError as error:
            self.partners.exclude(station, error.reason, self.method)
            self.station = np.where(self.station == station, -1, self.station)
            return False
        return True

    def sums(self, points: Points) -> list[StationSums | None]:
        """Return the sums of every station at each of the points, for a certificate.

        An excluded station has no sums. Raise an `IncompleteError` if a station or a terminal did not answer, or if a
        station fails the check now.
        """
        combinations = codec.tensor(points.combinations)

        def make_request(b: int) -> wire.Request:
            models = [codec.tensor(model) for model in points.models[:, b]]
            return wire.Request(sums=wire.SumsRequest(models=models, points=combinations, gradient=points.gradient))

        by_station = self._sums(len(points.combinations), make_request)
        n_excluded = len(self.excluded)
        for b, sums in by_station.items():
            *version, v = self._reported.get(b, (-1, -1, None))
            # A report of another round or of other members does not belong to these sums.
            share = max(sums.n_samples, 1) * v if v is not None and version == [sums.round, sums.membership] else None
            self._passes(b, partial(self._bounds.check_sums, sums, points.models[:, b], points.combinations, share))
        if len(self.excluded) > n_excluded:
            raise IncompleteError("no certificate this time: the cloud has just excluded a station")
        return [by_station.get(b) for b in range(self.n_stations)]

    def noised_terms(self, models: Float64Array, deviation: Float64Array) -> NoisedTerms:
        """Return the noised loss sums for a private certificate.

        The nodes add the noise before a sum leaves them. If asked again, they repeat the same sums.
        """

        def make_request(b: int) -> wire.Request:
            model, point = [codec.tensor(models[b])], codec.tensor(np.ones((1, 1)))
            return wire.Request(sums=wire.SumsRequest(models=model, points=point, noise=float(deviation[b])))

        station_sums = list(self._sums(1, make_request).values())
        for sums in station_sums:
            b = sums.task
            noise, members = float(deviation[b]), int(np.count_nonzero(self.station == b))
            self._passes(b, partial(self._bounds.check_term, sums, models[b], noise, members))
        n = np.array([float(max(sums.n_samples, 1)) for sums in station_sums])
        return NoisedTerms(station_sums[0].round, np.array([sums.losses[0] for sums in station_sums]), n)

    def _sums(self, points: int, make_request: Callable[[int], wire.Request]) -> dict[int, StationSums]:
        requests = self.partners.each(make_request)
        answers = self.partners.ask("sums", points, requests, 2.0 * self.config.waits.answer)
        return {b: codec.from_wire(StationSums, sums) for b, sums in self.partners.from_all(answers, "sums").items()}

    def hide(self, method: Method, plan: PrivatePlan) -> None:
        """Agree on clipping and noise with all terminals, before the first round of a private training."""
        self.method, self.noising = method, Noising(plan.clip, plan.noise, plan.delta)
        self.partners.agree("hide", [self.noising] * self.n_stations)

    def trial(self, models: Float64Array, combination: Float64Array | None) -> list[dict[str, float]]:
        """Return the test metrics of every station for its model; empty if the station did not answer."""
        weights = None if combination is None else combination.tolist()
        scalers = self.scalers if self.method.intercept else None
        constant = scalers[0].constant(self.shape[1] - 1) if scalers else 1.0

        def make_request(b: int) -> wire.Request:
            model = codec.tensor(models[b])
            shift = 0.0 if self.levels is None else self.levels[b]
            model.MergeFrom(wire.Tensor(weights=weights, shift=shift, constant=constant))
            return wire.Request(trial=wire.TrialRequest(model=model))

        requests = self.partners.each(make_request)
        answers = self.partners.ask("trial", None, requests, 2.0 * self.config.waits.answer)
        return [dict(answers[b].metrics.values) if b in answers else {} for b in range(self.n_stations)]

    def moments(self, mappings: Sequence[RowMap] | None = None) -> list[Moments]:
        """Return the moments of the rows of every station, in round zero.

        Stations send no moments if sums are noised, or if sums are masked and the scaling needs no moments. With maps,
        they send the moments of mapped rows.
        """
        channel, scale = self.method.channel, self.config.learning.scale
        needed = scale not in ("unit", "none") or (scale == "none" and bool(self.method.features))
        if channel.noised or (channel.sums_only and not needed):
            return [NO_MOMENTS] * self.n_stations

        def make_request(b: int) -> wire.MomentsRequest:
            mapping = None if mappings is None else mappings[b]
            form: wire.MomentsRequest = codec.to_wire(MomentsRequest.of(mapping, channel.moments_dtype))
            return form

        note = None if mappings is None else mappings[0].features.text
        return [report.moments for report in self.partners.tell("moments", make_request, note)]

    def scale(self, scalers: list[Scaler]) -> None:
        """Agree on the scaling with every terminal, in round zero."""
        self.scalers = scalers
        kind = self.method.channel.moments_dtype
        self.partners.agree("scale", [Scaling.of(scaler, kind) for scaler in scalers])

    def labels(self) -> Float64Array:
        """Return the label sums of every station, in round zero of a regression."""
        return np.array([report.sums for report in self.partners.tell("labels")])

    def centre(self, levels: Float64Array) -> None:
        """Let every terminal subtract the level of its station from its labels, in round zero of a regression."""
        self.levels = levels
        self.partners.agree("centre", [Centring(level) for level in levels.tolist()])

    def move(self, terminal: int, station: int) -> None:
        """Refuse: in a real network an operator moves terminals, and a run does not."""
        raise ConfigError("terminals of a real network move by `rhfedmtl network move`")

    def grow(self, terminal: int, n_rows: int) -> None:
        """Refuse: the rows are on the terminals."""
        raise ConfigError("rows cannot be added to a running network: join another terminal that holds them")

    def state(self) -> dict[str, Any]:
        """Return the members, the unpaid bytes and seconds, and the standing of each station."""
        return {
            "station": self.station,
            "sizes": self.sizes,
            "memberships": self._memberships,
            "overhead": [self.partners.overhead.seconds, self.partners.overhead.bytes, self.partners.overhead.aside],
            "announced": self.announced,
            "standing": dict(self._standing),
            "excluded": dict(self.excluded),
            "reported": dict(self._reported),
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state`."""
        self.station, self.sizes = np.copy(state["station"]), np.copy(state["sizes"])
        self._memberships, self.announced = dict(state["memberships"]), state["announced"]
        self._standing = dict(state["standing"])
        self.excluded.clear()
        self.excluded.update(state["excluded"])
        self._reported = dict(state["reported"])
        self.partners.overhead.seconds = state["overhead"][0]
        self.partners.overhead.bytes, self.partners.overhead.aside = (np.copy(part) for part in state["overhead"][1:])


def census(config: CloudConfig, network: RemoteNetwork) -> Federation:
    """Return a federation with the names and sizes that the cloud has, and without rows or features.

    Refuse a network in which a task has no terminal.
    """
    learning = config.learning
    members = [np.flatnonzero(network.station == b) for b in range(network.n_stations)]
    for b, terminals in enumerate(members):
        if not len(terminals):
            why = network.silent.get(b, "start its terminals first")
            raise ConfigError(f"no terminal of task {learning.tasks[b]!r} is there: {why}")
    sizes = np.concatenate([network.sizes[terminals] for terminals in members])
    return Federation.untested(
        np.empty((sizes.sum(), 0)),
        np.zeros(sizes.sum(), dtype=np.int16 if learning.classes else np.float64),
        offsets(sizes),
        offsets([len(terminals) for terminals in members]),
        task_names=learning.tasks,
        class_names=learning.classes,
        origin=Origin(config.node.network, source="a network of base stations and terminals"),
    )
