"""The stations as a `Network`: what a run asks for goes to them as requests, what they answer comes back as arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation, Origin, offsets
from rhfedmtl.data.scaling import Moments, Scaler
from rhfedmtl.deploy.cloud.checks import StationBounds
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.journal import Answers, TrainingJournal
from rhfedmtl.deploy.cloud.partners import Partners, bodies
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
from rhfedmtl.roles.messages import Anchor, Centring, Noising, Report, Scaling, StationSums
from rhfedmtl.roles.plausibility import ImplausibleError
from rhfedmtl.training.privacy import PrivatePlan


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
    """The `Network` of a training whose stations are processes elsewhere.

    `Run` calls it in the thread of the training. `Partners` asks the stations through the journal, so after a kill the
    same calls give the same arrays. It never draws a random number, and never changes the members.
    """

    def __init__(
        self, config: CloudConfig, method: Method, journal: TrainingJournal, memberships: Callable[[], dict[int, int]]
    ) -> None:
        self.config, self.method, self._journal = config, method, journal
        self._heard = memberships  # how often the members of each station have changed, as it told last
        self._job = config.learning.job()
        self.shape = jobs.shape_of(self._job, method)
        self._matrix, self._shared = jobs.matrix_of(self._job, method)
        self.n_stations = len(config.stations)
        self.partners = Partners(config, journal)
        self.excluded = self.partners.excluded
        self.station: IntArray = np.empty(0, dtype=np.int64)  # of every terminal
        self.sizes: IntArray = np.empty(0, dtype=np.int64)  # its samples, the last that are known
        self._memberships: dict[int, int] = {}
        self.silent: dict[int, str] = {}
        """Stations that did not say who is there, and why."""
        self.deadline = config.resources.deadline
        self.last_round = Round({}, {}, frozenset())
        self.scalers: list[Scaler] | None = None
        self.levels: Float64Array | None = None
        self.noising: Noising | None = None
        self.anchors: dict[int, Anchor] = {}
        self.announced = 0
        """The last round that the journal tells of."""
        self._standing: dict[int, Standing] = {}
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
            None if self.scalers is None else Scaling.of(self.scalers[station], self.method.channel.moments_dtype),
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
        answers = self.partners.ask("models", None, self.partners.each(lambda b: wire.Request(models=wire.Nothing())))
        models = np.zeros((self.n_stations, *self._matrix))
        for b, tensor in self.partners.from_all(answers, "models").items():
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
        answers = self.partners.ask("roster", None, self.partners.each(lambda b: wire.Request(roster=wire.Nothing())))
        before = self.station
        self._take(answers)
        return not np.array_equal(before, self.station) or first

    def _take(self, answers: Answers) -> None:
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
        """Carry anchors from the cloud to the stations."""
        self.anchors = {a.task: a for a in anchors}
        requests = {b: wire.Request(assign=codec.to_wire(a)) for b, a in self.anchors.items()}
        solver = NEWTON if anchors[0].work == GRADIENT else ASCENT
        self.partners.overhead.note(self.partners.ask("assign", [anchors[0].cloud_round, solver], requests))

    def round(self, number: int, local_steps: IntArray, arrives: BoolArray | None = None) -> Outcome:
        """One BS iteration; a station that is away for too long misses it."""
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
        answers = self.partners.ask("round", [number, *_compact(local_steps)], requests, seconds)
        answers |= {b: wire.Answer(away=True) for b in self.excluded}
        self.last_round = _round(answers)
        told = bodies(answers, "round")
        self._standing |= {b: Standing(r.epoch, r.round, r.membership) for b, r in told.items()}
        results = [told.get(b) for b in range(self.n_stations)]
        counts = [sum(effort.answered for effort in r.efforts) if r else 0 for r in results]
        gains = [codec.array(r.gains, "gains") if r else np.zeros(CURVE) for r in results]
        factors = [r.factor if r else 0.0 for r in results]
        return Outcome(np.array(counts), np.array(factors), np.array(gains))

    def reports(self, cloud_round: int) -> list[Report]:
        """Reports of the stations that answer."""
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
        """Bounds on what stations say; all scalers give rows of the same length."""
        intercept = self.method.intercept
        norm = math.inf if self.scalers is None else self.scalers[0].radius(self.shape[1], intercept=intercept)
        return StationBounds(self.method, self.config.limits, self.shape[0], norm)

    def _passes(self, station: int, check: Callable[[], None]) -> bool:
        """Return True if the check passes; a station that told what cannot be is excluded.

        Raise an error if the training cannot go on without it.
        """
        try:
            check()
        except ImplausibleError as error:
            self.partners.exclude(station, error.reason, self.method)
            self.station = np.where(self.station == station, -1, self.station)
            return False
        return True

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
            self._passes(b, partial(self._bounds.check_sums, sums, points.models[:, b], points.combinations, share))
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
            noise, members = float(deviation[b]), int(np.count_nonzero(self.station == b))
            self._passes(b, partial(self._bounds.check_term, sums, models[b], noise, members))
        n = np.array([float(max(sums.n_samples, 1)) for sums in told])
        return NoisedTerms(told[0].round, np.array([sums.losses[0] for sums in told]), n)

    def _sums(self, points: int, asked: Callable[[int], wire.Request]) -> dict[int, StationSums]:
        answers = self.partners.ask("sums", points, self.partners.each(asked), 2.0 * self.config.waits.answer)
        return {b: codec.from_wire(StationSums, sums) for b, sums in self.partners.from_all(answers, "sums").items()}

    def hide(self, method: Method, plan: PrivatePlan) -> None:
        """Before the first round of a private training: let terminals clip, and sums be hidden in noise."""
        self.method, self.noising = method, Noising(plan.clip, plan.noise, plan.delta)
        self.partners.agree("hide", [self.noising] * self.n_stations)

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

        requests = self.partners.each(asked)
        answers = self.partners.ask("trial", None, requests, 2.0 * self.config.waits.answer)
        return [dict(answers[b].metrics.values) if b in answers else {} for b in range(self.n_stations)]

    def moments(self) -> list[Moments]:
        """Round zero: moments of the rows of every station; nobody tells of rows without need where sums hide them."""
        channel, needed = self.method.channel, self.config.learning.scale not in ("unit", "none")
        if channel.noised or (channel.sums_only and not needed):
            return [Moments(0, np.empty(0), np.empty(0))] * self.n_stations
        return [report.moments for report in self.partners.tell("moments")]

    def scale(self, scalers: list[Scaler]) -> None:
        """Round zero: let every terminal scale its rows as its station says."""
        self.scalers = scalers
        kind = self.method.channel.moments_dtype
        self.partners.agree("scale", [Scaling.of(scaler, kind) for scaler in scalers])

    def labels(self) -> Float64Array:
        """Round zero of a regression: label sums of every station."""
        return np.array([report.sums for report in self.partners.tell("labels")])

    def centre(self, levels: Float64Array) -> None:
        """Round zero of a regression: let every terminal subtract the level of its station from its labels."""
        self.levels = levels
        self.partners.agree("centre", [Centring(level) for level in levels.tolist()])

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
            "overhead": [self.partners.overhead.seconds, self.partners.overhead.bytes, self.partners.overhead.aside],
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
        self.excluded.clear()
        self.excluded.update(state["excluded"])
        self._reported = dict(state["reported"])
        self.partners.overhead.seconds = state["overhead"][0]
        self.partners.overhead.bytes, self.partners.overhead.aside = (np.copy(part) for part in state["overhead"][1:])


def _compact(local_steps: IntArray) -> list[int]:
    """H of all terminals: one number where they are alike."""
    alike = len(local_steps) and (local_steps == local_steps[0]).all()
    return [int(local_steps[0])] if alike else [int(each) for each in local_steps]


def _round(answers: Answers) -> Round:
    told = bodies(answers, "round")
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
