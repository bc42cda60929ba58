"""Turn the rounds of runs into curves over spending or rounds, and average them over seeds on a common grid.

`views` draws the curves, and `choices` puts their values into the page. Values come from records; runs that were
refused have none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.maths.intervals import interval
from rhfedmtl.report.charts import Number, thinned
from rhfedmtl.runs.records import Record, RoundTable

Array = npt.NDArray[np.float64]
GRID = 48
"""Points of a curve: smooth for the eye, and small in the file."""
MAX_MERGED_ROUNDS = 40
RELATIVE_GAP = "relative_gap"
"""Column of the gap. Absolute gaps of different objectives cannot be compared."""


class Curve(NamedTuple):
    """Mean over seeds and its interval at each x."""

    x: list[float]
    y: list[Number]
    low: list[Number]
    high: list[Number]


class Trace(NamedTuple):
    """Values of a run at the points where they were measured."""

    x: Array
    y: Array


def trace(record: Record, column: str, kind: str | None, task: int | None = None) -> Trace | None:
    """Return a metric (mean over tasks, or of a task) or the relative gap over the spending of a type, or over rounds.

    ``kind`` is the type, or None for rounds. Return None if the run was refused, or was measured only at its end.
    """
    rounds = record.rounds
    if rounds is None or (kind is not None and kind not in rounds.spent):
        return None
    x = np.array(rounds.round if kind is None else rounds.spent[kind], dtype=np.float64)
    if column == RELATIVE_GAP:
        y = np.array(rounds.relative_gap, dtype=np.float64)
    elif column in rounds.metrics:
        y = np.array([_mean(values, task) for values in rounds.metrics[column]], dtype=np.float64)
    else:
        return None
    measured = np.isfinite(y)
    return Trace(x[measured], y[measured]) if measured.sum() > 1 else None


def _mean(values: Sequence[Number] | None, task: int | None) -> float:
    if values is None:
        return np.nan
    measured = [v for v in (values if task is None else [values[task]]) if v is not None]
    return float(np.mean(measured)) if measured else np.nan


def averaged(traces: Sequence[Trace], grid: Array, *, ranked: bool = False) -> Curve:
    """Average the traces of seeds on a grid, from the first x at which every seed has a value.

    After its last measurement, a seed keeps its last value. The curve is the mean and its interval or, if ``ranked``,
    the median and the middle half of the seeds, for values that span powers of ten.
    """
    start, end = max(t.x[0] for t in traces), max(t.x[-1] for t in traces)
    x = np.unique(np.concatenate([[start], grid[(grid > start) & (grid < end)], [end]]))
    rows = np.array([t.y[np.searchsorted(t.x, x, side="right") - 1] for t in traces])
    if ranked:
        low, y, high = np.quantile(rows, [0.25, 0.5, 0.75], axis=0)
    else:
        y, half = np.array([interval(column) for column in rows.T], dtype=np.float64).T  # NaN for one seed
        low, high = y - half, y + half
    several = len(traces) > 1
    return Curve(x.tolist(), y.tolist(), low.tolist() if several else [], high.tolist() if several else [])


def grid(traces: Sequence[Trace]) -> Array:
    """Return a common grid for curves in the same chart."""
    ends = np.array([t.x[-1] for t in traces])
    measured = np.unique(np.concatenate([t.x for t in traces]))
    return (
        measured if len(measured) <= GRID else np.linspace(float(min(t.x[0] for t in traces)), float(ends.max()), GRID)
    )


def steps(many: Sequence[Record]) -> Curve | None:
    """Return H over rounds: mean and range over seeds of the median over terminals, while half of the seeds run."""
    return _over_rounds([record.result.local_steps for record in many if record.result])


def station_rounds(many: Sequence[Record]) -> Curve | None:
    """Return K, the number of rounds of a server iteration, over rounds, as `steps` does for H."""
    tables = [record.rounds.cloud_round for record in many if record.rounds]
    counts = [Counter(table) for table in tables]
    return _over_rounds([[count[i] for i in table] for table, count in zip(tables, counts, strict=True)])


def _over_rounds(tables: Sequence[Sequence[float]]) -> Curve | None:
    rows = [np.array(table, dtype=np.float64) for table in tables if table]
    if not rows:
        return None
    length = int(np.median([len(row) for row in rows]))
    columns = [(i + 1.0, np.array([row[i] for row in rows if len(row) > i])) for i in thinned(length, 2 * GRID)]
    bounds = len(rows) > 1
    return Curve(
        [x for x, _ in columns],
        [float(c.mean()) for _, c in columns],
        [float(c.min()) for _, c in columns] if bounds else [],
        [float(c.max()) for _, c in columns] if bounds else [],
    )


def answered(many: Sequence[Record]) -> tuple[float, float]:
    """Return the numbers of requested and of received updates in all rounds, as means over seeds."""
    tables = [record.rounds for record in many if record.rounds]
    requested = np.mean([np.sum(rounds.ordered) for rounds in tables]) if tables else 0.0
    received = np.mean([np.sum(rounds.answered) for rounds in tables]) if tables else 0.0
    return float(requested), float(received)


def answered_by_station(rounds: RoundTable) -> tuple[list[str], list[list[Number]]]:
    """Return the share of received updates of every station. Rounds are merged to at most ``MAX_MERGED_ROUNDS``."""
    requested, received = (np.array(counts, dtype=np.float64) for counts in (rounds.ordered, rounds.answered))
    edges = np.unique(np.linspace(0, len(requested), min(MAX_MERGED_ROUNDS, len(requested)) + 1).round().astype(int))
    names: list[str] = []
    columns: list[list[Number]] = []
    for first, last in pairwise(edges):
        names.append(f"{rounds.round[first]}")
        total, arrived = requested[first:last].sum(axis=0), received[first:last].sum(axis=0)
        columns.append([float(g / t) if t else None for g, t in zip(arrived, total, strict=True)])
    return names, [list(row) for row in zip(*columns, strict=True)]


def bill(many: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Return the spending of each tier on each type, as a mean over seeds."""
    charged = [record for record in many if record.bill]
    sums: dict[str, dict[str, float]] = {}
    for record in charged:
        for line in record.bill:
            tiers = sums.setdefault(line.type, {})
            tiers[line.tier] = tiers.get(line.tier, 0.0) + line.amount / len(charged)
    return sums


def by_task(many: Sequence[Record], metric: str) -> Array | None:
    """Return the metric by seed and task, or None if the numbers of tasks differ or are unknown."""
    rows = [record.by_task.get(metric, []) for record in many]
    if not rows or not all(rows) or len({len(row) for row in rows}) > 1:
        return None
    return np.array(rows, dtype=np.float64)


def same_tasks(many: Sequence[Record]) -> bool:
    """Return True if all seeds have the same tasks; only then can we average a task over seeds."""
    return len({tuple(record.tasks) for record in many}) == 1
