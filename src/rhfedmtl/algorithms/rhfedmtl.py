"""RHFedMTL: the same learning, with H and K decided by a policy from budget, prices and what is measured."""

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm


def rhfedmtl(options: Options, kind: str) -> Algorithm:
    """H and K by the policy ``measured`` unless another is named."""
    return Algorithm(options.method(kind), options.chosen_policy("measured"))
