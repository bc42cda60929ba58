"""Print facts, tables and studies on a terminal, in at most 80 columns.

All commands print through this module, which also formats numbers, certificates and privacy statements. Text from other
nodes passes through `printable`.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from rhfedmtl.roles.words import bounded, by_solver, how_many, in_words

if TYPE_CHECKING:
    from rich.console import Console

    from rhfedmtl.studies.overall import Overall
    from rhfedmtl.studies.study import StudyResult

WIDTH = 80


def width() -> int:
    """Return the number of columns to use: the width of the terminal, at most 80."""
    return min(WIDTH, shutil.get_terminal_size().columns)


def console() -> Console:
    """Return a rich console for tables; it shows brackets and colons in names literally."""
    from rich.console import Console

    return Console(width=width(), soft_wrap=False, highlight=False, markup=False, emoji=False)


def printable(text: str) -> str:
    """Replace characters that control a terminal or start a line, because other nodes may have written the text."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def fact(name: str, text: str, column: int = 14) -> None:
    """Print a name and a text; continuation lines are indented."""
    paragraph(text, first=f"{name:<{column - 1}} ", others=" " * column)


def paragraph(text: str, first: str = "", others: str = "") -> None:
    """Print a text, wrapped."""
    typer.echo(textwrap.fill(text, width(), initial_indent=first, subsequent_indent=others, break_on_hyphens=False))


def amount(x: float) -> str:
    """Return an amount as text, such as 1,400 or 299.2."""
    is_integer = abs(x) < 1e15 and (x == int(x) or abs(x) >= 1e5)
    return f"{x:,.0f}" if is_integer else f"{x:,.6g}"


def metric(value: float | None) -> str:
    """Return a metric with three digits, or a dash without a value."""
    return "-" if value is None or value != value else f"{value:.3f}"  # noqa: PLR0124 (NaN is not itself)


def certified(facts: Mapping[str, Any]) -> str:
    """Return the certificate as a statement with its numbers."""
    if private := facts.get("privacy"):
        return bounded(facts["gap"], facts["primal_at_zero"], private["certificate"]["probability"])
    words = in_words(facts.get("relative_gap"), facts.get("dual"))
    if facts.get("gap") is None:
        return f"{words}; objective {facts['primal']:.6f}" if facts.get("primal") is not None else words
    return f"{words} (gap {facts['gap']:.2e}: primal {facts['primal']:.6f}, dual {facts['dual']:.6f})"


def private_facts(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the facts of a plan with a bound on privacy, and its notes."""
    bound = f"privacy loss of a terminal at most epsilon {plan['epsilon']:g} at delta {plan['delta']:g}"
    if plan.get("simulation"):
        bound = f"simulated only, as if {bound}"
    noise = f"updates clipped to {plan['clip']:.3g}, noise {plan['noise']:.3g} on their sum"
    yield "privacy", f"{bound}: {plan['rounds']} rounds, {noise}"
    yield from (("note", note) for note in plan["notes"])


def show_run(facts: dict[str, Any], tasks: Sequence[str], metrics: Mapping[str, Any], more: Mapping[str, str]) -> None:
    """Print a run: its test results by task, and its facts."""
    from rich.table import Table

    if metrics:
        typer.echo(f"{facts['algorithm']}: test results by task")
        table = Table()
        table.add_column("task")
        for name in metrics:
            table.add_column(name.replace("_", " "), justify="right")
        for b, task in enumerate(tasks[:20]):
            table.add_row(task, *(metric(values[b]) for values in metrics.values()))
        if len(tasks) > 20:
            table.add_row(f"… {len(tasks) - 20} more", *("" for _ in metrics))
        table.add_section()
        table.add_row("mean", *(metric(facts[name]) for name in metrics), style="bold")
        console().print(table)
    else:
        typer.echo(f"{facts['algorithm']}: no task has test rows, so there are no test results")
    fact("certificate", certified(facts))
    work = f"{how_many(facts['rounds'], 'round')} in {how_many(facts['cloud_rounds'], 'server iteration')}"
    fact("work", f"{work}: {by_solver(facts['rounds_by_solver'])}" if facts["rounds_by_solver"] else work)
    steps = facts["local_steps"]
    H = str(steps[0]) if len(set(steps)) == 1 else f"{min(steps)} to {max(steps)}"
    fact("local steps", f"H = {H}, {facts['terminal_steps']:,} in total")
    for name, spent in facts["spent"].items():
        limit = facts["budget"].get(name)
        fact("spent", f"{name} {amount(spent)}" + (f" of {amount(limit)}" if limit is not None else ""))
    if "bytes" in facts["spent"]:
        fact(
            "evaluation",
            "not charged (--free-evaluation)" if facts.get("free_evaluation") else "its messages were charged",
        )
    if "privacy" in facts:
        for name, text in private_facts(facts["privacy"]):
            fact(name, text)
    if "tuning" in facts:
        chosen = ", ".join(f"{name}={value}" for name, value in facts["tuning"]["chosen"].items())
        fact("tuned", f"{chosen or 'no settings'} ({facts['tuning']['trials']} trials, not charged)")
    for note in facts.get("notes", ()):
        fact("note", note)
    fact("stopped", f"{facts['stopped']}, after {facts['seconds']:.2f} s")
    for name, text in more.items():
        fact(name, text)


def show_study(result: StudyResult) -> None:
    """Print a study: a table for each combination of the other axes, with the best value marked."""
    from rich.table import Table
    from rich.text import Text

    from rhfedmtl.studies.overall import overall
    from rhfedmtl.studies.study import MOVES_DATA, short

    # The mark has a line of its own: four budgets then fit into 80 columns.
    heads = {name: f"{name}\n{MOVES_DATA}" if name in result.moving else name for name in result.labels}
    mark = f", {MOVES_DATA} pools rows of several terminals" if result.moving else ""
    screen, study = console(), result.study
    x = study.x
    for place in study.others:
        line = study.line(place)
        fixed = ", ".join(f"{short(axis)} {value}" for axis, value in place.items())
        measure = study.metric.replace("_", " ")
        seeds_text = f"mean over {study.seeds} seeds, ± half of the 95 % interval" if study.seeds > 1 else "one seed"
        paragraph(f"{measure}{', ' + fixed if fixed else ''}: {seeds_text}, * best method{mark}")
        for part in (line[i : i + 4] for i in range(0, len(line), 4)):
            table = Table()
            table.add_column("method", no_wrap=True)
            for at in part:
                table.add_column(f"{short(x)} {at[x]:g}" if x else "", justify="right")
            for name in result.labels:
                texts: list[str | Text] = []
                for at in part:
                    cell = result.cell(name, at)
                    text = "-" if cell.mean is None else _with_half(cell.mean, cell.half, ".3f")
                    best = cell.mean is not None and result.best(at) == name
                    texts.append(Text.assemble((text, "bold"), "*") if best else text)
                table.add_row(heads[name], *texts)
            screen.print(table)
        rows = overall(result, place)
        if len(rows) < 2:
            continue
        # The area summarises all values of the axis x. Objectives differ between methods, so each has its own range.
        largest = f"{short(x or '')} {line[-1][x or '']:g}"
        title = f"area under {measure} against log {short(x or '')}; certified range of the optimum at {largest}"
        table = Table(title=title, title_justify="left")
        for head in ("method", "area", f"against {study.reference}", "mean rank", "optimum"):
            table.add_column(head, justify="left" if head == "method" else "right", no_wrap=head == "method")
        for row in rows:
            against = "" if row.against is None else _with_half(*row.against, "+.3f")
            area = _with_half(row.area, row.half, ".3f")
            table.add_row(heads[row.variant], area, against, f"{row.rank:.1f}", _range(row))
        screen.print(table)


def show_lambda2(result: StudyResult) -> None:
    """Print λ2 of each method, and name methods that cannot choose it."""
    if lambda2 := result.weight_ranges("lambda2"):
        paragraph("; ".join(f"{label} {values}" for label, values in lambda2.items()), "lambda2: ")
    if labels := result.lambda2_kept():
        verb = "chooses" if len(labels) == 1 else "choose"
        paragraph(
            f"{', '.join(labels)} {verb} no lambda2, because the method has no dual variables: give --lambda2, or "
            "--tune, which chooses the settings of every method",
            "note: ",
        )


def _range(row: Overall) -> str:
    """Return the certified range of the optimum, or the relative gap of a private run, which releases no bounds."""
    if row.optimum is None:
        return "-" if row.relative_gap is None else f"relative gap {row.relative_gap:.2g}"
    return "{:.3g} to {:.3g}".format(*row.optimum)


def _with_half(value: float, half: float | None, form: str) -> str:
    """Return a number with the half width of its interval; a single seed has no interval."""
    return f"{value:{form}}" if half is None else f"{value:{form}}±{half:.3f}"
