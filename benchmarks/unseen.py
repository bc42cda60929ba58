"""Rows of unseen tasks: the model trained for them, against the mean model and a pooled model.

    python -m benchmarks.unseen --seeds 3

A split leaves out a quarter of the tasks. The rest trains the estimator with its defaults, ``algorithm="pooled"`` and a
model of scikit-learn. All of them predict the rows left out: R² for numbers, accuracy for classes, over all these rows.
The table is printed, and written to ``benchmarks/results/unseen.txt``: means over seeds, and the largest distance
between the estimator and ``pooled`` in any split.
"""

from __future__ import annotations

import argparse
import io
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from benchmarks.federations import DATA
from sklearn import datasets
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rhfedmtl import Request, RHFedMTLClassifier, RHFedMTLRegressor

RESULTS = Path(__file__).parent / "results" / "unseen.txt"
MOST_ROWS = 8_000
Rows = tuple[Any, Any, Any]


def _source(request: Request) -> Rows:
    source = request.source()
    return np.asarray(source.X, dtype=np.float64), np.asarray(source.y), np.asarray(source.task)


def heart(*columns: str) -> pd.DataFrame:
    """Return columns of the heart data, without rows that miss a value."""
    chosen = columns or ("center", "age", "sex", "cp", "thalach", "exang", "oldpeak", "num")
    return pd.read_csv(DATA / "heart.csv")[list(chosen)].dropna()


def _table(frame: pd.DataFrame, label: str, task: Any) -> Rows:
    return frame.drop(columns=[label]).to_numpy(dtype=np.float64), frame[label].to_numpy(dtype=np.float64), task


def _heart_rate() -> Rows:
    """Largest heart rate, by centre and decade of age."""
    table = heart()
    task = pd.factorize(table["center"] + (table["age"] // 10).astype(str))[0]
    return _table(table.drop(columns="center"), "thalach", task)


def _heart_ill() -> Rows:
    """Ill or not, by centre and decade of age."""
    table = heart()
    task = pd.factorize(table["center"] + (table["age"] // 10).astype(str))[0]
    X, y, task = _table(table.drop(columns="center"), "num", task)
    return X, y > 0, task


def traces(label: str = "SNR") -> Rows:
    """Signal to noise ratio, or another measurement, of a 5G phone, by drive."""
    columns, parts = ["Speed", "RSRP", "RSRQ", "CQI", "RSSI", "DL_bitrate", "SNR"], []
    with zipfile.ZipFile(DATA / "traces" / "5G-production-dataset.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".csv") and "__MACOSX" not in name]
        for k, name in enumerate(sorted(names)):
            rows = pd.read_csv(io.BytesIO(archive.read(name)), na_values="-", usecols=columns).dropna()
            parts.append(rows.assign(task=k) if len(rows) > 100 else rows[:0].assign(task=k))
    frame = pd.concat(parts)
    return _table(frame.drop(columns="task"), label, frame["task"].to_numpy())


def _diabetes() -> Rows:
    """Progression of the disease, by body mass index."""
    X, y = datasets.load_diabetes(return_X_y=True)
    return X, y, np.searchsorted(np.quantile(X[:, 2], np.arange(1, 8) / 8), X[:, 2])


def _har_feature() -> Rows:
    """A feature of HAR from 40 others, by person."""
    X, _, task = _source(Request("har", str(DATA / "har.npz")))
    return X[:, 1:41], X[:, 0], task


def _clusters() -> Rows:
    """Digits, by clusters of their images."""
    from sklearn.cluster import KMeans

    X, y = datasets.load_digits(return_X_y=True)
    return X, y, KMeans(24, random_state=0, n_init=1).fit_predict(X)


def _levels() -> Rows:
    """Numbers whose level in a task follows from the features' means there."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(24), 80)
    means = rng.normal(size=(24, 5))
    X = means[task] + rng.normal(size=(len(task), 5))
    return X, X @ rng.normal(size=5) + means[task] @ rng.normal(size=5) + rng.normal(size=len(task)), task


PROBLEMS: dict[str, Callable[[], Rows]] = {
    "5G traces": traces,
    "diabetes": _diabetes,
    "heart rate": _heart_rate,
    "HAR, a feature": _har_feature,
    "synthetic levels": _levels,
    "HAR, six classes": lambda: _source(Request("har", str(DATA / "har.npz"))),
    "watch": lambda: _source(Request("watch")),
    "landmine": lambda: _source(Request("landmine", str(DATA / "landmine.npz"))),
    "heart": _heart_ill,
    "digits": _clusters,
}


def measure(rows: Rows, seed: int) -> dict[str, float]:
    """Fit on three quarters of the tasks and judge on the rest."""
    X, y, task = rows
    rng = np.random.default_rng(seed)
    names = rng.permutation(np.unique(task))
    out = np.isin(task, names[: len(names) // 4])
    train, test = (rng.permutation(np.flatnonzero(part))[:MOST_ROWS] for part in (~out, out))
    numbers = y.dtype.kind == "f"
    estimator, score = (RHFedMTLRegressor, r2_score) if numbers else (RHFedMTLClassifier, accuracy_score)
    began = time.perf_counter()
    model = estimator(random_state=seed).fit(X[train], y[train], task=task[train])
    took = time.perf_counter() - began
    began = time.perf_counter()
    pooled = estimator(algorithm="pooled", random_state=seed).fit(X[train], y[train])
    pooled_time = time.perf_counter() - began
    last = RidgeCV(np.logspace(-3, 3, 13)) if numbers else LogisticRegression(max_iter=2_000)
    scikit = make_pipeline(StandardScaler(), last).fit(X[train], y[train])
    mean = replace(model.models_, unseen=None)
    return {
        "unseen": score(y[test], model.models_.predict(X[test])),
        "pooled": score(y[test], pooled.predict(X[test])),
        "mean": score(y[test], mean.predict(X[test])),
        "scikit": score(y[test], scikit.predict(X[test])),
        "share": pooled_time / took,
    }


def lines(names: list[str], seeds: int) -> Iterator[str]:
    """A line for each problem."""
    yield "means over seeds ± standard deviation; far: largest |unseen - pooled| of a split; time: pooled / whole fit"
    yield f"{'':18}" + "".join(
        f"{name:>16}" for name in ("unseen", "pooled", "mean model", "scikit-learn", "far", "time")
    )
    for name in names:
        rows = PROBLEMS[name]()
        splits = [measure(rows, seed) for seed in range(seeds)]
        table = {key: np.array([split[key] for split in splits]) for key in splits[0]}
        cells = [f"{table[key].mean():.4f} ± {table[key].std():.4f}" for key in ("unseen", "pooled", "mean", "scikit")]
        far = np.abs(table["unseen"] - table["pooled"]).max()
        yield f"{name:18}" + "".join(f"{text:>16}" for text in (*cells, f"{far:.4f}", f"{table['share'].mean():.2f}"))


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problems", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table = []
    for line in lines(options.problems, options.seeds):
        print(line, flush=True)
        table.append(line)
    RESULTS.write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
