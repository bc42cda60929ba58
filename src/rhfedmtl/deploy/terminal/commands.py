"""The commands of `rhfedmtl-terminal`: a function of the parsed options for each. `program` has the parser."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rhfedmtl.deploy.node.config import TerminalConfig, read_terminal
from rhfedmtl.deploy.node.credentials import TERMINAL
from rhfedmtl.deploy.node.enrolment import enrol, read_token
from rhfedmtl.deploy.node.log import Log
from rhfedmtl.deploy.node.serve import Role, own_kernels, serve
from rhfedmtl.deploy.node.state import StateFile
from rhfedmtl.deploy.terminal.owner import Owner
from rhfedmtl.deploy.terminal.site import STATE
from rhfedmtl.deploy.terminal.statement import statement
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, RHFedMTLError
from rhfedmtl.files import Lock


def role() -> Role:
    """Return the role of a terminal. It imports the kernels, so `own_kernels` must come first."""
    from rhfedmtl.deploy.methods import method_of
    from rhfedmtl.deploy.terminal.service import TerminalService
    from rhfedmtl.deploy.warm_up import warm_up

    return Role(TERMINAL, read_terminal, partial(TerminalService, method_of=method_of, warm_up=warm_up))


def serve_terminals(options: Any) -> None:
    """Work for the network until SIGTERM; several terminals may share the process."""
    paths = [folder / "terminal.toml" if folder.is_dir() else folder for folder in options.folder]

    def input_closed() -> bool:
        """Return True if the parent process has ended."""
        ready, _, _ = select.select([0], [], [], 0.0)
        return bool(ready) and not os.read(0, 1)

    try:
        own_kernels(paths[0])
        facts = serve(role(), paths, input_closed if options.while_open else lambda: False)
    except RHFedMTLError as error:
        Log("terminal")("cannot run", "error", reason=str(error))
        raise SystemExit(error.status) from None
    if options.json:
        print_json(facts)


def join(options: Any) -> None:
    """Make a key and get a certificate for it."""

    def tell_wait() -> None:
        sys.stderr.write("waiting for an operator to sign the certificate with `rhfedmtl network sign` ...\n")

    facts = get_credentials(options.token, options.folder, options.data, tell_wait)
    if options.json:
        print_json(facts)
    else:
        sys.stdout.write(
            f"{facts['role']} {facts['number']} is ready: {facts['config']}\n"
            f"next: rhfedmtl-terminal serve {options.folder}\n"
        )


def get_credentials(token: str, folder: Path, data: Path | None, waits: Callable[[], None]) -> dict[str, Any]:
    """Get credentials with a token. A terminal that was paused or withdrawn takes part again."""
    facts = enrol(read_token(token), folder, data, waits=waits)
    if facts["role"] == TERMINAL:
        Owner(read_config(folder).state).rejoin()
    return facts


def account(options: Any) -> None:
    """Print the messages that left this machine or came in, and their cost in privacy."""
    config = read_config(options.folder)
    facts, text = statement(config, read_state(config), by_day=options.days)
    if options.json:
        print_json(facts)
    else:
        sys.stdout.write(text)


def pause(options: Any) -> None:
    """Stay away from the network until `resume`."""
    Owner(read_config(options.folder).state).pause()
    sys.stdout.write("paused: nothing is sent until `rhfedmtl-terminal resume`\n")


def resume(options: Any) -> None:
    """Take part again."""
    Owner(read_config(options.folder).state).resume()
    sys.stdout.write("takes part again\n")


def withdraw(options: Any) -> None:
    """Leave the network: a running terminal does so itself, otherwise this command runs it until it has left."""
    config = read_config(options.folder)
    if not options.yes:
        raise ConfigError(f"{config.identity} would leave {config.identity.network} for good: add --yes")
    job = read_state(config).job
    if config.least_summed and not config.epsilon and job.algorithm:
        from rhfedmtl.deploy.methods import method_of

        if not method_of(job).has_duals:
            raise ConfigError(
                f"{job.algorithm} keeps models, not sums, of terminals: under masks no terminal can leave; "
                "`rhfedmtl-terminal pause` keeps it out of all later rounds"
            )
    owner = Owner(config.state)
    owner.withdraw()
    try:
        Lock(config.state).release()
    except ConfigError:
        outcome = "the running terminal is leaving; `rhfedmtl-terminal account` shows when it has left"
    else:
        serve(role(), [options.folder / "terminal.toml"])
        time = owner.withdrawn_on
        outcome = f"withdrawn on {time}" if time else "not yet: the terminal leaves during the next `serve`"
    if options.json:
        print_json({"withdrawn": owner.withdrawn_on or None, "said": outcome})
    else:
        sys.stdout.write(outcome + "\n")


def read_config(folder: Path) -> TerminalConfig:
    """Return the configuration of the terminal in a folder."""
    return read_terminal(folder / "terminal.toml" if folder.is_dir() else folder)


def read_state(config: TerminalConfig) -> wire.TerminalFile:
    """Return the saved state of a terminal; empty if it has not saved any."""
    return wire.TerminalFile.FromString(StateFile(config.state / STATE, fsync=False).read() or b"")


def print_json(facts: dict[str, Any]) -> None:
    """Print facts as a JSON object."""
    sys.stdout.write(json.dumps(facts, indent=1) + "\n")


COMMANDS: Mapping[str, Callable[[Any], None]] = {
    "serve": serve_terminals,
    "join": join,
    "account": account,
    "pause": pause,
    "resume": resume,
    "withdraw": withdraw,
}
