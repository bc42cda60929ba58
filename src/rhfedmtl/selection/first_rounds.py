"""Choose λ1 and λ2 in the first rounds of a run with a budget, on held-out rows.

1. Hold out a fifth of each terminal's rows.
2. Train with the current weights. At each check, compute the models that other weights would give from the current
   dual variables (W = VG), and compare their losses on the held-out rows.
3. If other weights are clearly better, continue with these. Otherwise return the held-out rows and finish.

A run that is too short, or has too few rows, keeps its weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.data.federation import Federation, FloatArray
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.registry import Execution
from rhfedmtl.maths import metrics
from rhfedmtl.maths.relationships import Models
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.selection.folds import Float64Array, held_out_rows, reordered, row_losses, row_terminal, row_weights
from rhfedmtl.selection.regularisation import SEARCH_ROWS, weighted
from rhfedmtl.training import snapshot
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.result import Progress, Watcher
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings
from rhfedmtl.training.snapshot import Before

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


class HeldOutRows(NamedTuple):
    """Held-out rows, scaled like the rows of the run, with their labels, weights, tasks and groups."""

    rows: list[FloatArray]
    y: npt.NDArray[Any]
    targets: Float64Array
    weight: Float64Array
    task: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]

    @classmethod
    def of(cls, data: Federation, held_out: npt.NDArray[np.int64], scalers: list[Scaler]) -> HeldOutRows:
        """Return these rows of the federation, or a part of them if they are more than `SEARCH_ROWS`."""
        held_out = held_out[:: -(-len(held_out) // SEARCH_ROWS)]
        by_task = [held_out[data.row_task[held_out] == b] for b in range(data.n_tasks)]
        rows = [scaler.transform(data.X[own]) for scaler, own in zip(scalers, by_task, strict=True)]
        order = np.concatenate(by_task)
        together = np.arange(len(order)) if data.group is None else data.group[order]
        group = np.unique(np.column_stack([data.row_task[order], together]), axis=0, return_inverse=True)[1].ravel()
        return cls(rows, data.y[order], data.targets()[order], row_weights(data)[order], data.row_task[order], group)

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


class FirstRounds:
    """The first rounds of a run without its held-out rows, and the choice of weights on these rows.

    ``weights`` starts as the weights of the run; ``auto`` names the weights that may change.
    """

    def __init__(
        self,
        built: Algorithm,
        federation: Federation,
        settings: Settings,
        ledger: Ledger,
        *,
        auto: tuple[str, ...],
        weights: dict[str, float],
        faults: str = "",
    ) -> None:
        self.built, self.federation, self.settings, self.ledger, self.auto = built, federation, settings, ledger, auto
        self.weights, self.tried = dict(weights), list[WeightTrial]()
        self.faults = Faults.parse(faults, settings.seed)
        self.data = built.regroup(federation)
        mask = held_out_rows(self.data, FOLDS, 0, settings.seed)
        terminal = row_terminal(self.data)
        self.order = np.lexsort((mask, terminal))  # the held-out rows of a terminal come last
        self.held_out = self.order[mask[self.order]]
        self.remaining = self.data.sizes - np.bincount(terminal[mask], minlength=self.data.n_terminals)
        self.run: Run | None = None

    def refused(self, execution: Execution) -> str:
        """Return the reason why no weights can be chosen, or an empty text; prepare the run if they can."""
        faults, limits = self.faults, self.ledger.budget
        if len(self.held_out) < LEAST_ROWS:
            return f"default: fewer than {LEAST_ROWS} rows can be held out"
        if faults.moves or faults.churn or faults.late_rows:
            return "default: terminals or rows come and go"
        if not execution.entry.keeps_checkpoints:
            return f"default: engine {execution.engine} cannot continue after rounds without some of the rows"
        # Round zero uses all rows. The following rounds do not use the held-out rows.
        data, ledger = reordered(self.data, self.order), Ledger(self.ledger.cost, limits)
        self.run = Run(data, self.built.method, self.settings, ledger, faults, self.federation)
        self._set_sizes(self.remaining)
        self.portion = {name: CHECK_SHARE * limit for name, limit in limits.items()}
        situation = self.run.situation()
        one_pass = event_totals(situation.prices, situation.cloud_event(), situation.round_event(self.data.sizes))
        for name, price in one_pass.items():
            if LEAST_PASSES * price > limits.get(name, np.inf):
                return f"default: the budget pays for fewer than {LEAST_PASSES:g} passes"
            if name in self.portion and price > 0.0:
                self.portion[name] = min(self.portion[name], CHECK_PASSES * price)
        return ""

    def learn(self, watch: Watcher | None) -> str:
        """Train and check in turn; return the reason of the result.

        The rounds end if no other weights are better and `CHECK_SHARE` of a budget is spent, after `MOST_CHECKS`
        checks or `MOST_CHANGES` changes of the weights, or if the run itself ends.
        """
        assert self.run is not None
        run, changes, start, ended = self.run, 0, dict(self.run.ledger.spent), False
        held_out = HeldOutRows.of(self.data, self.held_out, run.units.scalers)

        def watched(progress: Progress) -> bool:
            nonlocal ended
            ended = watch is not None and watch(progress) is False
            return not (ended or any(run.ledger.spent[name] >= share for name, share in until.items()))

        for check in range(1, MOST_CHECKS + 1):
            # 1. Train until the next check.
            until = {name: start[name] + check * part for name, part in self.portion.items()}
            stopped = run.learn(self.built.policy, watched)
            if ended:
                break
            if run.state.round >= self.settings.max_rounds:
                self.tried = []
                return "default: the limit on rounds leaves no round for the held-out rows"

            # 2. Check only if the budget pays for two certificates besides the reserved last certificate.
            with run.certification.budget.kept_aside():
                event = run.situation().certificate_event()
                paid = run.ledger.can_afford(run.accounting.worst(event, event))
            if not paid or (self.tried and self.tried[-1].rounds == run.state.round):
                break

            # 3. Continue with other weights if they are clearly better.
            better = self._preferred(run, held_out)
            if better is not None:
                self.weights.update(better)
                self._reweigh(run)
                changes += 1
            late = any(run.ledger.spent[name] >= CHECK_SHARE * limit for name, limit in self.ledger.budget.items())
            if stopped != "interrupted" or changes >= MOST_CHANGES or (better is None and late):
                break
        if not self.tried:
            why = "the run was stopped before its first" if ended else "the budget does not pay for a"
            return f"default: {why} check on held-out rows"
        self._set_sizes(self.data.sizes)
        self._reweigh(run)
        if changes:
            return f"chosen on {100 // FOLDS} % held-out rows"
        return "default: no other value is clearly better on held-out rows"

    def _set_sizes(self, sizes: npt.NDArray[np.int64]) -> None:
        """Let every terminal use only this number of its rows."""
        assert self.run is not None
        assert isinstance(self.run.network, InProcess)
        self.run.network.set_sizes(sizes)

    def _reweigh(self, run: Run) -> None:
        assert isinstance(run.cloud, Cloud)
        run.reweigh(weighted(run.cloud.relationship, **self.weights))

    def _preferred(self, run: Run, held_out: HeldOutRows) -> dict[str, float] | None:
        """Return the weights whose models are clearly better on the held-out rows, if there are any.

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
        for factor1 in LAMBDA1_FACTORS if "lambda1" in self.auto else (1.0,):
            yield from ((factor1, factor2) for factor2 in factors if (factor1, factor2) != (1.0, 1.0))

    def _judge(self, run: Run, held_out: HeldOutRows, models: Models) -> tuple[Float64Array, Float64Array]:
        """Return the weighted loss and error of every held-out row by the model of its task."""
        pairs = zip(held_out.rows, run.units.as_given(models), strict=True)
        row_scores = np.concatenate([metrics.scores(rows, model) for rows, model in pairs])
        losses = row_losses(run.method.loss, row_scores, held_out.targets).astype(np.float64)
        guess = metrics.predict(row_scores, len(self.data.class_names))
        errors = (guess != held_out.y) if self.data.class_names else np.square(guess - held_out.y)
        return held_out.weight * losses.sum(axis=1), held_out.weight * errors

    def before(self) -> Before | None:
        """Return the state from which the run continues, with rows in their original order."""
        if self.run is None or not self.tried:
            return None
        state = snapshot.take(self.run)
        network = state["network"]
        alpha = np.empty_like(network.alpha)
        alpha[self.order] = network.alpha
        return Before(snapshot=state | {"network": network._replace(alpha=alpha), "memo": {}})
