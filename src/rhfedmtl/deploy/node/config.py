"""Configuration files of stations, terminals and operators: TOML, read into frozen dataclasses and checked at once.

`read_station`, `read_terminal` and `read_operator` return the configuration, or raise `ConfigError` with the file, the
setting and the rule. The cloud's configuration builds on the same parts (`rhfedmtl.deploy.cloud.config`). To add a
setting, add a field to the dataclass, a check to its ``__post_init__``, and a line to ``docs/deploy_reference.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from rhfedmtl import toml
from rhfedmtl.deploy.node.credentials import OPERATOR, STATION, TERMINAL, Credentials, Identity, check_number
from rhfedmtl.deploy.node.log import split_address
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.kernels.kernel import AUTO_KERNEL

LOCAL = "127.0.0.1"
LONGEST_LINK_S = 1e6
"""Limit of gRPC, which counts milliseconds in 32 bits."""
LARGEST_MESSAGE = (1 << 31) - 1
"""Limit of gRPC, which counts bytes in 31 bits."""


def check_numbers(settings: Any, minimum: float, *names: str, maximum: float = math.inf, above: bool = False) -> None:
    """Check that each named setting is a number in [minimum, maximum]; with ``above``, in (minimum, maximum]."""
    for name in names:
        value = getattr(settings, name)
        if not (math.isfinite(value) and minimum <= value <= maximum) or (above and value == minimum):
            to = f" to {maximum:g}" if maximum < math.inf else ""
            raise ConfigError(f"{name} = {value}: give a number {'above' if above else 'from'} {minimum:g}{to}")


@dataclass(frozen=True)
class NodeConfig:
    """Identity, addresses and folders of a node: the table ``[node]`` of its configuration.

    Parameters
    ----------
    network, role, number : str, str, int
        The identity, which the certificate must carry.
    listen : str
        Address for nodes below.
    metrics, health : str
        Addresses for Prometheus and for gRPC health checks; empty to switch them off. Keep them on a local address.
    state, credentials : str
        Folders, relative to the configuration file.
    fsync : bool
        Force state to disk before acknowledging it. Without it, state survives the process but not a crash of the
        machine.
    log : str
        Lowest level of the log: debug, info, warning or error.
    """

    network: str
    role: str
    number: int = 0
    listen: str = ""
    metrics: str = ""
    health: str = ""
    state: str = "state"
    credentials: str = "."
    fsync: bool = False
    log: str = "info"

    def __post_init__(self) -> None:
        """Check the number and the addresses."""
        check_number(self.number, self.role)
        for name in ("listen", "metrics", "health"):
            if address := getattr(self, name):
                split_address(address, name)


@dataclass(frozen=True)
class Config:
    """Common part of all configurations. ``folder`` holds the file, and other paths are relative to it."""

    node: NodeConfig
    folder: Path = field(default=Path(), init=False)

    @property
    def identity(self) -> Identity:
        """Network, role and number of the node."""
        return Identity(self.node.network, self.node.role, self.node.number)

    @property
    def state(self) -> Path:
        """Folder for the state of the node."""
        return self.folder / self.node.state

    def check_files(self) -> None:
        """Check that the data files of the configuration exist."""
        for name in ("data", "test"):
            path = getattr(self, name, "")
            if path and not (self.folder / path).is_file():
                way_out = "put it there" if name == "data" else "put it there, or leave the line out"
                raise ConfigError(f"{name} = {path!r}: there is no file {self.folder / path}: {way_out}")

    def credentials(self) -> Credentials:
        """Return key and certificates of the node; refuse a certificate of another node."""
        credentials = Credentials.of(self.folder / self.node.credentials)
        credentials.check(self.identity)
        return credentials


@dataclass(frozen=True)
class Waits:
    """Waiting times in seconds: the table ``[waits]``.

    Parameters
    ----------
    patience : float
        Wait so long for an absent station before it misses a round. Reconnecting does not restart the wait.
    start : float
        Wait so long for all members before the first round.
    answer : float
        Wait so long for sums and similar answers, and for silent members before a training ends without them.
    again : float
        Repeat a request after this time.
    forget : float
        Take out the share of a terminal that has been silent for so long (0: never, an operator decides).
    asleep : float
        Wait so long for terminals that rest before giving up a certificate.
    link : float
        Time limit for a handshake on the link of a terminal, and for the answer to a ping.
    """

    patience: float = 60.0
    start: float = 120.0
    answer: float = 30.0
    again: float = 5.0
    forget: float = 0.0
    asleep: float = 0.0
    link: float = 5.0

    def __post_init__(self) -> None:
        """Check the times."""
        check_numbers(self, 0.0, "patience", "answer", "again", above=True)
        check_numbers(self, 0.0, "start", "forget", "asleep")
        check_numbers(self, 0.0, "link", maximum=LONGEST_LINK_S, above=True)


@dataclass(frozen=True)
class Limits:
    """Limits for each peer, which is dropped above them: the table ``[limits]``.

    Parameters
    ----------
    message_bytes : int
        Bytes of a message (0: four times the largest message that the shapes require).
    messages : float
        Messages per second.
    samples : int
        Rows of a terminal.
    norm : float
        Norm of an update or a share, per sample of its sender.
    weight : float
        Mean weight of the samples of a terminal.
    quarantine : float
        Seconds for which a peer is refused after a fault.
    connections : int
        Open connections of all peers together; fewer if the process may not open so many files.
    """

    message_bytes: int = 0
    messages: float = 2000.0
    samples: int = 1_000_000
    norm: float = 1000.0
    weight: float = 1.0
    quarantine: float = 10.0
    connections: int = 4096

    def __post_init__(self) -> None:
        """Check the limits."""
        check_numbers(self, 0, "message_bytes", maximum=LARGEST_MESSAGE)
        check_numbers(self, 1, "messages", "samples", "connections")
        check_numbers(self, 0.0, "norm", "weight", above=True)
        check_numbers(self, 0.0, "quarantine")


@dataclass(frozen=True)
class StationConfig(Config):
    """Configuration of a base station. ``test`` is a file with X and y, if the station has test rows."""

    cloud: str
    test: str = ""
    waits: Waits = field(default_factory=Waits)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Check the addresses of the cloud and of the station."""
        split_address(self.cloud, "cloud")
        split_address(self.node.listen, "node.listen")


@dataclass(frozen=True)
class TerminalConfig(Config):
    """Configuration of a terminal: its station, its rows, and the rules of its owner.

    The terminal enforces the rules itself: no request of its station can change them.

    Parameters
    ----------
    station, address : int, str
        The station at first; a terminal that moved remembers its new station.
    data, test : str
        An .npz file with X and y, or a .csv file.
    columns : tuple of str
        Features of a .csv file; the remaining column is the label (empty: all columns but the last are features).
    kernel : str
        "auto" (compiled if numba is installed), "compiled" or "numpy".
    sleep : float
        Seconds for which the terminal disconnects after it has answered an order.
    link : float
        As in `Waits`.
    byte_budget, budget_days : int
        Bytes in both directions together (0: no limit) in so many days (0: for ever). A message above it is not sent.
    least_steps, most_steps : int
        Smallest and largest number of steps in an order (``least_steps`` 0: one pass over the rows).
    steps_per_day : int
        Steps in a day, UTC (0: no limit).
    most_updates : int
        Updates in the whole life of the terminal (0: no limit).
    algorithms : tuple of str
        Algorithms that the terminal takes part in (empty: all).
    features : tuple of str
        Names of the feature maps that the terminal computes: those that come with the library and need no file. For
        their statistics the terminal sends counts of its rows below some values, in the clear or under masks.
    least_summed : int
        With 2 or more, work only if sums over at least so many terminals are masked.
    epsilon, delta : float
        With a positive ``epsilon``, work only while noise keeps everything that ever left within (ε, δ).
    row_seed : int
        -1: the order in which rows are visited comes from a secret that the terminal generates. 0 or more: from this
        seed, which others may know; use it only to compare with a simulation.
    """

    station: int
    address: str
    data: str
    test: str = ""
    least_steps: int = 0
    most_steps: int = 10_000_000
    steps_per_day: int = 0
    most_updates: int = 0
    algorithms: tuple[str, ...] = ()
    features: tuple[str, ...] = ("splines", "pairs", "fourier", "sparse-fourier")
    kernel: str = AUTO_KERNEL
    sleep: float = 0.0
    byte_budget: int = 0
    budget_days: int = 0
    link: float = 5.0
    row_seed: int = -1
    least_summed: int = 0
    epsilon: float = 0.0
    delta: float = 1e-6
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the rules and the address of the station."""
        check_number(self.station, STATION)
        split_address(self.address, "address")
        check_numbers(self, 0, "least_steps", "steps_per_day", "most_updates", "least_summed")
        check_numbers(self, max(1, self.least_steps), "most_steps")
        check_numbers(self, 0, "sleep", "byte_budget", "budget_days", "epsilon")
        check_numbers(self, 0.0, "link", maximum=LONGEST_LINK_S, above=True)
        check_numbers(self, -1, "row_seed")
        check_numbers(self, 0.0, "delta", maximum=1.0, above=True)


@dataclass(frozen=True)
class OperatorConfig(Config):
    """Configuration of an operator: where the cloud is."""

    cloud: str

    def __post_init__(self) -> None:
        """Check the address of the cloud."""
        split_address(self.cloud, "cloud")


C = TypeVar("C", bound=Config)


def read(cls: type[C], role: str, path: Path) -> C:
    """Read the configuration of a node with this role; refuse a file of another role."""
    table = toml.read(path)
    try:
        named = table["node"].get("role") if isinstance(table.get("node"), dict) else None
        if named not in (None, role):
            raise ConfigError(f"this is the configuration of a {named}, but the command starts a {role}")
        # A user who appends a setting to the file puts it under the last [table].
        for part in (name for name, value in table.items() if isinstance(value, dict)):
            inner = getattr(get_type_hints(cls).get(part), "__dataclass_fields__", {})
            for name in table[part]:
                if name in cls.__dataclass_fields__ and name not in inner:
                    raise ConfigError(f"{name} stands under [{part}]: write it above the first [table]")
        config = toml.build(cls, table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    object.__setattr__(config, "folder", path.parent)
    return config


read_operator = partial(read, OperatorConfig, OPERATOR)
read_station = partial(read, StationConfig, STATION)
read_terminal = partial(read, TerminalConfig, TERMINAL)


def bind(address: str) -> str:
    """Return the address to listen on: a local address stays local, any other opens all interfaces."""
    host, _, port = address.rpartition(":")
    return address if host in (LOCAL, "localhost", "[::1]") else f"0.0.0.0:{port}"
