"""Fit the curves that turn scores into probabilities, on scores of rows that their models were not trained on.

The training rows are divided into folds, as for the choice of λ2. Models trained without a fold score its rows, and the
curves are fitted to these out-of-fold scores (`maths.probabilities`). The models of the run do not change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths import metrics
from rhfedmtl.maths.probabilities import ProbabilityCurves, fit_curves
from rhfedmtl.maths.relationships import Models, weights_of
from rhfedmtl.selection.folds import (
    Float64Array,
    Precision,
    default_folds,
    held_out_scores,
    make_folds,
    sample,
    solve,
    without,
)
from rhfedmtl.selection.regularisation import SEARCH_ROWS, weighted
from rhfedmtl.training.result import Result
from rhfedmtl.training.settings import Settings

IN_SAMPLE = "training rows, because no row can be held out: the probabilities are too sure"


class Trained(NamedTuple):
    """The result of a run: models, scalers and relative gap."""

    models: Models
    scalers: list[Scaler]
    relative_gap: float

    @classmethod
    def of(cls, result: Result) -> Trained:
        """Return these parts of a result."""
        return cls(result.models, list(result.scalers), result.certificate.relative_gap)


def probability_curves(
    built: Algorithm,
    federation: Federation,
    settings: Settings,
    trained: Trained,
    weight: Float64Array | None = None,
    held_out: Float64Array | None = None,
) -> ProbabilityCurves | None:
    """Return the curves of all tasks from out-of-fold scores; None for regression and for methods without duals.

    If no row can be held out, the curves are fitted to the scores of the training rows, and their words say so.

    Parameters
    ----------
    built, federation, settings
        Algorithm with its final weights, training rows and settings of the run.
    trained
        Result of the run. The models of the folds are solved to the same gap, or to that of `Precision`: models that
        are far from their optimum have smaller scores.
    weight
        Weights of the rows in the curves; by default, every row counts once.
    held_out
        Out-of-fold scores of all training rows, if the choice of the weights has made them (`weights.Selection`). Not
        used if the run ended further from its optimum than they did.
    """
    method, data = built.method, built.regroup(federation)
    if not federation.class_names or not isinstance(method, DualMethod):
        return None
    held_out = held_out if trained.relative_gap <= Precision.relative_gap else None
    # 1. Large data: hold out a fifth of a sample, as the choice of weights does.
    if large := len(data.X) >= SEARCH_ROWS:
        drawn = sample(data, SEARCH_ROWS, settings.seed)
        share = float(np.mean(np.bincount(data.row_task[drawn]) / np.bincount(data.row_task)))
        weights = {"lambda2": 0.0, **weights_of(method.relationship, data.n_tasks)}
        weights = {name: value / share for name, value in weights.items()}
        method = replace(method, relationship=weighted(method.relationship, **weights))
        data, federation = without(data, ~drawn), without(federation, ~drawn)
        weight = None if weight is None else weight[drawn]
    # 2. Score the rows of each fold by models that were trained without them.
    scores = np.full((len(data.X), data.targets().shape[1]), np.nan) if held_out is None else held_out
    try:
        parts = make_folds(data, default_folds(data), settings.seed, 1 if large else None)
    except ConfigError:
        words = IN_SAMPLE
        for b, (scaler, model) in enumerate(zip(trained.scalers, trained.models, strict=True)):
            own = federation.row_task == b
            scores[own] = metrics.scores(scaler.transform(federation.X[own]), model)
    else:
        precision = Precision(relative_gap=max(Precision.relative_gap, min(trained.relative_gap, 1.0)))
        settings = replace(settings, target_gap=0.0)
        for fold in parts if held_out is None else ():
            solution = solve(fold.federation, method, precision, settings=settings)
            held_out_scores(data, fold, solution, scores)
        words = "held-out rows of a sample" if large else f"out-of-fold rows ({len(parts)} folds)"
    # 3. Fit the curves.
    rows = np.flatnonzero(~np.isnan(scores).any(axis=1))
    return fit_curves(
        scores[rows],
        federation.y[rows],
        federation.row_task[rows].astype(np.int64),
        federation.n_tasks,
        len(federation.class_names),
        f"{len(rows):,} {words}",
        None if weight is None else weight[rows],
    )
