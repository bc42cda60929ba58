"""Defaults of options from a settings file and the environment, and the short help of commands.

The command line overrides the environment, and the environment overrides the file. The file has a section for each
command, with its options as keys: ``[train]``, ``budget = ["energy=1400"]``. In the environment an option of a command
is ``RHFEDMTL_COMMAND_OPTION``: ``RHFEDMTL_TRAIN_SEED=3``.

`rhfedmtl.cli.main` calls `defaults`, `quiet` and `shorten`. The help of a command lists only the options in ``COMMON``;
``--help-all`` lists all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperOption

from rhfedmtl import toml
from rhfedmtl.errors import ConfigError

SETTINGS_FILE = Path("rhfedmtl.toml")
"""Settings file in the current folder, if the user names no other file."""
ENVIRONMENT = "RHFEDMTL"
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
"""Options in the short help of each command."""
ALL = "--help-all"


def defaults(path: Path | None, group: Any) -> dict[str, Any]:
    """Return the settings of the file as defaults for the commands of ``group``.

    Unknown commands and options are refused.
    """
    if path is None and not SETTINGS_FILE.is_file():
        return {}
    path = path or SETTINGS_FILE
    return _section(toml.read(path), group, str(path))


def _section(table: dict[str, Any], command: Any, where: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    commands = getattr(command, "commands", {})
    names = commands or [parameter.name.replace("_", "-") for parameter in command.params]
    words = table if commands else [key.replace("_", "-") for key in table]
    toml.check_words(words, names, "command" if commands else "option", f"{where}: ")
    for key, value in table.items():
        if not commands:
            values[key.replace("-", "_")] = value
        elif isinstance(value, dict):
            values[key] = _section(value, commands[key], f"{where}, [{key}]")
        else:
            raise ConfigError(f"{where}: [{key}] must be a section, got {value!r}")
    return values


METAVARS = {"int": "N", "integer": "N", "float": "X", "str": "TEXT", "text": "TEXT", "path": "PATH"}
"""Short names of option types; the keys are their names in different versions of typer."""


def quiet(command: Any) -> Any:
    """Shorten the help: short type names, and no environment variables, because they all follow the same rule."""
    for parameter in command.params:
        parameter.show_envvar = False
        if parameter.param_type_name == "option":
            parameter.metavar = parameter.metavar or METAVARS.get(parameter.type.name.removesuffix(" range"))
    for part in getattr(command, "commands", {}).values():
        quiet(part)
    return command


def shorten(group: Any) -> Any:
    """Give the commands in `COMMON` a short help and the option ``--help-all``, and return the group."""
    for path, common in COMMON.items():
        command = group
        for name in path.split():
            command = command.commands[name]
        _shorten(command, common)
    return group


def _shorten(command: Any, common: tuple[str, ...]) -> None:
    original_help = command.format_help

    def format_help(context: typer.Context, formatter: Any) -> None:
        rest = [part for part in command.params if part.name not in (*common, "help_all") and not part.hidden]
        for part in rest:
            part.hidden = ALL not in context.meta
        try:
            original_help(context, formatter)
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
