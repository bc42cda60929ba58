"""Scaffnew, which is ProxSkip for federated learning (Mishchenko et al. 2022): rounds of random length.

After every step all terminals communicate with probability p, so the number of steps in a round is geometric with mean
H = 1/p. Corrections change by p/η times the change of the mean: see `maths.kernels.sgd`. In memory and on the wire it
is SCAFFOLD.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rhfedmtl.algorithms.baselines.scaffold import Corrected
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.policies.base import Plan, Situation
from rhfedmtl.policies.fixed import Fixed


@dataclass(frozen=True)
class Coin(Fixed):
    """Policy with a random number of steps in each round: tosses until heads, which has probability 1/H."""

    def plan(self, situation: Situation) -> Plan | None:
        """Toss for a round, unless M server iterations are complete."""
        if super().plan(situation) is None:
            return None
        drawn = np.random.default_rng([situation.seed, situation.rounds, self.local_steps])
        return Plan.uniform(situation, int(drawn.geometric(1.0 / self.local_steps)), 1)


def scaffnew(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with H steps on average (default 2)."""
    fixed = options.fixed_policy(station_rounds=1)
    assert isinstance(fixed, Fixed)
    method = Corrected(**options.sgd(kind), share=1.0 / fixed.local_steps)
    return Algorithm(method, Coin(fixed.local_steps, 1, fixed.cloud_rounds))
