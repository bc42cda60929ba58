"""``predict`` and ``export``: from a run, or a model file, to answers; and plain words where it cannot be."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rhfedmtl import Request, RHFedMTLClassifier, RHFedMTLRegressor
from rhfedmtl.cli import main as cli
from rhfedmtl.data.federation import Source
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.errors import DataError
from rhfedmtl.models.task_models import TaskModels


@pytest.fixture(scope="module")
def source() -> Source:
    """Motions of ten people with a smartwatch."""
    try:
        return Request("watch").source()
    except DataError as error:
        pytest.skip(f"the watch data is not to be had: {error}")


def write_csv(path: Path, source: Source, rows: Any, names: list[str] | None = None) -> None:
    """Rows as a table: person, ten features and the exercise."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["person", *(names or source.feature_names[:10]), "exercise"])
        for i in rows:
            person, exercise = source.task_names[source.task[i]], source.class_names[source.y[i]]
            table.writerow([person, *source.X[i, :10].tolist(), exercise])


@pytest.fixture(scope="module")
def run(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables, and in it the folder of a run that was trained on one of them."""
    folder = tmp_path_factory.mktemp("predict")
    three = np.flatnonzero(source.task < 3)
    write_csv(folder / "old.csv", source, three[::2])
    write_csv(folder / "new.csv", source, three[1::2])
    words = ["train", "--data", "table", "--path", "old.csv", "--label", "exercise", "--task", "person"]
    words += ["--loss", "logistic", "--budget", "energy=600", "--json"]
    facts = json.loads(said(folder, *words))
    assert facts["spent"]["energy"] <= 600
    return folder / facts["saved"]


def said(folder: Path, *words: str) -> str:
    """What a command prints, run in a folder."""
    from typer.testing import CliRunner

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = CliRunner().invoke(cli.app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_new_rows_are_predicted_by_the_models_of_a_run(run: Path, source: Source) -> None:
    """Predictions lie in a table, one for each row in its order, and are as good as the library says."""
    folder = run.parent.parent
    words = ["predict", str(run), "--path", "new.csv", "--task-column", "person", "--label", "exercise"]
    text = said(folder, *words, "--out", "out.csv")
    with (folder / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = np.flatnonzero(source.task < 3)[1::2]
    assert [row["task"] for row in rows] == [source.task_names[source.task[i]] for i in wanted]
    models = TaskModels.load(run)
    expected = models.predict(source.X[wanted, :10].astype(np.float64), [row["task"] for row in rows])
    assert [row["prediction"] for row in rows] == expected.tolist()
    odds = [sum(float(row[f"probability_{name}"]) for name in models.classes) for row in rows]
    np.testing.assert_allclose(odds, 1.0)
    assert f"{len(wanted)} rows predicted, written to out.csv" in text
    facts = json.loads(said(folder, *words, "--json"))
    assert f"accuracy {facts['metrics']['accuracy']:.4f}" in text
    assert facts["metrics"]["accuracy"] > 0.5
    assert facts["predictions"]["prediction"] == expected.tolist()
    assert facts["unknown_tasks"] == []


def test_an_estimator_takes_up_the_model_of_a_run(run: Path, source: Source) -> None:
    """Loss, classes, tasks and names come with it."""
    model = RHFedMTLClassifier.load(run)
    models = TaskModels.load(run)
    assert model.loss == "logistic"
    assert model.classes_.tolist() == models.classes.tolist()
    table = pd.DataFrame(source.X[:5, :10], columns=list(models.feature_names))
    np.testing.assert_allclose(model.predict_proba(table, ["person-1"] * 5).sum(axis=1), 1.0)
    with pytest.raises(DataError, match="cannot use"):
        RHFedMTLRegressor.load(run)


def test_without_a_file_the_table_goes_to_standard_output(run: Path) -> None:
    """One task can be named for all rows."""
    text = said(run.parent.parent, "predict", str(run), "--path", "new.csv", "--task", "person-2")
    rows = list(csv.DictReader(text.splitlines()))
    assert {row["task"] for row in rows} == {"person-2"}


def test_beside_a_table_on_standard_output_metrics_are_said_too(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the other stream, so that the table stays one."""
    words = ["predict", str(run), "--path", "new.csv", "--task-column", "person", "--label", "exercise"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(run.parent.parent)
        cli.app(words, standalone_mode=False)
    told = capsys.readouterr()
    assert "accuracy" in told.err
    assert "accuracy" not in told.out


def test_unknown_tasks_are_predicted_and_noted(run: Path, source: Source) -> None:
    """Rows of a person who was not there get the mean model; a note, and the JSON, say so."""
    folder = run.parent.parent
    write_csv(folder / "strangers.csv", source, np.flatnonzero(source.task == 7)[:20])
    facts = json.loads(
        said(folder, "predict", str(run), "--path", "strangers.csv", "--task-column", "person", "--json")
    )
    assert facts["unknown_tasks"] == ["person-8"]
    assert facts["unseen_model"] == "mean"
    assert len(facts["predictions"]["prediction"]) == 20


def test_a_run_without_a_budget_has_a_model_for_unseen_tasks(run: Path, source: Source) -> None:
    """`train` says which model predicts them, and so does the note of `predict`; seen tasks keep their models."""
    folder = run.parent.parent
    write_csv(folder / "unseen.csv", source, np.flatnonzero(source.task == 7)[:20])
    words = ["train", "--path", "old.csv", "--label", "exercise", "--task", "person", "--lambda2", "0.1"]
    words += ["--target-gap", "1e-2"]
    facts = json.loads(said(folder, *words, "--json"))
    budget = json.loads(said(folder, *words, "--budget", "energy=1e9", "--json"))
    assert (facts["unseen_model"], budget["unseen_model"]) == ("pooled", "mean")
    assert "unseen tasks  the model of all training rows" in said(folder, *words)
    pooled, mean = (TaskModels.load(folder / run_facts["saved"]) for run_facts in (facts, budget))
    X = source.X[source.task == 7][:20, :10].astype(np.float64)
    predict = ["predict", str(folder / facts["saved"]), "--path", "unseen.csv", "--task-column", "person"]
    answer = json.loads(said(folder, *predict, "--json"))
    assert answer["predictions"]["prediction"] == pooled.predict(X, "person-8").tolist()
    assert (pooled.scores(X, "person-8") != mean.scores(X, "person-8")).all()
    yardstick = json.loads(said(folder, *words[:-4], "--algorithm", "pooled", "--json"))
    expected = TaskModels.load(folder / yardstick["saved"]).scores(X, "person-1")
    assert (pooled.labels(expected) == pooled.predict(X, "person-8")).mean() > 0.9
    exported = json.loads(said(folder, "export", str(folder / facts["saved"]), "--out", "u.npz", "--json"))
    assert exported["task"] == "reference"
    np.testing.assert_array_equal(TaskModels.load(folder / "u.npz").scores(X), pooled.scores(X))


def test_rows_with_an_empty_task_are_predicted_as_those_of_an_unseen_task(
    run: Path, source: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every row of the table has an answer, and a note counts the rows without a task."""
    folder = run.parent.parent
    write_csv(folder / "gaps.csv", source, np.flatnonzero(source.task == 1)[:20])
    lines = (folder / "gaps.csv").read_text().splitlines()
    lines[4] = lines[4].removeprefix("person-2")
    (folder / "gaps.csv").write_text("\n".join(lines) + "\n")
    words = ["predict", str(run), "--path", "gaps.csv", "--task-column", "person", "--label", "exercise"]
    facts = json.loads(said(folder, *words, "--json"))
    assert (facts["rows"], facts["without_task"], facts["unknown_tasks"], facts["tasks"]) == (20, 1, [], 1)
    assert facts["predictions"]["task"] == ["person-2"] * 3 + [""] + ["person-2"] * 16
    models = TaskModels.load(run)
    rows = source.X[np.flatnonzero(source.task == 1)[:20], :10].astype(np.float64)
    assert facts["predictions"]["prediction"][3] == models.predict(rows[3:4])[0]
    labels = [line.split(",")[-1] for line in lines[1:]]
    right = [a == b for a, b in zip(facts["predictions"]["prediction"], labels, strict=True)]
    assert facts["metrics"]["accuracy"] == pytest.approx(np.mean(right[:3] + right[4:]))
    assert facts["metrics"]["balanced_accuracy"] is None, "one class only"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        cli.app(words, standalone_mode=False)
    note = " ".join(capsys.readouterr().err.split())
    assert "1 of 20 rows have no 'person' (first: line 5): predicted with the mean model of all tasks" in note


def test_texts_that_a_spreadsheet_would_run_are_quoted(tmp_path: Path) -> None:
    """Tasks and classes that start a formula get a quote, numbers do not; an option keeps the texts unchanged."""
    rng = np.random.default_rng(0)
    names = ["=1+2", "+cmd", "-sum(1)", "@task", "-3", "plain"]
    task = np.repeat(names, 12)
    y = np.where(rng.random(len(task)) < 0.5, "=yes", "\tno")
    X = rng.normal(size=(len(task), 2))
    RHFedMTLClassifier("energy=2000", lambda2=0.1, random_state=0).fit(X, y, task=task).save(tmp_path / "m.npz")
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["task", "X0", "X1"], *([name, 0.5, -0.5] for name in names)])
    words = ["predict", "m.npz", "--path", "rows.csv"]
    said(tmp_path, *words, "--out", "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["task"] for row in rows] == ["'=1+2", "'+cmd", "'-sum(1)", "'@task", "-3", "plain"]
    assert {row["prediction"] for row in rows} == {"'=yes", "'\tno"}
    assert all(float(row["score"]) == float(row["score"]) for row in rows)
    assert next(row["task"] for row in csv.DictReader(said(tmp_path, *words).splitlines())) == "'=1+2"
    said(tmp_path, *words, "--out", "raw.csv", "--formulas")
    with (tmp_path / "raw.csv").open(newline="") as file:
        assert [row["task"] for row in csv.DictReader(file)] == names
    facts = json.loads(said(tmp_path, *words, "--json"))
    assert facts["predictions"]["task"] == names, "JSON is for programs"


@pytest.mark.parametrize("form", ["onnx", "npz", "json"])
def test_a_model_leaves_in_every_format_with_the_same_scores(form: str, run: Path, source: Source) -> None:
    """ONNX in onnxruntime, a model file of its own, and plain JSON agree with the run's model of the task."""
    folder = run.parent.parent
    said(folder, "export", str(run), "--task", "person-1", "--out", f"one.{form}")
    X = source.X[source.task == 0][:30, :10].astype(np.float64)
    expected = TaskModels.load(run).scores(X, "person-1")
    if form == "npz":
        np.testing.assert_array_equal(TaskModels.load(folder / "one.npz").scores(X), expected)
    elif form == "onnx":
        runtime = pytest.importorskip("onnxruntime")
        found = runtime.InferenceSession(str(folder / "one.onnx")).run(["scores"], {"X": X})[0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    else:
        facts = json.loads((folder / "one.json").read_text())["tasks"]["person-1"]
        rows = (X - np.array(facts["mean"])) / np.array(facts["scale"])
        rows /= np.linalg.norm(rows, axis=1, keepdims=True) if facts["unit"] else 1.0
        np.testing.assert_allclose(rows @ np.array(facts["weights"]).T + facts["intercept"], expected, atol=1e-12)


def test_without_a_task_the_mean_model_is_exported(run: Path) -> None:
    """And it is said that it is the mean."""
    text = said(run.parent.parent, "export", str(run), "--out", "mean.npz")
    assert text.startswith("the mean model of all tasks written to mean.npz")
    models = TaskModels.load(run)
    X = np.random.default_rng(0).normal(size=(4, 10))
    np.testing.assert_array_equal(TaskModels.load(run.parent.parent / "mean.npz").scores(X), models.scores(X))


def test_models_without_names_take_columns_by_their_order(tmp_path: Path) -> None:
    """An estimator fitted to an array knows no names: all columns but task and label are features."""
    rng = np.random.default_rng(0)
    X, task = rng.normal(size=(40, 3)), np.arange(40) % 2
    y = X @ [1.0, -2.0, 0.5] + task
    RHFedMTLRegressor(random_state=0).fit(X, y, task=task).save(tmp_path / "model.npz")
    np.savez(tmp_path / "rows.npz", X=X, y=y, task=task)
    words = ["predict", "model.npz", "--path", "rows.npz", "--label", "y", "--json"]
    facts = json.loads(said(tmp_path, *words))
    assert facts["metrics"]["rmse"] < 0.1
    assert set(facts["predictions"]) == {"task", "prediction"}
    shuffled = pd.DataFrame(X, index=rng.permutation(40) + 7).assign(y=y, task=task)
    shuffled.to_csv(tmp_path / "rows.csv")  # with its index, which is no feature
    words[3] = "rows.csv"
    assert json.loads(said(tmp_path, *words))["metrics"] == pytest.approx(facts["metrics"])


def test_tasks_are_found_by_their_number_where_they_are_written_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table that pandas wrote with a gap has 1.0 for 1; where two tasks have the number, neither is taken."""
    rng = np.random.default_rng(0)
    tasks = np.array(["1.0", "02", "3", "3.0"])
    models = TaskModels(rng.normal(size=(4, 1, 2)), (Scaler(),) * 4, tasks, np.array([]), 2)
    models.save(tmp_path / "model.npz")
    X = rng.normal(size=(4, 2))
    pd.DataFrame(X).assign(task=["1", "2", "3", "03"]).to_csv(tmp_path / "rows.csv", index=False)
    facts = json.loads(said(tmp_path, "predict", "model.npz", "--path", "rows.csv", "--json"))
    assert facts["unknown_tasks"] == ["03"]
    assert facts["predictions"]["task"] == ["1.0", "02", "3", "03"]
    assert facts["predictions"]["prediction"] == models.predict(X, ["1.0", "02", "3", "?"]).tolist()
    cli.app(["predict", str(tmp_path / "model.npz"), "--path", str(tmp_path / "rows.csv")], standalone_mode=False)
    assert "matched tasks by number: 1 for 1.0, 2 for 02" in capsys.readouterr().err


def test_an_array_without_names_is_taken_in_order(run: Path, source: Source) -> None:
    """A model that knows names takes X of an .npz by its columns, as a station has its test rows; of no other width."""
    folder, X = run.parent.parent, source.X[source.task == 1][:9, :10]
    np.savez(folder / "test.npz", X=X, y=np.zeros(9))
    words = ["predict", str(run), "--path", "test.npz", "--task", "person-2", "--json"]
    expected = TaskModels.load(run).predict(X, "person-2").tolist()
    assert json.loads(said(folder, *words))["predictions"]["prediction"] == expected
    np.savez(folder / "test.npz", X=source.X[:9, :11])
    with pytest.raises(DataError, match="lacks 10 of the 10 columns"):
        said(folder, *words)


def test_a_gap_that_training_did_not_have_is_filled_and_said(run: Path, source: Source) -> None:
    """By the mean of the training rows, whether other columns had gaps or not; the column of tasks is known."""
    folder = run.parent.parent
    write_csv(folder / "gap.csv", source, [1])
    rows = list(csv.reader((folder / "gap.csv").read_text().splitlines()))
    rows[1][1] = "NA"
    (folder / "gap.csv").write_text("\n".join(map(",".join, rows)))
    facts = json.loads(said(folder, "predict", str(run), "--path", "gap.csv", "--json"))
    models = TaskModels.load(run)
    mean = models.scalers[0].mean
    assert mean is not None
    full = np.array([mean[0], *map(float, rows[1][2:11])])[None]
    assert facts["filled"] == [models.feature_names[0]]
    np.testing.assert_allclose(
        [facts["predictions"][f"score_{name}"][0] for name in models.classes], models.scores(full, "person-1")[0]
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["predict", "RUN", "--path", "bare.csv"], "has no column 'person' that names each row's task"),
        (["predict", "RUN", "--path", "new.csv", "--task", "person"], "for a column: --task-column person"),
        (["predict", "RUN", "--path", "new.csv", "--task-column", "persn"], "has no column 'persn'"),
        (["predict", "RUN", "--path", "new.csv", "--task", "person-11"], "did you mean person-1"),
        (["predict", "RUN", "--path", "few.csv", "--task-column", "person"], "lacks 9 of the 10 columns"),
        (["predict", "RUN", "--path", "nowhere.csv"], "no such file or folder: nowhere.csv"),
        (["predict", "nowhere", "--path", "new.csv"], "no such model: nowhere"),
        (["predict", "new.csv", "--path", "new.csv"], "is not a model of rhfedmtl"),
        (["certify", "new.csv"], "use Python: rhfedmtl.certify(W, federation)"),
        (["certify", "nowhere"], "the folder of a run\n"),
        (["predict", "RUN", "--path", "new.csv", "--task-column", "person", "--task", "person-1"], "give one of them"),
        (["predict", "RUN", "--path", "new.csv", "--task-column", "person", "--label", "person"], "holds the label"),
        (["predict", "RUN", "--path", "new.csv", "--task-column", "person", "--out", "no/out.csv"], "cannot write"),
        (["predict", "RUN", "--path", "new.csv", "--out", "out.parquet"], "written as CSV; use out.csv"),
        (["export", "RUN", "--task", "person-9", "--out", "m.onnx"], "unknown task 'person-9'"),
        (["export", "RUN", "--task", "person-1", "--out", "m.pkl"], "unknown format 'pkl'"),
        (["export", "RUN", "--task", "person-1", "--out", "no/m.onnx"], "cannot write"),
        (["export", "RUN", "--task", "person-1", "--out", "m.onnx", "--dtype", "int8"], "unknown precision 'int8'"),
        (["export", "NOEXTRA", "--task", "person-1", "--out", "m.onnx"], "pip install 'rhfedmtl[onnx]'"),
        (["predict", "PLAIN", "--path", "few.csv", "--task-column", "person"], "the models were learned from 10"),
    ],
)
def test_errors_are_plain_and_end_with_status_2(
    words: list[str], says: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a new user is likely to get wrong is answered in a line or two, without a traceback."""
    folder = run.parent.parent
    monkeypatch.chdir(folder)
    (folder / "few.csv").write_text(f"person,{TaskModels.load(run).feature_names[0]},other\nperson-1,0.5,1\n")
    (folder / "bare.csv").write_text("other,more\n0.5,1\n")
    if "NOEXTRA" in words:
        monkeypatch.setitem(sys.modules, "onnx", None)
    if "PLAIN" in words:
        replace(TaskModels.load(run), feature_names=()).save(folder / "plain.npz")
    places = {"RUN": str(run), "NOEXTRA": str(run), "PLAIN": "plain.npz"}
    monkeypatch.setattr(sys, "argv", ["rhfedmtl", *(places.get(word, word) for word in words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert says in printed
    assert len(printed.strip().splitlines()) <= 2


@pytest.mark.parametrize(
    ("given", "relationship"),
    [({"relationship": "learned", "lambda2": 0.3}, "learned"), ({"algorithm": "local", "lambda1": 0.02}, "none")],
)
def test_models_of_an_estimator_are_certified_for_the_problem_that_it_solved(
    tmp_path: Path, given: dict[str, Any], relationship: str
) -> None:
    """Its file knows relationship and weights, and `certify` takes them unless told otherwise."""
    rng = np.random.default_rng(0)
    X, task = rng.normal(size=(60, 3)), np.repeat(["a", "b", "c"], 20)
    y = (X @ [1.0, -1.0, 0.5] + rng.normal(size=60) > 0).astype(int)
    model = RHFedMTLClassifier(random_state=0, tol=1e-6, **given).fit(
        pd.DataFrame(X, columns=list("uvw")), y, task=task
    )
    model.save(tmp_path / "model.npz")
    pd.DataFrame(X, columns=list("uvw")).assign(y=y, task=task).to_csv(tmp_path / "rows.csv", index=False)
    found = json.loads(said(tmp_path, "certify", "model.npz", "--path", "rows.csv", "--test-fraction", "0", "--json"))
    weights = {name: given.get(name, usual) for name, usual in {"lambda1": 1e-3, "lambda2": 1e-2}.items()}
    assert found["problem"] == {"relationship": relationship, **weights}
    assert found["primal"] == pytest.approx(model.certificate_.primal, rel=1e-3)
    assert found["relative_gap"] < 1e-2


def test_a_run_without_budget_calibrates_its_probabilities(tmp_path: Path) -> None:
    """`train` saves curves for the default loss, except with a budget; `predict` says so."""
    X, y, task = np.random.default_rng(0).normal(size=(120, 3)), [], ["a", "b"] * 60
    y = ["yes" if row[0] > 0 else "no" for row in X]
    table = pd.DataFrame(X, columns=list("uvw")).assign(label=y, site=task)
    table.to_csv(tmp_path / "rows.csv", index=False)
    words = ["train", "--path", "rows.csv", "--label", "label", "--task", "site", "--lambda2", "0.1", "--json"]
    for name, options in (("free", []), ("paid", ["--budget", "energy=300"])):
        said(tmp_path, *words, *options, "--out", name)
        facts = json.loads(said(tmp_path, "predict", name, "--path", "rows.csv", "--task-column", "site", "--json"))
        columns = {column for column in facts["predictions"] if column.startswith("probability_")}
        if name == "free":
            assert columns == {"probability_no", "probability_yes"}
            assert facts["probabilities"].endswith("out-of-fold rows (5 folds)")
        else:
            assert columns == set()
            assert facts["probabilities"].startswith("not calibrated")
