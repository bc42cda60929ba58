"""Ditto (Li et al. 2021): a model of its own for every task, held near the one that all learn together.

Slot 0 is the shared model, slot 1 the task's own, with λ/2 ‖v − w‖². One visit of a row serves both. The task's own
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
    """``pull`` is Ditto's λ: 0 leaves every task alone."""

    pull: float = field(default=0.1, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a pull that pushes."""
        super().__post_init__()
        check_weight("mu", self.pull)

    def slots(self) -> Slots:
        """The shared model, and the task's own anchored to it."""
        return super().slots()._replace(mu=np.array([0.0, self.pull]), anchor=np.array([0, 0]))

    def task_models(self, matrix: FloatArray, columns: int) -> FloatArray:
        """The tasks' own models."""
        return matrix[:, columns:]


def ditto(options: Options, kind: str) -> Algorithm:
    """H steps (2 unless said) of both models."""
    method = Ditto(**options.sgd(kind), **options.told(pull="mu"))
    return Algorithm(method, options.fixed_policy(station_rounds=1))
