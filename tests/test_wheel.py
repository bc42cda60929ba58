"""A wheel built from the repository, installed into an empty environment, does every command's job without extras."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_PACKAGES, MOST_BYTES = 30, 500e6
TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")
pytestmark = pytest.mark.slow


def _left_out(folder: str, names: list[str]) -> set[str]:
    """What no source is made of: of the root what runs and tools leave there, elsewhere bytecode."""
    left = {".venv", ".git", "demo", "out", "runs"} if Path(folder) == ROOT else set()
    return {name for name in names if name in left or name == "__pycache__"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it asks for, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=_left_out)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, source], check=True)
    venv.create(folder / "env", with_pip=True)
    (wheel,) = folder.glob("*.whl")
    python = folder / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", wheel], check=True)
    return folder / "env" / "bin"


def call(program: Path, *words: str, cwd: Path, status: int = 0) -> str:
    """Output of a command of the installed package."""
    done = subprocess.run([program / "rhfedmtl", *words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == status, f"{words}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_it_brings_few_packages(installed: Path) -> None:
    """Fewer than thirty, the package itself included, and none of the extras."""
    listed = subprocess.run([installed / "pip", "list", "--format", "json"], capture_output=True, text=True, check=True)
    names = {each["name"].lower() for each in json.loads(listed.stdout)} - {"pip", "setuptools"}
    assert len(names) < MOST_PACKAGES
    assert not names & {"pyarrow", "matplotlib", "pandas", "ray", "grpcio", "torch", "mlflow-skinny"}


def test_it_brings_little_to_the_disk(installed: Path) -> None:
    """Less than 500 MB of files, without the tools of the environment and the bytecode that Python writes itself."""
    (packages,) = (installed.parent / "lib").glob("python*/site-packages")
    brought = (path for top in packages.iterdir() if not top.name.startswith(TOOLS) for path in [top, *top.rglob("*")])
    assert sum(p.stat().st_size for p in brought if p.is_file() and p.suffix != ".pyc") < MOST_BYTES


def test_every_command_has_help(installed: Path, tmp_path: Path) -> None:
    """Each command of the help, those of networks included, and each of their own commands, explains itself."""
    named = r"^│ (\w+) "
    for name in re.findall(named, call(installed, "--help", cwd=tmp_path), re.MULTILINE):
        told = call(installed, name, "--help", cwd=tmp_path)
        assert "Usage" in told
        for part in re.findall(named, told.partition("─ Commands")[2], re.MULTILINE):
            assert "Usage" in call(installed, name, part, "--help", cwd=tmp_path)


def test_every_command_works(installed: Path, tmp_path: Path) -> None:
    """One after the other; those of networks, and what else needs an extra, say which one."""
    small = ["--tasks", "2", "--terminals", "2"]
    assert "binding" in call(installed, "plan", *small, "--budget", "energy=1400", cwd=tmp_path)
    call(installed, "train", *small, "--budget", "energy=200", "--out", "runs", cwd=tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "rounds.csv").is_file()
    call(installed, "compare", *small, "--budgets", "100", "--seeds", "2", "--out", "out", cwd=tmp_path)
    assert "table3" in call(installed, "reproduce", cwd=tmp_path)
    call(installed, "reproduce", "fig-cost", "--out", "out", cwd=tmp_path)
    call(installed, "report", "out", cwd=tmp_path)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert "rhfedmtl" in call(installed, "runs", "list", cwd=tmp_path)
    call(installed, "runs", "show", run.name, cwd=tmp_path)
    call(installed, "runs", "compare", run.name, run.name, cwd=tmp_path)
    assert "har" in call(installed, "data", "list", cwd=tmp_path)
    assert "tasks" in call(installed, "data", "describe", "synthetic", cwd=tmp_path)
    call(installed, "data", "split", "synthetic", "--out", "saved", cwd=tmp_path)
    assert "rounds" in call(installed, "train", "--data", "saved", "--path", "saved", cwd=tmp_path)
    call(installed, "calibrate", "--out", "prices.toml", cwd=tmp_path)
    call(installed, "export", str(run), "--task", "task-0", "--out", "model.json", cwd=tmp_path)
    features = json.loads((tmp_path / "model.json").read_text())["feature_names"]
    lines = [",".join([*features, "task"]), ",".join(["0.5"] * len(features) + ["task-0"])]
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    call(installed, "predict", str(run), "--path", "new.csv", "--out", "answers.csv", cwd=tmp_path)
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 2
    assert "kernels" in call(installed, "doctor", cwd=tmp_path)
    assert "rhfedmtl[onnx]" in call(
        installed, "export", str(run), "--task", "task-0", "--out", "model.onnx", cwd=tmp_path, status=2
    )
    assert "rhfedmtl[ray]" in call(installed, "train", "--engine", "ray", cwd=tmp_path, status=2)
    assert "rhfedmtl[gpu]" in call(installed, "train", "--engine", "gpu", cwd=tmp_path, status=2)
    for words in (["network", "init", "net"], ["network", "up", "net", "--local"], ["status", "net"]):
        assert "rhfedmtl[deploy]" in call(installed, *words, cwd=tmp_path, status=2)


def test_the_first_command_of_the_readme_works(installed: Path, tmp_path: Path) -> None:
    """It fetches its data, and prints the table of the README."""
    block = re.search(r"```console\n\$ rhfedmtl (.*?[^\\])\n", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    words = block[1].replace("\\\n", " ").split()
    output = call(installed, *words, cwd=tmp_path)
    assert "balanced accuracy" in output
    for method in words[words.index("--algorithms") + 1].split(","):
        assert f"│ {method} " in output
