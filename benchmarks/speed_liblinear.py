"""Time to a certified gap against liblinear, for a single task on a single terminal and thread."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.speed_timing import ratio

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.loaders.synthetic import Synthetic, make
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.engines.registry import Execution
from rhfedmtl.maths.losses import Hinge, Loss, SquaredHinge
from rhfedmtl.maths.relationships import Unrelated
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

LAMBDA = 1e-4
GAP = 1e-6
TOLERANCES = tuple(10.0**-k for k in np.arange(1.0, 8.01, 0.25))


def one_terminal(X: Any, y: Any) -> Federation:
    """Put all rows on a single terminal of a single task; labels are 0 and 1."""
    return Federation.untested(
        X,
        y.astype(np.int64),
        np.array([0, len(X)]),
        np.array([0, 1]),
        task_names=("all",),
        class_names=("rest", "positive"),
    )


def problem(rows: int = 10_299, d: int = 561, seed: int = 0) -> tuple[Any, Any]:
    """Make unit rows and labels of the size of HAR for machines without HAR: a noisy plane."""
    made = make(Synthetic(tasks=1, terminals=1, samples=rows, features=d, test=0, noise=0.02, unequal=0.0), seed)
    return Scaler(unit=True).transform(made.X), np.asarray(made.y)


def gap_of(X: Any, y: Any, w: Any, alpha: Any, loss: Loss, lam: float = LAMBDA) -> float:
    """Return the relative duality gap of a model and of dual variables, for labels ±1; see `mathematics`."""
    rows = np.asarray(X, dtype=np.float64)
    v = alpha @ rows / len(y)
    primal = float(np.mean([loss.value(z, label) for z, label in zip(rows @ w, y, strict=True)])) + lam / 2 * w @ w
    dual = -float(np.mean([loss.conjugate(a, label) for a, label in zip(alpha, y, strict=True)])) - v @ v / (2 * lam)
    return float((primal - dual) / max(abs(primal), abs(dual)))


def solve_here(X: Any, y: Any, loss: Loss, *, passes: int = 1, every: int = 4, gap: float = GAP) -> Result:
    """Run rounds of ``passes`` passes until the relative gap is at most ``gap``; certify every ``every``-th round."""
    method = DualMethod(loss, relationship=Unrelated(LAMBDA), intercept=False)
    settings = Settings(
        scale="none", certify_every=every, execution=Execution(threads=1), target_relative_gap=gap, max_rounds=20_000
    )
    return train(one_terminal(X, y), method, Fixed(passes * len(X), 1, 20_000), settings)


def solve_by_liblinear(X: Any, y: Any, loss: Loss) -> dict[str, float]:
    """Run liblinear with the largest tolerance that brings its gap, computed here, below 1e-6."""
    rows = np.asarray(X, dtype=np.float64)
    gap_at = _liblinear_gap(rows, y, loss)
    for tolerance in TOLERANCES:
        model = fit_liblinear(rows, y, loss, tolerance)
        gap = gap_at(model.coef_[0])
        if gap <= GAP:
            break
    return {"passes": float(model.n_iter_), "gap": gap, "tolerance": tolerance}


def fit_liblinear(rows: Any, y: Any, loss: Loss, tolerance: float) -> Any:
    """Fit liblinear's model of the same problem."""
    from sklearn.svm import LinearSVC

    name, weight = ("hinge", 1.0) if isinstance(loss, Hinge) else ("squared_hinge", 0.5)
    # liblinear minimises ½‖w‖² + C Σ max(0, 1 − yz)², without the ½ of the squared hinge here.
    C = weight / (LAMBDA * len(rows))
    model = LinearSVC(loss=name, dual=True, C=C, tol=tolerance, fit_intercept=False, max_iter=100_000, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(rows, y)


def _liblinear_gap(rows: Any, y: Any, loss: Loss) -> Callable[[Any], float]:
    """Return a function for the gap of a liblinear model. Liblinear hides its dual variables, so we use a bound.

    For the squared hinge α = max(0, 1 − yz) y is feasible, and its gap bounds the true gap. For the hinge we use the
    dual value of our own solution at a gap of 1e-8.
    """
    labels = np.where(y > 0, 1.0, -1.0)
    if isinstance(loss, SquaredHinge):
        return lambda w: gap_of(rows, labels, w, labels * np.maximum(0.0, 1.0 - labels * (rows @ w)), loss)
    dual = solve_here(rows, y, loss, passes=5, every=1, gap=1e-8).certificate.dual

    def gap(w: Any) -> float:
        primal = float(np.mean(np.maximum(0.0, 1.0 - labels * (rows @ w)))) + LAMBDA / 2 * w @ w
        return float((primal - dual) / primal)

    return gap


def against_liblinear(
    X: Any, y: Any, loss: Loss, *, repeats: int = 5, passes: int = 1, every: int = 4
) -> dict[str, float]:
    """Compare the seconds of a whole run to a relative gap of 1e-6 with those of liblinear."""
    ours, theirs = solve_here(X, y, loss, passes=passes, every=every), solve_by_liblinear(X, y, loss)
    rows = np.asarray(X, dtype=np.float64)
    times = ratio(
        repeats,
        lambda: solve_here(X, y, loss, passes=passes, every=every),
        lambda: fit_liblinear(rows, y, loss, theirs["tolerance"]),
    )
    return {
        "ratio": times.median,
        "spread": times.spread,
        "seconds": times.seconds,
        "passes": passes * ours.rounds,
        "gap": ours.certificate.relative_gap,
        "liblinear_seconds": times.other_seconds,
        "liblinear_passes": theirs["passes"],
        "liblinear_gap": theirs["gap"],
    }
