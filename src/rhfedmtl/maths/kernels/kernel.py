"""What does the work of a round: compiled where numba is installed, else in NumPy, with the same numbers to 1e-12.

Both take and fill the plain arrays of `rounds.py`. A small terminal has NumPy only, so nothing here names numba.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

import numpy as np

from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.kernels.rounds import Answers, Duals, Float64Array, Layout, Orders, Rows, Slots, make_duals
from rhfedmtl.maths.losses import Loss


class Kernel(Protocol):
    """The work of the terminals of a layout; answers and sums have a row for each of its stations."""

    def ascend(
        self,
        loss: Loss,
        rows: Rows,
        layout: Layout,
        duals: Duals,
        orders: Orders,
        *,
        profile_length: int = 0,
        threads: int = 1,
    ) -> Answers:
        """Settle, then take coordinate steps, whose change of the duals is pending afterwards."""

    def descend(
        self,
        loss: Loss,
        rows: Rows,
        layout: Layout,
        duals: Duals,
        orders: Orders,
        slots: Slots,
        *,
        threads: int = 1,
    ) -> Answers:
        """Take gradient steps; corrected ones keep what they are corrected by in the duals, its change pending."""

    def profiles(self, loss: Loss, rows: Rows, layout: Layout, duals: Duals, length: int) -> Float64Array:
        """Profile of each terminal along its pending change, in the order of the layout."""

    def sums(
        self,
        loss: Loss,
        rows: Rows,
        layout: Layout,
        duals: Duals,
        models: Float64Array,
        points: Float64Array,
        *,
        threads: int = 1,
    ) -> tuple[Float64Array, Float64Array]:
        """Settle, then add up losses at each of the points, and what f(θ) = Σ −s L*(−θα/s) is made from.

        A point is a combination, a row of ``points``, of the models (m, station, column, feature).
        """

    def settle(self, rows: Rows, layout: Layout, duals: Duals) -> None:
        """Apply to each terminal what became of its pending change."""

    def shares(self, rows: Rows, layout: Layout, duals: Duals, width: int) -> Float64Array:
        """Settle, then u_t = X_tᵀα_t of each terminal, in the order of the layout."""


def gradients(
    kernel: Kernel, loss: Loss, rows: Rows, layout: Layout, models: Float64Array, *, threads: int = 1
) -> Float64Array:
    """−Σ s L′(z) x of each station under its model (station, column, feature): a pass from α = 0."""
    steps = np.zeros(len(rows.sizes), dtype=np.int64)
    steps[layout.order] = rows.sizes[layout.order]
    sent, every = np.ascontiguousarray(models, rows.X.dtype), np.ones(len(models))
    orders = Orders(sent, every, steps, np.uint64(0), np.uint64(0), False, every > 0.0)
    return kernel.ascend(loss, rows, layout, make_duals(rows), orders, threads=threads).delta


AUTO, COMPILED, NUMPY = KERNELS = ("auto", "compiled", "numpy")


def best_kernel(wanted: str = AUTO) -> str:
    """Name of the kernel that is used where this one is wanted: ``auto`` is the best that this installation has."""
    if wanted not in KERNELS:
        raise ConfigError(f"kernel {wanted!r}: choose from {', '.join(KERNELS)}")
    found = find_spec("numba") is not None
    if wanted == COMPILED and not found:
        raise ConfigError("kernel 'compiled' needs numba: install it, or take 'numpy', which has the same numbers")
    return COMPILED if found and wanted != NUMPY else NUMPY


@cache
def find_kernel(wanted: str = AUTO) -> Kernel:
    """The kernel of this name, or the best that this installation has."""
    return cast(Kernel, import_module(f"rhfedmtl.maths.kernels.{best_kernel(wanted)}_kernel"))
