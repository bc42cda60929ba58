"""The pages as HTML: the frame around every view, the table of runs, one run, several of them laid over each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from shlex import join
from urllib.parse import quote, urlencode

from rhfedmtl.dashboard.index import DONE, INTERRUPTED, RUNNING, Index, Row, SweepLine
from rhfedmtl.planning.words import percent
from rhfedmtl.report import svg
from rhfedmtl.report.charts import Styles, short
from rhfedmtl.report.folder import gather, overlaid
from rhfedmtl.report.page import chapter_html, commands_html
from rhfedmtl.report.sections import chapter
from rhfedmtl.report.words import metric_name
from rhfedmtl.roles.words import LEAST
from rhfedmtl.runs.records import Record
from rhfedmtl.runs.session import go_on

PAGE = 100
"""Rows of the table that are shown at once."""
MOST_OVERLAID = 12


@dataclass(frozen=True)
class RunColumn:
    """A column of the table of runs: its heading, the field that it is sorted by, and whether it holds numbers."""

    title: str
    field: str
    number: bool = False


COLUMNS = (
    RunColumn("run", "name"),
    RunColumn("state", "state"),
    RunColumn("algorithm", "algorithm"),
    RunColumn("data", "data"),
    RunColumn("seed", "seed", number=True),
    RunColumn("budget", "budget"),
    RunColumn("result", "value", number=True),
    RunColumn("certified within", "relative_gap", number=True),
    RunColumn("rounds", "rounds", number=True),
    RunColumn("spent", "spent", number=True),
    RunColumn("changed", "changed"),
)


def frame(title: str, body: str, views: Mapping[str, str], here: str) -> str:
    """A whole page; what changes while it is open lies in ``#live``."""
    links = "".join(
        f'<a href="{href}"{" aria-current=page" if href == here else ""}>{escape(name)}</a>'
        for name, href in views.items()
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f'<title>{escape(title)}</title>\n<link rel="stylesheet" href="/static/style.css">\n</head>\n<body>\n'
        f'<a class="skip" href="#live">Skip to what is shown</a>\n{svg.symbols()}\n<div class="page wide">\n'
        '<header class="bar"><p class="brand">rhfedmtl</p>'
        f'<nav aria-label="Views">{links}</nav><p class="pulse" role="status">connecting</p>'
        '<button type="button" class="theme" aria-label="Switch between light and dark" hidden>Dark</button></header>\n'
        f'<main id="live">\n{body}\n</main>\n</div>\n'
        '<script src="/static/report.js" defer></script>\n<script src="/static/dashboard.js" defer></script>\n'
        "</body>\n</html>\n"
    )


@dataclass(frozen=True)
class RunQuery:
    """How the table of runs is asked for: words to filter by, the column to sort by, the page."""

    words: str = ""
    sort: str = "changed"
    down: bool = True
    page: int = 0

    @classmethod
    def of(cls, query: Mapping[str, str]) -> RunQuery:
        """From the address; what makes no sense is left out."""
        sort = query.get("sort", "-changed")
        name = sort.removeprefix("-")
        page = query.get("page", "0")
        known = name in {column.field for column in COLUMNS}
        number = int(page) if page.isdecimal() and len(page) < 7 else 0
        return cls(query.get("q", ""), name if known else "changed", sort.startswith("-"), number)

    def href(self, **changes: object) -> str:
        """The address of the same table, changed so."""
        other = replace(self, **changes)  # type: ignore[arg-type]
        facts = {"q": other.words, "sort": ("-" if other.down else "") + other.sort, "page": other.page or ""}
        return "/?" + urlencode({name: value for name, value in facts.items() if value})

    def chosen(self, rows: Iterable[Row]) -> list[Row]:
        """Rows that fit, in order; what has no value in the column comes last."""
        fitting = [row for row in rows if row.holds(self.words)]
        known = [row for row in fitting if getattr(row, self.sort) not in (None, "")]
        known.sort(key=lambda row: getattr(row, self.sort), reverse=self.down)
        return known + [row for row in fitting if getattr(row, self.sort) in (None, "")]


def runs(index: Index, asked: RunQuery) -> str:
    """The table of all runs in the folder."""
    every = index.rows
    fitting = asked.chosen(every)
    last, links = max(0, len(fitting) - 1) // PAGE, ""
    if last:
        steps = [("newer" if asked.sort == "changed" else "before", asked.page - 1), ("next", asked.page + 1)]
        links = "".join(
            f'<a href="{escape(asked.href(page=page))}">{name}</a>' for name, page in steps if 0 <= page <= last
        )
        links = f'<p class="pages">page {asked.page + 1:,} of {last + 1:,} {links}</p>'
    shown = fitting[asked.page * PAGE : (asked.page + 1) * PAGE]
    going = sum(row.state == RUNNING for row in every)
    counts = f"{len(fitting):,} of " if asked.words else ""
    counts += "1 run" if index.total == 1 else f"{index.total:,} runs"
    counts += f", {going} running" if going else ""
    counts += f", {len(every):,} read so far" if len(every) < index.total else ""
    if not every:
        words = f"no runs in {escape(str(index.folder))} yet"
        make = commands_html([("make one", join(["rhfedmtl", "train", "--out", str(index.folder)]))])
        return _heading("Runs", words) + _sweeps(index.sweeps) + make
    metrics = {row.metric for row in shown if row.metric}
    shared = metrics.pop() if len(metrics) == 1 else ""
    titles = {"value": metric_name(shared)} if shared else {}
    heads = "".join(_head(column, asked, titles.get(column.field, column.title)) for column in COLUMNS)
    body = "".join(_row(row, shared) for row in shown)
    return (
        f"{_heading('Runs', counts)}{_sweeps(index.sweeps)}"
        '<form class="filter" action="/" role="search"><label>Filter <input type="search" name="q" id="q" '
        f'value="{escape(asked.words)}" placeholder="har fedavg seed=3 running" autocomplete="off"></label>'
        f'<input type="hidden" name="sort" value="{"-" if asked.down else ""}{asked.sort}"></form>'
        '<form class="overlay" action="/overlay"><div class="scroll" tabindex="0" role="region" aria-label="Runs">'
        f'<table class="numbers runs"><thead><tr><th scope="col"><span class="hidden">overlay</span></th>{heads}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
        '<p class="act"><button class="go">Overlay the chosen runs</button></p></form>'
        f"{links}"
    )


def _sweeps(known: Sequence[SweepLine]) -> str:
    """How far sweeps and studies are, each with a link to its runs."""
    if not known:
        return ""
    rows = "".join(
        f'<li><span class="state {each.state}">{each.state}</span> '
        f'<a href="{escape(RunQuery(f"sweep={each.name}").href())}">{escape(each.name)}</a> '
        f"{each.done:,} of {each.total:,} runs"
        + ("" if each.state == DONE else bar(each.done, each.total, "runs that are there"))
        + "</li>"
        for each in known
    )
    return f'<ul class="sweeps" aria-label="Sweeps and studies">{rows}</ul>'


def _heading(title: str, words: str) -> str:
    return f'<h1>{escape(title)}</h1><p class="text">{words}</p>'


def _head(column: RunColumn, asked: RunQuery, title: str) -> str:
    sorted_so = column.field == asked.sort
    down = not asked.down if sorted_so else column.number or column.field == "changed"
    order = f' aria-sort="{"descending" if asked.down else "ascending"}"' if sorted_so else ""
    kind = "" if column.number else ' class="words"'
    href = escape(asked.href(sort=column.field, down=down, page=0))
    mark = (" ▾" if asked.down else " ▴") if sorted_so else ""
    return f'<th scope="col"{order}{kind}><a href="{href}" id="by-{column.field}">{title}{mark}</a></th>'


def _row(row: Row, shared: str) -> str:
    """One run; the name of its metric only where the heading does not have it."""
    name = escape(row.name)
    metric = "" if row.metric == shared else f"<small>{escape(metric_name(row.metric))}</small>"
    value = "" if row.value is None else f"{row.value:.3f}{metric}"
    spent = "" if row.spent is None else f"{100 * row.spent:.0f} %"
    why = f"<small>{escape(row.why[:200])}</small>" if row.why else ""
    gap = "" if row.relative_gap is None else percent(max(row.relative_gap, LEAST))
    cells = [
        f'<td class="words"><span class="state {row.state}">{row.state}</span>{why}</td>',
        *(f'<td class="words">{escape(text)}</td>' for text in (row.algorithm, row.data)),
        f"<td>{'' if row.seed is None else row.seed}</td>",
        f'<td class="words">{escape(row.budget)}</td>',
        f"<td>{value}</td>",
        f'<td title="{escape(row.certified)}">{gap}</td>',
        f"<td>{'' if row.rounds is None else f'{row.rounds:,}'}</td>",
        f"<td>{spent}</td>",
        f'<td class="words">{row.when}</td>',
    ]
    box = f'<input type="checkbox" name="run" value="{name}" id="pick-{name}" aria-label="choose {name}">'
    sweep = f"<small>{escape(row.sweep)}</small>" if row.sweep else ""
    link = f'<a href="/run/{quote(row.name, safe="")}">{name}</a>{sweep}'
    return f'<tr><td>{box}</td><th scope="row">{link}</th>{"".join(cells)}</tr>'


def one_run(name: str, known: Record, row: Row, place: Path) -> str:
    """All that is known of a run, which lies in ``place``: its report, and, where it was interrupted, how to go on."""
    facts = [escape(name), f'<span class="state {row.state}">{row.state}</span>', escape(row.certified)]
    head = _heading(f"{known.configuration.algorithm} on {known.data.name}", " · ".join(filter(None, facts)))
    if known.result is None:
        return head + f'<p class="finding">{escape(known.refused or "no round is finished yet")}</p>'
    ways = []
    if row.state == INTERRUPTED:
        ways.append(("Go on with it", go_on(place)))
    if row.state == DONE:
        of = f"A report of sweep {row.sweep}" if row.sweep else "A report"
        ways.append((f"{of} to send to others", join(["rhfedmtl", "report", str(place)])))
    report = chapter_html(chapter(gather({name: known}, place), Styles()))
    return head + _meters(known) + report + commands_html(ways)


def _meters(known: Record) -> str:
    """What is spent of every budget."""
    result = known.result
    assert result is not None
    return "".join(meter(kind, result.spent.get(kind, 0.0), limit) for kind, limit in result.budget.items())


def meter(kind: str, spent: float, limit: float, after: str = "") -> str:
    """What is spent of a budget, as a bar with its words."""
    words = f"{escape(kind)}: {short(spent)} of {short(limit)} spent{after}"
    return f'<p class="meter">{words}{bar(spent, limit, words)}</p>'


def bar(part: float, whole: float, words: str) -> str:
    """A share as a bar."""
    return f' <meter min="0" max="{whole:g}" value="{part:g}" aria-label="{words}"></meter>'


def overlay(known: Mapping[str, Record], folder: Path) -> str:
    """Several runs in the same charts."""
    done = {name: record for name, record in known.items() if record.result is not None}
    if len(done) < 2:
        return _heading("Overlay", 'choose two or more runs with a result in the <a href="/">table of runs</a>')
    compared = commands_html([("As text", join(["rhfedmtl", "runs", "compare", *done, "--folder", str(folder)]))])
    shown = replace(chapter(overlaid(done, folder), Styles()), settings={})  # each run has its own
    return _heading("Overlay", f"{len(done)} runs") + chapter_html(shown) + compared


def refusal(text: str) -> str:
    """A view that cannot be shown, and why."""
    return _heading("Not to be shown", escape(text))


def names(query: Sequence[tuple[str, str]]) -> list[str]:
    """Runs that an overlay asks for."""
    return list(dict.fromkeys(value for name, value in query if name == "run"))[:MOST_OVERLAID]
