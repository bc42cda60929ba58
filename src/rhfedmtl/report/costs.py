"""Chapter of the paper's cost figure: K and cost over H by two formulas, and the three budget cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rhfedmtl.display import short
from rhfedmtl.report.charts import Axis, Chart, LineChart, Series, Style, all_series
from rhfedmtl.report.sections import Chapter, Section
from rhfedmtl.report.tables import Table, TableCell
from rhfedmtl.studies import cost_figure
from rhfedmtl.studies.cost_figure import CostCurve

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
    """Yield the curve of each target; on the paper's curve also the three budgets, and the H chosen for each."""
    for i, curve in enumerate(curves):
        H, y = [float(H) for H in curve.local_steps], getattr(curve, field)
        yield Series(f"ε = {short(curve.epsilon)}", H, y, style=Style(i, i, i))
        if curve.epsilon != cost_figure.PAPER_EPSILON[curve.formula]:
            continue
        for j, chosen in enumerate(curve.chosen):
            style, name = Style(2 + j, 2 + j, j), f"budget {short(chosen.budget)}: {chosen.case}"
            if field == "cost":
                yield Series(name, [H[0], H[-1]], [chosen.budget, chosen.budget], style=style, kind="level")
            place = curve.local_steps.index(chosen.local_steps)
            yield Series(
                f"H chosen for {short(chosen.budget)}", [H[place]], [y[place]], (), (), style, "hollow", of=name
            )
