"""The two-level split: every row in one place, sizes as asked, addressed by the seed, and nothing leaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.conftest import numbered

from rhfedmtl.data.federation import Federation, Source
from rhfedmtl.data.partition import PARTITIONS, Blocks, Column, Dirichlet, Iid, PowerLaw, TaskRows, apportion
from rhfedmtl.data.split import Split, choose_tasks, federate
from rhfedmtl.errors import ConfigError, DataError

RANDOM = [Iid(), Dirichlet(0.1), Dirichlet(1.0), Dirichlet(100.0), PowerLaw(0.5), PowerLaw(2.0)]
ALL = [*RANDOM, Blocks(), Column()]


def ids(rows: np.ndarray) -> np.ndarray:
    return rows[:, 0].astype(int)


def same(a: Federation, b: Federation) -> bool:
    return a.fingerprint() == b.fingerprint()


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(lambda s: sum(s) > 0),
    share=st.floats(0, 1),
)
def test_apportion_adds_up_and_never_exceeds_whole_weights(sizes: list[int], share: float) -> None:
    """Whole shares add up to the total, and no share exceeds its weight when the total does not."""
    total = int(share * sum(sizes))
    parts = apportion(total, sizes)
    assert parts.sum() == total
    assert (parts >= 0).all()
    assert (parts <= sizes).all()


@pytest.mark.parametrize("partition", ALL, ids=repr)
@given(n=st.integers(1, 60), terminals=st.integers(1, 12), classes=st.integers(1, 5), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_every_partition_gives_every_row_one_terminal_and_every_terminal_a_row(
    partition, n: int, terminals: int, classes: int, seed: int
) -> None:  # type: ignore[no-untyped-def]
    """Terminals are numbered from 0 without a hole, and hold all rows between them."""
    rows = TaskRows("t", np.arange(n) % classes, np.arange(n) % terminals)
    if n < terminals and not isinstance(partition, Column):
        with pytest.raises(DataError, match=f"{n} training rows for {terminals} terminals"):
            partition.assign(rows, terminals, np.random.default_rng(seed))
        return
    assigned = partition.assign(rows, terminals, np.random.default_rng(seed))
    assert assigned.shape == (n,)
    assert (np.bincount(assigned, minlength=min(n, terminals)) > 0).all()
    again = partition.assign(rows, terminals, np.random.default_rng(seed))
    assert (assigned == again).all()


@given(n=st.integers(12, 80), terminals=st.integers(1, 12), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_partitions_keep_the_sizes_they_promise(n: int, terminals: int, seed: int) -> None:
    """`iid` and `blocks` are even, `blocks` contiguous, and `powerlaw` follows rank^-exponent."""
    rows = TaskRows("t", np.zeros(n, dtype=np.int64))
    even = [np.bincount(p.assign(rows, terminals, np.random.default_rng(seed))) for p in (Iid(), Blocks())]
    assert all(np.ptp(sizes) <= 1 for sizes in even)
    assert (np.diff(Blocks().assign(rows, terminals, np.random.default_rng(seed))) >= 0).all()
    sizes = np.sort(np.bincount(PowerLaw(1.0).assign(rows, terminals, np.random.default_rng(seed))))[::-1]
    law = np.arange(1, terminals + 1) ** -1.0
    assert np.abs(sizes - 1 - (n - terminals) * law / law.sum()).max() <= 1


def test_smaller_alpha_means_more_label_skew() -> None:
    """Under a small alpha terminals see few classes, under a large one nearly the same mixture."""
    rows = TaskRows("t", np.arange(2000) % 4)
    skew = []
    for alpha in (0.05, 1.0, 100.0):
        assigned = Dirichlet(alpha).assign(rows, 8, np.random.default_rng(1))
        table = np.zeros((8, 4))
        np.add.at(table, (assigned, rows.stratum), 1)
        skew.append((table.max(axis=1) / table.sum(axis=1)).mean())
    assert skew[0] > 0.8 > skew[1] > 0.4 > skew[2]


@pytest.mark.parametrize("partition", ALL, ids=repr)
@pytest.mark.parametrize("grouped", [False, True])
def test_a_split_without_draws_holds_every_row_exactly_once(partition, grouped: bool) -> None:  # type: ignore[no-untyped-def]
    """Training and test rows together are all rows of the source, each once, under its own task."""
    source = numbered(terminals=5)
    split = Split(partition=partition, grouped=grouped)
    federation = federate(source, split, seed=3)
    held = np.concatenate([ids(federation.X), ids(federation.test_X)])
    assert sorted(held) == list(range(len(source.X)))
    assert (source.task[ids(federation.X)] == federation.row_task).all()
    tested = np.repeat(np.arange(federation.n_tasks), np.diff(federation.test_offsets))
    assert (source.task[ids(federation.test_X)] == tested).all()
    assert (federation.y == source.y[ids(federation.X)]).all()


@pytest.mark.parametrize("partition", RANDOM, ids=repr)
def test_the_seed_alone_decides(partition) -> None:  # type: ignore[no-untyped-def]
    """The same seed gives the same split to the bit, another seed another one."""
    source, split = numbered(), Split(partition=partition, terminals=4)
    assert same(federate(source, split, 7), federate(source, split, 7))
    assert not same(federate(source, split, 7), federate(source, split, 8))


@given(
    rows=st.integers(24, 60),
    classes=st.sampled_from([0, 2, 3]),
    samples=st.integers(16, 64),
    fraction=st.floats(0, 0.6),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=80, deadline=None)
def test_sizes_are_as_asked(rows: int, classes: int, samples: int, fraction: float, seed: int) -> None:
    """A task holds exactly the rows asked for, of which exactly the rounded share is for the test."""
    source = numbered(n_tasks=2, rows=rows, classes=classes)
    split = Split(samples_per_task=samples, test_fraction=fraction, terminals=2)
    if samples > rows:
        with pytest.raises(DataError, match=f"'t0' has {rows} rows, {samples} were asked for"):
            federate(source, split, seed)
        return
    federation = federate(source, split, seed)
    tested = np.floor(samples * fraction + 0.5)
    assert (np.diff(federation.test_offsets) == tested).all()
    assert (np.diff(federation.terminal_offsets[federation.task_offsets]) == samples - tested).all()


@given(
    group_size=st.sampled_from([1, 2, 3, 5, 10]),
    fraction=st.floats(0.05, 0.6),
    rest=st.booleans(),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_a_grouped_split_never_leaks(group_size: int, fraction: float, rest: bool, seed: int) -> None:
    """No group has rows on both sides of the test, with or without `test_rest`."""
    source = numbered(rows=60, group_size=group_size)
    split = Split(grouped=True, test_fraction=fraction, test_rest=rest, samples_per_task=50, terminals=2)
    federation = federate(source, split, seed)
    assert source.group is not None
    assert not set(source.group[ids(federation.X)]) & set(source.group[ids(federation.test_X)])


def test_grouped_test_shares_come_as_close_as_groups_allow() -> None:
    """With small groups the test holds the asked share of every task within one group."""
    federation = federate(numbered(rows=200, group_size=5), Split(grouped=True), seed=2)
    assert np.abs(np.diff(federation.test_offsets) - 50).max() <= 5


def test_test_rest_keeps_the_training_rows_and_tests_on_all_others() -> None:
    """`test_rest` changes nothing for training and leaves no row of a task unused."""
    source = numbered()
    drawn = Split(samples_per_task=20, positive="c1", terminals=2)
    usual, rest = federate(source, drawn, 5), federate(source, replace(drawn, test_rest=True), 5)
    assert (usual.X == rest.X).all()
    assert set(ids(usual.test_X)) < set(ids(rest.test_X))
    assert sorted([*ids(rest.X), *ids(rest.test_X)]) == list(range(len(source.X)))


def test_stratified_test_rows_have_the_classes_of_their_task() -> None:
    """Class shares of training and test rows differ by less than one row per class."""
    federation = federate(numbered(rows=200), Split(test_fraction=0.3), seed=1)
    for b in range(3):
        train = np.bincount(federation.y[federation.row_task == b], minlength=3)
        test = np.bincount(federation.test_rows(b)[1], minlength=3)
        assert np.abs(test - 0.3 * (train + test)).max() < 1


@pytest.mark.parametrize("samples", [None, 20, 21])
def test_one_class_against_the_rest_is_balanced_by_default(samples: int | None) -> None:
    """Half of the drawn rows are positives; of an odd number the rest has one more."""
    source = numbered()
    federation = federate(source, Split(positive="c2", samples_per_task=samples, test_fraction=0, terminals=2))
    assert federation.class_names == ("rest", "c2")
    assert (federation.y == (source.y[ids(federation.X)] == 2)).all()
    for b in range(3):
        counts = np.bincount(federation.y[federation.row_task == b])
        positives = np.sum((source.y == 2) & (source.task == b)) if samples is None else samples // 2
        assert counts.tolist() == [(samples or 2 * positives) - positives, positives]
    loose = federate(source, Split(positive="c2", balanced=False, test_fraction=0))
    assert len(loose.X) == len(source.X)


def test_tasks_are_drawn_with_the_seed_or_named() -> None:
    """A number draws so many tasks, names pick them in their order, and a task's split does not depend on others."""
    source = numbered(n_tasks=8)
    drawn = {federate(source, Split(tasks=3), seed).task_names for seed in range(10)}
    assert len(drawn) > 3
    assert all(len(set(names)) == 3 for names in drawn)
    alone = federate(source, Split(tasks=("t5",)), seed=1)
    among = federate(source, Split(tasks=("t2", "t5", "t1")), seed=1)
    assert among.task_names == ("t2", "t5", "t1")
    assert (among.X[among.row_task == 1] == alone.X).all()
    assert choose_tasks(("a", "b"), None, 0) == [0, 1]


def test_the_terminal_column_is_followed_unless_a_number_is_asked_for() -> None:
    """Data with a terminal column keeps its terminals and their names; a number of terminals overrides it."""
    source = numbered(terminals=4)
    federation = federate(source)
    assert federation.n_terminals == 12
    assert federation.terminal_names[:4] == ("d0", "d1", "d2", "d3")
    assert source.terminal is not None
    held = np.repeat(np.tile(np.arange(4), 3), np.diff(federation.terminal_offsets))
    assert (source.terminal[ids(federation.X)] == held).all()
    assert federate(source, Split(terminals=2)).n_terminals == 6


def test_registry_names_every_partition() -> None:
    """Each partition can be made from its name alone."""
    assert {type(make()) for make in PARTITIONS.values()} == {Iid, Blocks, Dirichlet, PowerLaw, Column}


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ({"tasks": ("t9",)}, "no task 't9': choose from"),
        ({"tasks": ("t1", "t1")}, "named once each"),
        ({"tasks": 9}, "asked for 9 tasks, but there are 3"),
        ({"tasks": 0}, "asked for 0 tasks"),
        ({"positive": "c7"}, "no class 'c7'"),
        ({"terminals": 50}, "30 training rows for 50 terminals"),
        ({"samples_per_task": 38, "positive": "c1"}, "a balanced draw of 38 needs 19"),
        ({"partition": Column()}, "needs a terminal column"),
        ({"partition": Column(), "terminals": 3}, "leave out the number of terminals"),
        ({"test_fraction": 1.0}, "test_fraction must lie in"),
        ({"terminals": 0}, "terminals must be at least 1"),
        ({"tasks": "t1"}, "got the text"),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(split: dict[str, object], words: str) -> None:
    """Errors name the task, the numbers and what to change."""
    with pytest.raises((ConfigError, DataError), match=words):
        federate(numbered(), Split(**split))  # type: ignore[arg-type]


def test_a_task_with_one_class_is_refused_by_name() -> None:
    """A task that holds a single class cannot be learned, and the error says which."""
    source = numbered(classes=2)
    y = np.where(source.task == 1, 0, source.y)
    with pytest.raises(DataError, match=r"task 't1' have the class 'c0'"):
        federate(replace(source, y=y))


def test_groups_are_needed_for_a_grouped_split() -> None:
    """A grouped split of data without groups is refused."""
    with pytest.raises(ConfigError, match="nothing about groups"):
        federate(replace(numbered(), group=None), Split(grouped=True))


def test_a_group_across_two_tasks_is_refused() -> None:
    """Tasks learn from each other, so a group with rows in two tasks would leak, and is named."""
    with pytest.raises(DataError, match="rows 39 and 40 are of one group but of tasks 't0' and 't1'"):
        federate(numbered(group_size=7), Split(grouped=True))


def test_a_task_without_rows_is_refused() -> None:
    """A task name without rows is an error, not an empty task."""
    source = Source(np.zeros((4, 1)), np.arange(4) % 2, np.zeros(4, dtype=int), ("a", "b"), ("n", "y"))
    with pytest.raises(DataError, match="task 'b' has no rows"):
        federate(source, Split(terminals=1))


@pytest.mark.parametrize("make", [lambda: Dirichlet(0), lambda: Dirichlet(np.nan), lambda: PowerLaw(-1)])
def test_partitions_refuse_parameters_that_make_no_sense(make) -> None:  # type: ignore[no-untyped-def]
    """Parameters outside of their range are refused when the partition is made."""
    with pytest.raises(ConfigError, match="needs"):
        make()
