"""What README and docs show is true: their Python blocks and commands run, and print what stands beneath them.

Numbers may differ in their digits: another CPU adds in another order, and a better policy gets better results. After a
change that is meant, ``python docs/refresh.py`` brings the pages up to date.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _load(path: Path) -> ModuleType:
    """A module from a file outside of the package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


refresh = _load(ROOT / "docs" / "refresh.py")
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in refresh.pages()}
WITH_PYTHON = [name for name, text in PAGES.items() if any(block.kind == "python" for block in refresh.blocks(text))]


def _commands(page: str) -> list[tuple[str, str]]:
    consoles = [block for block in refresh.blocks(PAGES[page]) if block.kind in (refresh.CONSOLE, refresh.QUIET)]
    found = [refresh.commands(block.text) for block in consoles]
    return [pair for block in found for pair in block if pair[0].startswith("rhfedmtl")]


def _need_data(text: str) -> None:
    """Skip where the data of a block is not to be had on this machine."""
    if "har.npz" in text and not Path("har.npz").exists():
        pytest.skip("har.npz is not in the folder RHFEDMTL_DATA")
    if "watch" in text:
        from rhfedmtl.data.loaders import watch
        from rhfedmtl.errors import DataError

        try:
            watch.fetch()
        except DataError as error:
            pytest.skip(f"the watch data is not to be had: {error}")


def _words(output: str) -> str:
    """Output without its numbers; a list of numbers counts as one."""
    number = r"-?\d[\d.,e+-]*(?:[\s,]+-?\d[\d.,e+-]*)*"
    numbers = re.sub(rf"{number}\s*(?=\])|{number}", "0", output)
    return re.sub(r"\s+", " ", numbers).strip()


def _labels(output: str) -> set[str]:
    """First words of the lines: what a table or a summary speaks of, without its numbers and digests."""
    words = [line.strip("│┃ ").split(" ")[0] for line in output.splitlines()]
    return {word for word in words if re.fullmatch(r"(?![0-9a-f]{12}$)[A-Za-z][\w-]+", word)}


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_blocks_print_what_the_page_shows(page: str) -> None:
    """Every Python block of a page runs after those before it, and prints the text block beneath it."""
    text = PAGES[page]
    found, namespace = refresh.blocks(text), refresh.namespace_of(page)
    with refresh.workplace():
        for i, block in enumerate(found):
            if block.kind == "python":
                _need_data(block.text)
                printed, shown = refresh.run_python(block.text, page, namespace), refresh.expected(text, found, i)
                assert shown is None or _words(printed) == _words(shown.text)


def _run_commands(page: str) -> None:
    """Run the commands of a page in their order; each ends as the page shows, and speaks of what it shows."""
    text, namespace = PAGES[page], refresh.namespace_of(page)
    with refresh.workplace():
        _need_data(text)
        for block in refresh.blocks(text):
            if block.kind == "python":  # may make a file for the commands that follow
                refresh.run_python(block.text, page, namespace)
            consoles = (refresh.CONSOLE, refresh.QUIET)
            for command, shown in refresh.commands(block.text) if block.kind in consoles else ():
                if command.startswith("rhfedmtl"):
                    status, printed = refresh.run_command(command)
                    assert status == (2 if shown.startswith("error:") else 0), printed
                    assert _labels(shown) <= _labels(printed)


@pytest.mark.slow
def test_commands_of_the_readme_run() -> None:
    """Each command of the README ends well, and its output speaks of what the README shows."""
    _run_commands("README.md")


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/") and _commands(page)])
def test_commands_of_the_docs_run(page: str) -> None:
    """Each command of a page ends as the page shows: well, or with a plain error where one is shown."""
    _run_commands(page)


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
