"""Local models: a separate model for every task, by coordinate ascent."""

from __future__ import annotations

from dataclasses import replace

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm


def local(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with relationship ``none`` and the policy of RHFedMTL."""
    options = replace(options, relationship="none")
    return Algorithm(options.method(kind), options.chosen_policy("measured"))
