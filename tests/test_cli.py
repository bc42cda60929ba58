"""The command line: one JSON object, plain errors, and nothing lost."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rhfedmtl import cli
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import ALGORITHMS
from rhfedmtl.cli_options import LEARNING

SMALL = ["train", "--tasks", "2", "--terminals", "2", "--budget", "energy=100"]


def rhfedmtl(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder of its own."""
    command = [sys.executable, "-c", "from rhfedmtl.cli import main; main()", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_the_help_names_every_algorithm_and_every_setting() -> None:
    """Lists that are written by hand, so that help stays fast, agree with what there is."""
    assert set(cli.NAMES) == set(ALGORITHMS)
    assert set(LEARNING) == {field.name for field in dataclasses.fields(Options)}


def test_train_prints_one_json_object_and_leaves_a_folder(tmp_path: Path) -> None:
    """Everything that a program needs is in the object, everything needed to repeat the run in the folder."""
    done = rhfedmtl(*SMALL, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    needed = (
        "accuracy balanced_accuracy primal dual gap rounds terminal_steps seed seconds spent budget binding local_steps"
    )
    assert set(needed.split()) <= set(facts)
    assert facts["spent"]["energy"] <= 100
    run = json.loads((tmp_path / facts["saved"] / "run.json").read_text())
    assert run["configuration"]["options"]["lambda1"] == 1e-3
    assert run["data"]["fingerprint"]
    with np.load(tmp_path / facts["saved"] / "model.npz", allow_pickle=False) as model:
        assert model["models"].shape[0] == 2
    assert (tmp_path / facts["saved"] / "ledger.json").exists()


def test_the_same_command_gives_the_same_numbers(tmp_path: Path) -> None:
    """Twice the same, to the bit, but for the clock and the folder."""
    one, two = (json.loads(rhfedmtl(*SMALL, "--json", folder=tmp_path).stdout) for _ in range(2))
    assert {**one, "seconds": 0, "saved": ""} == {**two, "seconds": 0, "saved": ""}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "--algorithm", "rhfedmlt"], "did you mean rhfedmtl?"),
        (["train", "--data", "har", "--path", "nowhere.npz"], "no such file or folder: nowhere.npz"),
        (["train", "--budget", "energy=1"], "cannot pay one round"),
        (["train", "--budget", "energy=x"], "energy"),
        (["train", "--budget", "energy=100", "--cost", "time=1,1"], "has no price"),
        (["train", "--relationship", "friends"], "unknown relationship 'friends'"),
        (["train", "--lambda1", "0"], "lambda1 must be a finite number > 0"),
        (["train", "--loss", "squared-hinge", "--policy", "fixed", "--local-steps", "0"], "local_steps must be"),
        (["train", "--target-gap", "-1"], "target_gap must be a finite number >= 0"),
        (["train", "--budget", "enrgy=200"], "has no price"),
        (["train", "--algorithm", "hfedmtl", "--local-steps", "99999999999999999999"], "local_steps must be"),
        (["train", "--faults", "rain=1"], "unknown fault 'rain'"),
        (["train", "--policy", "measured", "--local-steps", "3"], "decides H, K and M itself"),
        (["train", "--out", "/proc/nothing"], "cannot write to /proc/nothing"),
        (["compare", "--budgets", "much"], "--budgets needs numbers"),
    ],
)
def test_errors_are_plain_and_end_with_status_2(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a new user is likely to get wrong is answered in a line or two, without a traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rhfedmtl", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert says in said
    assert len(said.strip().splitlines()) <= 2
    assert not list(tmp_path.rglob("run.json"))


def test_an_interrupt_ends_after_the_round_and_keeps_what_was_learned(tmp_path: Path) -> None:
    """Ctrl-C once: the run ends, is certified and saved."""
    words = [sys.executable, "-c", "from rhfedmtl.cli import main; main()", "train", "--cloud-rounds", "1000000"]
    command = [*words, "--algorithm", "hfedmtl", "--json", "--certify-every", "1000000"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("runs/*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    facts = json.loads(out)
    assert process.returncode == 130, err
    assert facts["stopped"] == "interrupted"
    assert facts["rounds"] > 0
    assert (tmp_path / facts["saved"] / "model.npz").exists()
