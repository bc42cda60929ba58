"""The kernels: equal to plain loops, and the same to the bit whatever runs beside them."""

from __future__ import annotations

import math
import os
import signal
from typing import Any

import numpy as np
import pytest
from tests.reference.sdca import active_visits, ascend, visits

from rhfedmtl.maths.kernels import loops, rounds, sdca
from rhfedmtl.maths.losses import Hinge, SmoothedHinge, Squared
from rhfedmtl.maths.registry import LOSSES

SIZES = (4, 1, 9, 30, 2, 7, 5)
STATION = np.array([0, 0, 1, 1, 1, 2, 0])
IDS = np.array([40, 2, 7, 11, 3, 5, 1])


def rows_of(
    sizes: Any = SIZES,
    *,
    ids: Any = IDS,
    d: int = 5,
    columns: int = 1,
    dtype: Any = np.float64,
    seed: int = 0,
    **more: Any,
) -> rounds.Rows:
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    X = rng.normal(size=(n, d)).astype(dtype)
    y = rng.choice([-1.0, 1.0], size=(n, columns))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return rounds.make_rows(X, y, offsets, ids=np.asarray(ids), **more)


def duals_of(loss: Any, rows: rounds.Rows, seed: int = 1) -> rounds.Duals:
    """Duals somewhere inside the box, for weights of one or more."""
    rng = np.random.default_rng(seed)
    duals = rounds.make_duals(rows)
    duals.alpha[:] = rng.random(rows.y.shape) * (rows.y if loss.classifier else 1.0)
    return duals


def orders_of(
    rows: rounds.Rows, n_stations: int, steps: Any = 8, *, seed: int = 6, number: int = 9, **more: Any
) -> Any:
    rng = np.random.default_rng(2)
    width = rows.X.shape[1] + more.pop("intercept", 0)
    models = rng.normal(size=(n_stations, rows.y.shape[1], width)).astype(rows.X.dtype)
    scale = np.linspace(0.8, 3.0, n_stations)
    steps = np.broadcast_to(np.asarray(steps, dtype=np.int64), len(rows.ids)).copy()
    gradient = np.zeros(n_stations, dtype=bool)
    return rounds.Orders(models, scale, steps, np.uint64(seed), np.uint64(number), more.pop("uniform", False), gradient)


def run(loss: Any, rows: rounds.Rows, duals: rounds.Duals, orders: Any, station: Any, **more: Any) -> rounds.Answers:
    layout = rounds.make_layout(np.asarray(station), len(orders.models), rows.ids)
    return sdca.run_round(loss, rows, layout, duals, orders, **more)


def one_terminal(loss: Any, *, steps: int, columns: int = 1, dtype: Any = np.float64, **more: Any) -> Any:
    """Kernel and plain loops over the same rows from the same duals."""
    uniform = more.pop("uniform", False)
    rows = rows_of((6,), ids=[13], columns=columns, dtype=dtype, **more)
    if loss.classifier is False:
        rows = rows._replace(y=rounds.fixed(rows.y * 1.7))
    duals = duals_of(loss, rows)
    duals.alpha[:] *= rows.weight[:, None]
    before = duals.alpha.copy()
    orders = orders_of(rows, 1, steps, uniform=uniform, intercept=int(rows.constant > 0.0))
    answers = run(loss, rows, duals, orders, [0])
    X = np.column_stack([rows.X, np.full(6, rows.constant)]) if rows.constant else rows.X.astype(float)
    told: list[tuple[float, float]] = []
    active = isinstance(loss, Hinge) and not uniform
    order = active_visits(6, 9, 13, 6, steps, told) if active else visits(6, 9, 13, 6, steps, uniform)
    plain = ascend(loss, X, rows.y, before, orders.models[0], orders.scale[0], order, rows.weight, told)
    return answers, duals, plain


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_the_kernel_equals_plain_loops(name: str, columns: int) -> None:
    """Change of the duals, update and gain of a terminal are those of a simple implementation."""
    answers, duals, plain = one_terminal(LOSSES[name](), steps=15, columns=columns)
    np.testing.assert_allclose(duals.pending, plain.change, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(answers.delta[0], plain.delta, rtol=1e-9, atol=1e-11)
    assert answers.gains[0, -1] == pytest.approx(plain.gains[-1], rel=1e-9)


def test_steps_spared_on_rows_that_rest_are_taken_on_others() -> None:
    """The same H leaves less than a tenth of the dual suboptimality that passes over all rows leave, with the hinge."""
    rng = np.random.default_rng(0)
    X, n = rng.normal(size=(60, 10)), 60
    y = np.where(X[:, :1] + 0.3 * rng.normal(size=(n, 1)) > 0, 1.0, -1.0)
    rows = rounds.make_rows(X, y, np.array([0, n]), ids=np.array([13]))
    orders = orders_of(rows, 1, 20 * n)._replace(models=np.zeros((1, 1, 10)))
    found = run(Hinge(), rows, rounds.make_duals(rows), orders, [0]).gains[0, -1]
    order = visits(6, 9, 13, n, 200 * n)
    whole = ascend(Hinge(), X, y, np.zeros((n, 1)), np.zeros((1, 10)), 0.8, order).gains
    assert -1e-9 <= whole[-1] - found < 0.1 * (whole[-1] - whole[20 * n - 1])


@pytest.mark.parametrize(
    "more",
    [
        {"uniform": True},
        {"constant": 0.4},
        {"weight": np.array([0.0, 0.5, 1.0, 3.0, 2.0, 0.25])},
        {"weight": np.array([0.0, 0.5, 1.0, 3.0, 2.0, 0.25]), "constant": 1.0, "columns": 3},
    ],
    ids=["uniform", "intercept", "weights", "all at once"],
)
def test_options_equal_plain_loops(more: dict[str, Any]) -> None:
    """Drawing with replacement, the constant feature and weights mean what MATHS says."""
    answers, duals, plain = one_terminal(SmoothedHinge(), steps=20, **more)
    np.testing.assert_allclose(duals.pending, plain.change, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(answers.delta[0], plain.delta, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("more", [{}, {"columns": 3}, {"uniform": True}, {"constant": 0.4}], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_the_gram_matrix_gives_the_same_iterates(name: str, more: dict[str, Any]) -> None:
    """Many steps on few rows go by the Gram matrix, and equal plain loops that never make one."""
    assert sdca.prefers_gram(6, 11, 40)
    loss = LOSSES[name]()
    answers, duals, plain = one_terminal(loss, steps=40, d=11, **more)
    np.testing.assert_allclose(duals.pending, plain.change, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(answers.delta[0], plain.delta, rtol=1e-9, atol=1e-11)
    assert answers.gains[0, -1] == pytest.approx(plain.gains[-1], rel=1e-9)
    assert answers.gains[0, 3] == pytest.approx(plain.gains[7], rel=1e-9)


def test_the_gram_matrix_heeds_weights() -> None:
    """Rows without weight are passed over, others count as often as their weight says."""
    weight = np.array([0.0, 0.5, 1.0, 3.0, 2.0, 0.25])
    answers, duals, plain = one_terminal(SmoothedHinge(), steps=40, d=11, weight=weight)
    np.testing.assert_allclose(duals.pending, plain.change, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(answers.delta[0], plain.delta, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9])
def test_any_number_of_rows_fits_the_gram_matrix(n: int) -> None:
    """Rows are multiplied in fours; numbers of rows that four does not divide give the same as plain loops."""
    rows = rows_of((n,), ids=[13], d=20)
    duals = rounds.make_duals(rows)
    orders = orders_of(rows, 1, 60)
    assert sdca.prefers_gram(n, 20, 60)
    run(SmoothedHinge(), rows, duals, orders, [0])
    order = visits(6, 9, 13, n, 60)
    plain = ascend(SmoothedHinge(), rows.X, rows.y, np.zeros((n, 1)), orders.models[0], orders.scale[0], order)
    np.testing.assert_allclose(duals.pending, plain.change, rtol=1e-9, atol=1e-11)


def test_when_a_gram_matrix_is_made() -> None:
    """Only for many steps on few long rows: a few passes over few rows, or many over more."""
    assert sdca.prefers_gram(4, 561, 16)
    assert sdca.prefers_gram(16, 64, 80)
    assert not sdca.prefers_gram(16, 561, 16)
    assert not sdca.prefers_gram(256, 561, 1024)
    assert not sdca.prefers_gram(64, 32, 10_000)
    assert not sdca.prefers_gram(300, 561, 1_000_000)


@pytest.mark.parametrize("uniform", [False, True])
def test_rounds_that_visit_few_rows_equal_plain_loops(uniform: bool) -> None:
    """Verdicts are applied to the rows visited and to no others, round after round, few steps after many."""
    rows = rows_of((9, 6), ids=[13, 4])
    duals = rounds.make_duals(rows)
    alpha = duals.alpha.copy()
    for number, (steps, factor) in enumerate([(3, 0.5), (2, 0.25), (20, 0.5), (1, 1.0), (4, 0.0), (2, 0.5)], start=1):
        orders = orders_of(rows, 1, steps, number=number, uniform=uniform)
        run(SmoothedHinge(), rows, duals, orders, [0, 0])
        np.testing.assert_allclose(duals.alpha, alpha, rtol=1e-12, atol=1e-14)
        for part, name in ((slice(0, 9), 13), (slice(9, 15), 4)):
            order = visits(6, number, name, part.stop - part.start, steps, uniform)
            given = rows.X[part], rows.y[part], alpha[part], orders.models[0], orders.scale[0], order
            change = ascend(SmoothedHinge(), *given).change
            np.testing.assert_allclose(duals.pending[part], change, rtol=1e-9, atol=1e-11)
            alpha[part] += factor * change
        duals.settle[:] = factor


@pytest.mark.parametrize("name", ["smoothed-hinge", "logistic"])
def test_single_precision_is_close_to_plain_loops(name: str) -> None:
    """Rows in single precision give the same steps up to their rounding, and an exact sum XᵀΔα."""
    answers, duals, plain = one_terminal(LOSSES[name](), steps=15, dtype=np.float32)
    np.testing.assert_allclose(duals.pending, plain.change, rtol=1e-3, atol=1e-4)
    rows = rows_of((6,), ids=[13], dtype=np.float32)
    np.testing.assert_allclose(answers.delta[0], duals.pending.T @ rows.X.astype(float), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", LOSSES)
def test_the_gain_curve_is_the_true_dual_gain(name: str) -> None:
    """With σ′ = 1 and one terminal, g(h) is n times the dual gain of the first h steps."""
    loss = LOSSES[name]()
    rows = rows_of((6,), ids=[13])
    lam, n = 0.3, 6

    def dual(alpha: Any) -> float:
        v = alpha[:, 0] @ rows.X / n
        terms = sum(loss.conjugate(a, y) for a, y in zip(alpha[:, 0], rows.y[:, 0], strict=True))
        return float(-terms / n - v @ v / (2 * lam))

    for steps in (1, 2, 3, 8, 30):
        duals = duals_of(loss, rows)
        model = (duals.alpha.T @ rows.X / n / lam)[None]
        orders = orders_of(rows, 1, steps)._replace(models=model, scale=np.array([lam * n]))
        answers = run(loss, rows, duals, orders, [0])
        true = n * (dual(duals.alpha + duals.pending) - dual(duals.alpha))
        assert answers.gains[0, -1] == pytest.approx(true, rel=1e-9, abs=1e-12)
        assert np.all(np.diff(answers.gains[0]) >= -1e-12)
        # Point p of a longer curve is the gain after 2^p steps.
        if steps in (1, 2, 8):
            longer = duals_of(loss, rows)
            curve = run(loss, rows, longer, orders._replace(steps=np.array([40])), [0]).gains[0]
            assert curve[int(math.log2(steps))] == answers.gains[0, -1]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch, threads: int, dtype: Any) -> None:
    """Rounds and sums are shared out in whole blocks, so any number of threads gives the same numbers."""
    monkeypatch.setattr(loops, "WORK_PER_THREAD", 1)
    loss = SmoothedHinge()
    sizes, station = np.tile(SIZES, 20), np.tile(STATION, 20)
    rows = rows_of(sizes, ids=np.random.default_rng(0).permutation(140), dtype=dtype)
    layout = rounds.make_layout(station, 3, rows.ids)
    seen = []
    for count in (1, threads):
        duals = duals_of(loss, rows)
        orders = orders_of(rows, 3, np.arange(140) % 11)
        answers = run(loss, rows, duals, orders, station, threads=count, profile_length=3)
        duals.settle[:] = 0.5
        models, points = orders.models[None].astype(float), np.array([[1.0], [0.5]])
        sums = sdca.run_sums(loss, rows, layout, duals, models, points, threads=count)
        seen.append([*answers, duals.alpha, *sums])
    assert len(loops.cuts(layout, orders.steps, 5, threads)) > threads
    for one, other in zip(*seen, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_terminal_alone_gives_what_it_gives_in_a_batch(dtype: Any) -> None:
    """To the bit: the update of each terminal does not depend on who is computed beside it."""
    loss = SmoothedHinge()
    rows = rows_of(dtype=dtype, columns=2)
    batch = duals_of(loss, rows)
    orders = orders_of(rows, 3, [3, 8, 5, 40, 0, 9, 2])
    answers = run(loss, rows, batch, orders, STATION)
    total = np.zeros_like(answers.delta)
    for t in np.argsort(IDS):
        part = slice(rows.starts[t], rows.ends[t])
        alone = rounds.make_rows(rows.X[part], rows.y[part], np.array([0, part.stop - part.start]), ids=IDS[t : t + 1])
        duals = rounds.make_duals(alone)
        duals.alpha[:] = batch.alpha[part]
        b = STATION[t]
        own = {name: getattr(orders, name)[b : b + 1] for name in ("models", "scale", "gradient")}
        one = orders._replace(**own, steps=orders.steps[t : t + 1])
        total[b] += run(loss, alone, duals, one, [0]).delta[0]
        np.testing.assert_array_equal(duals.pending, batch.pending[part])
    np.testing.assert_array_equal(total, answers.delta)


def test_randomness_belongs_to_the_terminal_and_not_to_its_place() -> None:
    """Rows and ids in another order give the same changes; another seed, round or id gives others."""
    loss = SmoothedHinge()
    rows = rows_of((9, 9), ids=[5, 8])
    swapped = rounds.make_rows(
        np.concatenate([rows.X[9:], rows.X[:9]]),
        np.concatenate([rows.y[9:], rows.y[:9]]),
        np.array([0, 9, 18]),
        ids=np.array([8, 5]),
    )
    changes = []
    for given, order in ((rows, [0, 1]), (swapped, [1, 0])):
        duals = rounds.make_duals(given)
        run(loss, given, duals, orders_of(given, 1, 6), [0, 0])
        changes.append(duals.pending.reshape(2, 9)[order])
    np.testing.assert_array_equal(*changes)
    for other in ({"seed": 7}, {"number": 10}):
        duals = rounds.make_duals(rows)
        run(loss, rows, duals, orders_of(rows, 1, 6, **other), [0, 0])
        assert not np.array_equal(duals.pending.reshape(2, 9), changes[0])
    duals = rounds.make_duals(rows)
    run(loss, rows._replace(ids=rounds.fixed(np.array([5, 9]))), duals, orders_of(rows, 1, 6), [0, 0])
    np.testing.assert_array_equal(duals.pending[:9, 0], changes[0][0])
    assert not np.array_equal(duals.pending[9:, 0], changes[0][1])


def test_a_pass_visits_every_row_once() -> None:
    """A shuffled deck is dealt to its end before it is shuffled anew."""
    for n in (1, 2, 7, 20):
        order = visits(3, 4, 5, n, 3 * n)
        for k in range(3):
            assert sorted(order[k * n : (k + 1) * n]) == list(range(n))
    firsts = [visits(3, number, 5, 6, 1)[0] for number in range(600)]
    assert min(np.bincount(firsts, minlength=6)) > 60


def test_the_kernel_visits_every_row_once_in_a_pass() -> None:
    """With duals at zero and a large margin, a row changes when it is visited: n steps change all n rows."""
    rows = rows_of((9, 4), ids=[5, 8])
    duals = rounds.make_duals(rows)
    orders = orders_of(rows, 1, [9, 3])._replace(models=np.zeros((1, 1, 5)), scale=np.array([1e6]))
    run(Hinge(), rows, duals, orders, [0, 0])
    assert np.count_nonzero(duals.pending[:9]) == 9
    assert np.count_nonzero(duals.pending[9:]) == 3


def test_work_of_zero_steps_leaves_a_terminal_alone() -> None:
    """H = 0 changes nothing and adds nothing, also with a verdict still to be applied."""
    rows = rows_of((4, 4), ids=[0, 1])
    duals = duals_of(SmoothedHinge(), rows)
    duals.settle[0], duals.pending[0] = 0.5, 0.25
    before = [part.copy() for part in duals]
    answers = run(SmoothedHinge(), rows, duals, orders_of(rows, 1, 0), [0, 0])
    assert not answers.delta.any()
    for was, now in zip(before, duals, strict=True):
        np.testing.assert_array_equal(was, now)


def optimum(rows: rounds.Rows, lam_n: float, loss: Any) -> Any:
    """Model at the optimum of one terminal: λn w = Xᵀα."""
    duals = rounds.make_duals(rows)
    layout = rounds.make_layout(np.zeros(1, dtype=np.int64), 1, rows.ids)
    width = rows.X.shape[1] + int(rows.constant > 0.0)
    w = np.zeros((1, 1, width))
    for number in range(400):
        address, steps = (np.uint64(0), np.uint64(number)), np.array([len(rows.X)])
        orders = rounds.Orders(w, np.array([lam_n]), steps, *address, False, np.array([False]))
        w = w + sdca.run_round(loss, rows, layout, duals, orders).delta / lam_n
        duals.settle[:] = 1.0
    return w[0, 0]


@pytest.mark.parametrize("loss", [SmoothedHinge(), Squared()])
def test_a_weight_counts_like_copies_of_the_row(loss: Any) -> None:
    """At the optimum weight k equals k copies, and weight 0 equals absence, at the same λn."""
    rng = np.random.default_rng(4)
    X, y = rng.normal(size=(8, 3)), rng.choice([-1.0, 1.0], size=(8, 1))
    weight = np.array([0, 1, 2, 3, 1, 0, 2, 1])
    weighted = rounds.make_rows(X, y, np.array([0, 8]), weight=weight)
    copied = rounds.make_rows(np.repeat(X, weight, axis=0), np.repeat(y, weight, axis=0), np.array([0, weight.sum()]))
    np.testing.assert_allclose(optimum(weighted, 2.0, loss), optimum(copied, 2.0, loss), atol=1e-8)


def test_an_intercept_is_a_constant_column() -> None:
    """The constant feature that is never stored acts like one that is."""
    rng = np.random.default_rng(4)
    X, y = rng.normal(size=(8, 3)), rng.choice([-1.0, 1.0], size=(8, 1))
    implied = rounds.make_rows(X, y, np.array([0, 8]), constant=0.4)
    stored = rounds.make_rows(np.column_stack([X, np.full(8, 0.4)]), y, np.array([0, 8]))
    np.testing.assert_allclose(implied.norm, stored.norm, rtol=1e-14)
    np.testing.assert_allclose(
        optimum(implied, 2.0, SmoothedHinge()), optimum(stored, 2.0, SmoothedHinge()), atol=1e-10
    )


def test_zero_rows_have_a_defined_result() -> None:
    """A row of zeros changes its dual and nothing else."""
    rows = rounds.make_rows(np.zeros((3, 2)), np.ones((3, 1)), np.array([0, 3]))
    for loss in (SmoothedHinge(), Hinge()):
        duals = rounds.make_duals(rows)
        answers = run(loss, rows, duals, orders_of(rows, 1, 6), [0])
        np.testing.assert_array_equal(duals.pending, 1.0)
        assert not answers.delta.any()


def test_rows_are_used_where_they_lie() -> None:
    """A contiguous array is neither copied nor written to."""
    X = np.ones((5, 3), dtype=np.float32)
    rows = rounds.make_rows(X, np.ones((5, 1)), np.array([0, 5]))
    assert np.shares_memory(rows.X, X)
    assert not rows.X.flags.writeable


def test_shares_are_the_sums_of_the_terminals_asked_for() -> None:
    """u_t = X_tᵀα_t with pending changes settled, for the terminals of a layout, in its order."""
    rows = rows_of()
    duals = duals_of(SmoothedHinge(), rows)
    duals.pending[:] = 0.25
    duals.settle[:] = 0.5
    expected = duals.alpha + 0.125
    layout = rounds.make_layout(np.where(np.isin(IDS, [40, 11]), 0, -1), 1, rows.ids)
    shares = sdca.run_shares(rows, layout, duals, 5)
    assert len(shares) == 2
    for share, t in zip(shares, (3, 0), strict=True):
        part = slice(rows.starts[t], rows.ends[t])
        np.testing.assert_allclose(share, expected[part].T @ rows.X[part], rtol=1e-12)


def test_blocks_are_added_in_one_order() -> None:
    """A station that adds message by message gets, to the bit, what the batch gets."""
    rng = np.random.default_rng(0)
    parts = [None if rng.random() < 0.3 else rng.normal(size=3) for _ in range(50)]
    starts = np.array([0, 4])
    blocks = np.zeros((4, 3))
    for place, part in enumerate(parts):
        if part is not None:
            blocks[place // rounds.BLOCK_TERMINALS] += part
    np.testing.assert_array_equal(rounds.add_in_blocks(parts, (3,)), loops.add_blocks(blocks, starts)[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_threads_work_in_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process does not wait for threads that only its parent has."""
    monkeypatch.setattr(loops, "WORK_PER_THREAD", 1)
    rows = rows_of(np.tile(SIZES, 10), ids=np.arange(70))
    orders = orders_of(rows, 3, 4)
    station = np.tile(STATION, 10)
    expected = run(SmoothedHinge(), rows, rounds.make_duals(rows), orders, station, threads=2).delta
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        got = run(SmoothedHinge(), rows, rounds.make_duals(rows), orders, station, threads=2).delta
        os._exit(0 if np.array_equal(got, expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_rows_that_have_not_arrived_are_not_there() -> None:
    """A terminal with only its first rows gives, to the bit, what a terminal with no others gives."""
    loss = SmoothedHinge()
    rows = rows_of((6, 8), ids=[4, 9])
    early = rounds.with_sizes(rows, np.array([3, 5]))
    cut = np.r_[0:3, 6:11]
    short = rounds.make_rows(rows.X[cut], rows.y[cut], np.array([0, 3, 8]), ids=rows.ids)
    orders = orders_of(rows, 1, 12)
    few, none = rounds.make_duals(early), rounds.make_duals(short)
    answers = run(loss, early, few, orders, [0, 0])
    np.testing.assert_array_equal(answers.delta, run(loss, short, none, orders, [0, 0]).delta)
    np.testing.assert_array_equal(few.pending[cut], none.pending)
    assert np.count_nonzero(few.pending) == np.count_nonzero(none.pending)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("d", [1, 7, 300])
def test_norms_of_rows_are_the_same_with_and_without_a_compiler(d: int, dtype: Any) -> None:
    """To the bit, so that a terminal on its own takes the steps that it takes in a batch."""
    X = np.random.default_rng(d).normal(size=(500, d)).astype(dtype)
    for constant in (0.0, 1.0):
        np.testing.assert_array_equal(rounds.row_norms(X, constant), loops.row_norms(X, constant))
