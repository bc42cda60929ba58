"""Write a report of results: a single HTML file that opens anywhere, and figures for a paper.

The command ``report`` and notebooks call `write`. It reads the records of studies and runs in a folder (`folder`),
turns each study into a chapter (`sections`, `tables`, `views`, `words`), and writes the page (`page`) and the figures
(`figures`). It never computes a run again. A folder without records raises a `ConfigError`.
"""

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
    """Paths of a report, and the numbers of its studies and runs.

    ``refused`` counts refused and diverged runs; ``runs`` does not include them.
    """

    path: Path
    figures: tuple[Path, ...]
    studies: int
    runs: int
    refused: int


def write(folder: Path, out: Path | None = None, *, draw: bool = True) -> WrittenReport:
    """Write a report of a folder, and with ``draw`` every chart as a file for a paper.

    Parameters
    ----------
    folder : Path
        Output folder of `reproduce`, `compare` or `train`.
    out : Path, optional
        File of the report, or a folder for it. Default: report.html in ``folder``.
    draw : bool
        Also write the charts as SVG to the folder figures.

    Returns
    -------
    WrittenReport
        Paths and counts.
    """
    results, curves = read(folder), cost_figure.load(folder)
    if not (results or curves):
        raise ConfigError(
            f"no records in {folder}: neither studies/*.json nor a run.json; make some with `rhfedmtl reproduce --out "
            f"{folder}` or `rhfedmtl train --out {folder}`"
        )
    styles = Styles()
    results.sort(key=lambda result: _rank(result.study.name))
    chapters = [chapter(result, styles) for result in results] + ([theory(curves)] if curves else [])
    chapters.sort(key=lambda entry: _rank(entry.name))
    chapters += across(results)
    ran_by_name = {run: ran for result in results for run, ran in result.ran().items()}
    runs, refused = sum(ran_by_name.values()), len(ran_by_name) - sum(ran_by_name.values())
    out = folder / "report.html" if out is None else out
    out = out if out.suffix else out / "report.html"
    _write(out, page(chapters, title=_title(chapters), made=_made(len(results), runs, refused)))
    drawn: list[Path] = []
    if draw:
        drawn = [path for part in chapters for path in figures.save(part.charts, out.parent / "figures", part.name)]
    return WrittenReport(out, tuple(drawn), len(results), runs, refused)


def _rank(name: str) -> tuple[int, str]:
    """Return the sort key of a study: tables of the paper first, then its figures, then the rest."""
    return next((i for i, kind in enumerate(("table", "fig")) if name.startswith(kind)), 2), name


def _title(chapters: list[Chapter]) -> str:
    return chapters[0].title if len(chapters) == 1 else "Results of the runs"


def _made(studies: int, runs: int, refused: int) -> str:
    """Return the counts and the version for the line above the title."""
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
