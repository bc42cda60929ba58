"""FedEM on tasks of two kinds: it finds out who belongs together."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from tests.algorithms.runs import run

from rhfedmtl.algorithms.baselines.fedem import FedEM
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.maths.losses import Squared
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.result import mean
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings

CLUSTER = np.array([0, 1, 0, 1, 0, 1])
ROWS, D = 20, 4


@cache
def two_clusters() -> Federation:
    """Six regression tasks of which every second has the opposite model; two terminals each."""
    rng = np.random.default_rng(8)
    w = rng.normal(size=D)
    n = 2 * ROWS * len(CLUSTER)
    X = rng.normal(size=(n, D))
    task = np.repeat(np.arange(len(CLUSTER)), ROWS)
    y = np.where(np.tile(CLUSTER[task], 2) == 0, 1.0, -1.0) * (X @ w) + 0.1 * rng.normal(size=n)
    half, terminals = n // 2, 2 * len(CLUSTER)
    return Federation(
        X[:half], y[:half], np.arange(terminals + 1) * (ROWS // 2), np.arange(len(CLUSTER) + 1) * 2,
        X[half:], y[half:], np.arange(len(CLUSTER) + 1) * ROWS, tuple(f"task {b}" for b in range(len(CLUSTER))),
    )  # fmt: skip


def negative_log_likelihood(data: Federation, matrices: Any, components: int) -> float:
    """−mean log Σ_p π_p e^{−L_p} of all training rows under the stations' matrices."""
    total = 0.0
    for b, matrix in enumerate(matrices):
        own = data.row_task == b
        losses = (data.X[own] @ matrix[:components].T - data.y[own, None]) ** 2 / 2
        total -= np.sum(np.log(np.exp(-losses) @ matrix[-1, :components]))
    return total / len(data.X)


def test_two_planted_kinds_of_tasks_are_found_and_each_task_takes_its_own() -> None:
    """Shares go to one component per kind, and the error falls far below that of one model for all."""
    data = two_clusters()
    seen = Run(data, FedEM(Squared(), components=2, step=0.05, intercept=False), Settings(scale="none"), Ledger({}))
    seen.learn(Fixed(10, 1, 60))
    seen.certify()
    shares = seen.network.models[:, -1, :2]
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-12)
    chosen = shares.argmax(axis=1)
    assert len(set(chosen[CLUSTER == 0])) == len(set(chosen[CLUSTER == 1])) == 1
    assert chosen[0] != chosen[1]
    assert shares.max(axis=1).min() > 0.8
    one = run(data, SgdMethod(Squared(), step=0.05), Fixed(10, 1, 60))
    assert mean(seen.state.metrics["rmse"]) < 0.5 * mean(one.metrics["rmse"])


def test_the_likelihood_rises_from_round_to_round() -> None:
    """With small steps over whole passes it never falls by more than the noise of a pass."""
    data = two_clusters()
    seen = Run(data, FedEM(Squared(), components=2, step=0.02, intercept=False), Settings(scale="none"), Ledger({}))
    profile = []
    for _ in range(40):
        seen.learn(Fixed(10, 1, seen.cloud.cloud_round + 1))
        profile.append(negative_log_likelihood(data, seen.cloud.merged(seen.network.models), 2))
    falls = -np.diff(profile)
    assert falls.min() > -0.01 * profile[0]
    assert (falls > 0.0).mean() > 0.9
    assert profile[-1] < 0.5 * profile[0]


def test_components_start_apart_by_their_seed_and_predictions_mix_them() -> None:
    """Equal components would stay equal; the model of a task is the mean of components by its shares."""
    data = two_clusters()
    results = [run(data, FedEM(Squared(), components=3, step=0.05, seed=seed)).models for seed in (0, 0, 1)]
    np.testing.assert_array_equal(results[0], results[1])
    assert np.abs(results[0] - results[2]).max() > 0.0
    method = FedEM(Squared(), components=2)
    matrix = np.array([[[1.0, 0.0], [0.0, 2.0], [0.25, 0.75]]])
    np.testing.assert_allclose(method.task_models(matrix, 1), [[[0.25, 1.5]]])
