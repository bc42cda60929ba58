"""Classifier in the manner of scikit-learn: one model per task, trained within a budget, with a certificate.

Pass the name of every row's task (and, if known, its terminal) with ``X`` and ``y``. Everything else follows the rules
of scikit-learn, including metadata routing. `rhfedmtl.estimators.base` has the fitting; this module adds class labels,
probabilities and accuracy.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from rhfedmtl.data.federation import Federation, class_weights
from rhfedmtl.errors import DataError, told_in_python
from rhfedmtl.estimators.base import TaskEstimator
from rhfedmtl.estimators.parameters import Prepared
from rhfedmtl.estimators.probabilities import check_calibration, reason_against
from rhfedmtl.estimators.rows import column, weights
from rhfedmtl.maths.registry import LAMBDA1
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.selection.probabilities import IN_SAMPLE, Trained, probability_curves
from rhfedmtl.training.result import Result

Array = npt.NDArray[Any]


def _has_probabilities(estimator: Any) -> bool:
    """Return True if the models have probabilities, or will have them; else raise what scikit-learn expects."""
    models = getattr(estimator, "models_", None)
    reason = reason_against(estimator) if models is None else models.probability_words
    if (estimator.loss == "logistic" or not reason) if models is None else models.has_probabilities:
        return True
    raise AttributeError(
        f"no probabilities after a fit with these parameters ({reason}): call calibrate(X, y, task=…) with rows "
        "outside the training rows, or fit with calibration='folds' or loss='logistic'"
    )


class RHFedMTLClassifier(ClassifierMixin, TaskEstimator):  # type: ignore[misc]
    """Linear classifiers, one per task, that share the common part of all tasks, trained within a budget.

    Parameters
    ----------
    budget : mapping or str, optional
        Hard limits, such as ``{"energy": 1400}`` or ``"energy=1400,time=60"``. Without a budget, training stops at
        ``tol``.
    cost : str, mapping or path, optional
        Prices, such as ``"energy=0.1,10"`` (a local step, a round of a station), a mapping, or a TOML file. By default,
        energy has these prices.
    privacy : str or mapping, optional
        Bound on the privacy loss of a terminal, such as ``"epsilon=1,delta=1e-6"``. Only clipped updates and a single
        certificate leave a terminal, hidden in noise. Rows are then scaled by ``unit``.
    algorithm : str, default="rhfedmtl"
        Name of the algorithm.
    loss : str, default="smoothed-hinge"
        ``smoothed-hinge``, ``hinge``, ``squared-hinge``, ``logistic`` or ``squared``.
    relationship : str, default="mean"
        Coupling of tasks: ``mean``, ``none``, ``learned``, ``graph`` or ``clusters``.
    lambda1 : float or "auto"
        Regularisation of each model. ``"auto"`` needs ``lambda2="auto"`` and chooses both.
    lambda2 : float or "auto", optional
        Weight of the coupling. By default, it is chosen on held-out training rows (`fit` takes ``groups``); with a
        budget, the first rounds do so at no extra cost. ``"auto"`` makes the choice also with more than ten million
        numbers in ``X``, for which the default is 0.01.
    scale : str, optional
        ``standard-auto``, ``standard-unit``, ``standard-rms``, ``standard``, ``unit`` or ``none``. Default:
        ``standard-auto``, which standardises features and then scales rows to norm 1 (with more than 16 features) or to
        mean norm 1 (with fewer).
    features : str, optional
        Feature maps of the scaled rows, such as ``"splines"`` or ``"splines=8+pairs=200"``. The model is linear in the
        columns of the rows and of the maps. ``"auto"`` chooses a map on held-out rows; a budget pays for the trials.
    intercept : bool, default=True
        If True, models have an intercept.
    policy : str, optional
        Policy that chooses H and K, by name.
    local_steps : int, optional
        Fixed number H of local steps, for algorithms that accept it.
    station_rounds : int, optional
        Fixed number K of station rounds, for algorithms that accept it.
    options : mapping, optional
        Further settings of algorithms by name (those of `Options`), such as ``{"merge": "add"}``.
    n_terminals : int, default=1
        Terminals per task if `fit` gets no ``terminal``; rows are split over them at random.
    tol : float, default=1e-3
        Stop once the relative duality gap is this small, even if budget remains.
    max_rounds : int, default=2000
        Largest number of rounds of a `fit` or `resume`.
    class_weight : mapping or "balanced", optional
        Weights of classes by name. With ``"balanced"``, all classes of a task have the same weight in its loss.
    warm_start : bool, default=False
        Start the next `fit` from the dual variables of the last fit, row by row.
    random_state : int, RandomState or None
        Seed for the order of rows and for splitting them over terminals.
    n_jobs : int, optional
        Threads. They change no result.
    verbose : int, default=0
        1 prints a line for each round; a notebook shows a bar with the amount spent.
    task : str, optional
        Name of a column of the frame ``X`` with the task of each row. The column is not a feature. All methods find it
        in ``X``, also where tools of scikit-learn call them. The argument ``task`` of a method replaces it.
    calibration : "folds" or "off", optional
        ``"folds"`` calibrates `predict_proba` on out-of-fold scores: it trains models on folds of the training rows,
        which no budget pays for. By default, a fit does so unless it has a budget or ``privacy``. ``"off"`` saves the
        time.

    Attributes
    ----------
    classes_ : ndarray
        Class labels, in order.
    tasks_ : ndarray
        Names of tasks, in order.
    features_ : str
        Feature maps of the fit.
    coef_ : ndarray of shape (n_tasks, n_columns, n_features)
        Weights of the models, for scaled rows; with ``features``, for mapped rows.
    intercept_ : ndarray of shape (n_tasks, n_columns)
        Intercepts of the models.
    models_ : TaskModels
        Models with their scaling; they can predict, save and export.
    certificate_ : Certificate
        Objective, dual value and gap.
    ledger_ : Ledger
        Spending of every tier.
    plan_ : Work
        Policy, H of every round, numbers of rounds, and the reason why training stopped.
    relationship_ : object
        Relationship of the tasks after training.
    history_ : list
        Progress of every round.
    lambda1_, lambda2_ : float
        Weights of the fit. A method without coupling has no ``lambda2_``.
    calibration_ : str
        Rows that the probabilities are calibrated on, or the reason for a missing calibration.
    regularisation_ : SelectionRecord
        Record of the choice of weights; ``chosen`` is empty if you gave all weights.
    n_iter_ : int
        Number of rounds.
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
        features: str = "none",
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
        task: Any = None,
        calibration: str | None = None,
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
            features=features,
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
            task=task,
        )
        self.loss = loss
        self.class_weight = class_weight
        self.calibration = calibration

    def _labels(self, y: Array, task: Any, sample_weight: Any) -> tuple[Array, Array, Any]:
        """Return class codes, the classes, and the weights of the rows including class weights."""
        check_calibration(self)
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise DataError(f"y has one class only, {classes.tolist()[0]!r}: a classifier needs two or more")
        if self.class_weight is not None:
            weight = weights(sample_weight, len(y))
            if task is not None and isinstance(self.class_weight, str) and self.class_weight == "balanced":
                # Balance the classes within each task, not over all tasks.
                by_class = class_weights(codes, np.unique(column(task, len(y), "task"), return_inverse=True)[1])
            else:
                by_class = np.asarray(compute_sample_weight(self.class_weight, y))
            sample_weight = by_class * (1.0 if weight is None else weight)
        return codes, classes, sample_weight

    def _calibrated(
        self, prepared: Prepared, federation: Federation, weight: Any, models: TaskModels, result: Result
    ) -> TaskModels:
        """Return the models with probability curves, or with the reason for missing curves."""
        curves, reason = None, reason_against(self)
        if not reason:
            built, settings, trained = prepared.built, prepared.settings, Trained.of(result)
            curves = probability_curves(built, federation, settings, trained, weight, prepared.held_out)
        return replace(models, curves=curves, provenance={**models.provenance, "calibration": reason})

    def calibrate(self, X: Any, y: Any, *, task: Any = None, sample_weight: Any = None) -> Self:
        """Fit the probability curves to rows that `fit` did not get; nothing is charged.

        Parameters
        ----------
        X : array-like or dataframe of shape (n_samples, n_features)
            Rows of the tasks of the fit.
        y : array-like of shape (n_samples,)
            Labels.
        task : str or array-like of shape (n_samples,), optional
            Task of each row, or of all rows.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of rows in the curves.

        Returns
        -------
        self : estimator
            The estimator, whose `predict_proba` uses the new curves.
        """
        rows, names = self._checked(X, task)
        with told_in_python():
            self._publish(self.models_.calibrated(rows, y, names, sample_weight))
        return self

    def _adapted_weight(self, y: Array, weight: Array | None) -> Array | None:
        if self.class_weight is None:
            return weight
        return np.asarray(compute_sample_weight(self.class_weight, y)) * (1.0 if weight is None else weight)

    def predict(self, X: Any, task: Any = None) -> Array:
        """Return the class of every row by the model of its task.

        Parameters
        ----------
        X : array-like or dataframe of shape (n_samples, n_features)
            Rows.
        task : str or array-like of shape (n_samples,), optional
            Task of each row, or of all rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Predicted classes.
        """
        scores = self._scores(X, task)
        return self.models_.labels(scores)

    def _probabilities(self, X: Any, task: Any) -> npt.NDArray[np.float64]:
        rows, names = self._checked(X, task)
        if IN_SAMPLE in self.calibration_:
            warnings.warn(f"probabilities {self.calibration_}", stacklevel=4)
        return self.models_.predict_proba(rows, names)

    def decision_function(self, X: Any, task: Any = None) -> npt.NDArray[np.float64]:
        """Return the score of every row; with more than two classes, a score for every class.

        Parameters
        ----------
        X : array-like or dataframe of shape (n_samples, n_features)
            Rows.
        task : str or array-like of shape (n_samples,), optional
            Task of each row, or of all rows.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            Scores.
        """
        scores = self._scores(X, task)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any, task: Any = None) -> npt.NDArray[np.float64]:
        """Return class probabilities; ``calibration_`` says where they come from.

        Each task has a curve from scores to probabilities, shrunk to the curve of all tasks
        (`rhfedmtl.maths.probabilities`). Without curves, the logistic loss gives σ(score), divided by the sum over
        classes. The most probable class can differ from `predict`, for instance under ``class_weight``.

        Parameters
        ----------
        X : array-like or dataframe of shape (n_samples, n_features)
            Rows.
        task : str or array-like of shape (n_samples,), optional
            Task of each row, or of all rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probabilities.
        """
        return self._probabilities(X, task)

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any, task: Any = None) -> npt.NDArray[np.float64]:
        """Return the logarithm of `predict_proba`.

        Parameters
        ----------
        X : array-like or dataframe of shape (n_samples, n_features)
            Rows.
        task : str or array-like of shape (n_samples,), optional
            Task of each row, or of all rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Logarithms of probabilities.
        """
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X, task)))

    def score(self, X: Any, y: Any, *, sample_weight: Any = None, task: Any = None) -> float:
        """Return the accuracy over all rows.

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
            Share of correct predictions.
        """
        return float(accuracy_score(y, self.predict(X, task), sample_weight=sample_weight))
