"""Settings that need not be typed: a TOML file, then the environment, then the command line, the last word counting.

The file has a section for each command, with its options as keys: ``[train]``, ``budget = ["energy=1400"]``. In the
environment an option of a command is ``RHFEDMTL_COMMAND_OPTION``: ``RHFEDMTL_TRAIN_SEED=3``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rhfedmtl import toml
from rhfedmtl.errors import ConfigError

FILE = Path("rhfedmtl.toml")
"""Read from the present folder where no other is named."""
ENVIRONMENT = "RHFEDMTL"


def defaults(path: Path | None, group: Any) -> dict[str, Any]:
    """What the file says, as defaults for the commands of ``group``; unknown commands and options are refused."""
    if path is None and not FILE.is_file():
        return {}
    path = path or FILE
    return _section(toml.read(path), group, str(path))


def _section(table: dict[str, Any], command: Any, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    commands = getattr(command, "commands", {})
    known = commands or [parameter.name.replace("_", "-") for parameter in command.params]
    words = table if commands else [key.replace("_", "-") for key in table]
    toml.check_words(words, known, "command" if commands else "option", f"{where}: ")
    for key, value in table.items():
        if not commands:
            found[key.replace("-", "_")] = value
        elif isinstance(value, dict):
            found[key] = _section(value, commands[key], f"{where}, [{key}]")
        else:
            raise ConfigError(f"{where}: [{key}] must be a section, got {value!r}")
    return found


METAVARS = {"int": "N", "integer": "N", "float": "X", "str": "TEXT", "text": "TEXT", "path": "PATH"}
"""Short names of types, by what versions of typer call them."""


def quiet(command: Any) -> Any:
    """The command with a help of few words: no variable under every option, as all follow one rule, and short types."""
    for parameter in command.params:
        parameter.show_envvar = False
        if parameter.param_type_name == "option":
            parameter.metavar = parameter.metavar or METAVARS.get(parameter.type.name.removesuffix(" range"))
    for part in getattr(command, "commands", {}).values():
        quiet(part)
    return command
