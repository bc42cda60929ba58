"""Is what comes out the best that was found, and does its certificate say so? Seven studies, each of many small cells.

    python benchmarks/outcome.py budgets gaps weights terminals rounds yardsticks others --jobs 16

A cell is one run or one comparison; its numbers are kept, a line of JSON each, in ``--keep``, so that a study that was
stopped goes on where it was. The table of a study is printed, and written to ``benchmarks/results/outcome-STUDY.txt``.

budgets     error of the returned model at rising budgets: by how many points it rises at most; the plain error, and the
            balanced one where classes weigh the same in the loss
gaps        certified gap over true suboptimality, for every relationship and weights up to λ2 = 10⁴ λ1
weights     λ2 left open under a budget, so that it is chosen in the first rounds, against λ2 = 0.01
terminals   5 tasks × 1,500 terminals, weights chosen within the budget
rounds      rounds to a relative gap of 1e-3 with 10 to 10⁴ terminals a station
yardsticks  the defaults against relationship `none` and one pooled model, solved
others      `mean` and `learned`, weights chosen on folds, against models of scikit-learn, chosen on folds too
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.federations import Problem, drawn, real

from rhfedmtl import RHFedMTLClassifier, RHFedMTLRegressor
from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.federation import Federation, class_weights
from rhfedmtl.data.request import Request
from rhfedmtl.maths import metrics
from rhfedmtl.maths.registry import LAMBDA2, RELATIONSHIPS
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.config import default_scale
from rhfedmtl.training.result import Result, mean
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

RESULTS = Path(__file__).parent / "results"
PRICES = {"energy": {"terminal_step": 0.1, "station_round": 10.0}}
Cell = dict[str, Any]


class Study(NamedTuple):
    """Its cells, what is measured in one, and how all of them are told."""

    cells: Callable[[int], Iterator[Cell]]
    measure: Callable[[Cell], dict[str, float]]
    tell: Callable[[list[dict[str, Any]]], Iterator[str]]


def federations() -> dict[str, Problem]:
    """All real ones, and a few drawn that do not take long."""
    return {problem.name: problem for problem in [*real(), *_recordings(), *drawn((1, 3, 5, 7, 11))]}


def _recordings() -> list[Problem]:
    """Watch, tested on recordings that were not seen."""
    return [
        Problem("watch, unseen recordings", Request("watch", terminals=5, grouped=True).federation, metric="accuracy")
    ]


def learn(
    federation: Federation,
    options: dict[str, Any],
    seed: int,
    budget: float | None = None,
    prices: Any = None,
    **settings: Any,
) -> Result:
    """A run of the default policy."""
    ledger = Ledger(prices or PRICES, {"energy": budget}) if budget else Ledger({})
    scale = {"scale": default_scale(federation.kind, private=False)}
    method = Options.of(**options).method(federation.kind)
    return train(federation, method, POLICIES["measured"](), Settings(seed=seed, **scale, **settings), ledger=ledger)


def error(federation: Federation, result: Result) -> float:
    """Points of error, of rows as the losses count them; of RMSE as a share of the spread of labels.

    Training rows drawn half from each class in every task (HAR) count classes alike, whatever the rest is like.
    """
    if federation.kind == "regression":
        return 100.0 * mean(result.metrics["rmse"]) / float(np.std(federation.test_y))
    alike = federation.sample_weight is not None or _drawn_half(federation)
    return 100.0 - 100.0 * mean(result.metrics["balanced_accuracy" if alike else "accuracy"])


def _drawn_half(federation: Federation) -> bool:
    """Whether half of the training rows of every task are of one of two classes."""
    ones, tasks = (np.bincount(federation.row_task, weights) for weights in (federation.y == 1, None))
    return len(federation.class_names) == 2 and bool(np.all(np.abs(ones - tasks / 2) <= 1))


def balanced(federation: Federation) -> Federation:
    """The same rows, weighted so that all classes of a task weigh the same in its loss."""
    return replace(federation, sample_weight=class_weights(federation.y, federation.row_task))


def one_pass(federation: Federation) -> float:
    """What a round of one pass costs."""
    return 10.0 * federation.n_tasks + 0.1 * len(federation.y)


def binary_features(seed: int) -> Federation:
    """139 tasks of 22 to 250 rows, 27 binary features whose frequencies differ by task, label means 20 ± 6."""
    rng = np.random.default_rng([16, seed])
    sizes, tests = rng.integers(22, 251, 139), np.full(139, 20)
    often, levels, common = rng.beta(0.6, 0.6, (139, 27)), rng.normal(20.0, 6.0, 139), rng.normal(size=27)

    def rows(counts: Any) -> tuple[Any, Any]:
        task = np.repeat(np.arange(139), counts)
        X = (rng.random((len(task), 27)) < often[task]).astype(np.float64)
        centred = (X - often[task]) @ common
        return X, levels[task] + 2.0 * centred + 3.0 * rng.normal(size=len(task))

    X, y = rows(sizes)
    test_X, test_y = rows(tests)
    bounds, names = np.append(0, np.cumsum(sizes)), tuple(f"task-{b}" for b in range(139))
    return Federation(X, y, bounds, np.arange(140), test_X, test_y, np.append(0, np.cumsum(tests)), names)


# Error over budgets.
BUDGETS = (1, 2, 4, 8, 16, 32)
COUPLINGS = {"weak": (1e-3, 1e-3), "strong": (1e-3, 3.0), "very strong": (1e-4, 10.0)}


def budget_cells(seeds: int) -> Iterator[Cell]:
    """Real federations and the made-up regression, under weak and strong coupling."""
    kinds = {"binary features": ("plain",)} | {
        problem.name: ("plain",) if problem.metric == "rmse" else ("plain", "balanced") for problem in real()
    }
    for (name, errors), coupling in itertools.product(kinds.items(), COUPLINGS):
        for each, seed in itertools.product(errors, range(seeds)):
            yield {"federation": name, "coupling": coupling, "error": each, "seed": seed}


def budget_cell(cell: Cell) -> dict[str, float]:
    """Error at every budget."""
    make = binary_features if cell["federation"] == "binary features" else federations()[cell["federation"]].make
    federation, (lambda1, lambda2) = make(cell["seed"]), COUPLINGS[cell["coupling"]]
    if cell["error"] == "balanced":
        federation = balanced(federation)
    options, found = {"lambda1": lambda1, "lambda2": lambda2}, {}
    for passes in BUDGETS:
        result = learn(federation, options, cell["seed"], passes * one_pass(federation) * 1.001)
        found[str(passes)] = error(federation, result)
        found[f"above zero at {passes}"] = float(result.certificate.primal > result.certificate.zero * (1 + 1e-9))
    return found


def tell_budgets(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Mean error over seeds at each budget, and its largest rise from any smaller one."""
    for name, own in groups(rows, "federation", "coupling", "error"):
        errors = np.array([[row[str(passes)] for passes in BUDGETS] for row in own]).mean(axis=0)
        rise = float(np.max(errors - np.minimum.accumulate(errors)))
        above = sum(row[f"above zero at {passes}"] for row in own for passes in BUDGETS)
        shown = " ".join(f"{x:6.2f}" for x in errors)
        yield f"{name:45s} {shown}  rises by {rise:5.2f}{' OVER 1' if rise > 1 else ''}; above P(0): {above:.0f}"


# Certified gap over true suboptimality.
RATIOS = (1.0, 1e2, 1e4)


def gap_cells(seeds: int) -> Iterator[Cell]:
    """Every relationship, at three strengths."""
    for name in RELATIONSHIPS:
        for ratio in RATIOS:
            yield from ({"relationship": name, "ratio": ratio, "seed": seed} for seed in range(seeds))


def gap_cell(cell: Cell) -> dict[str, float]:
    """Gap and suboptimality at budgets of 4, 12 and 40 passes; the optimum is that of the relationship as it stands."""
    federation = Request("synthetic", tasks=8, terminals=4, samples_per_task=80, test_fraction=0.3).federation(
        cell["seed"]
    )
    weights = {"lambda1": 1e-3, "lambda2": 1e-3 * cell["ratio"]}
    found = {}
    for passes in (4, 12, 40):
        options = {**weights, "relationship": cell["relationship"]}
        result = learn(federation, options, cell["seed"], passes * one_pass(federation) * 1.001)
        method = Options.of(**options).method(federation.kind)
        fixed = _as_it_stands(result.relationship)
        exact = train(
            federation,
            _with_relationship(method, fixed),
            POLICIES["measured"](),
            Settings(seed=cell["seed"], target_relative_gap=1e-9, max_rounds=20_000),
        )
        missing = max(result.certificate.primal - exact.certificate.primal, 0.0)
        found[f"{passes} gap"], found[f"{passes} true"] = result.certificate.gap, missing
        found[f"{passes} exact"] = exact.certificate.gap
    return found


def _with_relationship(method: Any, relationship: Any) -> Any:
    return replace(method, relationship=relationship)


def _as_it_stands(relationship: Any) -> Any:
    """The relationship as it stands, which learns no more."""
    inner = getattr(relationship, "inner", relationship)
    if inner.learns() is None:
        return inner
    stopped = type("Stopped", (type(inner),), {"learns": lambda self: None})
    return stopped(**{name: getattr(inner, name) for name in inner.__dataclass_fields__})


def tell_gaps(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Median and largest ratio; a gap below the truth would be a broken certificate."""
    for name, own in groups(rows, "relationship", "ratio"):
        pairs = [(row[f"{p} gap"], row[f"{p} true"], row[f"{p} exact"]) for row in own for p in (4, 12, 40)]
        told = [gap / true for gap, true, exact in pairs if true > 10.0 * max(exact, 1e-12)]
        broken = sum(gap < true - max(exact, 1e-9) for gap, true, exact in pairs)
        middle = f"median {np.median(told):6.1f}, largest {max(told):8.1f}" if told else "all solved"
        yield f"{name:30s} {len(told):3d} of {len(pairs)} unsolved: gap/true {middle}; below the truth: {broken}"


# Weights chosen within the budget.
UNSEEN = tuple(range(21, 41))
"""Drawn federations on which no constant of the choice was compared."""


def weighed() -> dict[str, Problem]:
    """All that other studies have, and twenty more drawn."""
    return federations() | {f"unseen {problem.name}": problem for problem in drawn(UNSEEN)}


def weight_cells(seeds: int) -> Iterator[Cell]:
    """All federations at three budgets, with seeds that the constants were not compared on."""
    for name in weighed():
        for passes in (5, 10, 30):
            yield from ({"federation": name, "passes": passes, "seed": 10 + seed} for seed in range(min(seeds, 10)))


def weight_cell(cell: Cell) -> dict[str, float]:
    """Error at the usual weights, and with λ2 left open."""
    federation = weighed()[cell["federation"]].make(cell["seed"])
    budget = cell["passes"] * one_pass(federation)
    usual = _score(federation, budget, cell["seed"], lambda2=LAMBDA2)
    return {"usual": usual, "open": _score(federation, budget, cell["seed"])}


def _score(federation: Federation, budget: float | None, seed: int, **given: Any) -> float:
    """Error of an estimator on the test rows, by task."""
    return _error_of(_fitted(federation, budget, seed, **given).predict, federation)


def _fitted(federation: Federation, budget: float | None, seed: int, **given: Any) -> Any:
    """An estimator that has learned from the training rows."""
    regression = federation.kind == "regression"
    kind = RHFedMTLRegressor if regression else RHFedMTLClassifier
    limits = None if budget is None else f"energy={budget!r}"
    model = kind(limits, cost=PRICES if budget else None, random_state=seed, **given)
    terminal = np.repeat(np.arange(federation.n_terminals), np.diff(federation.terminal_offsets))
    return model.fit(federation.X, federation.y, task=federation.row_task, terminal=terminal, groups=federation.group)


def _error_of(predict: Callable[[Any, Any], Any], federation: Federation) -> float:
    """Mean over tasks of the balanced error, or of RMSE over the spread of all labels, in points."""
    from sklearn.metrics import recall_score

    task = np.repeat(np.arange(federation.n_tasks), np.diff(federation.test_offsets))
    guess, truth, found = predict(federation.test_X, task), federation.test_y, []
    for b in np.unique(task):
        own = task == b
        if federation.kind == "regression":
            found.append(np.sqrt(np.mean(np.square(guess[own] - truth[own]))) / np.std(truth))
        else:
            labels = np.unique(truth[own])
            found.append(1.0 - recall_score(truth[own], guess[own], labels=labels, average="macro", zero_division=0))
    return 100.0 * float(np.mean(found))


def tell_weights(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Points won by leaving λ2 open, by federation and budget, and over those that are seen and unseen."""
    means: dict[tuple[bool, Any], list[float]] = {}
    for name, own in groups(rows, "federation"):
        told = []
        for passes, cells in groups(own, "passes"):
            won = np.array([row["usual"] - row["open"] for row in cells])
            noise = won.std(ddof=1) / np.sqrt(len(won)) if len(won) > 1 else np.nan
            means.setdefault((name.startswith("unseen"), passes), []).append(float(won.mean()))
            told.append(f"{won.mean():+6.2f} ± {2 * noise:4.2f}")
        yield f"{name[:60]:60s} " + "   ".join(told)
    for (unseen, passes), each in sorted(means.items()):
        kind = "unseen" if unseen else "others"
        average = f"{np.mean(each):+.2f} points on average, least {np.min(each):+.2f}"
        yield f"{len(each)} {kind} at {passes} passes: {average}"


# Many terminals.
def terminal_cells(seeds: int) -> Iterator[Cell]:
    """Two budgets."""
    yield from ({"budget": budget, "seed": seed} for budget in (1e5, 1e6) for seed in range(min(seeds, 5)))


def terminal_cell(cell: Cell) -> dict[str, float]:
    """Accuracy with weights chosen, and at the usual ones."""
    request = Request("synthetic", tasks=5, terminals=1500, settings={"test": 2000})
    federation = request.federation(cell["seed"])
    plain = learn(federation, {}, cell["seed"], cell["budget"])
    auto = _score(federation, cell["budget"], cell["seed"], lambda1="auto", lambda2="auto")
    left = _score(federation, cell["budget"], cell["seed"])
    found = {"both auto": 1.0 - auto / 100.0, "left open": 1.0 - left / 100.0}
    usual = {"usual weights": mean(plain.metrics["accuracy"]), "gap of these": plain.certificate.relative_gap}
    return found | usual


def tell_means(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Means over seeds."""
    by = [name for name in rows[0] if name in ("budget", "terminals", "federation")]
    for name, own in groups(rows, *by):
        values = {key: np.mean([row[key] for row in own]) for key in own[0] if key not in (*by, "seed")}
        yield f"{name:75s} " + ", ".join(f"{key} {value:.4g}" for key, value in values.items())


def round_cells(seeds: int) -> Iterator[Cell]:
    """10 to 10⁴ terminals of 16 rows each."""
    yield from ({"terminals": n, "seed": seed} for n in (10, 100, 1000, 10_000) for seed in range(min(seeds, 3)))


def round_cell(cell: Cell) -> dict[str, float]:
    """Rounds to a relative gap of 1e-3, without a budget."""
    request = Request("synthetic", tasks=3, terminals=cell["terminals"], samples_per_task=16 * cell["terminals"] + 100)
    federation = request.federation(cell["seed"])
    result = learn(federation, {}, cell["seed"], target_relative_gap=1e-3, max_rounds=2000)
    return {"rounds": float(result.rounds), "relative gap": result.certificate.relative_gap}


# Against yardsticks and models of others.
def federation_cells(seeds: int) -> Iterator[Cell]:
    """Every federation, and each once: what terminals hold which rows does not change an optimum."""
    again = ("har N_b=1", "har N_b=15", "har N_b=1, λ2 1", "landmine, λ2 1")
    names = [name for name in federations() if name not in again]
    yield from ({"federation": name, "seed": seed} for seed in range(min(seeds, 20)) for name in names)


def yardstick_cell(cell: Cell) -> dict[str, float]:
    """Errors of the defaults, of tasks on their own, and of one model for all, by the metric of the problem."""
    problem = federations()[cell["federation"]]
    federation = problem.make(cell["seed"])
    ways = {
        "defaults": {},
        "lambda2 0.01": {"lambda2": 1e-2},
        "none": {"relationship": "none"},
        "pooled": {"algorithm": "pooled"},
    }
    found, spread = {}, float(np.std(federation.test_y)) if problem.metric == "rmse" else -1.0
    for name, given in ways.items():
        model = _fitted(federation, None, cell["seed"], **given).models_
        values = []
        for b in range(federation.n_tasks):
            X, y = federation.test_rows(b)
            scores = model.scores(X, np.full(len(X), b))
            values.append(metrics.measure(y, scores, len(federation.class_names))[problem.metric])
        found[name] = 100.0 * mean(np.array(values)) / spread + (0.0 if problem.metric == "rmse" else 100.0)
    return found


def tell_yardsticks(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Mean errors, and by how much the defaults are behind the better yardstick, paired over seeds."""
    for name, own in groups(rows, "federation"):
        means = {key: np.mean([row[key] for row in own]) for key in ("defaults", "lambda2 0.01", "none", "pooled")}
        better = min(("none", "pooled"), key=lambda key: means[key])
        behind = np.array([row["defaults"] - row[better] for row in own])
        noise = behind.std(ddof=1) / np.sqrt(len(behind)) if len(behind) > 1 else np.nan
        verdict = "ahead" if behind.mean() < -2 * noise else "BEHIND" if behind.mean() > 2 * noise else "level"
        shown = ", ".join(f"{key} {value:.2f}" for key, value in means.items())
        behind_by = f"{behind.mean():+.2f} ± {2 * noise:.2f} {verdict}"
        yield f"{name:40.40s} {len(own):2d} seeds: {shown}; to {better}: {behind_by}"


def other_cell(cell: Cell) -> dict[str, float]:
    """Errors of models whose weights were chosen on folds of the training rows."""
    federation = federations()[cell["federation"]].make(cell["seed"])
    found = {
        name: _score(federation, None, cell["seed"], relationship=name, lambda1="auto", lambda2="auto")
        for name in ("mean", "learned")
    }
    return {**found, **{name: _other(federation, name) for name in ("per task", "one for all", "interactions")}}


def _other(federation: Federation, name: str) -> float:
    """A linear model of scikit-learn, C or alpha chosen on three folds by the loss."""
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    strengths = np.geomspace(1e-3, 1e3, 13)

    def fit(X: Any, y: Any) -> Callable[[Any], Any]:
        if federation.kind == "regression":
            model: Any = RidgeCV(strengths)
        elif len(np.unique(y)) < 2 or np.unique(y, return_counts=True)[1].min() < 3:
            values, counts = np.unique(y, return_counts=True)
            return lambda rows: np.full(len(rows), values[counts.argmax()])
        else:
            model = LogisticRegressionCV(Cs=strengths, cv=3, scoring="neg_log_loss", max_iter=2000)
        return make_pipeline(StandardScaler(), model).fit(X, y).predict

    X, y, task = federation.X, federation.y, federation.row_task
    if name == "per task":
        models = [fit(X[task == b], y[task == b]) for b in range(federation.n_tasks)]

        def predict(rows: Any, tasks: Any) -> Any:
            guess = np.empty(len(rows), dtype=y.dtype)
            for b in np.unique(tasks):
                guess[tasks == b] = models[b](rows[tasks == b])
            return guess

        return _error_of(predict, federation)

    def features(rows: Any, tasks: Any) -> Any:
        marks = np.eye(federation.n_tasks)[tasks]
        crossed = (marks[:, :, None] * np.column_stack([rows, np.ones(len(rows))])[:, None, :]).reshape(len(rows), -1)
        return rows if name == "one for all" else np.column_stack([rows, crossed])

    model = fit(features(X, task), y)
    return _error_of(lambda rows, tasks: model(features(rows, tasks)), federation)


STUDIES = {
    "budgets": Study(budget_cells, budget_cell, tell_budgets),
    "gaps": Study(gap_cells, gap_cell, tell_gaps),
    "weights": Study(weight_cells, weight_cell, tell_weights),
    "terminals": Study(terminal_cells, terminal_cell, tell_means),
    "rounds": Study(round_cells, round_cell, tell_means),
    "yardsticks": Study(federation_cells, yardstick_cell, tell_yardsticks),
    "others": Study(federation_cells, other_cell, tell_means),
}


def groups(rows: list[dict[str, Any]], *names: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Rows that agree in these columns, in the order in which they come."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(", ".join(str(row[name]) for name in names), []).append(row)
    yield from found.items()


def measured(study: str, cell: Cell) -> dict[str, Any]:
    """The cell with its numbers."""
    return {**cell, **STUDIES[study].measure(cell)}


def main() -> None:
    """Run the studies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, default=20, help="at most so many; some studies take fewer")
    parser.add_argument("--only", default="", help="only cells with this in them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--keep", type=Path, default=Path("outcome"), help="folder for what was measured")
    args = parser.parse_args()
    args.keep.mkdir(exist_ok=True)
    for study in args.studies:
        rows = _rows(study, args)
        lines = [f"`benchmarks/outcome.py {study}`, {len(rows)} cells", *STUDIES[study].tell(rows)] if rows else []
        print("\n".join(lines), flush=True)
        if not args.only:
            (RESULTS / f"outcome-{study}.txt").write_text("\n".join(lines) + "\n")


def _rows(study: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All cells of a study: those that were kept, and the others measured now."""
    file: Path = args.keep / f"{study}.jsonl"
    known = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        key, row = json.loads(line)
        known[key] = row
    cells = [cell for cell in STUDIES[study].cells(args.seeds) if args.only in json.dumps(cell, ensure_ascii=False)]
    keys = [json.dumps(cell, sort_keys=True) for cell in cells]
    with ProcessPoolExecutor(args.jobs) as pool, file.open("a") as kept:
        jobs = {pool.submit(measured, study, c): k for c, k in zip(cells, keys, strict=True) if k not in known}
        for job in as_completed(jobs):
            known[jobs[job]] = job.result()
            kept.write(json.dumps([jobs[job], known[jobs[job]]]) + "\n")
            kept.flush()
    return [known[key] for key in keys]


if __name__ == "__main__":
    main()
