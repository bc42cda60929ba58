"""Coefficients of linear models in the units of the features, and importances of columns for all models, as frames.

`TaskModels` calls this module. A coefficient is the change of the score if the feature grows by 1. The importance of a
column is the standard deviation of the score that the column causes: for a linear model, |coefficient| times the
standard deviation of the column.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.features.registry import NO_MAP
from rhfedmtl.maths.metrics import scores

Models = Any
"""`TaskModels`. Its module imports this module, so the type cannot be named here."""
INTERCEPT = "intercept"


def coefficients(models: Models) -> Any:
    """Return a row for each task and class: its coefficients in the units of the features, and its intercept.

    Without ``unit``, features @ coefficients + intercept is the score. With ``unit``, rows are divided by their norm,
    and this holds for rows whose norm is √d after standardisation (the root mean square over the training rows), or 1
    without standardisation.
    """
    if models.features != NO_MAP:
        raise ConfigError(
            f"models behind features {models.features!r} have no coefficients in the units of the columns: call "
            "importances(X, task=…), or train without maps"
        )
    d = models.n_features
    weights, intercepts = np.empty(models.models[:, :, :d].shape), np.zeros(models.models.shape[:2])
    for b in range(len(models.tasks)):
        scaler, model = models.model_of(b)
        norm = math.sqrt(d) if scaler.unit and scaler.scale is not None else 1.0
        weights[b] = model[:, :d] / (norm * (1.0 if scaler.scale is None else scaler.scale))
        intercepts[b] = model[:, d] if models.intercept else 0.0
        intercepts[b] -= 0.0 if scaler.mean is None else weights[b] @ scaler.mean
    # Of two classes, the score is that of the second.
    shown = models.classes[-models.models.shape[1] :]
    index = {"task": np.repeat(models.tasks, models.models.shape[1])}
    index |= {"class": np.tile(shown, len(models.tasks))} if len(shown) else {}
    names = _names(models)
    last = INTERCEPT if INTERCEPT not in names else f"({INTERCEPT})"
    return _frame(index, [*names, last], np.column_stack([weights.reshape(-1, d), intercepts.ravel()]))


def importances(models: Models, rows: Any, task: Any, repeats: int, seed: int) -> Any:
    """Return a row for each task: the importance of each column of the table, √(mean (f(x) − f(x′))² / 2).

    f is the score (the root mean square over the classes, if there are more than two). The row x′ has the column of
    another row of the task, and its other columns from x. ``rows`` are encoded, and ``task`` has their indices.
    """
    if (task < 0).any():
        raise DataError(f"row {int(np.argmax(task < 0))} has no task that the models know: name each task")
    preparation = models.preparation
    names = list(_names(models) if preparation is None else preparation.columns)
    source = np.arange(len(names)) if preparation is None else preparation.sources
    random, present = np.random.default_rng(seed), np.unique(task)
    table = np.empty((len(present), len(names)))
    for i, b in enumerate(present.tolist()):
        own = rows[task == b]
        if len(own) < 2:
            raise DataError(f"task {str(models.tasks[b])!r} has a single row, which has none to exchange a column with")
        scaler, model = models.model_of(b)
        plain = scores(scaler.transform(own), model)
        for j in range(len(names)):
            changes = []
            for _ in range(repeats):
                exchanged = own.copy()
                exchanged[:, source == j] = own[random.permutation(len(own))][:, source == j]
                changes.append(np.mean(np.square(scores(scaler.transform(exchanged), model) - plain)))
            table[i, j] = math.sqrt(float(np.mean(changes)) / 2.0)
    return _frame({"task": models.tasks[present]}, names, table)


def _names(models: Models) -> list[str]:
    """Return the names of the features."""
    return [*(models.feature_names or (f"X{j}" for j in range(models.n_features)))]


def _frame(index: dict[str, Any], names: list[str], columns: Any) -> Any:
    """Return a pandas frame, or a dict of arrays if pandas is not installed."""
    try:
        import pandas as pd
    except ImportError:
        return index | dict(zip(names, columns.T, strict=True))
    levels = list(index.values())
    rows = pd.MultiIndex.from_arrays(levels, names=list(index)) if len(levels) > 1 else pd.Index(levels[0], name="task")
    return pd.DataFrame(columns, index=rows, columns=names)
