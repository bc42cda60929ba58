"""Build hook: copy the parts of rhfedmtl that a terminal needs into ``rhfedmtl_terminal/lib``.

hatchling runs it for each wheel and sdist. ``pyproject.toml`` lists the parts.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Parts(BuildHookInterface):
    """Adds the parts: to ``lib`` in a wheel, and to ``src`` in an sdist, from which a wheel can be built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Enter the files of all parts into ``build_data``."""
        root = Path(self.root)
        sources = next(path for path in (root / "src", root.parent / "src") if path.is_dir()) / "rhfedmtl"
        place = "src" if self.target_name == "sdist" else "rhfedmtl_terminal/lib"
        files = build_data["force_include"]
        for part in self.config["parts"]:
            for path in sorted((sources / part).rglob("*.py")) or [sources / part]:
                files[str(path)] = f"{place}/rhfedmtl/{path.relative_to(sources).as_posix()}"
        if self.target_name == "wheel":
            # The parts read their version from this file.
            path, version = Path(tempfile.mkdtemp(), "METADATA"), self.metadata.version
            path.write_text(f"Metadata-Version: 2.1\nName: rhfedmtl\nVersion: {version}\n")
            files[str(path)] = f"{place}/rhfedmtl-{version}.dist-info/METADATA"
