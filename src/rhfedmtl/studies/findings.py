"""Findings of a study in sentences: comparisons with the reference and with the values that the paper prints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rhfedmtl.maths.intervals import interval
from rhfedmtl.studies.claims import pair_differences, sentences
from rhfedmtl.studies.study import EVEN, MOVES_DATA, Cell, StudyResult, short, signed

MAX_METHODS_IN_WORDS = 6
"""With more methods than this, a summary has the main finding alone."""
OPPOSITE = {"better": "worse", "worse": "better", EVEN: EVEN}


def main_findings(result: StudyResult) -> list[str]:
    """Return the headline and the differences of all methods, or their verdicts if there is no headline."""
    finding, few = headline(result), len(result.running) <= MAX_METHODS_IN_WORDS
    if not finding:
        return verdicts(result) if few else []
    return [finding, by_method(result)] if few else [finding]


def headline(result: StudyResult) -> str:
    """Return the main finding in a sentence: the reference against its rivals, cell by cell.

    If the reference keeps data in place, rivals that move data get a sentence of their own, because moving data avoids
    the cost that the others pay. The sentence is empty with fewer than two rivals, and with a single seed.
    """
    labels, reference = _marked_labels(result), result.study.reference
    cells = [c for c in result.cells if c.variant in result.running and c.verdict]
    if len({c.variant for c in cells}) < 2:
        return ""
    moving = frozenset[str]() if reference in result.moving else result.moving
    in_place = [c for c in cells if c.variant not in moving]
    sentences = []
    if rivals := list(dict.fromkeys(c.variant for c in in_place)):
        group = "methods that keep data in place" if len(in_place) < len(cells) else "the other methods"
        counted = _counted([OPPOSITE[c.verdict] for c in in_place], group if len(rivals) > 1 else labels[rivals[0]])
        differences = {name: _mean_difference([c for c in in_place if c.variant == name]) for name in rivals}
        closest = max(rivals, key=lambda name: differences[name])
        amount = _amount(result, abs(differences[closest]))
        side = f"{amount} {'ahead' if differences[closest] > 0.0 else 'behind'}"
        side = side if float(amount.split()[0]) else "level"
        more = f"; the closest, {labels[closest]}, is {side} on average"
        sentences.append(f"{labels[reference]} is {counted}{more if len(rivals) > 1 else ''}.")
    for name in dict.fromkeys(c.variant for c in cells if c.variant in moving):
        counted = _counted([c.verdict for c in cells if c.variant == name], labels[reference])
        sentences.append(f"{result.labels[name]} moves data, and is {counted}.")
    return " ".join(sentences)


def by_method(result: StudyResult) -> str:
    """Return the mean difference of every rival to the reference, and the verdicts on its cells, in a sentence."""
    parts = []
    for name, label in _marked_labels(result).items():
        if cells := [c for c in result.cells if c.variant == name and name in result.running and c.verdict]:
            amount = _amount(result, _mean_difference(cells), sign=True)
            parts.append(f"{label} {amount} ({_counts([c.verdict for c in cells])})")
    reference = result.labels[result.study.reference]
    return f"Mean differences to {reference}, paired over {result.study.seeds} seeds: {'; '.join(parts)}."


def verdicts(result: StudyResult) -> list[str]:
    """Return for every variant in how many cells it is better or worse than the reference."""
    lines, labels = [], _marked_labels(result)
    reference = labels[result.study.reference]
    for name in result.running:
        cells = [c for c in result.cells if c.variant == name and c.against is not None]
        if not cells:
            continue
        # The most frequent verdict first, then the mean difference.
        unit = _amount(result, _mean_difference(cells), sign=True)
        if any(c.verdict for c in cells):
            text = _counted([c.verdict for c in cells], reference)
            text += f" ({unit} on average, paired over {result.study.seeds} seeds)"
        else:
            over = f" on average over {len(cells)} cells" if len(cells) > 1 else ""
            text = f"{unit} from {reference}{over}; one seed has no interval"
        line = f"{labels[name]} is {text}."
        # A label of several words begins the sentence with a capital; the name of a method stays.
        lines.append(line[0].upper() + line[1:] if " " in labels[name] else line)
    return lines


def _counted(verdicts: Sequence[str], rivals: str) -> str:
    """Return in how many cells each verdict against the rivals holds."""
    verdict, _, counts = _counts(verdicts).partition(" in ")
    first, comma, following = counts.partition(",")
    return f"{verdict} {'from' if verdict == EVEN else 'than'} {rivals} in {first} cells{comma}{following}"


def _counts(verdicts: Sequence[str]) -> str:
    """Return the count of each verdict, the most frequent verdict first: worse in 3 of 4, better in 1."""
    words = [word for word in ("better", EVEN, "worse") if word in verdicts]
    words.sort(key=lambda word: -verdicts.count(word))
    first = f"{words[0]} in {verdicts.count(words[0])} of {len(verdicts)}"
    return ", ".join([first, *(f"{word} in {verdicts.count(word)}" for word in words[1:])])


def _mean_difference(cells: Sequence[Cell]) -> float:
    """Return the mean over cells of the difference to the reference."""
    return float(np.mean([c.against[0] for c in cells if c.against is not None]))


def _amount(result: StudyResult, difference: float, *, sign: bool = False) -> str:
    """Return a difference in points, or in the unit of the labels."""
    times, form, unit = (1.0, ".3g", "") if result.study.metric == "rmse" else (100.0, ".1f", " points")
    return (signed(times * difference, form) if sign else f"{times * difference:{form}}") + unit


def _marked_labels(result: StudyResult) -> dict[str, str]:
    """Return the labels of variants, with a mark on methods that move data."""
    return {n: f"{label} {MOVES_DATA}" if n in result.moving else label for n, label in result.labels.items()}


def findings(result: StudyResult) -> list[str]:
    """Return the findings of a study in sentences: the paper's main claim, its other claims, and all methods."""
    return [*pair_differences(result), *sentences(result), *verdicts(result), *_recommended(result)]


def _recommended(result: StudyResult) -> list[str]:
    """Compare the paper's recommendation along ``x`` with the best value and with the other variants."""
    x, choice, reference = result.study.x, result.study.choice, result.study.reference
    if choice is None or x is None:
        return []
    lines = []
    for first in (at for at in result.places if at[x] == choice):
        elsewhere = {axis: value for axis, value in first.items() if axis != x}
        best = max(result.study.line(elsewhere), key=lambda at: result.cell(reference, at).mean or 0.0)
        mine, top = result.values(reference, first), result.values(reference, best)
        if mine is not None and top is not None and best != first:
            gain, half = interval(100.0 * (top - mine))
            lines.append(
                f"The best {short(x)} of those shown is {best[x]:g}, {gain:.1f}{_half(half, '.1f')} points above "
                f"the paper's {choice:g} (picked as the best, so a little flattered)."
            )
        for variant, label in result.labels.items():
            against = result.difference(reference, first, variant)
            if against is not None:
                lines.append(
                    f"At the paper's {short(x)} = {choice:g}, {result.labels[reference]} and {label} "
                    f"differ by {signed(100 * against[0], '.2f')}{_half(against[1], '.2f', 100.0)} points."
                )
    return lines


def _half(half: float | None, form: str, times: float = 1.0) -> str:
    """Return half of an interval as text, empty for a single seed."""
    return "" if half is None else f" ± {times * half:{form}}"
