"""PerMFL (Banerjee et al. 2024): personal models on three tiers, each held near the model of the tier above.

A terminal's model θ_t starts at its station's model and stays near it by λ/2 ‖θ − w_b‖². After its round the station
computes w_b ← w_b − η [λ (w_b − mean θ_t) + γ (w_b − x)], K times from w_b = x, and then the cloud
x ← (1 − βγ) x + βγ mean w_b. A task's model is the model of its station (the paper's team). Means are by samples.

In the authors' public code devices use the number of local steps as λ: the arguments of their users' constructor are
shifted by a place (λ arrives where η is expected). Here λ is λ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from rhfedmtl.algorithms.baselines.fedprox import FedProx
from rhfedmtl.algorithms.merges import Arrived
from rhfedmtl.algorithms.method import FloatArray, wide
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import Memory, Server, mean_by_samples
from rhfedmtl.maths.coupling import check_weight


@dataclass(frozen=True)
class SlowServer(Server):
    """Server that moves x a ``share`` βγ of the way to the mean of the stations' models."""

    personal: ClassVar[bool] = True

    share: float

    def step(self, sent: FloatArray, reports: FloatArray, n: FloatArray, memory: Memory) -> tuple[FloatArray, Memory]:
        """Return the same x for all stations."""
        x = sent[0] + self.share * (mean_by_samples(reports, n) - sent[0])
        return np.broadcast_to(x, reports.shape), memory


@dataclass(frozen=True)
class PerMFL(FedProx):
    """Personal models on three tiers.

    ``mu`` is λ, ``team_pull`` is γ; ``team_step`` (λ + γ) η and ``cloud_step`` βγ are shares of the way.
    """

    team_pull: float = field(default=0.1, kw_only=True)
    team_step: float = field(default=1.0, kw_only=True)
    cloud_step: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        """Raise ConfigError for negative weights, and for steps of 0 or less."""
        super().__post_init__()
        for name in ("mu", "team_pull", "team_step", "cloud_step"):
            check_weight(name, getattr(self, name), positive=name != "team_pull")

    def factor(self, arrived: Arrived) -> float:
        """Return ηλ/n: the station's share of the way to the mean of its terminals."""
        return self.team_step * self.mu / (self.mu + self.team_pull) / arrived.samples

    def merged(self, U: FloatArray, delta: FloatArray, factor: Any, center: FloatArray) -> FloatArray:
        """Move U towards the terminals, and back to x."""
        back = self.team_step * self.team_pull / (self.mu + self.team_pull) * np.sign(factor)
        return np.asarray(U + wide(factor) * delta - wide(back) * (U - center))

    def server(self) -> Server:
        """Return the server with βγ of the paper."""
        return SlowServer(self.cloud_step)


def permfl(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with H terminal steps (default 2), and K station rounds (default 2) per cloud step."""
    settings = {name: options[name] for name in ("team_pull", "team_step", "cloud_step")}
    rounds = 2 if options.station_rounds is None else options.station_rounds
    return Algorithm(
        PerMFL(**options.sgd(kind), **options.arguments(mu="mu"), **settings),
        options.fixed_policy(station_rounds=rounds),
    )
