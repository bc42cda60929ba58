"""Metrics against scikit-learn, and at the edges of what they mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from rhfedmtl.maths import metrics
from rhfedmtl.training.result import mean

RNG = np.random.default_rng(0)


def test_binary_metrics_are_scikit_learns() -> None:
    """Accuracy, balanced accuracy and area under the curve, with ties among the scores."""
    labels = RNG.integers(0, 2, 200)
    scores = np.round(RNG.normal(size=(200, 1)) + labels[:, None], 1)
    measured = metrics.measure(labels, scores, 2)
    predicted = (scores[:, 0] > 0).astype(int)
    assert measured == {
        "accuracy": pytest.approx(sklearn_metrics.accuracy_score(labels, predicted)),
        "balanced_accuracy": pytest.approx(sklearn_metrics.balanced_accuracy_score(labels, predicted)),
        "auc": pytest.approx(sklearn_metrics.roc_auc_score(labels, scores[:, 0])),
    }


def test_metrics_of_several_classes_are_scikit_learns() -> None:
    """The class with the highest score is predicted."""
    labels = RNG.integers(0, 4, 200)
    scores = RNG.normal(size=(200, 4)) + 2 * np.eye(4)[labels]
    measured = metrics.measure(labels, scores, 4)
    predicted = scores.argmax(axis=1)
    assert measured["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(labels, predicted))
    assert measured["balanced_accuracy"] == pytest.approx(sklearn_metrics.balanced_accuracy_score(labels, predicted))


def test_numbers_are_measured_by_their_error() -> None:
    """A regression has a root mean squared error and nothing else."""
    assert metrics.measure(np.array([1.0, 2.0]), np.array([[1.0], [5.0]]), 0) == {"rmse": pytest.approx(math.sqrt(4.5))}


def test_a_score_of_zero_predicts_the_negative_class() -> None:
    """Zero is on the negative side."""
    np.testing.assert_array_equal(metrics.predict(np.array([[0.0], [1e-300], [-1.0]]), 2), [0, 1, 0])


@pytest.mark.parametrize("columns", [2, 3])
def test_one_class_alone_is_not_measured_as_a_perfect_task(columns: int) -> None:
    """Balanced accuracy and area need a second class; the mean over tasks leaves such a task out."""
    labels, scores = np.ones(3, dtype=int), np.eye(3)[[1, 1, 0]][:, : 1 if columns == 2 else 3]
    measured = metrics.measure(labels, scores, columns)
    assert math.isnan(measured["balanced_accuracy"])
    assert math.isnan(measured.get("auc", math.nan))
    assert not math.isnan(measured["accuracy"])
    assert mean(np.array([measured["balanced_accuracy"], 0.7])) == 0.7


def test_a_station_counts_no_perfect_task_either() -> None:
    """Counts of test rows of one class give an accuracy, and no balanced accuracy."""
    from rhfedmtl.deploy.station.trials import _from_tallies
    from rhfedmtl.deploy.wire import codec
    from rhfedmtl.deploy.wire import wire_pb2 as wire

    one, both = (
        wire.Tally(rows=6, counts=codec.tensor(np.array(c, dtype=float))) for c in ([[4, 2], [0, 0]], [[2, 1], [0, 3]])
    )
    assert _from_tallies([one])["accuracy"] == pytest.approx(4 / 6)
    assert math.isnan(_from_tallies([one])["balanced_accuracy"])
    assert _from_tallies([both])["balanced_accuracy"] == pytest.approx((2 / 3 + 1) / 2)
