"""Compile, before the suite, the kernels that its processes would each compile for themselves.

One process for each precision makes the parts that kernels share once; workers and commands would make them again.
"""

from __future__ import annotations

import gc
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from rhfedmtl.data.request import Request
from rhfedmtl.data.sums import station_moments
from rhfedmtl.maths.kernels import sdca, sgd
from rhfedmtl.maths.kernels.loops import row_norms
from rhfedmtl.maths.kernels.rounds import FACTORS, Orders, Slots, make_duals, make_layout, make_rows
from rhfedmtl.maths.losses import Hinge, Logistic, Loss, SmoothedHinge, Squared, SquaredHinge

LOSSES: tuple[Loss, ...] = (SmoothedHinge(), Hinge(), SquaredHinge(), Logistic(), Squared())
DESCENT = {"float64": (SmoothedHinge, Logistic, Squared), "float32": (SmoothedHinge, Squared)}
"""Losses with which quick tests run gradient steps; others are compiled where they are used."""


def compile_all(precision: str) -> None:
    """Two rows of two terminals through every kernel, with every loss."""
    gc.disable()  # compilers make little of it: a tenth of the time went into looking
    X, ends = np.eye(2, dtype=precision), np.arange(3)
    rows = make_rows(X, np.ones((2, 1)), ends, norms=row_norms)
    layout, duals = make_layout(np.zeros(2, np.int64), 1, rows.ids), make_duals(rows)
    address, gradient = (np.uint64(0), np.uint64(0)), np.array([False])
    orders = Orders(np.zeros((1, 1, 2), precision), np.ones(1), np.ones(2, np.int64), *address, False, gradient)
    models, points, slots = np.zeros((1, 1, 1, 2)), np.ones((1, 1)), Slots(0.1, np.zeros(1), ends[:1], False, 0)
    for loss in LOSSES:
        sdca.run_round(loss, rows, layout, duals, orders)
        sdca.run_sums(loss, rows, layout, duals, models, points)
        sdca.run_profiles(loss, rows, layout, duals, 3 if loss.quadratic else len(FACTORS))
        if isinstance(loss, DESCENT[precision]):
            sgd.run_round(loss, rows, layout, duals, orders, slots)
    sdca.run_shares(rows, layout, duals, 2)
    sdca.settle(rows, layout, duals)
    station_moments(X, ends, ends)
    Request("synthetic", tasks=1, terminals=1, settings={"classes": 2 if precision == "float64" else 0}).federation(
        seed=0
    )


if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(compile_all, ("float64", "float32")))
