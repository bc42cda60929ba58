"""Validation on training rows: parts of a federation, models solved on each, and scores for rows they never saw.

Test rows are never looked at. Solving one problem after the other starts from the duals of the one before: α is
feasible for every λ and every relationship.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
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
from rhfedmtl.maths import metrics
from rhfedmtl.maths.losses import Loss
from rhfedmtl.maths.relationships import Models, Relationship
from rhfedmtl.policies.base import Plan, Situation
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.cloud import Certificate, Cloud
from rhfedmtl.training.run import Run, Settings, scores

IntArray = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

DRAW, CUT, SAMPLED = range(3)  # streams of random numbers: candidates of tuning, held-out rows, drawn rows


class Fold(NamedTuple):
    """Training rows without a part of them, and which rows of the whole federation that part is."""

    federation: Federation
    held: IntArray


@dataclass(frozen=True)
class Effort:
    """What was done: problems solved, BS iterations, coordinate steps of all terminals, seconds."""

    solves: int = 0
    rounds: int = 0
    terminal_steps: int = 0
    seconds: float = 0.0

    def __add__(self, other: Effort) -> Effort:
        """Both together."""
        return Effort(
            self.solves + other.solves,
            self.rounds + other.rounds,
            self.terminal_steps + other.terminal_steps,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True)
class Precision:
    """How exactly to solve: ``passes`` over a terminal's rows in a round, until the relative gap, or ``max_rounds``."""

    relative_gap: float = 1e-2
    passes: float = 2.0
    max_rounds: int = 300
    certify_every: int = 5


@dataclass(frozen=True, eq=False)
class Solved:
    """Models of one problem, and what the next one may start from."""

    models: Models
    scalers: list[Scaler]
    relationship: Relationship
    certificate: Certificate
    alpha: Float64Array
    effort: Effort


def usual_folds(federation: Federation) -> int:
    """Five; fewer, and at least two, where no task has so many rows."""
    return max(2, min(5, int(np.bincount(federation.row_task).max())))


def sample(federation: Federation, count: int, seed: int) -> npt.NDArray[np.bool_]:
    """Draw about so many training rows: all rows of small tasks, equally many of each other task."""
    sizes = np.sort(np.bincount(federation.row_task))
    totals = np.concatenate([[0], np.cumsum(sizes)])[:-1] + sizes * np.arange(len(sizes), 0, -1)  # if a task is the cap
    first = int(np.searchsorted(totals, count))
    cap = sizes.max() if first == len(sizes) else (count - sizes[:first].sum()) // (len(sizes) - first)
    rank = np.empty(len(federation.y), dtype=np.int64)
    order = np.lexsort((np.random.default_rng([seed, SAMPLED]).random(len(rank)), federation.row_task))
    rank[order] = np.arange(len(rank)) - _starts(federation.row_task)
    return np.asarray(rank < max(cap, 2))


def make_folds(federation: Federation, count: int = 3, seed: int = 0, limit: int | None = None) -> list[Fold]:
    """Share the training rows of every task out to ``count`` folds, class by class; each is held out once.

    With a ``limit`` make only the first folds.
    """
    part = fold_parts(federation, count, seed)
    folds = (Fold(without(federation, part == k), np.flatnonzero(part == k)) for k in range(count) if (part == k).any())
    return list(islice(folds, limit))


def fold_parts(federation: Federation, count: int, seed: int = 0) -> IntArray:
    """Return the fold of every training row, −1 for rows of a task with nothing to hold out.

    A task of a single row, or of a single group, has nothing to hold out: it is trained on in every fold.
    """
    if count < 2:
        raise ConfigError(f"validation needs at least 2 folds, got {count}")
    if (most := int(np.bincount(federation.row_task).max())) < count:
        raise ConfigError(f"no task has more than {most} training rows, too few for {count} folds")
    part = _row_parts(federation, count, seed) if federation.group is None else group_parts(federation, count, seed)
    for b in range(federation.n_tasks):
        here = federation.row_task == b
        part[here] = part[here] if np.ptp(part[here]) else -1
    if part.max() < 0:
        raise ConfigError("every task has one group of training rows: nothing is left where it is held out")
    return part


def hold_out(federation: Federation, folds: int, part: int, seed: int) -> Federation:
    """Cut a validation part from the training rows of every task; it takes the place of the test rows.

    Unlike `make_folds`, which may empty a terminal, this leaves everybody some rows, so that the bill stays the same:
    the rows of a task are dealt to the parts terminal by terminal and class by class, in an order drawn with the seed
    (whole groups where the federation has them), and a terminal that would be left without rows keeps them.
    """
    held = held_rows(federation, folds, part, seed)
    tests = np.bincount(federation.row_task[held], minlength=federation.n_tasks)
    return replace(
        without(federation, held),
        test_X=federation.X[held],
        test_y=federation.y[held],
        test_offsets=offsets(tests),
    )


def held_rows(federation: Federation, folds: int, part: int, seed: int) -> npt.NDArray[np.bool_]:
    """Which training rows `hold_out` holds out."""
    terminal = row_terminal(federation)
    if federation.group is not None:
        held = group_parts(federation, folds, seed) == part
    else:
        label = federation.y if federation.class_names else np.zeros(len(federation.y))
        order = np.lexsort((np.random.default_rng([seed, CUT]).random(len(terminal)), label, terminal))
        held = np.empty(len(terminal), dtype=bool)
        held[order] = (np.arange(len(terminal)) - _starts(federation.row_task)) % folds == part
    left = np.bincount(terminal[~held], minlength=federation.n_terminals)
    return np.asarray(held & (left[terminal] > 0))


def _row_parts(federation: Federation, count: int, seed: int) -> IntArray:
    """Part of every row: dealt by task and by class, in an order drawn with the seed."""
    part = np.empty(len(federation.X), dtype=np.int64)
    for b in range(federation.n_tasks):
        rows = np.flatnonzero(federation.row_task == b)
        rng = np.random.default_rng([seed, b])
        strata = federation.y[rows] if federation.class_names else np.zeros(len(rows))
        order = rows[np.lexsort((rng.random(len(rows)), strata))]
        part[order] = np.arange(len(rows)) % count
    return part


def group_parts(federation: Federation, count: int, seed: int) -> IntArray:
    """Part of every row where groups stay whole: dealt by task and by class, in an order drawn with the seed."""
    assert federation.group is not None
    part = np.empty(len(federation.X), dtype=np.int64)
    for b in range(federation.n_tasks):
        rows = np.flatnonzero(federation.row_task == b)
        groups, member = np.unique(federation.group[rows], return_inverse=True)
        label = federation.y[rows] if federation.class_names else np.zeros(len(rows), dtype=np.int64)
        most = [np.bincount(label[member == g]).argmax() for g in range(len(groups))]
        order = np.lexsort((np.random.default_rng([seed, b]).random(len(groups)), most))
        rank = np.empty(len(groups), dtype=np.int64)
        rank[order] = np.arange(len(groups)) % count
        part[rows] = rank[member]
    return part


def without(federation: Federation, held: npt.NDArray[np.bool_]) -> Federation:
    """The federation without the rows held out and without test rows; terminals that lose all of theirs are gone."""
    keep = ~held
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
    """The same federation with the training rows of each terminal in another order."""
    weight, group = federation.sample_weight, federation.group
    return replace(
        federation,
        X=federation.X[order],
        y=federation.y[order],
        sample_weight=None if weight is None else weight[order],
        group=None if group is None else group[order],
    )


def without_tests(federation: Federation) -> Federation:
    """The same training rows, and no test rows: nobody can look at them."""
    nothing = np.zeros(federation.n_tasks + 1, dtype=np.int64)
    return replace(federation, test_X=federation.X[:0], test_y=federation.y[:0], test_offsets=nothing)


@dataclass(frozen=True)
class _Passes:
    """H of every terminal: so many passes over its own rows."""

    passes: float

    def plan(self, situation: Situation) -> Plan:
        """The same in every server iteration."""
        return Plan.uniform(situation, np.maximum(1, np.ceil(self.passes * situation.sizes)), 1)


def solve(
    federation: Federation,
    method: DualMethod,
    precision: Precision | None = None,
    start: Solved | None = None,
    settings: Settings | None = None,
) -> Solved:
    """Solve to the gap asked for, from the duals of ``start`` (same rows) if there is one.

    Who holds which rows, and what happens to messages, changes nothing of the solution: here one terminal has all rows
    of a task, as many terminals would take many more rounds, and each makes passes over its own rows.
    """
    precision = precision or Precision()
    started = time.perf_counter()
    settings = settings or Settings()
    settings = replace(
        settings,
        execution=settings.execution.in_process,
        certify_every=precision.certify_every,
        target_relative_gap=precision.relative_gap,
        max_rounds=precision.max_rounds,
    )
    run = Run(
        one_terminal_per_task(without_tests(federation)), replace(method, channel=Channel()), settings, Ledger({})
    )
    network, cloud = run.network, run.cloud
    assert isinstance(network, InProcess)
    assert isinstance(cloud, Cloud)
    if start is not None:
        run.restore(start.alpha)
    run.learn(_Passes(precision.passes))
    certificate = run.certify()
    effort = Effort(1, run.state.round, run.state.terminal_steps, time.perf_counter() - started)
    return Solved(
        run.units.as_given(certificate.models),
        run.units.scalers,
        cloud.relationship,
        certificate,
        network.alpha.copy(),
        effort,
    )


def held_scores(federation: Federation, fold: Fold, solved: Solved, out: Float64Array) -> None:
    """Write the scores of the rows held out, each by the model of its task, into the rows of ``out``."""
    task = federation.row_task[fold.held]
    for b in range(federation.n_tasks):
        rows = fold.held[task == b]
        out[rows] = scores(solved.scalers[b].transform(federation.X[rows]), solved.models[b])


def zero_scores(federation: Federation, fold: Fold, out: Float64Array) -> None:
    """Write the scores of the zero models: 0 for classes; for numbers the mean training label of the task."""
    rest, task = fold.federation, federation.row_task[fold.held]
    out[fold.held] = 0.0
    if not federation.class_names:
        count = np.bincount(rest.row_task, minlength=federation.n_tasks)
        total = np.bincount(rest.row_task, rest.y, minlength=federation.n_tasks)
        out[fold.held, 0] = (total / np.maximum(count, 1))[task]


def task_metric(federation: Federation, held: Float64Array, metric: str, loss: Loss) -> Float64Array:
    """Metric of every task over scores that its rows got while held out; ``loss`` is (1/n_b) Σ s L, s their weights.

    Rows that never were have NaN for a score, and a task without any other has NaN for a metric.
    """
    values = np.full(federation.n_tasks, np.nan)
    value: Any = np.frompyfunc(loss.value, 2, 1)
    targets, weight, judged = federation.targets(), row_weights(federation), ~np.isnan(held).any(axis=1)
    for b in np.unique(federation.row_task[judged]).tolist():
        rows = judged & (federation.row_task == b)
        measured: dict[str, Any] = metrics.measure(federation.y[rows], held[rows], len(federation.class_names))
        if metric == "loss":
            measured["loss"] = float((weight[rows, None] * value(held[rows], targets[rows])).sum() / rows.sum())
        if metric not in measured:
            known = ", ".join(["loss", *measured])
            raise ConfigError(f"no metric {metric!r} for {federation.kind} labels: choose from {known}")
        values[b] = measured[metric]
    return values


def row_weights(federation: Federation) -> Float64Array:
    """Weight of every training row in the loss of its task."""
    given = federation.sample_weight
    return np.ones(len(federation.y)) if given is None else np.asarray(given, dtype=np.float64)


def row_terminal(federation: Federation) -> IntArray:
    """Terminal of every row."""
    return np.repeat(np.arange(federation.n_terminals), np.diff(federation.terminal_offsets))


def _starts(row_task: npt.NDArray[Any]) -> IntArray:
    """For every row the first row of its task; rows of a task lie together."""
    counts = np.bincount(row_task)
    return np.repeat(np.cumsum(counts) - counts, counts)
