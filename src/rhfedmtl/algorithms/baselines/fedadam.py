"""FedAdam and FedYogi (Reddi et al. 2021): FedAvg whose server adapts, with the mean change as its gradient.

With Δ the change of the mean model: m ← β1 m + (1 − β1) Δ, v ← β2 v + (1 − β2) Δ² (Adam) or
v ← v − (1 − β2) Δ² sign(v − Δ²) (Yogi), and w ← w + η m/(√v + τ). All memory stays at the cloud.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rhfedmtl.algorithms.method import FloatArray
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import Memory, Server, SgdMethod, mean_by_samples
from rhfedmtl.maths.coupling import check_weight

BETA1, BETA2, TAU = 0.9, 0.99, 1e-3
"""Values of the paper; v starts at τ²."""


@dataclass(frozen=True)
class AdaptiveServer(Server):
    """Server with steps of Adam or Yogi: ``step_size`` is η, and with ``yogi`` v falls slowly."""

    step_size: float
    yogi: bool

    def initial_memory(self, initial: FloatArray) -> Memory:
        """Return m and v."""
        return np.zeros(initial.shape[1:]), np.full(initial.shape[1:], TAU**2)

    def step(self, sent: FloatArray, reports: FloatArray, n: FloatArray, memory: Memory) -> tuple[FloatArray, Memory]:
        """Return the next model for all tasks, from the model that all were sent."""
        m, v = memory
        change = mean_by_samples(reports, n) - sent[0]
        if not change.any():  # before the first server iteration
            return reports, memory
        m = BETA1 * m + (1.0 - BETA1) * change
        toward = np.sign(change**2 - v) * change**2 if self.yogi else change**2 - v
        v = v + (1.0 - BETA2) * toward
        return np.broadcast_to(sent[0] + self.step_size * m / (np.sqrt(v) + TAU), reports.shape), (m, v)


@dataclass(frozen=True)
class AdaptiveFedAvg(SgdMethod):
    """FedAvg with an adaptive server; ``server_step`` is η of the server."""

    server_step: float = field(default=0.1, kw_only=True)
    yogi: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Raise ConfigError for a server step of 0 or less."""
        super().__post_init__()
        check_weight("server_step", self.server_step, positive=True)

    def server(self) -> Server:
        """Return the server with Adam or Yogi."""
        return AdaptiveServer(self.server_step, self.yogi)


def fedadam(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with H steps (default 2), then a step of Adam."""
    return _with_server(options, kind, yogi=False)


def fedyogi(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with H steps (default 2), then a step of Yogi."""
    return _with_server(options, kind, yogi=True)


def _with_server(options: Options, kind: str, *, yogi: bool) -> Algorithm:
    method = AdaptiveFedAvg(**options.sgd(kind), server_step=options["server_step"], yogi=yogi)
    return Algorithm(method, options.fixed_policy(station_rounds=1))
