"""Command line: ``bench`` (how fast this machine runs the library, as ratios within one run)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rhfedmtl.cli.data import AsJson
from rhfedmtl.cli.options import print_json

FIGURES = (
    ("cpu_stream_fraction", "of the speed at which rows can be read at all (d = 561, one thread)", ">= 0.6"),
    ("thread_speedup", "times faster with two threads than with one (d = 561)", ">= 1.8"),
    ("machine_thread_speedup", "times faster with two threads, for a loop that only reads the rows", ""),
    ("seconds_to_gap_ratio", "of liblinear's time to a relative gap of 1e-6", "<= 1"),
    ("small_round_us", "microseconds for a round of 25 terminals (14 rows, d = 561, H = 10)", ""),
    ("memory_beyond_data", "of the data's memory is taken beside it (d = 561, 20 rows a terminal)", "<= 0.10"),
)


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="A few ratios, in less than a minute.")] = False,
    out: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed: ratios within one run, so that they mean the same on any machine.

    Without --quick also kernels over many shapes, up to a million terminals, and the hinge loss: some minutes and 5 GB.
    For example:

    rhfedmtl bench --quick --json
    """
    from rhfedmtl.bench import suite

    if out is not None:  # before the minutes that it takes
        out.parent.mkdir(parents=True, exist_ok=True)
    measure = suite.quick if quick else suite.everything
    figures = measure(_note if sys.stderr.isatty() else lambda _: None)
    if out is not None:
        out.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    if as_json:
        print_json(figures)
    else:
        _show(figures)


def _note(what: str) -> None:
    typer.echo(f"measuring: {what}", err=True)


def _show(figures: dict[str, Any]) -> None:
    for name, what, aim in FIGURES:
        typer.echo(f"{figures[name]:8.2f}  {what}" + (f"  (aim: {aim})" if aim else ""))
    for d, ratio in figures["numpy_step_ratio"].items():
        typer.echo(f"{ratio:8.0f}  times faster than a step in NumPy (d = {d})")
    for row in figures.get("grid", []):
        shape = f"d={row['d']:<5} S={row['S']:<4} H={row['H']:<5}"
        typer.echo(f"{shape} {row['ns_per_step']:9.1f} ns a step  {row['fraction']:.2f} of the speed of reading rows")
    for row in [*figures.get("terminals", []), *figures.get("tasks", []), *figures.get("threads", [])]:
        what = f"{row['terminals']:>9,} terminals, {row['tasks']:>5,} tasks, {row['threads']} threads"
        typer.echo(f"{what}: {row['seconds'] * 1e3:10.2f} ms a round, peak {row['peak_mb']:,.0f} MB")
