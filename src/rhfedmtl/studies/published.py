"""Tables that others printed, on their data and by their protocol: their figures beside ours.

Weights, and for `rhfedmtl` one of two relationships, are chosen for every seed on five folds of the training rows, as
the estimators do; step sizes, where there are steps, on a quarter of them. Test rows have no say. No budget is set: the
printed methods had none, so each of ours is solved to a certified relative gap. Where a protocol leaves something open,
or ours differs, ``DIFFERENCES`` says so. A figure is kept as soon as it is made, and not made again.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import ALGORITHMS
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.files import write_whole
from rhfedmtl.maths.intervals import interval
from rhfedmtl.provenance import versions
from rhfedmtl.runs.sweep import Watch, Workers, digest, in_parallel
from rhfedmtl.selection.regularisation import choose
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

Array = npt.NDArray[Any]
GAP, MOST_ROUNDS = 1e-3, 400
"""Certified relative gap to which problems are solved, and rounds after which that is given up."""
RELATIONSHIPS = "mean", "learned"
"""Of tasks, that `rhfedmtl` chooses from."""
SGD_ROUNDS, SGD_STEPS = 15, 400
"""Of methods by gradient steps: FLamby's 15 rounds of 100 batches of four rows."""
STEPS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""Step sizes that are tried, for rows of length 1."""
HAR, HEART = "har.npz", "heart.csv"
DIFFERENCES = {
    "FedU": "features recomputed from the signals of UCI; splits are drawn anew for each seed, as theirs were; smooth "
    "hinges, one class against the rest, where theirs is the cross-entropy; solved, where theirs ran 200 rounds",
    "MOCHA": "features recomputed from the signals of UCI, taken as they are; smoothed hinge where theirs is the hinge",
    "FLamby": "the printed split (random state 43) gives ours, those of the states that follow the interval; a centre "
    "with a single healthy patient is split without strata; smoothed hinge where theirs is the logistic loss; steps of "
    "one row, 400 in a round, where theirs are of four rows, 100",
}


class PublishedRows(NamedTuple):
    """Rows of all tasks, one task after the other, with who is to be tested on."""

    X: Array
    y: Array
    task: Array
    test: Array


@dataclass(frozen=True)
class PrintedFigure:
    """One figure that was printed, and ours for it; the metric is accuracy or error in percent."""

    source: str
    data: str
    method: str
    printed: float
    ours: float | None
    half_width: float | None


@dataclass(frozen=True)
class PublishedTable:
    """Where a table was printed, what of it is ours to repeat, and how."""

    source: str
    data: str
    file: str
    error: bool
    printed: dict[str, tuple[float, str | None]]
    make: Callable[[Path, int], PublishedRows]
    over_rows: bool = False
    first_is_printed: bool = False
    scale: str = "standard-unit"
    splits: int = 1
    """How many are printed: no fewer are made, however few seeds are asked for."""


class PublishedRun(NamedTuple):
    """One method on one split of one table's data."""

    table: int
    place: Path
    method: str
    seed: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{TABLES[self.table].source}-{self.method}-{self.seed}.json"


def table(
    tables: Path, seeds: int, out: Path, *, workers: Workers = None, watch: Watch | None = None
) -> list[PrintedFigure]:
    """All lines; a method that is not ours has none of our figures, and a data set that is missing is refused."""
    for each in TABLES:
        if not (tables / each.file).is_file():
            raise ConfigError(
                f"{each.source}: {tables / each.file} is not there; give --path with a folder that holds {each.file}"
            )
    runs = [
        PublishedRun(k, tables / each.file, method, seed)
        for k, each in enumerate(TABLES)
        for method in dict.fromkeys(["rhfedmtl", *(name for _, name in each.printed.values() if name)])
        for seed in range(max(seeds, each.splits))
    ]
    found = _percents(runs, out / "figures", workers, watch)
    return [line for k in range(len(TABLES)) for line in _lines(k, found)]


def _percents(
    runs: Sequence[PublishedRun], folder: Path, workers: Workers, watch: Watch | None
) -> dict[PublishedRun, float]:
    """Of every run; what the folder has is read."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {run: _kept(folder / run.name, run) for run in runs}
    found = {run: percent for run, percent in kept.items() if percent is not None}
    with closing(in_parallel(_solved, [run for run in runs if run not in found], workers)) as solved:
        for run, percent in solved:
            write_whole(folder / run.name, json.dumps({"percent": percent, **_circumstances(run)}))
            found[run] = percent
            if watch is not None:
                watch(len(found), len(runs))
    return {run: found[run] for run in runs}


def _circumstances(run: PublishedRun) -> dict[str, Any]:
    return {"versions": versions(), "file": digest(str(run.place))}


def _kept(file: Path, run: PublishedRun) -> float | None:
    """What was found before, by the same code in the same data."""
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        percent = float(held.pop("percent"))
    except (OSError, ValueError, KeyError, AttributeError):
        return None
    return percent if held == _circumstances(run) else None


def _lines(k: int, found: dict[PublishedRun, float]) -> Iterator[PrintedFigure]:
    each = TABLES[k]
    best = (min if each.error else max)(printed for printed, _ in each.printed.values())
    for method, (printed, name) in {**each.printed, "rhfedmtl (beside the best printed)": (best, "rhfedmtl")}.items():
        values = [percent for run, percent in found.items() if (run.table, run.method) == (k, name)]
        ours, half = interval(np.array(values)) if values else (None, None)
        yield PrintedFigure(
            each.source,
            each.data,
            method,
            printed,
            values[0] if values and each.first_is_printed else ours,
            half,
        )


def save(lines: list[PrintedFigure], out: Path) -> Path:
    """``published.csv``, and what differs from the protocols beside it."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "published.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(asdict(lines[0])))
        writer.writeheader()
        writer.writerows(asdict(line) for line in lines)
    text = "".join(f"{source}: {words}.\n" for source, words in DIFFERENCES.items())
    (out / "published.txt").write_text(text, encoding="utf-8")
    return out / "published.csv"


def _solved(run: PublishedRun) -> tuple[PublishedRun, float]:
    """With the options that are best on training rows held out."""
    each = TABLES[run.table]
    rows = each.make(run.place, run.seed)
    chosen = _by_part if "step" in ALGORITHMS[run.method].grid else _by_folds
    return run, _percent(each, rows, run.method, chosen(each, rows, run))


def _by_folds(each: PublishedTable, rows: PublishedRows, run: PublishedRun) -> Options:
    """Weights, and a relationship where there is a choice, by the loss on five folds."""
    federation = _federation(rows)
    settings = Settings(scale=each.scale, seed=run.seed, execution=Execution(threads=1))
    found: list[tuple[float, Options]] = []
    for relationship in RELATIONSHIPS if run.method == "rhfedmtl" else (None,):
        options = Options(relationship=relationship) if relationship else Options()
        built = build(run.method, options, federation.kind)
        assert isinstance(built.method, DualMethod)
        choice = choose(built.regroup(federation), built.method, settings=settings, judged=federation)
        found.append((choice.best.score, options.changed(lambda1=choice.lambda1, lambda2=choice.lambda2)))
    return min(found, key=lambda pair: pair[0])[1]


def _by_part(each: PublishedTable, rows: PublishedRows, run: PublishedRun) -> Options:
    """Step sizes, for the length that rows have on average, by the metric on a quarter of the training rows."""
    learned = PublishedRows(*(part[~rows.test] for part in rows))
    held = learned._replace(test=_drawn(learned.task, run.seed + 1000))
    length = 1.0 + float(np.mean(np.sum(held.X * held.X, axis=1)))
    fixed = Options(local_steps=SGD_STEPS, cloud_rounds=SGD_ROUNDS)
    servers = [{"server_step": step} for step in ALGORITHMS[run.method].grid.get("server_step", ())] or [{}]
    tried = [fixed.changed(step=step / length, **server) for step in STEPS for server in servers]
    sign = -1.0 if each.error else 1.0
    return max(tried, key=lambda options: sign * _percent(each, held, run.method, options))


def _percent(each: PublishedTable, rows: PublishedRows, name: str, options: Options) -> float:
    federation = _federation(rows)
    built = build(name, options, federation.kind)
    settings = Settings(
        scale=each.scale,
        certify_every=10,
        target_relative_gap=GAP,
        max_rounds=MOST_ROUNDS,
        execution=Execution(threads=1),
    )
    result = train(built.regroup(federation), built.method, built.policy, settings, judged=federation)
    weights = np.diff(federation.test_offsets) if each.over_rows else None
    accuracy = 100.0 * float(np.average(result.metrics["accuracy"], weights=weights))
    return 100.0 - accuracy if each.error else accuracy


def _federation(rows: PublishedRows) -> Federation:
    """Every task a station with one terminal, as in the papers, which have two tiers."""
    train_rows, names = ~rows.test, np.unique(rows.task)
    ends = [np.searchsorted(rows.task[part], np.append(names, names[-1] + 1)) for part in (train_rows, rows.test)]
    classes = tuple(str(c) for c in range(int(rows.y.max()) + 1))
    return Federation(
        np.ascontiguousarray(rows.X[train_rows]),
        rows.y[train_rows],
        ends[0],
        np.arange(len(names) + 1),
        np.ascontiguousarray(rows.X[rows.test]),
        rows.y[rows.test],
        ends[1],
        tuple(str(name) for name in names),
        classes,
    )


def _har(place: Path, seed: int, positive: int | None = None) -> PublishedRows:
    """A quarter of each person's rows is for the test, drawn at random."""
    with np.load(place) as held:
        order = np.argsort(held["subject"], kind="stable")
        X, y, task = held["X"][order], held["y"][order].astype(np.int64) - 1, held["subject"][order]
    return PublishedRows(X, y if positive is None else (y == positive).astype(np.int64), task, _drawn(task, seed))


def _drawn(task: Array, seed: int) -> Array:
    """A quarter of the rows of every task."""
    chosen = np.zeros(len(task), dtype=bool)
    for each in np.unique(task):
        own = np.random.default_rng([seed, int(each)]).permutation(np.flatnonzero(task == each))
        chosen[own[int(0.75 * len(own)) :]] = True
    return chosen


def _sitting(place: Path, seed: int) -> PublishedRows:
    return _har(place, seed, positive=3)


def _heart(place: Path, seed: int) -> PublishedRows:
    """As FLamby has it: complete rows, two columns one-hot, 66 % for training, standardised per centre."""
    from sklearn.model_selection import train_test_split

    with place.open(newline="", encoding="utf-8") as file:
        read = list(csv.reader(file))[1:]
    centres = sorted({row[0] for row in read})
    kept = [row for row in read if all(row[1:11])]
    task = np.array([centres.index(row[0]) for row in kept])
    order = np.argsort(task, kind="stable")
    values, task = np.array([row[1:11] for row in kept], dtype=float)[order], task[order]
    y = (np.array([float(row[-1]) for row in kept])[order] > 0).astype(np.int64)
    hot = [values[:, k, None] == np.unique(values[:, k])[1:] for k in (2, 6)]
    X = np.column_stack([np.delete(values, [2, 6], axis=1), *hot]).astype(float)
    test = np.zeros(len(y), dtype=bool)
    for b in range(len(centres)):
        own = np.flatnonzero(task == b)
        strata = y[own] if np.bincount(y[own]).min() > 1 else None  # one centre has a single healthy patient
        learned, held = train_test_split(own, train_size=0.66, random_state=43 + seed, stratify=strata)
        test[held] = True
        spread = X[learned].std(axis=0)
        X[own] = (X[own] - X[learned].mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    return PublishedRows(X, y, task, test)


TABLES = (
    PublishedTable(
        "FedU",
        "HAR, 30 people, six classes, accuracy",
        HAR,
        False,
        {
            "FedU, linear": (99.10, "rhfedmtl"),
            "MOCHA": (98.79, None),
            "local": (98.29, "local"),
            "global": (93.79, "pooled"),
            "FedU, neural network": (99.21, None),
        },
        _har,
        over_rows=True,
    ),
    PublishedTable(
        "MOCHA",
        "HAR, 30 people, sitting, error",
        HAR,
        True,
        {"global": (2.23, "pooled"), "local": (1.34, "local"), "MTL": (0.46, "rhfedmtl")},
        _sitting,
        scale="none",
        splits=10,
    ),
    PublishedTable(
        "FLamby",
        "Fed-Heart-Disease, four centres, accuracy",
        HEART,
        False,
        {
            "pooled": (73.5, "pooled"),
            "FedAvg": (68.5, "fedavg"),
            "SCAFFOLD": (68.4, "scaffold"),
            "FedAdam": (72.6, "fedadam"),
            "FedYogi": (73.1, "fedyogi"),
            "local": (73.0, "local"),
        },
        _heart,
        first_is_printed=True,
    ),
)
