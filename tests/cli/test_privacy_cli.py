"""``--privacy`` on the commands: what is planned, spent and certified, as a user reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.problems import federation
from typer.testing import CliRunner

from rhfedmtl.cli.main import app
from rhfedmtl.errors import ConfigError
from rhfedmtl.estimators.classifier import RHFedMTLClassifier

BOUND = ["--privacy", "epsilon=2,delta=1e-5"]
DATA = ["--data", "synthetic", "--tasks", "2", "--terminals", "40", "--set", "samples=8", "--set", "features=6"]


def said(*words: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


def test_a_plan_says_what_epsilon_buys() -> None:
    """Rounds, clip, noise, how many terminals would do, and the price of ε beside that of energy."""
    sizes = ["--tasks", "5", "--terminals", "1500", "--samples-per-task", "32000", "--budget", "energy=1e6"]
    facts = said("plan", *sizes, "--privacy", "epsilon=1,delta=1e-6")
    plan = facts["privacy"]
    assert plan["rounds"] == facts["rounds"] > 0
    assert plan["clip"] > 0.0
    assert plan["noise"] > 0.0
    assert plan["spent"]["epsilon"] <= 1.0
    assert facts["cost"]["privacy"] == pytest.approx(plan["spent"]["privacy"])  # all rounds, and the certificate
    assert facts["share"]["privacy"] == pytest.approx(1.0)
    assert set(facts["shadow_price"]) == {"energy", "privacy", "epsilon"}
    more = said("plan", *sizes, "--privacy", "epsilon=8,delta=1e-6")["privacy"]
    assert more["enough_terminals"] < plan["enough_terminals"]
    assert more["noise"] / more["clip"] < plan["noise"] / plan["clip"]


def test_a_plan_that_is_shown_names_privacy() -> None:
    """In words, with the features known."""
    words = [
        "plan",
        "--terminals",
        "1500",
        "--samples-per-task",
        "32000",
        "--n-features",
        "32",
        "--budget",
        "energy=1e6",
    ]
    result = CliRunner().invoke(app, [*words, *BOUND])
    assert result.exit_code == 0, result.output
    assert "epsilon 2 at delta 1e-05" in " ".join(result.output.split())
    assert "noise costs a point of accuracy" in " ".join(result.output.split())
    assert "is too large for" not in result.output
    result = CliRunner().invoke(app, [*words, "--privacy", "epsilon=1,delta=0.5"])
    assert "delta=0.5 is too large for 7,500 terminals" in " ".join(result.output.split())


def test_a_run_says_what_it_told(tmp_path: Path) -> None:
    """ε and μ² spent, accuracy, and a certificate with its probability; the words can be repeated."""
    facts = said("train", *DATA, "--budget", "energy=1e5", *BOUND, "--out", str(tmp_path))
    assert facts["spent"]["epsilon"] <= 2.0
    assert facts["spent"]["privacy"] <= facts["budget"]["privacy"]
    assert facts["certificate"]["probability"] == pytest.approx(1.0 - 1e-6)
    assert 0.0 <= facts["accuracy"] <= 1.0
    assert json.loads((Path(facts["saved"]) / "run.json").read_text())["configuration"]["privacy"] == BOUND[1]


def test_rivals_are_compared_under_the_same_account(tmp_path: Path) -> None:
    """At equal budget and equal ε."""
    words = ["compare", *DATA, "--algorithms", "rhfedmtl,fedavg,local", "--budgets", "2000", "--seeds", "1"]
    facts = said(*words, *BOUND, "--workers", "1", "--out", str(tmp_path))
    assert [cell["mean"] is not None for cell in facts["cells"]] == [True] * 3
    runs = [json.loads(path.read_text()) for path in tmp_path.rglob("*.json")]
    spent = [run["result"]["spent"]["epsilon"] for run in runs if "result" in run]
    assert len(spent) == 3
    assert max(spent) <= 2.0


def test_an_estimator_keeps_to_the_bound() -> None:
    """And refuses to go on, to start from duals, or to choose weights on rows."""
    data = federation(sizes=((3,) * 30, (3,) * 30))
    terminal = np.repeat(np.arange(60), 3)
    model = RHFedMTLClassifier(privacy=BOUND[1], random_state=0)
    model.fit(data.X, data.y, task=data.row_task, terminal=terminal)
    assert model.ledger_.spent["privacy"] <= model.ledger_.budget["privacy"] * (1 + 1e-12)
    assert "probability" in model.certificate_.words or "uninformative" in model.certificate_.words
    with pytest.raises(ConfigError, match="call fit again"):
        model.resume("energy=5")
    with pytest.raises(ConfigError, match="as numbers"):
        RHFedMTLClassifier(privacy=BOUND[1], lambda2="auto").fit(data.X, data.y, task=data.row_task)
