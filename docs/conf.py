"""How the documentation is built: ``make docs``."""

from __future__ import annotations

import re
from importlib.metadata import version as installed
from typing import Any

project = "rhfedmtl"
author = "The rhfedmtl developers"
project_copyright = "The rhfedmtl developers, Apache-2.0"
version = release = installed("rhfedmtl")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # brings the script along: pages are whole without a network
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
default_role = "code"
html_theme = "furo"
html_title = f"rhfedmtl {version}"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_typehints = "none"
napoleon_google_docstring = False

_MARKUP = re.compile(r"(``.*?``|`.*?`|\*\*[^*]+\*\*|^ *\* )")


def _plain(text: str) -> str:
    """Formulas in docstrings hold L*, |G| and w_: plain signs there, not the markup that they are in reST."""
    parts = _MARKUP.split(text)
    parts[::2] = [re.sub(r"([*|]|(?<=\w)_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _docstring(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = [line if line.endswith("::") else _plain(line) for line in lines]


def _skip(_app: Any, _what: str, _name: str, obj: Any, _skipped: bool, _options: Any) -> bool | None:
    """Leave out fields of named tuples, which say only that they are fields."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number") else None


def setup(app: Any) -> None:
    """Connect the two helpers; docstrings are made plain before napoleon reads them."""
    app.connect("autodoc-process-docstring", _docstring, priority=400)
    app.connect("autodoc-skip-member", _skip)
