"""FedU (Dinh et al. 2021): the joint problem by SGD; terminals take gradient steps, then the cloud a coupling step.

Terminals see the losses and λ1, the cloud the rest of tr(W Q Wᵀ)/2. After H steps of size η it moves the models of all
tasks by η H times the gradient of this rest. The paper couples by a graph; here any relationship works.
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
    """Server that takes a step of ``rate`` along W (Q − λ1 I)."""

    relationship: Relationship
    lambda1: float
    rate: float

    def step(self, sent: FloatArray, reports: FloatArray, n: FloatArray, memory: Memory) -> tuple[FloatArray, Memory]:
        """Return a model for every task, from the reports of the stations."""
        return np.asarray(reports - self.rate * (self.relationship.apply(reports) - self.lambda1 * reports)), memory


@dataclass(frozen=True)
class FedU(SgdMethod):
    """SGD on the joint problem; ``steps`` is H, and the cloud's step is proportional to it."""

    steps: int = field(default=2, kw_only=True)

    @property
    def task_coupling(self) -> Relationship:
        """Relationship of the joint problem."""
        return self.relationship

    def server(self) -> Server:
        """Return the server for the part of the gradient that no task can see."""
        return CouplingStep(self.relationship, self.lambda1, self.step * self.steps)


def fedu(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with H steps (default 2), where the cloud couples in every round."""
    fixed = options.fixed_policy(station_rounds=1)
    assert isinstance(fixed, Fixed)
    return Algorithm(FedU(**options.sgd(kind), steps=fixed.local_steps), fixed)
