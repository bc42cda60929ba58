"""Names of metrics, of axes with their units, and of places of a grid, for sentences, tables and charts."""

from __future__ import annotations

from typing import Any

from rhfedmtl.display import short
from rhfedmtl.studies.study import At

METRICS = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "auc": "AUC", "rmse": "RMSE"}
AXES = {
    "data.terminals": "terminals per base station",
    "data.tasks": "tasks (base stations)",
    "data.samples_per_task": "samples per task",
    "learning.lambda1": "λ₁, regularisation of each model",
    "learning.lambda2": "λ₂, weight of the coupling",
    "faults.dropout": "share of lost updates",
    "learning.local_steps": "H, local steps per round",
}
PRICES = {
    "step": "terminal step",
    "terminal_step": "terminal step",
    "station": "station round",
    "station_round": "station round",
}
PRICES |= {"cloud": "server iteration", "cloud_round": "server iteration"}


def metric_name(metric: str) -> str:
    """Return the name of a metric in a sentence."""
    return METRICS.get(metric, metric.replace("_", " "))


def unit(kind: str) -> str:
    """Return the unit of a resource; prices and budgets of a type share it."""
    return kind if kind == "bytes" else f"{kind} units"


def axis_label(axis: str) -> str:
    """Return the name of an axis of the grid, with its unit."""
    section, _, rest = axis.partition(".")
    if section == "budget":
        return f"budget ({unit(rest)})"
    if section == "cost":
        kind, _, price = rest.partition(".")
        return f"price of a {PRICES.get(price, price.replace('_', ' '))} ({unit(kind)})"
    return AXES.get(axis, rest.replace("_", " ") or axis)


def place_text(at: At) -> str:
    """Return a place of the grid as text."""
    return ", ".join(_setting_text(axis, value) for axis, value in at.items())


def _setting_text(axis: str, value: Any) -> str:
    section, _, rest = axis.partition(".")
    if section == "budget":
        return f"budget {short(value)}" if rest == "energy" else f"{rest} budget {short(value)}"
    if section == "cost":
        price = rest.rpartition(".")[2]
        return f"a price of {short(value)} per {PRICES.get(price, price.replace('_', ' '))}"
    if section == "faults":
        return f"{rest} {short(value)}"
    label = axis_label(axis).split(",")[0]
    if section == "data" and isinstance(value, int):
        return f"{value} {label.split(' (')[0]}"
    return f"{label.split(' (')[0]} = {short(value)}"
