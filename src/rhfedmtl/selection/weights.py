"""Choose λ1 and λ2 if the user asked for it ("auto") or did not set λ2, and tune settings before a run.

`choose_settings` is the entry point for single runs and sweeps. The planner and the estimators use `OpenWeights`.

Without a budget, cross-validation on the training rows chooses the weights (`regularisation.choose`). With a budget,
the run chooses them in its first rounds, without rounds of its own (`first_rounds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import AUTO, USUAL, build
from rhfedmtl.algorithms.registry import Algorithm, is_yardstick
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import BudgetError, ConfigError, DivergenceError
from rhfedmtl.features.registry import NO_MAP
from rhfedmtl.policies.base import Policy
from rhfedmtl.resources.costs import Budget
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.selection import maps
from rhfedmtl.selection.first_rounds import FirstRounds, WeightTrial
from rhfedmtl.selection.folds import Float64Array, default_folds, fold_parts
from rhfedmtl.selection.maps import MapChoice, MapTrial
from rhfedmtl.selection.regularisation import PATH1, choose, weighted
from rhfedmtl.selection.tuning import TuningRecord, tuned
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.result import Watcher
from rhfedmtl.training.settings import Settings
from rhfedmtl.training.snapshot import Before

# Choose λ2 without being asked only if the rows have at most this many numbers: the choice takes time.
# Measured: benchmarks/results/constants.md; ×0.5: −0.55 ± 0.65 points;
# ×2: same digits.
MOST_DATA_NUMBERS = 10_000_000


@dataclass(frozen=True)
class SelectionRecord:
    """Record of a choice of weights: the trials, the amount spent until all rows were in use, and the reason.

    If the run chose a feature map, ``features`` is this map, ``why_features`` the reason, and ``maps`` has the trials.
    """

    chosen: dict[str, float]
    why: str
    spent: dict[str, float]
    tried: list[WeightTrial]
    features: str | None = None
    why_features: str = ""
    maps: list[MapTrial] = field(default_factory=list)

    def text(self) -> str:
        """Return the record as a line of text."""
        chosen = ", ".join(f"{name} {value:.3g}" for name, value in self.chosen.items())
        spent = ", ".join(f"{name} {amount:,.4g}" for name, amount in self.spent.items() if amount)
        checks = f"{len(self.tried)} check{'' if len(self.tried) == 1 else 's'}"
        trials = f"{checks}, {spent}" if spent else f"{len(self.tried)} trials"
        why = f"{self.why}; {trials}" if self.tried else self.why
        text = f"{chosen} ({why})" if chosen else why
        if self.features is None:
            return text
        scores = ", ".join(f"{trial.features} {trial.loss:.3f}" for trial in self.maps)
        return f"{text}; features {self.features} ({self.why_features}{scores and f'; loss there: {scores}'})"


class Selection(NamedTuple):
    """The record of a choice, the first rounds if they took place, and the scores of a choice on folds.

    ``held_out`` are the scores of all training rows by models with the chosen weights, trained without their fold.
    """

    record: SelectionRecord
    before: Before | None = None
    held_out: Float64Array | None = None


NOTHING_CHOSEN = SelectionRecord({}, "weights as given", {}, [])
"""Record of a run that sets all weights."""


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
    execution = execution or Execution()
    if config.options.features == AUTO:
        return _with_map(config, federation, execution, watch)
    weights = OpenWeights.of(config)
    if weights is None:
        return Chosen(*tuned(config, federation, threads=execution.threads))
    built = build(config.algorithm, config.options, federation.kind)
    cost, limits = config.resources()
    if not (weights.required or can_choose(built, federation, limited=bool(limits))):
        return Chosen(config)
    if is_yardstick(config.algorithm) or not isinstance(built.method, DualMethod):
        return Chosen(config.changed(**{name: weights.current[name] for name in weights.auto}))
    in_process = Execution(threads=execution.threads)
    settings = replace(config.settings(federation.kind, ended=bool(limits)), execution=in_process)
    selection = weights.choose(built, federation, settings, Ledger(cost, limits), execution, watch)
    if not (weights.required or selection.record.tried):
        return Chosen(config, None, selection.record)
    return Chosen(config.changed(**selection.record.chosen), None, selection.record, selection.before)


def _with_map(config: RunConfig, federation: Federation, execution: Execution, watch: Watcher | None) -> Chosen:
    """Choose the weights without a map, then the map, and then its weights; a budget pays for the trials of the maps.

    With a budget, only the run behind the chosen map chooses weights.
    """
    built = build(config.algorithm, config.options, federation.kind)
    cost, limits = config.resources()
    limits = Budget({}) if is_yardstick(config.algorithm) else limits
    settings = replace(config.settings(federation.kind, ended=bool(limits)), execution=execution)
    method = built.method if isinstance(built.method, DualMethod) else config.options.method(federation.kind)
    present = {name: config.options.weight(name) for name in USUAL}
    plain, first = config.changed(features=NO_MAP), None
    if not limits:
        chosen = choose_settings(plain, federation, execution=execution, watch=watch)
        first = Selection(chosen.selection or NOTHING_CHOSEN)
    choice, ledger = choose_map(built, method, federation, settings, Ledger(cost, limits), present, first)
    fixed = config.changed(features=choice.features)
    if first is None or not choice.is_first:
        if choice.lambda1 is not None and "lambda1" not in config.options.auto:
            fixed = fixed.changed(lambda1=choice.lambda1)
        reduced = replace(fixed, budget=ledger.budget.format()) if limits else fixed
        chosen = choose_settings(reduced, federation, execution=execution, watch=watch)
    record, before, _ = with_map(choice, Selection(chosen.selection or NOTHING_CHOSEN, chosen.before))
    config = replace(fixed, options=chosen.config.options)
    return chosen._replace(config=config, selection=record, before=before)


def choose_map(
    built: Algorithm,
    method: DualMethod,
    federation: Federation,
    settings: Settings,
    ledger: Ledger,
    weights: Mapping[str, float],
    first: Selection | None,
) -> tuple[MapChoice, Ledger]:
    """Return the chosen feature map, and a ledger with the budget that its trials leave.

    ``first`` is the choice of the weights without a map: without a budget, all maps are tried with its λ2.
    """
    if not ledger.budget:
        chosen = {} if first is None else first.record.chosen
        weights = {**weights, "lambda2": chosen.get("lambda2", weights["lambda2"])}
        return maps.on_folds(built, method, federation, settings, weights), ledger
    choice = maps.in_budget(built, federation, settings, ledger)
    spent = Ledger.replay(ledger.cost, {}, choice.events).spent
    return choice, Ledger(ledger.cost, {name: limit - spent[name] for name, limit in ledger.budget.items()})


def with_map(choice: MapChoice, selection: Selection) -> Selection:
    """Return the choice of the weights, with the chosen map in its record and the trials of maps before the run."""
    record, before, held_out = selection
    record = replace(record, features=choice.features, why_features=choice.why, maps=choice.tried)
    if choice.lambda1 is not None:
        why = record.why if record.chosen else "chosen with the map"
        record = replace(record, chosen={"lambda1": choice.lambda1, **record.chosen}, why=why)
    if choice.events:
        before = before or Before()
        before = replace(before, events=[*choice.events, *before.events])
    return Selection(record, before, held_out)


def can_choose(built: Algorithm, federation: Federation, *, limited: bool) -> bool:
    """Return True if λ2 is chosen although the user did not ask for it.

    The tasks must be coupled and have at most `MOST_DATA_NUMBERS` numbers, because the choice must not take long.
    Without a budget (``limited`` is False) they also need enough rows for folds.
    """
    data = built.regroup(federation)
    coupled = isinstance(built.method, DualMethod) and built.method.relationship.coupling(data.n_tasks) > 0.0
    if not coupled or data.n_tasks < 2 or not 0 < data.X.size <= MOST_DATA_NUMBERS:
        return False
    try:
        return limited or bool(fold_parts(data, default_folds(data)).max() >= 0)
    except ConfigError:
        return False


@dataclass
class OpenWeights:
    """Weights of a run to choose (``auto``); ``current`` has the values of all weights unless others are chosen.

    ``required`` is True if the user asked for the choice. ``record`` is the first record of `begin`, None before.
    """

    auto: tuple[str, ...]
    current: dict[str, float]
    required: bool = True
    faults: str = ""
    record: SelectionRecord | None = None

    @classmethod
    def of(cls, config: RunConfig) -> OpenWeights | None:
        """Return the weights that the run leaves open, or None if it sets all weights."""
        current = {name: config.options.weight(name) for name in USUAL}
        auto, required = config.to_choose, bool(config.options.auto)
        return cls(auto, current, required, config.faults) if auto else None

    def choose(
        self,
        built: Algorithm,
        federation: Federation,
        settings: Settings,
        ledger: Ledger,
        execution: Execution | None = None,
        watch: Watcher | None = None,
    ) -> Selection:
        """Choose weights in the first rounds if there is a budget, else on folds.

        If the watcher ends the first rounds, the weights chosen so far are final. Folds charge nothing; ConfigError is
        raised if the rows are too few for folds.
        """
        if ledger.budget:
            return Selection(
                *self._in_first_rounds(built, federation, settings, ledger, execution or Execution(), watch)
            )
        assert isinstance(built.method, DualMethod)
        path = PATH1 if "lambda1" in self.auto else (self.current["lambda1"],)
        choice = choose(built.regroup(federation), built.method, lambda1=path, settings=settings, judged=federation)
        chosen = {name: float(getattr(choice, name)) for name in self.auto}
        tried = [WeightTrial(t.lambda1, t.lambda2, t.score, t.effort.rounds) for t in choice.trials]
        scores = choice.best.scores
        record = SelectionRecord(chosen, f"the best on folds{choice.edge}", {}, tried)
        return Selection(record, None, scores if len(scores) == len(federation.X) else None)

    def begin(
        self, method: DualMethod, policy: Policy, federation: Federation, settings: Settings, ledger: Ledger
    ) -> tuple[DualMethod, Before | None]:
        """Return the method with the weights that the first rounds choose, and these rounds.

        If nothing is chosen, return the unchanged method and None.
        """
        built = Algorithm(method, policy)
        if not (self.required or can_choose(built, federation, limited=True)):
            return method, None
        record, before = self._in_first_rounds(built, federation, settings, ledger, Execution())
        self.record = self.record or record
        return replace(method, relationship=weighted(method.relationship, **self.current | record.chosen)), before

    def _in_first_rounds(
        self,
        built: Algorithm,
        federation: Federation,
        settings: Settings,
        ledger: Ledger,
        execution: Execution,
        watch: Watcher | None = None,
    ) -> tuple[SelectionRecord, Before | None]:
        early = FirstRounds(
            built, federation, settings, ledger, auto=self.auto, weights=self.current, faults=self.faults
        )
        why = early.refused(execution)
        if not why:
            try:
                why = early.learn(watch)
            except (BudgetError, DivergenceError) as error:
                early.tried, why = [], f"default: the first rounds failed ({error})"
        if not early.tried or early.run is None:
            return SelectionRecord({name: self.current[name] for name in self.auto}, why, {}, []), None
        chosen = {name: early.weights[name] for name in self.auto}
        return SelectionRecord(chosen, why, dict(early.run.ledger.spent), early.tried), early.before()
