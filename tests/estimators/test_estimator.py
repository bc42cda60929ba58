"""The estimators: the same numbers as the library, any kind of array and label, budgets, weights, going on, saving."""

from __future__ import annotations

import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_score
from sklearn.utils import compute_sample_weight
from tests.turns import in_turn

from rhfedmtl import DualMethod, Ledger, Measured, Request, RHFedMTLClassifier, RHFedMTLRegressor, Settings, train
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.data.federation import Federation
from rhfedmtl.errors import BudgetError, ConfigError, DataError
from rhfedmtl.estimators.base import UnknownTaskWarning
from rhfedmtl.estimators.rows import TrainingRows, gather
from rhfedmtl.maths.losses import Logistic, SmoothedHinge, Squared
from rhfedmtl.selection.weights import SelectionRecord


def rows_of(federation: Federation) -> tuple[Any, Any, Any, Any]:
    """Training rows of a federation as an estimator wants them: X, y, task, terminal."""
    terminal = np.repeat(np.arange(federation.n_terminals), np.diff(federation.terminal_offsets))
    return federation.X, federation.y, federation.row_task, terminal


def held_out(federation: Federation) -> tuple[Any, Any, Any]:
    """Test rows, labels and tasks."""
    task = np.repeat(np.arange(federation.n_tasks), np.diff(federation.test_offsets))
    return federation.test_X, federation.test_y, task


@pytest.fixture(scope="module")
def watch() -> Federation:
    """Forty motions of each of ten people; the rest for test."""
    try:
        return Request("watch", samples_per_task=40, test_rest=True).federation(0)
    except DataError as error:
        pytest.skip(f"the watch data is not to be had: {error}")


@pytest.fixture(scope="module")
def small() -> Federation:
    """Three synthetic tasks of two terminals."""
    return Request("synthetic", tasks=3, terminals=2).federation(0)


def test_it_is_the_library_to_the_bit(watch: Federation) -> None:
    """Rows with task and terminal, real ones, give the models, the bill and the accuracy of a run of the library."""
    X, y, task, terminal = rows_of(watch)
    model = RHFedMTLClassifier(budget={"energy": 2000}, tol=0.0, random_state=0).fit(X, y, task=task, terminal=terminal)
    ledger = Ledger("energy=0.1,10", budget="energy=2000")
    result = train(
        watch, DualMethod(merge=MERGES["auto"](), intercept=True), Measured(), Settings(seed=0), ledger=ledger
    )
    np.testing.assert_array_equal(model.models_.models, result.models)
    assert model.ledger_.spent == ledger.spent
    assert model.certificate_.gap == result.certificate.gap
    assert model.plan_.local_steps == tuple(result.local_steps)
    tX, ty, ttask = held_out(watch)
    by_task = [np.mean(model.predict(tX[ttask == b], ttask[ttask == b]) == ty[ttask == b]) for b in range(10)]
    np.testing.assert_array_equal(by_task, result.metrics["accuracy"])


def test_har_under_the_budget_of_the_paper() -> None:
    """Five people of UCI HAR, sitting or not, 52 training rows each and energy 1400: 19 of 20 unseen rows are right."""
    path = Path(os.environ.get("RHFEDMTL_DATA", ".")) / "har.npz"
    if not path.exists():
        pytest.skip("har.npz is not in the folder RHFEDMTL_DATA")
    request = Request("har", str(path), tasks=5, terminals=5, samples_per_task=70, positive="SITTING", test_rest=True)
    federation = request.federation(0)
    X, y, task, terminal = rows_of(federation)
    model = RHFedMTLClassifier("energy=1400", random_state=0).fit(X, y, task=task, terminal=terminal)
    tX, ty, ttask = held_out(federation)
    assert model.score(tX, ty, task=ttask) > 0.93
    assert model.ledger_.spent["energy"] <= 1400
    assert model.certificate_.gap < 0.05


def test_the_order_of_rows_does_not_matter_to_what_is_learned(watch: Federation) -> None:
    """Shuffled rows belong to the same tasks and terminals: the optimum is the same, and so are the predictions."""
    X, y, task, terminal = rows_of(watch)
    order = np.random.default_rng(0).permutation(len(X))
    first, second = (
        RHFedMTLClassifier(lambda2=0.01, random_state=0, tol=1e-5).fit(X[i], y[i], task=task[i], terminal=terminal[i])
        for i in (np.arange(len(X)), order)
    )
    tX, _, ttask = held_out(watch)
    assert np.mean(first.predict(tX, ttask) == second.predict(tX, ttask)) > 0.999
    assert first.certificate_.primal == pytest.approx(second.certificate_.primal, rel=1e-4)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_are_arrays_with_names(frame: Any, small: Federation) -> None:
    """pandas and Polars give the same model, know their columns, and refuse other ones."""
    X, y, task, terminal = rows_of(small)
    X = X.astype(np.float64)
    names = [f"f{j}" for j in range(X.shape[1])]
    table = frame(dict(zip(names, X.T, strict=True)))
    side = frame({"y": y, "task": task, "terminal": terminal})
    plain = RHFedMTLClassifier(lambda2=0.01, random_state=0).fit(X, y, task=task, terminal=terminal)
    model = RHFedMTLClassifier(lambda2=0.01, random_state=0).fit(
        table, side["y"], task=side["task"], terminal=side["terminal"]
    )
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    assert model.feature_names_in_.tolist() == names
    np.testing.assert_array_equal(model.predict(table, side["task"]), plain.predict(X, task))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[names[::-1]], side["task"])


LABELS = {"text": ["no", "yes"], "numbers": [3, -5], "truth": [True, False], "floats": [0.0, 2.0]}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_and_tasks_of_any_kind(kind: str, small: Federation) -> None:
    """Predictions are labels as they were given; tasks may be text, numbers or categories."""
    X, y, task, _ = rows_of(small)
    labels = np.array(LABELS[kind])[y]
    names = pd.Categorical(np.array(["north", "south", "west"])[task])
    model = RHFedMTLClassifier(lambda2=0.01, random_state=0).fit(X, labels, task=names)
    assert model.classes_.tolist() == sorted(LABELS[kind])
    predicted = model.predict(X, names)
    assert predicted.dtype == labels.dtype
    assert np.mean(predicted == labels) > 0.8
    assert model.tasks_.tolist() == ["north", "south", "west"]
    assert model.coef_.shape == (3, 1, X.shape[1])
    assert model.intercept_.shape == (3, 1)


def test_a_task_may_know_some_classes_only(watch: Federation) -> None:
    """Classes of all tasks are one set; a task that never saw some of them still learns, and may get them right."""
    X, y, task, terminal = rows_of(watch)
    kept = (task != 0) | np.isin(y, [0, 1])
    model = RHFedMTLClassifier(lambda2=0.01, random_state=0).fit(
        X[kept], y[kept], task=task[kept], terminal=terminal[kept]
    )
    assert model.classes_.tolist() == list(range(7))
    tX, ty, ttask = held_out(watch)
    first = ttask == 0
    assert (
        model.score(
            tX[first & np.isin(ty, [0, 1])], ty[first & np.isin(ty, [0, 1])], task=ttask[first & np.isin(ty, [0, 1])]
        )
        > 0.8
    )
    strange = first & ~np.isin(ty, [0, 1])
    assert model.score(tX[strange], ty[strange], task=ttask[strange]) > 0.2, "what others know is shared"


def test_unknown_tasks_get_the_mean_model_and_a_warning(small: Federation) -> None:
    """So do rows without a task, as in scorers, and the warning says why; one task alone needs no name."""
    X, y, task, _ = rows_of(small)
    model = RHFedMTLClassifier({"energy": 5000}, lambda2=0.01, random_state=0).fit(X, y, task=task)
    with (
        sklearn.config_context(enable_metadata_routing=True),
        pytest.warns(UnknownTaskWarning, match="scorers .* never"),
    ):
        cross_val_score(model, X, y, params={"task": task}, scoring="accuracy", cv=2)
    with pytest.warns(UnknownTaskWarning, match="not seen in training: task 17; the mean model of all tasks"):
        mixed = model.decision_function(X[:4], task=[0, 17, 17, 2])
    with pytest.warns(UnknownTaskWarning, match="no task was given"):
        mean = model.decision_function(X[:4])
    np.testing.assert_allclose(mixed[1:3], mean[1:3], rtol=1e-9)
    np.testing.assert_allclose(mixed[[0, 3]], model.decision_function(X[[0, 3]], task=[0, 2]), rtol=1e-9)
    by_task = np.mean([model.decision_function(X[:4], task=[b] * 4) for b in range(3)], axis=0)
    np.testing.assert_allclose(mean, by_task, rtol=1e-6)
    RHFedMTLClassifier().fit(X, y).predict(X)


@pytest.mark.parametrize(
    ("relationship", "kind"), in_turn(["mean", "none", "learned"], [RHFedMTLClassifier, RHFedMTLRegressor])
)
def test_rows_of_unseen_tasks_get_a_pooled_model(kind: Any, relationship: str, tmp_path: Path) -> None:
    """It predicts like ``algorithm="pooled"``, survives a file, and is better than the mean model."""
    rng = np.random.default_rng(0)
    task, means = np.repeat(np.arange(16), 30), 2.0 * rng.normal(size=(16, 3))
    X = rng.normal(size=(480, 3)) + means[task]
    y = X @ [1.0, -2.0, 0.5] + 3.0 * means[task, 0] + 0.3 * rng.normal(size=480)
    y = y if kind is RHFedMTLRegressor else y > 0.0
    trained = task < 12
    settings = {"lambda2": 0.01, "random_state": 0, "tol": 1e-6}
    model = kind(**settings, relationship=relationship).fit(X[trained], y[trained], task=task[trained])
    pooled = kind(**settings, algorithm="pooled").fit(X[trained], y[trained], task=task[trained])
    with pytest.warns(UnknownTaskWarning, match="the model of all training rows predicts these rows"):
        ours = (
            model.models_.scores(X[~trained], task[~trained]),
            model.score(X[~trained], y[~trained], task=task[~trained]),
        )
    np.testing.assert_allclose(ours[0], pooled.models_.scores(X[~trained]), atol=0.01)
    assert ours[1] > 0.8
    if kind is RHFedMTLRegressor:
        mean = RHFedMTLRegressor({"energy": 1e5}, **settings, relationship=relationship).fit(
            X[trained], y[trained], task=task[trained]
        )
        with pytest.warns(UnknownTaskWarning, match="the mean model of all tasks predicts these rows"):
            assert mean.score(X[~trained], y[~trained], task=task[~trained]) < ours[1] - 0.1
    model.save(tmp_path / "model.npz")
    np.testing.assert_array_equal(
        kind.load(tmp_path / "model.npz").models_.scores(X, task), model.models_.scores(X, task)
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", [RHFedMTLClassifier, RHFedMTLRegressor])
def test_a_constant_column_has_no_say(kind: Any, weighted: bool, dtype: Any) -> None:
    """Another value in a column that was constant in training changes no prediction."""
    rng = np.random.default_rng(0)
    constants = np.r_[np.full(6, 0.19), 1.7e9]
    X = np.c_[rng.normal(size=(3_000, 3)), np.tile(constants, (3_000, 1))].astype(dtype)
    y, task = X[:, 0] + 0.1 * rng.normal(size=3_000), np.arange(3_000) % 3
    weight = rng.integers(0, 4, 3_000) if weighted else None
    model = kind(lambda2=0.01, random_state=0)
    model.fit(X, y if kind is RHFedMTLRegressor else y > 0.0, task=task, sample_weight=weight)
    later = X.copy()
    later[:, 3:] += np.r_[np.full(6, -0.03), 86_400.0].astype(dtype)
    for name in ["predict", *(["decision_function"] if kind is RHFedMTLClassifier else [])]:
        np.testing.assert_array_equal(getattr(model, name)(later, task=task), getattr(model, name)(X, task=task))


def test_one_name_stands_for_the_task_of_all_rows(small: Federation) -> None:
    """In predict and its kin; fit wants a name for every row."""
    model = RHFedMTLClassifier(lambda2=0.01, random_state=0).fit(small.X, small.y, task=small.row_task)
    np.testing.assert_array_equal(model.predict(small.X, task=1), model.predict(small.X, task=np.ones(len(small.X))))
    assert "models" not in repr(model.certificate_)


def test_probabilities_are_those_of_logistic_regression(small: Federation) -> None:
    """One task, no scaling, no calibration: the optimum and probabilities of scikit-learn; other losses have none."""
    X, y, _, _ = rows_of(small)
    X = X.astype(np.float64)
    model = RHFedMTLClassifier(
        loss="logistic", scale="none", intercept=False, lambda1=1e-2, tol=1e-9, random_state=0, calibration="off"
    ).fit(X, y)
    other = LogisticRegression(C=1.0 / (1e-2 * len(X)), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(model.coef_[0], other.coef_, atol=1e-4)
    np.testing.assert_allclose(model.predict_proba(X), other.predict_proba(X), atol=1e-4)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(model.predict_proba(X)))
    hinge = RHFedMTLClassifier(calibration="off").fit(X, y)
    assert not hasattr(hinge, "predict_proba")
    with pytest.raises(AttributeError, match="predict_proba"):
        hinge.predict_proba(X)


def test_probabilities_of_many_classes_sum_to_one(watch: Federation) -> None:
    """Each class was learned against the rest; divided by their sum, the order of scores is kept."""
    X, y, task, terminal = rows_of(watch)
    model = RHFedMTLClassifier(lambda2=0.01, loss="logistic", tol=1e-2, random_state=0).fit(
        X, y, task=task, terminal=terminal
    )
    tX, ty, ttask = held_out(watch)
    odds = model.predict_proba(tX, ttask)
    np.testing.assert_allclose(odds.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.classes_[odds.argmax(axis=1)], model.predict(tX, ttask))
    assert -np.log(odds[np.arange(len(ty)), ty]).mean() < np.log(7) / 2, (
        "better than half of what knowing nothing costs"
    )


def test_the_regression_is_that_of_ridge() -> None:
    """One task, no scaling, no intercept: the optimum in closed form."""
    X, y = load_diabetes(return_X_y=True)
    model = RHFedMTLRegressor(scale="none", intercept=False, lambda1=1e-3, tol=1e-13, random_state=0).fit(X, y)
    other = Ridge(alpha=1e-3 * len(X), fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(model.coef_[0, 0], other.coef_, rtol=1e-4, atol=1e-2)


def test_labels_of_a_regression_may_lie_anywhere() -> None:
    """A million added to all labels is added to all predictions: the intercept carries it, whatever lambda1 is."""
    X, y = load_diabetes(return_X_y=True)
    near, far = (RHFedMTLRegressor(random_state=0).fit(X, y + shift) for shift in (0.0, 1e6))
    np.testing.assert_allclose(far.predict(X) - 1e6, near.predict(X), rtol=1e-5)
    assert near.score(X, y) > 0.5


def test_tasks_help_each_other_on_real_numbers() -> None:
    """Diabetes by age: coupled models do better on held-out rows than each age alone, which has few rows."""
    X, y = load_diabetes(return_X_y=True)
    age = np.searchsorted(np.quantile(X[:, 0], [0.2, 0.4, 0.6, 0.8]), X[:, 0])
    test = np.random.default_rng(0).random(len(X)) < 0.5
    scores = [
        RHFedMTLRegressor(relationship=name, lambda2=0.1, random_state=0)
        .fit(X[~test], y[~test], task=age[~test])
        .score(X[test], y[test], task=age[test])
        for name in ("mean", "none")
    ]
    assert scores[0] > scores[1] + 0.02


def repeated(counts: Any, *arrays: Any) -> list[Any]:
    """Rows as often as they count."""
    return [np.repeat(array, counts, axis=0) for array in arrays]


@pytest.mark.parametrize("kind", [RHFedMTLClassifier, RHFedMTLRegressor])
def test_a_weight_counts_as_so_many_rows(kind: Any, small: Federation) -> None:
    """Rows of weight k are k rows, of weight 0 none, task by task; without scaling, at the optimum.

    The levels of a regression's tasks are apart from this: how far they can be told from each other is a matter of
    how many rows there are, and weights are relative.
    """
    X, y, task, _ = rows_of(small)
    X = X.astype(np.float64)
    k = np.random.default_rng(0).integers(0, 4, len(X))
    settings = {"scale": "none", "lambda2": 1e-2, "tol": 1e-10, "random_state": 0}
    settings["intercept"] = kind is RHFedMTLClassifier
    weighted = kind(**settings).fit(X, y, task=task, sample_weight=k)
    again = kind(**settings).fit(*repeated(k, X, y), task=np.repeat(task, k))
    np.testing.assert_allclose(weighted.coef_, again.coef_, atol=2e-4)
    larger = kind(**settings).fit(X, y, task=task, sample_weight=1000.0 * k)
    np.testing.assert_allclose(larger.coef_, weighted.coef_, atol=1e-6)


def test_class_weights_are_sample_weights(small: Federation) -> None:
    """With "balanced" every class of a task weighs the same, on top of the weights of rows; a rare one is found."""
    X, y, task, _ = rows_of(small)
    rare = (y == 0) | (np.arange(len(y)) % 5 == 0)
    X, y, task = X[rare], y[rare], task[rare]
    plain = RHFedMTLClassifier(random_state=0, lambda1=0.1).fit(X, y, task=task)
    balanced = RHFedMTLClassifier(random_state=0, lambda1=0.1, class_weight="balanced").fit(X, y, task=task)
    weight = np.empty(len(y))
    for each in np.unique(task):
        weight[task == each] = compute_sample_weight("balanced", y[task == each])
    by_hand = RHFedMTLClassifier(random_state=0, lambda1=0.1).fit(X, y, task=task, sample_weight=weight)
    np.testing.assert_allclose(balanced.coef_, by_hand.coef_, atol=1e-9)
    assert np.mean(balanced.predict(X, task)[y == 1]) > np.mean(plain.predict(X, task)[y == 1])


def test_budgets_are_kept_and_read_in_every_form(small: Federation) -> None:
    """Text and tables say the same; nothing is overspent; what cannot pay a round is refused."""
    X, y, task, terminal = rows_of(small)
    for budget in ({"energy": 300}, "energy=300", ["energy=300"]):
        model = RHFedMTLClassifier(budget, random_state=0, tol=0.0).fit(X, y, task=task, terminal=terminal)
        assert 0 < model.ledger_.spent["energy"] <= 300
        assert model.plan_.stopped == "budget spent"
    priced = RHFedMTLClassifier("money=50", cost={"money": {"step": 0.01, "station": 1.0}}, random_state=0)
    assert priced.fit(X, y, task=task).ledger_.spent["money"] <= 50
    with pytest.raises(BudgetError, match="cannot pay one round"):
        RHFedMTLClassifier({"energy": 5}).fit(X, y, task=task)
    early = RHFedMTLClassifier({"energy": 1e9}, tol=0.1, random_state=0).fit(X, y, task=task)
    assert early.plan_.stopped == "relative gap of 0.1 reached"
    assert early.certificate_.relative_gap <= 0.1


def test_more_budget_goes_on_where_fit_ended(small: Federation) -> None:
    """With fixed H, half the budget and then the other half is the whole budget, to the bit, bill included."""
    X, y, task, terminal = rows_of(small)
    fixed = {"algorithm": "hfedmtl", "local_steps": 5, "random_state": 0, "tol": 0.0}
    whole = RHFedMTLClassifier("energy=660", **fixed).fit(X, y, task=task, terminal=terminal)
    half = RHFedMTLClassifier("energy=330", **fixed).fit(X, y, task=task, terminal=terminal)
    before = half.coef_.copy()
    assert half.resume({"energy": 330}) is half
    np.testing.assert_array_equal(half.coef_, whole.coef_)
    assert (half.coef_ != before).any()
    assert half.ledger_ == whole.ledger_
    assert half.n_iter_ == whole.n_iter_
    assert half.certificate_.gap == whole.certificate_.gap


@pytest.mark.parametrize("algorithm", ["rhfedmtl", "fedavg", "mocha", "cocoa"])
def test_every_kind_of_method_can_go_on(algorithm: str, small: Federation) -> None:
    """The bill grows by what was added and no more, and the objective gets better."""
    X, y, task, terminal = rows_of(small)
    model = RHFedMTLClassifier("energy=200", algorithm=algorithm, random_state=0, tol=0.0)
    primal = model.fit(X, y, task=task, terminal=terminal).certificate_.primal
    rounds, spent = model.n_iter_, model.ledger_.spent["energy"]
    model.resume("energy=400")
    assert model.n_iter_ > rounds
    assert spent < model.ledger_.spent["energy"] <= 600
    assert model.certificate_.primal < primal


def test_going_on_without_a_budget_takes_a_smaller_tolerance(small: Federation) -> None:
    """tol is read anew; with the old one there is nothing left to do."""
    X, y, task, _ = rows_of(small)
    model = RHFedMTLClassifier(lambda2=0.01, tol=1e-2, random_state=0).fit(X, y, task=task)
    rounds = model.n_iter_
    assert model.resume().n_iter_ == rounds
    assert model.set_params(tol=1e-5).resume().certificate_.relative_gap <= 1e-5
    assert model.n_iter_ > rounds


def test_copies_leave_the_rows_behind(small: Federation) -> None:
    """A pickled or cloned model predicts, is small, and says why it cannot go on; a warm start can."""
    X, y, task, _ = rows_of(small)
    model = RHFedMTLClassifier("energy=100", random_state=0, tol=0.0, warm_start=True).fit(X, y, task=task)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(X, task), model.predict(X, task))
    with pytest.raises(ConfigError, match="training rows are gone"):
        copy.resume("energy=100")
    assert copy.fit(X, y, task=task).certificate_.primal < model.certificate_.primal
    assert not hasattr(clone(model), "coef_")


@pytest.mark.parametrize("kind", [RHFedMTLClassifier, partial(RHFedMTLRegressor, lambda2=0.01)])
def test_a_warm_start_begins_at_the_end(kind: Any, small: Federation) -> None:
    """The same rows are solved at once; changed and added ones take less than from nothing, and end as well.

    With weights that are chosen anew by each fit, and with given ones.
    """
    X, y, task, _ = rows_of(small)
    rng = np.random.default_rng(0)
    model = kind(warm_start=True, random_state=0, tol=1e-6).fit(X, y, task=task)
    first = model.n_iter_
    assert model.fit(X, y, task=task).n_iter_ <= max(3, first // 4)
    changed = np.where(rng.random(len(y)) < 0.02, 1 - y, y)
    cold = kind(random_state=0, tol=1e-6).fit(X, changed, task=task)
    assert model.fit(X, changed, task=task).certificate_.primal == pytest.approx(cold.certificate_.primal, rel=1e-5)
    model.set_params(lambda2=0.1).fit(np.vstack([X, X[:6]]), np.append(y, y[:6]), task=np.append(task, task[:6]))
    assert model.certificate_.relative_gap <= 1e-6
    model.fit(X[:40], y[:40], task=task[:40], sample_weight=rng.uniform(0, 2, 40))
    assert model.certificate_.relative_gap <= 1e-6


def test_a_warm_start_under_a_budget_keeps_its_weights(small: Federation) -> None:
    """It goes on from the duals, and nothing is chosen, charged or said to have been spent anew."""
    X, y, task, _ = rows_of(small)
    model = RHFedMTLClassifier("energy=200", lambda2=0.07, warm_start=True, random_state=0).fit(X, y, task=task)
    before = model.certificate_.primal
    model.set_params(lambda2="auto").fit(X, y, task=task)
    assert model.relationship_.lambda2 == 0.07
    assert (model.regularisation_.chosen, model.regularisation_.spent) == ({"lambda2": 0.07}, {})
    assert model.history_[0].primal <= before * (1.0 + 1e-9)


def test_a_warm_start_under_another_loss_starts_anew(small: Federation) -> None:
    """Dual variables of one loss mean nothing to another; methods without any are refused."""
    X, y, task, _ = rows_of(small)
    model = RHFedMTLClassifier(lambda2=0.01, warm_start=True, random_state=0).fit(X, y, task=task)
    rounds = model.set_params(loss="logistic").fit(X, y, task=task).n_iter_
    assert rounds == RHFedMTLClassifier(lambda2=0.01, loss="logistic", random_state=0).fit(X, y, task=task).n_iter_
    with pytest.raises(ConfigError, match="no dual variables to start from"):
        RHFedMTLClassifier(algorithm="fedavg", warm_start=True).fit(X, y)


def test_the_coupling_can_be_chosen_on_training_rows(small: Federation) -> None:
    """lambda2="auto" tries several at the given lambda1, lambda1="auto" tries both; the record says what was tried."""
    X, y, task, terminal = rows_of(small)
    model = RHFedMTLClassifier(lambda2="auto", random_state=0).fit(X, y, task=task, terminal=terminal)
    choice = model.regularisation_
    assert {trial.lambda1 for trial in choice.tried} == {1e-3}
    assert model.relationship_.lambda2 == choice.chosen["lambda2"] in {trial.lambda2 for trial in choice.tried}
    left_open = RHFedMTLClassifier(random_state=0).fit(X, y, task=task, terminal=terminal)
    assert left_open.models_.provenance["chosen"] == choice.chosen, "without a budget it is chosen unless it is given"
    kept = RHFedMTLClassifier("energy=200").fit(X, y, task=task, terminal=terminal).regularisation_
    assert (kept.chosen, kept.tried) == ({"lambda2": 0.01}, [])
    assert "fewer than 100 rows can be held out" in kept.text()
    both = RHFedMTLClassifier(lambda1="auto", lambda2="auto", random_state=0).fit(X, y, task=task, terminal=terminal)
    assert len({trial.lambda1 for trial in both.regularisation_.tried}) > 3
    assert (both.lambda1_, both.lambda2_) == tuple(both.regularisation_.chosen.values())
    with pytest.raises(ConfigError, match="needs lambda2='auto'"):
        RHFedMTLClassifier(lambda1="auto").fit(X, y)
    with pytest.raises(ConfigError, match="has no lambda2 to choose"):
        RHFedMTLClassifier(algorithm="fedavg", lambda2="auto").fit(X, y)


@pytest.mark.parametrize("name", ["task", "terminal", "groups", "sample_weight"])
def test_a_column_with_another_index_is_refused(small: Federation, name: str) -> None:
    """Pandas pairs rows by index, so a shuffled column would go to the wrong rows; arrays go by position."""
    X, y, task, _ = rows_of(small)
    frame, columns = pd.DataFrame(X).add_prefix("x"), {"task": pd.Series(task), name: pd.Series(task)}
    columns |= {"sample_weight": pd.Series(np.ones(len(y)))} if name == "sample_weight" else {}
    model = RHFedMTLClassifier("energy=200", random_state=0).fit(frame, y, **columns)
    coefficients = model.coef_
    shuffled = columns | {name: columns[name].sample(frac=1.0, random_state=1)}
    with pytest.raises(DataError, match=f"{name} has another index than X: in row .*{name}.loc"):
        model.fit(frame, y, **shuffled)
    restored = columns | {name: shuffled[name].loc[frame.index]}
    assert np.array_equal(model.fit(frame, y, **restored).coef_, coefficients)
    assert np.array_equal(model.fit(frame, y, **columns | {name: columns[name].to_numpy()}).coef_, coefficients)
    assert model.fit(X, y, **shuffled) is model, "an array has no index to compare"


def test_predict_refuses_a_task_with_another_index(small: Federation) -> None:
    """A filter keeps the old index, and `reset_index` on the tasks alone pairs the wrong rows."""
    X, y, task, _ = rows_of(small)
    frame, names = pd.DataFrame(X).add_prefix("x"), pd.Series(task)
    model = RHFedMTLClassifier("energy=200", random_state=0).fit(frame, y, task=names)
    part = frame[5:25]
    assert len(model.predict(part, task=names[5:25])) == 20
    with pytest.raises(DataError, match="in row 0 it has 0, and X has 5"):
        model.predict(part, task=names[5:25].reset_index(drop=True))
    with pytest.raises(DataError, match="task has another index"):
        model.score(part, y[5:25], task=names[:20])


@pytest.mark.parametrize(
    ("parameters", "lambda2"),
    [
        ({}, "chosen"),
        ({"lambda2": 0.07}, 0.07),
        ({"budget": "energy=200"}, 0.01),
        ({"budget": "energy=200", "lambda2": "auto"}, 0.01),
        ({"relationship": "none"}, None),
        ({"algorithm": "fedavg", "budget": "energy=200"}, None),
        ({"algorithm": "fedu", "budget": "energy=200", "lambda2": 0.05}, 0.05),
    ],
)
def test_a_fit_states_its_weights_in_one_form(small: Federation, parameters: dict[str, Any], lambda2: Any) -> None:
    """``lambda2_`` is the λ2 of the fit, and ``regularisation_`` is always a `SelectionRecord`."""
    X, y, task, terminal = rows_of(small)
    model = RHFedMTLClassifier(**parameters, random_state=0).fit(X, y, task=task, terminal=terminal)
    assert type(model.regularisation_) is SelectionRecord
    assert model.lambda1_ == 1e-3
    if lambda2 == "chosen":
        assert model.lambda2_ == model.regularisation_.chosen["lambda2"]
    else:
        assert model.lambda2_ == lambda2
        assert model.regularisation_.tried == []


def test_under_a_budget_the_choice_of_weights_is_part_of_the_bill() -> None:
    """The rounds in which rows are held out are the first of the run, on its ledger."""
    federation = Request("synthetic", tasks=8, terminals=3, samples_per_task=80, test_fraction=0.2).federation(0)
    X, y, task, terminal = rows_of(federation)
    model = RHFedMTLClassifier("energy=6000", lambda1="auto", lambda2="auto", random_state=0)
    record = model.fit(X, y, task=task, terminal=terminal).regularisation_
    assert record.tried
    assert 0.0 < record.spent["energy"] < model.ledger_.spent["energy"] <= 6000.0
    assert record.tried[-1].rounds < model.n_iter_
    assert (model.relationship_.lambda1, model.relationship_.lambda2) == tuple(record.chosen.values())


def best_loss(record: SelectionRecord) -> float:
    """The lowest loss on held-out rows."""
    return min(trial.loss for trial in record.tried)


@pytest.mark.slow
def test_groups_are_held_out_together_when_the_coupling_is_chosen() -> None:
    """Random folds see too much of windows that overlap: with groups, tasks are coupled more strongly."""
    try:
        federation = Request("watch", grouped=True, tasks=4).federation(0)
    except DataError as error:
        pytest.skip(f"the watch data is not to be had: {error}")
    X, y, task, terminal = rows_of(federation)
    model = RHFedMTLClassifier(lambda2="auto", random_state=0, tol=1e-2)
    blind = model.fit(X, y, task=task, terminal=terminal).regularisation_
    grouped = model.fit(X, y, task=task, terminal=terminal, groups=federation.group).regularisation_
    assert grouped.chosen["lambda2"] > blind.chosen["lambda2"]
    assert best_loss(grouped) > best_loss(blind), "a loss on recordings that were not seen is larger"
    tX, ty, ttask = held_out(federation)
    assert model.score(tX, ty, task=ttask) > 0.6


@pytest.mark.parametrize("kind", [RHFedMTLClassifier, RHFedMTLRegressor])
def test_a_saved_estimator_comes_back(kind: Any, small: Federation, tmp_path: Path) -> None:
    """Parameters, labels, tasks, names and predictions are the same; the rows are not in the file."""
    X, y, task, _ = rows_of(small)
    table = pd.DataFrame(X, columns=[f"f{j}" for j in range(X.shape[1])])
    model = kind({"energy": 300}, random_state=3, lambda2=0.05).fit(table, y, task=task + 100)
    model.save(tmp_path / "model.npz")
    again = kind.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.predict(table, task + 100), model.predict(table, task + 100))
    assert again.get_params() == model.get_params()
    assert again.tasks_.tolist() == [100, 101, 102]
    assert again.feature_names_in_.tolist() == list(table.columns)
    assert again.certificate_.gap == model.certificate_.gap
    assert again.models_.ledger["spent"] == model.ledger_.spent
    np.testing.assert_array_equal(again.coef_, model.coef_)
    with pytest.raises(ConfigError, match="training rows are gone"):
        again.resume("energy=1")
    other = RHFedMTLRegressor if kind is RHFedMTLClassifier else RHFedMTLClassifier
    with pytest.raises(DataError, match="cannot use"):
        other.load(tmp_path / "model.npz")
    assert (tmp_path / "model.npz").stat().st_size < 20_000


def test_a_saved_logistic_model_still_has_probabilities(small: Federation, tmp_path: Path) -> None:
    """The loss is part of the file."""
    X, y, task, _ = rows_of(small)
    model = RHFedMTLClassifier(lambda2=0.01, loss="logistic").fit(X, np.array(["n", "y"])[y], task=task)
    model.save(tmp_path / "model.npz")
    again = RHFedMTLClassifier.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.predict_proba(X, task), model.predict_proba(X, task))
    assert again.classes_.tolist() == ["n", "y"]


def test_the_relationship_is_there_to_look_at(watch: Federation) -> None:
    """With a learned one, who helps whom is a matrix over tasks, with ones on its diagonal."""
    X, y, task, terminal = rows_of(watch)
    model = RHFedMTLClassifier("energy=2000", relationship="learned", random_state=0).fit(
        X, y, task=task, terminal=terminal
    )
    affinity = model.relationship_.affinity(10)
    np.testing.assert_allclose(np.diag(affinity), 1.0)
    assert affinity[~np.eye(10, dtype=bool)].std() > 0.0
    assert len(model.history_) == model.n_iter_


def test_terminals_are_shared_out_evenly(small: Federation) -> None:
    """n_terminals splits each task evenly where no terminals are named; more terminals than rows are not made."""
    X, y, task, _ = rows_of(small)
    model = RHFedMTLClassifier(lambda2=0.01, n_terminals=4, random_state=0, cost="energy=1,0").fit(X, y, task=task)
    assert len(set(model.ledger_.log.columns()["terminal"])) == 12
    few = RHFedMTLClassifier(lambda2=0.01, n_terminals=50, random_state=0).fit(X[:9], y[:9])
    assert few.n_iter_ > 0
    with pytest.raises(ConfigError, match="n_terminals must be at least 1"):
        RHFedMTLClassifier(n_terminals=0).fit(X, y)


def test_seeds_make_runs_repeatable(small: Federation) -> None:
    """The same number gives the same model, and threads change nothing; other numbers another order of rows."""
    X, y, task, _ = rows_of(small)
    one, two, three = (
        RHFedMTLClassifier("energy=100", n_terminals=2, random_state=seed, n_jobs=jobs).fit(X, y, task=task).coef_
        for seed, jobs in ((5, None), (5, 2), (6, None))
    )
    np.testing.assert_array_equal(one, two)
    assert (one != three).any()
    generator = RHFedMTLClassifier("energy=100", random_state=np.random.RandomState(0)).fit(X, y, task=task)
    assert generator.n_iter_ > 0


def test_too_few_rounds_are_said_aloud(small: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    """max_rounds ends it with a warning; verbose prints the rounds."""
    X, y, task, _ = rows_of(small)
    with pytest.warns(ConvergenceWarning, match="after 2 rounds, above tol"):
        RHFedMTLClassifier(max_rounds=2, tol=1e-9, verbose=1).fit(X, y, task=task)
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == ["round 1", "round 2"]


def test_the_optimum_is_not_said_to_be_above_a_tolerance_of_zero(recwarn: pytest.WarningsRecorder) -> None:
    """All rounds are done, as asked, and what is left of the gap is rounding."""
    X, y = np.repeat([[1.0], [-1.0]], 8, axis=0), np.repeat([1, 0], 8)
    model = RHFedMTLClassifier(lambda2=0.01, tol=0, max_rounds=60, random_state=0).fit(X, y, task=np.arange(16) % 2)
    assert model.n_iter_ == 60
    assert model.certificate_.words == "the best possible, up to rounding"
    assert not recwarn.list


@pytest.mark.parametrize(
    ("settings", "extra", "says"),
    [
        ({}, {"task": ["a", "b"]}, "name the task of every row"),
        ({}, {"task": [None] * 60}, "row 0 has no task"),
        ({}, {"task": pd.Series([1, "a"] * 30)}, "task mixes types"),
        ({}, {"terminal": "phone"}, "name the terminal of every row"),
        ({}, {"sample_weight": -np.ones(60)}, "weights are finite and not negative"),
        (
            {},
            {"task": np.arange(60) // 30, "sample_weight": np.arange(60) // 30},
            "all rows of task '0' have weight zero",
        ),
        ({"algorithm": "fedavgg"}, {}, "did you mean fedavg"),
        ({"loss": "logistics"}, {}, "did you mean logistic"),
        ({"lambda2": "some"}, {}, "lambda2='some'"),
        ({"options": {"merger": "add"}}, {}, "did you mean merge"),
        ({"options": {"lambda1": 0.1}}, {}, "lambda1 is a parameter of the estimator"),
        ({"options": {"mu": 0.1}}, {}, "mu has no effect on rhfedmtl"),
        ({"budget": 2000}, {}, "energy=2000"),
        ({"budget": np.int64(2000)}, {}, "energy=2000"),
        ({"budget": [2000]}, {}, "names no resource type"),
        ({}, {"task": "site"}, "task is 'site' for 60 rows"),
        ({"options": {"merge": "add all"}}, {}, "unknown merge"),
        ({"policy": "measured", "local_steps": 3}, {}, "decides H, K and M itself"),
        ({"scale": "log"}, {}, "unknown scaling 'log'"),
        ({"tol": -1.0}, {}, "tol must be"),
        ({"n_terminals": 2.5}, {}, "a whole number, got 2.5"),
        ({"max_rounds": 1.5}, {}, "max_rounds must be at least 1 and a whole number, got 1.5"),
        ({"max_rounds": "9"}, {}, "max_rounds must be at least 1 and a whole number, got '9'"),
        ({"intercept": "no"}, {}, "intercept must be True or False, got 'no'"),
        ({"warm_start": "no"}, {}, "warm_start must be True or False, got 'no'"),
        ({"random_state": -1}, {}, "random_state must be a whole number from 0 to"),
        ({"random_state": 10**20}, {}, "random_state must be a whole number from 0 to"),
        ({}, {"task": pd.date_range("2024", periods=60)}, "task holds"),
        ({}, {"task": np.arange(60).astype("datetime64[ns]")}, "task holds the date 1970-01-01"),
        ({"algorithm": "pooled", "budget": "energy=9"}, {}, "baseline without a budget"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], extra: dict[str, Any], says: str) -> None:
    """Wrong parameters and columns are refused in fit with what is wrong and what would be right."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    with pytest.raises(ValueError, match=says):
        RHFedMTLClassifier(**settings).fit(X, (X[:, 0] > 0).astype(int), **extra)


def test_names_beside_the_rows_go_by_keyword() -> None:
    """Weights in third place, as elsewhere, would otherwise be taken for tasks."""
    X, y = np.arange(8.0)[:, None], np.arange(8) % 2
    for call in (RHFedMTLClassifier().fit, RHFedMTLRegressor().fit, RHFedMTLClassifier().score):
        with pytest.raises(TypeError, match="positional"):
            call(X, y, np.ones(8))


def test_frames_with_nullable_types() -> None:
    """Gaps of pandas' own types are gaps."""
    n = 40
    frame = pd.DataFrame(
        {
            "i": pd.array([None if i % 8 == 0 else i for i in range(n)], dtype="Int64"),
            "b": pd.array([None if i % 5 == 0 else i % 2 == 0 for i in range(n)], dtype="boolean"),
            "s": pd.array([None if i % 7 == 0 else "uv"[i % 2] for i in range(n)], dtype="string"),
        }
    )
    model = RHFedMTLClassifier(lambda2=0.01, random_state=0).fit(frame, np.arange(n) % 2)
    assert model.models_.feature_names == ("i", "b", "i missing", "b missing", "s missing", "s=u", "s=v")
    assert model.models_.preparation is not None
    np.testing.assert_allclose(model.models_.preparation.fill[:2], [frame["i"].mean(), frame["b"].mean()])


@pytest.mark.parametrize("beside", [1.0, "u", None])
def test_a_gap_in_a_column_that_had_none_is_filled_and_said_whatever_the_others_hold(beside: Any) -> None:
    """By the mean of the training rows; it was refused unless another column had gaps or texts."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(3.0, 1.0, 40), "b": rng.normal(size=40), "c": [0.0] * 39 + [beside]})
    model = RHFedMTLClassifier(lambda2=0.01, random_state=0).fit(frame, frame["a"] > 3.0)
    new = frame[:1].assign(a=frame["a"].mean())
    with pytest.warns(UserWarning, match="missing values in 'a', but not in training"):
        found = model.decision_function(new.assign(a=np.nan))
    np.testing.assert_allclose(found, model.decision_function(new), atol=1e-12)


def test_a_text_of_truth_values_is_a_number_in_frames_too() -> None:
    """A frame whose only texts say True or False was refused by what it was learned from."""
    frame = pd.DataFrame({"a": np.arange(8.0), "on": ["True", "False"] * 4})
    model = RHFedMTLClassifier(lambda2=0.01, random_state=0).fit(frame, np.arange(8) % 2)
    assert model.models_.feature_names == ("a", "on")
    assert model.score(frame, np.arange(8) % 2) == 1.0


def test_models_find_the_columns_of_a_frame_by_name(small: Federation) -> None:
    """They went by position: columns in another order gave other answers, without a word."""
    frame = pd.DataFrame(np.asarray(small.X, dtype=np.float64)).add_prefix("f")
    models = RHFedMTLClassifier(lambda2=0.01, random_state=0).fit(frame, small.y).models_
    np.testing.assert_array_equal(models.scores(frame[frame.columns[::-1]]), models.scores(frame))


@pytest.mark.parametrize("estimator", [RHFedMTLClassifier, RHFedMTLRegressor])
@pytest.mark.parametrize("kind", [list, lambda y: pd.Series(y, dtype=object)])
def test_a_row_without_a_label_is_named(estimator: Any, kind: Any) -> None:
    """By its place among the rows as they were given."""
    y = ["0", "1", "0", None, "1"] if estimator is RHFedMTLClassifier else [0.0, 1.0, 2.5, None, 3.0]
    with pytest.raises(DataError, match="row 3 has no label"):
        estimator(lambda2=0.01).fit(np.eye(5), kind(y), task=list("babab"))


@pytest.mark.parametrize("gap", [np.nan, None, pd.NA, pd.NaT])
@pytest.mark.parametrize("what", ["label", "task", "terminal", "groups"])
def test_a_gap_among_texts_in_a_list_is_no_name(what: str, gap: Any) -> None:
    """NumPy spells NaN out beside texts: there was a task, a class, a group or a terminal called nan."""
    X = np.random.default_rng(0).normal(size=(8, 2))
    rows: dict[str, Any] = {"label": ["u", "v"] * 4, "task": ["a"] * 8, "terminal": ["p"] * 8, "groups": ["g"] * 8}
    model = RHFedMTLClassifier(lambda2=0.01).fit(X, rows["label"], task=rows["task"])
    rows[what] = [*rows[what][:2], gap, *rows[what][3:]]
    with pytest.raises(DataError, match=f"row 2 has no {what}"):
        RHFedMTLClassifier(lambda2=0.01).fit(X, rows.pop("label"), **rows)
    with pytest.raises(DataError, match="row 1 has no task"):
        model.predict(X[:2], task=["a", gap])


def test_rows_beyond_all_bounds_are_refused_in_prediction_too(small: Federation) -> None:
    """A row whose norm overflows, or without a number, would get the intercept for its score."""
    model = RHFedMTLClassifier(lambda2=0.01, random_state=0).fit(small.X, small.y)
    row = np.array(small.X[:1], dtype=np.float64)
    for strange in (1e200, np.nan):
        row[0, 0] = strange
        with pytest.raises(ValueError, match=str(strange) if np.isnan(strange) else r"beyond 1e\+100"):
            model.models_.predict(row)


@pytest.mark.parametrize(
    ("settings", "cell", "says"),
    [
        ({}, np.inf, r"repair it \(numbers go to 1e\+100\), or take it for a gap \(NaN in a frame\)"),
        ({}, "oops", r"take it for a gap \(NaN in a frame\), or leave the column out$"),
        ({"budget": {"watts": 5}}, 1.0, "set it, as in cost watts=0.1,10"),
        ({"privacy": "epsilon=1", "scale": "standard"}, 1.0, "take scale unit"),
    ],
)
def test_errors_name_what_python_has(settings: dict[str, Any], cell: Any, says: str) -> None:
    """Not the options of a command line that nobody called; in prediction, and from the models themselves, too."""
    frame = pd.DataFrame({"a": np.arange(40.0), "b": np.arange(40) % 3})
    changed = frame.astype({"a": object}).assign(a=[cell, *frame["a"][1:]])
    with pytest.raises(ValueError, match=says) as caught:
        RHFedMTLClassifier(**settings).fit(changed, np.arange(40) % 2)
    assert "--" not in str(caught.value)
    if cell == np.inf:
        model = RHFedMTLClassifier(lambda2=0.01).fit(frame, np.arange(40) % 2)
        for predict in (model.predict, model.models_.predict):
            with pytest.raises(DataError, match=says):
                predict(changed)


def test_a_frame_without_rows_is_said_to_have_none() -> None:
    """In the words of scikit-learn; with texts it was said to be no frame."""
    frame = pd.DataFrame({"a": np.arange(8.0), "c": ["u", "v"] * 4})
    model = RHFedMTLClassifier(lambda2=0.01).fit(frame, np.arange(8) % 2)
    with pytest.raises(ValueError, match=r"Found array with 0 sample\(s\) \(shape=\(0, 2\)\)"):
        model.predict(frame[:0])


def test_sparse_rows_are_refused_clearly() -> None:
    """With what to do instead."""
    X = sparse.random(30, 4, density=0.5, format="csr", random_state=0)
    with pytest.raises(TypeError, match="toarray"):
        RHFedMTLClassifier().fit(X, np.arange(30) % 2)
    for fill in (0.0, np.nan):
        frame = pd.DataFrame(X.toarray()).astype(pd.SparseDtype(float, fill))
        with pytest.raises(TypeError, match="to_dense"):
            RHFedMTLClassifier().fit(frame, np.arange(30) % 2)


@given(data=st.data())
def test_every_row_lands_with_its_task_and_terminal(data: st.DataObject) -> None:
    """Whatever the order of rows: each is in one place, under its task, on a terminal of rows of one name only."""
    n = data.draw(st.integers(1, 40))
    task = np.array(data.draw(st.lists(st.sampled_from("abc"), min_size=n, max_size=n)))
    named = data.draw(st.booleans())
    terminal = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))) if named else None
    weight = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=n, max_size=n)))
    weight = np.where(np.isin(task, task[weight > 0]), weight, 1.0)
    y = np.arange(n) % 2
    rows = TrainingRows(np.arange(n, dtype=np.float64)[:, None], y, np.array([0, 1]), task, terminal, weight)
    federation, places = gather(rows, n_terminals=2, seed=0)
    assert sorted(places.order) == np.flatnonzero(weight > 0).tolist()
    np.testing.assert_array_equal(federation.X[:, 0], places.order)
    np.testing.assert_array_equal(np.array(federation.task_names)[federation.row_task], task[places.order])
    on = np.repeat(np.arange(federation.n_terminals), np.diff(federation.terminal_offsets))
    assert np.all(np.diff(federation.terminal_offsets) > 0)
    if terminal is not None:
        pairs = {(t, int(terminal[row]), task[row]) for t, row in zip(on.tolist(), places.order.tolist(), strict=True)}
        assert len(pairs) == federation.n_terminals
    sums = np.bincount(federation.row_task, places.weight)
    np.testing.assert_allclose(sums, np.bincount(federation.row_task))
    kept = places.duals(SmoothedHinge(), (places.targets * places.weight[:, None]))
    again = places.start(SmoothedHinge(), kept)
    assert again is not None
    np.testing.assert_allclose(again, places.targets * places.weight[:, None])
    assert places.start(Logistic(), kept) is None


def test_duals_of_changed_labels_start_at_zero() -> None:
    """A dual variable belongs to its label; numbers of a regression have no box, so theirs stay."""
    X, task, y = np.zeros((4, 1)), np.zeros(4, dtype=int), np.array([0, 1, 0, 1])
    classes = np.array(["n", "y"])
    _, old = gather(TrainingRows(X, y, classes, task), n_terminals=1, seed=0)
    _, new = gather(TrainingRows(X, np.array([0, 0, 0, 1]), classes, task), n_terminals=1, seed=0)
    known = old.duals(SmoothedHinge(), old.targets * 0.5)
    start = new.start(SmoothedHinge(), known)
    assert start is not None
    assert start[:, 0].tolist() == [-0.5, 0.0, -0.5, 0.5]
    _, numbers = gather(TrainingRows(X, y * 2.0, np.array([]), task), n_terminals=1, seed=0)
    kept = numbers.start(Squared(), numbers.duals(Squared(), np.full((4, 1), 7.0))._replace(targets=np.zeros((4, 1))))
    assert kept is not None
    assert kept[:, 0].tolist() == [7.0] * 4


def test_a_bound_on_privacy_may_be_a_table_and_prices_and_options_must_be_one() -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    rows = {"X": X, "y": (X[:, 0] > 0).astype(int), "task": np.repeat([0, 1, 2], 20)}
    private = RHFedMTLClassifier(budget="energy=1e4", privacy={"epsilon": 1, "delta": 1e-6}).fit(**rows)
    assert private.result_.private.epsilon == 1.0
    for wrong in ({"cost": 5}, {"options": 5}):
        with pytest.raises(ConfigError, match="as in"):
            RHFedMTLClassifier(**wrong).fit(**rows)


@pytest.mark.parametrize("loss", ["smoothed-hinge", "logistic"])
def test_a_threshold_of_one_feature_is_learned(loss: str) -> None:
    """Wherever it lies: rows of norm 1 would tell on which side of the mean a row is, and no more."""
    rng = np.random.default_rng(0)
    X, task = rng.normal(50.0, 10.0, (400, 1)), np.arange(400) % 4
    y = (X[:, 0] > 56.0).astype(int)
    model = RHFedMTLClassifier(loss=loss, random_state=0).fit(X[:200], y[:200], task=task[:200])
    assert model.score(X[200:], y[200:], task=task[200:]) > 0.95
