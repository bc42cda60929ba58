"""Every error that this library raises on purpose. Each message names the value and the way out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class RHFedMTLError(Exception):
    """Base of all errors raised on purpose: one `except` catches them, and the command line prints them plainly."""

    status = 2
    """How a process ends with it."""


class DataError(RHFedMTLError, ValueError):
    """The data cannot be used as it is: names the file, task, row or column."""


class ConfigError(RHFedMTLError, ValueError):
    """A setting has a value that cannot work."""


class BudgetError(RHFedMTLError, ValueError):
    """A budget cannot pay what was asked of it."""


class ProtocolError(RHFedMTLError, RuntimeError):
    """A role was driven in an order that it does not allow: a bug of the engine, not of a peer."""


class PeerError(RHFedMTLError, RuntimeError):
    """A message from a peer cannot be right (shape, values, identity); it was not applied."""


class IncompleteError(PeerError):
    """No certificate: not everybody who has to has told its sums."""


class DivergenceError(PeerError):
    """Models grow beyond all bounds: the steps are too large for the data."""


class ClusterError(RHFedMTLError, RuntimeError):
    """A cluster is not there, does not fit (versions, memory), or was lost."""


class BusyError(RHFedMTLError, RuntimeError):
    """Something else has what is needed, and may let it go: the same again, later, can work."""

    status = 75


class MissingExtraError(RHFedMTLError, ImportError):
    """An optional dependency is not installed: says what to install."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Hint at the nearest known name, for the end of a message; or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def in_python(text: str) -> str:
    """A message for somebody without a command line: its options in brackets go, others lose their dashes."""
    text = re.sub(r" \(--[^;()]*\)", "", text)
    text = re.sub(r"\(--[^;()]*; ", "(", text)
    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), text)


@contextmanager
def told_in_python() -> Iterator[None]:
    """Errors from within say what Python has, not the command line."""
    try:
        yield
    except RHFedMTLError as error:
        error.args = (in_python(str(error)),)
        raise
