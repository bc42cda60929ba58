"""Data for the menus of a report: budget, metric, seed and task. The page holds the values, and script.js draws them.

A study may put at most MOST_VALUES numbers into the page, so curves are thinned, and large studies keep only the mean
over tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rhfedmtl.display import short
from rhfedmtl.maths.intervals import student
from rhfedmtl.report import along, views
from rhfedmtl.report.charts import DASHES, MARKERS, Number, Styles, rounded, thinned
from rhfedmtl.report.words import GAP_AXIS, focus, metric_axis
from rhfedmtl.runs.records import Record
from rhfedmtl.studies.study import StudyResult
from rhfedmtl.studies.words import axis_label, unit

MOST_VALUES = 40_000
"""Numbers of a study in a page: about a quarter of a megabyte."""
FEWEST = 8
"""A curve with fewer points misleads; rather than that, we drop tasks and keep their mean."""

Facts = dict[str, Any]
"""Data that the script reads."""


def choices(result: StudyResult, styles: Styles) -> Facts | None:
    """Return the curves of every run by place, seed, metric and task; None if no run was measured before its end."""
    runs = list(_runs(result))
    if not any(record.rounds for _, _, record in runs):
        return None
    metrics = _metrics(result, [record for _, _, record in runs])
    tasks = list(dict.fromkeys(name for _, _, record in runs for name in record.tasks))
    points, by_task = _room(runs, len(metrics))
    by_task = by_task and len({record.data.name for _, _, record in runs}) == 1
    seeds = sorted({record.configuration.seed for _, _, record in runs})
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
            for name, place, record in runs
        ],
    }


def _runs(result: StudyResult) -> Iterator[tuple[str, int, Record]]:
    for name in result.labels:
        for place, at in enumerate(result.places):
            for record in result.records(name, at):
                if record.result or record.by_task:
                    yield name, place, record


def _metrics(result: StudyResult, records: list[Record]) -> list[dict[str, Any]]:
    """Return the metrics measured during the runs, the metric of the study first and the relative gap last."""
    measured = {name for record in records if record.rounds for name in record.rounds.metrics}
    names = sorted(measured, key=lambda name: (name != result.study.metric, name))
    axes = [(name, metric_axis(name)) for name in names]
    entries: list[dict[str, Any]] = [
        {
            "key": name,
            "name": axis.label,
            "ceiling": None if np.isinf(axis.ceiling) else axis.ceiling,
            "span": axis.span,
        }
        for name, axis in axes
    ]
    return [*entries, {"key": along.RELATIVE_GAP, "name": GAP_AXIS, "log": True}]


def _series(result: StudyResult, styles: Styles) -> list[dict[str, str]]:
    styles_by_name = views.styles_of(result, styles)
    return [
        {
            "name": variant.label,
            "class": f"c{styles_by_name[variant.name].colour} {'level' if variant.yardstick else 'line'}",
            "mark": MARKERS[styles_by_name[variant.name].marker],
            "dash": DASHES[styles_by_name[variant.name].dash],
        }
        for variant in result.study.variants
    ]


def _room(runs: list[tuple[str, int, Record]], metrics: int) -> tuple[int, bool]:
    """Return the number of points of a curve, and True if all tasks fit."""
    for by_task in (True, False):
        n_curves = sum(1 + metrics * (len(record.tasks) if by_task else 1) for _, _, record in runs)
        points = min(along.GRID, MOST_VALUES // n_curves)
        if points >= FEWEST:
            return points, by_task
    return FEWEST, False


def _curves(
    record: Record, metrics: list[dict[str, Any]], kind: str | None, points: int, *, by_task: bool
) -> tuple[list[Number], list[list[list[Number]]]]:
    """Return the spending, and for every metric a row for each task.

    Without spending during the run, a row has a single value.
    """
    rounds = record.rounds
    if rounds is None or (kind is not None and kind not in rounds.spent):
        ends = [record.by_task.get(metric["key"], []) for metric in metrics]
        return [], [_rows([values], by_task=by_task) if values else [] for values in ends]
    spent = rounds.round if kind is None else rounds.spent[kind]
    measured = [i for i in range(len(spent)) if any(column[i] is not None for column in rounds.metrics.values())]
    chosen = [measured[i] for i in thinned(len(measured), points)]
    relative_gap = rounds.relative_gap
    gap = [[rounded(relative_gap[i]) for i in chosen]]
    columns = [rounds.metrics.get(metric["key"]) for metric in metrics[:-1]]
    rows = [_rows([column[i] for i in chosen], by_task=by_task) if column else [] for column in columns]
    return [rounded(spent[i]) for i in chosen], [*rows, gap]


def _rows(values: list[Any], *, by_task: bool) -> list[list[Number]]:
    """Transpose values from time × task to task × time; without tasks, return their mean over tasks."""
    tasks = max((len(now) for now in values if now), default=0)
    full = [list(now) if now else [None] * tasks for now in values]
    if by_task:
        return [[rounded(now[t]) for now in full] for t in range(tasks)]
    measured = [[v for v in now if v is not None] for now in full]
    return [[rounded(float(np.mean(now))) if now else None for now in measured]]
