"""Draw charts as inline SVG of any width: x positions are percentages, so text keeps its size on a phone.

Lines and bands are in an inner picture that stretches without widening the strokes. Colours are variables of the page's
style, so the same drawing works in light, dark and print. `page` and the dashboard call `draw`; `figures` uses the
parts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from rhfedmtl.display import short
from rhfedmtl.report.charts import (
    DASHES,
    GREY,
    MARKERS,
    Axis,
    Bars,
    Chart,
    Heat,
    LineChart,
    Number,
    Panels,
    Series,
    all_series,
    rounded,
    ticks,
)

WIDE_LABEL, NARROW = 320, 230
"""Heights in pixels of a single chart and of a panel."""
INNER = 1000
ROW_HEIGHT = 30
CELL = 24
LINE_OF_TEXT = 16
NAME_LENGTH = 22
"""Letters of a name next to a bar or a row of a matrix."""
SYMBOLS = {
    "circle": '<circle r="3.6"/>',
    "square": '<rect x="-3.3" y="-3.3" width="6.6" height="6.6"/>',
    "triangle": '<path d="M0-4.4 4.1 3.2H-4.1Z"/>',
    "diamond": '<path d="M0-4.7 4.7 0 0 4.7-4.7 0Z"/>',
    "wedge": '<path d="M0 4.4 4.1-3.2H-4.1Z"/>',
    "cross": '<path d="M-3.4-3.4 3.4 3.4M-3.4 3.4 3.4-3.4"/>',
}


def symbols() -> str:
    """Return the markers, defined once per page."""
    shapes = "".join(f'<g id="m-{name}">{SYMBOLS[name]}</g>' for name in MARKERS)
    return f'<svg class="symbols" aria-hidden="true"><defs>{shapes}</defs></svg>'


def draw(chart: Chart, shared: Collection[str] = ()) -> str:
    """Return a chart as HTML for a figure, with a legend unless all its entries are in the ``shared`` legend."""
    if isinstance(chart, LineChart):
        return legend(chart.series, shared) + _plot(chart.fitted(), WIDE_LABEL, labels=True)
    if isinstance(chart, Panels):
        panels = "".join(_panel(part) for part in chart.fitted().parts)
        return legend(all_series([chart]), shared) + f'<div class="panels n{min(len(chart.parts), 4)}">{panels}</div>'
    return _bars(chart) if isinstance(chart, Bars) else _heat(chart)


def legend(series: Sequence[Series], shared: Collection[str] = ()) -> str:
    """Return the legend as buttons that the script activates, groups last; empty for a single series.

    A legend that the page already has is empty too.
    """
    keys = "".join(
        f'<li><button type="button" class="key c{GREY if s.group else s.style.colour} {s.kind}" '
        f'data-series="{escape(name)}" aria-pressed="true">{sample(s)}{escape(name)}</button></li>'
        for name, s in entries(series).items()
        if name not in shared
    )
    return f'<ul class="legend">{keys}</ul>' if keys else ""


def entries(series: Sequence[Series]) -> dict[str, Series]:
    """Series of a legend by name, groups last; empty for a single series."""
    named = {s.key: s for s in sorted(series, key=lambda s: bool(s.group))}
    return named if len(named) > 1 else {}


def sample(series: Series) -> str:
    """Draw line and marker of a series for a legend."""
    line = "" if series.kind == "hollow" else f'<path class="line" d="M1 7H27"{_dash(series)}/>'
    mark = "" if series.kind == "level" else _mark(series, "14", 7.0)
    if series.group:
        mark = "".join(
            f'<use href="#m-{name}" class="mark" x="{x}" y="7"/>' for name, x in zip(MARKERS, (5, 15, 25), strict=False)
        )
    return f'<svg width="28" height="14" aria-hidden="true">{line}{mark}</svg>'


def _panel(part: LineChart) -> str:
    return (
        f'<div class="panel"><p class="panel-title">{escape(part.title)}</p>{_plot(part, NARROW, labels=False)}</div>'
    )


def _plot(chart: LineChart, height: int, *, labels: bool) -> str:
    names = ", ".join(s.label for s in chart.series)
    alt = f"{chart.title}: {chart.y.label} over {chart.x.label} for {names}. The table below has the values."
    named = [s for s in chart.series if labels and s.kind != "hollow"]
    direct = ""
    if 1 < len(named) <= 8:
        # Write names at the ends of the lines, and move them apart if they overlap.
        lasts = ((s, [y for y in s.y if y is not None and _shown(chart, y)][-1:]) for s in named)
        ends = sorted(((_down(chart.y, y, height), s) for s, last in lasts for y in last), key=lambda pair: pair[0])
        places = spread([y for y, _ in ends], LINE_OF_TEXT, height)
        direct = "".join(
            f'<text class="end c{s.style.colour}" data-series="{escape(s.key)}" x="100%" dx="10" y="{y:.1f}" '
            f'dy="0.35em">{escape(_clipped(s.label, 24))}</text>'
            for y, (_, s) in zip(places, ends, strict=True)
        )
    drawn = (
        f'<svg class="frame" height="{height}" role="img" aria-label="{escape(alt)}">'
        f'{lines(chart, height, most_ticks=7 if labels else 5)}{direct}<g class="pointer"></g></svg>'
    )
    data = f'<script type="application/json">{_data(chart, height)}</script>'
    kinds = " ".join(name for name, holds in (("labelled", direct), ("crowded", chart.crowded)) if holds)
    return (
        f'<div class="plot {kinds}"><p class="y-label">{escape(chart.y.label)}</p>'
        f'<div class="canvas">{drawn}</div><p class="x-label">{escape(chart.x.label)}</p>{data}</div>'
    )


def lines(chart: LineChart, height: int, *, most_ticks: int, width: float = INNER) -> str:
    """Draw grid, intervals, lines and markers of a chart; lines lie in an inner picture of this width."""
    across = "".join(
        f'<line class="rule" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="0" dx="-8" y="{y:.1f}" dy="0.35em" text-anchor="end">{short(value)}</text>'
        for value, y in ((value, _down(chart.y, value, height)) for value in ticks(chart.y, max(4, height // 42)))
    )
    up = "".join(
        f'<line class="stub" x1="{x:.2f}%" x2="{x:.2f}%" y1="{height}" y2="{height + 5}"/>'
        f'<text class="tick" x="{x:.2f}%" y="{height + 19}" text-anchor="middle">'
        f"{escape(_clipped(chart.x.text(value), 12))}</text>"
        for value, x in ((value, _along(chart.x, value)) for value in ticks(chart.x, most_ticks))
    )
    base = f'<line class="base" x1="0" x2="100%" y1="{height}" y2="{height}"/>'
    strokes = marks = ""
    for series in chart.series:
        kind = f'class="series c{series.style.colour} {series.kind}" data-series="{escape(series.key)}"'
        if series.kind != "hollow":
            steps, drawn = series.kind == "steps", ""
            if series.low and series.kind != "level":
                # The band runs along the upper end of the interval, and back along the lower end.
                sides = [_stretches(chart, series, side, width) for side in (series.high, series.low)]
                for runs in zip(*sides, strict=False):
                    if len(runs[0]) == len(runs[1]) > 1:
                        upper, lower = (_corners(chart, run, height, steps=steps) for run in runs)
                        drawn += f'<path class="band" d="{_path(upper + lower[::-1])}Z"/>'
            for run in _stretches(chart, series, series.y, width):
                if len(run) > 1:
                    course = _path(_corners(chart, run, height, steps=steps))
                    drawn += f'<path class="line" d="{course}"{_dash(series)}/>'
            strokes += f"<g {kind}>{drawn}</g>"
        points = [(series.x[i], y) for i in series.marked if (y := series.y[i]) is not None and _shown(chart, y)]
        uses = "".join(_mark(series, f"{_along(chart.x, x):.2f}%", _down(chart.y, y, height)) for x, y in points)
        marks += f"<g {kind}>{uses}</g>" if uses else ""
    return (
        f'{across}{base}{up}<svg class="stretched" viewBox="0 0 {width:g} {height}" preserveAspectRatio="none" '
        f'width="100%" height="{height}">{strokes}</svg>{marks}'
    )


def _along(axis: Axis, value: float) -> float:
    return 100.0 * axis.place(value)


def _down(axis: Axis, value: float, height: int) -> float:
    return height * (1.0 - axis.place(value))


def _shown(chart: LineChart, value: Number) -> bool:
    return value is not None and (value > 0.0 or chart.y.scale != "log")


def _stretches(
    chart: LineChart, series: Series, values: Sequence[Number], width: float
) -> Iterator[list[tuple[float, float]]]:
    """Yield runs of points without gaps: x in coordinates of the inner picture, y as a value."""
    run: list[tuple[float, float]] = []
    for x, y in zip(series.x, values, strict=True):
        if y is not None and _shown(chart, y):
            run.append((width * chart.x.place(x), y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _corners(
    chart: LineChart, points: Sequence[tuple[float, float]], height: int, *, steps: bool
) -> list[tuple[float, float]]:
    """Return points of the inner picture, with the corners of steps; points beyond the axis are moved to its end."""
    drawn = [(x, _down(chart.y, chart.y.inside(y), height)) for x, y in points]
    if not steps:
        return drawn
    return [drawn[0], *(corner for (_, y), end in pairwise(drawn) for corner in ((end[0], y), end))]


def _path(corners: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)


def _mark(series: Series, x: str, y: float) -> str:
    return f'<use href="#m-{MARKERS[series.style.marker]}" class="mark" x="{x}" y="{y:.1f}"/>'


def _dash(series: Series) -> str:
    dash = DASHES[series.style.dash]
    return f' stroke-dasharray="{dash}"' if dash else ""


def spread(positions: Sequence[float], distance: float, height: float) -> list[float]:
    """Move sorted positions apart to at least ``distance``, and otherwise as little as possible."""
    groups: list[list[float]] = []
    for place in positions:
        groups.append([place])
        while (
            len(groups) > 1
            and _centre(groups[-1], height, distance)[0] - _centre(groups[-2], height, distance)[1] < distance
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_centre(g, height, distance)[0] + i * distance for g in groups for i in range(len(g))]


def _centre(group: Sequence[float], height: float, distance: float) -> tuple[float, float]:
    """Return the first and last position of a group around the mean of its wanted positions."""
    length = (len(group) - 1) * distance
    first = min(max(sum(group) / len(group) - length / 2.0, 0.0), max(height - length, 0.0))
    return first, first + length


def _data(chart: LineChart, height: int) -> str:
    """Return the limits and points that the script needs to show values."""
    series = [
        {
            "name": s.label,
            **({"group": s.group, "of": s.of} if s.group else {}),
            "class": f"c{s.style.colour} {s.kind}",
            "mark": MARKERS[s.style.marker],
            "x": list(s.x),
            "y": [rounded(v) for v in s.y],
            **({"low": [rounded(v) for v in s.low], "high": [rounded(v) for v in s.high]} if s.low else {}),
        }
        for s in chart.series
    ]
    axes = {
        name: {"log": axis.scale == "log", "low": axis.low, "high": axis.high, "label": axis.label}
        for name, axis in (("x", chart.x), ("y", chart.y))
    }
    facts: dict[str, Any] = {**axes, "names": list(chart.x.names), "height": height, "series": series}
    return as_json(facts)


def _matrix(rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[Number]]) -> str:
    """Return the values that the script needs to save bars and matrices."""
    facts = {"rows": rows, "columns": columns, "values": [[rounded(v) for v in row] for row in values]}
    return f'<script type="application/json" class="matrix">{as_json(facts)}</script>'


def as_json(facts: dict[str, Any]) -> str:
    """Return facts as JSON for a page."""
    return json.dumps(facts, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _clipped(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def gutter(names: Sequence[str]) -> int:
    """Return the width in pixels of the longest name."""
    return 14 + round(6.6 * max((min(len(name), NAME_LENGTH) for name in names), default=0))


def bars(chart: Bars) -> str:
    """Draw stacked bars with their grid."""
    largest = max((sum(values) for values in chart.values), default=0.0) or 1.0
    axis = Axis(chart.axis.label, low=0.0, high=largest)
    height = ROW_HEIGHT * len(chart.rows)
    rules = "".join(
        f'<line class="rule" x1="{_along(axis, v):.2f}%" x2="{_along(axis, v):.2f}%" y1="0" y2="{height}"/>'
        f'<text class="tick" x="{_along(axis, v):.2f}%" y="{height + 17}" text-anchor="middle">{short(v)}</text>'
        for v in ticks(axis, 4)
    )
    return rules + "".join(_bar(chart, i, largest) for i in range(len(chart.rows)))


def _bars(chart: Bars) -> str:
    names = "".join(
        f'<li class="c{i}"><span class="swatch p{i}"></span>{escape(part)}</li>' for i, part in enumerate(chart.parts)
    )
    return (
        f'<ul class="legend plain">{names}</ul><div class="plot bars" style="--gutter:{gutter(chart.rows)}px">'
        f'<div class="canvas"><svg class="frame" height="{ROW_HEIGHT * len(chart.rows)}" role="img" '
        f'aria-label="{escape(chart.title)}: {escape(chart.axis.label)}. The table below has the values.">'
        f"{bars(chart)}</svg></div>"
        f'<p class="x-label">{escape(chart.axis.label)}</p>{_matrix(chart.rows, chart.parts, chart.values)}</div>'
    )


def _bar(chart: Bars, i: int, largest: float) -> str:
    y, start, drawn = i * ROW_HEIGHT, 0.0, ""
    for j, value in enumerate(chart.values[i]):
        if value > 0.0:
            tip = f"{chart.rows[i]}, {chart.parts[j]}: {short(value)}"
            drawn += (
                f'<rect class="piece c{j} p{j}" x="{100 * start / largest:.3f}%" width="{100 * value / largest:.3f}%" '
                f'y="{y + 5}" height="{ROW_HEIGHT - 10}" data-tip="{escape(tip)}"/>'
            )
        start += value
    name = escape(_clipped(chart.rows[i], NAME_LENGTH))
    place = f'x="{100 * start / largest:.2f}%" dx="6" y="{y + ROW_HEIGHT / 2}" dy="0.35em"'
    total = f'<text class="tick" {place}>{chart.total_text(i)}</text>'
    middle = y + ROW_HEIGHT / 2
    return f'<text class="name" x="0" dx="-8" y="{middle}" dy="0.35em" text-anchor="end">{name}</text>{drawn}{total}'


def heat(chart: Heat) -> str:
    """Draw the cells of a matrix with the names of rows and columns."""
    height, width = CELL * len(chart.rows), 100.0 / max(len(chart.columns), 1)
    numbers = len(chart.columns) <= 12
    cells = "".join(
        _cell(chart, i, j, width, numbers=numbers) for i in range(len(chart.rows)) for j in range(len(chart.columns))
    )
    names = "".join(
        f'<text class="name" x="0" dx="-8" y="{CELL * (i + 0.5)}" dy="0.35em" text-anchor="end">'
        f"{escape(_clipped(name, NAME_LENGTH))}</text>"
        for i, name in enumerate(chart.rows)
    )
    slanted = max((len(name) for name in chart.columns), default=0) > 4
    every = 1 if slanted else -(-len(chart.columns) // 12)
    heads = "".join(
        _head(_clipped(name, 14), (j + 0.5) * width, height, slanted=slanted)
        for j, name in enumerate(chart.columns)
        if j % every == 0
    )
    return cells + names + heads


def foot(chart: Heat) -> int:
    """Return the pixels that the names of columns need below a matrix."""
    longest = max(len(name) for name in chart.columns)
    return 30 + (round(4.4 * min(longest, 14)) if longest > 4 else 0)


def _heat(chart: Heat) -> str:
    across = f'<p class="x-label">{escape(chart.across)}</p>' if chart.across else ""
    return (
        f'<div class="plot heat" style="--gutter:{gutter(chart.rows)}px;--foot:{foot(chart)}px"><div class="canvas">'
        f'<svg class="frame" height="{CELL * len(chart.rows)}" role="img" aria-label="{escape(chart.title)}: '
        f'{escape(chart.label)}. The table below has the values.">{heat(chart)}</svg></div>{across}{_scale(chart)}'
        f"{_matrix(chart.rows, chart.columns, chart.values)}</div>"
    )


def _cell(chart: Heat, i: int, j: int, width: float, *, numbers: bool) -> str:
    value = chart.values[i][j]
    if value is None:
        return ""
    share = abs(chart.share(value))
    tip = f"{chart.rows[i]}, {chart.columns[j]}: {short(value)}"
    number = (
        f'<text class="value{" on" if share > 0.55 else ""}" x="{(j + 0.5) * width:.2f}%" y="{CELL * (i + 0.5)}" '
        f'dy="0.35em" text-anchor="middle">{value:.2f}</text>'
        if numbers
        else ""
    )
    return (
        f'<rect class="cell {"below" if chart.share(value) < 0.0 else "above"}" fill-opacity="{share:.2f}" '
        f'style="--v:{100 * share:.0f}%" '
        f'x="{j * width:.3f}%" width="{width:.3f}%" y="{CELL * i}" height="{CELL}" data-tip="{escape(tip)}"/>{number}'
    )


def _head(name: str, x: float, height: int, *, slanted: bool) -> str:
    if not slanted:
        return f'<text class="tick" x="{x:.2f}%" y="{height + 17}" text-anchor="middle">{escape(name)}</text>'
    return (
        f'<svg x="{x:.2f}%" y="{height + 10}" class="slanted"><text class="tick" transform="rotate(-38)" '
        f'text-anchor="end">{escape(name)}</text></svg>'
    )


def _scale(chart: Heat) -> str:
    low = "below" if chart.low < 0.0 else "none"
    ends = "".join(
        f'<span><i class="{name}"></i>{short(value)}</span>'
        for name, value in ((low, chart.low), ("above", chart.high))
    )
    return f'<p class="heat-scale">{escape(chart.label)}: {ends}</p>'
