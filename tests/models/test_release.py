"""Private release: noise as large as one row can move the models, and refusals that name the way out."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.problems import federation
from typer.testing import CliRunner

from rhfedmtl.algorithms.options import Options
from rhfedmtl.cli.main import app
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError
from rhfedmtl.estimators.classifier import RHFedMTLClassifier
from rhfedmtl.maths.gaussian_privacy import delta_of, mu_of
from rhfedmtl.models.release import Releases, sensitivity_of
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.plain import plain
from rhfedmtl.training.config import RunConfig

REQUEST = Request(data="synthetic", tasks=3, terminals=2, settings={"samples": 20, "features": 4, "test": 10})
CONFIG = RunConfig(
    request=REQUEST, options=Options(lambda1=0.1, lambda2=0.3), scale="unit", target_gap=1e-6, budget=("energy=1e6",)
)


def learn(config: RunConfig = CONFIG, data: Federation | None = None) -> TaskModels:
    """Models as a run leaves them."""
    data = data or config.federation()
    loss = config.options.chosen_loss(data.kind)
    return TaskModels.from_result(data, config.run(data), loss, {"configuration": plain(config.to_dict())})


def learned() -> TaskModels:
    """Models that may be released, and were not yet."""
    return replace(_learned(), releases=Releases())


@cache
def _learned() -> TaskModels:
    return learn()


@pytest.mark.parametrize(("kind", "relationship"), [("binary", "mean"), ("binary", "none"), ("classes", "mean")])
def test_no_row_moves_models_by_more_than_is_hidden(kind: str, relationship: str) -> None:
    """Rows replaced by their opposite, each task's in turn: ‖ΔŴ‖_Q stays within the sensitivity, and comes near it."""
    data = federation(kind, sizes=((4, 3), (3, 2), (9, 6)))
    config = replace(CONFIG, options=CONFIG.options.changed(relationship=relationship, loss="logistic"))
    base = learn(config, data)
    coupling = config.options.chosen_relationship()
    bound = sensitivity_of(base, coupling, 1e-6)
    moved = []
    for row in (0, 7, 8, 11, 12, 20):
        X, y = data.X.copy(), data.y.copy()
        X[row], y[row] = -X[row] if kind == "binary" else X[row], (y[row] + 1) % len(data.class_names)
        other = learn(config, replace(data, X=X, y=y))
        moved.append(np.sqrt(coupling.energy(other.models - base.models)))
    assert max(moved) <= bound
    assert max(moved) >= 0.05 * bound


def test_noise_has_the_covariance_of_the_coupling() -> None:
    """Z = s G^½ N: across tasks s²G, and s = sensitivity/μ."""
    models = learned()
    found = [models.release(1.0, 1e-6, address=(k,)) for k in range(400)]
    statement = found[0].provenance["privacy"]
    Z = np.array([each.models - models.models for each in found]).reshape(400, 3, -1)
    G = CONFIG.options.chosen_relationship().dense(3).G
    covariance = np.einsum("kad,kbd->ab", Z, Z) / (400 * Z.shape[2])
    np.testing.assert_allclose(covariance, statement["noise"] ** 2 * G, rtol=0.15)
    assert statement["sensitivity"] / statement["noise"] == pytest.approx(statement["mu"])


def test_nothing_else_of_the_rows_is_in_a_released_file(tmp_path: Path) -> None:
    """No certificate, bill, rounds, fingerprint or model of all rows; the statement is there."""
    models = learned()
    released = replace(models, unseen=models.model_of(0)).release(1.0)
    assert released.unseen is None
    released.save(tmp_path / "released.npz")
    again = TaskModels.load(tmp_path / "released.npz")
    assert again.certificate is None
    assert not again.ledger
    assert set(again.provenance) == {"rhfedmtl", "data", "privacy"}
    assert "fingerprint" not in again.provenance["data"]
    assert again.provenance["privacy"]["epsilon"] == 1.0
    assert not np.array_equal(learned().release(1.0).models, released.models)


REFUSED: dict[str, dict[str, Any]] = {
    "--scale unit": {"scale": "standard-unit"},
    "--target-gap 1e-6": {"target_gap": 0.0},
    "larger --target-gap": {"budget": ("energy=100",), "target_gap": 1e-12},
    "--relationship mean or none": {"options": Options(relationship="learned", lambda1=0.1)},
    "--loss smoothed-hinge": {"options": Options(loss="squared-hinge", lambda1=0.1)},
    "rhfedmtl, hfedmtl or local": {"algorithm": "cocoa+", "target_gap": 1e-3},
    "shared unchanged": {"privacy": "epsilon=4,delta=1e-3", "target_gap": 0.0},
}


@pytest.mark.parametrize("way", REFUSED)
def test_what_cannot_be_released_is_refused_with_the_way_out(way: str) -> None:
    """Each obstacle by its name."""
    models = learn(replace(CONFIG, **REFUSED[way]))
    with pytest.raises(ConfigError, match=way):
        models.release(1.0)


def test_models_are_released_once() -> None:
    """Noise upon noise says nothing of what both tell."""
    with pytest.raises(ConfigError, match="already"):
        learned().release(1.0).release(1.0)


def test_estimators_release_what_they_learned() -> None:
    """With a tolerance as the target."""
    data = federation(sizes=((30,), (30,)))
    model = RHFedMTLClassifier(scale="unit", lambda1=0.1, lambda2=0.1, random_state=0)
    model.fit(data.X, data.y, task=data.row_task)
    released = model.release(2.0, 1e-5)
    assert released.provenance["privacy"]["target_gap"] == pytest.approx(1e-3 * model.certificate_.zero)
    assert released.models.shape == model.models_.models.shape


def test_the_command_writes_a_model_with_its_statement(tmp_path: Path) -> None:
    """``release RUN --epsilon 1 --delta 1e-6``."""
    learned().save(tmp_path / "model.npz")
    result = CliRunner().invoke(app, ["release", str(tmp_path), "--epsilon", "1", "--delta", "1e-6"])
    assert result.exit_code == 0, result.output
    assert "for any one training row replaced" in result.output
    assert TaskModels.load(tmp_path / "released.npz").provenance["privacy"]["delta"] == 1e-6
    assert "losses add up" in result.output
    assert "so far" not in result.output


def test_releases_of_the_same_models_are_charged_to_them(tmp_path: Path) -> None:
    """Whatever files they go to: μ² adds up, and the statement inside the last one says so."""
    learned().save(tmp_path / "model.npz")
    for epsilon, name in ((1.0, "one"), (2.0, "other"), (1.0, "third")):
        words = ["release", str(tmp_path / "model.npz"), "--epsilon", str(epsilon), "--out", str(tmp_path / name)]
        result = CliRunner().invoke(app, words)
    told = TaskModels.load(tmp_path / "third").provenance["privacy"]["in_all"]
    together = math.sqrt(2 * mu_of(1.0, 1e-6) ** 2 + mu_of(2.0, 1e-6) ** 2)
    assert told["releases"] == 3
    assert delta_of(told["epsilon"], together) == pytest.approx(1e-6, rel=1e-6)
    assert 2.0 < told["epsilon"] < 4.0
    assert f"3 of these models so far, together ({told['epsilon']:.4g}, 1e-06)" in result.output


def test_releases_in_python_are_charged_too_and_follow_the_models(tmp_path: Path) -> None:
    """To models in memory, to their file once they are saved, and to models that are loaded from it."""
    models = learned()
    first, second = (models.release(1.0) for _ in range(2))
    assert [each.provenance["privacy"]["in_all"]["releases"] for each in (first, second)] == [1, 2]
    models.release(1.0, address=(1,))
    models.save(tmp_path / "model.npz")
    assert models.release(1.0).provenance["privacy"]["in_all"]["releases"] == 3
    again = TaskModels.load(tmp_path / "model.npz").release(1.0)
    told = again.provenance["privacy"]["in_all"]
    assert told["releases"] == 4
    assert told["mu"] == pytest.approx(2.0 * mu_of(1.0, 1e-6))
    again.save(tmp_path / "released.npz")
    assert [each.name for each in tmp_path.glob("*.jsonl")] == ["model.releases.jsonl"]
