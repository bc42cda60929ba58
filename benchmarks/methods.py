"""All methods at equal budgets, each tuned by the same number of trials: balanced accuracy with 95 % intervals.

For every seed (split and run) and budget, the settings of a method are chosen on validation parts of its training rows
(`rhfedmtl.selection.tuning`), at that budget; then it learns from all training rows and is tested. Yardsticks know
no budget. "minus" is the paired difference to `rhfedmtl`.

    python benchmarks/methods.py --seeds 10 --out results.json          # about 10 minutes on 2 cores
    python benchmarks/methods.py --only har --seeds 10
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from rhfedmtl.algorithms.registry import ALGORITHMS
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.selection.tuning import Validation, tune
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.run import mean

DATA = Path(os.environ.get("RHFEDMTL_DATA", "."))
PRICES = ("energy=0.1,10",)
OURS = "rhfedmtl"


@dataclass(frozen=True)
class Study:
    """One data set with the budgets to try."""

    name: str
    request: Request
    budgets: tuple[float, ...]
    metric: str = "balanced_accuracy"


STUDIES = (
    Study(
        "har",
        Request(
            "har", str(DATA / "har.npz"), tasks=5, terminals=5, samples_per_task=70, positive="SITTING", test_rest=True
        ),
        (400.0, 1400.0),
    ),
    Study("watch", Request("watch", terminals=5), (400.0, 1400.0)),
)


def one_seed(study: Study, seed: int, parts: int, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Metric and chosen settings of every method at every budget."""
    federation = study.request.federation(seed)
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        found[name] = {}
        yardstick = ALGORITHMS[name].yardstick
        for budget in study.budgets[:1] if yardstick else study.budgets:
            limits = () if yardstick else (f"energy={budget}",)
            config = RunConfig(name, study.request, cost=PRICES, budget=limits, certify_every=5, seed=seed)
            validation = Validation(parts=parts, metric=study.metric, seed=seed)
            tuned = tune(config, federation, validation=validation, threads=1)
            result = tuned.config.run(federation, execution=Execution(threads=1))
            outcome = mean(result.metrics[study.metric]), tuned.record.chosen, tuned.record.trials
            for each in study.budgets if yardstick else (budget,):
                found[name][f"{each:g}"] = outcome
    return found


def interval(values: np.ndarray) -> tuple[float, float]:
    """Mean and half of its 95 % interval."""
    if len(values) < 2:
        return float(values.mean()), 0.0
    return float(values.mean()), float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))


def show(study: Study, seeds: list[dict[str, dict[str, Any]]]) -> None:
    """One table for each budget, best method first, in points."""
    for budget in study.budgets:
        values = {name: np.array([100 * seed[name][f"{budget:g}"][0] for seed in seeds]) for name in seeds[0]}
        print(f"\n{study.name}, budget {budget:g}: {study.metric}, {len(seeds)} seeds")
        print(f"{'method':12} {'mean':>7} {'±':>5}   {'minus ' + OURS:>15} {'±':>5}   chosen most often")
        for name in sorted(values, key=lambda name: -values[name].mean()):
            middle, half = interval(values[name])
            less, off = interval(values[name] - values[OURS])
            versus = f"{less:+15.2f} {off:5.2f}" if name != OURS else f"{'-':>15} {'':5}"
            print(f"{name:12} {middle:7.2f} {half:5.2f}   {versus}   {_favourite(seeds, name, budget)}")


def _favourite(seeds: list[dict[str, dict[str, Any]]], name: str, budget: float) -> str:
    """For every setting the value that was chosen most often."""
    chosen = [seed[name][f"{budget:g}"][1] for seed in seeds]
    parts = []
    for setting in chosen[0]:
        values = [each[setting] for each in chosen]
        parts.append(f"{setting}={max(sorted(set(values), key=str), key=values.count)}")
    return " ".join(parts)


def main() -> None:
    """Run the studies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--parts", type=int, default=2, help="how many of four validation parts are held out in turn")
    parser.add_argument("--only", help="only studies whose name begins so")
    parser.add_argument("--methods", default=",".join(ALGORITHMS), help=f"a,b,c; {OURS} is always among them")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    started, found = time.perf_counter(), {}
    names = tuple(dict.fromkeys([OURS, *args.methods.split(",")]))
    with ProcessPoolExecutor(args.workers) as pool:
        for study in STUDIES:
            if args.only and not study.name.startswith(args.only):
                continue
            if study.request.path and not Path(study.request.path).exists():
                print(f"\n{study.name}: skipped, {study.request.path} is not there (set RHFEDMTL_DATA)")
                continue
            jobs = [pool.submit(one_seed, study, seed, args.parts, names) for seed in range(args.seeds)]
            found[study.name] = [job.result() for job in jobs]
            show(study, found[study.name])
    print(f"\n{time.perf_counter() - started:.0f} s")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
