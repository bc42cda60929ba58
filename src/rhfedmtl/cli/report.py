"""Command line: ``report`` (one HTML file from records, and figures for a paper)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rhfedmtl.cli.data import AsJson
from rhfedmtl.cli.options import print_json
from rhfedmtl.roles.words import how_many

if TYPE_CHECKING:
    from rhfedmtl.report import WrittenReport


def report(
    folder: Annotated[Path, typer.Argument(help="What `reproduce` or `compare` wrote, a run's folder, or many runs.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write, or a folder for it. [FOLDER/report.html]")
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures/--no-figures", help="Every chart as SVG for a paper, in the folder figures.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Make a report of results: one HTML file that opens anywhere, without a network.

    It is made from records alone; nothing is computed again. For example:

    rhfedmtl reproduce all --seeds 20 --out out/ && rhfedmtl report out/

    rhfedmtl report runs/
    """
    from rhfedmtl import report as reports

    made = reports.write(folder, out, draw=figures)
    if as_json:
        drawn = [str(path) for path in made.figures]
        counts = {"studies": made.studies, "runs": made.runs, "refused": made.refused}
        print_json({"report": str(made.path), "figures": drawn, **counts})
    else:
        _show(made)


def _show(made: WrittenReport) -> None:

    typer.echo(f"report        {made.path} ({made.path.stat().st_size / 1e6:.1f} MB; open it in any browser)")
    of = f" of {made.studies} studies" if made.studies > 1 else ""
    without = f"; {made.refused} more were refused or diverged" if made.refused else ""
    typer.echo(f"shows         {how_many(made.runs, 'run')}{of}{without}")
    if made.figures:
        typer.echo(f"figures       {made.figures[0].parent}: {len(made.figures)} as SVG")
