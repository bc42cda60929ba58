"""The kernel of gradient steps does what plain loops do, and its steps are gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.reference.sdca import draws, visits
from tests.reference.sgd import descend, responsibilities, with_constant

from rhfedmtl.maths.kernels import sgd
from rhfedmtl.maths.kernels.rounds import Orders, Slots, make_duals, make_layout, make_rows
from rhfedmtl.maths.losses import SmoothedHinge, Squared
from rhfedmtl.maths.registry import LOSSES

D, COLUMNS = 3, 2
SIZES = np.array([4, 3, 5])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
SEED, ROUND = 3, 7
ETA, LAM = 0.3, 0.07
SLOTS = {
    "one model": Slots(LAM, np.zeros(1), np.zeros(1, dtype=np.int64), False, 0),
    "held where it started": Slots(LAM, np.array([0.4]), np.zeros(1, dtype=np.int64), False, 0),
    "shared and own": Slots(LAM, np.array([0.0, 0.4]), np.zeros(2, dtype=np.int64), False, 0),
    "mixture": Slots(LAM, np.zeros(3), np.arange(3), True, 0),
}


def problem(loss: Any, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Rows, labels in two columns, and weights of which one is 0."""
    X = rng.normal(size=(OFFSETS[-1], D))
    y = rng.choice([-1.0, 1.0], (len(X), COLUMNS)) if loss.classifier else rng.normal(size=(len(X), COLUMNS))
    weight = rng.uniform(0.5, 2.0, len(X))
    weight[1] = 0.0
    return X, y, weight


def work(loss: Any, X: Any, y: Any, weight: Any, matrix: Any, slots: Slots, steps: Any, **how: Any) -> Any:
    """One round of all terminals under one station, with an intercept; answers of the station."""
    rows = make_rows(X, y, OFFSETS, weight=weight, constant=1.0)
    layout = make_layout(np.zeros(len(SIZES), dtype=np.int64), 1, rows.ids)
    uniform, threads = how.get("uniform", False), how.get("threads", 1)
    how_many, address = np.asarray(steps), (np.uint64(SEED), np.uint64(ROUND))
    orders = Orders(matrix[None], np.array([ETA]), how_many, *address, uniform, np.array([False]))
    return sgd.run_round(loss, rows, layout, make_duals(rows), orders, slots, threads=threads)


def start(slots: Slots, rng: np.random.Generator) -> Any:
    """Models of all slots, and shares below them."""
    matrix = rng.normal(size=(len(slots.mu) * COLUMNS + slots.mixture, D + 1))
    if slots.mixture:
        matrix[-1] = 0.0
        matrix[-1, : len(slots.mu)] = [0.5, 0.2, 0.3]
    return matrix


@pytest.mark.parametrize("uniform", [False, True], ids=["passes", "with replacement"])
@pytest.mark.parametrize("kind", SLOTS)
@pytest.mark.parametrize("loss", [SmoothedHinge(), Squared()], ids=["smoothed hinge", "squared"])
def test_a_round_is_plain_loops(loss: Any, kind: str, uniform: bool) -> None:
    """n_t (w_t − w), summed over terminals, for every kind of slots, with weights, intercept and two columns."""
    rng, slots = np.random.default_rng(0), SLOTS[kind]
    X, y, weight = problem(loss, rng)
    matrix, steps = start(slots, rng), [6, 0, 4]
    answers = work(loss, X, y, weight, matrix, slots, steps, uniform=uniform)
    n_slots, rows = len(slots.mu), len(slots.mu) * COLUMNS
    models = matrix[:rows].reshape(n_slots, COLUMNS, -1)
    expected = np.zeros_like(matrix)
    for t in (0, 2):
        own = slice(OFFSETS[t], OFFSETS[t + 1])
        w, shares = descend(
            loss, with_constant(X[own]), y[own], models, visits(SEED, ROUND, t, SIZES[t], steps[t], uniform),
            step=ETA, lam=LAM, mu=slots.mu, anchor=slots.anchor, weight=weight[own],
            shares=matrix[-1, :n_slots] if slots.mixture else None,
        )  # fmt: skip
        expected[:rows] += SIZES[t] * (w - models).reshape(rows, -1)
        if slots.mixture:
            expected[-1, :n_slots] += SIZES[t] * (shares - matrix[-1, :n_slots])
    np.testing.assert_allclose(answers.delta[0], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("loss", [SmoothedHinge(), Squared()], ids=["smoothed hinge", "squared"])
def test_a_step_goes_down_the_gradient_of_what_it_minimises(loss: Any) -> None:
    """A step is −η times the slope, by central differences, of s L(xᵀw, y) + λ/2 ‖w‖² + μ/2 ‖w − r‖²."""
    rng = np.random.default_rng(1)
    X, y, weight = problem(loss, rng)
    slots, matrix = SLOTS["shared and own"], start(SLOTS["shared and own"], rng)
    answers = work(loss, X, y, weight, matrix, slots, [0, 0, 1])
    i = OFFSETS[2] + visits(SEED, ROUND, 2, SIZES[2], 1)[0]
    x = np.append(X[i], 1.0)

    def objective(w: Any) -> float:
        fit = sum(weight[i] * loss.value(float(x @ w[r]), y[i, r % COLUMNS]) for r in range(len(w)))
        away = w[COLUMNS:] - matrix[:COLUMNS]
        return float(fit + LAM / 2 * np.sum(w**2) + slots.mu[1] / 2 * np.sum(away**2))

    h = 1e-6
    for place in np.ndindex(*matrix.shape):
        change = np.zeros_like(matrix)
        change[place] = h
        slope = (objective(matrix + change) - objective(matrix - change)) / (2 * h)
        assert answers.delta[0][place] == pytest.approx(-ETA * SIZES[2] * slope, abs=1e-6)


def test_responsibilities_sum_to_one_however_bad_a_component_is() -> None:
    """After a round the shares sum to 1, also where a component is so wrong that e^{−L} is zero."""
    rng, slots = np.random.default_rng(2), SLOTS["mixture"]
    X, y, weight = problem(Squared(), rng)
    matrix = start(slots, rng)
    matrix[:COLUMNS] *= 1e4
    answers = work(Squared(), X, y, weight, matrix, slots, [6, 6, 6])
    shares = matrix[-1] + answers.delta[0, -1] / SIZES.sum()
    assert shares[:3].sum() == pytest.approx(1.0, abs=1e-12)
    assert shares[:3].min() >= 0.0
    assert shares[0] < 1e-6
    np.testing.assert_array_equal(shares[3:], 0.0)


def test_the_reference_for_responsibilities_is_bayes_rule() -> None:
    """Two components that fit equally well answer by their shares; one that fits better by a loss of log 3, thrice."""
    x, y = np.array([1.0]), np.array([0.0])
    equal = responsibilities(Squared(), x, y, np.array([[[1.0]], [[-1.0]]]), np.array([0.7, 0.3]))
    np.testing.assert_allclose(equal, [0.7, 0.3])
    better = responsibilities(Squared(), x, y, np.array([[[0.0]], [[np.sqrt(2 * np.log(3))]]]), np.array([0.5, 0.5]))
    np.testing.assert_allclose(better, [0.75, 0.25])


def test_rows_of_weight_zero_teach_nothing() -> None:
    """They change neither the loss part of a model nor the shares of a mixture."""
    rng = np.random.default_rng(4)
    X, y, _ = problem(Squared(), rng)
    matrix, slots = start(SLOTS["mixture"], rng), SLOTS["mixture"]._replace(lam=0.0)
    answers = work(Squared(), X, y, np.zeros(len(X)), matrix, slots, [3, 3, 3])
    np.testing.assert_array_equal(answers.delta, 0.0)


def test_threads_and_float32_rows_change_nothing_they_should_not() -> None:
    """Two threads give the numbers of one; single precision rows give them up to their rounding."""
    rng, slots = np.random.default_rng(5), SLOTS["one model"]
    X, y, weight = problem(Squared(), rng)
    matrix = start(slots, rng)
    one = work(Squared(), X, y, weight, matrix, slots, [9, 9, 9]).delta
    np.testing.assert_array_equal(one, work(Squared(), X, y, weight, matrix, slots, [9, 9, 9], threads=2).delta)
    single = work(Squared(), X.astype(np.float32), y, weight, matrix.astype(np.float32), slots, [9, 9, 9]).delta
    np.testing.assert_allclose(single, one, atol=1e-4)


PROBES = 2


def test_estimates_are_those_of_the_probes() -> None:
    """ρ, β and the squared gradients, weighted by samples, from rows drawn after those of the steps."""
    loss, rng = Squared(), np.random.default_rng(6)
    X, y, weight = problem(loss, rng)
    slots, matrix = SLOTS["one model"]._replace(probes=PROBES), rng.normal(size=(2 * COLUMNS, D + 1))
    tau = 3
    answers = work(loss, X, y, weight, matrix, slots, [tau + 2 * PROBES] * 3)
    expected, gradients = np.zeros(5), []
    for t, n in enumerate(SIZES):
        own = slice(OFFSETS[t], OFFSETS[t + 1])
        A, b, s = with_constant(X[own]), y[own], weight[own]
        w0 = matrix[:COLUMNS]
        order = visits(SEED, ROUND, t, n, tau)
        w = descend(loss, A, b, w0[None], order, step=ETA, lam=LAM, weight=s)[0][0]
        chosen = [draws(SEED, ROUND, t)(tau + j, int(n)) for j in range(PROBES)]

        def mean(v: Any, A: Any = A, b: Any = b, s: Any = s, chosen: Any = chosen) -> tuple[float, Any]:
            residual = A[chosen] @ v.T - b[chosen]
            value = np.sum(s[chosen, None] * residual**2) / 2 / PROBES + LAM / 2 * np.sum(v**2)
            return value, (s[chosen, None] * residual).T @ A[chosen] / PROBES + LAM * v

        (before, g0), (after, g1), moved = mean(w0), mean(w), np.linalg.norm(w - w0)
        gradients.append(g0)
        squares = np.sum(g0**2), np.sum(matrix[COLUMNS:] ** 2)
        expected += n * np.array([abs(after - before) / moved, np.linalg.norm(g1 - g0) / moved, *squares, 1.0])
    np.testing.assert_allclose(answers.gains[0, :5], expected, rtol=1e-10)
    gradient = matrix[COLUMNS:] + answers.delta[0, COLUMNS:] / SIZES.sum()
    np.testing.assert_allclose(gradient, np.average(gradients, axis=0, weights=SIZES), rtol=1e-10)


def test_no_row_is_visited_beyond_those_that_are_paid() -> None:
    """An H that the probes would use up is spent on steps alone, and nothing is estimated."""
    rng = np.random.default_rng(7)
    X, y, weight = problem(Squared(), rng)
    matrix = rng.normal(size=(2 * COLUMNS, D + 1))
    slots = SLOTS["one model"]
    H = [2 * PROBES] * 3
    probed = work(Squared(), X, y, weight, matrix, slots._replace(probes=PROBES), H)
    np.testing.assert_array_equal(
        probed.delta[0, :COLUMNS], work(Squared(), X, y, weight, matrix, slots, H).delta[0, :COLUMNS]
    )
    np.testing.assert_array_equal(probed.gains, 0.0)


@pytest.mark.parametrize("name", LOSSES)
def test_slopes_are_derivatives(name: str) -> None:
    """dL/dz by central differences, away from corners."""
    loss, h = LOSSES[name](), 1e-6
    for z in (-30.0, -2.3, -0.7, 0.0, 0.4, 0.99, 1.7, 30.0):
        for label in (-1.0, 1.0) if loss.classifier else (-1.3, 0.2, 2.0):
            slope = (loss.value(z + h, label) - loss.value(z - h, label)) / (2 * h)
            assert loss.slope(z, label) == pytest.approx(slope, abs=1e-7, rel=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_slopes_far_out_are_finite(name: str) -> None:
    """No overflow, whatever the score."""
    for z in (-1e4, 1e4):
        for label in (-1.0, 1.0):
            assert np.isfinite(LOSSES[name]().slope(z, label))
