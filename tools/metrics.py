"""Measure the size and the shape of the core, and fail if a count rises.

``python tools/metrics.py`` compares every count with ``tools/metrics.json``. ``--write`` records lower counts; it never
records a rise. ``--show NAME`` lists the places behind a count. `make lint` runs the check.

The first rows come from two runs of ``rhfedmtl train`` (hfedmtl, 3 tasks × 2 terminals, H = 2, K = 1, every iteration
certified). Earlier runs warm up the caches; the difference of two lengths leaves out start and end. Only calls of our
functions count, and the clock stands still. On another CPU a branch may differ, so these rows may be 1 % higher.
They need Python 3.11: later versions do not call comprehensions.

A constant steers learning if it has a name in capitals at the level of a module in ``STEERING`` and is bound to numbers
or tuples and arrays of numbers. ``tools/metrics.toml`` lists the exceptions, with reasons.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import math
import operator
import os
import sys
import tempfile
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(__file__).with_suffix(".json")
PACKAGE = ROOT / "src" / "rhfedmtl"
FOLDERS = (PACKAGE, ROOT / "terminal")
STEERING = ("policies/", "maths/", "roles/cloud", "roles/certificates", "selection/", "training/")
"""Where constants steer learning, below ``src/rhfedmtl``."""
MOST_METHODS, MOST_LINES, MOST_IMPORTS, MOST_FILES = 25, 450, 25, 18
COMMAND = "train --algorithm hfedmtl --tasks 3 --terminals 2 --local-steps 2 --station-rounds 1 --certify-every 1"
SHORT, LONG = 10, 30
"""Server iterations of the two runs that are compared."""
PLANNING, KERNEL = ("policies/", "plan"), ("maths/kernels/", "_round_blocks")
"""The policy's function, and the compiled function that takes the steps; the loop is the last frame above both."""
PYTHON = (3, 11)


class Row(NamedTuple):
    """Words and target of a count, and the share by which another CPU may exceed the record."""

    words: str
    target: str
    slack: float = 0.0


ROWS = {
    "calls": Row("Python calls per certified server iteration", "≤ 400", 0.01),
    "jumps": Row("jumps from file to file per server iteration", "≤ 200", 0.01),
    "functions": Row("distinct functions of ours in that run", "≤ 500", 0.01),
    "frames": Row("frames from the training loop to the kernel", "≤ 6"),
    "once": Row("private functions called once", "≤ 6 % of all"),
    "constants": Row("constants that steer learning", "≤ 45"),
    "unmeasured": Row("… without a measurement and the effect of half and twice", "0"),
    "classes": Row(f"classes with more than {MOST_METHODS} methods", "0"),
    "files": Row(f"files over {MOST_LINES} lines", "≤ 5"),
    "imports": Row(f"modules with more than {MOST_IMPORTS} imports", "≤ 5"),
    "lines": Row("lines of code, without blanks, comments and docstrings", "≤ 33,000"),
    "packages": Row(f"packages with more than {MOST_FILES} files", "0"),
}


class Count(NamedTuple):
    """A count, and the places that it comes from."""

    count: int
    places: list[str]


@dataclass
class Module:
    """Source of a file, with its syntax tree."""

    path: Path
    name: str
    source: str
    tree: ast.Module = field(init=False)
    _nodes: list[ast.AST] = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.source)
        self._nodes = list(ast.walk(self.tree))

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[Any]:
        """Yield the nodes of these kinds."""
        return (node for node in self._nodes if isinstance(node, kinds))


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules(folders: tuple[Path, ...] = FOLDERS) -> list[Module]:
    """Read the source files, without generated code."""
    paths = [(folder, path) for folder in folders for path in sorted(folder.rglob("*.py"))]
    return [
        Module(path, path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8"))
        for folder, path in paths
        if not path.name.endswith("_pb2.py")
    ]


def measure_source(sources: list[Module], exceptions: frozenset[str]) -> dict[str, Count]:
    """Return the counts that need no run."""
    once, functions = _called_once(sources)
    steering = [(module, *pair) for module in sources for pair in constants(module)]
    names = {f"{module.name} {name}" for module, name, _ in steering}
    if stale := sorted(exceptions - names):
        raise SystemExit(f"{RECORD.with_suffix('.toml')} names constants that do not exist: {', '.join(stale)}")
    steering = [(module, name, node) for module, name, node in steering if f"{module.name} {name}" not in exceptions]
    classes = [
        (sum(isinstance(part, FUNCTIONS) for part in node.body), f"{module.name}:{node.lineno} {node.name}")
        for module in sources
        for node in module.nodes(ast.ClassDef)
    ]
    files = Counter(module.path.parent for module in sources)
    lengths = [(code_lines(module), module.name) for module in sources]
    imports = [(sum(1 for _ in module.nodes(ast.Import, ast.ImportFrom)), module.name) for module in sources]
    return {
        "once": Count(len(once), [*once, f"{len(once)} of {functions:,} functions"]),
        "constants": Count(len(steering), [_place(module, name, node) for module, name, node in steering]),
        "unmeasured": _listed(_place(module, name, node) for module, name, node in steering if not _says(module, node)),
        "classes": _above(MOST_METHODS, classes),
        "files": _above(MOST_LINES, [(module.source.count("\n"), module.name) for module in sources]),
        "imports": _above(MOST_IMPORTS, imports),
        "lines": Count(sum(length for length, _ in lengths), [f"{n:6} {name}" for n, name in sorted(lengths)[::-1]]),
        "packages": _above(MOST_FILES, [(n, str(path.relative_to(path.anchor))) for path, n in files.items()]),
    }


def _listed(places: Iterator[str]) -> Count:
    listed = list(places)
    return Count(len(listed), listed)


def _above(limit: int, sizes: list[tuple[int, str]]) -> Count:
    """Count the sizes above a limit, with the largest first."""
    return _listed(f"{size:4} {name}" for size, name in sorted(sizes, reverse=True) if size > limit)


def _called_once(sources: list[Module]) -> tuple[list[str], int]:
    """Return the private functions whose name occurs once besides its definition, and the number of all functions."""
    uses: Counter[str] = Counter()
    for module in sources:
        uses.update(node.id for node in module.nodes(ast.Name) if isinstance(node.ctx, ast.Load))
        uses.update(node.attr for node in module.nodes(ast.Attribute))
    defined = [(module, node) for module in sources for node in module.nodes(*FUNCTIONS)]
    private = [(m, f) for m, f in defined if f.name.startswith("_") and not f.name.endswith("__")]
    return [f"{m.name}:{f.lineno} {f.name}" for m, f in private if uses[f.name] == 1], len(defined)


def constants(module: Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names in capitals that a steering module binds to numbers, each with its statement."""
    if not module.name.startswith(STEERING):
        return
    for node in module.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        for target in targets:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name) and name.id.isupper() and value is not None and numeric(value):
                    yield name.id, node


def numeric(node: ast.AST) -> bool:
    """Return True for numbers, tuples and lists of numbers, arithmetic on them, and arrays made from them."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=operand):
            parts: list[ast.expr] = [operand]
        case ast.BinOp(left=left, right=right):
            parts = [left, right]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            pass
        case ast.ListComp() | ast.GeneratorExp():  # without a number it is made of other constants
            parts = [leaf for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)]
        case ast.Call(func=ast.Attribute(value=ast.Call() as array)):
            parts = [array]
        case ast.Call(func=ast.Name(id=name), args=parts):
            parts = [] if name == "range" else parts  # ranges number the addresses of random draws
        case ast.Call(args=parts):
            pass
        case _:
            return False
    return bool(parts) and all(map(numeric, parts))


def _place(module: Module, name: str, node: ast.stmt) -> str:
    value = " ".join(ast.unparse(node).split("=", 1)[1].split())
    return f"{module.name}:{node.lineno} {name} = {value[:60]}"


def _says(module: Module, node: ast.stmt) -> bool:
    """Return True if the text at a constant has its measurement and its effect at half and twice its value."""
    lines = module.source.splitlines()
    first, last = node.lineno - 1, node.end_lineno or node.lineno
    while first and lines[first - 1].startswith("#"):
        first -= 1
    after = next((statement for statement in module.tree.body if statement.lineno > last), None)
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
        last = after.end_lineno or last
    text = "\n".join(lines[first:last])
    return all(words in text for words in ("Measured:", "×0.5:", "×2:"))


def code_lines(module: Module) -> int:
    """Return the number of lines with code."""
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in module.nodes(ast.Expr):
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


Function = tuple[str, int, str]


@dataclass
class Profile:
    """Calls of functions of ours in a run, the jumps between files, and the frames from the loop to the kernel."""

    calls: Counter[Function] = field(default_factory=Counter)
    jumps: Counter[tuple[str, str]] = field(default_factory=Counter)
    paths: Counter[tuple[Function, ...]] = field(default_factory=Counter)
    _stack: list[tuple[int, Function]] = field(default_factory=list)
    _planned: list[tuple[int, Function]] = field(default_factory=list)
    _file: str = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Take note of a call or a return; `sys.setprofile` calls this."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(PACKAGE)):
            return
        function = (code.co_filename[len(str(PACKAGE)) + 1 :], code.co_firstlineno, code.co_qualname)
        if event == "return":
            self._stack.pop()
            return
        self.calls[function] += 1
        self._stack.append((self.calls.total(), function))
        if self._file != function[0]:
            self.jumps[self._file, function[0]] += 1
            self._file = function[0]
        if function[0].startswith(PLANNING[0]) and code.co_name == PLANNING[1]:
            self._planned = list(self._stack)
        elif function[0].startswith(KERNEL[0]) and code.co_name == KERNEL[1]:
            shared = sum(map(operator.eq, self._stack, self._planned))
            self.paths[tuple(called for _, called in self._stack[max(shared - 1, 0) :])] += 1


def profile_of(iterations: int, profile: Profile | None) -> None:
    """Run the command in this process, with a clock that stands still: no count depends on time."""
    from rhfedmtl.cli.main import main

    words = ["rhfedmtl", *COMMAND.split(), "--threads", "1", "--seed", "0", "--cloud-rounds", str(iterations)]
    settings = {name: value for name, value in os.environ.items() if not name.startswith("RHFEDMTL")}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        patch.dict(os.environ, settings, clear=True),
        patch.object(sys, "argv", [*words, "--out", folder, "--json"]),
        patch("time.monotonic", return_value=0.0),
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.suppress(SystemExit),
    ):
        sys.setprofile(profile)
        try:
            main()
        finally:
            sys.setprofile(None)
    rounds = json.loads(output.getvalue()).get("cloud_rounds")
    if rounds != iterations:
        raise SystemExit(f"rhfedmtl {COMMAND} did {rounds} server iterations, not {iterations}: {output.getvalue()}")


def measure_run() -> dict[str, Count]:
    """Return the counts of a run, per server iteration."""
    short, long = Profile(), Profile()
    for iterations, profile in ((SHORT, None), (LONG, None), (SHORT, short), (LONG, long)):
        profile_of(iterations, profile)
    path = max(long.paths, key=long.paths.__getitem__, default=())
    if not path:
        raise SystemExit(f"no call of {'…'.join(KERNEL)} after {'…'.join(PLANNING)}: name them in {__file__}")
    names = {function: f"{function[0]}:{function[1]} {function[2]}" for function in long.calls}
    between = {pair: " → ".join(pair) for pair in long.jumps}
    return {
        "calls": _per_iteration(long.calls, short.calls, names.__getitem__),
        "jumps": _per_iteration(long.jumps, short.jumps, between.__getitem__),
        "functions": Count(len(names), sorted(names.values())),
        "frames": Count(len(path) - 1, [names[function] for function in path]),
    }


def _per_iteration(long: Counter[Any], short: Counter[Any], name: Callable[[Any], str]) -> Count:
    """Return the difference of two runs per server iteration, rounded up; the largest parts come first."""
    iterations = LONG - SHORT
    more = {key: long[key] - short[key] for key in long if long[key] != short[key]}
    places = [f"{more[key] / iterations:7.2f} {name(key)}" for key in sorted(more, key=lambda key: -more[key])]
    return Count(math.ceil(sum(more.values()) / iterations), places)


def compare(counts: dict[str, Count], record: dict[str, int]) -> list[str]:
    """Return a line for every count above its record."""
    lines = []
    for name, (count, _) in counts.items():
        if name not in record:
            lines.append(f"{name}: no record; python tools/metrics.py --write makes one")
        elif count > record[name] * (1.0 + ROWS[name].slack):
            lines.append(f"{name}: {record[name]:,} → {count:,}; see: python tools/metrics.py --show {name}")
    return lines


def lowest(counts: dict[str, Count], record: dict[str, int]) -> dict[str, int]:
    """Return the record after an improvement: the lower of old and new."""
    now = {name: min(count, record.get(name, count)) for name, (count, _) in counts.items()}
    return {name: now.get(name, record.get(name, 0)) for name in ROWS if name in now or name in record}


def table(counts: dict[str, Count]) -> str:
    """Return the table of the counts and their targets."""
    width = max(len(row.words) for row in ROWS.values())
    lines = [
        f"{name:10} {ROWS[name].words:{width}} {count:7,}  target {ROWS[name].target}"
        for name, (count, _) in counts.items()
    ]
    if not counts.keys() >= {"calls"}:
        lines.append(f"(the rows of a run need Python {'.'.join(map(str, PYTHON))}: not checked here)")
    return "\n".join(lines)


def main() -> int:
    """Run the command line; return 1 after a rise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", metavar="NAME", choices=ROWS, help="show the places of a count: " + ", ".join(ROWS))
    parser.add_argument("--write", action="store_true", help="record the counts that fell")
    options = parser.parse_args()
    exceptions = tomllib.loads(RECORD.with_suffix(".toml").read_text(encoding="utf-8"))["not_learning"]
    counts = measure_run() if sys.version_info[:2] == PYTHON else {}
    counts |= measure_source(modules(), frozenset(name for names in exceptions.values() for name in names))
    if options.show:
        print("\n".join(counts[options.show].places if options.show in counts else [table(counts)]))
        return 0
    print(table(counts))
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    if options.write:
        record = lowest(counts, record)
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    worse = compare(counts, record)
    print("\n".join(worse))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
