"""The stations as a `Network`: what a run asks for goes to them as requests, what they answer comes back as arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation, Origin, offsets
from rhfedmtl.data.scaling import Moments, Scaler
from rhfedmtl.deploy.cloud.checks import StationBounds
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.journal import Answers, TrainingJournal
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.engines.network import BoolArray, Float64Array, IntArray, NoisedTerms, Outcome
from rhfedmtl.errors import ConfigError, IncompleteError, PeerError
from rhfedmtl.maths.kernels.rounds import CURVE
from rhfedmtl.maths.objective import Points
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT, NEWTON
from rhfedmtl.resources.sizes import MessageSizes
from rhfedmtl.roles.messages import (
    Anchor,
    Centring,
    Message,
    Noising,
    Report,
    Scaling,
    StationSums,
    message_sizes,
)
from rhfedmtl.roles.plausibility import ImplausibleError

ITERATING = ("round", "assign", "report")
"""Requests of server iterations, whose bytes and seconds make prices."""
WAY_OUT = "Find out why, then start over with `rhfedmtl network reset`"
"""Advice to the operator about an excluded station."""


class Round(NamedTuple):
    """A round as it went: the answers of the stations, with the efforts of the terminals."""

    answers: Answers
    efforts: dict[int, wire.Effort]
    unknown: frozenset[int]
    """Stations that were asked and never answered: their terminals may have worked."""


class Standing(NamedTuple):
    """How far a station had come when it last answered a round. In one epoch none of it ever goes back."""

    epoch: str
    round: int
    membership: int


class RemoteNetwork:
    """Base stations at the other end of a journal, which asks them."""

    def __init__(
        self, config: CloudConfig, method: Method, journal: TrainingJournal, memberships: Callable[[], dict[int, int]]
    ) -> None:
        self.config, self.method, self._journal = config, method, journal
        self._heard = memberships  # how often the members of each station have changed, as it told last
        self._job = config.learning.job()
        self.shape = jobs.shape_of(self._job, method)
        self._matrix, self._shared = jobs.matrix_of(self._job, method)
        self.n_stations = len(config.stations)
        self.station: IntArray = np.empty(0, dtype=np.int64)  # of every terminal
        self.sizes: IntArray = np.empty(0, dtype=np.int64)  # its samples, the last that are known
        self._memberships: dict[int, int] = {}
        self.silent: dict[int, str] = {}
        """Stations that did not say who is there, and why."""
        self.deadline = config.resources.deadline
        self.patience = config.waits.patience
        self.incomplete = ""
        """Why the last attempt gave no certificate."""
        self.last_round = Round({}, {}, frozenset())
        self.scalers: list[Scaler] | None = None
        self.levels: Float64Array | None = None
        self.noising: Noising | None = None
        self.overhead = Overhead(self.n_stations)
        self.anchors: dict[int, Anchor] = {}
        self.announced = 0
        """The last round that the journal tells of."""
        self._standing: dict[int, Standing] = {}
        self.excluded: dict[int, str] = {}
        """Stations whose numbers cannot be true, with the reason: the cloud asks them no more."""
        self.on_excluded: Callable[[int, str], None] = lambda station, reason: None
        self._reported: dict[int, tuple[int, int, Float64Array]] = {}  # round, membership and v_b of the last reports

    def is_behind(self, station: int, hello: wire.Hello) -> bool:
        """Whether a station knows less than it told before: its state was put back from an old copy."""
        known = self._standing.get(station)
        if known is None or known.epoch != hello.epoch:
            return False
        return hello.round < known.round or hello.membership < known.membership

    def agreed(self, station: int) -> jobs.Agreement:
        """What a station, and its terminals, were told before the first round."""
        return jobs.Agreement(
            None if self.scalers is None else self._scaling(self.scalers[station]),
            None if self.levels is None else Centring(float(self.levels[station])),
            self.noising,
        )

    @property
    def message_sizes(self) -> MessageSizes:
        """Bytes of the messages of a round, by which declared prices of bytes are charged."""
        channel, here = self.method.channel, self.station[self.station >= 0]
        among = int(np.bincount(here).max(initial=0)) if channel.sums_only else 0
        return message_sizes(self._matrix, self._shared, self.method.profile_length, channel, among)

    @property
    def models(self) -> Float64Array:
        """What orders start from, of every station."""
        answers = self._ask("models", None, self._all(lambda b: wire.Request(models=wire.Nothing())))
        models = np.zeros((self.n_stations, *self._matrix))
        for b, tensor in self._from_all(answers, "models").items():
            models[b] = codec.array(tensor, "models")
        return models

    def sync(self, *, first: bool = False) -> bool:
        """Ask who is where, if anything has changed; True if so."""

        def news() -> dict[str, Any] | None:
            known = self._heard()
            if not first and known == self._memberships:
                return None
            return {str(b): number for b, number in known.items()}

        found = self._journal.write_once("news", news)
        if found is None:
            return False
        answers = self._ask("roster", None, self._all(lambda b: wire.Request(roster=wire.Nothing())))
        before = self.station
        self._take(answers)
        return not np.array_equal(before, self.station) or first

    def _take(self, answers: Answers) -> None:
        rosters = _told(answers, "roster")
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
        """Carry anchors from the cloud to the stations."""
        self.anchors = {a.task: a for a in anchors}
        requests = {b: wire.Request(assign=codec.to_wire(a)) for b, a in self.anchors.items()}
        solver = NEWTON if anchors[0].work == GRADIENT else ASCENT
        self.overhead.note(self._ask("assign", [anchors[0].cloud_round, solver], requests))

    def round(self, number: int, local_steps: IntArray, arrives: BoolArray | None = None) -> Outcome:
        """One BS iteration; a station that is away for too long misses it."""
        requests: dict[int, wire.Request] = {}
        for b in self.partners:
            terminals = np.flatnonzero((self.station == b) & (local_steps > 0))
            content = wire.RoundRequest(
                round=number,
                terminals=terminals.tolist(),
                local_steps=local_steps[terminals].tolist(),
                deadline=self.deadline,
            )
            requests[b] = wire.Request(round=content)
        self.announced = max(self.announced, number)
        answers = self._ask("round", [number, *_compact(local_steps)], requests, self.deadline + self.patience)
        answers |= {b: wire.Answer(away=True) for b in self.excluded}
        self.last_round = _round(answers)
        told = _told(answers, "round")
        self._standing |= {b: Standing(r.epoch, r.round, r.membership) for b, r in told.items()}
        results = [told.get(b) for b in range(self.n_stations)]
        counts = [sum(effort.answered for effort in r.efforts) if r else 0 for r in results]
        gains = [codec.array(r.gains, "gains") if r else np.zeros(CURVE) for r in results]
        factors = [r.factor if r else 0.0 for r in results]
        return Outcome(np.array(counts), np.array(factors), np.array(gains))

    def reports(self, cloud_round: int) -> list[Report]:
        """Reports of the stations that answer."""
        answers = self._ask("report", cloud_round, self._all(lambda b: wire.Request(report=cloud_round)))
        self.overhead.note(answers)
        reports = [codec.from_wire(Report, report) for report in _told(answers, "report").values()]
        checked = [report for report in reports if self._can_be(report.task, partial(self._check_report, report))]
        self._reported |= {report.task: (report.round, report.membership, report.v) for report in checked}
        return checked

    def _check_report(self, report: Report) -> None:
        self._bounds.check_report(report, self._members(report.task))

    @property
    def _bounds(self) -> StationBounds:
        """Bounds on what stations say; all scalers give rows of the same length."""
        norm = math.inf if self.scalers is None else self._radius
        return StationBounds(self.method, self.config.limits, self.shape[0], norm)

    @property
    def _radius(self) -> float:
        assert self.scalers is not None
        return self.scalers[0].radius(self.shape[1], intercept=self.method.intercept)

    def _members(self, station: int) -> int:
        return int(np.count_nonzero(self.station == station))

    @property
    def partners(self) -> list[int]:
        """Stations that take part: all but the excluded."""
        return [b for b in range(self.n_stations) if b not in self.excluded]

    def _can_be(self, station: int, check: Callable[[], None]) -> bool:
        """Return True if the check passes; a station that told what cannot be is excluded."""
        try:
            check()
        except ImplausibleError as error:
            self._exclude(station, error.reason)
            return False
        return True

    def _exclude(self, station: int, reason: str) -> None:
        """Ask a station no more: the others go on. Raise an error if the training cannot go on without it."""
        self.excluded[station] = reason
        self.on_excluded(station, reason)
        words = f"station {station} told {reason}"
        if not self.method.has_duals or self.method.channel.noised:
            why = "a private training" if self.method.channel.noised else "a method that averages models"
            raise PeerError(f"{words}: {why} cannot go on without it. {WAY_OUT}")
        if not self.partners:
            raise PeerError(f"{words}, and there is no other station. {WAY_OUT}")
        self.station = np.where(self.station == station, -1, self.station)

    def sums(self, points: Points) -> list[StationSums | None]:
        """Sums of every station at each of the points; refused where a terminal or a station did not tell."""
        combinations = codec.tensor(points.combinations)

        def asked(b: int) -> wire.Request:
            models = [codec.tensor(each) for each in points.models[:, b]]
            return wire.Request(sums=wire.SumsRequest(models=models, points=combinations, gradient=points.gradient))

        by_station = self._sums(len(points.combinations), asked)
        before = len(self.excluded)
        for b, sums in by_station.items():
            *as_of, v = self._reported.get(b, (-1, -1, None))
            share = max(sums.n_samples, 1) * v if v is not None and as_of == [sums.round, sums.membership] else None
            self._can_be(b, partial(self._bounds.check_sums, sums, points.models[:, b], points.combinations, share))
        if len(self.excluded) > before:
            raise IncompleteError("no certificate this time: the cloud has just excluded a station")
        return [by_station.get(b) for b in range(self.n_stations)]

    def noised_terms(self, models: Float64Array, deviation: Float64Array) -> NoisedTerms:
        """What a private certificate is made from, hidden where it comes from; asked again, it is told the same."""

        def asked(b: int) -> wire.Request:
            model, point = [codec.tensor(models[b])], codec.tensor(np.ones((1, 1)))
            return wire.Request(sums=wire.SumsRequest(models=model, points=point, noise=float(deviation[b])))

        told = list(self._sums(1, asked).values())
        for sums in told:
            b = sums.task
            noise, members = float(deviation[b]), self._members(b)
            self._can_be(b, partial(self._bounds.check_term, sums, models[b], noise, members))
        n = np.array([float(max(sums.n_samples, 1)) for sums in told])
        return NoisedTerms(told[0].round, np.array([sums.losses[0] for sums in told]), n)

    def _sums(self, points: int, asked: Callable[[int], wire.Request]) -> dict[int, StationSums]:
        answers = self._ask("sums", points, self._all(asked), 2.0 * self.config.waits.answer)
        return {b: codec.from_wire(StationSums, sums) for b, sums in self._from_all(answers, "sums").items()}

    def hide(self, method: Method, noising: Noising) -> None:
        """Before the first round of a private training: let terminals clip, and sums be hidden in noise."""
        self.method, self.noising = method, noising
        self._agree("hide", [noising] * self.n_stations)

    def trial(self, models: Float64Array, combination: Float64Array | None) -> list[dict[str, float]]:
        """Test metrics of every station for its model; empty where there are none."""
        weights = None if combination is None else combination.tolist()
        known = self.scalers if self.method.intercept else None
        constant = known[0].constant(self.shape[1] - 1) if known else 1.0

        def asked(b: int) -> wire.Request:
            model = codec.tensor(models[b])
            shift = 0.0 if self.levels is None else self.levels[b]
            model.MergeFrom(wire.Tensor(weights=weights, shift=shift, constant=constant))
            return wire.Request(trial=wire.TrialRequest(model=model))

        requests = self._all(asked)
        answers = self._ask("trial", None, requests, 2.0 * self.config.waits.answer)
        return [dict(answers[b].metrics.values) if b in answers else {} for b in range(self.n_stations)]

    def moments(self) -> list[Moments]:
        """Round zero: moments of the rows of every station; nobody tells of rows without need where sums hide them."""
        channel, needed = self.method.channel, self.config.learning.scale not in ("unit", "none")
        if channel.noised or (channel.sums_only and not needed):
            return [Moments(0, np.empty(0), np.empty(0))] * self.n_stations
        return [report.moments for report in self._rows_told("moments")]

    def scale(self, scalers: list[Scaler]) -> None:
        """Round zero: let every terminal scale its rows as its station says."""
        self.scalers = scalers
        self._agree("scale", [self._scaling(scaler) for scaler in scalers])

    def _scaling(self, scaler: Scaler) -> Scaling:
        return Scaling.of(scaler, self.method.channel.moments_dtype)

    def labels(self) -> Float64Array:
        """Round zero of a regression: label sums of every station."""
        return np.array([report.sums for report in self._rows_told("labels")])

    def centre(self, levels: Float64Array) -> None:
        """Round zero of a regression: let every terminal subtract the level of its station from its labels."""
        self.levels = levels
        self._agree("centre", [Centring(level) for level in levels.tolist()])

    def move(self, terminal: int, station: int) -> None:
        """Moves are orders of an operator here, not of a run."""
        raise ConfigError("terminals of a real network move by `rhfedmtl network move`")

    def grow(self, terminal: int, n_rows: int) -> None:
        """Rows lie where they are."""
        raise ConfigError("rows cannot be added to a running network: join another terminal that holds them")

    def state(self) -> dict[str, Any]:
        """Who is where, as the cloud heard last, and what no round has paid for yet."""
        return {
            "station": self.station,
            "sizes": self.sizes,
            "memberships": self._memberships,
            "overhead": [self.overhead.seconds, self.overhead.bytes, self.overhead.aside],
            "announced": self.announced,
            "standing": dict(self._standing),
            "excluded": dict(self.excluded),
            "reported": dict(self._reported),
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.station, self.sizes = np.copy(state["station"]), np.copy(state["sizes"])
        self._memberships, self.announced = dict(state["memberships"]), state["announced"]
        self._standing = dict(state["standing"])
        self.excluded, self._reported = dict(state["excluded"]), dict(state["reported"])
        self.overhead.seconds = state["overhead"][0]
        self.overhead.bytes, self.overhead.aside = (np.copy(part) for part in state["overhead"][1:])

    def _rows_told(self, kind: str) -> list[Any]:
        """What every station tells, in round zero, of the rows under it."""
        nothing: dict[str, Any] = {kind: wire.Nothing()}
        requests = self._all(lambda b: wire.Request(**nothing))
        answers = self._ask(kind, None, requests, 2.0 * self.config.waits.answer)
        return [codec.read(getattr(self._need(answers, b), kind)) for b in requests]

    def _agree(self, kind: str, messages: Sequence[Message]) -> None:
        """Tell each station, in round zero, what holds for it; all must have heeded it before a round is held."""
        requests = {b: wire.Request(**{kind: codec.to_wire(message)}) for b, message in enumerate(messages)}
        answers = self._ask(kind, None, requests, 2.0 * self.config.waits.answer)
        for b in requests:
            self._need(answers, b)

    def _all(self, make: Callable[[int], wire.Request]) -> dict[int, wire.Request]:
        return {b: make(b) for b in self.partners}

    def _ask(self, kind: str, note: Any, requests: Mapping[int, wire.Request], seconds: float | None = None) -> Answers:
        answers = self._journal.ask(kind, note, requests, self.patience if seconds is None else seconds)
        if kind not in ITERATING:
            self.overhead.note_aside(answers)
        return answers

    def _from_all(self, answers: Answers, body: str) -> dict[int, Any]:
        """Answers of all stations that take part; there is no certificate while an answer is missing."""
        told = _told(answers, body)
        if silent := [f"station {b}: {a.trouble or 'away'}" for b, a in answers.items() if b not in told]:
            self.incomplete = "; ".join(silent)
            raise IncompleteError(f"no certificate this time: {self.incomplete}")
        return {b: told[b] for b in answers}

    @staticmethod
    def _need(answers: Answers, b: int) -> wire.Answer:
        answer = answers[b]
        if answer.trouble or answer.WhichOneof("body") is None:
            raise PeerError(f"station {b}: {answer.trouble or 'no answer'}")
        return answer


class Overhead:
    """Seconds and bytes on the links between stations and cloud that no round has paid for yet.

    ``aside`` are bytes, on the links to terminals too, of what is no part of server iterations: certificates, trials,
    round zero, rosters.
    """

    def __init__(self, n_stations: int) -> None:
        self._n = n_stations
        self.seconds = 0.0
        self.bytes, self.aside = np.zeros(n_stations), np.zeros(n_stations)

    def note_aside(self, answers: Answers) -> None:
        """Count the bytes of a request that is no part of a server iteration."""
        for b, answer in answers.items():
            self.aside[b] += answer.bytes_down + answer.bytes_up + answer.bytes_below

    def note(self, answers: Answers) -> None:
        """Count the messages of one request to all."""
        self.seconds += max((answer.seconds for answer in answers.values()), default=0.0)
        for b, answer in answers.items():
            self.bytes[b] += answer.bytes_down + answer.bytes_up

    def take(self) -> tuple[float, Float64Array, Float64Array]:
        """What has come together, which is then forgotten."""
        taken = self.seconds, self.bytes, self.aside
        self.seconds, self.bytes, self.aside = 0.0, np.zeros(self._n), np.zeros(self._n)
        return taken


def _compact(local_steps: IntArray) -> list[int]:
    """H of all terminals: one number where they are alike."""
    alike = len(local_steps) and (local_steps == local_steps[0]).all()
    return [int(local_steps[0])] if alike else [int(each) for each in local_steps]


def _told(answers: Answers, body: str) -> dict[int, Any]:
    """What stations told, of those that did; `AnswerChecks` has seen to it that each speaks for itself."""
    return {b: getattr(answer, body) for b, answer in answers.items() if answer.WhichOneof("body") == body}


def _round(answers: Answers) -> Round:
    told = _told(answers, "round")
    efforts = {effort.terminal: effort for result in told.values() for effort in result.efforts}
    unknown = (b for b, a in answers.items() if b not in told and not a.away)
    return Round(answers, efforts, frozenset(unknown))


def census(config: CloudConfig, network: RemoteNetwork) -> Federation:
    """What the cloud knows of the data: names, and how many rows there are where; no row, and no feature of one."""
    learning = config.learning
    members = [np.flatnonzero(network.station == b) for b in range(network.n_stations)]
    for b, found in enumerate(members):
        if not len(found):
            why = network.silent.get(b, "start its terminals first")
            raise ConfigError(f"no terminal of task {learning.tasks[b]!r} is there: {why}")
    sizes = np.concatenate([network.sizes[found] for found in members])
    return Federation.untested(
        np.empty((sizes.sum(), 0)),
        np.zeros(sizes.sum(), dtype=np.int16 if learning.classes else np.float64),
        offsets(sizes),
        offsets([len(found) for found in members]),
        task_names=learning.tasks,
        class_names=learning.classes,
        origin=Origin(config.node.network, source="a network of base stations and terminals"),
    )
