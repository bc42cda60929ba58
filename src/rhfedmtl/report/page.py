"""Write the report as a single HTML file that contains its style, script and data, and loads nothing else.

`report.write` calls `page`. The dashboard reuses the parts of a page: `chapter_html`, `figure_html`, `commands_html`,
`stylesheet` and `script`. All text is escaped here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape
from importlib.resources import files

from rhfedmtl.report import svg
from rhfedmtl.report.charts import PALETTE, Chart, Heat, LineChart, Panels
from rhfedmtl.report.findings import contradicts
from rhfedmtl.report.sections import Chapter, Section
from rhfedmtl.report.tables import Table, TableCell
from rhfedmtl.report.words import READING

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Content policy of the browser: nothing is loaded from outside."""
MOST_FINDINGS = 5
FITTING = 3
"""Columns of a table that fit on a phone; a wider table has a block for each row there."""
LONG = 16
"""A longer text has two columns of such a block."""


def page(chapters: Sequence[Chapter], *, title: str, made: str) -> str:
    """Return the complete report; ``made`` is the line above the title with counts and version."""
    many = len(chapters) > 1
    explained = next((chapter for chapter in chapters if chapter.intervals), None)  # Explain ± once.
    body = "".join(
        chapter_html(chapter, many=many, number=i + 1, explain=chapter is explained)
        for i, chapter in enumerate(chapters)
    )
    links = "".join(f'<li><a href="#{escape(c.name)}">{escape(c.title)}</a></li>' for c in chapters)
    contents = f'<nav class="contents" aria-label="Contents"><div><p>Contents</p><ol>{links}</ol></div></nav>'
    # Show the finding of the first chapter in large type, and below it each chapter with its finding.
    first = chapters[0]
    link = f'<a href="#{escape(first.name)}">{escape(first.title)}</a>'
    lead = "".join(f'<p class="lead">{unbroken(text)}</p><p class="from">{link}</p>' for text in first.findings[:1])
    rows = "".join(
        f'<li><a href="#{escape(c.name)}">{escape(c.title)}</a><span>{escape(" ".join(c.findings[:1]))}</span></li>'
        for c in chapters[1 if lead else 0 :]
    )
    overview = (contents, f'{lead}<ul class="glance">{rows}</ul>') if many else ("", "")
    button = '<button type="button" class="theme" aria-label="Switch between light and dark" hidden>Dark</button>'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{stylesheet()}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the results</a>\n{svg.symbols()}\n'
        f'<div class="page{" many" if many else ""}">\n'
        f'<header class="top">{button}<p class="eyebrow">{escape(made)}</p><h1>{escape(title)}</h1></header>\n'
        f'{overview[0]}\n<main id="main">\n{overview[1]}{body}\n'
        f"</main>\n</div>\n<script>\n{script()}</script>\n</body>\n</html>\n"
    )


def stylesheet() -> str:
    """Return the style sheet, including the colours of series."""
    return _colours() + _resource("style.css")


def script() -> str:
    """Return the script that makes charts and commands interactive."""
    return _resource("script.js")


def _resource(name: str) -> str:
    return files("rhfedmtl.report").joinpath(name).read_text(encoding="utf-8")


def _colours() -> str:
    variables = "".join(f"--c{i}: light-dark({light}, {dark}); " for i, (light, dark) in enumerate(PALETTE))
    classes = "".join(f".c{i} {{ --c: var(--c{i}); }} " for i in range(len(PALETTE)))
    return f":root {{ {variables}}}\n{classes}\n"


def chapter_html(chapter: Chapter, *, many: bool = False, number: int = 1, explain: bool = True) -> str:
    """Return a study with findings, a legend, sections and settings; with ``explain``, say what ± means."""
    name = escape(chapter.name)
    heading = f'<p class="eyebrow">{number} · {name}</p><h2>{escape(chapter.title)}</h2>' if many else ""
    level = 3 if many else 2
    legend, texts = svg.legend(chapter.legend), [chapter.reading, READING if explain and chapter.intervals else ""]
    reading = f'<p class="text">{escape(" ".join(filter(None, texts)))}</p>' if any(texts) else ""
    shared = svg.entries(chapter.legend)
    sections = "".join(
        _section(chapter.name, part, level, shared, folded=many and part.folded) for part in chapter.sections
    )
    settings = _settings(chapter, level, folded=many) if chapter.settings else ""
    top = f"{heading}{_findings(chapter)}{reading}{legend}"
    return f'<section class="study" id="{name}">{top}{sections}{settings}</section>'


def _findings(chapter: Chapter) -> str:
    """Return the findings: the first large, the next few below it, the rest folded.

    Findings that contradict the paper are never folded.
    """
    if not chapter.findings:
        return ""
    first, *further = chapter.findings
    odds = [text for text in further if contradicts(text)]
    plain = [text for text in further if not contradicts(text)]
    visible = plain if len(plain) <= MOST_FINDINGS else plain[: MOST_FINDINGS - 1]
    visible_items = "".join(_item(text) for text in [*odds, *visible])
    rest = "".join(_item(text) for text in plain[len(visible) :])
    count = len(plain) - len(visible)
    folded = (
        f'<details class="more"><summary>{count} more</summary><ul class="also">{rest}</ul></details>' if rest else ""
    )
    lead = f'<p class="finding{" odds" if contradicts(first) else ""}">{unbroken(first)}</p>'
    return lead + (f'<ul class="also">{visible_items}</ul>' if visible_items else "") + folded


def _item(text: str) -> str:
    return f'<li class="odds">{unbroken(text)}</li>' if contradicts(text) else f"<li>{unbroken(text)}</li>"


def unbroken(text: str) -> str:
    """Return text as HTML in which no line ends before ± or %."""
    return escape(text).replace(" ±", "\u00a0±").replace("± ", "±\u00a0").replace(" %", "\u00a0%")


def _settings(chapter: Chapter, level: int, *, folded: bool) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in chapter.settings.items())
    return _folding(f"{chapter.name}-settings", "Settings", level, f'<dl class="settings">{rows}</dl>', folded=folded)


def _section(study: str, part: Section, level: int, shared: Collection[str], *, folded: bool) -> str:
    text = f'<p class="text">{escape(part.text)}</p>' if part.text else ""
    drawn = "".join(figure_html(study, part, chart, level + 1, shared) for chart in part.charts)
    charts = f'<div class="charts">{drawn}</div>' if drawn else ""
    table = _table(part.table) if part.table else ""
    body = text + _choices(study, part) + charts + table + commands_html(part.commands)
    return _folding(f"{study}-{part.key}", part.title, level, body, folded=folded)


def _choices(study: str, part: Section) -> str:
    """Return the box for menus, which the script fills, and their data."""
    if part.choices is None:
        return ""
    return (
        f'<div class="choose" id="{escape(study)}-choose" role="group" aria-label="Select the first chart" hidden>'
        f'<script type="application/json" class="choices">{svg.as_json(part.choices)}</script></div>'
    )


def commands_html(commands: Sequence[tuple[str, str]], folded_title: str = "single runs") -> str:
    """Return commands to copy; many commands are folded after the first."""
    if not commands:
        return ""
    blocks = [_command(name, command) for name, command in commands]
    first, rest = (blocks, []) if len(blocks) <= 3 else (blocks[:1], blocks[1:])
    folded = (
        f'<details class="more"><summary>{len(rest)} {escape(folded_title)}</summary>{"".join(rest)}</details>'
        if rest
        else ""
    )
    return f'<div class="commands">{"".join(first)}{folded}</div>'


def _folding(key: str, title: str, level: int, body: str, *, folded: bool) -> str:
    heading = f"<h{level}>{escape(title)}</h{level}>"
    if folded:
        return f'<details class="part" id="{escape(key)}"><summary>{heading}</summary>{body}</details>'
    return f'<section class="part" id="{escape(key)}">{heading}{body}</section>'


def figure_html(study: str, section: Section, chart: Chart, level: int = 2, shared: Collection[str] = ()) -> str:
    """Return a chart with its title as a heading of this level, its note, and its values as a table.

    Series in the ``shared`` legend of the page have no other legend.
    """
    title = f"<h{level}>{escape(chart.title)}</h{level}>" if chart.title != section.title else ""
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    half = section.paired if isinstance(chart, LineChart) else isinstance(chart, Heat) and len(chart.columns) <= 12
    data = chart.parts if isinstance(chart, Panels) else (chart,)
    tables = ""
    for part in data:
        head, rows = part.table()
        body = "".join(
            f'<tr><th scope="row">{escape(row[0])}</th>'
            + "".join(f"<td>{escape(text)}</td>" for text in row[1:])
            + "</tr>"
            for row in rows
        )
        tables += f'<p class="caption">{escape(part.title)}</p>' if isinstance(chart, Panels) else ""
        tables += _scrolling(head, f"<tbody>{body}</tbody>", "numbers")
    return (
        f'<figure class="chart{" half" if half else ""}" id="{escape(f"{study}-{chart.key}")}-chart">'
        f"<figcaption>{title}{note}</figcaption>{svg.draw(chart, shared)}"
        f'<details class="data"><summary>Values as a table</summary>{tables}</details></figure>'
    )


def _table(table: Table) -> str:
    body = "".join(_group(name, rows, table.head) for name, rows in table.groups)
    signed = any(entry.sign for _, rows in table.groups for row in rows for entry in row)
    note = f'<p class="text">{escape(table.note)}</p>' if table.note else ""
    columns = zip(*(row for _, rows in table.groups for row in rows), strict=True)
    words = [i for i, column in enumerate(columns) if i and all(_is_text(entry) for entry in column)]
    kind = f"numbers{' signed' if signed else ''}{' stack' if len(table.head) > FITTING else ''}"
    return note + _scrolling(table.head, body, kind, words)


def _scrolling(head: Sequence[str], body: str, kind: str, words: Sequence[int] = ()) -> str:
    """Return a table in a box that scrolls by finger and keyboard; ``words`` are columns without numbers."""
    kinds = [' class="words"' if i in words else "" for i in range(len(head))]
    heads = "".join(
        f'<th scope="col"{of}>{escape(text)}</th>' if text else "<td></td>"
        for of, text in zip(kinds, head, strict=True)
    )
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="Table"><table class="{kind}"><thead>'
        f"<tr>{heads}</tr></thead>{body}</table></div>"
    )


def _group(name: str, rows: Sequence[Sequence[TableCell]], head: Sequence[str]) -> str:
    group = f'<tr class="group"><th scope="rowgroup" colspan="{len(head)}">{escape(name)}</th></tr>' if name else ""
    body = "".join(
        f'<tr><th scope="row">{_entry(row[0])}</th>{"".join(map(_cell, row[1:], head[1:]))}</tr>' for row in rows
    )
    return f"<tbody>{group}{body}</tbody>"


def _cell(entry: TableCell, label: str) -> str:
    """Return a cell; a phone shows the heading ``label`` in it."""
    facts = (("best", entry.best), ("words", _is_text(entry)), ("long", len(entry.text) > LONG))
    classes = " ".join(name for name, holds in facts if holds)
    kind = f' class="{classes}"' if classes else ""
    return f'<td{kind} data-label="{escape(label)}">{_entry(entry)}</td>'


def _is_text(entry: TableCell) -> bool:
    return entry.text[:1].isalpha()


def _entry(entry: TableCell) -> str:
    text = f"<b>{unbroken(entry.text)}</b>" if entry.best else unbroken(entry.text)
    sign = f'<span class="sign">{entry.sign}</span>' if entry.sign else ""
    note = "".join(f"<small>{escape(line)}</small>" for line in entry.note.splitlines())
    return f"{text}{sign}{note}"


def _command(name: str, command: str) -> str:
    return f'<div class="command"><p>{escape(name)}</p><div><pre>{escape(command)}</pre></div></div>'
