"""Charts in the style of a paper: PDF to set in text, PNG to look at. Needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from rhfedmtl.errors import ConfigError, MissingExtraError
from rhfedmtl.report.charts import (
    DASHES,
    MARKERS,
    PALETTE,
    Axis,
    Bars,
    Chart,
    Heat,
    LineChart,
    Panels,
    Series,
    ticks,
)

COLUMN, TEXT = 3.5, 7.16
"""Widths in inches of a column, and of the two columns of a page."""
NAME = 30
"""Letters of a name that fit into half a column; longer ones get lines of their own."""
SHAPES = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "wedge": "v", "cross": "x"}
LOOK: dict[Any, Any] = {
    "font.family": ["STIXGeneral", "DejaVu Serif", "DejaVu Sans"],  # which come with matplotlib; signs fall back
    "text.parse_math": False,  # names are names, whatever signs of money they hold
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "figure.dpi": 100,
}


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def check() -> None:
    """Refuse, where matplotlib is not installed."""
    if not available():
        raise MissingExtraError("figures need matplotlib: pip install 'rhfedmtl[plot]' (or --no-figures)")


def save(charts: Sequence[Chart], folder: Path, prefix: str) -> list[Path]:
    """Draw charts into ``folder`` as PREFIX-KEY.pdf and .png."""
    check()
    import matplotlib as mpl

    paths: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(LOOK):
            for chart in charts:
                figure = draw(chart)
                figure.draw_without_rendering()  # lays out once, for both files
                figure.set_layout_engine("none")
                # Without a date the same records give the same bytes.
                for ending, metadata in (("pdf", {"CreationDate": None}), ("png", {})):
                    paths.append(folder / f"{prefix}-{chart.key}.{ending}")
                    figure.savefig(paths[-1], dpi=200, metadata=metadata)
    except OSError as error:
        raise ConfigError(f"cannot write figures to {folder}: {error.strerror}; choose another --out") from error
    return paths


def draw(chart: Chart) -> Any:
    """A chart as a matplotlib figure."""
    if isinstance(chart, LineChart):
        return _lines([chart.fitted()], list(chart.series))
    if isinstance(chart, Panels):
        return _lines(chart.fitted().parts, chart.series())
    return _bars(chart) if isinstance(chart, Bars) else _heat(chart)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _lines(parts: Sequence[LineChart], series: Sequence[Series]) -> Any:
    columns = min(len(parts), 3)
    rows = -(-len(parts) // columns)
    entries = _entries(series)
    wide = columns > 1
    names = [entry.get_label() for entry in entries]
    per_row = 1 if max(map(len, names), default=0) > NAME else 4 if wide else 2
    lines = -(-len(entries) // per_row) + sum(name.count("\n") for name in names)
    legend = 0.16 * lines if len(entries) > 1 else 0.0
    figure = _figure(TEXT if wide else COLUMN, 1.9 * rows + 0.35 + legend)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for i, panel in enumerate(panels):
        if i >= len(parts):
            panel.set_visible(False)
            continue
        _panel(panel, parts[i])
        panel.set_xlabel(parts[i].x.label)
        if i % columns == 0:
            panel.set_ylabel(parts[i].y.label)
        if wide:
            panel.set_title(parts[i].title)
    if len(entries) > 1:
        figure.legend(handles=entries, loc="outside lower center", ncols=min(per_row, len(entries)))
    return figure


def _panel(panel: Any, chart: LineChart) -> None:
    for i, series in enumerate(chart.series):
        _series(panel, series, band=i == 0 or not chart.crowded)
    for axis, which in ((chart.x, "x"), (chart.y, "y")):
        _scale(panel, axis, which)


def _scale(panel: Any, axis: Axis, which: str) -> None:
    """Limits, scale, and the same ticks as in the report."""
    from matplotlib.ticker import NullLocator

    getattr(panel, f"set_{which}scale")(axis.scale)
    getattr(panel, f"set_{which}lim")(axis.low, axis.high)
    places = ticks(axis, 6)
    getattr(panel, f"set_{which}ticks")(places, [axis.text(value) for value in places])
    getattr(panel, f"{which}axis").set_minor_locator(NullLocator())


def _series(panel: Any, series: Series, *, band: bool) -> None:
    known = [i for i, y in enumerate(series.y) if y is not None]
    x, y = [series.x[i] for i in known], [series.y[i] for i in known]
    steps = "post" if series.kind == "steps" else None
    marked = [known.index(i) for i in series.marked]
    panel.plot(x, y, drawstyle="steps-post" if steps else "default", markevery=marked, **_look(series))
    if series.low and band and series.kind in ("line", "steps"):
        low, high = (np.array([bound[i] for i in known], dtype=np.float64) for bound in (series.low, series.high))
        panel.fill_between(x, low, high, step=steps, color=_colour(series), alpha=0.15, linewidth=0)


def _colour(series: Series) -> str:
    return PALETTE[series.style.colour][0]


def _look(series: Series) -> dict[str, Any]:
    dash = [float(part) / 2.0 for part in DASHES[series.style.dash].split()]
    hollow = series.kind == "hollow"
    shape = SHAPES[MARKERS[series.style.marker]]
    return {
        "color": _colour(series),
        "linestyle": "none" if hollow else (0, dash) if dash else "-",
        "marker": "none" if series.kind == "level" else shape,
        "markerfacecolor": "white" if hollow else _colour(series),
        "markeredgewidth": 0.9 if hollow or shape == "x" else 0.0,
        "linewidth": 0.9 if series.kind == "level" else 1.2,
    }


def _entries(series: Sequence[Series]) -> list[Any]:
    """Entries of the legend: series of a group share one, in black."""
    from matplotlib.lines import Line2D

    keys = {s.key: s for s in sorted(series, key=lambda s: bool(s.group))}
    entries = []
    for name, each in keys.items():
        look = _look(each) | ({"color": "#444444", "marker": "o"} if each.group else {})
        entries.append(Line2D([], [], label=fill(name, 2 * NAME), **look))
    return entries


def _bars(chart: Bars) -> Any:
    names = [fill(name, NAME) for name in chart.rows]
    lines = 1 + max((name.count("\n") for name in names), default=0)
    figure = _figure(COLUMN, 0.75 + (0.07 + 0.12 * lines) * len(names))
    panel = figure.subplots()
    places = range(len(chart.rows))
    start = [0.0] * len(chart.rows)
    for j, part in enumerate(chart.parts):
        amounts = [values[j] for values in chart.values]
        panel.barh(
            places, amounts, left=start, height=0.68, color=PALETTE[j][0], alpha=1.0 - 0.22 * (j == 1), label=part
        )
        start = [s + a for s, a in zip(start, amounts, strict=True)]
    for i in places:
        panel.annotate(chart.said(i), (start[i], i), (3, 0), textcoords="offset points", va="center", fontsize=6)
    panel.set_yticks(list(places), names)
    panel.invert_yaxis()
    panel.grid(visible=False, axis="y")
    panel.set_xlabel(chart.axis.label)
    panel.margins(x=0.14)
    panel.set_xlim(left=0.0)
    figure.legend(loc="outside lower center", ncols=len(chart.parts))
    return figure


def _heat(chart: Heat) -> Any:
    size = min(TEXT, max(COLUMN, 0.9 + 0.17 * len(chart.columns)))
    figure = _figure(size, min(9.0, 0.8 + 0.17 * len(chart.rows) + (0.4 if not chart.across else 0.0)))
    panel = figure.subplots()
    values = [[float("nan") if v is None else v for v in row] for row in chart.values]
    both = chart.low < 0.0 < chart.high
    image = panel.imshow(
        values, cmap="PuOr_r" if both else "Blues", vmin=chart.low, vmax=chart.high, aspect="auto", interpolation="none"
    )
    panel.grid(visible=False)
    panel.set_yticks(range(len(chart.rows)), chart.rows)
    every = max(1, len(chart.columns) // 12) if chart.across else 1
    angle = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if not chart.across else {}
    panel.set_xticks(range(0, len(chart.columns), every), chart.columns[::every], **angle)
    panel.set_xlabel(chart.across)
    figure.colorbar(image, ax=panel, label=chart.label, pad=0.02)
    return figure
