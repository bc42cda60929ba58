"""Takes the parts of rhfedmtl that a terminal needs from its sources, into ``rhfedmtl_terminal/lib``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Parts(BuildHookInterface):
    """A wheel has the parts where its program looks for them, an sdist where the next build does."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files that lie elsewhere."""
        here = Path(self.root)
        sources = next(path for path in (here / "src", here.parent / "src") if path.is_dir()) / "rhfedmtl"
        place = "src" if self.target_name == "sdist" else "rhfedmtl_terminal/lib"
        files = build_data["force_include"]
        for part in self.config["parts"]:
            for path in sorted((sources / part).rglob("*.py")) or [sources / part]:
                files[str(path)] = f"{place}/rhfedmtl/{path.relative_to(sources).as_posix()}"
        if self.target_name == "wheel":
            files[self._metadata()] = f"{place}/rhfedmtl-{self.metadata.version}.dist-info/METADATA"

    def _metadata(self) -> str:
        """What tells the parts their version, whatever else is installed."""
        path = Path(tempfile.mkdtemp(), "METADATA")
        path.write_text(f"Metadata-Version: 2.1\nName: rhfedmtl\nVersion: {self.metadata.version}\n")
        return str(path)
