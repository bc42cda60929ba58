"""Local models: every task on its own, by coordinate ascent."""

from __future__ import annotations

from dataclasses import replace

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm


def local(options: Options, kind: str) -> Algorithm:
    """Relationship none, with the policy of RHFedMTL."""
    options = replace(options, relationship="none")
    return Algorithm(options.method(kind), options.chosen_policy("measured"))
