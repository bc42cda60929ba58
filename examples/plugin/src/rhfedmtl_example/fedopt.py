"""FedOpt with plain SGD at the server (Reddi et al. 2021): FedAvg whose stations take a step of their own size."""

from __future__ import annotations

from dataclasses import dataclass, field

from rhfedmtl.algorithms.merges import Arrived
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import SgdMethod, check_weight


@dataclass(frozen=True)
class FedOpt(SgdMethod):
    """``station_step`` = 1 is FedAvg."""

    station_step: float = field(default=0.8, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a step that leads nowhere."""
        super().__post_init__()
        check_weight("station_step", self.station_step, positive=True)

    def factor(self, arrived: Arrived) -> float:
        """A step along the mean change of those who answered."""
        return self.station_step / arrived.samples


def fedopt(options: Options, kind: str) -> Algorithm:
    """H steps (2 unless said), and one of the server."""
    method = FedOpt(**options.sgd(kind), station_step=options["station_step"])
    return Algorithm(method, options.fixed_policy(station_rounds=1))
