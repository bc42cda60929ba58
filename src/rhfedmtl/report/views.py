"""The charts of a study: each function gives those that its runs have the data for, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rhfedmtl.maths.intervals import interval
from rhfedmtl.report import along
from rhfedmtl.report.charts import Axis, Bars, Chart, Heat, LineChart, Panels, Series, Style, Styles, thinned
from rhfedmtl.report.words import (
    LOG_RATIO,
    axis_of,
    focus,
    metric_axis,
    metric_name,
    said,
    unit,
)
from rhfedmtl.runs.records import Record, RoundTable, Summary
from rhfedmtl.studies.study import At, StudyResult

INTERVALS = "Lines are means over seeds, bands their 95 % intervals."
PRINTED = "printed in the paper"
MOST_TASKS = 8
"""Tasks that a chart shows one by one."""
MOST_RELATED = 40
TIERS = ("terminal", "station", "cloud")


def styles_of(result: StudyResult, styles: Styles) -> dict[str, Style]:
    """Style of every variant, if possible the same in all studies; ``NAME-tuned`` has the colour of ``NAME``."""
    return styles.together((v.name, v.name.removesuffix("-tuned"), v.yardstick) for v in result.study.variants)


def values(result: StudyResult, styles: Styles) -> list[Chart]:
    """The metric over the axis that the study draws along: one panel for each value of the other axes."""
    if len(result.study.along) < 2:
        return []
    y = metric_axis(result.study.metric)
    parts = []
    for at in result.study.others:
        looks, places, xs = styles_of(result, styles), result.study.line(at), _along_x(result)
        series = []
        for variant in result.study.variants:
            name = variant.name
            cells = [result.cell(name, place) for place in places]
            known = [(x, c.mean, c.half) for x, c in zip(xs, cells, strict=True) if c.mean is not None]
            if known:
                series.append(_banded(result, name, known, looks[name]))
            printed = [(x, c.paper) for x, c in zip(xs, cells, strict=True) if c.paper is not None]
            if printed:
                label = f"{variant.label}, printed"
                at_x, prints = [x for x, _ in printed], [v for _, v in printed]
                series.append(
                    Series(label, at_x, prints, style=looks[name], kind="hollow", group=PRINTED, of=variant.label)
                )
        parts.append(LineChart("", said(at), _x(result), y, tuple(series)))
    note = "Hollow markers are values that the paper prints. " if result.study.paper else ""
    return _together(
        "values", f"{metric_name(result.study.metric)} over {_x(result).label}", parts, note + _bands(result)
    )


def _bands(result: StudyResult) -> str:
    return INTERVALS if result.study.seeds > 1 else ""


def _x(result: StudyResult) -> Axis:
    return axis_of(result.study.x or "", result.study.along)


def _along_x(result: StudyResult) -> list[float]:
    found = result.study.along
    return [float(i) for i in range(len(found))] if _x(result).names else [float(v) for v in found]


def _together(key: str, title: str, parts: Sequence[LineChart], note: str) -> list[Chart]:
    """Panels, or the one chart that there is."""
    shown = [part for part in parts if part.series]
    if not shown:
        return []
    title = title[:1].upper() + title[1:]
    if len(shown) == 1:
        return [LineChart(key, title, shown[0].x, shown[0].y, shown[0].series, note)]
    return [Panels(key, title, tuple(shown), note)]


def _banded(result: StudyResult, name: str, points: Sequence[tuple[float, float, float | None]], look: Style) -> Series:
    """A variant by x, mean and half of its interval, which one seed does not have; yardsticks are level."""
    low, high = ([None if half is None else mean + sign * half for _, mean, half in points] for sign in (-1.0, 1.0))
    bounds = (low, high) if result.study.seeds > 1 else ([], [])
    kind = "line" if name in result.running else "level"
    return Series(result.labels[name], [x for x, _, _ in points], [mean for _, mean, _ in points], *bounds, look, kind)


def work(result: StudyResult, styles: Styles) -> list[Chart]:
    """Chosen H, and number of rounds, over the axis that the study draws along."""
    if len(result.study.along) < 2:
        return []
    charts: list[Chart] = []
    works: tuple[tuple[str, str, str, Callable[[Summary], float]], ...] = (
        ("chosen-h", "Chosen H", "H (local steps per round)", lambda summary: float(np.median(summary.local_steps))),
        ("rounds", "Number of rounds", "rounds", lambda summary: float(summary.rounds)),
    )
    for key, title, label, of in works:
        parts = [_work_at(result, at, Axis(label, low=0.0), of, styles) for at in result.study.others]
        charts += _together(key, title, parts, _bands(result))
    return charts


def _work_at(result: StudyResult, at: At, y: Axis, of: Callable[[Summary], float], styles: Styles) -> LineChart:
    looks, found = styles_of(result, styles), []
    for name in result.running:
        points = []
        for x, place in zip(_along_x(result), result.study.line(at), strict=True):
            done = [of(record.result) for record in result.records(name, place) if record.result]
            if done:
                points.append((x, *interval(np.array(done))))
        if points:
            found.append(_banded(result, name, points, looks[name]))
    return LineChart("", said(at), _x(result), y, tuple(found))


def resource(result: StudyResult, at: At) -> str | None:
    """The type that runs are drawn over: the one that bound the reference, or the first that all of them spent."""
    names = [result.study.reference, *result.running]
    found = [record.result for name in names for record in result.records(name, at) if record.result]
    types = [kind for each in found[:1] for kind in (each.binding, *each.spent) if kind is not None]
    return next((kind for kind in types if all(kind in each.spent for each in found)), None)


def along_spent(result: StudyResult, styles: Styles) -> list[Chart]:
    """Metric, and certified gap on a log scale, along what was spent at the place that runs are shown at."""
    at = focus(result)
    kind = resource(result, at)
    x = Axis("round (BS iteration)" if kind is None else f"spent ({unit(kind)})", whole=kind is None)
    charts: list[Chart] = []
    name = metric_name(result.study.metric)
    names = {variant: result.labels[variant] for variant in result.running}
    medians = "Lines are medians over seeds, bands hold the middle half of them." if result.study.seeds > 1 else ""
    for column, title, y, bands in (
        (result.study.metric, f"{name} against what was spent", metric_axis(result.study.metric), _bands(result)),
        ("gap", "Certified gap against what was spent", Axis("duality gap (log scale)", "log"), medians),
    ):
        series = _trajectories(result, at, column, kind, styles, ranked=column == "gap")
        # Name the runs that ended with a result and have no line.
        drawn = {line.label for line in series}
        ended = [label for name, label in names.items() if any(record.result for record in result.records(name, at))]
        missing = [label for label in ended if label not in drawn]
        more = f"Not drawn, as it was measured only once on its way: {'; '.join(missing)}."
        note = f"{bands} {more if missing and drawn else ''}"
        charts += _together(f"{column.replace('_', '-')}-spent", title, [LineChart("", "", x, y, series)], note.strip())
    return charts


def _trajectories(
    result: StudyResult, at: At, column: str, kind: str | None, styles: Styles, *, ranked: bool
) -> tuple[Series, ...]:
    looks, names = styles_of(result, styles), result.labels
    found = {}
    for name in result.running:
        traces = [along.trace(record, column, kind) for record in result.records(name, at)]
        if traces and all(t is not None for t in traces):
            found[name] = [t for t in traces if t is not None]
    if not found:
        return ()
    grid = along.grid([t for traces in found.values() for t in traces])
    series = []
    for name, mine in found.items():
        curve = along.laid(mine, grid, ranked=ranked)
        series.append(Series(names[name], curve.x, curve.y, curve.low, curve.high, looks[name]))
    return (*series, *(() if ranked else _levels(result, at, grid, looks)))


def _levels(result: StudyResult, at: At, grid: Any, looks: dict[str, Style]) -> list[Series]:
    """Yardsticks, which spend nothing, as level lines."""
    found = []
    for variant in result.study.variants:
        mean = result.cell(variant.name, at).mean if variant.yardstick else None
        if mean is not None:
            ends = [float(grid[0]), float(grid[-1])]
            found.append(Series(variant.label, ends, [mean, mean], style=looks[variant.name], kind="level"))
    return found


def steps(result: StudyResult, styles: Styles) -> list[Chart]:
    """Chosen H over rounds; and K, where it is not 1 throughout."""
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
    at, looks = focus(result), styles_of(result, styles)
    found = [(name, of(result.records(name, at))) for name in result.running]
    return tuple(
        Series(result.labels[name], curve.x, curve.y, curve.low, curve.high, looks[name], "steps")
        for name, curve in found
        if curve is not None and len(curve.x) > 1
    )


def _by_round(key: str, title: str, label: str, series: tuple[Series, ...], note: str) -> LineChart:
    known = [value for each in series for value in each.y if value] or [1.0]
    scale = "log" if max(known) / min(known) > LOG_RATIO else "linear"
    lengths = [each.x[-1] for each in series] or [1.0]
    x = Axis("round (BS iteration)", "log" if max(lengths) > 6 * min(lengths) else "linear", whole=True)
    return LineChart(key, title, x, Axis(label, scale, low=None if scale == "log" else 0.0), series, note)


def bills(result: StudyResult) -> list[Chart]:
    """Where the budget went: one chart for each type, a bar for each variant, split by tier."""
    at, names = focus(result), result.labels
    found = {name: along.bill(many) for name in result.running if (many := result.records(name, at))}
    types = dict.fromkeys(kind for bill in found.values() for kind in bill)
    charts: list[Chart] = []
    for kind in types:
        tiers = [tier for tier in TIERS if any(bill.get(kind, {}).get(tier) for bill in found.values())]
        if not tiers:
            continue
        rows = tuple(names[name] for name in found)
        amounts = tuple(tuple(bill.get(kind, {}).get(tier, 0.0) for tier in tiers) for bill in found.values())
        title = f"Where the {kind} went"
        charts.append(Bars(f"bill-{kind}", title, Axis(f"spent ({unit(kind)})", low=0.0), rows, tuple(tiers), amounts))
    return charts


def answers(result: StudyResult) -> list[Chart]:
    """Who answered and who dropped out; nothing where everybody answered."""
    at, names = focus(result), result.labels
    counts = {name: along.answered(result.records(name, at)) for name in result.running}
    if all(asked == came for asked, came in counts.values()):
        return []
    known = {name: pair for name, pair in counts.items() if pair[0]}
    shares = tuple((100.0 * came / asked, 100.0 * (asked - came) / asked) for asked, came in known.values())
    rows = tuple(names[name] for name in known)
    bars = Bars(
        "answers",
        "Who answered",
        Axis("share of terminals asked (%)"),
        rows,
        ("answered", "lost or late"),
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
    title = f"Answers by station and round, {result.labels[result.study.reference]}"
    return Heat(
        "answers-stations",
        title,
        tuple(tasks[i] for i in chosen),
        tuple(columns),
        tuple(tuple(shares[i]) for i in chosen),
        "share of updates that arrived",
        0.0,
        1.0,
        "round (BS iteration)",
        f"Seed {record.configuration.seed}.",
    )


def everybody_answered(result: StudyResult) -> float:
    """Terminals asked in all, where every one of them answered; else 0."""
    counts = [along.answered(result.records(name, focus(result))) for name in result.running]
    return sum(asked for asked, _ in counts) if all(asked == came for asked, came in counts) else 0.0


def tasks(result: StudyResult, styles: Styles) -> list[Chart]:
    """Tasks from worst to best, by name where all runs have the same: how low the worst is, how far apart they lie."""
    at, looks = focus(result), styles_of(result, styles)
    runs = {name: result.records(name, at) for name in result.labels}
    found = {name: along.by_task(many, result.study.metric) for name, many in runs.items()}
    known = {
        n: rows for n, rows in found.items() if rows is not None and rows.shape[1] > 1 and not np.isnan(rows).any()
    }
    if not known:
        return []
    down = result.study.metric == "rmse"
    first = result.study.reference if result.study.reference in known else next(iter(known))
    named = along.same_tasks([record for n in known for record in runs[n]]) and known[first].shape[1] <= MOST_RELATED
    order = np.argsort(known[first].mean(axis=0))[:: -1 if down else 1]
    names = tuple(runs[first][0].tasks[i] for i in order) if named else ()
    series = []
    for name, rows in known.items():
        ordered = rows[:, order] if named else np.sort(rows, axis=1)[:, :: -1 if down else 1]
        chosen = thinned(ordered.shape[1], along.GRID)
        points = [(i + (0.0 if named else 1.0), *interval(ordered[:, i])) for i in chosen]
        series.append(_banded(result, name, points, looks[name]))
    metric = metric_name(result.study.metric)
    told = f"Tasks in the order of {result.labels[first]}." if named else "The tasks of each seed in order."
    note = f"{told} {_bands(result)}".strip() if named or result.study.seeds > 1 else ""
    x = Axis("task", names=names) if named else Axis("rank of the task (1 = worst)", whole=True)
    title = f"{metric[:1].upper()}{metric[1:]} from the worst task to the best"
    return [LineChart("tasks", title, x, metric_axis(result.study.metric), tuple(series), note)]


def trajectories(result: StudyResult) -> list[Chart]:
    """Every task along rounds, and along what was spent: one panel for each variant."""
    at = focus(result)
    kind = resource(result, at)
    name = metric_name(result.study.metric)
    many = result.records(result.study.reference, at)
    tasks = len(many[0].tasks) if many else 0
    notes = [f"{MOST_TASKS} of {tasks} tasks."] if tasks > MOST_TASKS else []
    if len(many) > 1:
        apart = "Each seed draws tasks of its own, so this is the first seed alone."
        notes.append(INTERVALS if along.same_tasks(many) else apart)
    charts: list[Chart] = []
    for column, x in ((None, Axis("round (BS iteration)", whole=True)), (kind, Axis(f"spent ({unit(kind or '')})"))):
        if column is None or kind is not None:
            parts = [
                _tasks_of(result, variant, at, column, x, metric_axis(result.study.metric))
                for variant in result.running
            ]
            title = f"{name} of each task along {'rounds' if column is None else 'what was spent'}"
            charts += _together("tasks-" + ("rounds" if column is None else "spent"), title, parts, " ".join(notes))
    return charts


def _tasks_of(result: StudyResult, variant: str, at: At, kind: str | None, x: Axis, y: Axis) -> LineChart:
    many = [record for record in result.records(variant, at) if record.rounds]
    many = many if many and along.same_tasks(many) else many[:1]
    names = many[0].tasks if many else []
    chosen = thinned(len(names), MOST_TASKS)
    found = {t: [along.trace(record, result.study.metric, kind, t) for record in many] for t in chosen}
    whole = {t: [trace for trace in traces if trace is not None] for t, traces in found.items() if None not in traces}
    series = []
    for place, (t, traces) in enumerate(whole.items()):
        curve = along.laid(traces, along.grid(traces))
        look = Style(place % 7, place % 6, place // 7)
        series.append(Series(names[t], curve.x, curve.y, curve.low, curve.high, look))
    return LineChart("", result.labels[variant], x, y, tuple(series))


def relationships(result: StudyResult) -> list[Chart]:
    """Who is tied to whom, for each variant whose ties are not all alike."""
    at, charts = focus(result), list[Chart]()
    for name in result.running:
        many = [record for record in result.records(name, at) if record.relationship]
        if not many:
            continue
        mean = along.same_tasks(many) and len(many) > 1
        matrix = np.mean([np.array(r.relationship) for r in (many if mean else many[:1])], axis=0)
        if not _alike(matrix):
            tasks = many[0].tasks
            seeds = len(many) if mean else 1
            chosen = thinned(len(tasks), MOST_RELATED)
            rows = tuple(tasks[i] for i in chosen)
            cells = tuple(tuple(None if i == j else float(matrix[i, j]) for j in chosen) for i in chosen)
            others = [value for row in cells for value in row if value is not None]
            low, high = (-1.0, 1.0) if min(others) < 0.0 else (min(others), max(others))
            note = f"Mean over {seeds} seeds." if seeds > 1 else ""
            key = "ties-" + "".join(c if c.isalnum() else "-" for c in name)
            title = f"Who is tied to whom, {result.labels[name]}"
            charts.append(Heat(key, title, rows, rows, cells, "affinity of two tasks", low, high, note=note))
    return charts


def _alike(matrix: Any) -> bool:
    """Whether every pair of tasks is tied as strongly as every other: a picture would show nothing."""
    others = matrix[~np.eye(len(matrix), dtype=bool)]
    return bool(len(others) == 0 or np.ptp(others) < 1e-9)
