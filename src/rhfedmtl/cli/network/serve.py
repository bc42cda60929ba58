"""Command ``serve``: run a node of a network until SIGTERM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rhfedmtl.cli.data import AsJson
from rhfedmtl.cli.options import print_json

app = typer.Typer(no_args_is_help=True, help="Run a node of a network: cloud, station or terminal.")


@app.command()
def cloud(config: Annotated[Path, typer.Option("--config", help="cloud.toml")], as_json: AsJson = False) -> None:
    """Run the cloud until SIGTERM.

    Example: rhfedmtl serve cloud --config demo-net/cloud/cloud.toml
    """
    _serve("cloud", [config], as_json)


@app.command()
def station(config: Annotated[Path, typer.Option("--config", help="station.toml")], as_json: AsJson = False) -> None:
    """Run a base station until SIGTERM.

    Example: rhfedmtl serve station --config demo-net/station-0/station.toml
    """
    _serve("station", [config], as_json)


@app.command()
def terminal(
    config: Annotated[list[Path], typer.Option("--config", help="terminal.toml; several terminals share a process.")],
    as_json: AsJson = False,
) -> None:
    """Run a terminal until SIGTERM.

    Example: rhfedmtl serve terminal --config demo-net/terminal-0/terminal.toml
    """
    _serve("terminal", config, as_json)


def _serve(role: str, paths: list[Path], as_json: bool) -> None:
    """Run a node to its end; print the outcome only with --json, because the log on standard error has it too."""
    from rhfedmtl.deploy.node.serve import own_kernels, serve
    from rhfedmtl.deploy.nodes import ROLES

    own_kernels(paths[0])
    facts = serve(ROLES[role](), paths)
    if as_json:
        print_json(facts)
