"""`rhfedmtl-terminal`: one terminal, for those who own its rows. Needs NumPy, gRPC, protobuf and cryptography alone."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rhfedmtl import __version__
from rhfedmtl.errors import RHFedMTLError

CANNOT_RUN = 2
"""How a node ends that would end so again: its configuration, credentials, data or address cannot be used."""

_ABOUT = """\
One terminal of a network: it owns rows, learns from them in place, and sends sums and changes of models.
Rows and their dual variables never leave this machine; `account` shows everything that does.

  rhfedmtl-terminal join invitation --folder my-terminal --data rows.npz  once: key, certificate, configuration
  rhfedmtl-terminal serve my-terminal                                   work until SIGTERM
  rhfedmtl-terminal account my-terminal                                 what left, when, how many bytes
"""


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; errors raised on purpose are printed plainly and end with status 2."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads would take memory, and small rows do not need them
    options = _parser().parse_args(words)
    from rhfedmtl.deploy.terminal.commands import COMMANDS

    try:
        COMMANDS[options.command](options)
    except RHFedMTLError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(error.status) from None
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or 'cannot write'}: {error.strerror or error}\n")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _parser() -> argparse.ArgumentParser:
    shape = partial(argparse.RawDescriptionHelpFormatter, width=100)
    parser = argparse.ArgumentParser("rhfedmtl-terminal", description=_ABOUT, formatter_class=shape)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and the kernel that is used")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)

    def add(name: str, about: str, more: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=about, description=f"{about}.\n\n{more}", formatter_class=shape)

    def add_folder(command: argparse.ArgumentParser, nargs: str = "?", default: Any = Path()) -> None:
        help_ = "folder of the terminal, with terminal.toml  [the present one]"
        command.add_argument("folder", metavar="FOLDER", type=Path, help=help_, nargs=nargs, default=default)

    serve = add(
        "serve",
        "work for the network until SIGTERM",
        "Connects outwards to its station, again and again where the link breaks: no port is open here.\n"
        "Everything is written down before it is told to anybody, so it may be killed at any time.\n"
        "The log is one JSON object a line on standard error. Settings are in terminal.toml, for example\n"
        "  sleep = 600.0                 end the connection for 10 minutes after each answer\n"
        "  byte_budget = 50_000_000      bytes that may go over a metered link, both ways ...\n"
        "  budget_days = 30              ... in 30 days; without this line, ever\n"
        "  steps_per_day = 100_000       orders beyond it are declined, whatever the station says\n"
        "  most_updates = 500            updates that may ever leave\n"
        "  least_steps = 200             smallest H; without it a full pass; a station can find rows with less\n"
        "  least_summed = 3              only where updates are hidden in sums over so many terminals\n"
        "  epsilon = 1.0                 only while noise keeps all that ever left within it, at delta = 1e-6\n"
        '  algorithms = ["rhfedmtl"]     no other is taken part in\n'
        '  kernel = "numpy"              or compiled; without this line, compiled where numba is installed',
    )
    add_folder(serve, nargs="*", default=[Path()])
    serve.add_argument("--while-open", action="store_true", help="end also when standard input is closed")
    join = add(
        "join",
        "make a key here and get a certificate for it with a token",
        "An operator makes the token with `rhfedmtl network invite`; it is valid once, for a day. The key never\n"
        "leaves this machine. Given again for a terminal that is there, it renews its credentials.",
    )
    join.add_argument(
        "token",
        metavar="INVITATION",
        nargs="?",
        default="",
        help="file with what the operator gave you; - is standard input (without either: RHFEDMTL_TOKEN)",
    )
    join.add_argument("--folder", type=Path, required=True, help="folder of this terminal, made if it is not there")
    join.add_argument("--data", type=Path, help="rows of a new terminal: a .csv file, or .npz with X and y")
    account = add(
        "account",
        "show what left this machine, when, and how many bytes",
        "From account.csv in the state folder, which is written before anything is sent.",
    )
    add_folder(account)
    account.add_argument("--days", action="store_true", help="a line for each day and station")
    add_folder(
        add("pause", "stay away from the network, over restarts too, until `resume`", "A running terminal sees it.")
    )
    add_folder(add("resume", "take part again after `pause`", "A running terminal sees it."))
    withdraw = add(
        "withdraw",
        "leave the network, and take the share of these rows out of what is learned",
        "The station subtracts Xᵀα of these rows from its sum, and lets this terminal in no more. Models that were\n"
        "made before are in the world; nothing takes them back. Rows, state and account stay on this machine.",
    )
    add_folder(withdraw)
    withdraw.add_argument("--yes", action="store_true", help="really do it")
    for command in (serve, join, account, withdraw):
        command.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


class _Version(argparse.Action):
    def __call__(self, *_: Any, **__: Any) -> None:
        from rhfedmtl.maths.kernels.kernel import best_kernel

        sys.stdout.write(f"rhfedmtl-terminal {__version__} ({best_kernel()} kernel)\n")
        raise SystemExit


if __name__ == "__main__":
    main()
