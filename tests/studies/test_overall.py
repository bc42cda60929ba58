"""All budgets at once: areas, ranks and gaps are those that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata
from tests.report import small_results

from rhfedmtl.cli.text import show_study
from rhfedmtl.data.request import Request
from rhfedmtl.report import tables
from rhfedmtl.studies.overall import overall
from rhfedmtl.studies.planned import run_all, side_by_side
from rhfedmtl.studies.study import StudyResult
from rhfedmtl.training.config import RunConfig


@pytest.fixture(scope="module")
def three_budgets(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """Three budgets, two numbers of terminals, two methods that pay and one that does not."""
    document = {**small_results.GRID, "axes": {"data.terminals": [2, 3], "budget.energy": [50, 100, 400]}, "paper": []}
    (result,) = run_all([small_results.study("grid", document)], tmp_path_factory.mktemp("overall"), workers=1)
    return result


def test_areas_are_integrals_over_the_logarithm(three_budgets: StudyResult) -> None:
    """By trapezoids, over the width; differences are paired over seeds, and ranks are SciPy's."""
    at = {"data.terminals": 3}
    rows = {row.variant: row for row in overall(three_budgets, at)}
    assert set(rows) == {"rhfedmtl", "hfedmtl"}
    line = three_budgets.study.line(at)
    values = {name: np.stack([three_budgets.values(name, where) for where in line]) for name in rows}
    x = np.log([50.0, 100.0, 400.0])
    areas = {name: np.trapezoid(v, x, axis=0) / (x[-1] - x[0]) for name, v in values.items()}
    for name, row in rows.items():
        assert row.area == pytest.approx(areas[name].mean(), rel=1e-12)
    against = rows["hfedmtl"].against
    assert against is not None
    assert against[0] == pytest.approx((areas["hfedmtl"] - areas["rhfedmtl"]).mean(), rel=1e-9)
    assert rows["rhfedmtl"].against is None
    ranks = rankdata(-np.stack(list(values.values())), axis=0).mean(axis=(1, 2))
    assert [rows[name].rank for name in values] == pytest.approx(list(ranks))


def test_the_optimum_lies_between_bound_and_objective_at_the_largest_budget(three_budgets: StudyResult) -> None:
    """Lower bounds and objectives are means over seeds; the table of the command line shows both."""
    rows = {row.variant: row for row in overall(three_budgets, {"data.terminals": 3})}
    at = {"data.terminals": 3, "budget.energy": 400}
    for name, row in rows.items():
        runs = [record.result for record in three_budgets.records(name, at)]
        duals, primals = ([getattr(run, bound) for run in runs] for bound in ("dual", "primal"))
        assert row.optimum == pytest.approx((np.mean(duals), np.mean(primals)))
        assert row.optimum[0] <= row.optimum[1]


def test_tables_show_the_range_of_the_optimum(three_budgets: StudyResult, capsys: pytest.CaptureFixture[str]) -> None:
    """Every method has a range, in place of a relative gap that says little about methods far from their optimum."""
    show_study(three_budgets)
    printed = capsys.readouterr().out
    for row in overall(three_budgets, {"data.terminals": 3}):
        assert row.optimum is not None
        assert "{:.3g} to {:.3g}".format(*row.optimum) in printed
    assert "certified range of the optimum at budget 400" in " ".join(printed.split())


def test_a_private_comparison_shows_relative_gaps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Objectives of private runs are not released, and so there is no range."""
    base = RunConfig(
        request=Request("synthetic", tasks=2, terminals=20, settings={"samples": 200}),
        cost=("energy=0.1,10",),
        privacy="epsilon=5,delta=1e-3",
    )
    result = side_by_side(base, ["rhfedmtl", "local"], [400.0, 800.0], range(1), "accuracy").run(tmp_path, workers=1)
    assert result.refusals() == []
    assert [row.optimum for row in overall(result, {})] == [None, None]
    show_study(result)
    assert "relative gap" in capsys.readouterr().out


def test_a_report_lays_studies_side_by_side(three_budgets: StudyResult) -> None:
    """One row a place of the other axes, the methods that pay across, mean ranks last."""
    assert tables.across([three_budgets]) is None
    table = tables.across([three_budgets, replace(three_budgets, study=replace(three_budgets.study, name="again"))])
    assert table is not None
    ((_, rows),) = table.groups
    assert [row[0].note for row in rows[:-1]] == ["2 terminals per base station", "3 terminals per base station"] * 2
    assert rows[-1][0].text == "mean rank"
    assert sum(float(cell.text) for cell in rows[-1][1:]) == pytest.approx(3.0, abs=0.11)
    assert tables.complete_axis(three_budgets) is not None


def test_what_has_one_budget_has_no_area(tmp_path: Path) -> None:
    """Nor has a method that a budget does not pay."""
    (single,) = run_all([small_results.study("faulty", small_results.FAULTY, 1)], tmp_path, workers=1)
    assert overall(single, {}) == []
    assert tables.complete_axis(single) is None
    assert tables.across([single]) is None
