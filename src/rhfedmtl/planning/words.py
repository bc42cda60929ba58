"""A plan in words, for the terminal and for the live page alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rhfedmtl.roles.words import how_many

if TYPE_CHECKING:
    from rhfedmtl.planning.plan import PlanReport
    from rhfedmtl.training.privacy import PrivatePlan


AFFORDABLE = {"starved": "no", "enough": "some", "surplus": "every"}


def sentence(report: PlanReport) -> str:
    """A plan for who reads one line: the work, what ends it, and what is reached."""
    times = "once" if report.rounds == 1 else f"in each of {report.rounds:,} rounds"
    ends = f"; {report.binding} runs out first" if report.binding else ""
    text = f"Every terminal makes {report.local_steps:,} local steps {times}{ends}."
    gap, remaining = report.predicted_gap, report.remaining_suboptimality
    if report.privacy is not None:  # the model of progress knows nothing of noise
        lost = 100.0 * next(each["lost"] for each in report.privacy.buys if each["epsilon"] == report.privacy.epsilon)
        return f"{text} Noise takes about {lost:.2g} points of accuracy."
    if gap is not None:
        likely = f"{percent(gap.level)} of such runs end between {gap.low:.2g} and {gap.high:.2g}"
        return f"{text} The certified gap at the end is about {gap.expected:.2g}; {likely}."
    if remaining is None or not math.isfinite(remaining):
        return text
    left = f"About {percent(remaining)}" if remaining >= 1e-4 else "Less than 0.01 %"
    return f"{text} {left} of what there is to gain is then left, by a model that is no promise."


def facts(report: PlanReport) -> list[tuple[str, str]]:
    """All that is told of a plan but its curve and its notes, what a little more of each budget would buy among it."""
    more = [
        (f"1 % more {name}", f"takes another {fall(report.shadow_price[name] * limit / 100)} off what remains")
        for name, limit in report.budget.items()
    ]
    return [*work(report), *outcome(report), *more]


def work(report: PlanReport) -> list[tuple[str, str]]:
    """H, K, M and what they add up to."""
    low, high = report.local_steps_range
    varies = "" if low == high else f" at first, {low} to {high} over the run"
    lines = [("H", f"{report.local_steps}{varies} (rows that a terminal visits in a round)")]
    if report.local_steps_by_station is not None:
        parts = [f"{a}" if a == b else f"{a}–{b}" for a, b in report.local_steps_by_station[:12]]
        lines.append(("H by station", ", ".join(parts) + (" …" if len(report.local_steps_by_station) > 12 else "")))
    cut = " planned, cut short by the budget" if report.station_rounds > report.rounds else ""
    lines += [
        ("K", f"{report.station_rounds:,}{cut} (rounds of a station in a server iteration)"),
        ("M", f"{how_many(report.cloud_rounds, 'server iteration')}; {how_many(report.rounds, 'round')} in all"),
        ("work", f"{report.terminal_steps:,} terminal steps, ends with: {report.stopped}"),
    ]
    if report.weights and report.privacy is None:
        lines.append(("weights", weights_text(report.weights)))
    return lines


def weights_text(weights: Mapping[str, float | None]) -> str:
    """λ1 and λ2 in a line."""
    return ", ".join(f"{name} {value:.3g}" for name, value in weights.items() if value is not None)


def outcome(report: PlanReport) -> list[tuple[str, str]]:
    """What binds, what remains, and what is predicted."""
    free = "no limited type is used" if not any(report.share.values()) else report.stopped
    lines = [("binding", report.binding or f"nothing: {free}")]
    if report.privacy is not None:  # bounds and models of progress know nothing of noise
        return lines + _private(report.privacy)
    if report.case is not None:
        some = AFFORDABLE[report.case]
        lines.append(("case", f"{report.case}: {some} H is affordable by the bound '{report.case_by}'"))
    together = report.feasible_steps.get("together", [])
    if len(report.budget) > 1:
        lines.append(("feasible H", f"{ranges(together)} under all budgets together"))
    remaining = number(report.remaining_suboptimality)
    lines.append(("remaining", f"{remaining} of the initial suboptimality, by the model of progress"))
    gap = report.predicted_gap
    if gap is not None:
        interval = f"between {gap.low:.2e} and {gap.high:.2e} ({percent(gap.level)})"
        lines.append(("final gap", f"{gap.expected:.2e}, {interval}"))
    return lines


def _private(plan: PrivatePlan) -> list[tuple[str, str]]:
    """What a bound on privacy buys."""
    noise = "" if plan.predicted_noise is None else f", which may cost {number(plan.predicted_noise)} of the objective"
    bought = ", ".join(f"{100.0 * each['lost']:.2g} at {each['epsilon']:g}" for each in plan.buys)
    more = f"0.1 more of epsilon: noise costs {fall(plan.shadow_price['epsilon'] / 10)} less"
    return [
        ("privacy", f"epsilon {plan.spent['epsilon']:.4g} at delta {plan.delta:g} in {plan.rounds} rounds; {more}"),
        ("clip, noise", f"updates up to {plan.clip:.3g}, noise {plan.noise:.3g} on their sum{noise}"),
        ("weights", weights_text({"lambda1": plan.lambda1, "lambda2": plan.lambda2})),
        ("epsilon", f"points of accuracy lost, about: {bought}"),
        ("terminals", f"about {plan.enough_terminals:,} under a station lose a point of accuracy"),
    ]


def ranges(ranges: list[list[int]]) -> str:
    """Stretches of H."""
    from rhfedmtl.planning.plan import MOST_STEPS

    parts = (f"{a}" if a == b else f"{a} and more" if b >= MOST_STEPS else f"{a} to {b:,}" for a, b in ranges)
    return ", ".join(parts) or "none"


def fall(price: float) -> str:
    """Relative fall of a number whose logarithm falls by ``price``."""
    return "0" if price == 0.0 else percent(-math.expm1(-price))


def percent(share: float | None) -> str:
    """A share to two digits, or to whole percents above ten."""
    percent = 100 * (share or 0.0)
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def number(value: float | None) -> str:
    """A number to four digits."""
    if value is None or not math.isfinite(value):
        return "∞" if value is not None else ""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e7):
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
