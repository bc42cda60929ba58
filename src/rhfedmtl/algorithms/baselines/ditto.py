"""Ditto (Li et al. 2021): a personal model for every task, held near the model that all tasks learn together.

Slot 0 is the shared model, slot 1 the personal model, with λ/2 ‖v − w‖². A visit of a row serves both. The personal
model stays at its station.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rhfedmtl.algorithms.method import FloatArray
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.maths.coupling import check_weight
from rhfedmtl.maths.kernels.rounds import Slots


@dataclass(frozen=True)
class Ditto(SgdMethod):
    """Two slots; ``pull`` is Ditto's λ, and 0 makes the tasks independent."""

    pull: float = field(default=0.1, kw_only=True)

    def __post_init__(self) -> None:
        """Raise ConfigError for a negative λ."""
        super().__post_init__()
        check_weight("mu", self.pull)

    def slots(self) -> Slots:
        """Return the shared model, and the personal model anchored to it."""
        return super().slots()._replace(mu=np.array([0.0, self.pull]), anchor=np.array([0, 0]))

    def task_models(self, matrix: FloatArray, columns: int) -> FloatArray:
        """Return the personal models."""
        return matrix[:, columns:]


def ditto(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with H steps (default 2) of both models."""
    method = Ditto(**options.sgd(kind), **options.arguments(pull="mu"))
    return Algorithm(method, options.fixed_policy(station_rounds=1))
