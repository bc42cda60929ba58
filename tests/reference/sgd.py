"""Stochastic gradient descent in plain loops, to hold the kernel and the methods against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.reference.sdca import visits

from rhfedmtl.maths.losses import Loss


def with_constant(X: Any) -> Any:
    """Rows with a constant feature at their end."""
    return np.column_stack([X, np.ones(len(X))])


def responsibilities(loss: Loss, x: Any, y: Any, models: Any, shares: Any) -> Any:
    """How much each of the models answers for a row: π_p e^{−L_p}, normed."""
    fit = [np.exp(-sum(loss.value(float(x @ w), label) for w, label in zip(model, y, strict=True))) for model in models]
    return shares * np.array(fit) / np.sum(shares * np.array(fit))


def descend(
    loss: Loss,
    X: Any,
    y: Any,
    models: Any,
    order: Sequence[int],
    *,
    step: float,
    lam: float = 0.0,
    mu: Sequence[float] = (0.0,),
    anchor: Sequence[int] = (0,),
    weight: Any = None,
    shares: Any = None,
) -> tuple[Any, Any]:
    """Models (slot, column, feature) after a step for each row of ``order``, and the mean responsibilities."""
    weight = np.ones(len(X)) if weight is None else weight
    start, w = np.array(models, dtype=float), np.array(models, dtype=float)
    seen, total = np.zeros(len(w)), 0.0
    for i in order:
        q = np.ones(len(w)) if shares is None else responsibilities(loss, X[i], y[i], w, shares)
        seen, total = seen + weight[i] * q, total + weight[i]
        gradient = np.array(
            [
                [weight[i] * q[p] * loss.slope(float(X[i] @ w[p, c]), y[i, c]) * X[i] for c in range(w.shape[1])]
                for p in range(len(w))
            ]
        )
        pull = np.array(mu)[:, None, None] * (w - start[list(anchor)])
        w = w - step * (gradient + lam * w + pull)
    return w, seen / max(total, 1e-300)


def plain_sgd(
    loss: Loss, X: Any, y: Any, *, step: float, lam: float, rounds: int, steps: int, seed: int, decay: float = 0.0
) -> Any:
    """One model, one machine: ``steps`` rows in every round, drawn as terminal 0 draws them."""
    w = np.zeros((1, y.shape[1], X.shape[1]))
    for number in range(1, rounds + 1):
        order = visits(seed, number, 0, len(X), steps)
        w, _ = descend(loss, X, y, w, order, step=step / (1.0 + decay * (number - 1)), lam=lam)
    return w[0]
