"""Compile the kernels of a method before a terminal needs them.

The first use of a method compiles its kernels, which takes seconds. A terminal that compiled during a round would miss
the deadline, and the planner would take it for a slow terminal. This module must not import gRPC, because
`local.preload` imports it in the process from which nodes are forked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.features.maps import Features
from rhfedmtl.roles.messages import Probe, Verdict, WorkOrder
from rhfedmtl.roles.terminal import Terminal

_ready: set[tuple[Any, ...]] = set()


def warm_up(method: Method, X: npt.NDArray[Any], y: npt.NDArray[np.float64], weight: Any = None) -> None:
    """Compile all kernels for rows of this type, or load them from numba's cache; only once in a process."""
    kind = (repr(method), X.dtype, y.shape[1], weight is None)
    if kind not in _ready:
        # Play a round with a terminal of two rows, which is then discarded. Kernels do not depend on the feature map.
        method = replace(method, features=Features())
        terminal = Terminal(0, X[:2], y[:2], method, weight=None if weight is None else weight[:2])
        terminal.moments()
        terminal.join()
        model, verdict = np.zeros(terminal.shape), Verdict(0, 0.0, 0, terminal.incarnation)
        terminal.work(WorkOrder(1, 0, model, 1.0, 2, verdict))
        models = np.zeros((1, y.shape[1], terminal.shape[1]))
        terminal.probe(Probe(0, 1, models, np.ones((1, 1)), True, replace(verdict, until=1)))
        _ready.add(kind)
