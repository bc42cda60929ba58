"""Versions of all that can change a number: in records, in checkpoints, and between the machines of a cluster."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("rhfedmtl", "numpy", "scipy", "numba", "scikit-learn")
FOLDERS = ("maths", "resources", "policies", "algorithms", "roles", "engines", "data", "training", "selection")


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of packages, our own sources among them."""
    numbers = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    return {**numbers, "sources": _sources()}


def _sources() -> str:
    """The code that decides numbers, in a word: records do not outlive an edit of it."""
    root, digest = Path(__file__).resolve().parent, hashlib.sha256()
    for path in (path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
