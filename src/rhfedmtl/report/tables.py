"""The tables of a report: every cell with its interval, the best marked, and every difference tested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from rhfedmtl.report import along
from rhfedmtl.report.charts import short, signed
from rhfedmtl.report.words import axis_label, labels, metric_name, running, said, spread
from rhfedmtl.runs.records import Record
from rhfedmtl.runs.sweep import interval
from rhfedmtl.studies.study import At, Cell, StudyResult

SIGNS = {"better": "▲", "worse": "▼", "level": "≈", "": "\u2007"}
VERDICTS = {"better": "better", "worse": "worse", "level": "not distinguishable", "": ""}


@dataclass(frozen=True)
class Entry:
    """One entry of a table: text, a smaller note beneath, a sign beside, and whether it is the best of its kind."""

    text: str
    note: str = ""
    sign: str = ""
    best: bool = False
    strip: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Table:
    """Header, and rows in groups; the first entry of a row is its name."""

    head: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[Entry, ...], ...]], ...]
    note: str = ""


def grid(result: StudyResult) -> Table:
    """All cells: variants down, the axis of the pictures across, a group for each value of the other axes."""
    x = result.x
    others = [axis for axis in result.axes if axis != x]
    groups = []
    for values in product(*(result.axes[axis] for axis in others)):
        at = dict(zip(others, values, strict=True))
        rows = tuple(_row(result, name, at) for name in labels(result))
        groups.append((said(at), rows))
    head = ("", *(short(value) for value in result.axes[x]))
    return Table(head, tuple(groups), f"Across: {axis_label(x)}. {_reading(result)}")


def _row(result: StudyResult, name: str, at: At) -> tuple[Entry, ...]:
    places = [{axis: {**at, result.x: value}[axis] for axis in result.axes} for value in result.axes[result.x]]
    return (Entry(labels(result)[name]), *(_entry(result, result.cell(name, place)) for place in places))


def _entry(result: StudyResult, cell: Cell) -> Entry:
    if cell.mean is None:
        return Entry("–", "no round paid" if cell.variant in running(result) else "")
    notes = [f"± {cell.half:.3f}"] if cell.half else []
    notes += [f"paper {cell.paper:.2f}"] if cell.paper is not None else []
    best = result.best(cell.at) == cell.variant
    return Entry(f"{cell.mean:.3f}", "\n".join(notes), _sign(result, cell), best)


def _sign(result: StudyResult, cell: Cell) -> str:
    return SIGNS[cell.verdict] if cell.seeds > 1 else ""


def _reading(result: StudyResult) -> str:
    """How to read the signs."""
    reference = labels(result)[result.reference]
    if result.seeds < 2:
        return "The best of each column is marked. One seed, so nothing is tested."
    return (
        f"Mean over {result.seeds} seeds, ± half of its 95 % interval; the best of each column is marked. ▲ better and "
        f"▼ worse than {reference}, ≈ not distinguishable from it: by the 95 % interval of the difference, "
        "paired over seeds."
    )


def ranking(result: StudyResult, at: At) -> Table:
    """Variants at one place: metric, difference to the reference, worst task, spread between tasks, rounds."""
    names = list(labels(result))
    cells = {name: result.cell(name, at) for name in names}
    bounds = _bounds([c for c in cells.values() if c.mean is not None])
    sign = -1.0 if result.metric == "rmse" else 1.0
    order = sorted(names, key=lambda n: (cells[n].mean is None, -sign * (cells[n].mean or 0.0)))
    rows = tuple(_ranked(result, cells[name], at, bounds) for name in order)
    metric, reference = metric_name(result.metric), labels(result)[result.reference]
    head = ("", metric, "", f"against {reference}", "worst task", "spread of tasks", "rounds")
    return Table(head, (("", rows),), _reading(result))


def _bounds(cells: Sequence[Cell]) -> tuple[float, float]:
    low = min((c.mean - c.half for c in cells if c.mean is not None), default=0.0)
    high = max((c.mean + c.half for c in cells if c.mean is not None), default=1.0)
    return low, high if high > low else low + 1.0


def _ranked(result: StudyResult, cell: Cell, at: At, bounds: tuple[float, float]) -> tuple[Entry, ...]:
    name = Entry(labels(result)[cell.variant], "" if cell.variant in running(result) else "yardstick, pays nothing")
    if cell.mean is None:
        return (name, Entry("–", "no round paid"), *(Entry("") for _ in range(5)))
    low, high = bounds
    strip = tuple((v - low) / (high - low) for v in (cell.mean - cell.half, cell.mean, cell.mean + cell.half))
    by_task = along.by_task(result.records(cell.variant, at), result.metric)
    return (
        name,
        Entry(spread(cell.mean, cell.half), best=result.best(at) == cell.variant),
        Entry("", strip=strip),  # type: ignore[arg-type]
        _against(result, cell),
        *_of_tasks(by_task, result.metric),
        Entry(f"{cell.rounds:.0f}"),
    )


def _against(result: StudyResult, cell: Cell) -> Entry:
    if cell.against is None:
        return Entry("reference" if cell.variant == result.reference else "")
    return Entry(_difference(*cell.against), sign=_sign(result, cell))


def _of_tasks(tasks: Any, metric: str) -> tuple[Entry, Entry]:
    """Worst task, and standard deviation between tasks, each a mean over seeds."""
    if tasks is None or tasks.shape[1] < 2 or np.isnan(tasks).all(axis=1).any():
        return Entry(""), Entry("")
    worst = np.nanmax(tasks, axis=1) if metric == "rmse" else np.nanmin(tasks, axis=1)
    return Entry(spread(*interval(worst))), Entry(f"{np.nanstd(tasks, axis=1).mean():.3f}")


def tasks(record: Record) -> Table | None:
    """Metrics of every task of one run, and their mean."""
    metrics = record.get("by_task") or {}
    if not metrics:
        return None
    rows = [
        (Entry(task), *(Entry(_known(values[b])) for values in metrics.values()))
        for b, task in enumerate(record["tasks"])
    ]
    mean = (Entry("mean over tasks"), *(Entry(_known(record["result"][name])) for name in metrics))
    return Table(("", *(metric_name(name) for name in metrics)), (("", (*rows, mean)),))


def _known(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def differences(result: StudyResult) -> Table | None:
    """Every variant against the reference at every place: the difference, its interval, and the verdict in words."""
    groups = [(said(at), tuple(_tested(result, at))) for at in result.places]
    known = tuple((name, rows) for name, rows in groups if rows)
    if not known:
        return None
    name, reference = metric_name(result.metric), labels(result)[result.reference]
    note = f"{name[:1].upper()}{name[1:]} minus that of {reference}, paired over seeds; positive is better."
    return Table(("", "difference, 95 % interval", "verdict"), known, note)


def _tested(result: StudyResult, at: At) -> Iterator[tuple[Entry, ...]]:
    for name, label in labels(result).items():
        cell = result.cell(name, at)
        if cell.against is not None:
            verdict = VERDICTS[cell.verdict] if cell.seeds > 1 else "one seed: no test"
            yield Entry(label), Entry(_difference(*cell.against)), Entry(verdict)


def _difference(difference: float, half: float) -> str:
    return signed(difference) + (f" ± {half:.3f}" if half else "")
