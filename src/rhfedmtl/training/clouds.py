"""What a method asks of the cloud, and what of its regularisation policies may know."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.method import Method
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.quasi_newton import ASCENT, NEWTON, Solver
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.roles.averaging import AveragingCloud
from rhfedmtl.roles.cloud import Cloud


def make_cloud(method: Method, n_tasks: int, shape: tuple[int, int]) -> Cloud | AveragingCloud:
    """The cloud that a method needs: one that couples tasks by anchors, or one that averages models."""
    if isinstance(method, DualMethod):
        return Cloud(method.relationship, n_tasks, shape, method.channel, steers=method.adapts)
    if isinstance(method, SgdMethod):
        return AveragingCloud(method.initial(*shape), n_tasks, method.server(), method.channel)
    raise ConfigError(f"no cloud knows what to do with {type(method).__name__}")


def solvers(method: Method) -> tuple[Solver, ...]:
    """Solvers that a run may choose from: a merge that adapts may also take quasi-Newton steps on the joint problem."""
    return (ASCENT, NEWTON) if isinstance(method, DualMethod) and method.adapts else (ASCENT,)


def regularisation(method: Method, samples: npt.NDArray[np.float64]) -> tuple[float, float]:
    """λ of theory, and the coupling of tasks as anchors for so many samples have it, for policies."""
    if not isinstance(method, DualMethod):
        return float(getattr(method, "lambda1", 0.0)), 0.0
    relationship, nothing = method.relationship, np.zeros((len(samples), 1, 1))
    lam = float(relationship.anchors(nothing, nothing).lam.min())
    if isinstance(relationship, MeanRegularised):
        anchored = relationship.anchors(nothing, nothing, samples).lam.min()
        return lam, float(1.0 - relationship.lambda1 / anchored)
    return lam, relationship.coupling(len(samples))
