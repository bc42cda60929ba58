"""Settings from a file, the environment and flags; loggers; and what `doctor` says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rhfedmtl.cli.main import app
from rhfedmtl.errors import ConfigError, MissingExtraError
from rhfedmtl.runs import tracking

TRAIN = ("train", "--tasks", "2", "--terminals", "2", "--json")


def seed_of(*words: str, env: dict[str, str] | None = None) -> int:
    """Seed of a run that the command made."""
    result = CliRunner().invoke(app, [*words], env=env)
    assert result.exit_code == 0, result.output
    return int(json.loads(result.stdout)["seed"])


def test_file_then_environment_then_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's word counts where nobody else speaks, the environment's before it, the flag's before both."""
    monkeypatch.chdir(tmp_path)
    Path("rhfedmtl.toml").write_text('[train]\nseed = 5\nbudget = ["energy=100"]\n')
    assert seed_of(*TRAIN) == 5
    assert seed_of(*TRAIN, env={"RHFEDMTL_TRAIN_SEED": "6"}) == 6
    assert seed_of(*TRAIN, "--seed", "7", env={"RHFEDMTL_TRAIN_SEED": "6"}) == 7
    Path("other.toml").write_text("[train]\nseed = 8\ncloud-rounds = 2\nalgorithm = 'hfedmtl'\n")
    assert seed_of("--config", "other.toml", *TRAIN) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nsede = 1\n", "unknown option 'sede'; did you mean seed"),
        ("[trian]\nseed = 1\n", "unknown command 'trian'; did you mean train"),
        ("train = 3\n", r"\[train\] must be a section"),
        ("[train\n", "not valid TOML"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, message: str) -> None:
    """Typing mistakes in the file are refused with the nearest name."""
    path = tmp_path / "settings.toml"
    path.write_text(text)
    result = CliRunner().invoke(app, ["--config", str(path), *TRAIN])
    assert isinstance(result.exception, ConfigError)
    with pytest.raises(ConfigError, match=message):
        raise result.exception


def test_help_does_not_list_a_variable_for_every_option() -> None:
    """They follow one rule, which the documentation gives once."""
    words = [sys.executable, "-c", "from rhfedmtl.cli.main import main; main()", "train", "--help"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "--budget" in told
    assert "env var" not in told


def test_curves_go_to_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run leaves one file of events in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    words = [*TRAIN, "--budget", "energy=100", "--log", "tensorboard:curves"]
    assert CliRunner().invoke(app, words).exit_code == 0
    (events,) = Path("curves").glob("*/events.*")
    text = events.read_bytes()
    assert all(name in text for name in (b"accuracy", b"gap", b"left_energy", b"local_steps"))


@pytest.mark.slow
def test_curves_go_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round of a run is found again in MLflow's store, with its accuracy, gap and what is left."""
    monkeypatch.chdir(tmp_path)
    words = [*TRAIN, "--budget", "energy=100", "--log", "mlflow:sqlite:///curves.db"]
    script = f"import sys; sys.argv[1:] = {words!r}; from rhfedmtl.cli.main import main; main()"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    rounds = json.loads(told)["rounds"]
    ask = (
        "import mlflow; mlflow.set_tracking_uri('sqlite:///curves.db'); c = mlflow.MlflowClient(); "
        "(e,) = [x for x in c.search_experiments() if x.name == 'rhfedmtl']; (r,) = c.search_runs([e.experiment_id]); "
        "print([len(c.get_metric_history(r.info.run_id, m)) for m in ('accuracy', 'gap', 'left_energy')])"
    )
    counts = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout
    assert json.loads(counts) == [rounds] * 3


def test_an_unknown_logger_or_a_missing_one_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing mistake is answered with the names, a missing package with what to install."""
    with pytest.raises(ConfigError, match="did you mean mlflow"):
        tracking.logger("mlfow")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtraError, match=r"rhfedmtl\[tensorboard\]"):
        tracking.logger("tensorboard")


def test_doctor_says_what_is_there_and_what_is_not() -> None:
    """Versions of the core, extras with what they give, and the time of a step."""
    facts = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert facts["core"]["numpy"]
    assert facts["extras"]["parquet"]["pyarrow"]
    assert facts["step_ns"] > 0
    told = CliRunner().invoke(app, ["doctor"]).stdout
    assert "kernels" in told
    assert max(map(len, told.splitlines())) <= 140
