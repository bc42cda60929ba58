"""Sentences on a study: who is ahead, where not, and the differences of all methods."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.data.request import Request
from rhfedmtl.studies.findings import by_method, main_findings, who_is_ahead
from rhfedmtl.studies.planned import side_by_side
from rhfedmtl.studies.study import At, Cell, Point, Study, StudyResult, Variant
from rhfedmtl.training.config import RunConfig

BASE = RunConfig(request=Request(data="synthetic", tasks=2, terminals=2), cost=("energy=0.1,10",))


@dataclass(frozen=True, eq=False)
class Scores(StudyResult):
    """A study at budgets 100 and 400 with these accuracies of each method, by budget and seed."""

    scores: dict[str, tuple[list[float], list[float]]]

    def values(self, variant: str, at: At, metric: str | None = None) -> Any:
        """The accuracies of all seeds."""
        return np.array(self.scores[variant][[100, 400].index(at["budget.energy"])])


def _scored(scores: dict[str, tuple[list[float], list[float]]]) -> StudyResult:
    axes, seeds = {"budget.energy": [100, 400]}, len(next(iter(scores.values()))[0])
    points = [Point(name, {"budget.energy": b}, s, "") for name in scores for b in (100, 400) for s in range(seeds)]
    study = Study(
        name="scored",
        title="Scored",
        metric="accuracy",
        x="budget.energy",
        seeds=seeds,
        reference=next(iter(scores)),
        variants=[Variant(name, name, name) for name in scores],
        axes=axes,
        points=points,
    )
    return Scores(study, Path(), scores)


def test_the_first_sentence_says_where_the_leader_is_not_ahead() -> None:
    """It names methods that are level or ahead at some budget; a method that moves data does not compete."""
    leader = ([0.90, 0.91, 0.92], [0.95, 0.96, 0.97])
    behind = ([0.80, 0.81, 0.83], [0.85, 0.86, 0.88])
    level = ([0.80, 0.82, 0.81], [0.96, 0.95, 0.97])
    mover = ([0.95, 0.96, 0.98], [0.97, 0.98, 1.0])
    text = who_is_ahead(_scored({"hfedmtl": behind, "rhfedmtl": leader, "local": level, "mocha": mover}))
    assert text.startswith(
        "rhfedmtl is ahead of local, the next best of the methods that keep data in place, by 5.0 ± "
    )
    assert "points of accuracy on average over 2 budgets (95 % interval, paired over 3 seeds); " in text
    assert text.endswith(
        "; local is level with it at budget 400; mocha, which moves data, is ahead of it at 2 of 2 budgets."
    )
    sometimes = (mover[0], [0.94, 0.97, 0.98])
    text = who_is_ahead(_scored({"hfedmtl": behind, "rhfedmtl": leader, "mocha": sometimes}))
    assert text.endswith("; mocha, which moves data, is ahead of it at budget 100 and level with it at budget 400.")
    text = who_is_ahead(_scored({"rhfedmtl": leader, "mocha": mover}))
    assert text.startswith("mocha, which moves data, is ahead of rhfedmtl, the next best, by 3.8 ± ")


def test_the_first_sentence_admits_a_tie_and_a_single_seed() -> None:
    """A method is ahead only by a significant lead; a single seed has no interval."""
    first, second = ([0.90, 0.80, 0.92], [0.95, 0.96, 0.97]), ([0.80, 0.91, 0.91], [0.96, 0.95, 0.97])
    text = who_is_ahead(_scored({"rhfedmtl": first, "hfedmtl": second}))
    assert text.startswith("No method is significantly ahead: ")
    text = who_is_ahead(_scored({"rhfedmtl": ([0.9], [0.9]), "hfedmtl": ([0.8], [0.95])}))
    assert text == (
        "rhfedmtl is ahead of hfedmtl, the next best, by 2.5 points of accuracy on average over 2 budgets "
        "(a single seed, so no interval); hfedmtl is ahead of it at budget 400."
    )


Differences = dict[str, list[tuple[float, float | None]]]


def _with_differences(differences: Differences, seeds: int = 2) -> StudyResult:
    """A study whose cells have these differences to `rhfedmtl`, by method and budget."""
    budgets = [100.0 * (k + 1) for k in range(len(differences["local"]))]
    result = StudyResult(
        side_by_side(BASE, ["rhfedmtl", *differences], budgets, range(seeds), "accuracy").study, Path("unused")
    )
    result.__dict__["cells"] = [
        Cell(name, {"budget.energy": budget}, 0.9, 0.01, difference, None, 1.0, seeds)
        for name, values in differences.items()
        for budget, difference in zip(budgets, values, strict=True)
    ]
    return result


def test_differences_of_methods_share_a_sentence() -> None:
    """Each method has its mean difference and its verdicts; `mocha` keeps its mark."""
    worse, even, better = (-0.04, 0.01), (-0.01, 0.02), (0.03, 0.01)
    differences: Differences = {"local": [worse, even, even], "mocha": [better, worse, better]}
    assert by_method(_with_differences({**differences, "pooled": [better, better, better]})) == (
        "Mean differences to rhfedmtl, paired over 2 seeds: "
        "local −2.0 points (not distinguishable in 2 of 3, worse in 1); "
        "mocha (moves data) +0.7 points (better in 2 of 3, worse in 1)."
    )
    single = _with_differences({"local": [(-0.04, None)], "fedavg": [(0.04, None)]}, 1)
    assert by_method(single) == (
        "Mean differences to rhfedmtl (a single seed, so no interval): local −4.0 points; fedavg +4.0 points."
    )


def test_a_summary_needs_a_rival() -> None:
    """A single method has no sentence; with a single rival, the first sentence has the difference already."""
    scores = ([0.9, 0.8], [0.9, 0.8])
    assert main_findings(_scored({"rhfedmtl": scores})) == []
    pair = _scored({"rhfedmtl": scores, "local": ([0.7, 0.6], [0.7, 0.6])})
    assert main_findings(pair) == [who_is_ahead(pair)]
