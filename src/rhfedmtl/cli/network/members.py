"""Command line: who is in a network, with which keys, and who did what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rhfedmtl.cli.data import AsJson
from rhfedmtl.cli.network.answers import Folder, ask, tell, word
from rhfedmtl.cli.options import WORK_PANEL, Budgets, option, print_json
from rhfedmtl.cli.text import printable
from rhfedmtl.errors import ConfigError

Terminal = Annotated[int, typer.Argument(min=0, help="Number of the terminal.")]


def move(
    folder: Folder,
    number: Terminal,
    to: Annotated[int, typer.Argument(min=0, help="Number of the station.")],
    as_json: AsJson = False,
) -> None:
    """Move a terminal to another station, with all that it has learned.

    Where sums are masked it waits until others go there with it, and begins with nothing; `rhfedmtl status` says so.

    Example: rhfedmtl network move demo-net 3 1
    """
    ask(folder, as_json, "move", terminal=number, station=to)


def leave(folder: Folder, number: Terminal, as_json: AsJson = False) -> None:
    """Make a terminal leave the network, with all that it has learned.

    Where sums are masked it waits until others leave with it; `rhfedmtl status` says so. Where they are noised
    (`--privacy`) it goes at once, and what it put into the sum stays there.

    Example: rhfedmtl network leave demo-net 3
    """
    ask(folder, as_json, "leave", terminal=number)


def forget(
    folder: Folder,
    number: Terminal,
    target_gap: Annotated[
        float | None, option(WORK_PANEL, "--target-gap", "Learn on to this gap, and state what is left of it.", min=0.0)
    ] = None,
    budget: Budgets = None,
    privacy: Annotated[
        str,
        option(
            WORK_PANEL,
            "--privacy",
            "Write models in noise too, which hides by this much that it ever was there.",
            metavar="EPSILON,DELTA",
        ),
    ] = "",
    out: Annotated[
        Path | None, option(WORK_PANEL, "--out", "New folder for models and statement. [NETWORK-without-NUMBER]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove a terminal that will not come back, and what it contributed.

    With --target-gap the others learn on to that gap, and removal.json and removal.txt say how near the models are to
    those of a network that never had it. For example:

    rhfedmtl network forget demo-net 3

    rhfedmtl network forget demo-net 3 --target-gap 1e-5 --budget energy=9000 --privacy epsilon=1,delta=1e-6
    """
    if target_gap:
        from rhfedmtl.deploy.removal import remove

        tell(remove(folder, number, target_gap, budget, privacy, out), as_json)
    elif budget or privacy or out:
        raise ConfigError("--budget, --privacy and --out are for what is learned on: give --target-gap too")
    else:
        ask(folder, as_json, "forget", terminal=number)


def readmit(folder: Folder, number: Terminal, as_json: AsJson = False) -> None:
    """Let a terminal in again that its station put into quarantine; `rhfedmtl status` says why it did.

    Example: rhfedmtl network readmit demo-net 3
    """
    ask(folder, as_json, "readmit", terminal=number)


def invite(
    folder: Folder,
    station: Annotated[int | None, typer.Option(min=0, help="Station of a new terminal.")] = None,
    role: Annotated[
        str, typer.Option(help="terminal, or station (new credentials for one that is there).")
    ] = "terminal",
    number: Annotated[int | None, typer.Option(min=0, help="Node that gets new credentials. [a new terminal]")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a token for the credentials of one node: valid once, and for a day.

    Example: rhfedmtl network invite demo-net --station 1
    """
    ask(folder, as_json, "invite", role=role, number=number, station=station)


def join(
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the node.")],
    token: Annotated[
        str, typer.Argument(help="File with what `network invite` printed; - is standard input. [RHFEDMTL_TOKEN]")
    ] = "",
    data: Annotated[Path | None, typer.Option("--data", help="Rows of a terminal: .csv, or .npz with X and y.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a private key on this machine and get a certificate for it; then `rhfedmtl serve` runs the node.

    The token itself is not given here: everybody on a machine can read its command lines.

    Example: rhfedmtl network join invitation.txt --folder my-terminal --data rows.npz
    """
    from rhfedmtl.deploy.terminal.commands import get_credentials

    def say() -> None:
        typer.echo("asked: an operator signs it with `rhfedmtl network sign`; waiting …", err=True)

    facts = get_credentials(token, folder, data, say)
    tell(facts, as_json)
    if not as_json:
        typer.echo(f"next: rhfedmtl serve {facts['role']} --config {facts['config']}")


def sign(
    folder: Folder,
    authority: Annotated[
        Path | None, typer.Option("--authority", help="Folder of the certificate authority. [ca/ of the network]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sign the certificates that nodes with tokens wait for; the authority's key is used here, and stays here.

    Example: rhfedmtl network sign demo-net
    """
    from rhfedmtl.deploy.node.credentials import Authority
    from rhfedmtl.deploy.operator import Operator

    tell({"signed": Operator(folder).sign(Authority.load(authority or folder / "ca"))}, as_json)


def revoke(
    folder: Folder,
    node: Annotated[str, typer.Argument(help="Node as in terminal/3, or the serial number of a certificate.")],
    as_json: AsJson = False,
) -> None:
    """Revoke the certificates of a node; whoever is connected with one is cut off.

    Example: rhfedmtl network revoke demo-net terminal/3
    """
    from rhfedmtl.deploy.local.provision import issued_by

    ask(folder, as_json, "revoke", node=node, serials=issued_by(folder).get(node, []))
    role, _, number = node.partition("/")
    if role == "terminal" and not as_json:
        typer.echo(f"next: rhfedmtl network forget {folder} {number}, which takes out what it has put in")


def rotate(
    folder: Folder,
    nodes: Annotated[list[str] | None, typer.Argument(help="Nodes such as station-0. [all]")] = None,
    as_json: AsJson = False,
) -> None:
    """Give nodes new keys and certificates; running nodes take them up without stopping.

    Example: rhfedmtl network rotate demo-net
    """
    from rhfedmtl.deploy.local.provision import rotate as rotate_credentials

    tell(rotate_credentials(folder, nodes or ()), as_json)


def reset(
    folder: Folder, yes: Annotated[bool, typer.Option("--yes", help="Really do it.")] = False, as_json: AsJson = False
) -> None:
    """Forget all that was learned and spent, on all nodes of this folder; none of them may be running.

    Who belongs where, revocations, audit trails, and what owners of terminals count, want and allow stay.

    Example: rhfedmtl network reset demo-net --yes
    """
    if not yes:
        raise ConfigError(f"this forgets what all nodes in {folder} have learned and spent: add --yes")
    from rhfedmtl.deploy.local.provision import forget_all

    tell({"folder": str(folder), "nodes": forget_all(folder)}, as_json)


def audit(
    folder: Folder,
    offline: Annotated[
        bool, typer.Option("--offline", help="From the folder of the node, which need not run.")
    ] = False,
    last: Annotated[int, typer.Option("--last", min=0, help="Show so many of the last entries; 0: all.")] = 0,
    node: Annotated[
        str, typer.Option("--node", help="Whose trail; that of a station, as in station-0, only with --offline.")
    ] = "cloud",
    as_json: AsJson = False,
) -> None:
    """Check the cloud's audit trail and show it: commands, admissions, refusals, quarantine, keys; who and when.

    Every entry has a hash over all before it. The last one that was seen is kept with the operator's credentials: a
    trail that was cut or written anew since is refused.

    Example: rhfedmtl network audit demo-net --last 20
    """
    from rhfedmtl.deploy.operator import Operator

    operator = Operator(folder)
    if node != "cloud" and not offline:
        raise ConfigError(f"the trail of {node} lies in its folder: give --offline where that folder is")
    entries = operator.audit_offline(folder, node) if offline else operator.audit()
    shown = entries[-last:] if last else entries
    head = entries[-1]["hash"] if entries else ""
    if as_json:
        print_json({"whole": True, "entries": len(entries), "hash": head, "shown": shown})
        return
    for entry in shown:
        facts = {name: value for name, value in entry.items() if name not in ("number", "time", "who", "event", "hash")}
        more = "  ".join(f"{name}={word(name, value)}" for name, value in facts.items())
        line = f"{entry['number']:>5}  {entry['time']}  {entry['who']}  {entry['event']}  {more}"
        typer.echo(printable(line).rstrip())
    typer.echo(f"the chain of {len(entries)} entries is whole; hash {head[:16] or 'of none'}")
