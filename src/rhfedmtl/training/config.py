"""One run in plain values: all that decides its numbers, and how to carry it out."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import AUTO, DEFAULTS, Options, build, idle, no_effect
from rhfedmtl.algorithms.registry import ALGORITHMS, Algorithm, is_yardstick
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request, flag
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.resources.costs import Budget, Cost, read_resources
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.checkpoint import Checkpoint, Keeper
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.privacy import Privacy, check_loss, private
from rhfedmtl.training.run import Before, Result, Settings, Watcher, train

MAX_ROUNDS = 1_000_000
"""Bound on a run that has another end: a budget, a target gap or a number of server iterations."""
PRECISION = 1e-12
"""Relative gap below which nothing is left to buy: a run ends there, whatever budget it has."""
GOOD_ENOUGH = 1e-3
"""Relative gap at which a run ends that was given no end."""
OPEN_ROUNDS = 2000
"""Where such a run ends in any case, and one by SGD that has a target gap alone."""
OPTIMUM = 1e-6
"""Relative gap at which a yardstick is solved; it knows no budget and no faults."""


OMITTED = ("privacy", "free_evaluation", "noise_from_seed")
"""Settings that the plain values of a run leave out if they are empty."""


@dataclass(frozen=True)
class RunConfig:
    """Data, algorithm, prices, budget, faults and seed of one run.

    ``scale`` is that of `Settings`, by the kind of labels where it is None. ``target_gap`` 0 means none. ``tune``
    names the metric by which the algorithm's settings are chosen before the run ("auto": by the labels), if any.
    ``privacy`` is the bound on what is learned of a terminal, as in ``epsilon=1,delta=1e-6``. With
    ``free_evaluation`` the messages of certificates and metrics are not on the bill. A private run draws its noise from
    the operating system. With ``noise_from_seed`` it draws the noise from the seed: a simulation, and not private.
    """

    algorithm: str = "rhfedmtl"
    request: Request = field(default_factory=Request)
    options: Options = field(default_factory=Options)
    cost: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()
    faults: str = ""
    scale: str | None = None
    target_gap: float = 0.0
    certify_every: int | str = AUTO
    tune: str = ""
    seed: int = 0
    privacy: str = ""
    free_evaluation: bool = False
    noise_from_seed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain values; prices and budgets as they are understood."""
        cost, budget = self.resources()
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        own = {name: value for name, value in known.items() if value or name not in OMITTED}
        return {
            **own,
            "request": self.request.to_dict(),
            "options": self._options(),
            "cost": cost.to_dict(),
            "budget": dict(budget),
        }

    def _options(self) -> dict[str, Any]:
        """The options, those of an algorithm from another package among them, set or not."""
        known = self.options.to_dict()
        own = ALGORITHMS[self.algorithm].options if self.algorithm in ALGORITHMS else ()
        return known | {option.name: option.default for option in own if option.name not in known}

    @cached_property
    def key(self) -> str:
        """A name that two runs share only if they are the same run; a sweep asks for it again and again."""
        text = json.dumps(self.to_dict(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def to_choose(self) -> tuple[str, ...]:
        """Weights to choose on training rows: those that are auto, and λ2 where nobody gave it."""
        if self.options.auto or self.options.lambda2 is not None:
            return self.options.auto
        otherwise = self.options.cloud_rounds or self.tune or self.privacy
        return () if otherwise or is_yardstick(self.algorithm) else ("lambda2",)

    def command(self) -> str:
        """The words that make this run on the command line."""
        return shlex.join(["rhfedmtl", "train", *self._words()])

    def _words(self) -> Iterator[str]:
        yield from ("--algorithm", self.algorithm)
        yield from self.request.words()
        for name in self.options.set_names():
            yield from flag(name, self.options[name])
        for text in self.cost:
            yield from ("--cost", text)
        for text in self.budget:
            yield from ("--budget", text)
        for name in ("privacy", "faults", "scale", "target_gap"):
            if value := getattr(self, name):
                yield from flag(name, value)
        if self.seed or self.noise_from_seed:
            yield from flag("seed", self.seed)
        if self.certify_every != AUTO:
            yield from flag("certify_every", self.certify_every)
        if self.tune:
            yield "--tune"
        if self.free_evaluation:
            yield "--free-evaluation"

    def resources(self) -> tuple[Cost, Budget]:
        """Prices and limits."""
        return read_resources(self.cost, self.budget)

    def federation(self) -> Federation:
        """The data, split with the seed."""
        return self.request.federation(self.seed)

    def check(self) -> Algorithm:
        """Refuse, before any data is read, what cannot be run: names, prices, budgets, faults."""
        built = build(self.algorithm, self.options, "binary")
        cost, budget = self.resources()
        budget.check(cost)
        Faults.parse(self.faults, self.seed)
        self.settings("binary", ended=True)
        if self.options.auto and self.tune:
            raise ConfigError(f"tuning chooses the weights too: give {' and '.join(self.options.auto)} as numbers")
        if self.privacy:
            self._check_private(built)
        if self.options.auto == ("lambda1",):
            raise ConfigError("lambda1 auto needs lambda2 auto: the two are chosen together")
        return built

    def _check_private(self, built: Algorithm) -> None:
        """Refuse what would tell more of a terminal than its clipped updates, each with the way out."""
        Privacy.parse(self.privacy)
        if is_yardstick(self.algorithm):
            return
        check_loss(built.method.loss)
        options, faults = self.options, Faults.parse(self.faults, self.seed)
        looks = not isinstance(built.policy, Fixed | Measured) or options.policy not in (None, "fixed")
        refused = {
            "--tune and weights that are auto look at rows: give the weights as numbers": self.tune or options.auto,
            "standard scaling looks at rows: take --scale unit, which needs no sums": self.scale not in (None, "unit"),
            "a line search is told sums of losses: take --merge add": options.merge == "line-search",
            f"--channel {options.channel} is in the way of clipping and noise: leave it out, or take masked": (
                options.channel not in (DEFAULTS["channel"], "masked")
            ),
            "the plan is made before the first round, and no policy looks at what rounds show: leave --policy out "
            "(and take rhfedmtl for lbfgs, fedavg for adaptive-fl)": looks,
            "one certificate leaves, at the end: leave out --target-gap and --certify-every": self.target_gap
            or self.certify_every != AUTO,
            "terminals that move, come and go, or get new rows, tell whole shares: leave moves, churn and late_rows "
            "out of --faults": faults.moves or faults.churn or faults.late_rows,
        }
        for way, wrong in refused.items():
            if wrong:
                raise ConfigError(f"--privacy {self.privacy}: {way}")

    def check_heeded(self) -> None:
        """`check`, and refuse what would change nothing: settings of other algorithms."""
        built = self.check()
        if unheeded := idle(self.algorithm, self.options, built=built):
            raise ConfigError(no_effect(self.algorithm, unheeded, self.options))
        if self.options.auto and not isinstance(built.method, DualMethod):
            raise ConfigError(
                f"{self.algorithm} has no weights to choose: give {', '.join(self.options.auto)} as numbers"
            )

    def notes(self) -> list[str]:
        """What the reader of a result should know: a yardstick pays no heed to budgets, prices and faults."""
        asked = [name for name in ("budget", "cost", "faults", "privacy") if getattr(self, name)]
        if not asked or not is_yardstick(self.algorithm):
            return []
        unheeded = f"{', '.join(asked)} had no effect"
        return [f"{self.algorithm} is a yardstick, solved to its optimum, and nothing is charged: {unheeded}"]

    def run(
        self,
        federation: Federation,
        *,
        ledger: Ledger | None = None,
        watch: Watcher | None = None,
        keep: Keeper | None = None,
        start: Checkpoint | None = None,
        before: Before | None = None,
        execution: Execution | None = None,
    ) -> Result:
        """Carry it out, or on from a checkpoint. A ``ledger`` is one that the caller wants to see."""
        if self.options.auto:
            names = ", ".join(self.options.auto)
            raise ConfigError(f"{names}: choose it first, with selection.weights.choose_settings")
        yardstick = is_yardstick(self.algorithm)
        built = build(self.algorithm, self.options, federation.kind)
        ledger = ledger if ledger is not None else Ledger(*self.resources())
        plan = None
        if self.privacy and not yardstick:
            built, plan = private(self.algorithm, self.options, federation, ledger, Privacy.parse(self.privacy))
            ledger = plan.ledger(ledger)
        ended = not yardstick and bool(ledger.budget or self.target_gap or self.options.cloud_rounds)
        settings = replace(self.settings(federation.kind, ended=ended), execution=execution or Execution())
        if ended and not (ledger.budget or self.options.cloud_rounds or isinstance(built.method, DualMethod)):
            settings = replace(settings, max_rounds=OPEN_ROUNDS)  # gradient steps may never come that near
        if yardstick:
            settings = replace(settings, target_relative_gap=OPTIMUM, certify_every=1)
        return train(
            built.regroup(federation),
            built.method,
            built.policy,
            settings,
            ledger=Ledger({}) if yardstick else ledger,
            faults=Faults() if yardstick else Faults.parse(self.faults, self.seed),
            judged=federation,
            watch=watch,
            keep=keep,
            start=start,
            before=before,
            private=plan,
        )

    def settings(self, kind: str, *, ended: bool) -> Settings:
        """How to run on labels of this kind; ``ended`` where something else than the gap ends it."""
        return Settings(
            scale=self.scale or usual_scale(kind, private=bool(self.privacy)),
            certify_every=self.certify_every,
            free_evaluation=self.free_evaluation,
            seed=self.seed,
            noise_from_seed=self.noise_from_seed,
            target_gap=self.target_gap,
            target_relative_gap=PRECISION if ended else GOOD_ENOUGH,
            max_rounds=MAX_ROUNDS if ended else OPEN_ROUNDS,
        )


def usual_scale(kind: str, *, private: bool) -> str:
    """Standardised rows of norm 1, of few features and for numbers in the mean; a private run may not look at rows."""
    return "unit" if private else "standard-rms" if kind == "regression" else "standard-auto"
