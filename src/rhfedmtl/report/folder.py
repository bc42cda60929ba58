"""Read the studies of a folder, or gather single runs into a study.

A report needs studies. `read` loads the studies of `reproduce` or `compare`; without them, `gather` makes a study
from single runs, with budgets as an axis and all other differences as variants. `overlaid` does the same for a few runs
that the dashboard compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rhfedmtl.algorithms.registry import is_yardstick
from rhfedmtl.display import short as number
from rhfedmtl.errors import ConfigError
from rhfedmtl.runs import lookup, records
from rhfedmtl.runs.records import Record
from rhfedmtl.studies.study import At, Point, Study, StudyResult, Variant, grid, place, short

FIRST_SETTINGS = ("request.data", "budget.", "seed")
"""Settings that come first in the name of a run."""
PREPARATION_SETTINGS = {"drop", "missing", "na", "categories", "most_values", "small_tasks"}
"""Settings of a table for the conversion of its rows to features; they do not change the labels."""


@dataclass(frozen=True, eq=False)
class Gathered(StudyResult):
    """Study of runs that were not planned together; seeds may be missing."""

    by_name: Mapping[str, Record]

    @cached_property
    def same_data(self) -> bool:
        """True if all runs predict the same labels of a data set; other results cannot be ranked."""
        return len({_question(record) for record in self.by_name.values()}) == 1

    def record(self, variant: str, at: At, seed: int) -> Record:
        """Return the record of a run."""
        return self.by_name[self.runs[variant, place(at), seed]]


def read(folder: Path) -> list[StudyResult]:
    """Return all studies of a folder by name, or a study gathered from single runs."""
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}: give an output folder of `reproduce`, `compare` or `train`")
    names = sorted(path.stem for path in folder.glob("studies/*.json"))
    if names:
        return [StudyResult.load(folder, name) for name in names]
    found_records = {name: records.load(path) for name, path in lookup.find(folder).items()}
    return [gather(found_records, folder)] if found_records else []


def gather(runs: Mapping[str, Record], folder: Path) -> Gathered:
    """Make a study of runs: runs that differ only in the seed are a variant, budgets are an axis.

    All other differences make variants.
    """
    paying = {name: r for name, r in runs.items() if not is_yardstick(r.configuration.algorithm)}
    varied = paying or runs
    differing = {key: dict(zip(varied, row, strict=True)) for key, row in lookup.differing(varied.values()).items()}
    axes = {
        key: sorted(set(row.values()))
        for key, row in differing.items()
        if key.startswith("budget.") and None not in row.values()
    }
    settings = {key: row for key, row in differing.items() if key not in axes and key not in ("algorithm", "seed")}
    points: list[Point] = []
    variants: dict[str, Variant] = {}
    for name, record in runs.items():
        algorithm = record.configuration.algorithm
        label = ", ".join(filter(None, [algorithm, *(_phrase(key, row.get(name)) for key, row in settings.items())]))
        variants[label] = Variant(label, label, algorithm, yardstick=is_yardstick(algorithm))
        # A baseline has no budget, so it appears at every place.
        spots = grid(axes) if variants[label].yardstick else [{axis: differing[axis][name] for axis in axes}]
        points += [Point(label, at, record.configuration.seed, name) for at in spots]
    return Gathered(_study(list(runs.values()), list(variants.values()), axes, points), folder, runs)


def overlaid(groups: Sequence[Mapping[str, Record]], folder: Path) -> Gathered:
    """Make a study in which every group of seeds is a variant, named by as few settings as identify it."""
    # Add a setting to the names only if it distinguishes more groups; fall back to the algorithm.
    runs = {name: record for group in groups for name, record in group.items()}
    first = {next(iter(group)): next(iter(group.values())) for group in groups}
    differing = lookup.differing(first.values())
    if len(runs) > len(groups):
        differing.pop("seed", None)
    words: list[tuple[str, ...]] = [()] * len(groups)
    for key in sorted(differing, key=lambda key: (key != "algorithm", not key.startswith(FIRST_SETTINGS))):
        more = [(*old, _phrase(key, value)) for old, value in zip(words, differing[key], strict=True)]
        words = more if len(set(more)) > len(set(words)) else words
    algorithms = [record.configuration.algorithm for record in first.values()]
    labels = [", ".join(filter(None, parts)) or plain for parts, plain in zip(words, algorithms, strict=True)]
    names = {
        name: label if labels.count(label) == 1 else f"{label}, {name}"
        for name, label in zip(first, labels, strict=True)
    }
    of = {run: record.configuration.algorithm for run, record in first.items()}
    variants = [Variant(names[run], names[run], of[run], yardstick=is_yardstick(of[run])) for run in first]
    points = [
        Point(label, {}, record.configuration.seed, run)
        for label, group in zip(names.values(), groups, strict=True)
        for run, record in group.items()
    ]
    seeds = max(len({record.configuration.seed for record in group.values()}) for group in groups)
    return Gathered(replace(_study(list(runs.values()), variants, {}, points), seeds=seeds), folder, runs)


def _study(runs: list[Record], variants: list[Variant], axes: dict[str, list[Any]], points: list[Point]) -> Study:
    """Return the study as if it had been planned."""
    names = [variant.name for variant in variants]
    paying = [variant.name for variant in variants if not variant.yardstick]
    data = ", ".join(dict.fromkeys(record.data.name for record in runs))
    single = len(runs) == 1
    return Study(
        name="run" if single else "runs",
        title=f"{runs[0].configuration.algorithm} on {data}" if single else f"Runs on {data}",
        metric=_metric(runs),
        x=next(iter(axes), None),
        seeds=len({point.seed for point in points}),
        reference="rhfedmtl" if "rhfedmtl" in names else [*paying, *names][0],
        views=["trajectories"] if single else [],
        variants=variants,
        axes=axes,
        points=points,
    )


def _metric(runs: Sequence[Record]) -> str:
    """Return the metric to show: RMSE for numbers, else balanced accuracy."""
    result = next((record.result for record in runs if record.result), None)
    if result is None:
        reason = next((record.refused for record in runs if record.refused), "no round is finished yet")
        raise ConfigError(f"no run has a result, so there is nothing to show: {reason}")
    return "rmse" if "rmse" in result.metrics else "balanced_accuracy"


def _question(record: Record) -> tuple[Any, ...]:
    """Return the prediction problem of a run: data set and labels."""
    request = record.configuration.request
    settings = {name: value for name, value in request.settings.items() if name not in PREPARATION_SETTINGS}
    return record.data.name, request.path, request.positive, tuple(sorted(settings.items()))


def _phrase(key: str, value: Any) -> str:
    """Return a setting as part of a name; empty if a run does not have it."""
    if value is None or value is False or value == "" or key.endswith(".adds"):
        return ""
    if key in ("algorithm", "request.data"):
        return str(value)
    name = (key.rpartition(".")[2] if key.startswith("budget.") else short(key)).replace("_", " ")
    return name if value is True else f"{name} {value if isinstance(value, str) else number(value)}"
