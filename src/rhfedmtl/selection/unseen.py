"""Train the model for unseen tasks: all training rows as a single task, separate from the coupled problem.

The mean of the tasks' models cannot do this well. Labels lose the level of their task before the coupled problem is
solved, so the mean model does not learn how levels follow from the features.
"""

from __future__ import annotations

from dataclasses import replace

from rhfedmtl.algorithms.baselines.pooled import Passes, in_one_place
from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.maths.registry import LAMBDA1
from rhfedmtl.maths.relationships import Unrelated
from rhfedmtl.selection.folds import Float64Array, Precision, solve
from rhfedmtl.training.config import OPTIMUM
from rhfedmtl.training.settings import Settings


def pooled_model(built: Algorithm, federation: Federation, settings: Settings) -> tuple[Scaler, Float64Array] | None:
    """Return scaler and model (column, feature) of all training rows as a single task.

    The pooled problem has the fit's loss, λ1, scaling, tolerance and solver. A method without duals, or with a single
    model for all tasks, gets nothing.
    """
    method = built.method
    if not isinstance(method, DualMethod) or built.regroup(federation).n_tasks < 2:
        return None
    uncoupled = Unrelated(getattr(method.relationship, "lambda1", LAMBDA1))
    gap = max(settings.target_relative_gap, OPTIMUM)
    precision = Precision(gap, Passes().passes, settings.max_rounds, certify_every=1)
    rows = in_one_place(federation)
    solved = solve(rows, replace(method, relationship=uncoupled), precision, settings=replace(settings, target_gap=0.0))
    return solved.scalers[0], solved.models[0]
