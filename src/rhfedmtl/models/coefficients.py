"""Coefficients of the models in the units of the features, as a frame with names.

`TaskModels.coefficients` calls this module. It undoes the scaling: a coefficient is the change of the score if the
feature grows by 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rhfedmtl.errors import ConfigError
from rhfedmtl.features.registry import NO_MAP

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
            f"models behind features {models.features!r} have no coefficients in the units of the columns: measure the "
            "importance of columns with sklearn.inspection.permutation_importance, or train without maps"
        )
    d = models.n_features
    weights, intercepts = np.empty(models.models[:, :, :d].shape), np.zeros(models.models.shape[:2])
    for b in range(len(models.tasks)):
        scaler, model = models.model_of(b)
        norm = math.sqrt(d) if scaler.unit and scaler.scale is not None else 1.0
        weights[b] = model[:, :d] / (norm * (1.0 if scaler.scale is None else scaler.scale))
        intercepts[b] = model[:, d] if models.intercept else 0.0
        intercepts[b] -= 0.0 if scaler.mean is None else weights[b] @ scaler.mean
    # 1. Names of the rows: a task, and a class if there are classes. Of two classes, the score is that of the second.
    shown = models.classes[-models.models.shape[1] :]
    index = {"task": np.repeat(models.tasks, models.models.shape[1])}
    index |= {"class": np.tile(shown, len(models.tasks))} if len(shown) else {}
    # 2. Names of the columns.
    names = [*(models.feature_names or (f"X{j}" for j in range(d)))]
    columns = np.column_stack([weights.reshape(-1, d), intercepts.ravel()])
    last = INTERCEPT if INTERCEPT not in names else f"({INTERCEPT})"
    table = dict(zip([*names, last], columns.T, strict=True))
    try:
        import pandas as pd
    except ImportError:
        return index | table
    levels = list(index.values())
    rows = pd.MultiIndex.from_arrays(levels, names=list(index)) if len(levels) > 1 else pd.Index(levels[0], name="task")
    return pd.DataFrame(columns, index=rows, columns=[*names, last])
