"""What the pages on adding something say, done as they say it: files of a package, a line in its project, commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.test_plugins import installed

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(path.stem for path in (ROOT / "docs" / "extend").glob("*.md") if path.stem != "index")
BLOCK = re.compile(r"^```(python|toml|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = {
    "rhfedmtl": "from rhfedmtl.cli.main import main; main()",
    "python": "import runpy, sys; sys.argv[1:3] = []; runpy.run_module('rhfedmtl.testing', run_name='__main__')",
}


# Each page takes two processes and some seconds: the others are slow checks.
QUICK = ("channel",)


@pytest.mark.parametrize("page", [p if p in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in PAGES])
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    """Its files and its one line make a package whose entry can be run by name, and which conforms."""
    found = BLOCK.findall((ROOT / "docs" / "extend" / f"{page}.md").read_text(encoding="utf-8"))
    named = [re.match(r"# (my_package/\w+\.py)\n", text) for _, text in found]
    files = {match[1]: match.string for match in named if match is not None}
    assert "my_package/entries.py" in files
    project = tomllib.loads(next(text for kind, text in found if kind == "toml"))["project"]
    ((group, line),) = project["entry-points"].items()
    assert len(line) == 1, "one line in the registry"
    points = f"[{group}]\n" + "\n".join(f"{name} = {place}" for name, place in line.items())
    site = installed(tmp_path / "site", "my-package", points, {"my_package/__init__.py": "", **files})
    known = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    commands = next(text for kind, text in found if kind == "sh").splitlines()
    assert commands[-1] == f"python -m rhfedmtl.testing conformance {next(iter(line))}"
    for command in commands:
        program, *words = command.split()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAMS[program], *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": known},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_every_registry_has_a_page() -> None:
    """The overview names a group of entry points for each page, and a page for each kind of entry."""
    overview = (ROOT / "docs" / "extend" / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[[^]]+\]\((\w+)\.md\) .*`(rhfedmtl\.\w+)` \|$", overview, re.MULTILINE)
    assert sorted(page for page, _ in rows) == PAGES
