"""The cloud: couples the tasks through anchors, and certifies how far the models are from the best possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Channel
from rhfedmtl.display import facts_html
from rhfedmtl.errors import PeerError
from rhfedmtl.maths import objective
from rhfedmtl.maths.coupling import squared_norms
from rhfedmtl.maths.kernels.rounds import dual_sums
from rhfedmtl.maths.mixtures import between
from rhfedmtl.maths.objective import Dual, Points, ResidualBounds, any_models
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT, SEARCHES, STRETCHES, QuasiNewton, Solver, Work
from rhfedmtl.maths.relationships import Anchors, Models, Relationship, Safe
from rhfedmtl.roles.messages import Anchor, Report, StationSums, Vector
from rhfedmtl.roles.states import Event, Table, follow, frozen
from rhfedmtl.roles.words import bounded, in_words

Indices = npt.NDArray[np.int64]
SCALES = (1.0, 0.5, 0.25, 2.0)
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
GRID = np.array([(scale, share) for scale in SCALES for share in SHARES])
"""A certificate evaluates scale · ((1 − share) · station models + share · joint models), and the zero model."""
ROUNDING = 1e-9
"""How far, beside the objective, P may lie below D."""
EXACT, ROUNDED = 1e-6, 0.1
"""What of the gap of a gradient may be missing beside its square: without rounding, and where updates are rounded."""
FADES = 0.7
"""What a server iteration leaves of the pull with which tasks that are alike begin, beyond that of their problem."""
ASTRAY = 10.0
"""Models whose objective is so many times that of the zero model make the cloud turn to the safe joint form."""


class CloudPhase(Enum):
    """Where a cloud stands: no anchor was sent yet, or a server iteration is under way."""

    FRESH = "before its first server iteration"
    ITERATING = "in a server iteration"


CLOUD: Table[CloudPhase] = frozen(
    {
        CloudPhase.FRESH: {
            "resume": CloudPhase.FRESH,
            Anchor: CloudPhase.ITERATING,
            Report: CloudPhase.FRESH,
        },
        CloudPhase.ITERATING: {
            Anchor: CloudPhase.ITERATING,
            Report: CloudPhase.ITERATING,
            StationSums: CloudPhase.ITERATING,
        },
    }
)


def most_candidates() -> tuple[int, int]:
    """Models and points of a certificate, at most."""
    return 2, len(GRID) + 1


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """P(W) − D(α) ≥ 0 bounds the distance of the returned models from the optimum, as of a round.

    The models are the best that were found so far for the present problem, in round ``found``; the bound is the best
    so far too. New ones are a ``combination`` of the models that terminals were asked about. ``zero`` is the objective
    of models that are zero, ``held`` that of what the stations go on from. ``station_gaps`` are those of each station's
    own problem at its next anchor, NaN without a task. ``single_gap`` is that to the best dual of a single
    round, before duals are mixed: how fast rounds learn shows in it. ``suspects`` are the stations to blame where the
    certificate is ``broken``. All of it is conditional on the relationship as it stands, and assumes honest terminals.
    """

    round: int
    primal: float
    dual: float
    models: Models
    station_primal: Vector
    station_dual: Vector
    zero: float = np.inf
    held: float = np.inf
    found: int = 0
    combination: Vector | None = None
    single_gap: float = np.nan
    suspects: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    """Terminals that answered no probe: their rows count with the most they can add."""

    @property
    def gap(self) -> float:
        """P − D; 0 where rounding alone puts P below D."""
        gap = self.primal - self.dual
        return 0.0 if -ROUNDING * max(1.0, abs(self.primal)) <= gap < 0.0 else gap

    @property
    def relative_gap(self) -> float:
        """(P − D)/max(|P|, |D|); infinite where there is no dual."""
        if not np.isfinite(self.dual):
            return float("inf")
        return self.gap / max(abs(self.primal), abs(self.dual), np.finfo(float).tiny)

    @property
    def broken(self) -> bool:
        """Whether P lies below D by more than rounding explains: a sum was wrong, and nothing is bounded."""
        return bool(self.gap < 0.0)

    @property
    def station_gaps(self) -> Vector:
        """P_b − D_b of every station at its next anchor."""
        return self.station_primal - self.station_dual

    @property
    def words(self) -> str:
        """What it says, at a glance."""
        return in_words(self.relative_gap, self.dual)

    def __repr__(self) -> str:
        return f"<Certificate: {self.words}; primal {self.primal:.6g}, dual {self.dual:.6g}, round {self.round}>"

    def _repr_html_(self) -> str:
        known = {name: getattr(self, name) for name in ("primal", "dual", "gap", "round")}
        return facts_html("Certificate", {"in words": self.words, **known})


@dataclass(frozen=True, eq=False, repr=False)
class NoisedCertificate(Certificate):
    """What a private run may say: with this ``probability`` the models are within ``bound`` of the best objective.

    Objective and dual are not released; what stands for scale is ``zero``, which is public.
    """

    bound: float = np.inf
    probability: float = 1.0

    @classmethod
    def made(cls, number: int, models: Models, bound: float, probability: float, zero: float) -> NoisedCertificate:
        """For these models as of a round."""
        none = np.full(len(models), np.nan)
        found = cls(number, np.nan, np.nan, models, none, none, zero, zero, number)
        return replace(found, bound=bound, probability=probability)

    @property
    def gap(self) -> float:
        """The bound."""
        return self.bound

    @property
    def relative_gap(self) -> float:
        """Beside the objective of models that are zero."""
        return self.bound / self.zero

    @property
    def words(self) -> str:
        """What it says, at a glance."""
        return bounded(self.bound, self.zero, self.probability)

    def __repr__(self) -> str:
        return f"<Certificate: {self.words}; round {self.round}>"


@dataclass(frozen=True, eq=False)
class _Best:
    """The best models for the present problem, the round in which they were found, and each task's mean loss."""

    primal: float
    models: Models
    round: int
    combination: Vector
    losses: Vector
    known: float
    """The objective without the rows of absent terminals."""
    absent: tuple[int, ...] = ()


class CloudStates:
    """The part of a cloud that knows where it stands, by the table ``CLOUD``: server iterations are its states."""

    cloud_round: int

    @property
    def passes(self) -> int:
        """Passes over the rows that the next server iteration asks for, where a policy goes by that."""
        return 1

    @property
    def phase(self) -> CloudPhase:
        """Where the cloud stands."""
        return CloudPhase.ITERATING if self.cloud_round else CloudPhase.FRESH

    def _check(self, event: Event) -> None:
        follow("the cloud", CLOUD, self.phase, event)


class Cloud(CloudStates):
    """State machine of the cloud: assign anchors, collect reports, repeat; certify when asked.

    An anchor asks for coordinate ascent, or for the gradient under its centre: the next point of a quasi-Newton search
    on the joint problem (`maths/quasi_newton.py`). A cloud that ``steers`` lets the next server iteration begin by what
    a certificate has just found to be the best so far, and not by what the stations hold, which overshoots under strong
    coupling. Where the problem hardly couples tasks, and their first reports are alike and certified, it makes the next
    anchors for a problem that draws them to their mean: a path from there to the weights of the problem, along which
    all is judged and certified for the problem alone.
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
    ) -> None:
        """``channel`` is that of models on their way down; the first anchors count so many ``samples`` of each task."""
        self.relationship = relationship
        self.channel = Channel() if channel is None else channel
        self.steers = steers
        self.n_tasks = n_tasks
        self.tasks: Indices = np.arange(n_tasks)  # of the problem; all arrays below are of these, in this order
        self._frozen: Models = np.zeros((n_tasks, *shape))  # models of the tasks that were left out
        self.cloud_round = 0
        self.V: Models = np.zeros((n_tasks, *shape))
        self.W: Models = np.zeros((n_tasks, *shape))
        self.anchors: Anchors | None = None
        self.changes = 0
        self._n = np.ones(n_tasks) if samples is None else samples  # until they report
        self._as_of = [(0, -1)] * n_tasks  # round and membership of the latest report of every task
        self._best_dual = 0.0  # bound of the best single one
        self._closed = 0.0  # bound that `close` found: no part of what follows, so that runs may go on
        self._dual = Dual.zero(self.V)  # the best that lies between those that are known
        self._best: _Best | None = None
        self._best_start = np.inf  # objective of the best that could be begun from
        self._newton: QuasiNewton | None = None
        self._pull = None if steers else 0.0  # to the mean, beyond that of the problem; None until certified
        self._start: Models | None = None  # what the next anchors come from, if not from what the stations hold
        self._begin: Models | None = None  # or where they let the stations begin
        self._held = np.inf  # objective of what the stations held when last certified
        self._next: Anchors | None = None  # those that the points were made for
        self._points = Points(np.zeros((2, n_tasks, *shape)), np.empty((0, 2)))  # those that were asked for last

    def assign(self, solver: Solver = ASCENT) -> list[Anchor]:
        """Start a server iteration: the relationship learns if its time has come; new anchors for all stations."""
        self._check(Anchor)
        schedule = self.relationship.learns()
        if schedule is not None and schedule.due(self.cloud_round):
            self.learn()
        self.cloud_round += 1
        self.anchors = self._ascend() if solver == ASCENT else self._search(solver)
        self._start = self._begin = None
        self._pull = self._pull and FADES * self._pull
        center, lam, _, origin, gradient = self.anchors
        work: Work = GRADIENT if gradient else ASCENT
        begins = [None] * len(self.tasks) if origin is None else list(origin)
        return [
            Anchor(self.cloud_round, b, center[i], float(lam[i]), self.channel.model_dtype, begins[i], work)
            for i, b in enumerate(self.tasks.tolist())
        ]

    def _ascend(self) -> Anchors:
        self._newton = None
        if self._begin is None:
            return self._coming()
        return self._path().anchors(self.W, self.V, self._n)._replace(center=self._begin, origin=self.V.copy())

    def _path(self) -> Relationship:
        """The coupling that ascent goes by now."""
        return self.relationship.with_extra_coupling(self._pull) if self._pull else self.relationship

    def _coming(self) -> Anchors:
        """The anchors of ascent, as they are sent."""
        anchors = self._path().anchors(self.W if self._start is None else self._start, self.V, self._n)
        known = np.zeros_like(self.W) if self.anchors is None else self.anchors.center
        return anchors._replace(center=self.channel.models(anchors.center, known))

    def _search(self, solver: Solver) -> Anchors:
        self._pull = 0.0
        if self._newton is None:
            begin = self.W.copy() if self._best is None else self._best.models
            known = begin if self.anchors is None else self.anchors.center
            self._newton = SEARCHES[solver](self.channel.models(begin, known))
        elif self.anchors is not None:  # which the stations know
            self._newton.replace_trial(self.channel.models(self._newton.trial(self.relationship), self.anchors.center))
        nothing = np.zeros(len(self.tasks))
        return Anchors(self._newton.trial(self.relationship), nothing + 1.0, nothing, gradient=True)

    def receive(self, report: Report) -> bool:
        """Take a station's v_b; False, and no change, where it is old, overtaken, or of a task that was left out."""
        self._check(Report)
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
            self._start = self._begin = None
        self.V[i], self._n[i], self._as_of[b] = report.v, max(report.n_samples, 1), as_of
        self.W[i] = self.anchors.model_at(i, report.v)
        return True

    def leave_out(self, task: int) -> None:
        """Go on with the problem of the other tasks; this task keeps its best model so far, without a certificate.

        Anchors and certificates leave the task out from now on. Models and points still have a row for every task.
        """
        i = int(np.searchsorted(self.tasks, task))
        best = self.W if self._best is None else self._best.models
        self._frozen[task] = best[i]
        self.tasks = np.delete(self.tasks, i)
        self.V, self.W, self._n = (np.delete(part, i, axis=0) for part in (self.V, self.W, self._n))
        if self.anchors is not None:
            self.anchors = self.anchors.without(i)
        self._next = self.anchors
        self._points = Points(np.delete(self._points.models, i, axis=1), self._points.combinations)
        self.relationship = self.relationship.without(i)
        self.forget_bound()

    def _of_all(self, models: Models) -> Models:
        """Models of every task, from the models of the problem; a task that is left out keeps its model."""
        if len(self.tasks) == self.n_tasks:
            return models
        filled = self._frozen.copy()
        filled[self.tasks] = models
        return filled

    def _asked(self, points: Points) -> Points:
        """Remember the points of the problem's tasks, and return points for every task."""
        self._points = points
        return points._replace(models=np.array([self._of_all(models) for models in points.models]))

    @property
    def models(self) -> Models:
        """What the stations hold, as of their last reports."""
        return self._of_all(self.W if self.anchors is None else self.anchors.models_at(self.V))

    @property
    def begins(self) -> bool:
        """Whether stations stand where the present anchors let them begin: at models that terminals know."""
        origin = None if self.anchors is None else self.anchors.origin
        return origin is not None and np.array_equal(origin, self.V)

    def candidates(self, *, ahead: bool = True) -> Points:
        """Points worth returning: from what the stations go on from to W = V G, or along a quasi-Newton step; and 0.

        ``ahead`` of the next server iteration its anchors decide what that is, so that its orders need not carry it.
        """
        assert self.anchors is not None, "there are anchors in every server iteration"
        self._next, known = self.anchors, self._points.models
        if self._newton is not None and self._newton.gradient is not None:  # which the terminals know
            models = np.stack([self.W, self._newton.W])
            return self._asked(Points(models, np.array([*((t, 1.0 - t) for t in STRETCHES), (0.0, 0.0)])))
        tried = self._pull is None
        if self._pull is None:
            self._pull = self.relationship.extra_coupling(self.V) if self.cloud_round == 1 else 0.0
        held, joint = self.W, self._path().solve(self.V)
        if self._newton is None:
            if ahead and not (tried and self._pull):
                self._next = self._coming()
                held = self._next.models_at(self.V)
            if np.array_equal(joint, held):
                models = self.channel.models(joint, known[-1])[None]
                return self._asked(Points(models, np.array([[scale] for scale in (*SCALES, 0.0)])))
            held = self.channel.models(held, known[0])
        models = np.stack([held, self.channel.models(joint, known[-1])])
        scales, shares = GRID.T
        combinations = np.stack([scales * (1.0 - shares), scales * shares], axis=1)
        return self._asked(Points(models, np.array([*combinations, (0.0, 0.0)])))

    def certify(self, sums: Sequence[StationSums | None]) -> Certificate | None:
        """Certificate for the best models so far; None while a station's sums are missing or out of step."""
        self._check(StationSums)
        assert self._next is not None, "points come before sums"
        complete = self._complete(sums)
        if complete is None:
            return None
        losses, duals = np.array([s.losses for s in complete]), np.array([s.dual for s in complete])
        points, number = self._points, max(self._as_of[b][0] for b in self.tasks)
        primals = objective.joint_primals(losses, self._n, points, self.relationship)
        worst = np.array([np.zeros(losses.shape[1]) if s.worst is None else s.worst for s in complete])
        absent = tuple(t for s in complete for t in s.absent)
        self._keep_best(points, losses, worst, primals, number, absent)
        plain, kept = dual_sums(duals), self._kept_back(complete, points)
        scaled = objective.scaled_dual(duals, self._n, self.V, self.relationship, kept)
        joint = objective.joint_dual(plain, self._n, self.V, self.relationship, kept)
        self._best_dual = max(self._best_dual, scaled.bound(self.relationship), joint)
        self._dual = objective.between(self._dual, scaled, self.relationship)
        self._steer(primals, plain, exactly=ROUNDED if kept else EXACT)
        if self.steers and self._newton is None:
            self._choose_start(points, primals)
        best = self._best
        assert best is not None
        lost = 0.0 if kept is None else kept.largest_product(self.relationship.solve(self.V))
        joint_dual = Dual(plain / self._n - lost, self.V, None if kept is None else kept.norms)
        made = Certificate(
            number,
            best.primal,
            self._bound,
            self._of_all(best.models),
            self._by_task(objective.station_primal((losses + worst)[:, 0], self._n, points.at(0), self._next)),
            self._by_task(objective.station_dual(plain, self._n, self.V, self._next, kept)),
            zero=float(primals[-1]),
            held=float(primals[0]),
            found=best.round,
            combination=best.combination if best.round == number else None,
            single_gap=best.primal - self._best_dual,
            absent=tuple(sorted({*best.absent, *absent})),
        )
        return self._with_suspects(made, [self._dual, scaled, joint_dual])

    def _with_suspects(self, certificate: Certificate, duals: Sequence[Dual]) -> Certificate:
        """Name, where the certificate is broken, the stations whose losses lie below what their duals prove.

        For every honest station and any w, by Fenchel and Young, Σ L(w)/n + ⟨w, v⟩ ≥ Σ −L*(−α)/n. If that holds for
        all, P ≥ D follows. So it fails for at least a station.
        """
        if not certificate.broken:
            return certificate
        assert self._best is not None
        W, blamed = self._best.models, np.zeros(len(self.tasks), dtype=bool)
        for dual in duals:
            proved = dual.f - np.einsum("bcd,bcd->b", W, dual.V)
            if dual.norms is not None:
                proved = proved - dual.norms * np.sqrt(squared_norms(W - self.relationship.solve(dual.V)))
            blamed |= self._best.losses < proved - ROUNDING * np.maximum(1.0, np.abs(proved))
        return replace(certificate, suspects=tuple(self.tasks[blamed].tolist()))

    def _by_task(self, values: Vector) -> Vector:
        """Return a number for every task, NaN if a task is left out."""
        by_task = np.full(self.n_tasks, np.nan)
        by_task[self.tasks] = values
        return by_task

    def closing(self) -> Points | None:
        """The models to return, to be asked for the gradient of their losses when a run ends: one more dual.

        None where they are those of an earlier problem.
        """
        if self._best is None:
            return None
        return self._asked(any_models(self.channel.models(self._best.models, self._points.models[-1])))

    def close(self, certificate: Certificate, sums: Sequence[StationSums | None]) -> Certificate:
        """The same certificate with a bound that counts the dual of `closing` too: α_i = −L′(z_i), of every row."""
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
        """The sums of all tasks in order; None while those of a station are missing or out of step."""
        by_task = {s.task: s for s in sums if s is not None and (s.round, s.membership) == self._as_of[s.task]}
        tasks = self.tasks.tolist()
        return [by_task[b] for b in tasks] if by_task.keys() >= set(tasks) else None

    @property
    def _bound(self) -> float:
        """The best that is known."""
        return max(self._best_dual, self._closed, self._dual.bound(self.relationship))

    def _kept_back(self, sums: Sequence[StationSums], points: Points) -> ResidualBounds | None:
        """What the terminals told of their residuals, by sample as V is; None where updates are not rounded."""
        told = [s.residual for s in sums if s.residual is not None]
        if not told:
            return None
        mean = np.array(told) / self._n[:, None]
        return ResidualBounds(mean[:, 0], mean[:, 1:], points.models)

    def _keep_best(
        self, points: Points, losses: Vector, worst: Vector, primals: Vector, number: int, absent: tuple[int, ...]
    ) -> None:
        """Keep the best point for this problem, its objective computed anew: weights far apart leave few digits.

        The ``worst`` of absent terminals counts in the bound. It grows with any model, so the known rows alone choose.
        """
        best = int(np.argmin(primals))
        models, before = points.at(best), self._best
        total = (losses + worst)[:, best]
        known = objective.joint_primal(losses[:, best], self._n, models, self.relationship)
        primal = objective.joint_primal(total, self._n, models, self.relationship)
        both_lack = before is not None and bool(absent and before.absent)
        if before is None or (known < before.known if both_lack else primal < before.primal):
            self._best = _Best(primal, models, number, points.combinations[best], total / self._n, known, absent)

    def _choose_start(self, points: Points, primals: Vector) -> None:
        """Start the next server iteration at the best point of this certificate if it is the best so far.

        A point between the two models that terminals know needs no bytes in the orders.
        """
        alone, best = len(points.models) == 1, int(np.argmin(primals[:-1]))
        improved = bool(primals[best] < self._best_start)
        self._best_start = min(self._best_start, float(primals[best]))
        if not improved:
            best, self._pull = 0, 0.0
        scale, share = (SCALES[best], 0.0) if alone else GRID[best]
        if self._next is self.anchors or scale != 1.0 or isinstance(self.relationship, Safe):
            self._start, self._begin = points.at(best) if improved else None, None
        else:
            self._start, self._begin = None, between(float(share), points.models[[0, -1]])

    def _steer(self, primals: Vector, plain: Vector, exactly: float) -> None:
        """Tell a quasi-Newton search what its trial came to; turn to the safe joint form where ascent goes astray.

        Alternation is fast and not guaranteed; in the safe form the joint dual never falls. Models that are as bad and
        get better come from a start for another problem.
        """
        if self._newton is not None:
            tangent = self.relationship.apply(self.W) - self.V
            gap = primals[0] - objective.joint_dual(plain, self._n, self.V, self.relationship)
            missing = gap - self.relationship.dual_energy(tangent) / (2.0 * len(self.tasks))
            exact = bool(missing <= exactly * max(abs(gap), 1e-12))
            self._newton.observe(self.relationship, self.V, primals[: len(STRETCHES)], exact=exact)
        elif primals[0] > max(ASTRAY * primals[-1], self._held) and self.relationship.may_turn_safe:
            self.relationship = Safe(self.relationship)
        self._held = float(primals[0])

    def resume(self, reports: Sequence[Report], models: Models | None = None) -> None:
        """Start from what the stations know already: V as reported, and these models, or W = V G that belong to V.

        Where V is far from its optimum and tasks are strongly coupled, V G is far worse than what the stations held.
        """
        self._check("resume")
        for report in reports:
            i = int(np.searchsorted(self.tasks, report.task))
            self.V[i], self._n[i] = report.v, max(report.n_samples, 1)
        self.W = self.relationship.solve(self.V) if models is None else models.copy()
        self._pull = 0.0

    def forget_bound(self) -> None:
        """Start the certificate anew: the problem has changed (membership, samples, relationship)."""
        self._best_dual, self._closed, self._dual = 0.0, 0.0, Dual.zero(self.V)
        self._best, self._newton, self._held, self._best_start = None, None, np.inf, np.inf
        self._start = self._begin = None

    def learn(self) -> bool:
        """Let the relationship learn from the models as they stand; True if that made it another one.

        Called by `assign` when the relationship's schedule says so, and by a run whose W-step is solved.
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
