"""Adaptive federated learning (Wang et al. 2019): FedAvg that controls its number of steps τ under a budget.

From a few rows before and after their steps, terminals estimate how strongly their loss and its gradient change (ρ, β),
and the distance of their gradient from the mean (δ). The mean gradient travels in the rows below the model. The paper
measures ρ and β between a node's model and the mean that it was merged into. Here they are measured between both ends
of the node's own steps: then a terminal needs no memory between rounds.
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
    """FedAvg with estimates: a terminal visits ``probes`` rows twice in a round, and these visits are charged."""

    below: ClassVar[int] = 1  # the mean gradient

    probes: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        """Raise ConfigError without probes: the control needs estimates."""
        super().__post_init__()
        check_count("probes", self.probes)

    def slots(self) -> Slots:
        """Return a single slot, with estimates."""
        return super().slots()._replace(probes=self.probes)


def adaptive_fl(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with τ from the control algorithm; it needs a budget."""
    method = AdaptiveFL(**options.sgd(kind))
    control = AdaptiveControl(method.step, method.decay, method.probes)
    return Algorithm(method, replace(control, **options.arguments(phi="phi")))
