"""Commands of ``network``, in the order of the help."""

from __future__ import annotations

import typer

from rhfedmtl.cli.network import make, members, training

COMMANDS = (
    make.init,
    training.up,
    training.train,
    training.stop,
    training.export,
    members.move,
    members.leave,
    members.forget,
    members.readmit,
    members.invite,
    members.join,
    members.sign,
    members.revoke,
    members.rotate,
    members.reset,
    members.audit,
)
app = typer.Typer(no_args_is_help=True, help="Make, start and run networks of real base stations and terminals.")
for _command in COMMANDS:
    app.command()(_command)
app.command("status", hidden=True)(training.status)  # Users also look for `status` here.
