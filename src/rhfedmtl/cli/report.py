"""Command ``report``: write an HTML page, and figures for a paper, from the records of runs."""

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
    folder: Annotated[
        Path, typer.Argument(help="Output folder of `reproduce` or `compare`, folder of a run, or folder of runs.")
    ],
    out: Annotated[Path | None, typer.Option(help="File to write, or its folder. [FOLDER/report.html]")] = None,
    figures: Annotated[
        bool, typer.Option("--figures/--no-figures", help="Also write every chart as SVG to the folder figures.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write a report of results as a single HTML file that opens in any browser, also offline.

    The report reads records only; it computes nothing again. For example:

    rhfedmtl reproduce all --seeds 20 --out out/ && rhfedmtl report out/

    rhfedmtl report runs/
    """
    from rhfedmtl import report as reports

    written = reports.write(folder, out, draw=figures)
    if as_json:
        drawn = [str(path) for path in written.figures]
        counts = {"studies": written.studies, "runs": written.runs, "refused": written.refused}
        print_json({"report": str(written.path), "figures": drawn, **counts})
    else:
        _show(written)


def _show(written: WrittenReport) -> None:

    typer.echo(f"report        {written.path} ({written.path.stat().st_size / 1e6:.1f} MB; open it in any browser)")
    of = f" of {written.studies} studies" if written.studies > 1 else ""
    without = f"; {written.refused} more were refused or diverged" if written.refused else ""
    typer.echo(f"shows         {how_many(written.runs, 'run')}{of}{without}")
    if written.figures:
        typer.echo(f"figures       {written.figures[0].parent}: {len(written.figures)} as SVG")
