"""Short help of commands with many options: ``--help`` shows the common ones, ``--help-all`` all of them.

Completion and parsing see every option.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperOption

_DATA = ("data", "path", "label", "task", "tasks", "terminals")
_LEARN = ("algorithm", "lambda2", "budget", "cost", "seed", "as_json")
COMMON: dict[str, tuple[str, ...]] = {
    "train": (*_DATA, *_LEARN, "out"),
    "plan": (*_DATA, "lambda2", "budget", "cost", "seed", "as_json", "target", "pilot", "policy"),
    "compare": (*_DATA, "algorithms", "budgets", "cost", "seeds", "tune", "faults", "out", "as_json"),
    "certify": (*_DATA, "model", "seed", "as_json"),
    "data describe": (*_DATA, "seed", "as_json"),
    "data split": (*_DATA, "seed", "out", "as_json"),
    "network init": (
        *_DATA,
        "algorithm",
        "lambda2",
        "cost",
        "seed",
        "as_json",
        "folder",
        "stations",
        "measure",
        "light",
        "cloud_host",
        "station_hosts",
    ),
}
"""Names of the common parameters of each command."""
ALL = "--help-all"


def shorten(group: Any) -> Any:
    """Give the commands in `COMMON` a short help and an option for all of it, and return the group."""
    for path, common in COMMON.items():
        command = group
        for name in path.split():
            command = command.commands[name]
        _shorten(command, common)
    return group


def _shorten(command: Any, common: tuple[str, ...]) -> None:
    plain = command.format_help

    def format_help(context: typer.Context, formatter: Any) -> None:
        rest = [part for part in command.params if part.name not in (*common, "help_all") and not part.hidden]
        for part in rest:
            part.hidden = ALL not in context.meta
        try:
            plain(context, formatter)
        finally:
            for part in rest:
                part.hidden = False

    def show_all(context: typer.Context, parameter: Any, value: bool) -> None:
        if value and not context.resilient_parsing:
            context.meta[ALL] = True
            typer.echo(context.get_help(), color=context.color)
            raise typer.Exit

    words = f"Show all {len(command.params)} options and exit."
    option = TyperOption(
        param_decls=[ALL], is_flag=True, is_eager=True, expose_value=False, callback=show_all, help=words
    )
    command.params.append(option)
    command.format_help = format_help
