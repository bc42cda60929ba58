"""Settings that all tests share."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest
import typer.testing

# The same examples in every run; a deadline would assert on wall-clock time.
hypothesis.settings.register_profile("rhfedmtl", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("rhfedmtl")


# The whole command line is made once in a process, as for users, and not for every call: 40 ms each.
typer.testing._get_command = cache(typer.testing._get_command)

# What is made while tests are collected stays to the end: to look through it for garbage, again and again, is in vain.
gc.disable()


def pytest_collection_finish() -> None:
    """Garbage is looked for among what tests make, not among the tests."""
    gc.freeze()
    gc.enable()


# Files that take longest: begun late, one of them would keep a worker busy when all others are done.
LONGEST = {
    "test_algorithms_cli",
    "test_docs",
    "test_estimator",
    "test_estimator_checks",
    "test_feature_maps",
    "test_light",
    "test_lying_stations",
    "test_methods",
    "test_network",
    "test_operation",
    "test_plan",
    "test_plugins",
    "test_privacy",
    "test_stalls",
    "test_station_bounds",
    "test_study",
    "test_train",
    "test_weights",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; those on networks evenly among all others, which compute while networks wait."""
    files = dict.fromkeys(item.path for item in items)
    place = {}
    for networks in (True, False):
        group = [path for path in files if ("deploy" in path.parts) is networks]
        place |= {path: (i + 0.5) / len(group) for i, path in enumerate(group)}
    items.sort(key=lambda item: (item.path.stem not in LONGEST, place[item.path]))


@pytest.fixture
def real_file() -> Callable[[str], Path]:
    """Path of a real data file in the folder RHFEDMTL_DATA; the test is skipped where it is not there."""

    def find(name: str) -> Path:
        folder = os.environ.get("RHFEDMTL_DATA")
        if not folder:
            pytest.skip(f"RHFEDMTL_DATA is not set, so there is no {name}")
        path = Path(folder) / name
        if not path.exists():
            pytest.skip(f"{path} is not there")
        return path

    return find


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as in the foreground, for children too: in the background of a shell without jobs it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Empty cache folder, and no folder with data of the user."""
    monkeypatch.delenv("RHFEDMTL_DATA", raising=False)
    monkeypatch.setenv("RHFEDMTL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
