"""FedEM (Marfoq et al. 2021): all tasks share a few component models, and each task mixes them with its own shares.

Every visit of a row weighs the components by how well they explain it. The shares of a task are the mean of these
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
    """Mixture of ``components`` models, which start apart by a little noise from ``seed``.

    A single component is FedAvg.
    """

    components: int = field(default=3, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        """Raise ConfigError if there is no component."""
        super().__post_init__()
        if self.components < 1:
            raise ConfigError(f"components must be at least 1, got {self.components}")

    def check(self, federation: Federation) -> None:
        """Raise ConfigError for more components than features: the shares lie in a single row of the matrix."""
        super().check(federation)
        width = self.width(federation.n_features)
        if self.components > width:
            raise ConfigError(f"{self.components} components need as many features, and there are {width}: take fewer")

    def slots(self) -> Slots:
        """Return the components, as a mixture."""
        n = self.components
        return super().slots()._replace(mu=np.zeros(n), anchor=np.arange(n), mixture=n > 1)

    def rows(self, columns: int) -> int:
        """Return the rows of the components, and the row of the task's shares below them."""
        return self.components * columns + (self.components > 1)

    def shared_rows(self, columns: int) -> int:
        """Return the rows of the components; shares stay at the station."""
        return self.components * columns

    def initial(self, columns: int, width: int) -> FloatArray:
        """Return a little noise: equal components would stay equal."""
        start = super().initial(columns, width)
        if self.components > 1:
            start += 0.01 * np.random.default_rng([self.seed, self.components]).standard_normal(start.shape)
        return start

    def start(self, U: FloatArray, n: Any, center: FloatArray) -> FloatArray:
        """Take new components from the cloud; shares start equal."""
        U = super().start(U, n, center)
        if self.components > 1 and not U[-1].any():
            U[-1, : self.components] = 1.0 / self.components
        return U

    def task_models(self, matrix: FloatArray, columns: int) -> FloatArray:
        """Return the mean of the components by the task's shares."""
        if self.components == 1:
            return matrix[:, :columns]
        n = self.components
        parts = matrix[:, : n * columns].reshape(len(matrix), n, columns, -1)
        return np.asarray(np.einsum("bp,bpcd->bcd", matrix[:, -1, :n], parts))


def fedem(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with H steps (default 2) of all components."""
    method = FedEM(**options.sgd(kind), **options.arguments(components="components"))
    return Algorithm(method, options.fixed_policy(station_rounds=1))
