"""Adaptive federated learning (Wang et al. 2019): FedAvg that controls its number of steps τ under a budget.

Terminals estimate, from a few rows before and after their steps, how strongly their loss and its gradient change
(ρ, β) and how far their gradient is from the mean (δ); the mean gradient travels in the rows below the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rhfedmtl.algorithms.options import Algorithm, Options
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.maths import sgd
from rhfedmtl.resources.adaptive import AdaptiveControl


@dataclass(frozen=True)
class AdaptiveFL(SgdMethod):
    """``probes`` rows of a terminal are visited twice in a round for the estimates; these visits are charged."""

    probes: int = field(default=2, kw_only=True)

    def slots(self) -> sgd.Slots:
        """One slot, with estimates."""
        return super().slots()._replace(probes=self.probes)

    def rows(self, columns: int) -> int:
        """The model, and below it the mean gradient."""
        return 2 * columns

    def shared_rows(self, columns: int) -> int:
        """Both."""
        return 2 * columns


def adaptive_fl(options: Options, kind: str) -> Algorithm:
    """τ from the control algorithm; the budget must be given."""
    method = AdaptiveFL(**options.sgd(kind))
    return Algorithm(method, AdaptiveControl(step=method.step, probes=method.probes))
