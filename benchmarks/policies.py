"""Does the default (`measured`, merge `auto`) buy as much as the best fixed H in hindsight? On many federations.

A cell is a federation (`federations.py`) and a budget. In each, over some seeds, the default is compared, pair by pair,
with that fixed H and merge (`add` or `average`) that turned out best on average in this very cell: a yardstick that
nobody can have beforehand. Budgets are what 2, 6 and 20 rounds of one pass would cost. Points are percentage points
of the metric; for numbers of 1 − RMSE/spread of the labels. Planners are tuned on `tune` alone.

    python benchmarks/policies.py tune --fixed fixed.json      # the fixed ones are run once, and kept there
    python benchmarks/policies.py test real --out results.json
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.federations import RARE, Problem, drawn, real

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.federation import Federation
from rhfedmtl.errors import BudgetError
from rhfedmtl.maths.intervals import interval
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.result import mean
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

GRID = (1, 2, 5, 10, 20, 40, 80, 160, 320)
MERGES = ("add", "average")
STATION_PRICE = 10.0
PASSES = (2, 6, 20)
# A fixed H so small that a budget pays more rounds than this is cut there: it is far behind.
MOST_ROUNDS = 120
# Gaps below this share of the objective are level: nobody can tell them apart.
LEVEL = 1e-6
GROUPS = {
    "tune": lambda: drawn([*range(0, 48, 2), *range(RARE, RARE + 24, 2)]),
    "test": lambda: drawn([*range(1, 33, 2), *range(RARE + 1, RARE + 17, 2)]),
    "real": real,
}
Value = tuple[float, float]


def budgets(problem: Problem, federation: Federation) -> list[float]:
    """What so many rounds of one pass would cost."""
    one = STATION_PRICE * federation.n_tasks + problem.step_price * len(federation.y)
    return [passes * one for passes in PASSES]


def fixed(problem: Problem, seed: int) -> dict[str, list[Value]]:
    """Metric and gap of every fixed H and merge at every budget: one run each, cut where each budget ends."""
    federation = problem.make(seed)
    largest = int(np.diff(federation.terminal_offsets).max())
    found = {}
    for H in (H for H in GRID if max(8 * largest, 2) >= H):
        price = STATION_PRICE * federation.n_tasks + H * problem.step_price * federation.n_terminals
        rounds = [min(int(budget / price * (1 + 1e-12)), MOST_ROUNDS) for budget in budgets(problem, federation)]
        for merge in MERGES if federation.n_terminals > federation.n_tasks else MERGES[:1]:
            values = _course(problem, federation, H, max(rounds), merge, seed)
            found[f"{H} {merge}"] = [values[k - 1] if k else (np.nan, np.nan) for k in rounds]
    return found


def _course(problem: Problem, federation: Federation, H: int, rounds: int, merge: str, seed: int) -> list[Value]:
    if not rounds:
        return []
    method = _options(problem, merge).method(federation.kind)
    history = train(federation, method, Fixed(H, 1, rounds), Settings(seed=seed)).history
    return [(_score(problem, federation, each.metrics), _gap(each.gap, each.primal)) for each in history]


def planned(problem: Problem, seed: int, policy: str) -> list[tuple[float, float, int]]:
    """Metric, gap and rounds of the policy at every budget."""
    federation = problem.make(seed)
    return [_run(problem, federation, seed, policy, budget) for budget in budgets(problem, federation)]


def _run(problem: Problem, federation: Federation, seed: int, policy: str, budget: float) -> tuple[float, float, int]:
    prices = {"terminal_step": problem.step_price, "station_round": STATION_PRICE}
    ledger = Ledger({"energy": prices}, {"energy": budget})
    method = _options(problem, "auto").method(federation.kind)
    try:
        result = train(federation, method, POLICIES[policy](), Settings(seed=seed), ledger=ledger)
    except BudgetError:
        return np.nan, np.nan, 0
    certificate = result.certificate
    return _score(problem, federation, result.metrics), _gap(certificate.gap, certificate.primal), result.rounds


def _options(problem: Problem, merge: str) -> Options:
    return Options(lambda1=problem.lambda1, lambda2=problem.lambda2, merge=merge, features=problem.features)


def _score(problem: Problem, federation: Federation, metrics: Any) -> float:
    if problem.metric != "rmse":
        return mean(metrics[problem.metric])
    return 1.0 - mean(metrics["rmse"]) / float(np.std(federation.test_y))


def _gap(gap: float, primal: float) -> float:
    return max(gap / max(abs(primal), 1e-300), LEVEL)


def summarise(name: str, theirs: list[dict[str, Any]], ours: list[Any]) -> list[dict[str, Any]]:
    """Cells of one federation, with paired 95 % intervals."""
    ways = [way for way in theirs[0] if all(way in each for each in theirs)]
    table = np.array([[each[way] for way in ways] for each in theirs])  # seed, way, budget, (metric, gap)
    own = np.array(ours)  # seed, budget, (metric, gap, rounds)
    cells = []
    for c, passes in enumerate(PASSES):
        affordable = ~np.isnan(table[:, :, c, 0]).any(axis=0)
        if not affordable.any() or np.isnan(own[:, c, 0]).any():
            continue
        best = int(np.argmax(np.where(affordable, table[:, :, c, 0].mean(axis=0), -np.inf)))
        gaps = np.exp(np.log(table[:, :, c, 1]).mean(axis=0))
        cells.append(
            {
                "federation": name,
                "passes": passes,
                "policy": float(own[:, c, 0].mean()),
                "rounds": float(own[:, c, 2].mean()),
                "best": float(table[:, best, c, 0].mean()),
                "best_way": ways[best],
                "difference": _paired(own[:, c, 0] - table[:, best, c, 0]),
                "gap": float(np.exp(np.log(own[:, c, 1]).mean())),
                "gap_ratio": float(np.exp(np.log(own[:, c, 1]).mean()) / gaps[best]),
                "least_gap_ratio": float(np.exp(np.log(own[:, c, 1]).mean()) / gaps[affordable].min()),
            }
        )
    return cells


def _paired(differences: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95 % interval of paired differences; the difference itself where there is one only."""
    middle, half = interval(differences)
    half = half or 0.0
    return middle, middle - half, middle + half


def show(cells: list[dict[str, Any]]) -> None:
    """One line a cell."""
    print(f"\n{cells[0]['federation']}")
    for cell in cells:
        points = "{:+6.2f} [{:+.2f}, {:+.2f}]".format(*(100 * x for x in cell["difference"]))
        print(
            f"  {cell['passes']:3d} passes: {cell['rounds']:6.1f} rounds, {100 * cell['policy']:6.2f} against "
            f"{100 * cell['best']:6.2f} (H {cell['best_way']:11s}) {points:24s} relative gap {cell['gap']:.1e}, "
            f"{cell['gap_ratio']:.2f} of its, {cell['least_gap_ratio']:.2f} of the least"
        )


def overall(group: str, cells: list[dict[str, Any]], seeds: int) -> None:
    """Means over cells, and those that are clearly worse."""
    points = np.array([100 * cell["difference"][0] for cell in cells])
    worse = sum(100 * cell["difference"][2] < -1.0 for cell in cells)
    print(
        f"\n{group}: {len(cells)} cells, {seeds} seeds: mean regret {-points.mean():+.2f} points (a quarter of cells "
        f"below {np.quantile(points, 0.25):+.2f}, least {points.min():+.2f}), {worse} clearly worse by over 1 point, "
        f"gap {_ratio(cells, 'gap_ratio'):.2f} of the best H's, {_ratio(cells, 'least_gap_ratio'):.2f} of the least"
    )
    for passes in PASSES:
        own = [cell for cell in cells if cell["passes"] == passes]
        regret = -100 * np.mean([cell["difference"][0] for cell in own])
        print(f"  {passes:3d} passes: regret {regret:+.2f}, gap {_ratio(own, 'gap_ratio'):.2f}")


def _ratio(cells: list[dict[str, Any]], name: str) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log([cell[name] for cell in cells]))))


def main() -> None:
    """Run the groups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", default=["test", "real"], help=f"out of {', '.join(GROUPS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="only federations whose name has this in it")
    parser.add_argument("--policy", default="measured", choices=[name for name in POLICIES if name != "fixed"])
    parser.add_argument("--features", default="none", help="feature maps of all runs")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--fixed", type=Path, help="where the values of fixed H are kept, from one planner to the next")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    started, everything = time.perf_counter(), []
    known = json.loads(args.fixed.read_text()) if args.fixed and args.fixed.exists() else {}
    for group in args.groups:
        problems = [each for each in GROUPS[group]() if args.only in each.name]
        cells = _measure(problems, args, known)
        overall(group, cells, args.seeds)
        everything += cells
    print(f"\n{time.perf_counter() - started:.0f} s")
    if args.out:
        args.out.write_text(json.dumps(everything, indent=1) + "\n")


def _measure(problems: list[Problem], args: argparse.Namespace, known: dict[str, Any]) -> list[dict[str, Any]]:
    cells = []
    pairs = [(k, seed) for k in range(len(problems)) for seed in range(args.seeds)]
    with ProcessPoolExecutor(args.workers) as pool:
        jobs = {
            (k, seed): pool.submit(_pair, problems[k].name, k, seed, args, f"{problems[k].name} {seed}" in known)
            for k, seed in pairs
        }
        for k, problem in enumerate(problems):
            ours = []
            for seed in range(args.seeds):
                theirs, own = jobs[k, seed].result()
                known.setdefault(f"{problem.name} {seed}", theirs)
                ours.append(own)
            cells += summarise(problem.name, [known[f"{problem.name} {seed}"] for seed in range(args.seeds)], ours)
            show(cells[-sum(cell["federation"] == problem.name for cell in cells) :])
            if args.fixed:
                args.fixed.write_text(json.dumps(known))
    return cells


def _pair(name: str, k: int, seed: int, args: argparse.Namespace, known: bool) -> tuple[Any, Any]:
    """The fixed ones, unless they are known, and the policy, for one federation and seed."""
    problem = next(each for group in args.groups for each in GROUPS[group]() if each.name == name)
    problem = replace(problem, features=args.features)
    return None if known else fixed(problem, seed), planned(problem, seed, args.policy)


if __name__ == "__main__":
    main()
