"""Base class of the two estimators: validation, `fit`, `resume`, saving, and the fitted attributes.

`fit` checks the input, sorts the rows into a federation (`rows`), turns the parameters into a method and a budget
(`parameters`), trains a `Run`, and publishes its result as attributes. Invalid parameters and rows raise a
`ConfigError` or `DataError`, both of which are a `ValueError`. Classifier and regressor add labels, predictions and
scores.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.loaders.table import frame_table, listing
from rhfedmtl.data.preparation import Preparation
from rhfedmtl.display import BudgetDisplay, LearningCurveDisplay, Telling
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.errors import ConfigError, DataError, told_in_python
from rhfedmtl.estimators.parameters import Prepared, origin_of, prepare, seed_of
from rhfedmtl.estimators.rows import (
    Places,
    TrainingRows,
    WarmDuals,
    check_index,
    checked_labels,
    column,
    features_of,
    gather,
    is_frame,
    positive_integer,
    split_tasks,
    weights,
)
from rhfedmtl.maths.registry import LAMBDA1
from rhfedmtl.maths.relationships import weights_of
from rhfedmtl.models.model_file import loss_name
from rhfedmtl.models.task_models import Extras, TaskModels
from rhfedmtl.policies.base import Policy
from rhfedmtl.resources.costs import Budget
from rhfedmtl.roles.words import SOLVED
from rhfedmtl.selection.unseen import pooled_model
from rhfedmtl.training import snapshot
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import Run

Array = npt.NDArray[Any]
FLOATS = (np.float64, np.float32)


class UnknownTaskWarning(UserWarning):
    """Rows of an unseen task were predicted with the model for unseen tasks (`TaskModels.unseen`)."""


class Work(NamedTuple):
    """Work of a run: policy, median H of every round, numbers of rounds and steps, and the reason why it stopped."""

    policy: str
    local_steps: tuple[int, ...]
    rounds: int
    cloud_rounds: int
    terminal_steps: int
    stopped: str


@dataclass(eq=False)
class _Session:
    """A run that can continue, the order of its rows, and its latest models."""

    run: Run
    policy: Policy
    places: Places
    calibrate: Callable[[TaskModels, Result], TaskModels]
    models: TaskModels | None = None


class TaskEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of `RHFedMTLClassifier` and `RHFedMTLRegressor`, which describe the parameters."""

    loss: str | None = None  # A subclass without this parameter uses the loss for its kind of labels.

    __metadata_request__fit = {"task": True, "terminal": True, "groups": True}  # noqa: RUF012 (scikit-learn reads it so)
    __metadata_request__predict = {"task": True}  # noqa: RUF012
    __metadata_request__score = {"task": True}  # noqa: RUF012

    def __init__(
        self,
        budget: Any = None,
        *,
        cost: Any = None,
        privacy: str | Mapping[str, float] | None = None,
        algorithm: str = "rhfedmtl",
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
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        task: Any = None,
    ) -> None:
        self.budget = budget
        self.cost = cost
        self.privacy = privacy
        self.algorithm = algorithm
        self.relationship = relationship
        self.lambda1 = lambda1
        self.lambda2 = lambda2
        self.scale = scale
        self.features = features
        self.intercept = intercept
        self.policy = policy
        self.local_steps = local_steps
        self.station_rounds = station_rounds
        self.options = options
        self.n_terminals = n_terminals
        self.tol = tol
        self.max_rounds = max_rounds
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.task = task

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
        """Train a model for every task.

        Parameters
        ----------
        X : array-like or dataframe of shape (n_samples, n_features)
            Training rows.
        y : array-like of shape (n_samples,)
            Labels.
        task, terminal : array-like of shape (n_samples,), optional
            Names of the task and of the terminal of each row. ``task`` may also be the name of a column of the frame
            ``X``, in place of the parameter ``task`` of the estimator. Without either, all rows belong to a single
            task. Without ``terminal``, rows of a task are split at random. Terminals of different tasks are different,
            even with equal names.
        sample_weight : float or array-like of shape (n_samples,), optional
            Weights of rows, finite and not negative. The fit ignores rows of weight 0.
        groups : array-like of shape (n_samples,), optional
            A choice of ``lambda2`` on held-out rows keeps the rows of a group together; groups have no other effect.

        Returns
        -------
        self : estimator
            The fitted estimator.
        """
        with told_in_python():
            named = isinstance(task, str) and hasattr(X, "columns")
            self.task_column_ = task if named else self.task
            X, task = split_tasks(X, None if named else task, self.task_column_)
            check_index(X, task=task, terminal=terminal, sample_weight=sample_weight, groups=groups)
            X, preparation = features_of(X)
            X, y = validate_data(self, X, checked_labels(y), dtype=FLOATS, y_numeric=isinstance(self, RegressorMixin))
            y, classes, weight = self._labels(y, task, sample_weight)
            columns = {"task": task, "terminal": terminal, "sample_weight": weight, "groups": groups}
            rows = self._rows(X, y, classes, columns, preparation)
            seed = seed_of(self)
            federation, places = gather(rows, n_terminals=self.n_terminals, seed=seed)
            prepared = prepare(self, federation, seed)
            built, plan, selection = prepared.built, prepared.plan, prepared.selection
            self.regularisation_ = selection
            self._learned_with = prepared.weights | selection.chosen
            coupling = built.method.task_coupling
            run_weights = {} if coupling is None else weights_of(coupling, federation.n_tasks)
            self.lambda1_ = run_weights.get("lambda1", self._learned_with["lambda1"])
            self.lambda2_ = run_weights.get("lambda2", selection.chosen.get("lambda2"))
            whole_data = built.regroup(federation)
            run = Run(whole_data, built.method, prepared.settings, prepared.ledger, judged=federation, private=plan)
            if prepared.before is not None:
                snapshot.begin(run, prepared.before)
            elif self.warm_start:
                self._start(run, places)
            weighted_rows = None if sample_weight is None else weights(sample_weight, len(y))
            counted = None if weighted_rows is None else weighted_rows[places.order]
            calibrate = partial(self._calibrated, prepared, federation, counted)
            self._session = _Session(run, built.policy, places, calibrate)
            result = self._learn()
            # A budget or a bound on privacy pays only for the models of the tasks.
            paid = prepared.ledger.budget or plan is not None
            unseen = None if paid else pooled_model(built, federation, prepared.settings)
            origin = origin_of(self, seed, plan)
            models = TaskModels.from_result(federation, result, built.method.loss, origin, Extras(unseen))
            models = replace(models, tasks=places.tasks, classes=classes)
            return self._finish(calibrate(models, result), result)

    def _calibrated(
        self, prepared: Prepared, federation: Federation, weight: Any, models: TaskModels, result: Result
    ) -> TaskModels:
        """Return the models, with probability curves if the estimator has probabilities."""
        return models

    def _labels(self, y: Array, task: Any, sample_weight: Any) -> tuple[Array, Array, Any]:
        """Return labels as numbers, their classes (empty for a regression), and the weights of the rows."""
        return y, np.empty(0, dtype=np.str_), sample_weight

    def resume(self, budget: Any = None) -> Self:
        """Continue training after `fit` with additional budget.

        Rows, dual variables, rounds and bill continue. ``tol`` and ``max_rounds`` are read again: change them first to
        continue without more budget. Raises a `ConfigError` after a private fit, and if the training rows are gone
        because the model was copied, pickled or loaded.

        Parameters
        ----------
        budget : mapping or str, optional
            Additional amounts, such as ``"energy=500"``.

        Returns
        -------
        self : estimator
            The estimator with updated models.
        """
        check_is_fitted(self)
        session: _Session | None = getattr(self, "_session", None)
        if session is None or session.models is None:
            raise ConfigError(
                "the training rows are gone, because this model was copied, unpickled or loaded: call fit "
                "again, with warm_start=True to start from its dual variables"
            )
        if self.models_.adapted:
            raise ConfigError(
                f"task {self.models_.adapted[-1].task!r} was adapted to models that resume would change: call fit "
                "again with the rows of all tasks"
            )
        run = session.run
        if run.private is not None:
            raise ConfigError(
                "a private fit has used the privacy loss that was planned for it and cannot continue: call fit again"
            )
        limits, spent = dict(run.ledger.budget), run.ledger.spent
        rounds = run.state.round + positive_integer("max_rounds", self.max_rounds)
        with told_in_python():
            more = {name: limits.get(name, spent.get(name, 0.0)) + x for name, x in Budget.of(budget).items()}
            run.go_on({**limits, **more}, target_relative_gap=self.tol, max_rounds=rounds)
            result = self._learn()
            models = session.calibrate(session.models.updated(result), result)
        return self._finish(models, result)

    def adapt(
        self, X: Any, y: Any, *, task: Any, sample_weight: Any = None, groups: Any = None, lambda2: float | None = None
    ) -> Self:
        """Add the model of a new task, learned from a few rows; all other models stay the same to the bit.

        See `TaskModels.adapt` for the problem. `models_.adapted` has its weights and its duality gap.

        Parameters
        ----------
        X : array-like or dataframe of shape (n_samples, n_features)
            Rows of the new task, at least two.
        y : array-like of shape (n_samples,)
            Labels; a classifier needs two classes or more.
        task : str or number
            Name of the new task.
        sample_weight : float or array-like of shape (n_samples,), optional
            Weights of rows, finite and not negative.
        groups : array-like of shape (n_samples,), optional
            A choice of λ2 on held-out rows keeps the rows of a group together.
        lambda2 : float, optional
            Weight of the distance to the mean model, instead of a choice on held-out rows.

        Returns
        -------
        self : estimator
            The estimator with the new task.
        """
        check_is_fitted(self)
        with told_in_python():
            check_index(X, sample_weight=sample_weight, groups=groups)
            y, n = column_or_1d(checked_labels(y)), len(X)
            weight = weights(sample_weight, n)
            members = None if groups is None else column(groups, n, "groups")
            X = X if is_frame(X) else self._features(X)[0]
            weight = self._adapted_weight(y, weight)
            models = self.models_.adapt(X, y, task=task, sample_weight=weight, groups=members, lambda2=lambda2)
        self._publish(models)
        return self

    def _adapted_weight(self, y: Array, weight: Array | None) -> Array | None:
        """Return the weights of the rows of a new task; a classifier includes class weights."""
        return weight

    def save(self, path: str | Path) -> None:
        """Write models, scaling, tasks, classes, certificate and totals into a file, without any training row."""
        check_is_fitted(self)
        self.models_.save(path)

    def release(self, epsilon: float, delta: float = 1e-6) -> TaskModels:
        """Return models for publication; noise hides every single training row (`TaskModels.release`)."""
        check_is_fitted(self)
        with told_in_python():
            return self.models_.release(epsilon, delta)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote, or the models in the folder of a run; the estimator can predict, but not `resume`."""
        models = TaskModels.load(path)
        if (len(models.classes) == 0) != issubclass(cls, RegressorMixin):
            raise DataError(f"{path} holds models for {models.kind} labels, which a {cls.__name__} cannot use")
        loss = None if models.loss is None else loss_name(models.loss)
        parameters = {"loss": loss, **models.provenance.get("estimator", {})}
        estimator: Self = cls(**{name: value for name, value in parameters.items() if name in cls._get_param_names()})
        estimator._publish(models)
        return estimator

    def _learn(self) -> Result:
        """Train until the budget, the tolerance or the number of rounds ends the run."""
        run, places = self._session.run, self._session.places
        watch = Telling(run.ledger.budget) if self.verbose else None
        result = run.result(run.learn(self._session.policy, watch))
        if isinstance(run.network, InProcess) and isinstance(run.method, DualMethod):
            self._duals = places.duals(run.method.loss, run.network.alpha)
        return result

    def coefficients(self) -> Any:
        """Return the weights in the units of the columns of ``X`` (`TaskModels.coefficients`)."""
        check_is_fitted(self)
        return self.models_.coefficients()

    def importances(self, X: Any, task: Any = None) -> Any:
        """Return how much each column moves the scores of each task, also behind maps (`TaskModels.importances`)."""
        return self.models_.importances(*self._checked(X, task))

    def plot(self, axes: Sequence[Any] | None = None, *, metric: str | None = None) -> LearningCurveDisplay:
        """Plot a metric and the certified gap against the spending; needs matplotlib."""
        check_is_fitted(self, "result_")
        return LearningCurveDisplay.from_estimator(self, metric=metric).plot(axes)

    def plot_budget(self, axes: Sequence[Any] | None = None) -> BudgetDisplay:
        """Plot the spending of each tier for every resource type; needs matplotlib."""
        check_is_fitted(self, "result_")
        return BudgetDisplay.from_estimator(self).plot(axes)

    def _finish(self, models: TaskModels, result: Result) -> Self:
        """Publish the result as attributes, and warn if the run did not converge."""
        self._session.models = models
        self._publish(models)
        self.result_ = result
        self.certificate_ = result.certificate
        self.ledger_ = result.ledger
        self.relationship_ = result.relationship
        self.history_ = result.history
        self.plan_ = Work(
            type(self._session.policy).__name__.lower(),
            tuple(result.local_steps),
            result.rounds,
            result.cloud_rounds,
            result.terminal_steps,
            result.stopped,
        )
        self.n_iter_ = result.rounds
        gap = result.certificate.relative_gap
        if result.stopped == "limit on rounds reached" and (self.tol or SOLVED) < gap < math.inf:
            text = (
                f"relative gap {gap:.1e} after {result.rounds} rounds, above tol={self.tol:g}: raise max_rounds or tol"
            )
            warnings.warn(text, ConvergenceWarning, stacklevel=3)
        return self

    def _publish(self, models: TaskModels) -> None:
        """Set the attributes that scikit-learn expects of a fitted estimator."""
        d, preparation = models.n_features, models.preparation
        self.models_ = models
        self.tasks_ = models.tasks
        self.features_ = models.features
        self.coef_ = models.models[:, :, : models.width]
        self.intercept_ = models.models[:, :, -1] if models.intercept else np.zeros(models.models.shape[:2])
        self.n_features_in_ = d if preparation is None else len(preparation.columns)
        if models.certificate is not None:
            self.certificate_ = models.certificate
        if models.feature_names:
            names = models.feature_names if preparation is None else preparation.columns
            self.feature_names_in_ = np.array(names, dtype=object)
        if len(models.classes):
            self.classes_ = models.classes
            self.calibration_ = models.probability_words

    def _scores(self, X: Any, task: Any) -> npt.NDArray[np.float64]:
        """Return the scores of every row by the model of its task; a single name stands for all rows."""
        X, task = self._checked(X, task)
        models: TaskModels = self.models_
        return models.scores(X, task)

    def _checked(self, X: Any, task: Any) -> tuple[Any, Any]:
        """Return the features and the task of every row, and warn of unseen tasks."""
        check_is_fitted(self)
        models: TaskModels = self.models_
        with told_in_python():
            X, task = split_tasks(X, task, getattr(self, "task_column_", self.task))
            check_index(X, task=task)
        X, filled = self._features(X)
        if filled:
            text = (
                f"missing values in {listing(filled)}, but not in training: filled with the mean of the training rows"
            )
            warnings.warn(text, stacklevel=4)
        if task is None and len(models.tasks) > 1:
            self._warn(
                f"no task was given: {models.unseen_words} predicts every row; name the tasks with task=… (scorers "
                "such as 'accuracy' never pass it on, pipelines and searches only with metadata routing: give X as a "
                "frame and name its column of tasks, as in RHFedMTLClassifier(task='site'))"
            )
        if task is not None:
            task = column(np.full(len(X), task) if np.ndim(task) == 0 else task, len(X), "task")
            unseen = sorted({str(name) for name in task[models.find(task) < 0].tolist()})
            if unseen:
                listed = ", ".join(unseen[:5]) + (f" and {len(unseen) - 5} more" if len(unseen) > 5 else "")
                self._warn(f"not seen in training: task {listed}; {models.unseen_words} predicts these rows")
        return X, task

    def _features(self, X: Any) -> tuple[Any, list[str]]:
        """Return the features of rows in the encoding of the training, and the columns of a frame with new gaps."""
        models: TaskModels = self.models_
        named = bool(models.feature_names) and is_frame(X)
        if models.preparation is None:
            try:
                X = validate_data(self, X, reset=False, skip_check_array=named, **({} if named else {"dtype": FLOATS}))
            except ValueError as error:
                if not named:
                    raise
                raise DataError(f"{error}X has the columns {listing([str(name) for name in X.columns])}") from error
        elif np.shape(X)[:1] == (0,):
            raise DataError(f"Found array with 0 sample(s) (shape={np.shape(X)}) while a minimum of 1 is required")
        elif not named:
            raise DataError("fit got a frame with missing values or text: predict needs a frame with the same columns")
        if not named:
            return X, []
        with told_in_python():
            return models.prepared(frame_table(X), "X")

    @staticmethod
    def _warn(text: str) -> None:
        warnings.warn(text, UnknownTaskWarning, stacklevel=5)

    def _rows(
        self, X: Array, y: Array, classes: Array, columns: Mapping[str, Any], preparation: Preparation | None
    ) -> TrainingRows:
        """Return the rows with their task, terminal, weight and group."""
        n = len(X)
        task, terminal, groups = (
            None if columns[name] is None else column(columns[name], n, name) for name in ("task", "terminal", "groups")
        )
        return TrainingRows(
            X,
            y,
            classes,
            np.zeros(n, dtype=np.int64) if task is None else task,
            terminal,
            weights(columns["sample_weight"], n),
            groups,
            tuple(getattr(self, "feature_names_in_", ())) if preparation is None else preparation.feature_names,
            preparation,
        )

    def _start(self, run: Run, places: Places) -> None:
        """Restore duals and models of the last fit, by the names of tasks; new tasks start from the mean model."""
        duals: WarmDuals | None = getattr(self, "_duals", None)
        alpha = None if duals is None else places.start(run.method.loss, duals)
        if alpha is None:
            return
        models, last = None, self.models_
        if last.models.shape[1:] == run.network.shape and last.features == run.method.features.text:
            by_task = np.concatenate([last.models, last.reference[None]])[last.find(places.tasks)]
            first = [int(np.argmax(run.task_station == b)) for b in range(run.cloud.n_tasks)]
            models = run.units.as_learned(by_task[first])
        run.restore(alpha, models)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the run, which holds the training rows."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_session"}
