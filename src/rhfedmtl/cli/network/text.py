"""How a network looks as text: the live tree of its nodes, and the lines at the end of a training."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from rich.text import Text
from rich.tree import Tree

from rhfedmtl.cli.text import WIDTH, amount, certified, printable, private_facts
from rhfedmtl.maths.registry import METRICS
from rhfedmtl.roles.words import by_solver, in_words


def tree(facts: dict[str, Any]) -> Tree:
    """Cloud, stations and terminals, with how each stands."""
    first, *more = _training(facts["training"])
    root = Tree(_plain(f"{facts['network']}  {first}"))
    for line in more:
        root.add(_plain(line))
    if facts.get("last_error"):
        root.add(_plain(f"last error: {facts['last_error'][:200]}", "yellow"))
    for station in facts["stations"]:
        terminals = station["terminals"]
        here = sum(terminal["connected"] for terminal in terminals)
        line = f"station {station['station']} {station['task']}  round {station['round']}"
        line += f"  {here}/{len(terminals)} terminals"
        branch = root.add(_line(line, station["connected"]))
        if station["last_error"]:
            branch.add(_plain(station["last_error"][:200], "yellow"))
        away = [t for t in terminals if t.get("declined") or t.get("waits") or not t["connected"]]
        shown = terminals if len(terminals) <= 8 else away[:8]
        for terminal in shown:
            samples = f"  {terminal['samples']} samples" if terminal["samples"] is not None else "  not a member"
            branch.add(_line(f"terminal {terminal['terminal']}{samples}", terminal["connected"]))
            if terminal.get("quarantined"):
                branch.add(_plain(f"  in quarantine: it told {terminal['quarantined']}", "yellow"))
            if terminal.get("waits"):
                branch.add(_plain(f"  {terminal['waits']}", "yellow"))
            if terminal.get("declined"):
                branch.add(_plain(f"  its site declines {terminal['declined']}", "yellow"))
    return root


def closing_text(status: dict[str, Any]) -> str:
    """Return the closing lines, wrapped at 80 columns."""
    return "\n".join("\n".join(wrap(line, WIDTH, subsequent_indent=" " * 18)) for line in closing_lines(status))


def closing_lines(status: dict[str, Any]) -> list[str]:
    """What a training came to."""
    lines = [f"{name.replace('_', ' '):<18}{status[name]:.3f}" for name in METRICS if status.get(name) is not None]
    if status.get("gap") is not None:
        lines.append(f"{'certificate':<18}{certified(status)}{_certified(status, 'as of ')}")
    took = f": {by_solver(status['rounds_by_solver'])}" if status.get("rounds_by_solver") else ""
    lines.append(f"{'rounds':<18}{status['rounds']} in {status['cloud_rounds']} server iterations{took}")
    for name, spent in status["spent"].items():
        limit = status["budget"].get(name)
        lines.append(f"{'spent':<18}{name} {amount(spent)}" + (f" of {amount(limit)}" if limit is not None else ""))
    lines += [f"{'no certificate':<18}{task}: {reason}" for task, reason in (status.get("excluded") or {}).items()]
    lines += [f"{name:<18}{text}" for name, text in private_facts(status["privacy"])] if status.get("privacy") else []
    lines.append(f"{'stopped':<18}{status['stopped']}, after {status['seconds']:.2f} s")
    return lines


def _training(status: dict[str, Any]) -> list[str]:
    """Return state and round of a training, then lines with waits, certificate, budget and error."""
    waits = status.get("waits_for")
    first = ["waiting" if waits else status["state"]]
    if status.get("round"):
        first += [f"round {status['round']}", f"H {status['local_steps']}"]
    first += [f"{name} {status[name]:.3f}" for name in ("accuracy", "rmse") if status.get(name) is not None]
    lines = ["  ".join(first)]
    if waits:
        lines.append(f"waits for {_few(waits)}")
    if status.get("gap") is not None:
        words = in_words(status.get("relative_gap"), status.get("dual"))
        lines.append(f"{words}{_certified(status)}")
    left = status.get("left") or {}
    rests = [f"{name} left {amount(rest)}" for name, rest in left.items() if rest is not None]
    lines += ["  ".join(rests)] if rests else []
    return [*lines, *([str(status["error"])] if status.get("error") else [])]


def _certified(status: dict[str, Any], words: str = "") -> str:
    """Of which round a gap is; a training that a journal of an earlier version tells of does not say."""
    number, silent = status.get("certified_round"), status.get("silent")
    missed = f": {_few(silent)} did not answer" if silent else ""
    if status.get("incomplete"):
        missed = f": {status['incomplete']}"
    if absent := status.get("absent"):
        missed += f"; no answer to probes from {_few(absent)}: counted with the most these rows can add"
    if number is None or (number == status.get("round") and not missed):
        return ""
    return f" ({words}round {number}{missed})"


def _few(names: list[str]) -> str:
    """Up to five names."""
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _plain(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _line(text: str, connected: bool) -> Text:
    return Text("● " if connected else "○ ", style="green" if connected else "red").append(
        printable(text), style="default"
    )
