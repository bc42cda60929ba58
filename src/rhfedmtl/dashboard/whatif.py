"""Page "What if": sliders for sizes, prices, budgets, drop-outs and privacy, and the resulting plan.

The server calls `view`. The address holds all numbers, so a page can be shared and reloaded. If the folder has pilots
of `rhfedmtl plan --pilot`, a pilot can replace the sizes, and the plan then predicts the gap.
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

LEAST_AMOUNT = 1e-12
"""Smaller shares of the suboptimality are beyond the accuracy of the model of progress."""


@dataclass(frozen=True)
class Slider:
    """A number with a slider; ``log`` sliders move over powers of ten, and 0 switches an ``optional`` number off."""

    name: str
    label: str
    low: float
    high: float
    start: float
    integer: bool = False
    log: bool = True
    optional: bool = False

    @property
    def minimum(self) -> float:
        """Smallest number that can be typed."""
        return 0.0 if self.optional else self.low

    def read(self, text: str) -> tuple[float, str]:
        """Return the number for a text, and a message if the number differs from the text."""
        try:
            number = float(text or self.start)
        except ValueError:
            number = math.nan
        near = min(max(number, self.minimum), self.high) if math.isfinite(number) else self.start
        value = round(near) if self.integer else near
        if number == value:
            return value, ""
        why = "not a number" if math.isnan(number) else "not an integer" if number == near else "out of range"
        return value, f"{self.name.replace('_', ' ')} {text} is {why}: using {value:g}"


SLIDER_GROUPS = {
    "Size": (
        Slider("tasks", "tasks (base stations)", 1, 200, 5, integer=True),
        Slider("terminals", "terminals per station", 1, 2000, 5, integer=True),
        Slider("samples", "samples per task", 10, 100_000, 70, integer=True),
        Slider("features", "features", 1, 10_000, 100, integer=True),
    ),
    "Energy": (
        Slider("energy", "budget", 10, 1e8, 1400),
        Slider("energy_step", "price of a step", 1e-3, 10, 0.1),
        Slider("energy_round", "price of a round", 1e-2, 1000, 10),
    ),
    "Time": (
        Slider("time", "budget (s), 0: no budget", 1, 1e6, 0, optional=True),
        Slider("time_step", "seconds per step", 1e-6, 10, 0.01),
        Slider("time_round", "seconds per round", 1e-3, 100, 1),
    ),
    "Bytes, losses, privacy": (
        Slider("bytes", "bytes, 0: no budget", 1e3, 1e12, 0, optional=True),
        Slider("dropout", "share of lost updates", 0, 0.9, 0, log=False),
        Slider("epsilon", "privacy ε, 0: no privacy", 0.01, 100, 0, optional=True),
        Slider("delta", "privacy δ", 1e-12, 1e-2, 1e-6),
    ),
}
SLIDERS = tuple(slider for group in SLIDER_GROUPS.values() for slider in group)
SIZES = {"tasks": "tasks", "terminals": "terminals", "samples": "samples-per-task", "features": "n-features"}
"""Sliders of sizes with their options on the command line; a pilot has its own sizes."""


@dataclass(frozen=True)
class Scenario:
    """Input of the page: numbers by the name of their slider, and the pilot that replaces the sizes, if any."""

    numbers: tuple[tuple[str, float], ...]
    pilot: Path | None = None

    def __getitem__(self, name: str) -> float:
        return dict(self.numbers)[name]

    @classmethod
    def of(cls, query: Mapping[str, str], folder: Path) -> Scenario:
        """Read a scenario from the address; a pilot that is not in the folder is ignored."""
        return cls(tuple(values(query).items()), pilots(folder).get(query.get("pilot", "")))

    def resources(self) -> tuple[list[str], list[str]]:
        """Return prices and budgets as on the command line."""
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
        """Drop-outs as on the command line."""
        return f"dropout={self['dropout']:g}" if self["dropout"] else ""

    @property
    def privacy(self) -> str:
        """Bound on privacy as on the command line."""
        return f"epsilon={self['epsilon']:g},delta={self['delta']:g}" if self["epsilon"] else ""

    def command_line(self) -> str:
        """Return the command with the same answer."""
        sizes = [part for name, word in SIZES.items() for part in (f"--{word}", f"{self[name]:.0f}")]
        parts = sizes if self.pilot is None else ["--pilot", str(self.pilot)]
        cost, budget = self.resources()
        options = [("cost", text) for text in cost] + [("budget", text) for text in budget]
        options += [("faults", self.faults), ("privacy", self.privacy)]
        return shlex.join(
            ["rhfedmtl", "plan", *parts, *(x for name, text in options if text for x in (f"--{name}", text))]
        )


def pilots(folder: Path) -> dict[str, Path]:
    """Return the pilots in a folder, by name."""
    return {path.stem: path for path in sorted(folder.glob(f"*{ENDING}"))}


def values(query: Mapping[str, str]) -> dict[str, float]:
    """Return the numbers of all sliders; a missing or invalid number becomes the start value."""
    return {slider.name: slider.read(query.get(slider.name, ""))[0] for slider in SLIDERS}


def view(query: Mapping[str, str], folder: Path) -> str:
    """Return the answer in a sentence, the sliders, and the plan behind the answer."""
    scenario = Scenario.of(query, folder)
    hidden = SIZES if scenario.pilot is not None else {}
    fields = "".join(
        f"<fieldset><legend>{title}</legend>{_pilots(folder, scenario) if title == 'Size' else ''}"
        + "".join(_field(slider, scenario[slider.name]) for slider in group if slider.name not in hidden)
        + "</fieldset>"
        for title, group in SLIDER_GROUPS.items()
    )
    notes = (slider.read(query.get(slider.name, ""))[1] for slider in SLIDERS)
    changed = "".join(f'<p class="finding odds">{escape(note)}</p>' for note in notes if note)
    sentence, details = answer(scenario)
    return (
        '<h1>What if</h1><p class="text">See what a budget buys before you spend it. Move a slider or type a '
        f'number; the address stores all numbers.</p><div id="answer" role="status">{changed}{sentence}</div>'
        f'<form class="whatif" action="/whatif">{fields}</form><div id="plan">{details}</div>'
    )


def _pilots(folder: Path, scenario: Scenario) -> str:
    """Return a menu of pilots, or the command that makes a pilot."""
    by_name = pilots(folder)
    if not by_name:
        make = f"rhfedmtl plan --data NAME --budget energy=1400 --pilot {shlex.quote(str(folder / f'mine{ENDING}'))}"
        return f'<p class="hint">To predict the gap from your data: <code>{escape(make)}</code></p>'
    options = "".join(
        f'<option value="{escape(name)}"{" selected" if path == scenario.pilot else ""}>{escape(name)}</option>'
        for name, path in by_name.items()
    )
    return (
        '<div class="slider"><label for="pilot">pilot from your data<select id="pilot" name="pilot">'
        f'<option value="">none</option>{options}</select></label></div>'
    )


def _field(slider: Slider, value: float) -> str:
    low, high = (math.log10(slider.low), math.log10(slider.high)) if slider.log else (slider.low, slider.high)
    place = math.log10(max(value, slider.low)) if slider.log else value
    step = "1" if slider.integer else "any"
    number = f"{value:g}" if not slider.integer else f"{value:.0f}"
    return (
        f'<div class="slider"><label for="{slider.name}">{escape(slider.label)}'
        f'<input type="number" id="{slider.name}" name="{slider.name}" value="{number}" min="{slider.minimum:g}" '
        f'max="{slider.high:g}" step="{step}"></label>'
        f'<input type="range" data-twin="{slider.name}"{" data-log=1" if slider.log else ""} min="{low:g}" '
        f'max="{high:g}" step="any" value="{place:g}" aria-label="{escape(slider.label)}" id="{slider.name}-slider">'
        "</div>"
    )


def answer(scenario: Scenario) -> tuple[str, str]:
    """Return the answer in a sentence, and the plan; or the reason why it is impossible."""
    command = commands_html([("The same on the command line", scenario.command_line())])
    try:
        report = plan_of(scenario)
    except RHFedMTLError as error:
        return f'<p class="finding odds">{escape(str(error))}</p>', command
    facts = [*words.facts(report), *(("note", note) for note in report.notes)]
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts)
    drawn = "".join(figure_html("whatif", Section("curve", "", paired=True), chart) for chart in _charts(report))
    summary = escape(words.sentence(report))
    plan = f'<dl class="facts">{rows}</dl><div class="charts">{drawn}</div>{command}'
    return f'<p class="finding">{summary}</p>', plan


@lru_cache(maxsize=256)
def plan_of(scenario: Scenario) -> PlanReport:
    """Return the plan of the same command `rhfedmtl plan`."""
    if scenario.pilot is not None and scenario.privacy:
        raise ConfigError(
            "a private plan may use only public numbers, and a pilot has read rows: leave out the pilot or privacy"
        )
    pilot = None if scenario.pilot is None else _pilot(scenario.pilot, scenario.pilot.stat().st_mtime_ns)
    tasks, terminals, samples, features = (int(scenario[name]) for name in SIZES)
    cost, budget = scenario.resources()
    return PlanRequest(
        Request(tasks=tasks, terminals=terminals, samples_per_task=samples),
        Options(),
        cost=tuple(cost),
        budget=tuple(budget),
        features=features,
        privacy=scenario.privacy,
        faults=scenario.faults,
        pilot=pilot,
    ).plan()


@lru_cache(maxsize=8)
def _pilot(path: Path, _changed: int) -> Pilot:
    return Pilot.load(path)


def _charts(report: PlanReport) -> list[LineChart]:
    """Return the remaining suboptimality and the affordable rounds over H; a mark shows H of the plan."""
    points = [point for point in report.curve if point.affordable_rounds > 0]
    if report.privacy is not None:  # The curve ignores noise, and H depends on it.
        return []
    if len(points) < 2:
        return []
    steps = [float(point.local_steps) for point in points]
    x = Axis("H (local steps per round)", "log" if steps[-1] / steps[0] > 20 else "linear", integer=True)
    nearest = min(points, key=lambda point: abs(point.local_steps - report.local_steps))
    parts = (
        ("remaining", "Remaining suboptimality over H", "share of the suboptimality", "log", "remaining_suboptimality"),
        ("paid", "Rounds paid over H", "rounds", "log", "affordable_rounds"),
    )
    charts = []
    for key, title, label, scale, name in parts:
        curve = [max(float(getattr(point, name)), LEAST_AMOUNT) for point in points]
        planned = max(float(getattr(nearest, name)), LEAST_AMOUNT)
        chosen = Series("the plan", [float(nearest.local_steps)], [planned], style=Style(1, 1), kind="hollow")
        series = (Series("a fixed H", steps, curve, kind="line"), chosen)
        charts.append(LineChart(key, title, x, Axis(label, scale), series))
    return charts
