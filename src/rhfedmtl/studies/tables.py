"""Tables of a study as CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from rhfedmtl.files import write_whole
from rhfedmtl.studies.study import Point, StudyResult, judged, short, value_of


def save(result: StudyResult, out: Path) -> None:
    """Write NAME.csv with a row for each cell, NAME-seeds.csv with a row for each run, and NAME-differences.csv.

    NAME-paper-differences.csv has the pair of the paper's main claim, next to the printed differences.
    """
    name, axes = result.study.name, [short(axis) for axis in result.study.axes]
    column = result.study.column or result.study.metric
    paper = ["paper"] if result.study.paper else []
    cells = [(c.variant, *c.at.values(), *_numbers(c.mean, c.half), *(c.paper for _ in paper)) for c in result.cells]
    _write(out / f"{name}.csv", ["algorithm", *axes, column, "ci95", *paper], cells)
    runs = [(p.variant, *p.at.values(), p.seed, *_seed(result, p), p.run) for p in result.study.points]
    _write(out / f"{name}-seeds.csv", ["algorithm", *axes, "seed", column, "relative_gap", "run"], runs)
    paired = [(c.variant, *c.at.values(), *_numbers(*c.against), c.verdict) for c in result.cells if c.against]
    head = ["algorithm", *axes, f"minus_{result.study.reference}", "ci95", "verdict"]
    _write(out / f"{name}-differences.csv", head, paired)
    if result.study.pair:
        first, second = result.study.pair
        rows = [
            (
                first,
                *at.values(),
                *_numbers(*pair),
                judged(pair),
                *_numbers(result.printed_difference(first, second, at)),
            )
            for at in result.places
            if (pair := result.difference(first, at, second)) is not None
        ]
        head = ["algorithm", *axes, f"minus_{second}", "ci95", "verdict", "paper"]
        _write(out / f"{name}-paper-differences.csv", head, rows)


def _seed(result: StudyResult, point: Point) -> tuple[float | None, float | None]:
    """Return metric and certified relative gap of a run to the last digit; empty if the run was refused."""
    record = result.record(point.variant, point.at, point.seed)
    gap = None if record.result is None else record.result.relative_gap
    return value_of(record, result.study.metric, result.study.last), gap


def _write(path: Path, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    write_whole(path, text.getvalue())


def _numbers(*values: float | None) -> Iterator[object]:
    for value in values:
        yield f"{value:.6f}" if isinstance(value, float) else value
