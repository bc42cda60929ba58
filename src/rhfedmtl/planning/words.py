"""Turn a plan into text, for the command line and the what-if page."""

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
    """Return a short summary of a plan: the work, the binding budget, and the expected result."""
    times = "once" if report.rounds == 1 else f"in each of {report.rounds:,} rounds"
    ends = f"; {report.binding} runs out first" if report.binding else ""
    text = f"Every terminal makes {report.local_steps:,} local steps {times}{ends}."
    gap, remaining = report.predicted_gap, report.remaining_suboptimality
    if report.privacy is not None:  # The model of progress ignores noise.
        lost = 100.0 * next(
            point["lost"] for point in report.privacy.buys if point["epsilon"] == report.privacy.epsilon
        )
        return f"{text} Noise costs about {lost:.2g} points of accuracy."
    if gap is not None:
        likely = f"{percent(gap.level)} of such runs end between {gap.low:.2g} and {gap.high:.2g}"
        return f"{text} The certified gap at the end is about {gap.expected:.2g}; {likely}."
    if remaining is None or not math.isfinite(remaining):
        return text
    share = f"About {percent(remaining)}" if remaining >= 1e-4 else "Less than 0.01 %"
    return f"{text} {share} of the initial suboptimality then remains; this is an estimate, not a guarantee."


def facts(report: PlanReport) -> list[tuple[str, str]]:
    """Return the facts of a plan without its curve and notes, including the gain from 1 % more of each budget."""
    more = [
        (f"1 % more {name}", f"reduces the rest by another {fall(report.shadow_price[name] * limit / 100)}")
        for name, limit in report.budget.items()
    ]
    return [*work(report), *outcome(report), *more]


def work(report: PlanReport) -> list[tuple[str, str]]:
    """Return H, K, M and their totals."""
    low, high = report.local_steps_range
    varies = "" if low == high else f" at first, {low} to {high} over the run"
    lines = [("H", f"{report.local_steps}{varies} (local steps of a terminal in a round)")]
    if report.local_steps_by_station is not None:
        parts = [f"{a}" if a == b else f"{a}–{b}" for a, b in report.local_steps_by_station[:12]]
        lines.append(("H by station", ", ".join(parts) + (" …" if len(report.local_steps_by_station) > 12 else "")))
    cut = " planned, cut short by the budget" if report.station_rounds > report.rounds else ""
    lines += [
        ("K", f"{report.station_rounds:,}{cut} (rounds of a station in a server iteration)"),
        ("M", f"{how_many(report.cloud_rounds, 'server iteration')}; {how_many(report.rounds, 'round')} in total"),
        ("work", f"{report.terminal_steps:,} terminal steps; stops with: {report.stopped}"),
    ]
    if report.weights and report.privacy is None:
        lines.append(("weights", weights_text(report.weights)))
    return lines


def weights_text(weights: Mapping[str, float | None]) -> str:
    """Return λ1 and λ2 as text."""
    return ", ".join(f"{name} {value:.3g}" for name, value in weights.items() if value is not None)


def outcome(report: PlanReport) -> list[tuple[str, str]]:
    """Return the binding budget, the remaining suboptimality and the predicted gap."""
    free = "no limited type is used" if not any(report.share.values()) else report.stopped
    lines = [("binding", report.binding or f"no budget: {free}")]
    if report.privacy is not None:  # Bounds and models of progress ignore noise.
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
    """Return the facts of a plan under a bound on privacy."""
    noise = "" if plan.predicted_noise is None else f", which may cost {number(plan.predicted_noise)} of the objective"
    bought = ", ".join(f"{100.0 * point['lost']:.2g} at {point['epsilon']:g}" for point in plan.buys)
    more = f"0.1 more of epsilon: noise costs {fall(plan.shadow_price['epsilon'] / 10)} less"
    return [
        ("privacy", f"epsilon {plan.spent['epsilon']:.4g} at delta {plan.delta:g} in {plan.rounds} rounds; {more}"),
        ("clip, noise", f"updates clipped to {plan.clip:.3g}, noise {plan.noise:.3g} on their sum{noise}"),
        ("weights", weights_text({"lambda1": plan.lambda1, "lambda2": plan.lambda2})),
        ("epsilon", f"accuracy lost, in points, about: {bought}"),
        ("terminals", f"with about {plan.enough_terminals:,} terminals per station, noise costs a point of accuracy"),
    ]


def ranges(ranges: list[list[int]]) -> str:
    """Return stretches of H as text."""
    from rhfedmtl.planning.plan import MOST_PLANNED_STEPS

    parts = (f"{a}" if a == b else f"{a} and more" if b >= MOST_PLANNED_STEPS else f"{a} to {b:,}" for a, b in ranges)
    return ", ".join(parts) or "none"


def fall(price: float) -> str:
    """Return the relative fall of a number whose logarithm falls by ``price``."""
    return "0" if price == 0.0 else percent(-math.expm1(-price))


def percent(share: float | None) -> str:
    """Return a share in percent with two digits, or a whole number from 10 %."""
    percent = 100 * (share or 0.0)
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def number(value: float | None) -> str:
    """Return a number with four digits."""
    if value is None or not math.isfinite(value):
        return "∞" if value is not None else ""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e7):
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
