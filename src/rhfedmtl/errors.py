"""Every error that this library raises on purpose, and helpers for its messages.

Each message names the value, the rule and the way out. The command line prints the message without a traceback and
exits with ``status``. Any other exception is a bug.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager


class RHFedMTLError(Exception):
    """Base of all errors that are raised on purpose: catch this class to catch them all."""

    status = 2
    """Exit status of a process that ends with this error."""


class DataError(RHFedMTLError, ValueError):
    """The data cannot be used in this form; the message names the file, task, row or column."""


class ConfigError(RHFedMTLError, ValueError):
    """A setting has an impossible value."""


class BudgetError(RHFedMTLError, ValueError):
    """A budget cannot pay for the requested work. ``needed`` is a budget that could, if it is known."""

    def __init__(self, message: str, needed: Mapping[str, float] | None = None) -> None:
        super().__init__(message)
        self.needed = dict(needed or {})


class ProtocolError(RHFedMTLError, RuntimeError):
    """An engine called a role in the wrong order. This is a bug of the engine, not of a peer."""


class PeerError(RHFedMTLError, RuntimeError):
    """A message from a peer must be wrong (shape, values, identity); it was not applied."""


class IncompleteError(PeerError):
    """There is no certificate, because a required participant has not reported its sums."""


class DivergenceError(PeerError):
    """The models grow without bound, because the steps are too large for the data."""


class ClusterError(RHFedMTLError, RuntimeError):
    """A cluster is missing, does not fit (versions, memory), or was lost."""


class BusyError(RHFedMTLError, RuntimeError):
    """A required resource is in use by another process: try again later."""

    status = 75


class MissingExtraError(RHFedMTLError, ImportError):
    """An optional dependency is not installed; the message says how to install it."""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint at the most similar name, for the end of a message; empty if no name is similar."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def in_python(text: str) -> str:
    """Translate a message for Python users: drop command-line options in brackets, and the dashes of other options."""
    text = re.sub(r" \(--[^;()]*\)", "", text)
    text = re.sub(r"\(--[^;()]*; ", "(", text)
    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)", lambda match: match[1].replace("-", "_"), text)


@contextmanager
def told_in_python() -> Iterator[None]:
    """Translate the messages of errors in this block for Python users."""
    try:
        yield
    except RHFedMTLError as error:
        error.args = (in_python(str(error)),)
        raise
