"""The algorithms of the paper (Yi et al.): models, dual variables, H, K and costs are those of `algorithm1.py`.

The algorithms `rhfedmtl` and `hfedmtl` have the same tiers, ledger and certificates. They have another merge, solver,
start and choice of H and K.
"""

from __future__ import annotations

from dataclasses import replace

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.merges import Average
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.maths.relationships import MeanRegularised


def rhfedmtl_paper(options: Options, kind: str) -> Algorithm:
    """Return Algorithm 1 with the H and K of Procedure 1."""
    return Algorithm(_method(options, kind), replace(options, policy="paper").chosen_policy("paper"))


def hfedmtl_paper(options: Options, kind: str) -> Algorithm:
    """Return Algorithm 1 with fixed H (default 2) and K (default 1)."""
    return Algorithm(_method(options, kind), options.fixed_policy())


def _method(options: Options, kind: str) -> DualMethod:
    """Return dual ascent whose stations average, on rows drawn with replacement, with the paper's alternation."""
    return DualMethod(
        loss=options.chosen_loss(kind),
        relationship=MeanRegularised(options.weight("lambda1"), options.weight("lambda2"), plain=True),
        merge=Average(),
        returns_last=True,
        intercept=False,
        uniform=True,
        channel=options.chosen_channel(),
        features=options.chosen_features(),
    )
