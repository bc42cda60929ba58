"""Mistakes that a new user is likely to make are answered in a line or two, with the way out and no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NO_TASK = "a,b,y\n" + "\n".join(f"{i},{i % 3},{i % 2}" for i in range(40))


def answer(words: list[str], cwd: Path, hidden: str = "") -> subprocess.CompletedProcess[str]:
    """What the command line says, in a process of its own; ``hidden`` is a package that is not installed."""
    hide = f"import sys; sys.modules[{hidden!r}] = None; " if hidden else ""
    script = f"{hide}from rhfedmtl.cli import main; main()"
    return subprocess.run([sys.executable, "-c", script, *words], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "hidden", "says"),
    [
        (["train", "--algorithm", "rhfedmlt"], "", "did you mean rhfedmtl"),
        (["train", "--data", "hra"], "", "did you mean har"),
        (["train", "--data", "table", "--path", "nowhere.csv"], "", "nowhere.csv"),
        (["train", "--data", "table", "--path", "no_task.csv"], "", "task"),
        (["train", "--budget", "energy=1"], "", "the cheapest plan"),
        (["train", "--budget", "energie=100", "--cost", "energy=0.1,10"], "", "energie"),
        (["train", "--budget", "energy=many"], "", "many"),
        (["train", "--cost", "energy"], "", "energy"),
        (["train", "--out", "no_task.csv/runs"], "", "--out"),
        (["train", "--log", "tensorboard"], "tensorboardX", "pip install 'rhfedmtl[tensorboard]'"),
        (["train", "--target-gap", "-1"], "", "-1"),
        (["compare", "--budgets", "1,x"], "", "'x'"),
        (["compare", "nowhere.toml"], "", "nowhere.toml"),
        (["compare", "--out", "no_task.csv/out"], "", "--out"),
        (["reproduce", "table4"], "", "did you mean table3"),
        (["reproduce", "table3", "--path", "nowhere.npz"], "", "nowhere.npz"),
        (["report", "nowhere"], "", "nowhere"),
        (["runs", "list", "--folder", "nowhere"], "", "nowhere"),
        (["runs", "show", "nothing", "--folder", "."], "", "nothing"),
        (["plan", "--budget", "energy=1"], "", "cheapest"),
        (["predict", "nowhere", "--path", "no_task.csv"], "", "nowhere"),
        (["export", "nowhere", "--task", "a", "--out", "a.onnx"], "", "nowhere"),
        (["data", "describe", "table", "--path", "empty.csv"], "", "empty.csv"),
    ],
)
def test_a_mistake_is_answered_in_a_line_or_two(tmp_path: Path, words: list[str], hidden: str, says: str) -> None:
    """Status 2, the value and the way out, no traceback, nothing left behind."""
    (tmp_path / "no_task.csv").write_text(NO_TASK)
    (tmp_path / "empty.csv").write_text("")
    told = answer(words, tmp_path, hidden)
    assert told.returncode == 2, told.stderr
    assert "Traceback" not in told.stderr
    assert says in told.stderr.replace("\n", " ")
    assert len(told.stderr.strip()) <= 420
    assert not list(tmp_path.glob("runs/*"))
