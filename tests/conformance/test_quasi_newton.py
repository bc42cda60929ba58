"""Gradient rounds are ordinary rounds: the same numbers through every engine, over an interruption, and with losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.test_engines_agree import BLOCKS, alpha_of, assert_same
from tests.engines.shards import LOCAL, sharded
from tests.reference.problems import certify, cloud_of, federation
from tests.training.test_checkpoint import assert_same as assert_same_run
from tests.training.test_checkpoint import until
from tests.turns import in_turn

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.data.request import Request
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.engines.registry import Execution
from rhfedmtl.maths import quasi_newton
from rhfedmtl.maths.quasi_newton import ASCENT, LEAST_CURVATURE, NEWTON, STEP_LENGTHS, Backtracking, QuasiNewton
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training import checkpoint
from rhfedmtl.training.checkpoint import Keeper
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

SOLVERS = (ASCENT, NEWTON, NEWTON, NEWTON, NEWTON, ASCENT, NEWTON, NEWTON)


def method_of(loss: str = "smoothed-hinge") -> DualMethod:
    return DualMethod(LOSSES[loss](), MeanRegularised(1e-3, 1e-2), MERGES["auto"]())


def searched(network: Any, method: DualMethod, arrives: float = 1.0) -> list[Any]:
    """Certificates, duals and sums of server iterations by both solvers, some updates lost and a terminal moved."""
    rng, cloud, seen = np.random.default_rng(5), cloud_of(network, method.relationship), []
    for number, solver in enumerate(SOLVERS, start=1):
        network.assign(cloud.assign(solver))
        seen += network.round(number, network.sizes, rng.random(len(network.station)) < arrives)
        found = certify(network, cloud)
        seen += [found.primal, found.dual, found.models, found.station_gaps, found.zero, found.held, found.found]
        seen += [alpha_of(network), network.V]
        if number == 4:
            network.move(0, 1)
    return seen


@pytest.mark.parametrize(("loss", "arrives"), in_turn(LOSSES, [1.0, 0.7]))
def test_gradient_rounds_and_certificates_agree_to_the_bit(loss: str, arrives: float) -> None:
    """Batched, message by message and in shards, with blocks of terminals, and with updates that are lost."""
    method, data = method_of(loss), federation("regression" if loss == "squared" else "binary", sizes=BLOCKS)
    first, *others = (engine(data, method, seed=2) for engine in (InProcess, MessagePassing, sharded))
    found = searched(first, method, arrives)
    for other in others:
        assert_same(found, searched(other, method, arrives))


def learn(engine: str = "inprocess", *, dropout: float = 0.0, **more: Any) -> Result:
    """Many small terminals, so that a quasi-Newton search is chosen."""
    data = federation(sizes=[[3] * 40, [2] * 30, [4] * 20], d=6)
    settings = Settings(scale="none", max_rounds=25, execution=Execution(engine))
    ledger, faults = Ledger("energy=0.1,10", {"energy": 6000.0}), Faults(dropout=dropout, seed=1)
    return train(data, method_of(), Measured(), settings, ledger=ledger, faults=faults, **more)


@pytest.mark.parametrize("engine", [name for name in LOCAL if name != "inprocess"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_run_that_turns_to_quasi_newton_is_the_same_through_every_engine(engine: str, dropout: float) -> None:
    """Choice of the solver, models, bill and certificate of every round."""
    whole = learn(dropout=dropout)
    assert [each.solver for each in whole.observed].count(NEWTON) > 5
    assert_same_run(whole, learn(engine, dropout=dropout))


@pytest.mark.parametrize(("rounds", "engine"), in_turn([5, 9, 14], ["inprocess", "sharded"]))
def test_a_search_that_was_put_away_goes_on_as_if_it_had_not_been(rounds: int, engine: str, tmp_path: Path) -> None:
    """The point, its gradient, the memory of steps, and the best models so far are in the checkpoint."""
    whole, keep = learn(), Keeper(tmp_path / "checkpoint")
    assert {each.solver for each in whole.observed[rounds - 1 : rounds + 1]} == {NEWTON}
    learn(engine, watch=until(rounds), keep=keep)
    assert_same_run(whole, learn(engine, start=checkpoint.read(keep.path)))


@pytest.mark.parametrize("loss", LOSSES)
def test_lost_updates_keep_the_sums_exact_and_the_best_models(loss: str) -> None:
    """U_b = Xᵀα after every round of a search, the objective never rises, and the bound never falls or passes it."""
    method = method_of(loss)
    data = federation("regression" if loss == "squared" else "binary", sizes=BLOCKS)
    network, rng = InProcess(data, method, seed=3), np.random.default_rng(0)
    cloud, best, bound = cloud_of(network, method.relationship), np.inf, 0.0
    for number in range(1, 26):
        network.assign(cloud.assign(NEWTON))
        network.round(number, network.sizes, rng.random(len(network.station)) < 0.7)
        found = certify(network, cloud)
        for b in range(data.n_tasks):
            mine = data.row_task == b
            rows = np.column_stack([data.X[mine], np.ones(mine.sum())]) if method.intercept else data.X[mine]
            np.testing.assert_allclose(network.V[b], network.alpha[mine].T @ rows / mine.sum(), rtol=1e-12, atol=1e-12)
        assert bound <= found.dual <= found.primal + 1e-12
        assert found.primal <= min(best, found.zero, found.held) * (1.0 + 1e-14)
        best, bound = found.primal, found.dual
    assert best < found.zero


@pytest.mark.parametrize("engine", [InProcess, MessagePassing, sharded])
def test_a_search_goes_on_with_a_station_that_lost_all_of_its_terminals(engine: Any) -> None:
    """Its gradient is zero, its model is what the coupling says, and the certificate stays sound."""
    method = method_of()
    network = engine(federation(sizes=((4, 5), (6,))), method)
    cloud = cloud_of(network, method.relationship)
    for number in range(1, 30):
        if number == 4:
            network.move(2, 0)
        network.assign(cloud.assign(NEWTON))
        network.round(number, network.sizes)
        certificate = certify(network, cloud)
        assert certificate.gap >= -1e-12
    assert certificate.relative_gap < 1e-3
    np.testing.assert_allclose(network.V[1], 0.0, atol=1e-15)


TASKS, FEATURES, COUPLED = 3, 4, MeanRegularised(0.02, 0.3)


@pytest.mark.parametrize("search", [QuasiNewton, Backtracking])
def test_steps_are_those_of_matrices_written_out(search: type[QuasiNewton], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a quadratic: −(Q + diag(B_b))⁻¹ g with B_b of BFGS by task, and −H g with H the inverse of the joint one.

    Three steps for each of the unknowns lead to the optimum. A step that is tried again, shorter, is not a new one.

    Models that a run returns are the best that certificates saw, between steps too, so they are not compared.
    """
    monkeypatch.setattr(quasi_newton, "CG_STEPS", 10 * TASKS * FEATURES)
    monkeypatch.setattr(quasi_newton, "CG_TOLERANCE", 1e-13)
    rng = np.random.default_rng(4)
    coupling = np.kron(COUPLED.apply(np.eye(TASKS)[:, None])[:, 0], np.eye(FEATURES))
    hessian, goal = coupling + _of_losses(rng), rng.normal(size=TASKS * FEATURES)
    written_out = _by_task if search is QuasiNewton else _joint
    found, pairs = search(np.zeros((TASKS, 1, FEATURES))), []
    for k in range(3 * TASKS * FEATURES):
        anew, trial = found.direction is None, found.trial(COUPLED)
        if k and anew:
            expected = written_out(pairs, found.curvature, coupling) @ found.gradient.ravel()
            np.testing.assert_allclose((trial - found.W).ravel(), -expected, rtol=1e-6, atol=1e-9)
        gradient = hessian @ (trial.ravel() - goal)
        V = COUPLED.apply(trial) - gradient.reshape(trial.shape)
        before, slope = found.W.ravel(), None if found.gradient is None else found.gradient.ravel()
        ahead = (trial.ravel() - before)[None] * np.array(STEP_LENGTHS)[:, None] + before - goal
        along = np.einsum("ki,ij,kj->k", ahead, hessian, ahead) / (2.0 * TASKS)
        found.observe(COUPLED, V, along, exact=True)
        if slope is not None:
            pairs.append((trial.ravel() - before, gradient - slope))
    np.testing.assert_allclose(found.W.ravel(), goal, atol=1e-9)


def _of_losses(rng: np.random.Generator) -> Any:
    """A Hessian of losses, each task's of its own model."""
    hessian = np.zeros((TASKS * FEATURES, TASKS * FEATURES))
    for mine in _tasks():
        factor = rng.normal(size=(FEATURES, FEATURES))
        hessian[mine, mine] = factor @ factor.T / 5.0
    return hessian


def _tasks() -> list[slice]:
    return [slice(b * FEATURES, (b + 1) * FEATURES) for b in range(TASKS)]


def _by_task(pairs: Any, curvature: float, coupling: Any) -> Any:
    """(Q + diag(B_b))⁻¹, B_b by the pairs of losses, where these bend."""
    hessian = coupling + curvature * np.eye(len(coupling))
    for mine in _tasks():
        B = curvature * np.eye(FEATURES)
        for s, change in pairs:
            step, y = s[mine], (change - coupling @ s)[mine]
            if step @ y > LEAST_CURVATURE * np.linalg.norm(step) * np.linalg.norm(y):
                curved = B @ step
                B = B + np.outer(y, y) / (step @ y) - np.outer(curved, curved) / (step @ curved)
        hessian[mine, mine] = coupling[mine, mine] + B
    return np.linalg.inv(hessian)


def _joint(pairs: Any, curvature: float, coupling: Any) -> Any:
    """The inverse of BFGS from (Q + h I)⁻¹ scaled by the last pair."""
    inverse = np.linalg.inv(coupling + curvature * np.eye(len(coupling)))
    if pairs:
        s, y = pairs[-1]
        inverse = inverse * (s @ y) / (y @ inverse @ y)
    for s, y in pairs:
        turn = np.eye(len(s)) - np.outer(s, y) / (s @ y)
        inverse = turn @ inverse @ turn.T + np.outer(s, s) / (s @ y)
    return inverse


@pytest.mark.parametrize("seed", [0, 1])
def test_quasi_newton_rounds_are_far_ahead_of_dual_ascent_under_weak_weights(seed: int) -> None:
    """Long runs of hardly regularised tasks: a better objective, and at most a fifth of the gap."""
    request = Request("synthetic", tasks=2, terminals=3)
    weights = {"lambda1": 1e-4, "lambda2": 1e-4}
    ended = {"cost": ("energy=0.1,10",), "budget": ("energy=4000",)}
    searched, ascended = (
        RunConfig("rhfedmtl", request, Options(**weights, merge=merge), **ended)
        .run(request.federation(seed))
        .certificate
        for merge in ("auto", "add")
    )
    assert searched.primal < ascended.primal
    assert searched.gap < 0.2 * ascended.gap


def test_a_run_ends_where_only_rounding_is_left_of_the_gap() -> None:
    """However small the objective is: a relative gap of 1e-12 of it may be less than its last digit."""
    config = RunConfig(
        "rhfedmtl",
        Request("synthetic", tasks=2, terminals=3),
        Options(lambda1=1e-6, lambda2=1e-6, merge="line-search"),
        cost=("energy=0.1,10",),
        budget=("energy=1e6",),
    )
    result = config.run(config.request.federation(0))
    assert result.stopped == "solved up to rounding"
    assert result.certificate.relative_gap > 1e-12
