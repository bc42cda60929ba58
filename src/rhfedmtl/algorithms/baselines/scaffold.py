"""SCAFFOLD (Karimireddy et al. 2020): FedAvg whose steps are corrected by how a terminal's gradient differs from all.

Terminals remember their mean gradient c_t of the last round (option II of the paper), as one coefficient for each row;
c, the mean of all of them by samples, lies below the model and travels with it: two vectors up and two down. A terminal
that goes takes its part of c with it, and the change of one whose update was lost is not made.
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
    """U holds the models, and below them Σ_t n_t c_t; ``share`` is p of `maths.kernels.sgd`: 0 stands for 1/H."""

    below: ClassVar[int] = 1  # c

    share: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a share that cannot be one."""
        super().__post_init__()
        check_weight("share", self.share)

    def slots(self) -> Slots:
        """One slot, whose steps are corrected."""
        return super().slots()._replace(control=self.share)

    def work(
        self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, orders: Orders, threads: int = 1
    ) -> Answers:
        """Corrected steps, from what became of the last ones."""
        kernel.settle(rows, layout, duals)
        return super().work(kernel, rows, layout, duals, orders, threads)

    def shares(self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, width: int) -> FloatArray:
        """n_t c_t."""
        own = kernel.shares(rows, layout, duals, width)
        return np.concatenate([np.zeros_like(own), own], axis=1)

    def kept(self, delta: FloatArray, factor: float) -> FloatArray:
        """The change of n_t c_t."""
        return _with_lower(np.zeros_like(delta), delta)

    def settled(self, factor: Any) -> Any:
        """What was merged was merged wholly, into a mean."""
        return np.sign(factor)

    def start(self, U: FloatArray, n: Any, center: FloatArray) -> FloatArray:
        """Model and c from the cloud."""
        return _with_lower(center, n * center)

    def merged(self, U: FloatArray, delta: FloatArray, factor: Any, center: FloatArray) -> FloatArray:
        """The mean of the models of those who answered; the sum of the n_t c_t of all."""
        return _with_lower(U + wide(factor) * delta, U + delta)

    def model(self, U: FloatArray, n: Any, center: FloatArray, lam: Any, origin: Any = 0.0) -> FloatArray:
        """Model and c."""
        return self.report(U, n)

    def report(self, U: FloatArray, n: Any) -> FloatArray:
        """Model and c."""
        return _with_lower(U, U / wide(np.maximum(n, 1)))


def _with_lower(matrix: FloatArray, other: FloatArray) -> FloatArray:
    """The upper half of the rows of one matrix, the lower half of another."""
    half = matrix.shape[-2] // 2
    return np.concatenate([matrix[..., :half, :], other[..., half:, :]], axis=-2)


def scaffold(options: Options, kind: str) -> Algorithm:
    """H corrected steps (2 unless said), and the cloud averages in every round."""
    return Algorithm(Corrected(**options.sgd(kind)), options.fixed_policy(station_rounds=1))
