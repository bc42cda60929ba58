"""The program: its commands in panels, settings that need not be typed, Ctrl-C and errors answered in a line."""

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
        typer.Option(help="Settings of commands (TOML); the command line overrides it. [rhfedmtl.toml, if there]"),
    ] = None,
) -> None:
    if show_version:
        typer.echo(f"rhfedmtl {__version__}")
        raise typer.Exit
    context.default_map = settings.defaults(config, context.command)


NOWHERE = "no locator available"
"""What numba says where it can keep compiled code nowhere: neither beside the package nor in the user's cache."""
PANELS: dict[str, dict[str, Any]] = {
    "Learn": {
        "train": train.train,
        "plan": plan.plan,
        "compare": compare.compare,
        "reproduce": reproduce.reproduce,
    },
    "Use what was learned": {
        "predict": models.predict,
        "export": models.export,
        "release": models.release,
        "certify": certify.certify,
    },
    "Look": {"dashboard": dashboard.dashboard, "report": report.report, "runs": runs.app, "data": data.app},
    "This machine": {"doctor": doctor.doctor, "calibrate": plan.calibrate},
    "Networks of real nodes": {
        "network": network.app,
        "serve": serve.app,
        "status": training.status,
    },
}
"""The commands in the order of the help."""
for _panel, _commands in PANELS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)

USAGE: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""Words that make no command; typer may carry its own click."""
GOES_ON = "what is finished is kept, and the same command goes on from there"
LAST_WORDS = {
    "train": "nothing is kept of it yet; to start again, give the same command",
    "compare": GOES_ON,
    "reproduce": GOES_ON,
    "calibrate": "nothing was saved",
}
"""What became of a command that Ctrl-C ended, where there is something to say."""


def program() -> Any:
    """The whole command line, its commands in panels; Ctrl-C is answered with a word."""
    group: Any = typer.main.get_command(app)
    invoke = group.invoke

    def answered(context: typer.Context) -> Any:
        try:
            return invoke(context)
        except KeyboardInterrupt as end:
            words = str(end) or LAST_WORDS.get(context.invoked_subcommand or "", "")
            typer.echo(f"interrupted: {words}" if words else "interrupted", err=True)
            raise typer.Exit(train.INTERRUPTED) from None

    group.invoke = answered
    group.commands = {name: group.commands[name] for names in PANELS.values() for name in names}
    return settings.shorten(settings.quiet(group))


def main() -> None:
    """Run the command line; errors raised on purpose, and those of files, are printed plainly and end with status 2.

    Where the same may work later (a port is taken) it is 75, as for mail that is to be sent again. With --json an error
    is an object on standard output, as everything else.
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
        words = f"cannot write: {reason}; make room, or write elsewhere, and give the command again"
        words = words if error.filename is None else f"cannot use {error.filename}: {reason}"
    except RuntimeError as error:
        if NOWHERE not in str(error):
            raise
        words, status = "no folder for compiled code can be written: name one, as in NUMBA_CACHE_DIR=/tmp/kernels", 2
    except USAGE as error:  # with --json alone: else it has been answered
        words, status = error.format_message(), error.exit_code
    if as_json:
        print_json({"error": words})
    else:
        typer.echo("\n".join(map(printable, f"error: {words}".split("\n"))), err=True)
    raise SystemExit(status)
