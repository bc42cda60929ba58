"""Tables of a report: every cell with its interval, the best value marked, and differences tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rhfedmtl.algorithms.registry import moves_data
from rhfedmtl.display import short
from rhfedmtl.maths.intervals import interval
from rhfedmtl.report import along
from rhfedmtl.report.charts import signed
from rhfedmtl.report.words import MEANING, spread, tuned
from rhfedmtl.roles.words import solver_shares
from rhfedmtl.runs.records import Record
from rhfedmtl.studies.overall import overall
from rhfedmtl.studies.study import EVEN, At, Cell, StudyResult, judged
from rhfedmtl.studies.words import axis_label, metric_name, place_text

SIGNS = {"better": "▲", "worse": "▼", EVEN: "≈", "": "\u2007"}


@dataclass(frozen=True)
class TableCell:
    """Entry of a table: text, a smaller note below, a sign, and True in ``best`` for the best value."""

    text: str
    note: str = ""
    sign: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Header and groups of rows; the first entry of a row is its name."""

    head: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[TableCell, ...], ...]], ...]
    note: str = ""


def grid(result: StudyResult) -> Table:
    """Return all cells: variants down, the axis of the charts across, a group for each value of the other axes."""
    study = result.study
    groups = tuple((place_text(at), tuple(_row(result, name, at) for name in result.labels)) for at in study.others)
    head = ("", *(short(value) for value in study.along))
    return Table(head, groups, f"Across: {axis_label(study.x or '')}.")


def _row(result: StudyResult, name: str, at: At) -> tuple[TableCell, ...]:
    cells = (_entry(result, result.cell(name, place)) for place in result.study.line(at))
    return _method_name(result, name), *cells


def _method_name(result: StudyResult, name: str) -> TableCell:
    """Return the name of a method, marked if it has no budget or moves data: then its numbers are easier to reach."""
    variant = next(variant for variant in result.study.variants if variant.name == name)
    marks = {"baseline without a budget": variant.yardstick, "moves data": moves_data(variant.algorithm)}
    return TableCell(variant.label, ", ".join(mark for mark, holds in marks.items() if holds))


def methods(result: StudyResult) -> Table | None:
    """Return λ1, λ2, H and solver of every method over all its runs, and which method moves data."""
    ranges = {weight: result.weight_ranges(weight) for weight in ("lambda1", "lambda2")}
    rows, moving = [], False
    for variant in result.study.variants:
        records = [record for at in result.places for record in result.records(variant.name, at)]
        summaries = [record.result for record in records if record.result]
        if not summaries:
            continue
        moves = moves_data(variant.algorithm)
        steps = [H for summary in summaries for H in summary.local_steps]
        solvers: Counter[str] = Counter()
        for summary in summaries:
            solvers.update(summary.rounds_by_solver)
        reasons = {record.selection.why for record in records if record.selection}
        reason = reasons.pop() if len(reasons) == 1 else ""
        weights = [TableCell(by_label.get(variant.label, "–")) for by_label in ranges.values()]
        weights[1] = replace(weights[1], note=reason)
        cells = (_span(steps), solver_shares(solvers) if solvers else "–", "yes" if moves else "no")
        rows.append((TableCell(variant.label), *weights, *(TableCell(text) for text in cells)))
        moving |= moves
    note = "H is the number of local steps in a round (median over terminals)."
    note += " A method that moves data puts the rows of several terminals on one machine." if moving else ""
    head = ("", "λ₁", "λ₂", "H", "solver", "moves data")
    return Table(head, (("", tuple(rows)),), note) if rows else None


def _span(numbers: Sequence[int]) -> str:
    """Return the smallest and largest number."""
    return " to ".join(dict.fromkeys((f"{min(numbers)}", f"{max(numbers)}"))) if numbers else "–"


def _entry(result: StudyResult, cell: Cell) -> TableCell:
    if cell.mean is None:
        return _nothing(result, cell)
    notes = [] if cell.half is None else [f"± {cell.half:.3f}"]
    notes += [f"paper {cell.paper:.2f}"] if cell.paper is not None else []
    best = result.best(cell.at) == cell.variant
    return TableCell(f"{cell.mean:.3f}", "\n".join(notes), _sign(result, cell), best)


def _nothing(result: StudyResult, cell: Cell) -> TableCell:
    """Return a dash with the reason: diverged, no affordable round, no such metric, or no run."""
    many = result.records(cell.variant, cell.at)
    if any(record.refused for record in many):
        return TableCell("–", "diverged" if any(record.diverged for record in many) else "no round paid")
    return TableCell("–", f"no {metric_name(result.study.metric)}" if many else "no run")


def _sign(result: StudyResult, cell: Cell) -> str:
    return SIGNS[cell.verdict] if cell.seeds > 1 else ""


def complete_axis(result: StudyResult) -> Table | None:
    """Return the table over all budgets: area under the curve, rank, certificates."""
    groups = []
    for at in result.study.others:
        rows = overall(result, at)
        best = max(rows, key=lambda row: result.study.sign * row.area, default=None)
        cells = []
        for row in rows:
            sign = SIGNS[judged(row.against)] if result.study.seeds > 1 else ""
            against = _difference(*row.against) if row.against else "reference"
            cells.append(
                (
                    _method_name(result, row.variant),
                    TableCell(spread(row.area, row.half), best=row is best),
                    TableCell(against, sign=sign if row.against else ""),
                    TableCell(f"{row.rank:.1f}"),
                    TableCell("–" if row.relative_gap is None else f"{row.relative_gap:.2g}"),
                )
            )
        groups.append((place_text(at), tuple(cells)))
    comparable = tuple((name, rows) for name, rows in groups if len(rows) > 1)
    if not comparable:
        return None
    metric, reference = metric_name(result.study.metric), result.labels[result.study.reference]
    head = ("", metric, f"against {reference}", "mean rank", "relative gap")
    note = (
        f"Area under the curve: the mean along the logarithm of {axis_label(result.study.x or '')}. Ranks are "
        "means over its values and seeds (1 is best); relative gaps are geometric means."
    )
    return Table(head, comparable, note)


def across(results: Sequence[StudyResult]) -> Table | None:
    """Return mean ranks over several studies: data sets down, common methods across."""
    places = [(result, at) for result in results for at in result.study.others]
    all_rows = [(result, at, {row.variant: row for row in overall(result, at)}) for result, at in places]
    rows = [(result, at, by_variant) for result, at, by_variant in all_rows if by_variant]
    shared = [name for name in (rows[0][2] if rows else {}) if all(name in by_variant for _, _, by_variant in rows)]
    if len({result.study.name for result, _, _ in rows}) < 2 or len(shared) < 2:
        return None
    body = []
    for result, at, by_variant in rows:
        areas = [result.study.sign * by_variant[name].area for name in shared]
        best = shared[int(np.argmax(areas))]
        cells = [TableCell(result.study.title, place_text(at))]
        for name in shared:
            half = "" if by_variant[name].half is None else f"± {by_variant[name].half:.3f}"
            cells.append(TableCell(f"{by_variant[name].area:.3f}", half, best=name == best))
        body.append(tuple(cells))
    ranks = [float(np.mean([by_variant[name].rank for _, _, by_variant in rows])) for name in shared]
    last = (TableCell("mean rank"), *(TableCell(f"{rank:.1f}", best=rank == min(ranks)) for rank in ranks))
    note = "Area under the curve of each study, divided by the width of its log axis; the best of each row is marked."
    movers = {v.name for result in results for v in result.study.variants if moves_data(v.algorithm)}
    head = ("", *(f"{name} (moves data)" if name in movers else name for name in shared))
    return Table(head, (("", (*body, last)),), note)


def ranking(result: StudyResult, at: At) -> Table:
    """Return variants at a place: metric, difference to the reference, worst task, spread between tasks, rounds."""
    names = list(result.labels)
    cells = {name: result.cell(name, at) for name in names}
    order = sorted(names, key=lambda n: (cells[n].mean is None, -result.study.sign * (cells[n].mean or 0.0)))
    rows = tuple(_ranked(result, cells[name], at) for name in order)
    metric, reference = metric_name(result.study.metric), result.labels[result.study.reference]
    head = ("", metric, f"against {reference}", "worst task", "spread of tasks", "rounds")
    return Table(head, (("", rows),))


def _ranked(result: StudyResult, cell: Cell, at: At) -> tuple[TableCell, ...]:
    name = _method_name(result, cell.variant)
    if cell.mean is None:
        return (name, _nothing(result, cell), *(TableCell("") for _ in range(4)))
    many = result.records(cell.variant, at)
    by_task = along.by_task(many, result.study.metric)
    tasks = many[0].tasks if many and along.same_tasks(many) else []
    return (
        name,
        TableCell(spread(cell.mean, cell.half), best=result.best(at) == cell.variant),
        _against(result, cell),
        *_of_tasks(by_task, tasks, result.study.metric),
        TableCell(f"{cell.rounds:.0f}"),
    )


def _against(result: StudyResult, cell: Cell) -> TableCell:
    if cell.against is None:
        return TableCell("reference" if cell.variant == result.study.reference else "")
    return TableCell(_difference(*cell.against), sign=_sign(result, cell))


def _of_tasks(values: Any, tasks: Sequence[str], metric: str) -> tuple[TableCell, TableCell]:
    """Return the worst task (with its name if all seeds have the same ``tasks``) and the spread: means over seeds."""
    if values is None or values.shape[1] < 2 or np.isnan(values).all(axis=1).any():
        return TableCell(""), TableCell("")
    worse = -1.0 if metric == "rmse" else 1.0
    places = np.nanargmin(worse * values, axis=1)
    worst = np.take_along_axis(values, places[:, None], axis=1)[:, 0]
    counts = Counter(tasks[i] for i in places).most_common() if tasks else []
    note = ", ".join(name if len(places) == 1 else f"{name} ({n} of {len(places)} seeds)" for name, n in counts[:2])
    return TableCell(spread(*interval(worst)), note), TableCell(f"{np.nanstd(values, axis=1).mean():.3f}")


def certificates(result: StudyResult) -> Table | None:
    """Return relative gaps of every method at every place, in words, with tuned settings.

    The gaps are the mean and the largest over seeds.
    """
    groups = [(place_text(at), tuple(_certified(result, at))) for at in result.places]
    certified_groups = tuple((name, rows) for name, rows in groups if rows)
    if not certified_groups:
        return None
    columns = zip(*(row for _, rows in certified_groups for row in rows), strict=True)
    heads = ("", "relative gap", "largest", "in words (largest gap)", "tuned settings")
    single_seed = all(len(result.records(name, at)) < 2 for name in result.labels for at in result.places)
    has_tuning = any(cell.text != "–" for cell in list(columns)[-1])
    columns_shown = [i for i in range(len(heads)) if not (single_seed and i == 2) and (has_tuning or i < 4)]
    head = tuple("in words" if single_seed and i == 3 else heads[i] for i in columns_shown)
    return Table(
        head,
        tuple((name, tuple(tuple(row[i] for i in columns_shown) for row in rows)) for name, rows in certified_groups),
        MEANING,
    )


def bill(result: StudyResult) -> Table | None:
    """Return the ledger of a single run: spending of each tier on each type, and the remaining budget."""
    records = [record for name in result.running for at in result.places for record in result.records(name, at)]
    if len(records) != 1 or not records[0].bill or records[0].result is None:
        return None
    (record,), (limits, spent) = records, (records[0].result.budget, records[0].result.spent)
    kinds = list(dict.fromkeys(line.type for line in record.bill))
    amounts = {(line.tier, line.type): line.amount for line in record.bill}
    tiers = dict.fromkeys(line.tier for line in record.bill)
    names = {tier: "the cloud" if tier == "cloud" else f"{tier}s" for tier in tiers}
    rows = {names[tier]: [amounts.get((tier, kind)) for kind in kinds] for tier in tiers}
    rows["spent"] = [spent.get(kind) for kind in kinds]
    rows["budget"] = [limits.get(kind) for kind in kinds]
    rows["left"] = [limits[kind] - spent[kind] if kind in limits else None for kind in kinds]
    body = tuple((TableCell(name), *(TableCell(short(value)) for value in row)) for name, row in rows.items())
    return Table(("", *kinds), (("", body),))


def _certified(result: StudyResult, at: At) -> Iterator[tuple[TableCell, ...]]:
    for name in result.labels:
        records = result.records(name, at)
        results = [r.result for r in records if r.result is not None and r.result.relative_gap is not None]
        if not results:
            continue
        gaps = [float(entry.relative_gap or 0.0) for entry in results]
        worst = results[int(np.argmax(gaps))]
        chosen = Counter(tuned(record) for record in records if record.tuning is not None)
        notes = [f"{text} ({count} of {len(records)} seeds)" for text, count in chosen.most_common()]
        settings = notes if len(chosen) > 1 else list(chosen)
        yield (
            _method_name(result, name),
            TableCell(f"{np.mean(gaps):.2g}"),
            TableCell(f"{max(gaps):.2g}"),
            TableCell(worst.certified),
            TableCell(settings[0] if settings else "–", "\n".join(settings[1:])),
        )


def tasks(record: Record) -> Table | None:
    """Return the metrics of every task of a run, and their means."""
    metrics = record.by_task
    if record.result is None or not metrics:
        return None
    means = record.result.metrics
    rows = [
        (TableCell(task), *(TableCell(_text(values[b])) for values in metrics.values()))
        for b, task in enumerate(record.tasks)
    ]
    mean = (TableCell("mean over tasks"), *(TableCell(_text(means[name])) for name in metrics))
    return Table(("", *(metric_name(name) for name in metrics)), (("", (*rows, mean)),))


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def differences(result: StudyResult) -> Table | None:
    """Return every difference to the reference with its interval and verdict."""
    groups = []
    for at in result.places:
        rows = tuple(
            (
                _method_name(result, cell.variant),
                TableCell(_difference(*cell.against)),
                TableCell(cell.verdict or "single seed: no test"),
            )
            for cell in (result.cell(name, at) for name in result.labels)
            if cell.against is not None
        )
        if rows:
            groups.append((place_text(at), rows))
    if not groups:
        return None
    name, reference = metric_name(result.study.metric), result.labels[result.study.reference]
    pair = (f"{name} of {reference}", name) if result.study.sign < 0 else (name, f"{name} of {reference}")
    note = f"{pair[0][:1].upper()}{pair[0][1:]} minus {pair[1]}, paired over seeds; positive is better."
    return Table(("", "difference", "verdict"), tuple(groups), note)


def _difference(difference: float, half: float | None) -> str:
    return signed(difference) + ("" if half is None else f" ± {half:.3f}")
