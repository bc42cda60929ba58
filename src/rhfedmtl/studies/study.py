"""A study: methods × grid × seeds, all runs of it, and what they say side by side.

The grid is spanned by axes, each a setting by its place in the specification (``budget.energy``, ``data.terminals``)
and the values that it takes. All methods meet the same splits, prices and budgets, seed by seed, so that differences
are taken pair by pair.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.intervals import interval
from rhfedmtl.plain import read
from rhfedmtl.runs import records
from rhfedmtl.runs.records import Record

FORMAT = 1
At = Mapping[str, Any]


@dataclass(frozen=True)
class Variant:
    """A method as it takes part: its name in tables, its label in pictures, and whether its settings are tuned.

    A ``yardstick`` knows no budget.
    """

    name: str
    label: str
    algorithm: str
    tuned: bool = False
    yardstick: bool = False


@dataclass(frozen=True)
class Point:
    """One run of a study, by its key."""

    variant: str
    at: dict[str, Any]
    seed: int
    run: str


@dataclass(frozen=True)
class Printed:
    """A value that the paper prints."""

    variant: str
    at: dict[str, Any]
    value: float


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is asked, and the runs that answer it.

    The others are compared with the variant ``reference``; ``x`` is the axis that pictures draw along. ``last`` takes
    the best of so many last rounds for the result of a run, as some authors do; 1 is the honest choice. ``choice`` is
    the value along ``x`` that the paper recommends, ``column`` what tables call the metric. ``command`` is what the
    user typed, ``findings`` what was found.
    """

    name: str
    title: str
    question: str = ""
    metric: str
    x: str | None = None
    seeds: int
    reference: str
    last: int = 1
    choice: float | None = None
    views: list[str] = field(default_factory=list)
    column: str | None = None
    notes: list[str] = field(default_factory=list)
    variants: list[Variant]
    axes: dict[str, list[Any]]
    points: list[Point]
    paper: list[Printed] = field(default_factory=list)
    command: str = ""
    findings: list[str] = field(default_factory=list)

    @property
    def along(self) -> list[Any]:
        """Values of the axis that pictures draw along; none without one."""
        return [] if self.x is None else self.axes[self.x]

    @property
    def others(self) -> list[dict[str, Any]]:
        """All places of the axes that pictures do not draw along: one panel, or one table, each."""
        return grid({axis: values for axis, values in self.axes.items() if axis != self.x})

    def line(self, at: At) -> list[dict[str, Any]]:
        """The places that a picture draws along, where the other axes are at ``at``."""
        return [{axis: at.get(axis, value) for axis in self.axes} for value in self.along] or [dict(at)]

    @property
    def sign(self) -> float:
        """-1 where smaller is better: differences are taken so that positive is better."""
        return -1.0 if self.metric == "rmse" else 1.0


@dataclass(frozen=True)
class Cell:
    """One variant at one place of the grid: mean over seeds, half of its 95 % interval, and what the paper prints.

    ``against`` is the difference to the reference, paired over seeds, with half of its interval. ``mean`` is None
    where a run has no result, ``half`` too where there is one seed. ``lambda2`` has the λ2 of the run of each seed; it
    is empty for methods that couple no tasks.
    """

    variant: str
    at: At
    mean: float | None
    half: float | None
    against: tuple[float, float | None] | None
    paper: float | None
    rounds: float
    seeds: int
    lambda2: list[float] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Against the reference: better, worse, or not distinguishable where the paired interval holds 0; else empty.

        One seed has no interval, so it decides nothing.
        """
        return judged(self.against)


EVEN = "not distinguishable"


def judged(against: tuple[float, float | None] | None) -> str:
    """A paired difference with half of its interval, in a word."""
    difference, half = against or (0.0, None)
    if half is None:
        return ""
    return "better" if difference > half else "worse" if difference < -half else EVEN


@dataclass(frozen=True, eq=False)
class StudyResult:
    """A study that was run, and the folder that holds its records."""

    study: Study
    folder: Path

    @classmethod
    def load(cls, folder: Path, name: str) -> StudyResult:
        """Read a study; the records of its runs are read when they are asked for."""
        path = folder / "studies" / f"{name}.json"
        try:
            table = json.loads(path.read_text())
            if not isinstance(table, dict) or table.get("format") != FORMAT:
                raise ConfigError(f"{path} is a study in another format: make it again with this version")
            return cls(read(Study, table), folder)
        except ConfigError:
            raise
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as a study: {error}") from error

    @cached_property
    def runs(self) -> dict[tuple[str, str, int], str]:
        """Key of the run of every variant, place and seed."""
        return {(p.variant, place(p.at), p.seed): p.run for p in self.study.points}

    @cached_property
    def places(self) -> list[dict[str, Any]]:
        """All places of the grid, the last axis fastest."""
        return grid(self.study.axes)

    @cached_property
    def labels(self) -> dict[str, str]:
        """How variants are called in pictures and sentences, by their names, in their order."""
        return {variant.name: variant.label for variant in self.study.variants}

    @cached_property
    def running(self) -> list[str]:
        """Names of the variants that pay for what they do."""
        return [variant.name for variant in self.study.variants if not variant.yardstick]

    @property
    def same_data(self) -> bool:
        """Whether results may be ranked: at a place of a study they are of one data set."""
        return True

    @cached_property
    def cells(self) -> list[Cell]:
        """Every variant at every place."""
        return [self.cell(name, at) for name in self.labels for at in self.places]

    def record(self, variant: str, at: At, seed: int) -> Record:
        """The record of one run."""
        return records.cached(self.folder / "runs" / f"{self.runs[variant, place(at), seed]}.json")

    @cached_property
    def _seeds(self) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = {}
        for variant, where, seed in sorted(self.runs):
            found.setdefault((variant, where), []).append(seed)
        return found

    def seeds_of(self, variant: str, at: At) -> list[int]:
        """Seeds of the runs that are there."""
        return self._seeds.get((variant, place(at)), [])

    def records(self, variant: str, at: At) -> list[Record]:
        """Records of all seeds."""
        return [self.record(variant, at, seed) for seed in self.seeds_of(variant, at)]

    def ran(self) -> dict[str, bool]:
        """Whether runs, by their keys, were neither refused nor diverged."""
        return {p.run: self.record(p.variant, p.at, p.seed).refused is None for p in self.study.points}

    def refusals(self) -> list[str]:
        """Why runs were refused or diverged, each reason once, with whom it met, where, and the seeds if not all."""
        found: dict[str, list[str]] = {}
        for cell in self.cells:
            many = self.records(cell.variant, cell.at)
            refused = {r.configuration.seed: r.refused for r in many if r.refused is not None}
            if refused:
                where = [f"{short(axis)} {_known(value)}" for axis, value in cell.at.items()]
                where += [f"seed {seed}" for seed in refused] if len(refused) < len(many) else []
                text = f"{cell.variant} at {', '.join(where)}" if where else cell.variant
                found.setdefault(next(iter(refused.values())), []).append(text)
        return [f"{reason} ({'; '.join(cells)})" for reason, cells in found.items()]

    def values(self, variant: str, at: At, metric: str | None = None) -> npt.NDArray[np.float64] | None:
        """Metric of every seed; None where there is no run, or one was refused, or has no such metric."""
        metric = metric or self.study.metric
        values = [value_of(record, metric, self.study.last) for record in self.records(variant, at)]
        return None if not values or None in values else np.array(values, dtype=np.float64)

    def difference(self, variant: str, at: At, other: str) -> tuple[float, float | None] | None:
        """Variant minus other, paired over the seeds of both: mean, half of its 95 % interval; positive is better."""
        mine, theirs = self.values(variant, at), self.values(other, at)
        ours, others = self.seeds_of(variant, at), self.seeds_of(other, at)
        both = [seed for seed in ours if seed in others]
        if mine is None or theirs is None or not both or variant == other or not self.same_data:
            return None
        pairs = [mine[ours.index(seed)] - theirs[others.index(seed)] for seed in both]
        return interval(self.study.sign * np.array(pairs))

    def cell(self, variant: str, at: At) -> Cell:
        """One cell of the table."""
        seeds = len(self.seeds_of(variant, at))
        values = self.values(variant, at)
        printed = self.printed.get((variant, place(at)))
        if values is None:
            return Cell(variant, at, None, None, None, printed, 0.0, seeds)
        mean, half = interval(values)
        rounds = float(np.mean([record.result.rounds for record in self.records(variant, at) if record.result]))
        against = self.difference(variant, at, self.study.reference)
        lambda2 = [r.weights["lambda2"] for r in self.records(variant, at) if "lambda2" in r.weights]
        return Cell(variant, at, mean, half, against, printed, rounds, seeds, lambda2)

    def every_record(self) -> list[Record]:
        """Records of all runs."""
        return [self.record(point.variant, point.at, point.seed) for point in self.study.points]

    def weight_ranges(self, weight: str) -> dict[str, str]:
        """The λ1 or λ2 that each method used, by its label; the smallest and the largest if its runs differ."""
        texts = {}
        for name, label in self.labels.items():
            runs = [record for at in self.places for record in self.records(name, at)]
            values = sorted(run.weights[weight] for run in runs if weight in run.weights)
            if values:
                ends = dict.fromkeys((f"{values[0]:.3g}", f"{values[-1]:.3g}"))
                texts[label] = " to ".join(ends)
        return texts

    def lambda2_kept(self) -> list[str]:
        """Labels of the methods that kept the usual λ2 although a method of the same study chose its own."""
        runs = {name: [r for at in self.places for r in self.records(name, at)] for name in self.labels}
        chosen = {name for name, many in runs.items() if any(run.selection is not None for run in many)}
        left_open = {
            name
            for name, many in runs.items()
            if any("lambda2" in run.weights and run.configuration.options.lambda2 is None for run in many)
            and not any(run.tuning is not None for run in many)
        }
        return [label for name, label in self.labels.items() if chosen and name in left_open - chosen]

    @cached_property
    def printed(self) -> dict[tuple[str, str], float]:
        """Values that the paper prints."""
        return {(p.variant, place(p.at)): p.value for p in self.study.paper}

    def best(self, at: At) -> str | None:
        """Variant with the best mean at a place; yardsticks, which do not pay, are out of the running.

        None where results cannot be ranked.
        """
        if not self.same_data:
            return None
        here = [c for c in self.cells if c.at == at and c.variant in self.running and c.mean is not None]
        return max(here, key=lambda c: self.study.sign * (c.mean or 0.0)).variant if here else None


def value_of(record: Record, metric: str, last: int) -> float | None:
    """Result of a run; the best of its last rounds where a study asks for that."""
    value = None if record.result is None else record.result.metrics.get(metric)
    if value is None or record.rounds is None or last == 1:
        return value
    rounds = [values for values in record.rounds.metrics[metric][-last:] if values is not None]
    return float(np.max([np.nanmean(np.array(values, dtype=np.float64)) for values in rounds]))


def grid(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All places that axes span, the last one fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def place(at: At) -> str:
    """A place of the grid in a word, to look up by."""
    return json.dumps(dict(at), sort_keys=True)


def short(axis: str) -> str:
    """Name of an axis as a column of a table: ``data.terminals`` is terminals, ``budget.energy`` is budget."""
    return NAMES.get(axis, axis.split(".", maxsplit=1)[0] if axis.startswith("budget.") else axis.rsplit(".", 1)[-1])


NAMES = {"data.terminals": "n_terminals", "data.tasks": "n_tasks"}


def _known(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
