"""What if: sliders for sizes, prices, budgets, drop-outs and privacy, and the plan that follows from them, at once.

Where the folder holds pilots that `rhfedmtl plan --pilot` kept, one of them may stand for the sizes: the gap is then
predicted from it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from pathlib import Path

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError, RHFedMTLError
from rhfedmtl.planning import words
from rhfedmtl.planning.pilot import ENDING, Pilot
from rhfedmtl.planning.plan import PlanReport
from rhfedmtl.planning.request import PlanRequest
from rhfedmtl.report.charts import Axis, LineChart, Series, Style
from rhfedmtl.report.page import commands_html, figure_html
from rhfedmtl.report.sections import Section

LEAST = 1e-12
"""Shares of the suboptimality below this are beyond any model of progress."""


@dataclass(frozen=True)
class Slider:
    """A number that can be moved; sliders over powers of ten are ``log``. 0 means none where ``optional``."""

    name: str
    label: str
    low: float
    high: float
    start: float
    whole: bool = False
    log: bool = True
    optional: bool = False

    @property
    def least(self) -> float:
        """The least number that can be typed."""
        return 0.0 if self.optional else self.low

    def read(self, text: str) -> tuple[float, str]:
        """The number that is shown for a text, and in a line why that is not what it says, if so."""
        try:
            asked = float(text or self.start)
        except ValueError:
            asked = math.nan
        near = min(max(asked, self.least), self.high) if math.isfinite(asked) else self.start
        shown = round(near) if self.whole else near
        if asked == shown:
            return shown, ""
        why = "no number" if math.isnan(asked) else "not whole" if asked == near else "out of range"
        return shown, f"{self.name.replace('_', ' ')} {text} is {why}: {shown:g} is shown"


GROUPS = {
    "Size": (
        Slider("tasks", "tasks (base stations)", 1, 200, 5, whole=True),
        Slider("terminals", "terminals of a station", 1, 2000, 5, whole=True),
        Slider("samples", "samples of a task", 10, 100_000, 70, whole=True),
        Slider("features", "features of a sample", 1, 10_000, 100, whole=True),
    ),
    "Energy": (
        Slider("energy", "budget", 10, 1e8, 1400),
        Slider("energy_step", "price of a step", 1e-3, 10, 0.1),
        Slider("energy_round", "price of a round", 1e-2, 1000, 10),
    ),
    "Time": (
        Slider("time", "budget (s), 0: none", 1, 1e6, 0, optional=True),
        Slider("time_step", "seconds of a step", 1e-6, 10, 0.01),
        Slider("time_round", "seconds of a round", 1e-3, 100, 1),
    ),
    "Bytes, losses, privacy": (
        Slider("bytes", "bytes, 0: none", 1e3, 1e12, 0, optional=True),
        Slider("dropout", "share of updates lost", 0, 0.9, 0, log=False),
        Slider("epsilon", "privacy ε, 0: none", 0.01, 100, 0, optional=True),
        Slider("delta", "privacy δ", 1e-12, 1e-2, 1e-6),
    ),
}
SLIDERS = tuple(slider for group in GROUPS.values() for slider in group)
SIZES = {"tasks": "tasks", "terminals": "terminals", "samples": "samples-per-task", "features": "features"}
"""Sliders of sizes, which a pilot has of its own, with their words on the command line."""


@dataclass(frozen=True)
class Scenario:
    """What is on the screen: numbers by the name of their slider, and the pilot that stands for the sizes, if any."""

    numbers: tuple[tuple[str, float], ...]
    pilot: Path | None = None

    def __getitem__(self, name: str) -> float:
        return dict(self.numbers)[name]

    @classmethod
    def of(cls, query: Mapping[str, str], folder: Path) -> Scenario:
        """From the address; a pilot that is not in the folder is none."""
        return cls(tuple(values(query).items()), pilots(folder).get(query.get("pilot", "")))

    def resources(self) -> tuple[list[str], list[str]]:
        """Prices and budgets in the words of the command line."""
        cost = [f"energy={self['energy_step']:.15g},{self['energy_round']:.15g}"]
        budget = [f"energy={self['energy']:.15g}"]
        if self["time"]:
            cost.append(f"time={self['time_step']:.15g},{self['time_round']:.15g}")
            budget.append(f"time={self['time']:.15g}")
        if self["bytes"]:
            cost.append("bytes=byte:1")
            budget.append(f"bytes={self['bytes']:.15g}")
        return cost, budget

    @property
    def faults(self) -> str:
        """Drop-outs in the words of the command line."""
        return f"dropout={self['dropout']:g}" if self["dropout"] else ""

    @property
    def privacy(self) -> str:
        """The bound in the words of the command line."""
        return f"epsilon={self['epsilon']:g},delta={self['delta']:g}" if self["epsilon"] else ""

    def command_line(self) -> str:
        """The command that gives the same answer."""
        sizes = [part for name, word in SIZES.items() for part in (f"--{word}", f"{self[name]:.0f}")]
        parts = sizes if self.pilot is None else ["--pilot", str(self.pilot)]
        cost, budget = self.resources()
        given = [("cost", text) for text in cost] + [("budget", text) for text in budget]
        given += [("faults", self.faults), ("privacy", self.privacy)]
        return shlex.join(
            ["rhfedmtl", "plan", *parts, *(x for name, text in given if text for x in (f"--{name}", text))]
        )


def pilots(folder: Path) -> dict[str, Path]:
    """Pilots that lie in a folder, by name."""
    return {path.stem: path for path in sorted(folder.glob(f"*{ENDING}"))}


def values(query: Mapping[str, str]) -> dict[str, float]:
    """The numbers that are shown; a start value where none, or no number, is given."""
    return {slider.name: slider.read(query.get(slider.name, ""))[0] for slider in SLIDERS}


def view(query: Mapping[str, str], folder: Path) -> str:
    """Sliders, and the answer beneath."""
    asked = Scenario.of(query, folder)
    hidden = SIZES if asked.pilot is not None else {}
    fields = "".join(
        f"<fieldset><legend>{title}</legend>{_pilots(folder, asked) if title == 'Size' else ''}"
        + "".join(_field(slider, asked[slider.name]) for slider in group if slider.name not in hidden)
        + "</fieldset>"
        for title, group in GROUPS.items()
    )
    notes = (slider.read(query.get(slider.name, ""))[1] for slider in SLIDERS)
    changed = "".join(f'<p class="finding odds">{escape(note)}</p>' for note in notes if note)
    return (
        '<h1>What if</h1><p class="text">What a budget buys, before any of it is spent. Move a slider, or type a '
        f'number; the address keeps them.</p><form class="whatif" action="/whatif">{fields}</form>'
        f'<div id="answer">{changed}{answer(asked)}</div>'
    )


def _pilots(folder: Path, asked: Scenario) -> str:
    """A choice of pilots, or how to make one."""
    known = pilots(folder)
    if not known:
        make = f"rhfedmtl plan --data NAME --budget energy=1400 --pilot {shlex.quote(str(folder / f'mine{ENDING}'))}"
        return f'<p class="hint">From your data, the gap is predicted too: <code>{escape(make)}</code></p>'
    options = "".join(
        f'<option value="{escape(name)}"{" selected" if path == asked.pilot else ""}>{escape(name)}</option>'
        for name, path in known.items()
    )
    return (
        '<div class="slider"><label for="pilot">from data: a stored pilot<select id="pilot" name="pilot">'
        f'<option value="">none</option>{options}</select></label></div>'
    )


def _field(slider: Slider, value: float) -> str:
    low, high = (math.log10(slider.low), math.log10(slider.high)) if slider.log else (slider.low, slider.high)
    place = math.log10(max(value, slider.low)) if slider.log else value
    step = "1" if slider.whole else "any"
    number = f"{value:g}" if not slider.whole else f"{value:.0f}"
    return (
        f'<div class="slider"><label for="{slider.name}">{escape(slider.label)}'
        f'<input type="number" id="{slider.name}" name="{slider.name}" value="{number}" min="{slider.least:g}" '
        f'max="{slider.high:g}" step="{step}"></label>'
        f'<input type="range" data-twin="{slider.name}"{" data-log=1" if slider.log else ""} min="{low:g}" '
        f'max="{high:g}" step="any" value="{place:g}" aria-label="{escape(slider.label)}" id="{slider.name}-slider">'
        "</div>"
    )


def answer(asked: Scenario) -> str:
    """The plan for these numbers, or why there is none."""
    command = commands_html([("The same in a terminal", asked.command_line())])
    try:
        report = plan_of(asked)
    except RHFedMTLError as error:
        return f'<p class="finding odds">{escape(str(error))}</p>{command}'
    facts = [*words.facts(report), *(("note", note) for note in report.notes)]
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts)
    drawn = "".join(figure_html("whatif", Section("curve", "", paired=True), chart) for chart in _charts(report))
    told = escape(words.sentence(report))
    return f'<p class="finding">{told}</p><dl class="facts">{rows}</dl><div class="charts">{drawn}</div>{command}'


@lru_cache(maxsize=256)
def plan_of(asked: Scenario) -> PlanReport:
    """What `rhfedmtl plan` would answer."""
    if asked.pilot is not None and asked.privacy:
        raise ConfigError(
            "a private run is planned from public numbers alone, and a pilot has looked at rows: choose one"
        )
    known = None if asked.pilot is None else _pilot(asked.pilot, asked.pilot.stat().st_mtime_ns)
    tasks, terminals, samples, features = (int(asked[name]) for name in SIZES)
    cost, budget = asked.resources()
    return PlanRequest(
        Request(tasks=tasks, terminals=terminals, samples_per_task=samples),
        Options(),
        cost=tuple(cost),
        budget=tuple(budget),
        features=features,
        privacy=asked.privacy,
        faults=asked.faults,
        pilot=known,
    ).plan()


@lru_cache(maxsize=8)
def _pilot(path: Path, _changed: int) -> Pilot:
    return Pilot.load(path)


def _charts(report: PlanReport) -> list[LineChart]:
    """What remains, and how many rounds are paid, over H; the H of the plan as a mark."""
    points = [point for point in report.curve if point.affordable_rounds > 0]
    if report.privacy is not None:  # H is designed with the noise, of which the curve knows nothing
        return []
    if len(points) < 2:
        return []
    steps = [float(point.local_steps) for point in points]
    x = Axis("H (local steps per round)", "log" if steps[-1] / steps[0] > 20 else "linear", whole=True)
    here = min(points, key=lambda point: abs(point.local_steps - report.local_steps))
    parts = (
        ("remaining", "What remains over H", "share of the suboptimality", "log", "remaining_suboptimality"),
        ("paid", "Rounds paid over H", "rounds", "log", "affordable_rounds"),
    )
    charts = []
    for key, title, label, scale, name in parts:
        curve = [max(float(getattr(point, name)), LEAST) for point in points]
        there = max(float(getattr(here, name)), LEAST)
        chosen = Series("the plan", [float(here.local_steps)], [there], style=Style(1, 1), kind="hollow")
        series = (Series("a fixed H", steps, curve, kind="line"), chosen)
        charts.append(LineChart(key, title, x, Axis(label, scale), series))
    return charts
