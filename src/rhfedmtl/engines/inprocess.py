"""Everything in one process: all terminals of a round in one call of compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rhfedmtl.algorithms.merges import Arrived
from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.centring import label_sums
from rhfedmtl.data.federation import Federation, FloatArray, offsets
from rhfedmtl.data.mapped import buffer_like
from rhfedmtl.data.scaling import Moments, Scaler
from rhfedmtl.data.sums import station_moments
from rhfedmtl.data.threads import cores
from rhfedmtl.engines.network import BoolArray, Float64Array, IntArray, Later, Outcome, State
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import PeerError, ProtocolError
from rhfedmtl.maths.kernels import compiled_kernel, loops, rounds
from rhfedmtl.maths.kernels.kernel import gradients
from rhfedmtl.maths.objective import Points
from rhfedmtl.maths.quasi_newton import GRADIENT
from rhfedmtl.resources.sizes import MessageSizes
from rhfedmtl.roles.channel import kept_back, sent_models, settled
from rhfedmtl.roles.message_sizes import message_sizes
from rhfedmtl.roles.messages import Anchor, Report, StationSums, check_anchors
from rhfedmtl.roles.plausibility import refuse_divergence
from rhfedmtl.roles.round_zero import Spreads, together


class Cohort(NamedTuple):
    """Who works in a round: steps of every terminal, as asked and as they will be; who has some, and where.

    ``counts`` and ``samples`` are of those who work under each station.
    """

    asked: IntArray
    steps: IntArray
    worked: IntArray | slice
    station: IntArray
    counts: IntArray
    samples: list[float]


class InProcess:
    """All stations and terminals as arrays.

    Does what `BaseStation` and `Terminal` do, to the bit, without making their messages: a conformance test holds
    the two together. Verdicts are applied when a terminal is next spoken to, as there.

    What touches rows and duals are `alpha`, `set_duals`, `share`, `station_shares`, `work`, `tell`, `add_up`, `moments`
    and `scale_rows`: an engine that has these elsewhere overrides them.
    """

    _sorted: rounds.Layout | None
    _last_cohort: Cohort | None

    def __init__(
        self,
        federation: Federation,
        method: Method,
        *,
        seed: int = 0,
        threads: int | None = None,
        present: IntArray | None = None,
        ids: IntArray | None = None,
        first_station: int = 0,
        constant: float = 1.0,
    ) -> None:
        """Where the federation is a part of a larger one, ``ids`` of terminals and stations in it address all draws.

        ``constant`` stands for the intercept, where there is one, until rows are scaled.
        """
        method.check(federation)
        self.method = method
        self.seed = seed
        self.threads = cores() if threads is None else threads
        self._n_stations = federation.n_tasks
        self._first_station = first_station
        self._home = federation.terminal_task.astype(np.int64)
        weight = federation.sample_weight
        rows = rounds.make_rows(
            federation.X,
            federation.targets(),
            np.asarray(federation.terminal_offsets, dtype=np.int64),
            ids=ids,
            weight=None if weight is None else np.asarray(weight, dtype=np.float64),
            constant=constant * method.intercept,
            norms=loops.row_norms,
        )
        self._ends = rows.ends
        self.rows = rows if present is None else rounds.with_sizes(rows, present)
        self._duals = rounds.make_duals(self.rows)
        self.shape = self.rows.y.shape[1], federation.n_features + method.intercept
        self._shared = method.shared_rows(self.shape[0])
        self._U = np.zeros((self._n_stations, method.rows(self.shape[0]), self.shape[1]))
        self._told = np.zeros_like(self._U)  # the models of the last orders
        self._center, self._lam = np.zeros_like(self._U[:, : self._shared]), np.zeros(self._n_stations)
        self._origin = np.zeros_like(self._center)
        self._gradient = np.zeros(self._n_stations, dtype=bool)
        # What each terminal's channel keeps back, and what it will have kept back if its update is applied wholly.
        self._residual = np.zeros((len(self._home), *self._U.shape[1:])) if method.channel.keeps_residual else None
        self._sent_residual = None if self._residual is None else np.zeros_like(self._residual)
        self._last_round = 0
        self._scaled = self._centred = False
        self._membership = np.zeros(self._n_stations, dtype=np.int64)
        self._set_stations(self._home.copy())

    @property
    def sizes(self) -> IntArray:
        """Samples of every terminal."""
        return self.rows.sizes

    @property
    def message_sizes(self) -> MessageSizes:
        """Bytes of the messages of a round."""
        among = self.method.channel.masked_among(np.bincount(self._home))
        return message_sizes(self._U.shape[1:], self._shared, self.method.profile_length, self.method.channel, among)

    @property
    def V(self) -> Float64Array:
        """What the stations tell the cloud: v_b = U_b/n_b, or the models that it averages."""
        return self.method.channel.reported(self._exact_V)

    @property
    def _exact_V(self) -> Float64Array:
        return self.method.report(self._U, self._n)[:, : self._shared]

    @property
    def models(self) -> Float64Array:
        """What orders start from."""
        lam = np.where(self._gradient, np.inf, self._lam)  # in the limit w_b = c_b
        return self.method.model(self._U, self._n, self._center, lam, self._origin)

    @property
    def alpha(self) -> Float64Array:
        """Dual variables of all rows, with everything settled."""
        compiled_kernel.settle(self.rows, self.layout, self._duals)
        return self._duals.alpha

    def restore(self, alpha: Float64Array) -> None:
        """Start from these dual variables, as `alpha` gave them for the same rows: U_b = Σ_t X_tᵀα_t is made anew."""
        self.need_start("restore duals")
        if alpha.shape != self._duals.alpha.shape:
            raise ProtocolError(f"duals of shape {alpha.shape} for rows with {self._duals.alpha.shape}")
        self.set_duals(alpha)
        self._U[:] = self.station_shares()

    def station_shares(self) -> Float64Array:
        """Σ_t X_tᵀα_t of every station."""
        U = np.zeros_like(self._U)
        shares = compiled_kernel.shares(self.rows, self.layout, self._duals, self.shape[1])
        np.add.at(U, self.station[self.layout.order], shares)
        return U

    def set_duals(self, alpha: Float64Array) -> None:
        """Take these dual variables in place of all."""
        compiled_kernel.settle(self.rows, self.layout, self._duals)
        self._duals.alpha[:] = alpha

    def state(self) -> State:
        """All that the rounds so far have changed; copies, that later rounds leave alone."""
        return State(
            self._last_round,
            self.station.copy(),
            self.sizes.copy(),
            self._membership.copy(),
            self._U.copy(),
            self._center.copy(),
            self._lam.copy(),
            self._gradient.copy(),
            self.alpha.copy(),
            None if self._residual is None else self._residual.copy(),
            self._told.copy() if self.method.channel.keeps_residual else None,
            self._origin.copy(),
        )

    def resume(self, state: State) -> None:
        """Go on, to the bit, from what `state` gave for the same rows."""
        alpha = state.alpha.array() if isinstance(state.alpha, Later) else state.alpha
        if alpha.shape != self._duals.alpha.shape or state.U.shape != self._U.shape:
            raise ProtocolError(
                f"a state with {alpha.shape} duals and matrices {state.U.shape} does not fit rows with "
                f"{self._duals.alpha.shape} and {self._U.shape}"
            )
        self.set_duals(alpha)
        sizes = self._ends - self.rows.starts if state.sizes is None else state.sizes
        self.rows = rounds.with_sizes(self.rows, sizes)
        self._U, self._center, self._lam = state.U.copy(), state.center.copy(), state.lam.copy()
        self._gradient = state.gradient.copy()
        self._membership, self._last_round = state.membership.copy(), state.round
        if state.residual is not None:
            self._residual = state.residual.copy()
        self._origin = np.zeros_like(self._center) if state.origin is None else state.origin.copy()
        if state.told is not None:
            self._told = state.told.copy()
        self._set_stations(state.station.copy())

    def assign(self, anchors: list[Anchor]) -> None:
        """Take the anchors of the stations named."""
        check_anchors(*anchors)
        for anchor in anchors:
            self._center[anchor.task] = anchor.center
            self._origin[anchor.task] = 0.0 if anchor.origin is None else anchor.origin
            self._lam[anchor.task], self._gradient[anchor.task] = anchor.lam, anchor.work == GRADIENT
            self._U[anchor.task] = self.method.start(self._U[anchor.task], self._n[anchor.task], anchor.center)

    def round(self, number: int, local_steps: IntArray, arrives: BoolArray | None = None) -> Outcome:
        """One BS iteration, in one call."""
        self._check_round(number, local_steps)
        cohort = self._cohort(local_steps, arrives)
        void = cohort.counts < self.method.channel.least
        answered = np.where(void, 0, cohort.counts)
        models = self.models
        scale = self._lam * np.maximum(self._n, 1.0)
        stations = zip(self._lam.tolist(), self._n.tolist(), self._members.tolist(), strict=True)
        exact = self._gradient | (self._origin == self.V).all(axis=(1, 2))
        self._told = sent_models(self.method, models, self._told, exact)
        with np.errstate(over="ignore"):  # what is too large for single precision is refused below
            sent = self._told.astype(self.rows.X.dtype)
        orders = rounds.Orders(
            sent,
            np.array([self.method.scale(lam, n, members, number) for lam, n, members in stations]),
            cohort.steps,
            np.uint64(self.seed),
            np.uint64(number),
            self.method.uniform,
            self._gradient,
        )
        answers = self._received(self.work(orders), cohort, number)
        refuse_divergence(answers.delta, number)
        answers.delta[void], answers.gains[void] = 0.0, 0.0
        parts = answers.delta, models, scale.tolist(), answers.profile, cohort.samples, self._gradient.tolist()
        arrived = map(Arrived, answered.tolist(), *parts)
        factor = np.array([self.method.factor(sums) if sums.answers else 0.0 for sums in arrived])
        self._U = self.method.merged(self._U, answers.delta, factor, self._center)
        self.tell(cohort, factor)
        self._last_round = number
        return Outcome(answered, factor, answers.gains)

    def _received(self, answers: rounds.Answers, cohort: Cohort, number: int) -> rounds.Answers:
        """The sums as each station's end of the channel has them, where anything arrived."""
        for b in () if self.method.channel.identity else np.flatnonzero(cohort.counts).tolist():
            address = self.seed, number, self._first_station + b
            answers.delta[b] = self.method.channel.received(answers.delta[b], address, int(cohort.counts[b]))
        return answers

    def _cohort(self, local_steps: IntArray, arrives: BoolArray | None) -> Cohort:
        """Who works; the same again while nothing else is asked and everybody answers."""
        last = self._last_cohort
        if last is not None and arrives is None and _same(last.asked, local_steps):
            return last
        here = self.station >= 0 if arrives is None else (self.station >= 0) & arrives
        steps = np.where(here, local_steps, 0)
        worked = np.flatnonzero(steps)
        station = self.station[worked]
        counts = np.bincount(station, minlength=self._n_stations)
        samples = np.bincount(station, self.sizes[worked], self._n_stations).tolist()
        everyone = slice(None) if len(worked) == len(steps) else worked
        cohort = Cohort(_copy(local_steps), steps, everyone, station, counts, samples)
        self._last_cohort = cohort if arrives is None else None
        return cohort

    def work(self, orders: rounds.Orders) -> rounds.Answers:
        """The work of all terminals, summed by station."""
        if not self.method.channel.identity:
            return self._work_through_channel(orders)
        return self.method.work(compiled_kernel, self.rows, self.layout, self._duals, orders, self.threads)

    def _work_through_channel(self, orders: rounds.Orders) -> rounds.Answers:
        """As terminals do it: each one's update goes through the channel by itself, and is then added in its place."""
        method, layout = self.method, self.layout
        alone = (self.rows, layout.per_terminal, self._duals)
        answers = method.work(compiled_kernel, *alone, orders, self.threads)
        works = orders.steps[layout.order] > 0
        places = slice(None) if works.all() else np.flatnonzero(works)
        worked, kept = layout.order[places], self._residual
        channel = method.channel.for_gradients if orders.gradient.all() else method.channel
        sent = channel.send(answers.delta[places], None if kept is None else kept[worked])
        answers.delta[places] = sent.delta
        if self._sent_residual is not None and sent.residual is not None:
            self._sent_residual[worked] = sent.residual
        clipped = sent.factor < 1.0
        if clipped.any():
            loops.scale_rows(self._duals.pending, self.rows.starts, self.rows.ends, worked, sent.factor)
            if method.profile_length:
                changed = np.flatnonzero(works)[clipped]
                answers.profile[changed] = method.profiles(compiled_kernel, *alone)[changed]
        curve = answers.gains.shape[1] if method.channel.tells_gains else 0
        told = answers._replace(
            gains=method.channel.counted(answers.gains[:, :curve]), profile=method.sent_profile(answers.profile)
        )
        by_block = loops.add_answers(told, layout.blocks, quadratic=method.loss.quadratic)
        found = loops.add_answers(by_block, layout.starts, quadratic=method.loss.quadratic)
        return found if curve else found._replace(gains=np.zeros((len(found.delta), answers.gains.shape[1])))

    def tell(self, cohort: Cohort, factor: Float64Array) -> None:
        """Tell those who worked what became of their updates."""
        applied = self.method.settled(factor)[cohort.station]
        self._duals.settle[cohort.worked] = applied
        if self._residual is not None and self._sent_residual is not None:
            old, new = self._residual[cohort.worked], self._sent_residual[cohort.worked]
            self._residual[cohort.worked] = settled(old, new, applied[:, None, None])

    def reports(self, cloud_round: int) -> list[Report]:
        """v_b of every station."""
        return [
            Report(cloud_round, b, self._last_round, v, int(n), int(membership), self.method.channel.report_dtype)
            for b, (v, n, membership) in enumerate(zip(self.V, self._n, self._membership, strict=True))
        ]

    def sums(self, points: Points) -> list[StationSums | None]:
        """Sums of every station at each of the points."""
        needed, models = (self._n_stations, *self.shape), points.models
        if models.ndim != 4 or models.shape[1:] != needed:
            raise PeerError(f"models of shape {models.shape} do not fit (any, *{needed})")
        losses, duals = self.add_up(points)
        slopes = self.gradients(models[0]) if points.gradient else np.empty((self._n_stations, 0))
        kept = self._kept_back(models)
        told = zip(losses, duals, slopes, self._n.astype(int).tolist(), self._membership.tolist(), kept, strict=True)
        return [StationSums(b, self._last_round, *each) for b, each in enumerate(told)]

    def _kept_back(self, models: Float64Array) -> Sequence[Float64Array | None]:
        """What terminals tell of their residuals, summed by station, and what reports lack; None where nothing is."""
        if self._residual is None or not self.method.tells_residual:
            return [None] * self._n_stations
        layout = self.layout
        each = kept_back(self._residual[layout.order], models[:, self.station[layout.order]])
        by_block = loops.add_blocks(self.method.channel.counted(each), layout.blocks)
        lacks = self._n[:, None, None] * (self._exact_V - self.V)
        return list(loops.add_blocks(by_block, layout.starts) + kept_back(lacks, models))

    def add_up(self, points: Points) -> tuple[Float64Array, Float64Array]:
        """Losses at each of the points, and dual terms, summed by station."""
        loss, rows, layout = self.method.loss, self.rows, self._summed
        duals = self._duals if self.method.has_duals else rounds.make_duals(rows)
        models, combinations = points.models, points.combinations
        losses, terms = compiled_kernel.sums(loss, rows, layout, duals, models, combinations, threads=self.threads)
        return self._counted(losses), self._counted(terms)

    def gradients(self, models: Float64Array) -> Float64Array:
        """−Σ s L′(z) x of every station under its model."""
        found = gradients(compiled_kernel, self.method.loss, self.rows, self._summed, models, threads=self.threads)
        return self._counted(found)

    @property
    def _summed(self) -> rounds.Layout:
        """Terminals by station, or each alone where its numbers are rounded before they are added up."""
        return self.layout.per_terminal if self.method.channel.sums_only else self.layout

    def _counted(self, parts: Float64Array) -> Float64Array:
        """Sums of every station from what `_summed` gave."""
        if not self.method.channel.sums_only:
            return parts
        total = np.zeros((self._n_stations, *parts.shape[1:]))
        np.add.at(total, self.station[self.layout.order], self.method.channel.counted(parts))
        return total

    def moments(self) -> list[Moments]:
        """Moments of the training rows of every station, as far as they are here."""
        self.need_start("take moments")
        X, (terminals, tasks) = self.rows.X[self._here()], self._offsets_here()
        if not self.method.channel.sums_only:
            return station_moments(X, terminals, tasks, self.method.channel.moments_dtype)
        each = station_moments(X, terminals, np.arange(len(terminals)))
        return [together(Spreads.of_moments(each[a:b])).moments for a, b in pairwise(tasks)]

    def labels(self) -> Float64Array:
        """Label sums of every station, as far as rows are here."""
        self.need_start("take sums of labels")
        here, (terminals, tasks) = self._here(), self._offsets_here()
        labels = self.rows.y[here, 0], self.rows.weight[here], terminals
        if not self.method.channel.sums_only:
            return label_sums(*labels, tasks)
        each = label_sums(*labels, np.arange(len(terminals)))
        return np.array([together(Spreads.of_labels(each[a:b])).labels for a, b in pairwise(tasks)])

    def centre(self, levels: Float64Array) -> None:
        """Subtract the level of its task from every label. Told again, it changes nothing."""
        self.need_start("centre labels")
        if not self._centred:
            self._centred = True
            level = np.repeat(levels[self._home], self._ends - self.rows.starts)
            self._remake(self.rows.X, self.rows.y - level[:, None], self.rows.constant)

    def scale(self, scalers: list[Scaler]) -> None:
        """Scale all rows. Told again, it changes nothing."""
        self.need_start("scale")
        if not self._scaled:
            self._scaled = True
            self.scale_rows(scalers)

    def scale_rows(self, scalers: list[Scaler]) -> None:
        """Scale them in a copy; rows that need no scaling stay where they lie."""
        old, first = self.rows, scalers[0]
        if all(scaler is first for scaler in scalers):
            X = first.transform(old.X)
        else:
            X = buffer_like(old.X)
            for b, scaler in enumerate(scalers):
                own = self._home == b
                span = slice(old.starts[own].min(), self._ends[own].max())
                scaler.transform(old.X[span], out=X[span])
        self._remake(X, old.y, first.constant(X.shape[1]) * self.method.intercept)

    def _remake(self, X: FloatArray, y: Float64Array, constant: float) -> None:
        """Take these rows and labels instead, with all else as it is."""
        old = self.rows
        offsets = np.append(old.starts, len(X))
        rows = rounds.make_rows(
            X,
            y,
            offsets,
            ids=old.ids,
            weight=old.weight,
            constant=constant,
            norms=loops.row_norms,
        )
        self.rows = rounds.with_sizes(rows, old.sizes)

    def _offsets_here(self) -> tuple[IntArray, IntArray]:
        """Where the rows that are here begin by terminal, and terminals by the station they started under."""
        terminals = np.bincount(self._home, minlength=self._n_stations)
        return offsets(self.sizes), offsets(terminals)

    def grow(self, terminal: int, n_rows: int) -> None:
        """Let the next rows of a terminal arrive, with duals at zero: it leaves, and joins again with more rows."""
        sizes, station = self.sizes.copy(), int(self.station[terminal])
        sizes[terminal] += n_rows
        if n_rows < 1 or self.rows.starts[terminal] + sizes[terminal] > self._ends[terminal]:
            raise ProtocolError(f"terminal {terminal} has no {n_rows} rows that could still arrive")
        self.move(terminal, -1)
        self.rows = rounds.with_sizes(self.rows, sizes)
        self.move(terminal, station)

    def set_sizes(self, sizes: IntArray) -> None:
        """Let every terminal have only the first so many of its rows, those that come or go with duals at zero."""
        self.rows = rounds.with_sizes(self.rows, sizes)
        self._membership += self._members > 0
        self._set_stations(self.station)

    def _here(self) -> slice | IntArray:
        """Rows that have arrived, in their order."""
        if self.sizes.sum() == len(self.rows.X):
            return slice(None)
        return np.concatenate([np.arange(a, b) for a, b in zip(self.rows.starts, self.rows.ends, strict=True)])

    def move(self, terminal: int, station: int) -> None:
        """Move a terminal with its duals: its share u_t leaves one sum and enters the other."""
        if not (0 <= terminal < len(self.station) and -1 <= station < self._n_stations):
            raise ProtocolError(
                f"no move of terminal {terminal} to station {station}: there are {len(self.station)} terminals and "
                f"{self._n_stations} stations"
            )
        share, size = self.share(terminal), int(self.sizes[terminal])
        held = share
        if self._residual is not None:  # it stays with the station that did not get it, which gives up that much less
            kept = self.method.kept(self._residual[terminal], 1.0)
            held = share if kept is None else share - kept
            self._residual[terminal] = 0.0
        for b, sign, moved in ((int(self.station[terminal]), -1, held), (station, 1, share)):
            if b >= 0:
                self._U[b] += sign * moved
                self._membership[b] += 1
                self._n[b] += sign * size
                self._members[b] += sign
        stations = self.station.copy()
        stations[terminal] = station
        self._change_stations(stations)

    def _check_round(self, number: int, local_steps: IntArray) -> None:
        if number <= self._last_round:
            raise ProtocolError(f"round {self._last_round} is done: round {number} cannot follow it")
        if np.shape(local_steps) != self.station.shape:
            raise ProtocolError(f"steps of shape {np.shape(local_steps)} for {len(self.station)} terminals")
        if not self._lam.min() > 0.0:
            raise ProtocolError("a station has no anchor yet: the cloud speaks first")

    def need_start(self, what: str) -> None:
        """Refuse what belongs to round zero once that is over."""
        if self._last_round or np.any(self._membership):
            raise ProtocolError(f"too late to {what}: round zero comes before the first round and the first move")

    def share(self, terminal: int) -> Float64Array:
        """What a terminal has in its station's U, with nothing left pending."""
        alone = rounds.Layout(*(np.array(part) for part in ([terminal], [0, 1], [0], [0, 1])))
        return np.asarray(self.method.shares(compiled_kernel, self.rows, alone, self._duals, self.shape[1])[0])

    @property
    def layout(self) -> rounds.Layout:
        """Terminals by station, sorted when first asked for after a change."""
        if self._sorted is None:
            self._sorted = rounds.make_layout(self.station, self._n_stations, self.rows.ids)
        return self._sorted

    def _set_stations(self, station: IntArray) -> None:
        here = station >= 0
        self._n = np.bincount(station[here], weights=self.sizes[here], minlength=self._n_stations)
        self._members = np.bincount(station[here], minlength=self._n_stations)
        self._change_stations(station)

    def _change_stations(self, station: IntArray) -> None:
        self.station = station
        self._sorted = None
        self._last_cohort = None


def _copy(steps: IntArray) -> IntArray:
    """A copy that takes no room where all are the same number, broadcast."""
    return np.broadcast_to(steps[:1].copy(), steps.shape) if steps.strides == (0,) else np.array(steps)


def _same(asked: IntArray, steps: IntArray) -> bool:
    if asked.strides == steps.strides == (0,):
        return bool(asked[0] == steps[0])
    return np.array_equal(asked, steps)


def network(federation: Federation, method: Method, *, seed: int, present: IntArray, execution: Execution) -> InProcess:
    """Engine ``inprocess``."""
    return InProcess(federation, method, seed=seed, threads=execution.threads, present=present)
