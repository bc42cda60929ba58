"""Versions of everything that can change a number: for records, checkpoints, and comparison within a cluster.

A record or a checkpoint of other versions is not reused. The versions include a digest of our source code, so any edit
of a module in ``FOLDERS`` invalidates earlier records.
"""

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
    """Return the versions of Python, of packages and of plugins, and a digest of the source code."""
    numbers = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    added = {point.dist.name: point.dist.version for point in plugins() if point.dist is not None}
    # Records must not outlive an edit of the code that decides numbers.
    root, digest = Path(__file__).resolve().parent, hashlib.sha256()
    ours = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
    plugin_modules = sorted({point.module.partition(".")[0] for point in plugins()})
    for path in [*ours, *(path for name in plugin_modules for path in sources(name))]:
        digest.update(path.read_bytes())
    return {**numbers, **added, "sources": digest.hexdigest()[:12]}
