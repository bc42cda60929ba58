"""FedAvg (McMahan et al. 2017) and HierFAVG (Liu et al. 2020): one model for all, averaged over samples.

On three tiers they are one method: terminals take H = κ1 steps, stations average K = κ2 times, then the cloud does.
FedAvg is κ2 = 1.
"""

from __future__ import annotations

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import SgdMethod


def fedavg(options: Options, kind: str) -> Algorithm:
    """H steps (2 unless said), and the cloud averages in every round."""
    return Algorithm(SgdMethod(**options.sgd(kind)), options.fixed_policy(station_rounds=1))


def hierfavg(options: Options, kind: str) -> Algorithm:
    """κ1 = H steps (2 unless said), κ2 = K averages of the stations (2 unless said) for one of the cloud."""
    rounds = 2 if options.station_rounds is None else options.station_rounds
    return Algorithm(SgdMethod(**options.sgd(kind)), options.fixed_policy(station_rounds=rounds))
