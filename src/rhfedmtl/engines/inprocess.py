"""Engine ``inprocess``: all stations and terminals in this process, with a call of compiled code per round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rhfedmtl.algorithms.merges import Arrived
from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import Moments, RowMap, Scaler
from rhfedmtl.data.threads import cores
from rhfedmtl.engines.batched_terminals import BatchedTerminals, Cohort
from rhfedmtl.engines.network import BoolArray, Float64Array, IntArray, Later, Outcome, State
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import PeerError, ProtocolError
from rhfedmtl.maths.kernels import rounds
from rhfedmtl.maths.objective import Points
from rhfedmtl.maths.quasi_newton import GRADIENT
from rhfedmtl.resources.sizes import MessageSizes
from rhfedmtl.roles.channel import kept_back, sent_models
from rhfedmtl.roles.message_sizes import message_sizes
from rhfedmtl.roles.messages import Anchor, Report, StationSums, check_anchors
from rhfedmtl.roles.plausibility import refuse_divergence


class InProcess:
    """Network with all stations as arrays, and their terminals in `BatchedTerminals`.

    It gives the same numbers as `BaseStation` and `Terminal`, to the bit, without their messages; a conformance test
    compares them. Verdicts are applied when a terminal works next, as in those roles.

    Parameters
    ----------
    federation : Federation
        Training rows. It may be a part of a larger federation.
    method : Method
        Method of the training.
    seed : int
        Address of all random draws.
    threads : int, optional
        Threads of the kernel; by default all cores.
    present : array, optional
        Rows of each terminal that are present at the start; by default all.
    ids : array, optional
        Ids of the terminals in the larger federation.
    first_station : int
        Number of the first station in the larger federation.
    constant : float
        Value of the intercept's feature until rows are scaled.
    terminals : BatchedTerminals, optional
        Rows and dual variables; by default in the memory of this process.
    """

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
        terminals: BatchedTerminals | None = None,
    ) -> None:
        method.check(federation)
        self.method = method
        self.seed = seed
        self._n_stations = federation.n_tasks
        self._first_station = first_station
        if terminals is None:
            threads = cores() if threads is None else threads
            terminals = BatchedTerminals(
                federation, method, threads=threads, present=present, ids=ids, constant=constant
            )
        self.terminals = terminals
        self.shape = terminals.shape
        self._shared = method.shared_rows(self.shape[0])
        self._U = np.zeros((self._n_stations, method.rows(self.shape[0]), self.shape[1]))
        self._sent_models = np.zeros_like(self._U)  # models of the last orders
        self._center, self._lam = np.zeros_like(self._U[:, : self._shared]), np.zeros(self._n_stations)
        self._anchor_v = np.zeros_like(self._center)
        self._gradient = np.zeros(self._n_stations, dtype=bool)
        self._last_round = 0
        self._scaled = self._centred = False
        self._membership = np.zeros(self._n_stations, dtype=np.int64)
        self._set_stations(terminals.home.copy())

    @property
    def sizes(self) -> IntArray:
        """Samples of every terminal."""
        return self.terminals.rows.sizes

    @property
    def message_sizes(self) -> MessageSizes:
        """Sizes of the messages of a round."""
        among = self.method.channel.masked_among(np.bincount(self.terminals.home))
        return message_sizes(self._U.shape[1:], self._shared, self.method.profile_length, self.method.channel, among)

    @property
    def V(self) -> Float64Array:
        """v_b = U_b/n_b of every station with the rounding of reports, or the models that the cloud averages."""
        return self.method.channel.reported(self._exact_V)

    @property
    def _exact_V(self) -> Float64Array:
        return self.method.report(self._U, self._n)[:, : self._shared]

    @property
    def models(self) -> Float64Array:
        """Models of the orders, of every station."""
        lam = np.where(self._gradient, np.inf, self._lam)  # in the limit w_b = c_b
        return self.method.model(self._U, self._n, self._center, lam, self._anchor_v)

    @property
    def alpha(self) -> Float64Array:
        """Dual variables of all rows, with nothing pending."""
        return self.terminals.alpha

    def restore(self, alpha: Float64Array) -> None:
        """Start from dual variables of the same rows, and compute U_b = Σ_t X_tᵀα_t from them."""
        self._need_start("restore duals")
        if alpha.shape != self.terminals.rows.y.shape:
            raise ProtocolError(f"duals of shape {alpha.shape} for rows with {self.terminals.rows.y.shape}")
        self.terminals.set_duals(alpha)
        self._U[:] = self.station_shares()

    def station_shares(self) -> Float64Array:
        """Return Σ_t X_tᵀα_t of every station."""
        return self.terminals.station_shares()

    def state(self) -> State:
        """Return a copy of all that the rounds so far have changed."""
        terminals = self.terminals
        return State(
            self._last_round,
            self.station.copy(),
            self.sizes.copy(),
            self._membership.copy(),
            self._U.copy(),
            self._center.copy(),
            self._lam.copy(),
            self._gradient.copy(),
            terminals.alpha.copy(),
            None if terminals.residual is None else terminals.residual.copy(),
            self._sent_models.copy() if self.method.channel.keeps_residual else None,
            self._anchor_v.copy(),
        )

    def resume(self, state: State) -> None:
        """Continue, to the bit, from a `state` of the same rows."""
        terminals = self.terminals
        alpha = state.alpha.array() if isinstance(state.alpha, Later) else state.alpha
        if alpha.shape != terminals.rows.y.shape or state.U.shape != self._U.shape:
            raise ProtocolError(
                f"a state with {alpha.shape} duals and matrices {state.U.shape} does not fit rows with "
                f"{terminals.rows.y.shape} and {self._U.shape}"
            )
        terminals.set_duals(alpha)
        sizes = terminals.ends - terminals.rows.starts if state.sizes is None else state.sizes
        terminals.rows = rounds.with_sizes(terminals.rows, sizes)
        self._U, self._center, self._lam = state.U.copy(), state.center.copy(), state.lam.copy()
        self._gradient = state.gradient.copy()
        self._membership, self._last_round = state.membership.copy(), state.round
        if state.residual is not None:
            terminals.residual = state.residual.copy()
        self._anchor_v = np.zeros_like(self._center) if state.origin is None else state.origin.copy()
        if state.told is not None:
            self._sent_models = state.told.copy()
        self._set_stations(state.station.copy())

    def assign(self, anchors: list[Anchor]) -> None:
        """Take the anchors of some stations."""
        check_anchors(*anchors)
        for anchor in anchors:
            self._center[anchor.task] = anchor.center
            self._anchor_v[anchor.task] = 0.0 if anchor.origin is None else anchor.origin
            self._lam[anchor.task], self._gradient[anchor.task] = anchor.lam, anchor.work == GRADIENT
            self._U[anchor.task] = self.method.start(self._U[anchor.task], self._n[anchor.task], anchor.center)

    def round(self, number: int, local_steps: IntArray, arrives: BoolArray | None = None) -> Outcome:
        """Run a BS iteration: terminals with steps > 0 work, and the updates that arrive are merged."""
        if number <= self._last_round:
            raise ProtocolError(f"round {self._last_round} is done: round {number} cannot follow it")
        if np.shape(local_steps) != self.station.shape:
            raise ProtocolError(f"steps of shape {np.shape(local_steps)} for {len(self.station)} terminals")
        if not self._lam.min() > 0.0:
            raise ProtocolError("a station has no anchor yet: the cloud speaks first")
        # 1. orders
        method, terminals = self.method, self.terminals
        cohort = self._cohort(local_steps, arrives)
        void = cohort.counts < method.channel.least
        answered = np.where(void, 0, cohort.counts)
        models = self.models
        scale = self._lam * np.maximum(self._n, 1.0)
        stations = zip(self._lam.tolist(), self._n.tolist(), self._members.tolist(), strict=True)
        exact = self._gradient | (self._anchor_v == self.V).all(axis=(1, 2))
        self._sent_models = sent_models(method, models, self._sent_models, exact)
        with np.errstate(over="ignore"):  # models too large for single precision are refused below
            sent = self._sent_models.astype(terminals.rows.X.dtype)
        orders = rounds.Orders(
            sent,
            np.array([method.scale(lam, n, members, number) for lam, n, members in stations]),
            cohort.steps,
            np.uint64(self.seed),
            np.uint64(number),
            method.uniform,
            self._gradient,
        )
        # 2. local steps, and the sum of the updates at each station's end of the channel
        answers = terminals.work(orders)
        for b in () if method.channel.identity else np.flatnonzero(cohort.counts).tolist():
            address = self.seed, number, self._first_station + b
            answers.delta[b] = method.channel.received(answers.delta[b], address, int(cohort.counts[b]))
        refuse_divergence(answers.delta, number)
        answers.delta[void], answers.gains[void] = 0.0, 0.0
        # 3. merge
        parts = answers.delta, models, scale.tolist(), answers.profile, cohort.samples, self._gradient.tolist()
        arrived = map(Arrived, answered.tolist(), *parts)
        factor = np.array([method.factor(sums) if sums.answers else 0.0 for sums in arrived])
        self._U = method.merged(self._U, answers.delta, factor, self._center)
        terminals.tell(cohort, factor)
        self._last_round = number
        return Outcome(answered, factor, answers.gains)

    def _cohort(self, local_steps: IntArray, arrives: BoolArray | None) -> Cohort:
        """Return the terminals that work; the same object again for the same steps without drop-outs."""
        last = self._last_cohort
        if last is not None and arrives is None:
            if last.requested.strides == local_steps.strides == (0,):
                same = bool(last.requested[0] == local_steps[0])
            else:
                same = np.array_equal(last.requested, local_steps)
            if same:
                return last
        present = self.station >= 0 if arrives is None else (self.station >= 0) & arrives
        steps = np.where(present, local_steps, 0)
        worked = np.flatnonzero(steps)
        station = self.station[worked]
        counts = np.bincount(station, minlength=self._n_stations)
        samples = np.bincount(station, self.sizes[worked], self._n_stations).tolist()
        places = slice(None) if len(worked) == len(steps) else worked
        # A number broadcast to all terminals needs no memory per terminal.
        constant = local_steps.strides == (0,)
        requested = np.broadcast_to(local_steps[:1].copy(), local_steps.shape) if constant else np.array(local_steps)
        cohort = Cohort(requested, steps, places, station, counts, samples)
        self._last_cohort = cohort if arrives is None else None
        return cohort

    def reports(self, cloud_round: int) -> list[Report]:
        """Return the reports of all stations."""
        return [
            Report(cloud_round, b, self._last_round, v, int(n), int(membership), self.method.channel.report_dtype)
            for b, (v, n, membership) in enumerate(zip(self.V, self._n, self._membership, strict=True))
        ]

    def sums(self, points: Points) -> list[StationSums | None]:
        """Return the sums of every station at each of the points."""
        needed, models = (self._n_stations, *self.shape), points.models
        if models.ndim != 4 or models.shape[1:] != needed:
            raise PeerError(f"models of shape {models.shape} do not fit (any, *{needed})")
        losses, duals = self.terminals.add_up(points)
        slopes = self.terminals.gradients(models[0]) if points.gradient else np.empty((self._n_stations, 0))
        residuals: Sequence[Float64Array | None] = [None] * self._n_stations
        if self.terminals.residual is not None and self.method.tells_residual:
            lacking = self._n[:, None, None] * (self._exact_V - self.V)
            residuals = list(self.terminals.residual_sums(self.terminals.residual, models) + kept_back(lacking, models))
        n, membership = self._n.astype(int).tolist(), self._membership.tolist()
        parts = zip(losses, duals, slopes, n, membership, residuals, strict=True)
        return [StationSums(b, self._last_round, *part) for b, part in enumerate(parts)]

    def moments(self, mappings: Sequence[RowMap] | None = None) -> list[Moments]:
        """Round zero: return the moments of the present training rows of every station, as its mapping makes them."""
        self._need_start("take moments")
        return self.terminals.moments(mappings)

    def labels(self) -> Float64Array:
        """Round zero of a regression: return the label sums of the present rows of every station."""
        self._need_start("take sums of labels")
        return self.terminals.labels()

    def centre(self, levels: Float64Array) -> None:
        """Round zero of a regression: subtract the level of its task from every label, once."""
        self._need_start("centre labels")
        if not self._centred:
            self._centred = True
            self.terminals.centre(levels)

    def scale(self, scalers: list[Scaler]) -> None:
        """Round zero: scale the rows of every station, once."""
        self._need_start("scale")
        if not self._scaled:
            self._scaled = True
            self.terminals.scale(scalers)

    def grow(self, terminal: int, n_rows: int) -> None:
        """Let the next rows of a terminal arrive, with dual variables at zero: it leaves, and joins with more rows."""
        rows, station = self.terminals.rows, int(self.station[terminal])
        sizes = rows.sizes.copy()
        sizes[terminal] += n_rows
        if n_rows < 1 or rows.starts[terminal] + sizes[terminal] > self.terminals.ends[terminal]:
            raise ProtocolError(f"terminal {terminal} has no {n_rows} rows that could still arrive")
        self.move(terminal, -1)
        self.terminals.rows = rounds.with_sizes(rows, sizes)
        self.move(terminal, station)

    def set_sizes(self, sizes: IntArray) -> None:
        """Give each terminal only its first rows; dual variables of rows that come or go must be zero."""
        self.terminals.rows = rounds.with_sizes(self.terminals.rows, sizes)
        self._membership += self._members > 0
        self._set_stations(self.station)

    def move(self, terminal: int, station: int) -> None:
        """Move a terminal with its dual variables: its share u_t leaves one sum and enters another."""
        if not (0 <= terminal < len(self.station) and -1 <= station < self._n_stations):
            raise ProtocolError(
                f"no move of terminal {terminal} to station {station}: there are {len(self.station)} terminals and "
                f"{self._n_stations} stations"
            )
        share = self.terminals.share(terminal)
        # The old station never received the residual, so it gives up that much less.
        sent_share = self.terminals.leave_residual(terminal, share)
        for b, sign, moved in ((int(self.station[terminal]), -1, sent_share), (station, 1, share)):
            if b >= 0:
                self._U[b] += sign * moved
                self._membership[b] += 1
        stations = self.station.copy()
        stations[terminal] = station
        self._set_stations(stations)

    def _need_start(self, act: str) -> None:
        """Refuse an act of round zero after its end."""
        if self._last_round or np.any(self._membership):
            raise ProtocolError(f"too late to {act}: round zero comes before the first round and the first move")

    def _set_stations(self, station: IntArray) -> None:
        """Take the station of every terminal, and count samples and members again."""
        attached = station >= 0
        self._n = np.bincount(station[attached], weights=self.sizes[attached], minlength=self._n_stations)
        self._members = np.bincount(station[attached], minlength=self._n_stations)
        self.station = station
        self.terminals.set_stations(station)
        self._last_cohort = None


def network(federation: Federation, method: Method, *, seed: int, present: IntArray, execution: Execution) -> InProcess:
    """Return a network of engine ``inprocess``."""
    return InProcess(federation, method, seed=seed, threads=execution.threads, present=present)
