"""Small federations and a plain driver, for tests that need something to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rhfedmtl.data.federation import Federation
from rhfedmtl.roles.certificates import Certificate
from rhfedmtl.roles.cloud import Cloud

UNEQUAL = ((7, 3, 12), (5, 1), (9, 4, 2, 6))


def federation(
    kind: str = "binary",
    *,
    seed: int = 0,
    sizes: Sequence[Sequence[int]] = UNEQUAL,
    d: int = 4,
    weighted: bool = False,
    dtype: Any = np.float64,
) -> Federation:
    """Rows around a model per task, with noise; ``sizes`` has the rows of every terminal of every task."""
    rng = np.random.default_rng([seed, 17])
    flat = [n for task in sizes for n in task]
    n, n_tasks = sum(flat), len(sizes)
    X = rng.normal(size=(n + 4 * n_tasks, d)) * rng.uniform(0.3, 1.0, size=d) + 0.2
    of_task = np.concatenate([np.repeat(np.arange(n_tasks), [sum(s) for s in sizes]), np.repeat(range(n_tasks), 4)])
    models = rng.normal(size=d) + 0.4 * rng.normal(size=(n_tasks, d))
    z = np.einsum("ij,ij->i", X, models[of_task]) + 0.3 * rng.normal(size=len(X))
    y: Any = {
        "binary": (z > 0).astype(np.int64),
        "classes": np.digitize(z, np.quantile(z, [0.35, 0.7])),
        "regression": z,
    }[kind]
    names = {"binary": ("no", "yes"), "classes": ("low", "middle", "high"), "regression": ()}[kind]
    X = X.astype(dtype)
    return Federation(
        X=X[:n],
        y=y[:n],
        terminal_offsets=np.concatenate([[0], np.cumsum(flat)]),
        task_offsets=np.concatenate([[0], np.cumsum([len(s) for s in sizes])]),
        test_X=X[n:],
        test_y=y[n:],
        test_offsets=np.arange(n_tasks + 1) * 4,
        task_names=tuple(f"task {b}" for b in range(n_tasks)),
        class_names=names,
        sample_weight=rng.choice([0.0, 0.5, 1.0, 2.0], size=n) if weighted else None,
    )


def cloud_of(network: Any, relationship: Any) -> Cloud:
    """A cloud over the stations of a network."""
    return Cloud(relationship, len(network.V), network.shape, network.method.channel)


def certify(network: Any, cloud: Cloud) -> Certificate:
    """Reports up, and a certificate."""
    for report in network.reports(cloud.cloud_round):
        cloud.receive(report)
    certificate = cloud.certify(network.sums(cloud.candidates()))
    assert certificate is not None
    return certificate


def learn(network: Any, cloud: Cloud, *, cloud_rounds: int, station_rounds: int, steps: int) -> Certificate:
    """M server iterations of K rounds of H steps, and a certificate."""
    number = 0
    for _ in range(cloud_rounds):
        network.assign(cloud.assign())
        for _ in range(station_rounds):
            number += 1
            network.round(number, np.full(len(network.station), steps))
        for report in network.reports(cloud.cloud_round):
            cloud.receive(report)
    return certify(network, cloud)
