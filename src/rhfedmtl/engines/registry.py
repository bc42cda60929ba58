"""Engines by name, and the choice of an engine with its resources (`Execution`).

To add an engine, write a module with a function ``network``, and add a line to ``ENGINES``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rhfedmtl.errors import ConfigError
from rhfedmtl.registry import Entry, Registry

if TYPE_CHECKING:
    from rhfedmtl.engines.network import Network  # noqa: F401  # in quotes below


@dataclass(frozen=True)
class EngineEntry(Entry["Network"]):
    """An engine: a function of federation, method, ``seed``, ``present`` and ``execution`` that returns a `Network`.

    ``exact`` is True if its numbers equal the numbers of ``inprocess`` to the bit. ``sharded`` is True if several
    processes (actors) share the stations. ``cluster`` names a module with ``session``, ``outline`` and ``Pool``, if the
    engine runs on a cluster.
    """

    keeps_checkpoints: bool = field(default=False, kw_only=True)
    exact: bool = field(default=True, kw_only=True)
    sharded: bool = field(default=False, kw_only=True)
    cluster: str = field(default="", kw_only=True)


ENGINES: Registry[EngineEntry] = Registry(
    "engine",
    "engines",
    EngineEntry,
    {
        "inprocess": EngineEntry(
            "a compiled call per round", "rhfedmtl.engines.inprocess:network", keeps_checkpoints=True
        ),
        "message-passing": EngineEntry("message by message", "rhfedmtl.engines.message_passing:network"),
        "ray": EngineEntry(
            "on a Ray cluster",
            "rhfedmtl.engines.cluster.ray:network",
            keeps_checkpoints=True,
            sharded=True,
            cluster="rhfedmtl.engines.cluster.ray",
        ),
        "gpu": EngineEntry("on a GPU", "rhfedmtl.engines.gpu.engine:network", keeps_checkpoints=True, exact=False),
    },
)


@dataclass(frozen=True)
class Execution:
    """Engine and resources of a run. With an exact engine no choice changes a number.

    Parameters
    ----------
    engine : str
        Name of the engine.
    threads : int, optional
        Threads of each process; by default all cores.
    address : str, optional
        Cluster; by default a local cluster is started.
    actors : int, optional
        Processes that share the stations; by default a process on each node.
    """

    engine: str = "inprocess"
    threads: int | None = None
    address: str | None = None
    actors: int | None = None

    def __post_init__(self) -> None:
        """Refuse options that the engine does not have."""
        entry = self.entry
        if self.address is not None and not entry.cluster:
            raise ConfigError(f"address is for engines on a cluster, as ray, not for {self.engine}")
        if self.actors is not None and not entry.sharded:
            raise ConfigError(f"actors are for engines of several processes, as ray, not for {self.engine}")
        for name in ("threads", "actors"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def entry(self) -> EngineEntry:
        """Entry of the engine."""
        return ENGINES[self.engine]

    def words(self) -> tuple[str, ...]:
        """Return the options that a command needs for the same numbers: some engines round, or cannot choose λ2."""
        same = self.entry.exact and self.entry.keeps_checkpoints
        return () if same else ("--engine", self.engine)

    @property
    def in_process(self) -> Execution:
        """Execution in this process, with the same threads."""
        return Execution(threads=self.threads)

    @property
    def cluster(self) -> Any:
        """Module of the engine's cluster, if the engine runs on a cluster."""
        return import_module(self.entry.cluster) if self.entry.cluster else None
