"""Mistakes that a new user is likely to make are answered in a line or two, with the way out and no traceback."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rhfedmtl.cli import main as command_line
from rhfedmtl.cli.main import main
from rhfedmtl.deploy.node import serve

NO_TASK = "a,b,y\n" + "\n".join(f"{i},{i % 3},{i % 2}" for i in range(40))


SEEDED = [
    [*words, "--seed", str(2**64)]
    for words in (["train"], ["plan"], ["data", "split"], ["data", "describe"], ["certify", "m.npz"])
]


@pytest.fixture(scope="module", autouse=True)
def made_once() -> Iterator[None]:
    """The command line is made once for all calls here, as it is once in a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_line, "program", cache(command_line.program))
        yield


@pytest.mark.parametrize(
    ("words", "hidden", "says"),
    [
        (["train", "--algorithm", "rhfedmlt"], "", "did you mean rhfedmtl"),
        (["train", "--data", "hra"], "", "did you mean har"),
        (["train", "--data", "table", "--path", "nowhere.csv"], "", "nowhere.csv"),
        (["train", "--data", "table", "--path", "no_task.csv"], "", "task"),
        (["train", "--path", "nowhere.csv"], "", "nowhere.csv"),
        (["train", "--path", "no_task.csv"], "", "name the column of tasks with --task"),
        (["train", "--path", "no_task.csv", "--label", "z"], "", "name the column of labels with --label"),
        (["train", "--path", "empty.csv"], "", "empty.csv"),
        (["train", "--path", "header.csv"], "", "no rows"),
        (["train", "--path", "gaps.csv", "--missing", "error"], "", "line 3"),
        (["train", "--data", "synthetic", "--path", "no_task.csv"], "", "is a file"),
        (["train", "--budget", "1400"], "", "energy=1400"),
        (["train", "--budget", "energie=100"], "", "did you mean energy"),
        (["train", "--faults", "dropuot=0.3"], "", "did you mean dropout"),
        (["train", "--algorithm", "hfedmtl", "--mu", "3"], "", "mu has no effect on hfedmtl"),
        (
            ["train", "--loss", "logistic", "--gamma", "2"],
            "",
            "gamma has no effect on loss logistic: leave it out, or take loss smoothed-hinge",
        ),
        (
            ["train", "--clip-norm", "2"],
            "",
            "no effect on channel identity: leave it out, or take channel clip",
        ),
        (["plan", "--loss", "hinge", "--gamma", "2"], "", "gamma has no effect on loss hinge"),
        (["train", "--algorithm", "hfedmtl", "--mu", "3", "--loss", "logistic"], "", "mu has no effect on hfedmtl"),
        (["train", "--budget", "energy"], "", "'energy' has no number: write it as in --budget energy=1400"),
        (["train", "--budget", "time, energy=3"], "", "'time' has no number"),
        (["train", "--budget", "1400"], "", "'1400' names no resource type"),
        (["runs", "list", "there", "--folder", "here"], "", "there and --folder here"),
        (["train", "--algorithm", "fedavg", "--station-rounds", "5"], "", "hierfavg"),
        (["train", "--algorithm", "fedavg", "--lambda2", "auto"], "", "no weights to choose"),
        (["train", "--lambda2", "much"], "", "needs a number, or auto"),
        (["train", "--lambda1", "auto"], "", "the two are chosen together"),
        *((words, "", "between 0 and 9223372036854775807") for words in SEEDED),
        (["train", "--resume", "."], "", "no checkpoint"),
        (["train", "--engine", "ray"], "ray", "pip install 'rhfedmtl[ray]'"),
        (["plan", "--budget", "energy=1400", "--step", "3"], "", "step has no effect on a plan"),
        (["compare", "--algorithms", "rhfedmtl,local", "--local-steps", "3"], "", "local_steps has no effect"),
        (["train", "--budget", "energy=1"], "", "the cheapest plan"),
        (["train", "--budget", "energie=100", "--cost", "energy=0.1,10"], "", "energie"),
        (["train", "--budget", "energy=many"], "", "many"),
        (["train", "--cost", "energy"], "", "energy"),
        (["train", "--out", "no_task.csv/runs"], "", "--out"),
        (["train", "--log", "tensorboard"], "tensorboardX", "pip install 'rhfedmtl[tensorboard]'"),
        (["train", "--target-gap", "-1"], "", "-1"),
        (["compare", "--budgets", "1,x"], "", "'x'"),
        (["compare", "--metric", "acuracy"], "", "did you mean accuracy"),
        (["compare", "--metric", "rmse"], "", "binary labels have accuracy"),
        (["compare", "nowhere.toml", "--budgets", "300", "--no-intercept"], "", "leave out --budgets, --intercept"),
        (["plan", "--budget", "energy=9", "--cost", "time=1,1"], "", "there are prices for: time"),
        (["plan", "--budget", "energy=9", "--privacy", "epsilon=1e9"], "", "at most 1e+06"),
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
        (["network", "init", "Not_a_name", "--tasks", "2"], "", "use small letters"),
    ],
)
def test_a_mistake_is_answered_in_a_line_or_two(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    hidden: str,
    says: str,
) -> None:
    """Status 2, the value and the way out, no traceback, nothing left behind; ``hidden`` is not installed."""
    (tmp_path / "no_task.csv").write_text(NO_TASK)
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("a,task,y\n")
    (tmp_path / "gaps.csv").write_text("a,task,y\n1,s,0\nnan,s,1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rhfedmtl", *words])
    if hidden:
        monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert "Traceback" not in told
    assert says in told.replace("\n", " ")
    assert len(told.strip()) <= 420
    assert not list(tmp_path.glob("runs/*"))
    assert not (tmp_path / "Not_a_name").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "--algorithm", "rhfedmlt"], "did you mean rhfedmtl"),
        (["train", "--nonsense"], "No such option: --nonsense"),
        (["runs", "show", "nothing", "--folder", "."], "nothing"),
        (["status", "nowhere"], "nowhere"),
        (["network", "audit", "nowhere"], "nowhere"),
    ],
)
def test_with_json_an_error_is_an_object_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    """Programs that read what was printed read why there is nothing else."""
    monkeypatch.setattr(sys, "argv", ["rhfedmtl", *words, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert says in json.loads(told.out)["error"]
    assert not told.err


SMALL = ["--tasks", "2", "--terminals", "2", "--samples-per-task", "200"]


@pytest.mark.parametrize(
    "words",
    [
        ["train", *SMALL, "--budget", "energy=300", "--out", "new"],
        ["compare", *SMALL, "--algorithms", "local", "--budgets", "300", "--seeds", "1", "--out", "new"],
        ["data", "split", "synthetic", *SMALL, "--out", "new"],
        ["network", "init", "new", *SMALL],
    ],
    ids=lambda words: words[0] + words[1],
)
def test_a_full_disk_is_answered_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Status 2 and no traceback; half a network is not left behind. No file may grow beyond a few bytes here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rhfedmtl", *words])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, before[1]))
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    told = capsys.readouterr().err
    assert ended.value.code == 2, told
    assert "Traceback" not in told
    assert "too large" in told or "143 written" in told  # NumPy counts instead
    assert len([line for line in told.splitlines() if line.startswith("error:")]) == 1
    assert words[0] != "network" or not (tmp_path / "new").exists()


def test_a_node_whose_disk_is_full_may_be_started_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 75, as for a port that is taken: a service does not give up on it, as it does for status 2."""

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(serve, "_serve", full)
    monkeypatch.setattr(sys, "argv", ["rhfedmtl", "serve", "station", "--config", "station.toml"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 75
    assert capsys.readouterr().err.startswith("error: cannot write its state: No space left on device; make room")


def test_compiled_code_that_can_be_kept_nowhere_is_an_error_with_the_way_out() -> None:
    """Neither the package nor the home can be written, as in a hardened container."""
    nowhere = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    nowhere["NUMBA_CACHE_LOCATOR_CLASSES"] = "UserProvidedCacheLocator"
    words = [sys.executable, "-m", "rhfedmtl", "train", "--budget", "energy=100"]
    done = subprocess.run(words, env=nowhere, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no writable folder for compiled code")
    assert "NUMBA_CACHE_DIR=" in done.stderr


@pytest.mark.parametrize(
    ("more", "says"), [([], "the same command continues"), (["--fresh"], "without --fresh continues")]
)
def test_a_network_that_is_ended_by_hand_says_what_is_kept(
    more: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends `network up` with a line: where it is kept, and how to go on."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rhfedmtl.deploy.local.supervisor.bring_up", interrupted)
    monkeypatch.setattr("rhfedmtl.deploy.local.provision.forget_all", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["rhfedmtl", "network", "up", str(tmp_path / "net"), "--local", *more])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    told = capsys.readouterr().err
    assert told.startswith(f"interrupted: models and spending are saved in {tmp_path / 'net'}")
    assert says in told
