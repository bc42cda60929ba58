"""Build the record of a run from its configuration, data and result.

`session` calls `record` after ``train``, `sweep` after each of its runs. Only this module turns results into the
numbers of a record; all reports read the record.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.options import USUAL, build
from rhfedmtl.data.federation import Federation
from rhfedmtl.maths.runs import bincount
from rhfedmtl.plain import plain, read
from rhfedmtl.provenance import versions
from rhfedmtl.resources.costs import BY_BUDGET, binding
from rhfedmtl.resources.events import RoundEvent
from rhfedmtl.roles.certificates import NoisedCertificate
from rhfedmtl.runs.records import BillLine, Configuration, DataIdentity, Record, RoundTable, Summary, columns
from rhfedmtl.selection.tuning import TuningRecord
from rhfedmtl.selection.weights import SelectionRecord
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.privacy import RESOURCE
from rhfedmtl.training.result import Result, mean

MAX_RELATED = 200
"""With more tasks than this, a record does not include the relationship."""


def record(
    config: RunConfig,
    federation: Federation,
    result: Result | None,
    *,
    refused: str | None = None,
    diverged: bool = False,
    tuning: TuningRecord | None = None,
    selection: SelectionRecord | None = None,
    file: str | None = None,
) -> Record:
    """Return the record of a run; without ``result`` if the run was refused or diverged."""
    weights = {} if refused is not None else weights_used(config, federation, result, tuning, selection)
    repeatable = config
    if selection is None and "lambda2" in weights and "lambda2" in config.to_choose:
        # An open λ2 was not chosen: as a number it makes the command repeat the run.
        repeatable = config.changed(lambda2=weights["lambda2"])
    complete = Record(
        config.key,
        versions(),
        read(Configuration, plain(config.to_dict())),
        repeatable.command(),
        DataIdentity(federation.origin.name, federation.fingerprint()),
        list(federation.task_names),
        refused=refused,
        diverged=diverged,
        tuning=tuning,
        selection=selection,
        file=file,
        weights=weights,
    )
    if result is not None:
        complete = replace(
            complete,
            result=summary(result),
            by_task={name: values.tolist() for name, values in result.metrics.items()},
            rounds=round_table(result),
            bill=bill(result),
            relationship=_relationship(federation, result),
        )
    return read(Record, complete.to_dict())


def weights_used(
    config: RunConfig,
    federation: Federation,
    result: Result | None,
    tuning: TuningRecord | None,
    selection: SelectionRecord | None,
) -> dict[str, float]:
    """Return the λ1 and λ2 of a run: given, chosen, tuned or planned with its privacy.

    A method that couples no tasks has no λ2.
    """
    options = config.options.changed(**(tuning.chosen if tuning else {}), **(selection.chosen if selection else {}))
    weights = {name: options.weight(name) for name in USUAL}
    if result is not None and result.private is not None:
        plan = {name: getattr(result.private, name) for name in USUAL}
        weights |= {name: value for name, value in plan.items() if value is not None}
    coupling = build(config.algorithm, options, federation.kind).method.task_coupling
    if coupling is None or coupling.coupling(federation.n_tasks) == 0.0:
        del weights["lambda2"]
    return weights


def summary(result: Result) -> Summary:
    """Return the result of a run: metrics (mean over tasks, worst task), certificate and costs."""
    certificate, ledger, privacy = result.certificate, result.ledger, None
    if result.private is not None and isinstance(certificate, NoisedCertificate):
        gap = {"gap": certificate.gap, "probability": certificate.probability}
        privacy = {**plain(result.private), "certificate": plain(gap)}
    return Summary(
        metrics={name: mean(values) for name, values in result.metrics.items()},
        worst_task={name: _worst(name, values) for name, values in result.metrics.items()},
        primal=certificate.primal,
        dual=certificate.dual,
        gap=certificate.gap,
        relative_gap=certificate.relative_gap,
        rounds=result.rounds,
        cloud_rounds=result.cloud_rounds,
        terminal_steps=result.terminal_steps,
        local_steps=result.local_steps,
        rounds_by_solver=result.rounds_by_solver,
        stopped=result.stopped,
        spent=spent(result),
        budget=dict(ledger.budget),
        binding=binding(ledger.spent, dict(ledger.budget)) if result.stopped in BY_BUDGET else None,
        seconds=result.seconds,
        primal_at_zero=certificate.zero,
        privacy=privacy,
    )


def spent(result: Result) -> dict[str, float]:
    """Return the costs of each type; μ² of a private run also as ε at its δ."""
    costs, plan = result.ledger.spent, result.private
    return costs if plan is None else {**costs, "epsilon": plan.privacy.spent(costs[RESOURCE])}


def round_table(result: Result) -> RoundTable:
    """Return a table of all BS iterations of a run."""
    moments = result.history
    work = [
        _by_station(event) for event in result.events if isinstance(event, RoundEvent) and event.merges and event.round
    ]
    return RoundTable(
        **columns(moments, result.ledger.spent),
        station_gap=[None if m.station_gaps is None else m.station_gaps.tolist() for m in moments],
        local_steps=[steps for steps, _ in work],
        ordered=[ordered for _, ordered in work],
        answered=[answer.answers.tolist() for answer in result.observed],
        metrics={n: [m.metrics[n].tolist() if n in m.metrics else None for m in moments] for n in result.metrics},
    )


def _by_station(event: RoundEvent) -> tuple[list[float], list[int]]:
    """Return for every station the mean H of the terminals with work, and their number."""
    layout = event.layout
    if event.terminal_ids is None and isinstance(event.local_steps, int):
        count = bincount(layout.terminal_task, layout.n_tasks) * (event.local_steps > 0)
        return np.where(count > 0, float(event.local_steps), 0.0).tolist(), count.tolist()
    steps = np.broadcast_to(event.local_steps, layout.n_terminals)
    working = (layout.terminal_task >= 0) & (steps > 0)
    if event.terminals is not None:
        working = working & event.terminals
    if event.stations is not None:
        working = working & event.stations[layout.terminal_task]
    station = layout.terminal_task[working]
    count = np.bincount(station, minlength=layout.n_tasks)
    total = np.bincount(station, steps[working], layout.n_tasks)
    return (total / np.maximum(count, 1)).tolist(), count.tolist()


def bill(result: Result) -> list[BillLine]:
    """Return the costs of each tier, for each type."""
    totals = result.ledger.totals("tier")
    return [BillLine(tier, name, x) for name, by_tier in totals.items() for tier, x in by_tier.items()]


def _relationship(federation: Federation, result: Result) -> list[list[float]] | None:
    """Return the affinity of the evaluated tasks at the end of the run, unless a method regrouped them."""
    if result.relationship is None or not 1 < federation.n_tasks <= MAX_RELATED:
        return None
    if len(result.certificate.models) != federation.n_tasks:
        return None
    return result.relationship.affinity(federation.n_tasks).tolist()  # type: ignore[no-any-return]


def _worst(name: str, values: npt.NDArray[np.float64]) -> float:
    finite = values[~np.isnan(values)]
    if not len(finite):
        return float("nan")
    return float(finite.max() if name == "rmse" else finite.min())
