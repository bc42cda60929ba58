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
import kernel
from rhfedmtl.maths.losses import Squared
print(flush=True)
input()
kernel.loss_of(Squared(), 3.0, 1.0)
print(sum(kernel.loss_of.stats.cache_misses.values()))
"""


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    """The others wait for the first and find what it has made."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    with ExitStack() as stack:
        words = [sys.executable, "-c", TOGETHER]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        both = [stack.enter_context(subprocess.Popen(words, env=environment, cwd=tmp_path, **pipes)) for _ in range(2)]
        for process in both:
            process.stdout.readline()
        for process in both:
            process.stdin.write("\n")
            process.stdin.flush()
        assert sum(int(process.communicate()[0]) for process in both) == 1
