"""Choose a feature map on held-out training rows (``features="auto"``).

Without a budget, every map is solved on folds for several λ1, with the λ2 that the run without a map chose. With a
weaker coupling, a map with a large λ1 may win by replacing the missing coupling. The best loss on held-out rows counts.
Small data uses all folds, and large data a single fold (`regularisation.lambda1_path`). With a budget, every map trains
on four fifths of the rows for a share of the budget, and is charged like the run that follows.

The score of a task is its loss on held-out rows divided by the loss of its zero model there. Of the candidates whose
loss is at most half a standard error behind the best, the first is taken: the list goes from few columns to many. A
candidate with more errors on held-out rows than the run without a map is out: losses also fall if models are
shrunk, which helps no prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import trim_mean

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.method import Method
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.data.federation import Federation
from rhfedmtl.errors import BudgetError, ConfigError, DivergenceError
from rhfedmtl.features.maps import Features
from rhfedmtl.features.registry import NO_MAP
from rhfedmtl.maths.metrics import scores
from rhfedmtl.resources.costs import amounts_text
from rhfedmtl.resources.events import Event
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.selection.first_rounds import FOLDS, HeldOutRows
from rhfedmtl.selection.folds import Float64Array, error_share, held_out_rows, hold_out, row_losses
from rhfedmtl.selection.regularisation import STANDARD_ERRORS, TRIM, lambda1_path, trimmed_error
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings

CANDIDATES = (NO_MAP, "splines", "splines+pairs", "sparse-fourier")
"""Maps that are tried, from few columns to many."""
# Share of every limit that the trial of a candidate may spend.
# Measured: benchmarks/results/constants.md; ×0.5: −0.25 ± 0.30 points;
# ×2: +0.04 ± 0.10 points.
TRIAL_SHARE = 0.05


@dataclass(frozen=True)
class MapTrial:
    """A map with its score on held-out rows, and the rounds that it took."""

    features: str
    loss: float
    rounds: int


class MapResult(NamedTuple):
    """A map as a candidate, with λ1 if it was tried with several: losses by task and errors on held-out rows.

    Errors are the share of wrong classes, and 0 in a regression, whose loss is an error already.
    """

    features: str
    losses: Float64Array
    errors: float
    lambda1: float | None = None


class MapChoice(NamedTuple):
    """The chosen map, the reason, all trials, the events that a budget pays, and λ1 if it was chosen with the map.

    ``is_first`` is True for the run without a map and with the λ1 that it has without this choice.
    """

    features: str
    why: str
    tried: list[MapTrial]
    events: list[Event]
    lambda1: float | None = None
    is_first: bool = False


def on_folds(
    built: Algorithm, method: DualMethod, federation: Federation, settings: Settings, weights: Mapping[str, float]
) -> MapChoice:
    """Choose the map and λ1 without a budget, by the problem of the dual ``method``."""
    data, tried, candidates = built.regroup(federation), list[MapTrial](), list[MapResult]()
    if method.relationship.coupling(data.n_tasks) == 0.0:
        weights = {**weights, "lambda2": 0.0}
    for text in CANDIDATES:
        mapped = replace(method, features=Features(text))
        try:
            choice = lambda1_path(data, mapped, weights=weights, settings=settings, judged=federation)
        except ConfigError as error:  # too few rows for folds, or no column to map
            return MapChoice(NO_MAP, f"default: {error}", [], [], is_first=True)
        # The first candidate is the run without a map and with the λ1 that it would have.
        for trial in (*(() if candidates else choice.trials[:1]), choice.best):
            candidates.append(MapResult(text, trial.tasks, trial.errors, trial.lambda1))
        tried.append(MapTrial(text, choice.best.score, choice.effort.rounds))
    best = _preferred(candidates)
    return MapChoice(best.features, "the best on held-out rows", tried, [], best.lambda1, best is candidates[0])


def in_budget(built: Algorithm, federation: Federation, settings: Settings, ledger: Ledger) -> MapChoice:
    """Choose within a budget: the trial of each candidate spends up to `TRIAL_SHARE` of each limit."""
    data = built.regroup(federation)
    rows, held_out = hold_out(data, FOLDS, 0, settings.seed), held_out_rows(data, FOLDS, 0, settings.seed)
    limits = {name: TRIAL_SHARE * limit for name, limit in ledger.budget.items()}
    tried, candidates, events = list[MapTrial](), list[MapResult](), list[Event]()
    for text in CANDIDATES:
        method, run = replace(built.method, features=Features(text)), None
        try:
            run = Run(rows, method, settings, Ledger(ledger.cost, limits))
            result = run.result(run.learn(built.policy))
        except BudgetError as error:
            needed = amounts_text({name: amount / TRIAL_SHARE for name, amount in error.needed.items()})
            share = f"{100 * TRIAL_SHARE:g} % of the budget"
            why = f"default: a trial of a map may spend {share}, which pays no round; give {needed}, or name a map"
            return MapChoice(NO_MAP, why, [], events)
        except (ConfigError, DivergenceError) as error:
            return MapChoice(NO_MAP, f"default: the trial of {text} failed ({error})", [], events)
        finally:
            if run is not None:  # a trial that fails has spent as well
                events += run.state.events
                run.close()
        candidates.append(_judged(text, data, np.flatnonzero(held_out), method, result))
        tried.append(MapTrial(text, float(trim_mean(candidates[-1].losses, TRIM)), result.rounds))
    return MapChoice(_preferred(candidates).features, f"the best on {100 // FOLDS} % held-out rows", tried, events)


def _preferred(candidates: list[MapResult]) -> MapResult:
    """Return the first candidate that is at most half a standard error behind the best, paired over tasks."""
    allowed = [candidate for candidate in candidates if candidate.errors <= candidates[0].errors]
    finite = np.isfinite([candidate.losses for candidate in allowed]).all(axis=0)
    best = min(allowed, key=lambda candidate: trim_mean(candidate.losses[finite], TRIM))
    for candidate in allowed:
        behind = (candidate.losses - best.losses)[finite]
        if trim_mean(behind, TRIM) <= STANDARD_ERRORS * trimmed_error(behind):
            return candidate
    return best


def _judged(text: str, data: Federation, held_out: npt.NDArray[np.int64], method: Method, result: Result) -> MapResult:
    """Return a map with the loss of every task's held-out rows divided by the loss of its zero model, and errors."""
    rows = HeldOutRows.of(data, held_out, result.scalers)
    z = np.concatenate([scores(X, model) for X, model in zip(rows.rows, result.models, strict=True)])
    zero = np.zeros_like(z)
    if not data.class_names:
        count = np.bincount(data.row_task, minlength=data.n_tasks)
        zero[:, 0] = (np.bincount(data.row_task, data.y, minlength=data.n_tasks) / count)[rows.task]
    both = (row_losses(method.loss, part, rows.targets).astype(np.float64) for part in (z, zero))
    losses, zeros = (rows.weight * part.sum(axis=1) for part in both)
    total, at_zero = (np.bincount(rows.task, part, minlength=data.n_tasks) for part in (losses, zeros))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.asarray(np.where(at_zero > 0.0, total / at_zero, np.nan))
    return MapResult(text, relative, error_share(z, rows.y, len(data.class_names)))
