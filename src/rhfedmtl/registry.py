"""Registries: losses, methods, engines and other parts by name, including the entries of other installed packages.

An entry has a title and the place of its class or builder (``module:attribute``), so listing the names imports nothing
numerical. Another package adds an entry under the group of a registry, in its ``pyproject.toml``::

    [project.entry-points."rhfedmtl.losses"]
    huber = "my_package.entries:HUBER"

A package cannot replace a name of the library. An unusable entry is refused with its name when a user requests it; all
other entries keep working.
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
    """A setting that belongs to an entry. Entries with equal declarations share it.

    If ``default`` is None, the entry chooses the value; ``otherwise`` explains this value in the help.
    """

    name: str
    kind: type
    default: Any
    help: str = field(compare=False)
    otherwise: str = field(default="", compare=False)


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A line of a registry. Calling it makes the object; ``make`` is the ``module:attribute`` of a callable."""

    title: str
    make: str
    options: tuple[Option, ...] = field(default=(), kw_only=True)

    def __call__(self, *values: Any, **settings: Any) -> T:
        """Make the object."""
        made: T = self.maker(*values, **settings)
        return made

    @property
    def maker(self) -> Callable[..., T]:
        """The class or builder."""
        made: Callable[..., T] = load(self.make)
        return made


E = TypeVar("E")


def load(place: str) -> Any:
    """Import and return ``module:attribute``."""
    module, _, attribute = place.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except RHFedMTLError:
        raise
    except Exception as error:
        raise ConfigError(f"{place} cannot be loaded: {type(error).__name__}: {error}") from error


class Registry(Mapping[str, E]):
    """Entries of a kind by name: first the entries of the library, then (searched on first use) of other packages.

    ``group`` is the entry-point group for other packages, ``noun`` the word for an entry in messages, and ``changes``
    counts how often a name was added or refused.
    """

    def __init__(self, noun: str, group: str, kind: type[E], entries: Mapping[str, E]) -> None:
        self.noun, self.group = noun, PREFIX + group
        self._kind, self._entries = kind, dict(entries)
        self.own = tuple(entries)
        self.refused: dict[str, str] = {}
        self.changes = 0

    def __getitem__(self, name: str) -> E:
        entries = self._all_entries
        if name in self.refused:
            raise ConfigError(self.refused[name])
        if name not in entries:
            raise ConfigError(f"unknown {self.noun} {name!r}: choose from {', '.join(self)}{nearest(name, self)}")
        return entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all_entries and name not in self.refused

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._all_entries if name not in self.refused)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, name: str, entry: E) -> None:
        """Add an entry in this process only."""
        if self._all_entries.setdefault(name, entry) != entry:
            raise ConfigError(f"{self.noun} {name!r} is there already: take another name")
        self.changes += 1

    def refuse(self, name: str, reason: str) -> None:
        """Refuse a name with this reason from now on."""
        self.refused[name] = f"{self.noun} {name!r} {reason}"
        self.changes += 1

    @cached_property
    def _all_entries(self) -> dict[str, E]:
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
    installed = entry_points()
    groups = [group for group in installed.groups if group.startswith(PREFIX)]
    points = [point for group in groups for point in installed.select(group=group)]
    return tuple(sorted(points, key=lambda point: (point.group, package(point), point.name)))


def plugins(group: str = "") -> list[EntryPoint]:
    """Return the entries of other installed packages, for a group or for all groups."""
    return [point for point in _points() if group in ("", point.group)]


def package(point: EntryPoint) -> str:
    """Return name and version of the package that adds an entry."""
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def sources(module: str) -> list[Path]:
    """Return the source files of a module's package without importing it; empty if it has no source files."""
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
