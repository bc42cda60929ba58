"""Imported once by the process from which a supervisor forks its nodes: they start in a moment instead of seconds.

gRPC is imported and no more: its threads, which do not survive a fork, begin with its first channel or server.
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
gc.freeze()  # nodes share these pages as long as nobody looks through them for garbage
