"""How the documentation is built: ``make docs``."""

from __future__ import annotations

import os
import re
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from rhfedmtl.cli.main import app, program

project = "rhfedmtl"
author = "The rhfedmtl developers"
project_copyright = "The rhfedmtl developers, Apache-2.0"
version = release = installed("rhfedmtl")

extensions = [
    "myst_nb",  # pages and notebooks; these are run when the pages are made
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # brings the script along: pages are whole without a network
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
copybutton_prompt_text = "$ "  # the button copies the commands of a console, without prompts and output
copybutton_line_continuation_character = "\\"
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600
exclude_patterns = ["_build"]
default_role = "code"
html_theme = "furo"
html_title = f"rhfedmtl {version}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        *(f"sidebar/{part}.html" for part in ("brand", "search", "scroll-start", "navigation")),
        "versions.html",
        "sidebar/scroll-end.html",
    ]
}

SITE = os.environ.get("RHFEDMTL_DOCS_URL", "").rstrip("/")
"""Where all versions are hosted, each in a folder of its name beside ``versions.json``; else pages stand alone."""
html_baseurl = f"{SITE}/{version}/" if SITE else ""
html_context = {"versions_url": f"{SITE}/versions.json" if SITE else ""}
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False, "ignore-module-all": True}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = False
suppress_warnings = ["ref.python"]  # types such as "array of shape (n_samples,)" are words, not references

_SOURCES = Path(__file__).resolve().parent.parent / "src" / "rhfedmtl"
_LEFT_OUT = ("preload", "wire_pb2", "kernels", "losses")
"""Files of `deploy` and `engines.gpu` that are run, generated, or in Triton's language."""
_MARKUP = re.compile(r"(``.*?``|`.*?`|\*\*[^*]+\*\*|^ *\* )")


def _plain(text: str) -> str:
    """Formulas in docstrings hold L*, |G| and w_: plain signs there, not the markup that they are in reST."""
    parts = _MARKUP.split(text)
    parts[::2] = [re.sub(r"([*|]|(?<=\w)_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _docstring(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = [line if line.endswith("::") else _plain(line) for line in lines]


def _skip(_app: Any, _what: str, name: str, obj: Any, _skipped: bool, _options: Any) -> bool | None:
    """Leave out fields of named tuples, which say only that they are fields, and scikit-learn's own requests."""
    is_field = str(getattr(obj, "__doc__", "")).startswith("Alias for field number")
    return True if is_field or re.fullmatch(r"(.*\.)?set_\w+_request", name) else None


def _modules(_app: Any, page: str, source: list[str]) -> None:
    """A page ``api/PACKAGE`` gets a section for every module that the package has now."""
    folder = _SOURCES / page.removeprefix("api/")
    if page.startswith("api/") and folder.is_dir():
        source[0] += _section(folder / "__init__.py")
        for path in sorted(folder.rglob("*.py")):
            if path.stem != "__init__" and not (path.parent != folder and path.stem in _LEFT_OUT):
                source[0] += f"\n## {'.'.join(path.relative_to(folder).with_suffix('').parts)}\n{_section(path)}"


def _options(_app: Any, page: str, source: list[str]) -> None:
    """Append all options of a command, and of the commands below it, to the page ``commands/NAME``."""
    if not page.startswith("commands/"):
        return
    name = page.removeprefix("commands/")
    below = getattr(program().commands[name], "commands", {})
    for words in [[name], *([name, each] for each in below)]:
        asked = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}, prog_name="rhfedmtl")
        text = "\n".join(line.rstrip() for line in asked.stdout.strip("\n").splitlines())
        source[0] += f"\n## Options of {' '.join(words)}\n\n```text\n{text}\n```\n"


def _section(path: Path) -> str:
    parts = path.relative_to(_SOURCES.parent).with_suffix("").parts
    return f"\n```{{eval-rst}}\n.. automodule:: {'.'.join(parts).removesuffix('.__init__')}\n```\n"


def setup(sphinx: Any) -> None:
    """Connect the helpers; docstrings are made plain before napoleon reads them."""
    sphinx.connect("source-read", _modules)
    sphinx.connect("source-read", _options)
    sphinx.connect("autodoc-process-docstring", _docstring, priority=400)
    sphinx.connect("autodoc-skip-member", _skip)
