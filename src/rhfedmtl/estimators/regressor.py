"""Regressor: a linear model of a numeric label for each task."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from rhfedmtl.estimators.base import TaskEstimator


class RHFedMTLRegressor(RegressorMixin, TaskEstimator):  # type: ignore[misc]
    """Linear regressions, each for a task, that share the common part of all tasks, trained within a budget.

    Parameters and attributes are as in `RHFedMTLClassifier`, without ``loss``, ``class_weight`` and ``classes_``. Rows
    are scaled by ``standard-rms``, and the loss is ``squared``. With an intercept, round zero subtracts the level of a
    task from its labels: the mean of the task, shrunk towards the mean of all tasks if the task has few rows.
    """

    def predict(self, X: Any, task: Any = None) -> npt.NDArray[np.float64]:
        """Return the prediction for every row by the model of its task.

        Parameters
        ----------
        X : array-like or dataframe of shape (n_samples, n_features)
            Rows.
        task : str or array-like of shape (n_samples,), optional
            Task of each row, or of all rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Predicted numbers.
        """
        return self._scores(X, task)[:, 0]

    def score(self, X: Any, y: Any, *, sample_weight: Any = None, task: Any = None) -> float:
        """Return R² over all rows.

        Parameters
        ----------
        X : array-like or dataframe of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,)
            True labels.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of rows.
        task : str or array-like of shape (n_samples,), optional
            Task of each row, or of all rows.

        Returns
        -------
        float
            The coefficient of determination.
        """
        return float(r2_score(y, self.predict(X, task), sample_weight=sample_weight))
