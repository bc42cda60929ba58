"""Sentences at the top of a chapter."""

from __future__ import annotations

from rhfedmtl.report.words import focus, spread
from rhfedmtl.studies.claims import FAILS
from rhfedmtl.studies.findings import who_is_ahead
from rhfedmtl.studies.study import At, StudyResult
from rhfedmtl.studies.words import metric_name, place_text


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
    texts = [who_is_ahead(result)]
    if x is not None and not x.startswith("budget.") and len(result.study.axes[x]) > 1:
        texts.append(_extremes(result, at, x))
    elif not texts[0] and (best := result.best(at)) is not None:
        cell, record = result.cell(best, at), result.records(best, at)[0]
        where = f"At {place_text(at)}, " if at else ""
        value = f"{metric_name(result.study.metric)} {spread(cell.mean or 0.0, cell.half)}"
        size = f" over {len(record.tasks)} tasks after {cell.rounds:g} rounds" if len(record.tasks) > 1 else ""
        ending = "" if record.result is None else f"; certificate: {record.result.certified}"
        texts.append(f"{where}{result.labels[best]} reaches {value}{size}{ending}.")
    return texts


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
