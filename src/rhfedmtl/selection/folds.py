"""Validation on training rows: divide a federation into folds, solve on each, and score the held-out rows.

`regularisation` and `tuning` choose settings with these functions. This module never uses test rows.

A sequence of problems is solved faster if each starts from the duals of the previous problem. This is allowed because α
is feasible for every λ and every relationship.
"""

from __future__ import annotations

import operator
import time
from dataclasses import astuple, dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.method import Channel
from rhfedmtl.data.federation import Federation, offsets, one_terminal_per_task
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.errors import ConfigError
from rhfedmtl.features.maps import Features
from rhfedmtl.maths import metrics
from rhfedmtl.maths.losses import Loss
from rhfedmtl.maths.metrics import scores
from rhfedmtl.maths.relationships import Models, Relationship
from rhfedmtl.policies.base import Plan, Situation
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.certificates import Certificate
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings

IntArray = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

MOST_STORED = 10_000_000
"""Keep the rows of a fold mapped and scaled between solutions if they have at most so many numbers: 80 MB."""
DRAW, CUT, SAMPLED = range(3)  # streams of random numbers: candidates of tuning, held-out rows, drawn rows


class Fold(NamedTuple):
    """The training rows of a fold, and the positions of its held-out rows in the complete federation."""

    federation: Federation
    held_out: IntArray


@dataclass(frozen=True)
class Effort:
    """Work of a search: problems solved, BS iterations, coordinate steps of all terminals, seconds."""

    solves: int = 0
    rounds: int = 0
    terminal_steps: int = 0
    seconds: float = 0.0

    def __add__(self, effort: Effort) -> Effort:
        """Return the sum."""
        return Effort(*map(operator.add, astuple(self), astuple(effort)))


@dataclass(frozen=True)
class Precision:
    """Tolerance of a solution: ``passes`` over the rows per round, until the relative gap or ``max_rounds``."""

    relative_gap: float = 1e-2
    passes: float = 2.0
    max_rounds: int = 300
    certify_every: int = 5


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a problem, with a single terminal per task. Without ``scalers``, the run scales them."""

    federation: Federation
    features: Features
    scalers: list[Scaler] | None = None

    def scaled(self, scalers: list[Scaler]) -> Rows:
        """Return the rows mapped and scaled, for problems with other weights; the run divides them by their norm.

        If they have more than `MOST_STORED` numbers, return the same rows, which each run maps and scales again.
        """
        data = self.federation
        if len(data.X) * scalers[0].columns(data.n_features) > MOST_STORED:
            return replace(self, scalers=scalers)
        spans = zip(scalers, np.split(data.X, np.cumsum(data.sizes)[:-1]), strict=True)
        X = np.concatenate([replace(scaler, unit=False).transform(rows) for scaler, rows in spans])
        data = replace(data, X=X, test_X=X[:0], feature_names=(), preparation=None)
        return Rows(data, Features(), [Scaler(unit=scaler.unit) for scaler in scalers])


@dataclass(frozen=True, eq=False)
class Solution:
    """Solution of a problem, and the state from which the next problem may start.

    ``scalers`` belong to the rows as given; ``rows`` are mapped and scaled if another solution was the start.
    """

    models: Models
    scalers: list[Scaler]
    relationship: Relationship
    certificate: Certificate
    alpha: Float64Array
    effort: Effort
    rows: Rows


def default_folds(federation: Federation) -> int:
    """Return the default number of folds: 5, or fewer (at least 2) if no task has 5 rows."""
    return max(2, min(5, int(np.bincount(federation.row_task).max())))


def sample(federation: Federation, count: int, seed: int) -> npt.NDArray[np.bool_]:
    """Return a mask of about ``count`` random training rows: all of small tasks, equally many of each large task."""
    sizes = np.sort(np.bincount(federation.row_task))
    # Number of drawn rows if the size of a task is the cap.
    totals = np.concatenate([[0], np.cumsum(sizes)])[:-1] + sizes * np.arange(len(sizes), 0, -1)
    first = int(np.searchsorted(totals, count))
    cap = sizes.max() if first == len(sizes) else (count - sizes[:first].sum()) // (len(sizes) - first)
    rank = np.empty(len(federation.y), dtype=np.int64)
    order = np.lexsort((np.random.default_rng([seed, SAMPLED]).random(len(rank)), federation.row_task))
    rank[order] = np.arange(len(rank)) - _starts(federation.row_task)
    return np.asarray(rank < max(cap, 2))


def make_folds(federation: Federation, count: int = 3, seed: int = 0, limit: int | None = None) -> list[Fold]:
    """Divide the training rows of every task into ``count`` folds, class by class.

    Each row is in the held-out part of a single fold. With a ``limit``, return only the first folds.
    """
    part = fold_parts(federation, count, seed)
    folds = (Fold(without(federation, part == k), np.flatnonzero(part == k)) for k in range(count) if (part == k).any())
    return list(islice(folds, limit))


def fold_parts(federation: Federation, count: int, seed: int = 0) -> IntArray:
    """Return the fold of every training row, −1 for rows that every fold trains on.

    These are the rows of tasks with a single row or a single group, because nothing would remain for training.
    """
    if count < 2:
        raise ConfigError(f"validation needs at least 2 folds, got {count}")
    if (largest := int(np.bincount(federation.row_task).max())) < count:
        raise ConfigError(f"no task has more than {largest} training rows, too few for {count} folds")
    part = _row_parts(federation, count, seed) if federation.group is None else group_parts(federation, count, seed)
    for b in range(federation.n_tasks):
        rows = federation.row_task == b
        part[rows] = part[rows] if np.ptp(part[rows]) else -1
    if part.max() < 0:
        raise ConfigError("every task has a single group of training rows: holding it out leaves nothing to train on")
    return part


def hold_out(federation: Federation, folds: int, part: int, seed: int) -> Federation:
    """Return the federation with a part of the training rows of every task as test rows.

    Rows of a task are dealt to the parts terminal by terminal and class by class, in random order (complete groups if
    the federation has groups). A terminal that would lose all rows keeps them. So the terminals and the prices stay the
    same. `make_folds` gives no such guarantee: it may empty a terminal.
    """
    mask = held_out_rows(federation, folds, part, seed)
    tests = np.bincount(federation.row_task[mask], minlength=federation.n_tasks)
    return replace(
        without(federation, mask),
        test_X=federation.X[mask],
        test_y=federation.y[mask],
        test_offsets=offsets(tests),
    )


def held_out_rows(federation: Federation, folds: int, part: int, seed: int) -> npt.NDArray[np.bool_]:
    """Return the mask of the training rows that `hold_out` holds out."""
    terminal = row_terminal(federation)
    if federation.group is not None:
        mask = group_parts(federation, folds, seed) == part
    else:
        label = federation.y if federation.class_names else np.zeros(len(federation.y))
        order = np.lexsort((np.random.default_rng([seed, CUT]).random(len(terminal)), label, terminal))
        mask = np.empty(len(terminal), dtype=bool)
        mask[order] = (np.arange(len(terminal)) - _starts(federation.row_task)) % folds == part
    remaining = np.bincount(terminal[~mask], minlength=federation.n_terminals)
    return np.asarray(mask & (remaining[terminal] > 0))


def _row_parts(federation: Federation, count: int, seed: int) -> IntArray:
    """Return the part of every row: dealt by task and by class, in random order."""
    part = np.empty(len(federation.X), dtype=np.int64)
    for b in range(federation.n_tasks):
        rows = np.flatnonzero(federation.row_task == b)
        rng = np.random.default_rng([seed, b])
        strata = federation.y[rows] if federation.class_names else np.zeros(len(rows))
        order = rows[np.lexsort((rng.random(len(rows)), strata))]
        part[order] = np.arange(len(rows)) % count
    return part


def group_parts(federation: Federation, count: int, seed: int) -> IntArray:
    """Return the part of every row: complete groups, dealt by task and by majority class, in random order."""
    assert federation.group is not None
    part = np.empty(len(federation.X), dtype=np.int64)
    for b in range(federation.n_tasks):
        rows = np.flatnonzero(federation.row_task == b)
        groups, member = np.unique(federation.group[rows], return_inverse=True)
        label = federation.y[rows] if federation.class_names else np.zeros(len(rows), dtype=np.int64)
        majority = [np.bincount(label[member == g]).argmax() for g in range(len(groups))]
        order = np.lexsort((np.random.default_rng([seed, b]).random(len(groups)), majority))
        rank = np.empty(len(groups), dtype=np.int64)
        rank[order] = np.arange(len(groups)) % count
        part[rows] = rank[member]
    return part


def without(federation: Federation, held_out: npt.NDArray[np.bool_]) -> Federation:
    """Return the federation without the held-out rows, test rows and terminals that have no rows left."""
    keep = ~held_out
    sizes = np.bincount(row_terminal(federation)[keep], minlength=federation.n_terminals)
    stays = sizes > 0
    members = np.bincount(federation.terminal_task[stays], minlength=federation.n_tasks)
    weight = federation.sample_weight
    return replace(
        without_tests(federation),
        X=federation.X[keep],
        y=federation.y[keep],
        terminal_offsets=offsets(sizes[stays]),
        task_offsets=offsets(members),
        sample_weight=None if weight is None else weight[keep],
        terminal_names=tuple(np.array(federation.terminal_names)[stays].tolist()) if federation.terminal_names else (),
        group=None if federation.group is None else federation.group[keep],
    )


def reordered(federation: Federation, order: IntArray) -> Federation:
    """Return the federation with its training rows in this order; rows must stay within their terminal."""
    weight, group = federation.sample_weight, federation.group
    return replace(
        federation,
        X=federation.X[order],
        y=federation.y[order],
        sample_weight=None if weight is None else weight[order],
        group=None if group is None else group[order],
    )


def without_tests(federation: Federation) -> Federation:
    """Return the federation without test rows, so a choice cannot depend on them."""
    no_offsets = np.zeros(federation.n_tasks + 1, dtype=np.int64)
    return replace(federation, test_X=federation.X[:0], test_y=federation.y[:0], test_offsets=no_offsets)


@dataclass(frozen=True)
class _Passes:
    """Policy with H of ``passes`` passes over each terminal's rows."""

    passes: float

    def plan(self, situation: Situation) -> Plan:
        """Return the same plan for every server iteration."""
        return Plan.uniform(situation, np.maximum(1, np.ceil(self.passes * situation.sizes)), 1)


def solve(
    federation: Federation,
    method: DualMethod,
    precision: Precision | None = None,
    start: Solution | None = None,
    settings: Settings | None = None,
) -> Solution:
    """Solve the problem of ``method`` on the training rows to the required gap, if possible from ``start``.

    ``start`` must have the same rows. The solution does not depend on the placement of rows or on the channel.
    Therefore a single terminal holds all rows of a task here, because more terminals would need many more rounds.
    """
    precision, settings = precision or Precision(), settings or Settings()
    start_time = time.perf_counter()
    settings = replace(
        settings,
        execution=settings.execution.in_process,
        certify_every=precision.certify_every,
        target_relative_gap=precision.relative_gap,
        max_rounds=precision.max_rounds,
    )
    if start is None:
        rows = Rows(one_terminal_per_task(without_tests(federation)), method.features)
    else:
        rows = start.rows if start.rows.scalers else start.rows.scaled(start.scalers)
    exact = replace(method, channel=Channel(), features=rows.features)
    run = Run(rows.federation, exact, settings, Ledger({}), scalers=rows.scalers)
    network, cloud = run.network, run.cloud
    assert isinstance(network, InProcess)
    assert isinstance(cloud, Cloud)
    if start is not None:
        run.restore(start.alpha)
    run.learn(_Passes(precision.passes))
    certificate = run.certify()
    effort = Effort(1, run.state.round, run.state.terminal_steps, time.perf_counter() - start_time)
    scalers = run.units.scalers if start is None else start.scalers
    models = run.units.as_given(certificate.models)
    return Solution(models, scalers, cloud.relationship, certificate, network.alpha.copy(), effort, rows)


def held_out_scores(federation: Federation, fold: Fold, solution: Solution, out: Float64Array) -> None:
    """Write the score of every held-out row by the model of its task into the row of ``out``."""
    task = federation.row_task[fold.held_out]
    for b in range(federation.n_tasks):
        rows = fold.held_out[task == b]
        out[rows] = scores(solution.scalers[b].transform(federation.X[rows]), solution.models[b])


def zero_scores(federation: Federation, fold: Fold, out: Float64Array) -> None:
    """Write the scores of the zero models: 0 for classes, and the task's mean training label for a regression."""
    rest, task = fold.federation, federation.row_task[fold.held_out]
    out[fold.held_out] = 0.0
    if not federation.class_names:
        count = np.bincount(rest.row_task, minlength=federation.n_tasks)
        total = np.bincount(rest.row_task, rest.y, minlength=federation.n_tasks)
        out[fold.held_out, 0] = (total / np.maximum(count, 1))[task]


def task_metric(federation: Federation, held_out: Float64Array, metric: str, loss: Loss) -> Float64Array:
    """Return a metric of every task over the scores of its rows while held out.

    The metric ``loss`` is (1/n_b) Σ s L with the row weights s. Rows that were never held out have NaN scores. A task
    with only such rows gets NaN.
    """
    values = np.full(federation.n_tasks, np.nan)
    targets, weight, scored = federation.targets(), row_weights(federation), ~np.isnan(held_out).any(axis=1)
    for b in np.unique(federation.row_task[scored]).tolist():
        rows = scored & (federation.row_task == b)
        measured: dict[str, Any] = metrics.measure(federation.y[rows], held_out[rows], len(federation.class_names))
        if metric == "loss":
            measured["loss"] = float(
                (weight[rows, None] * row_losses(loss, held_out[rows], targets[rows])).sum() / rows.sum()
            )
        if metric not in measured:
            names = ", ".join(["loss", *measured])
            raise ConfigError(f"no metric {metric!r} for {federation.kind} labels: choose from {names}")
        values[b] = measured[metric]
    return values


def row_losses(loss: Loss, row_scores: Float64Array, targets: Float64Array) -> npt.NDArray[Any]:
    """Return the loss of every row in every column, without the weights of the rows, as Python's numbers."""
    value: Any = np.frompyfunc(loss.value, 2, 1)
    return np.asarray(value(row_scores, targets))


def error_share(row_scores: Float64Array, y: npt.NDArray[Any], n_classes: int) -> float:
    """Return the share of wrong classes among the rows that have scores; 0 in a regression."""
    rows = ~np.isnan(row_scores).any(axis=1)
    wrong = metrics.predict(row_scores[rows], n_classes) != y[rows]
    return float(np.mean(wrong)) if n_classes and rows.any() else 0.0


def row_weights(federation: Federation) -> Float64Array:
    """Return the weight of every training row in the loss of its task."""
    weight = federation.sample_weight
    return np.ones(len(federation.y)) if weight is None else np.asarray(weight, dtype=np.float64)


def row_terminal(federation: Federation) -> IntArray:
    """Return the terminal of every training row."""
    return np.repeat(np.arange(federation.n_terminals), np.diff(federation.terminal_offsets))


def _starts(row_task: npt.NDArray[Any]) -> IntArray:
    """Return for every row the first row of its task; rows of a task are contiguous."""
    counts = np.bincount(row_task)
    return np.repeat(np.cumsum(counts) - counts, counts)
