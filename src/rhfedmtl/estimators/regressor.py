"""The regressor: one linear model of a number per task."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from rhfedmtl.estimators.base import TaskEstimator


class RHFedMTLRegressor(RegressorMixin, TaskEstimator):  # type: ignore[misc]
    """Linear regressions, one per task, that share what they have in common, learned under a budget.

    Parameters and attributes are those of `RHFedMTLClassifier`, without what belongs to classes. Rows are scaled by
    ``standard-rms``, the loss is ``squared``, and labels lose the level of their task in round zero where there is an
    intercept: its own mean, drawn to that of all tasks as far as rows are few.
    """

    def predict(self, X: Any, task: Any = None) -> npt.NDArray[np.float64]:
        """Number for every row, by the model of its task."""
        return self._scores(X, task)[:, 0]

    def score(self, X: Any, y: Any, *, sample_weight: Any = None, task: Any = None) -> float:
        """R² over all rows."""
        return float(r2_score(y, self.predict(X, task), sample_weight=sample_weight))
