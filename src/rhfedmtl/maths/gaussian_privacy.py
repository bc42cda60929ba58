"""Gaussian differential privacy: what releases with Gaussian noise tell in all, exactly (Dong, Roth and Su 2022).

A release of sensitivity C with noise of standard deviation s is (C/s)-private, and so are all that are made from it.
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
LARGEST = 1e6
"""Largest ε and μ that are looked at: far beyond any that says something."""
TAIL = 35.0
"""Standard deviations beyond which Φ is found by its series."""


def delta_of(epsilon: float, mu: float) -> float:
    """The least δ for which all that is μ-private is (ε, δ)-private."""
    if mu <= 0.0:
        return 0.0
    first, second = _log_normal(-epsilon / mu + mu / 2.0), epsilon + _log_normal(-epsilon / mu - mu / 2.0)
    return float(math.exp(first) * -math.expm1(min(second - first, 0.0)))


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ that is (ε, δ)-private, rounded down."""
    check(epsilon, delta)
    return _edge(lambda mu: delta_of(epsilon, mu) <= delta, 0.0, LARGEST)


def epsilon_of(mu: float, delta: float) -> float:
    """The least ε for which μ is (ε, δ)-private, rounded up; infinite where it is beyond all sense."""
    if delta_of(0.0, mu) <= delta:
        return 0.0
    if delta_of(LARGEST, mu) > delta:
        return math.inf
    return _edge(lambda epsilon: delta_of(epsilon, mu) <= delta, LARGEST, 0.0)


def check(epsilon: float, delta: float) -> None:
    """Refuse what promises nothing, or what no noise can give."""
    if not 0.0 < epsilon <= LARGEST:
        most = f", at most {LARGEST:g}" if epsilon > LARGEST else ""
        raise ConfigError(f"epsilon={epsilon:g}: a bound on what is learned is a number > 0{most}, as in epsilon=1")
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta={delta:g}: a chance, far below one in the number of terminals, as in delta=1e-6")


def largest_term(loss: Loss, reach: float) -> float:
    """τ: the most that L(z) + L*(−α) + αz of one row can be for |z| ≤ reach; it is convex in z and in α."""
    ends = [(z, b) for z in (-reach, reach) for b in (0.0, 1.0)]
    return max(loss.value(z, 1.0) + loss.conjugate(b, 1.0) + b * z for z, b in ends)


def largest_terms(loss: Loss, model: Matrix, radius: float) -> float:
    """τ under a model, its columns added up, for rows up to this norm."""
    reach = radius * np.sqrt(np.square(model).sum(axis=1))
    return sum(largest_term(loss, z) for z in reach.tolist())


def noise_energy(M: Matrix, numbers: int, chance: float) -> float:
    """A bound on tr(Z M Zᵀ) that fails with at most this chance, for Z of ``numbers`` × len(M) standard normal numbers.

    d tr M + 2 √(d x) ‖M‖_F + 2 x ‖M‖_op with x = ln(1/chance) (Laurent and Massart 2000).
    """
    x, kappa = -math.log(chance), np.linalg.eigvalsh(M)
    spread = 2.0 * math.sqrt(numbers * x * float(kappa @ kappa))
    return float(numbers * kappa.sum() + spread + 2.0 * x * kappa[-1])


def _log_normal(x: float) -> float:
    """ln Φ(x); by its series where Φ is too small to be a number."""
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
    """The last point that holds on the way from one that does to one that does not."""
    if holds(bad):
        return bad
    while True:
        middle = math.sqrt(good * bad) if min(good, bad) > 1e-9 else (good + bad) / 2.0
        if middle in (good, bad):
            return good
        good, bad = (middle, bad) if holds(middle) else (good, middle)
