"""Chapter of the paper's cost figure: K and cost over H by two formulas, and the three budget cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rhfedmtl.report.charts import Axis, Chart, LineChart, Series, Style, all_series, short
from rhfedmtl.report.sections import Chapter, Section
from rhfedmtl.report.tables import Table, TableCell
from rhfedmtl.studies import cost_figure
from rhfedmtl.studies.cost_figure import CostCurve

CHOSEN_TEXT = "chosen for the three budgets"
FORMULAS = {"text": "bound of the paper's text", "drawn": "curve of the paper's figure"}


def theory(curves: list[CostCurve]) -> Chapter:
    """Return the chapter with the curves and the chosen H at each budget."""
    rows = tuple(_row(curve, i) for curve in curves for i in range(len(curve.chosen)))
    table = Table(("", "ε", "budget", "case", "chosen H", "K"), (("", rows),))
    title = "K and cost over H, and the three budget cases"
    sections = (
        Section("curves", "K and cost over H", charts=tuple(_charts(curves)), folded=False, paired=True),
        Section("cases", "Choices of the procedure", table=table, folded=False),
    )
    told, legend = tuple(cost_figure.findings(curves)), tuple(all_series(sections[0].charts))
    return Chapter(cost_figure.FIGURE_NAME, title, told, sections, legend=legend)


def _row(curve: CostCurve, i: int) -> tuple[TableCell, ...]:
    chosen = curve.chosen[i]
    name = FORMULAS.get(curve.formula, curve.formula)
    numbers = (short(curve.epsilon), short(chosen.budget), chosen.case, short(chosen.local_steps), short(chosen.rounds))
    return (TableCell(name), *(TableCell(text) for text in numbers))


def _charts(curves: Sequence[CostCurve]) -> list[Chart]:
    """Return a figure for each formula, because their scales differ."""
    charts: list[Chart] = []
    H = Axis("H (local steps per round)", integer=True)
    for formula in dict.fromkeys(curve.formula for curve in curves):
        of_formula = [curve for curve in curves if curve.formula == formula]
        name = FORMULAS.get(formula, formula)
        rounds, cost = Axis("K (rounds of a station)", low=0.0), Axis("cost (energy units)", low=0.0)
        charts.append(LineChart(f"{formula}-rounds", f"K: {name}", H, rounds, tuple(_series(of_formula, "rounds"))))
        charts.append(LineChart(f"{formula}-cost", f"Cost: {name}", H, cost, tuple(_series(of_formula, "cost"))))
    return charts


def _series(curves: Sequence[CostCurve], field: str) -> Iterator[Series]:
    """Yield the curve of each target, and the choices for the three budgets on it."""
    for i, curve in enumerate(curves):
        name, style, y = f"ε = {short(curve.epsilon)}", Style(i, i, i), getattr(curve, field)
        yield Series(name, [float(H) for H in curve.local_steps], y, style=style)
        chosen = sorted({case.local_steps for case in curve.chosen})
        values = [y[curve.local_steps.index(H)] for H in chosen]
        yield Series(f"chosen, {name}", [float(H) for H in chosen], values, (), (), style, "hollow", CHOSEN_TEXT, name)
