"""Entries of other packages: found, listed, run, and refused by name where they do not fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "plugin"
PROGRAM = "from rhfedmtl.cli.main import main; main()"
POINTS = """
[rhfedmtl.algorithms]
fedavg = shady.entries:SHADOW
clash = shady.entries:CLASH
odd = shady.entries:SEED
broken = shady.nowhere:X
loss = shady.entries:GONE
[rhfedmtl.losses]
gone = shady.entries:GONE
"""
ENTRIES = """
from rhfedmtl.algorithms.registry import AlgorithmEntry
from rhfedmtl.registry import Entry, Option

SHADOW = AlgorithmEntry("shadow", "shady:build")
CLASH = AlgorithmEntry("clash", "shady:build", options=(Option("mu", int, 7, "not the mu of others"),))
SEED = AlgorithmEntry("seed", "shady:build", options=(Option("seed", int, 7, "a word of the command"),))
GONE = Entry("its class is gone", "shady.gone:Gone")
"""


def installed(folder: Path, name: str, points: str, modules: dict[str, str]) -> Path:
    """A package on a path of its own, as an installer leaves it."""
    info = folder / f"{name}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(points)
    for path, text in modules.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def call(path: Path, *words: str, cwd: Path, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    """A command with what lies at ``path`` installed."""
    known = [str(path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(known), "COLUMNS": "5000", "NO_COLOR": "1"}
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, as `pip install --target` leaves it: files, and the entry points of its pyproject.toml."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    points = "\n".join(
        f"[{group}]\n" + "\n".join(f"{name} = {place}" for name, place in entries.items())
        for group, entries in project["entry-points"].items()
    )
    package = EXAMPLE / "src" / "rhfedmtl_example"
    modules = {f"rhfedmtl_example/{path.name}": path.read_text() for path in package.glob("*.py")}
    return installed(tmp_path_factory.mktemp("site"), project["name"], points, modules)


def test_the_help_shows_what_a_package_adds_and_imports_nothing_numerical(example: Path, tmp_path: Path) -> None:
    """Its algorithm, loss and data set by name, and its options with who declares them."""
    program = "import sys; from rhfedmtl.cli.main import program; program()(standalone_mode=False);"
    told = call(example, "train", "--help-all", cwd=tmp_path, program=f"{program} print('numpy' in sys.modules)").stdout
    assert told.splitlines()[-1] == "False"
    for words in ("fedopt", "squared, huber", "saved, diabetes", "along the mean change (fedopt). [0.8]", "--width"):
        assert words in told, words


@pytest.mark.slow
def test_what_a_package_adds_can_be_run_and_compared(example: Path, tmp_path: Path) -> None:
    """A run with an option of its own is on record with it, can be repeated, compared, and read again."""
    words = ("--algorithm", "fedopt", "--station-step", "0.5", "--tasks", "2", "--budget", "energy=90")
    done = call(example, "train", *words, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / json.loads(done.stdout)["saved"] / "run.json").read_text())
    assert record["configuration"]["options"]["station_step"] == 0.5
    assert record["configuration"]["options"]["mu"] is None
    assert "--station-step 0.5" in record["command"]
    assert record["versions"]["rhfedmtl-example"] == "0.1.0"
    words = ("--data", "diabetes", "--algorithms", "hfedmtl,fedopt", "--loss", "huber", "--width", "30", "--seeds", "1")
    done = call(example, "compare", *words, "--budgets", "100", "--out", "out", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = call(example, "train", "--station-step", "0.5", cwd=tmp_path)
    assert "station_step has no effect on rhfedmtl" in done.stderr


@pytest.mark.slow
def test_what_a_package_adds_conforms(example: Path, tmp_path: Path) -> None:
    """All checks of the example's entries hold."""
    program = "import runpy; runpy.run_module('rhfedmtl.testing', run_name='__main__')"
    done = call(example, "conformance", "fedopt", "huber", "diabetes", cwd=tmp_path, program=program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") > 20


@pytest.mark.slow
def test_the_doctor_lists_what_packages_add_and_what_is_refused(example: Path, tmp_path: Path) -> None:
    """By package, kind and name; names that are taken, options that clash and broken modules with their reason."""
    installed(tmp_path / "site", "shady", POINTS, {"shady/__init__.py": "", "shady/entries.py": ENTRIES})
    site = Path(os.pathsep.join([str(tmp_path / "site"), str(example)]))
    done = call(site, "doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["plugins"]
    added = {(each["kind"], each["name"]) for each in found["rhfedmtl-example 0.1.0"] if each["refused"] is None}
    assert added == {("algorithm", "fedopt"), ("loss", "huber"), ("data set", "diabetes")}
    refused = {each["name"]: each["refused"] for each in found["shady 0.1.0"]}
    assert "of shady 0.1.0 is refused: the library has one of that name" in refused["fedavg"]
    assert "declares the option 'mu' unlike another entry" in refused["clash"]
    assert "has an option 'seed': that name is taken" in refused["odd"]
    assert "ModuleNotFoundError: No module named 'shady.nowhere'" in refused["broken"]
    assert "is of type Entry, and must be AlgorithmEntry" in refused["loss"]
    for words, says in (
        (("train", "--algorithm", "fedavg"), "the library has one of that name"),
        (("train", "--algorithm", "broken"), "algorithm 'broken' of shady 0.1.0 is refused"),
        (("train", "--loss", "gone"), "shady.gone:Gone cannot be loaded: ModuleNotFoundError"),
    ):
        answer = call(site, *words, cwd=tmp_path)
        assert (answer.returncode, answer.stderr.count("\n")) == (2, 1), answer.stderr
        assert says in answer.stderr
    assert call(site, "train", "--tasks", "2", "--budget", "energy=60", cwd=tmp_path).returncode == 0


LOSS_OF = """
from other.loss import Steep
from rhfedmtl.maths.kernels.compiled import compiled
from rhfedmtl.maths.losses import value
import kernel
print(kernel.loss_of(Steep(), 3.0, 1.0))
"""
STEEP = """
from typing import NamedTuple

class Steep(NamedTuple):
    def value(self, z, y):
        return 2.0 * (z - y)
"""
KERNEL = """
from rhfedmtl.maths.kernels.compiled import compiled
from rhfedmtl.maths.losses import value

@compiled
def loss_of(loss, z, y):
    return value(loss, z, y)
"""


@pytest.mark.slow
def test_an_edited_loss_of_a_package_is_not_answered_from_the_cache(tmp_path: Path) -> None:
    """Nor does the cache need the package of a loss to be there when another loss is compiled."""
    files = {"other/__init__.py": "", "other/loss.py": STEEP, "kernel.py": KERNEL}
    site = installed(tmp_path, "other", "", files)
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def answer(program: str) -> float:
        os.environ |= environment
        try:
            done = call(site, cwd=tmp_path, program=f"import sys; sys.dont_write_bytecode = True\n{program}")
        finally:
            del os.environ["NUMBA_CACHE_DIR"]
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    assert answer(LOSS_OF) == 4.0
    assert answer(LOSS_OF) == 4.0
    (site / "other" / "loss.py").write_text(STEEP.replace("2.0 *", "5.0 *"))
    assert answer(LOSS_OF) == 10.0
    (site / "other" / "loss.py").unlink()
    ours = LOSS_OF.replace("from other.loss import Steep", "from rhfedmtl.maths.losses import Squared as Steep")
    assert answer(ours) == 2.0
