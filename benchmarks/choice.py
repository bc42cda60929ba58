"""Compare rules that choose λ2 on held-out rows.

    python benchmarks/choice.py --seeds 3 --keep choice.jsonl     # appends results, resumes where it stopped
    python benchmarks/choice.py --cost                            # cost of the choice, relative to a fit

Rules are compared on the same path of held-out losses:

mean        mean over tasks of the loss; the path ends after two values worse than the best.
relative 0  mean of each task's loss divided by the loss of its zero model, whole grid.
relative t  the same, without a share t of the tasks at each end.
hindsight   the λ2 with the best result on test rows: a yardstick, unknown in practice

Data: real data, drawn federations that no other benchmark uses, and tables of 160 tasks with an outlier task whose
labels contradict its training rows. Results are 100 × balanced accuracy, AUC or R²,
mean over tasks (the outlier excluded).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.federations import Problem, drawn, real
from scipy.stats import trim_mean

from rhfedmtl import RHFedMTLClassifier, RHFedMTLRegressor
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data.federation import Federation
from rhfedmtl.maths import metrics
from rhfedmtl.maths.intervals import interval
from rhfedmtl.selection.regularisation import PATH2, STANDARD_ERRORS, TRIM, choose, trimmed_error
from rhfedmtl.training.config import default_scale
from rhfedmtl.training.settings import Settings

SHARES = (0.0, TRIM / 2.0, TRIM, 2.0 * TRIM)
NUMBERS = range(410_000, 410_012)


def with_outlier(seed: int) -> Federation:
    """160 related regression tasks; the labels of the first change their sign halfway through its rows."""
    rng = np.random.default_rng([39, seed])
    tasks, rows, features = 160, 24, 8
    models = rng.normal(size=features) + 0.5 * rng.normal(size=(tasks, features))

    def draw(count: int) -> tuple[Any, Any]:
        X = rng.normal(size=(tasks, count, features))
        return X, np.einsum("tij,tj->ti", X, models) + rng.normal(size=(tasks, count))

    (X, y), (test_X, test_y) = draw(rows), draw(rows)
    y[0] = 10.0 * np.where(np.arange(rows) % 2, 1.0, -1.0) * y[0] ** 2
    ends = np.arange(tasks + 1) * rows
    return Federation(
        X.reshape(-1, features),
        y.ravel(),
        ends,
        np.arange(tasks + 1),
        test_X.reshape(-1, features),
        test_y.ravel(),
        ends,
        tuple(f"task-{b}" for b in range(tasks)),
    )


def problems() -> dict[str, Problem]:
    """Return all federations by name."""
    outlier = Problem("160 tasks, an outlier", with_outlier, metric="rmse")
    return {problem.name: problem for problem in (*real(), *drawn(NUMBERS), outlier)}


def rules(lambda2: np.ndarray[Any, Any], loss: np.ndarray[Any, Any], zero: np.ndarray[Any, Any]) -> dict[str, float]:
    """Return the λ2 of each rule, from losses (weights × tasks) along the path."""
    choices = {}
    until, worse = 1, 0
    means = np.nanmean(loss, axis=1)
    while until < len(means) and worse < 2:
        worse = 0 if means[until] < means[:until].min() else worse + 1
        until += 1
    choices["mean"] = level(lambda2[:until], loss[:until], 0.0)
    for share in SHARES:
        choices[f"relative {share:g}"] = level(lambda2, loss / zero, share)
    return choices


def level(lambda2: np.ndarray[Any, Any], loss: np.ndarray[Any, Any], share: float) -> float:
    """The largest λ2 within half a standard error of the best."""
    loss = loss[:, np.isfinite(loss).all(axis=0)]
    best = loss[np.argmin(trim_mean(loss, share, axis=1))]
    for value, losses in zip(lambda2, loss, strict=True):
        behind = losses - best
        if trim_mean(behind, share) <= STANDARD_ERRORS * trimmed_error(behind, share):
            return float(value)
    raise AssertionError("the best weight is level with itself")


def result(problem: Problem, federation: Federation, lambda2: float, seed: int) -> float:
    """Points on test rows of a model with this λ2."""
    kind = RHFedMTLRegressor if federation.kind == "regression" else RHFedMTLClassifier
    model = kind(lambda2=lambda2, random_state=seed)
    model.fit(federation.X, federation.y, task=federation.row_task, groups=federation.group)
    values = []
    for b in range(1 if "outlier" in problem.name else 0, federation.n_tasks):
        X, y = federation.test_rows(b)
        if len(y) == 0:
            continue
        measures = metrics.measure(y, model.models_.scores(X, np.full(len(X), b)), len(federation.class_names))
        if problem.metric == "rmse":
            values.append(1.0 - measures["rmse"] ** 2 / float(np.var(federation.test_y)))
        else:
            values.append(measures["balanced_accuracy" if problem.metric == "accuracy" else problem.metric])
    return 100.0 * float(np.nanmean(values))


def measure(problem: Problem, seed: int) -> dict[str, Any]:
    """Run the path once, and learn with each λ2 that a rule takes."""
    federation = problem.make(seed)
    method = build("rhfedmtl", Options(), federation.kind).method
    settings = Settings(seed=seed, scale=default_scale(federation.kind, private=False))
    path = choose(federation, method, lambda1=(1e-3,), settings=settings)
    trials = sorted({t.lambda2: t for t in path.trials}.values(), key=lambda t: -t.lambda2)
    lambda2 = np.array([t.lambda2 for t in trials])
    relative = np.array([t.tasks for t in trials])
    choices = rules(lambda2, relative * path.zero, path.zero)
    assert choices[f"relative {TRIM:g}"] == path.lambda2
    points = {value: result(problem, federation, value, seed) for value in PATH2}
    choices["hindsight"] = max(points, key=lambda value: points[value])
    return {
        "problem": problem.name,
        "seed": seed,
        "choices": choices,
        "points": {n: points[v] for n, v in choices.items()},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each federation, and the mean of each rule against `mean` with its 95 % interval over federations."""
    names = list(rows[0]["points"])
    lines = ["| federation | " + " | ".join(names) + " |", "| --- " * (len(names) + 1) + "|"]
    by_problem: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_problem.setdefault(row["problem"], []).append(row)

    def average(problem: str, name: str) -> float:
        return float(np.mean([row["points"][name] for row in by_problem[problem]]))

    for problem, measures in by_problem.items():
        cells = [
            f"{average(problem, name):.2f} (" + ", ".join(f"{row['choices'][name]:g}" for row in measures) + ")"
            for name in names
        ]
        lines.append(f"| {problem} | " + " | ".join(cells) + " |")
    differences = [interval(np.array([average(p, name) - average(p, "mean") for p in by_problem])) for name in names]
    lines.append(
        "| ahead of `mean` | " + " | ".join(f"{middle:+.2f} ± {half or 0.0:.2f}" for middle, half in differences) + " |"
    )
    return "\n".join(lines)


def cost() -> Iterator[str]:
    """Yield lines of a table: CPU seconds of a default fit divided by the seconds of a fit with given weights."""
    yield "| rows | tasks | labels | given weights, s | default, s | ratio | λ2 |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for rows, tasks in ((20_000, 5), (20_000, 160), (200_000, 10), (200_000, 160)):
        rng = np.random.default_rng(rows + tasks)
        X, task = rng.normal(size=(rows, 14)), rng.integers(0, tasks, rows)
        models = rng.normal(size=14) + 0.5 * rng.normal(size=(tasks, 14))
        score = np.einsum("ij,ij->i", X, models[task]) + 2.0 * rng.normal(size=rows)
        for kind, y in ((RHFedMTLRegressor, score), (RHFedMTLClassifier, score > 0.0)):
            seconds = []
            for weights in ({"lambda2": 0.01}, {"lambda2": 0.01}, {}):  # the first compiles
                start = time.process_time()
                model = kind(random_state=0, n_jobs=1, **weights).fit(X, y, task=task)
                seconds.append(time.process_time() - start)
            labels = "numbers" if kind is RHFedMTLRegressor else "classes"
            chosen = model.lambda2_
            text = f"{seconds[1]:.2f} | {seconds[2]:.2f} | {seconds[2] / seconds[1]:.1f} | {chosen:g}"
            yield f"| {rows:,} | {tasks} | {labels} | {text} |"


def main() -> None:
    """Measure missing rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, default=Path("choice.jsonl"))
    parser.add_argument("--cost", action="store_true", help="compare durations of fits instead")
    arguments = parser.parse_args()
    if arguments.cost:
        for line in cost():
            print(line, flush=True)
        return
    rows = [json.loads(line) for line in arguments.keep.read_text().splitlines()] if arguments.keep.exists() else []
    done = {(row["problem"], row["seed"]) for row in rows}
    with arguments.keep.open("a") as file:
        for name, problem in problems().items():
            for seed in range(arguments.seeds):
                if (name, seed) not in done:
                    rows.append(measure(replace(problem), seed))
                    file.write(json.dumps(rows[-1]) + "\n")
                    file.flush()
    print(table(rows))


if __name__ == "__main__":
    main()
