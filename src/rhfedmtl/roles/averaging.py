"""The cloud of methods that average models: the mean of the stations' models, by their samples."""

from __future__ import annotations

import numpy as np

from rhfedmtl.errors import PeerError
from rhfedmtl.maths.relationships import Models
from rhfedmtl.roles.cloud import CloudStates
from rhfedmtl.roles.messages import Anchor, Report, Vector


class AveragingCloud(CloudStates):
    """State machine of the cloud: send the mean model, collect the stations' models, repeat.

    There is no dual and so no certificate.
    """

    def __init__(self, initial: Vector, n_tasks: int) -> None:
        self.n_tasks = n_tasks
        self.cloud_round = 0
        self._models: Models = np.broadcast_to(initial, (n_tasks, *initial.shape)).copy()
        self._n = np.ones(n_tasks)

    @property
    def mean(self) -> Vector:
        """Σ_b n_b w_b/Σ_b n_b, in the order of stations."""
        weights = self._n if self._n.any() else np.ones(self.n_tasks)
        total = np.zeros(self._models.shape[1:])
        for model, n in zip(self._models, weights.tolist(), strict=True):
            total += n * model
        return np.asarray(total / weights.sum())

    def merged(self, matrices: Models) -> Models:
        """The stations' matrices with the mean in their shared rows: what a station would go on from."""
        matrices = matrices.copy()
        matrices[:, : self._models.shape[1]] = self.mean
        return matrices

    def assign(self) -> list[Anchor]:
        """Start a server iteration: the same models for all stations."""
        self._check(Anchor)
        self.cloud_round += 1
        mean = self.mean
        return [Anchor(self.cloud_round, b, mean, 1.0) for b in range(self.n_tasks)]

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

    def learn(self) -> None:
        """Averaging has no relationship to learn."""
