"""CoCoA (Jaggi et al. 2014) and CoCoA+ (Ma et al. 2015): a single task over all terminals, by averaging or adding."""

from __future__ import annotations

from dataclasses import replace

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.data.federation import Federation


def one_task(federation: Federation) -> Federation:
    """Return the federation with all terminals under a single station."""
    return replace(
        federation,
        task_offsets=federation.task_offsets[[0, -1]],
        test_offsets=federation.test_offsets[[0, -1]],
        task_names=("all",),
    )


def cocoa(options: Options, kind: str) -> Algorithm:
    """Return the algorithm that averages, with H steps (default 2)."""
    options = replace(options, relationship="none", merge="average")
    return Algorithm(options.method(kind), options.fixed_policy(), one_task)


def cocoa_plus(options: Options, kind: str) -> Algorithm:
    """Return the algorithm that adds, with H steps (default 2)."""
    options = replace(options, relationship="none", merge="add")
    return Algorithm(options.method(kind), options.fixed_policy(), one_task)
