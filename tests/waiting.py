"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_for(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    """What a condition gives once it holds; the time is that of a machine that is busy with much else."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.01)
    raise TimeoutError(f"{condition} did not come true within {seconds} s")
