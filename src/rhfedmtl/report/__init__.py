"""A report of results: one HTML file that opens anywhere, and figures for a paper."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rhfedmtl.errors import ConfigError
from rhfedmtl.report import figures
from rhfedmtl.report.charts import Styles
from rhfedmtl.report.costs import theory
from rhfedmtl.report.folder import read
from rhfedmtl.report.page import page
from rhfedmtl.report.sections import Chapter, across, chapter
from rhfedmtl.roles.words import how_many
from rhfedmtl.studies import cost_figure


@dataclass(frozen=True)
class WrittenReport:
    """Where a report is, and what went into it; ``refused`` runs, or those that diverged, are not among the others."""

    path: Path
    figures: tuple[Path, ...]
    studies: int
    runs: int
    refused: int


def write(folder: Path, out: Path | None = None, *, draw: bool = True) -> WrittenReport:
    """Make a report of a folder; with ``draw``, also every chart as a file for a paper."""
    results, curves = read(folder), cost_figure.load(folder)
    if not (results or curves):
        raise ConfigError(
            f"no records in {folder}: neither studies/*.json nor a run.json; make some with `rhfedmtl reproduce --out "
            f"{folder}` or `rhfedmtl train --out {folder}`"
        )
    styles = Styles()
    results.sort(key=lambda result: _rank(result.study.name))
    chapters = [chapter(result, styles) for result in results] + ([theory(curves)] if curves else [])
    chapters.sort(key=lambda each: _rank(each.name))
    chapters += across(results)
    known = {run: ran for result in results for run, ran in result.ran().items()}
    runs, refused = sum(known.values()), len(known) - sum(known.values())
    out = folder / "report.html" if out is None else out
    out = out if out.suffix else out / "report.html"
    _write(out, page(chapters, title=_title(chapters), made=_made(len(results), runs, refused)))
    drawn: list[Path] = []
    if draw:
        drawn = [path for each in chapters for path in figures.save(each.charts, out.parent / "figures", each.name)]
    return WrittenReport(out, tuple(drawn), len(results), runs, refused)


def _rank(name: str) -> tuple[int, str]:
    """Tables of the paper first, then its figures, then the rest."""
    return next((i for i, kind in enumerate(("table", "fig")) if name.startswith(kind)), 2), name


def _title(chapters: list[Chapter]) -> str:
    return chapters[0].title if len(chapters) == 1 else "What the runs show"


def _made(studies: int, runs: int, refused: int) -> str:
    """What the report was made from."""
    counts = [f"{studies} studies"] if studies > 1 else []
    counts += [how_many(runs, "run")] if runs else []
    counts += [f"{refused} refused or diverged"] if refused else []
    return " · ".join([*([", ".join(counts)] if counts else []), f"rhfedmtl {version('rhfedmtl')}"])


def _write(out: Path, text: str) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write the report to {out}: {error.strerror}; choose another file with --out"
        ) from error
