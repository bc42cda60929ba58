"""Adapt trained models to a new task from a few rows: a local problem against a frozen reference.

The problem is loss(w) + λ1/2 ‖w‖² + λ2/2 ‖w − r‖², in the scaling of the run. The reference r is the model for unseen
tasks, or the mean model of the tasks. λ1 comes from the run. λ2 is at least the λ2 of the run: a task with few rows may
need more of the reference, and held-out rows of the new task choose how much. λ2 = ∞ keeps the reference.

`TaskModels.adapt` calls `adapted`. The models of the run do not change, so the problem is solved in a
single process, by the coordinate steps and certificates of a training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import AUTO, USUAL, Options
from rhfedmtl.data.centring import with_intercepts, without_intercepts
from rhfedmtl.data.federation import Federation, FloatArray, check_finite
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.maths.coupling import Anchors, check_weight
from rhfedmtl.maths.kernels.rounds import dual_sums
from rhfedmtl.maths.metrics import scores
from rhfedmtl.maths.objective import any_models, station_dual, station_primal
from rhfedmtl.models.problem import trained_problem
from rhfedmtl.plain import plain
from rhfedmtl.roles.messages import Anchor
from rhfedmtl.roles.words import in_words
from rhfedmtl.selection.folds import Precision, default_folds, make_folds, row_losses, row_weights
from rhfedmtl.selection.regularisation import PATH2, STANDARD_ERRORS
from rhfedmtl.training.config import OPTIMUM
from rhfedmtl.training.privacy import STATEMENT

Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]
Models = Any
"""`TaskModels`. Its module imports this module, so the type cannot be named here."""
POOLED, MEAN = "pooled", "mean"
LEAST_ROWS = 2
"""A single row cannot be held out, and shows no spread."""


@dataclass(frozen=True)
class Adaptation:
    """Record of a task that was adapted after training.

    Attributes
    ----------
    task : str
        Name of the task.
    rows : int
        Number of its rows.
    reference : str
        ``pooled`` for the model of all training rows, ``mean`` for the mean model of the tasks.
    lambda1, lambda2 : float
        Weights of the problem. An infinite λ2 keeps the reference: held-out rows showed no clear gain.
    primal, dual : float
        Objective of the model, and the lower bound on every objective of the problem.
    """

    task: str
    rows: int
    reference: str
    lambda1: float
    lambda2: float
    primal: float
    dual: float

    @property
    def gap(self) -> float:
        """P − D ≥ 0, the distance of the model from the best objective is at most this."""
        return max(self.primal - self.dual, 0.0)

    @property
    def relative_gap(self) -> float:
        """(P − D)/max(|P|, |D|)."""
        return self.gap / max(abs(self.primal), abs(self.dual), np.finfo(float).tiny)

    @property
    def words(self) -> str:
        """Short statement of the bound."""
        return in_words(self.relative_gap, self.dual)

    @property
    def reference_words(self) -> str:
        """Reference and λ2, for messages."""
        reference = "the model of all training rows" if self.reference == POOLED else "the mean model of the run"
        if math.isinf(self.lambda2):
            return f"{reference}, kept: held-out rows show no clear gain"
        return f"{reference}, lambda2 {self.lambda2:.3g}, lambda1 {self.lambda1:.3g}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values; an infinite λ2 becomes null."""
        return dict(plain(self))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Adaptation:
        """Build the record from the result of `to_dict`."""
        return cls(**{**fields, "lambda2": math.inf if fields["lambda2"] is None else fields["lambda2"]})


class Reference(NamedTuple):
    """A frozen reference (column, feature) with the intercept itself, and how far intercepts of tasks lie from it."""

    kind: str
    model: Float64Array
    intercept_variance: float


class LocalModel(NamedTuple):
    """Model (column, feature) of a local problem, its objective, and the lower bound on every objective."""

    model: Float64Array
    primal: float
    dual: float


@dataclass(frozen=True)
class FewRows:
    """Rows of a new task as a federation of a single task, and everything of the run that its problem needs."""

    federation: Federation
    scaler: Scaler
    method: DualMethod
    lambda1: float
    constant: float = field(default=1.0)

    def only(self, federation: Federation) -> FewRows:
        """Return the same problem with other rows of the task."""
        return replace(self, federation=federation)

    def solve(self, reference: Reference, lambda2: float, relative_gap: float = OPTIMUM) -> LocalModel:
        """Minimise the local problem to a relative gap."""
        level = self._level(reference, lambda2)
        levels = None if level is None else np.array([level])
        r = reference.model[None].copy()
        if level is not None:  # the level replaces the intercept of the reference
            r[:, :, -1] = level
        if self.method.intercept:
            r = without_intercepts(r, self.constant, levels)
        if math.isinf(lambda2):
            W, primal, dual = self._kept(r, levels)
        else:
            W, primal, dual = self._ascend(r, levels, lambda2, relative_gap)
        model = with_intercepts(W, self.constant, levels) if self.method.intercept else W
        return LocalModel(model[0], primal, dual)

    def _network(self, levels: Float64Array | None) -> InProcess:
        network = InProcess(self.federation, self.method, threads=1)
        if levels is not None:
            network.centre(levels)
        network.scale([self.scaler])
        return network

    def _kept(self, r: Float64Array, levels: Float64Array | None) -> LocalModel:
        """Return the reference, which is the only point of the problem with λ2 = ∞."""
        sums = self._network(levels).sums(any_models(r))[0]
        assert sums is not None
        primal = float(sums.losses[0]) / len(self.federation.X) + self.lambda1 / 2.0 * float(np.sum(r * r))
        return LocalModel(r, primal, primal)

    def _ascend(self, r: Float64Array, levels: Float64Array | None, lambda2: float, relative_gap: float) -> LocalModel:
        """Return the best model of the problem, after as many rounds of coordinate steps as the gap takes.

        With λ = λ1 + λ2 and c = λ2 r/λ, the problem is loss + λ/2 ‖w − c‖² + λ1 λ2/(2λ) ‖r‖²: a station with an anchor.
        """
        network, precision, rows = self._network(levels), Precision(relative_gap), len(self.federation.X)
        weight = self.lambda1 + lambda2
        constant = self.lambda1 * lambda2 / (2.0 * weight) * float(np.sum(r * r))
        anchors = Anchors(lambda2 / weight * r, np.array([weight]), np.array([constant]))
        network.assign([Anchor(1, 0, anchors.center[0], weight)])
        n, steps = np.array([float(rows)]), np.array([math.ceil(precision.passes * rows)])
        best, primal, dual = r, math.inf, -math.inf
        for number in range(1, precision.max_rounds + 1):
            network.round(number, steps)
            models = network.models
            sums = network.sums(any_models(models))[0]
            assert sums is not None
            objective = float(station_primal(sums.losses[:1], n, models, anchors)[0])
            if objective < primal:
                best, primal = models.copy(), objective
            dual = max(dual, float(station_dual(dual_sums(sums.dual[None]), n, network.V, anchors)[0]))
            if primal - dual <= relative_gap * abs(primal):
                break
        return LocalModel(best, primal, dual)

    def _level(self, reference: Reference, lambda2: float) -> float | None:
        """Return the level of a regression task; classes have no level.

        It is b + m τ²/(τ² + σ²/n), and b with λ2 = ∞, which keeps the reference. b is the intercept of the reference, m
        and σ² are mean and variance of the n labels around its predictions, and τ² is the variance of the intercepts of
        the tasks around b.
        """
        if self.federation.kind != "regression" or not self.method.intercept:
            return None
        if math.isinf(lambda2):
            return float(reference.model[0, -1])
        s, n = row_weights(self.federation), len(self.federation.X)
        predicted = scores(self.scaler.transform(self.federation.X), reference.model)[:, 0]
        residual = np.asarray(self.federation.y, dtype=np.float64) - predicted
        mean = float(s @ residual / s.sum())
        within = float(s @ np.square(residual - mean)) / max(n - 1, 1)
        between = reference.intercept_variance
        trust = between / (between + within / n) if between > 0.0 else 0.0
        return float(reference.model[0, -1]) + trust * mean


def adapted(
    models: Models,
    X: FloatArray,
    y: Any,
    task: Any,
    *,
    sample_weight: Any = None,
    groups: Any = None,
    lambda2: float | None = None,
) -> Models:
    """Return the models with a new task; see `TaskModels.adapt`. ``X`` are features in the encoding of the training."""
    name = _new_name(models, task)
    federation = _federation(models, X, y, str(name[0]), sample_weight, groups)
    problem = trained_problem(models.provenance)
    # Without a record of the weights, λ1 has its default, and no λ2 is too small.
    lambda1 = USUAL["lambda1"] if problem["lambda1"] == AUTO else float(problem["lambda1"])
    run_lambda2 = float(problem["lambda2"]) if problem["relationship"] == MEAN and problem["lambda2"] != AUTO else 0.0
    options = Options.of(intercept=models.intercept, features=models.features)
    method = replace(options.method(federation.kind), loss=models.loss)
    rows, references = FewRows(federation, models.scalers[0], method, lambda1, models.constant), _references(models)
    if lambda2 is None:
        reference, lambda2 = _choose(rows, references, run_lambda2)
    else:
        check_weight("lambda2", lambda2, positive=False)
        reference = references[0]
    local = rows.solve(reference, lambda2)
    record = Adaptation(str(name[0]), len(federation.X), reference.kind, lambda1, lambda2, local.primal, local.dual)
    return replace(
        models,
        models=np.concatenate([models.models, local.model[None]]),
        scalers=(*models.scalers, models.scalers[0]),
        tasks=np.concatenate([models.tasks, name]),
        provenance=_without_cover(models.provenance, record.task),
        adapted=(*models.adapted, record),
        curves=None if models.curves is None else models.curves.with_new_task(),
    )


def refuse_new_gaps(columns: list[str], where: str) -> None:
    """Refuse rows with gaps in columns without gaps in training: few rows must not learn from a mean of other tasks."""
    if columns:
        raise DataError(
            f"{where}: column {columns[0]!r} has gaps, and had no gaps in training: fill them, or drop these rows"
        )


def _new_name(models: Models, task: Any) -> Array:
    """Return the name of a new task as an array in the type of the names; refuse models that cannot get a task."""
    name, numbers = np.asarray(task).reshape(-1), models.tasks.dtype.kind in "biuf"
    if len(name) != 1 or name.dtype.kind not in "biufU" or not str(name[0]):
        raise DataError(f"task={task!r} does not name a new task: give a text or a number, for all rows together")
    if models.find(name)[0] >= 0:
        raise DataError(f"task {str(name[0])!r} has a model already: choose another name, or train again with all rows")
    if models.loss is None:
        raise ConfigError("the models do not record their loss: train them again with this version")
    if any(scaler is not models.scalers[0] for scaler in models.scalers):
        raise ConfigError(
            "tasks were scaled separately, so there is no scaling for a new task: train without scale_per_station"
        )
    if numbers and name.dtype.kind == "U":
        try:
            name = np.array([int(name[0])])
        except ValueError:
            raise DataError(
                f"tasks are numbers, such as {models.tasks[0]}: name task {str(name[0])!r} by one"
            ) from None
    return name if numbers else name.astype(np.str_)


def _federation(models: Models, X: FloatArray, y: Any, task: str, sample_weight: Any, groups: Any) -> Federation:
    """Return the rows of a new task as a federation; refuse labels, weights and groups that do not fit."""
    n, labels = len(X), np.asarray(y)
    for noun, values in (("labels", labels), ("weights", sample_weight), ("groups", groups)):
        if values is not None and np.shape(values) != (n,):
            raise DataError(f"{noun} of shape {np.shape(values)} for {n} rows: give a value for each row")
    if models.kind == "regression":
        try:
            coded = labels.astype(np.float64)
        except ValueError:
            raise DataError(f"label {labels[0]!r} is no number, and the models predict numbers") from None
        check_finite(coded[:, None], ("label",), lambda row: "")
    else:
        coded = models.codes(labels).astype(np.int32)
        if (coded < 0).any():
            label, names = labels[int(np.argmax(coded < 0))], ", ".join(map(str, models.classes.tolist()))
            raise DataError(f"label {str(label)!r} is not a class of the models ({names}): train again with all rows")
    weight = None
    if sample_weight is not None:
        weight = np.asarray(sample_weight, dtype=np.float64)
        if not (np.isfinite(weight).all() and (weight >= 0.0).all()):
            raise DataError("weights of rows are finite and not negative")
        keep = weight > 0.0
        X, coded, weight = X[keep], coded[keep], weight[keep]
        weight, groups = (
            weight / (weight.mean() if len(weight) else 1.0),
            None if groups is None else np.asarray(groups)[keep],
        )
    if len(X) < LEAST_ROWS:
        raise DataError(f"task {task!r} has {len(X)} rows, too few to learn from: give at least {LEAST_ROWS}")
    if models.kind != "regression" and len(np.unique(coded)) < 2:
        raise DataError(
            f"all rows of task {task!r} have label {str(models.classes[coded[0]])!r}: give rows of two classes or more "
            f"(without them, {models.unseen_words} predicts the task)"
        )
    group = None if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    return Federation.untested(
        X,
        coded,
        np.array([0, len(X)]),
        np.array([0, 1]),
        task_names=(task,),
        class_names=tuple(map(str, models.classes.tolist())),
        feature_names=models.feature_names,
        sample_weight=weight,
        group=group,
    )


def _without_cover(provenance: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Return the origin with statements on privacy that do not cover the new task."""
    statements = {name: provenance[name] for name in ("privacy", STATEMENT) if name in provenance}
    words = f"; it does not cover task {task!r}, which was adapted afterwards, without noise"
    return {**provenance, **{name: {**text, "words": text["words"] + words} for name, text in statements.items()}}


def _references(models: Models) -> list[Reference]:
    """Return the mean model of the tasks and, if the run has it, the model for unseen tasks.

    Both have the scaling of the run. The model for unseen tasks was scaled by the same rows, added in another order.
    """
    candidates = {MEAN: models.reference}
    if models.unseen is not None and _alike(models.unseen[0], models.scalers[0]):
        candidates[POOLED] = models.unseen[1]
    intercepts = models.models[: models.n_trained or None, 0, -1]
    return [Reference(k, r, float(np.mean(np.square(intercepts - r[0, -1])))) for k, r in candidates.items()]


def _alike(a: Scaler, b: Scaler) -> bool:
    """Return True if two scalings agree except for rounding."""
    if a.unit != b.unit or (a.mean is None) != (b.mean is None):
        return False
    pairs = ((a.mean, b.mean), (a.scale, b.scale))
    return all(x is None or y is None or bool(np.allclose(x, y)) for x, y in pairs)


def _choose(rows: FewRows, references: list[Reference], run_lambda2: float) -> tuple[Reference, float]:
    """Return the reference and the λ2 for the new task, by the loss of its rows while held out.

    Of the candidates within half a standard error of the best, it takes the nearest to the model for unseen tasks: few
    rows show little, and without them this model predicts the task.
    """
    federation = rows.federation
    if federation.group is not None and not federation.group.any():
        raise ConfigError(
            "all rows are of the same group, so no row can be held out: leave groups out, or give lambda2"
        )
    weights = [math.inf, *sorted({*(x for x in PATH2 if x > run_lambda2), run_lambda2}, reverse=True)]
    candidates = [(reference, weight) for reference in reversed(references) for weight in weights]
    losses = np.array(list(_held_out_losses(rows, candidates)))
    best = losses[int(np.argmin(losses.mean(axis=1)))]
    behind = losses - best
    error = behind.std(axis=1, ddof=1) / math.sqrt(losses.shape[1])
    return candidates[int(np.argmax(behind.mean(axis=1) <= STANDARD_ERRORS * error))]


def _held_out_losses(rows: FewRows, candidates: list[tuple[Reference, float]]) -> Iterator[Float64Array]:
    """Yield the loss of every row under each candidate, solved without the fold of the row."""
    federation, loss = rows.federation, rows.method.loss
    folds = [(fold, rows.only(fold.federation)) for fold in make_folds(federation, default_folds(federation))]
    targets, weight = federation.targets(), row_weights(federation)
    for reference, lambda2 in candidates:
        values = np.empty(len(federation.X))
        for fold, rest in folds:
            model = rest.solve(reference, lambda2, Precision().relative_gap).model
            held_out = scores(rows.scaler.transform(federation.X[fold.held_out]), model)
            values[fold.held_out] = row_losses(loss, held_out, targets[fold.held_out]).astype(np.float64).sum(axis=1)
        yield values * weight
