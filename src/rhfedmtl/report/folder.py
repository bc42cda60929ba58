"""What a folder holds: the studies in it, or one that is gathered from single runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rhfedmtl.algorithms.registry import is_yardstick
from rhfedmtl.errors import ConfigError
from rhfedmtl.report.charts import short as number
from rhfedmtl.runs import lookup, records
from rhfedmtl.runs.records import Record
from rhfedmtl.studies.study import At, Point, Study, StudyResult, Variant, grid, place, short

OFTEN = ("request.data", "budget.", "seed")
"""Settings that runs are called by first."""
TIDYING = {"drop", "missing", "na", "categories", "most_values", "small_tasks"}
"""Settings of a table that say how its rows become features, and not what is learned from it."""


@dataclass(frozen=True, eq=False)
class Gathered(StudyResult):
    """Runs that nobody planned together, read already: seeds may be missing."""

    known: Mapping[str, Record]

    @cached_property
    def same_data(self) -> bool:
        """Whether all runs learned the same labels of one data set: other results cannot be ranked."""
        return len({_question(record) for record in self.known.values()}) == 1

    def record(self, variant: str, at: At, seed: int) -> Record:
        """The record of one run."""
        return self.known[self.runs[variant, place(at), seed]]


def read(folder: Path) -> list[StudyResult]:
    """All studies of a folder by name; single runs are gathered into one."""
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}: give one that `reproduce`, `compare` or `train` wrote")
    names = sorted(path.stem for path in folder.glob("studies/*.json"))
    if names:
        return [StudyResult.load(folder, name) for name in names]
    known = {name: records.load(path) for name, path in lookup.find(folder).items()}
    return [gather(known, folder)] if known else []


def gather(known: Mapping[str, Record], folder: Path) -> Gathered:
    """Runs that differ in the seed alone are one variant; budgets span an axis, other differences make variants."""
    paying = {name: r for name, r in known.items() if not is_yardstick(r.configuration.algorithm)}
    some = paying or known
    differing = {what: dict(zip(some, row, strict=True)) for what, row in lookup.differing(some.values()).items()}
    axes = {
        what: sorted(set(row.values()))
        for what, row in differing.items()
        if what.startswith("budget.") and None not in row.values()
    }
    told = {what: row for what, row in differing.items() if what not in axes and what not in ("algorithm", "seed")}
    points: list[Point] = []
    variants: dict[str, Variant] = {}
    for name, record in known.items():
        algorithm = record.configuration.algorithm
        label = ", ".join(filter(None, [algorithm, *(_said(what, row.get(name)) for what, row in told.items())]))
        variants[label] = Variant(label, label, algorithm, yardstick=is_yardstick(algorithm))
        # A yardstick knows no budget: it stands at every place.
        spots = grid(axes) if variants[label].yardstick else [{axis: differing[axis][name] for axis in axes}]
        points += [Point(label, at, record.configuration.seed, name) for at in spots]
    return Gathered(_study(list(known.values()), list(variants.values()), axes, points), folder, known)


def overlaid(known: Mapping[str, Record], folder: Path) -> Gathered:
    """Every run stands for itself, named by as few settings as tell it from the others."""
    # Of the settings that differ, use those that tell more runs apart; else the algorithm.
    differing = lookup.differing(known.values())
    words: list[tuple[str, ...]] = [()] * len(known)
    for what in sorted(differing, key=lambda what: (what != "algorithm", not what.startswith(OFTEN))):
        more = [(*old, _said(what, value)) for old, value in zip(words, differing[what], strict=True)]
        words = more if len(set(more)) > len(set(words)) else words
    algorithms = [record.configuration.algorithm for record in known.values()]
    labels = [", ".join(filter(None, each)) or plain for each, plain in zip(words, algorithms, strict=True)]
    names = {
        name: label if labels.count(label) == 1 else f"{label}, {name}"
        for name, label in zip(known, labels, strict=True)
    }
    of = {key: record.configuration.algorithm for key, record in known.items()}
    variants = [Variant(names[key], names[key], of[key], yardstick=is_yardstick(of[key])) for key in known]
    points = [Point(names[key], {}, record.configuration.seed, key) for key, record in known.items()]
    return Gathered(replace(_study(list(known.values()), variants, {}, points), seeds=1), folder, known)


def _study(known: list[Record], variants: list[Variant], axes: dict[str, list[Any]], points: list[Point]) -> Study:
    """What the study would have been, had somebody planned it."""
    names = [variant.name for variant in variants]
    paying = [variant.name for variant in variants if not variant.yardstick]
    data = ", ".join(dict.fromkeys(record.data.name for record in known))
    single = len(known) == 1
    return Study(
        name="run" if single else "runs",
        title=f"{known[0].configuration.algorithm} on {data}" if single else f"Runs on {data}",
        metric=_metric(known),
        x=next(iter(axes), None),
        seeds=len({point.seed for point in points}),
        reference="rhfedmtl" if "rhfedmtl" in names else [*paying, *names][0],
        views=["trajectories"] if single else [],
        variants=variants,
        axes=axes,
        points=points,
    )


def _metric(known: Sequence[Record]) -> str:
    """What to show: error for numbers, else balanced accuracy."""
    result = next((record.result for record in known if record.result), None)
    if result is None:
        reason = next((record.refused for record in known if record.refused), "no round is finished yet")
        raise ConfigError(f"no run has a result, so there is nothing to show: {reason}")
    return "rmse" if "rmse" in result.metrics else "balanced_accuracy"


def _question(record: Record) -> tuple[Any, ...]:
    """What a run learned: from which data set, and which labels."""
    asked = record.configuration.request
    settings = {name: value for name, value in asked.settings.items() if name not in TIDYING}
    return record.data.name, asked.path, asked.positive, tuple(sorted(settings.items()))


def _said(what: str, value: Any) -> str:
    """A setting as part of a name; nothing where a run does not have it."""
    if value is None or value is False or value == "" or what.endswith(".adds"):
        return ""
    if what in ("algorithm", "request.data"):
        return str(value)
    name = (what.rpartition(".")[2] if what.startswith("budget.") else short(what)).replace("_", " ")
    return name if value is True else f"{name} {value if isinstance(value, str) else number(value)}"
