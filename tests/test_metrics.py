"""The check of the core's size counts correctly, gives equal numbers twice, and fails if a count rises."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import metrics  # noqa: E402

SOURCE = '''"""A module with two public functions."""

import os

RATE, STEPS = 0.5, 3  # no measurement
# Share of the rows. Measured: on ten problems; ×0.5: a loss of 1 %; ×2: no change.
SHARE = 0.1
GRID = np.array([1.0, 2.0])
HALVES = [x / 2.0 for x in GRID]
PAIRS = np.array([(x, y) for x in GRID for y in HALVES])
FORMAT = 5
STREAMS = range(5)
NAMES = ("a", "b")
lower = 3


def public():
    """Call one private function once, and another twice."""
    return _once() + _twice() + _twice()


def _once():
    # a comment
    return 1


def _twice():
    return 2


class Large:
    """Many methods."""

''' + "\n".join(f"    def m{i}(self): ..." for i in range(26))


def counts_of(folder: Path, *, exceptions: tuple[str, ...] = (), source: str = SOURCE) -> dict[str, metrics.Count]:
    """Counts of a module in a package that steers learning."""
    package = folder / "policies"
    package.mkdir(exist_ok=True)
    (package / "rule.py").write_text(source, encoding="utf-8")
    return metrics.measure_source(metrics.modules((folder,)), frozenset(exceptions))


def test_source_is_counted(tmp_path: Path) -> None:
    """Each row counts its places; constants are named in capitals, and neither exceptions nor made of others."""
    counts = counts_of(tmp_path, exceptions=("policies/rule.py FORMAT",))
    assert [place.split()[1] for place in counts["constants"].places] == ["RATE", "STEPS", "SHARE", "GRID", "HALVES"]
    assert [place.split()[1] for place in counts["unmeasured"].places] == ["RATE", "STEPS", "GRID", "HALVES"]
    assert counts["once"].places == ["policies/rule.py:22 _once", "1 of 29 functions"]
    assert {name: counts[name].count for name in ("once", "classes", "files", "imports", "packages")} == {
        "once": 1,
        "classes": 1,
        "files": 0,
        "imports": 0,
        "packages": 0,
    }
    assert counts["lines"].count == 10 + 6 + 1 + 26


def test_large_files_imports_and_packages_are_counted(tmp_path: Path) -> None:
    """A file, a module and a package count above their limits."""
    source = "import os\n" * (metrics.MOST_IMPORTS + 1) + "x = 1\n" * metrics.MOST_LINES
    for i in range(metrics.MOST_FILES):
        (tmp_path / f"{i}.py").write_text("x = 1\n")
    counts = counts_of(tmp_path, source=source)
    assert [counts[name].count for name in ("files", "imports", "packages")] == [1, 1, 0]
    (tmp_path / "more.py").write_text("x = 1\n")
    assert counts_of(tmp_path)["packages"].count == 1


def test_exceptions_must_exist(tmp_path: Path) -> None:
    """An exception that names no constant is an error."""
    with pytest.raises(SystemExit, match="OLD"):
        counts_of(tmp_path, exceptions=("policies/rule.py OLD",))


def test_counts_may_only_fall() -> None:
    """A rise fails, a fall passes and is recorded, a rise is never recorded; rows of a run have a slack of 1 %."""
    assert not metrics.compare({"lines": metrics.Count(99, [])}, {"lines": 100})
    assert metrics.compare({"lines": metrics.Count(101, [])}, {"lines": 100})
    assert metrics.compare({"lines": metrics.Count(1, [])}, {})
    assert not metrics.compare({"calls": metrics.Count(808, [])}, {"calls": 800})
    assert metrics.compare({"calls": metrics.Count(809, [])}, {"calls": 800})
    record = {"calls": 800, "lines": 100}
    assert metrics.lowest({"lines": metrics.Count(101, [])}, record) == record
    assert metrics.lowest({"lines": metrics.Count(99, [])}, record) == {"calls": 800, "lines": 99}


@pytest.mark.skipif(sys.version_info[:2] != metrics.PYTHON, reason="later versions do not call comprehensions")
@pytest.mark.slow
def test_counts_of_a_run_are_the_same_twice() -> None:
    """The run gives the same counts again, and the path leads from the loop to the kernel."""
    one, two = metrics.measure_run(), metrics.measure_run()
    assert one == two
    assert one["frames"].places[0].startswith("training/")
    assert one["frames"].places[-1].endswith(metrics.KERNEL[1])
    assert one["frames"].count == len(one["frames"].places) - 1
    assert min(one[name].count for name in ("calls", "jumps", "functions")) > 50
