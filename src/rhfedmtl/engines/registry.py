"""The engines by name, and how a run is carried out by one. A new engine is one file, and its line here."""

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
    """An engine: called with federation, method, ``seed``, ``present`` and ``execution``, it makes a `Network`.

    ``exact``: its numbers are those of ``inprocess`` to the bit. ``sharded``: several processes (actors) share out the
    stations. ``cluster`` names the module with ``session``, ``outline`` and ``Pool`` of the machines that it runs on.
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
            "one compiled call a round", "rhfedmtl.engines.inprocess:network", keeps_checkpoints=True
        ),
        "message-passing": EngineEntry("message by message", "rhfedmtl.engines.message_passing:network"),
        "ray": EngineEntry(
            "on a Ray cluster",
            "rhfedmtl.engines.cluster.ray:network",
            keeps_checkpoints=True,
            sharded=True,
            cluster="rhfedmtl.engines.cluster.ray",
        ),
        "gpu": EngineEntry("on one GPU", "rhfedmtl.engines.gpu.engine:network", keeps_checkpoints=True, exact=False),
    },
)


@dataclass(frozen=True)
class Execution:
    """Where and with how much a run is carried out: with an exact engine none of it changes a number.

    ``address`` is a cluster (None: one that is brought up here), ``actors`` how many processes share out the stations
    (None: one on each node), ``threads`` those of each process (None: all cores).
    """

    engine: str = "inprocess"
    threads: int | None = None
    address: str | None = None
    actors: int | None = None

    def __post_init__(self) -> None:
        """Refuse what the engine does not understand."""
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
        """What is known of the engine."""
        return ENGINES[self.engine]

    def words(self) -> tuple[str, ...]:
        """What a command must say of it to get the same numbers: engines may round, or choose no λ2 on the way."""
        same = self.entry.exact and self.entry.keeps_checkpoints
        return () if same else ("--engine", self.engine)

    @property
    def in_process(self) -> Execution:
        """The same in this process."""
        return Execution(threads=self.threads)

    @property
    def cluster(self) -> Any:
        """The module of the cluster that the engine runs on; None for one of this machine alone."""
        return import_module(self.entry.cluster) if self.entry.cluster else None
