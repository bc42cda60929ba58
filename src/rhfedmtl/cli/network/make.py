"""Command ``network init``: write a new network into a folder.

It turns options into a `Blueprint`; `rhfedmtl.deploy.local.provision` writes the files.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from rhfedmtl.algorithms.options import AUTO
from rhfedmtl.cli.data import AsJson, Seed, with_data_options
from rhfedmtl.cli.options import (
    LEARNING,
    METHOD_PANEL,
    WORK_PANEL,
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
from rhfedmtl.data.registry import parse_names
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError

if TYPE_CHECKING:
    from rhfedmtl.algorithms.options import Options
    from rhfedmtl.data.federation import Federation
    from rhfedmtl.deploy.cloud.config import Resources

PLACE_PANEL = "Where nodes run"


@with_data_options
@with_learning_options(LEARNING)
def init(
    request: Request,
    options: Options,
    folder: Annotated[Path, typer.Argument(help="New folder; its name becomes the name of the network.")],
    stations: Annotated[int | None, typer.Option(min=1, help="Number of base stations, one per task.")] = None,
    algorithm: Annotated[
        str, option(METHOD_PANEL, "--algorithm", "Algorithm, as for train; rows stay on their terminals.")
    ] = "rhfedmtl",
    scale: Scale = None,
    privacy: PrivacyText = "",
    cost: Prices = None,
    measure: Annotated[
        str, option(WORK_PANEL, "--measure", "Types to measure instead of pricing them: time,bytes,energy.")
    ] = "",
    terminal_watts: Annotated[
        float | None,
        option(WORK_PANEL, "--terminal-watts", "Power of a working terminal, for measured energy. [1]", min=0.0),
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
        int,
        option(
            WORK_PANEL,
            "--least-steps",
            "Smallest H; 0: a full pass over the rows of each terminal. With fewer steps, a station can reconstruct "
            "rows, also with --masked: owners must allow it in terminal.toml. [0]",
            min=0,
        ),
    ] = 0,
    precision: Precision = "float64",
    test_rows: Annotated[
        str, option(METHOD_PANEL, "--test-rows", "Node that stores the test rows: station, terminal.")
    ] = "station",
    cloud_host: Annotated[str, option(PLACE_PANEL, "--cloud-host", "Address of the cloud's machine.")] = "127.0.0.1",
    station_hosts: Annotated[
        str, option(PLACE_PANEL, "--station-hosts", "Addresses of the stations' machines: a,b,c. [the cloud's address]")
    ] = "",
    port: Annotated[int, option(PLACE_PANEL, "--port", "First of consecutive ports. [free ports]", min=0)] = 0,
    fsync: Annotated[
        bool | None,
        option(PLACE_PANEL, "--fsync/--no-fsync", "Flush state to disk before it counts. [only the cloud]"),
    ] = None,
    light: Annotated[
        bool, option(PLACE_PANEL, "--light", "Small terminals: rhfedmtl-terminal, without a compiler.")
    ] = False,
    cloud_signs: Annotated[
        bool,
        option(PLACE_PANEL, "--cloud-signs", "The cloud holds the authority's key and signs certificates for tokens."),
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
            raise ConfigError("every task has its own station: give --tasks or --stations, not both")
        request = replace(request, tasks=stations)
    federation = request.federation(seed)
    if options.uniform and not least_steps:
        raise ConfigError(
            "--uniform draws rows with replacement, so no number of steps visits all rows for sure. The smallest H of "
            "a network requires that: leave it out, or give --least-steps, which the owners must allow"
        )
    prices = Cost.of(resources.cost)
    precise = options.in_precision(precision, bytes_bind="bytes" in resources.measured or prices.has_bytes(prices))
    learning = {
        "algorithm": algorithm,
        "options": {name: precise[name] for name in precise.set_names()},
        "scale": scale or "",
        "seed": seed,
        "certify_every": every(certify_every),
        "least_steps": least_steps,
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
    allowed = _warning_of_short_passes(federation, least_steps, options)
    if allowed:
        facts["allowed"] = allowed
    if as_json:
        print_json(facts)
    else:
        typer.echo(f"{folder}: 1 cloud, {federation.n_tasks} stations, {federation.n_terminals} terminals")
        if allowed:
            typer.echo(allowed)
        local = all(host in ("127.0.0.1", "localhost") for host in (cloud_host, *hosts))
        measured = resources.measured
        budget = f"--budget {measured[0]}=…" if measured and not cost else "--budget energy=1400"
        start = f"rhfedmtl network up {folder} --local {budget}"
        typer.echo(
            f"next: {start}"
            if local
            else f"next: copy each folder in {folder} to its machine; see docs/deploy_network.md"
        )
        place = quote(str(folder))
        stations, terminals = federation.n_tasks, federation.n_terminals
        typer.echo("or start each node by hand (see docs/nodes_by_hand.md):")
        typer.echo(f"  rhfedmtl serve cloud --config {place}/cloud/cloud.toml")
        typer.echo(f"  rhfedmtl serve station --config {place}/station-0/station.toml")
        typer.echo(f"  rhfedmtl serve terminal --config {place}/terminal-0/terminal.toml")
        typer.echo(f"  … up to station-{stations - 1} and terminal-{terminals - 1}; then")
        typer.echo(f"  rhfedmtl network train {place} {budget} --follow")


def _warning_of_short_passes(federation: Federation, least_steps: int, options: Options) -> str:
    """Return the warning for a smallest H below a full pass, with the line for owners; empty if H is larger."""
    more_rows = int((federation.sizes > least_steps).sum())
    if not least_steps or not (more_rows or options.uniform):
        return ""
    concerned = federation.n_terminals if options.uniform else more_rows
    return (
        f"--least-steps {least_steps} allows updates that leave out rows. From a few hundred such updates, a curious "
        "station can reconstruct rows exactly; with --masked, rows of a whole group. Only noise (--privacy) gives "
        f"a bound. {concerned} of {federation.n_terminals} terminals decline to take part until their owners "
        f"write `least_steps = {least_steps}` above the first [table] of their terminal.toml."
    )


def _resources(
    cost: Prices, measured: tuple[str, ...], terminal_watts: float | None, station_watts: float | None, deadline: float
) -> Resources:
    """Return the prices of a network; refuse powers that have no effect."""
    from rhfedmtl.deploy.cloud.config import Resources

    watts = {"--terminal-watts": terminal_watts, "--station-watts": station_watts}
    if "energy" not in measured and (unused := [name for name, power in watts.items() if power is not None]):
        raise ConfigError(f"{', '.join(unused)}: power has an effect only with --measure energy")
    powers = (1.0 if terminal_watts is None else terminal_watts, 10.0 if station_watts is None else station_watts)
    prices = tuple(cost or (() if "energy" in measured else ("energy=0.1,10",)))
    return Resources(prices, (), measured, *powers, deadline)
