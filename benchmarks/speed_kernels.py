"""Kernels against a loop that only reads the same rows, for a product and an update; and against NumPy."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
from benchmarks.speed_timing import federation, in_a_row, iterations, medians, ratio, started

from rhfedmtl.maths.kernels import loops, numpy_kernel, sdca
from rhfedmtl.maths.kernels.compiled import compiled
from rhfedmtl.maths.kernels.rounds import Answers, Orders, make_duals, make_layout, make_rows
from rhfedmtl.maths.losses import SmoothedHinge

OTHER_SEED = np.uint64(1)
"""Seed of the loop that only reads rows: its order differs from the rounds, so neither warms the cache."""


@compiled
def _visit(seed: Any, number: Any, sizes: Any, deck: Any, order: Any) -> None:
    """Write the rows of every terminal in the order in which a round visits them."""
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
    """Read every visited row twice and w once: a product and an update, and nothing else."""
    for t in range(first, last):
        for j in range(w.shape[1]):
            w[0, j] = model[j]
        for h in range(order.shape[1]):
            loops.add(1e-3 * loops.dot(X, order[t, h], w, 0), X, order[t, h], w, 0, X.shape[1])


def visits(sizes: Any, steps: int, number: int) -> Any:
    """Return rows in the order of a round."""
    order = np.empty((len(sizes), steps), np.int64)
    _visit(OTHER_SEED, np.uint64(number), sizes, np.empty(int(sizes.max()), np.int64), order)
    return order


def toucher(X: Any, sizes: Any, steps: int, turns: int) -> Callable[[], None]:
    """Return a job that reads the rows of the next round. Up to eight orders repeat."""
    orders = [visits(sizes, steps, number) for number in range(1, min(turns, 8) + 1)]
    model = np.full(X.shape[1], 1e-2, dtype=X.dtype)
    w = np.empty((1, X.shape[1]), X.dtype)
    turn = iter(range(1_000_000))
    return lambda: _touch(X, orders[next(turn) % len(orders)], model, w, 0, len(sizes))


def stream_fraction(d: int, rows: int, steps: int, *, megabytes: float = 64.0, repeats: int = 9) -> dict[str, float]:
    """Measure the time to read the rows of a round as a share of the time of the round, on a single thread in float32.

    The rows exceed the caches of most machines, if the number of terminals allows.
    """
    per_task = int(np.clip(megabytes * 1e6 / (20 * rows * d), 1, 20_000))
    data = federation(5, per_task, rows, d)
    network = started(data, threads=1)
    sizes = np.diff(data.terminal_offsets)
    touch = toucher(network.terminals.rows.X, sizes, steps, repeats + 2)
    times = ratio(repeats, iterations(network, steps), touch)
    n = len(sizes) * steps
    return {
        "fraction": 1.0 / times.median,
        "spread": times.spread / times.median**2,
        "ns_per_step": 1e9 * times.seconds / n,
        "touch_ns_per_step": 1e9 * times.other_seconds / n,
        "terminals": len(sizes),
    }


def thread_speedup(threads: int = 2, *, repeats: int = 11, rounds_each: int = 16) -> dict[str, float]:
    """Compare one thread with several at 2,500 terminals, d = 561, H = 10; do the same for a loop that only reads rows.

    The second ratio is the limit of the machine: shared or busy cores gain less. A turn has many rounds, as in
    training, because a core needs time to wake up.
    """
    data = federation(5, 500, 10, 561)
    one, several = (started(data, threads=count) for count in (1, threads))
    X, sizes = one.terminals.rows.X, np.diff(data.terminal_offsets)
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
        rounds = ratio(repeats, *stretches)
        machine = ratio(repeats, in_a_row(rounds_each, alone), in_a_row(rounds_each, together))
    return {
        "threads": threads,
        "speedup": rounds.median,
        "spread": rounds.spread,
        "machine_speedup": machine.median,
        "machine_spread": machine.spread,
    }


def numpy_ratio(d: int, *, repeats: int = 9) -> dict[str, float]:
    """Compare a round in careful NumPy with the same round here: 16 rows a terminal, H = 64, one thread."""
    rows, steps, terminals, sample = 16, 64, 1000, 5
    data = federation(1, terminals, rows, d)
    network = started(data, threads=1)
    X, y, norm = np.asarray(network.terminals.rows.X), network.terminals.rows.y[:, 0], network.terminals.rows.norm
    alpha = np.zeros(rows)
    scale, w = 1e-2 * len(X), np.zeros(d, np.float32)

    def plain() -> None:
        for t in range(sample):
            own = slice(t * rows, (t + 1) * rows)
            numpy_round(X[own], y[own], norm[own], alpha, w.copy(), scale, np.random.default_rng([1, t]), steps)

    times = ratio(repeats, plain, iterations(network, steps))
    return {"ratio": times.median * terminals / sample, "spread": times.spread * terminals / sample}


def numpy_round(X: Any, y: Any, norm: Any, alpha: Any, w: Any, scale: float, rng: Any, steps: int) -> tuple[Any, Any]:
    """Run the round of a terminal with a NumPy call for every product and update.

    It visits rows in passes over a shuffled deck, records the dual gain after every step, and computes XᵀΔα in double
    precision at the end.
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
    """Measure the seconds of a round of 25 terminals with 14 samples, d = 561, H = 10, as for Flower and pfl."""
    network = started(federation(5, 5, 14, 561), threads=1)
    return medians(repeats, iterations(network, 10))[0]


def interpreted() -> ModuleType:
    """Return `sdca` without numba: its loops as plain Python on NumPy arrays."""
    plain = ModuleType(compiled.__module__)
    vars(plain).update(dict.fromkeys(("compiled", "compiled_sum", "inlined"), lambda function: function))
    vars(plain)["fetch_row"] = lambda X, i: None
    with patch.dict(sys.modules, {plain.__name__: plain}):
        for module in (loops, sdca):
            spec = importlib.util.spec_from_file_location(module.__name__, str(module.__file__))
            assert spec is not None
            assert spec.loader is not None
            sys.modules[module.__name__] = copy = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(copy)
    return copy


def one_terminal(rows: int, d: int) -> Callable[[Callable[..., Answers]], Answers]:
    """Return a function that calls a kernel for a pass over the rows of a terminal, always from zero duals."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((rows, d)) / np.sqrt(d), rng.choice([-1.0, 1.0], (rows, 1))
    data, address = make_rows(X, y, np.array([0, rows])), (np.uint64(0), np.uint64(0))
    layout, steps = make_layout(np.zeros(1, np.int64), 1, data.ids), np.array([rows])
    orders = Orders(np.zeros((1, 1, d)), np.full(1, 1e-2 * rows), steps, *address, False, np.array([False]))

    def a_pass(kernel: Callable[..., Answers]) -> Answers:
        with np.errstate(over="ignore"):  # the addresses of draws wrap
            return kernel(SmoothedHinge(), data, layout, make_duals(data), orders)

    return a_pass


def interpreted_ratio(rows: int, d: int, *, repeats: int = 5) -> dict[str, float]:
    """Compare a pass in plain Python with the same pass in the NumPy kernel."""
    a_pass, plain = one_terminal(rows, d), interpreted().run_round
    times = ratio(repeats, lambda: a_pass(plain), lambda: a_pass(numpy_kernel.ascend))
    return {"rows": rows, "d": d, "ratio": times.median, "spread": times.spread, "numpy_ms": 1e3 * times.other_seconds}
