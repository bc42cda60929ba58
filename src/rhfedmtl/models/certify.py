"""Certify any models: bound their distance from the optimum, in a single round of sums over the training rows.

`rhfedmtl certify` and Python users call `certify`, with models of this library or weights from elsewhere. The
certificate has the same form as the certificates of a training run. Nothing is trained and nothing is charged.
"""

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
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.features.registry import NO_MAP
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
    """Return a bound on how far ``models`` are from the best possible models of the problem in ``options``.

    The gap of the certificate bounds how much lower the objective could be.

    Parameters
    ----------
    models
        A `TaskModels`, which includes its scaling and loss, or weights for unscaled rows: (task, feature) or (task,
        column, feature) in the order of the federation's tasks, a single model for all tasks, or scikit-learn's
        ``coef_``.
    intercept
        Intercepts for weights, such as scikit-learn's ``intercept_``.
    threads
        Number of threads.
    options
        Options of training: ``relationship``, ``lambda1``, ``lambda2``, ``loss``.
    """
    if isinstance(models, TaskModels):
        federation, weights, scalers = _learned_weights(models, federation)
        options["features"] = models.features
        if models.loss is not None:
            options = {"loss": loss_name(models.loss), **models.loss._asdict(), **options}  # type: ignore[attr-defined]
        has_intercept = models.intercept
    else:
        if options.get("features", NO_MAP) != NO_MAP:
            raise ConfigError(
                f"features={options['features']!r}: weights are for the columns of the data; to certify models behind "
                "maps, give them as TaskModels"
            )
        weights, has_intercept = _plain_weights(models, intercept, federation), intercept is not None
        scalers = [Scaler()] * federation.n_tasks
    method = Options.of(**{**options, "intercept": has_intercept}).method(federation.kind)
    network = InProcess(federation, method, threads=threads)
    if has_intercept:
        levels = None
        if federation.kind == "regression":
            levels = centring.levels(network.labels())
            network.centre(levels)
        weights = centring.without_intercepts(
            weights, scalers[0].constant(method.width(federation.n_features) - 1), levels
        )
    network.scale(scalers)
    relationship = method.relationship
    if relationship.learns() is not None:  # take the relationship that follows from these models
        relationship = relationship.learn(weights)
    certificate = certify_models(weights, network.sums(any_models(weights)), relationship)
    assert certificate is not None, "in one process every station reports its sums"
    return certificate


def _learned_weights(models: TaskModels, federation: Federation) -> tuple[Federation, Float64Array, list[Scaler]]:
    """Return rows, and model and scaler of every task, matched by the names of tasks and features.

    Tasks without a trained model get the model for unseen tasks.
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
    if order is not None and models.features != NO_MAP:  # maps read the columns of the training, in their order
        place = np.argsort(order)
        names = tuple(federation.feature_names[j] for j in place)
        federation = replace(
            federation, X=federation.X[:, place], test_X=federation.test_X[:, place], feature_names=names
        )
    elif order is not None:
        weights[:, :, : len(order)] = weights[:, :, order]
        for b, scaler in enumerate(scalers):
            if scaler.mean is not None and scaler.scale is not None:
                scalers[b] = replace(scaler, mean=scaler.mean[order], scale=scaler.scale[order])
    return federation, weights, scalers


def _order(learned: Sequence[str], requested: Sequence[str]) -> list[int] | None:
    """Return the index of each requested feature among the learned features, or None for equal order or no names."""
    if not learned or not requested or tuple(learned) == tuple(requested):
        return None
    place = {name: j for j, name in enumerate(learned)}
    foreign = [name for name in requested if name not in place]
    if foreign or len(place) < len(learned):
        lacking = next(iter(place.keys() - set(requested)), None)
        raise DataError(
            f"the data has a feature {foreign[0]!r} that the models do not know, and lacks {lacking!r}: certify with "
            "the columns that they were trained on"
            if foreign
            else "several features of the models have the same name, and those of the data are in another order"
        )
    return [place[name] for name in requested]


def _plain_weights(models: npt.ArrayLike, intercept: npt.ArrayLike | None, federation: Federation) -> Float64Array:
    """Return plain weights as (task, column, feature), with the intercept as the last feature."""
    weights = np.asarray(models, dtype=np.float64)
    columns = len(federation.class_names) if len(federation.class_names) > 2 else 1
    shape = federation.n_tasks, columns, federation.n_features
    if weights.shape == shape[1:] or weights.shape == shape[2:]:
        weights = np.broadcast_to(weights, shape)
    elif weights.shape == (shape[0], shape[2]) and columns == 1:
        weights = weights[:, None]
    if weights.shape != shape or not np.isfinite(weights).all():
        raise DataError(
            f"weights of shape {weights.shape} do not fit {shape} (task, column, feature), or are not finite; scikit-"
            "learn's coef_ of every task, in the order of the federation's task_names, does"
        )
    if intercept is None:
        return weights.copy()
    try:
        last = np.broadcast_to(np.reshape(np.asarray(intercept, dtype=np.float64), (-1, columns)), shape[:2])
    except ValueError:
        raise DataError(f"intercepts of shape {np.shape(intercept)} do not fit {shape[:2]} (task, column)") from None
    return np.concatenate([weights, last[:, :, None]], axis=2)
