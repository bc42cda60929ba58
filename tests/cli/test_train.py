"""The command line: one JSON object, plain errors, and nothing lost."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.waiting import wait_for

from rhfedmtl.algorithms.options import RESERVED, option_kinds
from rhfedmtl.algorithms.registry import ALGORITHMS, CHANNELS, MERGES
from rhfedmtl.cli import live
from rhfedmtl.cli import main as cli
from rhfedmtl.cli.options import LEARNING
from rhfedmtl.cli.settings import COMMON
from rhfedmtl.data.registry import DATASETS
from rhfedmtl.engines.registry import ENGINES
from rhfedmtl.maths.registry import LOSSES, RELATIONSHIPS
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.training.faults import Faults

SMALL = ["train", "--tasks", "2", "--terminals", "2", "--budget", "energy=100"]


def rhfedmtl(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder of its own, as a process would but in this one, which has everything imported."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    here = contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with here[0], here[1], here[2], pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["rhfedmtl", *words])
        try:
            cli.main()
        except SystemExit as ended:
            status = int(ended.code or 0)
    return subprocess.CompletedProcess(list(words), status, out.getvalue(), err.getvalue())


def test_the_help_names_all_that_the_registries_hold() -> None:
    """Every algorithm, loss, relationship, merge, policy, engine and data set, and every option; nothing numerical."""
    say = (
        "import sys; from rhfedmtl.cli.main import program; program()(['train', '--help-all'], standalone_mode=False);"
    )
    say += "print(sorted({'numpy', 'scipy', 'numba', 'sklearn'} & sys.modules.keys()))"
    command = [sys.executable, "-c", say]
    environment = os.environ | {"COLUMNS": "5000", "NO_COLOR": "1"}
    told = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    assert told.splitlines()[-1] == "[]"
    for registry in (ALGORITHMS, LOSSES, RELATIONSHIPS, MERGES, POLICIES, DATASETS):
        assert ", ".join(registry) in told, registry.noun
    assert ", ".join(ENGINES.own) in told
    for name, (_, default) in LEARNING.items():
        assert f"--{name.replace('_', '-')} " in told
        assert default is None
    assert set(LEARNING) - {"masked"} == set(option_kinds())  # which is another word for --channel masked


def test_the_text_says_whether_evaluation_was_charged(tmp_path: Path) -> None:
    """--free-evaluation buys more rounds with the same bytes, and is written down; else the record has no such word."""
    words = ["train", "--tasks", "2", "--terminals", "2", "--budget", "bytes=100000"]
    charged, free = (rhfedmtl(*words, *more, folder=tmp_path).stdout for more in ([], ["--free-evaluation"]))
    assert "its messages were charged" in charged
    assert "not charged (--free-evaluation)" in free
    tables = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/run.json")]
    declared = {table["configuration"].get("free_evaluation"): table["result"]["rounds"] for table in tables}
    assert declared[True] > declared[None]


def test_words_of_commands_are_reserved() -> None:
    """An option of a plugin cannot have the name of a parameter that a command with learning options has."""
    program = cli.program()
    network = program.commands["network"].commands
    for command in (*map(program.commands.get, ("train", "compare", "plan")), network["init"]):
        assert {parameter.name for parameter in command.params} - {*LEARNING, "help_all"} <= RESERVED


def test_help_is_short_and_help_all_is_not(tmp_path: Path) -> None:
    """The common options fit on a screen; completion and ``--help-all`` have all of them."""
    for path, common in COMMON.items():
        command = cli.program()
        for name in path.split():
            command = command.commands[name]
        assert set(common) <= {parameter.name for parameter in command.params}, path
    short, long = (rhfedmtl("train", word, folder=tmp_path) for word in ("--help", "--help-all"))
    assert short.returncode == long.returncode == 0
    assert len(short.stdout.splitlines()) <= 60
    assert "--lambda2" in short.stdout
    assert "--lambda1" not in short.stdout
    assert "--lambda1" in long.stdout


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
        (["train", "--lambda1", "1e-300"], "lambda1 must lie between 1e-100 and 1e+100, got 1e-300"),
        (["train", "--lambda2", "1e200"], "lambda2 must lie between 0 and 1e+100, got 1e+200"),
        (["train", "--loss", "squared-hinge", "--policy", "fixed", "--local-steps", "0"], "local_steps must be"),
        (["train", "--target-gap", "-1"], "target_gap must be a finite number >= 0"),
        (["train", "--budget", "enrgy=200"], "has no price"),
        (["train", "--algorithm", "hfedmtl", "--local-steps", "99999999999999999999"], "local_steps must be"),
        (["train", "--faults", "rain=1"], "unknown fault 'rain'"),
        (["train", "--set", "path=rows.csv"], "an option of its own, --path"),
        (["train", "--policy", "measured", "--local-steps", "3"], "decides H, K and M itself"),
        (["train", "--out", "/proc/nothing"], "cannot write to /proc/nothing"),
        (["data", "split", "synthetic", "--out", "/proc/nothing"], "cannot use /proc/nothing"),
        (["reproduce", "fig-cost", "--out", "/proc/nothing"], "cannot use /proc/nothing"),
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


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_after_the_round_and_keeps_what_was_learned(tmp_path: Path) -> None:
    """Ctrl-C once: the run ends, is certified and saved."""
    words = [sys.executable, "-c", "from rhfedmtl.cli.main import main; main()", "train", "--cloud-rounds", "1000000"]
    command = [*words, "--algorithm", "hfedmtl", "--json", "--certify-every", "1000000", "--checkpoint-every", "0.01"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: list(tmp_path.glob("runs/*/checkpoint")) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    facts = json.loads(out)
    assert process.returncode == 130, err
    assert facts["stopped"] == "interrupted"
    assert facts["rounds"] > 0
    assert (tmp_path / facts["saved"] / "model.npz").exists()


def test_a_file_is_a_table_unless_told_otherwise(tmp_path: Path) -> None:
    """--path alone names rows of one's own; in train and in plan."""
    rows = [f"{i % 7},{i % 3},{i % 5},{'ab'[i % 2]}" for i in range(80)]
    (tmp_path / "mine.csv").write_text("\n".join(["x,z,task,y", *rows]) + "\n")
    done = rhfedmtl("train", "--path", "mine.csv", "--budget", "energy=300", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / json.loads(done.stdout)["saved"] / "run.json").read_text())
    assert run["data"]["name"] == "table"
    done = rhfedmtl("plan", "--path", "mine.csv", "--budget", "energy=300", "--json", folder=tmp_path)
    assert json.loads(done.stdout)["configuration"]["data"]["path"] == "mine.csv"


def test_names_of_tasks_are_shown_as_they_are(tmp_path: Path) -> None:
    """Brackets and colons mean nothing to the table; without test rows there is none."""
    rows = [f"{name},{i % 3},{i % 2}" for name in ("[/x]", "[red]y", ":car:") for i in range(8)]
    (tmp_path / "t.csv").write_text("task,a,y\n" + "\n".join(rows))
    words = ["train", "--path", "t.csv", "--terminals", "2", "--budget", "energy=100"]
    told = rhfedmtl(*words, folder=tmp_path).stdout
    assert all(f"│ {name}" in told for name in ("[/x]", "[red]y", ":car:"))
    assert "no task has test rows" in rhfedmtl(*words, "--test-fraction", "0", folder=tmp_path).stdout


def test_text_for_people_fits_80_columns(tmp_path: Path) -> None:
    """Tables and facts of every command that prints them; commands to copy stay whole."""
    done = rhfedmtl(*SMALL, "--json", folder=tmp_path)
    run = json.loads(done.stdout)["saved"]
    commands = (
        SMALL, ["runs", "list"], ["runs", "show", Path(run).name], ["reproduce"], ["train", "--faults", "help"],
        ["doctor"], ["data", "list"], ["compare", *SMALL[1:5], "--budgets", "100", "--seeds", "1"], ["--help"],
    )  # fmt: skip
    for words in commands:
        done = rhfedmtl(*words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        wide = [line for line in done.stdout.splitlines() if len(line) > 80 and not line.startswith("repeat")]
        assert not wide, wide


def test_reproduce_and_faults_explain_themselves(tmp_path: Path) -> None:
    """What can be reproduced has titles, also as JSON; every fault has its default and what it means."""
    listed = json.loads(rhfedmtl("reproduce", "--json", folder=tmp_path).stdout)
    assert listed["all"]["table3"].startswith("Table III")
    assert "dropouts" in listed["beyond"]
    told = rhfedmtl("train", "--faults", "help", folder=tmp_path)
    assert told.returncode == 0
    assert {f"{field.name}={field.default}" for field in dataclasses.fields(Faults)} <= set(
        told.stdout.replace(",", "").split()
    )


def test_names_explain_themselves(tmp_path: Path) -> None:
    """Every option that takes a name of a registry answers ``help`` with a line on each."""
    registries = {"--algorithm": ALGORITHMS, "--loss": LOSSES, "--relationship": RELATIONSHIPS, "--engine": ENGINES}
    for name, registry in (registries | {"--merge": MERGES, "--policy": POLICIES, "--channel": CHANNELS}).items():
        told = rhfedmtl("train", name, "help", folder=tmp_path)
        lines = " ".join(told.stdout.split())
        assert told.returncode == 0
        assert all(f"{entry} {registry[entry].title}" in lines for entry in registry)


def test_a_run_ends_where_nothing_is_left_to_buy(tmp_path: Path) -> None:
    """An absurd budget is not spent on digits that no number has."""
    done = rhfedmtl("train", "--tasks", "2", "--lambda1", "0.1", "--budget", "energy=1e12", "--json", folder=tmp_path)
    facts = json.loads(done.stdout)
    assert facts["stopped"] == "relative gap of 1e-12 reached"
    assert facts["relative_gap"] <= 1e-12


def test_every_command_stands_in_a_panel_of_the_help() -> None:
    """None is forgotten, and none is named that there is not."""
    assert {name for names in cli.PANELS.values() for name in names} == set(cli.program().commands)


@pytest.mark.parametrize(
    "options", [["--budget", "energy=400"], ["--algorithm", "hfedmtl", "--cloud-rounds", "9"], ["--lambda2", "0.01"]]
)
def test_progress_rises_to_its_end(options: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By budget, by server iterations, or by the logarithm of the gap: from near 0 to 1, and never past it by much."""
    shares: list[float] = []
    measure = live.ShareDone.__call__

    def spy(self: live.ShareDone, progress: Any) -> float:
        shares.append(measure(self, progress))
        return shares[-1]

    monkeypatch.setattr(live.ShareDone, "__call__", spy)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "argv", ["rhfedmtl", "train", "--tasks", "2", *options, "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        cli.main()
    assert shares[0] < 0.5
    assert 0.8 < shares[-1] < 1.2


def test_a_run_is_certified_on_its_own_rows_and_weights(tmp_path: Path) -> None:
    """Unless others are named, which is said; the relationship that a run has learned is that of its models."""
    words = [
        "train",
        "--tasks",
        "2",
        "--terminals",
        "2",
        "--set",
        "samples=20",
        "--seed",
        "3",
        "--lambda1",
        "0.05",
        "--budget",
        "energy=2000",
    ]
    for more in (
        [],
        ["--relationship", "learned"],
        ["--algorithm", "mocha"],
        ["--algorithm", "local"],
        ["--privacy", "epsilon=8,delta=1e-6", "--terminals", "60"],
    ):
        run = json.loads(rhfedmtl(*words, *more, "--json", folder=tmp_path).stdout)
        found = json.loads(rhfedmtl("certify", run["saved"], "--json", folder=tmp_path).stdout)
        assert found["trained_on"]
        assert (found["gap_in_training"] or found["gap"]) <= found["gap"]
        if more[-1:] in (["learned"], ["mocha"]):  # whose dual variables are of the relationship as it was then
            assert found["gap_in_training"] is None
        other = json.loads(rhfedmtl("certify", run["saved"], "--lambda2", "0.3", "--json", folder=tmp_path).stdout)
        assert other["gap_in_training"] is None
        if "--privacy" in more:
            assert found["problem"]["lambda2"] == run["privacy"]["lambda2"]
        else:
            assert found["relative_gap"] < 0.01
            assert found["primal"] == pytest.approx(run["primal"], rel=1e-4)
    other = rhfedmtl("certify", run["saved"], "--seed", "1", folder=tmp_path)
    assert "other rows or another split than in training" in other.stdout


@pytest.mark.parametrize("algorithm", ["pooled", "cocoa"])
def test_what_one_model_for_all_tasks_certified_is_no_bound_for_their_own(algorithm: str, tmp_path: Path) -> None:
    """Its dual variables are of one task: of the problem that is told the model is far from the best."""
    words = ["train", "--tasks", "2", "--terminals", "2", "--algorithm", algorithm, "--budget", "energy=2000", "--json"]
    run = json.loads(rhfedmtl(*words, folder=tmp_path).stdout)
    found = json.loads(rhfedmtl("certify", run["saved"], "--json", folder=tmp_path).stdout)
    assert found["trained_on"]
    assert found["gap_in_training"] is None
    assert found["gap"] > 2.0 * run["gap"]


def test_a_budget_that_pays_nothing_is_a_reason_in_compare_and_one_that_does_not_end_does_not_bind(
    tmp_path: Path,
) -> None:
    nothing = ["compare", *SMALL[1:5], "--budgets", "5", "--seeds", "1"]
    done = rhfedmtl(*nothing, folder=tmp_path)
    assert done.returncode == 2
    assert "not run: budget energy=5 cannot pay one round" in done.stdout
    found = json.loads(rhfedmtl(*nothing, "--json", folder=tmp_path).stdout)
    assert "budget energy=5 cannot pay one round" in found["not_run"][0]
    assert {cell["half"] for cell in found["cells"]} == {None}
    done = rhfedmtl("train", *SMALL[1:5], "--budget", "energy=1e6", "--target-gap", "0.5", "--json", folder=tmp_path)
    assert json.loads(done.stdout)["binding"] is None
    assert "no budget: limit on rounds reached" in rhfedmtl("plan", "--budget", "energy=1e9", folder=tmp_path).stdout
