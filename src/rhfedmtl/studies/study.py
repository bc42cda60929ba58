"""A study: methods × grid × seeds, with its runs, cells and comparisons.

`spec` and `planned` build a `Study`; `StudyResult` reads its records, for reports and tables. The grid is spanned by
axes. An axis is a setting by its place in the specification (``budget.energy``, ``data.terminals``) with its values.
All methods get the same splits, prices and budgets for each seed, so comparisons are paired by seed.
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

from rhfedmtl.algorithms.registry import moves_data
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.intervals import interval
from rhfedmtl.plain import read
from rhfedmtl.runs import records
from rhfedmtl.runs.records import Record

FORMAT = 1
At = Mapping[str, Any]


@dataclass(frozen=True)
class Variant:
    """A method of a study: its name in tables, its label in pictures, and True if its settings are tuned.

    A ``yardstick`` is a method without costs, which ignores the budget.
    """

    name: str
    label: str
    algorithm: str
    tuned: bool = False
    yardstick: bool = False


@dataclass(frozen=True)
class Point:
    """A run of a study, by its key."""

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


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, in our words, and how to test it.

    ``kind`` is "ahead" (the first method beats the second), "rises", "falls" or "peaks" (a method along an axis), or
    "narrows" (the lead of the first method over the second falls along an axis). The axis is ``along``, or ``x``.
    """

    says: str
    kind: str
    methods: list[str]
    along: str | None = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """Question and runs of a study.

    Attributes
    ----------
    x
        Axis that pictures draw along.
    reference
        Variant that all others are compared with.
    last
        Take the best of this many last rounds as the result of a run, as some authors do; 1 avoids this bias.
    choice
        Value along ``x`` that the paper recommends.
    pair
        Two variants; the paper's main claim is that the first is better.
    claims
        Further claims of the paper.
    column
        Name of the metric in tables.
    command
        Command line of the user.
    findings
        Results in sentences.
    """

    name: str
    title: str
    question: str = ""
    metric: str
    x: str | None = None
    seeds: int
    first_seed: int = 0
    reference: str
    last: int = 1
    choice: float | None = None
    pair: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
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
        """Values of the axis that pictures draw along; empty without such an axis."""
        return [] if self.x is None else self.axes[self.x]

    @property
    def others(self) -> list[dict[str, Any]]:
        """Places of all axes except ``x``: each is a panel or a table."""
        return grid({axis: values for axis, values in self.axes.items() if axis != self.x})

    def line(self, at: At) -> list[dict[str, Any]]:
        """Return the places along ``x``, with the other axes at ``at``."""
        return [{axis: at.get(axis, value) for axis in self.axes} for value in self.along] or [dict(at)]

    @property
    def sign(self) -> float:
        """-1 if smaller values are better: with this sign, a positive difference is better."""
        return -1.0 if self.metric == "rmse" else 1.0


@dataclass(frozen=True)
class Cell:
    """A variant at a place of the grid: mean over seeds, half of its 95 % interval, and the printed value.

    ``against`` is the difference to the reference, paired over seeds, with half of its interval. ``mean`` is None if a
    run has no result, and ``half`` is then None as well, as for a single seed. ``lambda2`` has the λ2 of each seed's
    run; it is empty for methods that couple no tasks.
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
        """Verdict against the reference: better, worse, or not distinguishable if the paired interval contains 0.

        A single seed has no interval and gets no verdict.
        """
        return judged(self.against)


EVEN = "not distinguishable"
MOVES_DATA = "(moves data)"
"""Mark in tables and sentences on a method that pools rows of several terminals."""


def judged(against: tuple[float, float | None] | None) -> str:
    """Return the verdict on a paired difference with half of its interval."""
    difference, half = against or (0.0, None)
    if half is None:
        return ""
    return "better" if difference > half else "worse" if difference < -half else EVEN


@dataclass(frozen=True, eq=False)
class StudyResult:
    """A finished study, and the folder with its records."""

    study: Study
    folder: Path

    @classmethod
    def load(cls, folder: Path, name: str) -> StudyResult:
        """Read a study; the records of its runs are read on demand."""
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
        """Places of the grid, with the last axis fastest."""
        return grid(self.study.axes)

    @cached_property
    def labels(self) -> dict[str, str]:
        """Labels of variants in pictures and sentences, by name, in their order."""
        return {variant.name: variant.label for variant in self.study.variants}

    @cached_property
    def running(self) -> list[str]:
        """Names of the variants that pay for their work."""
        return [variant.name for variant in self.study.variants if not variant.yardstick]

    @cached_property
    def moving(self) -> frozenset[str]:
        """Names of the variants that move data: they put rows of several terminals together on a machine."""
        return frozenset(variant.name for variant in self.study.variants if moves_data(variant.algorithm))

    @property
    def same_data(self) -> bool:
        """True if results may be ranked: at a place of a study, all runs have the same data."""
        return True

    @cached_property
    def cells(self) -> list[Cell]:
        """Every variant at every place."""
        return [self.cell(name, at) for name in self.labels for at in self.places]

    def record(self, variant: str, at: At, seed: int) -> Record:
        """Return the record of a run."""
        return records.cached(self.folder / "runs" / f"{self.runs[variant, place(at), seed]}.json")

    @cached_property
    def _seeds(self) -> dict[tuple[str, str], list[int]]:
        seeds: dict[tuple[str, str], list[int]] = {}
        for variant, where, seed in sorted(self.runs):
            seeds.setdefault((variant, where), []).append(seed)
        return seeds

    def seeds_of(self, variant: str, at: At) -> list[int]:
        """Return the seeds of the existing runs."""
        return self._seeds.get((variant, place(at)), [])

    def records(self, variant: str, at: At) -> list[Record]:
        """Return the records of all seeds."""
        return [self.record(variant, at, seed) for seed in self.seeds_of(variant, at)]

    def ran(self) -> dict[str, bool]:
        """Return for every run, by key, False if it was refused or diverged."""
        return {p.run: self.record(p.variant, p.at, p.seed).refused is None for p in self.study.points}

    def refusals(self) -> list[str]:
        """Return each reason for refused or diverged runs, with methods, places, and seeds if not all seeds."""
        reasons: dict[str, list[str]] = {}
        for cell in self.cells:
            runs = self.records(cell.variant, cell.at)
            refused = {r.configuration.seed: r.refused for r in runs if r.refused is not None}
            if refused:
                where = [f"{short(axis)} {value_text(value)}" for axis, value in cell.at.items()]
                where += [f"seed {seed}" for seed in refused] if len(refused) < len(runs) else []
                text = f"{cell.variant} at {', '.join(where)}" if where else cell.variant
                reasons.setdefault(next(iter(refused.values())), []).append(text)
        return [f"{reason} ({'; '.join(cells)})" for reason, cells in reasons.items()]

    def values(self, variant: str, at: At, metric: str | None = None) -> npt.NDArray[np.float64] | None:
        """Return the metric of every seed; None if a run is missing, was refused, or lacks this metric."""
        metric = metric or self.study.metric
        values = [value_of(record, metric, self.study.last) for record in self.records(variant, at)]
        return None if not values or None in values else np.array(values, dtype=np.float64)

    def difference(self, variant: str, at: At, baseline: str) -> tuple[float, float | None] | None:
        """Return how much better a variant is, paired over common seeds: mean and half of its 95 % interval."""
        pairs = self._pairs(variant, at, baseline)
        return interval(np.array(list(pairs.values()))) if pairs else None

    def mean_difference(self, variant: str, baseline: str) -> tuple[float, float | None] | None:
        """Return the same for the mean over all places at which both have results, paired over the seeds of all."""
        pairs = [pairs for at in self.places if (pairs := self._pairs(variant, at, baseline))]
        seeds = set.intersection(*map(set, pairs)) if pairs else set()
        if not seeds:
            return None
        return interval(np.array([np.mean([by_seed[seed] for by_seed in pairs]) for seed in sorted(seeds)]))

    def _pairs(self, variant: str, at: At, baseline: str) -> dict[int, float]:
        """Return by seed how much better a variant is; empty if the two cannot be compared."""
        first, second = self.values(variant, at), self.values(baseline, at)
        if first is None or second is None or variant == baseline or not self.same_data:
            return {}
        other = dict(zip(self.seeds_of(baseline, at), second, strict=True))
        own = dict(zip(self.seeds_of(variant, at), first, strict=True))
        return {seed: self.study.sign * float(own[seed] - other[seed]) for seed in own if seed in other}

    def cell(self, variant: str, at: At) -> Cell:
        """Return a cell of the table."""
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

    def weight_ranges(self, weight: str) -> dict[str, str]:
        """Return the λ1 or λ2 of each method, by its label; smallest and largest value if its runs differ."""
        texts = {}
        for name, label in self.labels.items():
            runs = [record for at in self.places for record in self.records(name, at)]
            values = sorted(run.weights[weight] for run in runs if weight in run.weights)
            if values:
                ends = dict.fromkeys((f"{values[0]:.3g}", f"{values[-1]:.3g}"))
                texts[label] = " to ".join(ends)
        return texts

    def lambda2_kept(self) -> list[str]:
        """Return labels of methods that kept the default λ2 although a method of the same study chose its λ2."""
        runs = {name: [r for at in self.places for r in self.records(name, at)] for name in self.labels}
        chosen = {name for name, records in runs.items() if any(run.selection is not None for run in records)}
        left_open = {
            name
            for name, records in runs.items()
            if any("lambda2" in run.weights and run.configuration.options.lambda2 is None for run in records)
            and not any(run.tuning is not None for run in records)
        }
        return [label for name, label in self.labels.items() if chosen and name in left_open - chosen]

    @cached_property
    def printed(self) -> dict[tuple[str, str], float]:
        """Values that the paper prints."""
        return {(p.variant, place(p.at)): p.value for p in self.study.paper}

    def printed_difference(self, first: str, second: str, at: At) -> float | None:
        """Return the difference of two values that the paper prints."""
        values = [self.printed.get((name, place(at))) for name in (first, second)]
        return None if None in values else (values[0] or 0.0) - (values[1] or 0.0)

    def best(self, at: At) -> str | None:
        """Return the variant with the best mean at a place; yardsticks do not compete, because they pay nothing.

        Return None if results cannot be ranked.
        """
        if not self.same_data:
            return None
        cells = [c for c in self.cells if c.at == at and c.variant in self.running and c.mean is not None]
        return max(cells, key=lambda c: self.study.sign * (c.mean or 0.0)).variant if cells else None


def value_of(record: Record, metric: str, last: int) -> float | None:
    """Return the result of a run, or the best of its last rounds if the study asks for it."""
    value = None if record.result is None else record.result.metrics.get(metric)
    if value is None or record.rounds is None or last == 1:
        return value
    rounds = [values for values in record.rounds.metrics[metric][-last:] if values is not None]
    return float(np.max([np.nanmean(np.array(values, dtype=np.float64)) for values in rounds]))


def grid(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all places that the axes span, with the last axis fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def place(at: At) -> str:
    """Return a place of the grid as text, for use as a key."""
    return json.dumps(dict(at), sort_keys=True)


def short(axis: str) -> str:
    """Return the column name of an axis: terminals for ``data.terminals``, budget for ``budget.energy``."""
    return NAMES.get(axis, axis.split(".", maxsplit=1)[0] if axis.startswith("budget.") else axis.rsplit(".", 1)[-1])


NAMES = {"data.terminals": "n_terminals", "data.tasks": "n_tasks"}


def signed(value: float, form: str) -> str:
    """Return a difference with its sign; zero has no sign."""
    text = f"{value:+{form}}"
    return text.lstrip("+-") if float(text) == 0.0 else text.replace("-", "−")


def value_text(value: Any) -> str:
    """Return a value of an axis as text."""
    return f"{value:g}" if isinstance(value, float) else str(value)
