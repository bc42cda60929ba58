"""From the rounds of runs to curves: seeds laid side by side on a common grid, with their mean and its interval."""

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
"""Points of a curve: enough for the eye, few enough for a small file."""
COLUMNS = 40


class Curve(NamedTuple):
    """Mean over seeds, and its interval, at each x."""

    x: list[float]
    y: list[Number]
    low: list[Number]
    high: list[Number]


class Trace(NamedTuple):
    """Values of one run where they were measured."""

    x: Array
    y: Array


def trace(record: Record, column: str, kind: str | None, task: int | None = None) -> Trace | None:
    """A metric (mean over tasks, or one task) or ``gap``, over what was spent of a type, or over rounds for None.

    None where the run was refused, or was measured at its end only.
    """
    rounds = record.rounds
    if rounds is None or (kind is not None and kind not in rounds.spent):
        return None
    x = np.array(rounds.round if kind is None else rounds.spent[kind], dtype=np.float64)
    if column == "gap":
        y = np.array(rounds.gap, dtype=np.float64)
    elif column in rounds.metrics:
        y = np.array([_mean(values, task) for values in rounds.metrics[column]], dtype=np.float64)
    else:
        return None
    measured = np.isfinite(y)
    return Trace(x[measured], y[measured]) if measured.sum() > 1 else None


def _mean(values: Sequence[Number] | None, task: int | None) -> float:
    if values is None:
        return np.nan
    known = [v for v in (values if task is None else [values[task]]) if v is not None]
    return float(np.mean(known)) if known else np.nan


def laid(traces: Sequence[Trace], grid: Array, *, ranked: bool = False) -> Curve:
    """Seeds on a grid, from where every seed has a value; each holds its last one.

    Mean and its interval; or, ``ranked``, the median and the middle half of the seeds, for what spans powers of ten.
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
    """A common grid for curves that are shown together."""
    ends = np.array([t.x[-1] for t in traces])
    few = np.unique(np.concatenate([t.x for t in traces]))
    return few if len(few) <= GRID else np.linspace(float(min(t.x[0] for t in traces)), float(ends.max()), GRID)


def steps(many: Sequence[Record]) -> Curve | None:
    """H over rounds, the median over terminals: mean over seeds, and the range over seeds, while half of them run."""
    return _over_rounds([record.result.local_steps for record in many if record.result])


def station_rounds(many: Sequence[Record]) -> Curve | None:
    """K over rounds, in the same manner: how many rounds a server iteration has."""
    tables = [record.rounds.cloud_round for record in many if record.rounds]
    counts = [Counter(table) for table in tables]
    return _over_rounds([[count[i] for i in table] for table, count in zip(tables, counts, strict=True)])


def _over_rounds(tables: Sequence[Sequence[float]]) -> Curve | None:
    rows = [np.array(table, dtype=np.float64) for table in tables if table]
    if not rows:
        return None
    length = int(np.median([len(row) for row in rows]))
    known = [(i + 1.0, np.array([row[i] for row in rows if len(row) > i])) for i in thinned(length, 2 * GRID)]
    bounds = len(rows) > 1
    return Curve(
        [x for x, _ in known],
        [float(c.mean()) for _, c in known],
        [float(c.min()) for _, c in known] if bounds else [],
        [float(c.max()) for _, c in known] if bounds else [],
    )


def answered(many: Sequence[Record]) -> tuple[float, float]:
    """Terminals asked, and updates that arrived, in all rounds: means over seeds."""
    found = [record.rounds for record in many if record.rounds]
    asked = np.mean([np.sum(rounds.ordered) for rounds in found]) if found else 0.0
    came = np.mean([np.sum(rounds.answered) for rounds in found]) if found else 0.0
    return float(asked), float(came)


def answered_by_station(rounds: RoundTable) -> tuple[list[str], list[list[Number]]]:
    """Share of updates that arrived, station by station, over rounds taken together to at most ``COLUMNS``."""
    asked, came = (np.array(counts, dtype=np.float64) for counts in (rounds.ordered, rounds.answered))
    edges = np.unique(np.linspace(0, len(asked), min(COLUMNS, len(asked)) + 1).round().astype(int))
    names: list[str] = []
    columns: list[list[Number]] = []
    for first, last in pairwise(edges):
        names.append(f"{rounds.round[first]}")
        total, got = asked[first:last].sum(axis=0), came[first:last].sum(axis=0)
        columns.append([float(g / t) if t else None for g, t in zip(got, total, strict=True)])
    return names, [list(row) for row in zip(*columns, strict=True)]


def bill(many: Sequence[Record]) -> dict[str, dict[str, float]]:
    """What each tier took of each type: means over seeds."""
    found = [record for record in many if record.bill]
    sums: dict[str, dict[str, float]] = {}
    for record in found:
        for line in record.bill:
            tiers = sums.setdefault(line.type, {})
            tiers[line.tier] = tiers.get(line.tier, 0.0) + line.amount / len(found)
    return sums


def by_task(many: Sequence[Record], metric: str) -> Array | None:
    """Metric by seed and task; None where tasks differ in number or are not known."""
    rows = [record.by_task.get(metric, []) for record in many]
    if not rows or not all(rows) or len({len(row) for row in rows}) > 1:
        return None
    return np.array(rows, dtype=np.float64)


def same_tasks(many: Sequence[Record]) -> bool:
    """Whether all seeds have the same tasks, so that a mean over seeds speaks of one task."""
    return len({tuple(record.tasks) for record in many}) == 1
