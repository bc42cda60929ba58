"""MOCHA (Smith et al. 2017): one terminal per task, a learned relationship, and work that each node can afford."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.data.federation import Federation


def one_terminal_per_task(federation: Federation) -> Federation:
    """Every station becomes one terminal that holds all of its rows."""
    return replace(
        federation,
        terminal_offsets=federation.terminal_offsets[federation.task_offsets],
        task_offsets=np.arange(federation.n_tasks + 1),
        terminal_names=(),
    )


def mocha(options: Options, kind: str) -> Algorithm:
    """Learned Ω; H by the policy of RHFedMTL, which gives each node what it can afford."""
    options = replace(options, relationship="learned")
    return Algorithm(options.method(kind), options.chosen_policy("measured"), one_terminal_per_task)
