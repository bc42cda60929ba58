"""Fit probability curves of finished models to rows that the user held out; `TaskModels.calibrated` calls it."""

from __future__ import annotations

from typing import Any

import numpy as np

from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.maths.probabilities import ProbabilityCurves, fit_curves
from rhfedmtl.training.privacy import STATEMENT

Models = Any
"""`TaskModels`. Its module imports this module, so the type cannot be named here."""
PRIVATE = {STATEMENT: "a private run", "privacy": "a release", "removal": "a removal"}
"""Statements on privacy in the origin of models. They do not cover the rows of a calibration."""


def curves_of(models: Models, X: Any, y: Any, task: Any, sample_weight: Any) -> ProbabilityCurves:
    """Return curves for the models, fitted to these rows."""
    if not len(models.classes):
        raise ConfigError("a regression has no probabilities to calibrate")
    if bound := [words for name, words in PRIVATE.items() if name in models.provenance]:
        raise ConfigError(
            f"the models come from {bound[0]}, and its bound on privacy does not cover the rows of a calibration: "
            "train with loss 'logistic', whose scores are log odds"
        )
    scores, labels = models.scores(X, task), np.asarray(y).reshape(-1)
    if len(labels) != len(scores):
        raise DataError(f"{len(labels)} labels for {len(scores)} rows: give a label for each row")
    known = {name: code for code, name in enumerate(models.classes.astype(str).tolist())}
    spelt = labels.astype(models.classes.dtype if models.classes.dtype.kind in "biuf" else str).astype(str).tolist()
    if foreign := sorted(set(spelt) - set(known)):
        raise DataError(f"y holds the label {foreign[0]!r}, the models know {', '.join(known)}")
    index = models.task_of(task, len(scores))
    if (index < 0).any():
        row = int(np.argmax(index < 0))
        raise DataError(f"row {row} of the calibration has no task that the models know: name the task of every row")
    weight = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    codes = np.array([known[name] for name in spelt])
    words = f"{len(labels):,} rows given after training"
    return fit_curves(scores, codes, index, len(models.tasks), len(models.classes), words, weight)
