"""Private runs draw their noise from a secret key, and a complete run has deleted the key."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rhfedmtl.algorithms.options import Options
from rhfedmtl.cli.main import app
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.estimators.classifier import RHFedMTLClassifier
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.roles.channel import Noised, standard_normal
from rhfedmtl.training import checkpoint
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.privacy import SIMULATION, STATEMENT

REQUEST = Request(data="synthetic", tasks=2, terminals=40, settings={"samples": 8, "features": 6, "test": 50})
CONFIG = RunConfig(request=REQUEST, budget=("energy=1e5",), privacy="epsilon=0.1,delta=1e-6")
WORDS = ["--data", "synthetic", "--tasks", "2", "--terminals", "40", "--set", "samples=8", "--set", "features=6"]
WORDS += ["--budget", "energy=1e5", "--privacy", "epsilon=1,delta=1e-6"]
SLOWLY = """
import sys, time
from rhfedmtl.cli.main import app
from rhfedmtl.engines.inprocess import InProcess
held = InProcess.round
def slow(*given):
    time.sleep(0.4)
    return held(*given)
InProcess.round = slow
app(sys.argv[1:])
"""


def models_of(config: RunConfig, data: Federation) -> Any:
    """Return the models that a run releases."""
    return config.run(data, execution=Execution("inprocess", threads=1)).models


def without_one(data: Federation) -> Federation:
    """The same federation in which the first terminal has other labels."""
    y = data.y.copy()
    y[: data.terminal_offsets[1]] = 1 - y[: data.terminal_offsets[1]]
    return replace(data, y=y)


def times_right(config: RunConfig, tries: int = 20) -> int:
    """Count the right guesses of an attacker who knows all rows and the seed, and guesses between two worlds.

    The attacker retrains in both worlds with the public seed and takes the nearer model.
    """
    data = config.federation()
    worlds = data, without_one(data)
    retrained = [models_of(replace(config, noise_from_seed=True), world) for world in worlds]
    right = 0
    for i in range(tries):
        released = models_of(config, worlds[i % 2])
        right += int(np.argmin([np.linalg.norm(released - guess) for guess in retrained])) == i % 2
    return right


def test_an_attacker_with_the_public_seed_cannot_tell_two_worlds_apart() -> None:
    """A guess is right with a chance of at most 0.53 at epsilon 0.1, and always if the noise is that of the seed."""
    assert times_right(replace(CONFIG, noise_from_seed=True)) == 20
    assert times_right(CONFIG) < 20


@pytest.mark.parametrize("options", [Options(), Options.of(channel="masked", least_summed=15)])
def test_noise_differs_from_run_to_run_unless_it_is_asked_for_from_the_seed(options: Options) -> None:
    """Models and certificate."""
    config = replace(CONFIG, options=options)
    for from_seed in (False, True):
        chosen = replace(config, noise_from_seed=from_seed)
        first, second = (chosen.run(config.federation()) for _ in range(2))
        assert np.array_equal(first.models, second.models) == from_seed
        assert (first.certificate.gap == second.certificate.gap) == from_seed
        assert first.private is not None
        assert (SIMULATION in first.private.notes) == from_seed
        assert first.private.simulation == from_seed


def test_noise_of_a_key_is_normal_and_has_an_address() -> None:
    """Key, round and station decide the numbers. The printed form of a channel hides the key."""
    key = bytes(range(32))
    noise = standard_normal((100, 200), (0, 3, 1), key)
    np.testing.assert_array_equal(noise, standard_normal((100, 200), (7, 3, 1), key))
    assert abs(noise.mean()) < 0.03
    assert noise.std() == pytest.approx(1.0, rel=0.03)
    for address, secret in (((0, 4, 1), key), ((0, 3, 2), key), ((0, 3, 1), key[::-1])):
        assert abs(np.corrcoef(noise.ravel(), standard_normal((100, 200), address, secret).ravel())[0, 1]) < 0.04
    assert "key" not in repr(Noised(1.0, 1.0, key))


def trained(out: Path, *words: str) -> tuple[Path, dict[str, Any]]:
    """Train by the command line, and return the folder of the run and the printed facts."""
    result = CliRunner().invoke(app, ["train", *WORDS, *words, "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    return Path(facts["saved"]), facts


@pytest.mark.parametrize("seed", [(), ("--seed", "0")])
def test_the_model_says_whether_its_noise_was_secret(tmp_path: Path, seed: tuple[str, ...]) -> None:
    """Printed facts, record, model and `release` agree."""
    folder, facts = trained(tmp_path, *seed)
    model = TaskModels.load(folder / "model.npz")
    statement = model.provenance[STATEMENT]
    assert (SIMULATION in facts["privacy"]["notes"]) == bool(seed)
    assert (SIMULATION in (folder / "run.json").read_text()) == bool(seed)
    assert ("--seed 0" in model.provenance["command"]) == bool(seed)
    assert statement["private"] == (not seed)
    assert ("fingerprint" in model.provenance["data"]) == bool(seed)
    if seed:
        assert statement["words"] == SIMULATION
    else:
        assert statement["words"].startswith("(epsilon, delta) = (1, 1e-06)")
    refusal = SIMULATION if seed else "their private run protects them already"
    with pytest.raises(ConfigError, match=refusal):
        model.release(1.0)


def test_a_private_model_of_an_earlier_version_is_not_called_private(tmp_path: Path) -> None:
    """Its noise came from the seed, and its file says nothing."""
    model = TaskModels.load(trained(tmp_path)[0] / "model.npz")
    old = {name: value for name, value in model.provenance.items() if name != STATEMENT}
    with pytest.raises(ConfigError, match="does not name the source of the noise"):
        replace(model, provenance=old).release(1.0)


def test_a_release_whose_noise_can_be_drawn_again_says_so() -> None:
    """An address repeats the noise of a release, for experiments."""
    options = Options.of(lambda1=0.1, lambda2=1.0)
    config = RunConfig(request=REQUEST, options=options, scale="unit", target_gap=1e-3)
    data = config.federation()
    provenance = {"configuration": {"options": options.to_dict(), "target_gap": 1e-3, "budget": {}}}
    model = TaskModels.from_result(data, config.run(data), options.chosen_loss(data.kind), provenance)
    assert model.release(1.0, address=(3,)).provenance["privacy"]["words"] == SIMULATION
    assert model.release(1.0).provenance["privacy"]["words"].startswith("(epsilon, delta)")


@pytest.mark.parametrize("random_state", [None, 0, np.random.RandomState(0)])
def test_an_estimator_with_a_seed_is_a_simulation(random_state: Any) -> None:
    """An estimator without a random state draws secret noise."""
    rng = np.random.default_rng(0)
    X, task = rng.normal(size=(300, 4)), np.repeat([0, 1, 2], 100)
    model = RHFedMTLClassifier(
        budget="energy=1e4", privacy="epsilon=1,delta=1e-6", n_terminals=20, random_state=random_state
    ).fit(X, X[:, 0] > 0, task=task)
    assert model.models_.provenance[STATEMENT]["private"] == (random_state is None)
    assert (SIMULATION in model.result_.private.notes) == (random_state is not None)


def killed(out: Path, copy: Path) -> Path:
    """Train in a process, end it by kill -9, and return the folder; ``copy`` gets the folder of an earlier round."""
    words = [sys.executable, "-c", SLOWLY, "train", *WORDS, "--out", str(out), "--checkpoint-every", "0"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        rounds: list[int] = []
        while len(rounds) < 4 and process.poll() is None:
            time.sleep(0.02)
            for path in out.glob("*/checkpoint"):
                with suppress(FileNotFoundError):
                    snapshot = shutil.copyfile(path, copy.with_suffix(".snapshot"))  # the run may replace the file
                    number = checkpoint.read(snapshot).state({"ledger": None})["run"].round
                    if number not in rounds:
                        rounds.append(number)
                        if len(rounds) == 1:
                            shutil.copytree(path.parent, copy, ignore=shutil.ignore_patterns(".*"))
        process.kill()
    assert process.returncode == -9
    (folder,) = out.glob("*")
    return folder


def test_a_killed_run_repeats_its_noise(tmp_path: Path) -> None:
    """The last checkpoint and an older copy lead to the same model, to the bit: no sum has two noises.

    Another key gives another model, so equality is no accident. When the run is complete the key is nowhere.
    """
    early = tmp_path / "early"
    late = killed(tmp_path / "out", early)
    rounds = [checkpoint.read(folder / "checkpoint").state({"ledger": None})["run"].round for folder in (early, late)]
    assert 0 < rounds[0] < rounds[1]
    key = checkpoint.read(late / "checkpoint").noise_key
    assert key is not None
    assert key == checkpoint.read(early / "checkpoint").noise_key
    assert (late / "checkpoint").stat().st_mode & 0o777 == 0o600
    altered = tmp_path / "altered"
    shutil.copytree(early, altered)
    forged = (altered / "checkpoint").read_bytes().replace(key.hex().encode(), bytes(32).hex().encode())
    (altered / "checkpoint").write_bytes(forged[:-32] + _digest(forged[:-32]))
    models = {}
    for folder in (early, late, altered):
        result = CliRunner().invoke(app, ["train", "--resume", str(folder), "--json"])
        assert result.exit_code == 0, result.output
        models[folder] = TaskModels.load(folder / "model.npz")
        assert not list(folder.glob("*checkpoint*")) + list(folder.glob(".*"))
    np.testing.assert_array_equal(models[early].models, models[late].models)
    assert repr(models[early].certificate) == repr(models[late].certificate)
    assert not np.array_equal(models[early].models, models[altered].models)
    for path in filter(Path.is_file, late.rglob("*")):
        data = path.read_bytes()
        assert key not in data
        assert key.hex().encode() not in data


def _digest(data: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(data).digest()


def test_an_interrupted_model_says_that_the_key_is_still_there() -> None:
    """Its checkpoint has it, for as long as the run can be resumed."""
    data = CONFIG.federation()
    result = CONFIG.run(data, watch=lambda progress: progress.round < 3)
    assert result.stopped == "interrupted"
    words = TaskModels.from_result(data, result).provenance[STATEMENT]["words"]
    assert "the checkpoint of this run still holds the key of the noise" in words
