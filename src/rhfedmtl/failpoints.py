"""Failpoints: named places in a node, before and after every write and send, where a test can kill or delay it.

They are off unless RHFEDMTL_FAILPOINTS names a folder when a node starts. A file in that folder arms a failpoint:
``station.save-round.state-after`` kills the first station that reaches this place, as by kill -9. The file is removed
first, so this happens only once. A file with a number of seconds stays, and makes every station wait there.
``station.passed`` lists the places that stations have reached.
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
    """Read the environment, in a process with this role."""
    if folder := os.environ.get(VARIABLE):
        _armed[role] = Path(folder)


def failpoint(*words: str) -> None:
    """Mark a place, named by the joined words; does nothing unless failpoints are on."""
    for role, folder in _armed.items():
        place = "-".join(words)
        if place not in _passed:
            _passed.add(place)
            with (folder / f"{role}.passed").open("a") as log:
                log.write(f"{place}\n")
        file = folder / f"{role}.{place}"
        try:
            if seconds := file.read_text():
                time.sleep(float(seconds))
            else:
                file.unlink()  # a process that does not get to remove the file survives
                os.kill(os.getpid(), signal.SIGKILL)
        except FileNotFoundError:
            continue
