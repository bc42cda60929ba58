"""Theory: bounds on the number of rounds, the paper's procedure, and its three cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhfedmtl.errors import ConfigError
from rhfedmtl.maths import theory

# The paper's settings: N = 5 tasks of 70 samples, 5 terminals each, λ1 = 1e-4, λ2 = 1e-6, γ = 1.
N, N_B, N_SAMPLES, LARGEST, LAM, GAMMA = 5, 5, 70, 14, 1e-4 + 1e-6, 1.0


@st.composite
def stations(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows of one station and where its terminals start; terminals may be empty."""
    sizes = draw(st.lists(st.integers(0, 7), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    X = rng.standard_normal((sum(sizes), draw(st.integers(1, 6)))) + draw(st.floats(-1, 1))
    return X, np.append(0, np.cumsum(sizes))


def paper_curve(most: int) -> tuple[np.ndarray, np.ndarray]:
    """β(H) and f(H) with the paper's own bound at its own settings, for H = 1 … most."""
    H = np.arange(1, most + 1)
    Theta = theory.Theta(H, N_SAMPLES, LARGEST, LAM, GAMMA)
    beta = theory.beta(Theta, theory.eta(N_SAMPLES, theory.sigma_size_bound(LARGEST), LAM, GAMMA), N_B)
    K = theory.rounds_text(beta, theory.log_target([N_SAMPLES] * N, 0.01))
    return beta, theory.predicted_cost(K, N * (10 + N_B * H * 0.1))


def brute_force_sigma(X: np.ndarray, offsets: np.ndarray) -> float:
    """Largest eigenvalue from the two matrices as they are written."""
    M = -(X @ X.T)
    for a, b in itertools.pairwise(offsets):
        M[a:b, a:b] += X[a:b] @ X[a:b].T
    return float(np.linalg.eigvalsh(M)[-1]) if len(X) else 0.0


def test_authors_curve() -> None:
    """The curve behind the paper's cost figure: K = 14, 13, 13, 12, 12, 11, 11, 10, 10, 9."""
    L = theory.log_target(1300 / 5, 1e-4)
    K = theory.rounds_drawn(np.arange(1, 11), 26, L)
    assert K.tolist() == [14, 13, 13, 12, 12, 11, 11, 10, 10, 9]


def test_hand_values() -> None:
    """Θ, η, β and L at numbers that can be checked by hand."""
    assert theory.Theta(2, 10, 5, 0.1, 1.0) == pytest.approx(0.9**2)
    assert theory.Theta(2, 10, 5, 0.1, 1.0, R=3.0) == pytest.approx(0.98**2)
    assert theory.eta(10, 3.0, 0.1, 1.0) == pytest.approx(0.25)
    assert theory.beta(0.5, [0.5, 0.25], [4, 5]) == pytest.approx(0.025)
    assert theory.log_target([100, 300], 2.0) == pytest.approx(np.log(100))
    assert theory.rounds_text(0.25, 4.0) == pytest.approx(3.0)
    assert theory.rounds_sound(0.5, np.log(8)) == pytest.approx(3.0)
    assert theory.rounds_sound(0.0, 1.0) == np.inf


def test_theta_is_one_without_work_and_falls_with_it() -> None:
    """Θ(0) = 1, and every further step leaves less."""
    values = theory.Theta(np.arange(50), 70, 14, 1e-2, 1.0)
    assert values[0] == 1.0
    assert np.all(np.diff(values) < 0)


@settings(deadline=None)
@given(st.floats(1e-9, 1 - 1e-9), st.floats(0.1, 30))
def test_the_sound_bound_is_above_the_paper_bound(beta: float, L: float) -> None:
    """(1 − β) L ≤ L / −log(1 − β), and the sound number of rounds really closes the gap by e^−L."""
    sound = float(theory.rounds_sound(beta, L))
    assert theory.rounds_text(beta, L) <= sound
    assert sound * np.log1p(-beta) == pytest.approx(-L)


@settings(deadline=None)
@given(stations())
def test_sigma_stays_below_its_bound(station: tuple[np.ndarray, np.ndarray]) -> None:
    """σ_min, the eigenvalue of the matrix as written, is at most ñ R²."""
    X, offsets = station
    R = float(np.sqrt(np.square(X).sum(axis=1).max(initial=0.0)))
    bound = theory.sigma_size_bound(np.diff(offsets).max(), R)
    assert brute_force_sigma(X, offsets) <= bound + 1e-9 * (1 + bound)


def test_paper_bound_is_tiny_and_ends_at_one_step() -> None:
    """At the paper's settings β is about 1e-6 at most, f rises with h, and starved and surplus end at H = 1."""
    beta, f = paper_curve(LARGEST + 1)
    assert 1e-8 < beta[0] < beta[-1] < 2e-6
    assert np.all(np.diff(f) > 0)
    S = np.array([14, 10, 3])
    assert_choice(theory.paper_choice(f, 0.5 * f[0], S), [1, 1, 1], "starved")
    assert_choice(theory.paper_choice(f, 2 * f[-1], S), [1, 1, 1], "surplus")
    assert_choice(theory.paper_choice(f, float(f[5]), S), [6, 6, 1], "enough")


def test_three_cases_on_the_authors_curve() -> None:
    """Below the curve the cheapest H, within it the first crossing, above it the cheapest again."""
    H = np.arange(1, 28)
    K = theory.rounds_drawn(H, 26, theory.log_target(260, 1e-4))
    f = theory.predicted_cost(K, 5 * (10 + 5 * H * 0.1), M=2)
    assert f[:4].tolist() == [1470.0, 1430.0, 1495.0, 1440.0]
    cheapest = int(np.flatnonzero(f[:26] == f[:26].min())[-1]) + 1
    assert_choice(theory.paper_choice(f, 400, [26]), [cheapest], "starved")
    assert_choice(theory.paper_choice(f, 1430, [26]), [2], "enough")
    assert_choice(theory.paper_choice(f, 1e5, [26]), [cheapest], "surplus")
    assert theory.feasible_steps(f[:10], 1430).tolist() == [2, 6, 8, 10]


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=12), st.integers(0, 21), st.data())
def test_procedure_equals_its_loop(values: list[int], budget: int, data: st.DataObject) -> None:
    """The vectorised choice equals the paper's downward scan for every terminal."""
    most = len(values) - 1
    sizes = [most, *data.draw(st.lists(st.integers(1, most), max_size=4))]
    f = dict(enumerate(values, start=1))
    expected = []
    for S in sizes:
        H, candidate, lowest = 0, 0, np.inf
        for h in range(S, 0, -1):
            if f[h] < lowest:
                lowest, candidate = f[h], h
            if f[h] <= budget < f[h + 1]:
                H = h
        expected.append(H or candidate)
    assert theory.paper_choice(values, budget, sizes).H.tolist() == expected


def test_several_types_become_one_curve() -> None:
    """The type with the largest share of its budget decides at every H; a free type may have no budget."""
    share = theory.budget_share([[10, 20, 30], [9, 3, 3], [0, 0, 0]], [20, 10, 0])
    assert share.tolist() == [0.9, 1.0, 1.5]
    assert theory.budget_share([[1.0]], [0.0]).tolist() == [np.inf]


def test_bad_input_is_refused() -> None:
    """No smoothness, no target or a curve of the wrong length: refused with the value."""
    with pytest.raises(ConfigError, match="gamma=0"):
        theory.Theta(1, 1, 1, 0.1, 0.0)
    with pytest.raises(ConfigError, match="lambda=0"):
        theory.eta(1, 1, 0.0, 1.0)
    with pytest.raises(ConfigError, match="epsilon=0"):
        theory.log_target(1, 0)
    with pytest.raises(ConfigError, match="f needs 4 values"):
        theory.paper_choice([1, 2], 1, [3])


def assert_choice(choice: theory.PaperChoice, H: list[int], case: str) -> None:
    """Compare a choice with what is expected."""
    assert (choice.H.tolist(), choice.case) == (H, case)
