"""Negative transfer: which tasks would be better alone.

Each task is learned twice on the same folds of its training rows, with the others and without; rows held out are
compared one by one. The interval of a task's difference is over its rows, so a task with few rows is seldom decided.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.maths import metrics
from rhfedmtl.maths.relationships import Relationship, Unrelated
from rhfedmtl.selection.folds import (
    Effort,
    Float64Array,
    Fold,
    Precision,
    held_scores,
    make_folds,
    solve,
)
from rhfedmtl.training.run import Settings


class TaskTransfer(NamedTuple):
    """One task: how well it does with the others and alone, and the interval of the difference.

    Values are balanced accuracy, or the negative mean squared error of a regression: more is better.
    """

    name: str
    together: float
    alone: float
    low: float
    high: float

    @property
    def gain(self) -> float:
        """What the others bring."""
        return self.together - self.alone

    @property
    def verdict(self) -> str:
        """``helped``, ``harmed``, or ``open`` where the interval holds 0."""
        if self.low > 0.0:
            return "helped"
        return "harmed" if self.high < 0.0 else "open"


@dataclass(frozen=True, eq=False)
class Transfer:
    """The report: a line for each task, the mean over tasks with its interval, and what it cost to know."""

    tasks: tuple[TaskTransfer, ...]
    mean: TaskTransfer
    confidence: float
    effort: Effort

    @property
    def better_alone(self) -> tuple[str, ...]:
        """Tasks that the others harm."""
        return tuple(task.name for task in self.tasks if task.verdict == "harmed")

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""

        def values(task: TaskTransfer) -> dict[str, Any]:
            return {**task._asdict(), "gain": task.gain, "verdict": task.verdict}

        return {
            "tasks": [values(task) for task in self.tasks],
            "mean": values(self.mean),
            "better_alone": list(self.better_alone),
            "confidence": self.confidence,
            "rounds": self.effort.rounds,
            "terminal_steps": self.effort.terminal_steps,
            "seconds": self.effort.seconds,
        }

    def text(self) -> str:
        """Everything as text."""
        percent = f"{100 * self.confidence:g} %"
        width = max(len(task.name) for task in (*self.tasks, self.mean))
        lines = [f"{'task':<{width}}  together   alone    gain  {percent} interval   verdict"]
        lines += [
            f"{t.name:<{width}}  {t.together:8.3f} {t.alone:7.3f} {t.gain:+7.3f}  [{t.low:+.3f}, {t.high:+.3f}]  "
            f"{t.verdict}"
            for t in (*self.tasks, self.mean)
        ]
        alone = ", ".join(self.better_alone) or "none for certain"
        return "\n".join([*lines, f"better alone: {alone}", f"on training rows held out; cost: {self.effort}"])


def transfer(
    federation: Federation,
    method: DualMethod,
    *,
    alone: Relationship | None = None,
    folds: int = 4,
    confidence: float = 0.95,
    precision: Precision | None = None,
    settings: Settings | None = None,
) -> Transfer:
    """Compare ``method`` with the same method under ``alone`` (without it: λ1 of the method and no ties)."""
    settings = settings or Settings()
    if alone is None:
        alone = Unrelated(getattr(method.relationship, "lambda1", Unrelated().lambda1))
    parts = make_folds(federation, folds, settings.seed)
    scored, effort = [], Effort()
    for relationship in (method.relationship, alone):
        held, cost = _held(federation, parts, replace(method, relationship=relationship), precision, settings)
        scored.append(_merit(federation, held))
        effort = effort + cost
    tasks = tuple(_compare(federation, b, scored[0], scored[1], confidence) for b in range(federation.n_tasks))
    return Transfer(tasks, _mean(tasks, confidence), confidence, effort)


def _held(
    federation: Federation, parts: list[Fold], method: DualMethod, precision: Precision | None, settings: Settings
) -> tuple[Float64Array, Effort]:
    """Scores of all training rows, each while held out."""
    held, effort = np.zeros((len(federation.X), federation.targets().shape[1])), Effort()
    for part in parts:
        solved = solve(part.federation, method, precision, None, settings)
        held_scores(federation, part, solved, held)
        effort = effort + solved.effort
    return held, effort


def _merit(federation: Federation, held: Float64Array) -> Float64Array:
    """1 for a row predicted right and 0 for another; for a regression the negative squared error."""
    predicted = metrics.predict(held, len(federation.class_names))
    if federation.class_names:
        return np.asarray(federation.y == predicted, dtype=np.float64)
    return np.asarray(-np.square(federation.y - predicted), dtype=np.float64)


def _compare(
    federation: Federation, task: int, together: Float64Array, alone: Float64Array, confidence: float
) -> TaskTransfer:
    """Mean over classes of the mean over rows, and Student's interval of the paired difference."""
    rows = federation.row_task == task
    labels = federation.y[rows] if federation.class_names else np.zeros(int(rows.sum()))
    classes = [labels == label for label in np.unique(labels)]
    with_, without = together[rows], alone[rows]
    pairs = [(with_[own] - without[own]) for own in classes]
    variance = sum(pair.var(ddof=1) / len(pair) if len(pair) > 1 else 0.25 for pair in pairs) / len(classes) ** 2
    free = max(1, len(labels) - len(classes))
    half = float(metrics.student(confidence, free) * np.sqrt(variance))
    gain = float(np.mean([pair.mean() for pair in pairs]))
    values = [float(np.mean([merit[own].mean() for own in classes])) for merit in (with_, without)]
    return TaskTransfer(federation.task_names[task], values[0], values[1], gain - half, gain + half)


def _mean(tasks: tuple[TaskTransfer, ...], confidence: float) -> TaskTransfer:
    """Mean over tasks, with Student's interval over them."""
    gains = np.array([task.gain for task in tasks])
    half = 0.0
    if len(gains) > 1:
        half = float(metrics.student(confidence, len(gains) - 1) * gains.std(ddof=1) / np.sqrt(len(gains)))
    gain = float(gains.mean())
    together, alone = (float(np.mean([getattr(task, name) for task in tasks])) for name in ("together", "alone"))
    return TaskTransfer("mean over tasks", together, alone, gain - half, gain + half)
