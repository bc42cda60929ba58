"""Engine ``gpu``: rows and dual variables stay on a graphics card; stations are as in `engines.inprocess`."""

from __future__ import annotations

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.gpu.terminals import CardTerminals
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.network import IntArray
from rhfedmtl.engines.registry import Execution


class Gpu(InProcess):
    """Engine `inprocess` with its terminals on a card."""

    terminals: CardTerminals

    def __init__(
        self, federation: Federation, method: Method, *, seed: int = 0, present: IntArray | None = None
    ) -> None:
        terminals = CardTerminals(federation, method, present=present)
        super().__init__(federation, method, seed=seed, terminals=terminals)


def network(federation: Federation, method: Method, *, seed: int, present: IntArray, execution: Execution) -> Gpu:
    """Return a network of engine ``gpu``."""
    return Gpu(federation, method, seed=seed, present=present)
