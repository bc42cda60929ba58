"""Turn the parameters of an estimator into the method, settings and budget of a run.

`TaskEstimator.fit` calls `prepare`. A parameter that does not fit raises a `ConfigError` that names it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from joblib import effective_n_jobs
from sklearn.utils import check_random_state

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import AUTO, USUAL, Options, build, idle, no_effect, option_kinds
from rhfedmtl.algorithms.registry import ALGORITHMS, Algorithm, is_yardstick
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError, nearest
from rhfedmtl.estimators.rows import positive_integer
from rhfedmtl.features.maps import pinned
from rhfedmtl.provenance import versions
from rhfedmtl.resources.costs import Budget, Cost, read_resources
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.selection.folds import Float64Array
from rhfedmtl.selection.regularisation import weighted
from rhfedmtl.selection.weights import OpenWeights, Selection, SelectionRecord, can_choose, choose_map, with_map
from rhfedmtl.training.config import RunConfig, default_scale
from rhfedmtl.training.privacy import Privacy, PrivatePlan, private
from rhfedmtl.training.settings import Settings
from rhfedmtl.training.snapshot import Before

LAST_SEED = 2**64 - 1
PLAIN = (str, int, float, bool, dict, list, tuple, type(None))
Estimator = Any
"""A `TaskEstimator`; that module imports this one, so the type cannot be imported here."""


class Prepared(NamedTuple):
    """The parts of a run that follow from parameters.

    ``weights`` are the parameters λ1 and λ2, ``before`` is a run that chose them, and ``held_out`` the scores of a
    choice on folds.
    """

    built: Algorithm
    settings: Settings
    ledger: Ledger
    plan: PrivatePlan | None
    selection: SelectionRecord
    before: Before | None
    weights: dict[str, float]
    held_out: Float64Array | None = None


def seed_of(estimator: Estimator) -> int:
    """Return ``random_state`` as a seed."""
    state = estimator.random_state
    if isinstance(state, int | np.integer):
        if not 0 <= state <= LAST_SEED:
            raise ConfigError(f"random_state must be a whole number from 0 to 2**64 - 1, got {state}")
        return int(state)
    return int(check_random_state(state).randint(np.iinfo(np.int32).max))


def prepare(estimator: Estimator, federation: Federation, seed: int) -> Prepared:
    """Check the parameters, build the method and choose open weights."""
    # 1. Method and policy.
    for name in ("intercept", "warm_start"):
        if getattr(estimator, name) not in (True, False):
            raise ConfigError(f"{name} must be True or False, got {getattr(estimator, name)!r}")
    options = options_of(estimator)
    algorithm = estimator.algorithm
    built = build(algorithm, options, federation.kind)
    unheeded = idle(algorithm, options, federation.kind, built) if estimator.options else []
    if unheeded := [name for name in unheeded if name in (estimator.options or {})]:
        raise ConfigError(f"options={estimator.options!r}: {no_effect(algorithm, unheeded, options)}")
    if is_yardstick(algorithm) and estimator.budget is not None:
        raise ConfigError(f"algorithm {algorithm!r} is a baseline without a budget: leave the budget out")
    if estimator.warm_start and not isinstance(built.method, DualMethod):
        raise ConfigError(f"algorithm {algorithm!r} has no dual variables to start from: leave warm_start out")
    # 2. Settings and budget.
    if not 0.0 <= estimator.tol < math.inf:
        raise ConfigError(f"tol must be a finite number >= 0, got {estimator.tol}")
    settings = Settings(
        scale=estimator.scale or default_scale(federation.kind, private=bool(estimator.privacy), algorithm=algorithm),
        seed=seed,
        noise_from_seed=estimator.random_state is not None,
        execution=Execution(threads=effective_n_jobs(estimator.n_jobs)),
        target_relative_gap=estimator.tol,
        max_rounds=positive_integer("max_rounds", estimator.max_rounds),
    )
    paid, plan = _ledger(estimator), None
    ledger = paid
    # 3. Privacy, or a choice of weights.
    if estimator.privacy:
        if "auto" in (estimator.lambda1, estimator.lambda2) or estimator.warm_start:
            raise ConfigError(
                f"privacy={estimator.privacy!r}: weights chosen on rows, and dual variables of an earlier fit, reveal "
                "more than this bound allows; give the weights as numbers, and leave warm_start out"
            )
        bound = estimator.privacy
        text = ",".join(f"{name}={value}" for name, value in bound.items()) if isinstance(bound, Mapping) else bound
        RunConfig(algorithm, options=options, scale=estimator.scale, privacy=text).check()
        built, plan = private(algorithm, options, federation, paid, Privacy.parse(text))
        ledger = plan.ledger(paid)
    weights = _weights(estimator)
    if options.features == AUTO and plan is not None:
        raise ConfigError(f"privacy={estimator.privacy!r}: features='auto' tries maps on rows; name the map")
    built, (selection, before, held_out) = _selected(estimator, options, built, federation, settings, weights)
    if selection.chosen and isinstance(built.method, DualMethod):
        relationship = weighted(built.method.relationship, **weights | selection.chosen)
        built = built._replace(method=replace(built.method, relationship=relationship))
    return Prepared(built, settings, ledger, plan, selection, before, weights, held_out)


def origin_of(estimator: Estimator, seed: int, plan: PrivatePlan | None) -> dict[str, Any]:
    """Return the origin of a model: parameters that are plain values, seed, versions, chosen weights."""
    values = estimator.get_params() | {"task": estimator.task_column_}
    values = {name: x.item() if isinstance(x, np.generic) else x for name, x in values.items()}
    values = {name: value for name, value in values.items() if isinstance(value, PLAIN)}
    values["features"] = pinned(estimator.features)
    origin = {"estimator": json.loads(json.dumps(values, default=str)), "seed": seed, "versions": versions()}
    if plan is not None:
        return {**origin, "chosen": {name: getattr(plan, name) for name in USUAL}}
    chosen = estimator.regularisation_.chosen
    return {**origin, "chosen": chosen} if chosen else origin


def options_of(estimator: Estimator) -> Options:
    """Return the parameters as options; weights that are still to be chosen have their defaults."""
    if not isinstance(estimator.options, Mapping | None):
        raise ConfigError(
            f"options={estimator.options!r} is no mapping: give settings by name, as in {{'merge': 'add'}}"
        )
    settings, parameters = dict(estimator.options or {}), set(estimator.get_params(deep=False)) | {"loss"}
    names = [name for name in option_kinds() if name not in parameters]
    for name in settings:
        if name in parameters:
            raise ConfigError(f"options={estimator.options!r}: {name} is a parameter of the estimator")
        if name not in names:
            raise ConfigError(f"options={estimator.options!r}: no setting {name!r}{nearest(name, names)}")
    if not isinstance(estimator.features, str):
        raise ConfigError(f"features={estimator.features!r}: give a text, such as 'none' or 'splines+pairs'")
    return Options.of(
        loss=estimator.loss,
        features=estimator.features,
        relationship=estimator.relationship,
        **_weights(estimator),
        intercept=bool(estimator.intercept),
        policy=estimator.policy,
        local_steps=estimator.local_steps,
        station_rounds=estimator.station_rounds,
        **settings,
    )


def _weights(estimator: Estimator) -> dict[str, float]:
    """Return λ1 and λ2; an open weight has its default."""
    weights = {}
    for name, default in USUAL.items():
        value = getattr(estimator, name)
        try:
            weights[name] = default if value is None or (isinstance(value, str) and value == "auto") else float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{name}={value!r} is neither a number nor 'auto'") from None
    return weights


def _ledger(estimator: Estimator) -> Ledger:
    if is_yardstick(estimator.algorithm):
        return Ledger({})
    limits = Budget.of(estimator.budget)
    cost = read_resources(None, limits.format())[0] if estimator.cost is None else Cost.of(estimator.cost)
    return Ledger(cost, limits)


def _selected(
    estimator: Estimator,
    options: Options,
    built: Algorithm,
    federation: Federation,
    settings: Settings,
    weights: dict[str, float],
) -> tuple[Algorithm, Selection]:
    """Return the algorithm with its feature map, and the choice of open weights; ``weights`` gets the λ1 of the map.

    Without a budget, it first chooses the weights without a map, and chooses them again behind a map.
    """
    ledger = _ledger(estimator)
    if options.features != AUTO:
        return built, _choice(estimator, built, federation, settings, ledger, weights)
    method = built.method if isinstance(built.method, DualMethod) else options.method(federation.kind)
    first = None if ledger.budget else _choice(estimator, built, federation, settings, ledger, weights)
    choice, ledger = choose_map(built, method, federation, settings, ledger, weights, first)
    if not choice.tried:
        warnings.warn(f"features='auto': {choice.why}", stacklevel=4)
    if first is not None and choice.is_first:
        return built, with_map(choice, first)
    weights["lambda1"] = choice.lambda1 or weights["lambda1"]
    built = build(estimator.algorithm, options.changed(features=choice.features, **weights), federation.kind)
    return built, with_map(choice, _choice(estimator, built, federation, settings, ledger, weights))


def _choice(
    estimator: Estimator,
    built: Algorithm,
    federation: Federation,
    settings: Settings,
    ledger: Ledger,
    present: dict[str, float],
) -> Selection:
    """Choose weights that are "auto", or λ2 if it is not given, on held-out training rows; a budget pays for it."""
    auto = tuple(name for name in USUAL if getattr(estimator, name) == "auto")
    keeps = ALGORITHMS[estimator.algorithm].keeps_weights
    if auto and keeps:
        raise ConfigError(
            f"algorithm {estimator.algorithm!r} keeps its weights: give a number for {' and '.join(auto)}"
        )
    left_open = estimator.lambda2 is None and not (estimator.privacy or is_yardstick(estimator.algorithm) or keeps)
    if left_open and can_choose(built, federation, limited=bool(estimator.budget)):
        auto = ("lambda2",)
    if not auto:
        return Selection(SelectionRecord({}, "no weight was chosen", {}, []))
    if auto == ("lambda1",):
        raise ConfigError("lambda1='auto' needs lambda2='auto': the two are chosen together")
    if not isinstance(built.method, DualMethod):
        raise ConfigError(f"algorithm {estimator.algorithm!r} has no lambda2 to choose: give numbers")
    if ledger.budget:
        last = getattr(estimator, "_learned_with", None)
        if estimator.warm_start and last is not None:  # A warm start keeps the weights with the duals.
            return Selection(SelectionRecord({name: last[name] for name in auto}, "as in the previous fit", {}, []))
    return OpenWeights(auto, present).choose(built, federation, settings, ledger)
