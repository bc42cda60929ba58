"""The generated image and units: built, run and checked, where this machine has the programs for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.deploy import nets

from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.operator import Operator

ROOT = Path(__file__).resolve().parents[2]
BASE, IMAGE, PYTHON = "python:3.11-slim", "rhfedmtl-test-node", (3, 11)
BOXED = ("--isolation", "chroot")
IN_BOX = "terminal-1"


def said(*words: str | Path) -> str:
    """What a command prints; how it failed if it did."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout[-1500:]} {done.stderr[-1500:]}"
    return done.stdout.strip()


def skip_unless(condition: object, reason: str) -> None:
    """Say what is missing here."""
    if not condition:
        pytest.skip(reason)


def make_base(folder: Path) -> None:
    """The image that the Dockerfile begins with: as it is here or at a registry, else Debian 12 from its packages."""
    if (
        subprocess.run(["buildah", "pull", "--policy", "missing", BASE], capture_output=True, check=False).returncode
        == 0
    ):
        return
    skip_unless(shutil.which("debootstrap"), f"no registry has {BASE} for this machine, and there is no debootstrap")
    root = folder / "root"
    said("debootstrap", "--variant=minbase", "--include=python3,python3-pip", "bookworm", root)
    made = said("buildah", "from", "scratch")
    said("buildah", "add", "-q", made, root, "/")
    # Debian guards its own Python; all wheels are at hand.
    said("buildah", "config", "--env", "PIP_BREAK_SYSTEM_PACKAGES=1", "--env", "PIP_NO_INDEX=1", made)
    said("buildah", "commit", "-q", "--rm", made, f"localhost/{BASE}")
    shutil.rmtree(root)


@contextmanager
def container(folder: Path) -> Iterator[str]:
    """A container of the image that the network's own Dockerfile makes."""
    said(sys.executable, "-m", "pip", "wheel", "-q", "-w", folder / "wheels", f"{ROOT}[deploy]")
    said("buildah", "build", "-q", *BOXED, "--pull=never", "-t", IMAGE, folder)
    made = said("buildah", "from", "--pull=never", IMAGE)
    try:
        yield made
    finally:
        said("buildah", "rm", made)
        said("buildah", "rmi", IMAGE)


@pytest.mark.slow
def test_a_terminal_learns_in_a_container(tmp_path: Path) -> None:
    """The image is built from the generated Dockerfile; a node in it, with a user of its own, joins and works."""
    skip_unless(shutil.which("buildah"), "no buildah on this machine: apt-get install buildah")
    skip_unless(os.getuid() == 0, "containers with users of their own are made by root")
    skip_unless(sys.version_info[:2] == PYTHON, f"wheels are made here, and the image has Python {PYTHON}")
    folder = nets.build(tmp_path / "net", nets.small(1, 2, 40))
    make_base(tmp_path)
    with container(folder) as made, Supervisor(folder) as supervisor:
        run = ["buildah", "run", *BOXED, "--user", "20003:20003", "-v", f"{folder / IN_BOX}:/node", made, "--"]
        assert said(*run, "rhfedmtl", "--version").startswith("rhfedmtl")
        said("chown", "-R", "20003:20003", folder / IN_BOX)
        supervisor.start(name for name in supervisor.names if name != IN_BOX)
        serve = ["rhfedmtl", "serve", "terminal", "--config", "/node/terminal.toml"]
        boxed: Any = subprocess.Popen([*run, *serve], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            operator = Operator(folder)
            operator.wait_for_cloud(nets.PATIENCE_S)
            nets.wait(operator, nets.all_connected)
            training = nets.trained(operator, supervisor.keep_up, budget=["energy=500"])
        finally:
            boxed.terminate()
            boxed.wait(60)
    assert training["spent"]["energy"] <= 500
    assert nets.terminal_file(folder, 1).last_round == training["round"]


@pytest.mark.parametrize("light", [False, True])
def test_units_are_sound(tmp_path: Path, light: bool) -> None:
    """`systemd-analyze verify` finds nothing in them; only the program is put where this machine has one."""
    skip_unless(shutil.which("systemd-analyze"), "no systemd-analyze on this machine")
    folder = nets.build(tmp_path / "net", nets.small(1, 2, 40), light=light)
    units = tmp_path / "units"
    units.mkdir()
    for unit in sorted((folder / "systemd").glob("*.service")):
        text = unit.read_text()
        assert "/opt/rhfedmtl/bin/rhfedmtl" in text
        made = units / unit.name.replace("@", "@0")
        made.write_text(
            text.replace("/opt/rhfedmtl/bin/rhfedmtl-terminal", "/bin/true").replace(
                "/opt/rhfedmtl/bin/rhfedmtl", "/bin/true"
            )
        )
        done = subprocess.run(["systemd-analyze", "verify", made], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), unit.name
