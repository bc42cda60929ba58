"""Text on a terminal: lines and tables of at most 80 columns, numbers as people write them."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from rhfedmtl.roles.words import bounded, in_words

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 80


def width() -> int:
    """Columns to use: those of the terminal, 80 at most."""
    return min(WIDTH, shutil.get_terminal_size().columns)


def console() -> Console:
    """A console for tables, no wider than that; names with brackets or colons are shown as they are."""
    from rich.console import Console

    return Console(width=width(), soft_wrap=False, highlight=False, markup=False, emoji=False)


def printable(text: str) -> str:
    """A text without characters that steer a terminal or begin a line: other nodes may have written it."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def fact(name: str, text: str, column: int = 14) -> None:
    """Print one fact, its name in front, wrapped under itself."""
    paragraph(text, first=f"{name:<{column - 1}} ", others=" " * column)


def paragraph(text: str, first: str = "", others: str = "") -> None:
    """Print a text, wrapped."""
    typer.echo(textwrap.fill(text, width(), initial_indent=first, subsequent_indent=others, break_on_hyphens=False))


def amount(x: float) -> str:
    """A number of a bill: 1,400 or 299.2."""
    whole = abs(x) < 1e15 and (x == int(x) or abs(x) >= 1e5)
    return f"{x:,.0f}" if whole else f"{x:,.6g}"


def metric(value: float | None) -> str:
    """A metric to three digits, or a dash where there is none."""
    return "-" if value is None or value != value else f"{value:.3f}"  # noqa: PLR0124 (NaN is not itself)


def certified(facts: Mapping[str, Any]) -> str:
    """The certificate at a glance: in words, and the numbers that they come from."""
    if private := facts.get("privacy"):
        return bounded(facts["gap"], facts["primal_at_zero"], private["certificate"]["probability"])
    words = in_words(facts.get("relative_gap"), facts.get("dual"))
    if facts.get("gap") is None:
        return f"{words}; objective {facts['primal']:.6f}" if facts.get("primal") is not None else words
    return f"{words} (gap {facts['gap']:.2e}: primal {facts['primal']:.6f}, dual {facts['dual']:.6f})"


def private_facts(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a bound on privacy came to, and what to know of it."""
    bound = f"at most epsilon {plan['epsilon']:g} at delta {plan['delta']:g} of any terminal"
    if plan.get("simulation"):
        bound = f"as if {bound}"
    noise = f"updates clipped to {plan['clip']:.3g}, noise {plan['noise']:.3g} on their sum"
    yield "privacy", f"{bound}: {plan['rounds']} rounds, {noise}"
    yield from (("note", note) for note in plan["notes"])
