"""Print plans, targets and calibrations as text of at most 80 columns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhfedmtl.cli.text import console, fact
from rhfedmtl.planning import words
from rhfedmtl.roles.words import how_many

if TYPE_CHECKING:
    from rich.table import Table

    from rhfedmtl.planning.calibration import Calibration
    from rhfedmtl.planning.plan import PlanReport
    from rhfedmtl.planning.target import TargetReport
    from rhfedmtl.resources.costs import Cost

ROWS = 14
NAME_WIDTH = 13
"""Width of the column with the names of facts."""


def show(report: PlanReport | TargetReport) -> None:
    """Print the plan for a budget, or the budget for a target."""
    from rhfedmtl.planning.plan import PlanReport

    if isinstance(report, PlanReport):
        _show_plan(report)
    else:
        _show_target(report)


def _show_plan(report: PlanReport) -> None:
    """Print a plan: work, cost, binding budget, and the curve over H."""
    screen = console()
    shape = report.federation
    low, high = shape["rows_per_terminal"]
    rows = f"{low}" if low == high else f"{low} to {high}"
    _line(
        "plan",
        f"policy {report.policy} for {shape['tasks']} tasks, {shape['terminals']} terminals with {rows} training rows "
        f"each (from {shape['from']})",
    )
    for name, text in words.work(report):
        _line(name, text)
    if report.cost:
        screen.print(_resources(report))
    for name, text in words.outcome(report):
        _line(name, text)
    if report.privacy is None:
        screen.print(_curve(report))
    for note in report.notes:
        _line("note", note)


def _resources(report: PlanReport) -> Table:
    """Return a table with a row for each priced type."""
    table = _table("resource", "cost", "budget", "share", "1 % more", "1 unit more", "feasible H")
    for name, amount in report.cost.items():
        limit = report.budget.get(name)
        if limit is None:
            table.add_row(name, words.number(amount), "–", "", "", "", "")
            continue
        price = report.shadow_price[name]
        limited = words.ranges(report.feasible_steps[name]) if name in report.feasible_steps else ""
        table.add_row(
            name,
            words.number(amount),
            words.number(limit),
            words.percent(report.share[name]),
            words.fall(price * limit / 100),
            words.fall(price),
            limited,
        )
    target = "predicted gap" if report.predicted_gap is not None else "remaining suboptimality"
    target = target if report.privacy is None else "cost of the noise"
    table.caption = f"1 % more, 1 unit more: relative fall of the {target}"
    return table


def _curve(report: PlanReport) -> Table:
    """Return a table with the cost and result of each H, thinned out to ROWS rows."""
    points = report.curve
    step = max(1, math.ceil(len(points) / ROWS))
    rows = [p for i, p in enumerate(points) if i % step == 0 or p.local_steps == report.local_steps]
    types = list(report.cost)[:2]
    theory = points[0].bound_rounds is not None
    heads = ["H", *(["K(H)"] if theory else []), *(f"{n} per round" for n in types)]
    heads += [f"total {n}" for n in types] if theory else []
    table = _table(*heads, "rounds paid", "remaining")
    for p in rows:
        cells = [str(p.local_steps), *([words.number(p.bound_rounds)] if theory else [])]
        cells += [words.number(p.round_cost[n]) for n in types]
        cells += [words.number((p.cost or {}).get(n)) for n in types] if theory else []
        cells += [f"{p.affordable_rounds:,}", words.number(p.remaining_suboptimality)]
        table.add_row(*cells, style="bold" if p.local_steps == report.local_steps else None)
    return table


def _show_target(report: TargetReport) -> None:
    """Print the budget that reaches a target, and the curve of cost against result."""
    screen = console()
    name, value = report.target.name, report.target.value
    sign = "at most" if report.target.falling else "at least"
    _line("target", f"{name} of {sign} {value:g}, policy {report.policy}, by {report.found_by}")
    if report.bounds:
        for bound, bound_plan in report.bounds.items():
            cost = ", ".join(f"{n} {words.number(c)}" for n, c in bound_plan["cost"].items())
            _line(bound, f"H = {bound_plan['local_steps']}, {words.number(bound_plan['rounds'])} rounds: {cost}")
    elif report.budget is not None:
        _line("budget", f"{report.resource}={words.number(report.budget)} is the smallest budget that reached it")
    else:
        _line("budget", f"no budget reached it; the best {name} is {report.best:.4g}")
    for limited, limit in report.limits.items():
        _line("limit", f"{limited}={words.number(limit)}")
    other_types = [name for name in next(iter(report.curve)).spent if name != report.resource][:1]
    several_seeds = report.level is not None
    heads = [f"{report.resource} budget", report.target.name.replace("_", " ")]
    heads += [f"{words.percent(report.level)} interval"] if several_seeds else []
    table = _table(*heads, "rounds", *(f"{name} spent" for name in other_types), "Pareto", "reaches")
    for p in report.curve:
        cells = [
            words.number(p.budget),
            f"{p.result:.3g}",
            *([f"{p.low:.3g} to {p.high:.3g}"] if several_seeds else []),
        ]
        cells += [words.number(p.rounds), *(words.number(p.spent[name]) for name in other_types)]
        best = p.budget == report.budget
        table.add_row(*cells, "*" if p.pareto else "", "yes" if p.reached else "", style="bold" if best else None)
    screen.print(table)
    for note in report.notes:
        _line("note", note)


def show_calibration(measured: Calibration, cost: Cost, out: Path) -> None:
    """Print the measured times and bytes, and the prices."""
    screen = console()
    b, sizes = measured.bench, measured.bytes
    _line(
        "timed",
        f"{b.terminals} terminals, {b.rows} {b.dtype} rows of {b.features} features, {how_many(b.columns, 'model')}",
    )
    times = _table("H", "time of an order")
    for H, seconds in measured.orders.items():
        times.add_row(f"{H:,}", _seconds(seconds))
    screen.print(times)
    _line("step", f"{_seconds(measured.step_seconds)}, plus {_seconds(measured.order_seconds)} per order")
    _line("station", f"{_seconds(measured.station_seconds)} per round")
    _line("cloud", f"{_seconds(measured.cloud_seconds)} per server iteration of {b.tasks} tasks")
    _line(
        "bytes",
        f"order {sizes.order:,}, update {sizes.update:,}, anchor {sizes.anchor:,}, report {sizes.report:,}",
    )
    prices = _table("price", *cost)
    for name in dict.fromkeys(key for table in cost.to_dict().values() for key in table if key != "adds"):
        prices.add_row(name, *(_price(table.get(name)) for table in cost.to_dict().values()))
    screen.print(prices)
    _line("saved in", f"{out}: use it with --cost {out}")


def _table(first: str, *right_columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    table.add_column(first, overflow="fold")
    for name in right_columns:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _line(name: str, text: str) -> None:
    fact(name, text, NAME_WIDTH)


def _price(value: Any) -> str:
    if isinstance(value, list):
        return f"{min(value):.3g}–{max(value):.3g}"
    return "0" if value is None else f"{value:.3g}"


def _seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1.0:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
