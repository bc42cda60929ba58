"""Versions of all that can change a number: in records, in checkpoints, and between the machines of a cluster."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

from rhfedmtl.registry import plugins, sources

PACKAGES = ("rhfedmtl", "numpy", "scipy", "numba", "scikit-learn")
FOLDERS = ("maths", "resources", "policies", "algorithms", "roles", "engines", "data", "training", "selection")


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of packages, those that add to ours among them, and our own sources."""
    numbers = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    added = {point.dist.name: point.dist.version for point in plugins() if point.dist is not None}
    # The code that decides numbers: records do not outlive an edit of it.
    root, digest = Path(__file__).resolve().parent, hashlib.sha256()
    ours = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
    others = sorted({point.module.partition(".")[0] for point in plugins()})
    for path in [*ours, *(path for name in others for path in sources(name))]:
        digest.update(path.read_bytes())
    return {**numbers, **added, "sources": digest.hexdigest()[:12]}
