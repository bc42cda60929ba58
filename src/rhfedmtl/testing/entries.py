"""Requirements for entries of each kind, in addition to the requirements for runs with these entries.

The first line of each docstring states the requirement, and the command prints it.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rhfedmtl.algorithms.options import Options, build, idle
from rhfedmtl.algorithms.registry import ALGORITHMS
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import ENGINES, Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.features.base import Statistics, normal_quantiles
from rhfedmtl.features.maps import Features
from rhfedmtl.maths.registry import RELATIONSHIPS
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.registry import RESOURCES
from rhfedmtl.selection.tuning import TRIALS, candidates
from rhfedmtl.testing.runs import Case, engines_agree, federation, learn, require, same
from rhfedmtl.training import checkpoint
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

PRICES = (("energy=0.1,10", 80.0), ("energy=0.1,10", 900.0), ("time=1,0.1", 60.0), ("bytes=byte:1", 4e4))
WEIGHTS = ((1e-3, 1e-2), (1e-1, 0.0), (1e-2, 1.0))


def several_classes(name: str) -> None:
    """Engines agree on three classes."""
    engines_agree(Case(name, classes=3), "drop-outs")


def options_matter(name: str) -> None:
    """Every declared option has an effect, or the entry refuses the value."""
    for option in ALGORITHMS[name].options:
        value = option.kind(1) if option.default is None else _other(option.default)
        if idle(name, Options.of(**{option.name: value})):
            raise AssertionError(f"{option.name}={value} has no effect: read it with options[{option.name!r}]")


def _other(value: Any) -> Any:
    return not value if isinstance(value, bool) else f"{value}?" if isinstance(value, str) else value + 1


def grid_is_fair(name: str) -> None:
    """Tuning tries the same number of candidates as for every other algorithm (or only one), and each can be built."""
    settings = candidates(RunConfig(name), federation(), None, TRIALS, 0)
    require(
        len({str(candidate) for candidate in settings}) in (1, TRIALS),
        f"{len(settings)} candidates instead of {TRIALS}",
    )
    for candidate in settings:
        build(name, Options.of(**candidate), "binary")


def closed_forms_hold(name: str) -> None:
    """Q is symmetric and positive definite; V G, tr(W Q Wᵀ) and tr(V G Vᵀ) agree with dense algebra."""
    W = np.random.default_rng(0).normal(size=(5, 2, 3))
    for weights in WEIGHTS:
        relationship = RELATIONSHIPS[name](*weights)
        Q = relationship.precision(5)
        np.testing.assert_allclose(Q, Q.T, atol=1e-12)
        require(np.linalg.eigvalsh(Q)[0] > 0.0, f"Q at λ1, λ2 = {weights} is not positive definite")
        solved = np.einsum("ab,bcd->acd", np.linalg.inv(Q), W)
        np.testing.assert_allclose(relationship.solve(W), solved, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(relationship.energy(W), np.einsum("ab,acd,bcd->", Q, W, W), rtol=1e-8)
        np.testing.assert_allclose(relationship.dual_energy(W), np.sum(W * solved), rtol=1e-8)


def plans_at_any_budget(name: str) -> None:
    """Runs make rounds and stay within their budget, at small and large budgets and other prices."""
    data = federation()
    built = build("rhfedmtl", Options(policy=name), data.kind)
    for cost, budget in PRICES:
        resource = cost.partition("=")[0]
        ledger = Ledger(cost, {resource: budget})
        result = train(data, built.method, built.policy, Settings(certify_every=50, max_rounds=300), ledger=ledger)
        require(result.rounds > 0, f"no round at {cost}, {resource}={budget}")
        require(ledger.spent[resource] <= budget, f"spent {ledger.spent[resource]} of {budget}")


def dual_never_falls(name: str) -> None:
    """The dual never falls in a merge of separate tasks, whichever updates arrive."""
    result = learn(Case("local", Options(merge=name)), "drop-outs", certify_every=1)
    duals = [moment.dual for moment in result.history if moment.certified]
    require(bool((np.diff(duals) >= -1e-9).all()), "the dual falls from one round to the next")


def map_is_pure(name: str) -> None:
    """A row gives the same finite numbers alone and in a batch, as many as the map declares, and within its bounds."""
    features = Features(name)
    X = np.random.default_rng(0).normal(size=(100, 5)) * [1.0, 1.0, 1e6, 0.0, 1e-6]
    function = features.function(Statistics(normal_quantiles(5), 0))
    mapped, (low, high) = function(X), features.bounds(5)
    require(mapped.shape == (100, features.columns(5)), f"{mapped.shape[1]} columns instead of {features.columns(5)}")
    require(bool(np.isfinite(mapped).all()), "a column has a value that is not finite")
    require(bool(((low <= mapped) & (mapped <= high)).all()), "a column leaves the bounds that the map declares")
    np.testing.assert_array_equal(np.concatenate([function(X[i : i + 1]) for i in range(100)]), mapped)
    require(len(function(X[:0])) == 0, "no rows give rows")


def engine_agrees(name: str) -> None:
    """Runs give the same result as engine inprocess, unless the engine refuses them by name."""
    refused = []
    for algorithm in ALGORITHMS:
        try:
            result = learn(Case(algorithm), "everything", Execution(name))
        except ConfigError as error:
            refused.append(str(error))
            continue
        expected = learn(Case(algorithm), "everything")
        if ENGINES[name].exact:
            same(expected, result)
        np.testing.assert_allclose(result.models, expected.models, rtol=1e-3, atol=1e-3)
    require(len(refused) < len(ALGORITHMS), f"the engine runs no algorithm: {refused[:1]}")
    for text in refused:
        require(repr(name) in text, f"this refusal does not name the engine: {text}")


def engine_keeps(name: str) -> None:
    """A resumed run gives the same bits if the engine keeps checkpoints; otherwise the engine refuses them."""
    data, settings = federation(), Settings(execution=Execution(name))
    built = build("hfedmtl", Options(local_steps=3, cloud_rounds=6), data.kind)
    with TemporaryDirectory() as folder:
        keep = checkpoint.Keeper(Path(folder) / "checkpoint", seconds=0.0)
        try:
            train(data, built.method, built.policy, settings, watch=lambda progress: progress.round < 3, keep=keep)
        except ConfigError as error:
            require(not ENGINES[name].keeps_checkpoints, str(error))
            return
        require(ENGINES[name].keeps_checkpoints, "the engine keeps checkpoints, but does not declare it")
        resumed = train(data, built.method, built.policy, settings, start=checkpoint.read(keep.path))
    same(train(data, built.method, built.policy, settings), resumed)


def data_loads(name: str) -> None:
    """Loading twice gives the same rows, and a short run learns from them."""
    data, repeated = (Request(data=name).federation(0) for _ in range(2))
    require(data.fingerprint() == repeated.fingerprint(), "the same seed gives other rows")
    built = build("hfedmtl", Options(cloud_rounds=3), data.kind)
    result = train(data, built.method, built.policy, Settings(scale="standard"))
    require(bool(np.isfinite(result.models).all()), "models are not finite")


def prices_hold(name: str) -> None:
    """The default prices are valid, and a run stays within a budget of this type."""
    default = RESOURCES[name].prices or "1,1"
    cost = Cost.of(f"{name}={default}")
    require(cost[name].adds == RESOURCES[name].adds, f"prices add up as {cost[name].adds}")
    data = federation()
    built = build("hfedmtl", Options(), data.kind)
    limit = 20.0 * float(np.max(cost[name].station_round) + 18.0 * np.max(cost[name].terminal_step))
    ledger = Ledger(cost, {name: limit})
    train(data, built.method, built.policy, Settings(certify_every=50, max_rounds=300), ledger=ledger)
    require(0.0 < ledger.spent[name] <= limit, f"spent {ledger.spent[name]} of {limit}")
