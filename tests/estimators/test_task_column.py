"""The column of tasks in a frame: the tools of scikit-learn work per task, without metadata routing."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rhfedmtl import RHFedMTLClassifier, RHFedMTLRegressor, TaskModels
from rhfedmtl.errors import DataError
from rhfedmtl.models.predictions import NewRows

NAMES = ["age", "dose", "noise"]


def frame_of(seed: int = 0, n: int = 240) -> tuple[pd.DataFrame, Any]:
    """Four sites whose labels depend on the site as much as on the row, with the site as the second column."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(loc=[50.0, 3.0, 0.0], scale=[10.0, 0.5, 1.0], size=(n, 3)), columns=NAMES)
    site = np.array(["a", "b", "c", "d"])[rng.integers(0, 4, n)]
    X.insert(1, "site", site)
    sign = np.where(np.isin(site, ["a", "b"]), 1.0, -1.0)
    return X, np.where((X["age"] - 50.0) / 10.0 * sign + 0.2 * rng.normal(size=n) > 0, "yes", "no")


def model_of(**more: Any) -> RHFedMTLClassifier:
    return RHFedMTLClassifier(random_state=0, lambda2=1e-4, task="site", **more)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_the_column_is_the_task_argument(kind: str) -> None:
    """The same models and predictions as with the task as an array; the column is no feature."""
    X, y = frame_of()
    site, rest = X["site"].to_numpy(), X.drop(columns="site")
    frame = X if kind == "pandas" else pl.DataFrame(X.to_dict("list"))
    model = model_of().fit(frame, y)
    other = RHFedMTLClassifier(random_state=0, lambda2=1e-4).fit(rest, y, task=site)
    np.testing.assert_array_equal(model.coef_, other.coef_)
    np.testing.assert_array_equal(model.decision_function(frame), other.decision_function(rest, task=site))
    assert model.feature_names_in_.tolist() == NAMES
    assert model.tasks_.tolist() == ["a", "b", "c", "d"]
    assert model.score(frame, y) == other.score(rest, y, task=site) > 0.9


def test_fit_takes_the_name_of_the_column_too() -> None:
    """fit(task="site") is the parameter task="site"; a task as an argument of predict comes first."""
    X, y = frame_of()
    model = RHFedMTLClassifier(random_state=0, lambda2=1e-4).fit(X, y, task="site")
    np.testing.assert_array_equal(model.coef_, model_of().fit(X, y).coef_)
    np.testing.assert_array_equal(model.predict(X), model_of().fit(X, y).predict(X))
    rest = X.drop(columns="site")
    np.testing.assert_array_equal(model.predict(X, task="c"), model.predict(rest, task="c"))
    swapped = model_of().fit(X, y, task=X["site"].map({"a": "A", "b": "B", "c": "C", "d": "D"}))
    assert swapped.tasks_.tolist() == ["A", "B", "C", "D"]
    assert swapped.feature_names_in_.tolist() == NAMES


def test_tools_of_scikit_learn_work_per_task() -> None:
    """Scorers by name, cross-validation, searches and pipelines: sites at odds need the model of their site."""
    X, y = frame_of()
    model, folds = model_of(), StratifiedKFold(3)
    np.testing.assert_array_less(0.9, cross_val_score(model, X, y, cv=folds, scoring="balanced_accuracy"))
    predicted = cross_val_predict(model, X, y, cv=folds)
    for train, test in folds.split(X, y):
        part = clone(model).fit(X.iloc[train], y[train])
        np.testing.assert_array_equal(predicted[test], part.predict(X.iloc[test]))
    search = GridSearchCV(model, {"lambda2": [1e-4, 10.0]}, cv=folds, scoring="accuracy").fit(X, y)
    assert search.best_params_ == {"lambda2": 1e-4}
    np.testing.assert_array_equal(search.predict(X), search.best_estimator_.predict(X))
    scaler = make_column_transformer(
        (StandardScaler(), NAMES), remainder="passthrough", verbose_feature_names_out=False
    )
    steps = make_pipeline(scaler.set_output(transform="pandas"), model)
    np.testing.assert_array_less(0.9, cross_val_score(steps, X, y, cv=folds, scoring="accuracy"))


def test_calibration_and_permutation_importance_work_per_task() -> None:
    """Scores of the sites are calibrated, and the column of tasks and the feature behind the labels matter."""
    X, y = frame_of()
    calibrated = CalibratedClassifierCV(model_of(), cv=3).fit(X, y)
    assert np.mean(calibrated.classes_[calibrated.predict_proba(X).argmax(axis=1)] == y) > 0.9
    result = permutation_importance(model_of().fit(X, y), X, y, scoring="accuracy", n_repeats=3, random_state=0)
    importance = dict(zip(X.columns, result.importances_mean, strict=True))
    assert min(importance["age"], importance["site"]) > 0.2
    assert max(importance["dose"], importance["noise"]) < 0.05


def test_regressions_find_the_column() -> None:
    """The regressor has the parameter as well, and default scoring is per task."""
    X, _ = frame_of()
    y = X["age"] * np.where(X["site"].isin(["a", "b"]), 1.0, -1.0)
    model = RHFedMTLRegressor(random_state=0, lambda2=1e-6, lambda1=1e-5, task="site")
    np.testing.assert_array_less(0.95, cross_val_score(model, X, y, cv=KFold(3)))


def test_numbers_of_tasks_and_gaps_in_other_columns() -> None:
    """A column of whole numbers names tasks; a frame with gaps and texts is prepared without it."""
    X, y = frame_of()
    X["site"] = X["site"].map({"a": 7, "b": 8, "c": 9, "d": 10})
    X.loc[3, "dose"] = None
    X["ward"] = np.where(X["noise"] > 0, "north", "south")
    model = model_of().fit(X, y)
    assert model.tasks_.tolist() == [7, 8, 9, 10]
    assert model.models_.feature_names == ("age", "dose", "noise", "dose missing", "ward=north", "ward=south")
    assert model.score(X, y) > 0.9


def test_a_missing_column_is_named() -> None:
    """Errors name the column that is missing and the columns that are there."""
    X, y = frame_of()
    with pytest.raises(DataError, match=r"X has no column 'Site' that names the tasks: it has 'age', 'site', .*site"):
        RHFedMTLClassifier(task="Site").fit(X, y)
    model = model_of().fit(X, y)
    with pytest.raises(DataError, match=r"no column 'site' that names the tasks: it has 'age', 'dose', 'noise'"):
        model.predict(X.drop(columns="site"))
    with pytest.raises(DataError, match=r"yet now missing:\n- dose\nX has the columns 'age', 'noise'"):
        model.predict(X.drop(columns="dose"))
    with pytest.raises(DataError, match=r"task='site' names a column of a frame, but X is a ndarray"):
        model.predict(X[NAMES].to_numpy())
    with pytest.raises(DataError, match=r"task='site' names a column of a frame, but X is a ndarray"):
        model_of().fit(X[NAMES].to_numpy(), y)
    gappy = X.assign(dose=X["dose"].mask(X.index == 0))
    with pytest.raises(DataError, match=r"lacks 1 of the 3 columns .*: 'dose'; it has 'age', 'noise'"):
        model_of().fit(gappy, y).predict(X.drop(columns="dose"))
    empty = X.assign(site=X["site"].mask(X.index == 5))
    with pytest.raises(DataError, match="row 5 has no task"):
        model_of().fit(empty, y)


def test_a_saved_model_finds_the_column(tmp_path: Path) -> None:
    """Loaded estimators, and `rhfedmtl predict`, use the column of the fit."""
    X, y = frame_of()
    model = RHFedMTLClassifier(random_state=0, lambda2=1e-4).fit(X, y, task="site")
    model.save(tmp_path / "model.npz")
    again = RHFedMTLClassifier.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    X.to_csv(tmp_path / "new.csv", index=False)
    rows = NewRows(TaskModels.load(tmp_path / "model.npz"), tmp_path / "new.csv", None, None, None, [])
    assert rows.predict()["prediction"].tolist() == model.predict(X).tolist()


@pytest.mark.parametrize("scale", ["standard-rms", "standard", "none"])
def test_coefficients_are_in_original_units(scale: str) -> None:
    """A row per task and class with names; features times coefficients plus intercept are the scores."""
    X, y = frame_of()
    model = model_of(scale=scale).fit(X, y)
    table = model.coefficients()
    assert list(table.columns) == [*NAMES, "intercept"]
    assert table.index.names == ["task", "class"]
    assert table.index.tolist() == [(site, "yes") for site in "abcd"]
    own = table.loc[[(site, "yes") for site in X["site"]]].to_numpy()
    scores = (X[NAMES].to_numpy() * own[:, :-1]).sum(axis=1) + own[:, -1]
    np.testing.assert_allclose(scores, model.decision_function(X), rtol=1e-9, atol=1e-9)


def test_coefficients_of_several_classes_numbers_and_unit_rows() -> None:
    """Each class has a row; a regression has a row per task; unit rows count at their usual norm."""
    X, _ = frame_of()
    level = np.digitize(X["age"], [45.0, 55.0])
    table = model_of(scale="standard-rms").fit(X, level).coefficients()
    assert table.index.tolist() == [(site, k) for site in "abcd" for k in range(3)]
    numbers = RHFedMTLRegressor(random_state=0, lambda2=1e-4, task="site").fit(X, X["age"] / 2.0).coefficients()
    assert numbers.index.tolist() == list("abcd")
    np.testing.assert_allclose(numbers["age"], 0.5, rtol=0.05)
    model = model_of(scale="standard-unit").fit(X, level)
    unit, scaler = model.coefficients(), model.models_.scalers[0]
    rows = (X[NAMES].to_numpy() - scaler.mean) / scaler.scale
    usual = scaler.mean + scaler.scale * rows * np.sqrt(3.0) / np.linalg.norm(rows, axis=1, keepdims=True)
    usual_frame = pd.DataFrame(usual, columns=NAMES).assign(site=X["site"])
    own = np.stack([unit.loc[site].to_numpy() for site in X["site"]])
    scores = np.einsum("nd,ncd->nc", usual, own[:, :, :-1]) + own[:, :, -1]
    np.testing.assert_allclose(scores, model.decision_function(usual_frame), rtol=1e-9, atol=1e-9)


def test_coefficients_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dict of arrays with the same names; a feature called intercept keeps its name."""
    X, y = frame_of()
    model = model_of().fit(X.rename(columns={"noise": "intercept"}), y)
    frame, real = model.coefficients(), builtins.__import__

    def without_pandas(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    table = model.coefficients()
    assert list(table) == ["task", "class", "age", "dose", "intercept", "(intercept)"]
    np.testing.assert_array_equal(table["dose"], frame["dose"])
