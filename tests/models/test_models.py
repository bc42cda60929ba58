"""Models on disk and in other runtimes: the same scores, or a plain refusal."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.turns import in_turn

from rhfedmtl import array_file as sealed
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data.request import Request
from rhfedmtl.data.scaling import SCALES, Scaler
from rhfedmtl.errors import ConfigError, DataError, MissingExtraError
from rhfedmtl.maths.losses import Logistic, SmoothedHinge
from rhfedmtl.models.model_file import MODEL, header
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

KINDS = {"binary": 2, "classes": 4, "regression": 0}


def learned(kind: str = "binary", algorithm: str = "rhfedmtl", scale: str = "standard-unit", **options: Any) -> Any:
    """Models of a short run on synthetic tasks, and rows to score."""
    request = Request("synthetic", tasks=3, terminals=2, settings={"classes": KINDS[kind], "features": 6})
    federation = request.federation(0)
    built = build(algorithm, Options.of(**options), federation.kind)
    result = train(
        built.regroup(federation),
        built.method,
        built.policy,
        Settings(scale=scale, max_rounds=8),
        ledger=Ledger("energy=0.1,10", "energy=500"),
        judged=federation,
    )
    return TaskModels.from_result(federation, result, built.method.loss, {"seed": 0}), federation, result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", SCALES)
def test_a_file_gives_back_what_was_saved(kind: str, scale: str, tmp_path: Path) -> None:
    """Scores, names, loss, certificate, totals and provenance are the same to the bit; and so is the file, twice."""
    models, federation, result = learned(kind, scale=scale)
    models.save(tmp_path / "a.npz")
    models.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    again = TaskModels.load(tmp_path / "a.npz")
    task = np.repeat(federation.task_names, np.diff(federation.test_offsets))
    np.testing.assert_array_equal(again.scores(federation.test_X, task), models.scores(federation.test_X, task))
    np.testing.assert_array_equal(again.reference, result.reference)
    assert again.kind == kind
    assert (again.loss, again.tasks.tolist()) == (models.loss, list(federation.task_names))
    assert again.feature_names == federation.feature_names
    assert again.ledger["spent"] == result.ledger.spent
    assert again.provenance == models.provenance
    assert again.certificate is not None
    assert (again.certificate.gap, again.certificate.round) == (result.certificate.gap, result.certificate.round)
    np.testing.assert_array_equal(again.certificate.station_gaps, result.certificate.station_gaps)


def test_scores_are_those_that_the_run_was_judged_by() -> None:
    """The saved models have, on the test rows, the very accuracy that the run reports."""
    models, federation, result = learned("classes")
    for b, name in enumerate(federation.task_names):
        X, y = federation.test_rows(b)
        right = models.predict(X, name) == np.array(federation.class_names)[y]
        assert np.mean(right) == result.metrics["accuracy"][b]


@pytest.mark.parametrize("algorithm", ["fedavg", "cocoa", "constant"])
def test_models_of_other_methods_are_saved_too(algorithm: str, tmp_path: Path) -> None:
    """A method without a dual has no gap, one with a single station serves all tasks."""
    models, federation, result = learned(algorithm=algorithm)
    models.save(tmp_path / "m.npz")
    again = TaskModels.load(tmp_path / "m.npz")
    assert again.certificate is not None
    assert again.certificate.relative_gap == result.certificate.relative_gap
    np.testing.assert_array_equal(again.scores(federation.test_X[:9]), models.scores(federation.test_X[:9]))


def saved(folder: Path) -> tuple[Path, TaskModels]:
    """A small model on disk."""
    rng = np.random.default_rng(0)
    scaler = Scaler(rng.normal(size=3), rng.uniform(1, 2, size=3), True)
    models = TaskModels(
        rng.normal(size=(2, 1, 4)), (scaler,) * 2, np.array(["a", "b"]), np.array(["no", "yes"]), 3, SmoothedHinge(0.5)
    )
    models.save(folder / "model.npz")
    return folder / "model.npz", models


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_noticed(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever byte is changed, the file is refused, or nothing that it says has changed."""
    path, models = saved(tmp_path_factory.getbasetemp())
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    broken = path.with_name("broken.npz")
    broken.write_bytes(content)
    try:
        again = TaskModels.load(broken)
    except DataError:
        return
    np.testing.assert_array_equal(again.models, models.models)
    np.testing.assert_array_equal(again.scalers[1].mean, models.scalers[1].mean)
    assert (again.loss, again.tasks.tolist(), again.classes.tolist()) == (models.loss, ["a", "b"], ["no", "yes"])


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    """At whatever byte it ends."""
    path, _ = saved(tmp_path)
    content = path.read_bytes()
    for end in [0, 1, *range(10, len(content), 37), len(content) - 1]:
        path.write_bytes(content[:end])
        with pytest.raises(DataError, match="is not a model of rhfedmtl"):
            TaskModels.load(path)


def rewritten(path: Path, **changes: Any) -> None:
    """The same file with other arrays or another header, and no new seal."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(arrays["header"].tobytes())
    header |= changes.pop("header", {})
    text = json.dumps(header).encode()
    np.savez(path, **{**arrays, "header": np.frombuffer(text, dtype=np.uint8), **changes})


def test_foreign_newer_and_tampered_files_are_refused(tmp_path: Path) -> None:
    """Each with a word on what is wrong; nothing is unpickled, and nothing compressed is unpacked."""
    path, models = saved(tmp_path)
    rewritten(path, header={"format": MODEL.format + 1})
    with pytest.raises(DataError, match="install a newer rhfedmtl"):
        TaskModels.load(path)
    saved(tmp_path)
    rewritten(path, models=models.models + 1.0)
    with pytest.raises(DataError, match="checksum"):
        TaskModels.load(path)
    saved(tmp_path)
    rewritten(path, header={"n_features": 2})
    with pytest.raises(DataError, match="checksum"):
        TaskModels.load(path)
    saved(tmp_path)
    rewritten(path, header={"magic": "bank account"})
    with pytest.raises(DataError, match="its header is of another kind"):
        TaskModels.load(path)
    np.savez(path, X=np.eye(3), y=np.ones(3))
    with pytest.raises(DataError, match="it holds X, y"):
        TaskModels.load(path)
    np.savez_compressed(path, models=np.zeros(10**6), header=np.zeros(3, dtype=np.uint8))
    with pytest.raises(DataError, match="compressed"):
        TaskModels.load(path)
    path.write_text("task,weights\n")
    with pytest.raises(DataError, match="is not a model of rhfedmtl"):
        TaskModels.load(path)
    with pytest.raises(DataError, match="no such model"):
        TaskModels.load(tmp_path / "nowhere.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no such model"):
        TaskModels.load(tmp_path / "empty")


class _Trap:
    """Leaves a trace if it is ever unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("sprung",)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array of objects in an otherwise fitting file is refused without being made."""
    monkeypatch.chdir(tmp_path)
    path, _ = saved(tmp_path)
    rewritten(path, models=np.array([_Trap()], dtype=object))
    with pytest.raises(DataError, match="is not a model of rhfedmtl"):
        TaskModels.load(path)
    assert not Path("sprung").exists()


def test_parts_that_do_not_fit_are_refused_even_under_a_good_seal(tmp_path: Path) -> None:
    """A file that somebody sealed himself still has to make sense."""
    path, models = saved(tmp_path)
    facts = header(models)
    arrays = {"models": models.models, "tasks": models.tasks, "classes": models.classes}
    for change in (
        {"models": models.models[:, :, :2]},
        {"tasks": np.array(["a", "a"])},
        {"classes": np.array(["x", "y", "z"])},
        {"mean": np.zeros((1, 3)), "scale": np.zeros((1, 3))},
        {"models": np.full_like(models.models, np.nan)},
    ):
        sealed.write(path, MODEL, facts, {**arrays, **change})
        with pytest.raises(DataError):
            TaskModels.load(path)
    sealed.write(path, MODEL, {**facts, "loss": {"name": "secret"}}, arrays)
    with pytest.raises(DataError, match="not a model that this version can use"):
        TaskModels.load(path)


def test_what_cannot_be_written_is_said_before_anything_is_lost(tmp_path: Path) -> None:
    """Names of mixed types, values that are not plain, and a folder that is not there; an old file stays."""
    path, models = saved(tmp_path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="mixed types"):
        replace(models, tasks=np.array(["a", 1], dtype=object)).save(path)
    with pytest.raises(ConfigError, match="not a plain value"):
        replace(models, provenance={"by": object()}).save(path)
    with pytest.raises(ConfigError, match="cannot write"):
        models.save(tmp_path / "nowhere" / "model.npz")
    assert path.read_bytes() == before
    assert zipfile.is_zipfile(path)


def test_tasks_are_found_by_value_or_by_how_they_are_written() -> None:
    """Numbers as numbers, all else as text; unknown ones are answered by the mean model."""
    rng = np.random.default_rng(0)
    models = TaskModels(rng.normal(size=(2, 1, 3)), (Scaler(),) * 2, np.array([3, 7]), np.array([]), 3)
    assert models.find([7.0, 3, 5]).tolist() == [1, 0, -1]
    assert models.find(["7", "3.0"]).tolist() == [1, -1]
    X = rng.normal(size=(4, 3))
    mean = (models.scores(X, 3) + models.scores(X, 7)) / 2.0
    np.testing.assert_allclose(models.scores(X, [5, 5, 7, 5])[[0, 1, 3]], mean[[0, 1, 3]], rtol=1e-12)
    np.testing.assert_allclose(models.scores(X), mean, rtol=1e-12)
    with pytest.raises(DataError, match="2 tasks for 4 rows"):
        models.scores(X, [3, 7])
    with pytest.raises(DataError, match="rows have 2 features, the models were learned from 3"):
        models.scores(X[:, :2])
    with pytest.raises(DataError, match="unknown task '8': choose from 3, 7"):
        models.only(8)


@pytest.mark.parametrize("scale", SCALES)
def test_a_model_for_unseen_tasks_is_kept(scale: str, tmp_path: Path) -> None:
    """Rows of unseen tasks, and rows without a task, get it, from a file too; cut out, it is the only model."""
    models, federation, _ = learned(scale=scale)
    first = learned(scale=scale)[0].model_of(1)
    models = replace(models, unseen=(first[0], 2.0 * first[1]))
    models.save(tmp_path / "model.npz")
    X, again = federation.test_X[:9], TaskModels.load(tmp_path / "model.npz")
    for loaded in (models, again):
        assert loaded.unseen_kind == "pooled"
        np.testing.assert_array_equal(loaded.scores(X, "nobody"), models.scores(X))
        np.testing.assert_array_equal(loaded.scores(X, "task-1"), replace(models, unseen=None).scores(X, "task-1"))
        np.testing.assert_array_equal(loaded.only().scores(X), models.scores(X))
    assert not np.allclose(models.scores(X), replace(models, unseen=None).scores(X))
    assert again.only("task-1").unseen is None
    for wrong in (first[1][:, :-1], np.full_like(first[1], np.nan)):
        with pytest.raises(DataError):
            replace(models, unseen=(first[0], wrong))


def test_a_file_of_the_first_format_has_the_mean_model_for_unseen_tasks(tmp_path: Path) -> None:
    """It has no model for them, and loads as ever."""
    path, models = saved(tmp_path)
    header, arrays = sealed.read(path, MODEL)
    header = {name: value for name, value in header.items() if name not in ("magic", "format")}
    sealed.write(path, MODEL._replace(format=1), header, arrays)
    old, X = TaskModels.load(path), np.random.default_rng(0).normal(size=(4, models.n_features))
    assert (old.unseen, old.unseen_kind) == (None, "mean")
    np.testing.assert_array_equal(old.scores(X, "nobody"), models.scores(X, "nobody"))


def test_tasks_scaled_apart_have_no_mean_model(tmp_path: Path) -> None:
    """Each keeps its own scaling over a save, and an unknown task is refused instead of guessed."""
    rng = np.random.default_rng(0)
    scalers = tuple(Scaler(rng.normal(size=3), rng.uniform(1, 2, size=3), False) for _ in range(2))
    models = TaskModels(rng.normal(size=(2, 1, 3)), scalers, np.array(["a", "b"]), np.array([]), 3)
    models.save(tmp_path / "m.npz")
    again = TaskModels.load(tmp_path / "m.npz")
    X = rng.normal(size=(5, 3))
    for task in ("a", "b"):
        np.testing.assert_array_equal(again.scores(X, task), models.scores(X, task))
    with pytest.raises(DataError, match="scaled separately"):
        again.scores(X, "c")


def test_only_the_logistic_loss_has_probabilities() -> None:
    """σ of the score; several classes are divided by their sum, which keeps their order, even far out."""
    models, federation, _ = learned("classes", loss="logistic")
    scores = models.scores(federation.test_X, federation.task_names[0])
    odds = models.probabilities(scores)
    np.testing.assert_allclose(odds.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(odds.argmax(axis=1), scores.argmax(axis=1))
    np.testing.assert_allclose(models.probabilities(np.full((1, 4), -1e4)), 0.25)
    two = replace(models, models=models.models[:, :1], classes=np.array(["n", "y"]))
    np.testing.assert_allclose(two.probabilities(np.array([[-800.0], [0.0], [40.0]]))[:, 1], [0.0, 0.5, 1.0])
    with pytest.raises(ConfigError, match="loss 'smoothed-hinge' has no probabilities"):
        replace(models, loss=SmoothedHinge()).probabilities(scores)


ONNX_TOLERANCE = {"float64": 1e-12, "float32": 2e-5}


ONNX_KINDS = [("binary", None), ("binary", "logistic"), ("classes", "logistic"), ("regression", None)]


@pytest.mark.parametrize(("learns", "scale", "dtype"), in_turn(ONNX_KINDS, SCALES, ONNX_TOLERANCE))
def test_onnx_gives_the_same_scores(learns: tuple[str, str | None], scale: str, dtype: str, tmp_path: Path) -> None:
    """onnxruntime agrees on scores, labels and probabilities, for a task and for the mean model; zero rows too."""
    runtime = pytest.importorskip("onnxruntime")
    kind, loss = learns
    models, federation, _ = learned(kind, scale=scale, loss=loss)
    X = np.vstack([federation.test_X, np.zeros((1, 6))]).astype(dtype)
    for task in (federation.task_names[1], None):
        models.to_onnx(tmp_path / "m.onnx", task, dtype=dtype)
        session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(None, {"X": X}), strict=True))
        expected = models.scores(X, task)
        np.testing.assert_allclose(found["scores"], expected, rtol=0, atol=ONNX_TOLERANCE[dtype])
        assert ("label" in found) == (kind != "regression")
        assert ("probabilities" in found) == (loss == "logistic")
        if "label" in found:
            ordered = np.sort(np.hstack([expected, np.zeros((len(X), 1))]) if kind == "binary" else expected, axis=1)
            clear = ordered[:, -1] - ordered[:, -2] > 1e-4
            np.testing.assert_array_equal(found["label"][clear], models.labels(expected)[clear])
        if "probabilities" in found:
            np.testing.assert_allclose(found["probabilities"], models.probabilities(expected), atol=1e-5)


@pytest.mark.parametrize(
    "classes", [np.array([4, 9]), np.array([False, True]), np.array([0.5, 1.5]), np.array(["nö", "já"])]
)
def test_onnx_answers_with_the_labels_themselves(classes: np.ndarray, tmp_path: Path) -> None:
    """Whole numbers, truth values, numbers and text come out as they went in."""
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    models = TaskModels(rng.normal(size=(1, 1, 3)), (Scaler(),), np.array(["all"]), classes, 3)
    models.to_onnx(tmp_path / "m.onnx")
    X = rng.normal(size=(20, 3))
    label = runtime.InferenceSession(str(tmp_path / "m.onnx")).run(["label"], {"X": X})[0]
    assert label.tolist() == models.predict(X).tolist()


def test_onnx_says_what_to_install_and_what_it_can_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, and with a precision that there is not."""
    _, models = saved(tmp_path)
    with pytest.raises(ConfigError, match="unknown precision 'float16'"):
        models.to_onnx(tmp_path / "m.onnx", "a", dtype="float16")
    with pytest.raises(ConfigError, match="cannot write"):
        models.to_onnx(tmp_path / "nowhere" / "m.onnx", "a")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rhfedmtl\[onnx\]'"):
        models.to_onnx(tmp_path / "m.onnx", "a")


def test_plain_values_are_enough_to_compute_the_scores() -> None:
    """What `to_dict` says of a task gives, with a few lines of arithmetic, the scores of the models."""
    models, federation, _ = learned("classes")
    name = federation.task_names[2]
    facts = json.loads(json.dumps(models.to_dict()))["tasks"][name]
    X = federation.test_X.astype(np.float64)
    rows = (X - np.array(facts["mean"])) / np.array(facts["scale"])
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    scores = rows @ np.array(facts["weights"]).T + np.array(facts["intercept"])
    np.testing.assert_allclose(scores, models.scores(X, name), rtol=1e-12, atol=1e-12)
    assert facts["unit"]


def test_a_single_task_can_be_cut_out_and_saved(tmp_path: Path) -> None:
    """The model of one task, or the mean model, stands alone and scores as before."""
    models, federation, _ = learned()
    X = federation.test_X[:20]
    models.only("task-1").save(tmp_path / "one.npz")
    one = TaskModels.load(tmp_path / "one.npz")
    np.testing.assert_array_equal(one.scores(X), models.scores(X, "task-1"))
    assert one.tasks.tolist() == ["task-1"]
    np.testing.assert_array_equal(models.only().scores(X), models.scores(X))
    assert isinstance(replace(models, loss=Logistic()).only("task-0").loss, Logistic)
    assert models.certificate is not None
    assert (one.certificate, models.only().certificate) == (None, None)  # it is for all of them together
