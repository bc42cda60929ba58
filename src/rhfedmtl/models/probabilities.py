"""Probabilities of the models: from the curves of a calibration, or from scores that are log odds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.maths.losses import Logistic, Loss
from rhfedmtl.maths.probabilities import ProbabilityCurves, fit_curves
from rhfedmtl.models.model_file import loss_name
from rhfedmtl.training.privacy import STATEMENT

Float64Array = npt.NDArray[np.float64]
PRIVATE = {STATEMENT: "a private run", "privacy": "a release", "removal": "a removal"}
"""Statements on privacy in the origin of models. They do not cover the rows of a calibration."""


class Probabilities(ABC):
    """The part of `TaskModels` that turns scores into probabilities."""

    tasks: npt.NDArray[Any]
    classes: npt.NDArray[Any]
    loss: Loss | None
    provenance: Mapping[str, Any]
    curves: ProbabilityCurves | None

    @abstractmethod
    def scores(self, X: Any, task: Any = None) -> Float64Array:
        """Return the scores of raw rows."""

    @abstractmethod
    def task_of(self, task: Any, n_rows: int) -> npt.NDArray[np.int64]:
        """Return the index of every row's task."""

    @property
    def log_odds(self) -> bool:
        """True if scores are log odds, as the logistic loss makes them: probabilities without curves."""
        return isinstance(self.loss, Logistic) and len(self.classes) > 1

    @property
    def has_probabilities(self) -> bool:
        """True if the models have curves, or scores that are log odds."""
        return self.curves is not None or self.log_odds

    @property
    def probability_words(self) -> str:
        """Origin of the probabilities."""
        if self.curves is not None:
            return f"calibrated on {self.curves.words}"
        reason = self.provenance.get("calibration") or "nothing calibrated them"
        return f"not calibrated: {reason}" + ("; scores of the logistic loss are log odds" if self.log_odds else "")

    def predict_proba(self, X: Any, task: Any = None) -> Float64Array:
        """Return class probabilities (row, class) of raw rows."""
        return self.probabilities(self.scores(X, task), task)

    def probabilities(self, scores: Float64Array, task: Any = None) -> Float64Array:
        """Return class probabilities of scores, by the curve of the task of each row.

        Without curves, the logistic loss gives σ(score); several classes, each learned against the rest, are
        normalised.
        """
        if self.curves is not None:
            return self.curves.probabilities(scores, self.task_of(task, len(scores)))
        if not self.log_odds:
            name = "a model of unknown loss" if self.loss is None else f"loss {loss_name(self.loss)!r}"
            raise ConfigError(
                f"{name} has no probabilities without a calibration: calibrate the models with rows that they were not "
                "trained on, as in TaskModels.load(FILE).calibrated(X, y, task=…), or train with loss 'logistic'"
            )
        odds = expit(scores)
        if len(self.classes) == 2:
            return np.hstack([expit(-scores), odds])
        total = odds.sum(axis=1, keepdims=True)
        # All odds can underflow; then all classes are equally probable.
        return np.asarray(np.where(total > 0.0, odds / np.where(total > 0.0, total, 1.0), 1.0 / odds.shape[1]))

    def calibrated(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> Self:
        """Return the models with probability curves that are fitted to rows outside the training rows.

        Private and released models refuse it: their statement on privacy does not cover these rows.
        """
        return replace(self, curves=self._fitted_curves(X, y, task, sample_weight))  # type: ignore[type-var]

    def _fitted_curves(self, X: Any, y: Any, task: Any, sample_weight: Any) -> ProbabilityCurves:
        """Return curves for the models, fitted to these rows."""
        if not len(self.classes):
            raise ConfigError("a regression has no probabilities to calibrate")
        if bound := [words for name, words in PRIVATE.items() if name in self.provenance]:
            raise ConfigError(
                f"the models come from {bound[0]}, and its bound on privacy does not cover the rows of a calibration: "
                "train with loss 'logistic', whose scores are log odds"
            )
        scores, labels = self.scores(X, task), np.asarray(y).reshape(-1)
        if len(labels) != len(scores):
            raise DataError(f"{len(labels)} labels for {len(scores)} rows: give a label for each row")
        known = {name: code for code, name in enumerate(self.classes.astype(str).tolist())}
        spelt = labels.astype(self.classes.dtype if self.classes.dtype.kind in "biuf" else str).astype(str).tolist()
        if foreign := sorted(set(spelt) - set(known)):
            raise DataError(f"y holds the label {foreign[0]!r}, the models know {', '.join(known)}")
        index = self.task_of(task, len(scores))
        if (index < 0).any():
            row = int(np.argmax(index < 0))
            raise DataError(f"row {row} of the calibration has no task that the models know: name each task")
        weight = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        codes = np.array([known[name] for name in spelt])
        words = f"{len(labels):,} rows given after training"
        return fit_curves(scores, codes, index, len(self.tasks), len(self.classes), words, weight)
