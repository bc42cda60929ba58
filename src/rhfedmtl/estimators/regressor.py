"""The regressor: one linear model of a number per task."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import validate_data

from rhfedmtl.estimators.base import FLOATS, TaskEstimator
from rhfedmtl.estimators.rows import features_of, labelled

Array = npt.NDArray[Any]


class RHFedMTLRegressor(RegressorMixin, TaskEstimator):  # type: ignore[misc]
    """Linear regressions, one per task, that share what they have in common, learned under a budget.

    Parameters and attributes are those of `RHFedMTLClassifier`, without what belongs to classes. Rows are scaled by
    ``standard-rms``, the loss is ``squared``, and labels lose the level of their task in round zero where there is an
    intercept: its own mean, drawn to that of all tasks as far as rows are few.
    """

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        task: Any = None,
        terminal: Any = None,
        sample_weight: Any = None,
        groups: Any = None,
    ) -> Self:
        """Learn a model for every task; ``task`` and ``terminal`` name those of each row.

        Without ``task`` all rows are one task. Terminals of different tasks are different, whatever their names. Where
        ``lambda2`` is chosen on rows held out, those of one of the ``groups`` go together; they serve nothing else.
        """
        beside = {"task": task, "terminal": terminal, "sample_weight": sample_weight, "groups": groups}
        X, preparation = features_of(X)
        X, y = validate_data(self, X, labelled(y), dtype=FLOATS, y_numeric=True)
        return self._learn_from(self._rows(X, y, np.empty(0, dtype=np.str_), beside, preparation))

    def predict(self, X: Any, task: Any = None) -> npt.NDArray[np.float64]:
        """Number for every row, by the model of its task."""
        return self._scores(X, task)[:, 0]

    def score(self, X: Any, y: Any, *, sample_weight: Any = None, task: Any = None) -> float:
        """R² over all rows."""
        return float(r2_score(y, self.predict(X, task), sample_weight=sample_weight))
