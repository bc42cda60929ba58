"""Display objects: a table of facts in a notebook, charts with matplotlib as in scikit-learn, and progress lines.

The classes read fields of records and results and import no other part of the package, so every part may use them.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import Any, Self

from rhfedmtl.errors import ConfigError, MissingExtraError

METRICS = ("balanced_accuracy", "accuracy", "rmse")
"""Preferred metrics of a result, the best first; a regression has only ``rmse``."""
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def facts_html(title: str, facts: Mapping[str, Any]) -> str:
    """Return a small HTML table for notebooks: a title, and names with their values."""
    rows = "".join(
        f'<tr><th style="text-align:left;font-weight:500">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(written(value))}</td></tr>'
        for name, value in facts.items()
        if value is not None
    )
    return f'<table class="rhfedmtl"><caption style="text-align:left"><b>{escape(title)}</b></caption>{rows}</table>'


def written(value: Any) -> str:
    """Format a value: numbers with four digits, counts with commas."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def short(value: Any) -> str:
    """Return a number with four digits, or with a power of ten if it is very small or large."""
    if value is None or isinstance(value, str | bool):
        return "–" if value is None else str(value)
    if value == 0.0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000.0 else f"{value:.4g}"
    mantissa, _, power = f"{value:.1e}".partition("e")
    mantissa = mantissa.removesuffix(".0")
    factor = "" if mantissa == "1" else "-" if mantissa == "-1" else f"{mantissa}·"
    return f"{factor}10{str(int(power)).translate(_SUPERSCRIPT)}"


def amounts(spent: Mapping[str, float], budget: Mapping[str, float]) -> str:
    """Return the costs and their limits as a line of text."""
    parts = (f"{name} {x:g}" + (f" of {budget[name]:g}" if name in budget else "") for name, x in spent.items())
    return ", ".join(parts)


class Telling:
    """Watcher that prints the progress of a run: a moving bar in a notebook, otherwise a line for each round."""

    def __init__(self, budget: Mapping[str, float]) -> None:
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        self._budget, self._notebook = budget, type(shell).__name__ == "ZMQInteractiveShell"
        self._bar: Any = None
        self._due = 0.0

    def __call__(self, progress: Any) -> None:
        """Print a round."""
        gap = "" if progress.certificate is None else f", relative gap {progress.certificate.relative_gap:.2e}"
        remaining = {name: x for name, x in progress.left.items() if math.isfinite(x)}
        words = f"round {progress.round}{gap}" + "".join(f", {name} left {x:g}" for name, x in remaining.items())
        if not self._notebook:
            sys.stdout.write(f"{words}\n")
        elif (now := time.monotonic()) >= self._due or not min(remaining.values(), default=1.0):
            self._due = now + 0.1
            shares = [1.0 - x / self._budget[name] for name, x in remaining.items() if self._budget.get(name)]
            value = f' value="{max(shares):.4f}"' if shares else ""
            display: Any = import_module("IPython.display")  # some of its functions have no types
            line = display.HTML(f"<progress{value}></progress> <code>{escape(words)}</code>")
            if self._bar is None:
                self._bar = display.display(line, display_id=True)
            else:
                self._bar.update(line)


@dataclass
class RunCurve:
    """Curves of a run: costs (or rounds), the mean of a metric over tasks, and the certified gap."""

    label: str
    x: list[float]
    metric: list[float]
    gap: list[float]


@dataclass
class LearningCurveDisplay:
    """A metric and the certified gap over the costs; ``plot`` sets ``axes_`` and ``figure_``."""

    curves: list[RunCurve]
    x_label: str
    metric: str
    axes_: Any = field(default=None, repr=False)
    figure_: Any = field(default=None, repr=False)

    @classmethod
    def from_result(cls, result: Any, *, metric: str | None = None, label: str = "") -> Self:
        """Build the display from the result of a run."""
        moments, metric = result.history, _metric(result.metrics, metric)
        kind = next(iter(result.ledger.spent), None)
        x = [float(moment.round if kind is None else moment.spent[kind]) for moment in moments]
        values = [_mean(moment.metrics.get(metric, ())) for moment in moments]
        return cls([RunCurve(label, x, values, [float(moment.gap) for moment in moments])], _along(kind), metric)

    @classmethod
    def from_estimator(cls, estimator: Any, *, metric: str | None = None) -> Self:
        """Build the display from a fitted estimator."""
        return cls.from_result(estimator.result_, metric=metric, label=type(estimator).__name__)

    @classmethod
    def from_records(cls, records: Iterable[Any], *, metric: str | None = None) -> Self:
        """Build the display from records of runs, with a curve for each; refused runs have no curve."""
        finished = [record for record in records if record.rounds is not None]
        if not finished:
            raise ConfigError("no record with rounds: there is nothing to draw")
        metric, kind = _metric(finished[0].by_task, metric), next(iter(finished[0].rounds.spent), None)
        curves = []
        for record in finished:
            rounds, configuration = record.rounds, record.configuration
            x = rounds.round if kind is None else rounds.spent[kind]
            values = [_mean(row or ()) for row in rounds.metrics.get(metric, [None] * len(x))]
            gaps = [math.nan if gap is None else gap for gap in rounds.gap]
            curves.append(RunCurve(f"{configuration.algorithm}, seed {configuration.seed}", list(x), values, gaps))
        return cls(curves, _along(kind), metric)

    def plot(self, axes: Sequence[Any] | None = None) -> Self:
        """Draw into axes, or into a new figure: a panel for the metric (if there are test rows), and for the gap."""
        tested = any(not math.isnan(value) for curve in self.curves for value in curve.metric)
        self.figure_, self.axes_ = _axes(1 + tested, axes)
        *first, last = self.axes_
        for curve in self.curves:
            last.semilogy(*_measured(curve.x, curve.gap, above=0.0), label=curve.label)
            for ax in first:
                ax.plot(*_measured(curve.x, curve.metric), label=curve.label)
        last.set(xlabel=self.x_label, ylabel="certified gap")
        for ax in first:
            ax.set(xlabel=self.x_label, ylabel=self.metric.replace("_", " "))
        if len(self.curves) > 1:
            self.axes_[0].legend()
        return self


@dataclass
class BudgetDisplay:
    """Costs of each tier, for every type; ``plot`` sets ``axes_`` and ``figure_``."""

    amounts: dict[str, dict[str, float]]
    budget: dict[str, float]
    axes_: Any = field(default=None, repr=False)
    figure_: Any = field(default=None, repr=False)

    @classmethod
    def from_result(cls, result: Any) -> Self:
        """Build the display from the result of a run."""
        return cls(result.ledger.totals("tier"), dict(result.ledger.budget))

    @classmethod
    def from_estimator(cls, estimator: Any) -> Self:
        """Build the display from a fitted estimator."""
        return cls.from_result(estimator.result_)

    def plot(self, axes: Sequence[Any] | None = None) -> Self:
        """Draw a bar for every tier and a line at the budget, in separate axes for each type."""
        self.figure_, self.axes_ = _axes(len(self.amounts), axes)
        for ax, (name, by_tier) in zip(self.axes_, self.amounts.items(), strict=True):
            ax.bar([*by_tier, "in all"], [*by_tier.values(), sum(by_tier.values())])
            if name in self.budget:
                ax.axhline(self.budget[name], linestyle="--", color="black", linewidth=1.0, label="budget")
                ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False)  # above, where no line is
            ax.set(ylabel=f"{name} spent")
        return self


def _axes(count: int, provided: Sequence[Any] | None) -> tuple[Any, Sequence[Any]]:
    if provided is not None:
        if len(provided) != count:
            raise ConfigError(f"{count} axes are needed, got {len(provided)}")
        return provided[0].figure, provided
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingExtraError("charts need matplotlib: pip install 'rhfedmtl[plot]'") from error
    figure, axes = pyplot.subplots(1, count, figsize=(4.5 * count, 3.2), squeeze=False, layout="constrained")
    return figure, list(axes[0])


def _metric(metrics: Mapping[str, Any], requested: str | None) -> str:
    if requested is not None and requested not in metrics:
        raise ConfigError(f"no metric {requested!r}: there are {', '.join(metrics)}")
    return requested or next((name for name in METRICS if name in metrics), "balanced_accuracy")


def _along(kind: str | None) -> str:
    return "round" if kind is None else f"{kind} spent"


def _mean(values: Iterable[float | None]) -> float:
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def _measured(x: Sequence[float], y: Sequence[float], above: float = -math.inf) -> tuple[list[float], list[float]]:
    """Return the points with a measured y that is larger than ``above``."""
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if b > above]
    return [a for a, _ in pairs], [b for _, b in pairs]
