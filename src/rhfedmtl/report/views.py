"""Charts of a study: each function returns the charts for which the runs have data, or an empty list.

`sections` decides which charts appear, and `along` computes the curves. Single runs come from the place `words.focus`,
usually the largest budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rhfedmtl.maths.intervals import interval
from rhfedmtl.report import along
from rhfedmtl.report.charts import Axis, Bars, Chart, Heat, LineChart, Panels, Series, Style, Styles, thinned
from rhfedmtl.report.words import GAP_AXIS, LOG_RATIO, axis_of, focus, metric_axis
from rhfedmtl.runs.records import Record, RoundTable, Summary
from rhfedmtl.studies.study import At, StudyResult
from rhfedmtl.studies.words import metric_name, place_text, unit

PRINTED = "printed in the paper"
MOST_TASKS = 8
"""Tasks that a chart shows individually."""
MOST_RELATED = 40
TIERS_SHOWN = ("terminal", "station", "cloud")


def styles_of(result: StudyResult, styles: Styles) -> dict[str, Style]:
    """Return the style of every variant; if possible it is equal in all studies.

    ``NAME-tuned`` has the colour of ``NAME``.
    """
    return styles.together((v.name, v.name.removesuffix("-tuned"), v.yardstick) for v in result.study.variants)


def values(result: StudyResult, styles: Styles) -> list[Chart]:
    """Return the metric over the axis of the study, with a panel for each value of the other axes."""
    if len(result.study.along) < 2:
        return []
    y = metric_axis(result.study.metric)
    parts = []
    for at in result.study.others:
        styled, places, xs = styles_of(result, styles), result.study.line(at), _along_x(result)
        series = []
        for variant in result.study.variants:
            name = variant.name
            cells = [result.cell(name, place) for place in places]
            means = [(x, c.mean, c.half) for x, c in zip(xs, cells, strict=True) if c.mean is not None]
            if means:
                series.append(_banded(result, name, means, styled[name]))
            printed = [(x, c.paper) for x, c in zip(xs, cells, strict=True) if c.paper is not None]
            if printed:
                label = f"{variant.label}, printed"
                at_x, prints = [x for x, _ in printed], [v for _, v in printed]
                series.append(
                    Series(label, at_x, prints, style=styled[name], kind="hollow", group=PRINTED, of=variant.label)
                )
        parts.append(LineChart("", place_text(at), _x(result), y, tuple(series)))
    return _together("values", f"{metric_name(result.study.metric)} over {_x(result).label}", parts)


def _x(result: StudyResult) -> Axis:
    return axis_of(result.study.x or "", result.study.along)


def _along_x(result: StudyResult) -> list[float]:
    values_along = result.study.along
    return [float(i) for i in range(len(values_along))] if _x(result).names else [float(v) for v in values_along]


def _together(key: str, title: str, parts: Sequence[LineChart], note: str = "") -> list[Chart]:
    """Return panels, or a single chart."""
    drawn = [part for part in parts if part.series]
    if not drawn:
        return []
    title = title[:1].upper() + title[1:]
    if len(drawn) == 1:
        return [LineChart(key, title, drawn[0].x, drawn[0].y, drawn[0].series, note)]
    return [Panels(key, title, tuple(drawn), note)]


def _banded(result: StudyResult, name: str, points: Sequence[tuple[float, float, float | None]], look: Style) -> Series:
    """Return a variant as a line with means and intervals; a single seed has no interval, and baselines are level."""
    low, high = ([None if half is None else mean + sign * half for _, mean, half in points] for sign in (-1.0, 1.0))
    bounds = (low, high) if result.study.seeds > 1 else ([], [])
    kind = "line" if name in result.running else "level"
    return Series(result.labels[name], [x for x, _, _ in points], [mean for _, mean, _ in points], *bounds, look, kind)


def work(result: StudyResult, styles: Styles) -> list[Chart]:
    """Return chosen H and number of rounds over the axis of the study."""
    if len(result.study.along) < 2:
        return []
    charts: list[Chart] = []
    works: tuple[tuple[str, str, str, Callable[[Summary], float]], ...] = (
        ("chosen-h", "Chosen H", "H (local steps per round)", lambda summary: float(np.median(summary.local_steps))),
        ("rounds", "Number of rounds", "rounds", lambda summary: float(summary.rounds)),
    )
    for key, title, label, of in works:
        parts = [_work_at(result, at, Axis(label, low=0.0), of, styles) for at in result.study.others]
        charts += _together(key, title, parts)
    return charts


def _work_at(result: StudyResult, at: At, y: Axis, of: Callable[[Summary], float], styles: Styles) -> LineChart:
    styled, series = styles_of(result, styles), []
    for name in result.running:
        points = []
        for x, place in zip(_along_x(result), result.study.line(at), strict=True):
            values_done = [of(record.result) for record in result.records(name, place) if record.result]
            if values_done:
                points.append((x, *interval(np.array(values_done))))
        if points:
            series.append(_banded(result, name, points, styled[name]))
    return LineChart("", place_text(at), _x(result), y, tuple(series))


def resource(result: StudyResult, at: At) -> str | None:
    """Return the type for the x axis: the type that bound the reference, or the first type that all runs spent."""
    names = [result.study.reference, *result.running]
    summaries = [record.result for name in names for record in result.records(name, at) if record.result]
    types = [kind for summary in summaries[:1] for kind in (summary.binding, *summary.spent) if kind is not None]
    return next((kind for kind in types if all(kind in summary.spent for summary in summaries)), None)


def along_spent(result: StudyResult, styles: Styles) -> list[Chart]:
    """Return the metric and the relative gap (log scale) over spending, at the focus."""
    at = focus(result)
    kind = resource(result, at)
    x = Axis("round (BS iteration)" if kind is None else f"spent ({unit(kind)})", integer=kind is None)
    charts: list[Chart] = []
    name = metric_name(result.study.metric)
    names = {variant: result.labels[variant] for variant in result.running}
    medians = "Lines are medians over seeds, bands show the middle half. " if result.study.seeds > 1 else ""
    medians += "A share of each method's own objective: it shows how well the training problem is solved, not accuracy."
    for column, title, y, bands in (
        (result.study.metric, f"{name} over spending", metric_axis(result.study.metric), ""),
        (along.RELATIVE_GAP, "Relative gap over spending", Axis(GAP_AXIS, "log"), medians),
    ):
        series = _trajectories(result, at, column, kind, styles, ranked=column == along.RELATIVE_GAP)
        # A run can have a result but no curve: name it in the note.
        drawn = {line.label for line in series}
        ended = [label for name, label in names.items() if any(record.result for record in result.records(name, at))]
        missing = [label for label in ended if label not in drawn]
        more = f"Not drawn, because it was measured only once: {'; '.join(missing)}."
        note = f"{bands} {more if missing and drawn else ''}"
        charts += _together(f"{column.replace('_', '-')}-spent", title, [LineChart("", "", x, y, series)], note.strip())
    return charts


def _trajectories(
    result: StudyResult, at: At, column: str, kind: str | None, styles: Styles, *, ranked: bool
) -> tuple[Series, ...]:
    styled, names = styles_of(result, styles), result.labels
    traces_by_name = {}
    for name in result.running:
        measured = [along.trace(record, column, kind) for record in result.records(name, at)]
        if measured and all(t is not None for t in measured):
            traces_by_name[name] = [t for t in measured if t is not None]
    if not traces_by_name:
        return ()
    grid = along.grid([t for run_traces in traces_by_name.values() for t in run_traces])
    series = []
    for name, run_traces in traces_by_name.items():
        curve = along.averaged(run_traces, grid, ranked=ranked)
        series.append(Series(names[name], curve.x, curve.y, curve.low, curve.high, styled[name]))
    return (*series, *(() if ranked else _levels(result, at, grid, styled)))


def _levels(result: StudyResult, at: At, grid: Any, styled: dict[str, Style]) -> list[Series]:
    """Return baselines, which have no budget, as level lines."""
    lines = []
    for variant in result.study.variants:
        mean = result.cell(variant.name, at).mean if variant.yardstick else None
        if mean is not None:
            ends = [float(grid[0]), float(grid[-1])]
            lines.append(Series(variant.label, ends, [mean, mean], style=styled[variant.name], kind="level"))
    return lines


def steps(result: StudyResult, styles: Styles) -> list[Chart]:
    """Return chosen H over rounds, and K unless it is always 1."""
    over_seeds = "Lines are means over seeds, bands the range over seeds." if result.study.seeds > 1 else ""
    of_h, of_k = (_over_rounds(result, styles, of) for of in (along.steps, along.station_rounds))
    constant = all(value == 1.0 for series in of_k for value in series.y)
    notes = ["Median over terminals." if over_seeds else "", over_seeds]
    notes.append("K is 1: a server iteration after every round." if constant else "")
    note = " ".join(filter(None, notes))
    charts = [_by_round("steps", "Chosen H over rounds", "H (local steps per round)", of_h, note)]
    if not constant:
        label = "K (rounds per server iteration)"
        charts.append(_by_round("station-rounds", "Chosen K over rounds", label, of_k, over_seeds))
    return [chart for chart in charts if chart.series]


def _over_rounds(
    result: StudyResult, styles: Styles, of: Callable[[Sequence[Record]], along.Curve | None]
) -> tuple[Series, ...]:
    at, styled = focus(result), styles_of(result, styles)
    curves = [(name, of(result.records(name, at))) for name in result.running]
    return tuple(
        Series(result.labels[name], curve.x, curve.y, curve.low, curve.high, styled[name], "steps")
        for name, curve in curves
        if curve is not None and len(curve.x) > 1
    )


def _by_round(key: str, title: str, label: str, series: tuple[Series, ...], note: str) -> LineChart:
    heights = [value for line in series for value in line.y if value] or [1.0]
    scale = "log" if max(heights) / min(heights) > LOG_RATIO else "linear"
    lengths = [line.x[-1] for line in series] or [1.0]
    x = Axis("round (BS iteration)", "log" if max(lengths) > 6 * min(lengths) else "linear", integer=True)
    return LineChart(key, title, x, Axis(label, scale, low=None if scale == "log" else 0.0), series, note)


def bills(result: StudyResult) -> list[Chart]:
    """Return the spending of each type: a bar for each variant, split by tier."""
    at, names = focus(result), result.labels
    bill_by_name = {name: along.bill(many) for name in result.running if (many := result.records(name, at))}
    types = dict.fromkeys(kind for bill in bill_by_name.values() for kind in bill)
    charts: list[Chart] = []
    for kind in types:
        tiers = [tier for tier in TIERS_SHOWN if any(bill.get(kind, {}).get(tier) for bill in bill_by_name.values())]
        if not tiers:
            continue
        rows = tuple(names[name] for name in bill_by_name)
        amounts = tuple(tuple(bill.get(kind, {}).get(tier, 0.0) for tier in tiers) for bill in bill_by_name.values())
        title = f"Where the {kind} went"
        charts.append(Bars(f"bill-{kind}", title, Axis(f"spent ({unit(kind)})", low=0.0), rows, tuple(tiers), amounts))
    return charts


def answers(result: StudyResult) -> list[Chart]:
    """Return the shares of received updates; an empty list if every terminal answered."""
    at, names = focus(result), result.labels
    counts = {name: along.answered(result.records(name, at)) for name in result.running}
    if all(sent == received for sent, received in counts.values()):
        return []
    nonempty = {name: pair for name, pair in counts.items() if pair[0]}
    shares = tuple((100.0 * received / sent, 100.0 * (sent - received) / sent) for sent, received in nonempty.values())
    rows = tuple(names[name] for name in nonempty)
    bars = Bars(
        "answers",
        "Received updates",
        Axis("share of requests (%)"),
        rows,
        ("received", "lost or late"),
        shares,
        shares=True,
    )
    many = result.records(result.study.reference, at)
    stations: list[Chart] = [_stations(result, record, record.rounds) for record in many if record.rounds]
    return [bars, *stations[:1]]


def _stations(result: StudyResult, record: Record, rounds: RoundTable) -> Heat:
    columns, shares = along.answered_by_station(rounds)
    tasks = record.tasks if len(record.tasks) == len(shares) else [f"station {i + 1}" for i in range(len(shares))]
    chosen = thinned(len(tasks), MOST_RELATED)
    title = f"Received updates by station and round, {result.labels[result.study.reference]}"
    return Heat(
        "answers-stations",
        title,
        tuple(tasks[i] for i in chosen),
        tuple(columns),
        tuple(tuple(shares[i]) for i in chosen),
        "share of received updates",
        0.0,
        1.0,
        "round (BS iteration)",
        f"Seed {record.configuration.seed}.",
    )


def complete_answers(result: StudyResult) -> float:
    """Return the number of requests if every terminal answered all of them, else 0."""
    counts = [along.answered(result.records(name, focus(result))) for name in result.running]
    return sum(sent for sent, _ in counts) if all(sent == received for sent, received in counts) else 0.0


def tasks(result: StudyResult, styles: Styles) -> list[Chart]:
    """Return tasks from worst to best, by name if all runs have the same tasks."""
    at, styled = focus(result), styles_of(result, styles)
    runs = {name: result.records(name, at) for name in result.labels}
    by_variant = {name: along.by_task(many, result.study.metric) for name, many in runs.items()}
    complete = {
        n: rows for n, rows in by_variant.items() if rows is not None and rows.shape[1] > 1 and not np.isnan(rows).any()
    }
    if not complete:
        return []
    lower_is_better = result.study.metric == "rmse"
    first = result.study.reference if result.study.reference in complete else next(iter(complete))
    compared = [record for name in complete for record in runs[name]]
    named = along.same_tasks(compared) and complete[first].shape[1] <= MOST_RELATED
    order = np.argsort(complete[first].mean(axis=0))[:: -1 if lower_is_better else 1]
    names = tuple(runs[first][0].tasks[i] for i in order) if named else ()
    series = []
    for name, rows in complete.items():
        ordered = rows[:, order] if named else np.sort(rows, axis=1)[:, :: -1 if lower_is_better else 1]
        chosen = thinned(ordered.shape[1], along.GRID)
        points = [(i + (0.0 if named else 1.0), *interval(ordered[:, i])) for i in chosen]
        series.append(_banded(result, name, points, styled[name]))
    metric = metric_name(result.study.metric)
    order_text = f"Tasks in the order of {result.labels[first]}." if named else "The tasks of each seed in order."
    note = order_text if named or result.study.seeds > 1 else ""
    x = Axis("task", names=names) if named else Axis("rank of the task (1 = worst)", integer=True)
    title = f"{metric[:1].upper()}{metric[1:]} from the worst task to the best"
    return [LineChart("tasks", title, x, metric_axis(result.study.metric), tuple(series), note)]


def trajectories(result: StudyResult) -> list[Chart]:
    """Return every task over rounds and over spending, with a panel for each variant."""
    at = focus(result)
    kind = resource(result, at)
    name, y = metric_name(result.study.metric), metric_axis(result.study.metric)
    many = result.records(result.study.reference, at)
    tasks = len(many[0].tasks) if many else 0
    notes = [f"{MOST_TASKS} of {tasks} tasks."] if tasks > MOST_TASKS else []
    if len(many) > 1 and not along.same_tasks(many):
        notes.append("Each seed draws its own tasks, so this is only the first seed.")
    axes: list[tuple[str | None, Axis]] = [(None, Axis("round (BS iteration)", integer=True))]
    axes += [(kind, Axis(f"spent ({unit(kind)})"))] if kind is not None else []
    charts: list[Chart] = []
    for column, x in axes:
        parts = [_tasks_of(result, variant, at, column, x, y) for variant in result.running]
        title = f"{name} of each task over {'rounds' if column is None else 'spending'}"
        charts += _together("tasks-" + ("rounds" if column is None else "spent"), title, parts, " ".join(notes))
    return charts


def _tasks_of(result: StudyResult, variant: str, at: At, kind: str | None, x: Axis, y: Axis) -> LineChart:
    many = [record for record in result.records(variant, at) if record.rounds]
    many = many if many and along.same_tasks(many) else many[:1]
    names = many[0].tasks if many else []
    chosen = thinned(len(names), MOST_TASKS)
    traces_by_task = {t: [along.trace(record, result.study.metric, kind, t) for record in many] for t in chosen}
    complete = {
        t: [trace for trace in traces if trace is not None]
        for t, traces in traces_by_task.items()
        if None not in traces
    }
    series = []
    for place, (t, traces) in enumerate(complete.items()):
        curve = along.averaged(traces, along.grid(traces))
        style = Style(place % 7, place % 6, place // 7)
        series.append(Series(names[t], curve.x, curve.y, curve.low, curve.high, style))
    return LineChart("", result.labels[variant], x, y, tuple(series))


def relationships(result: StudyResult) -> list[Chart]:
    """Return the relationship of tasks for each variant whose tasks are not all equally related."""
    at, charts = focus(result), list[Chart]()
    for name in result.running:
        many = [record for record in result.records(name, at) if record.relationship]
        if not many:
            continue
        mean = along.same_tasks(many) and len(many) > 1
        matrix = np.mean([np.array(r.relationship) for r in (many if mean else many[:1])], axis=0)
        if not _uniform(matrix):
            tasks = many[0].tasks
            seeds = len(many) if mean else 1
            chosen = thinned(len(tasks), MOST_RELATED)
            rows = tuple(tasks[i] for i in chosen)
            cells = tuple(tuple(None if i == j else float(matrix[i, j]) for j in chosen) for i in chosen)
            off_diagonal = [value for row in cells for value in row if value is not None]
            low, high = (-1.0, 1.0) if min(off_diagonal) < 0.0 else (min(off_diagonal), max(off_diagonal))
            note = f"Mean over {seeds} seeds." if seeds > 1 else ""
            key = "ties-" + "".join(c if c.isalnum() else "-" for c in name)
            title = f"Task relationship, {result.labels[name]}"
            charts.append(Heat(key, title, rows, rows, cells, "affinity of two tasks", low, high, note=note))
    return charts


def _uniform(matrix: Any) -> bool:
    """Return True if all pairs of tasks are equally related, because then a picture shows nothing."""
    off_diagonal = matrix[~np.eye(len(matrix), dtype=bool)]
    return bool(len(off_diagonal) == 0 or np.ptp(off_diagonal) < 1e-9)
