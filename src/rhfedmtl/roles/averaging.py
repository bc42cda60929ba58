"""The cloud of methods whose stations tell it models: it sends their mean, or what else the method's server makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rhfedmtl.algorithms.method import Channel
from rhfedmtl.algorithms.sgd import Memory, Server
from rhfedmtl.errors import PeerError
from rhfedmtl.maths import objective
from rhfedmtl.maths.objective import Dual, any_models
from rhfedmtl.maths.quasi_newton import ASCENT, Solver
from rhfedmtl.maths.relationships import Models, Relationship
from rhfedmtl.roles.cloud import Certificate, CloudStates
from rhfedmtl.roles.messages import Anchor, Report, StationSums, Vector


class AveragingCloud(CloudStates):
    """State machine of the cloud: send models, collect the stations', repeat.

    There is no dual; models are certified by the gradient of their losses (`certify`).
    """

    def __init__(
        self, initial: Vector, n_tasks: int, server: Server | None = None, channel: Channel | None = None
    ) -> None:
        """``channel`` is that of models on their way down."""
        self.n_tasks = n_tasks
        self.channel = Channel() if channel is None else channel
        self._told: Models | None = None  # what was certified last
        self.cloud_round = 0
        self._models: Models = np.broadcast_to(initial, (n_tasks, *initial.shape)).copy()
        self._n = np.ones(n_tasks)
        self._best_dual = 0.0
        self._members: tuple[int, ...] = ()  # for whom that is, by counts of their changes
        self._server = Server() if server is None else server
        self._sent = self._models
        self._memory = self._server.initial_memory(self._models)

    @property
    def models(self) -> Models:
        """What the stations hold, as of their last reports: the rows that they share."""
        return self._models

    def merged(self, matrices: Models) -> Models:
        """The stations' matrices as tasks are predicted with: what a station would go on from, or what it holds."""
        if self._server.personal:
            return matrices
        matrices = matrices.copy()
        matrices[:, : self._models.shape[1]] = self._next()[0]
        return matrices

    def told(self, models: Models) -> Models:
        """These models as terminals are told them for a certificate."""
        self._told = self.channel.models(models, np.zeros_like(models) if self._told is None else self._told)
        return self._told

    def assign(self, solver: Solver = ASCENT) -> list[Anchor]:
        """Start a server iteration: models for all stations, which hold them until they report."""
        self._check(Anchor)
        self.cloud_round += 1
        sent, self._memory = self._next()
        self._sent = self.channel.models(sent, self._sent)
        self._models = self._sent.copy()
        weights, work = self._server.weights(self.n_tasks, self._memory), self._server.work(self._memory)
        return [
            Anchor(self.cloud_round, b, self._sent[b], float(weights[b]), self.channel.model_dtype, work=work)
            for b in range(self.n_tasks)
        ]

    @property
    def passes(self) -> int:
        """Passes over the rows that the next server iteration asks for."""
        return self._server.passes(self._next()[1])

    def _next(self) -> tuple[Models, Memory]:
        return self._server.step(self._sent, self._models, self._n, self._memory)

    def receive(self, report: Report) -> bool:
        """Take a station's models; False, and no change, where they belong to another server iteration."""
        self._check(Report)
        if report.cloud_round != self.cloud_round:
            return False
        b = report.task
        if not 0 <= b < self.n_tasks or report.v.shape != self._models[0].shape or not np.isfinite(report.v).all():
            raise PeerError(f"report for task {b} with shape {report.v.shape} does not fit, or is not finite")
        self._models[b], self._n[b] = report.v, report.n_samples
        return True

    def certify(
        self, models: Models, sums: Sequence[StationSums | None], relationship: Relationship
    ) -> Certificate | None:
        """Certificate of these models for a problem; None while a station's sums are missing."""
        found = certify_models(models, sums, relationship)
        if found is None:
            return None
        members = tuple(s.membership for s in sums if s is not None)
        kept = self._best_dual if members == self._members else 0.0  # others have another problem
        self._best_dual, self._members = max(kept, found.dual), members
        return replace(found, dual=self._best_dual)

    def learn(self) -> None:
        """Averaging has no relationship to learn."""


def certify_models(
    models: Models, sums: Sequence[StationSums | None], relationship: Relationship
) -> Certificate | None:
    """P of any models and a lower bound on every P, from one round of `any_models`; None if sums are missing."""
    told = [s for s in sums if s is not None]
    if len(told) != len(models):
        return None
    n = np.maximum([s.n_samples for s in told], 1).astype(np.float64)
    losses, V = np.array([s.losses for s in told]), np.array([s.gradient for s in told]) / n[:, None, None]
    primal, zero = objective.joint_primals(losses, n, any_models(models), relationship)
    dual = objective.between(Dual.zero(V), objective.gradient_dual(losses[:, 0], n, models, V), relationship)
    number, each = max(s.round for s in told), losses[:, 0] / n
    return Certificate(
        number,
        float(primal),
        dual.bound(relationship),
        models,
        each,
        np.zeros(len(n)),
        zero=float(zero),
        found=number,
        combination=np.ones(1),
    )
