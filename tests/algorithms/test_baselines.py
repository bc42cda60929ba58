"""Methods of others against plain NumPy written from their papers: the same iterates, or the same optimum."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from tests.algorithms.runs import run, run_built, run_named
from tests.reference.problems import federation
from tests.reference.sdca import visits
from tests.reference.sgd import descend, with_constant
from tests.training.test_checkpoint import assert_same, until

from rhfedmtl.algorithms.baselines.scaffnew import Coin
from rhfedmtl.algorithms.baselines.scaffold import Corrected
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import ALGORITHMS, moves_data
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.losses import SmoothedHinge, SquaredHinge
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training import checkpoint
from rhfedmtl.training.checkpoint import Keeper
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

LOSS = SmoothedHinge()
STEP, LAM, SEED = 0.3, 0.03, 5
NAMES = ("lbfgs", "giant", "scaffold", "scaffnew", "fedadam", "fedyogi", "pfedme", "permfl", "fedu")


class Plain:
    """Rows and labels of all terminals of a federation, with the rows that each visits."""

    def __init__(self, data: Federation) -> None:
        X, y, ends = with_constant(data.X), data.targets(), data.terminal_offsets
        self.own = [(X[a:b], y[a:b]) for a, b in pairwise(ends)]
        self.n = np.diff(ends).astype(float)
        self.task = data.terminal_task
        self.zero = np.zeros((y.shape[1], X.shape[1]))

    def order(self, number: int, t: int, steps: int) -> Any:
        """Rows that a terminal visits in a round."""
        return visits(SEED, number, t, int(self.n[t]), steps)

    def gradient(self, t: int, i: int, w: Any) -> Any:
        """Of the loss of one row, and of λ/2 ‖w‖²."""
        X, y = self.own[t]
        return np.array([LOSS.slope(float(X[i] @ w[c]), y[i, c]) * X[i] for c in range(len(w))]) + LAM * w

    def steps(self, number: int, t: int, w: Any, steps: int, **how: Any) -> Any:
        """Models after plain steps of a terminal."""
        return descend(LOSS, *self.own[t], w, self.order(number, t, steps), step=STEP, lam=LAM, **how)[0]

    def mean(self, values: Any) -> Any:
        """By samples."""
        return np.average(values, axis=0, weights=self.n)

    def by_task(self, values: Any) -> Any:
        """Means over the terminals of each task, and the samples of each."""
        tasks = range(int(self.task.max()) + 1)
        means = [np.average(np.array(values)[self.task == b], axis=0, weights=self.n[self.task == b]) for b in tasks]
        return np.array(means), np.array([self.n[self.task == b].sum() for b in tasks])


def learned(data: Federation, name: str, **options: Any) -> Any:
    """Models of six rounds of four steps."""
    settings = {"step": STEP, "lambda1": LAM, "local_steps": 4, "cloud_rounds": 6, **options}
    return run_built(data, build(name, Options.of(**settings), data.kind), seed=SEED).models


def scaffold(plain: Plain, steps: int, rounds: int) -> Any:
    """Algorithm 1 of Karimireddy et al. with option II, everybody taking part, means by samples."""
    x, c, own = plain.zero, plain.zero, [plain.zero] * len(plain.n)
    for number in range(1, rounds + 1):
        ends, new = [], []
        for t in range(len(plain.n)):
            y = x
            for i in plain.order(number, t, steps):
                y = y - STEP * (plain.gradient(t, i, y) - own[t] + c)
            ends.append(y)
            new.append(own[t] - c + (x - y) / (steps * STEP))
        x, c, own = plain.mean(ends), c + plain.mean(np.array(new) - np.array(own)), new
    return x


def scaffnew(plain: Plain, steps: int, rounds: int) -> Any:
    """Algorithm 2 of Mishchenko et al.: h_t ← h_t + (p/γ) (x − x̂_t) when the coin says so."""
    x, h = plain.zero, [plain.zero] * len(plain.n)
    for number in range(1, rounds + 1):
        tosses = int(np.random.default_rng([SEED, number - 1, steps]).geometric(1.0 / steps))
        ends = []
        for t in range(len(plain.n)):
            y = x
            for i in plain.order(number, t, tosses):
                y = y - STEP * (plain.gradient(t, i, y) - h[t])
            ends.append(y)
        x = plain.mean(ends)
        h = [each + (1.0 / steps / STEP) * (x - y) for each, y in zip(h, ends, strict=True)]
    return x


def adaptive(yogi: bool) -> Callable[[Plain, int, int], Any]:
    def run_it(plain: Plain, steps: int, rounds: int) -> Any:
        """Algorithm 2 of Reddi et al."""
        x, m, v = plain.zero, plain.zero, np.full_like(plain.zero, 1e-6)
        for number in range(1, rounds + 1):
            d = plain.mean([plain.steps(number, t, x[None], steps)[0] for t in range(len(plain.n))]) - x
            m = 0.9 * m + 0.1 * d
            v = v - 0.01 * d**2 * np.sign(v - d**2) if yogi else 0.99 * v + 0.01 * d**2
            x = x + 0.1 * m / (np.sqrt(v) + 1e-3)
        return x

    return run_it


@pytest.mark.parametrize("kind", ["binary", "classes"])
@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("scaffold", scaffold),
        ("scaffnew", scaffnew),
        ("fedadam", adaptive(yogi=False)),
        ("fedyogi", adaptive(yogi=True)),
    ],
)
def test_one_model_for_all_is_what_the_paper_says(name: str, reference: Any, kind: str) -> None:
    """Iterate for iterate, with unequal terminals under unequal stations."""
    data = federation(kind)
    expected = reference(Plain(data), 4, 6)
    for model in learned(data, name):
        np.testing.assert_allclose(model, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("relationship", ["mean", "graph"])
def test_fedu_is_what_the_paper_says(relationship: str) -> None:
    """Steps of every task on its own, then W ← W − η H (W (Q − λ1 I))."""
    data, lambda2 = federation(), 0.2
    plain, W = Plain(data), np.zeros((3, 1, 5))
    Q = build("fedu", Options.of(relationship=relationship, lambda1=LAM, lambda2=lambda2), "binary")
    L = Q.method.relationship.precision(3) - LAM * np.eye(3)
    for number in range(1, 7):
        ends = [plain.steps(number, t, W[None, b], 4)[0] for t, b in enumerate(plain.task)]
        W, _ = plain.by_task(ends)
        W = W - STEP * 4 * np.einsum("ab,bcd->acd", L, W)
    found = learned(data, "fedu", relationship=relationship, lambda2=lambda2)
    np.testing.assert_allclose(found, W, rtol=1e-10, atol=1e-12)


def test_pfedme_is_what_the_paper_says() -> None:
    """θ by inner steps held near w, w a share of the way after each three of them and the last, w averaged."""
    data, mu, follow, inner = federation(), 0.2, 0.4, 3
    plain, x, own = Plain(data), np.zeros((1, 5)), np.zeros((3, 1, 5))
    for number in range(1, 7):
        ends, personal = [], []
        for t, b in enumerate(plain.task):
            w, theta = x, own[b]
            for h, i in enumerate(plain.order(number, t, 4), start=1):
                theta = theta - STEP * (plain.gradient(t, i, theta) + mu * (theta - w))
                if h % inner == 0 or h == 4:
                    w = w - follow * (w - theta)
            ends.append(w)
            personal.append(theta)
        x, (own, _) = plain.mean(ends), plain.by_task(personal)
    found = learned(data, "pfedme", mu=mu, follow=follow, inner_steps=inner)
    np.testing.assert_allclose(found, own, rtol=1e-10, atol=1e-12)


def test_permfl_is_what_the_paper_says() -> None:
    """Devices near their team, teams near the cloud, K rounds of a team for one of the cloud; λ is λ."""
    data, lam, gamma, beta = federation(), 0.3, 0.2, 0.8
    plain, x, number = Plain(data), np.zeros((1, 5)), 0
    eta = 0.6 / (lam + gamma)
    for _ in range(6):
        w = np.array([x] * 3)
        for _ in range(2):
            number += 1
            ends = [plain.steps(number, t, w[None, b], 4, mu=[lam])[0] for t, b in enumerate(plain.task)]
            theta, n = plain.by_task(ends)
            w = (1.0 - eta * (lam + gamma)) * w + eta * gamma * x + eta * lam * theta
        x = (1.0 - beta) * x + beta * np.average(w, axis=0, weights=n)
    found = learned(data, "permfl", mu=lam, team_pull=gamma, team_step=0.6, cloud_step=beta)
    np.testing.assert_allclose(found, w, rtol=1e-10, atol=1e-12)


LAMBDA1, LAMBDA2 = 0.02, 0.1
COUPLING = LAMBDA1 * np.eye(3) + LAMBDA2 * (np.eye(3) - 1.0 / 3.0)


def joint(data: Federation) -> Callable[[Any], tuple[float, Any]]:
    """Objective and gradient of the joint problem of three tasks with five features, written out."""
    X, y, task = with_constant(data.X), data.targets()[:, 0], data.row_task
    n, Q = np.bincount(task).astype(float), np.kron(COUPLING, np.eye(5))

    def look(w: Any) -> tuple[float, Any]:
        z = np.einsum("ij,ij->i", X, w.reshape(3, 5)[task])
        slopes = np.array([LOSS.slope(a, b) for a, b in zip(z, y, strict=True)]) / n[task]
        gradient = np.zeros((3, 5))
        np.add.at(gradient, task, slopes[:, None] * X)
        losses = sum(LOSS.value(a, b) / n[k] for a, b, k in zip(z, y, task, strict=True))
        return (losses + w @ Q @ w / 2.0) / 3.0, (gradient.ravel() + Q @ w) / 3.0

    return look


def test_giant_takes_the_steps_of_its_paper() -> None:
    """Newton directions of every terminal by matrices written out, their mean by samples, and backtracking."""
    data = federation()
    plain, look, W = Plain(data), joint(data), np.zeros((3, 5))
    rounds = 1
    for _ in range(6):
        value, gradient = look(W.ravel())
        own = []
        for t, b in enumerate(data.terminal_task):
            X, y = plain.own[t]
            margins = y[:, 0] * (X @ W[b])
            hessian = X.T @ (X * ((margins > 0.0) & (margins < 1.0))[:, None]) / len(X)
            own.append(np.linalg.solve(hessian + COUPLING[b, b] * np.eye(5), -3.0 * gradient.reshape(3, 5)[b]))
        step = plain.by_task(own)[0]
        share = next(
            0.5**k
            for k in range(6)
            if look((W + 0.5**k * step).ravel())[0] <= value + 1e-4 * 0.5**k * float(gradient @ step.ravel())
        )
        W, rounds = W + share * step, rounds + 2 + (share < 1.0)
    options = Options.of(lambda1=LAMBDA1, lambda2=LAMBDA2, newton_steps=10, cloud_rounds=rounds)
    found = run_built(data, build("giant", options, data.kind))
    np.testing.assert_allclose(found.models[:, 0], W, rtol=1e-6, atol=1e-8)
    assert found.terminal_steps == len(data.X) * (6 * 10 + rounds - 6)


def test_lbfgs_ends_where_scipy_does() -> None:
    """The optimum of the joint problem, from the objective written out, in no more than three times the gradients."""
    data = federation()
    other = minimize(joint(data), np.zeros(15), jac=True, method="L-BFGS-B", options={"gtol": 1e-10, "ftol": 1e-16})
    options = Options.of(lambda1=LAMBDA1, lambda2=LAMBDA2, cloud_rounds=3 * other.nfev)
    found = run_built(data, build("lbfgs", options, data.kind))
    assert found.certificate.primal == pytest.approx(other.fun, rel=1e-9)
    np.testing.assert_allclose(found.models.ravel(), other.x, atol=1e-6)


@pytest.mark.slow  # make test-slow
def test_corrected_steps_find_the_optimum_where_averaged_ones_do_not() -> None:
    """Terminals of one row take exact gradients: SCAFFOLD and Scaffnew end at the optimum, FedAvg beside it."""
    data = federation(sizes=((1,) * 9, (1,) * 6))
    exact = build("cocoa", Options.of(loss="squared-hinge", lambda1=LAM), data.kind)
    optimum = run_built(data, exact._replace(policy=Fixed(50, 1, 3000)), target_relative_gap=1e-13).models[0]
    share = {"scaffold": 0.0, "scaffnew": 0.2}
    for name, policy in (("scaffold", Fixed(5, 1, 600)), ("scaffnew", Coin(5, 1, 600))):
        method = Corrected(SquaredHinge(), lambda1=LAM, step=0.1, share=share[name])
        np.testing.assert_allclose(run(data, method, policy).models[0], optimum, atol=1e-8)
    away = run_named(data, "fedavg", loss="squared-hinge", lambda1=LAM, step=0.1, local_steps=5, cloud_rounds=600)
    assert np.abs(away.models[0] - optimum).max() > 1e-3


def test_every_seed_tosses_its_own_coin() -> None:
    """The same seed the same; so that intervals over seeds know of that chance too."""
    built = build("scaffnew", Options.of(local_steps=5, cloud_rounds=8), "binary")
    first, again, other = (run_built(federation(), built, seed=seed).local_steps for seed in (1, 1, 2))
    assert first == again != other


def test_the_mean_correction_is_that_of_who_is_there() -> None:
    """Σ_t n_t c_t at the stations is the sum over terminals after losses, moves, departures and late rows."""
    data = federation()
    method = build("scaffold", Options.of(step=STEP, local_steps=3), "binary").method
    faults = Faults(dropout=0.3, moves=0.5, churn=0.2, late_rows=0.4, late_until=5)
    seen: list[Any] = []
    train(
        data, method, Fixed(3, 1, 12), Settings(scale="none", seed=3), ledger=Ledger({}), faults=faults,
        keep=_Look(seen),  # type: ignore[arg-type]
    )  # fmt: skip
    assert len(seen) == 12
    assert max(np.abs(difference).max() for difference in seen) < 1e-12


class _Look:
    """A keeper that compares, after every round, what stations and terminals have of the corrections."""

    due = True

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def keep(self, running: Any) -> None:
        network = running.network
        assert isinstance(network, InProcess)
        held = (network.models[:, 1:] * np.maximum(network._n, 0.0)[:, None, None]).sum(axis=0)
        alpha, rows = network.alpha, network.terminals.rows
        own = [
            alpha[a:b].T @ with_constant(rows.X[a:b])
            for a, b, station in zip(rows.starts, rows.ends, network.station, strict=True)
            if station >= 0
        ]
        self.seen.append(held - np.sum(own, axis=0))


@pytest.mark.parametrize("name", NAMES)
def test_a_rival_goes_on_from_a_checkpoint_to_the_bit(name: str, tmp_path: Path) -> None:
    """What servers and terminals remember is put away with the rest."""
    data, settings = federation(), Settings(scale="none", seed=2)
    built = build(name, Options.of(cloud_rounds=8), data.kind)
    keep = Keeper(tmp_path / "checkpoint", seconds=0.0)
    train(data, built.method, built.policy, settings, watch=until(3), keep=keep)
    resumed = train(data, built.method, built.policy, settings, start=checkpoint.read(keep.path))
    assert_same(train(data, built.method, built.policy, settings), resumed)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedadam", {"server_step": 0.0}),
        ("pfedme", {"inner_steps": 0}),
        ("pfedme", {"follow": 0.0}),
        ("permfl", {"mu": 0.0}),
        ("permfl", {"cloud_step": -1.0}),
        ("lbfgs", {"cloud_rounds": 0}),
        ("giant", {"newton_steps": 0}),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, options: dict[str, Any]) -> None:
    """The error names the value."""
    with pytest.raises(ConfigError, match="must be"):
        build(name, Options.of(**options), "binary")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_says_if_it_puts_rows_of_several_terminals_together(name: str) -> None:
    """Two terminals of a task stay two, unless the registry says that the algorithm moves data."""
    data = federation(d=3)
    grouped = build(name, Options(), "binary").regroup(data)
    assert moves_data(name) == (len(grouped.sizes) < len(data.sizes))
