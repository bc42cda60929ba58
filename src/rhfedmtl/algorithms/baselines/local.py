"""Local models: every task on its own. By coordinate ascent (relationship none), or by SGD for comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import SgdMethod


@dataclass(frozen=True)
class LocalSgd(SgdMethod):
    """FedAvg within each station; nothing travels to the cloud."""

    def shared_rows(self, columns: int) -> int:
        """None."""
        return 0


def local(options: Options, kind: str) -> Algorithm:
    """Relationship none, with the policy of RHFedMTL."""
    options = replace(options, relationship="none")
    return Algorithm(options.method(kind), options.chosen_policy("measured"))
