"""Things by name: what this library has, and what other installed packages add to it.

An entry says what a thing is and where its class or builder stands (``module:attribute``), so that listing names
imports nothing numerical. Another package adds one under the group of a registry, in its ``pyproject.toml``::

    [project.entry-points."rhfedmtl.losses"]
    huber = "my_package.entries:HUBER"

A name of the library cannot be taken, and what cannot be used is refused by its name when it is asked for; all else
works as if it were not there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from rhfedmtl.errors import ConfigError, RHFedMTLError, nearest

T = TypeVar("T")
PREFIX = "rhfedmtl."


@dataclass(frozen=True)
class Option:
    """A setting that an entry has of its own. Entries that declare it alike share it.

    A ``default`` of None leaves the value to the entry; ``otherwise`` says in the help what that is.
    """

    name: str
    kind: type
    default: Any
    help: str = field(compare=False)
    otherwise: str = field(default="", compare=False)


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One line of a registry; called, it makes what it names. ``make`` is the ``module:attribute`` of a callable."""

    title: str
    make: str
    options: tuple[Option, ...] = field(default=(), kw_only=True)

    def __call__(self, *values: Any, **settings: Any) -> T:
        """Make it."""
        made: T = self.maker(*values, **settings)
        return made

    @property
    def maker(self) -> Callable[..., T]:
        """The class or builder itself."""
        made: Callable[..., T] = load(self.make)
        return made


E = TypeVar("E")


def load(place: str) -> Any:
    """What stands at ``module:attribute``."""
    module, _, attribute = place.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except RHFedMTLError:
        raise
    except Exception as error:
        raise ConfigError(f"{place} cannot be loaded: {type(error).__name__}: {error}") from error


class Registry(Mapping[str, E]):
    """Entries of one kind by name: those of the library, then those of other packages, which are looked for when used.

    ``group`` is where other packages add theirs, ``noun`` what one of them is called in messages, ``changes`` how often
    a name came or went.
    """

    def __init__(self, noun: str, group: str, kind: type[E], entries: Mapping[str, E]) -> None:
        self.noun, self.group = noun, PREFIX + group
        self._kind, self._entries = kind, dict(entries)
        self.own = tuple(entries)
        self.refused: dict[str, str] = {}
        self.changes = 0

    def __getitem__(self, name: str) -> E:
        known = self._known
        if name in self.refused:
            raise ConfigError(self.refused[name])
        if name not in known:
            raise ConfigError(f"unknown {self.noun} {name!r}: choose from {', '.join(self)}{nearest(name, self)}")
        return known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known and name not in self.refused

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._known if name not in self.refused)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, name: str, entry: E) -> None:
        """Give an entry a name in this process alone."""
        if self._known.setdefault(name, entry) != entry:
            raise ConfigError(f"{self.noun} {name!r} is there already: take another name")
        self.changes += 1

    def refuse(self, name: str, reason: str) -> None:
        """Let a name be answered with this reason from now on."""
        self.refused[name] = f"{self.noun} {name!r} {reason}"
        self.changes += 1

    @cached_property
    def _known(self) -> dict[str, E]:
        for point in plugins(self.group):
            try:
                if point.name in self.own:
                    raise ConfigError("the library has one of that name; rename it there, or uninstall the package")
                if point.name in self._entries:
                    raise ConfigError("another package has one of that name; uninstall one of them")
                entry = load(point.value)
                if not isinstance(entry, self._kind):
                    raise ConfigError(
                        f"{point.value} is of type {type(entry).__name__}, and must be {self._kind.__name__}"
                    )
                self._entries[point.name] = entry
            except ConfigError as error:
                self.refuse(point.name, f"of {package(point)} is refused: {error}")
        return self._entries


@cache
def _points() -> tuple[EntryPoint, ...]:
    everyone = entry_points()
    found = [point for group in everyone.groups if group.startswith(PREFIX) for point in everyone.select(group=group)]
    return tuple(sorted(found, key=lambda point: (point.group, package(point), point.name)))


def plugins(group: str = "") -> list[EntryPoint]:
    """What other installed packages add, to one group or to all."""
    return [point for point in _points() if group in ("", point.group)]


def package(point: EntryPoint) -> str:
    """Name and version of the package that adds an entry."""
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def sources(module: str) -> list[Path]:
    """Source files of the whole package that a module is part of; nothing is imported. Empty where there are none."""
    root = module.partition(".")[0]
    if root == "__main__":
        file = getattr(sys.modules[root], "__file__", None)
        return [] if file is None else [Path(file)]
    spec = find_spec(root)
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [] if spec.origin is None else [Path(spec.origin)]
    return sorted(path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*.py"))
