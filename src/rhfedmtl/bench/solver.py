"""Time to a certified gap against liblinear, on one task of one terminal with one thread."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.loaders.synthetic import Synthetic, make
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.engines.registry import Execution
from rhfedmtl.maths.losses import Hinge, Loss, SquaredHinge
from rhfedmtl.maths.relationships import Unrelated
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.training.run import Settings, train

LAMBDA = 1e-4
GAP = 1e-6
ONE_THREAD = Execution(threads=1)
TOLERANCES = tuple(10.0**-k for k in np.arange(1.0, 8.01, 0.25))


def one_terminal(X: Any, y: Any) -> Federation:
    """One task with one terminal that holds all rows; labels are 0 and 1."""
    return Federation(
        X=X,
        y=y.astype(np.int64),
        terminal_offsets=np.array([0, len(X)]),
        task_offsets=np.array([0, 1]),
        test_X=X[:0],
        test_y=np.empty(0, dtype=np.int64),
        test_offsets=np.zeros(2, dtype=np.int64),
        task_names=("all",),
        class_names=("rest", "positive"),
    )


def problem(rows: int = 10_299, d: int = 561, seed: int = 0) -> tuple[Any, Any]:
    """Unit rows and labels of the size of HAR, where HAR itself is not at hand: one class in six, a noisy plane."""
    made = make(Synthetic(tasks=1, terminals=1, samples=rows, features=d, test=0, noise=0.02, unequal=0.0), seed)
    return Scaler(unit=True).transform(made.X), np.asarray(made.y)


def gap_of(X: Any, y: Any, w: Any, alpha: Any, loss: Loss, lam: float = LAMBDA) -> float:
    """Relative duality gap of a model and of dual variables, for labels ±1; see `mathematics`."""
    rows = np.asarray(X, dtype=np.float64)
    v = alpha @ rows / len(y)
    primal = float(np.mean([loss.value(z, label) for z, label in zip(rows @ w, y, strict=True)])) + lam / 2 * w @ w
    dual = -float(np.mean([loss.conjugate(a, label) for a, label in zip(alpha, y, strict=True)])) - v @ v / (2 * lam)
    return float((primal - dual) / max(abs(primal), abs(dual)))


def our_seconds(X: Any, y: Any, loss: Loss, *, every: int = 4) -> dict[str, float]:
    """Seconds until the relative gap, certified ``every`` so many passes, is at most 1e-6; all of a run included."""
    data = one_terminal(X, y)
    method = DualMethod(loss, relationship=Unrelated(LAMBDA), intercept=False)
    settings = Settings(
        scale="none", certify_every=every, execution=Execution(threads=1), target_relative_gap=GAP, max_rounds=20_000
    )
    result = train(data, method, Fixed(len(X), 1, 20_000), settings)
    return {"seconds": result.seconds, "passes": result.rounds, "gap": result.certificate.relative_gap}


def liblinear_seconds(X: Any, y: Any, loss: Loss) -> dict[str, float]:
    """Seconds of liblinear at the largest tolerance at which its own gap, computed here, is just under 1e-6."""
    rows, labels = np.asarray(X, dtype=np.float64), np.where(y > 0, 1.0, -1.0)
    for tolerance in TOLERANCES:
        seconds, model = _fit(rows, y, loss, tolerance)
        gap = _liblinear_gap(rows, labels, model.coef_[0], loss)
        if gap <= GAP:
            return {"seconds": seconds, "passes": float(model.n_iter_), "gap": gap, "tolerance": tolerance}
    return {"seconds": float("nan"), "passes": float("nan"), "gap": gap, "tolerance": tolerance}


def _fit(rows: Any, y: Any, loss: Loss, tolerance: float) -> tuple[float, Any]:
    from sklearn.svm import LinearSVC

    name, weight = ("hinge", 1.0) if isinstance(loss, Hinge) else ("squared_hinge", 0.5)
    # liblinear minimises ½‖w‖² + C Σ max(0, 1 − yz)², without the ½ of the squared hinge here.
    C = weight / (LAMBDA * len(rows))
    model = LinearSVC(loss=name, dual=True, C=C, tol=tolerance, fit_intercept=False, max_iter=100_000, random_state=0)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(rows, y)
    return time.perf_counter() - start, model


def _liblinear_gap(rows: Any, labels: Any, w: Any, loss: Loss) -> float:
    """Gap of liblinear's model; of its dual variables only what the loss says they are at the optimum is known.

    For the squared hinge α = max(0, 1 − yz) y is feasible, and its gap bounds the true one. For the hinge the dual
    is that of our own solution, which is as near to the optimum as its own gap.
    """
    if isinstance(loss, SquaredHinge):
        z = rows @ w
        alpha = labels * np.maximum(0.0, 1.0 - labels * z)
        return gap_of(rows, labels, w, alpha, loss)
    primal = float(np.mean(np.maximum(0.0, 1.0 - labels * (rows @ w)))) + LAMBDA / 2 * w @ w
    return float((primal - _best_dual(rows, labels)) / primal)


_DUALS: dict[int, float] = {}


def _best_dual(rows: Any, labels: Any) -> float:
    key = id(rows)
    if key not in _DUALS:
        method = DualMethod(Hinge(), relationship=Unrelated(LAMBDA), intercept=False)
        settings = Settings(
            scale="none", certify_every=20, execution=Execution(threads=1), target_relative_gap=1e-8, max_rounds=20_000
        )
        result = train(one_terminal(rows, labels > 0), method, Fixed(len(rows), 1, 20_000), settings)
        _DUALS[key] = result.certificate.dual
    return _DUALS[key]


def against_liblinear(X: Any, y: Any, loss: Loss, *, repeats: int = 5, every: int = 4) -> dict[str, float]:
    """Our seconds to a relative gap of 1e-6 over liblinear's: median over turns that take both after each other."""
    theirs = liblinear_seconds(X, y, loss)
    rows = np.asarray(X, dtype=np.float64)
    our_seconds(X, y, loss, every=every)
    found, ours, other = [], [], []
    for _ in range(repeats):
        mine = our_seconds(X, y, loss, every=every)
        seconds, _ = _fit(rows, y, loss, theirs["tolerance"])
        found.append(mine["seconds"] / seconds)
        ours.append(mine["seconds"])
        other.append(seconds)
    return {
        "ratio": float(np.median(found)),
        "seconds": float(np.median(ours)),
        "passes": mine["passes"],
        "gap": mine["gap"],
        "liblinear_seconds": float(np.median(other)),
        "liblinear_passes": theirs["passes"],
        "liblinear_gap": theirs["gap"],
    }
