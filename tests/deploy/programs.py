"""Modules of these tests that run as processes in the place of nodes, and roles that say something else there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rhfedmtl.deploy.local.supervisor import Supervisor

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def program(module: str, *words: str) -> Iterator[None]:
    """Run a module as a process, until the block ends."""
    command = [sys.executable, "-m", module, *words]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def end(supervisor: Supervisor, name: str) -> None:
    """Kill a node, if it runs, and let the supervisor forget it."""
    if (node := supervisor.processes.pop(name, None)) is not None:
        node.kill()
        node.join()


def say_always(role: type, method: str, changed: Callable[[Any], Any]) -> None:
    """Change what a role says in this process."""
    honest = getattr(role, method)

    def say(self: Any, *arguments: Any) -> Any:
        message = honest(self, *arguments)
        return None if message is None else changed(message)

    setattr(role, method, say)
