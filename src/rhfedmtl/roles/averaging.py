"""The cloud of methods whose stations report models instead of v_b: it sends their mean, or another server step.

`training` and `deploy.cloud` use it like `roles.cloud.Cloud`. It has no dual variables and no coupling.
"""

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
from rhfedmtl.roles.certificates import Certificate
from rhfedmtl.roles.cloud_states import CloudStates
from rhfedmtl.roles.messages import Anchor, Report, StationSums, Vector


class AveragingCloud(CloudStates):
    """State machine of the cloud: send models, receive the stations' models, repeat.

    The gradient of their losses certifies models (`certify`).

    Parameters
    ----------
    initial : Vector
        First model of every task.
    n_tasks : int
        Number of stations.
    server : Server, optional
        Server step of the method; by default the weighted mean.
    channel : Channel, optional
        Channel of models on their way to the terminals.
    """

    def __init__(
        self, initial: Vector, n_tasks: int, server: Server | None = None, channel: Channel | None = None
    ) -> None:
        self.n_tasks = n_tasks
        self.channel = Channel() if channel is None else channel
        self._probed: Models | None = None  # models of the last certificate, as terminals know them
        self.cloud_round = 0
        self._models: Models = np.broadcast_to(initial, (n_tasks, *initial.shape)).copy()
        self._n = np.ones(n_tasks)
        self._best_dual = 0.0
        self._members: tuple[int, ...] = ()  # membership counts for which the best dual holds
        self._server = Server() if server is None else server
        self._sent = self._models
        self._memory = self._server.initial_memory(self._models)

    @property
    def models(self) -> Models:
        """Shared rows of the stations' models, as of their last reports."""
        return self._models

    def merged(self, matrices: Models) -> Models:
        """Return the models that predict for each task: the next server step, or the stations' personal models."""
        if self._server.personal:
            return matrices
        matrices = matrices.copy()
        matrices[:, : self._models.shape[1]] = self._next()[0]
        return matrices

    def as_sent(self, models: Models) -> Models:
        """Return these models as the channel sends them to terminals for a certificate."""
        self._probed = self.channel.models(models, np.zeros_like(models) if self._probed is None else self._probed)
        return self._probed

    def assign(self, solver: Solver = ASCENT) -> list[Anchor]:
        """Start a server iteration: return the models of all stations."""
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
        """Take a station's models; return False, and change nothing, if they are of another server iteration."""
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
        """Return the certificate of these models for a problem, unless a station's sums are missing."""
        certificate = certify_models(models, sums, relationship)
        if certificate is None:
            return None
        members = tuple(s.membership for s in sums if s is not None)
        last = self._best_dual if members == self._members else 0.0  # other members make another problem
        self._best_dual, self._members = max(last, certificate.dual), members
        return replace(certificate, dual=self._best_dual)

    def learn(self) -> None:
        """Do nothing: averaging has no relationship to learn."""


def certify_models(
    models: Models, sums: Sequence[StationSums | None], relationship: Relationship
) -> Certificate | None:
    """Return P of any models and a lower bound on every P, from sums at `any_models`, unless sums are missing."""
    present = [s for s in sums if s is not None]
    if len(present) != len(models):
        return None
    n = np.maximum([s.n_samples for s in present], 1).astype(np.float64)
    losses, V = np.array([s.losses for s in present]), np.array([s.gradient for s in present]) / n[:, None, None]
    primal, zero = objective.joint_primals(losses, n, any_models(models), relationship)
    dual = objective.between(Dual.zero(V), objective.gradient_dual(losses[:, 0], n, models, V), relationship)
    number = max(s.round for s in present)
    return Certificate(
        number,
        float(primal),
        dual.bound(relationship),
        models,
        losses[:, 0] / n,
        np.zeros(len(n)),
        zero=float(zero),
        found=number,
        combination=np.ones(1),
    )
