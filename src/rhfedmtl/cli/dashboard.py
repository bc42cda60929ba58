"""Command ``dashboard``: serve live pages of runs, or of a network, on this machine."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from rhfedmtl.errors import ConfigError, MissingExtraError


def dashboard(
    place: Annotated[Path, typer.Argument(help="Folder of runs, sweeps or studies, or of a network.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine.", show_default="a free one")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Show runs, a network, and the results of a budget, live in a browser on this machine.

    The page only shows: for every action it prints a command that you can copy. Ctrl-C ends it. For example:

    rhfedmtl dashboard runs

    rhfedmtl dashboard demo-net --port 8765 --no-browser
    """
    try:
        from rhfedmtl.dashboard.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise MissingExtraError("the dashboard needs extra packages: pip install 'rhfedmtl[dashboard]'") from None
    if not place.is_dir():
        raise ConfigError(f"no folder {place}: make a run first (rhfedmtl train), or name a folder of runs")

    def ready(address: str) -> None:
        typer.echo(f"open          {address}")
        typer.echo("stop          Ctrl-C")
        if browser:
            webbrowser.open(address)

    serve(place, port, ready)
