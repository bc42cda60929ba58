"""Measure how well scores predict labels. The code is small and direct: a run evaluates after every round."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]
Labels = npt.NDArray[Any]


def scores(X: npt.NDArray[Any], model: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the scores (rows × columns) of scaled rows.

    A model with an entry more than a row ends in its intercept.
    """
    d = X.shape[1]
    result = np.asarray(X, dtype=np.float64) @ model[:, :d].T
    return result + model[:, d] if model.shape[1] > d else result


def predict(scores: Scores, n_classes: int) -> npt.NDArray[Any]:
    """Return class codes from scores (rows × columns), or the scores themselves for regression.

    A score of 0 is the negative class.
    """
    if n_classes == 0:
        return scores[:, 0]
    if n_classes == 2:
        return np.where(scores[:, 0] > 0.0, 1, 0)
    return np.asarray(np.argmax(scores, axis=1))


def accuracy(labels: Labels, predicted: Labels) -> float:
    """Share of rows with the right prediction."""
    return float(np.mean(labels == predicted))


def balanced_accuracy(labels: Labels, predicted: Labels) -> float:
    """Mean over the classes of the share predicted right; NaN if the rows have a single class, as for `auc`.

    With a single class, a model that always predicts this class would count as perfect.
    """
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        return float("nan")
    right = np.bincount(codes, weights=labels == predicted, minlength=len(classes))
    return float(np.mean(right / np.bincount(codes)))


def auc(labels: Labels, scores: npt.NDArray[np.float64]) -> float:
    """Probability that a positive row scores above a negative row, ties counted half; NaN with a single class."""
    positive, negative = scores[labels == 1], np.sort(scores[labels != 1])
    if not (len(positive) and len(negative)):
        return float("nan")
    below = np.searchsorted(negative, positive, "left").sum() + np.searchsorted(negative, positive, "right").sum()
    return float(below / 2 / (len(positive) * len(negative)))


def rmse(labels: Labels, predicted: Labels) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.mean(np.square(labels - predicted))))


def fitting(n_classes: int) -> tuple[str, ...]:
    """Return the names of the metrics for labels with this many classes; 0 means regression."""
    return {0: ("rmse",), 2: ("accuracy", "balanced_accuracy", "auc")}.get(n_classes, ("accuracy", "balanced_accuracy"))


def measure(labels: Labels, scores: Scores, n_classes: int) -> dict[str, float]:
    """Return all metrics for labels with this many classes; 0 means regression."""
    predicted = predict(scores, n_classes)
    if n_classes == 0:
        return {"rmse": rmse(labels, predicted)}
    measured = {
        "accuracy": accuracy(labels, predicted),
        "balanced_accuracy": balanced_accuracy(labels, predicted),
    }
    if n_classes == 2:
        measured["auc"] = auc(labels, scores[:, 0])
    return measured
