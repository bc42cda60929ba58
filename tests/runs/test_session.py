"""Ctrl-C saves what was done and says how to go on; what goes on is the run that was never interrupted."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rhfedmtl.cli.main import app, main
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ClusterError, ConfigError, DataError
from rhfedmtl.files import Lock
from rhfedmtl.runs import records, session
from rhfedmtl.runs import session as single
from rhfedmtl.runs.session import Session, begin
from rhfedmtl.training.config import RunConfig

pytestmark = pytest.mark.usefixtures("interruptible")
WORDS = ["train", "--tasks", "3", "--terminals", "3", "--algorithm", "hfedmtl", "--local-steps", "3"]
WORDS += ["--station-rounds", "4", "--cloud-rounds", "6", "--faults", "dropout=0.2,moves=0.3", "--seed", "2"]
WORDS += ["--certify-every", "3", "--json", "--cost", "energy=0.1,10"]


def call(*words: str) -> Result:
    """The command line, here."""
    return CliRunner().invoke(app, list(words))


def interrupt_at(monkeypatch: pytest.MonkeyPatch, round_: int) -> None:
    """Press Ctrl-C in the middle of a round."""
    plain = Session.run

    def run(self: Session, watch: Any = None) -> Any:
        def watched(progress: Any) -> Any:
            if progress.round == round_:
                signal.raise_signal(signal.SIGINT)
            return watch(progress)

        return plain(self, watched)

    monkeypatch.setattr(Session, "run", run)


def outcome(result: Result) -> dict[str, Any]:
    """What a command printed, without what the clock and the folder say."""
    facts: dict[str, Any] = json.loads(result.stdout)
    return {name: value for name, value in facts.items() if name not in ("seconds", "saved")}


def test_a_run_on_another_engine_is_repeated_there(tmp_path: Path) -> None:
    """The engine that chooses no λ2 on the way is part of the command that repeats its run, and gives its numbers."""
    words = ["train", "--set", "samples=200", "--budget", "energy=1500", "--json"]
    first = call(*words, "--engine", "message-passing", "--out", str(tmp_path / "first"))
    assert outcome(first)["selection"]["why"].startswith("default: engine message-passing")
    (folder,) = (tmp_path / "first").iterdir()
    command = shlex.split(records.load(folder / "run.json").command)
    again = call(*command[1:], "--json", "--out", str(tmp_path / "again"))
    assert outcome(again) == outcome(first)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The folder of a run that was interrupted after its sixth round."""
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, 6)
        result = call(*WORDS, "--out", str(tmp_path / "runs"))
    (folder,) = (tmp_path / "runs").iterdir()
    assert result.exit_code == 130
    assert f"interrupted after round 6; continue with: rhfedmtl train --resume {folder}" in result.stderr
    assert json.loads(result.stdout)["stopped"] == "interrupted"
    return folder


def test_an_interrupted_command_goes_on_by_its_folder(stopped: Path, tmp_path: Path) -> None:
    """With the numbers of a run that was not interrupted, record and all; then there is nothing left to resume."""
    whole = call(*WORDS, "--out", str(tmp_path / "whole"))
    assert outcome(call("train", "--resume", str(stopped), "--json")) == outcome(whole)
    (other,) = (tmp_path / "whole").iterdir()
    mine, theirs = (json.loads((folder / "run.json").read_text()) for folder in (stopped, other))
    for record in (mine, theirs):
        record["result"]["seconds"] = 0.0
    assert mine == theirs
    assert not (stopped / "checkpoint").exists()
    answer = call("train", "--resume", str(stopped))
    assert isinstance(answer.exception, DataError)
    assert "is complete: there is nothing to resume" in str(answer.exception)


@pytest.mark.parametrize("resumed", [False, True])
def test_an_interrupt_before_the_first_round_says_how_to_start(
    stopped: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    resumed: bool,
) -> None:
    """Pressed twice, Ctrl-C ends at once: a new run leaves nothing and says so, one that was kept says how to go on."""
    plain = RunConfig.run

    def run(self: RunConfig, *given: Any, **more: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return plain(self, *given, **more)

    monkeypatch.setattr(RunConfig, "run", run)
    words = ["train", "--resume", str(stopped)] if resumed else [*WORDS, "--out", str(tmp_path / "new")]
    monkeypatch.setattr("sys.argv", ["rhfedmtl", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (130, "")
    if resumed:
        assert err == f"interrupted: continue with: rhfedmtl train --resume {stopped}\n"
        assert (stopped / "checkpoint").exists()
    else:
        assert "nothing was saved yet; repeat the command to start again" in err
        assert not list((tmp_path / "new").iterdir())


def test_a_resumed_run_can_be_interrupted_again(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays in its folder, and goes on from where it was."""
    with monkeypatch.context() as patch:
        interrupt_at(patch, 15)
        assert call("train", "--resume", str(stopped), "--json").exit_code == 130
    assert json.loads((stopped / "run.json").read_text())["result"]["rounds"] == 15
    whole = call(*WORDS, "--out", str(tmp_path / "whole"))
    assert outcome(call("train", "--resume", str(stopped), "--json")) == outcome(whole)


def test_the_settings_of_an_interrupted_run_stay(stopped: Path) -> None:
    """Other words than those that say where to run are refused, by name."""
    answer = call("train", "--resume", str(stopped), "--budget", "energy=5", "--loss", "hinge", "--seed", "2")
    assert isinstance(answer.exception, ConfigError)
    assert "leave out --budget, --loss, --seed" in str(answer.exception)


def test_other_versions_and_other_data_are_refused(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would not give the numbers of one run."""
    known = single.versions()
    with monkeypatch.context() as patch:
        patch.setattr(single, "versions", lambda: {**known, "numpy": "0.1"})
        answer = call("train", "--resume", str(stopped))
    assert isinstance(answer.exception, DataError)
    assert f"was written with numpy {known['numpy']} (here 0.1)" in str(answer.exception)
    from rhfedmtl.data.federation import Federation

    monkeypatch.setattr(Federation, "fingerprint", lambda self: "other")
    answer = call("train", "--resume", str(stopped))
    assert "the data has changed since the run" in str(answer.exception)


@pytest.mark.parametrize(("hurt", "answer"), [("cut", "damaged"), ("gone", "has no checkpoint"), ("folder", "no run")])
def test_what_cannot_be_resumed_is_said_plainly(stopped: Path, hurt: str, answer: str) -> None:
    """A checkpoint that is damaged, not there, or in no folder."""
    kept = stopped / "checkpoint"
    if hurt == "cut":
        kept.write_bytes(kept.read_bytes()[:-7])
    elif hurt == "gone":
        kept.unlink()
        (stopped / "run.json").unlink()
    else:
        shutil.rmtree(stopped)
    result = call("train", "--resume", str(stopped))
    assert isinstance(result.exception, DataError)
    assert answer in str(result.exception)


def test_a_tuned_run_keeps_what_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning is not repeated when a run goes on."""
    words = ["train", "--tasks", "2", "--algorithm", "fedavg", "--tune", "--budget", "energy=300", "--json"]
    whole = call(*words, "--out", str(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        assert call(*words, "--out", str(tmp_path / "runs")).exit_code == 130
    (folder,) = (tmp_path / "runs").iterdir()
    monkeypatch.setattr(session, "choose_settings", lambda *_, **__: pytest.fail("tuned again"))
    assert outcome(call("train", "--resume", str(folder), "--json")) == outcome(whole)


def test_a_run_that_fails_leaves_no_folder_unless_it_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost cluster leaves its checkpoint and the way to go on; any other error leaves nothing."""

    def lost(*_: Any, **given: Any) -> None:
        given["keep"].path.write_bytes(b"kept")
        raise error("the cluster is gone")

    monkeypatch.setattr(RunConfig, "run", lost)
    for error, left in ((ClusterError, 1), (ConfigError, 0)):
        run = begin(RunConfig(seed=left), Execution(), tmp_path / error.__name__)
        with pytest.raises(error, match="continue with: rhfedmtl train --resume" if left else "the cluster is gone$"):
            run.run()
        assert len(list((tmp_path / error.__name__).iterdir())) == left


def test_a_run_goes_on_in_one_process_at_a_time(stopped: Path) -> None:
    """A second `--resume` is refused while the first has the folder, and nothing of it is touched."""
    lock = Lock(stopped)
    before = sorted(stopped.iterdir())
    refused = call("train", "--resume", str(stopped), "--json")
    assert isinstance(refused.exception, ConfigError)
    assert "in use" in str(refused.exception)
    assert sorted(stopped.iterdir()) == before
    lock.release()
    assert call("train", "--resume", str(stopped), "--json").exit_code == 0
