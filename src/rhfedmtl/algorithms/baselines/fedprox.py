"""FedProx (Li et al. 2020): FedAvg whose terminals stay near the model they were sent, by μ/2 ‖w − w₀‖²."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.maths.coupling import check_weight
from rhfedmtl.maths.kernels.rounds import Slots


@dataclass(frozen=True)
class FedProx(SgdMethod):
    """FedAvg with a proximal term; ``mu`` = 0 is FedAvg."""

    mu: float = field(default=0.1, kw_only=True)

    def __post_init__(self) -> None:
        """Raise ConfigError for a negative μ."""
        super().__post_init__()
        check_weight("mu", self.mu)

    def slots(self) -> Slots:
        """Return a single slot, anchored at its start."""
        return super().slots()._replace(mu=np.array([self.mu]))


def fedprox(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with H steps (default 2) and a proximal term."""
    method = FedProx(**options.sgd(kind), **options.arguments(mu="mu"))
    return Algorithm(method, options.fixed_policy(station_rounds=1))
