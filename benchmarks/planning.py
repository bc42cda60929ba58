"""What planning costs: time inside the policy `measured`, as a share of the loop and of the whole of `train`.

Both are measured in one run, so that other work on the machine slows both alike; each figure is the median of repeats.
`first` is the first run of a fresh process, as on the command line: compiled code is loaded then.

    RHFEDMTL_DATA=../shared/data python benchmarks/planning.py --out planning.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.policies.base import Plan, Situation
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings

DATA = Path(os.environ.get("RHFEDMTL_DATA", "."))


@dataclass
class Timed:
    """The policy, with a clock around every call."""

    seconds: list[float] = field(default_factory=list)

    def plan(self, situation: Situation) -> Plan | None:
        """Plan, and note how long it took."""
        started = time.perf_counter()
        plan = Measured().plan(situation)
        self.seconds.append(time.perf_counter() - started)
        return plan


@dataclass(frozen=True)
class Case:
    """A federation, prices and a budget; ``spread`` makes stations differ in speed (σ of the logarithm)."""

    name: str
    request: Request
    budget: dict[str, float]
    spread: float = 0.0
    repeats: int = 15

    def ledger(self, federation: Federation) -> Ledger:
        """Energy as in the paper; and time, where stations differ in it."""
        cost: dict[str, Any] = {"energy": {"terminal_step": 0.1, "station_round": 10.0}}
        if self.spread:
            pace = np.random.default_rng(0).lognormal(0.0, self.spread, federation.n_tasks)
            step = 0.01 * pace[np.asarray(federation.terminal_task)]
            cost["time"] = {"terminal_step": step, "station_round": 0.2 * pace}
        return Ledger(cost, self.budget)


def cases() -> list[Case]:
    """The command of the paper's setting, and larger federations."""
    har = Request("har", str(DATA / "har.npz"), tasks=5, samples_per_task=70, positive="SITTING", terminals=5)
    return [
        Case("HAR, 25 terminals", har, {"energy": 1400.0}, repeats=25),
        Case("2,500 terminals", Request("synthetic", tasks=50, terminals=50), {"energy": 8000.0}),
        Case("20,000 terminals", Request("synthetic", tasks=200, terminals=100), {"energy": 60000.0}, repeats=7),
        Case("25 terminals, unequal speed", Request("synthetic"), {"energy": 1400.0, "time": 20.0}, 1.0, 25),
        Case(
            "2,500 terminals, unequal speed",
            Request("synthetic", tasks=50, terminals=50),
            {"energy": 8000.0, "time": 40.0},
            1.0,
        ),
    ]


def one_run(case: Case, federation: Federation) -> dict[str, float]:
    """Seconds inside the policy, in the loop, and of all that `train` does; and how often a plan was asked for."""
    policy, started = Timed(), time.perf_counter()
    run = Run(federation, DualMethod(intercept=True), Settings(), case.ledger(federation))
    begun = time.perf_counter()
    stopped = run.learn(policy)
    ended = time.perf_counter()
    run.result(stopped)
    return {
        "plans": len(policy.seconds),
        "policy": sum(policy.seconds),
        "loop": ended - begun,
        "train": time.perf_counter() - started,
    }


def measure(case: Case) -> dict[str, Any]:
    """Medians over repeats, after one run that loads compiled code; and that first run in a process of its own."""
    federation = case.request.federation(0)
    one_run(case, federation)
    runs = [one_run(case, federation) for _ in range(case.repeats)]
    first = subprocess.run([sys.executable, __file__, "--first", case.name], capture_output=True, text=True, check=True)
    return {"case": case.name, "again": _shares(runs), "first": _shares([json.loads(first.stdout)])}


def _shares(runs: list[dict[str, float]]) -> dict[str, float]:
    middle = {name: float(np.median([run[name] for run in runs])) for name in runs[0]}
    share = {f"of_{name}": float(np.median([run["policy"] / run[name] for run in runs])) for name in ("loop", "train")}
    return {**middle, **share}


def show(row: dict[str, Any]) -> None:
    """One line for later runs of a process, one for the first."""
    for which in ("again", "first"):
        r = row[which]
        print(
            f"{row['case'] if which == 'again' else '':32} {which:6} {r['plans']:4.0f} {1e3 * r['policy']:8.2f} "
            f"{1e3 * r['loop']:8.1f} {1e3 * r['train']:8.1f} {100 * r['of_loop']:8.2f} % {100 * r['of_train']:8.2f} %"
        )


def main() -> None:
    """Print a table; nothing is asserted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write every number as JSON")
    parser.add_argument("--first", help=argparse.SUPPRESS)
    given = parser.parse_args()
    found = [case for case in cases() if not case.request.path or Path(case.request.path).exists()]
    if given.first:
        case = next(case for case in found if case.name == given.first)
        print(json.dumps(one_run(case, case.request.federation(0))))
        return
    print(f"{'case':32} {'run':6} {'plans':>4} {'policy':>8} {'loop':>8} {'train':>8}  ms; share of loop, of train")
    rows = []
    for case in found:
        rows.append(measure(case))
        show(rows[-1])
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
