"""Claims of the paper about a study, each tested on the results of all seeds.

A specification states a claim in ``[[claims]]``: the sentence, the kind of test, and the methods. Every test is a
difference of means over cells, paired by seed, with its 95 % interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.maths.intervals import interval
from rhfedmtl.studies.study import EVEN, At, Claim, StudyResult, grid, judged, short, signed, value_text

KINDS = {
    "ahead": 2,
    "narrows": 2,
    "rises": 1,
    "falls": 1,
    "peaks": 1,
}
"""Kinds of claims, and the number of methods that each needs."""
FAILS = "Fails"
VERDICTS = {"better": "Holds", "worse": FAILS, EVEN: "Not distinguishable", "": "No interval from a single seed"}


class Tested(NamedTuple):
    """Verdict on a claim, and the figure behind it in words."""

    verdict: str
    figure: str


def verdict_on(result: StudyResult, claim: Claim) -> Tested | None:
    """Return the verdict on a claim; or None without results, or on an axis of two values for "peaks"."""
    axis = claim.along or result.study.x or ""
    values = result.study.axes[axis]
    panels = grid({name: points for name, points in result.study.axes.items() if name != axis})
    places = [[{**at, axis: value} for value in values] for at in panels]
    complete = [line for line in places if all(_has_result(result, claim, at) for at in line)]
    if not complete:
        return None
    curve = np.array([_mean(result, claim.methods, group) for group in zip(*complete, strict=True)])  # values × seeds
    first, last = (f"{short(axis)} = {value_text(value)}" for value in (values[0], values[-1]))
    named = [", ".join(f"{short(name)} = {value_text(at[name])}" for name in panels[0]) for at, *_ in complete]
    where = "" if len(complete) == len(places) else f", at {' and '.join(named)}"
    if claim.kind == "ahead":
        verdict, figure = _judged(curve.mean(axis=0))
    elif claim.kind == "peaks":
        if len(values) < 3:
            return None
        top = 1 + int(curve[1:-1].mean(axis=1).argmax())
        rise, fall = _judged(curve[top] - curve[0]), _judged(curve[top] - curve[-1])
        verdict = rise.verdict if rise.verdict == fall.verdict else VERDICTS[EVEN]
        peak = value_text(values[top])
        figure = f"at its peak, {peak}, {rise.figure} against {first} and {fall.figure} against {last}"
    else:
        change = curve[-1] - curve[0]
        verdict = _judged(change if claim.kind == "rises" else -change).verdict
        figure = f"{_judged(change).figure} from {first} to {value_text(values[-1])}"
    return Tested(verdict, figure + where)


def _has_result(result: StudyResult, claim: Claim, at: At) -> bool:
    return all(result.values(name, at) is not None for name in claim.methods)


def _mean(result: StudyResult, methods: Sequence[str], places: Sequence[At]) -> npt.NDArray[np.float64]:
    """Return for every seed the mean over places of the first method, minus the second if there are two."""
    means = []
    for name in methods:
        values = [values for at in places if (values := result.values(name, at)) is not None]
        means.append(result.study.sign * np.mean(values, axis=0))
    return np.asarray(means[0] if len(means) == 1 else means[0] - means[1])


def _judged(differences: npt.NDArray[np.float64]) -> Tested:
    mean, half = interval(100.0 * differences)
    text = f"{signed(mean, '.1f')}{'' if half is None else f' ± {half:.1f}'} points"
    return Tested(VERDICTS[judged((mean, half))], text)


def sentences(result: StudyResult) -> list[str]:
    """Return a sentence for each claim of the study: the claim, the verdict and the figure."""
    lines = []
    for claim in result.study.claims:
        outcome = verdict_on(result, claim)
        if outcome is not None:
            lines.append(f"The paper says: {claim.says} {outcome.verdict}: {outcome.figure}.")
    return lines


def pair_differences(result: StudyResult) -> list[str]:
    """Return the difference of the two methods of the paper's main claim, next to the printed difference.

    There is a sentence for each place of the axes other than ``x``; it has the mean over all values of ``x``.
    """
    study, parts = result.study, []
    if not study.pair:
        return []
    claim = Claim("", "ahead", study.pair)
    first, second = study.pair
    for at in study.others:
        line = study.line(at)
        if not all(_has_result(result, claim, place) for place in line):
            continue
        mean, half = interval(100.0 * _mean(result, study.pair, line))
        half_text = "" if half is None else f" ± {half:.1f}"
        printed = [result.printed_difference(first, second, place) for place in line]
        values = [value for value in printed if value is not None]
        paper = (
            f" (the paper prints {signed(100.0 * float(np.mean(values)), '.1f')})" if len(values) == len(line) else ""
        )
        where = ", ".join(f"{short(axis)} = {value_text(value)}" for axis, value in at.items())
        parts.append(f"{signed(mean, '.1f')}{half_text} points{paper}{where and f' at {where}'}")
    labels = [result.labels[name] for name in study.pair]
    along = f", mean over all values of {short(study.x)}" if study.x else ""
    return [f"{labels[0]} minus {labels[1]}{along}: {'; '.join(parts)}."] if parts else []
