"""Methods that solve one problem for all tasks reach the optimum of other people's solvers; yardsticks are exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC
from tests.algorithms.runs import run_built
from tests.reference.problems import federation
from tests.reference.sgd import with_constant

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import ALGORITHMS
from rhfedmtl.training.result import mean

LAM = 0.05
SOLVERS: dict[str, Any] = {
    "squared-hinge": lambda n: LinearSVC(C=1 / (2 * n * LAM), fit_intercept=False, tol=1e-10, max_iter=10**6),
    "logistic": lambda n: LogisticRegression(C=1 / (n * LAM), fit_intercept=False, tol=1e-10, max_iter=10**4),
    "squared": lambda n: Ridge(alpha=n * LAM, fit_intercept=False, tol=1e-12),
}


def check(name: str, loss: str, **options: Any) -> None:
    """Solve to a tiny gap, and compare all tasks' model with the solver's on the rows with a constant feature.

    A regression is solved for labels without their mean, which stands in the intercept.
    """
    data = federation("regression" if loss == "squared" else "binary")
    built = build(name, Options.of(loss=loss, lambda1=LAM, **options), data.kind)
    result = run_built(data, built, target_relative_gap=1e-10, certify_every=20, max_rounds=20_000)
    assert result.stopped == "relative gap of 1e-10 reached"
    y = data.targets()[:, 0]
    level = y.mean() if loss == "squared" else 0.0
    expected = np.ravel(SOLVERS[loss](len(y)).fit(with_constant(data.X), y - level).coef_)
    expected[-1] += level
    for model in result.models:
        np.testing.assert_allclose(model[0], expected, atol=1e-4)
    assert len(result.models) == len(result.metrics[next(iter(result.metrics))]) == data.n_tasks


@pytest.mark.parametrize("loss", SOLVERS)
def test_pooled_is_scikit_learn(loss: str) -> None:
    """All rows in one place, solved to the optimum."""
    check("pooled", loss)


@pytest.mark.parametrize("name", ["cocoa", "cocoa+"])
def test_cocoa_reaches_the_optimum_of_liblinear(name: str) -> None:
    """One task over all terminals, by averaging and by adding."""
    check(name, "squared-hinge", local_steps=20)


def test_cocoa_pays_for_one_station_and_pooled_and_constant_for_nothing() -> None:
    """Regrouping shows in the bill: all terminals are under one station."""
    data = federation()
    for name in ("cocoa", "cocoa+"):
        assert build(name, Options(), data.kind).regroup(data).n_tasks == 1
    for name in ("pooled", "constant"):
        assert ALGORITHMS[name].yardstick
    per_node = build("pooled", Options(), data.kind).regroup(data)
    assert (per_node.n_tasks, per_node.n_terminals) == (1, 1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["binary", "classes", "regression"])
def test_constant_is_the_most_frequent_class_or_the_mean(kind: str, weighted: bool) -> None:
    """Each task by itself, by the weights of its rows."""
    data = federation(kind, weighted=weighted)
    result = run_built(data, build("constant", Options(), kind))
    np.testing.assert_array_equal(result.models[..., :-1], 0.0)
    for b in range(data.n_tasks):
        own = data.row_task == b
        weights = np.ones(own.sum()) if data.sample_weight is None else data.sample_weight[own]
        answer = result.models[b, :, -1]
        if kind == "regression":
            assert answer[0] == pytest.approx(np.average(data.y[own], weights=weights))
            continue
        votes = np.bincount(data.y[own], weights, len(data.class_names))
        predicted = int(np.argmax(answer)) if kind == "classes" else int(answer[0] > 0.0)
        assert votes[predicted] == votes.max()


def test_constant_scores_by_chance() -> None:
    """Balanced accuracy of one answer is one half."""
    data = federation(sizes=((20, 20), (30,)))
    data = replace(data, test_X=data.X[:60], test_y=data.y[:60], test_offsets=np.array([0, 40, 60]))
    assert mean(run_built(data, build("constant", Options(), "binary")).metrics["balanced_accuracy"]) == 0.5
