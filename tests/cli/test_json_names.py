"""Names in ``--json`` are kept, so they are written down."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rhfedmtl.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "command_line.md"
SMALL = ["--tasks", "2", "--terminals", "2"]


def printed(*words: str) -> dict[str, Any]:
    """The object that a command prints."""
    found: dict[str, Any] = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    return found


def test_every_name_that_json_prints_is_in_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the row of its command; those of cells and areas too."""
    monkeypatch.chdir(tmp_path)
    found = {
        "train": printed("train", *SMALL, "--budget", "energy=200", "--tune"),
        "plan": printed("plan", *SMALL, "--budget", "energy=200"),
        "compare": printed("compare", *SMALL, "--algorithms", "rhfedmtl,local", "--budgets", "100,200", "--seeds", "2"),
        "certify": printed("certify", "runs"),
    }
    (tmp_path / "rows.csv").write_text(",".join(f"x{i}" for i in range(20)) + "\n" + ",".join(["0"] * 20) + "\n")
    found["predict"] = printed("predict", "runs", "--path", "rows.csv", "--task", "task-0")
    found["train"] |= printed("train", *SMALL, "--budget", "energy=200", "--lambda2", "auto")
    found["compare"] |= found["compare"]["cells"][0] | found["compare"]["overall"][0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    for command, facts in found.items():
        assert facts.keys() - set(re.findall(r"`([a-z_0-9]+)`", rows[command])) == set(), command
