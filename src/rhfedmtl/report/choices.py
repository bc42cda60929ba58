"""What a reader may choose in a report: budget, metric, seed, task. The page holds the values, a script draws them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rhfedmtl.maths.intervals import student
from rhfedmtl.report import along, views
from rhfedmtl.report.charts import DASHES, MARKERS, Number, Styles, rounded, short, thinned
from rhfedmtl.report.words import axis_label, focus, metric_axis, unit
from rhfedmtl.runs.records import Record
from rhfedmtl.studies.study import StudyResult

MOST_VALUES = 40_000
"""Numbers that one study may bring into a page: about a quarter of a megabyte."""
FEWEST = 8
"""A curve with fewer points than this misleads: rather than that, tasks are left out and their mean is kept."""
GAP = "gap"


Facts = dict[str, Any]
"""Everything that can be shown, as the script reads it."""


def choices(result: StudyResult, styles: Styles) -> Facts | None:
    """Curves of every run by place, seed, metric and task; None where no run was measured on its way."""
    found = list(_runs(result))
    if not any(record.rounds for _, _, record in found):
        return None
    metrics = _metrics(result, [record for _, _, record in found])
    tasks = list(dict.fromkeys(name for _, _, record in found for name in record.tasks))
    points, by_task = _room(found, len(metrics))
    by_task = by_task and len({record.data.name for _, _, record in found}) == 1
    seeds = sorted({record.configuration.seed for _, _, record in found})
    names = list(result.labels)
    at, kinds = focus(result), [views.resource(result, place) for place in result.places]
    return {
        "axes": [
            {"name": axis_label(axis), "values": [short(v) for v in values], "at": values.index(at[axis])}
            for axis, values in result.study.axes.items()
        ],
        "metrics": metrics,
        "seeds": seeds,
        "tasks": tasks if by_task else [],
        "half": [0.0, 0.0, *(student(0.95, n - 1) / np.sqrt(n) for n in range(2, len(seeds) + 1))],
        "x": ["round (BS iteration)" if kind is None else f"spent ({unit(kind)})" for kind in kinds],
        "series": _series(result, styles),
        "runs": [
            [
                names.index(name),
                place,
                seeds.index(record.configuration.seed),
                [tasks.index(task) for task in record.tasks] if by_task else [],
                *_curves(record, metrics, kinds[place], points, by_task=by_task),
            ]
            for name, place, record in found
        ],
    }


def _runs(result: StudyResult) -> Iterator[tuple[str, int, Record]]:
    for name in result.labels:
        for place, at in enumerate(result.places):
            for record in result.records(name, at):
                if record.result or record.by_task:
                    yield name, place, record


def _metrics(result: StudyResult, records: list[Record]) -> list[dict[str, Any]]:
    """Those that were measured on the way, the study's own first; the certified gap last."""
    seen = {name for record in records if record.rounds for name in record.rounds.metrics}
    names = sorted(seen, key=lambda name: (name != result.study.metric, name))
    axes = [(name, metric_axis(name)) for name in names]
    found: list[dict[str, Any]] = [
        {"key": name, "name": axis.label, "ceiling": None if np.isinf(axis.ceiling) else axis.ceiling}
        for name, axis in axes
    ]
    return [*found, {"key": GAP, "name": "duality gap (log scale)", "log": True}]


def _series(result: StudyResult, styles: Styles) -> list[dict[str, str]]:
    looks = views.styles_of(result, styles)
    return [
        {
            "name": variant.label,
            "class": f"c{looks[variant.name].colour} {'level' if variant.yardstick else 'line'}",
            "mark": MARKERS[looks[variant.name].marker],
            "dash": DASHES[looks[variant.name].dash],
        }
        for variant in result.study.variants
    ]


def _room(found: list[tuple[str, int, Record]], metrics: int) -> tuple[int, bool]:
    """Points of a curve, and whether there is room for every task."""
    for by_task in (True, False):
        each = sum(1 + metrics * (len(record.tasks) if by_task else 1) for _, _, record in found)
        points = min(along.GRID, MOST_VALUES // each)
        if points >= FEWEST:
            return points, by_task
    return FEWEST, False


def _curves(
    record: Record, metrics: list[dict[str, Any]], kind: str | None, points: int, *, by_task: bool
) -> tuple[list[Number], list[list[list[Number]]]]:
    """What was spent, and of every metric a row for each task; a single value where nothing was spent on the way."""
    rounds = record.rounds
    if rounds is None or (kind is not None and kind not in rounds.spent):
        ends = [record.by_task.get(metric["key"], []) for metric in metrics]
        return [], [_rows([values], by_task=by_task) if values else [] for values in ends]
    spent = rounds.round if kind is None else rounds.spent[kind]
    measured = [i for i in range(len(spent)) if any(column[i] is not None for column in rounds.metrics.values())]
    chosen = [measured[i] for i in thinned(len(measured), points)]
    gap = [[rounded(rounds.gap[i]) for i in chosen]]
    columns = [rounds.metrics.get(metric["key"]) for metric in metrics[:-1]]
    rows = [_rows([column[i] for i in chosen], by_task=by_task) if column else [] for column in columns]
    return [rounded(spent[i]) for i in chosen], [*rows, gap]


def _rows(values: list[Any], *, by_task: bool) -> list[list[Number]]:
    """Values by time and task turned to task and time; their mean over tasks where tasks are left out."""
    tasks = max((len(now) for now in values if now), default=0)
    full = [list(now) if now else [None] * tasks for now in values]
    if by_task:
        return [[rounded(now[t]) for now in full] for t in range(tasks)]
    known = [[v for v in now if v is not None] for now in full]
    return [[rounded(float(np.mean(now))) if now else None for now in known]]
