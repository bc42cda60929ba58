"""Two small studies, really run: all that a report can show, in a second or two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rhfedmtl.studies import spec as specs
from rhfedmtl.studies.planned import run_all
from rhfedmtl.studies.study import StudyResult

HOSTILE = '<img src=x onerror="alert(1)"> & Söhne $x$'
"""A name that would break a page, or a figure, that did not take it as text."""
SEEDS = 3
PRINTED = [[0.61, 0.62], [0.63, 0.64]]

GRID: dict[str, Any] = {
    "title": "Accuracy by budget and number of terminals",
    "question": "Does a larger budget help?",
    "metric": "accuracy",
    "x": "budget.energy",
    "data": {"name": "synthetic", "tasks": 3, "set": {"test": 30}},
    "cost": {"energy": {"step": 0.1, "station": 10}},
    "axes": {"data.terminals": [2, 3], "budget.energy": [100, 400]},
    "methods": [
        {"algorithm": "rhfedmtl", "label": HOSTILE},
        {"algorithm": "hfedmtl", "label": "HFedMTL"},
        {"algorithm": "pooled", "label": "all data in one place"},
    ],
    "paper": [{"method": "rhfedmtl", "values": PRINTED}],
    "views": ["work", "trajectories"],
}
FAULTY: dict[str, Any] = {
    "title": "With lost updates",
    "question": "Who holds up when updates get lost?",
    "metric": "accuracy",
    "data": {"name": "synthetic", "tasks": 4, "terminals": 3, "set": {"test": 30}},
    "cost": {"energy": {"step": 0.1, "station": 10}, "time": {"step": 0.01, "station": 1, "cloud": 2}},
    "budget": {"energy": 600, "time": 100},
    "faults": {"dropout": 0.3},
    "methods": [
        {"algorithm": "rhfedmtl"},
        {"algorithm": "rhfedmtl", "name": "learned", "relationship": "learned"},
        {"algorithm": "fedavg"},
        {"algorithm": "local"},
        {"algorithm": "ditto"},
        {"algorithm": "cocoa"},
    ],
}


def make(out: Path, seeds: int = SEEDS) -> list[StudyResult]:
    """Run both studies into ``out``."""
    studies = [study("grid", GRID, seeds), study("faulty", FAULTY, seeds)]
    return run_all(studies, out, workers=1, command="rhfedmtl reproduce grid faulty")


def study(name: str, document: dict[str, Any], seeds: int = SEEDS) -> Any:
    """A study from its document."""
    return specs.study(document, name, specs.SourceLines(name, {}), seeds=seeds)
