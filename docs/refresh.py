"""Run the Python blocks and commands of README.md and docs/, and update or check the output below them.

    python docs/refresh.py [PAGE ...]             # write outputs that differ
    python docs/refresh.py --check [PAGE ...]     # write nothing; list outputs that differ, and end with status 1

Run every ``python`` block in the order of the page. A ``text`` block right after it holds its output. In a ``console``
block, run every ``$ rhfedmtl …``; the lines below it are its output. Other commands are ignored. The page does not
show the output of a ``console quiet`` block. Pages run in an empty folder with ``har.npz`` from RHFEDMTL_DATA.

An output agrees with the page if both have the same words and numbers, with these exceptions:

- Times and memory (a number with a unit such as ``ms``, ``s`` or ``MiB``), dates, versions of three numbers, ports on
  loopback, and paths of packages and cached files are ignored. So are line breaks and the lengths of lines in tables.
- Numbers with a decimal point may differ by 1 in the last printed digit, or by 1e-6 of their value: another processor
  rounds differently. Whole numbers must be equal.
- A mean with ± may also differ by a tenth of the half interval after ±, and so may the half interval.
- In a ``console varies`` block all numbers are ignored. It measures the machine, or runs a network whose terminals draw
  their own rows.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONSOLE, QUIET, VARIES = "console", "console quiet", "console varies"
_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = r"[-−+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"
_IGNORED = re.compile(
    r"(?:~/\.cache|\.venv)/\S+"
    r"|127\.0\.0\.1:\d+|\d{8}-\d{6}|\d{4}-\d{2}-\d{2}"
    r"|\d+\.\d+\.\d+\w*"
    rf"|{_NUMBER}\s*(?:ns|µs|ms|s|min|h|seconds?|minutes?|hours?|[kMGT]i?B)\b"
)


@dataclass
class Block:
    """A fenced block: its language, its text, and the place of the text on the page."""

    kind: str
    text: str
    start: int
    end: int


@dataclass
class Output:
    """The output of a Python block or of a command: on the page (`None` if not shown), its place there, and now."""

    code: str
    documented: str | None
    start: int
    end: int
    printed: str
    varies: bool = False
    failure: str = ""

    def problems(self) -> list[str]:
        """Return the lines that differ, and an exit status that the page does not show."""
        lines = [] if self.documented is None else differences(self.documented, self.printed, self.varies)
        return [*lines, *filter(None, [self.failure])]


def pages() -> list[Path]:
    """README and all pages of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> list[Block]:
    """Fenced blocks of a page."""
    return [Block(match[1], match[2], match.start(2), match.end(2)) for match in _FENCE.finditer(text)]


def expected(page: str, page_blocks: list[Block], i: int) -> Block | None:
    """Return the block with the output of Python block ``i``, or `None` if the page does not show it."""
    if i + 1 == len(page_blocks) or page_blocks[i + 1].kind != "text":
        return None
    between = page[page_blocks[i].end : page_blocks[i + 1].start]
    return page_blocks[i + 1] if between.replace("```", "").strip() == "text" else None


def namespace_of(name: str) -> dict[str, Any]:
    """Return the namespace of a new module for a page: pickles find its classes there."""
    module = types.ModuleType(f"page_{re.sub(r'[^a-z]', '_', name)}")
    sys.modules[module.__name__] = module
    return module.__dict__


def run_python(code: str, name: str, namespace: dict[str, Any]) -> str:
    """Run a block and return its output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), namespace)
    return printed.getvalue()


def commands(block: Block) -> Iterator[tuple[str, int, int]]:
    """Yield the commands of a console block, and the place of each output on the page.

    A command may continue after a backslash.
    """
    for match in re.finditer(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", block.text, flags=re.MULTILINE):
        yield match[1].rstrip("\n"), block.start + match.start(2), block.start + match.end(2)


def run_command(command: str) -> tuple[int, str]:
    """Return exit status and output of an ``rhfedmtl`` command on a terminal of 80 columns."""
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
    """Change to an empty folder with the HAR file, if it exists."""
    har = Path(os.environ.get("RHFEDMTL_DATA", "")) / "har.npz"
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if har.is_file():
            Path("har.npz").symlink_to(har.resolve())
        yield


def outputs(page: str, name: str) -> Iterator[Output]:
    """Run all blocks of a page in their order, and yield the output of each Python block and command."""
    page_blocks, namespace = blocks(page), namespace_of(name)
    with workplace():
        for i, block in enumerate(page_blocks):
            if block.kind == "python":
                printed, answer = run_python(block.text, name, namespace), expected(page, page_blocks, i)
                place = (None, 0, 0) if answer is None else (answer.text, answer.start, answer.end)
                yield Output(block.text.rstrip("\n"), *place, printed)
            elif block.kind in (CONSOLE, QUIET, VARIES):
                for command, start, end in commands(block):
                    if command.startswith("rhfedmtl"):
                        status, printed = run_command(command)
                        text = page[start:end]
                        right = 2 if text.startswith("error:") else 0
                        failure = "" if status == right else f"exit status {status} instead of {right}:\n{printed}"
                        documented = None if block.kind == QUIET else text
                        yield Output(command, documented, start, end, printed, block.kind == VARIES, failure)


def differences(documented: str, printed: str, varies: bool = False) -> list[str]:
    """Return the lines of the page (``-``) and of the run (``+``) that differ, or an empty list."""
    if _agree(documented, printed, varies):
        return []
    before, after = documented.splitlines(), []
    free = list(before)
    for new in printed.splitlines():
        after.append(next((old for old in free if _agree(old, new, varies)), new))
        if after[-1] in free:
            free.remove(after[-1])
    marked = [line for line in difflib.ndiff(before, after) if line[0] in "-+"]
    return marked or [f"- {documented}", f"+ {printed}"]


def _agree(documented: str, printed: str, varies: bool) -> bool:
    """Return True if two texts have the same words, and numbers within the tolerance."""
    split = [re.split(f"({_NUMBER})", _IGNORED.sub("…", re.sub("[─━═]+", "─", text))) for text in (documented, printed)]
    words, numbers = ([[" ".join(part.split()) for part in parts[i::2]] for parts in split] for i in (0, 1))
    if varies or words[0] != words[1]:
        return words[0] == words[1]
    spread = [0.0] * len(numbers[0])  # a tenth of the half interval, for a mean and for its half interval
    for i, word in enumerate(words[0][1:-1]):
        if word == "±":
            spread[i] = spread[i + 1] = 0.1 * abs(_value(numbers[0][i + 1]))
    return all(map(_close, *numbers, spread))


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))


def _close(documented: str, printed: str, spread: float) -> bool:
    """Return True if two numbers are equal, or both have decimals and nearly the same value."""
    if documented == printed:
        return True
    a, b = _value(documented), _value(printed)
    if "." not in documented + printed:
        return a == b
    digit = min(10.0 ** (int(text.partition("e")[2] or 0) - len(_decimals(text))) for text in (documented, printed))
    return abs(a - b) <= max(1.001 * max(digit, spread), 1e-6 * abs(a))


def _decimals(number: str) -> str:
    return number.partition("e")[0].partition(".")[2]


def refreshed(page: str, name: str) -> str:
    """Return the page with new outputs where they differ beyond the tolerance."""
    for output in reversed(list(outputs(page, name))):
        if output.documented is not None and differences(output.documented, output.printed, output.varies):
            text = output.printed.rstrip("\n") + "\n"
            page = page[: output.start] + text + page[output.end :]
    return page


def check(path: Path) -> int:
    """Print the outputs of a page that differ, and return their number."""
    stale, name = 0, os.path.relpath(path, ROOT) if path.is_relative_to(ROOT) else str(path)
    try:
        for output in outputs(path.read_text(encoding="utf-8"), path.name):
            if problems := output.problems():
                stale += 1
                print(f"{name}\n{output.code}\n" + "\n".join(problems) + "\n", flush=True)
    except Exception:  # a block or a command that crashes ends its page
        stale += 1
        print(f"{name}\n{traceback.format_exc()}", flush=True)
    return stale


def main() -> None:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="by default README.md and all of docs/")
    parser.add_argument("--check", action="store_true", help="write nothing; end with status 1 if an output differs")
    arguments = parser.parse_args()
    if missing := [str(path) for path in arguments.pages if not path.is_file()]:
        parser.error(f"there is no page {', '.join(missing)}")
    if not (Path(os.environ.get("RHFEDMTL_DATA", "")) / "har.npz").is_file():
        sys.exit("pages show runs on har.npz: let RHFEDMTL_DATA name the folder that has it")
    chosen = [path.resolve() for path in arguments.pages] or pages()
    if not arguments.check:
        for path in chosen:
            path.write_text(refreshed(path.read_text(encoding="utf-8"), path.name), encoding="utf-8")
    elif stale := sum(map(check, chosen)):
        sys.exit(f"{stale} outputs are stale: correct the code, or update the pages with python docs/refresh.py PAGE")
    else:
        print(f"{len(chosen)} pages: all outputs agree")


if __name__ == "__main__":
    main()
