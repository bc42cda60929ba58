"""MOCHA (Smith et al. 2017): a single terminal per task, a learned relationship, and work that each node can afford."""

from __future__ import annotations

from dataclasses import replace

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.data.federation import one_terminal_per_task


def mocha(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with a learned Ω; the policy of RHFedMTL gives each node an H that it can afford."""
    options = replace(options, relationship="learned")
    return Algorithm(options.method(kind), options.chosen_policy("measured"), one_terminal_per_task)
