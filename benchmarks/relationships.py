"""Does it pay to learn tasks together? `mean`, `learned`, `none` and one pooled model, at convergence, on real data.

For every seed (draw of tasks and rows) each method gets its own λ by the warm-started path on training rows, is solved
to a relative gap of 1e-3 on all of them, and is tested on rows that nobody saw: HAR (SITTING against the rest, 70
balanced rows a person of which a quarter is left out, tested on all other rows of the person) with 5, 10 and 30
people, and Landmine (29 fields, a quarter for test, AUC). The pooled model has the rows of all tasks as one task. At
convergence the number of terminals changes nothing, so the path, and the pooled model, have one terminal per task;
the final models of the other methods are learned with five.

    RHFEDMTL_DATA=../shared/data python benchmarks/relationships.py --seeds 20     # about 7 minutes on 2 cores
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.data.federation import Federation, one_terminal_per_task
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.maths.intervals import interval
from rhfedmtl.maths.registry import RELATIONSHIPS
from rhfedmtl.selection.folds import Precision, Solution, solve
from rhfedmtl.selection.regularisation import choose, weighted
from rhfedmtl.training.result import evaluate, mean
from rhfedmtl.training.settings import Settings

DATA = Path(os.environ.get("RHFEDMTL_DATA", "."))
METHODS = ("mean", "learned", "none", "pooled")
TUNING = Precision(relative_gap=3e-2, passes=3.0, max_rounds=50)
FINAL = Precision(relative_gap=1e-3, passes=3.0, max_rounds=1500, certify_every=10)
ONE_THREAD = Settings(execution=Execution(threads=1))


@dataclass(frozen=True)
class Study:
    """One data set and how it is judged."""

    name: str
    request: Request
    metric: str
    judge: str = "loss"
    intercept: bool = False


def studies() -> list[Study]:
    """HAR with 5, 10 and 30 people, and Landmine."""
    har = Request("har", str(DATA / "har.npz"), samples_per_task=70, positive="SITTING", test_rest=True, terminals=5)
    landmine = Request("landmine", str(DATA / "landmine.npz"), terminals=5)
    people = [Study(f"har, {n} tasks", replace(har, tasks=n), "balanced_accuracy") for n in (5, 10, 30)]
    return [*people, Study("landmine, 29 tasks", landmine, "auc", "auc", intercept=True)]


def pooled(federation: Federation) -> Federation:
    """All rows as one task."""
    return replace(
        federation,
        task_offsets=np.array([0, federation.n_terminals]),
        test_offsets=np.array([0, len(federation.test_X)]),
        task_names=("all",),
    )


def test_metric(federation: Federation, solved: Solution, metric: str) -> float:
    """Mean over tasks; one model for all if there is but one."""
    models = np.broadcast_to(solved.models, (federation.n_tasks, *solved.models.shape[1:]))
    scalers = solved.scalers * federation.n_tasks if len(solved.models) == 1 else solved.scalers
    tests = [(scalers[b].transform(X), y) for b, (X, y) in enumerate(map(federation.test_rows, range(len(models))))]
    return mean(evaluate(models, tests, len(federation.class_names))[metric])


def one_seed(job: tuple[Study, int]) -> dict[str, Any]:
    """All methods on one draw."""
    study, seed = job
    federation = study.request.federation(seed)
    results: dict[str, Any] = {"study": study.name, "seed": seed}
    for name in METHODS:
        started = time.perf_counter()
        rows = pooled(federation) if name == "pooled" else federation
        relationship = RELATIONSHIPS["none" if name == "pooled" else name](1e-3, 1e-3)
        method = DualMethod(relationship=relationship, merge=MERGES["add"](), intercept=study.intercept)
        gathered = one_terminal_per_task(rows)
        choice = choose(gathered, method, metric=study.judge, precision=TUNING, settings=ONE_THREAD, judged=federation)
        tuned = replace(method, relationship=weighted(relationship, choice.lambda1, choice.lambda2))
        solved = solve(gathered if name == "pooled" else rows, tuned, FINAL, settings=ONE_THREAD)
        results[name] = test_metric(federation, solved, study.metric)
        results[f"{name} λ"] = (choice.lambda1, choice.lambda2)
        results[f"{name} gap"] = solved.certificate.relative_gap
        results[f"{name} seconds"] = time.perf_counter() - started
    return results


def in_points(values: np.ndarray[Any, Any]) -> str:
    """Mean and half width of its 95 % interval, in points."""
    middle, half = interval(values)
    return f"{100 * middle:6.2f}" + ("" if half is None else f" ± {100 * half:4.2f}")


def table(study: Study, rows: list[dict[str, Any]]) -> str:
    """A line for each method: the metric, and how far `mean` and `learned` are ahead of it, pair by pair."""
    values = {name: np.array([row[name] for row in rows]) for name in METHODS}
    lines = [f"\n{study.name}: {study.metric} in points, {len(rows)} seeds, mean ± half of the 95 % interval"]
    lines.append(
        f"{'method':<9} {study.metric:>18} {'mean minus it':>16} {'learned minus it':>17}  median λ1, λ2      s"
    )
    for name in METHODS:
        weights = np.median([row[f"{name} λ"] for row in rows], axis=0)
        seconds = np.mean([row[f"{name} seconds"] for row in rows])
        ahead = [
            "" if name == other else in_points(values[other] - values[name]).strip() for other in ("mean", "learned")
        ]
        lines.append(
            f"{name:<9} {in_points(values[name]):>18} {ahead[0]:>16} {ahead[1]:>17}  "
            f"{weights[0]:7.1e}, {weights[1]:7.1e} {seconds:5.1f}"
        )
    worst = max(row[f"{name} gap"] for row in rows for name in METHODS)
    return "\n".join([*lines, f"largest relative gap {worst:.1e}"])


def main() -> None:
    """Run the studies and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="", help="studies whose name contains this")
    parser.add_argument("--out", type=Path, help="write every number as JSON")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    # One thread of linear algebra for each worker: on small matrices several threads wait for each other.
    with ProcessPoolExecutor(given.workers, initializer=threadpool_limits, initargs=(1,)) as pool:
        for study in (study for study in studies() if given.only in study.name):
            rows = list(pool.map(one_seed, [(study, seed) for seed in range(given.seeds)]))
            print(table(study, rows), flush=True)
            found += rows
    if given.out:
        given.out.write_text(json.dumps(found, indent=1, default=float))


if __name__ == "__main__":
    main()
