"""FedAvg (McMahan et al. 2017) and HierFAVG (Liu et al. 2020): a single model for all, averaged over samples.

On three tiers they are the same method: terminals take H = κ1 steps, stations average K = κ2 times, then the cloud
averages. FedAvg is κ2 = 1.
"""

from __future__ import annotations

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import SgdMethod


def fedavg(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with H steps (default 2), where the cloud averages in every round."""
    return Algorithm(SgdMethod(**options.sgd(kind)), options.fixed_policy(station_rounds=1))


def hierfavg(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with κ1 = H steps (default 2), and κ2 = K station averages (default 2) per cloud average."""
    rounds = 2 if options.station_rounds is None else options.station_rounds
    return Algorithm(SgdMethod(**options.sgd(kind)), options.fixed_policy(station_rounds=rounds))
