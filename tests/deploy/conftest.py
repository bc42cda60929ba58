"""What tests of networks share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.deploy import nets

from rhfedmtl import failpoints
from rhfedmtl.deploy.local import supervisor as supervision


@pytest.fixture(params=["heavy", pytest.param("light", marks=pytest.mark.slow)])
def terminals(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Networks have full terminals, and then light ones."""
    kind: str = request.param
    monkeypatch.setitem(nets.SETTINGS, "light", kind == "light")
    return kind


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder: a process that comes to a place for which there is a file here ends; it is soon started again."""
    folder = tmp_path / "places"
    folder.mkdir()
    monkeypatch.setenv(failpoints.VARIABLE, str(folder))
    monkeypatch.setattr(supervision, "LONGEST_WAIT_S", 0.2)
    return folder
