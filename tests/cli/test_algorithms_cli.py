"""Every algorithm by its name on the command line, on real data where it is there; and tuning it first."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rhfedmtl.algorithms.registry import ALGORITHMS
from rhfedmtl.cli.main import app
from rhfedmtl.errors import ConfigError

HAR = Path(os.environ.get("RHFEDMTL_DATA", ".")) / "har.npz"
REAL = f"--data har --path {HAR} --positive SITTING --samples-per-task 70" if HAR.exists() else "--data synthetic"
COMMON = "--budget energy=1400 --cost energy=0.1,10 --seed 0 --json"


def train(words: str, folder: Path) -> dict[str, Any]:
    """Facts that the command prints: one JSON object and nothing else."""
    done = CliRunner().invoke(app, ["train", *words.split(), "--out", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    return dict(json.loads(done.stdout))


QUICK = ("rhfedmtl", "rhfedmtl-paper", "fedavg", "giant", "pooled")
"""An algorithm of each kind: the conformance tests train all of them without the command line."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in ALGORITHMS]
)
def test_every_algorithm_learns_from_the_command_line(name: str, tmp_path: Path) -> None:
    """One JSON object, within budget, better than chance but for the one that knows nothing."""
    facts = train(f"{REAL} --tasks 5 --terminals 5 --algorithm {name} {COMMON}", tmp_path)
    assert facts["algorithm"] == name
    assert facts["spent"].get("energy", 0.0) <= 1400
    assert (facts["balanced_accuracy"] > 0.6) is (name != "constant")


@pytest.mark.parametrize("name", ["fedavg", "local", "constant"])
def test_tuning_is_on_record_and_changes_what_is_run(name: str, tmp_path: Path) -> None:
    """What was tried, what was chosen, and that it was not charged; the run folder holds the chosen settings."""
    common = "--budget energy=150 --cost energy=0.1,10 --seed 0 --json --tune"
    facts = train(f"--data synthetic --tasks 2 --terminals 2 --algorithm {name} {common}", tmp_path)
    tuning = facts["tuning"]
    assert tuning["trials"] == len(tuning["tried"]) == (1 if name == "constant" else 24)
    assert tuning["charged"] is False
    assert facts["spent"].get("energy", 0.0) <= 150
    run = json.loads((Path(facts["saved"]) / "run.json").read_text())
    assert run["tuning"] == tuning
    assert run["configuration"]["tune"] == "auto"
    assert tuning["chosen"] in [tried["settings"] for tried in tuning["tried"]]


def test_an_unknown_algorithm_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    """All names, before any data is read, and no folder is left."""
    words = ["train", "--algorithm", "fedavrg", "--out", str(tmp_path / "runs")]
    with pytest.raises(
        ConfigError, match=f"choose from {', '.join(ALGORITHMS).replace('+', '.')}; did you mean fedavg"
    ):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "runs").exists()
