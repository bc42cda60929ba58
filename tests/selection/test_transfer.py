"""The report of negative transfer names the tasks that the others harm, and no others for certain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.maths.relationships import MeanRegularised, Unrelated
from rhfedmtl.selection.folds import Precision
from rhfedmtl.selection.transfer import transfer

QUICK = Precision(1e-2, 2.0, 100)


def family(samples: int = 12, **settings: float) -> Federation:
    """Six close relatives; the last one has all of its training labels turned round."""
    request = Request(
        data="synthetic",
        tasks=6,
        terminals=2,
        settings={"samples": samples, "relatedness": 0.98, "noise": 0.02, "heterogeneity": 0.0, **settings},
    )
    data = request.federation(0)
    turned = data.row_task == 5
    return replace(data, y=np.where(turned, 1 - data.y if data.class_names else -data.y, data.y))


def test_a_task_among_opposites_is_better_alone() -> None:
    """Drawn to the mean of tasks that contradict it, the odd task is harmed; its relatives are not."""
    report = transfer(family(samples=40), DualMethod(relationship=MeanRegularised(1e-3, 1.0)), precision=QUICK)
    assert report.better_alone == ("task-5",)
    assert report.tasks[5].high < 0.0 < -report.tasks[5].gain


def test_relatives_with_few_rows_are_helped() -> None:
    """Tasks that are nearly one, with 40 rows each in 20 dimensions, all gain from each other."""
    report = transfer(family(samples=20), DualMethod(relationship=MeanRegularised(1e-3, 3e-2)), precision=QUICK)
    assert all(task.gain > 0.0 for task in report.tasks[:5])
    assert "helped" in [task.verdict for task in report.tasks[:5]]


def test_the_same_relationship_transfers_nothing() -> None:
    """Compared with itself, nothing is gained, nothing lost, and nothing decided."""
    report = transfer(family(), DualMethod(relationship=Unrelated(1e-2)), precision=QUICK)
    assert all(task.gain == 0.0 and task.verdict == "open" for task in report.tasks)
    assert report.mean.gain == 0.0


def test_a_regression_is_judged_by_its_squared_error() -> None:
    """Without classes the values are negative mean squared errors."""
    method = DualMethod(LOSSES["squared"](), MeanRegularised(1e-2, 1.0))
    report = transfer(family(samples=40, classes=0), method, precision=QUICK)
    assert "task-5" in report.better_alone
    assert all(task.together < 0.0 for task in report.tasks)


def test_the_report_reads_as_text_and_as_values() -> None:
    """Every task, the verdicts and the cost are in both."""
    report = transfer(family(), DualMethod(relationship=MeanRegularised(1e-3, 1.0)), precision=QUICK)
    values, text = report.to_dict(), report.text()
    assert [task["name"] for task in values["tasks"]] == [f"task-{b}" for b in range(6)]
    assert values["better_alone"] == list(report.better_alone)
    assert all(f"task-{b}" in text for b in range(6))
    assert "cost: 8 problems" in text
