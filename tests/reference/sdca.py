"""Dual coordinate ascent of one terminal in plain loops over MATHS §4, to hold the kernel against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rhfedmtl.maths.losses import Loss

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    """Finaliser of SplitMix64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def draws(seed: int, number: int, terminal: int) -> Any:
    """Function (h, n) -> integer below n: the stream of one terminal in one round."""
    key = mix((mix((mix((seed + GOLDEN) & MASK) + number * GOLDEN) & MASK) + terminal * GOLDEN) & MASK)
    return lambda h, n: (mix((key + (h + 1) * GOLDEN) & MASK) >> 32) * n >> 32


def visits(seed: int, number: int, terminal: int, n_rows: int, steps: int, uniform: bool = False) -> list[int]:
    """Rows in the order in which they are visited."""
    draw = draws(seed, number, terminal)
    if uniform:
        return [draw(h, n_rows) for h in range(steps)]
    deck, seen = list(range(n_rows)), []
    for h in range(steps):
        place = h % n_rows
        other = place + draw(h, n_rows - place)
        deck[place], deck[other] = deck[other], deck[place]
        seen.append(deck[place])
    return seen


def active_visits(
    seed: int, number: int, terminal: int, n_rows: int, steps: int, told: list[tuple[float, float]]
) -> Iterator[int]:
    """Rows in passes that leave out those that rest; ``told`` ends in what the last moved and is held by."""
    draw = draws(seed, number, terminal)
    deck, active, bound, h = list(range(n_rows)), n_rows, np.inf, 0
    while h < steps:
        stay, most = 0, 0.0
        for place in range(min(active, steps - h)):
            other = place + draw(h, active - place)
            deck[place], deck[other] = deck[other], deck[place]
            yield deck[place]
            moved, held = told[-1]
            h, most = h + 1, max(most, moved)
            if held <= bound:
                deck[stay], deck[place] = deck[place], deck[stay]
                stay += 1
        if active == n_rows:
            first = most
        bound, active = most, stay if stay and most > 0.1 * first else n_rows


@dataclass
class Ascent:
    """What one terminal brings home."""

    change: Any
    delta: Any
    gains: list[float]


def ascend(
    loss: Loss,
    X: Any,
    y: Any,
    alpha: Any,
    model: Any,
    scale: float,
    order: Iterable[int],
    weight: Any = None,
    told: list[tuple[float, float]] | None = None,
) -> Ascent:
    """Visit rows in the given order; ``scale`` is λ n/σ′, ``model`` has a row for each column of ``y``.

    What the hinge's rows move and are held by goes to ``told``: |y − z| is its slope before a step.
    """
    weight = np.ones(len(X)) if weight is None else weight
    w, change, gain, gains = np.array(model, dtype=float), np.zeros(y.shape), 0.0, []
    for i in order:
        moved, held = 0.0, np.inf
        for c in range(y.shape[1]):
            s = weight[i]
            if s > 0:
                z = float(X[i] @ w[c])
                q = float(X[i] @ X[i]) / scale * s
                a = (alpha[i, c] + change[i, c]) / s
                d = loss.dual_step(a, y[i, c], z, q)
                gain += s * (loss.conjugate(a, y[i, c]) - loss.conjugate(a + d, y[i, c]) - d * z - q * d * d / 2)
                change[i, c] += s * d
                w[c] += s * d / scale * X[i]
                moved, held = max(moved, abs(q * d)), min(held, abs(y[i, c] - float(X[i] @ w[c])))
        gains.append(gain)
        if told is not None:
            told.append((moved, held))
    return Ascent(change, change.T @ X, gains)
