"""Claims of the paper, tested on the results of a study."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.report import small_results

from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.intervals import interval
from rhfedmtl.studies.claims import pair_differences, sentences, verdict_on
from rhfedmtl.studies.findings import findings
from rhfedmtl.studies.study import Claim, Study, StudyResult, Variant

NOISE = np.array([-0.004, 0.001, 0.003])
TERMINALS, BUDGETS = [5, 10], [200, 400, 800]


@dataclass(frozen=True, eq=False)
class Known(StudyResult):
    """A study whose values are a function of method, terminals and budget; the method ``missing`` has none at 10."""

    def values(self, variant: str, at: Mapping[str, Any], metric: str | None = None) -> npt.NDArray[np.float64] | None:
        """Return values of three seeds."""
        terminals, budget = at["data.terminals"], BUDGETS.index(at["budget.energy"])
        if variant == "missing" and terminals == 10:
            return None
        base = {"rising": 0.70 + 0.02 * budget, "peaked": 0.8 - 0.05 * abs(budget - 1), "level": 0.6, "missing": 0.5}
        lead = 0.1 if variant == "level" and terminals == 5 else 0.0
        return np.asarray(base[variant] - lead + NOISE * (1 + budget))


def known() -> Known:
    """Return the study, without records."""
    names = ["rising", "peaked", "level", "missing"]
    study = Study(
        name="known",
        title="known",
        metric="accuracy",
        x="budget.energy",
        seeds=3,
        reference="rising",
        variants=[Variant(name, name, "rhfedmtl") for name in names],
        axes={"data.terminals": TERMINALS, "budget.energy": BUDGETS},
        points=[],
    )
    return Known(study, Path())


@pytest.mark.parametrize(
    ("claim", "verdict", "figure"),
    [
        (Claim("", "ahead", ["rising", "level"]), "Holds", "+17.0 ± 0.0 points"),
        (Claim("", "ahead", ["level", "rising"]), "Fails", "−17.0 ± 0.0 points"),
        (Claim("", "ahead", ["level", "level"]), "Not distinguishable", "0.0 ± 0.0 points"),
        (Claim("", "rises", ["rising"]), "Holds", "+4.0 ± 1.8 points from budget = 200 to 800"),
        (Claim("", "falls", ["rising"]), "Fails", "+4.0 ± 1.8 points from budget = 200 to 800"),
        (Claim("", "rises", ["level"]), "Not distinguishable", "0.0 ± 1.8 points from budget = 200 to 800"),
        (
            Claim("", "peaks", ["peaked"]),
            "Holds",
            "at its peak, 400, +5.0 ± 0.9 points against budget = 200 and +5.0 ± 0.9 points against budget = 800",
        ),
        (
            Claim("", "narrows", ["rising", "level"], "data.terminals"),
            "Holds",
            "−10.0 ± 0.0 points from n_terminals = 5 to 10",
        ),
        (Claim("", "ahead", ["rising", "missing"]), "Holds", "+22.0 ± 0.0 points, at n_terminals = 5"),
    ],
)
def test_a_claim_gets_a_verdict_with_its_figure(claim: Claim, verdict: str, figure: str) -> None:
    """Differences are paired by seed; a verdict needs an interval without 0; incomplete lines do not count."""
    assert verdict_on(known(), claim) == (verdict, figure)


@pytest.mark.parametrize(
    "claim", [Claim("", "peaks", ["rising"], "data.terminals"), Claim("", "rises", ["missing"], "data.terminals")]
)
def test_a_claim_that_cannot_be_tested_has_no_verdict(claim: Claim) -> None:
    """A peak needs three values, and each line needs its runs."""
    assert verdict_on(known(), claim) is None
    result = known()
    assert sentences(Known(replace(result.study, claims=[claim]), Path())) == []


def document(**more: Any) -> dict[str, Any]:
    """Return a small study of the paper's pair, with printed values."""
    methods = [{"algorithm": "rhfedmtl-paper"}, {"algorithm": "hfedmtl-paper"}, {"algorithm": "rhfedmtl"}]
    paper = [
        {"method": "rhfedmtl-paper", "values": [[0.7, 0.8]] * 2},
        {"method": "hfedmtl-paper", "values": [[0.6, 0.6]] * 2},
    ]
    pair = ["rhfedmtl-paper", "hfedmtl-paper"]
    grid = {**small_results.GRID, "methods": methods, "paper": paper, "reference": "rhfedmtl"}
    return {**grid, "pair": pair, "claims": [{"says": "A.", "kind": "ahead", "methods": pair}], **more}


def test_the_paper_s_pair_has_its_table_and_comes_first(tmp_path: Path) -> None:
    """The difference of the pair stands next to the printed difference; the other table keeps its reference."""
    result = small_results.study("pair", document(), seeds=2).run(tmp_path, workers=1)
    with (tmp_path / "pair-paper-differences.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["paper"]) for row in rows] == pytest.approx([0.1, 0.2, 0.1, 0.2])
    assert {row["algorithm"] for row in rows} == {"rhfedmtl-paper"}
    at = {"data.terminals": 3, "budget.energy": 400}
    difference = result.values("rhfedmtl-paper", at) - result.values("hfedmtl-paper", at)
    assert float(rows[3]["minus_hfedmtl-paper"]) == pytest.approx(float(difference.mean()), abs=1e-6)
    with (tmp_path / "pair-differences.csv").open() as file:
        assert {row["algorithm"] for row in csv.DictReader(file)} == {"rhfedmtl-paper", "hfedmtl-paper"}

    first, claim, *_ = findings(result)
    assert first == pair_differences(result)[0]
    assert first.startswith("rhfedmtl-paper minus hfedmtl-paper, mean over all values of budget: ")
    assert first.count("(the paper prints +15.0) at n_terminals = ") == 2
    line = [
        result.values("rhfedmtl-paper", {**at, "budget.energy": budget})
        - result.values("hfedmtl-paper", {**at, "budget.energy": budget})
        for budget in (100, 400)
    ]
    mean, half = interval(100 * np.mean(line, axis=0))
    assert f"{mean:+.1f} ± {half:.1f} points (the paper prints +15.0) at n_terminals = 3." in first.replace("−", "-")
    assert claim.startswith("The paper says: A. ")


def test_the_first_seed_moves_all_seeds() -> None:
    """Seeds follow the first."""
    study, configs = small_results.specs.study(
        document(), "pair", small_results.specs.SourceLines("pair", {}), seeds=3, first_seed=5000
    )
    assert {point.seed for point in study.points} == {config.seed for config in configs.values()} == {5000, 5001, 5002}
    assert study.first_seed == 5000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pair": ["rhfedmtl-paper"]}, "a pair is two of the methods rhfedmtl-paper"),
        ({"pair": ["rhfedmtl-paper", "mocha"]}, "a pair is two of the methods"),
        ({"claims": [{"says": "A.", "kind": "wins", "methods": ["rhfedmtl"]}]}, "a claim has a kind, ahead"),
        ({"claims": [{"says": "A.", "kind": "rises", "methods": ["mocha"]}]}, "a claim has a kind"),
        ({"claims": [{"says": "A.", "kind": "ahead", "methods": ["rhfedmtl"]}]}, "a claim has a kind"),
        ({"claims": [{"says": "A.", "kind": "rises", "methods": ["rhfedmtl"], "along": "x"}]}, "none of the axes"),
        ({"claims": [{"says": "A.", "methods": ["rhfedmtl"]}]}, "a claim needs kind"),
    ],
)
def test_claims_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    """Before anything runs."""
    with pytest.raises(ConfigError, match=message):
        small_results.study("pair", document(**changes))
