"""The cloud couples the tasks through anchors, and certifies the distance of the models from the optimum.

The run calls it (`training.run`, also in a real network), and an engine carries its messages. It never sees rows, dual
variables of rows, or updates of terminals.

**Theory of operation.** The cloud keeps for every task b the last reported v_b = (1/n_b) Σ X_tᵀα_t, the sample count
n_b, and the model w_b that follows from v_b and the anchor. A server iteration is:

1. `Cloud.assign`: the relationship may learn from the models. Then each station gets an anchor (c_b, λ_b): the
   joint objective as a function of the model of task b alone, minimised over the other tasks' models. In a quasi-Newton
   search the anchor asks for the gradient at the next trial point instead.
2. `Cloud.receive`: take the stations' reports. Late and repeated reports change nothing.
3. `Cloud.candidates`: choose models, and combinations of them, that terminals evaluate.
4. `Cloud.certify`: the lowest objective among them is the primal value P. The sums of dual terms give lower bounds; the
   cloud mixes them with earlier bounds into the best dual value D. The gap P − D bounds the distance to the optimum.

`Cloud.closing` and `Cloud.close` tighten the bound at the end of a run, with the gradient at the returned models.

When members, samples or the relationship change, the problem changes, and `Cloud.forget_bound` drops all bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Channel
from rhfedmtl.errors import PeerError
from rhfedmtl.maths import objective
from rhfedmtl.maths.kernels.rounds import dual_sums
from rhfedmtl.maths.mixtures import between
from rhfedmtl.maths.objective import Dual, Points, ResidualBounds, any_models
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT, SEARCHES, STEP_LENGTHS, QuasiNewton, Solver, Work
from rhfedmtl.maths.relationships import Anchors, Models, Relationship, Safe
from rhfedmtl.roles.certificates import BestPoint, Certificate, best_point, contradictions
from rhfedmtl.roles.cloud_states import CloudStates
from rhfedmtl.roles.messages import Anchor, Report, StationSums, Vector

Indices = npt.NDArray[np.int64]
# A certificate evaluates scale · ((1 − share) · station models + share · joint models), and the zero model.
# Measured: benchmarks/results/constants.md; ×0.5: +0.09 ± 0.21 points, −0.01 ± 0.07 decades;
# ×2: −0.01 ± 0.34 points, +0.05 ± 0.11 decades.
MODEL_SCALES = (1.0, 0.5, 0.25, 2.0)
# Measured: benchmarks/results/constants.md; ×0.5: +0.08 ± 0.17 points, +0.00 ± 0.02 decades;
# ×2: −0.05 ± 0.06 points, −0.00 ± 0.05 decades.
JOINT_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
CANDIDATE_GRID = np.array([(scale, share) for scale in MODEL_SCALES for share in JOINT_SHARES])
# A gradient is exact if its gap and its squared norm differ by at most this share of the gap. An inexact gradient tells
# nothing of curvature.
GRADIENT_TOLERANCE = 1e-6
# The same if updates are rounded.
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.00 points, +0.00 ± 0.00 decades;
# ×2: same digits.
ROUNDED_TOLERANCE = 0.1
# After each server iteration the extra coupling of a run's start is multiplied by this.
# Measured: benchmarks/results/constants.md; ×0.5: +0.04 ± 0.20 points, −0.04 ± 0.09 decades;
# ×2: +0.64 ± 1.13 points, +0.03 ± 0.11 decades.
PULL_DECAY = 0.7
# Turn to the safe joint form if the objective exceeds this multiple of the zero model's objective.
DIVERGENCE_FACTOR = 10.0


def most_candidates() -> tuple[int, int]:
    """Return the largest numbers of models and of points that a certificate evaluates."""
    return 2, len(CANDIDATE_GRID) + 1


class Cloud(CloudStates):
    """State machine of the cloud: assign anchors, receive reports, repeat; certify on request.

    An anchor asks for coordinate ascent, or for the gradient at its centre: the next trial point of a quasi-Newton
    search on the joint problem (`maths/quasi_newton.py`).

    If ``steers`` is set, the cloud does two more things:

    * It starts the next server iteration from the best certified point instead of the stations' models, which
      overshoot under strong coupling.
    * If the problem couples the tasks weakly, and their first reports are similar and certified, it computes anchors
      for a problem with extra coupling to the mean. This coupling fades. Models are always judged and certified for
      the original problem.

    Parameters
    ----------
    relationship : Relationship
        Coupling of the tasks.
    n_tasks : int
        Number of stations.
    shape : tuple[int, int]
        Rows × features of a model.
    channel : Channel, optional
        Channel of models on their way to the terminals.
    samples : Vector, optional
        Samples of each task, used until the stations report theirs.
    steers : bool
        Use the two rules above.
    returns_last : bool
        Certify the stations' last models, not the best point so far.
    """

    def __init__(
        self,
        relationship: Relationship,
        n_tasks: int,
        shape: tuple[int, int],
        channel: Channel | None = None,
        *,
        samples: Vector | None = None,
        steers: bool = False,
        returns_last: bool = False,
    ) -> None:
        self.relationship = relationship
        self.channel = Channel() if channel is None else channel
        self.steers, self.returns_last = steers, returns_last
        self.n_tasks = n_tasks
        self.tasks: Indices = np.arange(n_tasks)  # tasks of the problem; the arrays below have their rows in this order
        self._frozen: Models = np.zeros((n_tasks, *shape))  # models of tasks outside the problem
        self.cloud_round = 0
        self.V: Models = np.zeros((n_tasks, *shape))
        self.W: Models = np.zeros((n_tasks, *shape))
        self.anchors: Anchors | None = None
        self.changes = 0
        self._n = np.ones(n_tasks) if samples is None else samples  # until the stations report
        self._as_of = [(0, -1)] * n_tasks  # round and membership of each task's latest report
        self._best_dual = 0.0  # best bound of a single round
        self._closed = 0.0  # bound of `close`; later duals do not depend on it, so the run can continue
        self._dual = Dual.zero(self.V)  # best mixture of the known duals
        self._best: BestPoint | None = None
        self._best_start = np.inf  # lowest objective of a point that the next server iteration could start from
        self._newton: QuasiNewton | None = None
        self._extra_coupling = (
            None if steers else 0.0
        )  # `candidates` sets it at the first certificate, `_choose_start` may set it to 0
        self._start: Models | None = None  # models for the next anchors; by default the stations' models
        self._center: Models | None = None  # or models at which the next anchors let the stations start
        self._last_primal = np.inf  # objective of the stations' models in the last certificate
        self._certified: Anchors | None = None  # anchors of the current points
        self._points = Points(np.zeros((2, n_tasks, *shape)), np.empty((0, 2)))  # points of the last certificate

    def assign(self, solver: Solver = ASCENT) -> list[Anchor]:
        """Start a server iteration: return new anchors for all stations. The relationship learns if it is due."""
        schedule = self.relationship.learns()
        if schedule is not None and schedule.due(self.cloud_round):
            self.learn()
        self.cloud_round += 1
        if solver != ASCENT:
            self.anchors = self._search_anchors(solver)
        elif self._center is None:
            self._newton, self.anchors = None, self._ascent_anchors()
        else:
            anchors = self._coupling().anchors(self.W, self.V, self._n)
            self._newton, self.anchors = None, anchors._replace(center=self._center, origin=self.V.copy())
        self._start = self._center = None
        self._extra_coupling = self._extra_coupling and PULL_DECAY * self._extra_coupling
        center, lam, _, origin, gradient = self.anchors
        work: Work = GRADIENT if gradient else ASCENT
        origins = [None] * len(self.tasks) if origin is None else list(origin)
        return [
            Anchor(self.cloud_round, b, center[i], float(lam[i]), self.channel.model_dtype, origins[i], work)
            for i, b in enumerate(self.tasks.tolist())
        ]

    def _coupling(self) -> Relationship:
        """Return the relationship for dual ascent, with the current extra coupling."""
        return (
            self.relationship.with_extra_coupling(self._extra_coupling) if self._extra_coupling else self.relationship
        )

    def _ascent_anchors(self) -> Anchors:
        """Return the next anchors of dual ascent, with the rounding of the channel."""
        anchors = self._coupling().anchors(self.W if self._start is None else self._start, self.V, self._n)
        last = np.zeros_like(self.W) if self.anchors is None else self.anchors.center
        return anchors._replace(center=self.channel.models(anchors.center, last))

    def _search_anchors(self, solver: Solver) -> Anchors:
        """Return anchors that ask for the gradient at the next trial point of a quasi-Newton search."""
        self._extra_coupling = 0.0
        if self._newton is None:
            start = self.W.copy() if self._best is None else self._best.models
            last = start if self.anchors is None else self.anchors.center
            self._newton = SEARCHES[solver](self.channel.models(start, last))
        elif self.anchors is not None:  # stations know these centres
            self._newton.replace_trial(self.channel.models(self._newton.trial(self.relationship), self.anchors.center))
        zeros = np.zeros(len(self.tasks))
        return Anchors(self._newton.trial(self.relationship), zeros + 1.0, zeros, gradient=True)

    def receive(self, report: Report) -> bool:
        """Take a station's v_b.

        Return False, and change nothing, if the report is old, overtaken, or of a task outside the problem.
        """
        if self.anchors is None or report.cloud_round != self.cloud_round:
            return False
        b = report.task
        if not 0 <= b < self.n_tasks or report.v.shape != self.V[0].shape or not np.isfinite(report.v).all():
            raise PeerError(f"report for task {b} with shape {report.v.shape} does not fit, or is not finite")
        if b not in self.tasks:
            return False
        i = int(np.searchsorted(self.tasks, b))
        as_of = report.round, report.membership
        if as_of < self._as_of[b]:
            return False
        if report.membership != self._as_of[b][1]:
            self.forget_bound()
        if as_of != self._as_of[b]:
            self._start = self._center = None
        self.V[i], self._n[i], self._as_of[b] = report.v, max(report.n_samples, 1), as_of
        self.W[i] = self.anchors.model_at(i, report.v)
        return True

    def leave_out(self, task: int) -> None:
        """Continue with the problem of the other tasks; this task keeps its best model so far, uncertified.

        Anchors and certificates leave the task out from now on. Models and points keep a row for every task.
        """
        i = int(np.searchsorted(self.tasks, task))
        best = self.W if self._best is None else self._best.models
        self._frozen[task] = best[i]
        self.tasks = np.delete(self.tasks, i)
        self.V, self.W, self._n = (np.delete(part, i, axis=0) for part in (self.V, self.W, self._n))
        if self.anchors is not None:
            self.anchors = self.anchors.without(i)
        self._certified = self.anchors
        self._points = Points(np.delete(self._points.models, i, axis=1), self._points.combinations)
        self.relationship = self.relationship.without(i)
        self.forget_bound()

    def _all_tasks(self, models: Models) -> Models:
        """Return models of every task from the models of the problem; a task outside the problem keeps its model."""
        if len(self.tasks) == self.n_tasks:
            return models
        filled = self._frozen.copy()
        filled[self.tasks] = models
        return filled

    def _remember(self, points: Points) -> Points:
        """Store the points of the problem's tasks, and return points for every task."""
        self._points = points
        return points._replace(models=np.array([self._all_tasks(models) for models in points.models]))

    @property
    def models(self) -> Models:
        """Models of the stations, as of their last reports."""
        return self._all_tasks(self.W if self.anchors is None else self.anchors.models_at(self.V))

    @property
    def starts_at_anchor(self) -> bool:
        """True if stations are at the models where the current anchors let them start; terminals know these."""
        origin = None if self.anchors is None else self.anchors.origin
        return origin is not None and np.array_equal(origin, self.V)

    def candidates(self, *, next_anchors: bool = True) -> Points:
        """Return points to evaluate: between the stations' models and W = V G, or along a quasi-Newton step; and zero.

        With ``next_anchors``, the stations' models are those at the next server iteration's anchors. Its orders then
        need not carry them.
        """
        assert self.anchors is not None, "there are anchors in every server iteration"
        self._certified, last = self.anchors, self._points.models
        if self.returns_last:
            return self._remember(Points(self.channel.models(self.W, last[0])[None], np.array([[1.0], [0.0]])))
        if self._newton is not None and self._newton.gradient is not None:  # terminals know both models
            models = np.stack([self.W, self._newton.W])
            return self._remember(Points(models, np.array([*((t, 1.0 - t) for t in STEP_LENGTHS), (0.0, 0.0)])))
        undecided = self._extra_coupling is None
        if self._extra_coupling is None:
            self._extra_coupling = self.relationship.extra_coupling(self.V) if self.cloud_round == 1 else 0.0
        station_models, joint = self.W, self._coupling().solve(self.V)
        if self._newton is None:
            if next_anchors and not (undecided and self._extra_coupling):
                self._certified = self._ascent_anchors()
                station_models = self._certified.models_at(self.V)
            if np.array_equal(joint, station_models):
                models = self.channel.models(joint, last[-1])[None]
                return self._remember(Points(models, np.array([[scale] for scale in (*MODEL_SCALES, 0.0)])))
            station_models = self.channel.models(station_models, last[0])
        models = np.stack([station_models, self.channel.models(joint, last[-1])])
        scales, shares = CANDIDATE_GRID.T
        combinations = np.stack([scales * (1.0 - shares), scales * shares], axis=1)
        return self._remember(Points(models, np.array([*combinations, (0.0, 0.0)])))

    def certify(self, sums: Sequence[StationSums | None]) -> Certificate | None:
        """Return a certificate for the best models so far, unless a station's sums are missing or outdated."""
        self._check(StationSums)
        assert self._certified is not None, "points come before sums"
        complete = self._complete(sums)
        if complete is None:
            return None
        # 1. primal: the objective at every point; keep the best.
        losses, duals = np.array([s.losses for s in complete]), np.array([s.dual for s in complete])
        points, number = self._points, max(complete, key=attrgetter("round")).round
        primals = objective.joint_primals(losses, self._n, points, self.relationship)
        worst = np.array([np.zeros(losses.shape[1]) if s.worst is None else s.worst for s in complete])
        absent = tuple(t for s in complete for t in s.absent)
        place, last = (0, None) if self.returns_last else (int(np.argmin(primals)), self._best)
        best = best_point(last, place, points, losses, worst, self._n, self.relationship, number, absent)
        self._best = best
        # 2. dual: mix this round's bound with earlier bounds.
        plain, residuals = dual_sums(duals), self._residuals(complete, points)
        scaled = objective.scaled_dual(duals, self._n, self.V, self.relationship, residuals)
        joint = objective.joint_dual(plain, self._n, self.V, self.relationship, residuals)
        self._best_dual = max(self._best_dual, scaled.bound(self.relationship), joint)
        self._dual = objective.between(self._dual, scaled, self.relationship)
        # 3. decide how the next server iteration starts.
        self._observe(primals, plain, tolerance=ROUNDED_TOLERANCE if residuals else GRADIENT_TOLERANCE)
        if self.steers and self._newton is None:
            self._choose_start(points, primals)
        # 4. the certificate.
        lost = 0.0 if residuals is None else residuals.largest_product(self.relationship.solve(self.V))
        joint_dual = Dual(plain / self._n - lost, self.V, None if residuals is None else residuals.norms)
        by_task = np.full((2, self.n_tasks), np.nan)
        by_task[0, self.tasks] = objective.station_primal(
            (losses + worst)[:, 0], self._n, points.at(0), self._certified
        )
        by_task[1, self.tasks] = objective.station_dual(plain, self._n, self.V, self._certified, residuals)
        certificate = Certificate(
            number,
            best.primal,
            self._bound,
            self._all_tasks(best.models),
            by_task[0],
            by_task[1],
            zero=float(primals[-1]),
            held=float(primals[0]),
            found=best.round,
            combination=best.combination if best.round == number else None,
            single_gap=best.primal - self._best_dual,
            absent=tuple(sorted({*best.absent, *absent})),
        )
        return self._with_suspects(certificate, [self._dual, scaled, joint_dual])

    def _with_suspects(self, certificate: Certificate, duals: Sequence[Dual]) -> Certificate:
        """Name the stations to blame if the certificate is broken."""
        if not certificate.broken:
            return certificate
        assert self._best is not None
        blamed = contradictions(self._best.models, self._best.losses, duals, self.relationship)
        return replace(certificate, suspects=tuple(self.tasks[blamed].tolist()))

    def closing(self) -> Points | None:
        """Return the models to return, for the last request of a run: the gradient of their losses.

        The gradient gives another dual. There may be no models for the current problem.
        """
        if self._best is None:
            return None
        return self._remember(any_models(self.channel.models(self._best.models, self._points.models[-1])))

    def close(self, certificate: Certificate, sums: Sequence[StationSums | None]) -> Certificate:
        """Return the certificate with a bound that also counts the dual of `closing`: α_i = −L′(z_i) of every row."""
        self._check(StationSums)
        complete = self._complete(sums)
        if complete is None:
            return certificate
        losses = np.array([s.losses[0] for s in complete])
        V = np.array([s.gradient for s in complete]) / self._n[:, None, None]
        dual = objective.gradient_dual(losses, self._n, self._points.models[0], V)
        mixed = objective.between(self._dual, dual, self.relationship)
        self._closed = max(self._closed, mixed.bound(self.relationship))
        return self._with_suspects(replace(certificate, dual=self._bound), [dual, mixed, self._dual])

    def _complete(self, sums: Sequence[StationSums | None]) -> list[StationSums] | None:
        """Return the sums of all tasks in order, unless a station's sums are missing or outdated."""
        by_task = {s.task: s for s in sums if s is not None and (s.round, s.membership) == self._as_of[s.task]}
        tasks = self.tasks.tolist()
        return [by_task[b] for b in tasks] if by_task.keys() >= set(tasks) else None

    @property
    def _bound(self) -> float:
        """Best known lower bound."""
        return max(self._best_dual, self._closed, self._dual.bound(self.relationship))

    def _residuals(self, sums: Sequence[StationSums], points: Points) -> ResidualBounds | None:
        """Return the terminals' residuals per sample, like V, if updates are rounded."""
        residuals = [s.residual for s in sums if s.residual is not None]
        if not residuals:
            return None
        mean = np.array(residuals) / self._n[:, None]
        return ResidualBounds(mean[:, 0], mean[:, 1:], points.models)

    def _choose_start(self, points: Points, primals: Vector) -> None:
        """Start the next server iteration at this certificate's best point if it is the best so far.

        A point between the two models that terminals know needs no bytes in the orders.
        """
        single, best = len(points.models) == 1, int(np.argmin(primals[:-1]))
        improved = bool(primals[best] < self._best_start)
        self._best_start = min(self._best_start, float(primals[best]))
        if not improved:
            best, self._extra_coupling = 0, 0.0
        scale, share = (MODEL_SCALES[best], 0.0) if single else CANDIDATE_GRID[best]
        if self._certified is self.anchors or scale != 1.0 or isinstance(self.relationship, Safe):
            self._start, self._center = points.at(best) if improved else None, None
        else:
            self._start, self._center = None, between(float(share), points.models[[0, -1]])

    def _observe(self, primals: Vector, plain: Vector, tolerance: float) -> None:
        """Pass the outcome of a trial to the quasi-Newton search; switch to the safe joint form if ascent diverges.

        Alternation is fast but has no guarantee; in the safe form the joint dual never falls. Models that are this bad
        but still improve come from a start for another problem. They do not count as divergence.
        """
        if self._newton is not None:
            tangent = self.relationship.apply(self.W) - self.V
            gap = primals[0] - objective.joint_dual(plain, self._n, self.V, self.relationship)
            missing = gap - self.relationship.dual_energy(tangent) / (2.0 * len(self.tasks))
            exact = bool(missing <= tolerance * max(abs(gap), 1e-12))
            self._newton.observe(self.relationship, self.V, primals[: len(STEP_LENGTHS)], exact=exact)
        elif primals[0] > max(DIVERGENCE_FACTOR * primals[-1], self._last_primal) and self.relationship.may_turn_safe:
            self.relationship = Safe(self.relationship)
        self._last_primal = float(primals[0])

    def warm_start(self, reports: Sequence[Report], models: Models | None = None) -> None:
        """Start from reported v_b, and these models or the joint solution W = V G; checkpoints do not use this.

        If V is far from its optimum and the coupling is strong, V G is far worse than the stations' last models.
        """
        self._check("resume")
        for report in reports:
            i = int(np.searchsorted(self.tasks, report.task))
            self.V[i], self._n[i] = report.v, max(report.n_samples, 1)
        self.W = self.relationship.solve(self.V) if models is None else models.copy()
        self._extra_coupling = 0.0

    def forget_bound(self) -> None:
        """Drop all bounds and the search: members, samples or the relationship have changed the problem."""
        self._best_dual, self._closed, self._dual = 0.0, 0.0, Dual.zero(self.V)
        self._best, self._newton, self._last_primal, self._best_start = None, None, np.inf, np.inf
        self._start = self._center = None

    def learn(self) -> bool:
        """Let the relationship learn from the current models; return True if it changed.

        `assign` calls it when the relationship's schedule is due; a run that has solved its W-step calls it too.
        """
        schedule = self.relationship.learns()
        if schedule is None or self.changes >= schedule.most:
            return False
        learned = self.relationship.learn(self.W if self._best is None else self._best.models)
        if learned is self.relationship:
            return False
        self.relationship = learned
        self.changes += 1
        self.forget_bound()
        return True
