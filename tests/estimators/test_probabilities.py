"""Probabilities of the classifier: calibrated on rows that models did not see, for every loss, in files and in ONNX."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rhfedmtl import RHFedMTLClassifier, TaskModels
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.models.predictions import NewRows

CLASSIFIERS = list(LOSSES)


def rows_of(seed: int = 0, n: int = 900, offset: float = 0.0, classes: int = 2) -> tuple[Any, Any, Any]:
    """Six tasks with models around a common model, and labels that are drawn from known probabilities."""
    rng = np.random.default_rng(seed)
    X, task = rng.normal(size=(n, 5)), rng.integers(0, 6, n)
    W = rng.normal(size=(5, classes)) + 0.4 * rng.normal(size=(6, 5, classes))
    scores = np.einsum("nd,ndc->nc", X, W[task]) + offset * np.arange(classes)
    return X, np.argmax(scores + rng.gumbel(size=scores.shape), axis=1), task


def calibration_error(odds: Any, y: Any, bins: int = 10) -> float:
    """Expected calibration error: of the second class of two, else of the most probable class."""
    if odds.shape[1] == 2:
        sure, right = odds[:, 1], y == 1
    else:
        sure, right = odds.max(axis=1), odds.argmax(axis=1) == y
    place = np.minimum((sure * bins).astype(int), bins - 1)
    return float(sum(abs((sure - right)[place == k].sum()) for k in range(bins)) / len(y))


@pytest.mark.parametrize("loss", CLASSIFIERS)
@pytest.mark.parametrize("classes", [2, 3])
def test_every_loss_has_calibrated_probabilities(loss: str, classes: int) -> None:
    """The calibration error on unseen rows is small for every loss."""
    X, y, task = rows_of(classes=classes, n=1800)
    half = np.arange(1800) < 900
    model = RHFedMTLClassifier(loss=loss, random_state=0, lambda2=1e-2).fit(X[half], y[half], task=task[half])
    odds = model.predict_proba(X[~half], task=task[~half])
    assert odds.shape == (900, classes)
    np.testing.assert_allclose(odds.sum(axis=1), 1.0)
    assert calibration_error(odds, y[~half]) < 0.06
    assert model.calibration_ == "calibrated on 900 out-of-fold rows (5 folds)"


@pytest.mark.parametrize("data", ["cancer", "digits"])
def test_the_error_is_not_above_calibrated_logistic_regression(data: str) -> None:
    """scikit-learn's CalibratedClassifierCV, with the task as columns, on the same rows: mean of three splits."""
    X, y = (load_breast_cancer if data == "cancer" else load_digits)(return_X_y=True)
    task = np.arange(len(y)) % 4
    ours, scikit = [], []
    for seed in range(3):
        train, test = train_test_split(np.arange(len(y)), test_size=0.5, random_state=seed, stratify=y)
        model = RHFedMTLClassifier(random_state=seed).fit(X[train], y[train], task=task[train])
        ours.append(calibration_error(model.predict_proba(X[test], task=task[test]), y[test]))
        Z = np.hstack([X, np.eye(4)[task]])
        logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        calibrated = CalibratedClassifierCV(logistic).fit(Z[train], y[train])
        scikit.append(calibration_error(calibrated.predict_proba(Z[test]), y[test]))
    assert np.mean(ours) < np.mean(scikit)


def test_models_do_not_change() -> None:
    """The calibration trains models of its own: models, certificate and charges are those without it."""
    X, y, task = rows_of()
    plain, model = (RHFedMTLClassifier(random_state=0, calibration=c).fit(X, y, task=task) for c in ("off", None))
    np.testing.assert_array_equal(model.models_.models, plain.models_.models)
    np.testing.assert_array_equal(model.predict(X, task=task), plain.predict(X, task=task))
    assert model.certificate_.gap == plain.certificate_.gap
    assert plain.calibration_ == "not calibrated: calibration='off'"
    assert not hasattr(plain, "predict_proba")


def test_class_weights_change_models_and_not_frequencies() -> None:
    """Models with balanced classes favour the rare class. The probabilities still are frequencies of the rows."""
    X, y, task = rows_of(offset=-2.0, n=1800)
    half = np.arange(1800) < 900
    model = RHFedMTLClassifier(random_state=0, class_weight="balanced").fit(X[half], y[half], task=task[half])
    odds = model.predict_proba(X[~half], task=task[~half])
    assert np.mean(model.predict(X[~half], task=task[~half])) > y.mean() + 0.05
    np.testing.assert_allclose(odds[:, 1].mean(), y[~half].mean(), atol=0.04)


def test_a_budget_pays_for_no_folds(tmp_path: Path) -> None:
    """A fit with a budget has no probabilities, and the error names the ways out; all three of them work."""
    X, y, task = rows_of()
    budget = {"energy": 1500}
    model = RHFedMTLClassifier(budget, random_state=0).fit(X[:600], y[:600], task=task[:600])
    assert model.calibration_ == "not calibrated: a budget does not pay for the models of folds"
    assert model.models_.curves is None
    with pytest.raises(AttributeError) as error:
        model.predict_proba(X, task=task)
    assert "calibrate(X, y, task=…)" in str(error.value.__cause__)
    # 1. Rows outside the training rows.
    spent = dict(model.ledger_.spent)
    model.calibrate(X[600:], y[600:], task=task[600:])
    assert model.calibration_ == "calibrated on 300 rows given after training"
    assert calibration_error(model.predict_proba(X[600:], task=task[600:]), y[600:]) < 0.1
    assert dict(model.ledger_.spent) == spent
    # 2. Models of folds, which the budget does not pay for.
    folds = RHFedMTLClassifier(budget, random_state=0, calibration="folds").fit(X[:600], y[:600], task=task[:600])
    np.testing.assert_array_equal(folds.coef_, model.coef_)
    assert dict(folds.ledger_.spent) == spent
    assert calibration_error(folds.predict_proba(X[600:], task=task[600:]), y[600:]) < 0.12
    # 3. Log odds.
    odds = RHFedMTLClassifier(budget, random_state=0, loss="logistic").fit(X, y, task=task)
    assert "scores of the logistic loss are log odds" in odds.calibration_
    scores = odds.decision_function(X, task=task)
    np.testing.assert_allclose(odds.predict_proba(X, task=task)[:, 1], expit(scores))


def test_privacy_refuses_a_calibration() -> None:
    """Curves never come from rows that a bound on privacy covers, or that are added to private or released models."""
    X, y, task = rows_of()
    bound = "epsilon=2,delta=1e-6"
    with pytest.raises(ConfigError, match="calibration='folds' trains models of folds, which privacy="):
        RHFedMTLClassifier("energy=1500", privacy=bound, calibration="folds").fit(X, y, task=task)
    model = RHFedMTLClassifier("energy=1500", privacy=bound, random_state=0).fit(X, y, task=task)
    assert model.models_.curves is None
    assert "bound on privacy" in model.calibration_
    with pytest.raises(ConfigError, match="come from a private run"):
        model.calibrate(X, y, task=task)
    open_model = RHFedMTLClassifier(random_state=0, scale="unit", tol=1e-6, lambda1=0.1, lambda2=1.0)
    released = open_model.fit(X, y, task=task).release(1.0)
    assert open_model.models_.curves is not None
    assert released.curves is None
    with pytest.raises(ConfigError, match="come from a release"):
        released.calibrated(X, y, task)


def test_wrong_calibrations_are_refused() -> None:
    """Errors name the value and the rule."""
    X, y, task = rows_of(n=120)
    with pytest.raises(ConfigError, match="calibration must be 'folds' or 'off', got 'sigmoid'"):
        RHFedMTLClassifier(calibration="sigmoid").fit(X, y, task=task)
    model = RHFedMTLClassifier(lambda2=0.01, random_state=0).fit(X, y, task=task)
    with pytest.raises(DataError, match="y holds the label '7', the models know 0, 1"):
        model.calibrate(X, np.full(120, 7), task=task)
    with pytest.raises(DataError, match="3 labels for 120 rows"):
        model.calibrate(X, y[:3], task=task)
    with pytest.raises(DataError, match="row 0 of the calibration has no task that the models know"):
        model.models_.calibrated(X, y)


def test_without_rows_to_hold_out_it_says_so() -> None:
    """Tasks of a single group cannot be held out: curves come from training rows, and predict_proba warns."""
    X, y, task = rows_of(n=120)
    model = RHFedMTLClassifier(random_state=0).fit(X, y, task=task, groups=task)
    assert model.calibration_ == (
        "calibrated on 120 training rows, because no row can be held out: the probabilities are too sure"
    )
    with pytest.warns(UserWarning, match="no row can be held out"):
        odds = model.predict_proba(X, task=task)
    assert np.isfinite(odds).all()


def test_rows_of_a_group_are_held_out_together() -> None:
    """Copies of a row in its group do not make the probabilities sure of unseen groups."""
    X, y, task = rows_of(n=240)
    many = np.repeat(np.arange(240), 6)
    noise = np.random.default_rng(1).permutation(y)  # labels without any relation to the rows
    model = RHFedMTLClassifier(random_state=0, lambda2=1e-3)
    grouped = model.fit(X[many], noise[many], task=task[many], groups=many).models_.curves
    assert grouped is not None
    split = model.fit(X[many], noise[many], task=task[many]).models_.curves
    assert split is not None
    assert grouped.curves[-1, 0] < 0.2 * split.curves[-1, 0]


@pytest.mark.parametrize(("classes", "bend"), [(2, False), (2, True), (3, False)])
def test_files_and_onnx_keep_the_curves(classes: int, bend: bool, tmp_path: Path) -> None:
    """A saved model, an exported task, `rhfedmtl predict` and ONNX give the same probabilities; unseen tasks too."""
    X, y, task = rows_of(classes=classes, offset=-0.5)
    names = np.array([f"site-{b}" for b in range(6)])[task]
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = RHFedMTLClassifier(random_state=0).fit(frame, y, task=names)
    if bend:
        pieces = np.array([[-np.inf, -0.5, 0.2, 0.7], [0.5, 2.0, 0.0, 1.5]])
        model._publish(replace(model.models_, curves=replace(model.models_.curves, bend=pieces)))
    odds = model.predict_proba(frame, task=names)
    model.save(tmp_path / "model.npz")
    again = RHFedMTLClassifier.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.predict_proba(frame, task=names), odds)
    assert again.calibration_ == model.calibration_
    models = TaskModels.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(models.predict_proba(frame, names), odds)
    frame.assign(task=names).to_csv(tmp_path / "new.csv", index=False)
    rows = NewRows(models, tmp_path / "new.csv", None, None, None, [])
    answer = rows.predict()
    np.testing.assert_allclose(np.column_stack([answer[f"probability_{k}"] for k in range(classes)]), odds, rtol=1e-9)
    assert rows.facts(answer)["probabilities"] == model.calibration_
    runtime = pytest.importorskip("onnxruntime")
    for name in ("site-2", None):
        models.to_onnx(tmp_path / "m.onnx", name)
        session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
        outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"X": X}), strict=True))
        np.testing.assert_allclose(outputs["probabilities"], models.predict_proba(X, name), atol=1e-9)
        np.testing.assert_allclose(models.only(name).predict_proba(X), models.predict_proba(X, name), atol=1e-12)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_parameters_tell_whether_a_fit_will_have_probabilities() -> None:
    """Tools of scikit-learn ask for `predict_proba` before the fit: the answer is the one after it."""
    X, y, task = rows_of(n=120)
    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"calibration": "off"}, False),
        ({"budget": "energy=300"}, False),
        ({"budget": "energy=300", "calibration": "folds"}, True),
        ({"budget": "energy=300", "loss": "logistic"}, True),
        ({"algorithm": "fedavg", "max_rounds": 5}, False),
    ]
    for parameters, expected in cases:
        model = RHFedMTLClassifier(random_state=0, lambda2=1e-2, tol=0.5, **parameters)
        assert hasattr(model, "predict_proba") == expected
        assert hasattr(model.fit(X, y, task=task), "predict_proba") == expected


def test_resume_calibrates_again() -> None:
    """Curves belong to the models after `resume`, not to those before."""
    X, y, task = rows_of(n=300)
    model = RHFedMTLClassifier(random_state=0, lambda2=0.01, tol=0.5).fit(X, y, task=task)
    first = model.models_.curves.curves
    model.set_params(tol=1e-3).resume()
    assert np.abs(model.models_.curves.curves - first).max() > 0.0


def test_scorers_of_probabilities_work_per_task() -> None:
    """neg_log_loss and neg_brier_score find the tasks in the frame."""
    X, y, task = rows_of(n=600)
    frame = pd.DataFrame(X, columns=list("abcde")).assign(site=task)
    model = RHFedMTLClassifier(task="site", random_state=0, lambda2=1e-2)
    for scoring, blind in (("neg_log_loss", np.log(2.0)), ("neg_brier_score", 0.25)):
        assert cross_val_score(model, frame, y, scoring=scoring, cv=3).min() > -0.9 * blind


def test_scores_of_converged_folds_do_not_calibrate_a_run_that_ended_early() -> None:
    """Models far from their optimum have smaller scores: their curves come from folds that stopped at the same gap."""
    X, task = np.random.default_rng(0).normal(size=(300, 6)), np.repeat(["a", "b", "c"], 100)
    y = X[:, 0] + 0.3 * X[:, 1] > 0.0
    early = {"random_state": 0, "max_rounds": 1, "lambda1": 1e-5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        chosen = RHFedMTLClassifier(**early).fit(X, y, task=task)
        given = RHFedMTLClassifier(**early, lambda2=chosen.lambda2_).fit(X, y, task=task)
    assert chosen.certificate_.relative_gap > 1e-2
    np.testing.assert_array_equal(chosen.predict_proba(X, task), given.predict_proba(X, task))
