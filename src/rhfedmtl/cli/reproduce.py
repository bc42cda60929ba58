"""Command ``reproduce``: repeat the experiments of the paper, and compare the results with the printed values.

Without arguments it lists all studies. `rhfedmtl.studies` defines and runs them; this module prints the results.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rhfedmtl.cli.compare import FirstSeed, SweepEngine, Workers, spread
from rhfedmtl.cli.data import AsJson
from rhfedmtl.cli.options import Address, print_json
from rhfedmtl.cli.text import fact, paragraph, show_study
from rhfedmtl.plain import plain

if TYPE_CHECKING:
    from rhfedmtl.studies.published import PrintedFigure
    from rhfedmtl.studies.reproduce import Reproduced, StudySummary


MEANING = {
    "all": "the paper",
    "beyond": "questions beyond the paper",
    "baselines": "every method, tuned alike, at five budgets",
}


def reproduce(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="table3, table3-tuned, fig-cost, fig-budget, fig-terminals, fig-tasks, fig-price, fig-accuracy, "
            "fig-lambda1, fig-lambda2, authors (Table III by the authors' protocol, on small.mat); all (all of these); "
            "beyond (further questions); baselines (every method, tuned alike, on five data sets); published (tables "
            "of other papers); or single studies. [list all names]"
        ),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option(help="Data file (HAR), or folder with har.npz, landmine.npz, heart.csv and small.mat."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds. [20, as specified]")] = None,
    first_seed: FirstSeed = 0,
    workers: Workers = None,
    engine: SweepEngine = "inprocess",
    address: Address = None,
    out: Annotated[Path, typer.Option(help="Folder for tables and records; finished runs in it are reused.")] = Path(
        "out"
    ),
    as_json: AsJson = False,
) -> None:
    """Reproduce the paper's table and figures on real data, with the paper's algorithms, FedAvg and this library.

    All cores share the runs. To continue after a stop, repeat the command. For example:

    rhfedmtl reproduce table3 --path har.npz --seeds 5 --out out/

    rhfedmtl reproduce authors --path small.mat --seeds 5 --out out/

    rhfedmtl reproduce all --seeds 20 && rhfedmtl report out/

    rhfedmtl reproduce beyond --path data/

    rhfedmtl reproduce baselines --path data/ --seeds 5 && rhfedmtl report out/

    rhfedmtl reproduce published --path data/ --seeds 5
    """
    from rhfedmtl.cli.live import runs_bar
    from rhfedmtl.studies import published
    from rhfedmtl.studies import reproduce as paper

    if not what:
        titles = {word: paper.titles(group) for word, group in paper.GROUPS.items()}
        if as_json:
            print_json(titles)
            return
        for group, studies_of_group in titles.items():
            typer.echo(f"{group}: {MEANING[group]}")
            for name, title in studies_of_group.items():
                fact(f"  {name}", title, 17)
        typer.echo("published: tables of other papers, next to our results")
        typer.echo("for example: rhfedmtl reproduce table3 --seeds 5")
        return
    if what == ["published"]:
        with spread(engine, address, workers) as makers, runs_bar(live=sys.stderr.isatty()) as watch:
            lines = published.table(path or Path(), seeds or 5, out, workers=makers, watch=watch)
        _show_published(lines, out, as_json)
        return
    started = time.perf_counter()
    command = shlex.join(["rhfedmtl", *sys.argv[1:]]) if sys.argv[1:2] == ["reproduce"] else ""
    with spread(engine, address, workers) as makers, runs_bar(live=not as_json and sys.stderr.isatty()) as watch:
        result = paper.reproduce(
            what, out, path=path, seeds=seeds, first_seed=first_seed, workers=makers, watch=watch, command=command
        )
    studies = paper.summaries(result, out)
    if as_json:
        seconds = time.perf_counter() - started
        print_json({"studies": plain(studies), "left_out": result.left_out, "saved": str(out), "seconds": seconds})
    else:
        _show(result, studies, out)


def _show_published(lines: list[PrintedFigure], out: Path, as_json: bool) -> None:
    """Print published figures next to ours, and every difference of protocol."""
    from rhfedmtl.studies import published

    saved = published.save(lines, out)
    if as_json:
        print_json({"lines": plain(lines), "differences": published.DIFFERENCES, "saved": str(saved)})
        return
    for line in lines:
        ours = "" if line.ours is None else f"{line.ours:6.2f}"
        half = "" if line.half_width is None else f" ± {line.half_width:.2f}"
        typer.echo(f"{line.source:7} {line.method:35} {line.printed:6.2f}  {ours}{half}")
    for source, words in published.DIFFERENCES.items():
        paragraph(f"{source}: {words}.", "  - ", "    ")
    typer.echo(f"saved in {saved}")


def _show(result: Reproduced, studies: list[StudySummary], out: Path) -> None:
    if len(result.studies) == 1:
        show_study(result.studies[0])
    for study in studies:
        typer.echo(f"\n{study.name}  ({study.runs} runs, {study.table})")
        for line in study.findings:
            paragraph(line, "  - ", "    ")
        if study.lambda2:
            values_text = "; ".join(f"{label} {values}" for label, values in study.lambda2.items())
            paragraph(f"lambda2: {values_text}", "  - ", "    ")
    for name, reason in result.left_out.items():
        typer.echo(f"\n{name}  left out: {reason}")
    typer.echo(f"\nsaved in {out}")
    typer.echo(f"next: rhfedmtl report {out}")
