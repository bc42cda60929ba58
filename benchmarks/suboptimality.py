"""How far from the optimum each solver of the joint problem is when the budget is spent, and what it has certified.

    python benchmarks/suboptimality.py [--seeds 3] [--only har] [--out results.txt]

All methods have the same weights (the defaults), prices (0.1 a step, 10 a station's round) and splits. The optimum is
that of a run to a gap of 1e-11 without a budget. Figures are geometric means over seeds of (P − P*)/P* and of certified
relative gaps; "over" is that of `rhfedmtl` over the best of the others. A dash: the budget pays no round. Needs the
data sets of RHFEDMTL_DATA.
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
from rhfedmtl.errors import BudgetError
from rhfedmtl.maths.registry import LAMBDA2
from rhfedmtl.training.config import RunConfig

DATA = Path(os.environ.get("RHFEDMTL_DATA", "."))
BUDGETS = (200.0, 600.0, 1400.0, 3000.0, 6000.0)
USUAL = Options(lambda2=LAMBDA2)
METHODS = {
    "rhfedmtl": USUAL,
    "lbfgs": USUAL,
    "giant": USUAL,
    "hfedmtl": USUAL.changed(local_steps=10),
    "fedu": USUAL.changed(local_steps=10, step=1.0),
}
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


def one_seed(request: Request, seed: int) -> Any:
    """Suboptimality and certified relative gap of every method (rows) at every budget (columns)."""
    data = request.federation(seed)
    best = RunConfig("lbfgs", request, USUAL, target_gap=1e-11, seed=seed).run(data, execution=ALONE).certificate.primal
    found = np.full((len(METHODS), len(BUDGETS), 2), np.nan)
    for m, (name, options) in enumerate(METHODS.items()):
        for k, budget in enumerate(BUDGETS):
            config = RunConfig(name, request, options, ("energy=0.1,10",), (f"energy={budget}",), seed=seed)
            try:
                certificate = config.run(data, execution=ALONE).certificate
            except BudgetError:
                continue
            found[m, k] = max((certificate.primal - best) / best, 1e-10), max(certificate.relative_gap, 1e-10)
    return found


def table(name: str, seeds: int) -> str:
    """All methods on one data set; below 1e-10 nothing is told apart."""
    found = np.exp(np.mean([np.log(one_seed(SETS[name], seed)) for seed in range(seeds)], axis=0))
    lines = [f"{name}: (P - P*)/P* | relative gap, at {', '.join(f'{b:g}' for b in BUDGETS)}; {seeds} seeds"]
    with np.errstate(invalid="ignore"):
        over = found[0] / np.nanmin(np.where(np.isnan(found[1:]), np.inf, found[1:]), axis=0)
    for label, row in [*zip(METHODS, found, strict=True), ("over", over)]:
        cells = (" ".join(f"{x:>9.2g}" if np.isfinite(x) else f"{'-':>9}" for x in row[:, part]) for part in (0, 1))
        lines.append(f"  {label:9} {' | '.join(cells)}")
    return "\n".join(lines)


def main() -> None:
    """Print a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="only data sets whose name begins so")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    shown = []
    for name in SETS:
        if name.startswith(args.only):
            shown.append(table(name, args.seeds))
            print(shown[-1], flush=True)
    if args.out:
        args.out.write_text("\n".join(shown) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
