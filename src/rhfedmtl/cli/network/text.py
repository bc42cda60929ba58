"""Show a network as text: the live tree of its nodes, and the summary at the end of a training."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from rich.text import Text
from rich.tree import Tree

from rhfedmtl.cli.text import WIDTH, amount, certified, printable, private_facts
from rhfedmtl.maths.registry import METRICS
from rhfedmtl.roles.words import by_solver, in_words


def tree(facts: dict[str, Any]) -> Tree:
    """Return the cloud, the stations and the terminals with their state."""
    first, *further_lines = _training(facts["training"])
    root = Tree(_plain(f"{facts['network']}  {first}"))
    for line in further_lines:
        root.add(_plain(line))
    if facts.get("last_error"):
        root.add(_plain(f"last error: {facts['last_error'][:200]}", "yellow"))
    for station in facts["stations"]:
        terminals = station["terminals"]
        connected = sum(terminal["connected"] for terminal in terminals)
        line = f"station {station['station']} {station['task']}  round {station['round']}"
        line += f"  {connected}/{len(terminals)} terminals"
        branch = root.add(_line(line, station["connected"]))
        if station["last_error"]:
            branch.add(_plain(station["last_error"][:200], "yellow"))
        attention = [t for t in terminals if t.get("declined") or t.get("waits") or not t["connected"]]
        listed = terminals if len(terminals) <= 8 else attention[:8]
        for terminal in listed:
            samples = f"  {terminal['samples']} samples" if terminal["samples"] is not None else "  not a member"
            branch.add(_line(f"terminal {terminal['terminal']}{samples}", terminal["connected"]))
            if terminal.get("quarantined"):
                branch.add(_plain(f"  in quarantine: it sent {terminal['quarantined']}", "yellow"))
            if terminal.get("waits"):
                branch.add(_plain(f"  {terminal['waits']}", "yellow"))
            if terminal.get("declined"):
                branch.add(_plain(f"  its site declines {terminal['declined']}", "yellow"))
    return root


def closing_text(status: dict[str, Any]) -> str:
    """Return the closing lines, wrapped at 80 columns."""
    return "\n".join("\n".join(wrap(line, WIDTH, subsequent_indent=" " * 18)) for line in closing_lines(status))


def closing_lines(status: dict[str, Any]) -> list[str]:
    """Return the result of a training as lines."""
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
    missing = status.get("waits_for")
    first = ["waiting" if missing else status["state"]]
    if status.get("round"):
        first += [f"round {status['round']}", f"H {status['local_steps']}"]
    first += [f"{name} {status[name]:.3f}" for name in ("accuracy", "rmse") if status.get(name) is not None]
    lines = ["  ".join(first)]
    if missing:
        lines.append(f"waiting for {_few(missing)}")
    if status.get("gap") is not None:
        words = in_words(status.get("relative_gap"), status.get("dual"))
        lines.append(f"{words}{_certified(status)}")
    remaining = status.get("left") or {}
    remaining_texts = [f"{name} left {amount(rest)}" for name, rest in remaining.items() if rest is not None]
    lines += ["  ".join(remaining_texts)] if remaining_texts else []
    return [*lines, *([str(status["error"])] if status.get("error") else [])]


def _certified(status: dict[str, Any], words: str = "") -> str:
    """Return the round of a gap, and nodes that did not answer; a journal of an earlier version has no round."""
    number, silent = status.get("certified_round"), status.get("silent")
    missed = f": {_few(silent)} did not answer" if silent else ""
    if status.get("incomplete"):
        missed = f": {status['incomplete']}"
    if absent := status.get("absent"):
        missed += f"; no answer to probes from {_few(absent)}: their rows count with the largest possible loss"
    if number is None or (number == status.get("round") and not missed):
        return ""
    return f" ({words}round {number}{missed})"


def _few(names: list[str]) -> str:
    """Return up to five names."""
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _plain(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _line(text: str, connected: bool) -> Text:
    return Text("● " if connected else "○ ", style="green" if connected else "red").append(
        printable(text), style="default"
    )
