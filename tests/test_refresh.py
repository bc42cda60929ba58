"""`docs/refresh.py --check` finds outputs on pages that no longer hold, and ignores times, dates and last digits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import refresh  # noqa: E402

PAGE = """# A page

```python
print("gap 0.25 after 3 rounds")
```

```text
gap {gap} after {rounds} rounds
```

```console
$ rhfedmtl --version
rhfedmtl {version}
```
"""
SHOWN = """\
┃ task   ┃ accuracy ┃  seconds ┃
┡━━━━━━━━╇━━━━━━━━━━╇━━━━━━━━━━┩
│ task-0 │    0.840 │     1.25 │
spent     energy 1,387.5 of 1,400, on 2026-11-18
stopped   budget spent, after 0.41 s with 3.5 MiB
score     2.270539135578143
saved in  runs/20261119-202820-rhfedmtl-synthetic-0
watch: .venv/lib/python3.11/site-packages/watch.npy of 0.1.0
error: no answer from 127.0.0.1:7464
│ rhfedmtl │   0.953±0.022* │ −0.44 ± 0.50 │
"""


def _check(path: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(ROOT / "docs" / "refresh.py"), "--check", str(path)]
    return subprocess.run(program, check=False, capture_output=True, encoding="utf-8", timeout=120)


def test_a_stale_number_fails_with_page_command_and_lines(tmp_path: Path, real_file: Callable[[str], Path]) -> None:
    """A page that holds passes. A stale page ends with status 1, names the lines that differ, and stays as it was."""
    real_file("har.npz")
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(gap="0.26", rounds=3, version="0.0.9"), encoding="utf-8")
    fresh = _check(page)
    assert fresh.returncode == 0, fresh.stdout + fresh.stderr
    stale = PAGE.format(gap="0.25", rounds=4, version="0.0.9")
    page.write_text(stale, encoding="utf-8")
    check = _check(page)
    assert check.returncode == 1
    for text in (str(page), 'print("gap 0.25', "- gap 0.25 after 4 rounds", "+ gap 0.25 after 3 rounds"):
        assert text in check.stdout, text
    assert "--version" not in check.stdout
    assert page.read_text(encoding="utf-8") == stale


def test_a_page_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """An unknown page ends with status 2 and its name, without a traceback."""
    check = _check(tmp_path / "none.md")
    assert check.returncode == 2
    assert "none.md" in check.stderr
    assert "Traceback" not in check.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.840", "0.841"),
        ("1,387.5", "1,387.4"),
        ("0.41 s", "12.9 s"),
        ("3.5 MiB", "1.2 GB"),
        ("20261119-202820", "20271231-235959"),
        ("2026-11-18", "2027-01-02"),
        ("578143", "578151"),
        ("0.1.0", "2.13.1rc2"),
        ("7464", "7400"),
        ("0.953±0.022", "0.951±0.020"),
        ("−0.44 ± 0.50", "−0.49 ± 0.50"),
        (".venv/lib/python3.11/site-packages/watch.npy", "~/.cache/rhfedmtl/watch.npy"),
        ("╇━━━━━━━━━━┩", "╇━━━━━━━━━━━━┩"),
        ("of 1,400, on", "of 1,400,\n          on"),
    ],
)
def test_times_dates_versions_and_last_digits_may_differ(old: str, new: str) -> None:
    """Each of these changes is within the tolerance, in both directions."""
    assert old in SHOWN
    changed = SHOWN.replace(old, new)
    assert refresh.differences(SHOWN, changed) == refresh.differences(changed, SHOWN) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.840", "0.842"),
        ("0.840", "-0.840"),
        ("0.840", "0.84000001e1"),
        ("1,400", "1,401"),
        ("1,387.5", "1,385.5"),
        ("task-0", "task-1"),
        ("synthetic-0", "har-0"),
        ("budget spent", "plan completed"),
        ("score", "scores"),
        ("0.953±0.022", "0.950±0.022"),
        ("0.953±0.022*", "0.953±0.022"),
        ("−0.44 ± 0.50", "−0.38 ± 0.50"),
        ("−0.44 ± 0.50", "−0.44 ± 0.60"),
        ("2.2705391", "2.2706391"),
        ("│ task-0 │    0.840 │     1.25 │\n", ""),
    ],
)
def test_words_counts_and_larger_differences_fail(old: str, new: str) -> None:
    """Each of these changes is reported, with the line that the page shows."""
    line = next(line for line in SHOWN.splitlines() if old.strip("\n") in line)
    assert f"- {line}" in refresh.differences(SHOWN, SHOWN.replace(old, new))


def test_numbers_do_not_count_where_they_vary() -> None:
    """Numbers of a `console varies` block may differ, but not its words."""
    network = "rounds            22 in 22 server iterations: 16 dual ascent\n"
    again = "rounds            9 in 9 server iterations: 9 dual ascent\n"
    assert refresh.differences(network, again)
    assert refresh.differences(network, again, varies=True) == []
    assert refresh.differences(network, again.replace("ascent", "descent"), varies=True)


def test_refresh_keeps_outputs_that_agree() -> None:
    """The page changes only where an output differs beyond the tolerance: seconds and dates stay."""
    page = PAGE.format(gap="0.26", rounds=3, version="0.0.9")
    assert refresh.refreshed(page, "page.md") == page
    stale = PAGE.format(gap="0.29", rounds=3, version="0.0.9")
    assert refresh.refreshed(stale, "page.md") == stale.replace("0.29", "0.25")
