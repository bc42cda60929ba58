"""All budgets at once: areas, ranks and gaps are those that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata
from tests.report import small_results

from rhfedmtl.report import tables
from rhfedmtl.studies.overall import overall
from rhfedmtl.studies.planned import run_all
from rhfedmtl.studies.study import StudyResult


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """Three budgets, two numbers of terminals, two methods that pay and one that does not."""
    document = {**small_results.GRID, "axes": {"data.terminals": [2, 3], "budget.energy": [50, 100, 400]}, "paper": []}
    (result,) = run_all([small_results.study("grid", document)], tmp_path_factory.mktemp("overall"), workers=1)
    return result


def test_areas_are_integrals_over_the_logarithm(found: StudyResult) -> None:
    """By trapezoids, over the width; differences are paired over seeds, and ranks are SciPy's."""
    at = {"data.terminals": 3}
    rows = {row.variant: row for row in overall(found, at)}
    assert set(rows) == {"rhfedmtl", "hfedmtl"}
    line = found.study.line(at)
    values = {name: np.stack([found.values(name, where) for where in line]) for name in rows}
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


def test_a_report_lays_studies_side_by_side(found: StudyResult) -> None:
    """One row a place of the other axes, the methods that pay across, mean ranks last."""
    assert tables.across([found]) is None
    table = tables.across([found, replace(found, study=replace(found.study, name="again"))])
    assert table is not None
    ((_, rows),) = table.groups
    assert [row[0].note for row in rows[:-1]] == ["2 terminals per base station", "3 terminals per base station"] * 2
    assert rows[-1][0].text == "mean rank"
    assert sum(float(cell.text) for cell in rows[-1][1:]) == pytest.approx(3.0, abs=0.11)
    assert tables.complete_axis(found) is not None


def test_what_has_one_budget_has_no_area(tmp_path: Path) -> None:
    """Nor has a method that a budget does not pay."""
    (single,) = run_all([small_results.study("faulty", small_results.FAULTY, 1)], tmp_path, workers=1)
    assert overall(single, {}) == []
    assert tables.complete_axis(single) is None
    assert tables.across([single]) is None
