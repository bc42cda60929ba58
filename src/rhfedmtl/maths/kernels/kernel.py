"""The interface of a kernel, which does the work of a round: compiled if numba is installed, otherwise in NumPy.

Both kernels take and fill the plain arrays of `rounds.py`, and their numbers agree to 1e-12. Methods and terminals call
them. A small terminal has only NumPy, so this module never imports numba.
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
    """Work of the terminals of a layout; answers and sums have a row for each of its stations."""

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
        """Settle, then take coordinate steps; their change of the duals is pending afterwards."""

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
        """Take gradient steps; corrected steps store their correction in the duals, and its change is pending."""

    def profiles(self, loss: Loss, rows: Rows, layout: Layout, duals: Duals, length: int) -> Float64Array:
        """Return the profile of each terminal along its pending change, in the order of the layout."""

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
        """Settle, then return the losses at each point, and the numbers that describe f(θ) = Σ −s L*(−θα/s).

        A point is a combination, a row of ``points``, of the models (m, station, column, feature).
        """

    def settle(self, rows: Rows, layout: Layout, duals: Duals) -> None:
        """Apply the pending change of each terminal, times its factor."""

    def shares(self, rows: Rows, layout: Layout, duals: Duals, width: int) -> Float64Array:
        """Settle, then return u_t = X_tᵀα_t of each terminal, in the order of the layout."""


def gradients(
    kernel: Kernel, loss: Loss, rows: Rows, layout: Layout, models: Float64Array, *, threads: int = 1
) -> Float64Array:
    """Return −Σ s L′(z) x of each station under its model (station, column, feature): a pass from α = 0."""
    steps = np.zeros(len(rows.sizes), dtype=np.int64)
    steps[layout.order] = rows.sizes[layout.order]
    sent, every = np.ascontiguousarray(models, rows.X.dtype), np.ones(len(models))
    orders = Orders(sent, every, steps, np.uint64(0), np.uint64(0), False, every > 0.0)
    return kernel.ascend(loss, rows, layout, make_duals(rows), orders, threads=threads).delta


AUTO_KERNEL, COMPILED, NUMPY = KERNELS = ("auto", "compiled", "numpy")


def best_kernel(name: str = AUTO_KERNEL) -> str:
    """Return the name of the kernel for this request: ``auto`` is the best that is installed."""
    if name not in KERNELS:
        raise ConfigError(f"kernel {name!r}: choose from {', '.join(KERNELS)}")
    has_numba = find_spec("numba") is not None
    if name == COMPILED and not has_numba:
        raise ConfigError("kernel 'compiled' needs numba: install it, or take 'numpy', which gives the same numbers")
    return COMPILED if has_numba and name != NUMPY else NUMPY


@cache
def find_kernel(name: str = AUTO_KERNEL) -> Kernel:
    """Return the kernel of this name; ``auto`` is the best that is installed."""
    return cast(Kernel, import_module(f"rhfedmtl.maths.kernels.{best_kernel(name)}_kernel"))
