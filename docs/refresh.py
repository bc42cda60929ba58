"""Run the Python blocks and commands of README.md and docs/, and write what they print beneath them.

    python docs/refresh.py [PAGE ...]

A ``python`` block is run, together with those before it on the same page; a ``text`` block right after it holds what it
prints. In a ``console`` block every ``$ rhfedmtl …`` is run, and the lines below it are what it printed; other commands
are left as they stand. A ``console quiet`` block is run too, and the page does not show its output. It happens in an
empty folder, with ``har.npz`` in it if the folder RHFEDMTL_DATA has one. ``tests/test_docs.py`` runs the same blocks.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONSOLE, QUIET = "console", "console quiet"
_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Block:
    """A fenced block: its language, its text, and where the text stands on the page."""

    kind: str
    text: str
    start: int
    end: int


def pages() -> list[Path]:
    """README and all pages of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> list[Block]:
    """Fenced blocks of a page."""
    return [Block(found[1], found[2], found.start(2), found.end(2)) for found in _FENCE.finditer(text)]


def expected(page: str, found: list[Block], i: int) -> Block | None:
    """Block with the output of Python block ``i``, where the page shows it."""
    if i + 1 == len(found) or found[i + 1].kind != "text":
        return None
    between = page[found[i].end : found[i + 1].start]
    return found[i + 1] if between.replace("```", "").strip() == "text" else None


def namespace_of(name: str) -> dict[str, Any]:
    """Names of a page: those of a module of its own, which classes and pickles can be found in."""
    module = types.ModuleType(f"page_{re.sub(r'[^a-z]', '_', name)}")
    sys.modules[module.__name__] = module
    return module.__dict__


def run_python(code: str, name: str, namespace: dict[str, Any]) -> str:
    """What a block prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), namespace)
    return printed.getvalue()


def commands(text: str) -> list[tuple[str, str]]:
    """Commands of a console block, each with the lines below it; a command may go on after a backslash."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    found = []
    for part in parts:
        lines = part.split("\n")
        n = next(i for i, line in enumerate(lines) if not line.endswith("\\")) + 1
        found.append(("\n".join(lines[:n]), "\n".join(lines[n:])))
    return found


def run_command(command: str) -> tuple[int, str]:
    """Exit status and output of an ``rhfedmtl`` command, as on a terminal of 80 columns."""
    words = shlex.split(command.replace("\\\n", " "))
    program = [sys.executable, "-c", "from rhfedmtl.cli.main import main; main()", *words[1:]]
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(program, capture_output=True, encoding="utf-8", env=environment, check=False)
    if "Traceback" in done.stderr:
        raise RuntimeError(f"{command}\n{done.stderr}")
    text = "\n".join(line.rstrip() for line in (done.stdout + done.stderr).splitlines())
    for place, short in ((r"\.cache/rhfedmtl", "~/.cache/rhfedmtl"), (r"\.venv", ".venv")):
        text = re.sub(rf"/[\w./-]*/{place}(?=/|$)", short, text, flags=re.MULTILINE)
    if "RHFEDMTL_DATA" in os.environ:
        text = text.replace(os.environ["RHFEDMTL_DATA"], "data")
    return done.returncode, text.strip("\n") + "\n"


@contextlib.contextmanager
def workplace() -> Iterator[None]:
    """An empty folder to be in, with the HAR file where there is one."""
    har = Path(os.environ.get("RHFEDMTL_DATA", "")) / "har.npz"
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if har.is_file():
            Path("har.npz").symlink_to(har.resolve())
        yield


def refreshed(page: str, name: str) -> str:
    """The page with the output of all its blocks brought up to date."""
    found, namespace, changes = blocks(page), namespace_of(name), []
    with workplace():
        for i, block in enumerate(found):
            if block.kind == "python":
                output, shown = run_python(block.text, name, namespace), expected(page, found, i)
                if shown is not None:
                    changes.append((shown, output))
            elif block.kind in (CONSOLE, QUIET):
                fresh = [
                    f"$ {c}\n{run_command(c)[1] if c.startswith('rhfedmtl') else out}"
                    for c, out in commands(block.text)
                ]
                if block.kind == CONSOLE:
                    changes.append((block, "\n".join(part.rstrip("\n") for part in fresh) + "\n"))
    for block, text in reversed(changes):
        page = page[: block.start] + text + page[block.end :]
    return page


if __name__ == "__main__":
    if not (Path(os.environ.get("RHFEDMTL_DATA", "")) / "har.npz").is_file():
        sys.exit("pages show runs on har.npz: let RHFEDMTL_DATA name the folder that has it")
    for path in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        path.write_text(refreshed(path.read_text(encoding="utf-8"), path.name), encoding="utf-8")
