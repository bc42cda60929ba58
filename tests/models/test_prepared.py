"""Models of a table with gaps and texts: new rows go the way of the training rows, here, from a file and in ONNX."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import polars as pl
import pytest
from typer.testing import CliRunner

from rhfedmtl import RHFedMTLClassifier, RHFedMTLRegressor
from rhfedmtl.cli.main import app
from rhfedmtl.data.loaders.table import Columns, frame_table, from_frame
from rhfedmtl.data.split import federate
from rhfedmtl.errors import DataError
from rhfedmtl.maths.losses import Logistic
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.training.config import Options, RunConfig


def frame(n: int = 160, seed: int = 0) -> pd.DataFrame:
    """Two sites; a number with gaps, one without, a text with gaps and one without."""
    rng = np.random.default_rng(seed)
    heat, colour = rng.normal(size=n), rng.choice(["red", "green", "blue", None], n)
    score = heat + np.where(colour == "red", 2.0, -0.5) + 0.3 * rng.normal(size=n)
    table = {
        "site": rng.choice(["01", "1"], n),
        "heat": np.where(rng.random(n) < 0.2, np.nan, heat),
        "noise": rng.integers(0, 9, n),
        "colour": colour,
        "shift": rng.choice(["day", "night"], n),
        "y": np.where(score > 0, "yes", "no"),
    }
    return pd.DataFrame(table)


@pytest.fixture(scope="module", params=["smoothed-hinge", "logistic"])
def models(request: Any) -> TaskModels:
    """Models learned from the frame."""
    federation = federate(from_frame(frame(), Columns(task="site")))
    config = RunConfig(options=Options(loss=request.param), budget=("energy=300",))
    return TaskModels.from_result(federation, config.run(federation), config.options.method("binary").loss)


def test_new_rows_are_prepared_as_training_rows_were(models: TaskModels) -> None:
    """Columns in any order, with others beside them; texts that were not there are nothing; gaps get the mean."""
    values: dict[str, list[Any]] = {"shift": ["day", "dusk"], "more": [1, 2], "colour": [None, "pink"]}
    values |= {"noise": [3, 4], "heat": [1.0, None]}
    new = pd.DataFrame(values)
    known = models.preparation
    assert known is not None
    assert known.columns == ("heat", "noise", "colour", "shift")
    names = list(models.feature_names)
    X, filled = models.prepared(frame_table(new), "new rows")
    assert filled == []
    by_name = [dict(zip(names, row, strict=True)) for row in X.tolist()]
    assert by_name[0]["heat"] == 1.0
    assert by_name[0]["colour missing"] == by_name[0]["shift=day"] == by_name[1]["heat missing"] == 1.0
    assert by_name[1]["heat"] == known.fill[0]
    assert sum(value for name, value in by_name[1].items() if "=" in name or name == "colour missing") == 0.0
    np.testing.assert_array_equal(models.scores(pl.DataFrame(values), "01"), models.scores(new, "01"))


def test_what_cannot_be_prepared_is_named(models: TaskModels) -> None:
    """A column that is not there, and a word where training rows had numbers."""
    with pytest.raises(DataError, match=r"lacks 1 of the 4 columns.*'shift'"):
        models.predict(frame(3)[["heat", "noise", "colour"]], "1")
    with pytest.raises(DataError, match=r"column 'noise', row 1 holds 'many', which is not a number"):
        models.predict(frame(2).astype({"noise": object}).assign(noise=[1, "many"]), "1")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_onnx_gives_the_same_numbers(models: TaskModels, tmp_path: Path, dtype: str) -> None:
    """Numbers with NaN and texts with empty ones, by the names in the metadata."""
    models.to_onnx(tmp_path / "m.onnx", "01", dtype=dtype)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    new = pd.concat([frame(40, seed=1), frame(1).assign(colour="pink", heat=np.nan)])
    given = {
        "X": new[json.loads(facts["features"])].to_numpy(dtype=dtype),
        "text": new[json.loads(facts["text"])].fillna("").to_numpy(dtype=object),
    }
    found = dict(zip([out.name for out in session.get_outputs()], session.run(None, given), strict=True))
    scores = models.scores(new, "01")
    np.testing.assert_allclose(found["scores"], scores, atol=1e-12 if dtype == "float64" else 1e-5)
    assert found["label"].tolist() == models.labels(scores).tolist()
    if isinstance(models.loss, Logistic):
        np.testing.assert_allclose(found["probabilities"], models.probabilities(scores), atol=1e-5)


def test_a_file_keeps_the_way(models: TaskModels, tmp_path: Path) -> None:
    """Saved and loaded, the models answer the same to a frame."""
    models.save(tmp_path / "m.npz")
    again = TaskModels.load(tmp_path / "m.npz")
    new = frame(30, seed=2)
    np.testing.assert_array_equal(again.scores(new, new["site"]), models.scores(new, new["site"]))
    assert again.to_dict()["preparation"] == models.to_dict()["preparation"]


def test_train_predict_and_export_of_a_messy_file(tmp_path: Path) -> None:
    """From a file with gaps and texts to predictions for another one, its columns in another order."""
    frame().rename_axis(None).to_csv(tmp_path / "t.csv", na_rep="?")
    new = frame(20, seed=3)[["colour", "y", "noise", "site", "shift", "heat"]]
    new.to_csv(tmp_path / "new.csv", sep=";", decimal=",", index=False)
    runner = CliRunner()
    options = [
        "--path",
        str(tmp_path / "t.csv"),
        "--task",
        "site",
        "--budget",
        "energy=300",
        "--out",
        str(tmp_path / "r"),
    ]
    done = runner.invoke(app, ["train", *options, "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert any("'Unnamed: 0' counts the rows" in note for note in facts["notes"])
    where = ["--path", str(tmp_path / "new.csv"), "--task-column", "site", "--label", "y"]
    done = runner.invoke(app, ["predict", facts["saved"], *where, "--out", str(tmp_path / "p.csv"), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["unknown_tasks"] == []
    assert told["metrics"]["accuracy"] > 0.7
    with (tmp_path / "p.csv").open() as file:
        answers = [row["prediction"] for row in csv.DictReader(file)]
    models = TaskModels.load(facts["saved"])
    assert answers == models.predict(new, new["site"]).tolist()
    done = runner.invoke(app, ["export", facts["saved"], "--task", "01", "--out", str(tmp_path / "m.onnx")])
    assert done.exit_code == 0, done.output


def test_estimators_take_frames_with_gaps_and_texts(tmp_path: Path) -> None:
    """fit, predict, save and load; feature names are those of the frame, coefficients those of what became of it."""
    train, new = frame(), frame(50, seed=4)
    columns = ["heat", "noise", "colour", "shift"]
    model = RHFedMTLClassifier(random_state=0).fit(train[columns], train["y"], task=train["site"])
    assert model.score(new[columns], new["y"], task=new["site"]) > 0.75
    assert model.feature_names_in_.tolist() == columns
    assert model.n_features_in_ == 4
    assert model.coef_.shape[2] == len(model.models_.feature_names) == 2 + 1 + 4 + 2
    mixed = new[columns[::-1]]
    assert model.predict(mixed, task=new["site"]).tolist() == model.predict(new[columns], task=new["site"]).tolist()
    model.save(tmp_path / "m.npz")
    again = RHFedMTLClassifier.load(tmp_path / "m.npz")
    assert again.predict(new, task=new["site"]).tolist() == model.predict(new[columns], task=new["site"]).tolist()
    with pytest.raises(DataError, match="predict needs a frame"):
        model.predict(np.zeros((1, 4)), task="1")


def test_an_estimator_says_which_columns_it_leaves_out() -> None:
    """A name for every row is no feature."""
    train = frame(150).assign(name=[f"p{i}" for i in range(150)])
    with pytest.warns(UserWarning, match="left out: 'name' holds 150 different texts"):
        model = RHFedMTLRegressor(random_state=0).fit(train[["noise", "shift", "name"]], train["noise"] * 2.0)
    assert model.feature_names_in_.tolist() == ["noise", "shift"]


CODES = {
    "int": lambda k: pd.DataFrame({"k": pd.Categorical(k)}),
    "float": lambda k: pd.DataFrame({"k": pd.Categorical(k / 2)}),
    "text": lambda k: pd.DataFrame({"k": pd.Series(k.astype(str), dtype="category")}),
    "bins": lambda k: pd.DataFrame({"k": pd.cut(k, [-1, 0, 1, 2, 3])}),
    "Categorical": lambda k: pl.DataFrame({"k": pl.Series(k.astype(str), dtype=pl.Categorical)}),
    "Enum": lambda k: pl.DataFrame({"k": pl.Series(k.astype(str), dtype=pl.Enum(list("0123")))}),
}


@pytest.mark.parametrize("kind", CODES)
def test_categories_are_classes_although_numbers_name_them(kind: str, tmp_path: Path) -> None:
    """They were taken for quantities, without a word; new rows, files and exports go the same way."""
    k = np.arange(80) % 4
    y, table = np.isin(k, [0, 3]), CODES[kind](k)
    model = RHFedMTLClassifier(lambda2=0.01, random_state=0).fit(table, y)
    assert len(model.models_.feature_names) == 4
    assert model.score(CODES[kind](k[:7]), y[:7]) == 1.0
    model.save(tmp_path / "m.npz")
    scores = model.decision_function(table)
    np.testing.assert_array_equal(RHFedMTLClassifier.load(tmp_path / "m.npz").decision_function(table), scores)
    model.models_.to_onnx(tmp_path / "m.onnx", 0)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    words = np.array([name.removeprefix("k=") for name in model.models_.feature_names], dtype=object)[k]
    np.testing.assert_allclose(session.run(["scores"], {"text": words[:, None]})[0][:, 0], scores, atol=1e-12)
