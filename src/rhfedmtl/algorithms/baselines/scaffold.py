"""SCAFFOLD (Karimireddy et al. 2020): FedAvg with steps corrected for the deviation of a terminal's gradient.

Terminals remember their mean gradient c_t of the last round (option II of the paper), as a coefficient for each row.
The mean of all c_t by samples, c, lies below the model and travels with it: two vectors up and two down. A terminal
that leaves takes its part of c along. If an update is lost, the change of its c_t is dropped too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from rhfedmtl.algorithms.method import FloatArray, wide
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.maths.coupling import check_weight
from rhfedmtl.maths.kernels.kernel import Kernel
from rhfedmtl.maths.kernels.rounds import Answers, Duals, Layout, Orders, Rows, Slots


@dataclass(frozen=True)
class Corrected(SgdMethod):
    """FedAvg with corrected steps.

    U holds the models, and below them Σ_t n_t c_t; ``share`` is p of `maths.kernels.sgd`: 0 stands for 1/H.
    """

    below: ClassVar[int] = 1  # c

    share: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        """Raise ConfigError for an invalid share."""
        super().__post_init__()
        check_weight("share", self.share)

    def slots(self) -> Slots:
        """Return a single slot with corrected steps."""
        return super().slots()._replace(control=self.share)

    def work(
        self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, orders: Orders, threads: int = 1
    ) -> Answers:
        """Settle the last steps, then take corrected steps."""
        kernel.settle(rows, layout, duals)
        return super().work(kernel, rows, layout, duals, orders, threads)

    def shares(self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, width: int) -> FloatArray:
        """Return n_t c_t."""
        corrections = kernel.shares(rows, layout, duals, width)
        return np.concatenate([np.zeros_like(corrections), corrections], axis=1)

    def kept(self, delta: FloatArray, factor: float) -> FloatArray:
        """Return the change of n_t c_t."""
        return _with_lower(np.zeros_like(delta), delta)

    def settled(self, factor: Any) -> Any:
        """Return 1 for an update that was merged, as a mean merges it in full, and 0 otherwise."""
        return np.sign(factor)

    def start(self, U: FloatArray, n: Any, center: FloatArray) -> FloatArray:
        """Return the model and c of the cloud."""
        return _with_lower(center, n * center)

    def merged(self, U: FloatArray, delta: FloatArray, factor: Any, center: FloatArray) -> FloatArray:
        """Return the mean of the models that arrived, and the sum of n_t c_t of all terminals."""
        return _with_lower(U + wide(factor) * delta, U + delta)

    def model(self, U: FloatArray, n: Any, center: FloatArray, lam: Any, origin: Any = 0.0) -> FloatArray:
        """Return the model and c."""
        return self.report(U, n)

    def report(self, U: FloatArray, n: Any) -> FloatArray:
        """Return the model and c."""
        return _with_lower(U, U / wide(np.maximum(n, 1)))


def _with_lower(matrix: FloatArray, lower: FloatArray) -> FloatArray:
    """Return the upper half of the rows of ``matrix`` above the lower half of ``lower``."""
    half = matrix.shape[-2] // 2
    return np.concatenate([matrix[..., :half, :], lower[..., half:, :]], axis=-2)


def scaffold(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with H corrected steps (default 2), where the cloud averages in every round."""
    return Algorithm(Corrected(**options.sgd(kind)), options.fixed_policy(station_rounds=1))
