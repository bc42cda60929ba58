"""HFedMTL: hierarchical federated multi-task learning with fixed H, K and M (Yi et al., PIMRC 2022)."""

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm


def hfedmtl(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with fixed H (default 2) and K (default 1), for M server iterations or a whole budget."""
    return Algorithm(options.method(kind), options.fixed_policy())
