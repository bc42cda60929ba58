"""Adaptive federated learning (Wang et al. 2019): FedAvg that controls its number of steps τ under a budget.

Terminals estimate, from a few rows before and after their steps, how strongly their loss and its gradient change
(ρ, β) and how far their gradient is from the mean (δ); the mean gradient travels in the rows below the model. The
paper takes ρ and β between a node's own model and the mean it was merged into; here they are taken between the ends of
its own steps, so that a terminal needs no memory from one round to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.maths.kernels.rounds import Slots
from rhfedmtl.policies.adaptive_fl import AdaptiveControl
from rhfedmtl.policies.base import check_count


@dataclass(frozen=True)
class AdaptiveFL(SgdMethod):
    """``probes`` rows of a terminal are visited twice in a round for the estimates; these visits are charged."""

    below: ClassVar[int] = 1  # the mean gradient

    probes: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse to control without estimates."""
        super().__post_init__()
        check_count("probes", self.probes)

    def slots(self) -> Slots:
        """One slot, with estimates."""
        return super().slots()._replace(probes=self.probes)


def adaptive_fl(options: Options, kind: str) -> Algorithm:
    """τ from the control algorithm; the budget must be given."""
    method = AdaptiveFL(**options.sgd(kind))
    control = AdaptiveControl(method.step, method.decay, method.probes)
    return Algorithm(method, replace(control, **options.told(phi="phi")))
