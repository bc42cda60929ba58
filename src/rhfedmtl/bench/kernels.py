"""Kernels against the least that a machine must do: visit the same rows for a product and an update."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rhfedmtl.bench.measure import federation, in_a_row, iterations, medians, ratio, started
from rhfedmtl.maths.kernels import loops
from rhfedmtl.maths.kernels.compiled import compiled
from rhfedmtl.maths.losses import SmoothedHinge

OTHER_SEED = np.uint64(1)
"""Rows are touched in another order than in the rounds beside it: neither finds in the cache what the other read."""


@compiled
def _visit(seed: Any, number: Any, sizes: Any, deck: Any, order: Any) -> None:
    """Rows of every terminal in the order in which a round visits them."""
    start = 0
    for t in range(len(sizes)):
        for j in range(sizes[t]):
            deck[j] = j
        key = loops.stream(seed, number, t)
        for h in range(order.shape[1]):
            order[t, h] = start + loops.pick_row(key, h, sizes[t], False, deck)
        start += sizes[t]


@compiled
def _touch(X: Any, order: Any, model: Any, w: Any, first: Any, last: Any) -> None:
    """Each visited row twice, w once: a product and an update, and nothing else."""
    for t in range(first, last):
        for j in range(w.shape[1]):
            w[0, j] = model[j]
        for h in range(order.shape[1]):
            loops.add(1e-3 * loops.dot(X, order[t, h], w, 0), X, order[t, h], w, 0, X.shape[1])


def visits(sizes: Any, steps: int, number: int) -> Any:
    """Rows in the order of a round."""
    order = np.empty((len(sizes), steps), np.int64)
    _visit(OTHER_SEED, np.uint64(number), sizes, np.empty(int(sizes.max()), np.int64), order)
    return order


def toucher(X: Any, sizes: Any, steps: int, turns: int) -> Callable[[], None]:
    """Touch the rows of one round after the other; only a few orders are drawn ahead, and they come again."""
    orders = [visits(sizes, steps, number) for number in range(1, min(turns, 8) + 1)]
    model = np.full(X.shape[1], 1e-2, dtype=X.dtype)
    w = np.empty((1, X.shape[1]), X.dtype)
    turn = iter(range(1_000_000))
    return lambda: _touch(X, orders[next(turn) % len(orders)], model, w, 0, len(sizes))


def stream_fraction(d: int, rows: int, steps: int, *, megabytes: float = 64.0, repeats: int = 9) -> dict[str, float]:
    """Time to touch the rows of a round as a share of the time of the round, one thread, float32.

    The rows take more memory than the caches of most machines have, where the number of terminals allows.
    """
    per_task = int(np.clip(megabytes * 1e6 / (20 * rows * d), 1, 20_000))
    data = federation(5, per_task, rows, d)
    network = started(data, threads=1)
    sizes = np.diff(data.terminal_offsets)
    touch = toucher(network.rows.X, sizes, steps, repeats + 2)
    found = ratio(repeats, iterations(network, steps), touch)
    n = len(sizes) * steps
    return {
        "fraction": 1.0 / found.median,
        "spread": found.spread / found.median**2,
        "ns_per_step": 1e9 * found.seconds / n,
        "touch_ns_per_step": 1e9 * found.other_seconds / n,
        "terminals": len(sizes),
    }


def thread_speedup(threads: int = 2, *, repeats: int = 11, rounds_each: int = 16) -> dict[str, float]:
    """One thread against several at 2,500 terminals, d = 561, H = 10; beside it, of a loop that only touches rows.

    The second is what the machine has to give: cores that share their units, or are busy elsewhere, give less. A turn
    is a stretch of rounds, as in training: a core that has slept for a turn needs time to wake up.
    """
    data = federation(5, 500, 10, 561)
    one, several = (started(data, threads=count) for count in (1, threads))
    X, sizes = one.rows.X, np.diff(data.terminal_offsets)
    order = visits(sizes, 10, 1)
    model = np.full(561, 1e-2, dtype=np.float32)
    cuts = np.linspace(0, len(sizes), threads + 1).astype(int)
    workspaces = [np.empty((1, 561), np.float32) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:

        def together() -> None:
            jobs = zip(cuts, cuts[1:], workspaces, strict=False)
            list(pool.map(lambda job: _touch(X, order, model, job[2], job[0], job[1]), jobs))

        def alone() -> None:
            _touch(X, order, model, workspaces[0], 0, len(sizes))

        stretches = [in_a_row(rounds_each, job) for job in (iterations(one, 10), iterations(several, 10))]
        found = ratio(repeats, *stretches)
        machine = ratio(repeats, in_a_row(rounds_each, alone), in_a_row(rounds_each, together))
    return {
        "threads": threads,
        "speedup": found.median,
        "spread": found.spread,
        "machine_speedup": machine.median,
        "machine_spread": machine.spread,
    }


def numpy_ratio(d: int, *, repeats: int = 9) -> dict[str, float]:
    """Seconds of a round in careful NumPy over those of the same round here: 16 rows a terminal, H = 64, one thread."""
    rows, steps, terminals, some = 16, 64, 1000, 5
    data = federation(1, terminals, rows, d)
    network = started(data, threads=1)
    X, y, norm = np.asarray(network.rows.X), network.rows.y[:, 0], network.rows.norm
    alpha = np.zeros(rows)
    scale, w = 1e-2 * len(X), np.zeros(d, np.float32)

    def plain() -> None:
        for t in range(some):
            own = slice(t * rows, (t + 1) * rows)
            numpy_round(X[own], y[own], norm[own], alpha, w.copy(), scale, np.random.default_rng([1, t]), steps)

    found = ratio(repeats, plain, iterations(network, steps))
    return {"ratio": found.median * terminals / some, "spread": found.spread * terminals / some}


def numpy_round(X: Any, y: Any, norm: Any, alpha: Any, w: Any, scale: float, rng: Any, steps: int) -> tuple[Any, Any]:
    """One terminal's part of a round, each product and update a call of NumPy: the yardstick.

    Rows in passes over a shuffled deck, dual gain after every step, XᵀΔα in double precision at the end.
    """
    loss, inverse, gain, gains = SmoothedHinge(), 1.0 / scale, 0.0, np.empty(steps)
    labels, squares, duals, change = y.tolist(), (norm * inverse).tolist(), alpha.tolist(), [0.0] * len(y)
    order = np.concatenate([rng.permutation(len(y)) for _ in range(-(-steps // len(y)))])[:steps]
    for h, i in enumerate(order.tolist()):
        x, label, q, a = X[i], labels[i], squares[i], duals[i] + change[i]
        z = float(x @ w)
        step = loss.dual_step(a, label, z, q)
        gain += loss.conjugate(a, label) - loss.conjugate(a + step, label) - step * z - q * step * step / 2.0
        gains[h] = gain
        if step != 0.0:
            change[i] += step
            w += np.float32(step * inverse) * x
    return np.array(change) @ X, gains


def small_round(*, repeats: int = 500) -> float:
    """Seconds of a round of 25 terminals with 14 samples, d = 561, H = 10: what Flower and pfl are held against."""
    network = started(federation(5, 5, 14, 561), threads=1)
    return medians(repeats, iterations(network, 10))[0]
