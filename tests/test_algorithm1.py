"""The paper's algorithm in plain NumPy against the package's engine, and against the package's mathematics."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize

from rhfedmtl import algorithm1
from rhfedmtl.algorithm1 import Costs, Learned, Problem, Terminal, rhfedmtl
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings
from tests.reference import sdca
from tests.reference.problems import federation

SEED = 7
PROBLEMS = {
    "weights of the paper": {"lambda1": 1e-4, "lambda2": 1e-6},
    "strong coupling": {"lambda1": 1e-3, "lambda2": 1.0},
    "weak coupling": {"lambda1": 1e-2, "lambda2": 1e-5},
    "a sharper hinge": {"lambda1": 1e-2, "lambda2": 1e-2, "gamma": 0.1},
}
ALGORITHMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "the curve that is drawn": ("rhfedmtl-paper", {}, {"bound": "drawn"}),
    "the bound of the text": ("rhfedmtl-paper", {"bound": "text"}, {"bound": "text"}),
    "H = 2, K = 1": ("hfedmtl-paper", {}, {"H": 2, "K": 1}),
}
"""Name and options in the package, and the arguments in plain NumPy."""
PRICES = {
    "energy": ("energy=0.1,10", "energy=900"),
    "two types": ("energy=0.1,10;money=0.3,1", "energy=5000;money=200"),
}


def unit_rows(dtype: Any) -> Federation:
    """Three tasks with unequal terminals; rows of norm 1."""
    data = federation(d=6)
    X = data.X / np.linalg.norm(data.X, axis=1, keepdims=True)
    return replace(data, X=X.astype(dtype))


def by_engine(data: Federation, name: str, options: Options, cost: str, budget: str) -> tuple[Run, Result]:
    """The package's algorithm of this name."""
    algorithm = build(name, options, "binary")
    ledger = Ledger(cost.split(";"), budget.split(";"))
    run = Run(algorithm.regroup(data), algorithm.method, Settings(scale="none", seed=SEED), ledger)
    return run, run.result(run.learn(algorithm.policy))


def by_paper(data: Federation, weights: dict[str, float], cost: str, budget: str, options: dict[str, Any]) -> Learned:
    """The same in plain NumPy, with the rows that the package draws."""
    labels, starts = np.where(data.y == 1, 1.0, -1.0), data.terminal_offsets
    every = [Terminal(data.X[a:z].astype(float), labels[a:z]) for a, z in pairwise(starts)]
    stations = [every[a:z] for a, z in pairwise(data.task_offsets)]

    def draws(number: int, terminal: int, H: int) -> Any:
        return np.array(sdca.visits(SEED, number, terminal, len(every[terminal].y), H, uniform=True))

    prices = [[float(x) for x in text.split("=")[1].split(",")] for text in cost.split(";")]
    limits = [float(text.split("=")[1]) for text in budget.split(";")]
    costs = Costs([dev for dev, _ in prices], [bs for _, bs in prices], limits)
    return rhfedmtl(Problem(stations, **weights), costs, draws=draws, **options)


@pytest.mark.parametrize(("dtype", "digits"), [(np.float64, 1e-12), (np.float32, 1e-6)])
@pytest.mark.parametrize("prices", PRICES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_engine_computes_what_the_paper_says(
    problem: str, algorithm: str, prices: str, dtype: Any, digits: float
) -> None:
    """Last models, dual variables, H, K, rounds and costs agree; the run certifies and returns the last models."""
    data, weights, (name, settings, options) = unit_rows(dtype), PROBLEMS[problem], ALGORITHMS[algorithm]
    run, result = by_engine(data, name, Options.of(**weights, **settings), *PRICES[prices])
    assert isinstance(run.network, InProcess)
    assert isinstance(run.cloud, Cloud)
    paper = by_paper(data, weights, *PRICES[prices], options)

    assert run.state.round == len(paper.rounds) > 2
    assert run.cloud.cloud_round == paper.rounds[-1].server_iteration
    assert list(run.ledger.spent.values()) == pytest.approx(paper.rounds[-1].spent, rel=1e-12)
    H = [h for station in paper.rounds[-1].H for h in station]
    for observation in run.state.observed:
        np.testing.assert_array_equal(np.broadcast_to(observation.local_steps, len(H)), H)
    alpha = np.concatenate([a for station in paper.alpha for a in station])
    np.testing.assert_allclose(run.network.alpha[:, 0], alpha, rtol=0, atol=digits * np.abs(alpha).max())
    W = run.cloud.models[:, 0]
    np.testing.assert_allclose(W, paper.W, rtol=0, atol=digits * np.abs(paper.W).max())
    np.testing.assert_allclose(result.models[:, 0], paper.W, rtol=0, atol=digits * np.abs(paper.W).max())
    assert result.certificate.round == result.certificate.found == result.rounds
    assert result.certificate.primal == pytest.approx(paper.rounds[-1].primal, rel=100 * digits)
    assert result.certificate.dual >= paper.rounds[-1].dual * (1.0 - 100 * digits)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_gap_closes_at_the_optimum_that_scipy_finds(problem: str) -> None:
    """The best objective by L-BFGS lies between P and D in every round, and both reach it."""
    weights = PROBLEMS[problem]
    learned = by_paper(unit_rows(float), weights, "energy=0.01,0.1", "energy=300", {"H": 12, "K": 1})
    solved = minimum(unit_rows(float), weights)
    for row in learned.rounds:
        assert row.dual <= solved + 1e-9 <= row.primal + 2e-9
    last, first = learned.rounds[-1], learned.rounds[0]
    assert last.primal - last.dual < 0.1 * (first.primal - first.dual)


def minimum(data: Federation, weights: dict[str, float]) -> float:
    """The best objective, by L-BFGS on the primal."""
    lambda1, lambda2, gamma = weights["lambda1"], weights["lambda2"], weights.get("gamma", 1.0)
    y, n = np.where(data.y == 1, 1.0, -1.0), np.diff(data.terminal_offsets[data.task_offsets])
    task, N = np.repeat(np.arange(len(n)), n), len(n)

    def objective(flat: Any) -> tuple[float, Any]:
        W = flat.reshape(N, -1)
        spread = W - W.mean(axis=0)
        short = np.clip(1.0 - y * np.einsum("ij,ij->i", data.X, W[task]), 0.0, None)
        loss = np.where(short < gamma, short**2 / (2 * gamma), short - gamma / 2) / n[task]
        slope = -y * np.minimum(short / gamma, 1.0) / n[task]
        gradient = lambda1 * W + lambda2 * spread
        np.add.at(gradient, task, slope[:, None] * data.X)
        value = loss.sum() + lambda1 / 2 * (W**2).sum() + lambda2 / 2 * (spread**2).sum()
        return value / N, gradient.ravel() / N

    start = np.zeros(N * data.X.shape[1])
    settings = {"maxiter": 20_000, "ftol": 1e-15, "gtol": 1e-12}
    return float(optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=settings).fun)


def test_the_file_stands_alone_and_runs() -> None:
    """It imports nothing of the package, and prints a round a line."""
    source = Path(algorithm1.__file__).read_text()
    assert "import rhfedmtl" not in source
    assert "from rhfedmtl" not in source
    printed = subprocess.run([sys.executable, "-m", "rhfedmtl.algorithm1"], capture_output=True, text=True, check=True)
    rows = [line.split() for line in printed.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert len(rows) == 18 + 25
    assert all(float(row[4]) <= 1400.0 for row in rows)


@pytest.mark.parametrize("costs", [Costs([0.1], [10.0], [0.0]), Costs([0.0], [0.0], [10.0])])
def test_a_run_that_nothing_ends_is_refused(costs: Costs) -> None:
    """A budget of zero, or no cost."""
    with pytest.raises(ValueError, match="give budgets above 0"):
        rhfedmtl(algorithm1.example(), costs)
