"""Measure how plain the prose and the names of the project are, and fail if a file gets worse.

``python tools/prose.py`` compares every file with ``tools/prose.json``: a file may not gain hard phrases, vague
docstring openings, vague names, long sentences or words beyond the length of a page, and a new file must meet the
targets. ``--write`` records lower counts after an improvement; it never records higher counts. ``--list 20`` shows
the worst files, and ``--show FILE`` every place in a file with the advice. `make lint` runs the check.

A hard phrase makes the reader search for the subject of a sentence. The rates are a thermometer: a file that passes
can still read badly.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(__file__).with_suffix(".json")
FOLDERS = ("src", "terminal", "docs", "benchmarks", "examples", "tests", "tools")
SKIPPED = {"_build", "__pycache__", "others", "node_modules"}
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")

HARD_PER_1000, VAGUE_OPENINGS, VAGUE_NAMES, LONG_PER_1000 = 6.0, 0.02, 0.007, 8.0
"""Targets: hard phrases and long sentences per 1,000 words, shares of docstrings and of names."""
LONGEST_SENTENCE = 35
KINDS = ("hard", "long", "opening", "name", "length")
MESSAGE_WORDS = 4
"""String literals with at least this many words count as prose."""

WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
HARD: dict[str, str] = WORDS["hard"]
MARKERS = re.compile("|".join(rf"(?P<m{i}>\b(?:{words})\b)" for i, words in enumerate(HARD.values())), re.IGNORECASE)
OPENING = re.compile(WORDS["opening"].replace("\n", ""), re.IGNORECASE)
VAGUE = frozenset(WORDS["vague_names"])
WORD = re.compile(r"[A-Za-z][A-Za-z'-]+")
SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n|\n\s*[-*|#]|\n\s*\d+\. ")


@dataclass
class Report:
    """Counts of one file, and the places that they come from."""

    counts: Counter[str] = field(default_factory=Counter)
    places: list[tuple[int, str]] = field(default_factory=list)

    def add(self, kind: str, line: int, advice: str) -> None:
        """Count one place."""
        self.counts[kind] += 1
        self.places.append((line, f"{kind}: {advice}"))

    def read(self, line: int, text: str) -> None:
        """Count words, hard phrases and long sentences of a piece of prose."""
        plain = re.sub(r"`[^`]*`", "x", text)
        self.counts["words"] += len(WORD.findall(plain))
        for match in MARKERS.finditer(plain):
            advice = list(HARD)[int((match.lastgroup or "m0")[1:])]
            self.add("hard", line + plain[: match.start()].count("\n"), f"{match.group()!r}: {advice}")
        position = 0
        for sentence in SENTENCE.split(plain):
            position = plain.find(sentence, position)
            if (length := len(WORD.findall(sentence))) > LONGEST_SENTENCE:
                self.add("long", line + plain[:position].count("\n"), f"a sentence of {length} words: split it")


def measure(path: Path) -> Report:
    """Measure one file."""
    report, source = Report(), path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        report.read(1, _prose_of_page(source))
        report.counts["length"] = max(0, len(source.split()) - _longest(path))
        return report
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if len(WORD.findall(node.value)) >= MESSAGE_WORDS:
                report.read(node.lineno, node.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            doc = ast.get_docstring(node)
            report.counts["docstrings"] += doc is not None
            if doc and OPENING.match(doc):
                report.add("opening", getattr(node, "lineno", 1), f"{doc.split()[0]!r}: start with a verb or a noun")
        name = _bound_name(node)
        report.counts["names"] += name is not None
        if name in VAGUE:
            report.add("name", getattr(node, "lineno", 1), f"{name!r}: use a noun of the domain")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            report.read(token.start[0], token.string.lstrip("# "))
    return report


def _longest(page: Path) -> int:
    """Return the number of words that a page may have."""
    name, limits = page.relative_to(ROOT).as_posix(), WORDS["length"]
    if not name.startswith("docs/"):
        return int(limits.get(name, sys.maxsize))
    return sys.maxsize if name.startswith(tuple(limits["reference"])) else int(limits["docs"])


def _prose_of_page(source: str) -> str:
    """Blank out code blocks, tables, formulas and link targets; line numbers stay."""
    blocks = re.compile(r"```.*?```|\$\$.*?\$\$", re.DOTALL)
    source = blocks.sub(lambda match: "\n" * match.group().count("\n"), source)
    return re.sub(r"^[ \t]*\|.*$|\$[^$\n]*\$|\]\([^)\n]*\)", " ", source, flags=re.MULTILINE)


def _bound_name(node: ast.AST) -> str | None:
    """Return the name that a node assigns."""
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None


def files(paths: list[str]) -> Iterator[Path]:
    """Yield the files to read, in a fixed order."""
    for path in [Path(p).resolve() for p in paths] or [ROOT / name for name in (*FOLDERS, *PAGES)]:
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            generated = file.name.endswith("_pb2.py") or SKIPPED & set(file.parts)
            if file.suffix in (".py", ".md") and not generated:
                yield file


def misses(counts: Counter[str]) -> list[str]:
    """Return the targets that a new file misses; a handful of places is allowed in a short one."""
    limits = {
        "hard": HARD_PER_1000 * counts["words"] / 1000,
        "long": LONG_PER_1000 * counts["words"] / 1000,
        "opening": VAGUE_OPENINGS * counts["docstrings"],
        "name": VAGUE_NAMES * counts["names"],
        "length": 0,
    }
    allowed = {kind: round(limit) if kind == "length" else max(2, round(limit)) for kind, limit in limits.items()}
    return [f"{counts[kind]} × {kind} (at most {most})" for kind, most in allowed.items() if counts[kind] > most]


def compare(reports: dict[str, Report], record: dict[str, dict[str, int]]) -> list[str]:
    """Return a line for every file that is worse than its record, or new and above the targets."""
    lines = []
    for name, report in reports.items():
        if name not in record:
            lines += [f"{name}: new file with {miss}" for miss in misses(report.counts)]
            continue
        worse = [k for k in KINDS if report.counts[k] > record[name].get(k, 0)]
        if worse and misses(report.counts):
            changes = ", ".join(f"{record[name].get(k, 0)} → {report.counts[k]} × {k}" for k in worse)
            lines.append(f"{name}: {changes}; see: python tools/prose.py --show {name}")
    return lines


def summary(reports: dict[str, Report]) -> str:
    """Return the rates of Python and Markdown files."""
    lines = []
    for suffix, label in ((".py", "Python"), (".md", "Markdown")):
        total: Counter[str] = Counter()
        for name, report in reports.items():
            if name.endswith(suffix):
                total.update(report.counts)
        words = max(total["words"], 1)
        line = f"{label}: {words:,} words, {1000 * total['hard'] / words:.1f} hard phrases and "
        line += f"{1000 * total['long'] / words:.1f} long sentences per 1,000"
        if suffix == ".py":
            line += f"; {100 * total['opening'] / max(total['docstrings'], 1):.1f} % vague openings"
            line += f"; {100 * total['name'] / max(total['names'], 1):.2f} % vague names"
        lines.append(line)
    return "\n".join(lines)


def main() -> int:
    """Run the command line; return 1 if a file got worse."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files and folders to read instead of the whole project")
    parser.add_argument("--list", type=int, default=0, metavar="N", help="show the N files with most hard phrases")
    parser.add_argument("--show", metavar="FILE", help="show every place in a file, with advice")
    parser.add_argument("--write", action="store_true", help="record the counts of files that got better")
    options = parser.parse_args()
    if options.show:
        for line, advice in sorted(measure(Path(options.show).resolve()).places):
            print(f"{options.show}:{line}: {advice}")
        return 0
    reports = {file.relative_to(ROOT).as_posix(): measure(file) for file in files(options.paths)}
    print(summary(reports))
    worst = sorted(reports, key=lambda name: -reports[name].counts["hard"])
    for name in worst[: options.list]:
        print(f"  {reports[name].counts['hard']:4} in {reports[name].counts['words']:6,} words: {name}")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    worse = compare(reports, record)
    print("\n".join(worse))
    if options.write:
        _write(reports, record)
    return 1 if worse else 0


def _write(reports: dict[str, Report], record: dict[str, dict[str, int]]) -> None:
    """Record the lower of the old and the new counts; files that meet the targets need no entry."""
    lowest = {
        name: {k: min(report.counts[k], record.get(name, {}).get(k, report.counts[k])) for k in KINDS}
        for name, report in reports.items()
        if misses(report.counts) and (name in record or not RECORD.exists())
    }
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(counts)}" for name, counts in sorted(lowest.items()))
    RECORD.write_text("{\n" + rows + "\n}\n")


if __name__ == "__main__":
    sys.exit(main())
