"""Does it pay to let fast and cheap stations make more rounds? K_b planned, against the same K for all, pair by pair.

Synthetic federations whose stations differ in speed (time is scarce), in price (energy is), or in speed with both
scarce. In each, at every budget and over many seeds (data, differences and run), the policy `measured` is run twice: as
it is, and with one K for all. Both spend the same budget.

    python benchmarks/station_rounds.py --seeds 20            # about 5 minutes on 2 cores
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import BudgetError
from rhfedmtl.maths.intervals import interval
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.run import Settings, mean, train

BUDGETS = (6.0, 15.0, 40.0, 100.0)
"""In rounds of stations of average price or speed, with about one pass over the rows in each."""

Paces = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Data:
    """A federation, with weights near the best at convergence: where the optimum overfits, who does less wins."""

    name: str
    request: Request
    lambda1: float
    lambda2: float


DATA = (
    Data("5 x 5", Request("synthetic"), 1e-3, 1e-1),
    Data("20 x 4", Request("synthetic", tasks=20, terminals=4), 1e-3, 1e-1),
    Data(
        "10 x 8, unequal sizes",
        Request(
            "synthetic",
            tasks=10,
            terminals=8,
            settings={"unequal": 1.0, "clusters": 3, "noise": 0.1, "heterogeneity": 0.5},
        ),
        1e-2,
        1e-2,
    ),
    Data("5 x 5, hardly coupled", Request("synthetic"), 1e-2, 1e-4),
)
PACES: dict[str, Paces] = {
    "one 5 times": lambda rng, n: np.where(np.arange(n) == rng.integers(n), 5.0, 1.0),
    "half 4 times": lambda rng, n: np.where(rng.permutation(n) < n // 2, 4.0, 1.0),
    "lognormal": lambda rng, n: rng.lognormal(0.0, 1.0, n),
}
SCARCE = ("time", "energy", "time, energy")


def ledger(scarce: str, pace: np.ndarray, home: np.ndarray, budget: float) -> Ledger:
    """Stations differ in time, or in energy where that alone is scarce."""
    cost: dict[str, Any] = {}
    limits: dict[str, float] = {}
    if "time" in scarce:
        cost["time"] = {"terminal_step": 0.01 * pace[home], "station_round": 0.2 * pace}
        limits["time"] = budget * 0.4 * float(pace.mean())
    if "energy" in scarce:
        own = np.ones(len(pace)) if "time" in scarce else pace
        cost["energy"] = {"terminal_step": 0.1 * own[home], "station_round": 10.0 * own}
        limits["energy"] = budget * 15.0 * float(own.sum())
    return Ledger(cost, limits)


def one_seed(job: tuple[Data, int]) -> list[dict[str, Any]]:
    """All differences, scarcities and budgets for one draw."""
    data, seed = job
    federation = data.request.federation(seed)
    home = np.asarray(federation.terminal_task)
    rows = []
    for pace_name, draw in PACES.items():
        pace = draw(np.random.default_rng([seed, 7]), federation.n_tasks)
        for scarce in SCARCE:
            for budget in BUDGETS:
                books = [ledger(scarce, pace, home, budget) for _ in range(2)]
                both = [
                    _run(data, federation, seed, book, same) for book, same in zip(books, (True, False), strict=True)
                ]
                if None not in both:
                    where = {"data": data.name, "pace": pace_name, "scarce": scarce, "budget": budget, "seed": seed}
                    rows.append({**where, "one": both[0], "own": both[1]})
    return rows


def _run(data: Data, federation: Any, seed: int, book: Ledger, same: bool) -> dict[str, float] | None:
    method = DualMethod(relationship=MeanRegularised(data.lambda1, data.lambda2), intercept=False)
    settings = Settings(seed=seed, certify_every=10**9, execution=Execution(threads=1))
    try:
        result = train(federation, method, Measured(same_rounds=same), settings, ledger=book)
    except BudgetError:
        return None
    assert all(book.spent[name] <= limit for name, limit in book.budget.items())
    return {
        "accuracy": mean(result.metrics["accuracy"]),
        "gap": result.certificate.gap,
        "rounds": result.rounds,
        "cloud_rounds": result.cloud_rounds,
    }


def in_words(values: np.ndarray) -> str:
    """Mean and half of its 95 % interval."""
    middle, half = interval(values)
    return f"{middle:+6.2f}" + ("" if half is None else f" ± {half:4.2f}")


def line(name: str, rows: list[dict[str, Any]]) -> str:
    """Differences of K_b to one K: accuracy in points, and the gap as a ratio (geometric mean)."""
    points = np.array([100 * (row["own"]["accuracy"] - row["one"]["accuracy"]) for row in rows])
    logs = np.array([np.log(row["own"]["gap"] / row["one"]["gap"]) for row in rows])
    mean_log, half = interval(logs)
    low, middle, high = np.exp(mean_log + (half or 0.0) * np.array([-1.0, 0.0, 1.0]))
    rounds = "/".join(f"{np.mean([row[which]['rounds'] for row in rows]):.1f}" for which in ("one", "own"))
    clouds = "/".join(f"{np.mean([row[which]['cloud_rounds'] for row in rows]):.1f}" for which in ("one", "own"))
    same = np.mean([row["one"] == row["own"] for row in rows])
    return (
        f"{name:44} {in_words(points):15} {middle:5.2f} [{low:.2f}, {high:.2f}] {len(rows):5d} {100 * same:5.0f} % "
        f"{rounds:>12} {clouds:>12}"
    )


def show(rows: list[dict[str, Any]]) -> None:
    """By what is scarce, and how stations differ, the data, or the budget."""
    rows = sorted(rows, key=lambda row: (SCARCE.index(row["scarce"]), row["budget"]))
    for key in ("pace", "data", "budget"):
        print(
            f"\n{'scarce, ' + key:44} {'accuracy, points':15} {'gap ratio (95 %)':18} {'pairs':>5} {'same':>7}", end=""
        )
        print(f" {'rounds':>12} {'cloud rounds':>12}")
        for group in {(row["scarce"], row[key]): None for row in rows}:
            chosen = [row for row in rows if (row["scarce"], row[key]) == group]
            print(line(f"{group[0]}, {group[1]}", chosen))


def main() -> None:
    """Run everything and print three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="write every number as JSON")
    given = parser.parse_args()
    started = time.perf_counter()
    with ProcessPoolExecutor(given.workers) as pool:
        jobs = [(data, seed) for data in DATA for seed in range(given.seeds)]
        rows = [row for part in pool.map(one_seed, jobs) for row in part]
    show(rows)
    print(f"\n{time.perf_counter() - started:.0f} s")
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
