"""A new task from 5 to 20 rows: adapted models against the common model, local learning and full retraining.

    python benchmarks/adapt.py --seeds 2

Each task of a data set is left out in turn. The others train the estimator with its defaults. New rows come from half
of the groups of the new task (recordings, or single rows), and test rows are all rows of the other half. Draws of a
single class are skipped. The metric is accuracy, area under the ROC curve, or R². The methods:

* ``common``: the model for unseen tasks, without rows of the new task.
* ``local``: the new rows alone, λ2 = 0.
* ``adapted``: `TaskModels.adapt`.
* ``literal``: the local problem with λ1, λ2 and the mean model of the run, without a choice on held-out rows.
* ``full``: a fit with all rows of the other tasks and the new rows.

The table has means over tasks, in points, and differences with half of their 95 % interval over tasks. It is printed,
and written to ``benchmarks/results/adapt.txt``.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from benchmarks.federations import DATA
from scipy.stats import t as student
from sklearn import datasets
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

from rhfedmtl import Request, RHFedMTLClassifier, RHFedMTLRegressor
from rhfedmtl.models.task_models import TaskModels

RESULTS = Path(__file__).parent / "results" / "adapt.txt"
FEW = (5, 10, 20)
METHODS = ("common", "local", "adapted", "literal", "full")
MOST_ROWS = 3_000


class Rows(NamedTuple):
    """Features, labels, tasks, and groups of rows that belong together."""

    X: Any
    y: Any
    task: Any
    group: Any


def _source(request: Request) -> Rows:
    source = request.source()
    group = np.arange(len(source.y)) if source.group is None else np.asarray(source.group)
    return Rows(np.asarray(source.X, dtype=np.float64), np.asarray(source.y), np.asarray(source.task), group)


def _heart(label: str) -> Rows:
    """Ill or not, by centre; or the largest heart rate, by centre and decade of age."""
    columns = ["center", "age", "sex", "cp", "trestbps", "chol", "thalach", "exang", "oldpeak", "num"]
    table = pd.read_csv(DATA / "heart.csv")[columns].dropna()
    y, task = table["num"] > 0, table["center"]
    if label == "thalach":
        y, task = table["thalach"], table["center"] + (table["age"] // 10).astype(str)
    X = table.drop(columns=["center", "num", *(["thalach"] if label == "thalach" else [])])
    return Rows(X.to_numpy(dtype=np.float64), y.to_numpy(), pd.factorize(task)[0], np.arange(len(X)))


def _diabetes() -> Rows:
    """Progression of the disease, by body mass index."""
    X, y = datasets.load_diabetes(return_X_y=True)
    return Rows(X, y, np.searchsorted(np.quantile(X[:, 2], np.arange(1, 8) / 8), X[:, 2]), np.arange(len(y)))


PROBLEMS: dict[str, Callable[[], Rows]] = {
    "watch": lambda: _source(Request("watch")),
    "HAR": lambda: _source(Request("har", str(DATA / "har.npz"))),
    "landmine (AUC)": lambda: _source(Request("landmine", str(DATA / "landmine.npz"))),
    "heart": lambda: _heart("num"),
    "heart rate (R2)": lambda: _heart("thalach"),
    "diabetes (R2)": _diabetes,
}


def _score(models: TaskModels, X: Any, y: Any, task: Any, metric: str) -> float:
    if metric == "AUC":
        return float(roc_auc_score(y, models.scores(X, task)[:, 0]))
    return float((r2_score if metric == "R2" else accuracy_score)(y, models.predict(X, task)))


def draws(rows: Rows, task: Any, seed: int, metric: str) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the scores of all methods for each number of new rows."""
    X, y, groups = rows.X, rows.y, rows.group
    rng = np.random.default_rng([seed, int(task)])
    others = rng.permutation(np.flatnonzero(rows.task != task))[:MOST_ROWS]
    kind = RHFedMTLRegressor if metric == "R2" else RHFedMTLClassifier
    fitted = kind(random_state=seed).fit(X[others], y[others], task=rows.task[others], groups=groups[others])
    models, own = fitted.models_, np.flatnonzero(rows.task == task)
    names = rng.permutation(np.unique(groups[own]))
    learns = np.isin(groups[own], names[: len(names) // 2])
    pool, test = rng.permutation(own[learns]), own[~learns]
    if metric != "R2" and len(np.unique(y[test])) < 2:
        return
    for n in FEW:
        few = pool[:n]
        single_class = metric != "R2" and len(np.unique(y[few])) < 2
        if len(few) < n or single_class or len(np.unique(groups[few])) < 2:
            continue
        new = X[few], y[few]
        adapted = models.adapt(*new, task=task, groups=groups[few])
        literal = models.adapt(*new, task=task, lambda2=fitted.lambda2_)
        local = models.adapt(*new, task=task, lambda2=0.0)
        both = np.concatenate([others, few])
        full = kind(random_state=seed).fit(X[both], y[both], task=rows.task[both], groups=groups[both]).models_
        judged = {"local": local, "adapted": adapted, "literal": literal, "full": full}
        scores = {name: _score(learned, X[test], y[test], task, metric) for name, learned in judged.items()}
        yield n, {"common": _score(models, X[test], y[test], None, metric), **scores}


def _interval(values: Any, task: Any) -> tuple[float, float]:
    """Return the mean of values over tasks, and half of its 95 % interval."""
    means = pd.Series(values).groupby(np.asarray(task)).mean()
    error = means.std(ddof=1) / np.sqrt(len(means)) if len(means) > 1 else np.nan
    return float(means.mean()), float(student.ppf(0.975, len(means) - 1) * error) if len(means) > 1 else np.nan


def measure(name: str, seeds: int, most: int, file: Path) -> None:
    """Append a line for each draw of a data set to a file; tasks and seeds in the file are skipped."""
    rows, metric = PROBLEMS[name](), _metric(name)
    done = set() if not file.exists() else set(pd.read_csv(file)[["problem", "task", "seed"]].itertuples(index=False))
    tasks = np.random.default_rng(0).permutation(np.unique(rows.task))[:most]
    for task in tasks.tolist():
        for seed in range(seeds):
            if (name, task, seed) not in done:
                table = [
                    {"problem": name, "task": task, "seed": seed, "n": n, **scores}
                    for n, scores in draws(rows, task, seed, metric)
                ]
                pd.DataFrame(table).to_csv(file, mode="a", header=not file.exists(), index=False)


def _metric(name: str) -> str:
    return name.partition("(")[2].rstrip(")") or "accuracy"


def lines(file: Path) -> Iterator[str]:
    """Yield a line for each data set and number of rows."""
    yield "means over tasks of the mean over seeds, in points; differences ± half of their 95 % interval over tasks"
    heads = [*METHODS, "adapted - common", "adapted - local", "adapted - full", "literal - common"]
    yield f"{'':16}{'rows':>5}{'draws':>7}" + "".join(f"{head:>18}" for head in heads)
    for (name, n), part in pd.read_csv(file).groupby(["problem", "n"], sort=False):
        cells = [f"{100 * _interval(part[m], part['task'])[0]:.1f}" for m in METHODS]
        for a, b in (("adapted", "common"), ("adapted", "local"), ("adapted", "full"), ("literal", "common")):
            difference, half = _interval(part[a] - part[b], part["task"])
            cells.append(f"{100 * difference:+.1f} ± {100 * half:.1f}")
        yield f"{name:16}{n:5}{len(part):7}" + "".join(f"{cell:>18}" for cell in cells)


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=12, help="most tasks of a data set that are left out in turn")
    parser.add_argument("--problems", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--draws", type=Path, default=Path("adapt-draws.csv"), help="file of all draws so far")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.problems:
        measure(name, options.seeds, options.tasks, options.draws)
    table = "\n".join(lines(options.draws)) + "\n"
    print(table)
    options.out.write_text(table)


if __name__ == "__main__":
    main()
