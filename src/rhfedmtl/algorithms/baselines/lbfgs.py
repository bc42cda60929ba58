"""Distributed L-BFGS (Liu and Nocedal 1989) on the joint problem of all tasks.

A server iteration is a single round: the trial goes down, every terminal makes a pass and sends its gradient up, and
the cloud combines the last steps and changes of the gradient. Sums of losses, which are scalars, decide the next point
along a step; a failed step costs a round. RHFedMTL's own search (`maths/quasi_newton.py`) remembers the steps of each
task.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.maths.quasi_newton import LBFGS
from rhfedmtl.policies.base import Plan, Situation, check_count


@dataclass(frozen=True)
class GradientRounds:
    """Policy with a pass over all rows in every server iteration, for M iterations or until the budget is spent."""

    cloud_rounds: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a count below 1."""
        check_count("cloud_rounds", self.cloud_rounds, optional=True)

    def plan(self, situation: Situation) -> Plan | None:
        """Return the plan of a gradient of all terminals under the next trial."""
        if self.cloud_rounds is not None and situation.cloud_rounds >= self.cloud_rounds:
            return None
        return replace(Plan.uniform(situation, situation.sizes, 1), solver=LBFGS)


def lbfgs(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with H equal to the number of rows and K = 1."""
    method = replace(options, merge="auto", uniform=False).method(kind)
    return Algorithm(method, GradientRounds(options.cloud_rounds))
