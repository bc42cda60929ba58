"""Ablation: remove a single mechanism and measure the loss of the learned models.

    python -m benchmarks.ablation run --jobs 16 --keep ablation.jsonl     # appends results, resumes where it stopped
    python -m benchmarks.ablation tell --keep ablation.jsonl              # prints the table of benefits

A *mechanism* is a rule on the default path that steers learning. `MECHANISMS` lists the mechanisms, the cell groups in
which they act, and the patches that remove them. A *cell* is a federation, a seed, a budget and a group:

weights   given weights, energy prices
choice    λ2 is chosen within the budget
cloud     as `weights`, but a server iteration costs as much as a round of all stations
stations  as `weights`, but stations have different prices per round
bytes     a byte budget
weak      λ2 = λ1/100
ascent    dual ascent only
speeds    a time budget, stations of different speed, a priced server iteration
hinge     hinge loss, a single terminal per station, λ2 = λ1/100

In the group `choice` HAR has all its rows and keeps recordings together: its usual 70 rows per task are too few for
a choice. The groups `weak`, `ascent` and `speeds`, λ2 of `hinge` and the rows of `choice` were added after a first run,
in which these mechanisms had hardly any cell to act in.

Points are 100 × balanced accuracy, AUC or R². Suboptimality is log10 max((P − P*)/P*, 1e-4), where P is the objective
of the returned models and P* the optimum of the same problem. Runs with and without a mechanism are compared in pairs.

Rule: a mechanism stays if its removal loses at least 0.3 points or 0.3 digits, in the mean over its drawn cells or over
its real cells, with a 95 % interval that excludes zero. The interval is over federations (drawn) or seeds (real).

Guards against divergence, rules of budget, privacy and memory, and H per terminal under a deadline are not judged.
`results/ablation.md` has the table of the first ablation. It lists mechanisms that were deleted since.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from benchmarks.federations import DATA, KINDS, Drawn, Problem, real

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.data import scaling
from rhfedmtl.data.federation import Federation, one_terminal_per_task
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import BudgetError, DivergenceError
from rhfedmtl.maths import quasi_newton, relationships
from rhfedmtl.maths.intervals import interval
from rhfedmtl.policies.measured import policy, progress
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles import cloud
from rhfedmtl.selection.weights import OpenWeights
from rhfedmtl.training import certifying, run
from rhfedmtl.training.config import default_scale
from rhfedmtl.training.result import mean
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings

PASSES = (2, 5, 15, 50)
FIRST_NUMBER, NUMBERS = 300_000, 60
SHAPES: dict[str, dict[str, float]] = {"drawn": {}}
"""Changes of a drawn federation, by the first word of its name."""
SEEDS = range(7_000, 7_010)
FLOOR = 1e-4
KEEP_FROM = 0.3
SOLVED = 1e-6
ROUND_PRICE = 10.0

Patch = contextlib.AbstractContextManager[Any]


@dataclass(frozen=True)
class Mechanism:
    """A rule that steers learning: where it acts, and how to remove it."""

    name: str
    says: str
    groups: tuple[str, ...]
    removed: Callable[[], Patch]
    same_problem: bool = True


def values(module: Any, **names: Any) -> Callable[[], Patch]:
    """Return a patch that sets names of a module."""
    return lambda: mock.patch.multiple(module, **names)


GIVEN = ("weights",)
PLANNER = ("weights", "ascent")
WEAK = ("weak",)
ALL = ("weights", "cloud", "stations", "bytes")
MECHANISMS = [
    Mechanism(
        "quasi-Newton rounds",
        "the cloud takes quasi-Newton steps where they promise more than dual ascent",
        ALL,
        values(run, solvers=lambda method: (quasi_newton.ASCENT,)),
    ),
    Mechanism(
        "curvature per task",
        "quasi-Newton keeps a curvature estimate per task; otherwise L-BFGS on the joint problem",
        GIVEN,
        lambda: mock.patch.dict(quasi_newton.SEARCHES, {quasi_newton.NEWTON: quasi_newton.Backtracking}),
    ),
    Mechanism(
        "coupled start",
        "weakly coupled tasks start with extra coupling that fades (PULL_DECAY, MOST_START_RATIO)",
        WEAK,
        lambda: mock.patch.object(relationships.MeanRegularised, "extra_coupling", return_value=0.0),
    ),
    Mechanism(
        "start at the best point",
        "the next server iteration starts at the best certified point",
        PLANNER,
        lambda: mock.patch.object(cloud.Cloud, "_choose_start", return_value=None),
    ),
    Mechanism(
        "fit of the progress model",
        "the planner fits its model to measured gains; without it, the prior",
        PLANNER,
        lambda: mock.patch.object(progress.Evidence, "fit", lambda self, rounds, prior: (self.rate, self.believed)),
    ),
    Mechanism(
        "waiting for the cloud",
        "0.35 τ⁴ of the gap waits for the next server iteration",
        ("cloud", "speeds"),
        values(policy, waiting=lambda tau: 0.0),
    ),
    Mechanism("choice of λ2", "the run chooses λ2 on held-out rows", ("choice",), contextlib.nullcontext),
    Mechanism(
        "int8 for byte budgets",
        "updates are rounded to 8 bits where bytes are limited; without it, float32",
        ("bytes",),
        contextlib.nullcontext,
    ),
    Mechanism(
        "few certificates for bytes",
        "certificates take a tenth of a byte budget (MOST_CERTIFYING)",
        ("bytes",),
        values(certifying, MOST_CERTIFYING=1e9),
    ),
    Mechanism(
        "small intercept feature",
        "the constant feature has the size of three features in a unit row",
        GIVEN,
        lambda: mock.patch.object(scaling.Scaler, "constant", return_value=1.0),
        same_problem=False,
    ),
    Mechanism(
        "no unit norm for few features",
        "up to 16 features rows keep their length (FEW_FEATURES)",
        GIVEN,
        values(scaling, FEW_FEATURES=0),
        same_problem=False,
    ),
]
BY_NAME = {mechanism.name: mechanism for mechanism in MECHANISMS}


# --- cells -----------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=4)
def problem(name: str) -> Problem:
    """Return the federation of a name such as ``drawn 300004 rare`` or ``har STANDING 5``."""
    words = name.split()
    if words[0] in SHAPES:
        drawn = replace(Drawn.number(int(words[1]), words[2]), **SHAPES[words[0]])  # type: ignore[arg-type]
        metric = {"balanced": "balanced_accuracy", "rare": "auc", "numbers": "rmse"}[words[2]]
        return Problem(name, drawn.federation, drawn.lambda1, drawn.lambda1 * drawn.ratio, drawn.step_price, metric)
    if words[0] == "har":
        request = Request(
            "har",
            str(DATA / "har.npz"),
            tasks=5,
            terminals=int(words[2]),
            samples_per_task=70,
            positive=words[1],
            test_rest=True,
        )
        return Problem(name, request.federation, 1e-4, 1e-3, 0.1, "balanced_accuracy")
    return next(p for p in real() if p.name == name)


def make(name: str, group: str, seed: int) -> Federation:
    """Return the federation of a cell."""
    words = name.split()
    if words[0] != "har" or group != "choice":
        return problem(name).make(seed)
    request = Request("har", str(DATA / "har.npz"), tasks=5, terminals=int(words[2]), positive=words[1], grouped=True)
    return request.federation(seed)


def problems() -> dict[str, list[str]]:
    """Return the names of all federations: drawn, real, and real data that was used before."""
    drawn = [f"drawn {n} {KINDS[n % 3]}" for n in range(FIRST_NUMBER, FIRST_NUMBER + NUMBERS)]
    har = [f"har {activity} {n}" for activity in ("STANDING", "WALKING_UPSTAIRS") for n in (5, 15)]
    return {"drawn": drawn, "real": har, "known": ["digits", "heart", "landmine"]}


def cells() -> Iterator[dict[str, Any]]:
    """Yield a cell per source, federation, seed, budget and group; mechanism "" stands for the full system."""
    for source, names in problems().items():
        for name in names:
            for seed in (0,) if source == "drawn" else SEEDS:
                for group in GROUPS:
                    removals = [m.name for m in MECHANISMS if group in m.groups]
                    if group == "hinge" and "numbers" in name:
                        continue
                    for passes in PASSES:
                        cell = {"source": source, "problem": name, "seed": seed, "group": group, "passes": passes}
                        yield cell | {"without": ["", *removals]}


def prices(setup: Problem, federation: Federation, group: str, seed: int) -> tuple[dict[str, Any], float]:
    """Return prices and the cost of a pass over all rows."""
    n, rows = federation.n_tasks, len(federation.y)
    if group == "bytes":
        width = (federation.X.shape[1] + 1) * 8.0
        return {"bytes": {"terminal_byte_up": 1.0, "terminal_byte_down": 1.0}}, 2.0 * (
            width + 200.0
        ) * federation.n_terminals
    rounds: Any = ROUND_PRICE
    if group == "stations":
        rounds = ROUND_PRICE * np.random.default_rng([seed, n]).lognormal(0.0, 1.0, n)
    if group == "speeds":
        pace = np.random.default_rng([seed, n]).lognormal(0.0, 1.0, n)
        steps = (0.01 * pace).repeat(np.diff(federation.task_offsets))
        longest = float(np.max(steps * np.diff(federation.terminal_offsets)))
        table = {"terminal_step": steps, "station_round": 0.2 * pace, "cloud_round": 0.2, "adds": "elapsed"}
        return {"time": table}, longest + 0.2 * float(pace.max()) + 0.2
    table = {"terminal_step": setup.step_price, "station_round": rounds}
    one = setup.step_price * rows + float(np.sum(np.broadcast_to(rounds, n)))
    if group == "cloud":
        table["cloud_round"] = n * ROUND_PRICE
        one += n * ROUND_PRICE
    return {"energy": table}, one


def measure(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell with every mechanism in turn removed."""
    setup, group = problem(cell["problem"]), cell["group"]
    federation = make(cell["problem"], group, cell["seed"])
    if group == "hinge":
        federation = one_terminal_per_task(federation)
    optimum = best(cell["problem"], cell["seed"], group)
    rows = []
    for without in cell["without"]:
        start = time.perf_counter()
        try:
            row = learn(setup, federation, cell, without)
        except (BudgetError, DivergenceError) as error:
            row = {"error": type(error).__name__}
        same = not without or BY_NAME[without].same_problem
        if optimum is not None and same and "primal" in row:
            row["suboptimality"] = float(np.log10(max(row["primal"] / optimum - 1.0, FLOOR)))
        rows.append({**cell, "without": without, **row, "seconds": round(time.perf_counter() - start, 3)})
    return rows


def options(setup: Problem, group: str, federation: Federation, without: str = "") -> Options:
    """Return the options of a run."""
    values: dict[str, Any] = {"lambda1": setup.lambda1, "lambda2": setup.lambda2}
    if group == "choice":
        values = {"lambda1": setup.lambda1}
    if group in ("weak", "hinge"):
        values["lambda2"] = setup.lambda1 / 100.0
    if group in ("hinge", "logistic"):
        values["loss"] = group
    chosen = Options.of(**values)
    if group == "bytes":
        chosen = chosen.in_precision("float32" if without == "int8 for byte budgets" else "int8")
    return chosen


def learn(setup: Problem, federation: Federation, cell: dict[str, Any], without: str) -> dict[str, float]:
    """Run one budget without a mechanism; return points and objective."""
    group = cell["group"]
    cost, one = prices(setup, federation, group, cell["seed"])
    name = next(iter(cost))
    paid = cell["passes"] + (3 if group == "bytes" else 1e-9)  # round zero and the last certificate take bytes too
    ledger = Ledger(cost, {name: one * paid})
    built = Algorithm(options(setup, group, federation, without).method(federation.kind), Measured())
    settings = Settings(
        seed=cell["seed"], scale=default_scale(federation.kind, private=False), execution=Execution(threads=1)
    )
    ascent = values(run, solvers=lambda method: (quasi_newton.ASCENT,))
    with (
        ascent() if group == "ascent" else contextlib.nullcontext(),
        BY_NAME[without].removed() if without else contextlib.nullcontext(),
    ):
        before = None
        if group == "choice" and without != "choice of λ2":
            weights = OpenWeights(("lambda2",), {"lambda1": setup.lambda1, "lambda2": 0.01})
            method, before = weights.begin(built.method, built.policy, federation, settings, ledger)  # type: ignore[arg-type]
            built = built._replace(method=method)
        state = Run(federation, built.method, settings, ledger)
        if before is not None:
            state.follow(before)
        result = state.result(state.learn(built.policy))
    return {"points": score(setup, federation, result.metrics), "primal": result.certificate.primal}


def score(setup: Problem, federation: Federation, metrics: Any) -> float:
    """Return 100 × balanced accuracy, AUC or R²."""
    if setup.metric != "rmse":
        return 100.0 * mean(metrics["balanced_accuracy" if setup.metric == "accuracy" else setup.metric])
    return 100.0 * (1.0 - float(np.mean(np.square(metrics["rmse"]))) / float(np.var(federation.test_y)))


@lru_cache(maxsize=64)
def best(name: str, seed: int, group: str) -> float | None:
    """Return the optimum P* of a problem; `None` if the run chooses its weights."""
    if group == "choice":
        return None
    setup = problem(name)
    federation = make(name, group, seed)
    if group == "hinge":
        federation = one_terminal_per_task(federation)
    settings = Settings(
        seed=seed,
        scale=default_scale(federation.kind, private=False),
        target_relative_gap=SOLVED,
        max_rounds=3000,
        execution=Execution(threads=1),
    )
    method = options(setup, group if group in ("hinge", "weak", "logistic") else "weights", federation).method(
        federation.kind
    )
    state = Run(federation, method, settings, Ledger({}))
    return float(state.result(state.learn(Measured())).certificate.primal)


# --- running and telling ---------------------------------------------------------------------------------------------
GROUPS = ("weights", "choice", "cloud", "stations", "bytes", "weak", "ascent", "speeds", "hinge")
KEYS = ("source", "problem", "seed", "group", "passes")


def main() -> None:
    """Run the ablation, or write its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("cells", "run", "tell"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, default=Path("ablation.jsonl"))
    parser.add_argument("--only", default="", help="a word that names of federations must contain")
    parser.add_argument("--limit-s", type=float, default=1e9, help="start no cell after so many seconds")
    arguments = parser.parse_args()
    if arguments.action == "cells":
        print("\n".join(table_of_cells()))
    elif arguments.action == "run":
        run_all(arguments)
    else:
        print("\n".join(tell(arguments.keep)))


def run_all(arguments: argparse.Namespace) -> None:
    """Run the cells that are not in the file yet, and append their results."""
    rows = [json.loads(line) for line in arguments.keep.read_text().splitlines()] if arguments.keep.exists() else []
    done = {(*(row[key] for key in KEYS), row["without"]) for row in rows}
    todo = [
        cell | {"without": missing}
        for cell in cells()
        if arguments.only in cell["problem"]
        and (missing := [name for name in cell["without"] if (*(cell[key] for key in KEYS), name) not in done])
    ]
    begun = time.monotonic()
    with ProcessPoolExecutor(arguments.jobs) as pool, arguments.keep.open("a") as file:
        waiting: set[Any] = set()
        queue = iter(todo)
        for count in range(len(todo) + 1):
            while len(waiting) < 2 * arguments.jobs and time.monotonic() - begun < arguments.limit_s:
                cell = next(queue, None)
                if cell is None:
                    break
                waiting.add(pool.submit(measure, cell))
            if not waiting:
                break
            ended = next(as_completed(waiting))
            waiting.remove(ended)
            file.write("".join(json.dumps(row) + "\n" for row in ended.result()))
            file.flush()
            if count % 50 == 0:
                print(f"{count} of {len(todo)} cells, {time.monotonic() - begun:.0f} s", flush=True)


def table_of_cells() -> Iterator[str]:
    """Yield the table of mechanisms and their cells."""
    yield "| mechanism | effect | cells |"
    yield "| --- | --- | --- |"
    for mechanism in MECHANISMS:
        yield f"| {mechanism.name} | {mechanism.says} | {', '.join(mechanism.groups)} |"


def benefits(rows: list[dict[str, Any]], mechanism: str, source: str, measure_name: str) -> list[float]:
    """Return the benefit of a mechanism per federation (drawn) or per seed (real): positive is better with it."""
    with_it = {tuple(row[key] for key in KEYS): row for row in rows if row["without"] == ""}
    sign = 1.0 if measure_name == "points" else -1.0
    units = defaultdict(list)
    for row in rows:
        pair = with_it.get(tuple(row[key] for key in KEYS))
        if (
            row["without"] == mechanism
            and row["source"] == source
            and pair
            and measure_name in row
            and measure_name in pair
        ):
            unit = row["problem"] if source == "drawn" else row["seed"]
            units[unit].append(sign * (pair[measure_name] - row[measure_name]))
    return [float(np.mean(parts)) for parts in units.values()]


def tell(keep: Path) -> Iterator[str]:
    """Yield the table of benefits."""
    rows = [json.loads(line) for line in keep.read_text().splitlines()]
    yield f"{len(rows):,} runs by `python -m benchmarks.ablation`. Its first lines define cells, measures and rule.\n"
    yield "Benefit of a mechanism (positive: better with it), mean and 95 % interval."
    yield "Points: 100 × balanced accuracy, AUC or R². Digits: decimal digits of suboptimality.\n"
    yield "| mechanism | points, drawn | points, HAR | digits, drawn | digits, HAR | points, known data | verdict |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for mechanism in MECHANISMS:
        texts, keeps = {}, False
        for source, name in (
            ("drawn", "points"),
            ("real", "points"),
            ("drawn", "suboptimality"),
            ("real", "suboptimality"),
            ("known", "points"),
        ):
            values_of = np.array(benefits(rows, mechanism.name, source, name))
            if len(values_of) < 2:
                texts[source, name] = "–"
                continue
            middle, half = interval(values_of)
            assert half is not None
            texts[source, name] = f"{middle:+.2f} ± {half:.2f}"
            keeps |= source != "known" and middle >= KEEP_FROM and middle - half > 0.0
        yield f"| {mechanism.name} | {' | '.join(texts.values())} | {'stays' if keeps else 'goes'} |"


if __name__ == "__main__":
    main()
