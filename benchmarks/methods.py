"""All methods at equal budgets, tuned alike: accuracy with paired differences, and what each has certified.

    python benchmarks/methods.py [--seeds 20] [--tuning 2] [--only har] [--methods a,b,c] [--jobs 2] [--out FILE]

Settings of every method are chosen for each data set and budget, from 24 candidates on parts held out of the training
rows (`rhfedmtl.selection.tuning`), on each of the splits 1000, 1001, …; splits 0, 1, … are learned and tested with
those of each in turn, so that the luck of one choice weighs half, with `--tuning 10` a tenth. Splits of one data set
share rows: what that helps, it helps all methods. Differences are paired over splits, with 95 % intervals; beside those
that hold by themselves, the table counts what is left when all comparisons of a data set are taken together (Holm).
Cells that are in FILE are not made again. Needs the data sets of RHFEDMTL_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import BudgetError, ConfigError
from rhfedmtl.selection.tuning import Validation, tune
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.result import mean

DATA = Path(os.environ.get("RHFEDMTL_DATA", "."))
PRICES = ("energy=0.1,10",)
BUDGETS = (200.0, 600.0, 1400.0, 3000.0, 6000.0)
TABLE3_BUDGETS = (200.0, 400.0, 600.0, 800.0, 1000.0, 1200.0, 1400.0, 1600.0)
OURS = "rhfedmtl"
METHODS = (OURS, "hfedmtl", "fedavg", "mocha", "local", "lbfgs", "fedadam")
FIRST_TUNING = 1000
ALONE = Execution(threads=1)


@dataclass(frozen=True)
class Study:
    """One federation, how its models are judged, the budgets, and who is compared."""

    request: Request
    metric: str = "balanced_accuracy"
    budgets: tuple[float, ...] = BUDGETS
    options: Options = field(default_factory=Options)
    methods: tuple[str, ...] = METHODS


def _har(terminals: int) -> Request:
    path = str(DATA / "har.npz")
    return Request("har", path, 5, terminals, samples_per_task=70, positive="SITTING", test_rest=True)


def _table3(terminals: int) -> Study:
    return Study(_har(terminals), "balanced_accuracy", TABLE3_BUDGETS, Options(intercept=False), METHODS[:3])


HEART = Request("table", str(DATA / "heart.csv"), terminals=3, settings={"label": "num", "task": "center"})
LANDMINE = Request("landmine", str(DATA / "landmine.npz"), terminals=3, samples_per_task=120, test_rest=True)
STUDIES = {
    **{f"har, N_b = {n}": Study(_har(n)) for n in (5, 10, 15)},
    "heart": Study(HEART),
    "landmine": Study(LANDMINE, "auc"),
    "synthetic, 10 × 20": Study(Request("synthetic", tasks=10, terminals=20, settings={"samples": 10, "test": 200})),
    "synthetic, 5 × 5": Study(Request("synthetic", tasks=5, terminals=5, settings={"samples": 16, "test": 200})),
    "watch": Study(Request("watch", terminals=5, grouped=True)),
    **{f"table III, N_b = {n}": _table3(n) for n in (5, 10, 15)},
}


@cache
def split(study: str, seed: int) -> Federation:
    """A split of the federation of this study."""
    return STUDIES[study].request.federation(seed)


def cell(of: str, name: str, budget: float, seeds: int, tuning: int) -> dict[str, Any] | None:
    """Settings of a method at a budget, metric and certified relative gap on every split; None: no round is paid."""
    study = STUDIES[of]
    config = RunConfig(name, study.request, study.options, PRICES, (f"energy={budget}",))
    try:
        chosen = [
            tune(config, split(of, k), validation=Validation(metric=study.metric, seed=k), threads=1)
            for k in range(FIRST_TUNING, FIRST_TUNING + tuning)
        ]
    except (BudgetError, ConfigError):
        return None
    runs = [replace(chosen[seed % len(chosen)].config, seed=seed) for seed in range(seeds)]
    results = [run.run(split(of, seed), execution=ALONE) for seed, run in enumerate(runs)]
    values = [mean(result.metrics[study.metric]) for result in results]
    gaps = [max(result.certificate.relative_gap, 1e-16) for result in results]
    return {"chosen": [each.record.chosen for each in chosen], "values": values, "gaps": gaps}


def paired(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[float, float, float]:
    """How far the other method is ahead, in points, half of its 95 % interval, and how likely chance does as much."""
    ahead = 100.0 * (np.array(theirs["values"]) - np.array(ours["values"]))
    if np.ptp(ahead) == 0.0:
        return float(ahead.mean()), 0.0, float(ahead[0] == 0.0)
    half = stats.t.ppf(0.975, len(ahead) - 1) * stats.sem(ahead)
    return float(ahead.mean()), float(half), float(stats.ttest_1samp(ahead, 0.0).pvalue)


def holm(p: list[float], level: float = 0.05) -> list[bool]:
    """Which of all these comparisons still differ when they are taken together."""
    order, kept = np.argsort(p), [False] * len(p)
    for rank, k in enumerate(order):
        if p[k] > level / (len(p) - rank):
            break
        kept[k] = True
    return kept


def table(name: str, found: dict[str, dict[str, Any]]) -> str:
    """Means in points and geometric means of gaps, a method to a row; behind, level and ahead of ours at the end."""
    study, ours = STUDIES[name], found[OURS]
    seeds = len(next(each for each in ours.values() if each)["values"])
    lines = [f"{name}: {study.metric} | relative gap, at {', '.join(f'{b:g}' for b in study.budgets)}; {seeds} splits"]
    compared = []
    for method, cells in sorted(found.items(), key=lambda each: each[0] != OURS):
        means = (f"{100 * np.mean(each['values']):6.2f}" if each else f"{'-':>6}" for each in cells.values())
        gaps = (f"{np.exp(np.mean(np.log(each['gaps']))):7.1g}" if each else f"{'-':>7}" for each in cells.values())
        lines.append(f"  {method:9} {' '.join(means)} | {' '.join(gaps)}")
        if method != OURS:
            compared += [(method, b, *paired(ours[b], cells[b])) for b in cells if cells[b] and ours[b]]
    sure = holm([p for *_, p in compared])
    ahead = [each for each in compared if each[2] - each[3] > 0.0]
    behind = [each for each in compared if each[2] + each[3] < 0.0]
    alone = sum(kept and each[2] < 0.0 for kept, each in zip(sure, compared, strict=True))
    lines.append(
        f"  of {len(compared)} comparisons {OURS} is ahead in {len(behind)} ({alone} by Holm), behind in {len(ahead)}"
    )
    for kept, each in zip(sure, compared, strict=True):
        if each in ahead:
            method, budget, more, half, _ = each
            lines.append(f"  behind: {method} at {budget} by {more:.2f} ± {half:.2f}{' (by Holm too)' if kept else ''}")
    return "\n".join(lines)


def main() -> None:
    """Make the cells that are not there yet, and print a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tuning", type=int, default=2, help="splits on which settings are chosen")
    parser.add_argument("--only", default="", help="only data sets whose name begins so")
    parser.add_argument("--methods", help=f"a,b,c instead of {', '.join(METHODS[1:])}")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    known = json.loads(args.out.read_text(encoding="utf-8")) if args.out and args.out.exists() else {}
    studies = {name: study for name, study in STUDIES.items() if name.startswith(args.only)}
    methods = {
        name: (OURS, *args.methods.split(",")) if args.methods else study.methods for name, study in studies.items()
    }
    jobs = [
        (name, method, budget)
        for name, study in studies.items()
        for method in methods[name]
        for budget in study.budgets
    ]
    missing = [each for each in jobs if f"{each[2]:g}" not in known.get(each[0], {}).get(each[1], {})]
    with ProcessPoolExecutor(args.jobs) as pool:
        made = pool.map(partial(_job, seeds=args.seeds, tuning=args.tuning), missing)
        for (name, method, budget), found in zip(missing, made, strict=True):
            known.setdefault(name, {}).setdefault(method, {})[f"{budget:g}"] = found
            if args.out:
                args.out.write_text(json.dumps(known) + "\n", encoding="utf-8")
    for name in studies:
        print(table(name, {method: known[name][method] for method in methods[name]}), flush=True)


def _job(where: tuple[str, str, float], seeds: int, tuning: int) -> dict[str, Any] | None:
    return cell(*where, seeds, tuning)


if __name__ == "__main__":
    main()
