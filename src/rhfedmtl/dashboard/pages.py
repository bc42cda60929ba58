"""HTML pages of runs: the frame of every page, the table of runs, a single run, and several runs in the same charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from shlex import join
from urllib.parse import quote, urlencode

from rhfedmtl.dashboard.index import DONE, INTERRUPTED, RUNNING, Index, Row, Span, SweepLine, grouped
from rhfedmtl.display import short
from rhfedmtl.planning.words import percent
from rhfedmtl.report import svg
from rhfedmtl.report.charts import Styles
from rhfedmtl.report.folder import gather, overlaid
from rhfedmtl.report.page import chapter_html, commands_html, unbroken
from rhfedmtl.report.sections import chapter
from rhfedmtl.roles.words import LEAST_GAP_SHOWN
from rhfedmtl.runs.records import Record
from rhfedmtl.runs.session import go_on
from rhfedmtl.studies.words import metric_name

PAGE = 100
"""Rows of the table on a page."""
MOST_OVERLAID = 12
"""Lines in a chart of several runs; a line is a run or a group of seeds."""


@dataclass(frozen=True)
class RunColumn:
    """A column of the table of runs: heading, field to sort by, and True for numbers."""

    title: str
    field: str
    number: bool = False


RUN_COLUMNS = (
    RunColumn("method", "algorithm"),
    RunColumn("state", "state"),
    RunColumn("result", "value", number=True),
    RunColumn("certified within", "relative_gap", number=True),
    RunColumn("data", "data"),
    RunColumn("seeds", "seed", number=True),
    RunColumn("budget", "budget"),
    RunColumn("λ₂", "lambda2", number=True),
    RunColumn("H", "local_steps", number=True),
    RunColumn("solver", "solver"),
    RunColumn("rounds", "rounds", number=True),
    RunColumn("spent", "spent", number=True),
    RunColumn("changed", "changed"),
)


def frame(title: str, body: str, views: Mapping[str, str], current: str) -> str:
    """Return a complete page; ``#live`` contains what changes while it is open."""
    links = "".join(
        f'<a href="{href}"{" aria-current=page" if href == current else ""}>{escape(name)}</a>'
        for name, href in views.items()
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f'<title>{escape(title)}</title>\n<link rel="stylesheet" href="/static/style.css">\n</head>\n<body>\n'
        f'<a class="skip" href="#live">Skip to the content</a>\n{svg.symbols()}\n<div class="page wide">\n'
        '<header class="bar"><p class="brand">rhfedmtl</p>'
        f'<nav aria-label="Views">{links}</nav><p class="pulse" role="status">connecting</p>'
        '<button type="button" class="theme" aria-label="Switch between light and dark" hidden>Dark</button></header>\n'
        f'<main id="live">\n{body}\n</main>\n</div>\n'
        '<script src="/static/report.js" defer></script>\n<script src="/static/dashboard.js" defer></script>\n'
        "</body>\n</html>\n"
    )


@dataclass(frozen=True)
class RunQuery:
    """Query for the table of runs: words to filter by, column to sort by, page.

    With ``single``, every seed has its own line.
    """

    words: str = ""
    sort: str = "changed"
    down: bool = True
    page: int = 0
    single: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str]) -> RunQuery:
        """Read the query from the address; invalid parts are ignored."""
        sort = query.get("sort", "-changed")
        name = sort.removeprefix("-")
        page = query.get("page", "0")
        valid = name in {column.field for column in RUN_COLUMNS}
        number = int(page) if page.isdecimal() and len(page) < 7 else 0
        return cls(query.get("q", ""), name if valid else "changed", sort.startswith("-"), number, "single" in query)

    def href(self, **changes: object) -> str:
        """Return the address of this table with changes."""
        query = replace(self, **changes)  # type: ignore[arg-type]
        sort, single = ("-" if query.down else "") + query.sort, "1" if query.single else ""
        facts = {"q": query.words, "sort": sort, "page": query.page or "", "single": single}
        return "/?" + urlencode({name: value for name, value in facts.items() if value})

    def chosen(self, rows: Iterable[Row]) -> list[Row]:
        """Return matching rows in order; rows without a value in the column come last."""
        fitting = [row for row in rows if row.matches(self.words)]
        fitting = fitting if self.single else grouped(fitting)
        with_value = [row for row in fitting if getattr(row, self.sort) not in (None, "")]
        with_value.sort(key=lambda row: getattr(row, self.sort), reverse=self.down)
        return with_value + [row for row in fitting if getattr(row, self.sort) in (None, "")]


def runs(index: Index, query: RunQuery) -> str:
    """Return the table of all runs in the folder."""
    rows = index.rows
    fitting = query.chosen(rows)
    last, links = max(0, len(fitting) - 1) // PAGE, ""
    if last:
        steps = [("newer" if query.sort == "changed" else "before", query.page - 1), ("next", query.page + 1)]
        links = "".join(
            f'<a href="{escape(query.href(page=page))}">{name}</a>' for name, page in steps if 0 <= page <= last
        )
        links = f'<p class="pages">page {query.page + 1:,} of {last + 1:,} {links}</p>'
    page_rows = fitting[query.page * PAGE : (query.page + 1) * PAGE]
    n_running = sum(row.state == RUNNING for row in rows)
    counts = f"{sum(len(row.members) or 1 for row in fitting):,} of " if query.words else ""
    counts += "1 run" if index.total == 1 else f"{index.total:,} runs"
    counts += f", {n_running} running" if n_running else ""
    counts += f", {len(rows):,} read so far" if len(rows) < index.total else ""
    if not rows:
        words = f"no runs in {escape(str(index.folder))} yet"
        make = commands_html([("make a run", join(["rhfedmtl", "train", "--out", str(index.folder)]))])
        return _heading("Runs", words) + _sweeps(index.sweeps) + make
    if any(row.half is not None for row in page_rows):
        counts += ". A line of several runs has their mean ± half of its 95 % interval, and the weakest certificate"
    metrics = {row.metric for row in page_rows if row.metric}
    shared = metrics.pop() if len(metrics) == 1 else ""
    titles = {"value": metric_name(shared)} if shared else {}
    heads = "".join(_head(column, query, titles.get(column.field, column.title)) for column in RUN_COLUMNS)
    body = "".join(_row(row, shared, titles) for row in page_rows)
    return (
        f"{_heading('Runs', counts)}{_sweeps(index.sweeps)}"
        '<form class="filter" action="/" role="search"><label>Filter <input type="search" name="q" id="q" '
        f'value="{escape(query.words)}" placeholder="har fedavg seed=3 running" autocomplete="off"></label> '
        '<label><input type="checkbox" name="single" id="single" value="1"'
        f"{' checked' if query.single else ''}> every seed</label>"
        f'<input type="hidden" name="sort" value="{"-" if query.down else ""}{query.sort}"></form>'
        '<form class="overlay" action="/overlay"><div class="scroll" tabindex="0" role="region" aria-label="Runs">'
        f'<table class="numbers stack runs"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
        '<p class="act"><button class="go">Overlay the selected runs</button></p></form>'
        f"{links}"
    )


def _sweeps(sweeps: Sequence[SweepLine]) -> str:
    """Return the progress of sweeps and studies, each with a link to its runs."""
    if not sweeps:
        return ""
    rows = "".join(
        f'<li><span class="state {sweep.state}">{sweep.state}</span> '
        f'<a href="{escape(RunQuery(f"sweep={sweep.name}").href())}">{escape(sweep.name)}</a> '
        f"{sweep.done:,} of {sweep.total:,} runs"
        + ("" if sweep.state == DONE else bar(sweep.done, sweep.total, "finished runs"))
        + "</li>"
        for sweep in sweeps
    )
    return f'<ul class="sweeps" aria-label="Sweeps and studies">{rows}</ul>'


def _heading(title: str, words: str) -> str:
    return f'<h1>{escape(title)}</h1><p class="text">{words}</p>'


def _head(column: RunColumn, query: RunQuery, title: str) -> str:
    is_sorted = column.field == query.sort
    down = not query.down if is_sorted else column.number or column.field == "changed"
    order = f' aria-sort="{"descending" if query.down else "ascending"}"' if is_sorted else ""
    kind = "" if column.number else ' class="words"'
    href = escape(query.href(sort=column.field, down=down, page=0))
    mark = (" ▾" if query.down else " ▴") if is_sorted else ""
    return f'<th scope="col"{order}{kind}><a href="{href}" id="by-{column.field}">{title}{mark}</a></th>'


def _row(row: Row, shared: str, titles: Mapping[str, str]) -> str:
    """Return a row of the table; it names its metric only if the heading does not. A phone shows headings in cells."""
    metric = "" if row.metric == shared else f"<small>{escape(metric_name(row.metric))}</small>"
    half = "" if row.half is None else f" ± {row.half:.3f}"
    spent = "" if row.spent is None else f"{100 * row.spent:.0f} %"
    gap = "" if row.relative_gap is None else percent(max(row.relative_gap, LEAST_GAP_SHOWN))
    values = {
        "state": _states(row),
        "value": "" if row.value is None else f"{row.value:.3f}{half}{metric}",
        "relative_gap": f'<span title="{escape(row.certified)}">{gap}</span>' if gap else "",
        "data": escape(row.data),
        "seed": _seeds(row),
        "budget": escape(row.budget),
        "lambda2": _span(row.lambda2),
        "local_steps": _span(row.local_steps),
        "solver": unbroken(row.solver),
        "rounds": "" if row.rounds is None else f"{row.rounds:,}",
        "spent": spent,
        "changed": row.when,
    }
    cells = "".join(
        f'<td{"" if column.number else " class=words"} data-label="{titles.get(column.field, column.title)}">'
        f"{values[column.field]}</td>"
        for column in RUN_COLUMNS[1:]
    )
    if row.members:
        kind, value, href, label = "group", row.group, f"/overlay?group={row.group}", f"{row.algorithm}, all seeds"
    else:
        kind, value, href, label = "run", escape(row.name), f"/run/{quote(row.name, safe='')}", row.name
    box = f'<input type="checkbox" name="{kind}" value="{value}" id="pick-{value}" aria-label="select {escape(label)}">'
    link = f'<a href="{href}">{escape(row.algorithm or row.name)}</a>'
    notes = "".join(f"<small>{text}</small>" for text in ("" if row.members else value, escape(row.sweep)) if text)
    return f'<tr><th scope="row">{box} {link}{notes}</th>{cells}</tr>'


def _states(row: Row) -> str:
    """Return the state, and for several seeds the number of runs in each state."""
    counts = Counter(member.state for member in row.members)
    texts = [(state, f"{count} {state}") for state, count in counts.items()] if len(counts) > 1 else [(row.state,) * 2]
    why = f"<small>{escape(row.why[:200])}</small>" if row.why else ""
    return "<br>".join(f'<span class="state {state}">{text}</span>' for state, text in texts) + why


def _seeds(row: Row) -> str:
    """Return the seed, or the number of runs with a link to them."""
    if not row.members:
        return "" if row.seed is None else f"{row.seed}"
    href = RunQuery(f"group={row.group}", sort="seed", down=False, single=True).href()
    seeds = [member.seed for member in row.members if member.seed is not None]
    return f'<a href="{escape(href)}">{len(row.members)} runs</a><small>{_span((min(seeds), max(seeds)))}</small>'


def _span(span: Span | None) -> str:
    """Return the smallest and the largest value, or one value if they are equal."""
    return "" if span is None else " to ".join(dict.fromkeys(short(value) for value in span))


def one_run(name: str, record: Record, row: Row, place: Path) -> str:
    """Return the page of a run in the folder ``place``: its report, and commands to continue or share it."""
    facts = [escape(name), f'<span class="state {row.state}">{row.state}</span>', escape(row.certified)]
    head = _heading(f"{record.configuration.algorithm} on {record.data.name}", " · ".join(filter(None, facts)))
    if record.result is None:
        return head + f'<p class="finding">{escape(record.refused or "no round is finished yet")}</p>'
    commands = []
    if row.state == INTERRUPTED:
        commands.append(("Continue it", go_on(place)))
    if row.state == DONE:
        of = f"Write a report of sweep {row.sweep}" if row.sweep else "Write a report"
        commands.append((f"{of} as a file", join(["rhfedmtl", "report", str(place)])))
    report = chapter_html(chapter(gather({name: record}, place), Styles()))
    return head + _meters(record) + report + commands_html(commands)


def _meters(record: Record) -> str:
    """Return a bar with the spending for every budget."""
    result = record.result
    assert result is not None
    return "".join(meter(kind, result.spent.get(kind, 0.0), limit) for kind, limit in result.budget.items())


def meter(kind: str, spent: float, limit: float, after: str = "") -> str:
    """Return the spending of a budget as a bar with text."""
    words = f"{escape(kind)}: {short(spent)} of {short(limit)} spent{after}"
    return f'<p class="meter">{words}{bar(spent, limit, words)}</p>'


def bar(part: float, total: float, words: str) -> str:
    """Return a share as a bar."""
    return f' <meter min="0" max="{total:g}" value="{part:g}" aria-label="{words}"></meter>'


def overlay(groups: Sequence[Mapping[str, Record]], folder: Path) -> str:
    """Return several runs in the same charts; runs of a group are seeds of the same configuration."""
    done = [{name: record for name, record in group.items() if record.result is not None} for group in groups]
    done = [group for group in done if group]
    runs = [name for group in done for name in group]
    if len(runs) < 2:
        return _heading("Overlay", 'select two or more runs with a result in the <a href="/">table of runs</a>')
    compared = commands_html([("As text", join(["rhfedmtl", "runs", "compare", *runs, "--folder", str(folder)]))])
    result = overlaid(done, folder)
    combined = replace(chapter(result, Styles()), settings={})  # The settings differ from run to run.
    title = "Overlay" if len(done) > 1 else next(iter(result.labels.values()))
    return _heading(title, f"{len(runs)} runs") + chapter_html(combined) + compared


def refusal(text: str) -> str:
    """Return a page with the reason why a view cannot be shown."""
    return _heading("Cannot be shown", escape(text))


def selected(query: Sequence[tuple[str, str]], index: Index) -> list[list[str]]:
    """Return the names of the runs in the query of an overlay, by group."""
    chosen = dict.fromkeys(pair for pair in query if pair[0] in ("run", "group"))
    return [[name] if kind == "run" else index.group(name) for kind, name in chosen][:MOST_OVERLAID]
