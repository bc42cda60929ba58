"""Calibration error of the classifier on unseen rows, against calibrated logistic regression of scikit-learn.

    python benchmarks/probabilities.py --seeds 5

Half of the rows train (at most ``MOST_ROWS``), the other half judges. The models are the classifier with its default
loss and with the logistic loss, and `CalibratedClassifierCV` around a logistic regression on standardised features:
for each task (a class with a single row, or a task with one class, gets smoothed frequencies), and for all rows with a
column per task. The expected calibration error has 15 bins: of the second class of two, else of the most probable
class. The table is printed, and written to ``benchmarks/results/probabilities.txt``: means ± standard deviations over
splits.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.federations import DATA
from sklearn import datasets
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rhfedmtl import Request, RHFedMTLClassifier

RESULTS = Path(__file__).parent / "results" / "probabilities.txt"
BINS, MOST_ROWS = 15, 1500
Rows = tuple[Any, Any, Any]


def cases() -> Iterator[tuple[str, Callable[[], Rows]]]:
    """Yield the names of the data sets, and functions that load rows, class codes and tasks."""
    yield "breast cancer", lambda: _bundled(datasets.load_breast_cancer)
    yield "wine", lambda: _bundled(datasets.load_wine)
    yield "digits", lambda: _bundled(datasets.load_digits)
    yield "heart", lambda: _heart(several=True)
    yield "heart, sick", lambda: _heart(several=False)
    yield "landmine", lambda: _source(Request("landmine", str(DATA / "landmine.npz")))
    yield "watch", lambda: _source(Request("watch"))
    yield "har", lambda: _source(Request("har", str(DATA / "har.npz")))
    for share in (50, 20, 5):
        yield f"drawn, {share} %", lambda share=share: _drawn(share)


def _bundled(load: Any) -> Rows:
    X, y = load(return_X_y=True)
    return X, y, np.arange(len(y)) % 4


def _source(request: Request) -> Rows:
    source = request.source()
    return np.asarray(source.X, dtype=np.float64), np.asarray(source.y), np.asarray(source.task)


def _heart(*, several: bool) -> Rows:
    X, y, task = _source(Request("table", str(DATA / "heart.csv"), settings={"label": "num", "task": "center"}))
    return np.where(np.isnan(X), np.nanmean(X, axis=0), X), y if several else (y > 0).astype(int), task


def _drawn(share: int) -> Rows:
    """Draw 20 tasks with skewed features, an interaction, and about this share of positive rows."""
    rng = np.random.default_rng(0)
    task, W = rng.integers(0, 20, 6000), 0.5 * rng.normal(size=10) + 0.3 * rng.normal(size=(20, 10))
    X = rng.normal(size=(6000, 10))
    X[:, :3] = np.exp(X[:, :3])
    base = {50: 0.0, 20: -2.0, 5: -4.5}[share]
    log_odds = 1.2 * (X * W[task]).sum(axis=1) + base + 0.4 * X[:, 3] * X[:, 4]
    return X, (rng.random(6000) < 1.0 / (1.0 + np.exp(-log_odds))).astype(int), task


def calibration_error(odds: Any, y: Any) -> float:
    """Return the expected calibration error."""
    second = odds.shape[1] == 2
    sure, right = (odds[:, 1], y == 1) if second else (odds.max(axis=1), odds.argmax(axis=1) == y)
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    return float(sum(abs((sure - right)[place == k].sum()) for k in range(BINS)) / len(y))


def _logistic(cv: int = 5) -> Any:
    return CalibratedClassifierCV(make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)), cv=cv)


def _by_task(X: Any, y: Any, task: Any, new: Any, new_task: Any) -> Any:
    odds = np.zeros((len(new), y.max() + 1))
    for b in np.unique(new_task):
        own, judged = task == b, new_task == b
        rows = np.bincount(y[own], minlength=odds.shape[1])
        if (rows > 0).sum() < 2 or rows[rows > 0].min() < 2:
            odds[judged] = (rows + 1) / (rows + 1).sum()
        else:
            model = _logistic(int(min(5, rows[rows > 0].min()))).fit(X[own], y[own])
            odds[np.ix_(np.flatnonzero(judged), model.classes_)] = model.predict_proba(new[judged])
    return odds


def measure(rows: Rows, seed: int) -> dict[str, tuple[float, float, float]]:
    """Return calibration error, log loss and accuracy of every model on the unseen half of a split."""
    X, y, task = rows
    train, test = train_test_split(np.arange(len(y)), test_size=0.5, random_state=seed, stratify=y)
    train = train[:MOST_ROWS]
    columns = np.hstack([X, np.eye(task.max() + 1)[task]])

    def ours(**parameters: Any) -> Any:
        model = RHFedMTLClassifier(random_state=seed, **parameters).fit(X[train], y[train], task=task[train])
        return model.predict_proba(X[test], task=task[test])

    models = {
        "rhfedmtl": ours(),
        "rhfedmtl, logistic loss": ours(loss="logistic"),
        "log odds, not calibrated": ours(loss="logistic", calibration="off"),
        "calibrated logistic, column per task": _logistic().fit(columns[train], y[train]).predict_proba(columns[test]),
        "calibrated logistic, each task": _by_task(X[train], y[train], task[train], X[test], task[test]),
    }
    true = np.arange(len(test)), y[test]
    return {
        name: (
            calibration_error(odds, y[test]),
            float(-np.log(np.clip(odds[true], 1e-12, 1.0)).mean()),
            float(np.mean(odds.argmax(axis=1) == y[test])),
        )
        for name, odds in models.items()
    }


def main() -> None:
    """Measure all data sets, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", default="", help="part of the name of a data set")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    lines = []
    for name, load in cases():
        if arguments.data not in name:
            continue
        rows = load()
        splits = [measure(rows, seed) for seed in range(arguments.seeds)]
        lines.append(f"{name}: {rows[0].shape[0]} rows, {rows[2].max() + 1} tasks, {rows[1].max() + 1} classes")
        for model in splits[0]:
            error, loss, right = np.array([split[model] for split in splits]).T
            spread = error.std(ddof=1) if len(splits) > 1 else 0.0
            lines.append(
                f"  {model:<38}error {error.mean():.4f} ± {spread:.4f}  log loss {loss.mean():.3f}  "
                f"accuracy {right.mean():.3f}"
            )
        print("\n".join(lines[-6:]), flush=True)
    if not arguments.data:
        RESULTS.write_text(f"--seeds {arguments.seeds}\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
