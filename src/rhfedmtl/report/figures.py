"""Write charts as SVG files for a paper, in the width of a column, with the drawing code of the report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from textwrap import wrap

from rhfedmtl.display import short
from rhfedmtl.errors import ConfigError
from rhfedmtl.report import svg
from rhfedmtl.report.charts import GREY, PALETTE, Bars, Chart, Heat, LineChart, Panels, Series, all_series

COLUMN, TEXT = 336, 687
"""Widths in pixels (96 per inch): a column, and both columns of a page."""
PLOT, LEFT, RIGHT, ROW_PLACE = 130, 44, 14, 14
"""Height of a plot, margins at its sides, and height of a line of text."""
LETTERS = 60
"""Number of letters in a line of a column."""
STYLE = """
text { font: 9.5px "STIX Two Text", "STIXGeneral", "Times New Roman", "DejaVu Serif", serif; fill: #333333; }
.rule { stroke: #e3e3e3; } .base, .stub { stroke: #666666; }
path.line { fill: none; stroke: currentColor; stroke-width: 1.4; stroke-linejoin: round; }
.level path.line { stroke-width: 1; } .band { fill: currentColor; fill-opacity: 0.13; }
.mark { fill: currentColor; stroke: #ffffff; stroke-width: 0.8; }
.cross { stroke: currentColor; stroke-width: 1.6; }
.hollow .mark { fill: #ffffff; stroke: currentColor; stroke-width: 1.4; }
.crowded .band { visibility: hidden; } .crowded .series:first-child .band { visibility: visible; }
.piece { fill: currentColor; stroke: #ffffff; } .p1 { fill-opacity: 0.72; }
.above { fill: #0072b2; } .below { fill: #d55e00; } .none { fill: #ffffff; stroke: #999999; }
.cell { stroke: #ffffff; } .slanted { overflow: visible; } .value { font-size: 8.5px; } .on { fill: #ffffff; }
.title { font-weight: bold; }
"""
COLOURS = "".join(f".c{i} {{ color: {light}; }} " for i, (light, _) in enumerate(PALETTE))


def save(charts: Sequence[Chart], folder: Path, prefix: str) -> list[Path]:
    """Write charts into ``folder`` as PREFIX-KEY.svg."""
    paths = [folder / f"{prefix}-{chart.key}.svg" for chart in charts]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart, path in zip(charts, paths, strict=True):
            path.write_text(draw(chart), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write figures to {folder}: {error.strerror}; choose another --out") from error
    return paths


def draw(chart: Chart) -> str:
    """Return a chart as a complete SVG file."""
    if isinstance(chart, Bars):
        return _bars(chart)
    if isinstance(chart, Heat):
        return _heat(chart)
    if isinstance(chart, Panels):
        return _lines(chart.fitted().parts, all_series([chart]))
    return _lines([chart.fitted()], chart.series)


def _lines(parts: Sequence[LineChart], series: Sequence[Series]) -> str:
    columns = min(len(parts), 3)
    width = TEXT if columns > 1 else COLUMN
    panel_width, height = width / columns, PLOT + (5 if columns > 1 else 4) * ROW_PLACE
    body = ""
    for i, part in enumerate(parts):
        x, y = LEFT + panel_width * (i % columns), height * (i // columns) + (2 if columns > 1 else 1) * ROW_PLACE + 4
        inner = panel_width - LEFT - RIGHT
        title = _text(x - LEFT + 8, y - ROW_PLACE - 8, part.title, "title") if columns > 1 else ""
        body += (
            f"{title}{_text(x - LEFT + 8, y - 8, part.y.label)}"
            f'<svg x="{x:.1f}" y="{y}" width="{inner:.1f}" height="{PLOT}" overflow="visible" '
            f'class="{"crowded" if part.crowded else "few"}">'
            f"{svg.lines(part, PLOT, most_ticks=4, width=inner)}</svg>"
            f"{_text(x + inner / 2, y + PLOT + 2.4 * ROW_PLACE, part.x.label, anchor='middle')}"
        )
    rows = [
        (f'<g class="c{GREY if s.group else s.style.colour} {s.kind}">{svg.sample(s)}</g>', name)
        for name, s in svg.entries(series).items()
    ]
    return _file(width, height * -(-len(parts) // columns), body, rows)


def _bars(chart: Bars) -> str:
    gutter, height = min(svg.gutter(chart.rows), COLUMN // 2), svg.ROW_HEIGHT * len(chart.rows)
    body = (
        f'<svg x="{gutter}" y="{ROW_PLACE}" width="{COLUMN - gutter - 3 * RIGHT}" height="{height}" overflow="visible">'
        f"{svg.bars(chart)}</svg>"
        f"{_text((gutter + COLUMN) / 2, height + 3.6 * ROW_PLACE, chart.axis.label, anchor='middle')}"
    )
    rows = [
        (f'<rect class="piece c{i} p{i}" x="14" y="2" width="11" height="11"/>', part)
        for i, part in enumerate(chart.parts)
    ]
    return _file(COLUMN, height + 4 * ROW_PLACE, body, rows)


def _heat(chart: Heat) -> str:
    gutter, height = svg.gutter(chart.rows), svg.CELL * len(chart.rows)
    width = min(TEXT, max(COLUMN, gutter + RIGHT + svg.CELL * len(chart.columns)))
    bottom = height + ROW_PLACE + svg.foot(chart)
    body = (
        f'<svg x="{gutter}" y="{ROW_PLACE}" width="{width - gutter - RIGHT}" height="{height}" overflow="visible">'
        f"{svg.heat(chart)}</svg>{_text((gutter + width) / 2, bottom + ROW_PLACE, chart.across, anchor='middle')}"
    )
    low = "below" if chart.low < 0.0 else "none"
    rows = [
        (f'<rect class="{kind}" x="14" y="2" width="11" height="11"/>', f"{chart.label} {short(value)}")
        for kind, value in ((low, chart.low), ("above", chart.high))
    ]
    return _file(width, bottom + ROW_PLACE, body, rows)


def _text(x: float, y: float, text: str, kind: str = "label", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>' if text else ""


def _file(width: int, height: float, body: str, rows: Sequence[tuple[str, str]]) -> str:
    """Add a legend below a drawing: short names in two columns, longer names on their own lines."""
    columns = width // (COLUMN // 2) if all(len(name) <= LETTERS // 2 - 4 for _, name in rows) else 1
    step, y, last = width / columns, height, 0
    for i, (mark, name) in enumerate(rows):
        if i % columns == 0:
            y, last = y + ROW_PLACE * last, 0
        words = wrap(name, LETTERS * width // COLUMN)
        text = "".join(_text(32, 10 + ROW_PLACE * k, line) for k, line in enumerate(words))
        body += f'<g transform="translate({step * (i % columns):.1f} {y:.1f})">{mark}{text}</g>'
        last = max(last, len(words))
    height = y + ROW_PLACE * last + 6
    shapes = "".join(f'<g id="m-{name}" class="{name}">{shape}</g>' for name, shape in svg.SYMBOLS.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        f'viewBox="0 0 {width} {height:.0f}"><style>{STYLE}{COLOURS}</style><defs>{shapes}</defs>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{body}</svg>\n'
    )
