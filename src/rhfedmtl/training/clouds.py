"""Derive from a method the cloud, the solvers, and the regularisation that policies use."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.merges import AUTO, Auto
from rhfedmtl.algorithms.method import Method
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.quasi_newton import ASCENT, NEWTON, Solver
from rhfedmtl.roles.averaging import AveragingCloud
from rhfedmtl.roles.cloud import Cloud


def make_cloud(method: Method, samples: npt.NDArray[np.int64], shape: tuple[int, int]) -> Cloud | AveragingCloud:
    """Return the cloud of a method; ``samples`` are the samples of every station."""
    n_tasks = len(samples)
    if isinstance(method, DualMethod):
        rows = samples.astype(np.float64)
        how = {"steers": method.adapts, "returns_last": method.returns_last}
        return Cloud(method.relationship, n_tasks, shape, method.channel, samples=rows, **how)
    if isinstance(method, SgdMethod):
        return AveragingCloud(method.initial(*shape), n_tasks, method.server(), method.channel)
    raise ConfigError(f"no cloud supports the method {type(method).__name__}")


def solvers(method: Method) -> tuple[Solver, ...]:
    """Return the solvers that a run may choose from."""
    if not isinstance(method, DualMethod) or not isinstance(method.merge, Auto):
        return (ASCENT,)
    if method.merge.solver == NEWTON:
        if not method.adapts:
            raise ConfigError("solver quasi-newton needs passes over all rows: leave uniform out, or take dual-ascent")
        return (NEWTON,)
    return (ASCENT, NEWTON) if method.adapts and method.merge.solver == AUTO else (ASCENT,)


def regularisation(method: Method, n_tasks: int) -> tuple[float, float]:
    """Return the λ of theory and the coupling of the tasks, for policies."""
    if not isinstance(method, DualMethod):
        return float(getattr(method, "lambda1", 0.0)), 0.0
    zeros = np.zeros((n_tasks, 1, 1))
    lam = float(method.relationship.anchors(zeros, zeros).lam.min())
    return lam, method.relationship.coupling(n_tasks)
