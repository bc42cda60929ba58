"""Findings of a study in sentences: who is ahead, comparisons with the reference, and claims of the paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rhfedmtl.maths.intervals import interval
from rhfedmtl.studies.claims import pair_differences, sentences
from rhfedmtl.studies.study import EVEN, MOVES_DATA, At, Cell, StudyResult, judged, short, signed
from rhfedmtl.studies.words import metric_name, place_text

MAX_METHODS_IN_WORDS = 6
"""With more methods than this, a summary only says who is ahead."""
MOST_EXCEPTIONS = 3
"""Methods that the first sentence names as level or ahead somewhere."""
MOST_PLACES = 2


def main_findings(result: StudyResult) -> list[str]:
    """Return who is ahead and, with two to five rivals, the differences of all methods."""
    several = 2 < len(result.running) <= MAX_METHODS_IN_WORDS
    return [text for text in (who_is_ahead(result), by_method(result) if several else "") if text]


def who_is_ahead(result: StudyResult) -> str:
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
    margin = f"by {times * lead:{form}}{_half(half, form, times)} {unit}{means} ({pairs})"
    among = " of the methods that keep data in place" if movers - set(candidates) else ""
    if half is None or lead > half:
        text = f"{first} is ahead of {second}, the next best{among}, {margin}"
    else:
        nobody = f"None{among}" if among else "No method"
        text = f"{nobody} is significantly ahead: {first} leads {second} {margin}"
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


def by_method(result: StudyResult) -> str:
    """Return the mean difference of every rival to the reference, and the verdicts on its cells, in a sentence."""
    parts = []
    for name, label in _marked_labels(result).items():
        if cells := [c for c in result.cells if c.variant == name and name in result.running and c.against]:
            amount = _amount(result, _mean_difference(cells))
            judged_cells = [c.verdict for c in cells if c.verdict]
            parts.append(f"{label} {amount}{f' ({_counts(judged_cells)})' if judged_cells else ''}")
    reference, seeds = result.labels[result.study.reference], result.study.seeds
    pairs = f", paired over {seeds} seeds" if seeds > 1 else " (a single seed, so no interval)"
    return f"Mean differences to {reference}{pairs}: {'; '.join(parts)}." if parts else ""


def verdicts(result: StudyResult) -> list[str]:
    """Return for every variant in how many cells it is better or worse than the reference."""
    lines, labels = [], _marked_labels(result)
    reference = labels[result.study.reference]
    for name in result.running:
        cells = [c for c in result.cells if c.variant == name and c.against is not None]
        if not cells:
            continue
        # The most frequent verdict first, then the mean difference.
        unit = _amount(result, _mean_difference(cells))
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


def _amount(result: StudyResult, difference: float) -> str:
    """Return a difference with its sign, in points, or in the unit of the labels."""
    times, form, unit = (1.0, ".3g", "") if result.study.metric == "rmse" else (100.0, ".1f", " points")
    return signed(times * difference, form) + unit


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
