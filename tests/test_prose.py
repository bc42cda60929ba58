"""The check of prose and names finds what it should and lets plain text pass."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import prose  # noqa: E402

HARD = '''"""Whether nobody was told what is left of those that were asked."""
found = "so that nobody asks once more what it is"
'''
PLAIN = '''"""Return the merged update of all terminals that answered in time."""
update = "the station merged the updates of three terminals"
'''


def test_hard_phrases_vague_openings_and_names_are_counted(tmp_path: Path) -> None:
    """Each kind is counted once per place, and plain text has none."""
    (tmp_path / "hard.py").write_text(HARD)
    (tmp_path / "plain.py").write_text(PLAIN)
    hard, plain = prose.measure(tmp_path / "hard.py").counts, prose.measure(tmp_path / "plain.py").counts
    assert hard["hard"] >= 6
    assert (hard["opening"], hard["name"]) == (1, 1)
    assert not any(plain[kind] for kind in prose.KINDS)


def test_a_file_may_not_get_worse_and_a_new_file_must_be_plain() -> None:
    """A rise above the record fails, a fall passes, a new hard file fails."""
    report = prose.Report(Counter(hard=9, words=500))
    assert prose.compare({"a.py": report}, {"a.py": {"hard": 8}})
    assert not prose.compare({"a.py": report}, {"a.py": {"hard": 9}})
    assert prose.compare({"a.py": report}, {})
    assert not prose.compare({"a.py": prose.Report(Counter(words=500))}, {})
