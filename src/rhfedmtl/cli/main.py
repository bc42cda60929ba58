"""Entry point of the command line: collects the commands in panels, and turns Ctrl-C and errors into a short message.

`main` is the console script. It adds defaults from settings files and the environment (`rhfedmtl.cli.settings`). An
error that the library raises on purpose ends with status 2, or with 75 if a retry may help; other exceptions show their
traceback. To add a command, write a function in its own module and add it to ``PANELS``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rhfedmtl import __version__
from rhfedmtl.cli import (
    certify,
    compare,
    dashboard,
    data,
    doctor,
    models,
    plan,
    report,
    reproduce,
    runs,
    settings,
    train,
)
from rhfedmtl.cli.network import commands as network
from rhfedmtl.cli.network import serve, training
from rhfedmtl.cli.options import print_json
from rhfedmtl.cli.text import printable
from rhfedmtl.errors import RHFedMTLError

app = typer.Typer(
    help="Resource-aware hierarchical federated multi-task learning. Start with: rhfedmtl train",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": settings.ENVIRONMENT},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="Settings file (TOML); the command line overrides it. [rhfedmtl.toml, if it exists]"),
    ] = None,
) -> None:
    if show_version:
        typer.echo(f"rhfedmtl {__version__}")
        raise typer.Exit
    context.default_map = settings.defaults(config, context.command)


NO_CACHE = "no locator available"
"""Part of numba's message if it can write its cache neither next to the package nor in the user's cache."""
PANELS: dict[str, dict[str, Any]] = {
    "Learn": {
        "train": train.train,
        "plan": plan.plan,
        "compare": compare.compare,
        "reproduce": reproduce.reproduce,
    },
    "Use models": {
        "predict": models.predict,
        "adapt": models.adapt,
        "export": models.export,
        "release": models.release,
        "certify": certify.certify,
    },
    "Inspect": {"dashboard": dashboard.dashboard, "report": report.report, "runs": runs.app, "data": data.app},
    "This machine": {"doctor": doctor.doctor, "calibrate": plan.calibrate},
    "Networks of real nodes": {
        "network": network.app,
        "serve": serve.app,
        "status": training.status,
    },
}
"""Commands in the order of the help."""
for _panel, _commands in PANELS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)

USAGE: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""Base class of usage errors; typer may bring its own copy of click."""
CONTINUES = "finished runs are saved; repeat the command to continue"
INTERRUPT_MESSAGES = {
    "train": "nothing was saved yet; repeat the command to start again",
    "compare": CONTINUES,
    "reproduce": CONTINUES,
    "calibrate": "nothing was saved",
}
"""Message after Ctrl-C, for commands with something to say."""


def program() -> Any:
    """Return the complete command line with its panels; it answers Ctrl-C with a short message."""
    group: Any = typer.main.get_command(app)
    invoke = group.invoke

    def invoke_or_report(context: typer.Context) -> Any:
        try:
            return invoke(context)
        except KeyboardInterrupt as end:
            words = str(end) or INTERRUPT_MESSAGES.get(context.invoked_subcommand or "", "")
            typer.echo(f"interrupted: {words}" if words else "interrupted", err=True)
            raise typer.Exit(train.INTERRUPTED_STATUS) from None

    group.invoke = invoke_or_report
    group.commands = {name: group.commands[name] for names in PANELS.values() for name in names}
    return settings.shorten(settings.quiet(group))


def main() -> None:
    """Run the command line; print intended errors and file errors as a single message, and exit with status 2.

    If a retry may succeed (for example a port is taken), the status is 75, as for mail that should be sent again. With
    --json an error is an object on standard output, like all other output.
    """
    as_json = "--json" in sys.argv
    try:
        if not as_json:
            program()()
        raise SystemExit(program()(standalone_mode=False) or 0)
    except RHFedMTLError as error:
        words, status = str(error), error.status
    except OSError as error:
        # Python does not name the file if it fails in the middle of writing.
        reason, status = error.strerror or str(error), 2
        words = f"cannot write: {reason}; free some space, or write elsewhere, and repeat the command"
        words = words if error.filename is None else f"cannot use {error.filename}: {reason}"
    except RuntimeError as error:
        if NO_CACHE not in str(error):
            raise
        words, status = "no writable folder for compiled code: set one, as in NUMBA_CACHE_DIR=/tmp/kernels", 2
    except USAGE as error:  # Only with --json; otherwise typer has printed the error.
        words, status = error.format_message(), error.exit_code
    if as_json:
        print_json({"error": words})
    else:
        typer.echo("\n".join(map(printable, f"error: {words}".split("\n"))), err=True)
    raise SystemExit(status)
