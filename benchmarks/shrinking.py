"""A study: what shrinking would bring for the hinge loss, on one terminal, against liblinear and against full passes.

    python benchmarks/shrinking.py [--json FILE]

With w = v/λ the gap is a sum over rows, (1/n) Σ (1−b) max(0, 1−m) + b max(0, m−1) with b = yα and the margin m = yz: a
row whose b sits at the end of its box on the right side of the margin adds nothing, and as long as it stays there it
need not be visited. Shrinking passes over rows that are beyond the margin by more than the largest violation seen last;
before it stops it looks at all rows again. Steps are those of the library's kernel. Needs har.npz in the folder
RHFEDMTL_DATA.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.bench import solver
from rhfedmtl.bench.measure import medians
from rhfedmtl.bench.suite import gap_problem
from rhfedmtl.maths.kernels import rounds, sdca
from rhfedmtl.maths.losses import Hinge

LOOK = 3
"""Passes between two looks at the margins."""


class Shrinking:
    """Coordinate ascent on the rows that may still move."""

    def __init__(self, X: Any, y: Any, lam: float) -> None:
        self.X, self.y, self.scale = X, np.where(y > 0, 1.0, -1.0), lam * len(X)
        self.b, self.w = np.zeros(len(X)), np.zeros(X.shape[1])
        self.number, self.visited = 0, 0
        self.take(np.arange(len(X)))

    def take(self, active: Any) -> None:
        """Work on these rows from now on."""
        self.active = active
        self.rows = rounds.make_rows(self.X[active], self.y[active, None], np.array([0, len(active)]))
        self.layout = rounds.make_layout(np.zeros(1, dtype=np.int64), 1, self.rows.ids)
        self.duals = rounds.make_duals(self.rows)
        self.duals.alpha[:, 0] = self.b[active] * self.y[active]

    def step(self) -> None:
        """One pass over the active rows."""
        self.number += 1
        n = len(self.active)
        orders = rounds.Orders(
            self.w[None, None].astype(self.X.dtype),
            np.array([self.scale]),
            np.array([n]),
            np.uint64(0),
            np.uint64(self.number),
            False,
        )
        self.w = self.w + sdca.run_round(Hinge(), self.rows, self.layout, self.duals, orders).delta[0, 0] / self.scale
        self.duals.settle[:] = 1.0
        self.visited += n

    def look(self) -> tuple[float, Any]:
        """Part of the gap that the active rows have, times n, and their margins less 1."""
        sdca.settle(self.rows, self.layout, self.duals)
        y = self.y[self.active]
        self.b[self.active] = y * self.duals.alpha[:, 0]
        b, short = self.b[self.active], y * (self.rows.X @ self.w.astype(self.X.dtype)) - 1.0
        return float(np.sum((1.0 - b) * np.maximum(0.0, -short) + b * np.maximum(0.0, short))), short

    def shrink(self, short: Any) -> None:
        """Leave out rows at an end of their box that lie beyond the largest violation."""
        b = self.b[self.active]
        violation = np.where(
            b <= 0.0, np.maximum(0.0, -short), np.where(b >= 1.0, np.maximum(0.0, short), np.abs(short))
        )
        most = violation.max(initial=0.0)
        idle = ((b <= 0.0) & (short > most)) | ((b >= 1.0) & (short < -most))
        if idle.sum() > 0.1 * len(idle):
            self.take(self.active[~idle])

    def solve(self, gap: float) -> dict[str, float]:
        """Until the relative gap over all rows is small enough."""
        started = time.perf_counter()
        n = len(self.X)
        while True:
            for _ in range(LOOK):
                self.step()
            found, short = self.look()
            primal = float(np.sum(np.maximum(0.0, -short))) / n + self.scale / n / 2 * float(self.w @ self.w)
            if found / n <= gap * primal:
                if len(self.active) == n:
                    break
                self.take(np.arange(n))
                found, short = self.look()
                primal = float(np.sum(np.maximum(0.0, -short))) / n + self.scale / n / 2 * float(self.w @ self.w)
                if found / n <= gap * primal:
                    break
            self.shrink(short)
        return {
            "seconds": time.perf_counter() - started,
            "passes": self.number,
            "rows_visited_over_rows": self.visited / n,
            "gap": found / n / primal,
            "primal": primal,
        }


def main() -> None:
    """Measure the three in turn, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    X, y, name = gap_problem()
    Shrinking(X[:50], y[:50], solver.LAMBDA).step()  # compiles
    rows, theirs = np.asarray(X, dtype=np.float64), solver.solve_by_liblinear(X, y, Hinge())
    found = Shrinking(X, y, solver.LAMBDA).solve(solver.GAP)
    seconds = medians(
        options.repeats,
        lambda: Shrinking(X, y, solver.LAMBDA).solve(solver.GAP),
        lambda: solver.solve_here(X, y, Hinge(), every=20),
        lambda: solver.fit_liblinear(rows, y, Hinge(), theirs["tolerance"]),
    )
    figures = {
        "problem": name,
        "seconds": dict(zip(("shrinking", "full passes", "liblinear"), seconds, strict=True)),
        "shrinking": found,
        "liblinear": theirs,
    }
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
