"""Which defaults should the estimators have? Each is changed alone, on real data, and compared split by split.

The default is λ2 = 0.01 here, as under a budget; "not given" has it chosen on training rows.

Seven questions: HAR (SITTING against the rest, and all six activities; 10 people, 70 rows each, of which a quarter is
left out, tested on all other rows of the person), watch (10 people, 7 exercises, tested on recordings that were not
seen), Landmine (29 fields, a quarter for test, AUC), synthetic classes; and as regressions scikit-learn's diabetes data
(five ages, a quarter for test) and synthetic numbers. The estimator gets the training rows with task and terminal, and
no budget, so that ``tol`` ends it; or, with ``--rounds 10``, the energy of so many rounds of one pass, and ``tol=0``.
Errors are root mean squared errors, in standard deviations of the test labels.

We looked at test rows of these questions, seeds 0 to 9, when we chose the defaults. ``--fresh`` therefore measures half
and twice of λ1 and λ2 on other labels, data and splits, from seed 5000. We had never looked at them.
``--coupled-start`` compares runs with and without the coupled start there, with the weights of the paper.

    RHFEDMTL_DATA=../shared/data python -m benchmarks.defaults --seeds 10     # about 15 minutes on 2 cores
    … python -m benchmarks.defaults --seeds 10 [--pairs | --fresh | --coupled-start] [--rounds 10]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.ablation import BY_NAME
from sklearn.datasets import load_diabetes, load_wine
from threadpoolctl import threadpool_limits

from rhfedmtl import Federation, Request, RHFedMTLClassifier, RHFedMTLRegressor, Source, Split, federate
from rhfedmtl.maths import metrics
from rhfedmtl.maths.intervals import interval
from rhfedmtl.maths.registry import LAMBDA1, LAMBDA2
from rhfedmtl.training.result import mean

DATA = Path(os.environ.get("RHFEDMTL_DATA", "."))
FIRST_FRESH_SEED, FIRST_FRESH_NUMBER = 5_000, 500_000


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


def angina(seed: int) -> Federation:
    """Angina under exercise of 865 patients, by centre."""
    from benchmarks.unseen import heart

    rows = heart("center", "age", "sex", "cp", "trestbps", "thalach", "oldpeak", "exang")
    center, names = rows["center"].factorize()
    X = rows.drop(columns=["center", "exang"]).to_numpy(dtype=np.float64)
    source = Source(X, rows["exang"].to_numpy(dtype=np.int16), center, tuple(names), ("no", "yes"))
    return federate(source, Split(terminals=5), seed)


def proline(seed: int) -> Federation:
    """Proline in 178 wines from their other features, by cultivar."""
    X, cultivar = load_wine(return_X_y=True)
    source = Source(X[:, :-1], X[:, -1], cultivar, tuple(f"cultivar-{k}" for k in range(3)))
    return federate(source, Split(terminals=5), seed)


@cache
def drives() -> tuple[Any, Any, Any]:
    """Quality of a phone's signal, and its other measurements, on the 20 longest drives."""
    from benchmarks.unseen import traces

    X, y, drive = traces("RSRQ")
    longest = np.argsort(-np.bincount(drive.astype(int)))[:20]
    rows = np.isin(drive, longest)
    return X[rows], y[rows], np.searchsorted(np.sort(longest), drive[rows])


def signal(seed: int) -> Federation:
    """Signal quality by drive, 70 rows each."""
    X, y, drive = drives()
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.permutation(np.flatnonzero(drive == k))[:70] for k in range(20)])
    source = Source(X[rows], y[rows], drive[rows], tuple(f"drive-{k}" for k in range(20)))
    return federate(source, Split(terminals=5), seed)


def drawn(seed: int, kinds: tuple[str, ...]) -> Federation:
    """Draw a federation; its number follows from the seed, and the kinds take turns."""
    from benchmarks.federations import Drawn

    k = seed - FIRST_FRESH_SEED
    return Drawn.number(FIRST_FRESH_NUMBER + k, kinds[k % len(kinds)]).federation(0)


def fresh_studies() -> list[Study]:
    """Return questions that the choice of defaults did not use."""
    file = str(DATA / "har.npz")
    shape = {"tasks": 10, "terminals": 5, "samples_per_task": 70, "test_rest": True}
    har = Request("har", file, positive="WALKING_DOWNSTAIRS", **shape)  # type: ignore[arg-type]
    landmine = Request("landmine", str(DATA / "landmine.npz"), terminals=5)
    return [
        Study("har downstairs", har.federation, "balanced_accuracy"),
        Study("watch, new splits", Request("watch", grouped=True).federation, "accuracy"),
        Study("landmine, new splits", landmine.federation, "auc"),
        Study("angina", angina, "auc"),
        Study("drawn classes", partial(drawn, kinds=("balanced", "rare")), "auc"),
        Study("drawn numbers", partial(drawn, kinds=("numbers",)), "rmse"),
        Study("wine", proline, "rmse"),
        Study("5G signal", signal, "rmse"),
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

HALF_AND_TWICE: dict[str, dict[str, Any]] = {
    "default": {},
    "lambda1 × 0.5": {"lambda1": LAMBDA1 / 2},
    "lambda1 × 2": {"lambda1": LAMBDA1 * 2},
    "lambda2 × 0.5": {"lambda2": LAMBDA2 / 2},
    "lambda2 × 2": {"lambda2": LAMBDA2 * 2},
    "lambda2 not given": {"lambda2": None},
}

PAPER = {"lambda1": 1e-4, "lambda2": 1e-6}
COUPLED_START: dict[str, dict[str, Any]] = {"default": PAPER, "without": {**PAPER, "without": "coupled start"}}
"""With and without a mechanism of `benchmarks/ablation.py`."""


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
        options = {"lambda2": LAMBDA2, **given, **limits}
        without = options.pop("without", None)
        model = kind(random_state=seed, **options)
        started = time.perf_counter()
        with BY_NAME[without].removed() if without else contextlib.nullcontext():
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
    """A Markdown table: the default, then by how many points each candidate is better; in brackets median rounds.

    The last column is the mean of the other columns, with the interval over seeds.
    """
    asked = [*studies(), *fresh_studies()]
    heads = [f"{s.name} ({s.metric.replace('_', ' ')})" for s in asked if s.name in found]
    lines = [f"| | {' | '.join(heads)} | mean |", "| --- " * (len(found) + 2) + "|"]
    for name in names:
        cells, gains = [], []
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
            gains.append(sign * (values - base))
        every = "" if name == "default" or len(gains) < len(found) else in_points(np.mean(gains, axis=0))
        lines.append(f"| {name} | " + " | ".join([*cells, every]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the studies and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="studies whose name contains this")
    parser.add_argument(
        "--pairs", action="store_true", help="lambda1 and lambda2 together, instead of each change alone"
    )
    parser.add_argument("--fresh", action="store_true", help="half and twice of lambda1 and lambda2, on fresh data")
    parser.add_argument("--coupled-start", action="store_true", help="with and without it, on fresh data")
    parser.add_argument("--rounds", type=int, help="give each fit the energy of so many rounds of one pass")
    parser.add_argument("--out", type=Path, help="write every number as JSON")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    fresh = given.fresh or given.coupled_start
    tried = (
        (COUPLED_START if given.coupled_start else HALF_AND_TWICE) if fresh else PAIRS if given.pairs else CANDIDATES
    )
    first = FIRST_FRESH_SEED if fresh else 0
    # One thread of linear algebra for each worker: on small matrices several threads wait for each other.
    with ProcessPoolExecutor(given.workers, initializer=threadpool_limits, initargs=(1,)) as pool:
        for study in (s for s in (fresh_studies() if fresh else studies()) if given.only in s.name):
            jobs = [Job(study, seed, tried, given.rounds) for seed in range(first, first + given.seeds)]
            found[study.name] = list(pool.map(one_seed, jobs))
    print(table(found, tried))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1, default=float))


if __name__ == "__main__":
    main()
