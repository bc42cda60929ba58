"""Describe a run by plain values (`RunConfig`), check it, and train it.

The command line, sweeps and studies build a `RunConfig`, store it and rebuild the run from it. Its fields determine all
numbers of the run. The config never holds data or open resources.
"""

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
from rhfedmtl.training.result import Result, Watcher
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings
from rhfedmtl.training.snapshot import Before

# Most rounds of a run that ends by a budget, a target gap or a number of server iterations.
MAX_ROUNDS = 1_000_000
# A run ends at this relative gap, whatever budget is left.
PRECISION = 1e-12
# Without a budget or a target, a run ends at this relative gap.
# Measured: benchmarks/results/constants.md; ×0.5: +0.01 ± 0.02 points, −0.09 ± 0.08 decades;
# ×2: +0.01 ± 0.04 points, +0.15 ± 0.09 decades.
GOOD_ENOUGH = 1e-3
# Such a run ends after this many rounds in any case. So does SGD that has only a target gap.
OPEN_ROUNDS = 2000
# A yardstick ends at this relative gap. It has no budget and no faults.
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.00 points;
# ×2: −0.00 ± 0.00 points.
OPTIMUM = 1e-6


OMITTED = ("privacy", "free_evaluation", "noise_from_seed")
"""Settings that the plain values of a run leave out if they are empty."""


@dataclass(frozen=True)
class RunConfig:
    """Data, algorithm, prices, budget, faults and seed of one run.

    Attributes
    ----------
    scale
        Scaling of rows, as in `Settings`; None: by the kind of labels.
    target_gap
        Duality gap at which the run ends; 0: no target.
    certify_every
        Rounds between certificates, or "auto".
    tune
        Metric by which the algorithm's settings are tuned before the run ("auto": by the labels); empty: no tuning.
    privacy
        Bound on the privacy loss of a terminal, as in ``epsilon=1,delta=1e-6``.
    free_evaluation
        True if messages of certificates and metrics cost nothing.
    noise_from_seed
        True if a private run draws its noise from the seed. This is a simulation and not private. By default the noise
        comes from the operating system.
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
        """Return the run as plain values, with prices and budgets in their parsed form."""
        cost, budget = self.resources()
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        stored = {name: value for name, value in values.items() if value or name not in OMITTED}
        return {
            **stored,
            "request": self.request.to_dict(),
            "options": self._options(),
            "cost": cost.to_dict(),
            "budget": dict(budget),
        }

    def _options(self) -> dict[str, Any]:
        """Return all options with their values, including the options of an algorithm from another package."""
        values = self.options.to_dict()
        declared = ALGORITHMS[self.algorithm].options if self.algorithm in ALGORITHMS else ()
        return values | {option.name: option.default for option in declared if option.name not in values}

    @cached_property
    def key(self) -> str:
        """Hash that identifies the run; cached because a sweep reads it often."""
        text = json.dumps(self.to_dict(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def to_choose(self) -> tuple[str, ...]:
        """Names of the weights to choose on training rows: all "auto" weights, or λ2 if the user did not set it."""
        if self.options.auto or self.options.lambda2 is not None:
            return self.options.auto
        excluded = self.options.cloud_rounds or self.tune or self.privacy or ALGORITHMS[self.algorithm].keeps_weights
        return () if excluded or is_yardstick(self.algorithm) else ("lambda2",)

    def changed(self, **settings: Any) -> RunConfig:
        """Return the run with these options."""
        return replace(self, options=self.options.changed(**settings))

    def command(self) -> str:
        """Return the command line that makes this run."""
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
        """Return prices and limits."""
        return read_resources(self.cost, self.budget)

    def federation(self) -> Federation:
        """Return the data, split with the seed."""
        return self.request.federation(self.seed)

    def check(self) -> Algorithm:
        """Refuse invalid names, prices, budgets and faults before any data is read; return the algorithm."""
        built = build(self.algorithm, self.options, "binary")
        cost, budget = self.resources()
        budget.check(cost)
        Faults.parse(self.faults, self.seed)
        self.settings("binary", ended=True)
        if self.options.auto and self.tune:
            raise ConfigError(f"tuning chooses the weights too: give {' and '.join(self.options.auto)} as numbers")
        if self.privacy:
            self._check_private(built)
        if self.options.auto and ALGORITHMS[self.algorithm].keeps_weights:
            raise ConfigError(
                f"{self.algorithm} keeps its weights: give a number for {' and '.join(self.options.auto)}"
            )
        if self.options.auto == ("lambda1",):
            raise ConfigError("lambda1 auto needs lambda2 auto: the two are chosen together")
        return built

    def _check_private(self, built: Algorithm) -> None:
        """Refuse settings that would release more of a terminal than its clipped updates; name the way out."""
        Privacy.parse(self.privacy)
        if is_yardstick(self.algorithm):
            return
        check_loss(built.method.loss)
        options, faults = self.options, Faults.parse(self.faults, self.seed)
        adapts = not isinstance(built.policy, Fixed | Measured) or options.policy not in (None, "fixed")
        refused = {
            "--tune and auto weights use rows for the choice: give the weights as numbers": self.tune or options.auto,
            "standard scaling needs sums over rows: take --scale unit": self.scale not in (None, "unit"),
            "a line search needs sums of losses: take --merge add": options.merge == "line-search",
            f"--channel {options.channel} conflicts with clipping and noise: leave it out, or take masked": (
                options.channel not in (DEFAULTS["channel"], "masked")
            ),
            "the plan is made before the first round, and no policy may use results of rounds: leave --policy out "
            "(and take rhfedmtl for lbfgs, fedavg for adaptive-fl)": adapts,
            "the only certificate is released at the end: leave out --target-gap and --certify-every": self.target_gap
            or self.certify_every != AUTO,
            "terminals that move, leave, return or get new rows would reveal complete shares: leave moves, churn and "
            "late_rows out of --faults": faults.moves or faults.churn or faults.late_rows,
        }
        for reason, applies in refused.items():
            if applies:
                raise ConfigError(f"--privacy {self.privacy}: {reason}")

    def check_heeded(self) -> None:
        """Call `check`, and refuse options without effect, such as the options of other algorithms."""
        built = self.check()
        if without_effect := idle(self.algorithm, self.options, built=built):
            raise ConfigError(no_effect(self.algorithm, without_effect, self.options))
        if self.options.auto and not isinstance(built.method, DualMethod):
            raise ConfigError(
                f"{self.algorithm} has no weights to choose: give {', '.join(self.options.auto)} as numbers"
            )

    def notes(self) -> list[str]:
        """Return notes for the reader of a result: a yardstick ignores budgets, prices and faults."""
        ignored = [name for name in ("budget", "cost", "faults", "privacy") if getattr(self, name)]
        if not ignored or not is_yardstick(self.algorithm):
            return []
        effect = f"{', '.join(ignored)} had no effect"
        return [f"{self.algorithm} is a yardstick, solved to its optimum, and nothing is charged: {effect}"]

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
        """Train on ``federation`` and return the result.

        Parameters
        ----------
        federation
            The data; `federation` makes it.
        ledger
            Ledger to charge, for callers that want to read it during the run (None: a new ledger).
        watch
            Function that receives the progress after every round; it ends the run by returning False.
        keep
            Writer of checkpoints.
        start
            Checkpoint to continue from.
        before
            First rounds of the run, in which its weights were chosen.
        execution
            Engine and threads.
        """
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
            settings = replace(settings, max_rounds=OPEN_ROUNDS)  # gradient steps may never reach the target gap
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
        """Return the settings for labels of this kind; ``ended`` is True if a budget or a target ends the run."""
        return Settings(
            scale=self.scale or default_scale(kind, private=bool(self.privacy), algorithm=self.algorithm),
            certify_every=self.certify_every,
            free_evaluation=self.free_evaluation,
            seed=self.seed,
            noise_from_seed=self.noise_from_seed,
            target_gap=self.target_gap,
            target_relative_gap=PRECISION if ended else GOOD_ENOUGH,
            max_rounds=MAX_ROUNDS if ended else OPEN_ROUNDS,
        )


def default_scale(kind: str, *, private: bool, algorithm: str = "rhfedmtl") -> str:
    """Return the default scaling for a kind of labels, or of the algorithm if it has its own.

    Rows are standardised and then scaled to norm 1. With few features, or for a regression, only the root mean square
    of their norms is 1. A private run may not use sums over rows, so it only scales each row to norm 1.
    """
    if private:
        return "unit"
    return ALGORITHMS[algorithm].scale or ("standard-rms" if kind == "regression" else "standard-auto")
