"""Split the rows of a source into tasks × terminals, with test rows for every task.

`federate` always does the same four steps: choose tasks, draw rows of each task, set test rows aside, and divide the
training rows among terminals. Every random draw has an address (seed, purpose, task), so the split of a task depends
neither on the other chosen tasks nor on the order of work.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.federation import Federation, Source, offsets
from rhfedmtl.data.partition import Column, Iid, IntArray, Partition, TaskRows, apportion
from rhfedmtl.data.preparation import Preparation
from rhfedmtl.errors import ConfigError, DataError

CHOOSE_TASKS, DRAW_ROWS, HOLD_OUT, TO_TERMINALS = range(4)
DEFAULT_TERMINALS = 5


@dataclass(frozen=True)
class Split:
    """Selection of rows from a source, and their division. The defaults take all rows.

    Parameters
    ----------
    tasks
        Number of tasks to draw, or names of tasks; by default all.
    terminals
        Terminals under every task (default 5).
    partition
        Division of training rows among terminals. By default: the terminal column if the data has one and
        ``terminals`` is not set, otherwise at random.
    samples_per_task
        Rows drawn for a task, training and test together, in the task's own class shares; by default all.
    test_fraction
        Share of the drawn rows that becomes the test set, stratified by class.
    test_rest
        Test on all rows of the task that are not training rows. The training rows do not change.
    grouped
        Keep all rows of a group (overlapping windows) on the same side of the test split; sizes are then only as exact
        as the groups allow.
    positive
        Turn a problem with several classes into two classes: this class against the rest.
    balanced
        Draw equal numbers of each class (half positives, half rest); the default if ``positive`` is set.
    """

    tasks: int | tuple[str, ...] | None = None
    terminals: int | None = None
    partition: Partition | None = None
    samples_per_task: int | None = None
    test_fraction: float = 0.25
    test_rest: bool = False
    grouped: bool = False
    positive: str | None = None
    balanced: bool | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            raise ConfigError(f"test_fraction must lie in [0, 1), got {self.test_fraction}")
        for name in ("terminals", "samples_per_task"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if isinstance(self.partition, Column) and self.terminals is not None:
            raise ConfigError("partition 'column' takes the terminals from the data: leave out the number of terminals")
        if isinstance(self.tasks, str):
            raise ConfigError(f"tasks must be a number or a tuple of names, got the text {self.tasks!r}")


class _TaskSplit(NamedTuple):
    """Row numbers of a task: training rows ordered by terminal, rows per terminal, and test rows.

    ``small`` gives the reason if the task alone has too little data to learn from.
    """

    train: IntArray
    sizes: IntArray
    test: IntArray
    small: str = ""


def federate(source: Source, split: Split | None = None, seed: int = 0) -> Federation:
    """Split ``source`` into a federation; equal source, split and seed give an equal result to the bit."""
    split = split or Split()
    if seed < 0:
        raise ConfigError(f"a seed must not be negative, got {seed}")
    if split.grouped:
        _check_groups(source)
    if split.positive is not None:
        source = one_against_rest(source, split.positive)
    by_column = split.terminals is None and source.terminal is not None
    split = replace(split, partition=split.partition or (Column() if by_column else Iid()))
    chosen = choose_tasks(source.task_names, split.tasks, seed)
    order = np.argsort(source.task, kind="stable")
    starts = np.searchsorted(source.task[order], np.arange(len(source.task_names) + 1))
    parts = [_split_task(source, order[starts[b] : starts[b + 1]], split, seed, b) for b in chosen]
    small = {b: part.small for b, part in zip(chosen, parts, strict=True) if part.small}
    if small and source.small_tasks == "drop":
        parts = [part for part in parts if not part.small]
        chosen = [b for b in chosen if b not in small]
        if not chosen:
            raise DataError("every task has one row or one class: --small-tasks keep learns from them all the same")
    notes: tuple[str, ...] = ()
    if small:
        examples = "; ".join(f"{source.task_names[b]!r} has {why}" for b, why in list(small.items())[:5])
        more = f" … ({len(small)} tasks in all)" if len(small) > 5 else ""
        drop = source.small_tasks == "drop"
        outcome = "left out" if drop else "kept, to learn from the other tasks"
        notes = (f"small tasks {outcome}: {examples}{more} (--small-tasks {'keep' if drop else 'drop'}, error)",)
    if isinstance(split.tasks, int) and (hint := _number_name_hint(source.task_names, split.tasks)):
        notes = (f"{split.tasks} of {len(source.task_names)} tasks drawn{hint}", *notes)
    if source.overlap and not split.grouped and any(len(part.test) for part in parts):
        risk = "training and test rows share data, so every method looks better than on new recordings"
        notes = (*notes, f"{source.overlap}: {risk} (--grouped holds out whole recordings)")
    return replace(_gather(source, chosen, parts, split), notes=(*source.notes, *notes))


def _check_groups(source: Source) -> None:
    """Refuse groups that span tasks: tasks learn from each other, so such a group would leak test rows."""
    if source.group is None:
        raise ConfigError(f"{source.origin.name} says nothing about groups: split it without grouped, or name a column")
    order = np.argsort(source.group, kind="stable")
    group, task = source.group[order], source.task[order]
    across = np.flatnonzero((group[1:] == group[:-1]) & (task[1:] != task[:-1]))
    if len(across):
        rows = order[across[0] : across[0] + 2]
        names = " and ".join(repr(source.task_names[int(b)]) for b in source.task[rows])
        raise DataError(f"rows {rows[0]} and {rows[1]} are of one group but of tasks {names}: use groups within tasks")


def one_against_rest(source: Source, positive: str) -> Source:
    """Return the same rows with two classes, ``rest`` and ``positive``."""
    if positive not in source.class_names:
        raise ConfigError(f"no class {positive!r} in {source.origin.name}: {_choices(positive, source.class_names)}")
    code = source.class_names.index(positive)
    return replace(source, y=(source.y == code).astype(np.int16), class_names=("rest", positive))


def choose_tasks(names: tuple[str, ...], selection: int | tuple[str, ...] | None, seed: int) -> list[int]:
    """Return the codes of the selected tasks: all, a given number drawn by seed (in data order), or the named tasks."""
    if selection is None:
        return list(range(len(names)))
    if isinstance(selection, int):
        if not 1 <= selection <= len(names):
            hint = _number_name_hint(names, selection)
            raise ConfigError(f"asked for {selection} tasks, but there are {len(names)}{hint}")
        drawn = np.random.default_rng([seed, CHOOSE_TASKS]).choice(len(names), size=selection, replace=False)
        return sorted(int(task) for task in drawn)
    for name in selection:
        if name not in names:
            full_name = next((task for task in names if "," in task and name in task), None)
            hint = "" if full_name is None else f"; a name with a comma stands in quotes: --tasks '\"{full_name}\"'"
            raise ConfigError(f"no task {name!r}: {_choices(name, names)}{hint}")
    if len(set(selection)) < len(selection) or not selection:
        raise ConfigError(f"tasks must be named once each, got {', '.join(selection) or 'none'}")
    return [names.index(name) for name in selection]


def _number_name_hint(names: tuple[str, ...], count: int) -> str:
    """Return a hint if a task's name is the number that was read as a count; otherwise an empty text."""
    return f"; for the task called {count}: --tasks {count}," if str(count) in names else ""


def _choices(word: str, names: tuple[str, ...]) -> str:
    close = names if len(names) <= 6 else difflib.get_close_matches(word, names, n=3, cutoff=0.5) or names[:6]
    more = f" … ({len(names)} in all)" if len(names) > len(close) else ""
    return f"choose from {', '.join(close)}{more}" if names else "it has no classes"


def _split_task(source: Source, rows: IntArray, split: Split, seed: int, task: int) -> _TaskSplit:
    name = source.task_names[task]
    if not len(rows):
        raise DataError(f"task {name!r} has no rows")
    # Classes, or tenths of the labels of a regression.
    y = source.y[rows]
    strata = (
        y.astype(np.int64)
        if source.class_names
        else np.argsort(np.argsort(y, kind="stable"), kind="stable") * 10 // len(y)
    )
    drawn = _draw(strata, source, split, name, np.random.default_rng([seed, DRAW_ROWS, task]))
    group = None if source.group is None or not split.grouped else source.group[rows]
    in_test = _hold_out(strata[drawn], None if group is None else group[drawn], split, [seed, HOLD_OUT, task])
    if source.small_tasks != "error" and in_test.all():
        in_test[:] = False
    train, test = drawn[~in_test], drawn[in_test]
    if not len(train):
        raise DataError(f"task {name!r} has no training rows left: lower test_fraction or take more samples")
    if split.test_rest:
        # Test on all rows except the training rows and, for a grouped split, their groups.
        free = np.ones(len(rows), dtype=np.bool_)
        free[train] = False
        if group is not None:
            free &= ~np.isin(group, group[train])
        test = np.flatnonzero(free)
    trained = rows[train]
    small = _smallness(source, trained, split)
    if source.class_names and source.small_tasks == "error" and len(present := np.unique(source.y[trained])) < 2:
        raise DataError(
            f"all {len(trained)} training rows of task {name!r} have the class "
            f"{source.class_names[int(present[0])]!r}: leave the task out, take more samples or balance; tasks of a "
            "table can learn from the others with --small-tasks keep"
        )
    n_terminals = split.terminals or DEFAULT_TERMINALS
    if source.small_tasks != "error":
        n_terminals = min(n_terminals, len(trained))
    to_share = TaskRows(name, strata[train], None if source.terminal is None else source.terminal[trained])
    rng = np.random.default_rng([seed, TO_TERMINALS, task])
    terminal = (split.partition or Iid()).assign(to_share, n_terminals, rng)
    return _TaskSplit(trained[np.argsort(terminal, kind="stable")], np.bincount(terminal), rows[test], small)


def _smallness(source: Source, train: IntArray, split: Split) -> str:
    """Return why these training rows are too few: a single row, a single class, or fewer rows than terminals."""
    if len(train) == 1:
        return "one training row"
    if source.class_names and len(np.unique(source.y[train])) < 2:
        return f"one class in {len(train)} training rows"
    few = not isinstance(split.partition, Column) and len(train) < (split.terminals or DEFAULT_TERMINALS)
    return f"{len(train)} training rows, as many as it gets terminals" if few else ""


def _draw(strata: IntArray, source: Source, split: Split, name: str, rng: np.random.Generator) -> IntArray:
    """Return the positions of the drawn rows, in rising order."""
    balanced = split.balanced if split.balanced is not None else split.positive is not None
    if balanced and not source.class_names:
        raise ConfigError("balanced needs classes, and this is a regression")
    if balanced and source.small_tasks != "error" and len(np.unique(strata)) < 2:
        balanced = False
    if not balanced and split.samples_per_task is None:
        return np.arange(len(strata))
    if split.samples_per_task is not None and split.samples_per_task > len(strata):
        raise DataError(
            f"task {name!r} has {len(strata)} rows, {split.samples_per_task} were asked for: "
            "lower samples_per_task, or leave the task out"
        )
    if not balanced:
        return _take(strata, apportion(split.samples_per_task or len(strata), np.bincount(strata)), rng)
    # Rows per class. If the total does not divide evenly, the first classes get an extra row.
    total = split.samples_per_task
    counts = np.bincount(strata, minlength=len(source.class_names))
    if total is None:
        total = len(counts) * int(counts.min())
    shares = total // len(counts) + (np.arange(len(counts)) < total % len(counts))
    for label in np.flatnonzero((shares > counts) | (shares == 0)):
        raise DataError(
            f"task {name!r} has {counts[label]} rows of class {source.class_names[label]!r}, a balanced draw of "
            f"{total} needs {max(1, shares[label])}: lower samples_per_task, leave the task out, or do not balance"
        )
    return _take(strata, shares, rng)


def _take(strata: IntArray, quota: IntArray, rng: np.random.Generator) -> IntArray:
    """Return ``quota[s]`` random rows of every stratum ``s``, in rising order."""
    chosen = [rng.permutation(np.flatnonzero(strata == s))[:count] for s, count in enumerate(quota) if count]
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)


def _hold_out(
    strata: IntArray, group: npt.NDArray[Any] | None, split: Split, address: list[int]
) -> npt.NDArray[np.bool_]:
    """Return a mask of the drawn rows that become test rows.

    With groups, visit the groups in random order and take each if it brings the counts closer to the target. Distance
    is Σ_c m_c² + C (Σ_c m_c)², where m_c counts the missing rows of class c. The total size has as much weight as
    all classes together.
    """
    rng = np.random.default_rng(address)
    in_test = np.zeros(len(strata), dtype=np.bool_)
    target = apportion(int(np.floor(len(strata) * split.test_fraction + 0.5)), np.bincount(strata))
    if group is None:
        in_test[_take(strata, target, rng)] = True
        return in_test
    names, member = np.unique(group, return_inverse=True)
    counts = np.zeros((len(names), len(target)), dtype=np.int64)
    np.add.at(counts, (member, strata), 1)
    missing = target.copy()
    in_test_group = np.zeros(len(names), dtype=np.bool_)
    for candidate in rng.permutation(len(names)):
        after = missing - counts[candidate]
        if _distance(after) < _distance(missing):
            missing, in_test_group[candidate] = after, True
    return in_test_group[member]


def _distance(missing: IntArray) -> int:
    return int(missing @ missing + len(missing) * missing.sum() ** 2)


def _gather(source: Source, chosen: list[int], parts: list[_TaskSplit], split: Split) -> Federation:
    """Copy the rows into place: terminal by terminal, rows of a terminal in the order of recording."""
    train, test = (np.concatenate([part[i] for part in parts]) for i in (0, 2))
    terminal_offsets = offsets(np.concatenate([part.sizes for part in parts]))
    task_offsets = offsets([len(part.sizes) for part in parts])
    test_offsets = offsets([len(part.test) for part in parts])
    parts.clear()  # free the row numbers before the rows are copied
    label = np.float64 if not source.class_names else np.int16 if len(source.class_names) < 2**15 else np.int32
    names: tuple[str, ...] = ()
    if isinstance(split.partition, Column) and source.terminal is not None and source.terminal_names:
        names = tuple(source.terminal_names[code] for code in source.terminal[train[terminal_offsets[:-1]]])
    X, test_X, preparation = source.X[train], source.X[test], None
    if source.spelled:
        preparation = Preparation.learned(source.feature_names, X, source.spelled, source.gap_words)
        X, test_X = (preparation.encode(coded, source.spelled) for coded in (X, test_X))
    return Federation(
        X=X,
        y=source.y[train].astype(label),
        terminal_offsets=terminal_offsets,
        task_offsets=task_offsets,
        test_X=test_X,
        test_y=source.y[test].astype(label),
        test_offsets=test_offsets,
        task_names=tuple(source.task_names[b] for b in chosen),
        class_names=source.class_names,
        feature_names=source.feature_names if preparation is None else preparation.feature_names,
        preparation=preparation,
        origin=source.origin,
        terminal_names=names,
        terminals_drawn=not isinstance(split.partition, Column),
        group=source.group[train] if split.grouped and source.group is not None else None,
    )
