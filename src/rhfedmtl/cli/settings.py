"""Settings that need not be typed: a TOML file, then the environment, then the command line, the last word counting.

The file has a section for each command, with its options as keys: ``[train]``, ``budget = ["energy=1400"]``. In the
environment an option of a command is ``RHFEDMTL_COMMAND_OPTION``: ``RHFEDMTL_TRAIN_SEED=3``.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from rhfedmtl.errors import ConfigError, nearest

FILE = Path("rhfedmtl.toml")
"""Read from the present folder where no other is named."""
ENVIRONMENT = "RHFEDMTL"


def defaults(path: Path | None, group: Any) -> dict[str, Any]:
    """What the file says, as defaults for the commands of ``group``; unknown commands and options are refused."""
    if path is None and not FILE.is_file():
        return {}
    path = path or FILE
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the settings {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: no valid TOML: {error}") from error
    return _section(document, group, str(path))


def _section(table: dict[str, Any], command: Any, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    commands = getattr(command, "commands", {})
    options = {parameter.name: parameter for parameter in command.params}
    for key, value in table.items():
        name = key.replace("-", "_")
        if key in commands:
            if not isinstance(value, dict):
                raise ConfigError(f"{where}: [{key}] must be a section, got {value!r}")
            found[key] = _section(value, commands[key], f"{where}, [{key}]")
        elif name in options and not commands:
            found[name] = value
        else:
            what = "command" if commands else "option"
            known = commands or [option.replace("_", "-") for option in options]
            raise ConfigError(f"{where}: unknown {what} {key!r}{nearest(key.replace('_', '-'), known)}")
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
