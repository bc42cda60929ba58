"""Levels of labels: what they are made from, what they become with few rows and many, and that they help."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.centring import LABEL_NUMBERS, combined_label_sums, label_sums, levels
from rhfedmtl.data.federation import Source
from rhfedmtl.data.loaders.synthetic import Synthetic, make
from rhfedmtl.data.split import Split, federate
from rhfedmtl.resources.events import RoundEvent
from rhfedmtl.roles.messages import EMPTY, Centring, LabelsReport
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.result import mean


def of(*tasks: list[float]) -> np.ndarray:
    """Label sums of tasks with these labels."""
    rows = np.cumsum([0, *map(len, tasks)])
    return label_sums(np.concatenate(tasks), None, rows, np.arange(len(tasks) + 1))


def test_sums_are_weighted_means_and_spreads() -> None:
    """Σs, the mean and Σ s (y − mean)², equal to those of the terminals added up in their order, to the bit."""
    rng = np.random.default_rng(0)
    y, s = rng.normal(1e6, 1.0, 50), rng.random(50)
    whole = label_sums(y, s, [0, 7, 30, 50], [0, 3])[0]
    parts = [label_sums(y[a:b], s[a:b], [0, b - a], [0, 1])[0] for a, b in ((0, 7), (7, 30), (30, 50))]
    assert combined_label_sums(parts).tolist() == whole.tolist()
    centre = np.average(y, weights=s)
    np.testing.assert_allclose(whole, [s.sum(), centre, s @ (y - centre) ** 2], rtol=1e-9)


def test_levels_by_hand() -> None:
    """Three tasks of two rows, σ² = 2 and τ² = 99: 99/100 of the way from 10 to the task's own mean."""
    np.testing.assert_allclose(levels(of([-1, 1], [9, 11], [19, 21])), [0.1, 10.0, 19.9])


def test_many_rows_keep_their_own_mean_and_few_take_that_of_all() -> None:
    """With a thousand rows the level is the task's mean to a hundredth of σ; a single row is hardly believed."""
    rng = np.random.default_rng(1)
    labels = [rng.normal(b, 5.0, 1000) for b in range(6)]
    np.testing.assert_allclose(levels(of(*labels)), [part.mean() for part in labels], atol=0.05)
    with_one = levels(of(*labels, [30.0]))
    assert abs(with_one[-1] - 2.5) < 0.25 * 27.5


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([[1.0, 2.0, 6.0]], [3.0]),  # one task: its mean
        ([[1.0], [2.0], [6.0]], [3.0] * 3),  # nothing tells the spread within tasks from that between them
        ([[1.0, 3.0], [2.0, 2.0]], [2.0, 2.0]),  # the same means
        ([[4.0, 4.0], [7.0, 7.0]], [4.0, 7.0]),  # no spread within: the means are known exactly
    ],
)
def test_levels_at_the_edges(tasks: list[list[float]], expected: list[float]) -> None:
    """One task, one row each, equal means, no noise."""
    np.testing.assert_allclose(levels(of(*tasks)), expected)


def test_labels_moved_by_any_amount_give_the_same_models_moved_by_it() -> None:
    """y + 1000 changes the intercepts by 1000, and nothing else."""
    federation = make(Synthetic(tasks=3, terminals=2, rows=30, features=4, classes=0, test=20))
    config = RunConfig(options=Options(policy="fixed", cloud_rounds=40))
    plain = config.run(federation)
    moved = config.run(replace(federation, y=federation.y + 1000.0, test_y=federation.test_y + 1000.0))
    np.testing.assert_allclose(moved.models[:, :, :-1], plain.models[:, :, :-1], atol=1e-7)
    np.testing.assert_allclose(moved.models[:, :, -1], plain.models[:, :, -1] + 1000.0, atol=1e-7)
    np.testing.assert_allclose(moved.metrics["rmse"], plain.metrics["rmse"], atol=1e-6)


def test_without_an_intercept_labels_stay_as_they_are() -> None:
    """Nothing could carry the level then; with one its sums are charged, messages up and down for every node."""
    federation = make(Synthetic(tasks=3, terminals=2, rows=30, features=4, classes=0, test=20))
    bytes_up = []
    for intercept in (False, True):
        config = RunConfig(options=Options(policy="fixed", cloud_rounds=2, intercept=intercept))
        zero = config.run(federation).events[0]
        assert isinstance(zero, RoundEvent)
        bytes_up.append((zero.bytes_up, zero.bytes_down))
    sizes = LabelsReport(0, np.zeros(LABEL_NUMBERS)).n_bytes + EMPTY, Centring(0.0).n_bytes + EMPTY
    assert (bytes_up[1][0] - bytes_up[0][0], bytes_up[1][1] - bytes_up[0][1]) == sizes


@pytest.mark.slow
@pytest.mark.parametrize("rows", [5, 12, 30])
def test_levels_help_on_real_data_with_few_rows_and_many(rows: int) -> None:
    """Diabetes of scikit-learn, labels of ten groups by age and sex moved apart: the error is as if they were not."""
    X, y = load_diabetes(return_X_y=True, scaled=False)
    task = (X[:, 1] * 5 + np.digitize(X[:, 0], np.quantile(X[:, 0], [0.2, 0.4, 0.6, 0.8]))).astype(int) - 5
    names = tuple(map(str, range(10)))
    split = Split(terminals=1, samples_per_task=rows, test_fraction=0.0, test_rest=True)
    errors = []
    for apart in (0.0, 300.0):
        source = Source(X, y + apart * task, task, names)
        config = RunConfig(options=Options(lambda2=1.0, cloud_rounds=150, policy="fixed", local_steps=rows * 2))
        runs = [config.run(federate(source, split, seed)) for seed in range(3)]
        errors.append(np.mean([mean(run.metrics["rmse"]) for run in runs]))
    assert errors[1] < 1.12 * errors[0]
