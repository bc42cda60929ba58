"""Gaussian differential privacy: the exact total privacy loss of releases with Gaussian noise (Dong, Roth and Su 2022).

A release of sensitivity C with noise of standard deviation s is (C/s)-private, and so is everything computed from it.
Releases add up, μ² = Σ (C_k/s_k)², and μ is (ε, δ(ε)) at every ε:

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.losses import Loss

Matrix = npt.NDArray[np.float64]
LARGEST_EPSILON = 1e6
"""Largest ε and μ that are looked at: far beyond any that says something."""
TAIL = 35.0
"""Standard deviations beyond which Φ is found by its series."""


def delta_of(epsilon: float, mu: float) -> float:
    """Return the smallest δ for which everything μ-private is (ε, δ)-private."""
    if mu <= 0.0:
        return 0.0
    first, second = _log_normal(-epsilon / mu + mu / 2.0), epsilon + _log_normal(-epsilon / mu - mu / 2.0)
    return float(math.exp(first) * -math.expm1(min(second - first, 0.0)))


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ that is (ε, δ)-private, rounded down."""
    check(epsilon, delta)
    return _edge(lambda mu: delta_of(epsilon, mu) <= delta, 0.0, LARGEST_EPSILON)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest ε for which μ is (ε, δ)-private, rounded up; infinity above `LARGEST_EPSILON`."""
    if delta_of(0.0, mu) <= delta:
        return 0.0
    if delta_of(LARGEST_EPSILON, mu) > delta:
        return math.inf
    return _edge(lambda epsilon: delta_of(epsilon, mu) <= delta, LARGEST_EPSILON, 0.0)


def check(epsilon: float, delta: float) -> None:
    """Raise ConfigError for values that promise nothing, or that no noise can achieve."""
    if not 0.0 < epsilon <= LARGEST_EPSILON:
        limit = f", at most {LARGEST_EPSILON:g}" if epsilon > LARGEST_EPSILON else ""
        raise ConfigError(f"epsilon={epsilon:g}: a privacy bound is a number > 0{limit}, as in epsilon=1")
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta={delta:g}: a probability far below 1/(number of terminals), as in delta=1e-6")


def largest_term(loss: Loss, reach: float) -> float:
    """Return τ, the largest L(z) + L*(−α) + αz of a single row for |z| ≤ reach; it is convex in z and in α."""
    ends = [(z, b) for z in (-reach, reach) for b in (0.0, 1.0)]
    return max(loss.value(z, 1.0) + loss.conjugate(b, 1.0) + b * z for z, b in ends)


def largest_terms(loss: Loss, model: Matrix, radius: float) -> float:
    """Return τ under a model, summed over its columns, for rows of at most this norm."""
    reach = radius * np.sqrt(np.square(model).sum(axis=1))
    return sum(largest_term(loss, z) for z in reach.tolist())


def noise_energy(M: Matrix, numbers: int, chance: float) -> float:
    """Return a bound on tr(Z M Zᵀ) that fails with probability ``chance`` at most.

    Z has d × len(M) standard normal entries, where d is ``numbers``. The bound is
    d tr M + 2 √(d x) ‖M‖_F + 2 x ‖M‖_op with x = ln(1/chance) (Laurent and Massart 2000).
    """
    x, kappa = -math.log(chance), np.linalg.eigvalsh(M)
    spread = 2.0 * math.sqrt(numbers * x * float(kappa @ kappa))
    return float(numbers * kappa.sum() + spread + 2.0 * x * kappa[-1])


def _log_normal(x: float) -> float:
    """Return ln Φ(x), from its series if Φ(x) is too small for a float."""
    if x > 0.0:
        return math.log1p(-math.erfc(x / math.sqrt(2.0)) / 2.0)
    if x > -TAIL:
        return math.log(math.erfc(-x / math.sqrt(2.0)) / 2.0)
    terms, term = 1.0, 1.0
    for k in range(1, 12, 2):
        term *= -k / (x * x)
        terms += term
    return -x * x / 2.0 - math.log(-x * math.sqrt(2.0 * math.pi)) + math.log(terms)


def _edge(holds: Callable[[float], bool], good: float, bad: float) -> float:
    """Return the last point that satisfies ``holds`` between ``good``, which does, and ``bad``, which may not."""
    if holds(bad):
        return bad
    while True:
        middle = math.sqrt(good * bad) if min(good, bad) > 1e-9 else (good + bad) / 2.0
        if middle in (good, bad):
            return good
        good, bad = (middle, bad) if holds(middle) else (good, middle)
