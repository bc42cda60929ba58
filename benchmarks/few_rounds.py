"""Two long or three short rounds: forecast and outcome at the smallest budget of Table III.

    python -m benchmarks.few_rounds rounds            # 20 splits from seed 5000
    python -m benchmarks.few_rounds rounds --first-seed 6000
    python -m benchmarks.few_rounds cells --first-seed 6000
    python -m benchmarks.few_rounds starts --first-seed 6000 --seeds 10

HAR as in `experiments/paper/table3.toml`, with the printed weights. `rounds` takes N_b = 15 and a budget of 200, which
pays two rounds with H = 6 or three with H = 2. It prints the share of the dual suboptimality that the progress model
forecasts and that the rounds close, and the models that the budget buys. It repeats this without the coupled start, and
without starts from doubled models. `cells` compares the policy with the best fixed H, chosen on the same splits.
`starts` trains on watch with and without starts from doubled models; a pass is the cost of a round over all rows.
Needs the data sets of RHFEDMTL_DATA.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
from benchmarks.ablation import BY_NAME
from benchmarks.federations import DATA

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.errors import BudgetError
from rhfedmtl.maths.intervals import interval
from rhfedmtl.policies.base import FloatArray, Plan, Policy, Situation
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.policies.measured.progress import LocalProgress
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles import cloud
from rhfedmtl.training.result import Result, mean
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

HAR = Request(
    "har", str(DATA / "har.npz"), tasks=5, terminals=15, samples_per_task=70, positive="SITTING", test_rest=True
)
PRICES = {"energy": {"terminal_step": 0.1, "station_round": 10.0}}
PRINTED = Options(lambda1=1e-4, lambda2=1e-6, intercept=False)
AVERAGED = replace(PRINTED, merge="average")
BUDGET, PLANS = 200.0, ((6, 2), (2, 3))
CELLS = [(terminals, budget) for terminals in (5, 10, 15) for budget in (150.0, 200.0, 300.0, 400.0, 600.0, 1000.0)]
FIXED_STEPS = (1, 2, 3, 4, 6, 8, 10, 15, 20, 40)
WATCH, PASSES = Request("watch", terminals=15), (1.5, 2, 3, 4, 6, 12)
SOLVED = 1e-5
"""Gap of the run that shows the optimum: 0.4 % of it."""


@dataclass(frozen=True)
class Forecast:
    """A fixed plan that notes the share that the progress model expects it to close."""

    steps: int
    rounds: int
    shares: list[float] = field(default_factory=list)

    def plan(self, situation: Situation) -> Plan | None:
        """Return the fixed plan."""
        if not situation.rounds:
            model = Measured().progress_model(situation)
            phi = LocalProgress(situation.sizes).progress(model.rate, self.steps)
            self.shares.append(1.0 - float(model.left(phi)) ** self.rounds)
        # Add a round: the certificate of the last round also counts the closing gradient.
        return Fixed(self.steps, 1, self.rounds + 1).plan(situation)


@contextlib.contextmanager
def without_doubling() -> Iterator[None]:
    """Let no server iteration start from models that are scaled up."""
    choose = cloud.Cloud._choose_start

    def restricted(self: cloud.Cloud, points: Any, primals: FloatArray) -> None:
        single = len(points.models) == 1
        scales = np.array(cloud.MODEL_SCALES) if single else cloud.CANDIDATE_GRID[:, 0]
        choose(self, points, np.where(np.append(scales, 0.0) > 1.0, np.inf, primals))

    with mock.patch.object(cloud.Cloud, "_choose_start", restricted):
        yield


VARIANTS: dict[str, tuple[Options, Callable[[], Any]]] = {
    "the default": (PRINTED, contextlib.nullcontext),
    "no start from doubled models": (PRINTED, without_doubling),
    "no coupled start": (PRINTED, BY_NAME["coupled start"].removed),
    "updates averaged": (AVERAGED, contextlib.nullcontext),
}


def learn(federation: Federation, seed: int, policy: Policy, budget: float | None, options: Options) -> Result:
    """Run within a budget, or without prices."""
    ledger = Ledger({}) if budget is None else Ledger(PRICES, {"energy": budget})
    limits: dict[str, Any] = {"target_gap": SOLVED} if isinstance(policy, Measured) and budget is None else {}
    return train(federation, options.method(federation.kind), policy, Settings(seed=seed, **limits), ledger=ledger)


def accuracy(result: Result) -> float:
    """Return the balanced accuracy in percent."""
    return 100.0 * mean(result.metrics["balanced_accuracy"])


def paired(differences: FloatArray, digits: int) -> str:
    """Return the mean and its 95 % interval as text."""
    middle, half = interval(differences)
    return f"{middle:+.{digits}f} ± {half:.{digits}f}"


def rounds(splits: Mapping[int, Federation]) -> None:
    """Print forecast and outcome of both plans for every variant."""
    best = [learn(federation, seed, Measured(), None, PRINTED).certificate.dual for seed, federation in splits.items()]
    for name, (options, patch) in VARIANTS.items():
        print(f"\n{name}")
        with patch():
            for steps, count in PLANS:
                policy = Forecast(steps, count)
                history = [
                    learn(federation, seed, policy, None, options).history for seed, federation in splits.items()
                ]
                duals = np.array([[moment.dual for moment in run[:count]] for run in history])
                remaining = 1.0 - duals / np.array(best)[:, None]
                by_round = 1.0 - remaining / np.column_stack([np.ones(len(remaining)), remaining[:, :-1]])
                print(
                    f"  {count} rounds with H = {steps}: forecast {np.mean(policy.shares):.1%}, "
                    f"closed {1.0 - remaining[:, -1].mean():.1%} "
                    f"(by round {', '.join(f'{share:.1%}' for share in by_round.mean(axis=0))})"
                )
            ours, short = (
                [learn(federation, seed, policy, BUDGET, options) for seed, federation in splits.items()]
                for policy in (Measured(), Fixed(2, 1))
            )
        for label, runs in (("policy", ours), ("H = 2", short)):
            H = sorted({steps for run in runs for steps in run.local_steps})
            objective = np.mean([run.certificate.primal for run in runs])
            print(f"  {label}: H {H}, accuracy {np.mean([*map(accuracy, runs)]):.2f}, objective {objective:.4f}")
        points = np.array([accuracy(a) - accuracy(b) for a, b in zip(ours, short, strict=True)])
        primals = np.array([a.certificate.primal - b.certificate.primal for a, b in zip(ours, short, strict=True)])
        print(f"  policy − H = 2: accuracy {paired(points, 2)}, objective {paired(primals, 4)}")


def cells(first_seed: int, seeds: int) -> None:
    """Print the policy against the best fixed H of every cell."""
    source, means = HAR.source(), []
    for terminals, budget in CELLS:
        request = replace(HAR, terminals=terminals)
        splits = {seed: request.federation(seed, source) for seed in range(first_seed, first_seed + seeds)}
        ours, ours_rounds = _scores(splits, Measured(), budget)
        fixed = {}
        for steps in FIXED_STEPS:
            with contextlib.suppress(BudgetError):
                fixed[steps] = _scores(splits, Fixed(steps, 1), budget)
        by_accuracy = max(fixed, key=lambda steps: float(fixed[steps][0][:, 0].mean()))
        by_objective = min(fixed, key=lambda steps: float(fixed[steps][0][:, 1].mean()))
        points = ours[:, 0] - fixed[by_accuracy][0][:, 0]
        logs = ours[:, 1] - fixed[by_objective][0][:, 1]
        means.append((points.mean(), logs.mean(), ours_rounds, fixed[by_accuracy][1], fixed[by_objective][1]))
        print(
            f"N_b = {terminals:2d}, budget {budget:4.0f}: {ours_rounds:4.1f} rounds; "
            f"best accuracy H = {by_accuracy:2d}, {fixed[by_accuracy][1]:4.1f} rounds, {paired(points, 2)}; "
            f"best objective H = {by_objective:2d}, {fixed[by_objective][1]:4.1f} rounds, log {paired(logs, 3)}",
            flush=True,
        )
    points, logs, *numbers = np.mean(means, axis=0)
    print(
        f"mean: {points:+.2f} points, log objective {logs:+.3f}; rounds of the policy, of the best accuracy and of the "
        f"best objective: {', '.join(f'{number:.1f}' for number in numbers)}"
    )


def starts(first_seed: int, seeds: int) -> None:
    """Print the policy's runs on watch, and the change without starts from doubled models."""
    source, options = WATCH.source(), replace(PRINTED, intercept=True)
    for terminals in (5, 15):
        request = replace(WATCH, terminals=terminals)
        splits = {seed: request.federation(seed, source) for seed in range(first_seed, first_seed + seeds)}
        for passes in PASSES:
            both = []
            for patch in (contextlib.nullcontext, without_doubling):
                with patch():
                    both.append(
                        [learn(f, seed, Measured(), passes * _pass_cost(f), options) for seed, f in splits.items()]
                    )
            default, restricted = both
            points = np.array([accuracy(b) - accuracy(a) for a, b in zip(default, restricted, strict=True)])
            logs = np.log(
                [b.certificate.primal / a.certificate.primal for a, b in zip(default, restricted, strict=True)]
            )
            print(
                f"N_b = {terminals:2d}, {passes:4.1f} passes: {np.mean([run.rounds for run in default]):4.1f} rounds, "
                f"accuracy {np.mean([*map(accuracy, default)]):.2f}, "
                f"objective {np.mean([run.certificate.primal for run in default]):.4f}; "
                f"without doubled starts {paired(points, 2)}, log objective {paired(logs, 3)}",
                flush=True,
            )


def _pass_cost(federation: Federation) -> float:
    prices = PRICES["energy"]
    return prices["station_round"] * federation.n_tasks + prices["terminal_step"] * len(federation.y)


def _scores(splits: Mapping[int, Federation], policy: Policy, budget: float) -> tuple[FloatArray, float]:
    """Return accuracy and log objective of every split, and the mean number of rounds."""
    runs = [learn(federation, seed, policy, budget, PRINTED) for seed, federation in splits.items()]
    return np.array([(accuracy(run), np.log(run.certificate.primal)) for run in runs]), float(
        np.mean([run.rounds for run in runs])
    )


def main() -> None:
    """Print a study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("rounds", "cells", "starts"))
    parser.add_argument("--first-seed", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    if args.study == "cells":
        cells(args.first_seed, args.seeds)
    elif args.study == "starts":
        starts(args.first_seed, args.seeds)
    else:
        source = HAR.source()
        rounds({seed: HAR.federation(seed, source) for seed in range(args.first_seed, args.first_seed + args.seeds)})


if __name__ == "__main__":
    main()
