"""FedU (Dinh et al. 2021): the problem of all tasks by SGD; terminals take steps, then the cloud one of the coupling.

Terminals see the losses and λ1, the cloud the rest of tr(W Q Wᵀ)/2: after H steps of size η it moves the models of all
tasks by η H times the gradient of that. The paper couples by a graph; here any relationship will do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rhfedmtl.algorithms.method import FloatArray
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import Memory, Server, SgdMethod
from rhfedmtl.maths.relationships import Relationship
from rhfedmtl.policies.fixed import Fixed


@dataclass(frozen=True)
class CouplingStep(Server):
    """A step of ``rate`` along W (Q − λ1 I)."""

    relationship: Relationship
    lambda1: float
    rate: float

    def step(self, sent: FloatArray, told: FloatArray, n: FloatArray, memory: Memory) -> tuple[FloatArray, Memory]:
        """From what stations told; every task has its own model."""
        return np.asarray(told - self.rate * (self.relationship.apply(told) - self.lambda1 * told)), memory


@dataclass(frozen=True)
class FedU(SgdMethod):
    """``steps`` is H, which the cloud's step is proportional to."""

    steps: int = field(default=2, kw_only=True)

    @property
    def task_coupling(self) -> Relationship:
        """The relationship of the joint problem."""
        return self.relationship

    def server(self) -> Server:
        """The part of the gradient that no task can see."""
        return CouplingStep(self.relationship, self.lambda1, self.step * self.steps)


def fedu(options: Options, kind: str) -> Algorithm:
    """H steps (2 unless said), and the cloud couples in every round."""
    fixed = options.fixed_policy(station_rounds=1)
    assert isinstance(fixed, Fixed)
    return Algorithm(FedU(**options.sgd(kind), steps=fixed.local_steps), fixed)
