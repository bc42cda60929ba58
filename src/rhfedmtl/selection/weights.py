"""Choose λ1 and λ2 if the user asked for it ("auto") or did not set λ2, and tune settings before a run.

`choose_settings` is the entry point for single runs and sweeps. The planner uses `OpenWeights`, the estimators
`within_budget` and `on_folds`.

Without a budget, cross-validation on the training rows chooses the weights (`regularisation.choose`).

With a budget, the run chooses them in its first rounds, without rounds of its own (class `_FirstRounds`):

1. Hold out a fifth of each terminal's rows.
2. Train with the current weights. At each check, compute the models that other weights would give from the current
   dual variables (W = VG), and compare their losses on the held-out rows.
3. If other weights are clearly better, continue with these. Otherwise return the held-out rows and finish.

A run that is too short, or has too few rows, keeps its weights.
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
from rhfedmtl.maths.metrics import scores
from rhfedmtl.maths.relationships import Models
from rhfedmtl.policies.base import Policy
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.selection.folds import default_folds, fold_parts, held_out_rows, reordered, row_terminal, row_weights
from rhfedmtl.selection.regularisation import PATH1, SEARCH_ROWS, choose, weighted
from rhfedmtl.selection.tuning import TuningRecord, tuned
from rhfedmtl.training import snapshot
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.result import Progress, Watcher
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings
from rhfedmtl.training.snapshot import Before

Float64Array = npt.NDArray[np.float64]

# Hold out one of this many parts of the rows.
# Measured: benchmarks/results/constants.md; ×0.5: −0.59 ± 1.38 points;
# ×2: −0.31 ± 0.71 points.
FOLDS = 5
# Check the weights after this share of every limit,
# Measured: benchmarks/results/constants.md; ×0.5: +0.05 ± 0.07 points;
# ×2: −0.11 ± 0.26 points.
CHECK_SHARE = 0.1
# or after the price of this many passes over all rows, if that is less.
# Measured: benchmarks/results/constants.md; ×0.5: +0.04 ± 0.07 points;
# ×2: −0.02 ± 0.13 points.
CHECK_PASSES = 2.0
# Most checks of a run.
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.00 points;
# ×2: same digits.
MOST_CHECKS = 6
# Most changes of the weights in a run.
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.00 points;
# ×2: −0.01 ± 0.02 points.
MOST_CHANGES = 3
# Keep the weights if the budget pays for fewer passes,
# Measured: benchmarks/results/constants.md; ×0.5: same digits;
# ×2: −0.44 ± 0.86 points.
LEAST_PASSES = 5.0
# or if fewer rows can be held out.
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.00 points;
# ×2: +0.03 ± 0.07 points.
LEAST_ROWS = 100
# Choose λ2 without being asked only if the rows have at most this many numbers: the choice takes time.
# Measured: benchmarks/results/constants.md; ×0.5: −0.55 ± 0.65 points;
# ×2: same digits.
MOST_DATA_NUMBERS = 10_000_000
# Other weights must be ahead by this many standard errors.
# Measured: benchmarks/results/constants.md; ×0.5: −0.05 ± 0.33 points;
# ×2: −0.22 ± 0.37 points.
SIGNIFICANT = 2.0
# Multiples of λ2 to compare.
# Measured: benchmarks/results/constants.md; ×0.5: +0.06 ± 0.14 points;
# ×2: +0.00 ± 0.02 points.
LAMBDA2_FACTORS = (0.01, 0.03, 0.1, 0.2, 0.4, 0.63, 0.8, 1.0, 1.25, 1.6, 2.5, 5.0, 10.0, 30.0, 100.0)
# Multiples of λ1 to compare, if λ1 is chosen too.
# Measured: benchmarks/results/constants.md; ×0.5: −0.00 ± 0.03 points;
# ×2: −0.01 ± 0.07 points.
LAMBDA1_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
# Bounds of a chosen λ2.
LAMBDA2_RANGE = 1e-5, 10.0


@dataclass(frozen=True)
class WeightTrial:
    """Weights of a check or of a solution on folds, with their mean loss over tasks on held-out rows."""

    lambda1: float
    lambda2: float
    loss: float
    rounds: int


@dataclass(frozen=True)
class SelectionRecord:
    """Record of a choice of weights: the trials, the amount spent until all rows were in use, and the reason."""

    chosen: dict[str, float]
    why: str
    spent: dict[str, float]
    tried: list[WeightTrial]

    def text(self) -> str:
        """Return the record as a line of text."""
        chosen = ", ".join(f"{name} {value:.3g}" for name, value in self.chosen.items())
        spent = ", ".join(f"{name} {amount:,.4g}" for name, amount in self.spent.items() if amount)
        checks = f"{len(self.tried)} check{'' if len(self.tried) == 1 else 's'}"
        trials = f"{checks}, {spent}" if spent else f"{len(self.tried)} trials"
        return f"{chosen} ({self.why}; {trials})" if self.tried else f"{chosen} ({self.why})"


class WeightProblem(NamedTuple):
    """Weights (``auto``) to choose, and the run to choose them for: algorithm, rows, settings, prices and limits."""

    built: Algorithm
    federation: Federation
    settings: Settings
    ledger: Ledger
    auto: tuple[str, ...]
    faults: str = ""


class Chosen(NamedTuple):
    """The run with all settings as numbers, the records of their choice, and its first rounds if they took place."""

    config: RunConfig
    tuning: TuningRecord | None = None
    selection: SelectionRecord | None = None
    before: Before | None = None


def choose_settings(
    config: RunConfig, federation: Federation, *, execution: Execution | None = None, watch: Watcher | None = None
) -> Chosen:
    """Return the run with tuned settings and chosen weights, if it asks for either.

    Parameters
    ----------
    config, federation
        The run and its data.
    execution
        Engine and threads of the run.
    watch
        Watcher of the run; it also receives the progress of the first rounds.
    """
    auto, execution = config.to_choose, execution or Execution()
    if not auto:
        return Chosen(*tuned(config, federation, threads=execution.threads))
    built, required = build(config.algorithm, config.options, federation.kind), bool(config.options.auto)
    cost, limits = config.resources()
    if not (required or can_choose(built, federation, limited=bool(limits))):
        return Chosen(config)
    if is_yardstick(config.algorithm) or not isinstance(built.method, DualMethod):
        return Chosen(_with(config, {name: config.options.weight(name) for name in auto}))
    in_process = Execution(threads=execution.threads)
    settings = replace(config.settings(federation.kind, ended=bool(limits)), execution=in_process)
    if not limits:
        record = on_folds(built, federation, settings, auto, config.options.weight("lambda1"))
        return Chosen(_with(config, record.chosen), None, record)
    problem = WeightProblem(built, federation, settings, Ledger(cost, limits), auto, config.faults)
    record, before = within_budget(problem, {name: config.options.weight(name) for name in USUAL}, execution, watch)
    if not (required or record.tried):
        return Chosen(config, None, record)
    return Chosen(_with(config, record.chosen), None, record, before)


def can_choose(built: Algorithm, federation: Federation, *, limited: bool) -> bool:
    """Return True if λ2 is chosen although the user did not ask for it.

    The tasks must be coupled and have at most `MOST_DATA_NUMBERS` numbers, because the choice must not take long.
    Without a
    budget (``limited`` is False) they also need enough rows for folds.
    """
    data = built.regroup(federation)
    coupled = isinstance(built.method, DualMethod) and built.method.relationship.coupling(data.n_tasks) > 0.0
    if not coupled or data.n_tasks < 2 or not 0 < data.X.size <= MOST_DATA_NUMBERS:
        return False
    try:
        return limited or bool(fold_parts(data, default_folds(data)).max() >= 0)
    except ConfigError:
        return False


def within_budget(
    problem: WeightProblem,
    current: dict[str, float],
    execution: Execution | None = None,
    watch: Watcher | None = None,
) -> tuple[SelectionRecord, Before | None]:
    """Choose weights on held-out rows in the first rounds of the run; return the record and these rounds.

    ``current`` has the weights of the run unless others are chosen. If the watcher ends the first rounds, the weights
    chosen so far are final.
    """
    early = _FirstRounds(problem, current)
    why = early.refused(execution or Execution())
    if not why:
        try:
            why = early.learn(watch)
        except (BudgetError, DivergenceError) as error:
            early.tried, why = [], f"default: the first rounds failed ({error})"
    chosen = {name: early.weights[name] if early.tried else current[name] for name in problem.auto}
    return SelectionRecord(chosen, why, early.spent(), early.tried), early.before()


@dataclass
class OpenWeights:
    """Weights to choose in the first rounds of every run of a plan; `choose_settings` does this for a single run.

    ``required`` is True if the user asked for the choice. ``record`` is the first record of a choice, None before.
    """

    auto: tuple[str, ...]
    current: dict[str, float]
    required: bool
    faults: str = ""
    record: SelectionRecord | None = None

    @classmethod
    def of(cls, config: RunConfig) -> OpenWeights | None:
        """Return the weights that the run leaves open, or None if it sets all weights."""
        current = {name: config.options.weight(name) for name in USUAL}
        auto, required = config.to_choose, bool(config.options.auto)
        return cls(auto, current, required, config.faults) if auto else None

    def begin(
        self, method: DualMethod, policy: Policy, federation: Federation, settings: Settings, ledger: Ledger
    ) -> tuple[DualMethod, Before | None]:
        """Return the method with the weights that the first rounds choose, and these rounds.

        If nothing is chosen, return the unchanged method and None.
        """
        built = Algorithm(method, policy)
        if not (self.required or can_choose(built, federation, limited=True)):
            return method, None
        problem = WeightProblem(built, federation, settings, ledger, self.auto, self.faults)
        record, before = within_budget(problem, self.current)
        self.record = self.record or record
        relationship = weighted(method.relationship, **self.current | record.chosen)
        return replace(method, relationship=relationship), before


def _with(config: RunConfig, weights: dict[str, float]) -> RunConfig:
    return replace(config, options=config.options.changed(**weights))


def on_folds(
    built: Algorithm, federation: Federation, settings: Settings, auto: tuple[str, ...], lambda1: float
) -> SelectionRecord:
    """Choose weights by cross-validation; charge nothing. ``lambda1`` is the value of λ1 if only λ2 is chosen."""
    assert isinstance(built.method, DualMethod)
    path = PATH1 if "lambda1" in auto else (lambda1,)
    choice = choose(built.regroup(federation), built.method, lambda1=path, settings=settings, judged=federation)
    chosen = {name: float(getattr(choice, name)) for name in auto}
    tried = [WeightTrial(t.lambda1, t.lambda2, t.score, t.effort.rounds) for t in choice.trials]
    return SelectionRecord(chosen, f"best on folds{choice.edge}", {}, tried)


class HeldOutRows(NamedTuple):
    """Held-out rows, scaled like the rows of the run, with their labels, weights, tasks and groups."""

    rows: list[FloatArray]
    y: npt.NDArray[Any]
    targets: Float64Array
    weight: Float64Array
    task: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]

    def t_statistic(self, difference: Float64Array) -> float:
        """Return the mean over tasks of a paired difference, divided by its standard error; 0 without a difference.

        Rows of the same group count as a single observation.
        """
        counts = np.bincount(self.task)
        means = np.bincount(self.task, difference) / np.maximum(counts, 1)
        deviations = np.bincount(self.group, (difference - means[self.task]) / counts[self.task])
        error = float(np.sqrt(np.sum(np.square(deviations))))
        return float(means.sum()) / error if error > 0.0 else 0.0

    def mean(self, values: Float64Array) -> float:
        """Return the mean over the tasks that have a row."""
        counts = np.bincount(self.task)
        return float(np.mean(np.bincount(self.task, values)[counts > 0] / counts[counts > 0]))


class _FirstRounds:
    """The first rounds of a run without its held-out rows, and the choice of weights on these rows."""

    def __init__(self, problem: WeightProblem, current: dict[str, float]) -> None:
        self.problem, self.weights, self.tried = problem, dict(current), list[WeightTrial]()
        self.data = problem.built.regroup(problem.federation)
        mask = held_out_rows(self.data, FOLDS, 0, problem.settings.seed)
        terminal = row_terminal(self.data)
        self.order = np.lexsort((mask, terminal))  # the held-out rows of a terminal come last
        self.counts = np.bincount(terminal[mask], minlength=self.data.n_terminals)
        self.mask = mask[self.order]
        self.run: Run | None = None

    def refused(self, execution: Execution) -> str:
        """Return the reason why no weights can be chosen, or an empty text; prepare the run if they can."""
        faults = Faults.parse(self.problem.faults, self.problem.settings.seed)
        if int(self.mask.sum()) < LEAST_ROWS:
            return f"default: fewer than {LEAST_ROWS} rows can be held out"
        if faults.moves or faults.churn or faults.late_rows:
            return "default: terminals or rows come and go"
        if not execution.entry.keeps_checkpoints:
            return f"default: engine {execution.engine} cannot continue after rounds without some of the rows"
        self.run = self._make(faults)
        self.portion = {name: CHECK_SHARE * limit for name, limit in self.problem.ledger.budget.items()}
        for name, price in self._pass_price().items():
            limit = self.problem.ledger.budget.get(name, np.inf)
            if LEAST_PASSES * price > limit:
                return f"default: the budget pays for fewer than {LEAST_PASSES:g} passes"
            if name in self.portion and price > 0.0:
                self.portion[name] = min(self.portion[name], CHECK_PASSES * price)
        return ""

    def _make(self, faults: Faults) -> Run:
        """Return the run: round zero uses all rows, and the following rounds do not use the held-out rows."""
        problem, order = self.problem, self.order
        ledger = Ledger(problem.ledger.cost, problem.ledger.budget)
        data = reordered(self.data, order)
        run = Run(data, problem.built.method, problem.settings, ledger, faults, problem.federation)
        assert isinstance(run.network, InProcess)
        run.network.set_sizes(self.data.sizes - self.counts)
        return run

    def _pass_price(self) -> dict[str, float]:
        assert self.run is not None
        situation = self.run.situation()
        return event_totals(situation.prices, situation.cloud_event(), situation.round_event(self.data.sizes))

    def learn(self, watch: Watcher | None) -> str:
        """Train and check in turn; return the reason of the result.

        The rounds end if no other weights are better and `CHECK_SHARE` of a budget is spent, after `MOST_CHECKS` checks
        or `MOST_CHANGES`
        changes of the weights, or if the run itself ends.
        """
        assert self.run is not None
        run, changes, start, ended = self.run, 0, dict(self.run.ledger.spent), False
        held_out = self._held_out(run)

        def watched(progress: Progress) -> bool:
            nonlocal ended
            ended = watch is not None and watch(progress) is False
            return not (ended or any(run.ledger.spent[name] >= share for name, share in until.items()))

        for check in range(1, MOST_CHECKS + 1):
            until = {name: start[name] + check * part for name, part in self.portion.items()}
            stopped = run.learn(self.problem.built.policy, watched)
            if ended:
                break
            if run.state.round >= self.problem.settings.max_rounds:
                self.tried = []
                return "default: the limit on rounds leaves no round for the held-out rows"
            if not _can_inspect(run) or (self.tried and self.tried[-1].rounds == run.state.round):
                break
            better = self._preferred(run, held_out)
            if better is not None:
                self.weights.update(better)
                self._reweigh(run)
                changes += 1
            late = any(run.ledger.spent[n] >= CHECK_SHARE * x for n, x in self.problem.ledger.budget.items())
            if stopped != "interrupted" or changes >= MOST_CHANGES or (better is None and late):
                break
        if not self.tried:
            why = "the run was stopped before its first" if ended else "the budget does not pay for a"
            return f"default: {why} check on held-out rows"
        assert isinstance(run.network, InProcess)
        run.network.set_sizes(self.data.sizes)
        self._reweigh(run)
        return (
            f"chosen on {100 // FOLDS} % held-out rows"
            if changes
            else "default: no other value is clearly better on held-out rows"
        )

    def _reweigh(self, run: Run) -> None:
        assert isinstance(run.cloud, Cloud)
        run.reweigh(weighted(run.cloud.relationship, **self.weights))

    def _held_out(self, run: Run) -> HeldOutRows:
        data, order = self.data, self.order[self.mask]
        order = order[:: -(-len(order) // SEARCH_ROWS)]
        task = data.row_task[order]
        rows = [run.units.scalers[b].transform(data.X[order[task == b]]) for b in range(data.n_tasks)]
        by_task = np.concatenate([order[task == b] for b in range(data.n_tasks)])
        together = np.arange(len(by_task)) if data.group is None else data.group[by_task]
        group = np.unique(np.column_stack([data.row_task[by_task], together]), axis=0, return_inverse=True)[1].ravel()
        labels = data.y[by_task], data.targets()[by_task], row_weights(data)[by_task]
        return HeldOutRows(rows, *labels, data.row_task[by_task], group)

    def _preferred(self, run: Run, held_out: HeldOutRows) -> dict[str, float] | None:
        """Return the weights whose models are clearly better on the held-out rows, or None.

        The models follow from the current duals. Another λ1, or a relationship that learns, changes the length of the
        models, and before convergence losses favour long models. In these cases the errors must agree with the losses.
        """
        assert isinstance(run.cloud, Cloud)
        run.review()
        relationship, models = run.cloud.relationship, run.certify().models
        run.certification.charge(run.situation())  # the same messages again, to score the models on held-out rows
        V, (lambda1, lambda2) = relationship.apply(models), (self.weights["lambda1"], self.weights["lambda2"])
        losses, errors = self._judge(run, held_out, models)
        self.tried.append(WeightTrial(lambda1, lambda2, held_out.mean(losses), run.state.round))
        better: list[tuple[float, float, float]] = []
        for factor1, factor2 in self._factors(relationship.coupling(len(models)) > 0.0):
            candidate = weighted(relationship, factor1 * lambda1, factor2 * lambda2)
            new_losses, new_errors = self._judge(run, held_out, candidate.solve(V))
            if held_out.t_statistic(losses - new_losses) > SIGNIFICANT and (
                (factor1 == 1.0 and relationship.learns() is None)
                or held_out.t_statistic(errors - new_errors) > SIGNIFICANT / 2.0
            ):
                better.append((held_out.mean(new_losses), factor1, factor2))
        if not better:
            return None
        _, factor1, factor2 = min(better)
        new = lambda2 if factor2 == 1.0 else float(np.clip(factor2 * lambda2, *LAMBDA2_RANGE))
        return {"lambda1": factor1 * lambda1, "lambda2": new}

    def _factors(self, coupled: bool) -> Iterator[tuple[float, float]]:
        """Yield the factors of λ1 and λ2 to try, without the pair that changes nothing."""
        factors = LAMBDA2_FACTORS if coupled else (1.0,)
        for factor1 in LAMBDA1_FACTORS if "lambda1" in self.problem.auto else (1.0,):
            yield from ((factor1, factor2) for factor2 in factors if (factor1, factor2) != (1.0, 1.0))

    def _judge(self, run: Run, held_out: HeldOutRows, models: Models) -> tuple[Float64Array, Float64Array]:
        """Return the weighted loss and error of every held-out row by the model of its task."""
        rescaled = run.units.as_given(models)
        row_scores = np.concatenate([scores(rows, model) for rows, model in zip(held_out.rows, rescaled, strict=True)])
        value: Any = np.frompyfunc(run.method.loss.value, 2, 1)
        losses = value(row_scores, held_out.targets).astype(np.float64).sum(axis=1)
        guess = metrics.predict(row_scores, len(self.data.class_names))
        errors = (guess != held_out.y) if self.data.class_names else np.square(guess - held_out.y)
        return held_out.weight * losses, held_out.weight * errors

    def spent(self) -> dict[str, float]:
        """Return the amount spent until all rows were in use."""
        return {} if self.run is None or not self.tried else dict(self.run.ledger.spent)

    def before(self) -> Before | None:
        """Return the state from which the run continues, with rows in their original order."""
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
