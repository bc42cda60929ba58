"""The distribution in `terminal/`, installed into an empty environment through its sdist: small, quick, on its own."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path

import pytest

from tests.test_wheel import TOOLS

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow
CPU = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from rhfedmtl.deploy.terminal.commands import role
role()
used = resource.getrusage(resource.RUSAGE_SELF)
heavy = {"numba", "scipy", "sklearn", "rich", "typer"} & set(sys.modules)
print(used.ru_utime + used.ru_stime, sorted(heavy))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the wheel that was made from the sdist, and what it asks for."""
    folder = tmp_path_factory.mktemp("terminal")
    venv.create(folder / "tools", with_pip=True)
    pip = [folder / "tools" / "bin" / "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "build"], check=True)
    build = [folder / "tools" / "bin" / "python", "-m", "build", "--sdist", "--outdir", folder, ROOT / "terminal"]
    subprocess.run(build, check=True, capture_output=True)
    (sdist,) = folder.glob("*.tar.gz")
    venv.create(folder / "env", with_pip=True)
    pip = [folder / "env" / "bin" / "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", sdist], check=True)
    return folder / "env" / "bin"


def test_it_is_small_and_brings_four_packages(installed: Path) -> None:
    """At most 120 MB with everything, without the tools that a new environment has already."""
    listed = subprocess.run([installed / "pip", "list", "--format", "json"], capture_output=True, text=True, check=True)
    names = {each["name"].lower() for each in json.loads(listed.stdout)} - {"pip", "setuptools"}
    needed = {"rhfedmtl-terminal", "numpy", "grpcio", "protobuf", "cryptography"}
    assert needed <= names <= needed | {"cffi", "pycparser", "typing_extensions"}
    (packages,) = (installed.parent / "lib").glob("python*/site-packages")
    brought = (path for top in packages.iterdir() if not top.name.startswith(TOOLS) for path in [top, *top.rglob("*")])
    assert sum(path.stat().st_size for path in brought if path.is_file()) <= 120e6


def test_it_starts_quickly_and_without_anything_heavy(installed: Path) -> None:
    """At most a second of CPU until it could connect."""
    (lib,) = (installed.parent / "lib").glob("python*/site-packages/rhfedmtl_terminal/lib")
    command = [installed / "python", "-c", CPU, lib]
    subprocess.run(command, check=True, capture_output=True)  # bytecode is written the first time
    seconds, heavy = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split(maxsplit=1)
    assert float(seconds) <= 1.0
    assert heavy.strip() == "[]"


def test_it_stands_beside_the_whole_library(installed: Path) -> None:
    """Both have the command; whichever is removed, the other goes on."""
    pip = [installed / "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", ROOT], check=True)
    light = [installed / "python", "-m", "rhfedmtl_terminal", "--version"]
    whole = [installed / "python", "-m", "rhfedmtl.deploy.terminal.program", "--version"]
    for command in ([installed / "rhfedmtl-terminal", "--version"], light, whole):
        assert "numpy kernel" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    subprocess.run([*pip, "uninstall", "--yes", "rhfedmtl"], check=True)
    assert "numpy kernel" in subprocess.run(light, capture_output=True, text=True, check=True).stdout
