"""Models behind feature maps in ONNX files give the scores of the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.features.examples import SUMS, difficult, encoder
from tests.turns import in_turn

from rhfedmtl import RHFedMTLClassifier
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data.federation import Federation
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

TOLERANCE = {"float64": 1e-6, "float32": 2e-5}
SCALED = ("standard-unit", "standard-rms", "standard", "unit")


def learned(
    features: str, kind: str = "binary", scale: str = "standard-unit", *, per_station: bool = False, **options: Any
) -> tuple[TaskModels, Federation]:
    """Return models of a short run, and its data."""
    data = difficult(kind)
    built = build("rhfedmtl", Options.of(features=features, **options), data.kind)
    settings = Settings(scale=scale, scale_per_station=per_station, max_rounds=8)
    result = train(built.regroup(data), built.method, built.policy, settings, ledger=Ledger({}), judged=data)
    return TaskModels.from_result(data, result, built.method.loss, {"seed": 0}), data


def exported(models: TaskModels, task: str, X: Any, path: Path, dtype: str) -> dict[str, Any]:
    """Return all outputs of the exported model of a task."""
    models.to_onnx(path, task, dtype=dtype)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": X.astype(dtype)}), strict=True))


@pytest.mark.parametrize(("features", "scale", "dtype"), in_turn(SUMS, SCALED, TOLERANCE))
def test_onnx_gives_the_same_scores(features: str, scale: str, dtype: str, tmp_path: Path) -> None:
    """Test rows, training rows and a row of zeros, with outliers, discrete and constant columns."""
    models, data = learned(features, scale=scale, per_station=scale == "standard", loss="logistic")
    X = np.concatenate([data.test_X, data.X, np.zeros((1, 6))]).astype(dtype)
    for task in data.task_names[:2]:
        outputs = exported(models, task, X, tmp_path / "m.onnx", dtype)
        expected = models.scores(X, task)
        np.testing.assert_allclose(outputs["scores"], expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        np.testing.assert_allclose(outputs["probabilities"], models.probabilities(expected), atol=TOLERANCE[dtype])
        assert np.ptp(expected) > 0.1


@pytest.mark.parametrize("kind", ["classes", "regression"])
def test_onnx_of_classes_and_numbers(kind: str, tmp_path: Path) -> None:
    """Several columns, and labels that are numbers."""
    models, data = learned("splines+pairs", kind)
    outputs = exported(models, data.task_names[2], data.test_X, tmp_path / "m.onnx", "float64")
    np.testing.assert_allclose(outputs["scores"], models.scores(data.test_X, data.task_names[2]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("kind", "opset", "dtype"), in_turn(["float", "double"], [14, 18, 20], TOLERANCE))
def test_an_encoder_is_a_part_of_the_exported_model(kind: str, opset: int, dtype: str, tmp_path: Path) -> None:
    """The file needs no other file; two encoders and other maps stand side by side."""
    first = encoder(tmp_path / "a.onnx", kind=kind, opset=opset)
    second = encoder(tmp_path / "b.onnx", size=3, opset=opset, seed=1)
    models, data = learned(f"onnx={first}+splines=3+onnx={second}")
    outputs = exported(models, data.task_names[0], data.test_X, tmp_path / "m.onnx", dtype)
    expected = models.scores(data.test_X.astype(dtype), data.task_names[0])
    np.testing.assert_allclose(outputs["scores"], expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_a_table_with_gaps_and_texts_is_mapped_in_its_columns_of_numbers(tmp_path: Path) -> None:
    """The preparation, the scaling, the map of the first columns and the second scaling are in the file."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3))
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    frame.loc[::7, "b"] = np.nan
    frame["colour"] = rng.choice(["red", "green", "blue"], size=150)
    y = X[:, 0] ** 2 + np.nan_to_num(X[:, 1]) > 0.5
    model = RHFedMTLClassifier(features="splines=4+pairs+fourier=8", random_state=0).fit(frame, y)
    models = model.models_
    assert "@" in models.features
    models.to_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    given = {"X": frame[["a", "b", "c"]].to_numpy(), "text": frame[["colour"]].to_numpy().astype(object)}
    scores = session.run(["scores"], given)[0]
    np.testing.assert_allclose(scores[:, 0], model.decision_function(frame), rtol=1e-6, atol=1e-6)
