"""Linear models of all tasks with everything that raw rows need: encoding, scaling, maps and probabilities.

`Predictor` checks these parts and predicts. `TaskModels` adds training, files and other models made from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from rhfedmtl.data.federation import FloatArray, Kind, as_rows, check_finite, kind_of
from rhfedmtl.data.loaders.table import coded_rows, frame_table
from rhfedmtl.data.loaders.table_files import RawTable
from rhfedmtl.data.preparation import Preparation
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.errors import ConfigError, DataError, told_in_python
from rhfedmtl.features.registry import NO_MAP
from rhfedmtl.maths import metrics
from rhfedmtl.maths.losses import Logistic, Loss
from rhfedmtl.maths.metrics import scores
from rhfedmtl.maths.probabilities import ProbabilityCurves, fit_curves
from rhfedmtl.models.adaptation import Adaptation
from rhfedmtl.models.model_file import loss_name, share_scaler
from rhfedmtl.models.release import Releases
from rhfedmtl.roles.certificates import Certificate
from rhfedmtl.training.privacy import STATEMENT

Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
UnseenModel = tuple[Scaler, Float64Array]
"""Scaler and model (column, feature) for rows of unseen tasks."""
PRIVATE = {STATEMENT: "a private run", "privacy": "a release", "removal": "a removal"}
"""Statements on privacy in the origin of models. They do not cover the rows of a calibration."""


@dataclass(frozen=True, eq=False)
class Predictor:
    """Linear models of all tasks with their scaling, which predict raw rows.

    Attributes
    ----------
    models
        Axes (task, column, feature); the intercept, if any, is the last feature. Two classes or a regression have a
        single column, otherwise every class has a column.
    scalers
        Scaler of every task.
    tasks, classes
        Names, as text or numbers; ``classes`` is empty for a regression.
    n_features
        Number of features, without the intercept.
    loss, feature_names, certificate
        Loss of the training, names of the features, and last certificate.
    ledger
        Totals of the costs of the training.
    provenance
        Origin of the models in plain values: data, configuration, statements.
    preparation
        Encoding of a table with gaps or texts; the rows of such a table must come as a frame.
    releases
        Account of the releases of these models.
    unseen
        Scaler and model (column, feature) for rows of unseen tasks; if None, they get the mean model.
    curves
        Curves that turn scores into probabilities; rows of unseen tasks get the common curve.
    adapted
        Records of the tasks that `adapt` added; they are the last tasks. The certificate does not cover them.
    """

    models: Float64Array
    scalers: tuple[Scaler, ...]
    tasks: Array
    classes: Array
    n_features: int
    loss: Loss | None = None
    feature_names: tuple[str, ...] = ()
    certificate: Certificate | None = None
    ledger: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    preparation: Preparation | None = None
    releases: Releases = field(default_factory=Releases, repr=False)
    unseen: UnseenModel | None = None
    curves: ProbabilityCurves | None = None
    adapted: tuple[Adaptation, ...] = ()

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        columns = len(self.classes) if len(self.classes) > 2 else 1
        shape, width = self.models.shape, self.width + self.intercept
        if len(shape) != 3 or shape != (len(self.tasks), columns, width) or not len(self.tasks):
            raise DataError(
                f"models of shape {shape} do not fit {len(self.tasks)} tasks, {len(self.classes)} classes and "
                f"{self.n_features} features"
            )
        if self.unseen is not None and self.unseen[1].shape != (columns, width):
            raise DataError(
                f"a model of shape {self.unseen[1].shape} for unseen tasks does not fit models of shape {shape}"
            )
        if self.curves is not None and self.curves.curves.shape != (len(self.tasks) + 1, 1 + columns):
            raise DataError(f"curves of shape {self.curves.curves.shape} do not fit models of shape {shape}")
        if not np.isfinite(self.models).all() or (self.unseen is not None and not np.isfinite(self.unseen[1]).all()):
            raise DataError("a model holds a value that is not a finite number")
        used = (*self.scalers, *(() if self.unseen is None else self.unseen[:1]))
        if len(self.scalers) != len(self.tasks) or not all(_fits(scaler, self.n_features) for scaler in used):
            raise DataError(
                f"{len(self.scalers)} scalers do not fit {len(self.tasks)} tasks and {self.n_features} features"
            )
        if len(set(self.tasks.tolist())) < len(self.tasks) or len(set(self.classes.tolist())) < len(self.classes):
            raise DataError("a task or a class is named twice")
        if self.feature_names and len(self.feature_names) != self.n_features:
            raise DataError(f"{len(self.feature_names)} feature names for {self.n_features} features")
        if self.preparation is not None and len(self.preparation.feature_names) != self.n_features:
            raise DataError(f"a preparation of {len(self.preparation.feature_names)} for {self.n_features} features")

    @property
    def intercept(self) -> bool:
        """True if the models end in an intercept."""
        return bool(self.models.shape[-1] > self.width)

    @property
    def width(self) -> int:
        """Number of columns of scaled rows: the features, or the columns of a feature map."""
        return self.scalers[0].columns(self.n_features)

    @property
    def features(self) -> str:
        """Feature maps of all rows, as text; ``none`` if rows are only scaled."""
        mapping = self.scalers[0].mapping
        return NO_MAP if mapping is None else mapping.features.text

    @property
    def constant(self) -> float:
        """Value of the feature whose weight the intercepts were learned as; 1 without intercepts."""
        return self.scalers[0].constant(self.width) if self.intercept else 1.0

    @property
    def kind(self) -> Kind:
        """``binary``, ``classes`` (three or more) or ``regression``."""
        return kind_of(tuple(map(str, self.classes)))

    @property
    def n_trained(self) -> int:
        """Number of tasks that a run trained; the tasks after them were adapted."""
        return len(self.models) - len(self.adapted)

    @property
    def reference(self) -> Float64Array:
        """r, the mean model (column, feature) of the trained tasks."""
        return np.asarray(self.models[: self.n_trained or None].mean(axis=0))

    @property
    def unseen_kind(self) -> str:
        """``pooled`` if unseen tasks have a separate model, else ``mean``."""
        return "mean" if self.unseen is None else "pooled"

    @property
    def unseen_words(self) -> str:
        """Name of the model for unseen tasks, for messages."""
        return "the mean model of all tasks" if self.unseen is None else "the model of all training rows"

    def find(self, task: Any) -> IntArray:
        """Return the index of each task, −1 if it is unknown. Numbers are compared by value, all others as text."""
        return _positions(task, self.tasks)

    def codes(self, y: Any) -> IntArray:
        """Return the index of each label among the classes, −1 if it is unknown, by the rules of `find`."""
        return _positions(y, self.classes)

    def scores(self, X: Any, task: Any = None) -> Float64Array:
        """Return the scores of raw rows (row, column), each by the model of its task; unseen tasks by `model_of` −1.

        ``task`` names the task of every row, or a common task. Without it, the rows get the model of the only task, or
        the model for unseen tasks.
        """
        rows, _ = self._rows(X)
        b = self.task_of(task, len(rows))
        result = np.empty((len(rows), self.models.shape[1]))
        for index in np.unique(b).tolist():
            members = b == index
            scaler, model = self.model_of(index)
            result[members] = scores(scaler.transform(rows[members]), model)
        return result

    def task_of(self, task: Any, n_rows: int) -> IntArray:
        """Return the index of every row's task: −1 for an unseen task, and without ``task`` for all rows."""
        b = np.full(n_rows, 0 if len(self.tasks) == 1 else -1) if task is None else self.find(task)
        if task is not None and np.ndim(task) == 0:
            b = np.broadcast_to(b, n_rows)
        if len(b) != n_rows:
            raise DataError(f"{len(b)} tasks for {n_rows} rows: name the task of every row, or one for all")
        return b

    def _rows(self, X: Any) -> tuple[FloatArray, list[str]]:
        """Return the features of raw rows, and the columns of a frame with new gaps."""
        filled: list[str] = []
        if self.feature_names and hasattr(X, "columns"):
            with told_in_python():
                X, filled = self.prepared(frame_table(X), "the frame")
        rows = as_rows(X)
        if rows.shape[1] != self.n_features:
            raise DataError(f"rows have {rows.shape[1]} features, the models were learned from {self.n_features}")
        check_finite(rows, self.feature_names, lambda row: "")
        return rows, filled

    def prepared(self, table: RawTable, where: str) -> tuple[Float64Array, list[str]]:
        """Return the features of a table's rows in the encoding of the training, and the columns with new gaps.

        New gaps (in columns without gaps in training) are filled by the mean of the training rows. Standard scaling
        knows this mean; without it, the gaps remain.
        """
        preparation = self.preparation
        if preparation is None:  # columns of numbers without gaps, by name
            d, first = self.n_features, self.scalers[0]
            mean = first.mean if first.mapping is None else first.mapping.first.mean
            fill = np.full(d, np.nan) if mean is None or not share_scaler(self.scalers) else mean
            preparation = Preparation(self.feature_names, fill, np.zeros(d, dtype=np.bool_), (None,) * d)
        coded, spelled = coded_rows(table, preparation, where)
        new = np.isnan(coded).any(axis=0) & ~preparation.gaps & ~np.isnan(preparation.fill)
        return preparation.encode(coded, spelled), [preparation.columns[j] for j in preparation.numbers if new[j]]

    def predict(self, X: Any, task: Any = None) -> Array:
        """Return labels, or numbers for a regression."""
        return self.labels(self.scores(X, task))

    def labels(self, scores: Float64Array) -> Array:
        """Return the class with the largest score (two classes: the second if above 0), or the numbers unchanged."""
        predicted = metrics.predict(scores, len(self.classes))
        return np.asarray(self.classes[predicted] if len(self.classes) else predicted)

    def model_of(self, b: int) -> tuple[Scaler, Float64Array]:
        """Return scaler and model of a task; for unseen tasks (−1) their trained model, or else the mean model."""
        if b >= 0:
            return self.scalers[b], self.models[b]
        if self.unseen is not None:
            return self.unseen
        if not share_scaler(self.scalers):
            raise DataError("tasks were scaled separately, so they have no mean model: name a task")
        return self.scalers[0], self.reference

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
        curves = fit_curves(scores, codes, index, len(self.tasks), len(self.classes), words, weight)
        return replace(self, curves=curves)


def _positions(requested: Any, names: Array) -> IntArray:
    """Return the position of each requested name, −1 if it is unknown; numbers are compared by value."""
    requested = np.asarray(requested).reshape(-1)
    if not (requested.dtype.kind in "biuf" and names.dtype.kind in "biuf"):
        requested, names = requested.astype(str), names.astype(str)
    place = {name: b for b, name in enumerate(names.tolist())}
    different, positions = np.unique(requested, return_inverse=True)
    return np.array([place.get(name, -1) for name in different.tolist()], dtype=np.int64)[positions]


def _fits(scaler: Scaler, n_features: int) -> bool:
    if scaler.mapping is not None:
        if scaler.mapping.statistics.n_columns != n_features:
            return False
        n_features = scaler.mapping.columns
    if scaler.mean is None or scaler.scale is None:
        return scaler.mean is None and scaler.scale is None
    parts = scaler.mean, scaler.scale
    return all(p.shape == (n_features,) and np.isfinite(p).all() for p in parts) and bool((scaler.scale > 0.0).all())
