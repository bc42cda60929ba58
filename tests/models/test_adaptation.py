"""A new task from a few rows: a certified optimum, all other models to the bit, and plain errors."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from typer.testing import CliRunner

from rhfedmtl import RHFedMTLClassifier, RHFedMTLRegressor
from rhfedmtl.cli.main import app
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.training.privacy import STATEMENT

FEATURES = 5


def rows(task: int, n: int = 60, kind: str = "classes", features: int = FEATURES) -> tuple[Any, Any]:
    """Rows of a task whose weights are a common part and its own part."""
    rng = np.random.default_rng([task, n])
    common, own = np.linspace(1.0, 5.0, features), np.random.default_rng(100 + task).normal(size=features)
    X = rng.normal(size=(n, features)) + 1.0
    score = X @ (common + own) + 4.0 * (task % 3) + 0.5 * rng.normal(size=n)
    if kind == "regression":
        return X, score
    names = np.array(["low", "high"]) if kind == "binary" else np.array(["low", "middle", "high"])
    return X, names[np.digitize(score, np.quantile(score, [0.5] if kind == "binary" else [0.33, 0.66]))]


def fitted(kind: str, features: int = FEATURES, **parameters: Any) -> Any:
    """An estimator that was trained on four tasks."""
    parts = [rows(task, kind=kind, features=features) for task in range(4)]
    X, y = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    estimator = RHFedMTLRegressor if kind == "regression" else RHFedMTLClassifier
    return estimator(**{"random_state": 0, **parameters}).fit(X, y, task=np.repeat(np.array(["a", "b", "c", "d"]), 60))


@pytest.mark.parametrize("kind", ["binary", "classes", "regression"])
@pytest.mark.parametrize("lambda2", [0.0, 0.3])
def test_the_model_is_the_optimum_of_the_local_problem(kind: str, lambda2: float) -> None:
    """An independent solver of the same problem finds no better model, and the gap bounds the distance to it."""
    loss = {} if kind == "regression" else {"loss": "logistic"}
    models = fitted(kind, lambda1=0.01, lambda2=0.1, **loss).models_
    X, y = rows(7, 12, kind)
    adapted = models.adapt(X, y, task="new", lambda2=lambda2)
    record, constant = adapted.adapted[0], models.constant
    assert (record.task, record.rows, record.lambda1, record.lambda2) == ("new", 12, 0.01, lambda2)
    assert record.reference == "mean"
    Z = np.column_stack([models.scalers[0].transform(X), np.full(len(X), constant)])
    r = models.reference.copy()
    w = adapted.models[-1].copy()
    if kind == "regression":
        # The level of the task replaces the intercepts; it follows from the labels around the reference.
        residual = y - (Z[:, :-1] @ r[0, :-1] + r[0, -1])
        between = np.mean((models.models[:, 0, -1] - r[0, -1]) ** 2)
        level = r[0, -1] + residual.mean() * between / (between + residual.var(ddof=1) / len(y))
        targets, r[:, -1], w[:, -1] = (y - level)[:, None], 0.0, w[:, -1] - level
    else:
        r[:, -1], w[:, -1] = r[:, -1] / constant, w[:, -1] / constant
        codes = models.codes(y)
        columns = range(1, 2) if kind == "binary" else range(3)
        targets = np.column_stack([np.where(codes == k, 1.0, -1.0) for k in columns])

    def objective(flat: Any) -> float:
        W = flat.reshape(r.shape)
        z = Z @ W.T
        losses = np.square(z - targets) / 2.0 if kind == "regression" else np.logaddexp(0.0, -targets * z)
        penalty = 0.01 * np.sum(W * W) + lambda2 * np.sum((W - r) ** 2)
        return float(losses.sum() / len(X) + penalty / 2.0)

    best = minimize(objective, np.zeros(r.size), method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14})
    assert record.primal == pytest.approx(objective(w), rel=1e-9)
    assert record.dual <= best.fun * (1 + 1e-9)
    assert record.primal <= best.fun * (1 + 2e-6)
    assert record.relative_gap <= 1e-6


@pytest.mark.parametrize("kind", ["binary", "classes", "regression"])
def test_other_models_stay_the_same_to_the_bit(kind: str, tmp_path: Path) -> None:
    """Models, predictions of known and unseen tasks, and the reference; also from a file, and after two new tasks."""
    estimator = fitted(kind, lambda2=0.1)
    before = estimator.models_
    X, _ = rows(9, 40, kind)
    first = before.adapt(*rows(7, 12, kind), task="e")
    second = first.adapt(*rows(8, 12, kind), task="f")
    second.save(tmp_path / "models.npz")
    loaded = TaskModels.load(tmp_path / "models.npz")
    assert loaded.tasks.tolist() == ["a", "b", "c", "d", "e", "f"]
    assert loaded.adapted == second.adapted
    for models in (first, second, loaded):
        np.testing.assert_array_equal(models.models[:4], before.models)
        np.testing.assert_array_equal(models.reference, before.reference)
        assert models.certificate is not None
        assert len(models.certificate.models) == 4
        for task in ("a", "d", None):
            np.testing.assert_array_equal(models.scores(X, task), before.scores(X, task))
        np.testing.assert_array_equal(models.scores(X, "e"), first.scores(X, "e"))
    # A task does not depend on the tasks that were adapted before it.
    single = before.adapt(*rows(8, 12, kind), task="f")
    np.testing.assert_array_equal(single.scores(X, "f"), second.scores(X, "f"))
    assert single.only("f").adapted == single.adapted
    assert second.only("a").adapted == ()


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_a_few_rows_are_ahead_of_the_common_model_and_of_local_learning(kind: str) -> None:
    """Mean over new tasks that differ from the others, judged on rows that took no part."""
    models, errors = fitted(kind, 30).models_, []
    for task in range(20, 40):
        (X, y), (test_X, test_y) = rows(task, 20, kind, 30), rows(task, 400, kind, 30)
        adapted, local = models.adapt(X, y, task="new"), models.adapt(X, y, task="new", lambda2=0.0)

        def error(of: TaskModels, name: str | None, X: Any = test_X, y: Any = test_y) -> float:
            prediction = of.predict(X, name)
            wrong = np.square(prediction - y) if kind == "regression" else prediction != y
            return float(np.mean(wrong))

        errors.append([error(models, None), error(local, "new"), error(adapted, "new")])
    common, own, adapted_error = np.mean(errors, axis=0)
    assert adapted_error < common
    assert adapted_error < own


def test_rows_without_a_clear_gain_keep_a_model_of_the_run() -> None:
    """Without a gain on held-out rows, a new task gets the model for unseen tasks, or the mean model of the tasks."""
    models, kept = fitted("binary", 30).models_, set()
    for task in range(20, 40):
        X, y = rows(task, 20, "binary", 30)
        adapted = models.adapt(X, y, task="new")
        record = adapted.adapted[0]
        if math.isinf(record.lambda2):
            kept.add(record.reference)
            reference = models if record.reference == "pooled" else replace(models, unseen=None)
            assert record.gap == 0.0
            np.testing.assert_allclose(adapted.scores(X, "new"), reference.scores(X), rtol=1e-9, atol=1e-12)
    assert kept == {"pooled", "mean"}


def test_an_estimator_adapts_and_then_predicts_saves_and_exports(tmp_path: Path) -> None:
    """It predicts the new task without a warning, keeps its other attributes, and refuses to resume."""
    model = fitted("classes", lambda2=0.1, loss="logistic", class_weight="balanced")
    before, certificate = model.coef_.copy(), model.certificate_
    X, y = rows(7, 15)
    assert model.adapt(X, y, task="new", groups=np.arange(15) // 3) is model
    assert model.tasks_.tolist() == ["a", "b", "c", "d", "new"]
    np.testing.assert_array_equal(model.coef_[:4], before)
    assert model.certificate_ is certificate
    assert model.predict_proba(X, task="new").shape == (15, 3)
    assert model.score(X, y, task="new") > 0.5
    with pytest.raises(ConfigError, match="'new' was adapted"):
        model.resume()
    model.save(tmp_path / "models.npz")
    again = RHFedMTLClassifier.load(tmp_path / "models.npz")
    np.testing.assert_array_equal(again.predict(X, task="new"), model.predict(X, task="new"))


def test_a_table_with_texts_and_gaps_goes_the_way_of_training() -> None:
    """The preparation of the run encodes the new rows; a gap in a column without gaps is refused."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"heat": rng.normal(size=200), "noise": rng.normal(size=200)})
    frame["colour"] = rng.choice(["red", "blue"], 200)
    frame.loc[rng.random(200) < 0.2, "noise"] = np.nan
    y = np.where(frame["heat"] + (frame["colour"] == "red") > 0.5, "hot", "cold")
    task = np.repeat(["a", "b", "c", "d"], 50)
    model = RHFedMTLClassifier(random_state=0).fit(frame[:150], y[:150], task=task[:150])
    new = frame[150:165].reset_index(drop=True)
    model.adapt(new, y[150:165], task="d")
    assert model.predict(frame[165:], task="d").shape == (35,)
    new.loc[2, "heat"] = np.nan
    with pytest.raises(DataError, match="column 'heat' has gaps, and had no gaps in training"):
        model.adapt(new, y[150:165], task="e")


GOOD = rows(7, 12, "binary")


@pytest.mark.parametrize(
    ("X", "y", "more", "words"),
    [
        (*GOOD, {"task": "a"}, "task 'a' has a model already"),
        (*GOOD, {"task": ["x", "y"]}, "does not name a new task"),
        (*GOOD, {"task": ""}, "does not name a new task"),
        (GOOD[0], ["low"] * 12, {}, "all rows of task 'new' have label 'low'"),
        (GOOD[0], ["low", "hgih"] * 6, {}, "label 'hgih' is not a class of the models"),
        (GOOD[0][:1], GOOD[1][:1], {}, "has 1 rows, too few"),
        (GOOD[0][:, :3], GOOD[1], {}, "rows have 3 features, the models were learned from 5"),
        (np.where(GOOD[0] > 2.0, np.nan, GOOD[0]), GOOD[1], {}, "missing|nan|NaN"),
        (GOOD[0], GOOD[1][:3], {}, "labels of shape"),
        (*GOOD, {"sample_weight": -np.ones(12)}, "not negative"),
        (*GOOD, {"groups": np.zeros(12)}, "all rows are of the same group"),
        (*GOOD, {"lambda2": -1.0}, "lambda2"),
    ],
)
def test_rows_and_names_that_do_not_fit_are_refused(X: Any, y: Any, more: dict[str, Any], words: str) -> None:
    """The message names the value, the rule and the way out."""
    models = fitted("binary", lambda2=0.1).models_
    with pytest.raises((ConfigError, DataError), match=words):
        models.adapt(X, y, **{"task": "new", **more})


def test_tasks_that_are_numbers_stay_numbers() -> None:
    """A new task is named by a number, or by the same number as text."""
    parts = [rows(task, kind="binary") for task in range(3)]
    X, y = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    models = RHFedMTLClassifier(random_state=0, lambda2=0.1).fit(X, y, task=np.repeat([1, 2, 5], 60)).models_
    assert models.adapt(*GOOD, task=7).tasks.tolist() == [1, 2, 5, 7]
    assert models.adapt(*GOOD, task="7").tasks.tolist() == [1, 2, 5, 7]
    with pytest.raises(DataError, match="tasks are numbers"):
        models.adapt(*GOOD, task="north")


def test_models_that_were_scaled_separately_are_refused() -> None:
    """There is no scaling that a new task could reuse."""
    models = fitted("binary", lambda2=0.1).models_
    scalers = tuple(replace(scaler) for scaler in models.scalers)
    with pytest.raises(ConfigError, match="tasks were scaled separately"):
        replace(models, scalers=scalers, unseen=None).adapt(*GOOD, task="new")


def test_a_regression_can_keep_the_model_for_unseen_tasks() -> None:
    """Labels around its predictions differ by noise only, so held-out rows show no gain of a level or other slopes."""
    models = fitted("regression").models_
    X, _ = rows(7, 20, "regression")
    y = models.predict(X) + np.random.default_rng(0).normal(size=20)
    adapted = models.adapt(X, y, task="new")
    assert adapted.adapted[0].lambda2 == math.inf
    np.testing.assert_allclose(adapted.predict(X, "new"), models.predict(X), rtol=1e-9)


@pytest.mark.parametrize("relationship", ["none", "learned"])
def test_other_relationships_adapt_to_the_model_for_unseen_tasks(relationship: str) -> None:
    """Their λ2 has another meaning, so the choice of λ2 starts at 0."""
    models = fitted("binary", relationship=relationship, lambda2=10.0).models_
    record = models.adapt(*rows(7, 40, "binary"), task="new").adapted[0]
    assert record.lambda2 < 10.0
    assert record.relative_gap <= 1e-6


def test_weights_count_rows_and_rows_of_weight_zero_do_not_count() -> None:
    """A row of weight 2 is two rows; a row of weight 0 is no row."""
    models = fitted("binary", lambda2=0.1).models_
    X, y = GOOD
    weight = np.array([2.0, 0.0, *[1.0] * 10])
    by_weight = models.adapt(X, y, task="new", sample_weight=weight, lambda2=0.1)
    keep = [0, 0, *range(2, 12)]
    by_rows = models.adapt(X[keep], y[keep], task="new", lambda2=0.1)
    np.testing.assert_allclose(by_weight.models[-1], by_rows.models[-1], rtol=1e-2, atol=1e-3)


def test_a_statement_on_privacy_does_not_cover_the_new_task() -> None:
    """The models of a private run stay private; the file says that the new model is not."""
    model = fitted("binary", privacy="epsilon=8,delta=1e-3", lambda1=0.1, lambda2=0.1, random_state=None)
    model.adapt(*GOOD, task="new")
    statement = model.models_.provenance[STATEMENT]
    assert statement["private"]
    assert "does not cover task 'new'" in statement["words"]


def test_adapted_models_are_not_released() -> None:
    """The noise of a release rests on the joint problem of the run, which the new task is no part of."""
    model = fitted("binary", scale="unit", lambda1=0.1, lambda2=1.0, tol=1e-6)
    assert model.release(1.0).provenance["privacy"]["epsilon"] == 1.0
    model.adapt(*GOOD, task="new")
    with pytest.raises(ConfigError, match="tasks were adapted after the training"):
        model.release(1.0)


def said(*words: Any) -> tuple[int, str]:
    """Exit status, and output or error of a command."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output if done.exit_code == 0 else str(done.exception)


def write(path: Path, tasks: dict[str, tuple[Any, Any]]) -> None:
    """A table with a column for the task and the label."""
    frames = [
        pd.DataFrame(X, columns=[f"x{j}" for j in range(FEATURES)]).assign(site=name, fault=y)
        for name, (X, y) in tasks.items()
    ]
    pd.concat(frames).to_csv(path, index=False)


def test_a_run_is_adapted_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reads task and label as in training, writes a file next to the model, and predict uses it."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "old.csv", {name: rows(k, kind="binary") for k, name in enumerate("abc")})
    status, text = said(
        *("train", "--path", "old.csv", "--label", "fault", "--task", "site", "--lambda2", "0.1", "--seed", "0"),
        *("--budget", "energy=400", "--out", "runs", "--json"),
    )
    assert status == 0, text
    run = Path(json.loads(text)["saved"])
    model_bytes = (run / "model.npz").read_bytes()
    write(tmp_path / "new.csv", {"d": rows(7, 12, "binary"), "e": rows(8, 15, "binary")})
    status, text = said("adapt", run, "--path", "new.csv", "--json")
    assert status == 0, text
    facts = json.loads(text)
    assert [task["task"] for task in facts["adapted"]] == ["d", "e"]
    assert all(task["gap"] <= 1e-6 * task["primal"] for task in facts["adapted"])
    assert facts["saved"] == str(run / "adapted.npz")
    assert (run / "model.npz").read_bytes() == model_bytes
    models = TaskModels.load(run / "adapted.npz")
    assert models.tasks.tolist() == ["a", "b", "c", "d", "e"]
    direct = TaskModels.load(run).adapt(*rows(7, 12, "binary"), task="d")
    np.testing.assert_array_equal(models.models[3], direct.models[3])
    status, text = said("predict", run / "adapted.npz", "--path", "new.csv", "--label", "fault", "--json")
    assert json.loads(text)["unknown_tasks"] == []
    # All rows are of a task that the table does not name.
    write(tmp_path / "more.csv", {"?": rows(9, 12, "binary")})
    words = ["adapt", run / "adapted.npz", "--path", "more.csv", "--drop", "site"]
    status, text = said(*words, "--task", "f")
    assert status == 0, text
    assert "task f" in text
    assert TaskModels.load(run / "adapted.npz").tasks.tolist() == ["a", "b", "c", "d", "e", "f"]
    status, text = said("adapt", run, "--path", "new.csv")
    assert status != 0
    assert "adapted.npz exists" in text
    for wrong, expected in (
        (["--task", "a", "--out", "x.npz"], "has a model already"),
        (["--label", "falt", "--out", "x.npz"], "did you mean fault?"),
        (["--out", "x.csv"], ".npz"),
    ):
        status, text = said("adapt", run, "--path", "new.csv", *wrong)
        assert status != 0
        assert expected in text
    assert not (tmp_path / "x.npz").exists()
