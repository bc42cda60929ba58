"""Imports for the fork server of `Supervisor`: forked nodes start in a moment instead of seconds.

`Supervisor` names this module to the fork server, which imports it once. gRPC is imported but not used: its threads do
not survive a fork, and they start with the first channel or server.
"""

from __future__ import annotations

import gc

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.deploy.nodes import ROLES
from rhfedmtl.deploy.warm_up import warm_up
from rhfedmtl.maths.losses import SmoothedHinge
from rhfedmtl.roles import station
from rhfedmtl.runs import records
from rhfedmtl.training import run as training

__all__ = ["records", "station", "training"]

for _kind in (np.float32, np.float64):
    warm_up(DualMethod(SmoothedHinge(), intercept=True), np.eye(2, dtype=_kind), np.array([[1.0], [-1.0]]))
for _role in ROLES.values():
    _role()
gc.freeze()  # the garbage collector would write to these pages, and nodes could no longer share them
