"""What if: sliders for sizes, prices and budgets, and the plan that follows from them, at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import Any

from rhfedmtl.algorithms.options import Options
from rhfedmtl.errors import ConfigError, RHFedMTLError
from rhfedmtl.planning.data_shape import DataShape
from rhfedmtl.planning.plan import PlanReport, plan
from rhfedmtl.report.charts import Axis, LineChart, Series, Style, short
from rhfedmtl.report.page import commands_html, figure_html
from rhfedmtl.report.sections import Section
from rhfedmtl.resources.costs import read_resources
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.run import Settings

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


SLIDERS = (
    Slider("tasks", "tasks (base stations)", 1, 200, 5, whole=True),
    Slider("terminals", "terminals of a station", 1, 2000, 5, whole=True),
    Slider("samples", "samples of a task", 10, 100_000, 70, whole=True),
    Slider("features", "features of a row", 1, 10_000, 100, whole=True),
    Slider("energy", "budget of energy", 10, 1e8, 1400),
    Slider("energy_step", "energy of a terminal's step", 1e-3, 10, 0.1),
    Slider("energy_round", "energy of a round", 1e-2, 1000, 10),
    Slider("time", "budget of time (s); 0: none", 1, 1e6, 0, optional=True),
    Slider("time_step", "seconds of a step", 1e-6, 10, 0.01),
    Slider("time_round", "seconds of a round", 1e-3, 100, 1),
    Slider("bytes", "budget of bytes; 0: none", 1e3, 1e12, 0, optional=True),
)


def values(query: Mapping[str, str]) -> dict[str, float]:
    """The numbers that are asked for; a start value where none, or no number, is given."""
    found: dict[str, float] = {}
    for slider in SLIDERS:
        try:
            value = float(query.get(slider.name, slider.start))
        except ValueError:
            value = slider.start
        value = value if math.isfinite(value) else slider.start
        bounded = min(max(value, 0.0 if slider.optional else slider.low), slider.high)
        found[slider.name] = round(bounded) if slider.whole else bounded
    return found


def view(query: Mapping[str, str]) -> str:
    """Sliders, and the answer beneath."""
    asked = values(query)
    fields = "".join(_field(slider, asked[slider.name]) for slider in SLIDERS)
    return (
        '<h1>What if</h1><p class="text">What a budget buys, before any of it is spent.</p>'
        f'<form class="whatif" action="/whatif">{fields}</form><div id="answer">{answer(asked)}</div>'
    )


def _field(slider: Slider, value: float) -> str:
    low, high = (math.log10(slider.low), math.log10(slider.high)) if slider.log else (slider.low, slider.high)
    place = math.log10(max(value, slider.low)) if slider.log else value
    step = "1" if slider.whole else "any"
    number = f"{value:g}" if not slider.whole else f"{value:.0f}"
    return (
        f'<div class="slider"><label for="{slider.name}">{escape(slider.label)}'
        f'<input type="number" id="{slider.name}" name="{slider.name}" value="{number}" min="0" step="{step}"></label>'
        f'<input type="range" data-twin="{slider.name}"{" data-log=1" if slider.log else ""} min="{low:g}" '
        f'max="{high:g}" step="any" value="{place:g}" aria-label="{escape(slider.label)}" id="{slider.name}-slider">'
        "</div>"
    )


def answer(asked: Mapping[str, float]) -> str:
    """The plan for these numbers, or why there is none."""
    facts = tuple(sorted(asked.items()))
    command = commands_html([("The same in a terminal", command_line(asked))])
    try:
        report = _plan(facts)
    except RHFedMTLError as error:
        return f'<p class="finding odds">{escape(str(error))}</p>{command}'
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in _facts(report))
    drawn = "".join(figure_html("whatif", Section("curve", "", paired=True), chart) for chart in _charts(report))
    return f'<dl class="facts">{rows}</dl><div class="charts">{drawn}</div>{command}'


@lru_cache(maxsize=256)
def _plan(facts: tuple[tuple[str, float], ...]) -> PlanReport:
    asked, options = dict(facts), Options()
    shape = DataShape(
        int(asked["tasks"]), int(asked["terminals"]), int(asked["samples"]), features=int(asked["features"])
    )
    cost, budget = read_resources(*_resources(asked))
    if not budget:
        raise ConfigError("no budget: give at least one")
    settings = Settings(max_rounds=1_000_000)
    return plan(
        shape, options.method("binary"), options.chosen_policy("measured"), settings, ledger=Ledger(cost, budget)
    )


def _resources(asked: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Prices and budgets in the words of the command line."""
    cost = [f"energy={asked['energy_step']:g},{asked['energy_round']:g}"]
    budget = [f"energy={asked['energy']:g}"]
    if asked["time"]:
        cost.append(f"time={asked['time_step']:g},{asked['time_round']:g}")
        budget.append(f"time={asked['time']:g}")
    if asked["bytes"]:
        budget.append(f"bytes={asked['bytes']:g}")
        cost.append("bytes=0,0,1")
    return cost, budget


def command_line(asked: Mapping[str, float]) -> str:
    """The command that gives the same answer."""
    sizes = {"tasks": "tasks", "terminals": "terminals", "samples": "samples-per-task", "features": "features"}
    parts = [f"--{word} {asked[name]:.0f}" for name, word in sizes.items()]
    cost, budget = _resources(asked)
    parts += [f"--cost {text}" for text in cost] + [f"--budget {text}" for text in budget]
    return f"rhfedmtl plan {' '.join(parts)}"


def _facts(report: PlanReport) -> list[tuple[str, str]]:
    low, high = report.local_steps_range
    varies = "" if low == high else f", {low} to {high} over the run"
    found: list[tuple[str, Any]] = [
        ("binding resource", report.binding or "none"),
        ("H", f"{report.local_steps} rows a terminal visits in a round{varies}"),
        ("K, M", f"{report.station_rounds:,} rounds of a station, {report.cloud_rounds:,} server iterations"),
        ("rounds", f"{report.rounds:,} in all, {report.terminal_steps:,} steps of terminals"),
        ("remaining suboptimality", f"{_share(report.remaining_suboptimality)} of what there is at the start"),
    ]
    for name, limit in report.budget.items():
        fall = -math.expm1(-report.shadow_price[name] * limit / 100)
        found.append((f"1 % more {name}", f"takes another {100 * fall:.2g} % off what remains"))
    return [*found, *(("note", note) for note in report.notes)]


def _share(value: float) -> str:
    return short(value) if value >= LEAST else f"less than {short(LEAST)}"


def _charts(report: PlanReport) -> list[LineChart]:
    """What remains, and how many rounds are paid, over H; the H of the plan as a mark."""
    points = [point for point in report.curve if point.affordable_rounds > 0]
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
