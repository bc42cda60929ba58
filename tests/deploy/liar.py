"""A terminal with good credentials, as a process of its own, that lies: ``python -m tests.deploy.liar FOLDER LIE``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.deploy import nets
from tests.deploy.programs import end, program, say_always

from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.deploy.terminal.program import main
from rhfedmtl.roles.terminal import Terminal

Lie = Callable[[Any], Any]


def some(numbers: Any, told: float) -> Any:
    """Numbers of which two in five are lies."""
    return np.where(np.arange(len(numbers)) % 5 < 2, told, numbers)


LIES: dict[str, tuple[str, Lie]] = {
    "dual sums": ("probe", lambda m: replace(m, dual=np.full_like(m.dual, 1e6))),
    "loss sums, less": ("probe", lambda m: replace(m, losses=0.0 * m.losses)),
    "loss sums, more": ("probe", lambda m: replace(m, losses=1e4 * (1.0 + m.losses))),
    "row counts": ("moments", lambda m: replace(m, count=10**9)),
    "mean": ("moments", lambda m: replace(m, mean=np.full_like(m.mean, 1e6))),
    "square": ("moments", lambda m: replace(m, spread=np.full_like(m.spread, 1e12))),
    "mean of some": ("moments", lambda m: replace(m, mean=some(m.mean, 1e6))),
    "square of some": ("moments", lambda m: replace(m, spread=some(m.spread, 1e12))),
    "mean, 30 times as far": ("moments", lambda m: replace(m, mean=m.mean + 30.0 * np.sqrt(m.spread / m.count))),
    "update × 999": ("work", lambda m: replace(m, delta=999.0 * m.delta)),
    "update × −100": ("work", lambda m: replace(m, delta=-100.0 * m.delta)),
    "random update": ("work", lambda m: replace(m, delta=np.random.default_rng(0).normal(size=m.delta.shape) * 50.0)),
    "NaN in one place": ("work", lambda m: replace(m, delta=np.where(np.arange(m.delta.size) == 3, np.nan, m.delta))),
    "gains": ("work", lambda m: replace(m, gains=np.full_like(m.gains, 1e9))),
    "line search": ("work", lambda m: replace(m, profile=np.full_like(m.profile, np.inf))),
    "line search of 1e308": ("work", lambda m: replace(m, profile=np.full_like(m.profile, 1e308))),
    "line search × 3": ("work", lambda m: replace(m, profile=m.profile * [3.0, 3.0, 1.0])),
    "gains × 3": ("work", lambda m: replace(m, gains=3.0 * m.gains)),
    "rows at joining": ("join", lambda m: replace(m, n_samples=100_000)),
    "weights at joining": ("join", lambda m: replace(m, mean_weight=1e6, incarnation=9)),
    "shares at joining": ("join", lambda m: replace(m, share=np.full_like(m.share, 1e3), incarnation=9)),
}


@contextmanager
def liar(folder: Path, supervisor: Supervisor, name: str, lie: str) -> Iterator[None]:
    """Somebody who lies in the place of a terminal, and then the terminal again.

    It begins at α = 0: where everything is learned already an update is nothing, and so is a multiple of it.
    """
    end(supervisor, name)
    (folder / name / "state" / "terminal.state").unlink(missing_ok=True)
    with program("tests.deploy.liar", str(folder / name), lie):
        yield
    supervisor.start([name])


def quarantined(status: dict[str, Any]) -> dict[int, str]:
    """Terminals in quarantine, and why; none of them is a member."""
    seats = [each for station in status["stations"] for each in station["terminals"] if each["quarantined"]]
    assert not any(each["member"] for each in seats)
    return {each["terminal"]: each["quarantined"] for each in seats}


def wait_for(operator: Operator, terminal: int, reason: str) -> None:
    """Until a terminal is in quarantine, for this reason."""
    status = nets.wait(operator, lambda s: terminal in quarantined(s))
    assert reason in quarantined(status)[terminal]


if __name__ == "__main__":
    say_always(Terminal, *LIES[sys.argv[2]])
    main(["serve", "--while-open", sys.argv[1]])
