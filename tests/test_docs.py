"""README and docs show the truth: their Python blocks and commands run, and print the text below them.

`docs/refresh.py` states the tolerance. After an intended change, ``python docs/refresh.py PAGE``
brings a page up to date.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import refresh  # noqa: E402

PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in refresh.pages()}
# These pages take long, or use ports that networks of other tests could take at the same time.
SLOW = (
    "README.md",
    "docs/commands/adapt.md",
    "docs/commands/certify.md",
    "docs/commands/compare.md",
    "docs/commands/export.md",
    "docs/commands/network.md",
    "docs/commands/predict.md",
    "docs/commands/release.md",
    "docs/commands/report.md",
    "docs/commands/runs.md",
    "docs/commands/status.md",
    "docs/data.md",
    "docs/deploy_network.md",
    "docs/estimator.md",
    "docs/tutorials/compare.md",
    "docs/tutorials/own_csv.md",
    "docs/tutorials/plan_a_budget.md",
    "docs/tutorials/reproduce.md",
)


def _runs(page: str) -> bool:
    """Return True if the page has a Python block or a command of ours."""
    blocks = refresh.blocks(PAGES[page])
    return any(block.kind == "python" for block in blocks) or bool(_commands(page))


def _commands(page: str) -> list[tuple[str, str]]:
    """Return the commands of a page, each with the output that the page shows."""
    text = PAGES[page]
    consoles = [block for block in refresh.blocks(text) if block.kind.startswith(refresh.CONSOLE)]
    pairs = [(command, text[start:end]) for block in consoles for command, start, end in refresh.commands(block)]
    return [pair for pair in pairs if pair[0].startswith("rhfedmtl")]


def _need_data(text: str) -> None:
    """Skip where the data of a page is not to be had on this machine."""
    if "har.npz" in text and not Path("har.npz").exists():
        pytest.skip("har.npz is not in the folder RHFEDMTL_DATA")
    if "watch" in text:
        from rhfedmtl.data.loaders import watch
        from rhfedmtl.errors import DataError

        try:
            watch.fetch()
        except DataError as error:
            pytest.skip(f"the watch data is not to be had: {error}")


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in PAGES if _runs(page)]
)
def test_a_page_shows_what_its_blocks_and_commands_print(page: str) -> None:
    """Every Python block and command of a page runs, ends as the page shows, and prints the text below it."""
    with refresh.workplace():
        _need_data("".join(block.text for block in refresh.blocks(PAGES[page])))
    problems = [[output.code, *lines] for output in refresh.outputs(PAGES[page], page) if (lines := output.problems())]
    assert not problems, "\n".join("\n".join(lines) for lines in problems)


def test_pages_show_no_traceback_and_no_machine_path() -> None:
    """No page shows a crash, a folder of somebody's machine, or a block that was never filled."""
    for name, text in PAGES.items():
        assert "Traceback (most" not in text, name
        assert not re.search(r"(?<![\w~.])/(home|root|Users|work|tmp)/", text), name
        assert "```text\n```" not in text, name
        assert "@@" not in text, name


def test_pages_are_linked_and_pictures_are_small() -> None:
    """Every relative link of README, docs and the pages for contributors leads to a file; pictures are below 200 kB."""
    others = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", "SECURITY.md")}
    for name, text in (PAGES | others).items():
        outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s#]+)", outside):
            if "://" not in target:
                assert (ROOT / name).parent.joinpath(target).exists(), f"{name}: {target}"
    for picture in (ROOT / "docs" / "figures").iterdir():
        assert picture.stat().st_size < 200_000, picture.name


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/glossary.md", "docs/mathematics.md"])
def test_files_that_the_map_names_are_there(page: str) -> None:
    """Every source file named on the page exists, and defines the names that its line of a table gives."""
    for line in PAGES[page].splitlines():
        files = [ROOT / "src" / "rhfedmtl" / name for name in re.findall(r"`([\w/]+\.py)`", line)]
        assert [path for path in files if not path.is_file()] == [], line
        named = re.findall(r"`(?:\w+\.)?(\w+)`", line.split("|")[3]) if files and line.startswith("|") else []
        source = "".join(path.read_text(encoding="utf-8") for path in files)
        assert [name for name in named if not re.search(rf"(def|class) {name}\b", source)] == [], line


def test_every_package_is_on_the_map_and_in_the_reference() -> None:
    """The map has a line for each package, and the reference a page for each but the command line."""
    packages = {path.parent.name for path in (ROOT / "src" / "rhfedmtl").glob("*/__init__.py")}
    assert packages <= set(re.findall(r"^\| `(\w+)`", PAGES["docs/architecture.md"], re.MULTILINE))
    assert packages - {"cli"} <= {Path(name).stem for name in PAGES if name.startswith("docs/api/")}


def test_every_command_has_a_page_with_its_output() -> None:
    """A command that is new needs a page, on which it is run; its options are added when the pages are made."""
    from rhfedmtl.cli.main import program

    for name in program().commands:
        shown = [command.split()[1] for command, output in _commands(f"docs/commands/{name}.md") if output.strip()]
        assert name in shown, name
        assert f"commands/{name}\n" in PAGES["docs/command_line.md"]


def test_citation_names_this_version_and_the_papers() -> None:
    """CITATION.cff is valid YAML, names the version of the package, and both papers with all their authors."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    import rhfedmtl

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == rhfedmtl.__version__
    assert [len(paper["authors"]) for paper in citation["references"]] == [6, 4]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_have_help_and_refuse_unknown_words(path: Path, tmp_path: Path) -> None:
    """`--help` prints the usage, a word that the example does not know is an error, and neither writes a file."""
    pytest.importorskip("matplotlib")
    for word, status, text in (("--help", 0, f"usage: {path.name}"), ("--picture", 2, "unrecognized arguments")):
        words = [sys.executable, str(path), word]
        run = subprocess.run(words, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert run.returncode == status, run.stderr
        assert text in run.stdout + run.stderr
        assert "Traceback" not in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_examples_say_how_to_run_them() -> None:
    """Examples have 30 to 60 lines, and their first lines say how to call them."""
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert len(examples) >= 2
    for path in examples:
        text = path.read_text(encoding="utf-8")
        assert 30 <= text.count("\n") <= 60, path.name
        assert f"python examples/{path.name}" in text.split('"""')[1], path.name
