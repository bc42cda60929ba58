"""Compiled code follows its sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import rhfedmtl

STEP = """
from rhfedmtl.maths.kernels.compiled import compiled
from rhfedmtl.maths.losses import Squared, value
import {module}
print({module}.loss_of(Squared(), 3.0, 1.0))
"""

KERNEL = """
from rhfedmtl.maths.kernels.compiled import compiled
from rhfedmtl.maths.losses import value

@compiled
def loss_of(loss, z, y):
    return value(loss, z, y)
"""


def test_an_edited_loss_is_not_answered_from_the_cache(tmp_path: Path) -> None:
    """numba's disk cache does not notice edits in other files: a kernel must not return the old loss after one."""
    shutil.copytree(
        Path(rhfedmtl.__file__).parent, tmp_path / "rhfedmtl", ignore=shutil.ignore_patterns("__pycache__", "data")
    )
    (tmp_path / "kernel.py").write_text(KERNEL)
    losses = tmp_path / "rhfedmtl" / "maths" / "losses.py"

    def answer() -> float:
        # No bytecode: an edit within the same second would not be seen by Python itself.
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("NUMBA_CACHE_DIR", None)
        command = [sys.executable, "-c", STEP.format(module="kernel")]
        result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        return float(result.stdout)

    assert answer() == 2.0
    assert list((tmp_path / "__pycache__").glob("kernel.loss_of*.nbc"))
    assert answer() == 2.0
    source = losses.read_text()
    edited = source.replace("return (z - y) * (z - y) / 2.0", "return (z - y) * (z - y) / 4.0")
    assert edited != source
    losses.write_text(edited)
    assert answer() == 1.0


TOGETHER = """
import sys
import kernel
from rhfedmtl.maths import losses
print(flush=True)
for name in sys.argv[1:]:
    input()
    kernel.loss_of(getattr(losses, name)(), 3.0, 1.0)
    print(sum(kernel.loss_of.stats.cache_misses.values()), flush=True)
input()
print(len(kernel.loss_of._cache._cache_file._load_index()))
"""


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    """The others wait for the first and find what it has made; for other arguments both compile, and both are kept."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with ExitStack() as stack:
        both = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", TOGETHER, *names], cwd=tmp_path, **pipes))
            for names in (("Squared", "Hinge"), ("Squared", "SquaredHinge"))
        ]

        def answers() -> list[int]:
            for process in both:
                process.stdin.write("\n")
                process.stdin.flush()
            return [int(process.stdout.readline()) for process in both]

        for process in both:
            process.stdout.readline()
        assert sum(answers()) == 1
        assert sum(answers()) == 3
        assert answers() == [3, 3]
