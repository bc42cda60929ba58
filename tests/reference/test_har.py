"""On real data: 5 people, SITTING against the rest, 70 balanced rows each, 5 terminals per base station."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from tests.reference.problems import certify, cloud_of
from tests.reference.solvers import by_lbfgs, tables

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.loaders import har
from rhfedmtl.data.scaling import scalers
from rhfedmtl.data.split import Split, federate
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.maths.losses import Logistic, SmoothedHinge, SquaredHinge
from rhfedmtl.maths.relationships import MeanRegularised, Unrelated
from rhfedmtl.roles.certificates import Certificate

FILE = Path(os.environ.get("RHFEDMTL_DATA", ".")) / "har.npz"
LAMBDA1, LAMBDA2 = 1e-2, 1e-3

pytestmark = pytest.mark.skipif(not FILE.exists(), reason=f"{FILE} is not there: set RHFEDMTL_DATA")


@pytest.fixture(scope="module")
def raw() -> Federation:
    """The federation as it comes, in double precision."""
    data = federate(har.load(FILE), Split(tasks=5, terminals=5, samples_per_task=70, positive="SITTING"), seed=0)
    return replace(data, X=np.asarray(data.X, dtype=float), test_X=np.asarray(data.test_X, dtype=float))


def solve(raw: Federation, method: DualMethod) -> tuple[Federation, Certificate]:
    """Scaled data, and the certificate at a joint gap below 1e-9."""
    network = InProcess(raw, method)
    used = scalers(network.moments(), "standard-unit")
    network.scale(used)
    cloud = cloud_of(network, method.relationship)
    for number in range(1, 20_000):
        network.assign(cloud.assign())
        network.round(number, 3 * network.sizes)
        for report in network.reports(cloud.cloud_round):
            cloud.receive(report)
        if number % 100 == 0:
            certificate = certify(network, cloud)
            if certificate.gap < 1e-11:
                break
    return replace(raw, X=used[0].transform(raw.X), test_X=used[0].transform(raw.test_X)), certificate


def test_tasks_tied_to_their_mean_are_solved_like_l_bfgs_does(raw: Federation) -> None:
    """The joint gap closes, and the models are those of L-BFGS on the primal."""
    loss = SmoothedHinge()
    data, certificate = solve(raw, DualMethod(loss, MeanRegularised(LAMBDA1, LAMBDA2), intercept=False))
    assert -1e-12 <= certificate.gap < 1e-8
    alone = np.eye(data.n_tasks)
    best, models = by_lbfgs(data, loss, LAMBDA1 * alone + LAMBDA2 * (alone - 1.0 / data.n_tasks))
    assert certificate.primal == pytest.approx(best, rel=1e-6)
    np.testing.assert_allclose(certificate.models, models, atol=1e-4)


@pytest.mark.parametrize(
    ("loss", "solver"),
    [
        (SquaredHinge(), lambda n: LinearSVC(C=1 / (2 * n * LAMBDA1), fit_intercept=False, tol=1e-10, max_iter=10**6)),
        (Logistic(), lambda n: LogisticRegression(C=1 / (n * LAMBDA1), fit_intercept=False, tol=1e-10, max_iter=10**4)),
    ],
    ids=["squared hinge", "logistic"],
)
def test_unrelated_tasks_are_solved_like_scikit_learn_does(raw: Federation, loss: Any, solver: Any) -> None:
    """The joint gap closes, and the model of every task is scikit-learn's."""
    data, certificate = solve(raw, DualMethod(loss, Unrelated(LAMBDA1), intercept=False))
    assert -1e-12 <= certificate.gap < 1e-8
    for model, (X, y, _) in zip(certificate.models, tables(data, intercept=False), strict=True):
        other = solver(len(X)).fit(X, y[:, 0])
        np.testing.assert_allclose(model, other.coef_, atol=1e-4)
