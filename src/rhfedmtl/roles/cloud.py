"""The cloud: couples the tasks through anchors, and certifies how far the models are from the best possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from rhfedmtl.errors import PeerError
from rhfedmtl.maths import objective
from rhfedmtl.maths.relationships import Anchors, Models, Relationship, Safe
from rhfedmtl.roles.messages import Anchor, Report, StationSums, Vector
from rhfedmtl.roles.states import Event, Table, follow, frozen

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How far from the models that the stations hold to the joint ones to look for the best to return."""

ASTRAY = 1e3
"""A gap so many times the objective of the first certificate makes the cloud turn to the safe joint form."""


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


@dataclass(frozen=True, eq=False)
class Certificate:
    """P(W) − D(α) ≥ 0 bounds the distance of the returned models from the optimum, as of a round.

    ``joint_share`` says which models it speaks of: 0 for those that the stations hold, 1 for the joint ones W = V G,
    and what lies between for the points of `SHARES` between them; the best of these is returned. ``station_gaps``
    are those of each station's own problem at its present anchor. All of it is conditional on the relationship as
    it stands, and assumes honest terminals.
    """

    round: int
    primal: float
    dual: float
    joint_share: float
    models: Models = field(repr=False)
    station_primal: Vector = field(repr=False)
    station_dual: Vector = field(repr=False)

    @property
    def gap(self) -> float:
        """P − D."""
        return self.primal - self.dual

    @property
    def relative_gap(self) -> float:
        """(P − D)/max(|P|, |D|); infinite where there is no dual."""
        if not np.isfinite(self.dual):
            return float("inf")
        return self.gap / max(abs(self.primal), abs(self.dual), np.finfo(float).tiny)

    @property
    def station_gaps(self) -> Vector:
        """P_b − D_b of every station at its anchor."""
        return self.station_primal - self.station_dual


class CloudStates:
    """The part of a cloud that knows where it stands, by the table ``CLOUD``: server iterations are its states."""

    cloud_round: int

    @property
    def phase(self) -> CloudPhase:
        """Where the cloud stands."""
        return CloudPhase.ITERATING if self.cloud_round else CloudPhase.FRESH

    def _check(self, event: Event) -> None:
        follow("the cloud", CLOUD, self.phase, event)


class Cloud(CloudStates):
    """State machine of the cloud: assign anchors, collect reports, repeat; certify when asked."""

    def __init__(self, relationship: Relationship, n_tasks: int, shape: tuple[int, int]) -> None:
        self.relationship = relationship
        self.n_tasks = n_tasks
        self.cloud_round = 0
        self.V: Models = np.zeros((n_tasks, *shape))
        self.W: Models = np.zeros((n_tasks, *shape))
        self.anchors: Anchors | None = None
        self.changes = 0
        self._n = np.ones(n_tasks)
        self._as_of = [(0, -1)] * n_tasks  # round and membership of the latest report
        self._best_dual = 0.0  # D(0) = 0: losses are not negative, so no objective is
        self._scale: float | None = None

    def assign(self) -> list[Anchor]:
        """Start a server iteration: the relationship learns if its time has come; new anchors for all stations."""
        self._check(Anchor)
        schedule = self.relationship.learns()
        if schedule is not None and schedule.due(self.cloud_round):
            self.learn()
        self.cloud_round += 1
        self.anchors = self.relationship.anchors(self.W, self.V, self._n)
        return [
            Anchor(self.cloud_round, b, self.anchors.center[b], float(self.anchors.lam[b])) for b in range(self.n_tasks)
        ]

    def receive(self, report: Report) -> bool:
        """Take a station's v_b; False, and no change, for an earlier server iteration or an overtaken report."""
        self._check(Report)
        if self.anchors is None or report.cloud_round != self.cloud_round:
            return False
        b = report.task
        if not 0 <= b < self.n_tasks or report.v.shape != self.V[0].shape or not np.isfinite(report.v).all():
            raise PeerError(f"report for task {b} with shape {report.v.shape} does not fit, or is not finite")
        as_of = report.round, report.membership
        if as_of < self._as_of[b]:
            return False
        if report.membership != self._as_of[b][1]:
            self.forget_bound()
        self.V[b], self._n[b], self._as_of[b] = report.v, max(report.n_samples, 1), as_of
        self.W[b] = self.anchors.center[b] + report.v / self.anchors.lam[b]
        return True

    def candidates(self) -> Models:
        """Models worth returning, those held by the stations first (candidate, task, column, feature)."""
        joint = self.relationship.solve(self.V)
        if np.array_equal(joint, self.W):
            return self.W[None].copy()
        return np.stack([self.W + share * (joint - self.W) for share in SHARES])

    def certify(self, sums: Sequence[StationSums | None]) -> Certificate | None:
        """Certificate for the better of the candidates; None while a station's sums are missing or out of step."""
        self._check(StationSums)
        assert self.anchors is not None, "there are anchors in every server iteration"
        by_task = {s.task: s for s in sums if s is not None and (s.round, s.membership) == self._as_of[s.task]}
        if len(by_task) != self.n_tasks:
            return None
        complete = [by_task[b] for b in range(self.n_tasks)]
        losses = np.array([s.losses for s in complete])
        duals = np.array([s.dual for s in complete])
        models = self.candidates()
        primals = [
            objective.joint_primal(losses[:, k], self._n, models[k], self.relationship) for k in range(len(models))
        ]
        self._best_dual = max(self._best_dual, objective.joint_dual(duals, self._n, self.V, self.relationship))
        best = int(np.argmin(primals))
        self._stay_safe(primals[best])
        return Certificate(
            max(number for number, _ in self._as_of),
            primals[best],
            self._best_dual,
            SHARES[best],
            models[best],
            objective.station_primal(losses[:, 0], self._n, self.W, self.anchors),
            objective.station_dual(duals, self._n, self.V, self.anchors),
        )

    def _stay_safe(self, primal: float) -> None:
        """Take the safe joint form from now on if the gap has left all bounds: alternation is fast, not guaranteed.

        The measure is the objective at the first certificate, not its gap: a warm start may begin with a gap of 0.
        """
        if self._scale is None:
            self._scale = max(abs(primal), abs(self._best_dual))
        if primal - self._best_dual > ASTRAY * self._scale and not isinstance(self.relationship, Safe):
            self.relationship = Safe(self.relationship)

    def resume(self, reports: Sequence[Report], models: Models | None = None) -> None:
        """Start from what the stations know already: V as reported, and these models, or W = V G that belong to V.

        Where V is far from its optimum and tasks are strongly coupled, V G is far worse than what the stations held.
        """
        self._check("resume")
        for report in reports:
            self.V[report.task], self._n[report.task] = report.v, max(report.n_samples, 1)
        self.W = self.relationship.solve(self.V) if models is None else models.copy()

    def forget_bound(self) -> None:
        """Start the certificate anew: the problem has changed (membership, samples, relationship)."""
        self._best_dual = 0.0

    def learn(self) -> bool:
        """Let the relationship learn from the models as they stand; True if that made it another one.

        Called by `assign` when the relationship's schedule says so, and by a run whose W-step is solved.
        """
        schedule = self.relationship.learns()
        if schedule is None or self.changes >= schedule.most:
            return False
        learned = self.relationship.learn(self.W)
        if learned is self.relationship:
            return False
        self.relationship = learned
        self.changes += 1
        self.forget_bound()
        return True
