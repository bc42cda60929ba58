"""Does the policy `measured` buy as much as the best fixed H in hindsight? Several data sets, prices and budgets.

A cell is a data set, a price of a terminal step and a budget. In each, over many seeds (split and run), the policy is
compared, pair by pair, with fixed H = 2 and with that affordable H of the grid that turned out best on average in
this very cell: a yardstick that nobody can have beforehand.

    python benchmarks/policies.py --seeds 20 --out results.json            # everything, about 10 minutes on 2 cores
    python benchmarks/policies.py --only har --seeds 20
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
from scipy import stats

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.request import Request
from rhfedmtl.errors import BudgetError
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.run import Settings, mean, train

GRID = (1, 2, 5, 10, 20, 40)
STATION_PRICE = 10.0
DATA = Path(os.environ.get("RHFEDMTL_DATA", "."))
# Table III of the paper, column RHFedMTL: N_b -> accuracy at budgets 200, 400, ..., 1600.
PAPER = {
    5: (0.70, 0.73, 0.72, 0.72, 0.73, 0.77, 0.78, 0.74),
    10: (0.70, 0.72, 0.71, 0.72, 0.72, 0.73, 0.75, 0.71),
    15: (0.68, 0.68, 0.70, 0.70, 0.71, 0.71, 0.72, 0.68),
}


@dataclass(frozen=True)
class Study:
    """One data set with the prices and budgets to try."""

    name: str
    request: Request
    metric: str
    budgets: tuple[float, ...]
    step_prices: tuple[float, ...] = (0.02, 0.1, 0.5, 2.0)
    lambda1: float = 1e-4
    lambda2: float = 1e-3
    intercept: bool = False
    paper: tuple[float, ...] = ()

    def method(self) -> DualMethod:
        """What is learned."""
        return DualMethod(relationship=MeanRegularised(self.lambda1, self.lambda2), intercept=self.intercept)


def studies() -> list[Study]:
    """The HAR cells of the paper's table at two λ2, and four more federations over four prices of a step.

    λ of those four is near the best at convergence: where the optimum overfits, whoever gets less done wins.
    """
    table = tuple(200.0 * k for k in range(1, 9))
    har = Request("har", str(DATA / "har.npz"), tasks=5, samples_per_task=70, positive="SITTING", test_rest=True)
    found = [
        Study(
            f"har N_b={n_b} λ2={lambda2:g}",
            replace(har, terminals=n_b),
            "balanced_accuracy",
            table,
            (0.1,),
            lambda2=lambda2,
            paper=PAPER[n_b],
        )
        for lambda2 in (1e-6, 1e-3)
        for n_b in (5, 10, 15)
    ]
    return [
        *found,
        Study(
            "watch",
            Request(data="watch", terminals=5),
            "balanced_accuracy",
            (400.0, 800.0, 1600.0, 3200.0),
            lambda1=1e-3,
        ),
        Study(
            "landmine",
            Request(data="landmine", path=str(DATA / "landmine.npz"), terminals=5),
            "auc",
            (1500.0, 3000.0, 6000.0),
            lambda1=1e-4,
            lambda2=1e-2,
            intercept=True,
        ),
        Study(
            "synthetic",
            Request(data="synthetic"),
            "accuracy",
            (200.0, 400.0, 800.0, 1600.0),
            lambda1=1e-3,
            lambda2=1e-1,
        ),
        Study(
            "synthetic, unequal",
            Request(
                data="synthetic",
                tasks=10,
                terminals=8,
                settings={"unequal": 1.0, "clusters": 3, "noise": 0.1, "heterogeneity": 0.5},
            ),
            "accuracy",
            (400.0, 800.0, 1600.0, 3200.0),
            lambda1=1e-2,
            lambda2=1e-2,
        ),
    ]


def one_seed(study: Study, seed: int, policy: str) -> dict[str, Any]:
    """Metric and gap of every fixed H and of the policy, at every price and budget, for one split."""
    federation = study.request.federation(seed)
    return {
        "fixed": [_fixed(study, federation, H, seed) for H in GRID],
        "policy": _policy(study, federation, seed, policy),
    }


def _fixed(study: Study, federation: Any, H: int, seed: int) -> list[list[tuple[float, float]]]:
    """A fixed H goes the same way whatever it costs: one run, cut where each budget ends."""
    per_round = [_round_price(federation, H, price) for price in study.step_prices]
    rounds = int(max(study.budgets) / min(per_round) * (1 + 1e-12))
    if rounds == 0:
        return [[(np.nan, np.nan)] * len(study.budgets) for _ in study.step_prices]
    history = train(federation, study.method(), Fixed(H, 1, rounds), Settings(seed=seed)).history
    values = [(mean(moment.metrics[study.metric]), moment.gap) for moment in history]
    return [
        [values[k - 1] if (k := int(budget / price * (1 + 1e-12))) else (np.nan, np.nan) for budget in study.budgets]
        for price in per_round
    ]


def _round_price(federation: Any, H: int, step_price: float) -> float:
    return STATION_PRICE * federation.n_tasks + H * step_price * federation.n_terminals


def _policy(study: Study, federation: Any, seed: int, policy: str) -> list[list[tuple[float, float, int]]]:
    return [
        [_run(study, federation, seed, policy, step_price, budget) for budget in study.budgets]
        for step_price in study.step_prices
    ]


def _run(
    study: Study, federation: Any, seed: int, policy: str, step_price: float, budget: float
) -> tuple[float, float, int]:
    ledger = Ledger({"energy": {"terminal_step": step_price, "station_round": STATION_PRICE}}, {"energy": budget})
    settings = Settings(seed=seed, certify_every=10**9)
    try:
        result = train(federation, study.method(), POLICIES[policy](), settings, ledger=ledger)
    except BudgetError:
        return np.nan, np.nan, 0
    assert ledger.spent["energy"] <= budget
    return mean(result.metrics[study.metric]), result.certificate.gap, result.rounds


def summarise(study: Study, seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Cells of one study: the policy against H = 2 and against the best H of the cell, with paired 95 % intervals."""
    fixed = np.array([seed["fixed"] for seed in seeds])  # seed, H, price, budget, (metric, gap)
    policy = np.array([seed["policy"] for seed in seeds])  # seed, price, budget, (metric, gap, rounds)
    cells = []
    for p, price in enumerate(study.step_prices):
        for c, budget in enumerate(study.budgets):
            ours, theirs = policy[:, p, c], fixed[:, :, p, c]
            affordable = ~np.isnan(theirs[..., 0]).any(axis=0)
            if not affordable.any() or np.isnan(ours[:, 0]).any():
                continue
            best = int(np.argmax(np.where(affordable, theirs[..., 0].mean(axis=0), -np.inf)))
            cell = {
                "step_price": price,
                "budget": budget,
                "policy": float(ours[:, 0].mean()),
                "rounds": float(ours[:, 2].mean()),
                "best_H": GRID[best],
                "best": float(theirs[:, best, 0].mean()),
                "minus_best": _paired(ours[:, 0] - theirs[:, best, 0]),
                "gap_ratio": float(ours[:, 1].mean() / theirs[:, best, 1].mean()),
            }
            if affordable[GRID.index(2)]:
                cell["minus_H2"] = _paired(ours[:, 0] - theirs[:, GRID.index(2), 0])
            if study.paper:
                cell["paper"] = study.paper[c]
            cells.append(cell)
    return {"study": study.name, "metric": study.metric, "seeds": len(seeds), "cells": cells, **_overall(cells)}


def _overall(cells: list[dict[str, Any]]) -> dict[str, Any]:
    against_2 = [cell["minus_H2"] for cell in cells if "minus_H2" in cell]
    return {
        "mean_minus_best_points": 100 * float(np.mean([cell["minus_best"][0] for cell in cells])),
        "mean_gap_ratio": float(np.exp(np.mean([np.log(cell["gap_ratio"]) for cell in cells]))),
        "cells_worse_than_H2": sum(high < 0 for _, _, high in against_2),
        "cells_not_above_paper": sum(cell["policy"] <= cell["paper"] for cell in cells if "paper" in cell),
    }


def _paired(differences: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95 % interval of paired differences."""
    middle, n = float(differences.mean()), len(differences)
    if n < 2:
        return middle, middle, middle
    half = float(stats.t.ppf(0.975, n - 1) * differences.std(ddof=1) / np.sqrt(n))
    return middle, middle - half, middle + half


def show(summary: dict[str, Any]) -> None:
    """One table a study, in points of the metric."""
    print(f"\n{summary['study']}: {summary['metric']}, {summary['seeds']} seeds")
    print(" step  budget  rounds  policy    best  H*  minus best (95 %)      minus H=2 (95 %)       gap/gap*")
    for cell in summary["cells"]:
        best, two = cell["minus_best"], cell.get("minus_H2")
        against = "{:+6.2f} [{:+.2f}, {:+.2f}]".format(*(100 * x for x in best))
        against_2 = "{:+6.2f} [{:+.2f}, {:+.2f}]".format(*(100 * x for x in two)) if two else "-"
        print(
            f"{cell['step_price']:5g} {cell['budget']:7g} {cell['rounds']:7.1f} {100 * cell['policy']:7.2f} "
            f"{100 * cell['best']:7.2f} {cell['best_H']:3d}  {against:22} {against_2:22} {cell['gap_ratio']:.2f}"
        )
    print(
        f"mean difference to the best H in hindsight {summary['mean_minus_best_points']:+.2f} points, "
        f"gap ratio {summary['mean_gap_ratio']:.2f}, cells worse than H = 2: {summary['cells_worse_than_H2']}"
        + (
            f", cells not above the paper: {summary['cells_not_above_paper']}"
            if summary["cells"][0].get("paper")
            else ""
        )
    )


def main() -> None:
    """Run the studies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", help="only studies whose name begins so")
    parser.add_argument("--policy", default="measured", choices=[name for name in POLICIES if name != "fixed"])
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    started, summaries = time.perf_counter(), []
    with ProcessPoolExecutor(args.workers) as pool:
        for study in studies():
            if args.only and not study.name.startswith(args.only):
                continue
            if study.request.path and not Path(study.request.path).exists():
                print(f"\n{study.name}: skipped, {study.request.path} is not there (set RHFEDMTL_DATA)")
                continue
            jobs = [pool.submit(one_seed, study, seed, args.policy) for seed in range(args.seeds)]
            summaries.append(summarise(study, [job.result() for job in jobs]))
            show(summaries[-1])
    print(f"\n{time.perf_counter() - started:.0f} s")
    if args.out:
        args.out.write_text(json.dumps(summaries, indent=1) + "\n")


if __name__ == "__main__":
    main()
