"""RHFedMTL: the learning of HFedMTL, with a policy that decides H and K from budget, prices and measurements."""

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm


def rhfedmtl(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with the policy ``measured``, or with the policy that the options name."""
    return Algorithm(options.method(kind), options.chosen_policy("measured"))
