"""Curves from scores to probabilities: fits find the true curves, shrink small tasks, and stay finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression

from rhfedmtl.maths.probabilities import ProbabilityCurves, fit_curves


def drawn(seed: int, sizes: Any, spread: float, offset: float = -1.0) -> tuple[Any, ...]:
    """Scores and labels of tasks whose curves lie around σ(2z + offset)."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(len(sizes)), sizes)
    slope = 2.0 + spread * rng.normal(size=len(sizes))
    offsets = offset + spread * rng.normal(size=len(sizes))
    z = rng.normal(size=(len(task), 1))
    y = (rng.random(len(task)) < expit(slope[task] * z[:, 0] + offsets[task])).astype(int)
    return z, y, task, np.column_stack([slope, offsets])


def test_the_curve_of_a_task_is_that_of_a_logistic_regression() -> None:
    """A single curve maximises the likelihood of smoothed targets, as scikit-learn does."""
    z, y, task, _ = drawn(0, [400], 0.0)
    curves = fit_curves(z, y, task, 1, 2, "rows")
    rest = 1.0 / (np.bincount(y) + 2.0)
    weight = np.where(np.r_[y, 1 - y] == np.r_[y, y], 1.0 - rest[np.r_[y, y]], rest[np.r_[y, y]])
    logistic = LogisticRegression(C=np.inf, tol=1e-10).fit(np.vstack([z, z]), np.r_[y, 1 - y], weight)
    np.testing.assert_allclose(curves.curves[0], [logistic.coef_[0, 0], logistic.intercept_[0]], rtol=1e-4)
    np.testing.assert_array_equal(curves.curves[0], curves.curves[-1])


@pytest.mark.parametrize("seed", range(3))
def test_small_tasks_are_shrunk_and_large_tasks_are_not(seed: int) -> None:
    """Shrunk curves are nearer to the true curves than the curve of all tasks, and than curves of single tasks."""
    sizes = np.r_[np.full(30, 12), np.full(10, 400)]
    z, y, task, true = drawn(seed, sizes, 0.7)
    grid = np.linspace(-2.0, 2.0, 9)[:, None]

    def fitted(part: Any, tasks: Any, count: int) -> Any:
        curves = fit_curves(z[part], y[part], tasks, count, 2, "rows")
        return np.array([curves.probabilities(grid, np.full(9, b))[:, 1] for b in range(count)])

    shrunk, pooled = fitted(task >= 0, task, 40), fitted(task >= 0, task * 0, 1)
    single = np.concatenate([fitted(task == b, task[task == b] * 0, 1) for b in range(40)])
    exact = np.array([expit(grid[:, 0] * slope + offset) for slope, offset in true])
    errors = [float(np.abs(odds - exact).mean()) for odds in (shrunk, pooled, single)]
    assert errors[0] < min(errors[1:])
    assert np.abs(shrunk - single)[30:].mean() < 0.5 * np.abs(shrunk - single)[:30].mean()


def test_equal_tasks_share_a_curve() -> None:
    """Tasks that do not differ get nearly the common curve."""
    z, y, task, _ = drawn(1, np.full(60, 30), 0.0)
    curves = fit_curves(z, y, task, 60, 2, "rows").curves
    assert np.abs(curves[:-1] - curves[-1]).max() < 0.5
    np.testing.assert_allclose(curves[-1], [2.0, -1.0], atol=0.25)


def test_offsets_only_where_they_fit_better() -> None:
    """The largest score stays the most probable class, unless the log odds are shifted."""
    z, y, task, _ = drawn(2, np.full(5, 60), 0.0, offset=0.0)
    assert (fit_curves(z, y, task, 5, 2, "rows").curves[:, 1] == 0.0).all()
    z, y, task, _ = drawn(2, np.full(5, 60), 0.0, offset=-1.0)
    assert (fit_curves(z, y, task, 5, 2, "rows").curves[:, 1] < -0.5).all()


def test_several_classes() -> None:
    """The slope and the differences of offsets come back; probabilities are a softmax that sums to 1."""
    rng = np.random.default_rng(3)
    z, offsets, task = rng.normal(size=(3000, 4)), np.array([0.0, 1.0, -1.0, 0.5]), np.repeat(np.arange(10), 300)
    true = softmax(1.5 * z + offsets, axis=1)
    y = (rng.random(3000)[:, None] > np.cumsum(true, axis=1)).sum(axis=1)
    curves = fit_curves(z, y, task, 10, 4, "rows")
    np.testing.assert_allclose(curves.curves[-1, 0], 1.5, atol=0.15)
    np.testing.assert_allclose(np.diff(curves.curves[-1, 1:]), np.diff(offsets), atol=0.25)
    odds = curves.probabilities(z, task)
    np.testing.assert_allclose(odds.sum(axis=1), 1.0)
    assert np.abs(odds - true).mean() < 0.03


def test_scores_pass_a_bend_if_no_logistic_curve_fits() -> None:
    """Log odds that rise in steps need a bend. It rises everywhere, and the probabilities are nearly right."""
    rng = np.random.default_rng(6)
    z, task = rng.uniform(-1.2, 1.2, size=(8000, 1)), np.repeat(np.arange(4), 2000)
    true = expit(np.interp(z[:, 0], [-1.0, -0.8, 0.8, 1.0], [-5.0, -1.5, -0.5, 3.0]))
    y = (rng.random(8000) < true).astype(int)
    curves = fit_curves(z, y, task, 4, 2, "rows")
    assert curves.bend.shape[1] > 2
    assert (curves.bend[1] >= 0.0).all()
    assert np.abs(curves.probabilities(z, task)[:, 1] - true).mean() < 0.03
    logistic, labels, tasks, _ = drawn(6, np.full(4, 2000), 0.3)
    assert fit_curves(logistic, labels, tasks, 4, 2, "rows").bend.shape[1] <= 2


@pytest.mark.parametrize("case", ["separable", "constant", "opposite", "same labels in a task", "a task without rows"])
def test_hard_cases_are_finite(case: str) -> None:
    """Curves neither diverge nor fall: higher scores never mean a lower probability."""
    z, y, task, _ = drawn(4, np.full(4, 20), 0.3)
    if case == "separable":
        y = (z[:, 0] > 0).astype(int)
    elif case == "constant":
        z = np.zeros_like(z)
    elif case == "opposite":
        z = -z
    elif case == "same labels in a task":
        y[task == 1] = 1
    else:
        z, y, task = z[task != 2], y[task != 2], task[task != 2]
    curves = fit_curves(z, y, task, 4, 2, "rows")
    assert np.isfinite(curves.curves).all()
    assert (curves.curves[:, 0] >= 0.0).all()
    odds = curves.probabilities(z, task)
    assert ((odds > 0.0) & (odds < 1.0)).all()
    if case == "a task without rows":
        np.testing.assert_array_equal(curves.curves[2], curves.curves[-1])
        assert curves.rows.tolist() == [20, 20, 0, 20]
    if case == "constant":
        np.testing.assert_allclose(odds[:, 1].mean(), y.mean(), atol=0.05)


def test_weights_count_rows() -> None:
    """Rows of weight 2 are rows that occur twice, but for the smoothing of the targets."""
    z, y, task, _ = drawn(5, [300, 300], 0.5)
    weight = np.where(np.arange(600) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(600), weight.astype(int))
    weighted = fit_curves(z, y, task, 2, 2, "rows", weight).curves
    np.testing.assert_allclose(weighted, fit_curves(z[twice], y[twice], task[twice], 2, 2, "rows").curves, atol=0.1)


def test_curves_of_a_single_task() -> None:
    """`only` keeps the curve of a task and the common curve; −1 takes the common curve for the task."""
    curves = ProbabilityCurves(np.arange(8.0).reshape(4, 2), np.array([5, 6, 7]), "rows")
    assert curves.only(1).curves.tolist() == [[2.0, 3.0], [6.0, 7.0]]
    assert curves.only(1).rows.tolist() == [6]
    assert curves.only(-1).curves.tolist() == [[6.0, 7.0], [6.0, 7.0]]
    assert curves.only(-1).rows.tolist() == [18]
