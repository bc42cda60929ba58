"""Estimators in the manner of scikit-learn: one model per task, learned under a budget, with a certificate.

The name of every row's task (and, if known, terminal) goes beside ``X`` and ``y``. All else follows scikit-learn's
rules, metadata routing included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from rhfedmtl.data.federation import class_weights
from rhfedmtl.errors import DataError
from rhfedmtl.estimators.base import TaskEstimator
from rhfedmtl.estimators.rows import column, weights
from rhfedmtl.maths.registry import LAMBDA1

Array = npt.NDArray[Any]


def _has_probabilities(estimator: Any) -> bool:
    """Whether scores are log odds; scikit-learn wants an AttributeError that says why not."""
    if estimator.loss != "logistic":
        raise AttributeError(f"loss {estimator.loss!r} has no probabilities: use loss='logistic'")
    return True


class RHFedMTLClassifier(ClassifierMixin, TaskEstimator):  # type: ignore[misc]
    """Linear classifiers, one per task, that share what they have in common, learned under a budget.

    Parameters
    ----------
    budget
        Hard limits: ``{"energy": 1400}``, or text as ``"energy=1400,time=60"``. Without one, learning goes on until
        ``tol``.
    cost
        Prices, as ``"energy=0.1,10"`` (a row visited, a round of a station), a table or a TOML file. Energy has these
        prices unless told.
    privacy
        Bound on what anybody learns of a terminal, as ``"epsilon=1,delta=1e-6"``: only clipped updates and one
        certificate leave it, hidden in noise. Rows are then scaled by ``unit``.
    algorithm
        ``rhfedmtl``, or another by name.
    loss
        ``smoothed-hinge``, ``hinge``, ``squared-hinge``, ``logistic`` or ``squared``. Only ``logistic`` has
        `predict_proba`.
    relationship
        How tasks are coupled: ``mean``, ``none``, ``learned``, ``graph`` or ``clusters``.
    lambda1, lambda2
        Weights of each model's norm, and of the coupling. ``lambda2`` that is not given is chosen on training rows
        held out (`fit` has ``groups``); under a budget in the first rounds, at no cost beyond them, and without groups
        only upwards from 0.01. ``"auto"`` goes either way; ``lambda1="auto"`` with it chooses both. The weights
        of the fit are in ``lambda1_`` and ``lambda2_``, the trials in ``regularisation_``.
    scale
        ``standard-auto``, ``standard-unit``, ``standard-rms``, ``standard``, ``unit`` or ``none``; by default
        ``standard-auto``: standardised, then rows of norm 1 where there are more than 16 features, else in the mean.
    intercept
        Whether models have one.
    policy, local_steps, station_rounds
        How much work a round gets: a policy by name, or fixed numbers where the algorithm takes them.
    options
        More settings of algorithms by name, as ``{"merge": "add"}``; those of `Options`.
    n_terminals
        Terminals that the rows of each task are shared out to at random, where `fit` is not told.
    tol
        Learning stops once the relative duality gap is this small, even if budget is left.
    max_rounds
        Most rounds of one `fit` or `resume`.
    class_weight
        Weights of classes by name, or None; with ``"balanced"`` all classes of a task weigh the same in its loss.
    warm_start
        Start the next `fit` from the dual variables of the last one, row by row.
    random_state
        Seed of the order in which rows are visited and of sharing them out.
    n_jobs
        Threads; they do not change a number.
    verbose
        1 prints a line for each round; in a notebook it is one bar, of what is spent.

    Attributes
    ----------
    classes_, tasks_
        Labels, and names of tasks, in order.
    coef_, intercept_
        Models by task (task, column, feature), for rows after scaling.
    models_
        All of that with the scaling, as `TaskModels`: predicts, saves, exports.
    certificate_, ledger_, plan_, relationship_, history_
        How good the models are, what was spent, what was done, how tasks are related, and round by round.
    lambda1_, lambda2_, regularisation_
        The weights of the fit, and a `SelectionRecord` of their choice. A method that couples no tasks has no
        ``lambda2_``; ``chosen`` is empty if you gave all weights.
    n_iter_
        Rounds done.
    """

    __metadata_request__predict_proba = {"task": True}  # noqa: RUF012
    __metadata_request__predict_log_proba = {"task": True}  # noqa: RUF012
    __metadata_request__decision_function = {"task": True}  # noqa: RUF012

    def __init__(
        self,
        budget: Any = None,
        *,
        cost: Any = None,
        privacy: str | Mapping[str, float] | None = None,
        algorithm: str = "rhfedmtl",
        loss: str = "smoothed-hinge",
        relationship: str = "mean",
        lambda1: float | str = LAMBDA1,
        lambda2: float | str | None = None,
        scale: str | None = None,
        intercept: bool = True,
        policy: str | None = None,
        local_steps: int | None = None,
        station_rounds: int | None = None,
        options: Mapping[str, Any] | None = None,
        n_terminals: int = 1,
        tol: float = 1e-3,
        max_rounds: int = 2000,
        class_weight: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            budget,
            cost=cost,
            privacy=privacy,
            algorithm=algorithm,
            relationship=relationship,
            lambda1=lambda1,
            lambda2=lambda2,
            scale=scale,
            intercept=intercept,
            policy=policy,
            local_steps=local_steps,
            station_rounds=station_rounds,
            options=options,
            n_terminals=n_terminals,
            tol=tol,
            max_rounds=max_rounds,
            warm_start=warm_start,
            random_state=random_state,
            n_jobs=n_jobs,
            verbose=verbose,
        )
        self.loss = loss
        self.class_weight = class_weight

    def _labels(self, y: Array, task: Any, sample_weight: Any) -> tuple[Array, Array, Any]:
        """Numbers of classes, the classes, and weights of the rows by their classes."""
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise DataError(f"y has one class only, {classes.tolist()[0]!r}: a classifier needs two or more")
        if self.class_weight is not None:
            weight = weights(sample_weight, len(y))
            if task is not None and isinstance(self.class_weight, str) and self.class_weight == "balanced":
                # Balanced within each task.
                by_class = class_weights(codes, np.unique(column(task, len(y), "task"), return_inverse=True)[1])
            else:
                by_class = np.asarray(compute_sample_weight(self.class_weight, y))
            sample_weight = by_class * (1.0 if weight is None else weight)
        return codes, classes, sample_weight

    def predict(self, X: Any, task: Any = None) -> Array:
        """Class of every row, by the model of its task."""
        scores = self._scores(X, task)
        return self.models_.labels(scores)

    def decision_function(self, X: Any, task: Any = None) -> npt.NDArray[np.float64]:
        """Score of every row; of every class where there are more than two."""
        scores = self._scores(X, task)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any, task: Any = None) -> npt.NDArray[np.float64]:
        """σ(score); several classes were learned one against the rest, and their odds are divided by their sum."""
        scores = self._scores(X, task)
        return self.models_.probabilities(scores)

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any, task: Any = None) -> npt.NDArray[np.float64]:
        """Logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X, task)))

    def score(self, X: Any, y: Any, *, sample_weight: Any = None, task: Any = None) -> float:
        """Share of all rows predicted right."""
        return float(accuracy_score(y, self.predict(X, task), sample_weight=sample_weight))
