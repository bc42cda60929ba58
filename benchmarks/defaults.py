"""Which defaults should the estimators have? Each is changed alone, on real data, and compared split by split.

The default is λ2 = 0.01 here, as under a budget; "not given" has it chosen on training rows.

Seven questions: HAR (SITTING against the rest, and all six activities; 10 people, 70 rows each, of which a quarter is
left out, tested on all other rows of the person), watch (10 people, 7 exercises, tested on recordings that were not
seen), Landmine (29 fields, a quarter for test, AUC), synthetic classes; and as regressions scikit-learn's diabetes data
(five ages, a quarter for test) and synthetic numbers. The estimator gets the training rows with task and terminal, and
no budget, so that ``tol`` ends it; or, with ``--rounds 10``, the energy of so many rounds of one pass, and ``tol=0``.
Errors are root mean squared ones, in standard deviations of the test labels.

    RHFEDMTL_DATA=../shared/data python benchmarks/defaults.py --seeds 10     # about 15 minutes on 2 cores
    RHFEDMTL_DATA=../shared/data python benchmarks/defaults.py --seeds 10 --pairs [--rounds 10]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_diabetes
from threadpoolctl import threadpool_limits

from rhfedmtl import Federation, Request, RHFedMTLClassifier, RHFedMTLRegressor, Source, Split, federate
from rhfedmtl.maths import metrics
from rhfedmtl.maths.intervals import interval
from rhfedmtl.maths.registry import LAMBDA1, LAMBDA2
from rhfedmtl.training.result import mean

DATA = Path(os.environ.get("RHFEDMTL_DATA", "."))


@dataclass(frozen=True)
class Study:
    """One data set and how it is judged."""

    name: str
    federation: Callable[[int], Federation]
    metric: str


def diabetes(seed: int) -> Federation:
    """Disease progression of 442 people; people of one age, in fifths, are a task."""
    X, y = load_diabetes(return_X_y=True)
    fifth = np.searchsorted(np.quantile(X[:, 0], [0.2, 0.4, 0.6, 0.8]), X[:, 0])
    names = tuple(f"age-{k}" for k in range(5))
    return federate(Source(X, y, fifth, names), Split(terminals=5), seed)


def studies() -> list[Study]:
    """The seven questions."""
    har = {"data": "har", "path": str(DATA / "har.npz"), "tasks": 10, "samples_per_task": 70, "test_rest": True}
    landmine = Request("landmine", str(DATA / "landmine.npz"), terminals=5)
    numbers = Request("synthetic", settings={"classes": 0, "noise": 0.5})
    return [
        Study("har sitting", Request(**har, positive="SITTING", terminals=5).federation, "balanced_accuracy"),
        Study("har six", Request(**har, terminals=5).federation, "accuracy"),
        Study("watch", Request("watch", grouped=True).federation, "accuracy"),
        Study("landmine", landmine.federation, "auc"),
        Study("synthetic", Request("synthetic").federation, "accuracy"),
        Study("diabetes", diabetes, "rmse"),
        Study("synthetic numbers", numbers.federation, "rmse"),
    ]


CANDIDATES: dict[str, dict[str, Any]] = {
    "default": {},
    "not given": {"lambda2": None},
    "lambda1 = 1e-4": {"lambda1": 1e-4},
    "lambda1 = 1e-2": {"lambda1": 1e-2},
    "lambda2 = 1e-3": {"lambda2": 1e-3},
    "lambda2 = 1e-1": {"lambda2": 1e-1},
    "lambda2 = auto": {"lambda2": "auto"},
    "standard-unit": {"scale": "standard-unit"},
    "standard": {"scale": "standard"},
    "unit": {"scale": "unit"},
    "tol = 1e-1": {"tol": 1e-1},
    "tol = 1e-2": {"tol": 1e-2},
    "tol = 1e-4": {"tol": 1e-4},
    "logistic": {"loss": "logistic"},
    "squared-hinge": {"loss": "squared-hinge"},
    "no intercept": {"intercept": False},
}

PAIRS: dict[str, dict[str, Any]] = {"default": {}} | {
    f"{lambda1:g}, {lambda2:g}": {"lambda1": lambda1, "lambda2": lambda2}
    for lambda1 in (1e-4, 1e-3)
    for lambda2 in (1e-2, 1e-1, 1.0)
    if (lambda1, lambda2) != (LAMBDA1, LAMBDA2)
}
"""lambda1 and lambda2 together."""


class Job(NamedTuple):
    """One split of one study, and what is tried on it."""

    study: Study
    seed: int
    candidates: dict[str, dict[str, Any]]
    rounds: int | None


def one_seed(job: Job) -> dict[str, Any]:
    """All candidates on one split: metric (mean over tasks), seconds and rounds of each."""
    study, seed = job.study, job.seed
    federation = study.federation(seed)
    one_round = 10.0 * federation.n_tasks + 0.1 * len(federation.X)
    limits = {} if job.rounds is None else {"budget": {"energy": job.rounds * one_round}, "tol": 0.0}
    terminal = np.repeat(np.arange(federation.n_terminals), np.diff(federation.terminal_offsets))
    results: dict[str, Any] = {"study": study.name, "seed": seed}
    for name, given in job.candidates.items():
        if federation.kind == "regression" and "loss" in given:
            continue
        kind = RHFedMTLRegressor if federation.kind == "regression" else RHFedMTLClassifier
        model = kind(random_state=seed, **{"lambda2": LAMBDA2, **given, **limits})
        started = time.perf_counter()
        model.fit(federation.X, federation.y, task=federation.row_task, terminal=terminal, groups=federation.group)
        seconds = time.perf_counter() - started
        results[name] = {"value": judged(model, federation, study.metric), "seconds": seconds, "rounds": model.n_iter_}
    return results


def judged(model: Any, federation: Federation, metric: str) -> float:
    """Mean over tasks of a metric on test rows."""
    values = []
    for b in range(federation.n_tasks):
        X, y = federation.test_rows(b)
        scores = model.models_.scores(X, np.full(len(X), b))
        values.append(metrics.measure(y, scores, len(federation.class_names))[metric])
    return mean(np.array(values)) / (float(federation.test_y.std()) if metric == "rmse" else 1.0)


def in_points(values: np.ndarray[Any, Any]) -> str:
    """Mean and half width of its 95 % interval, in points."""
    middle, half = interval(values)
    return f"{100 * middle:+.2f}" + ("" if half is None else f" ± {100 * half:.2f}")


def table(found: dict[str, list[dict[str, Any]]], names: Iterable[str]) -> str:
    """A Markdown table: the default, then by how many points each candidate is better; in brackets median rounds."""
    asked = studies()
    lines = ["| | " + " | ".join(f"{s.name} ({s.metric.replace('_', ' ')})" for s in asked if s.name in found) + " |"]
    lines.append("| --- " * (len(found) + 1) + "|")
    for name in names:
        cells = []
        for study in (s for s in asked if s.name in found):
            rows = [row for row in found[study.name] if name in row]
            if not rows:
                cells.append("")
                continue
            sign = -1.0 if study.metric == "rmse" else 1.0
            values = np.array([row[name]["value"] for row in rows])
            base = np.array([row["default"]["value"] for row in rows])
            rounds = np.median([row[name]["rounds"] for row in rows])
            text = in_points(values).lstrip("+") if name == "default" else in_points(sign * (values - base))
            cells.append(f"{text} ({rounds:.0f})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the studies and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="studies whose name contains this")
    parser.add_argument(
        "--pairs", action="store_true", help="lambda1 and lambda2 together, instead of each change alone"
    )
    parser.add_argument("--rounds", type=int, help="give each fit the energy of so many rounds of one pass")
    parser.add_argument("--out", type=Path, help="write every number as JSON")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    tried = PAIRS if given.pairs else CANDIDATES
    # One thread of linear algebra for each worker: on small matrices several threads wait for each other.
    with ProcessPoolExecutor(given.workers, initializer=threadpool_limits, initargs=(1,)) as pool:
        for study in (study for study in studies() if given.only in study.name):
            jobs = [Job(study, seed, tried, given.rounds) for seed in range(given.seeds)]
            found[study.name] = list(pool.map(one_seed, jobs))
    print(table(found, tried))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1, default=float))


if __name__ == "__main__":
    main()
