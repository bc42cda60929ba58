"""Weights that a run asks to have chosen ("auto"), and all else that is settled before it begins.

Without a budget the weights are chosen as `regularisation` does. Under a budget the choice is part of the run and takes
no round of its own: at first a fifth of each terminal's rows is held out, and now and then the run looks which weights
they prefer. For that nothing need be learned: from the duals at hand follow models for all weights, W = VG. Where
others are clearly better the run goes on with these, and once nothing is, with all rows. A run that is too short, or
has too few rows, keeps its weights. So is λ2 chosen where nobody gave it, with a budget and without.
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
from rhfedmtl.data.federation import Federation, FloatArray
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import BudgetError, ConfigError, DivergenceError
from rhfedmtl.maths import metrics
from rhfedmtl.maths.relationships import Models
from rhfedmtl.policies.base import Policy
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.selection.folds import fold_parts, held_rows, reordered, row_terminal, row_weights, usual_folds
from rhfedmtl.selection.regularisation import PATH1, choose, weighted
from rhfedmtl.selection.tuning import TuningRecord, tuned
from rhfedmtl.training import snapshot
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.run import Before, Progress, Run, Settings, Watcher, scores

Float64Array = npt.NDArray[np.float64]

FOLDS = 5
"""One part of so many is held out."""
SHARE, PASSES = 0.1, 2.0
"""A look comes after this share of every limit, or after the price of so many passes over all rows, if that is less."""
LOOKS, MOVES = 6, 3
"""Looks of a run at most, and how many of them may change its weights."""
LEAST_PASSES, FEWEST_ROWS = 5.0, 100
"""A run that pays for fewer passes, or can hold out fewer rows, keeps its weights."""
JUDGES = 20_000
"""Of more rows held out, only about so many are asked."""
MOST_NUMBERS = 10_000_000
"""λ2 that nobody gave is chosen on rows of at most so many numbers."""
CLEAR = 2.0
"""Standard errors by which other weights must be ahead of the present ones."""
FACTORS = (0.01, 0.03, 0.1, 0.2, 0.4, 0.63, 0.8, 1.0, 1.25, 1.6, 2.5, 5.0, 10.0, 30.0, 100.0)
"""Of λ2, to look at; λ1, where it is chosen too, is looked at with `OWN_FACTORS`."""
OWN_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
RANGE = 1e-5, 10.0
"""A λ2 that is chosen lies between these."""


@dataclass(frozen=True)
class WeightTrial:
    """Weights with which a run learned, or folds were solved, and what rows held out said: mean loss over tasks."""

    lambda1: float
    lambda2: float
    loss: float
    rounds: int


@dataclass(frozen=True)
class SelectionRecord:
    """How weights were chosen: what was tried, what was spent until all rows were in, and why it ended as it did."""

    chosen: dict[str, float]
    why: str
    spent: dict[str, float]
    tried: list[WeightTrial]

    def text(self) -> str:
        """In a line."""
        chosen = ", ".join(f"{name} {value:.3g}" for name, value in self.chosen.items())
        spent = ", ".join(f"{name} {amount:,.4g}" for name, amount in self.spent.items() if amount)
        looks = f"looked {len(self.tried)} {'time' if len(self.tried) == 1 else 'times'}"
        until = f"a fifth of all, until {spent} was spent; {looks}" if spent else f"{len(self.tried)} trials"
        return f"{chosen} ({self.why}{', ' if spent else '; '}{until})" if self.tried else f"{chosen} ({self.why})"


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


def settled(
    config: RunConfig, federation: Federation, *, how: Execution | None = None, watch: Watcher | None = None
) -> Chosen:
    """The run with its settings tuned and its weights chosen, where it asks for either; first rounds are watched."""
    auto, how = config.to_choose, how or Execution()
    if not auto:
        return Chosen(*tuned(config, federation, threads=how.threads))
    built, asked = build(config.algorithm, config.options, federation.kind), bool(config.options.auto)
    cost, limits = config.resources()
    if not (asked or can_choose(built, federation, limited=bool(limits))):
        return Chosen(config)
    if is_yardstick(config.algorithm) or not isinstance(built.method, DualMethod):
        return Chosen(_with(config, {name: config.options.weight(name) for name in auto}))
    settings = replace(config.settings(federation.kind, ended=bool(limits)), execution=Execution(threads=how.threads))
    if not limits:
        record = on_folds(built, federation, settings, auto, config.options.weight("lambda1"))
        return Chosen(_with(config, record.chosen), None, record)
    problem = WeightProblem(built, federation, settings, Ledger(cost, limits), auto, config.faults)
    record, before = within_budget(problem, {name: config.options.weight(name) for name in USUAL}, how, watch)
    if not (asked or record.tried):
        return Chosen(config, None, record)
    return Chosen(_with(config, record.chosen), None, record, before)


def can_choose(built: Algorithm, federation: Federation, *, limited: bool) -> bool:
    """Whether λ2 that nobody gave is chosen: tasks are coupled, have rows for folds, and it does not take long."""
    data = built.regroup(federation)
    coupled = isinstance(built.method, DualMethod) and built.method.relationship.coupling(data.n_tasks) > 0.0
    if not coupled or data.n_tasks < 2 or not 0 < data.X.size <= MOST_NUMBERS:
        return False
    try:
        return limited or bool(fold_parts(data, usual_folds(data)).max() >= 0)
    except ConfigError:
        return False


def within_budget(
    asked: WeightProblem, present: dict[str, float], how: Execution | None = None, watch: Watcher | None = None
) -> tuple[SelectionRecord, Before | None]:
    """The weights that are asked for, as rows held out in the first rounds of the run want them, and these rounds.

    Who watches may end them: then what was chosen until then stands.
    """
    early = _FirstRounds(asked, present)
    why = early.refused(how or Execution())
    if not why:
        try:
            why = early.learn(watch)
        except (BudgetError, DivergenceError) as error:
            early.tried, why = [], f"as usual: the first rounds failed ({error})"
    chosen = {name: early.weights[name] if early.tried else present[name] for name in asked.auto}
    return SelectionRecord(chosen, why, early.spent(), early.tried), early.before()


@dataclass
class OpenWeights:
    """Weights that are chosen in the first rounds of every run of a plan, as `settled` does for a run."""

    auto: tuple[str, ...]
    present: dict[str, float]
    asked: bool
    faults: str = ""
    found: SelectionRecord | None = None

    @classmethod
    def of(cls, config: RunConfig) -> OpenWeights | None:
        """Those of a run; None where it has none."""
        present = {name: config.options.weight(name) for name in USUAL}
        auto, asked = config.to_choose, bool(config.options.auto)
        return cls(auto, present, asked, config.faults) if auto else None

    def begin(
        self, method: DualMethod, policy: Policy, federation: Federation, settings: Settings, ledger: Ledger
    ) -> tuple[DualMethod, Before | None]:
        """The method with the weights that its first rounds choose, and these rounds; as it is where they do not."""
        built = Algorithm(method, policy)
        if not (self.asked or can_choose(built, federation, limited=True)):
            return method, None
        problem = WeightProblem(built, federation, settings, ledger, self.auto, self.faults)
        found, before = within_budget(problem, self.present)
        self.found = self.found or found
        relationship = weighted(method.relationship, **self.present | found.chosen)
        return replace(method, relationship=relationship), before


def _with(config: RunConfig, weights: dict[str, float]) -> RunConfig:
    return replace(config, options=config.options.changed(**weights))


def on_folds(
    built: Algorithm, federation: Federation, settings: Settings, auto: tuple[str, ...], lambda1: float
) -> SelectionRecord:
    """Choose weights by paths that are solved on folds; ``lambda1`` counts if it is not chosen. Nothing is charged."""
    assert isinstance(built.method, DualMethod)
    path = PATH1 if "lambda1" in auto else (lambda1,)
    choice = choose(built.regroup(federation), built.method, lambda1=path, settings=settings, judged=federation)
    chosen = {name: float(getattr(choice, name)) for name in auto}
    tried = [WeightTrial(t.lambda1, t.lambda2, t.score, t.effort.rounds) for t in choice.trials]
    return SelectionRecord(chosen, f"the best on folds{choice.edge}", {}, tried)


class Held(NamedTuple):
    """Rows held out, scaled as the run scales them, with their labels, weights and tasks, and what goes together."""

    rows: list[FloatArray]
    y: npt.NDArray[Any]
    targets: Float64Array
    weight: Float64Array
    task: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]

    def ahead(self, difference: Float64Array) -> float:
        """Mean over tasks of a paired difference, in its standard errors; 0 where there is no difference at all.

        Rows of one group are one observation.
        """
        counts = np.bincount(self.task)
        means = np.bincount(self.task, difference) / np.maximum(counts, 1)
        apart = np.bincount(self.group, (difference - means[self.task]) / counts[self.task])
        noise = float(np.sqrt(np.sum(np.square(apart))))
        return float(means.sum()) / noise if noise > 0.0 else 0.0

    def mean(self, values: Float64Array) -> float:
        """Mean over the tasks that have a row."""
        counts = np.bincount(self.task)
        return float(np.mean(np.bincount(self.task, values)[counts > 0] / counts[counts > 0]))


class _FirstRounds:
    """The first rounds of a run, without some of its rows, and the weights that these want."""

    def __init__(self, asked: WeightProblem, present: dict[str, float]) -> None:
        self.asked, self.weights, self.tried = asked, dict(present), list[WeightTrial]()
        self.data = asked.built.regroup(asked.federation)
        held = held_rows(self.data, FOLDS, 0, asked.settings.seed)
        terminal = row_terminal(self.data)
        self.order = np.lexsort((held, terminal))  # of every terminal those held out come last
        self.counts = np.bincount(terminal[held], minlength=self.data.n_terminals)
        self.held = held[self.order]
        self.run: Run | None = None

    def refused(self, how: Execution) -> str:
        """Why nothing can be chosen; an empty text where it can."""
        faults = Faults.parse(self.asked.faults, self.asked.settings.seed)
        if int(self.held.sum()) < FEWEST_ROWS:
            return f"as usual: fewer than {FEWEST_ROWS} rows can be held out"
        if faults.moves or faults.churn or faults.late_rows:
            return "as usual: terminals or rows come and go"
        if not how.entry.keeps_checkpoints:
            return f"as usual: engine {how.engine} cannot go on from rounds without some of the rows"
        self.run = self._make(faults)
        self.portion = {name: SHARE * limit for name, limit in self.asked.ledger.budget.items()}
        for name, price in self._pass_price().items():
            limit = self.asked.ledger.budget.get(name, np.inf)
            if LEAST_PASSES * price > limit:
                return f"as usual: the budget pays for fewer than {LEAST_PASSES:g} passes"
            if name in self.portion and price > 0.0:
                self.portion[name] = min(self.portion[name], PASSES * price)
        return ""

    def _make(self, faults: Faults) -> Run:
        """The run, whose round zero knows of all rows, and whose rounds do not."""
        asked, order = self.asked, self.order
        ledger = Ledger(asked.ledger.cost, asked.ledger.budget)
        run = Run(reordered(self.data, order), asked.built.method, asked.settings, ledger, faults, asked.federation)
        assert isinstance(run.network, InProcess)
        run.network.set_sizes(self.data.sizes - self.counts)
        return run

    def _pass_price(self) -> dict[str, float]:
        assert self.run is not None
        now = self.run.situation()
        return event_totals(now.prices, now.cloud_event(), now.round_event(self.data.sizes))

    def learn(self, watch: Watcher | None) -> str:
        """Let the run learn and look in turn, until nothing is better and a share is spent, or there were enough."""
        assert self.run is not None
        run, moves, begun, ended = self.run, 0, dict(self.run.ledger.spent), False
        held = self._held(run)

        def watched(progress: Progress) -> bool:
            nonlocal ended
            ended = watch is not None and watch(progress) is False
            return not (ended or any(run.ledger.spent[name] >= share for name, share in until.items()))

        for look in range(1, LOOKS + 1):
            until = {name: begun[name] + look * part for name, part in self.portion.items()}
            stopped = run.learn(self.asked.built.policy, watched)
            if ended:
                break
            if run.state.round >= self.asked.settings.max_rounds:
                self.tried = []
                return "as usual: the limit on rounds leaves none for the rows held out"
            if not _can_inspect(run) or (self.tried and self.tried[-1].rounds == run.state.round):
                break
            better = self._preferred(run, held)
            if better is not None:
                self.weights.update(better)
                self._go_on(run)
                moves += 1
            late = any(run.ledger.spent[n] >= SHARE * x for n, x in self.asked.ledger.budget.items())
            if stopped != "interrupted" or moves >= MOVES or (better is None and late):
                break
        if not self.tried:
            return f"as usual: {'it was stopped before a' if ended else 'the budget pays for no'} look at rows held out"
        assert isinstance(run.network, InProcess)
        run.network.set_sizes(self.data.sizes)
        self._go_on(run)
        return "preferred by rows held out" if moves else "as usual: rows held out prefer nothing else clearly"

    def _go_on(self, run: Run) -> None:
        assert isinstance(run.cloud, Cloud)
        run.reweigh(weighted(run.cloud.relationship, **self.weights))

    def _held(self, run: Run) -> Held:
        data, order = self.data, self.order[self.held]
        order = order[:: -(-len(order) // JUDGES)]
        task = data.row_task[order]
        rows = [run.units.scalers[b].transform(data.X[order[task == b]]) for b in range(data.n_tasks)]
        by_task = np.concatenate([order[task == b] for b in range(data.n_tasks)])
        together = np.arange(len(by_task)) if data.group is None else data.group[by_task]
        group = np.unique(np.column_stack([data.row_task[by_task], together]), axis=0, return_inverse=True)[1].ravel()
        labels = data.y[by_task], data.targets()[by_task], row_weights(data)[by_task]
        return Held(rows, *labels, data.row_task[by_task], group)

    def _preferred(self, run: Run, held: Held) -> dict[str, float] | None:
        """Weights with which models that follow from the duals at hand are clearly better on the rows held out.

        Other λ1, and a relationship that learns, make models longer or shorter, and losses favour long ones as long as
        duals are unfinished: there errors must agree.
        """
        assert isinstance(run.cloud, Cloud)
        run.review()
        known, models = run.cloud.relationship, run.certify().models
        run.certification.charge(run.situation())  # the same messages again, to score the models on held-out rows
        V, (lambda1, lambda2) = known.apply(models), (self.weights["lambda1"], self.weights["lambda2"])
        losses, errors = self._judge(run, held, models)
        self.tried.append(WeightTrial(lambda1, lambda2, held.mean(losses), run.state.round))
        found: list[tuple[float, float, float]] = []
        for own, factor in self._factors(known.coupling(len(models)) > 0.0):
            there = weighted(known, own * lambda1, factor * lambda2)
            other, wrong = self._judge(run, held, there.solve(V))
            if held.ahead(losses - other) > CLEAR and (
                (own == 1.0 and known.learns() is None) or held.ahead(errors - wrong) > CLEAR / 2.0
            ):
                found.append((held.mean(other), own, factor))
        if not found:
            return None
        _, own, factor = min(found)
        new = lambda2 if factor == 1.0 else float(np.clip(factor * lambda2, *RANGE))
        return {"lambda1": own * lambda1, "lambda2": new}

    def _factors(self, coupled: bool) -> Iterator[tuple[float, float]]:
        """Of λ1 and λ2, but for those that change nothing."""
        factors = FACTORS if coupled else (1.0,)
        for own in OWN_FACTORS if "lambda1" in self.asked.auto else (1.0,):
            yield from ((own, factor) for factor in factors if (own, factor) != (1.0, 1.0))

    def _judge(self, run: Run, held: Held, models: Models) -> tuple[Float64Array, Float64Array]:
        """Loss and error of every row held out, by the model of its task, as the row weighs."""
        given = run.units.as_given(models)
        found = np.concatenate([scores(rows, model) for rows, model in zip(held.rows, given, strict=True)])
        value: Any = np.frompyfunc(run.method.loss.value, 2, 1)
        losses = value(found, held.targets).astype(np.float64).sum(axis=1)
        guess = metrics.predict(found, len(self.data.class_names))
        errors = (guess != held.y) if self.data.class_names else np.square(guess - held.y)
        return held.weight * losses, held.weight * errors

    def spent(self) -> dict[str, float]:
        """What the run had spent when all rows were in."""
        return {} if self.run is None or not self.tried else dict(self.run.ledger.spent)

    def before(self) -> Before | None:
        """What the run goes on from, for rows in the order that they are given in."""
        if self.run is None or not self.tried:
            return None
        state = snapshot.take(self.run)
        network = state["network"]
        alpha = np.empty_like(network.alpha)
        alpha[self.order] = network.alpha
        return Before(snapshot=state | {"network": network._replace(alpha=alpha), "memo": {}})


def _can_inspect(run: Run) -> bool:
    """Return True if the budget pays for two certificates and the reserved last certificate."""
    with run.certification.budget.kept_aside():
        event = run.situation().certificate_event()
        return run.ledger.can_afford(run.accounting.worst(event, event))
