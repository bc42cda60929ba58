"""Named places before and after all that a node writes and sends, where a test can end its process as by kill -9.

They are off unless RHFEDMTL_FAILPOINTS names a folder when a node starts. The file ``station.save-round.state-after``
in it then ends the first station that comes to that place, once: the file goes first. One that holds a number of
seconds stays, and lets every station wait there for so long. ``station.passed`` lists the places where stations have
been.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

VARIABLE = "RHFEDMTL_FAILPOINTS"
_armed: dict[str, Path] = {}
_passed: set[str] = set()


def arm(role: str) -> None:
    """Heed the environment, in a process of this role."""
    if folder := os.environ.get(VARIABLE):
        _armed[role] = Path(folder)


def failpoint(*words: str) -> None:
    """A place, by words that are joined; nothing happens where none is armed."""
    if _armed:
        _come_to("-".join(words))


def _come_to(place: str) -> None:
    for role, folder in _armed.items():
        if place not in _passed:
            _passed.add(place)
            with (folder / f"{role}.passed").open("a") as file:
                file.write(f"{place}\n")
        try:
            _strike(folder / f"{role}.{place}")
        except FileNotFoundError:
            continue


def _strike(armed: Path) -> None:
    """Do what the file says: wait, or end where it was there to be removed."""
    if seconds := armed.read_text():
        time.sleep(float(seconds))
    else:
        armed.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
