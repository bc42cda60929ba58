"""Texts of a report: axes, settings, and how to read its marks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rhfedmtl.display import short
from rhfedmtl.errors import ConfigError
from rhfedmtl.report.charts import Axis
from rhfedmtl.runs.records import Record
from rhfedmtl.studies.study import StudyResult, value_text
from rhfedmtl.studies.words import PRICES, axis_label, metric_name

GAP_AXIS = "relative duality gap (log scale)"
LEAST_SPAN = 0.1
"""An axis of accuracy spans at least 10 points."""
LOG_RATIO = 30.0
"""An axis whose values span a larger factor has a log scale."""


def metric_axis(metric: str) -> Axis:
    """Return the axis of a metric: errors are at least 0; other metrics lie between 0 and 1 and span 10 points."""
    if metric == "rmse":
        return Axis(metric_name(metric), floor=0.0)
    return Axis(metric_name(metric), floor=0.0, ceiling=1.0, span=LEAST_SPAN)


def axis_of(name: str, values: list[Any]) -> Axis:
    """Return the axis of a grid: names, numbers, or powers of ten."""
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return Axis(axis_label(name), names=tuple(str(v) for v in values))
    wide = min(values) > 0 and max(values) / min(values) > LOG_RATIO
    return Axis(axis_label(name), "log" if wide else "linear", integer=all(isinstance(v, int) for v in values))


def focus(result: StudyResult) -> dict[str, Any]:
    """Return the place at which single runs are shown: the last budget and fault, else the first value of each axis."""
    last = ("budget.", "faults.")
    return {axis: values[-1] if axis.startswith(last) else values[0] for axis, values in result.study.axes.items()}


def spread(value: float, half: float | None) -> str:
    """Return a mean with the half width of its interval; a single seed has no interval."""
    return f"{value:.3f}" if half is None else f"{value:.3f} ± {half:.3f}"


MEANING = (
    "A certificate compares the objective of the models with a lower bound: “within 3 %” means that the best possible "
    "objective is at most 3 % lower. This holds for the training problem, not for new rows. A bound near 0 is "
    "uninformative: the models may be good, but the certificate cannot show it."
)
"""Explanation of a relative gap for readers of a report."""


def tuned(record: Record) -> str:
    """Return the settings that tuning chose; empty if the run was not tuned."""
    if record.tuning is None:
        return ""
    return (
        ", ".join(f"{name} = {value_text(value)}" for name, value in record.tuning.chosen.items())
        or "no settings to tune"
    )


def settings(result: StudyResult) -> dict[str, str]:
    """Return the settings that all runs of a study share: question, data, prices, budgets, faults, seeds, versions."""
    # Prefer a run of the reference at the focus, because the report shows single runs there.
    names = [result.study.reference, *result.running, *result.labels]
    every = (result.records(name, at) for at in [focus(result), *result.places] for name in names)
    record = next((records[0] for records in every if records), None)
    if record is None:
        raise ConfigError(f"study {result.study.name} has no runs: make it again")
    configuration, axes = record.configuration, result.study.axes
    facts = {
        "question": result.study.question,
        "data": _data(record, axes),
        "prices": _prices(configuration.cost, axes),
        "budget": ", ".join(f"{k} {short(v)}" for k, v in configuration.budget.items() if f"budget.{k}" not in axes),
        "faults": configuration.faults,
        "seeds": str(result.study.seeds),
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
    }
    return {name: text for name, text in facts.items() if text}


def reading(result: StudyResult) -> str:
    """Return the meaning of the marks in the tables of a study."""
    if not result.same_data:
        return "Results on different data sets or labels are not ranked."
    if result.study.seeds > 1:
        return (
            f"Means over {result.study.seeds} seeds; ▲, ▼ and ≈ compare with {result.labels[result.study.reference]}."
        )
    return "The best method is marked. A single seed, so no tests." if len(result.labels) > 1 else ""


READING = (
    "± is half of the 95 % interval of a mean over seeds (Student's t), and bands in charts are this interval. ▲ is "
    "better, ▼ worse and ≈ not significant, by the interval of the difference, paired over seeds. The best is marked."
)
"""Explanation of intervals, once in a page."""


def _data(record: Record, axes: Mapping[str, Any]) -> str:
    request, parts = record.configuration.request, [record.data.name]
    parts += [f"{len(record.tasks)} tasks"] if "data.tasks" not in axes else []
    if request.terminals and "data.terminals" not in axes:
        parts.append(f"{request.terminals} terminals each")
    if request.samples_per_task:
        parts.append(f"{request.samples_per_task} samples per task")
    if request.positive:
        parts.append(f"positive class {request.positive}")
    return ", ".join(parts) + f" (fingerprint {record.data.fingerprint[:12]}… with the first seed)"


def _prices(cost: Mapping[str, Any], axes: Mapping[str, Any]) -> str:
    parts = []
    for kind, prices in cost.items():
        amounts = [
            f"{short(value)} per {PRICES.get(price, price.replace('_', ' '))}"
            for price, value in prices.items()
            if isinstance(value, int | float)
            and value
            and not {f"cost.{kind}.{price}", f"cost.{kind}.{price.split('_')[-2:][0]}"} & set(axes)
        ]
        if amounts:
            parts.append(f"{kind}: " + ", ".join(amounts))
    return "; ".join(parts)
