"""Dual coordinate ascent of one terminal in plain loops over MATHS §4, to hold the kernel against."""

from __future__ import annotations

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


@dataclass
class Ascent:
    """What one terminal brings home."""

    change: Any
    delta: Any
    gains: list[float]


def ascend(
    loss: Loss, X: Any, y: Any, alpha: Any, model: Any, scale: float, order: list[int], weight: Any = None
) -> Ascent:
    """Visit rows in the given order; ``scale`` is λ n/σ′, ``model`` has a row for each column of ``y``."""
    weight = np.ones(len(X)) if weight is None else weight
    w, change, gain, gains = np.array(model, dtype=float), np.zeros(y.shape), 0.0, []
    for i in order:
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
        gains.append(gain)
    return Ascent(change, change.T @ X, gains)
