"""Models behind feature maps: they are saved, certified, released and pickled, and estimators have them."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.estimators.test_estimator_checks import EXPECTED_FAILED_CHECKS
from tests.features.examples import SUMS, difficult, encoder
from typer.testing import CliRunner

from rhfedmtl import RHFedMTLClassifier, RHFedMTLRegressor, RunConfig, certify
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.cli.main import app
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings


def solved(features: str, kind: str = "binary", **changes: Any) -> tuple[TaskModels, Federation, Result]:
    """Return models close to the optimum, and the rows that they are for."""
    data = replace(difficult(kind), feature_names=("a", "b", "c", "d", "e", "f"))
    config = RunConfig("rhfedmtl", Request(), Options.of(features=features), target_gap=1e-6)
    built = build(config.algorithm, config.options, kind)
    settings = replace(config.settings(kind, ended=True), **changes)
    result = train(built.regroup(data), built.method, built.policy, settings, ledger=Ledger({}), judged=data)
    return TaskModels.from_result(data, result, built.method.loss), data, result


@pytest.mark.parametrize("features", SUMS)
@pytest.mark.parametrize("per_station", [False, True])
def test_a_saved_and_loaded_model_predicts_the_same_bits(features: str, per_station: bool, tmp_path: Path) -> None:
    """The scaling is common or of each station; the records name the maps."""
    models, data, _ = solved(features, scale_per_station=per_station)
    task = np.repeat(data.task_names, np.diff(data.test_offsets))
    expected = models.scores(data.test_X, task)
    models.save(tmp_path / "model.npz")
    again = TaskModels.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.scores(data.test_X, task), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(models)).scores(data.test_X, task), expected)
    assert again.features == models.features == features
    assert json.loads(json.dumps(again.to_dict()))["tasks"]["task 0"]["mapping"]["features"] == features


def test_the_file_of_an_encoder_is_needed_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model has its name and SHA-256 only; the error names both and the way out."""
    from rhfedmtl.features import encoder as module

    (folder := tmp_path / "here").mkdir()
    path = encoder(folder / "enc.onnx")
    models, data, _ = solved(f"onnx={path}+splines=2")
    expected = models.scores(data.test_X, "task 1")
    models.save(tmp_path / "model.npz")
    content = (tmp_path / "model.npz").read_bytes()
    assert str(folder).encode() not in content
    text = models.features.split("+")[0]
    name, digest, columns = text.removeprefix("onnx=").split(":")
    assert (name, len(digest), columns) == ("enc.onnx", 64, "4")

    monkeypatch.setattr(module, "_named", {})
    module._session.cache_clear()
    monkeypatch.chdir(tmp_path)
    again = TaskModels.load(tmp_path / "model.npz")
    with pytest.raises(ConfigError, match=rf"enc.onnx with SHA-256 {digest} is not on this machine.*RHFEDMTL_ENCODERS"):
        again.scores(data.test_X, "task 1")
    encoder(tmp_path / "enc.onnx", seed=1)
    with pytest.raises(ConfigError, match=r"enc.onnx has another SHA-256"):
        again.scores(data.test_X, "task 1")
    for place in (folder, path):
        module._session.cache_clear()
        monkeypatch.setenv("RHFEDMTL_ENCODERS", str(place))
        again = TaskModels.load(tmp_path / "model.npz")
        np.testing.assert_array_equal(again.scores(data.test_X, "task 1"), expected)


@pytest.mark.parametrize("kind", ["binary", "classes", "regression"])
@pytest.mark.parametrize("features", ["splines=3+pairs=3", "fourier=8"])
def test_certify_gives_the_objective_of_the_run(features: str, kind: str) -> None:
    """Columns in another order are the same data."""
    models, data, result = solved(features, kind)
    assert certify(models, data).primal == pytest.approx(result.certificate.primal, rel=1e-9)
    order = [3, 0, 5, 4, 1, 2]
    names = tuple(data.feature_names[j] for j in order)
    reordered = replace(data, X=data.X[:, order], feature_names=names)
    assert certify(models, reordered).primal == pytest.approx(result.certificate.primal, rel=1e-9)
    with pytest.raises(DataError, match="'height' that the models do not know, and lacks 'a'"):
        certify(models, replace(data, feature_names=("height", *data.feature_names[1:])))


def test_plain_weights_have_no_maps() -> None:
    """Weights from elsewhere are for the columns of the data."""
    data = difficult()
    with pytest.raises(ConfigError, match=r"features='splines': weights are for the columns of the data"):
        certify(np.zeros((3, 6)), data, features="splines")


def test_new_gaps_are_filled_by_the_mean_of_training() -> None:
    """The mean of the columns, and not of the mapped columns."""
    pandas = pytest.importorskip("pandas")
    models, data, _ = solved("splines=3")
    frame = pandas.DataFrame(data.test_X, columns=list(data.feature_names))
    filled = frame.copy()
    filled["b"] = data.X[:, 1].mean()
    frame["b"] = np.nan
    np.testing.assert_allclose(models.scores(frame, "task 0"), models.scores(filled, "task 0"), rtol=1e-9)


@pytest.mark.parametrize("scale", ["unit", "standard-unit"])
def test_only_models_with_public_statistics_are_released(scale: str) -> None:
    """Rows of norm 1 need no statistics of rows; the noise is added in mapped columns."""
    data, options = difficult(), Options.of(features="splines=3", lambda1=0.1)
    config = RunConfig("rhfedmtl", Request(), options, target_gap=1e-3, scale=scale)
    origin = {"configuration": json.loads(json.dumps(config.to_dict(), default=str))}
    models = TaskModels.from_result(data, config.run(data), options.chosen_loss("binary"), origin)
    if scale == "standard-unit":
        with pytest.raises(ConfigError, match="their scaling depends on rows: train with --scale unit"):
            models.release(1.0)
        return
    released = models.release(1.0, 1e-6, address=(0,))
    assert released.features == "splines=3"
    assert released.models.shape == models.models.shape == (3, 1, 6 + 18 + 1)
    assert not np.array_equal(released.models, models.models)


@pytest.mark.filterwarnings("ignore")  # the checks cause warnings
@pytest.mark.slow
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        RHFedMTLClassifier(features="splines=3", max_rounds=300),
        RHFedMTLRegressor(features="sparse-fourier=8", max_rounds=300),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS,
)
def test_scikit_learn_accepts_estimators_with_maps(estimator: Any, check: Any) -> None:
    """The checks of scikit-learn pass as for estimators without maps."""
    check(estimator)


def rows(kind: str = "binary") -> tuple[Any, Any, Any]:
    """Return rows, labels and tasks."""
    data = difficult(kind)
    return data.X, data.y, np.array(data.task_names)[data.row_task]


def test_an_estimator_says_which_maps_it_used(tmp_path: Path) -> None:
    """A loaded, copied or pickled estimator predicts the same bits."""
    X, y, task = rows()
    plain = RHFedMTLClassifier(random_state=0).fit(X, y, task=task)
    assert plain.features_ == "none"
    path = encoder(tmp_path / "enc.onnx")
    model = RHFedMTLClassifier(features=f"splines=4+onnx={path}", random_state=0).fit(X, y, task=task)
    assert model.features_.startswith("splines=4+onnx=enc.onnx:")
    assert model.coef_.shape == (3, 1, 6 + 24 + 4)
    assert model.intercept_.shape == (3, 1)
    assert model.n_features_in_ == 6
    expected = model.decision_function(X, task=task)
    model.save(tmp_path / "m.npz")
    loaded = RHFedMTLClassifier.load(tmp_path / "m.npz")
    assert loaded.features_ == loaded.features == model.features_
    for copied in (loaded, pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(copied.decision_function(X, task=task), expected)
    assert clone(model).features == f"splines=4+onnx={path}"


def test_an_estimator_gives_the_bits_of_the_library() -> None:
    """The same maps, seed and rows."""
    data = difficult()
    X, y, task = rows()
    options: dict[str, Any] = {"features": "splines=4+fourier=6", "lambda2": 1e-2}
    terminal = np.repeat(np.arange(data.n_terminals), data.sizes)
    model = RHFedMTLClassifier(**options, random_state=3, scale="standard-unit")
    model.fit(X, y, task=task, terminal=terminal)
    built = build("rhfedmtl", Options.of(**options), "binary")
    settings = Settings(scale="standard-unit", seed=3, target_relative_gap=1e-3, max_rounds=2000)
    result = train(data, built.method, built.policy, settings, ledger=Ledger({}))
    np.testing.assert_array_equal(model.coef_, result.models[:, :, :-1])


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_a_warm_start_and_resume_continue(kind: str) -> None:
    """A warm start of the same maps needs fewer rounds; other maps keep the duals only."""
    X, y, task = rows(kind)
    make = RHFedMTLRegressor if kind == "regression" else RHFedMTLClassifier
    model = make(features="splines=4", random_state=0, lambda2=1e-2, tol=1e-4, warm_start=True).fit(X, y, task=task)
    first = model.n_iter_
    assert model.fit(X, y, task=task).n_iter_ < first
    gap = model.certificate_.relative_gap
    model.tol = 1e-6
    assert model.resume().certificate_.relative_gap < min(gap, 1e-6)
    model.set_params(features="pairs=24", tol=1e-4)
    again = model.fit(X, y, task=task)
    fresh = make(features="pairs=24", random_state=0, lambda2=1e-2, tol=1e-4).fit(X, y, task=task)
    assert again.features_ == "pairs=24"
    assert again.certificate_.relative_gap <= 1e-4
    assert again.certificate_.primal == pytest.approx(fresh.certificate_.primal, rel=2e-4)


def test_rows_of_unseen_tasks_are_mapped_too(tmp_path: Path) -> None:
    """The pooled model has maps, is saved with them and is exported."""
    import onnxruntime

    X, y, task = rows()
    model = RHFedMTLClassifier(features="splines=4", random_state=0).fit(X, y, task=task)
    expected = model.models_.scores(X, "a new task")
    assert model.models_.unseen is not None
    assert model.models_.unseen[0].mapping is not None
    model.save(tmp_path / "m.npz")
    np.testing.assert_array_equal(TaskModels.load(tmp_path / "m.npz").scores(X, "a new task"), expected)
    model.models_.to_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    np.testing.assert_allclose(session.run(["scores"], {"X": X})[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["binary", "regression"])
@pytest.mark.parametrize("lambda2", [None, 0.1])
def test_a_new_task_is_learned_behind_the_same_maps(kind: str, lambda2: float | None, tmp_path: Path) -> None:
    """Few rows of a new task: the model is certified, saved and exported; the other tasks are unchanged."""
    import onnxruntime

    X, y, task = rows(kind)
    old = task != "task 2"
    make = RHFedMTLRegressor if kind == "regression" else RHFedMTLClassifier
    models = make(features="splines=4+fourier=6", random_state=0).fit(X[old], y[old], task=task[old]).models_
    adapted = models.adapt(X[~old][:15], y[~old][:15], task="task 2", lambda2=lambda2)
    assert adapted.adapted[0].relative_gap < 1e-3
    np.testing.assert_array_equal(adapted.scores(X, "task 1"), models.scores(X, "task 1"))
    adapted.save(tmp_path / "m.npz")
    expected = adapted.scores(X, "task 2")
    np.testing.assert_array_equal(TaskModels.load(tmp_path / "m.npz").scores(X, "task 2"), expected)
    adapted.to_onnx(tmp_path / "m.onnx", "task 2")
    scores = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(["scores"], {"X": X})[0]
    np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-6)


def test_coefficients_behind_maps_are_refused() -> None:
    """A mapped column has no unit of a column; the message says what to use."""
    models, _, _ = solved("splines=3")
    with pytest.raises(ConfigError, match=r"features 'splines=3' have no coefficients .*importances"):
        models.coefficients()


def test_importances_of_linear_models_are_weights_times_deviations() -> None:
    """Without maps the importance of a column is |coefficient| times its deviation among the rows of the task."""
    random = np.random.default_rng(0)
    X, task = random.normal(size=(300, 3)) * [1.0, 5.0, 0.0], np.repeat(["a", "b"], 150)
    y = X @ [1.0, -0.5, 0.0] + (task == "b") * X[:, 0]
    models = RHFedMTLRegressor(random_state=0, lambda2=1e-4).fit(X, y, task=task).models_
    table = models.importances(X, task, repeats=200)
    names = ["X0", "X1", "X2"]
    for b, name in enumerate(models.tasks):
        expected = np.abs(models.coefficients()[names].to_numpy()[b]) * X[task == name].std(axis=0)
        np.testing.assert_allclose(table.loc[name, names], expected, rtol=0.1, atol=1e-12)


def test_importances_name_the_columns_of_the_table() -> None:
    """Behind maps, each column of a table has an importance, a text too; a column without effect has nearly none."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(400, 2)), columns=["wave", "noise"])
    frame["colour"] = random.choice(["red", "blue"], 400)
    frame["site"] = random.choice(["north", "south"], 400)
    y = np.cos(2.0 * frame["wave"]) + (frame["colour"] == "red")
    model = RHFedMTLRegressor(features="splines", task="site", random_state=0).fit(frame, y)
    table = model.importances(frame)
    assert list(table.columns) == ["wave", "noise", "colour"]
    assert list(table.index) == ["north", "south"]
    assert (table["noise"] < 0.2 * table[["wave", "colour"]].min(axis=1)).all()
    rows = frame.drop(columns="site")
    with pytest.raises(DataError, match="row 0 has no task that the models know"):
        model.models_.importances(rows, "west")
    with pytest.raises(DataError, match="task 'north' has a single row"):
        model.models_.importances(rows.iloc[:1], "north")


@pytest.mark.parametrize(
    ("features", "says"),
    [
        (None, "features=None: give a text"),
        ("spline", "unknown feature map 'spline': choose from .*; did you mean splines?"),
        ("splines=1", "splines=1: give 2 to 1000 pieces per column"),
        ("splines=many", "features 'splines=many'"),
        ("splines=3:4", "features 'splines=3:4': write splines=8"),
        ("pairs=0", "pairs=0: give at least 1 pair"),
        ("fourier=1", "fourier=1: give at least 2 columns"),
        ("fourier=8:cubic", "fourier=8:cubic: choose the kernel from gaussian, laplace"),
        ("sparse-fourier=0", "sparse-fourier=0: give at least 2 columns"),
        ("splines+none", "'none' stands alone"),
        ("splines+", "unknown feature map ''"),
        ("onnx", "onnx: name the file, as onnx=encoder.onnx"),
        ("onnx=nowhere.onnx", "onnx=nowhere.onnx: there is no such file"),
        ("onnx=enc.onnx:abc", "onnx=enc.onnx:abc: the text after the file name is no SHA-256"),
    ],
)
def test_mistakes_are_named(features: Any, says: str) -> None:
    """Each error names the value and the way out; the options of the library say the same."""
    X, y, task = rows()
    with pytest.raises(ConfigError, match=says):
        RHFedMTLClassifier(features=features).fit(X, y, task=task)
    if features is not None:
        with pytest.raises(ConfigError, match=says):
            Options.of(features=features).chosen_features()


def test_the_command_line_trains_predicts_exports_and_certifies(tmp_path: Path) -> None:
    """A table goes through all commands; describe counts the columns."""
    import onnxruntime

    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    lines = ["a,b,c,site,y"]
    lines += [f"{r[0]:.4f},{r[1]:.4f},{r[2]:.4f},s{i % 2},{int(r[0] * r[1] > 0)}" for i, r in enumerate(X)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    path = encoder(tmp_path / "enc.onnx", width=3)
    table = ["--path", str(tmp_path / "t.csv"), "--task", "site"]
    features = ["--features", f"splines=4+pairs+onnx={path}"]

    def call(*words: str) -> Any:
        result = CliRunner().invoke(app, [*words])
        assert result.exit_code == 0, result.output
        return json.loads(result.output) if "--json" in words else result.output

    described = call("data", "describe", *table, *features, "--json")
    assert (described["features"], described["mapped_features"]) == (3, 3 + 12 + 3 + 4)
    assert "22 columns with splines=4+pairs" in call("data", "describe", *table, *features)
    refused = CliRunner().invoke(app, ["data", "describe", *table, "--features", "auto"]).exception
    assert "training chooses the map; to count columns, name a map" in str(refused)
    facts = call("train", *table, *features, "--seed", "0", "--json", "--out", str(tmp_path))
    record = (Path(facts["saved"]) / "model.npz").parent
    assert str(tmp_path / "enc.onnx") not in "".join(
        file.read_text(encoding="utf-8") for file in record.rglob("*.json*")
    )
    models = TaskModels.load(record)
    assert models.features.startswith("splines=4+pairs+onnx=enc.onnx:")
    out = call(
        "predict", str(record), "--path", str(tmp_path / "t.csv"), "--json", "--label", "y", "--task-column", "site"
    )
    assert out["metrics"]["accuracy"] > 0.85
    call("export", str(record), "--task", "s1", "--out", str(tmp_path / "m.onnx"))
    X = X.round(4)
    scores = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(["scores"], {"X": X})[0]
    np.testing.assert_allclose(scores, models.scores(X, "s1"), rtol=1e-6, atol=1e-6)
    certificate = call("certify", str(record), "--json")
    assert certificate["trained_on"]
    assert certificate["primal"] > 0.0
