"""What tests of networks share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.deploy import nets


@pytest.fixture(params=["heavy", pytest.param("light", marks=pytest.mark.slow)])
def terminals(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Networks have full terminals, and then light ones."""
    kind: str = request.param
    monkeypatch.setitem(nets.SETTINGS, "light", kind == "light")
    return kind


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a file with the name of a place ends the next node that comes by it."""
    return nets.failpoint_folder(tmp_path, monkeypatch)
