"""One run: round zero, then server iterations as the policy plans them, and a certificate for what comes out.

The loop here is the clock. What to do is decided by the policy and the roles, and carried out by the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import SCALES, Scaler, scalers
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.linked import Linked
from rhfedmtl.engines.network import Network
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths import metrics
from rhfedmtl.maths.relationships import Models
from rhfedmtl.resources.policies import Plan, Policy, Situation
from rhfedmtl.roles.cloud import Certificate, Cloud


@dataclass(frozen=True)
class Settings:
    """How to run, as opposed to what to learn.

    ``certify_every`` server iterations the gap and the test metrics are computed, which needs a pass over the
    data; it is an evaluation and not charged. The last iteration is always certified.
    """

    scale: str = "standard-unit"
    scale_per_station: bool = False
    certify_every: int = 1
    seed: int = 0
    threads: int | None = None
    engine: str = "inprocess"

    def __post_init__(self) -> None:
        """Refuse settings that name nothing."""
        if self.engine not in ENGINES:
            raise ConfigError(f"unknown engine {self.engine!r}: choose one of {', '.join(ENGINES)}")
        if self.scale not in SCALES:
            raise ConfigError(f"unknown scaling {self.scale!r}: choose one of {', '.join(SCALES)}")
        if self.certify_every < 1 or self.seed < 0 or (self.threads is not None and self.threads < 1):
            raise ConfigError(
                f"certify_every={self.certify_every} and threads={self.threads} must be at least 1, "
                f"seed={self.seed} at least 0"
            )


@dataclass(frozen=True, eq=False)
class Progress:
    """Where a run stands after a round, for whoever watches; metrics and certificate are the latest ones."""

    round: int
    cloud_round: int
    plan: Plan
    terminal_steps: int
    certificate: Certificate | None
    metrics: dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Result:
    """What a run leaves behind: models, the scaling that belongs to them, the certificate, and what was done.

    ``metrics`` has a value for each task; ``history`` a row for each certified server iteration.
    """

    models: Models
    scalers: list[Scaler]
    certificate: Certificate
    metrics: dict[str, npt.NDArray[np.float64]]
    rounds: int
    cloud_rounds: int
    terminal_steps: int
    seconds: float
    history: list[dict[str, Any]]

    @property
    def reference(self) -> Models:
        """r, the mean model: for tasks that were not seen."""
        return np.asarray(self.models.mean(axis=0))


def train(
    federation: Federation,
    method: DualMethod,
    policy: Policy,
    settings: Settings | None = None,
    *,
    watch: Callable[[Progress], None] | None = None,
) -> Result:
    """Scale, learn as the policy plans, certify. ``watch`` is called after every BS iteration."""
    settings = settings or Settings()
    started = time.perf_counter()
    network = ENGINES[settings.engine](federation, method, settings)
    used = scalers(network.moments(), settings.scale, settings.scale_per_station)
    network.scale(used)
    run = _Run(federation, method, network, used, settings)
    while (plan := policy.plan(run.situation())) is not None:
        run.server_iteration(plan, watch)
    certificate = run.certify()
    return Result(
        certificate.models,
        used,
        certificate,
        run.metrics,
        run.round,
        run.cloud.cloud_round,
        run.terminal_steps,
        time.perf_counter() - started,
        run.history,
    )


class _Run:
    """The running state of `train`."""

    def __init__(
        self, federation: Federation, method: DualMethod, network: Network, used: list[Scaler], settings: Settings
    ) -> None:
        self.network = network
        self.settings = settings
        self.cloud = Cloud(method.relationship, federation.n_tasks, network.shape)
        self.round = 0
        self.terminal_steps = 0
        self.certificate: Certificate | None = None
        self.metrics: dict[str, npt.NDArray[np.float64]] = {}
        self.history: list[dict[str, Any]] = []
        self._n_classes = len(federation.class_names)
        self._tests = [
            (scaler.transform(X), y)
            for scaler, (X, y) in zip(used, map(federation.test_rows, range(federation.n_tasks)), strict=True)
        ]

    def situation(self) -> Situation:
        """What the policy may know now."""
        network = self.network
        return Situation(network.sizes, network.station, len(self._tests), self.cloud.cloud_round, self.round)

    def server_iteration(self, plan: Plan, watch: Callable[[Progress], None] | None) -> None:
        """Anchors down, K BS iterations, reports up; and a certificate where one is due."""
        self.network.assign(self.cloud.assign())
        for k in range(int(plan.station_rounds.max())):
            self._station_iteration(plan, k)
            if watch is not None and k + 1 < plan.station_rounds.max():
                watch(self._progress(plan))
        for report in self.network.reports(self.cloud.cloud_round):
            self.cloud.receive(report)
        if self.cloud.cloud_round % self.settings.certify_every == 0:
            self.certify()
        if watch is not None:
            watch(self._progress(plan))

    def certify(self) -> Certificate:
        """Certificate and test metrics of the models as they stand now; computed once for a round."""
        if self.certificate is None or self.certificate.round != self.round:
            certificate = self.cloud.certify(self.network.sums(self.cloud.candidates()))
            if certificate is None:
                raise ConfigError("no certificate: a terminal or station did not report its sums")
            self.certificate = certificate
            self.metrics = evaluate(certificate.models, self._tests, self._n_classes)
            self.history.append(self._record(certificate))
        return self.certificate

    def _station_iteration(self, plan: Plan, k: int) -> None:
        self.round += 1
        active = plan.station_rounds[self.network.station] > k
        steps = np.where(active, plan.local_steps, 0)
        self.network.round(self.round, steps)
        self.terminal_steps += int(steps.sum())

    def _record(self, certificate: Certificate) -> dict[str, Any]:
        return {
            "round": self.round,
            "cloud_round": self.cloud.cloud_round,
            "terminal_steps": self.terminal_steps,
            "primal": certificate.primal,
            "dual": certificate.dual,
            "gap": certificate.gap,
            **{name: _mean(values) for name, values in self.metrics.items()},
        }

    def _progress(self, plan: Plan) -> Progress:
        cloud_round = self.cloud.cloud_round
        return Progress(self.round, cloud_round, plan, self.terminal_steps, self.certificate, self.metrics)


def evaluate(
    models: Models, tests: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]], n_classes: int
) -> dict[str, npt.NDArray[np.float64]]:
    """Metrics of every task on its (scaled) test rows; NaN where a task has none."""
    rows = [metrics.measure(y, scores(X, models[b]), n_classes) if len(y) else {} for b, (X, y) in enumerate(tests)]
    names = next((list(row) for row in rows if row), [])
    return {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}


def scores(X: npt.NDArray[Any], model: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Scores of scaled rows, rows × columns; a model one longer than a row ends in its intercept."""
    d = X.shape[1]
    result = np.asarray(X, dtype=np.float64) @ model[:, :d].T
    return result + model[:, d] if model.shape[1] > d else result


def _mean(values: npt.NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


ENGINES: dict[str, Callable[[Federation, DualMethod, Settings], Network]] = {
    "inprocess": lambda f, method, s: InProcess(f, method, seed=s.seed, threads=s.threads),
    "linked": lambda f, method, s: Linked(f, method, seed=s.seed),
}
