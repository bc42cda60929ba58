"""Compiled kernels before they are needed: the first use of a method compiles it, which takes seconds.

A terminal that compiled within a round would miss its deadline, and would look slow to the planner. No gRPC here:
processes are forked from one that has imported this.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.roles.messages import Probe, Verdict, WorkOrder
from rhfedmtl.roles.terminal import Terminal

_ready: set[tuple[Any, ...]] = set()


def warm_up(method: Method, X: npt.NDArray[Any], y: npt.NDArray[np.float64], weight: Any = None) -> None:
    """Compile, or load from numba's cache, all that a terminal with such rows runs; once in a process."""
    kind = (repr(method), X.dtype, y.shape[1], weight is None)
    if kind not in _ready:
        # A round of a terminal that is then forgotten.
        terminal = Terminal(0, X[:2], y[:2], method, weight=None if weight is None else weight[:2])
        terminal.moments()
        terminal.join()
        model, verdict = np.zeros(terminal.shape), Verdict(0, 0.0, 0, terminal.incarnation)
        terminal.work(WorkOrder(1, 0, model, 1.0, 2, verdict))
        models = np.zeros((1, y.shape[1], terminal.shape[1]))
        terminal.probe(Probe(0, 1, models, np.ones((1, 1)), True, replace(verdict, until=1)))
        _ready.add(kind)
