"""The sections of a report: which charts and tables stand under which heading, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rhfedmtl.report import tables, views
from rhfedmtl.report.charts import Chart, Styles
from rhfedmtl.report.choices import Facts, choices
from rhfedmtl.report.tables import Table
from rhfedmtl.report.words import findings, focus, said, settings
from rhfedmtl.studies.study import StudyResult


@dataclass(frozen=True)
class Section:
    """A heading, a sentence, charts and a table.

    It may be ``folded`` where a report has many studies. ``paired`` charts stand side by side where there is room.
    Without charts and tables it is left out, unless its text ``tells`` something by itself. ``choices`` are what a
    reader may have its first chart show instead.
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
    """What was asked, what was found, and the sections that show it."""

    name: str
    title: str
    question: str
    findings: tuple[str, ...]
    sections: tuple[Section, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def charts(self) -> list[Chart]:
        """All charts, in the order of the page."""
        return [chart for section in self.sections for chart in section.charts]


def chapter(result: StudyResult, styles: Styles) -> Chapter:
    """A study with all sections that it has the data for."""
    shown = tuple(s for s in _all(result, styles) if s.charts or s.table or s.commands or s.tells)
    study = result.study
    return Chapter(study.name, study.title, study.question, tuple(findings(result)), shown, settings(result))


def across(results: Sequence[StudyResult]) -> list[Chapter]:
    """Where several studies have methods in common: how those stand over all of them."""
    table = tables.across(results)
    if table is None:
        return []
    question = "Over all studies and budgets: which method learns most?"
    return [Chapter("across", "All studies at once", question, (), (Section("areas", "", table=table, folded=False),))]


def _all(result: StudyResult, styles: Styles) -> Iterator[Section]:
    where = _where(result)
    if _drawn(result):
        yield from _asked(result, styles)
        charts = tuple(views.values(result, styles))
        yield Section("values", charts[0].title if charts else "", charts=charts, folded=False)
        yield Section("table", "All cells", table=tables.grid(result), folded=False)
        yield Section("overall", "All of them at once", table=tables.whole_axis(result), folded=False)
    else:
        at = focus(result)
        runs = result.records(result.study.reference, at)
        if len(result.study.variants) == 1 and len(runs) == 1:
            yield Section("table", "Result by task", table=tables.tasks(runs[0]), folded=False)
        else:
            yield Section("table", "Side by side", where, table=tables.ranking(result, at), folded=False)
        yield from _asked(result, styles)
    yield Section("certificates", "Certificates, and tuned settings", table=tables.certificates(result))
    on_the_way = tuple(views.along_spent(result, styles))
    chosen = choices(result, styles) if on_the_way else None
    yield Section("along", "Along the way", where, (*on_the_way, *views.steps(result, styles)), choices=chosen)
    yield Section("bill", "Where the budget went", where, tuple(views.bills(result)), tables.bill(result))
    asked = views.everybody_answered(result)
    text = f"{where} Every terminal that was asked answered." if asked else where
    yield Section("answers", "Who answered", text.strip(), tuple(views.answers(result)), tells=asked > 0.0)
    yield _tasks(result, styles, where)
    text = f"{where} 1 means that two tasks move as one, 0 that they ignore each other."
    yield Section("ties", "Task relationship", text.strip(), tuple(views.relationships(result)))
    if len(result.places) > 1:
        yield Section("differences", "Every difference, tested", table=tables.differences(result))
    yield Section("repeat", "Repeat it", commands=tuple(_commands(result)))


def _drawn(result: StudyResult) -> bool:
    return len(result.study.along) > 1


def _where(result: StudyResult) -> str:
    at = focus(result)
    return f"At {said(at)}." if at and len(result.places) > 1 else ""


def _asked(result: StudyResult, styles: Styles) -> Iterator[Section]:
    """Views that a study was made for stand first."""
    wanted = result.study.views
    if "work" in wanted:
        yield Section("work", "Chosen work", charts=tuple(views.work(result, styles)), folded=False, paired=True)
    if "trajectories" in wanted:
        yield Section("trajectories", "Task by task", _where(result), tuple(views.trajectories(result)), folded=False)


def _tasks(result: StudyResult, styles: Styles, where: str) -> Section:
    """Worst task and spread; the table is left out where the ranking says the same."""
    ranking = tables.ranking(result, focus(result)) if _drawn(result) else None
    return Section("tasks", "Worst task, and spread between tasks", where, tuple(views.tasks(result, styles)), ranking)


def _commands(result: StudyResult) -> Iterator[tuple[str, str]]:
    if result.study.command:
        yield "The whole study", result.study.command
    at = focus(result)
    for name in result.running:
        for record in result.records(name, at)[:1]:
            place = f", {said(at)}" if at else ""
            yield f"One run: {result.labels[name]}{place}, seed {record.configuration.seed}", record.command
