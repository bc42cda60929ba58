"""Send commands of an operator to the cloud, and print the answers."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from rhfedmtl.cli.options import print_json

Folder = Annotated[Path, typer.Argument(help="Folder of the network, or of an operator's credentials.")]


def ask(network: Path, as_json: bool, name: str, /, **arguments: Any) -> None:
    """Send the cloud a command, and print the answer."""
    from rhfedmtl.deploy.operator import Operator

    print_facts(Operator(network).command(name, **arguments), as_json)


def print_facts(facts: dict[str, Any], as_json: bool) -> None:
    """Print facts, each on a line, or as a JSON object."""
    if as_json:
        print_json(facts)
    else:
        lines = (f"{name:<10} {fact_text(name, value)}" for name, value in facts.items() if value != "")
        typer.echo("\n".join(lines) or "done")


def fact_text(name: str, value: Any) -> str:
    """Return a fact in readable form."""
    if name == "at":
        return datetime.fromtimestamp(value).astimezone().isoformat(" ", "seconds")
    if name in ("from", "to"):
        return f"station {value}" if value >= 0 else "no station"
    return ", ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)
