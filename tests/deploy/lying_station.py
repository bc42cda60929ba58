"""A station with good credentials, as a process of its own, that lies: ``python -m tests.deploy.lying_station ...``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.node.serve import serve
from rhfedmtl.deploy.nodes import ROLES
from rhfedmtl.roles.station import BaseStation

ROOT = Path(__file__).resolve().parents[2]
Lie = Callable[[Any], Any]


def long(v: Any, norm: float) -> Any:
    """A vector of this norm, in a direction of its own."""
    made = np.random.default_rng(0).normal(size=v.shape)
    return norm * made / np.linalg.norm(made)


def less(losses: Any) -> Any:
    """Return two thirds of the losses; the last, of zero models, stays."""
    return np.append(losses[:-1] / 1.5, losses[-1:])


LIES: dict[str, tuple[str, Lie, str]] = {
    "report": ("report", lambda m: replace(m, v=long(m.v, 5.0)), "a report, by its samples, of norm"),
    "no loss": ("add_sums", lambda m: replace(m, losses=0.0 * m.losses), "dual sum"),
    "less loss": ("add_sums", lambda m: replace(m, losses=less(m.losses)), "losses below what its dual"),
    "more loss": ("add_sums", lambda m: replace(m, losses=1e4 * (1.0 + m.losses)), "a loss of zero models"),
    "dual sums": ("add_sums", lambda m: replace(m, dual=np.full_like(m.dual, 1e6)), "dual sum"),
}
"""Method, change, and a part of the reason that the cloud gives."""


@contextmanager
def lying(folder: Path, supervisor: Supervisor, name: str, lie: str) -> Iterator[None]:
    """Run a liar in the place of a station, which must not run yet."""
    command = [sys.executable, "-m", "tests.deploy.lying_station", str(folder / name), lie]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def lie_always(lie: str) -> None:
    """Make the station of this process lie."""
    method, changed, _ = LIES[lie]
    honest = getattr(BaseStation, method)

    def say(self: BaseStation, *arguments: Any) -> Any:
        message = honest(self, *arguments)
        return None if message is None else changed(message)

    setattr(BaseStation, method, say)


if __name__ == "__main__":
    lie_always(sys.argv[2])
    serve(ROLES["station"](), [Path(sys.argv[1]) / "station.toml"])
