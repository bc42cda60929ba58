"""Requirements for every run, checked on short runs with small budgets and faults.

`entries` uses `federation` and `learn` for its own checks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import is_yardstick
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import ENGINES, Execution
from rhfedmtl.plain import plain
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.runs.recording import summary
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

COST = ["energy=0.1,10,1", "time=0.01,0.1", "bytes=0,0"]
BUDGET = {"energy": 250.0, "time": 30.0}
FAULTS = {
    "calm": Faults(),
    "drop-outs": Faults(dropout=0.3, dropout_length=2.0),
    "stations away": Faults(station_away=0.3),
    "comings and goings": Faults(moves=0.5, churn=0.1, absence=3.0),
    "late rows": Faults(late_rows=0.5, late_until=4),
    "everything": Faults(
        dropout=0.2, slowdown=0.5, patience=1.5, station_away=0.1, moves=0.3, churn=0.1, late_rows=0.3, late_until=6
    ),
}
DRAWS_NOTHING = ("constant", "lbfgs", "giant")
"""Algorithms without random numbers."""


@dataclass(frozen=True)
class Case:
    """An algorithm, its options, and the number of classes (0: the labels are numbers)."""

    algorithm: str
    options: Options = field(default_factory=Options)
    classes: int = 2


@cache
def federation(classes: int = 2) -> Federation:
    """Return three small tasks with unequal terminals."""
    settings = {"unequal": 0.5, "test": 20, "features": 6, "classes": classes}
    return Request(data="synthetic", tasks=3, terminals=3, settings=settings).federation(0)


def learn(
    case: Case, weather: str = "calm", execution: Execution | None = None, seed: int = 0, certify_every: int = 5
) -> Result:
    """Return a run with a small budget; a baseline has no budget."""
    data, yardstick = federation(case.classes), is_yardstick(case.algorithm)
    built = build(case.algorithm, case.options, data.kind)
    settings = Settings(
        seed=seed,
        certify_every=certify_every,
        target_relative_gap=1e-3 if yardstick else 0.0,
        max_rounds=60,
        execution=execution or Execution(),
    )
    ledger = Ledger({}) if yardstick else Ledger(COST, BUDGET)
    faults = Faults() if yardstick and FAULTS[weather].slowdown else FAULTS[weather]
    return train(built.regroup(data), built.method, built.policy, settings, ledger=ledger, faults=faults, judged=data)


def same(first: Result, second: Result) -> None:
    """Require equal results to the bit: models, metrics and bill."""
    np.testing.assert_array_equal(first.models, second.models)
    require(first.ledger == second.ledger, f"{first.ledger} and {second.ledger} differ")
    ends = [(result.rounds, result.terminal_steps, result.stopped) for result in (first, second)]
    require(ends[0] == ends[1], f"{ends[0]} and {ends[1]} differ")
    for name, values in first.metrics.items():
        np.testing.assert_array_equal(values, second.metrics[name])


def require(holds: bool, otherwise: str) -> None:
    """Raise an AssertionError with the text unless the condition holds."""
    if not holds:
        raise AssertionError(otherwise)


def local_engines() -> list[str]:
    """Return the engines that give the same bits and need no cluster."""
    return [name for name, entry in ENGINES.items() if entry.exact and not entry.cluster]


def engines_agree(case: Case, weather: str = "everything") -> None:
    """Engines give the same numbers and the same bill, to the bit, also under faults."""
    agreed(case, weather)


def agreed(case: Case, weather: str = "everything") -> Result:
    """Return the run on which all engines agree."""
    first, *results = (learn(case, weather, Execution(engine)) for engine in local_engines())
    for result in results:
        same(first, result)
    require(len(first.models) == federation(case.classes).n_tasks, f"{len(first.models)} models")
    require(bool(np.isfinite(first.models).all()), "models are not finite")
    return first


def budget_holds(case: Case, weather: str = "everything") -> None:
    """A run never overspends a budget, and replaying the events gives the same ledger."""
    within_budget(learn(case, weather))


def within_budget(result: Result) -> None:
    """Require that a finished run stayed within its budget."""
    for name, limit in result.ledger.budget.items():
        require(result.ledger.spent[name] <= limit, f"spent {result.ledger.spent[name]} of {limit} {name}")
    if result.ledger.budget:
        require(Ledger.replay(COST, BUDGET, result.events) == result.ledger, "the ledger does not replay")


def seed_decides(case: Case) -> None:
    """The same seed gives the same run, and another seed another run if the algorithm uses random numbers."""
    first, second, other_seed = (learn(case, "drop-outs", seed=seed) for seed in (0, 0, 1))
    same(first, second)
    if case.algorithm not in DRAWS_NOTHING:
        require(np.abs(first.models - other_seed.models).max() > 0.0, "another seed gives the same models")


def record_is_plain(case: Case) -> None:
    """The record is plain JSON without NaN and infinity."""
    facts = plain(summary(learn(case)))
    require(json.loads(json.dumps(facts, allow_nan=False)) == facts, "reading the record changes it")


def certificate_holds(case: Case) -> None:
    """A dual value never exceeds the objective."""
    result = learn(case, "drop-outs", certify_every=1)
    if isinstance(build(case.algorithm, case.options, federation(case.classes).kind).method, DualMethod):
        worst = min(moment.gap for moment in result.history if moment.certified)
        require(worst >= -1e-9 * (1.0 + abs(result.certificate.primal)), f"the dual exceeds the objective by {-worst}")


OF_A_RUN = (engines_agree, budget_holds, seed_decides, record_is_plain, certificate_holds)
