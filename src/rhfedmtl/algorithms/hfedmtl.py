"""HFedMTL: hierarchical federated multi-task learning with H, K and M fixed beforehand (Yi et al., PIMRC 2022)."""

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm


def hfedmtl(options: Options, kind: str) -> Algorithm:
    """Fixed H (2 unless said) and K (1), M server iterations or until the budget is spent."""
    return Algorithm(options.method(kind), options.fixed_policy())
