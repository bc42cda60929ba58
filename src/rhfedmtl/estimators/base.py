"""What the two estimators share: from parameters and rows to a run, and from its result to what users look at."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.loaders.table import frame_table, listing
from rhfedmtl.data.preparation import Preparation
from rhfedmtl.display import BudgetDisplay, LearningCurveDisplay, Telling
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.errors import ConfigError, DataError, told_in_python
from rhfedmtl.estimators.parameters import origin_of, prepare, seed_of
from rhfedmtl.estimators.rows import (
    GivenRows,
    Places,
    WarmDuals,
    check_index,
    column,
    features_of,
    gather,
    is_frame,
    labelled,
    weights,
    whole,
)
from rhfedmtl.maths.registry import LAMBDA1
from rhfedmtl.maths.relationships import weights_of
from rhfedmtl.models.model_file import loss_name
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.policies.base import Policy
from rhfedmtl.resources.costs import Budget
from rhfedmtl.roles.words import SOLVED
from rhfedmtl.selection.unseen import pooled_model
from rhfedmtl.training import snapshot
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import Run

Array = npt.NDArray[Any]
FLOATS = (np.float64, np.float32)
LAST_SEED = 2**64 - 1
PLAIN = (str, int, float, bool, dict, list, tuple, type(None))


class UnknownTaskWarning(UserWarning):
    """Rows of a task that training did not see are predicted with the model for unseen tasks (`TaskModels.unseen`)."""


class Work(NamedTuple):
    """What the policy decided and what came of it: H of every round (median), numbers of rounds, why it ended."""

    policy: str
    local_steps: tuple[int, ...]
    rounds: int
    cloud_rounds: int
    terminal_steps: int
    stopped: str


@dataclass(eq=False)
class _Session:
    """A run that can go on, where its rows came from, and the models that it has led to."""

    run: Run
    policy: Policy
    places: Places
    models: TaskModels | None = None


class TaskEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share; their parameters are described there."""

    loss: str | None = None  # by the kind of labels, where a subclass has no parameter for it

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
    ) -> None:
        self.budget = budget
        self.cost = cost
        self.privacy = privacy
        self.algorithm = algorithm
        self.relationship = relationship
        self.lambda1 = lambda1
        self.lambda2 = lambda2
        self.scale = scale
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
        with told_in_python():
            check_index(X, task=task, terminal=terminal, sample_weight=sample_weight, groups=groups)
            X, preparation = features_of(X)
            X, y = validate_data(self, X, labelled(y), dtype=FLOATS, y_numeric=isinstance(self, RegressorMixin))
            y, classes, weight = self._labels(y, task, sample_weight)
            beside = {"task": task, "terminal": terminal, "sample_weight": weight, "groups": groups}
            rows = self._rows(X, y, classes, beside, preparation)
            seed = seed_of(self)
            federation, places = gather(rows, n_terminals=self.n_terminals, seed=seed)
            prepared = prepare(self, federation, seed)
            built, plan, selection = prepared.built, prepared.plan, prepared.selection
            self.regularisation_ = selection
            self._learned_with = prepared.weights | selection.chosen
            coupling = built.method.task_coupling
            used = {} if coupling is None else weights_of(coupling, federation.n_tasks)
            self.lambda1_ = used.get("lambda1", self._learned_with["lambda1"])
            self.lambda2_ = used.get("lambda2", selection.chosen.get("lambda2"))
            whole_data = built.regroup(federation)
            run = Run(whole_data, built.method, prepared.settings, prepared.ledger, judged=federation, private=plan)
            if prepared.before is not None:
                snapshot.begin(run, prepared.before)
            elif self.warm_start:
                self._start(run, places)
            self._session = _Session(run, built.policy, places)
            result = self._learn()
            # A budget or a bound on privacy pays for the models of the tasks alone.
            paid = prepared.ledger.budget or plan is not None
            unseen = None if paid else pooled_model(built, federation, prepared.settings)
            origin = origin_of(self, seed, plan)
            models = TaskModels.from_result(federation, result, built.method.loss, origin, unseen)
            return self._finish(replace(models, tasks=places.tasks, classes=classes), result)

    def _labels(self, y: Array, task: Any, sample_weight: Any) -> tuple[Array, Array, Any]:
        """Labels as numbers, the classes that they stand for (none in a regression), and weights of the rows."""
        return y, np.empty(0, dtype=np.str_), sample_weight

    def resume(self, budget: Any = None) -> Self:
        """Go on learning where `fit` ended, with so much more budget; rows, duals, rounds and bill are carried on.

        ``tol`` and ``max_rounds`` are read anew: change them first to go on without more budget.
        """
        check_is_fitted(self)
        session: _Session | None = getattr(self, "_session", None)
        if session is None or session.models is None:
            raise ConfigError(
                "the training rows are not here any more, as this model was copied, unpickled or loaded: call fit "
                "again, with warm_start=True to start from its dual variables"
            )
        run = session.run
        if run.private is not None:
            raise ConfigError("what a private fit may tell was planned beforehand, and is told: call fit anew")
        limits, spent = dict(run.ledger.budget), run.ledger.spent
        rounds = run.state.round + whole("max_rounds", self.max_rounds)
        with told_in_python():
            more = {name: limits.get(name, spent.get(name, 0.0)) + x for name, x in Budget.of(budget).items()}
            run.go_on({**limits, **more}, target_relative_gap=self.tol, max_rounds=rounds)
            result = self._learn()
        return self._finish(session.models.updated(result), result)

    def save(self, path: str | Path) -> None:
        """Write models, scaling, tasks, classes, certificate and totals into one file, without any training row."""
        check_is_fitted(self)
        self.models_.save(path)

    def release(self, epsilon: float, delta: float = 1e-6) -> TaskModels:
        """The models for others' eyes, hidden in noise that no training row can be told from (`TaskModels.release`)."""
        check_is_fitted(self)
        with told_in_python():
            return self.models_.release(epsilon, delta)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote, or the model in the folder of a run: ready to predict, not to `resume`."""
        models = TaskModels.load(path)
        if (len(models.classes) == 0) != issubclass(cls, RegressorMixin):
            raise DataError(f"{path} holds models for {models.kind} labels, which a {cls.__name__} cannot use")
        loss = None if models.loss is None else loss_name(models.loss)
        known = {"loss": loss, **models.provenance.get("estimator", {})}
        made: Self = cls(**{name: value for name, value in known.items() if name in cls._get_param_names()})
        made._publish(models)
        return made

    def _learn(self) -> Result:
        """Run until budget, tolerance or rounds end it."""
        run, places = self._session.run, self._session.places
        watch = Telling(run.ledger.budget) if self.verbose else None
        result = run.result(run.learn(self._session.policy, watch))
        if isinstance(run.network, InProcess) and isinstance(run.method, DualMethod):
            self._duals = places.duals(run.method.loss, run.network.alpha)
        return result

    def plot(self, axes: Sequence[Any] | None = None, *, metric: str | None = None) -> LearningCurveDisplay:
        """Draw a metric and the certified gap along what was spent; needs matplotlib."""
        check_is_fitted(self, "result_")
        return LearningCurveDisplay.from_estimator(self, metric=metric).plot(axes)

    def plot_budget(self, axes: Sequence[Any] | None = None) -> BudgetDisplay:
        """Draw what each tier took of every type; needs matplotlib."""
        check_is_fitted(self, "result_")
        return BudgetDisplay.from_estimator(self).plot(axes)

    def _finish(self, models: TaskModels, result: Result) -> Self:
        """Keep what came of it, and say so if it did not converge."""
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
        """Set what scikit-learn expects of a fitted estimator."""
        d, known = models.n_features, models.preparation
        self.models_ = models
        self.tasks_ = models.tasks
        self.coef_ = models.models[:, :, :d]
        self.intercept_ = models.models[:, :, d] if models.intercept else np.zeros(models.models.shape[:2])
        self.n_features_in_ = d if known is None else len(known.columns)
        if models.certificate is not None:
            self.certificate_ = models.certificate
        if models.feature_names:
            names = models.feature_names if known is None else known.columns
            self.feature_names_in_ = np.array(names, dtype=object)
        if len(models.classes):
            self.classes_ = models.classes

    def _scores(self, X: Any, task: Any) -> npt.NDArray[np.float64]:
        """Scores of every row by the model of its task; an unseen task gets the model for such tasks, and a warning.

        One name stands for all rows.
        """
        check_is_fitted(self)
        models: TaskModels = self.models_
        with told_in_python():
            check_index(X, task=task)
        named = bool(models.feature_names) and is_frame(X)
        if models.preparation is None:
            X = validate_data(self, X, reset=False, skip_check_array=named, **({} if named else {"dtype": FLOATS}))
        elif np.shape(X)[:1] == (0,):
            raise DataError(f"Found array with 0 sample(s) (shape={np.shape(X)}) while a minimum of 1 is required")
        elif not named:
            raise DataError("fit was given a frame with gaps or texts: predict needs a frame with the same columns")
        if named:
            with told_in_python():
                X, filled = models.prepared(frame_table(X), "X")
            if filled:
                text = f"gaps in {listing(filled)}, which had none in training: filled by the mean of the training rows"
                warnings.warn(text, stacklevel=3)
        if task is None and len(models.tasks) > 1:
            self._warn(
                f"no task was given: {models.unseen_words} predicts every row; name them with task=… (pipelines "
                "and searches of scikit-learn pass it on under metadata routing alone, and scorers such as "
                "'accuracy' never: leave scoring at its default)"
            )
        if task is not None:
            task = column(np.full(len(X), task) if np.ndim(task) == 0 else task, len(X), "task")
            strangers = sorted({str(name) for name in task[models.find(task) < 0].tolist()})
            if strangers:
                shown = ", ".join(strangers[:5]) + (f" and {len(strangers) - 5} more" if len(strangers) > 5 else "")
                self._warn(f"not seen in training: task {shown}; {models.unseen_words} predicts these rows")
        return models.scores(X, task)

    @staticmethod
    def _warn(text: str) -> None:
        warnings.warn(text, UnknownTaskWarning, stacklevel=4)

    def _rows(
        self, X: Array, y: Array, classes: Array, beside: Mapping[str, Any], preparation: Preparation | None
    ) -> GivenRows:
        """Rows with what was named beside them."""
        n = len(X)
        task, terminal, groups = (
            None if beside[name] is None else column(beside[name], n, name) for name in ("task", "terminal", "groups")
        )
        return GivenRows(
            X,
            y,
            classes,
            np.zeros(n, dtype=np.int64) if task is None else task,
            terminal,
            weights(beside["sample_weight"], n),
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
        if last.models.shape[1:] == run.network.shape:
            by_task = np.concatenate([last.models, last.reference[None]])[last.find(places.tasks)]
            first = [int(np.argmax(run.task_station == b)) for b in range(run.cloud.n_tasks)]
            models = run.units.as_learned(by_task[first])
        run.restore(alpha, models)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the running state, which holds the training rows."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_session"}
