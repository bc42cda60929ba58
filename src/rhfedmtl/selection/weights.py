"""Weights that a run asks to have chosen ("auto"), and all else that is settled before it begins.

Without a budget the weights are chosen as `regularisation` does; so is λ2 where nobody gave it. Under a budget the
choice is part of the run: short trials at its own prices, each going on from the duals of the one before it, are judged
by rows that the terminals hold out. Trials take at most a ``SHARE`` of every limit and are charged to the run's ledger;
the run then starts from where the chosen trial ended. Weights leave their defaults only for others that are clearly
better, so what can be lost is less than the share; a budget that pays too few rounds for a trial pays for none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import USUAL, build
from rhfedmtl.algorithms.registry import Algorithm, is_yardstick
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import BudgetError, ConfigError, DivergenceError
from rhfedmtl.maths import metrics
from rhfedmtl.maths.relationships import Models, Relationship
from rhfedmtl.resources.billing import Event, event_totals
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.selection.folds import held_rows, hold_out, make_folds, row_weights, usual_folds
from rhfedmtl.selection.regularisation import PATH1, choose, weighted
from rhfedmtl.selection.tuning import TuningRecord, tuned
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.run import Before, Run, Settings, scores

Float64Array = npt.NDArray[np.float64]

SHARE = 0.3
"""Of every limit, at most so much is spent on trials."""
FOLDS = 5
"""One part of so many is held out."""
LEAST_ROUNDS, FEW_STEPS = 4, 2
"""A trial must be able to pay so many rounds of so many steps."""
FEWEST, MOST = 3, 9
"""How many trials there are: the present weights take two."""
MANY, SEARCH = 100, 12
"""From so many terminals a station on a trial is a search, which gets nowhere with fewer passes than these."""
FEWEST_ROWS = 50
"""With fewer rows held out nothing is clear."""
MOST_NUMBERS = 10_000_000
"""λ2 that nobody gave is chosen on rows of at most so many numbers: it takes as long as ten to thirty solutions."""
CLEAR = 2.0
"""Standard errors by which other weights must be ahead of the present ones."""
STEPS = {
    ("lambda1", "lambda2"): ((1.0, 0.1), (1.0, 10.0), (0.1, 0.1), (10.0, 10.0)),
    ("lambda2",): ((1.0, 0.1), (1.0, 10.0)),
}
"""Factors of (λ1, λ2) to try, one after the other, each as long as it helps."""


@dataclass(frozen=True)
class WeightTrial:
    """Weights that were tried, and what rows held out said: mean loss and, where it is looked at, error, over tasks."""

    lambda1: float
    lambda2: float
    loss: float
    error: float | None
    rounds: int


@dataclass(frozen=True)
class SelectionRecord:
    """How weights were chosen: what was tried, what it took of the budget, and why it ended as it did."""

    chosen: dict[str, float]
    why: str
    share: float
    spent: dict[str, float]
    tried: list[WeightTrial]

    def text(self) -> str:
        """In a line."""
        chosen = ", ".join(f"{name} {value:g}" for name, value in self.chosen.items())
        cost = ", ".join(f"{name} {amount:g}" for name, amount in self.spent.items() if amount)
        charged = f"which took {cost} of the budget" if cost else "not charged"
        return f"{chosen} ({self.why}; {len(self.tried)} trials, {charged})"


class WeightProblem(NamedTuple):
    """Weights (``auto``) to choose for a run: what is learned from which rows, how, and the prices and limits of it."""

    built: Algorithm
    federation: Federation
    settings: Settings
    ledger: Ledger
    auto: tuple[str, ...]
    faults: str = ""


class Chosen(NamedTuple):
    """The run to make, with all settings as numbers; how they were chosen; and what was done for it before."""

    config: RunConfig
    tuning: TuningRecord | None = None
    selection: SelectionRecord | None = None
    before: Before | None = None


def settled(config: RunConfig, federation: Federation, *, threads: int | None = None) -> Chosen:
    """The run with its settings tuned and its weights chosen, where it asks for either."""
    auto = config.to_choose
    if not auto:
        return Chosen(*tuned(config, federation, threads=threads))
    built = build(config.algorithm, config.options, federation.kind)
    if not (config.options.auto or can_choose(built, federation)):
        return Chosen(config)
    if is_yardstick(config.algorithm) or not isinstance(built.method, DualMethod):
        return Chosen(_with(config, {name: config.options.weight(name) for name in auto}))
    cost, limits = config.resources()
    if not limits:
        return _unlimited(config, built, federation, threads)
    settings = replace(config.settings(federation.kind, ended=True), execution=Execution(threads=threads))
    asked = WeightProblem(built, federation, settings, Ledger(cost, limits), auto, config.faults)
    record, before = within_budget(asked, {name: config.options.weight(name) for name in USUAL})
    return Chosen(_with(config, record.chosen), None, record, before)


def can_choose(built: Algorithm, federation: Federation) -> bool:
    """Whether λ2 that nobody gave is chosen: tasks are coupled, have rows for folds, and it does not take long."""
    data = built.regroup(federation)
    coupled = isinstance(built.method, DualMethod) and built.method.relationship.coupling(data.n_tasks) > 0.0
    if not coupled or data.n_tasks < 2 or data.X.size > MOST_NUMBERS:
        return False
    try:
        make_folds(data, usual_folds(data))
    except ConfigError:
        return False
    return True


def within_budget(asked: WeightProblem, present: dict[str, float]) -> tuple[SelectionRecord, Before | None]:
    """The weights that are asked for, chosen by trials that the budget pays, and what the run goes on from."""
    search = _Search(asked)
    best, why = search.best(present)
    chosen = {name: getattr(best.trial, name) if best else present[name] for name in asked.auto}
    return SelectionRecord(chosen, why, SHARE, search.spent(), search.tried), search.before(best)


def _with(config: RunConfig, weights: dict[str, float]) -> RunConfig:
    return replace(config, options=config.options.changed(**weights))


def _unlimited(config: RunConfig, built: Algorithm, federation: Federation, threads: int | None) -> Chosen:
    """By paths that are solved on folds: nothing limits them, and nothing is charged."""
    settings = replace(config.settings(federation.kind, ended=False), execution=Execution(threads=threads))
    auto = config.to_choose
    path = PATH1 if "lambda1" in auto else (config.options.weight("lambda1"),)
    assert isinstance(built.method, DualMethod)
    choice = choose(built.regroup(federation), built.method, lambda1=path, settings=settings, judged=federation)
    chosen = {name: float(getattr(choice, name)) for name in auto}
    tried = [WeightTrial(t.lambda1, t.lambda2, t.score, None, t.effort.rounds) for t in choice.trials]
    return Chosen(_with(config, chosen), None, SelectionRecord(chosen, "the best on folds", 0.0, {}, tried))


class _State(NamedTuple):
    """Where a trial ended: its weights, what to go on from, and loss and error of every row held out."""

    trial: WeightTrial
    alpha: Float64Array
    models: Models
    relationship: Relationship
    losses: Float64Array
    errors: Float64Array


class _Search:
    """Trials of one run, and what they took."""

    def __init__(self, asked: WeightProblem) -> None:
        self.asked, self.built, self.federation, self.settings = asked, asked.built, asked.federation, asked.settings
        self.held = held_rows(self.federation, FOLDS, 0, self.settings.seed)
        self.part = hold_out(self.federation, FOLDS, 0, self.settings.seed)
        self.cost, self.limits = asked.ledger.cost, asked.ledger.budget
        self.tried: list[WeightTrial] = []
        self.events: list[Event] = []
        self.left = self._affordable()

    def spent(self) -> dict[str, float]:
        """What all trials took together."""
        return Ledger.replay(self.cost, self.limits, self.events).spent

    def best(self, present: dict[str, float]) -> tuple[_State | None, str]:
        """The state to go on from, and why its weights were chosen; None where there was nothing to try with."""
        if self.left < FEWEST:
            return None, "the defaults: the budget pays too few rounds to try others"
        if int(self.held.sum()) < FEWEST_ROWS:
            return None, f"the defaults: fewer than {FEWEST_ROWS} rows could be held out"
        try:
            return self._climb(present["lambda1"], present["lambda2"])
        except (BudgetError, DivergenceError) as error:
            return None, f"the defaults: a trial failed ({error})"

    def _climb(self, lambda1: float, lambda2: float) -> tuple[_State, str]:
        """Take steps as long as they are clearly better than staying for as many rounds."""
        start = self._try(None, lambda1, lambda2)
        stays, why = self._try(start, lambda1, lambda2), "the defaults: nothing tried was clearly better"
        for factor1, factor2 in self._steps():
            while self.left:
                there = start.trial.lambda1 * factor1, start.trial.lambda2 * factor2
                if any(np.allclose(there, (known.lambda1, known.lambda2), atol=0.0) for known in self.tried):
                    break
                moves = self._try(start, *there)
                if not clearly_better(moves, stays, self.federation.row_task[self.held]):
                    break
                start, why = moves, "clearly better on rows held out"
                stays = self._try(start, start.trial.lambda1, start.trial.lambda2) if self.left else moves
        return stays, why

    def _steps(self) -> Iterator[tuple[float, float]]:
        coupled = self.built.method.relationship.coupling(self.part.n_tasks) > 0.0  # type: ignore[attr-defined]
        return (step for step in STEPS[self.asked.auto] if coupled or step[0] != 1.0)

    def _affordable(self) -> int:
        """How many trials the share pays: each of some rounds with few steps, with many terminals of a search."""
        now = Run(self.built.regroup(self.part), self.built.method, self.settings, Ledger(self.cost)).situation()

        def payable(rounds: int, steps: int | npt.NDArray[np.int64]) -> int:
            price = event_totals(now.prices, now.cloud_event(), now.round_event(steps))
            shares = (SHARE * limit / (rounds * price[name]) for name, limit in self.limits.items() if price[name])
            return int(min(shares, default=MOST))

        trials = min(MOST, payable(LEAST_ROUNDS, FEW_STEPS))
        if len(now.home) >= MANY * now.layout.n_tasks:
            trials = min(trials, max(FEWEST, payable(SEARCH, now.sizes)))
        return trials

    def _try(self, start: _State | None, lambda1: float, lambda2: float) -> _State:
        """Go on from a state with these weights for an equal part of the share."""
        if not self.tried:
            self.portion = {name: SHARE * limit / self.left for name, limit in self.limits.items()}
        self.left -= 1
        method = self.built.method
        assert isinstance(method, DualMethod)
        known = method.relationship if start is None else start.relationship
        method = replace(method, relationship=weighted(known, lambda1, lambda2))
        faults = Faults.parse(self.asked.faults, self.settings.seed)
        run = Run(
            self.built.regroup(self.part),
            method,
            self.settings,
            Ledger(self.cost, self.portion),
            faults,
            judged=self.part,
        )
        if start is not None and not self.asked.faults:
            run.restore(start.alpha, start.models)
        try:
            run.learn(self.built.policy)
        finally:
            self.events += run.events
        return self._state(run, lambda1, lambda2)

    def _state(self, run: Run, lambda1: float, lambda2: float) -> _State:
        certificate = run.certify()
        assert isinstance(run.network, InProcess)
        assert isinstance(run.cloud, Cloud)
        losses, errors = self._judge(run, run.as_given(certificate.models)[run.task_station])
        tasks = self.federation.row_task[self.held]
        trial = WeightTrial(
            lambda1, lambda2, float(_means(losses, tasks).mean()), float(_means(errors, tasks).mean()), run.round
        )
        self.tried.append(trial)
        return _State(trial, run.network.alpha.copy(), certificate.models, run.cloud.relationship, losses, errors)

    def _judge(self, run: Run, models: Models) -> tuple[Float64Array, Float64Array]:
        """Loss and error of every row held out, by the model of its task, as the row weighs."""
        rows, task, y = self.federation.X[self.held], self.federation.row_task[self.held], self.federation.y[self.held]
        found = np.empty((len(rows), models.shape[1]))
        for b in range(self.federation.n_tasks):
            here = task == b
            found[here] = scores(run.scalers[run.task_station[b]].transform(rows[here]), models[b])
        value: Any = np.frompyfunc(run.method.loss.value, 2, 1)
        losses = value(found, self.federation.targets()[self.held]).astype(np.float64).sum(axis=1)
        guess = metrics.predict(found, len(self.federation.class_names))
        errors = (guess != y) if self.federation.class_names else np.square(guess - y)
        weight = row_weights(self.federation)[self.held]
        return weight * losses, weight * errors

    def before(self, best: _State | None) -> Before | None:
        """What the run begins with: all that was charged, and where the chosen trial ended."""
        if best is None or self.asked.faults:
            return Before(self.events) if self.events else None
        alpha = np.zeros((len(self.federation.X), best.alpha.shape[1]))
        alpha[~self.held] = best.alpha
        return Before(self.events, alpha, best.models)


def clearly_better(moves: _State, stays: _State, task: npt.NDArray[np.integer[Any]]) -> bool:
    """Whether rows held out leave little doubt, by their losses and by their errors: either alone misleads.

    Losses of models that are not solved yet favour large weights; errors count in steps of a row.
    """
    losses, errors = _ahead(stays.losses - moves.losses, task), _ahead(stays.errors - moves.errors, task)
    return losses > CLEAR and errors > CLEAR / 2.0


def _ahead(difference: Float64Array, task: npt.NDArray[np.integer[Any]]) -> float:
    """Mean over tasks of a paired difference, in its standard errors; 0 where there is no difference at all."""
    counts = np.bincount(task)
    means = np.bincount(task, difference) / np.maximum(counts, 1)
    noise = float(np.sqrt(np.sum(np.square((difference - means[task]) / counts[task]))))
    return float(means.sum()) / noise if noise > 0.0 else 0.0


def _means(values: Float64Array, task: npt.NDArray[np.integer[Any]]) -> Float64Array:
    """Mean of every task that has a row."""
    counts = np.bincount(task)
    return np.asarray(np.bincount(task, values)[counts > 0] / counts[counts > 0])
