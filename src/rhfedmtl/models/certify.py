"""A certificate for any models: in one round of sums over a federation's training rows, whoever made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data import centring
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.errors import DataError
from rhfedmtl.maths.objective import any_models
from rhfedmtl.models.model_file import loss_name
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.roles.averaging import certify_models
from rhfedmtl.roles.certificates import Certificate

Float64Array = npt.NDArray[np.float64]


def certify(
    models: TaskModels | npt.ArrayLike,
    federation: Federation,
    *,
    intercept: npt.ArrayLike | None = None,
    threads: int | None = None,
    **options: Any,
) -> Certificate:
    """How far ``models`` are at most from the best possible ones for the problem that ``options`` name.

    ``models`` is a `TaskModels`, which brings its scaling and its loss, or plain weights for rows as they are:
    (task, feature) or (task, column, feature) in the order of the federation's tasks, one model for all, or such as
    scikit-learn's ``coef_`` with its ``intercept_`` beside it. ``options`` are those of learning: ``relationship``,
    ``lambda1``, ``lambda2``, ``loss``. The gap bounds how much lower the objective could be, and nothing is charged.
    """
    if isinstance(models, TaskModels):
        weights, scalers = _learned(models, federation)
        if models.loss is not None:
            options = {"loss": loss_name(models.loss), **models.loss._asdict(), **options}  # type: ignore[attr-defined]
        has_intercept = models.intercept
    else:
        weights, has_intercept = _given(models, intercept, federation), intercept is not None
        scalers = [Scaler()] * federation.n_tasks
    method = Options.of(**{**options, "intercept": has_intercept}).method(federation.kind)
    network = InProcess(federation, method, threads=threads)
    if has_intercept:
        levels = None
        if federation.kind == "regression":
            levels = centring.levels(network.labels())
            network.centre(levels)
        weights = centring.without_intercepts(weights, scalers[0].constant(federation.n_features), levels)
    network.scale(scalers)
    relationship = method.relationship
    if relationship.learns() is not None:  # the one that these models show
        relationship = relationship.learn(weights)
    found = certify_models(weights, network.sums(any_models(weights)), relationship)
    assert found is not None, "in one process every station tells its sums"
    return found


def _learned(models: TaskModels, federation: Federation) -> tuple[Float64Array, list[Scaler]]:
    """Model and scaler of every task of the federation, by names of tasks and features.

    Tasks that were not learned get the model for unseen tasks.
    """
    if models.n_features != federation.n_features or len(models.classes) != len(federation.class_names):
        raise DataError(
            f"models of {models.n_features} features and {len(models.classes)} classes do not fit the data, which has "
            f"{federation.n_features} and {len(federation.class_names)}: certify with the data that they are for"
        )
    if len(models.classes) and [str(c) for c in models.classes.tolist()] != list(federation.class_names):
        raise DataError(
            f"models of the classes {', '.join(map(str, models.classes.tolist()))} do not fit data of the classes "
            f"{', '.join(federation.class_names)}"
        )
    places = models.find(list(federation.task_names)).tolist()
    parts = [models.model_of(b) for b in places]
    order = _order(models.feature_names, federation.feature_names)
    weights, scalers = np.array([model for _, model in parts]), [scaler for scaler, _ in parts]
    if order is not None:
        weights[:, :, : len(order)] = weights[:, :, order]
        for b, scaler in enumerate(scalers):
            if scaler.mean is not None and scaler.scale is not None:
                scalers[b] = replace(scaler, mean=scaler.mean[order], scale=scaler.scale[order])
    return weights, scalers


def _order(learned: Sequence[str], given: Sequence[str]) -> list[int] | None:
    """Which of the learned features is each of the given ones; None where they are in order, or have no names."""
    if not learned or not given or tuple(learned) == tuple(given):
        return None
    place = {name: j for j, name in enumerate(learned)}
    foreign = [name for name in given if name not in place]
    if foreign or len(place) < len(learned):
        lacking = next(iter(place.keys() - set(given)), None)
        raise DataError(
            f"the data has a feature {foreign[0]!r} that the models do not know, and lacks {lacking!r}: certify with "
            "the columns that they were trained on"
            if foreign
            else "several features of the models have the same name, and those of the data are in another order"
        )
    return [place[name] for name in given]


def _given(models: npt.ArrayLike, intercept: npt.ArrayLike | None, federation: Federation) -> Float64Array:
    """Plain weights as (task, column, feature), the intercept as the last feature."""
    weights = np.asarray(models, dtype=np.float64)
    columns = len(federation.class_names) if len(federation.class_names) > 2 else 1
    needed = federation.n_tasks, columns, federation.n_features
    if weights.shape == needed[1:] or weights.shape == needed[2:]:
        weights = np.broadcast_to(weights, needed)
    elif weights.shape == (needed[0], needed[2]) and columns == 1:
        weights = weights[:, None]
    if weights.shape != needed or not np.isfinite(weights).all():
        raise DataError(
            f"weights of shape {weights.shape} do not fit {needed} (task, column, feature), or are not finite; scikit-"
            "learn's coef_ of every task, in the order of the federation's task_names, does"
        )
    if intercept is None:
        return weights.copy()
    try:
        last = np.broadcast_to(np.reshape(np.asarray(intercept, dtype=np.float64), (-1, columns)), needed[:2])
    except ValueError:
        raise DataError(f"intercepts of shape {np.shape(intercept)} do not fit {needed[:2]} (task, column)") from None
    return np.concatenate([weights, last[:, :, None]], axis=2)
