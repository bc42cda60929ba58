"""Compile to machine code with numba, cached on disk under a key that covers all of this package's sources.

numba keys its disk cache by the file of the compiled function alone. A kernel in one file that calls a loss in
another would keep returning old answers after an edit of the loss. The digest of every source file here is
therefore part of the name under which a function is cached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


_SOURCES = _digest_of_sources()


def compiled(function: F) -> F:
    """Machine code that runs without the interpreter lock, so that threads can share out the terminals."""
    function.__qualname__ = f"{function.__qualname__}_{_SOURCES}"
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def compiled_sum(function: F) -> F:
    """As `compiled`, for inner loops over features: additions may be reordered into vector lanes.

    The order is then that of the machine code: fixed on one kind of CPU, whatever the number of threads.
    """
    return cast(F, numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})(function))
