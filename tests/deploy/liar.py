"""A terminal with good credentials, as a process of its own, that lies: ``python -m tests.deploy.liar FOLDER LIE``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deploy import nets
from tests.deploy.test_liars import LIES

from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.deploy.terminal.program import main
from rhfedmtl.roles.terminal import Terminal

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def liar(folder: Path, supervisor: Supervisor, name: str, lie: str) -> Iterator[None]:
    """Somebody who lies in the place of a terminal, and then the terminal again."""
    supervisor.kill(name)
    supervisor.processes[name].join()
    command = [sys.executable, "-m", "tests.deploy.liar", str(folder / name), lie]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.communicate()
    supervisor.start([name])


def seat(status: dict[str, Any], terminal: int) -> dict[str, Any]:
    """How a terminal stands."""
    seats = {each["terminal"]: each for station in status["stations"] for each in station["terminals"]}
    return seats[terminal]


def wait_for(operator: Operator, terminal: int, reason: str) -> None:
    """Until a terminal is in quarantine, for this reason."""
    status = nets.wait(operator, lambda s: bool(seat(s, terminal)["quarantined"]))
    assert reason in seat(status, terminal)["quarantined"]
    assert not seat(status, terminal)["member"]


def lie_always(lie: str) -> None:
    """Let every terminal of this process say something else."""
    method, changed = LIES[lie]
    honest = getattr(Terminal, method)

    def say(self: Terminal, asked: Any) -> Any:
        said = honest(self, asked)
        return None if said is None else changed(said)

    setattr(Terminal, method, say)


if __name__ == "__main__":
    lie_always(sys.argv[2])
    main(["serve", "--while-open", sys.argv[1]])
