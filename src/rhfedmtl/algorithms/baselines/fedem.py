"""FedEM (Marfoq et al. 2021): all tasks share a few component models, each task mixes them in its own shares.

Every visit of a row weighs the components by how well they explain it; the shares of a task are the mean of these
weights, merged at its station, where they stay. Predictions use the mean of the components by the task's shares.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rhfedmtl.algorithms.method import FloatArray
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.kernels.rounds import Slots


@dataclass(frozen=True)
class FedEM(SgdMethod):
    """``components`` models; one of them is FedAvg. They start apart, by a little noise from ``seed``."""

    components: int = field(default=3, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse fewer than one component."""
        super().__post_init__()
        if self.components < 1:
            raise ConfigError(f"components must be at least 1, got {self.components}")

    def check(self, federation: Federation) -> None:
        """Shares lie in one row of the matrix: there can be no more of them than features."""
        super().check(federation)
        room = federation.n_features + self.intercept
        if self.components > room:
            raise ConfigError(f"{self.components} components need as many features, and there are {room}: take fewer")

    def slots(self) -> Slots:
        """The components, as a mixture."""
        n = self.components
        return super().slots()._replace(mu=np.zeros(n), anchor=np.arange(n), mixture=n > 1)

    def rows(self, columns: int) -> int:
        """The components, and below them the shares of the task."""
        return self.components * columns + (self.components > 1)

    def shared_rows(self, columns: int) -> int:
        """The components; shares stay at the station."""
        return self.components * columns

    def initial(self, columns: int, width: int) -> FloatArray:
        """A little noise: equal components would stay equal."""
        start = super().initial(columns, width)
        if self.components > 1:
            start += 0.01 * np.random.default_rng([self.seed, self.components]).standard_normal(start.shape)
        return start

    def start(self, U: FloatArray, n: Any, center: FloatArray) -> FloatArray:
        """New components from the cloud; equal shares before the first."""
        U = super().start(U, n, center)
        if self.components > 1 and not U[-1].any():
            U[-1, : self.components] = 1.0 / self.components
        return U

    def task_models(self, matrix: FloatArray, columns: int) -> FloatArray:
        """Mean of the components by the task's shares."""
        if self.components == 1:
            return matrix[:, :columns]
        n = self.components
        parts = matrix[:, : n * columns].reshape(len(matrix), n, columns, -1)
        return np.asarray(np.einsum("bp,bpcd->bcd", matrix[:, -1, :n], parts))


def fedem(options: Options, kind: str) -> Algorithm:
    """H steps (2 unless said) of all components."""
    method = FedEM(**options.sgd(kind), **options.told(components="components"))
    return Algorithm(method, options.fixed_policy(station_rounds=1))
