"""Constants are measured: each has its figures, and changed values reach the code that uses them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from benchmarks import constants

CHANGED = """
import sys
from benchmarks.constants import Changed
finder = Changed({constant!r}, {factor})
sys.meta_path.insert(0, finder)
from rhfedmtl.roles import cloud
from rhfedmtl.policies.measured import policy, progress
assert finder.done
print(cloud.MODEL_SCALES, len(cloud.CANDIDATE_GRID), cloud.CANDIDATE_GRID[-1], policy.PASS_RATE, progress.PASS_RATE)
"""


def test_each_constant_has_the_figures_of_the_table() -> None:
    """Texts at constants agree with the table; each constant has cells and a row."""
    table = constants.told()
    for name in constants.listed():
        assert name in table, f"{name} has no row: run benchmarks/constants.py"
    for file in {name.split()[0] for name in table}:
        source = (constants.PACKAGE / file).read_text(encoding="utf-8")
        assert constants.beside(file, source, table) == source


def test_each_constant_says_on_which_data_it_was_chosen() -> None:
    """The last table has every constant in exactly one row, and each row says if test rows were seen."""
    section = constants.TABLE.read_text(encoding="utf-8").partition("## Chosen on")[2]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert all(len(cells) == 3 and cells[2] in ("yes", "no", "unknown") for cells in rows)
    names = [name for cells in rows for name in re.findall(r"`(\w+)`", cells[0])]
    assert sorted(names) == sorted(name.split()[1] for name in constants.listed())


@pytest.mark.parametrize(
    ("constant", "factor", "expected"),
    [
        ("roles/cloud.py MODEL_SCALES", 0.5, "(1.0, 0.25, 0.125, 1.0) 20 [1. 1.] 1.15 1.15"),
        ("policies/measured/progress.py PASS_RATE", 2.0, "(1.0, 0.5, 0.25, 2.0) 20 [2. 1.] 2.3 2.3"),
    ],
)
def test_a_changed_value_reaches_all_users(constant: str, factor: float, expected: str) -> None:
    """Derived constants and copies in other modules follow; others stay."""
    code = CHANGED.format(constant=constant, factor=factor)
    done = subprocess.run([sys.executable, "-c", code], cwd=constants.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_values_are_scaled() -> None:
    """Whole numbers stay whole and at least 1; grids of factors keep their 1."""
    assert constants.scaled("", 1, 0.5) == 1
    assert constants.scaled("", 5, 2.0) == 10
    assert constants.scaled("", (1, 2, 4), 0.5) == (1, 2)
    assert constants.scaled("", (0.1, 0.0), 2.0) == (0.2, 0.0)
    assert constants.scaled("selection/first_rounds.py LAMBDA1_FACTORS", (0.25, 1.0, 4.0), 0.5) == (0.5, 1.0, 2.0)
    assert constants.scaled("policies/measured/allocation.py _SLACK", 1.5, 0.5) == 1.25
