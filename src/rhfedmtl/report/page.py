"""The page: one HTML file that holds all it needs, style and script and data, and asks for nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from rhfedmtl.report import svg
from rhfedmtl.report.charts import PALETTE, Chart, Heat, LineChart, Panels
from rhfedmtl.report.sections import Chapter, Section
from rhfedmtl.report.tables import Table, TableCell
from rhfedmtl.report.words import contradicts

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What the browser may load: nothing from outside."""
MOST_FINDINGS = 5


def page(chapters: Sequence[Chapter], *, title: str, made: str) -> str:
    """The whole report; ``made`` says from what it was made, and by which version."""
    many = len(chapters) > 1
    body = "".join(chapter_html(chapter, many=many, number=i + 1) for i, chapter in enumerate(chapters))
    links = "".join(f'<li><a href="#{escape(c.name)}">{escape(c.title)}</a></li>' for c in chapters)
    contents = f'<nav class="contents" aria-label="Contents"><div><p>Contents</p><ol>{links}</ol></div></nav>'
    # The finding of the first chapter, large, and under it every chapter with its own.
    first = chapters[0]
    link = f'<a href="#{escape(first.name)}">{escape(first.title)}</a>'
    lead = "".join(f'<p class="lead">{escape(text)}</p><p class="from">{link}</p>' for text in first.findings[:1])
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
    """The style of all that is drawn here, colours of series included."""
    return _colours() + _resource("style.css")


def script() -> str:
    """What makes charts and commands answer to pointer and keys."""
    return _resource("script.js")


def _resource(name: str) -> str:
    return files("rhfedmtl.report").joinpath(name).read_text(encoding="utf-8")


def _colours() -> str:
    variables = "".join(f"--c{i}: light-dark({light}, {dark}); " for i, (light, dark) in enumerate(PALETTE))
    classes = "".join(f".c{i} {{ --c: var(--c{i}); }} " for i in range(len(PALETTE)))
    return f":root {{ {variables}}}\n{classes}\n"


def chapter_html(chapter: Chapter, *, many: bool = False, number: int = 1) -> str:
    """One study: findings, sections, settings."""
    name = escape(chapter.name)
    heading = f'<p class="eyebrow">{number} · {name}</p><h2>{escape(chapter.title)}</h2>' if many else ""
    asked = f'<p class="asked">{escape(chapter.question)}</p>' if chapter.question else ""
    level = 3 if many else 2
    sections = "".join(_section(chapter.name, part, level, folded=many and part.folded) for part in chapter.sections)
    settings = _settings(chapter, level, folded=many) if chapter.settings else ""
    return f'<section class="study" id="{name}">{heading}{asked}{_findings(chapter)}{sections}{settings}</section>'


def _findings(chapter: Chapter) -> str:
    """The first large, the next few beneath, the others folded; what contradicts the paper is never folded."""
    if not chapter.findings:
        return ""
    first, *others = chapter.findings
    odds = [text for text in others if contradicts(text)]
    plain = [text for text in others if not contradicts(text)]
    shown = plain if len(plain) <= MOST_FINDINGS else plain[: MOST_FINDINGS - 1]
    kept = "".join(_item(text) for text in [*odds, *shown])
    rest = "".join(_item(text) for text in plain[len(shown) :])
    count = len(plain) - len(shown)
    folded = (
        f'<details class="more"><summary>{count} more</summary><ul class="also">{rest}</ul></details>' if rest else ""
    )
    lead = f'<p class="finding{" odds" if contradicts(first) else ""}">{escape(first)}</p>'
    return lead + (f'<ul class="also">{kept}</ul>' if kept else "") + folded


def _item(text: str) -> str:
    return f'<li class="odds">{escape(text)}</li>' if contradicts(text) else f"<li>{escape(text)}</li>"


def _settings(chapter: Chapter, level: int, *, folded: bool) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in chapter.settings.items())
    return _folding(f"{chapter.name}-settings", "Settings", level, f'<dl class="settings">{rows}</dl>', folded=folded)


def _section(study: str, part: Section, level: int, *, folded: bool) -> str:
    text = f'<p class="text">{escape(part.text)}</p>' if part.text else ""
    drawn = "".join(figure_html(study, part, chart, level + 1) for chart in part.charts)
    charts = f'<div class="charts">{drawn}</div>' if drawn else ""
    table = _table(part.table) if part.table else ""
    body = text + _choices(study, part) + charts + table + commands_html(part.commands)
    return _folding(f"{study}-{part.key}", part.title, level, body, folded=folded)


def _choices(study: str, part: Section) -> str:
    """A box that a script fills with what there is to choose, and the values for it."""
    if part.choices is None:
        return ""
    return (
        f'<div class="choose" id="{escape(study)}-choose" role="group" aria-label="What the first chart shows" hidden>'
        f'<script type="application/json" class="choices">{svg.as_json(part.choices)}</script></div>'
    )


def commands_html(commands: Sequence[tuple[str, str]], others: str = "single runs") -> str:
    """The first in the open, the others folded where they are many."""
    if not commands:
        return ""
    shown = [_command(name, command) for name, command in commands]
    first, rest = (shown, []) if len(shown) <= 3 else (shown[:1], shown[1:])
    folded = (
        f'<details class="more"><summary>{len(rest)} {escape(others)}</summary>{"".join(rest)}</details>'
        if rest
        else ""
    )
    return f'<div class="commands">{"".join(first)}{folded}</div>'


def _folding(key: str, title: str, level: int, body: str, *, folded: bool) -> str:
    heading = f"<h{level}>{escape(title)}</h{level}>"
    if folded:
        return f'<details class="part" id="{escape(key)}"><summary>{heading}</summary>{body}</details>'
    return f'<section class="part" id="{escape(key)}">{heading}{body}</section>'


def figure_html(study: str, section: Section, chart: Chart, level: int = 2) -> str:
    """A chart with its title, a heading of this level, its note, and its values as a table."""
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
        f"<figcaption>{title}{note}</figcaption>{svg.draw(chart)}"
        f'<details class="data"><summary>Values as a table</summary>{tables}</details></figure>'
    )


def _table(table: Table) -> str:
    body = "".join(_group(name, rows, len(table.head)) for name, rows in table.groups)
    signed = any(entry.sign for _, rows in table.groups for row in rows for entry in row)
    note = f'<p class="text">{escape(table.note)}</p>' if table.note else ""
    columns = zip(*(row for _, rows in table.groups for row in rows), strict=True)
    words = [i for i, column in enumerate(columns) if i and all(_is_text(entry) for entry in column)]
    return note + _scrolling(table.head, body, "numbers signed" if signed else "numbers", words)


def _scrolling(head: Sequence[str], body: str, kind: str, words: Sequence[int] = ()) -> str:
    """A table in a box that it may scroll in, by finger and by keyboard; ``words`` are columns that hold no numbers."""
    kinds = [' class="words"' if i in words else "" for i in range(len(head))]
    heads = "".join(
        f'<th scope="col"{of}>{escape(text)}</th>' if text else "<td></td>"
        for of, text in zip(kinds, head, strict=True)
    )
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="Table"><table class="{kind}"><thead>'
        f"<tr>{heads}</tr></thead>{body}</table></div>"
    )


def _group(name: str, rows: Sequence[Sequence[TableCell]], width: int) -> str:
    head = f'<tr class="group"><th scope="rowgroup" colspan="{width}">{escape(name)}</th></tr>' if name else ""
    body = "".join(
        f'<tr><th scope="row">{_entry(row[0])}</th>{"".join(_cell(entry) for entry in row[1:])}</tr>' for row in rows
    )
    return f"<tbody>{head}{body}</tbody>"


def _cell(entry: TableCell) -> str:
    kind = " ".join(name for name, holds in (("best", entry.best), ("words", _is_text(entry))) if holds)
    return f'<td class="{kind}">{_entry(entry)}</td>' if kind else f"<td>{_entry(entry)}</td>"


def _is_text(entry: TableCell) -> bool:
    return entry.text[:1].isalpha()


def _entry(entry: TableCell) -> str:
    if entry.strip is not None:
        low, mean, high = (100.0 * share for share in entry.strip)
        return (
            f'<svg class="strip" aria-hidden="true"><line x1="{low:.1f}%" x2="{high:.1f}%" y1="50%" y2="50%"/>'
            f'<circle cx="{mean:.1f}%" cy="50%" r="3.5"/></svg>'
        )
    text = f"<b>{escape(entry.text)}</b>" if entry.best else escape(entry.text)
    sign = f'<span class="sign">{entry.sign}</span>' if entry.sign else ""
    note = "".join(f"<small>{escape(line)}</small>" for line in entry.note.splitlines())
    return f"{text}{sign}{note}"


def _command(name: str, command: str) -> str:
    return f'<div class="command"><p>{escape(name)}</p><div><pre>{escape(command)}</pre></div></div>'
