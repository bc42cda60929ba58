"""Distributed L-BFGS (Liu and Nocedal 1989) on the joint problem of all tasks.

A server iteration is one round: the trial goes down, every terminal makes a pass and sends its gradient up, and the
cloud combines the last steps and changes of the gradient. Where along a step to go on is found from sums of losses,
which are scalars; a step that fails costs a round. RHFedMTL's own search (`maths/quasi_newton.py`) remembers the
steps of each task.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.maths.quasi_newton import LBFGS
from rhfedmtl.policies.base import Plan, Situation, check_count


@dataclass(frozen=True)
class GradientRounds:
    """A pass over all rows in every server iteration, M of them or until the budget is spent."""

    cloud_rounds: int | None = None

    def __post_init__(self) -> None:
        """Refuse a count below one."""
        check_count("cloud_rounds", self.cloud_rounds, optional=True)

    def plan(self, situation: Situation) -> Plan | None:
        """The gradient of all terminals under the next trial."""
        if self.cloud_rounds is not None and situation.cloud_rounds >= self.cloud_rounds:
            return None
        return replace(Plan.uniform(situation, situation.sizes, 1), solver=LBFGS)


def lbfgs(options: Options, kind: str) -> Algorithm:
    """H is the number of rows, K is 1."""
    method = replace(options, merge="auto", uniform=False).method(kind)
    return Algorithm(method, GradientRounds(options.cloud_rounds))
