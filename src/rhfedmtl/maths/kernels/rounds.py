"""Inputs and outputs of a round: rows, layout of terminals under stations, orders, answers, random numbers.

They are plain NumPy arrays; a small terminal needs nothing else. Kernels (`kernel.py`) do the work on them. Terminals
are grouped under their base station into blocks of at most ``BLOCK_TERMINALS``. A block is summed in the order of
terminal ids, a station in the order of its blocks, so neither threads nor engines ever change a result.

Randomness is addressed by (seed, round, terminal id): a counter-based generator (SplitMix64), no state anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.maths.losses import Loss

FloatArray = npt.NDArray[np.floating[Any]]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Terminals of a block: sums are added up block by block.
BLOCK_TERMINALS = 16
# Points of a gain curve: the dual gain after 1, 2, 4, … 2^15 steps, and after all steps.
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.00 points, −0.00 ± 0.00 decades;
# ×2: same digits.
CURVE = 17
# Factors at which a terminal reports its dual sum to a line search, if the conjugate is not quadratic.
# Measured: benchmarks/results/constants.md; ×0.5: +0.18 ± 0.66 points, −0.01 ± 0.04 decades;
# ×2: +0.66 ± 1.62 points, −0.11 ± 0.12 decades.
FACTORS: Float64Array = 2.0 ** np.arange(-10.0, 6.5, 0.5)
# Shares of α at which a terminal reports its dual sum, if the conjugate is not quadratic (`scaled_dual`).
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.00 points, +0.00 ± 0.00 decades;
# ×2: +0.00 ± 0.00 points, +0.00 ± 0.00 decades.
THETAS: Float64Array = np.array([0.0625, 0.125, 0.25, 0.5, 0.75, 1.0])
# In `Duals.n_visited`: the change may be in any row.
ANY = -1
# Visit all rows again once the largest move is at most this share of the largest move in the last whole pass.
REVISIT_SHARE = 0.1
# Places of a curve that hold estimates, each times n_t, where gradient steps are controlled; see `sgd.py`.
RHO, BETA, SQUARE, MEAN_SQUARE, SAMPLES = range(5)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
# Numbers whose squares are added up at a time.
_CHUNK = 2**16


class Rows(NamedTuple):
    """Rows of all terminals in a single table, terminal ``t`` from ``starts[t]`` up to ``ends[t]``.

    Rows between an end and the next start have not arrived yet. ``constant`` is the value of the feature that stands
    for the intercept, 0 if models have no intercept; ``norm`` is ‖x‖² with it.
    """

    X: FloatArray
    y: Float64Array
    weight: Float64Array
    norm: Float64Array
    starts: IntArray
    ends: IntArray
    ids: IntArray
    constant: float

    @property
    def sizes(self) -> IntArray:
        """Number of rows of each terminal."""
        return self.ends - self.starts

    @property
    def largest(self) -> int:
        """Number of rows of the largest terminal."""
        return int(self.sizes.max(initial=1))


class Layout(NamedTuple):
    """Terminals under stations, by (station, id), cut into blocks.

    Block ``k`` has the terminals ``order[blocks[k]:blocks[k+1]]`` and belongs to ``station[k]``; station ``b`` has the
    blocks ``starts[b]:starts[b+1]``, and answers are added up by ``starts``.
    """

    order: IntArray
    blocks: IntArray
    station: IntArray
    starts: IntArray

    @property
    def per_terminal(self) -> Layout:
        """Layout of the same terminals under the same stations, with a row of answers per terminal, in this order."""
        ends = np.arange(len(self.order) + 1)
        return Layout(self.order, ends, np.repeat(self.station, np.diff(self.blocks)), ends)

    @property
    def row(self) -> IntArray:
        """Row of the answers to which each block is added."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))


class Orders(NamedTuple):
    """Orders of a round to the terminals.

    ``models[b]`` is w_b (a row per column of y) and ``scale[b]`` is λ_b n_b/σ′_b. With ``gradient[b]`` steps do not
    move the model: a pass sets every α_i to −L′(z_i). ``steps[t]`` is H; a terminal with 0 does nothing. ``uniform``
    draws rows with replacement instead of in passes.
    """

    models: FloatArray
    scale: Float64Array
    steps: IntArray
    seed: np.uint64
    round: np.uint64
    uniform: bool
    gradient: npt.NDArray[np.bool_]


class Answers(NamedTuple):
    """Answers of a round, a row for each station: XᵀΔα, gain curve, and profile along Δα (line search)."""

    delta: Float64Array
    gains: Float64Array
    profile: Float64Array


class Duals(NamedTuple):
    """Dual variables and their pending changes: ``settle[t]`` is the factor to apply.

    If a terminal visited only some of its rows, the change is in those rows: the first ``n_visited[t]`` entries of
    ``visited`` at the terminal's place, numbered from its first row.
    """

    alpha: Float64Array
    pending: Float64Array
    settle: Float64Array
    visited: npt.NDArray[np.int32]
    n_visited: IntArray


class Slots(NamedTuple):
    """Objective of each slot of the matrix; see the top of `sgd.py`.

    ``probes`` rows are drawn in each round and visited before and after the steps, to estimate how the loss and its
    gradient change (0: no estimate). These visits count as part of H; if H leaves no step besides them, all of H are
    steps. With ``inner`` = 0 all slots step. With ``inner`` steps only slot 1 steps, and slot 0 follows it by a share
    ``outer`` of the way. A ``control`` below 0 leaves steps unchanged; otherwise they are corrected, and p is
    ``control``, or 1/H if that is 0.
    """

    lam: float
    mu: Float64Array
    anchor: IntArray
    mixture: bool
    probes: int
    inner: int = 0
    outer: float = 0.0
    control: float = -1.0


def mix(z: Any) -> Any:
    """Finaliser of SplitMix64: every bit of z changes half of the result."""
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


def stream(seed: Any, number: Any, terminal: Any) -> Any:
    """Return the start of the stream of a terminal in a round."""
    return mix(mix(mix(seed + GOLDEN) + number * GOLDEN) + np.uint64(terminal) * GOLDEN)


def draw(key: Any, counter: Any, n: Any) -> Any:
    """Return an integer below n: draw number ``counter`` of a stream."""
    return np.int64(((mix(key + np.uint64(counter + 1) * GOLDEN) >> _S32) * np.uint64(n)) >> _S32)


def next_pass(n: Any, active: Any, n_staying: Any, largest_move: Any, full_pass_move: Any) -> tuple[Any, Any, Any]:
    """Return the rows of the next pass, the limit of ``excess`` for rows that stay, and the move of the last full pass.

    In a pass over ``active`` of n rows, a row rests if an end of its box holds it back by more than any row moved
    (``largest_move``, as slopes of the dual); ``n_staying`` rows do not rest. All rows are visited again if no row
    stays, or when the largest move falls to a tenth of ``full_pass_move``, the largest move of the last full pass.
    """
    if active == n:
        full_pass_move = largest_move
    return (
        (n if n_staying == 0 or largest_move <= REVISIT_SHARE * full_pass_move else n_staying),
        largest_move,
        full_pass_move,
    )


def make_rows(
    X: FloatArray,
    y: Float64Array,
    offsets: IntArray,
    *,
    ids: IntArray | None = None,
    weight: Float64Array | None = None,
    constant: float = 0.0,
    norms: Callable[[FloatArray, float], Float64Array] | None = None,
) -> Rows:
    """Return rows ready for the kernels; a contiguous ``X`` is never copied.

    Parameters
    ----------
    X, y
        Rows, and their labels with a column for each model.
    offsets
        First row of each terminal, and the end of the last terminal.
    ids
        Ids of the terminals, which address their random numbers; by default their positions.
    weight
        Sample weights; 1 by default.
    constant
        Value of the feature that stands for the intercept.
    norms
        Faster replacement for `row_norms`.
    """
    X = np.ascontiguousarray(X)
    norm = (norms or row_norms)(X, constant)
    weight = np.ones(len(X)) if weight is None else np.asarray(weight, dtype=np.float64)
    ids = np.arange(len(offsets) - 1) if ids is None else ids
    y = np.ascontiguousarray(y, dtype=np.float64)
    starts, ends = _integers(offsets[:-1]), _integers(offsets[1:])
    X, y, weight, norm, starts, ends, ids = (fixed(p) for p in (X, y, weight, norm, starts, ends, _integers(ids)))
    return Rows(X, y, weight, norm, starts, ends, ids, constant)


def with_sizes(rows: Rows, sizes: IntArray) -> Rows:
    """Return the same rows, of which each terminal has only the first ``sizes`` yet."""
    return rows._replace(ends=fixed(rows.starts + _integers(sizes)))


def make_layout(station: IntArray, n_stations: int, ids: IntArray) -> Layout:
    """Order terminals by (station, id) and cut each station into blocks; a station of −1 leaves a terminal out."""
    station = np.asarray(station, dtype=np.int64)
    order = np.lexsort((ids, station))
    order = order[station[order] >= 0]
    counts = np.bincount(station[order], minlength=n_stations)
    per_station = -(-counts // BLOCK_TERMINALS)
    starts = np.concatenate([[0], np.cumsum(per_station)])
    firsts = np.concatenate([[0], np.cumsum(counts)])
    block_station = np.repeat(np.arange(n_stations), per_station)
    blocks = firsts[block_station] + (np.arange(starts[-1]) - starts[block_station]) * BLOCK_TERMINALS
    blocks = np.concatenate([blocks, [len(order)]])
    return Layout(*(_integers(part) for part in (order, blocks, block_station, starts)))


def make_duals(rows: Rows) -> Duals:
    """Return dual variables at zero, with no pending change."""
    n_terminals = len(rows.ids)
    return Duals(
        np.zeros(rows.y.shape),
        np.zeros(rows.y.shape),
        np.zeros(n_terminals),
        np.zeros(len(rows.y), np.int32),
        np.full(n_terminals, ANY),
    )


def add_in_blocks(parts: Sequence[Float64Array | None], shape: tuple[int, ...]) -> Float64Array:
    """Return the sum of a station's terminals in id order with the bits of the batch; absent terminals are None."""
    total = np.zeros(shape)
    for start in range(0, len(parts), BLOCK_TERMINALS):
        block = np.zeros(shape)
        for part in parts[start : start + BLOCK_TERMINALS]:
            if part is not None:
                block += part
        total += block
    return total


def row_norms(X: FloatArray, constant: float) -> Float64Array:
    """Return constant² + Σ_j x_j² of every row, added from left to right."""
    norm, step = np.empty(len(X)), max(1, _CHUNK // (X.shape[1] + 1))
    for start in range(0, len(X), step):
        part = X[start : start + step]
        terms = np.full((len(part), X.shape[1] + 1), constant * constant)
        np.square(part, out=terms[:, 1:], dtype=np.float64)
        norm[start : start + step] = np.add.accumulate(terms, axis=1)[:, -1]
    return norm


def _integers(array: Any) -> IntArray:
    return np.ascontiguousarray(array, dtype=np.int64)


def fixed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view: the compiler then sees a single array type."""
    view = array.view()
    view.flags.writeable = False
    return view


def dual_length(loss: Loss) -> int:
    """Return the count of numbers that describe f(θ) = Σ −s L*(−θα/s).

    It is 2 if the conjugate is quadratic, otherwise a number for each of `THETAS`.
    """
    return 2 if loss.quadratic else len(THETAS)


def dual_sums(sums: Float64Array) -> Float64Array:
    """Return f(1) = Σ −L*(−α) of every row of sums."""
    return np.asarray(sums[:, 0] - sums[:, 1] / 2.0 if sums.shape[1] == 2 else sums[:, -1])
