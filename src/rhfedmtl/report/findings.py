"""Sentences at the top of a chapter. The first says who is ahead, by how much, and where not."""

from __future__ import annotations

from collections.abc import Sequence

from rhfedmtl.report.words import focus, metric_name, place_text, spread
from rhfedmtl.studies.claims import FAILS
from rhfedmtl.studies.study import EVEN, At, Cell, StudyResult, judged

MOST_EXCEPTIONS = 3
"""Methods that the first sentence names as level or ahead somewhere."""
MOST_PLACES = 2


def findings(result: StudyResult) -> list[str]:
    """Return the findings of a study.

    A finding derived from the cells comes first, unless the study has its own findings and paper values. The last
    sentences name refused and diverged runs with the reason.
    """
    study_findings = result.study.findings
    derived = [] if study_findings and result.study.paper else _derived(result)
    refused = [f"Not run: {reason}" for reason in result.refusals()]
    return [text for text in [*derived, *study_findings, *refused] if text]


def contradicts(finding: str) -> bool:
    """Return True if a finding says that it contradicts the paper, or that a claim of the paper fails."""
    return "contradicts the paper" in finding.lower() or f" {FAILS}: " in finding


def _derived(result: StudyResult) -> list[str]:
    """Return who is ahead, and along another axis than the budget also the best and worst place of the reference.

    If no two methods can be compared, return the best result at the largest budget.
    """
    at, x = focus(result), result.study.x
    texts = [_ahead(result)]
    if x is not None and not x.startswith("budget.") and len(result.study.axes[x]) > 1:
        texts.append(_extremes(result, at, x))
    elif not texts[0] and (best := result.best(at)) is not None:
        texts.append(_reached(result, result.cell(best, at)))
    return texts


def _reached(result: StudyResult, cell: Cell) -> str:
    record = result.records(cell.variant, cell.at)[0]
    where = f"At {place_text(cell.at)}, " if cell.at else ""
    value = f"{metric_name(result.study.metric)} {spread(cell.mean or 0.0, cell.half)}"
    size = f" over {len(record.tasks)} tasks after {cell.rounds:g} rounds" if len(record.tasks) > 1 else ""
    ending = "" if record.result is None else f"; certificate: {record.result.certified}"
    return f"{where}{result.labels[cell.variant]} reaches {value}{size}{ending}."


def _ahead(result: StudyResult) -> str:
    """Return who is ahead of the next best and by how much, and which methods are level or ahead somewhere.

    The leader has the best mean over all places. A method that moves data works on an easier problem, so it competes
    only if fewer than two methods keep data in place.
    """
    movers = result.moving
    staying = [name for name in result.running if name not in movers]
    candidates = staying if len(staying) > 1 else result.running
    leads = {
        name: {rival: pair for rival in result.running if (pair := result.mean_difference(name, rival)) is not None}
        for name in candidates
    }
    nearest = {
        name: min((rival for rival in by_rival if rival in candidates), key=lambda rival: by_rival[rival][0])
        for name, by_rival in leads.items()
        if any(rival in candidates for rival in by_rival)
    }
    if not nearest:
        return ""
    leader = max(nearest, key=lambda name: leads[name][nearest[name]][0])
    labels = {name: result.labels[name] + (", which moves data," if name in movers else "") for name in result.running}
    (lead, half), first, second = leads[leader][nearest[leader]], labels[leader], labels[nearest[leader]]
    places = len(result.places)
    means = f" on average over {places} {_axis_words(result)}" if places > 1 else ""
    n_seeds = result.study.seeds
    pairs = "a single seed, so no interval" if half is None else f"95 % interval, paired over {n_seeds} seeds"
    metric = metric_name(result.study.metric)
    times, form, unit = (1.0, ".3g", metric) if metric == "RMSE" else (100.0, ".1f", f"points of {metric}")
    interval = "" if half is None else f" ± {times * half:{form}}"
    margin = f"by {times * lead:{form}}{interval} {unit}{means} ({pairs})"
    among = " of the methods that keep data in place" if movers - set(candidates) else ""
    if half is None or lead > half:
        text = f"{first} is ahead of {second}, the next best{among}, {margin}"
    else:
        text = f"No method{among} is significantly ahead: {first} leads {second} {margin}"
    others = [name for name in leads[leader] if places > 1 or name != nearest[leader]]
    exceptions = [f"{labels[name]} is {words}" for name in others if (words := _standing(result, leader, name))]
    hidden = len(exceptions[MOST_EXCEPTIONS:])
    rest = [f"{hidden} more are level or ahead somewhere"] if hidden else []
    return f"{'; '.join([text, *exceptions[:MOST_EXCEPTIONS], *rest])}."


def _standing(result: StudyResult, leader: str, name: str) -> str:
    """Return where another method is ahead of the leader or level with it; with a single seed, the sign decides."""
    ahead, level = list[At](), list[At]()
    for at in result.places:
        difference = result.difference(leader, at, name)
        if difference is None:
            if result.values(leader, at) is None and result.values(name, at) is not None:
                ahead.append(at)
        elif judged(difference) == EVEN:
            level.append(at)
        elif difference[0] < 0.0:
            ahead.append(at)
    parts = (("ahead of it", ahead), ("level with it", level))
    return " and ".join(f"{words}{_where(result, where)}" for words, where in parts if where)


def _where(result: StudyResult, where: Sequence[At]) -> str:
    places = len(result.places)
    if len(where) > MOST_PLACES or len(where) == places:
        return "" if places == 1 else f" at {len(where)} of {places} {_axis_words(result)}"
    return f" at {' and at '.join(place_text(at) for at in where)}"


def _axis_words(result: StudyResult) -> str:
    return "budgets" if all(axis.startswith("budget.") for axis in result.study.axes) else "settings"


def _extremes(result: StudyResult, at: At, x: str) -> str:
    study = result.study
    other_axes = {axis: value for axis, value in at.items() if axis != x}
    cells = [cell for place in study.line(other_axes) if (cell := result.cell(study.reference, place)).mean is not None]
    if not cells:
        return ""
    ordered = sorted(cells, key=lambda c: -study.sign * (c.mean or 0.0))
    where = f"At {place_text(other_axes)}, " if other_axes else ""
    best, worst = (
        f"at {place_text({x: c.at[x]})} ({spread(c.mean or 0.0, c.half)})" for c in (ordered[0], ordered[-1])
    )
    name, metric = result.labels[study.reference], metric_name(study.metric)
    return f"{where}{name} has its best {metric} {best}, and its worst {worst}."
