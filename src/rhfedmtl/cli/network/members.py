"""Commands for the members of a network, their credentials, and the audit trail."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rhfedmtl.cli.data import AsJson
from rhfedmtl.cli.network.answers import Folder, ask, fact_text, print_facts
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
    """Move a terminal to another station, with everything it has learned.

    With masked sums, the terminal waits until other terminals move there with it, and starts from zero at the new
    station; `rhfedmtl status` shows the waiting.

    Example: rhfedmtl network move demo-net 3 1
    """
    ask(folder, as_json, "move", terminal=number, station=to)


def leave(folder: Folder, number: Terminal, as_json: AsJson = False) -> None:
    """Make a terminal leave the network, with everything it has learned.

    With masked sums, the terminal waits until other terminals leave with it; `rhfedmtl status` shows that. With noise
    (`--privacy`) it leaves at once, and its contribution stays in the sum.

    Example: rhfedmtl network leave demo-net 3
    """
    ask(folder, as_json, "leave", terminal=number)


def forget(
    folder: Folder,
    number: Terminal,
    target_gap: Annotated[
        float | None, option(WORK_PANEL, "--target-gap", "Train on to this gap, and state what remains of it.", min=0.0)
    ] = None,
    budget: Budgets = None,
    privacy: Annotated[
        str,
        option(
            WORK_PANEL,
            "--privacy",
            "Also write models with noise that hides, with this privacy loss, that the terminal ever took part.",
            metavar="EPSILON,DELTA",
        ),
    ] = "",
    out: Annotated[
        Path | None, option(WORK_PANEL, "--out", "New folder for models and statement. [NETWORK-without-NUMBER]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove a terminal that will not come back, and its contribution.

    With --target-gap the remaining terminals train on to that gap. Then removal.json and removal.txt state how close
    the models are to those of a network without this terminal. For example:

    rhfedmtl network forget demo-net 3

    rhfedmtl network forget demo-net 3 --target-gap 1e-5 --budget energy=9000 --privacy epsilon=1,delta=1e-6
    """
    if target_gap:
        from rhfedmtl.deploy.removal import remove

        print_facts(remove(folder, number, target_gap, budget, privacy, out), as_json)
    elif budget or privacy or out:
        raise ConfigError("--budget, --privacy and --out are for the training after a removal: give --target-gap too")
    else:
        ask(folder, as_json, "forget", terminal=number)


def readmit(folder: Folder, number: Terminal, as_json: AsJson = False) -> None:
    """Readmit a terminal that its station put into quarantine; `rhfedmtl status` shows the reason.

    Example: rhfedmtl network readmit demo-net 3
    """
    ask(folder, as_json, "readmit", terminal=number)


def invite(
    folder: Folder,
    station: Annotated[int | None, typer.Option(min=0, help="Station of a new terminal.")] = None,
    role: Annotated[
        str, typer.Option(help="terminal, or station (new credentials for an existing station).")
    ] = "terminal",
    number: Annotated[int | None, typer.Option(min=0, help="Node that gets new credentials. [a new terminal]")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a token for the credentials of a node; it is valid for a day, and for a single use.

    Example: rhfedmtl network invite demo-net --station 1
    """
    ask(folder, as_json, "invite", role=role, number=number, station=station)


def join(
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the node.")],
    token: Annotated[
        str, typer.Argument(help="File with the output of `network invite`; - is standard input. [RHFEDMTL_TOKEN]")
    ] = "",
    data: Annotated[Path | None, typer.Option("--data", help="Rows of a terminal: .csv, or .npz with X and y.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a private key on this machine and get a certificate for it; then `rhfedmtl serve` runs the node.

    The token is not an argument, because every user of a machine can read its command lines.

    Example: rhfedmtl network join invitation.txt --folder my-terminal --data rows.npz
    """
    from rhfedmtl.deploy.terminal.commands import get_credentials

    def say() -> None:
        typer.echo("request sent: an operator signs it with `rhfedmtl network sign`; waiting …", err=True)

    facts = get_credentials(token, folder, data, say)
    print_facts(facts, as_json)
    if not as_json:
        typer.echo(f"next: rhfedmtl serve {facts['role']} --config {facts['config']}")


def sign(
    folder: Folder,
    authority: Annotated[
        Path | None, typer.Option("--authority", help="Folder of the certificate authority. [ca/ of the network]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sign the certificates that nodes with tokens wait for; the authority's key does not leave this machine.

    Example: rhfedmtl network sign demo-net
    """
    from rhfedmtl.deploy.node.credentials import Authority
    from rhfedmtl.deploy.operator import Operator

    print_facts({"signed": Operator(folder).sign(Authority.load(authority or folder / "ca"))}, as_json)


def revoke(
    folder: Folder,
    node: Annotated[str, typer.Argument(help="Node such as terminal/3, or serial number of a certificate.")],
    as_json: AsJson = False,
) -> None:
    """Revoke the certificates of a node, and close its connections.

    Example: rhfedmtl network revoke demo-net terminal/3
    """
    from rhfedmtl.deploy.local.provision import issued_by

    ask(folder, as_json, "revoke", node=node, serials=issued_by(folder).get(node, []))
    role, _, number = node.partition("/")
    if role == "terminal" and not as_json:
        typer.echo(f"next: rhfedmtl network forget {folder} {number}, to remove its contribution")


def rotate(
    folder: Folder,
    nodes: Annotated[list[str] | None, typer.Argument(help="Nodes such as station-0. [all]")] = None,
    as_json: AsJson = False,
) -> None:
    """Give nodes new keys and certificates; running nodes use them without a restart.

    Example: rhfedmtl network rotate demo-net
    """
    from rhfedmtl.deploy.local.provision import rotate as rotate_credentials

    print_facts(rotate_credentials(folder, nodes or ()), as_json)


def reset(
    folder: Folder, yes: Annotated[bool, typer.Option("--yes", help="Confirm.")] = False, as_json: AsJson = False
) -> None:
    """Delete everything learned and spent on all nodes of this folder; none of them may be running.

    Memberships, revocations, audit trails, and the accounts and rules of terminal owners stay.

    Example: rhfedmtl network reset demo-net --yes
    """
    if not yes:
        raise ConfigError(f"this deletes everything that the nodes in {folder} have learned and spent: add --yes")
    from rhfedmtl.deploy.local.provision import forget_all

    print_facts({"folder": str(folder), "nodes": forget_all(folder)}, as_json)


def audit(
    folder: Folder,
    offline: Annotated[
        bool, typer.Option("--offline", help="Read the folder of the node, which need not run.")
    ] = False,
    last: Annotated[int, typer.Option("--last", min=0, help="Number of last entries to show; 0: all.")] = 0,
    node: Annotated[
        str, typer.Option("--node", help="Node of the trail; stations, such as station-0, only with --offline.")
    ] = "cloud",
    as_json: AsJson = False,
) -> None:
    """Check the cloud's audit trail and show it: commands, admissions, refusals, quarantine, keys; who and when.

    Every entry has a hash over all previous entries. The operator's credentials store the last seen hash, so the
    command refuses a trail that was cut or rewritten since.

    Example: rhfedmtl network audit demo-net --last 20
    """
    from rhfedmtl.deploy.operator import Operator

    operator = Operator(folder)
    if node != "cloud" and not offline:
        raise ConfigError(f"the trail of {node} is in its folder: use --offline on the machine with that folder")
    entries = operator.audit_offline(folder, node) if offline else operator.audit()
    last_entries = entries[-last:] if last else entries
    head = entries[-1]["hash"] if entries else ""
    if as_json:
        print_json({"whole": True, "entries": len(entries), "hash": head, "shown": last_entries})
        return
    for entry in last_entries:
        facts = {name: value for name, value in entry.items() if name not in ("number", "time", "who", "event", "hash")}
        details = "  ".join(f"{name}={fact_text(name, value)}" for name, value in facts.items())
        line = f"{entry['number']:>5}  {entry['time']}  {entry['who']}  {entry['event']}  {details}"
        typer.echo(printable(line).rstrip())
    typer.echo(f"the chain of {len(entries)} entries is intact; hash {head[:16] or '-'}")
