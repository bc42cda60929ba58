"""Scaffnew, which is ProxSkip for federated learning (Mishchenko et al. 2022): communication by the toss of a coin.

After every step all communicate with probability p, so that the number of steps in a round is geometric with mean
H = 1/p. Corrections are renewed by p/η of what the mean changed: see `maths.kernels.sgd`. In memory and on the wire it
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
    """The number of steps until a coin that comes down heads in one of H tosses does so; that of a round is its own."""

    def plan(self, situation: Situation) -> Plan | None:
        """Toss, if M server iterations are not done."""
        if super().plan(situation) is None:
            return None
        drawn = np.random.default_rng([situation.seed, situation.rounds, self.local_steps])
        return Plan.uniform(situation, int(drawn.geometric(1.0 / self.local_steps)), 1)


def scaffnew(options: Options, kind: str) -> Algorithm:
    """H steps (2 unless said) on average."""
    fixed = options.fixed_policy(station_rounds=1)
    assert isinstance(fixed, Fixed)
    method = Corrected(**options.sgd(kind), share=1.0 / fixed.local_steps)
    return Algorithm(method, Coin(fixed.local_steps, 1, fixed.cloud_rounds))
