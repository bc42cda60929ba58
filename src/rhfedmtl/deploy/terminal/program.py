"""`rhfedmtl-terminal`: one terminal, for those who own its rows. Needs NumPy, gRPC, protobuf and cryptography alone."""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rhfedmtl import __version__
from rhfedmtl.errors import ConfigError, RHFedMTLError

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
    given = _parser().parse_args(words)
    try:
        given.run(given)
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
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(run: Callable[[Any], None], about: str, more: str) -> argparse.ArgumentParser:
        name = run.__name__.strip("_")
        made = commands.add_parser(name, help=about, description=f"{about}.\n\n{more}", formatter_class=shape)
        made.set_defaults(run=run)
        return made

    folder = partial(_add_folder, nargs="?", default=Path())
    serve = add(
        _serve,
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
    _add_folder(serve, nargs="*", default=[Path()])
    serve.add_argument("--while-open", action="store_true", help="end also when standard input is closed")
    join = add(
        _join,
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
        _account,
        "show what left this machine, when, and how many bytes",
        "From account.csv in the state folder, which is written before anything is sent.",
    )
    folder(account)
    account.add_argument("--days", action="store_true", help="a line for each day and station")
    folder(add(_pause, "stay away from the network, over restarts too, until `resume`", "A running terminal sees it."))
    folder(add(_resume, "take part again after `pause`", "A running terminal sees it."))
    withdraw = add(
        _withdraw,
        "leave the network, and take the share of these rows out of what is learned",
        "The station subtracts Xᵀα of these rows from its sum, and lets this terminal in no more. Models that were\n"
        "made before are in the world; nothing takes them back. Rows, state and account stay on this machine.",
    )
    folder(withdraw)
    withdraw.add_argument("--yes", action="store_true", help="really do it")
    for each in (serve, join, account, withdraw):
        each.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _add_folder(parser: argparse.ArgumentParser, **more: Any) -> None:
    help_ = "folder of the terminal, with terminal.toml  [the present one]"
    parser.add_argument("folder", metavar="FOLDER", type=Path, help=help_, **more)


class _Version(argparse.Action):
    def __call__(self, *_: Any, **__: Any) -> None:
        from rhfedmtl.maths.kernels.kernel import best_kernel

        sys.stdout.write(f"rhfedmtl-terminal {__version__} ({best_kernel()} kernel)\n")
        raise SystemExit


def _config(folder: Path) -> Any:
    from rhfedmtl.deploy.node.config import read_terminal

    return read_terminal(folder / "terminal.toml" if folder.is_dir() else folder)


def _serve(given: Any) -> None:
    from rhfedmtl.deploy.node.log import Log
    from rhfedmtl.deploy.node.serve import own_kernels, serve

    folders = given.folder if isinstance(given.folder, list) else [given.folder]
    paths = [folder / "terminal.toml" if folder.is_dir() else folder for folder in folders]
    try:
        own_kernels(paths[0])
        facts = serve(role(), paths, _input_closed if given.while_open else lambda: False)
    except RHFedMTLError as error:
        Log("terminal")("cannot run", "error", reason=str(error))
        raise SystemExit(error.status) from None
    if given.json:
        _print_json(facts)


def role() -> Any:
    """How a terminal is made."""
    from rhfedmtl.deploy.methods import method_of
    from rhfedmtl.deploy.node.config import read_terminal
    from rhfedmtl.deploy.node.credentials import TERMINAL
    from rhfedmtl.deploy.node.serve import Role
    from rhfedmtl.deploy.terminal.service import TerminalService
    from rhfedmtl.deploy.warm_up import warm_up

    return Role(TERMINAL, read_terminal, partial(TerminalService, method_of=method_of, warm_up=warm_up))


def _input_closed() -> bool:
    """Whether whoever started this process is gone."""
    ready, _, _ = select.select([0], [], [], 0.0)
    return bool(ready) and not os.read(0, 1)


def _join(given: Any) -> None:
    def say() -> None:
        sys.stderr.write("asked: an operator signs it with `rhfedmtl network sign`; waiting ...\n")

    facts = join(given.token, given.folder, given.data, say)
    if given.json:
        _print_json(facts)
    else:
        sys.stdout.write(
            f"{facts['role']} {facts['number']} is ready: {facts['config']}\n"
            f"next: rhfedmtl-terminal serve {given.folder}\n"
        )


def join(token: str, folder: Path, data: Path | None, waits: Callable[[], None]) -> dict[str, Any]:
    """Get credentials with a token; a terminal that was paused or withdrawn takes part again."""
    from rhfedmtl.deploy.node.credentials import TERMINAL
    from rhfedmtl.deploy.node.enrolment import enrol, read_token
    from rhfedmtl.deploy.terminal.owner import Owner

    facts = enrol(read_token(token), folder, data, waits=waits)
    if facts["role"] == TERMINAL:
        Owner(_config(folder).state).rejoin()
    return facts


def _account(given: Any) -> None:
    from rhfedmtl.deploy.terminal.account import CONTENTS, UP, Account, added, read
    from rhfedmtl.deploy.terminal.owner import ACCOUNT, Owner

    config = _config(given.folder)
    path, owner = config.state / ACCOUNT, Owner(config.state)
    account = Account(path, config.byte_budget, config.budget_days)
    lines = added(read(path), by_day=given.days)
    standing = f"withdrawn on {owner.gone}" if owner.gone else "paused" if owner.paused else "takes part"
    if given.json:
        facts = {"terminal": str(config.identity.uri), "standing": standing, "lines": [asdict(line) for line in lines]}
        _print_json({**facts, "used": account.used, "byte_budget": config.byte_budget, **_told(config)})
        return
    told = [f"{config.identity} of {config.identity.network}: {standing}", ""]
    for way, title in ((UP, "left this machine"), ("down", "came in")):
        some = [line for line in lines if line.way == way]
        told.append(f"{title:<17} {'messages':>9} {'bytes':>12}  from … to (UTC)")
        for line in some:
            when = f"{line.first} … {line.last}"
            told.append(f"  {line.kind:<15} {line.messages:>9,} {line.bytes:>12,}  {when}")
            if way == UP and not given.days:
                told.append(f"  {'':<15} {CONTENTS.get(line.kind, '')}")
        told += [f"  {'all':<15} {sum(s.messages for s in some):>9,} {sum(s.bytes for s in some):>12,}", ""]
    if config.byte_budget:
        told.append(f"byte budget: {account.in_words}")
    found = _told(config)
    told += [
        f"ε: {found['epsilon']:.4g} at δ = {found['delta']:g} of all that left, by the noise that it is hidden in."
        if found["epsilon"] is not None
        else "ε: none. What is sent is exact, without noise: a long series of updates can tell about rows.",
        f"Rows ({config.data}) and their dual variables never left.",
    ]
    sys.stdout.write("\n".join(told) + "\n")


def _state(config: Any) -> Any:
    """What a terminal has written down; empty where it has not."""
    from rhfedmtl.deploy.node.state import StateFile
    from rhfedmtl.deploy.terminal.site import STATE
    from rhfedmtl.deploy.wire import wire_pb2 as wire

    return wire.TerminalFile.FromString(StateFile(config.state / STATE, fsync=False).read() or b"")


def _told(config: Any) -> dict[str, Any]:
    """What all that left tells of this terminal: ε at δ, from what was charged before it left."""
    from rhfedmtl.maths.gaussian_privacy import epsilon_of

    state = _state(config)
    if not state.HasField("noising") or math.isinf(state.privacy):  # some of it was told without noise
        return {"epsilon": None}
    return {"epsilon": epsilon_of(state.privacy**0.5, state.noising.delta), "delta": state.noising.delta}


def _pause(given: Any) -> None:
    from rhfedmtl.deploy.terminal.owner import Owner

    Owner(_config(given.folder).state).pause()
    sys.stdout.write("paused: nothing is sent until `rhfedmtl-terminal resume`\n")


def _resume(given: Any) -> None:
    from rhfedmtl.deploy.terminal.owner import Owner

    Owner(_config(given.folder).state).resume()
    sys.stdout.write("takes part again\n")


def _withdraw(given: Any) -> None:
    """Ask for it; a terminal that runs does it, else it is run until it is done."""
    from rhfedmtl.deploy.methods import method_of
    from rhfedmtl.deploy.node.serve import serve
    from rhfedmtl.deploy.terminal.owner import Owner
    from rhfedmtl.files import Lock

    config = _config(given.folder)
    if not given.yes:
        raise ConfigError(f"{config.identity} would leave {config.identity.network} for good: add --yes")
    job = _state(config).job
    if config.least_summed and not config.epsilon and job.algorithm and not method_of(job).has_duals:
        raise ConfigError(
            f"{job.algorithm} keeps models, not sums, of terminals: under masks nobody leaves; "
            "`rhfedmtl-terminal pause` keeps it out of all that follow"
        )
    owner = Owner(config.state)
    owner.withdraw()
    try:
        Lock(config.state).release()
    except ConfigError:
        said = "the running terminal is on its way out; `rhfedmtl-terminal account` says when it is done"
    else:
        serve(role(), [given.folder / "terminal.toml"])
        said = f"withdrawn on {owner.gone}" if owner.gone else "not yet: it goes on with the next `serve`"
    if given.json:
        _print_json({"withdrawn": owner.gone or None, "said": said})
    else:
        sys.stdout.write(said + "\n")


def _print_json(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
