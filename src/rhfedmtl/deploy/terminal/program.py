"""`rhfedmtl-terminal`: the command line of a terminal, for the owner of its rows.

It needs only NumPy, gRPC, protobuf and cryptography. This module has the parser and the help; `commands` has a function
for each command.
"""

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
"""Exit status for permanent errors: configuration, credentials, data or address cannot be used. Do not restart."""

_ABOUT = """\
A terminal of a network: it owns rows, learns from them in place, and sends sums and changes of models.
Rows and their dual variables never leave this machine; `account` shows everything that does.

  rhfedmtl-terminal join invitation --folder my-terminal --data rows.npz  once: key, certificate, configuration
  rhfedmtl-terminal serve my-terminal                                   work until SIGTERM
  rhfedmtl-terminal account my-terminal                                 messages that left, times, bytes
"""


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line. An `RHFedMTLError` prints only its message and sets the exit status."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads cost memory, and small data does not need them
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
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and the kernel in use")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)

    def add(name: str, about: str, more: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=about, description=f"{about}.\n\n{more}", formatter_class=shape)

    def add_folder(command: argparse.ArgumentParser, nargs: str = "?", default: Any = Path()) -> None:
        help_ = "folder of the terminal, with terminal.toml  [current folder]"
        command.add_argument("folder", metavar="FOLDER", type=Path, help=help_, nargs=nargs, default=default)

    serve = add(
        "serve",
        "work for the network until SIGTERM",
        "Connects outwards to its station, and reconnects after a break. It opens no port.\n"
        "The state is on disk before any message depends on it, so you may kill the process at any time.\n"
        "The log on standard error has a JSON object per line. Settings are in terminal.toml, for example\n"
        "  sleep = 600.0                 disconnect for 10 minutes after each answer\n"
        "  byte_budget = 50_000_000      bytes over a metered link, in both directions ...\n"
        "  budget_days = 30              ... in 30 days; without this line, for ever\n"
        "  steps_per_day = 100_000       decline orders beyond it, even if the station insists\n"
        "  most_updates = 500            updates that may ever leave\n"
        "  least_steps = 200             smallest H; default: a full pass; with less, a station can find rows\n"
        "  least_summed = 3              work only if updates are hidden in sums over so many terminals\n"
        "  epsilon = 1.0                 work only while noise keeps all that ever left within it (delta = 1e-6)\n"
        '  algorithms = ["rhfedmtl"]     take part in no other algorithm\n'
        '  features = ["splines"]        compute no other feature map; default: all that need no file\n'
        '  kernel = "numpy"              or "compiled"; default: compiled if numba is installed',
    )
    add_folder(serve, nargs="*", default=[Path()])
    serve.add_argument("--while-open", action="store_true", help="also end when standard input is closed")
    join = add(
        "join",
        "make a key here and get a certificate for it with a token",
        "An operator makes the token with `rhfedmtl network invite`. It is valid once, for a day. The key never\n"
        "leaves this machine. For an existing terminal, the command renews the credentials.",
    )
    join.add_argument(
        "token",
        metavar="INVITATION",
        nargs="?",
        default="",
        help="file with the token; - for standard input  [environment variable RHFEDMTL_TOKEN]",
    )
    join.add_argument("--folder", type=Path, required=True, help="folder of this terminal; created if needed")
    join.add_argument("--data", type=Path, help="rows of a new terminal: a .csv file, or .npz with X and y")
    account = add(
        "account",
        "show the messages that left this machine, with times and bytes",
        "Reads account.csv in the state folder, which has each message before it is sent.",
    )
    add_folder(account)
    account.add_argument("--days", action="store_true", help="a line for each day and station")
    add_folder(
        add("pause", "stay away from the network, over restarts too, until `resume`", "A running terminal disconnects.")
    )
    add_folder(add("resume", "take part again after `pause`", "A running terminal connects again."))
    withdraw = add(
        "withdraw",
        "leave the network, and remove the share of these rows from training",
        "The station subtracts Xᵀα of these rows from its sum, and does not admit this terminal again. Models that\n"
        "exist already cannot be taken back. Rows, state and account stay on this machine.",
    )
    add_folder(withdraw)
    withdraw.add_argument("--yes", action="store_true", help="confirm")
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
