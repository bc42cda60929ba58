"""Order the charts and tables of a study into sections with headings.

`chapter` makes a chapter from a study; `page` turns chapters into HTML. To add a section to the report, add it in
`_all`: a section without content does not appear.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rhfedmtl.report import tables, views
from rhfedmtl.report.charts import Chart, Series, Styles, all_series
from rhfedmtl.report.choices import Facts, choices
from rhfedmtl.report.findings import findings
from rhfedmtl.report.tables import Table
from rhfedmtl.report.words import focus, reading, settings
from rhfedmtl.studies.study import StudyResult
from rhfedmtl.studies.words import place_text


@dataclass(frozen=True)
class Section:
    """A heading, a sentence, charts and a table.

    With many studies, a ``folded`` section starts folded. ``paired`` charts are next to each other on wide screens. A
    section without charts and tables is dropped, unless its text ``tells`` a result. ``choices`` has the data of the
    menus for its first chart.
    """

    key: str
    title: str
    text: str = ""
    charts: tuple[Chart, ...] = ()
    table: Table | None = None
    commands: tuple[tuple[str, str], ...] = ()
    folded: bool = True
    paired: bool = False
    tells: bool = False
    choices: Facts | None = None


@dataclass(frozen=True)
class Chapter:
    """Findings, sections and settings of a study.

    ``legend`` has the series that several charts share. ``reading`` explains marks in tables. With ``intervals``, the
    page explains ± once.
    """

    name: str
    title: str
    findings: tuple[str, ...]
    sections: tuple[Section, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    legend: tuple[Series, ...] = ()
    reading: str = ""
    intervals: bool = False

    @property
    def charts(self) -> list[Chart]:
        """Charts of all sections, in the order of the page."""
        return [chart for section in self.sections for chart in section.charts]


def chapter(result: StudyResult, styles: Styles) -> Chapter:
    """Return the chapter of a study with all sections for which it has data."""
    sections = tuple(s for s in _all(result, styles) if s.charts or s.table or s.commands or s.tells)
    study, entries = result.study, {*result.labels.values(), views.PRINTED}
    legend = tuple(s for s in all_series(chart for part in sections for chart in part.charts) if s.key in entries)
    told, intervals = tuple(findings(result)), study.seeds > 1
    return Chapter(study.name, study.title, told, sections, settings(result), legend, reading(result), intervals)


def across(results: Sequence[StudyResult]) -> list[Chapter]:
    """Return the chapter that compares methods over all studies, if they have methods in common."""
    table = tables.across(results)
    if table is None:
        return []
    section = Section("areas", "Best method over all studies and budgets", table=table, folded=False)
    return [Chapter("across", "All studies together", (), (section,))]


def _all(result: StudyResult, styles: Styles) -> Iterator[Section]:
    where = _where(result)
    if _drawn(result):
        yield from _first_views(result, styles)
        charts = tuple(views.values(result, styles))
        yield Section("values", charts[0].title if charts else "", charts=charts, folded=False)
        yield Section("table", "All cells", table=tables.grid(result), folded=False)
        yield Section("overall", "All budgets together", table=tables.complete_axis(result), folded=False)
    else:
        at = focus(result)
        runs = result.records(result.study.reference, at)
        if len(result.study.variants) == 1 and len(runs) == 1:
            yield Section("table", "Result by task", table=tables.tasks(runs[0]), folded=False)
        else:
            yield Section("table", "Side by side", where, table=tables.ranking(result, at), folded=False)
        yield from _first_views(result, styles)
    yield Section("methods", "Methods", table=tables.methods(result), folded=False)
    yield Section("certificates", "Certificates, and tuned settings", table=tables.certificates(result))
    on_the_way = tuple(views.along_spent(result, styles))
    menus = choices(result, styles) if on_the_way else None
    yield Section("along", "During the run", where, (*on_the_way, *views.steps(result, styles)), choices=menus)
    yield Section("bill", "Where the budget went", where, tuple(views.bills(result)), tables.bill(result))
    requests = views.complete_answers(result)
    text = f"{where} Every terminal answered every request." if requests else where
    yield Section("answers", "Received updates", text.strip(), tuple(views.answers(result)), tells=requests > 0.0)
    yield _tasks(result, styles, where)
    text = f"{where} 1: two tasks move together. 0: they do not influence each other."
    yield Section("ties", "Task relationship", text.strip(), tuple(views.relationships(result)))
    if len(result.places) > 1:
        yield Section("differences", "Tests of all differences", table=tables.differences(result))
    yield Section("repeat", "Repeat", commands=tuple(_commands(result)))


def _drawn(result: StudyResult) -> bool:
    return len(result.study.along) > 1


def _where(result: StudyResult) -> str:
    at = focus(result)
    return f"At {place_text(at)}." if at and len(result.places) > 1 else ""


def _first_views(result: StudyResult, styles: Styles) -> Iterator[Section]:
    """Yield the views that the study asks for; they come first."""
    views_wanted = result.study.views
    if "work" in views_wanted:
        yield Section("work", "Chosen work", charts=tuple(views.work(result, styles)), folded=False, paired=True)
    if "trajectories" in views_wanted:
        yield Section("trajectories", "Task by task", _where(result), tuple(views.trajectories(result)), folded=False)


def _tasks(result: StudyResult, styles: Styles, where: str) -> Section:
    """Return worst task and spread; without the table if the ranking has the same numbers."""
    ranking = tables.ranking(result, focus(result)) if _drawn(result) else None
    return Section("tasks", "Worst task, and spread between tasks", where, tuple(views.tasks(result, styles)), ranking)


def _commands(result: StudyResult) -> Iterator[tuple[str, str]]:
    if result.study.command:
        yield "Complete study", result.study.command
    at = focus(result)
    for name in result.running:
        for record in result.records(name, at)[:1]:
            place = f", {place_text(at)}" if at else ""
            yield f"Single run: {result.labels[name]}{place}, seed {record.configuration.seed}", record.command
