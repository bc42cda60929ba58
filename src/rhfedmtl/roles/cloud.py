"""The cloud: couples the tasks through anchors, and certifies how far the models are from the best possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rhfedmtl.errors import PeerError, ProtocolError
from rhfedmtl.maths import objective
from rhfedmtl.maths.relationships import Anchors, Models, Relationship
from rhfedmtl.roles.messages import Anchor, Report, StationSums, Vector


@dataclass(frozen=True, eq=False)
class Certificate:
    """P(W) − D(α) ≥ 0 bounds the distance of the returned models from the optimum, as of a round.

    ``model`` says which models it speaks of: those that the stations hold, or the joint ones W = V G, whichever
    are better. ``station_gaps`` are those of each station's own problem at its present anchor. All of it is
    conditional on the relationship as it stands, and assumes honest terminals.
    """

    round: int
    primal: float
    dual: float
    model: Literal["held", "joint"]
    models: Models
    station_primal: Vector
    station_dual: Vector

    @property
    def gap(self) -> float:
        """P − D."""
        return self.primal - self.dual

    @property
    def relative_gap(self) -> float:
        """(P − D)/max(|P|, |D|)."""
        return self.gap / max(abs(self.primal), abs(self.dual), np.finfo(float).tiny)

    @property
    def station_gaps(self) -> Vector:
        """P_b − D_b of every station at its anchor."""
        return self.station_primal - self.station_dual


class Cloud:
    """State machine of the cloud: assign anchors, collect reports, repeat; certify when asked."""

    def __init__(self, relationship: Relationship, n_tasks: int, shape: tuple[int, int]) -> None:
        self.relationship = relationship
        self.n_tasks = n_tasks
        self.cloud_round = 0
        self.V: Models = np.zeros((n_tasks, *shape))
        self.W: Models = np.zeros((n_tasks, *shape))
        self.anchors: Anchors | None = None
        self._n = np.ones(n_tasks)
        self._as_of = [(0, -1)] * n_tasks  # round and membership of the latest report
        self._best_dual = -np.inf

    def assign(self) -> list[Anchor]:
        """Start a server iteration: new anchors for all stations."""
        self.cloud_round += 1
        self.anchors = self.relationship.anchors(self.W, self.V)
        return [
            Anchor(self.cloud_round, b, self.anchors.center[b], float(self.anchors.lam[b])) for b in range(self.n_tasks)
        ]

    def receive(self, report: Report) -> bool:
        """Take a station's v_b; False, and no change, for an earlier server iteration or an overtaken report."""
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
        """Models worth returning: those held by the stations, and the joint ones (2, task, column, feature)."""
        return np.stack([self.W, self.relationship.solve(self.V)])

    def certify(self, sums: Sequence[StationSums | None]) -> Certificate | None:
        """Certificate for the better of the candidates; None while a station's sums are missing or out of step."""
        if self.anchors is None:
            raise ProtocolError("nothing to certify before the first server iteration")
        by_task = {s.task: s for s in sums if s is not None and (s.round, s.membership) == self._as_of[s.task]}
        if len(by_task) != self.n_tasks:
            return None
        complete = [by_task[b] for b in range(self.n_tasks)]
        losses = np.array([s.losses for s in complete])
        duals = np.array([s.dual for s in complete])
        models = self.candidates()
        primals = [objective.joint_primal(losses[:, k], self._n, models[k], self.relationship) for k in range(2)]
        self._best_dual = max(self._best_dual, objective.joint_dual(duals, self._n, self.V, self.relationship))
        best = int(primals[1] < primals[0])
        return Certificate(
            max(number for number, _ in self._as_of),
            primals[best],
            self._best_dual,
            "joint" if best else "held",
            models[best],
            objective.station_primal(losses[:, 0], self._n, self.W, self.anchors),
            objective.station_dual(duals, self._n, self.V, self.anchors),
        )

    def forget_bound(self) -> None:
        """Start the certificate anew: the problem has changed (membership, samples, relationship)."""
        self._best_dual = -np.inf

    def learn(self) -> None:
        """Let the relationship learn from the models as they stand."""
        learned = self.relationship.learn(self.W)
        if learned is not self.relationship:
            self.relationship = learned
            self.forget_bound()
