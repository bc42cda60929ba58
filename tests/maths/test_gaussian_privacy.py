"""The account of Gaussian privacy: its formula, its inverses, and an account that is not ours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.gaussian_privacy import delta_of, epsilon_of, mu_of, noise_energy

EPSILONS = (0.1, 0.5, 1.0, 4.0, 8.0, 40.0)
DELTAS = (1e-9, 1e-6, 1e-2)


def oracle() -> Any:
    """Google's account."""
    return pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0, 3.0])
def test_delta_is_how_far_two_likelihoods_can_be_told_apart(epsilon: float, mu: float) -> None:
    """δ(ε) = ∫ (p − e^ε q)₊ of two normal densities that are μ apart."""
    edge = epsilon / mu + mu / 2.0
    mass, _ = quad(lambda x: norm.pdf(x - mu) - math.exp(epsilon + norm.logpdf(x)), edge, edge + 40.0, epsabs=1e-300)
    assert delta_of(epsilon, mu) == pytest.approx(mass, rel=1e-6, abs=1e-300)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_inverses_are_safe_and_tight(epsilon: float, delta: float) -> None:
    """What is allowed is never more than (ε, δ), and hardly less."""
    mu = mu_of(epsilon, delta)
    assert delta_of(epsilon, mu) <= delta < delta_of(epsilon, mu * (1 + 1e-9))
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-9)
    assert delta_of(epsilon_of(1.3 * mu, delta), 1.3 * mu) <= delta


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_one_release_is_accounted_as_others_do(epsilon: float, delta: float) -> None:
    """Noise for (ε, δ), and ε of a noise, to 1e-6."""
    known = oracle()
    assert 1.0 / mu_of(epsilon, delta) == pytest.approx(known.get_sigma_gaussian(epsilon, delta), rel=1e-6)
    assert epsilon_of(0.7, delta) == pytest.approx(known.get_epsilon_gaussian(1.0 / 0.7, delta), rel=1e-6)


def test_many_releases_are_accounted_as_others_do() -> None:
    """A terminal that takes part in some rounds, of unlike noise: μ² adds up, by distributions of privacy loss."""
    oracle()
    from dp_accounting.pld import privacy_loss_distribution as losses

    rng = np.random.default_rng(0)
    deviations = rng.uniform(3.0, 9.0, size=12)[rng.random(12) < 0.7]
    each = [losses.from_gaussian_mechanism(s, value_discretization_interval=1e-4) for s in deviations.tolist()]
    whole = each[0]
    for one in each[1:]:
        whole = whole.compose(one)
    mu = math.sqrt(float(np.sum(deviations**-2.0)))
    for epsilon in (0.5, 1.0, 2.0):
        assert delta_of(epsilon, mu) == pytest.approx(whole.get_delta_for_epsilon(epsilon), rel=1e-2, abs=1e-6)
        assert delta_of(epsilon, mu) <= whole.get_delta_for_epsilon(epsilon) + 1e-6


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-6), (-1.0, 1e-6), (np.nan, 1e-6), (1.0, 0.0), (1.0, 1.0)])
def test_bounds_that_promise_nothing_are_refused(epsilon: float, delta: float) -> None:
    """ε > 0, 0 < δ < 1."""
    with pytest.raises(ConfigError, match=r"as in"):
        mu_of(epsilon, delta)


def test_the_bound_on_noise_holds_and_is_near() -> None:
    """In 20,000 draws it fails no more often than it may, and at the same chance is at most half too large."""
    rng = np.random.default_rng(1)
    root = rng.normal(size=(4, 4))
    M = root @ root.T
    Z = rng.normal(size=(20_000, 6, 4))
    energy = np.einsum("kdi,ij,kdj->k", Z, M, Z)
    for chance in (0.1, 0.01):
        bound = noise_energy(M, 6, chance)
        assert np.mean(energy > bound) <= chance
        assert bound <= 1.6 * np.quantile(energy, 1.0 - chance)
