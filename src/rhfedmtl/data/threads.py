"""Share independent work among the processor's cores.

Compiled kernels release the interpreter lock, so plain threads are enough. Numba's own thread pool would not survive
callers that use threads themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

BLOCKS_PER_CORE = 8
SERIAL_SIZE = 1_000_000
"""Below this many numbers, the first core finishes before the other threads have started."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def share_out(work: Callable[[int, int], None], n: int, size: int) -> None:
    """Call ``work(start, stop)`` for consecutive parts of ``range(n)`` on all cores; the parts must be independent.

    ``size`` is the amount of work: how many numbers all parts together read.
    """
    workers = min(n, cores())
    if workers <= 1 or size < SERIAL_SIZE:
        work(0, n)
        return
    step = -(-n // (workers * BLOCKS_PER_CORE))
    with ThreadPoolExecutor(workers) as pool:
        for part in [pool.submit(work, start, min(start + step, n)) for start in range(0, n, step)]:
            part.result()
