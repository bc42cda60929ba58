"""Methods that learn by dual coordinate ascent: a loss, a relationship between tasks, and a merge.

HFedMTL, RHFedMTL, CoCoA, MOCHA and local models are all settings of this method.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from rhfedmtl.algorithms.merges import Add, Arrived, Auto, Merge
from rhfedmtl.algorithms.method import Channel, FloatArray, Method, wide
from rhfedmtl.maths.kernels.kernel import Kernel
from rhfedmtl.maths.kernels.rounds import FACTORS, Answers, Duals, Layout, Orders, Rows
from rhfedmtl.maths.relationships import MeanRegularised, Relationship


@dataclass(frozen=True)
class DualMethod(Method):
    """A loss, a relationship between the tasks, and a merge. U_b = Σ_t X_tᵀα_t.

    With ``returns_last`` a run returns its last models, as in the paper. By default it returns the best certified ones.
    """

    relationship: Relationship = field(default_factory=MeanRegularised)
    merge: Merge = field(default_factory=Auto)
    returns_last: bool = field(default=False, kw_only=True)

    has_duals = True

    @property
    def task_coupling(self) -> Relationship:
        """Relationship of the joint problem."""
        return self.relationship

    def hidden(self, channel: Channel) -> Self:
        """Return the method with a channel that adds noise, merged by adding."""
        return replace(self, channel=channel, merge=self.merge if type(self.merge) is Add else Add())

    @property
    def adapts(self) -> bool:
        """True if the solver may change during a run; its passes need rows drawn without replacement."""
        return isinstance(self.merge, Auto) and not self.uniform

    @property
    def profile_length(self) -> int:
        """Count of numbers that describe a terminal's dual sum along its update."""
        if not self.merge.line_search:
            return 0
        return 3 if self.loss.quadratic else len(FACTORS)

    def work(
        self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, orders: Orders, threads: int = 1
    ) -> Answers:
        """Take coordinate steps; return X_tᵀΔα_t and the gain along the steps, summed by station."""
        return kernel.ascend(
            self.loss, rows, layout, duals, orders, profile_length=self.profile_length, threads=threads
        )

    def profiles(self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals) -> FloatArray:
        """Return dual sums along Δα."""
        return kernel.profiles(self.loss, rows, layout, duals, self.profile_length)

    def shares(self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, width: int) -> FloatArray:
        """Return u_t = X_tᵀα_t."""
        return kernel.shares(rows, layout, duals, width)

    def kept(self, delta: FloatArray, factor: float) -> FloatArray:
        """Return the full merged update: U_b = Σ_t u_t at all times."""
        return factor * delta

    def start(self, U: FloatArray, n: Any, center: FloatArray) -> FloatArray:
        """Return U: an anchor changes the model, not U."""
        return U

    def model(self, U: FloatArray, n: Any, center: FloatArray, lam: Any, origin: Any = 0.0) -> FloatArray:
        """Return w_b = c_b + v_b/λ_b, with the cloud's value of v_b."""
        return np.asarray(center + (self.channel.reported(self.report(U, n)) - origin) / wide(lam))

    def report(self, U: FloatArray, n: Any) -> FloatArray:
        """Return v_b = U_b/n_b."""
        return np.asarray(U / wide(np.maximum(n, 1)))

    def scale(self, lam: float, n: float, members: int, number: int) -> float:
        """Return λ_b n_b/σ′."""
        return lam * max(n, 1.0) / self.merge.sigma(members)

    def factor(self, arrived: Arrived) -> float:
        """Return the factor of the merge; 1 in a gradient round, which replaces all duals."""
        return 1.0 if arrived.gradient else self.merge.factor(arrived)
