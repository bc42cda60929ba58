"""Data of charts, without drawing: series, axes with their ticks, bars and matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
"""Colours of series on light and on dark ground: Okabe and Ito's, shifted where the ground would swallow them."""
GREY = len(PALETTE) - 1
"""Place of the colour of yardsticks, which do not compete."""
MARKERS = ("circle", "square", "triangle", "diamond", "wedge", "cross")
DASHES = ("", "6 3", "2 3", "8 3 2 3")
CROWD = 5
"""With more lines than this, bands would hide each other: the first line alone shows its own."""
MARKED, SPARSE = 16, 6
"""A line with more points than the first shows the second number of markers: enough to tell lines apart."""


@dataclass(frozen=True)
class Axis:
    """Label with unit, scale (``linear`` or ``log``), limits where they are given; ``names`` stand at 0, 1, 2, ….

    Limits that are found by themselves stay above ``floor`` and below ``ceiling``: no accuracy is above 1, whatever
    an interval says. A ``whole`` axis counts things.
    """

    label: str
    scale: str = "linear"
    low: Number = None
    high: Number = None
    names: tuple[str, ...] = ()
    floor: float = -math.inf
    ceiling: float = math.inf
    whole: bool = False

    def place(self, value: float) -> float:
        """Where a value lies between the limits: 0 to 1."""
        assert self.low is not None
        assert self.high is not None
        ends = self.low, self.high, value
        low, high, here = (math.log10(v) for v in ends) if self.scale == "log" else ends
        return (here - low) / (high - low)

    def inside(self, value: float) -> float:
        """The value, or the limit that it lies beyond."""
        return min(max(value, value if self.low is None else self.low), value if self.high is None else self.high)

    def text(self, value: float) -> str:
        """A value on this axis in words."""
        return self.names[int(value)] if self.names else short(value)

    def fitted(self, values: Iterable[Number], margin: float = 0.0) -> Axis:
        """The same axis with limits that hold all values."""
        known = [
            min(max(v, self.floor), self.ceiling) for v in values if v is not None and (v > 0.0 or self.scale != "log")
        ]
        low = min(known, default=1.0) if self.low is None else self.low
        high = max(known, default=1.0) if self.high is None else self.high
        if self.scale == "log":
            low, high = (low / 2.0, high * 2.0) if low == high else (low, high)
            room = (high / low) ** margin
            return replace(self, low=low / room, high=high * room)
        if low == high:
            low, high = low - (abs(low) / 2.0 or 0.5), high + (abs(high) / 2.0 or 0.5)
        room = (high - low) * margin
        low = low if self.low is not None else max(low - room, min(low, self.floor))
        high = high if self.high is not None else min(high + room, max(high, self.ceiling))
        return replace(self, low=low, high=high)


@dataclass(frozen=True)
class Style:
    """Places in the lists of colours, markers and dashes: no two variants share all three."""

    colour: int = 0
    marker: int = 0
    dash: int = 0


@dataclass(frozen=True)
class Series:
    """One line: points, and intervals where they are known.

    ``kind`` is ``line``, ``steps`` (a value holds until the next), ``level`` (a yardstick: no markers) or ``hollow``
    (markers alone: what the paper prints). Series of one ``group`` share an entry of the legend, and say which
    series each belongs to.
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
        """Its entry of the legend."""
        return self.group or self.label

    @property
    def marked(self) -> list[int]:
        """Places of the points that have markers: all of a few, some of many, where other lines have theirs not."""
        known = [i for i, y in enumerate(self.y) if y is not None]
        if self.kind == "level":
            return []
        if len(known) <= MARKED and self.kind != "steps":
            return known
        every = max(1, len(known) // SPARSE)
        return known[(self.style.marker * every) // len(MARKERS) :: every]

    @property
    def values(self) -> list[Number]:
        """Everything that has to fit on the y axis."""
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
        """Whether there are too many lines for bands."""
        return sum(s.kind in ("line", "steps") for s in self.series) > CROWD

    def fitted(self) -> LineChart:
        """The same with axes that hold all points."""
        x = self.x.fitted([v for s in self.series for v in s.x], 0.5 / len(self.x.names) if self.x.names else 0.02)
        shown = [s.values if i == 0 or not self.crowded else s.y for i, s in enumerate(self.series)]
        return replace(self, x=x, y=self.y.fitted([v for values in shown for v in values], 0.06))

    def table(self) -> tuple[Row, list[Row]]:
        """Header and rows: one row for each x, one column for each series."""
        places = sorted({x for s in self.series for x in s.x})
        found = [{x: _with_half(s, i) for i, x in enumerate(s.x)} for s in self.series]
        head = (self.x.label, *(s.label for s in self.series))
        return head, [(self.x.text(x), *(column.get(x, "") for column in found)) for x in places]


@dataclass(frozen=True)
class Panels:
    """Small multiples: the same axes, one panel for each value of another setting; titles say which."""

    key: str
    title: str
    parts: tuple[LineChart, ...]
    note: str = ""

    def fitted(self) -> Panels:
        """The same with axes that all panels share."""
        fitted = [part.fitted() for part in self.parts]
        x = replace(self.parts[0].x, low=min(p.x.low or 0.0 for p in fitted), high=max(p.x.high or 0.0 for p in fitted))
        y = replace(self.parts[0].y, low=min(p.y.low or 0.0 for p in fitted), high=max(p.y.high or 0.0 for p in fitted))
        return replace(self, parts=tuple(replace(part, x=x, y=y) for part in fitted))

    def series(self) -> list[Series]:
        """One series of each label, for a legend that all panels share."""
        return list({s.label: s for part in self.parts for s in part.series}.values())


@dataclass(frozen=True)
class Bars:
    """Stacked bars that lie: one for each row, made of parts; ``shares`` of 100 show their first part in figures."""

    key: str
    title: str
    axis: Axis
    rows: tuple[str, ...]
    parts: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    note: str = ""
    shares: bool = False

    def said(self, row: int) -> str:
        """What stands at the end of a bar."""
        return f"{self.values[row][0]:.0f} %" if self.shares else short(sum(self.values[row]))

    def table(self) -> tuple[Row, list[Row]]:
        """Header and rows."""
        pairs = zip(self.rows, self.values, strict=True)
        rows = [(name, *(short(v) for v in values), short(sum(values))) for name, values in pairs]
        return ("", *self.parts, "in all"), rows


@dataclass(frozen=True)
class Heat:
    """A matrix as a picture; the scale goes from ``low`` to ``high``, through 0 where they differ in sign."""

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
        """How far a value has gone along the scale, 0 to 1; below 0 where the scale goes through it."""
        if self.low < 0.0 < self.high:
            return value / max(-self.low, self.high)
        return (value - self.low) / ((self.high - self.low) or 1.0)

    def table(self) -> tuple[Row, list[Row]]:
        """Header and rows."""
        pairs = zip(self.rows, self.values, strict=True)
        return ("", *self.columns), [(name, *("" if v is None else short(v) for v in values)) for name, values in pairs]


Chart = LineChart | Panels | Bars | Heat


@dataclass
class Styles:
    """Hands out styles: every family has a colour; those that share one differ in marker and dash."""

    _given: dict[str, Style] = field(default_factory=dict)
    _colours: dict[str, int] = field(default_factory=dict)

    def of(self, name: str, family: str = "", *, yardstick: bool = False) -> Style:
        """The style of a name; the same one whenever it is asked for."""
        if name not in self._given:
            colour = GREY if yardstick else self._colours.setdefault(family or name, len(self._colours) % GREY)
            nth = sum(style.colour == colour for style in self._given.values())
            # Yardsticks are never solid, the first of every other colour is.
            dash = 1 + nth % (len(DASHES) - 1) if yardstick else nth % len(DASHES)
            self._given[name] = Style(colour, (colour + nth) % len(MARKERS), dash)
        return self._given[name]

    def together(self, names: Iterable[tuple[str, str, bool]]) -> dict[str, Style]:
        """Styles of names (with family, and whether it is a yardstick) that share a chart.

        Where two families would have one colour and another is free, the second takes that one, here alone.
        """
        members = list(names)
        found = {name: self.of(name, family, yardstick=yardstick) for name, family, yardstick in members}
        used = {style.colour for style in found.values()}
        free = [colour for colour in range(GREY) if colour not in used]
        owner: dict[int, str] = {}
        for name, family, yardstick in members:
            style = found[name]
            if not yardstick and owner.setdefault(style.colour, family) != family and free:
                colour = free.pop(0)
                owner[colour] = family
                found[name] = Style(colour, colour % len(MARKERS), 0)
        return found


def ticks(axis: Axis, most: int = 6) -> list[float]:
    """Round values between the limits, at most ``most``."""
    if axis.low is None or axis.high is None:
        return []
    if axis.names:
        return list(range(0, len(axis.names), -(-len(axis.names) // most)))
    if axis.scale == "log":
        # Powers of ten; with fewer than three of them, values between; with fewer than three of these, linear steps.
        powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
        for marks in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)):
            inside = [m * 10.0**p for p in powers for m in marks]
            inside = [value for value in inside if axis.low * (1.0 - 1e-9) <= value <= axis.high * (1.0 + 1e-9)]
            if len(inside) >= 3:
                return inside[:: -(-len(inside) // most)]
    least = max((axis.high - axis.low) / most, float(axis.whole))
    power = 10.0 ** math.floor(math.log10(least))
    step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= least * (1.0 - 1e-9))
    first, last = math.ceil(axis.low / step - 1e-9), math.floor(axis.high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def short(value: Any) -> str:
    """A number as people write it: four digits, powers of ten where it is very small or large."""
    if value is None or isinstance(value, str | bool):
        return "–" if value is None else str(value)
    if value == 0.0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000.0 else f"{value:.4g}"
    mantissa, _, power = f"{value:.1e}".partition("e")
    mantissa = mantissa.removesuffix(".0")
    factor = "" if mantissa == "1" else "-" if mantissa == "-1" else f"{mantissa}·"
    return f"{factor}10{str(int(power)).translate(_SUPERSCRIPT)}"


def signed(value: float) -> str:
    """A difference with its sign."""
    return f"{value:+.3f}".replace("-", "−")


def rounded(value: Number) -> Number:
    """A number to four digits, for what a page holds; None where it is none."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def thinned(count: int, most: int) -> list[int]:
    """Places of at most ``most`` out of ``count`` points, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def _with_half(series: Series, i: int) -> str:
    value = series.y[i]
    if value is None:
        return ""
    low, high = (bounds[i] if bounds else None for bounds in (series.low, series.high))
    if low is None or high is None or series.kind == "hollow":
        return short(value)
    return f"{short(value)} ({short(low)} to {short(high)})"
