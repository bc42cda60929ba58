"""Share independent work out to the processor's cores.

Kernels run without the interpreter lock, so plain threads are enough; numba's own thread pool would not survive
callers that use threads themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

BLOCKS_PER_CORE = 8
LITTLE = 1_000_000
"""Numbers that one core has gone through before others have even been asked."""


def cores() -> int:
    """Cores that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def share_out(work: Callable[[int, int], None], n: int, size: int) -> None:
    """Call ``work(start, stop)`` for stretches of ``range(n)``, on all cores; stretches must be independent.

    ``size`` is how many numbers all of it goes through.
    """
    workers = min(n, cores())
    if workers <= 1 or size < LITTLE:
        work(0, n)
        return
    step = -(-n // (workers * BLOCKS_PER_CORE))
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work, start, min(start + step, n)) for start in range(0, n, step)]:
            done.result()
