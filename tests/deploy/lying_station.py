"""A station with good credentials, as a process of its own, that lies: ``python -m tests.deploy.lying_station ...``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.deploy.programs import program, say_always

from rhfedmtl.deploy.node.serve import serve
from rhfedmtl.deploy.nodes import ROLES
from rhfedmtl.roles.station import BaseStation

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


def lying(folder: Path, name: str, lie: str) -> AbstractContextManager[None]:
    """Run a liar in the place of a station, which must not run yet."""
    return program("tests.deploy.lying_station", str(folder / name), lie)


if __name__ == "__main__":
    say_always(BaseStation, *LIES[sys.argv[2]][:2])
    serve(ROLES["station"](), [Path(sys.argv[1]) / "station.toml"])
