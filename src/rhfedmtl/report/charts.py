"""Data of charts without drawing: series, axes with ticks, bars and matrices.

`views` and the dashboard build charts from these classes; `svg` draws them for the page, and `figures` for a paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from rhfedmtl.display import short

Number = float | None
Row = tuple[str, ...]

PALETTE = (
    ("#0072B2", "#5BB3EA"),
    ("#D55E00", "#FF8A4C"),
    ("#009E73", "#35C79B"),
    ("#B3558F", "#E59CC6"),
    ("#C98900", "#F0B840"),
    ("#3C9BD6", "#9AD4F7"),
    ("#7A5230", "#C9A27C"),
    ("#4B5563", "#B8C0CC"),
)
"""Colours of series on light and dark background: Okabe and Ito's colours, changed where the background would hide
them."""
GREY = len(PALETTE) - 1
"""Index of the colour of baselines, which do not compete."""
MARKERS = ("circle", "square", "triangle", "diamond", "wedge", "cross")
DASHES = ("", "6 3", "2 3", "8 3 2 3")
CROWD = 5
"""With more lines, bands would hide each other, so only the first line shows its band."""
MARKED, SPARSE = 16, 6
"""A line with more points than MARKED shows only SPARSE markers, which is enough to distinguish lines."""


@dataclass(frozen=True)
class Axis:
    """Axis with label, unit, scale (``linear`` or ``log``) and limits; ``names`` replace the numbers 0, 1, 2, ….

    Automatic limits stay above ``floor`` and below ``ceiling``: an accuracy is at most 1, even if its interval is
    wider. They are at least ``span`` apart, so that noise does not fill the chart. An ``integer`` axis has integer
    ticks.
    """

    label: str
    scale: str = "linear"
    low: Number = None
    high: Number = None
    names: tuple[str, ...] = ()
    floor: float = -math.inf
    ceiling: float = math.inf
    integer: bool = False
    span: float = 0.0

    def place(self, value: float) -> float:
        """Return the position of a value between the limits, from 0 to 1."""
        assert self.low is not None
        assert self.high is not None
        ends = self.low, self.high, value
        low, high, position = (math.log10(v) for v in ends) if self.scale == "log" else ends
        return (position - low) / (high - low)

    def inside(self, value: float) -> float:
        """Return the value, clipped to the limits."""
        return min(max(value, value if self.low is None else self.low), value if self.high is None else self.high)

    def text(self, value: float) -> str:
        """Return a value on this axis as text."""
        return self.names[int(value)] if self.names else short(value)

    def fitted(self, values: Iterable[Number], margin: float = 0.0) -> Axis:
        """Return the axis with limits that include all values."""
        clipped = [
            min(max(v, self.floor), self.ceiling) for v in values if v is not None and (v > 0.0 or self.scale != "log")
        ]
        low = min(clipped, default=1.0) if self.low is None else self.low
        high = max(clipped, default=1.0) if self.high is None else self.high
        if self.scale == "log":
            low, high = (low / 2.0, high * 2.0) if low == high else (low, high)
            padding = (high / low) ** margin
            return replace(self, low=low / padding, high=high * padding)
        if low == high:
            low, high = low - (abs(low) / 2.0 or 0.5), high + (abs(high) / 2.0 or 0.5)
        padding = (high - low) * margin
        low = low if self.low is not None else max(low - padding, min(low, self.floor))
        high = high if self.high is not None else min(high + padding, max(high, self.ceiling))
        if high - low < self.span:
            middle = min(max((low + high) / 2.0, self.floor + self.span / 2.0), self.ceiling - self.span / 2.0)
            low, high = middle - self.span / 2.0, middle + self.span / 2.0
        return replace(self, low=low, high=high)


@dataclass(frozen=True)
class Style:
    """Indices of colour, marker and dash; every variant has a different combination."""

    colour: int = 0
    marker: int = 0
    dash: int = 0


@dataclass(frozen=True)
class Series:
    """A line: points and, if known, intervals.

    ``kind`` is ``line``, ``steps`` (a value holds until the next), ``level`` (a baseline, without markers) or
    ``hollow`` (only markers, for values printed in the paper). Series of a ``group`` share an entry of the legend;
    ``of`` names the series that such a point belongs to.
    """

    label: str
    x: Sequence[float]
    y: Sequence[Number]
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    style: Style = Style()
    kind: str = "line"
    group: str = ""
    of: str = ""

    @property
    def key(self) -> str:
        """Entry of the legend."""
        return self.group or self.label

    @property
    def marked(self) -> list[int]:
        """Indices of the points with markers: all of a short line, and a few of a long line.

        Long lines have their markers at different places.
        """
        drawn = [i for i, y in enumerate(self.y) if y is not None]
        if self.kind == "level":
            return []
        if len(drawn) <= MARKED and self.kind != "steps":
            return drawn
        every = max(1, len(drawn) // SPARSE)
        return drawn[(self.style.marker * every) // len(MARKERS) :: every]

    @property
    def values(self) -> list[Number]:
        """Values that the y axis must include."""
        return [*self.y, *self.low, *self.high]


@dataclass(frozen=True)
class LineChart:
    """Series over a common axis. ``key`` is a name for files and anchors."""

    key: str
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    note: str = ""

    @property
    def crowded(self) -> bool:
        """True if there are too many lines for bands."""
        return sum(s.kind in ("line", "steps") for s in self.series) > CROWD

    def fitted(self) -> LineChart:
        """Return the chart with axes that include all points."""
        x = self.x.fitted([v for s in self.series for v in s.x], 0.5 / len(self.x.names) if self.x.names else 0.02)
        visible = [s.values if i == 0 or not self.crowded else s.y for i, s in enumerate(self.series)]
        return replace(self, x=x, y=self.y.fitted([v for values in visible for v in values], 0.06))

    def table(self) -> tuple[Row, list[Row]]:
        """Return header and rows of a table: a row for each x, a column for each series."""
        places = sorted({x for s in self.series for x in s.x})
        columns = [{x: _with_half(s, i) for i, x in enumerate(s.x)} for s in self.series]
        head = (self.x.label, *(s.label for s in self.series))
        return head, [(self.x.text(x), *(column.get(x, "") for column in columns)) for x in places]


@dataclass(frozen=True)
class Panels:
    """Small multiples: the same axes, with a panel for each value of another setting, named in its title."""

    key: str
    title: str
    parts: tuple[LineChart, ...]
    note: str = ""

    def fitted(self) -> Panels:
        """Return the panels with shared axes."""
        fitted = [part.fitted() for part in self.parts]
        x = replace(self.parts[0].x, low=min(p.x.low or 0.0 for p in fitted), high=max(p.x.high or 0.0 for p in fitted))
        y = replace(self.parts[0].y, low=min(p.y.low or 0.0 for p in fitted), high=max(p.y.high or 0.0 for p in fitted))
        return replace(self, parts=tuple(replace(part, x=x, y=y) for part in fitted))


@dataclass(frozen=True)
class Bars:
    """Horizontal stacked bars, one per row; ``shares`` of 100 print their first part."""

    key: str
    title: str
    axis: Axis
    rows: tuple[str, ...]
    parts: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    note: str = ""
    shares: bool = False

    def total_text(self, row: int) -> str:
        """Return the text at the end of a bar."""
        return f"{self.values[row][0]:.0f} %" if self.shares else short(sum(self.values[row]))

    def table(self) -> tuple[Row, list[Row]]:
        """Return header and rows of a table."""
        pairs = zip(self.rows, self.values, strict=True)
        rows = [(name, *(short(v) for v in values), short(sum(values))) for name, values in pairs]
        return ("", *self.parts, "total"), rows


@dataclass(frozen=True)
class Heat:
    """A matrix as a picture; the scale goes from ``low`` to ``high``, through 0 if they differ in sign."""

    key: str
    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[Number, ...], ...]
    label: str
    low: float = -1.0
    high: float = 1.0
    across: str = ""
    note: str = ""

    def share(self, value: float) -> float:
        """Return the position of a value on the scale, 0 to 1, or −1 to 1 if the scale passes through 0."""
        if self.low < 0.0 < self.high:
            return value / max(-self.low, self.high)
        return (value - self.low) / ((self.high - self.low) or 1.0)

    def table(self) -> tuple[Row, list[Row]]:
        """Return header and rows of a table."""
        pairs = zip(self.rows, self.values, strict=True)
        return ("", *self.columns), [(name, *("" if v is None else short(v) for v in values)) for name, values in pairs]


Chart = LineChart | Panels | Bars | Heat


def all_series(charts: Iterable[Chart]) -> list[Series]:
    """Return a series for each entry of a legend of these charts."""
    parts = (part for chart in charts for part in (chart.parts if isinstance(chart, Panels) else (chart,)))
    return list({s.key: s for part in parts if isinstance(part, LineChart) for s in part.series}.values())


@dataclass
class Styles:
    """Assigns styles: every family has a colour, and its members differ in marker and dash."""

    _assigned: dict[str, Style] = field(default_factory=dict)
    _colours: dict[str, int] = field(default_factory=dict)

    def of(self, name: str, family: str = "", *, yardstick: bool = False) -> Style:
        """Return the style of a name, the same on every call."""
        if name not in self._assigned:
            colour = GREY if yardstick else self._colours.setdefault(family or name, len(self._colours) % GREY)
            nth = sum(style.colour == colour for style in self._assigned.values())
            # Baselines are always dashed; the first line of every other colour is solid.
            dash = 1 + nth % (len(DASHES) - 1) if yardstick else nth % len(DASHES)
            self._assigned[name] = Style(colour, (colour + nth) % len(MARKERS), dash)
        return self._assigned[name]

    def together(self, names: Iterable[tuple[str, str, bool]]) -> dict[str, Style]:
        """Return the styles of names (with family, and True for a baseline) that share a chart.

        If two families have the same colour and another colour is free, the second family gets it in this chart.
        """
        members = list(names)
        styles = {name: self.of(name, family, yardstick=yardstick) for name, family, yardstick in members}
        used_colours = {style.colour for style in styles.values()}
        free = [colour for colour in range(GREY) if colour not in used_colours]
        owner: dict[int, str] = {}
        for name, family, yardstick in members:
            style = styles[name]
            if not yardstick and owner.setdefault(style.colour, family) != family and free:
                colour = free.pop(0)
                owner[colour] = family
                styles[name] = Style(colour, colour % len(MARKERS), 0)
        return styles


def ticks(axis: Axis, max_ticks: int = 6) -> list[float]:
    """Return round values between the limits, at most ``most``."""
    if axis.low is None or axis.high is None:
        return []
    if axis.names:
        return list(range(0, len(axis.names), -(-len(axis.names) // max_ticks)))
    if axis.scale == "log":
        # Use powers of ten. With fewer than three, add values between them; if these are too few, use linear steps.
        powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
        for marks in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)):
            inside = [m * 10.0**p for p in powers for m in marks]
            inside = [value for value in inside if axis.low * (1.0 - 1e-9) <= value <= axis.high * (1.0 + 1e-9)]
            if len(inside) >= 3:
                return inside[:: -(-len(inside) // max_ticks)]
    smallest_step = max((axis.high - axis.low) / max_ticks, float(axis.integer))
    power = 10.0 ** math.floor(math.log10(smallest_step))
    step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= smallest_step * (1.0 - 1e-9))
    first, last = math.ceil(axis.low / step - 1e-9), math.floor(axis.high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def signed(value: float) -> str:
    """Return a difference with its sign."""
    return f"{value:+.3f}".replace("-", "−")


def rounded(value: Number) -> Number:
    """Return a number with four digits for the page, or None if it is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def thinned(count: int, max_count: int) -> list[int]:
    """Return the indices of at most ``max_count`` of ``count`` points, including the first and the last."""
    if count <= max_count:
        return list(range(count))
    return sorted({round(i * (count - 1) / (max_count - 1)) for i in range(max_count)})


def _with_half(series: Series, i: int) -> str:
    value = series.y[i]
    if value is None:
        return ""
    low, high = (bounds[i] if bounds else None for bounds in (series.low, series.high))
    if low is None or high is None or series.kind == "hollow":
        return short(value)
    return f"{short(value)} ({short(low)} to {short(high)})"
