"""Command line: ``serve`` (one node), ``network`` (make, start and run networks) and ``status`` (how one stands)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rhfedmtl.algorithms.options import AUTO
from rhfedmtl.cli.data import AsJson, Seed, with_data_options
from rhfedmtl.cli.options import (
    METHOD_PANEL,
    WORK_PANEL,
    Budgets,
    CertifyEvery,
    Precision,
    Prices,
    PrivacyText,
    Scale,
    every,
    option,
    print_json,
    with_learning_options,
)
from rhfedmtl.cli.text import printable
from rhfedmtl.data.registry import parse_names
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError

if TYPE_CHECKING:
    from rhfedmtl.algorithms.options import Options
    from rhfedmtl.deploy.cloud.config import Resources

serve_app = typer.Typer(no_args_is_help=True, help="Run one node of a network: cloud, station or terminal.")
network_app = typer.Typer(
    no_args_is_help=True, help="Make, start and run networks of real base stations and terminals."
)
PLACE_PANEL = "Where nodes run"

Folder = Annotated[Path, typer.Argument(help="Folder of the network, or of an operator's credentials.")]
Terminal = Annotated[int, typer.Argument(min=0, help="Number of the terminal.")]
Bound = Annotated[
    str | None,
    option(
        WORK_PANEL,
        "--privacy",
        "Bound on what is learned of a terminal. [that of network init]",
        metavar="epsilon=1,delta=1e-6",
    ),
]
Gap = Annotated[float | None, option(WORK_PANEL, "--target-gap", "Stop once the gap is this small.", min=0.0)]


@serve_app.command()
def cloud(config: Annotated[Path, typer.Option("--config", help="cloud.toml")], as_json: AsJson = False) -> None:
    """Run the cloud until SIGTERM.

    Example: rhfedmtl serve cloud --config demo-net/cloud/cloud.toml
    """
    _serve("cloud", [config], as_json)


@serve_app.command()
def station(config: Annotated[Path, typer.Option("--config", help="station.toml")], as_json: AsJson = False) -> None:
    """Run a base station until SIGTERM.

    Example: rhfedmtl serve station --config demo-net/station-0/station.toml
    """
    _serve("station", [config], as_json)


@serve_app.command()
def terminal(
    config: Annotated[list[Path], typer.Option("--config", help="terminal.toml; several share the process.")],
    as_json: AsJson = False,
) -> None:
    """Run a terminal until SIGTERM.

    Example: rhfedmtl serve terminal --config demo-net/terminal-0/terminal.toml
    """
    _serve("terminal", config, as_json)


def _serve(role: str, paths: list[Path], as_json: bool) -> None:
    """Run until the end; how it ended is printed only if asked for: the log, on standard error, says it too."""
    from rhfedmtl.deploy.node.serve import own_kernels, serve
    from rhfedmtl.deploy.nodes import ROLES

    own_kernels(paths[0])
    facts = serve(ROLES[role](), paths)
    if as_json:
        print_json(facts)


@network_app.command()
@with_data_options
@with_learning_options
def init(
    request: Request,
    options: Options,
    folder: Annotated[Path, typer.Argument(help="New folder; its name is the name of the network.")],
    stations: Annotated[int | None, typer.Option(min=1, help="Base stations: one for each task.")] = None,
    algorithm: Annotated[
        str, option(METHOD_PANEL, "--algorithm", "As for train; data stays where it is.")
    ] = "rhfedmtl",
    scale: Scale = None,
    privacy: PrivacyText = "",
    cost: Prices = None,
    measure: Annotated[
        str, option(WORK_PANEL, "--measure", "Types that are measured, not declared: time,bytes,energy.")
    ] = "",
    terminal_watts: Annotated[
        float | None,
        option(WORK_PANEL, "--terminal-watts", "Power of a terminal at work, for measured energy. [1]", min=0.0),
    ] = None,
    station_watts: Annotated[
        float | None,
        option(WORK_PANEL, "--station-watts", "Power of a station in a round, for measured energy. [10]", min=0.0),
    ] = None,
    deadline: Annotated[
        float, option(WORK_PANEL, "--deadline", "Seconds that a station waits for its terminals.", min=0.001)
    ] = 30.0,
    certify_every: CertifyEvery = AUTO,
    least_steps: Annotated[
        int | None,
        option(
            WORK_PANEL,
            "--least-steps",
            "Smallest H: with H = 1 an update is a scaled data row; 0: one pass over each terminal's own rows. "
            "[0; with --masked 1]",
            min=0,
        ),
    ] = None,
    precision: Precision = "float64",
    test_rows: Annotated[
        str, option(METHOD_PANEL, "--test-rows", "Where test rows lie: station, terminal.")
    ] = "station",
    cloud_host: Annotated[str, option(PLACE_PANEL, "--cloud-host", "Address of the cloud's machine.")] = "127.0.0.1",
    station_hosts: Annotated[
        str, option(PLACE_PANEL, "--station-hosts", "Addresses of the stations' machines: a,b,c. [the cloud's]")
    ] = "",
    port: Annotated[int, option(PLACE_PANEL, "--port", "First port; others follow. [free ones]", min=0)] = 0,
    fsync: Annotated[
        bool | None,
        option(PLACE_PANEL, "--fsync/--no-fsync", "Force state to disk before it counts. [the cloud only]"),
    ] = None,
    light: Annotated[
        bool, option(PLACE_PANEL, "--light", "Terminals are small: rhfedmtl-terminal, without a compiler.")
    ] = False,
    cloud_signs: Annotated[
        bool, option(PLACE_PANEL, "--cloud-signs", "The cloud has the authority's key and answers tokens by itself.")
    ] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write a complete small network: configurations, keys, certificates, data, compose file, systemd units.

    For example:

    rhfedmtl network init demo-net --stations 3 --terminals 4 --data watch
    """
    from rhfedmtl.deploy.local.provision import Blueprint, make_network
    from rhfedmtl.resources.costs import Cost
    from rhfedmtl.training.config import RunConfig

    RunConfig(algorithm, options=options, scale=scale, privacy=privacy).check_heeded()
    resources = _resources(cost, parse_names(measure), terminal_watts, station_watts, deadline)
    if stations is not None:
        if request.tasks is not None:
            raise ConfigError("every task has a station of its own: give --tasks or --stations, not both")
        request = replace(request, tasks=stations)
    federation = request.federation(seed)
    masked = options.channel == "masked"
    prices = Cost.of(resources.cost)
    precise = options.in_precision(precision, bytes_bind="bytes" in resources.measured or prices.has_bytes(prices))
    learning = {
        "algorithm": algorithm,
        "options": {name: precise[name] for name in precise.given()},
        "scale": scale or "",
        "seed": seed,
        "certify_every": every(certify_every),
        "least_steps": int(masked) if least_steps is None else least_steps,
        "test_rows": test_rows,
        "privacy": privacy,
    }
    hosts = parse_names(station_hosts)
    make_network(
        folder,
        Blueprint(
            folder.resolve().name,
            federation,
            learning,
            resources,
            cloud_host=cloud_host,
            station_hosts=hosts,
            port=port,
            fsync=fsync,
            light=light,
            cloud_signs=cloud_signs,
        ),
    )
    facts = {"folder": str(folder), "stations": federation.n_tasks, "terminals": federation.n_terminals}
    if as_json:
        print_json(facts)
    else:
        typer.echo(f"{folder}: 1 cloud, {federation.n_tasks} stations, {federation.n_terminals} terminals")
        here = all(host in ("127.0.0.1", "localhost") for host in (cloud_host, *hosts))
        measured = resources.measured
        budget = f"--budget {measured[0]}=…" if measured and not cost else "--budget energy=1400"
        start = f"rhfedmtl network up {folder} --local {budget}"
        typer.echo(
            f"next: {start}" if here else f"next: carry each folder in {folder} to its machine; see docs/deploy.md"
        )


def _resources(
    cost: Prices, measured: tuple[str, ...], terminal_watts: float | None, station_watts: float | None, deadline: float
) -> Resources:
    """What rounds cost; powers that nothing would be multiplied with are refused."""
    from rhfedmtl.deploy.cloud.config import Resources

    watts = {"--terminal-watts": terminal_watts, "--station-watts": station_watts}
    if "energy" not in measured and (given := [name for name, power in watts.items() if power is not None]):
        raise ConfigError(f"{', '.join(given)}: power counts only for --measure energy, which is not asked for")
    powers = (1.0 if terminal_watts is None else terminal_watts, 10.0 if station_watts is None else station_watts)
    prices = tuple(cost or (() if "energy" in measured else ("energy=0.1,10",)))
    return Resources(prices, (), measured, *powers, deadline)


@network_app.command()
def up(
    folder: Folder,
    local: Annotated[bool, typer.Option("--local", help="Start all nodes on this machine.")] = False,
    budget: Budgets = None,
    target_gap: Gap = None,
    privacy: Bound = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what was learned and spent before.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a network on this machine, train, and end it; what was learned before is kept and gone on from.

    A budget is for all trainings together. For example:

    rhfedmtl network up demo-net --local --budget energy=1400 --json
    """
    from rhfedmtl.deploy.local.supervisor import bring_up

    if not local:
        raise ConfigError("only --local starts nodes; on real machines each runs `rhfedmtl serve`, see docs/deploy.md")
    if fresh:
        from rhfedmtl.deploy.local.provision import forget_all

        forget_all(folder)
    same = "the same command without --fresh" if fresh else "the same command"
    kept = f"what was learned and spent is kept in {folder}; {same} goes on from there"
    with _ended_by_hand(kept), _live(not as_json and sys.stderr.isatty()) as show:
        status = bring_up(folder, budget, target_gap, show, privacy=privacy)
    _show_training(status, as_json, f"rhfedmtl network export {folder} --out {folder}-model --offline")


@contextmanager
def _ended_by_hand(words: str) -> Iterator[None]:
    """What to say where Ctrl-C ends it."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(words) from None


@contextmanager
def _live(shown: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show the status while it changes."""
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live

    from rhfedmtl.cli.network_text import tree

    with Live(console=Console(stderr=True), refresh_per_second=8, transient=True) as view:
        yield lambda facts: view.update(tree(facts))


@network_app.command()
def train(
    folder: Folder,
    budget: Budgets = None,
    target_gap: Gap = None,
    privacy: Bound = None,
    follow: Annotated[bool, typer.Option("--follow", help="Show the network until the training ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Begin a training in a running network, or go on with a larger budget.

    With --follow, Ctrl-C ends the looking on, not the training.

    Example: rhfedmtl network train demo-net --budget energy=2800 --follow
    """
    from rhfedmtl.deploy.operator import Operator

    operator = Operator(folder)
    spec = operator.command("train", budget=budget, target_gap=target_gap, privacy=privacy)
    if not follow:
        _print(spec, as_json)
        return
    goes_on = f"the training goes on; look again with `rhfedmtl network status {folder} --watch`"
    with _ended_by_hand(goes_on), _live(not as_json and sys.stderr.isatty()) as show:
        training = operator.follow(show)
    _show_training(training, as_json, f"rhfedmtl network export {folder} --out {folder}-model")
    if training["state"] != "ended":
        raise ConfigError(f"the training {training['state']}: {training.get('error', '')}")


def _show_training(training: dict[str, Any], as_json: bool, export: str) -> None:
    """What a training came to, and how to get its models."""
    if as_json:
        print_json({name: value for name, value in training.items() if name not in _UNSHOWN})
    elif training["state"] == "ended":
        from rhfedmtl.cli.network_text import closing_lines

        typer.echo("\n".join(closing_lines(training)))
        typer.echo(f"next: {export}")


_UNSHOWN = ("state", "spec", "answered", "waits_for")


@network_app.command()
def stop(folder: Folder, as_json: AsJson = False) -> None:
    """End the training after the present round; what was learned is certified and kept.

    Example: rhfedmtl network stop demo-net
    """
    _command(folder, as_json, "stop")


@network_app.command()
def export(
    folder: Folder,
    out: Annotated[Path, typer.Option("--out", help="Folder for models, ledger and result.")],
    offline: Annotated[bool, typer.Option("--offline", help="From the folder of a cloud that does not run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch models with their certificate, the ledger and the result of the last training.

    Example: rhfedmtl network export demo-net --out demo-model --offline
    """
    from rhfedmtl.deploy.operator import Operator

    files = Operator.export_offline(folder, out) if offline else Operator(folder).export(out)
    _print({"folder": str(out), "files": files}, as_json)


@network_app.command()
def move(
    folder: Folder,
    number: Terminal,
    to: Annotated[int, typer.Argument(min=0, help="Number of the station.")],
    as_json: AsJson = False,
) -> None:
    """Move a terminal to another station, with all that it has learned.

    Where sums are masked it waits until others go there with it, and begins with nothing; `network status` says so.

    Example: rhfedmtl network move demo-net 3 1
    """
    _command(folder, as_json, "move", terminal=number, station=to)


@network_app.command()
def leave(folder: Folder, number: Terminal, as_json: AsJson = False) -> None:
    """Make a terminal leave the network, with all that it has learned.

    Where sums are masked it waits until others leave with it; `network status` says so. Where they are noised
    (`--privacy`) it goes at once, and what it put into the sum stays there.

    Example: rhfedmtl network leave demo-net 3
    """
    _command(folder, as_json, "leave", terminal=number)


@network_app.command()
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

        _print(remove(folder, number, target_gap, budget, privacy, out), as_json)
    elif budget or privacy or out:
        raise ConfigError("--budget, --privacy and --out are for what is learned on: give --target-gap too")
    else:
        _command(folder, as_json, "forget", terminal=number)


@network_app.command()
def readmit(folder: Folder, number: Terminal, as_json: AsJson = False) -> None:
    """Let a terminal in again that its station put into quarantine; `rhfedmtl status` says why it did.

    Example: rhfedmtl network readmit demo-net 3
    """
    _command(folder, as_json, "readmit", terminal=number)


@network_app.command()
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
    _command(folder, as_json, "invite", role=role, number=number, station=station)


@network_app.command()
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
    from rhfedmtl.deploy.node.enrolment import enrol, read_token

    def say() -> None:
        typer.echo("asked: an operator signs it with `rhfedmtl network sign`; waiting …", err=True)

    _print(enrol(read_token(token), folder, data, waits=say), as_json)


@network_app.command()
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

    _print({"signed": Operator(folder).sign(Authority.load(authority or folder / "ca"))}, as_json)


@network_app.command()
def revoke(
    folder: Folder,
    node: Annotated[str, typer.Argument(help="Node as in terminal/3, or the serial number of a certificate.")],
    as_json: AsJson = False,
) -> None:
    """Revoke the certificates of a node; whoever is connected with one is cut off.

    Example: rhfedmtl network revoke demo-net terminal/3
    """
    from rhfedmtl.deploy.local.provision import issued_by

    _command(folder, as_json, "revoke", node=node, serials=issued_by(folder).get(node, []))
    role, _, number = node.partition("/")
    if role == "terminal" and not as_json:
        typer.echo(f"next: rhfedmtl network forget {folder} {number}, which takes out what it has put in")


@network_app.command()
def rotate(
    folder: Folder,
    nodes: Annotated[list[str] | None, typer.Argument(help="Nodes such as station-0. [all]")] = None,
    as_json: AsJson = False,
) -> None:
    """Give nodes new keys and certificates; running nodes take them up without stopping.

    Example: rhfedmtl network rotate demo-net
    """
    from rhfedmtl.deploy.local.provision import rotate as rotate_credentials

    _print(rotate_credentials(folder, nodes or ()), as_json)


@network_app.command()
def reset(
    folder: Folder, yes: Annotated[bool, typer.Option("--yes", help="Really do it.")] = False, as_json: AsJson = False
) -> None:
    """Forget all that was learned and spent, on all nodes of this folder; none of them may be running.

    Example: rhfedmtl network reset demo-net --yes
    """
    if not yes:
        raise ConfigError(f"this forgets what all nodes in {folder} have learned and spent: add --yes")
    from rhfedmtl.deploy.local.provision import forget_all

    _print({"folder": str(folder), "nodes": forget_all(folder)}, as_json)


@network_app.command()
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
        more = "  ".join(f"{name}={_word(name, value)}" for name, value in facts.items())
        line = f"{entry['number']:>5}  {entry['time']}  {entry['who']}  {entry['event']}  {more}"
        typer.echo(printable(line).rstrip())
    typer.echo(f"the chain of {len(entries)} entries is whole; hash {head[:16] or 'of none'}")


def status(
    folder: Folder,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it, every second, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a running network: who is connected, whom it waits for, round, H, accuracy, gap, what is left, errors.

    Example: rhfedmtl status demo-net --watch
    """
    from rhfedmtl.deploy.operator import Operator

    operator = Operator(folder)
    if not watch:
        _show_status(operator.command("status"), as_json)
    elif not as_json and sys.stdout.isatty():
        with _live(True) as show:
            operator.watch(show)
    else:
        operator.watch(lambda facts: _show_status(facts, as_json))


def _show_status(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    from rich.console import Console

    from rhfedmtl.cli.network_text import tree

    Console().print(tree(facts))


def _command(network: Path, as_json: bool, name: str, /, **arguments: Any) -> None:
    from rhfedmtl.deploy.operator import Operator

    _print(Operator(network).command(name, **arguments), as_json)


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        said = (f"{name:<10} {_word(name, value)}" for name, value in facts.items() if value != "")
        typer.echo("\n".join(said) or "done")


def _word(name: str, value: Any) -> str:
    """A fact as people write it."""
    if name == "at":
        return datetime.fromtimestamp(value).astimezone().isoformat(" ", "seconds")
    if name in ("from", "to"):
        return f"station {value}" if value >= 0 else "no station"
    return ", ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)
