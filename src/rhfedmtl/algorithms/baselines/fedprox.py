"""FedProx (Li et al. 2020): FedAvg whose terminals are held near the model they were sent, by μ/2 ‖w − w₀‖²."""

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
    """``mu`` = 0 is FedAvg."""

    mu: float = field(default=0.1, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a pull that pushes."""
        super().__post_init__()
        check_weight("mu", self.mu)

    def slots(self) -> Slots:
        """One slot, anchored where it started."""
        return super().slots()._replace(mu=np.array([self.mu]))


def fedprox(options: Options, kind: str) -> Algorithm:
    """H steps (2 unless said) with a proximal term."""
    method = FedProx(**options.sgd(kind), **options.told(mu="mu"))
    return Algorithm(method, options.fixed_policy(station_rounds=1))
