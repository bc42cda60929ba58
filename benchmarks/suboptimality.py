"""How far from the optimum each solver of the joint problem is when the budget is spent, and what it has certified.

    python benchmarks/suboptimality.py [--seeds 3] [--only har] [--tuned] [--out results.txt]

All methods have the same weights (the defaults, or with --tuned those that `rhfedmtl --tune` chooses at this budget on
another split), prices (0.1 a step, 10 a station's round) and splits. The optimum is that of a run to a gap of 1e-11
without a budget. Figures are geometric means over seeds of (P − P*)/P* and of certified relative gaps; "over" is that
of `rhfedmtl` over the best of the others. A dash: the budget pays no round, or the method diverged. Needs the data sets
of RHFEDMTL_DATA.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import BudgetError, ConfigError, DivergenceError
from rhfedmtl.maths.registry import LAMBDA2
from rhfedmtl.selection.tuning import tune
from rhfedmtl.training.config import RunConfig

DATA = Path(os.environ.get("RHFEDMTL_DATA", "."))
BUDGETS = (200.0, 600.0, 1400.0, 3000.0, 6000.0)
USUAL = Options(lambda2=LAMBDA2)
METHODS: dict[str, dict[str, Any]] = {
    "rhfedmtl": {},
    "lbfgs": {},
    "giant": {},
    "hfedmtl": {"local_steps": 10},
    "fedu": {"local_steps": 10, "step": 1.0},
}
PRICES = ("energy=0.1,10",)
TUNING = 1000
ALONE = Execution(threads=1)


def _har(terminals: int) -> Request:
    return Request("har", str(DATA / "har.npz"), 5, terminals, samples_per_task=70, positive="SITTING")


SETS = {
    **{f"har, N_b = {n}": _har(n) for n in (5, 10, 15)},
    "watch": Request("watch", terminals=5),
    "landmine": Request("landmine", str(DATA / "landmine.npz"), terminals=3, samples_per_task=120),
    "heart": Request("table", str(DATA / "heart.csv"), terminals=3, settings={"label": "num", "task": "center"}),
    "synthetic, 10 × 20": Request("synthetic", tasks=10, terminals=20, settings={"samples": 10}),
    "synthetic, 5 × 5": Request("synthetic", tasks=5, terminals=5, settings={"samples": 16}),
}


def weights(request: Request, budget: float) -> Options:
    """The weights that are best for `rhfedmtl` at this budget on rows held out of another split."""
    config = RunConfig("rhfedmtl", request, cost=PRICES, budget=(f"energy={budget}",), seed=TUNING)
    try:
        return tune(config, request.federation(TUNING), threads=1).config.options
    except ConfigError:
        return USUAL


def one_seed(request: Request, seed: int, given: dict[float, Options]) -> Any:
    """Suboptimality and certified relative gap of every method (rows) at every budget (columns)."""
    data, best = request.federation(seed), dict[tuple[float, float], float]()
    found = np.full((len(METHODS), len(BUDGETS), 2), np.nan)
    for k, budget in enumerate(BUDGETS):
        options = given[budget]
        pair = options.weight("lambda1"), options.weight("lambda2")
        if pair not in best:
            solved = RunConfig("lbfgs", request, options, target_gap=1e-11, seed=seed).run(data, execution=ALONE)
            best[pair] = solved.certificate.primal
        for m, (name, own) in enumerate(METHODS.items()):
            config = RunConfig(name, request, options.changed(**own), PRICES, (f"energy={budget}",), seed=seed)
            try:
                certificate = config.run(data, execution=ALONE).certificate
            except (BudgetError, DivergenceError):
                continue
            far = (certificate.primal - best[pair]) / best[pair]
            found[m, k] = max(far, 1e-10), max(certificate.relative_gap, 1e-10)
    return found


def table(name: str, seeds: int, *, tuned: bool = False) -> str:
    """All methods on one data set; below 1e-10 nothing is told apart."""
    given = {budget: weights(SETS[name], budget) if tuned else USUAL for budget in BUDGETS}
    found = np.exp(np.mean([np.log(one_seed(SETS[name], seed, given)) for seed in range(seeds)], axis=0))
    lines = [f"{name}: (P - P*)/P* | relative gap, at {', '.join(f'{b:g}' for b in BUDGETS)}; {seeds} seeds"]
    with np.errstate(invalid="ignore"):
        over = found[0] / np.nanmin(np.where(np.isnan(found[1:]), np.inf, found[1:]), axis=0)
    for label, row in [*zip(METHODS, found, strict=True), ("over", over)]:
        cells = (" ".join(f"{x:>9.2g}" if np.isfinite(x) else f"{'-':>9}" for x in row[:, part]) for part in (0, 1))
        lines.append(f"  {label:9} {' | '.join(cells)}")
    if tuned:
        chosen = (f"{given[b].weight('lambda1'):g}, {given[b].weight('lambda2'):g}" for b in BUDGETS)
        lines.append(f"  λ1, λ2: {'; '.join(chosen)}")
    return "\n".join(lines)


def main() -> None:
    """Print a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="only data sets whose name begins so")
    parser.add_argument("--tuned", action="store_true", help="with weights chosen for each budget, not the defaults")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    shown = []
    for name in SETS:
        if name.startswith(args.only):
            shown.append(table(name, args.seeds, tuned=args.tuned))
            print(shown[-1], flush=True)
    if args.out:
        args.out.write_text("\n".join(shown) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
