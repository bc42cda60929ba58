"""Cells of ``benchmarks/constants.py``: federations, budgets and groups in which a constant can act.

The groups of the ablation are described there. Further groups:

logistic    as `weights`, with logistic loss
given       as `weights`, with the settings of a user's run
search      logistic loss, merge by line search
lbfgs       the algorithm lbfgs
clusters    the relationship ``clusters``
adaptive    the algorithm adaptive-fl
free        dual ascent, steps cost nothing
open        given weights, no budget
defaults    λ1 is the default, λ2 is chosen in the run
both        λ1 and λ2 are chosen in the run
maps        the feature map and λ2 are chosen in the run
large       as `defaults`, with about 110,000 rows
huge        as `large`, with 56 to 64 features
folds       λ1 and λ2 are chosen on folds, no budget
sample      as `folds`, λ2 alone, 25,000 rows
many        as `weights`, 600 tasks
wide        as `weights`, 150 tasks of 2,000 features
private     ε = 8, 500 terminals per station
pooled      the yardstick ``pooled``
tune        ``compare --tune``: the grid of the algorithm, four folds

The budgets of the federations take turns: 2, 5, 15, 50 passes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from benchmarks import ablation
from benchmarks.federations import KINDS, Problem

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.federation import Federation, one_terminal_per_task
from rhfedmtl.engines.registry import Execution
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.selection.tuning import tuned
from rhfedmtl.selection.weights import choose_settings
from rhfedmtl.training.config import RunConfig

FIRST_NUMBER, FIRST_SEED = 310_000, 9_000
DRAWN = 12
HAR = ("har STANDING 5", "har WALKING_UPSTAIRS 15")
BUDGETS = (2, 5, 15, 50)
SHAPES: dict[str, dict[str, float]] = {
    "many": {"tasks": 600, "rows": 10, "terminals": 1, "features": 8},
    "wide": {"tasks": 150, "rows": 10, "terminals": 1, "features": 2000},
    "large": {"tasks": 50, "rows": 2500, "terminals": 5, "features": 8, "unequal": 0.3},
    "huge": {"tasks": 50, "rows": 2500, "terminals": 5, "features": 62, "unequal": 0.3},
    "sample": {"tasks": 10, "rows": 2500, "terminals": 5, "features": 8, "unequal": 0.0},
    "private": {"tasks": 5, "rows": 2000, "terminals": 500, "features": 10},
    "small": {"tasks": 12, "rows": 60, "terminals": 3, "features": 12},
}
ablation.SHAPES |= SHAPES
TRIALS = [Path("trials.json")]
"""Where the trials of tuning are kept."""
ONE = Execution(threads=1)

CLASSES_ONLY = ("hinge", "logistic", "search", "private")
WITHOUT_HAR = ("tune", "folds", "hinge", "large", "huge", "sample", "many", "wide", "private", "speeds")
SHAPE_OF = {name: name for name in SHAPES} | {"folds": "small", "tune": "small"}
ONE_BUDGET = {
    **dict.fromkeys(("open", "folds", "sample", "pooled"), (0,)),
    **dict.fromkeys(("large", "huge", "tune"), (7,)),
    **dict.fromkeys(("wide", "private"), (15,)),
    "many": (5,),
    "maps": (50, 200),
}


def cells(group: str) -> Iterator[dict[str, Any]]:
    """Yield the cells of a group: a federation, a seed and a budget each."""
    shape, count, number = SHAPE_OF.get(group, "drawn"), 0, FIRST_NUMBER
    units: list[tuple[str, int]] = []
    while count < DRAWN:
        kind = KINDS[number % 3]
        if group not in CLASSES_ONLY or kind != "numbers":
            units.append((f"{shape} {number} {kind}", 0))
            count += 1
        number += 1
    if group not in WITHOUT_HAR:
        units += [(name, FIRST_SEED + k) for name in HAR for k in range(2)]
    for k, (name, seed) in enumerate(units):
        for passes in ONE_BUDGET.get(group, BUDGETS[k % 4 : k % 4 + 1]):
            yield {"problem": name, "seed": seed, "group": group, "passes": passes}


def measure(cell: dict[str, Any]) -> dict[str, Any]:
    """Run a cell; return points and objective."""
    group = cell["group"]
    setup = ablation.problem(cell["problem"])
    federation = federation_of(cell["problem"], group, cell["seed"])
    try:
        if group in ablation.GROUPS and group != "choice":
            return ablation.learn(setup, federation, cell, "")
        base = "logistic" if group == "logistic" else "weights"
        if group in ("logistic", "many", "wide"):
            return ablation.learn(setup, federation, {**cell, "group": base}, "")
        return OWN[group](setup, federation, cell)
    except Exception as error:  # a changed constant may make a run impossible: that is a result
        return {"error": f"{type(error).__name__}: {error}"[:100]}


@lru_cache(maxsize=2)
def federation_of(name: str, group: str, seed: int) -> Federation:
    """Return the federation of a cell."""
    chosen_in_run = group in ("choice", "defaults", "both", "maps")
    federation = ablation.make(name, "choice" if chosen_in_run else group, seed)
    return one_terminal_per_task(federation) if group == "hinge" else federation


def optimum(cell: dict[str, Any]) -> float | None:
    """Return the optimum P* of a cell's problem, or `None`."""
    base = {"weak": "weak", "logistic": "logistic", "search": "logistic"}
    if cell["group"] not in (*ablation.GROUPS, *base, "given", "lbfgs", "free", "open", "many"):
        return None
    if cell["group"] in ("choice", "hinge"):  # chosen in the run; too slow to solve
        return None
    return ablation.best(cell["problem"], cell["seed"], base.get(cell["group"], "weights"))


# --- groups that the ablation does not have ------------------------------------------------------------------------
def _run(setup: Problem, federation: Federation, config: RunConfig, **more: Any) -> dict[str, float]:
    result = config.run(federation, execution=ONE, **more)
    points = ablation.score(setup, federation, result.metrics)
    return {"points": points, "primal": float(result.certificate.primal)}


def _config(setup: Problem, federation: Federation, cell: dict[str, Any], **options: Any) -> RunConfig:
    """Return a run under the prices and the budget of `weights`; 0 passes stand for no budget."""
    step, paid = setup.step_price, cell["passes"] + 1e-9
    one = step * len(federation.y) + ablation.ROUND_PRICE * federation.n_tasks
    budget = (f"energy={one * paid!r}",) if cell["passes"] else ()
    cost = (f"energy=step:{step!r},station:{ablation.ROUND_PRICE}",) if budget else ()
    algorithm = options.pop("algorithm", "rhfedmtl")
    return RunConfig(algorithm, options=Options.of(**options), cost=cost, budget=budget, seed=cell["seed"])


def _given(**more: Any) -> Callable[..., dict[str, float]]:
    """Return a group with given weights and more options."""

    def learn(setup: Problem, federation: Federation, cell: dict[str, Any]) -> dict[str, float]:
        weights = {"lambda1": setup.lambda1, "lambda2": setup.lambda2}
        if more.get("algorithm") in ("adaptive-fl", "pooled"):
            weights.pop("lambda2")
        return _run(setup, federation, _config(setup, federation, cell, **weights, **more))

    return learn


def _chosen(**more: Any) -> Callable[..., dict[str, float]]:
    """Return a group whose run chooses its weights."""

    def learn(setup: Problem, federation: Federation, cell: dict[str, Any]) -> dict[str, float]:
        given = {} if more else {"lambda1": setup.lambda1}
        options = {name: value for name, value in more.items() if value is not None}
        chosen = choose_settings(_config(setup, federation, cell, **given, **options), federation, execution=ONE)
        return _run(setup, federation, chosen.config, before=chosen.before)

    return learn


def _free(setup: Problem, federation: Federation, cell: dict[str, Any]) -> dict[str, float]:
    ledger = {"energy": {"terminal_step": 0.0, "station_round": ablation.ROUND_PRICE}}
    limit = {"energy": ablation.ROUND_PRICE * federation.n_tasks * (cell["passes"] + 1e-9)}
    weights = {"lambda1": setup.lambda1, "lambda2": setup.lambda2}
    config = RunConfig("rhfedmtl", options=Options.of(**weights, solver="dual-ascent"), seed=cell["seed"])
    return _run(setup, federation, config, ledger=Ledger(ledger, limit))


def _private(setup: Problem, federation: Federation, cell: dict[str, Any]) -> dict[str, float]:
    config = replace(_config(setup, federation, cell), privacy="epsilon=8,delta=1e-6", noise_from_seed=True)
    result = config.run(federation, execution=ONE)
    return {"points": ablation.score(setup, federation, result.metrics)}


def _tune(setup: Problem, federation: Federation, cell: dict[str, Any]) -> dict[str, float]:
    config = replace(_config(setup, federation, cell), tune="auto")
    with mock.patch.object(RunConfig, "run", remembered(TRIALS[0])):
        chosen, _ = tuned(config, federation, threads=1)
        return _run(setup, federation, replace(chosen, tune=""))


OWN: dict[str, Callable[..., dict[str, float]]] = {
    "given": _given(),
    "search": _given(loss="logistic", merge="line-search"),
    "lbfgs": _given(algorithm="lbfgs"),
    "clusters": _given(relationship="clusters"),
    "adaptive": _given(algorithm="adaptive-fl"),
    "pooled": _given(algorithm="pooled"),
    "open": _given(),
    "free": _free,
    "private": _private,
    "choice": _chosen(),
    "defaults": _chosen(lambda2=None, loss=None),
    "large": _chosen(lambda2=None, loss=None),
    "huge": _chosen(lambda2=None, loss=None),
    "both": _chosen(lambda1="auto", lambda2="auto"),
    "maps": _chosen(features="auto"),
    "folds": _chosen(lambda1="auto", lambda2="auto"),
    "sample": _chosen(lambda2=None, loss=None),
    "tune": _tune,
}


def remembered(path: Path) -> Any:
    """Return `RunConfig.run` with its results kept in a file: no constant of tuning changes a trial."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    run = RunConfig.run

    def remember(config: RunConfig, federation: Federation, **more: Any) -> Any:
        rows = hashlib.sha256(np.ascontiguousarray(federation.X).tobytes() + federation.y.tobytes()).hexdigest()
        key = f"{config.key} {rows[:20]}"
        if key not in known:
            result = run(config, federation, **more)
            metrics = {name: np.asarray(values).tolist() for name, values in result.metrics.items()}
            known[key] = [metrics, result.certificate.relative_gap, float(result.certificate.primal)]
            path.write_text(json.dumps(known))
        metrics, gap, primal = known[key]
        certificate = SimpleNamespace(relative_gap=gap, primal=primal)
        arrays = {name: np.array(values) for name, values in metrics.items()}
        return SimpleNamespace(metrics=arrays, certificate=certificate)

    return remember
