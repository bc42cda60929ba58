"""What a station can learn of rows from updates: attacks that succeed in the clear, and what stops each of them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from benchmarks import attacks

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.maths.gaussian_privacy import mu_of
from rhfedmtl.maths.kernels.rounds import draw, stream
from rhfedmtl.roles.channel import Noised
from rhfedmtl.roles.messages import Verdict, WorkOrder
from rhfedmtl.roles.terminal import Terminal, round_seed

ROWS, FEATURES = 14, 40
FloatArray = npt.NDArray[np.float64]


def make_terminal(seed: int | bytes, number: int = 5) -> tuple[Terminal, FloatArray]:
    """A terminal with unit rows, and what an attacker wants: the rows, with the constant feature."""
    random = np.random.default_rng(number)
    X = random.normal(size=(ROWS, FEATURES))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.where(random.random(ROWS) < 0.5, -1.0, 1.0)[:, None]
    terminal = Terminal(0, X, y, DualMethod(merge=MERGES["add"]()), seed=seed)
    terminal.join()
    return terminal, np.column_stack([X, np.ones(ROWS)])


def visits(seed: int, number: int, steps: int) -> set[int]:
    """Rows that terminal 0 visits, as anybody can work out who knows the seed."""
    with np.errstate(over="ignore"):
        key = stream(np.uint64(seed), np.uint64(number), 0)
        deck = list(range(ROWS))
        for i in range(min(steps, ROWS)):
            j = i + int(draw(key, i, ROWS - i))
            deck[i], deck[j] = deck[j], deck[i]
    return set(deck[: min(steps, ROWS)])


def watched(terminal: Terminal, steps: int, rounds: int) -> FloatArray:
    """The updates of an honest station's rounds, one in a row; what other terminals do moves the model, too."""
    U, found, verdict = np.zeros((1, FEATURES + 1)), [], Verdict(incarnation=1)
    others = np.random.default_rng(2).normal(size=(rounds, 1, FEATURES + 1))
    for number in range(1, rounds + 1):
        model = U / (0.1 * ROWS) + others[number - 1]
        update = terminal.work(WorkOrder(number, 0, model, 0.1 * ROWS, steps, verdict))
        assert update is not None
        U = U + update.delta
        found.append(update.delta[0])
        verdict = Verdict(number, 1.0, number, 1)
    return np.array(found)


def rows_from_spans(updates: FloatArray, seen: list[set[int]]) -> FloatArray:
    """Rows up to their length: row i lies in the span of every set of updates for which another row was left alone.

    An update is a combination of the rows that were visited, so those of rounds without row j span a hyperplane of
    the space of all rows; its normal is orthogonal to all rows but j.
    """
    basis = np.linalg.svd(updates, full_matrices=False)[2][:ROWS]
    inside, normals = updates @ basis.T, np.empty((ROWS, ROWS))
    for j in range(ROWS):
        without = np.array([j not in rows for rows in seen])
        normals[j] = np.linalg.svd(np.vstack([inside[without], np.zeros((ROWS, ROWS))]))[2][-1]
    return np.linalg.pinv(normals).T @ basis


def likeness(found: FloatArray, rows: FloatArray) -> FloatArray:
    """|cosine| of each row with what was found for it, without the constant feature that all share."""
    found, rows = found[:, :-1], rows[:, :-1]
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(rows, axis=1)
    return np.abs((found * rows).sum(axis=1)) / lengths


@pytest.mark.parametrize(("steps", "rounds"), [(5, 60), (10, 200), (13, 600)])
def test_a_curious_station_that_knows_the_order_recovers_every_row(steps: int, rounds: int) -> None:
    """In the clear, with H below the number of rows and a public seed, as simulations have: documented, and no more."""
    terminal, rows = make_terminal(7)
    seen = [visits(7, number, steps) for number in range(1, rounds + 1)]
    assert likeness(rows_from_spans(watched(terminal, steps, rounds), seen), rows).min() > 0.999999


@pytest.mark.parametrize(("steps", "rounds"), [(5, 60), (10, 200), (13, 600)])
def test_an_order_from_a_secret_stops_it(steps: int, rounds: int) -> None:
    """Stop the search by spans alone, which needs the order. Sparse columns need no order (below)."""
    terminal, rows = make_terminal(b"a secret of the terminal's own..")
    seen = [visits(7, number, steps) for number in range(1, rounds + 1)]
    found = rows_from_spans(watched(terminal, steps, rounds), seen)
    assert max(likeness(found, np.roll(rows, shift, axis=0)).max() for shift in range(ROWS)) < 0.99
    assert np.median(likeness(found, rows)) < 0.5


def test_a_whole_pass_stops_it_too() -> None:
    """With every row in every update no span is without one, even for who knows the order."""
    terminal, rows = make_terminal(7)
    seen = [visits(7, number, ROWS) for number in range(1, 401)]
    assert all(len(rows) == ROWS for rows in seen)
    assert np.median(likeness(rows_from_spans(watched(terminal, ROWS, 400), seen), rows)) < 0.5


@pytest.mark.parametrize("least", [3, 5])
def test_a_sum_over_a_few_stops_it_too(least: int) -> None:
    """Stop the search by spans of public orders: sums of updates give it no row. Sparse columns give rows (below)."""
    steps, rounds = 5, 60
    made = [make_terminal(7, number) for number in range(5, 5 + least)]
    total = np.sum([watched(terminal, steps, rounds) for terminal, _ in made], axis=0)
    seen = [visits(7, number, steps) for number in range(1, rounds + 1)]
    found = rows_from_spans(total, seen)
    assert all(np.median(likeness(found, rows)) < 0.5 for _, rows in made)
    assert all(likeness(found, rows).max() < 0.99 for _, rows in made)


def test_noise_stops_it_too() -> None:
    """Clipped, and in the noise of ε = 8 for the sum, updates of one terminal alone give no row back."""
    steps, rounds = 5, 60
    terminal, rows = make_terminal(7)
    clip = 0.5
    channel = Noised(clip, clip * math.sqrt(rounds) / mu_of(8.0, 1e-6))
    clipped = channel.send(watched(terminal, steps, rounds)[:, None], None).delta
    told = np.array([channel.received(each, (3, k, 0), 1)[0] for k, each in enumerate(clipped)])
    found = rows_from_spans(told, [visits(7, number, steps) for number in range(1, rounds + 1)])
    assert np.median(likeness(found, rows)) < 0.5
    assert likeness(found, rows).max() < 0.99


@pytest.mark.parametrize("epsilon", [math.inf, 8.0])
def test_a_dishonest_station_needs_no_order_and_is_stopped_by_noise(epsilon: float) -> None:
    """By models of its own making, whose updates it drops, it finds rows whatever the order and H.

    That is documented, and no more: only noise stands against it. Under a steep model, and with a scale so large that
    steps do not add up, a row takes part if it lies on the wrong side of a threshold; between two thresholds that
    differ by one row, that row is the difference.
    """
    terminal, rows = make_terminal(b"a secret of the terminal's own..")
    direction = np.random.default_rng(1).normal(size=FEATURES)
    channel = Noised(1.0, math.sqrt(5.0 * ROWS) / mu_of(epsilon, 1e-6)) if math.isfinite(epsilon) else None
    orders = 0

    def asked(threshold: float) -> FloatArray:
        nonlocal orders
        orders += 1
        model = 1e6 * np.append(direction, -threshold)[None]
        verdict = Verdict(0, 0.0, orders - 1, 1)
        update = terminal.work(WorkOrder(orders, 0, model, 1e12, ROWS, verdict))
        assert update is not None
        if channel is None:
            return update.delta[0]
        return channel.received(channel.send(update.delta[None], None).delta[0], (3, orders, 0), 1)[0]

    def search(low: float, high: float, below: FloatArray, above: FloatArray) -> list[FloatArray]:
        change = above - below
        if np.abs(change).max() < 1e-9:
            return []
        if channel is not None and (orders >= 5 * ROWS or high - low < 0.1):
            return [change]
        if abs(abs(change[-1]) - 1.0) < 1e-9 and abs(np.linalg.norm(change) - np.sqrt(2.0)) < 1e-6:
            return [change]  # one row: its constant feature is 1, its length that of a unit row with it
        middle = (low + high) / 2.0
        between = asked(middle)
        return search(low, middle, below, between) + search(middle, high, between, above)

    found = search(-20.0, 20.0, asked(-20.0), asked(20.0))
    best = [max(likeness(np.array([each]), row[None])[0] for each in found) for row in rows]
    if channel is None:
        assert min(best) > 0.999999
        assert orders < 5 * ROWS
    else:
        assert max(best) < 0.9


def test_two_orders_of_one_round_get_one_answer() -> None:
    """Whatever the second one says; and once the round is settled, none."""
    terminal, _ = make_terminal(b"a secret of the terminal's own..")
    model = np.zeros((1, FEATURES + 1))
    first = terminal.work(WorkOrder(1, 0, model, 1.0, 5, Verdict(incarnation=1)))
    again = terminal.work(WorkOrder(1, 0, model + 1.0, 3.0, 9, Verdict(incarnation=1)))
    assert first is again
    assert terminal.work(WorkOrder(2, 0, model, 1.0, 5, Verdict(0, 0.0, 1, 1))) is not None
    assert terminal.work(WorkOrder(1, 0, model, 1.0, 5, Verdict(incarnation=1))) is None


def test_a_secret_gives_every_round_and_membership_another_order() -> None:
    """So that what is learned of one order tells nothing of the next, nor of the same round after joining again."""
    seeds = set()
    for incarnation in (1, 2):
        terminal, _ = make_terminal(b"a secret of the terminal's own..")
        terminal.incarnation = incarnation
        seeds |= {int(round_seed(terminal.seed, terminal.incarnation, number)) for number in (1, 2)}
    assert len(seeds) == 4


def moving(loss: str, steps: int, updates: int) -> tuple[int, int]:
    """Rows of 14 that come out of updates while other terminals move the model a lot, and false rows."""
    terminal, rows = attacks.make_terminal(loss, ROWS, FEATURES, size=attacks.NEUTRAL)
    return attacks.recovered(attacks.under_moving_models(terminal, steps, updates, 3.0, size=attacks.NEUTRAL), rows)


@pytest.mark.parametrize("steps", [2, 5])
def test_a_secret_order_does_not_hide_rows_of_short_updates(steps: int) -> None:
    """Recover every row without the order: below a pass A of the updates A X has zeros."""
    assert moving("smoothed-hinge", steps, 200) == (ROWS, 0)


@pytest.mark.parametrize(("steps", "rows"), [(2, range(14, 18)), (None, range(1))])
def test_a_full_pass_stops_the_search_for_sparse_columns_in_a_training(steps: int | None, rows: range) -> None:
    """Run the attack on a training with the default loss; two steps an order are its control."""
    out, wrong = attacks.recovered(*attacks.of_training("smoothed-hinge", 0.01, 600, steps=steps))
    assert out in rows
    assert wrong == 0


def test_a_full_pass_of_a_loss_without_flat_parts_gives_no_row() -> None:
    """Find no row in steps of a full pass with the logistic loss, while models move as in the control."""
    assert moving("logistic", ROWS, 400)[0] == 0


@pytest.mark.parametrize("loss", ["smoothed-hinge", "hinge"])
def test_flat_parts_of_a_loss_give_rows_back_at_a_full_pass(loss: str) -> None:
    """Document the limit: duals that stay at a bound are zeros of A too, at any H, so only noise gives a guarantee."""
    out, wrong = moving(loss, ROWS, 400)
    assert out > ROWS // 2
    assert wrong == 0


def test_masks_do_not_hide_rows_of_short_updates() -> None:
    """Recover rows of a group of three from sums of its updates, of two steps each."""
    out, wrong = attacks.of_group("smoothed-hinge", 2, 500)
    assert out > ROWS
    assert wrong == 0
