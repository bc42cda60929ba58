"""Imported once by the process from which a supervisor forks its nodes: they start in a moment instead of seconds.

No gRPC here: its threads do not survive a fork.
"""

from __future__ import annotations

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.engines import training
from rhfedmtl.experiments import records
from rhfedmtl.maths.losses import SmoothedHinge
from rhfedmtl.roles.messages import Anchor, Probe, Verdict
from rhfedmtl.roles.station import BaseStation
from rhfedmtl.roles.terminal import Terminal

__all__ = ["records", "training"]


def _warm_up() -> None:
    """Load the compiled kernels of the default method, by a round of one terminal."""
    method = DualMethod(SmoothedHinge(), intercept=True)
    terminal = Terminal(0, np.eye(2), np.array([[1.0], [-1.0]]), method)
    station = BaseStation(0, terminal.shape, method)
    station.admit(terminal.join())
    station.receive_anchor(Anchor(1, 0, np.zeros(terminal.shape), 1.0))
    terminal.moments()
    for order in station.open_round(1, {0: 2}):
        update = terminal.work(order)
        assert update is not None
        station.receive(update)
    station.close_round()
    terminal.probe(Probe(0, 1, np.zeros((1, *terminal.shape)), Verdict(1, 1.0, 1, 1)))


_warm_up()
