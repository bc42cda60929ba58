"""Configuration files of nodes: TOML, checked word by word before anything starts."""

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
from rhfedmtl.maths.kernels.kernel import AUTO

LOCAL = "127.0.0.1"
LONGEST_LINK_S = 1e6
"""gRPC counts milliseconds in 32 bits."""
LARGEST_MESSAGE = (1 << 31) - 1
"""And bytes too."""


def check_numbers(settings: Any, least: float, *names: str, most: float = math.inf, above: bool = False) -> None:
    """Refuse settings that are no numbers from ``least`` (or ``above`` it) to ``most``."""
    for name in names:
        value = getattr(settings, name)
        if not (math.isfinite(value) and least <= value <= most) or (above and value == least):
            to = f" to {most:g}" if most < math.inf else ""
            raise ConfigError(f"{name} = {value}: give a number {'above' if above else 'from'} {least:g}{to}")


@dataclass(frozen=True)
class NodeConfig:
    """Who a process is, and where it keeps and shows things.

    ``listen`` is the address for nodes below, ``metrics`` that of Prometheus and ``health`` that of gRPC health checks
    (both empty: none; keep them on a local address). ``state`` is a folder. ``fsync`` forces state to disk before it
    is acknowledged: without it, state survives the process but not a crash of the machine.
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
        """Refuse a number or addresses that are none."""
        check_number(self.number, self.role)
        for name in ("listen", "metrics", "health"):
            if address := getattr(self, name):
                split_address(address, name)


@dataclass(frozen=True)
class Config:
    """What the configurations of all nodes share; ``folder`` is where the file lies, and other paths start from it."""

    node: NodeConfig
    folder: Path = field(default=Path(), init=False)

    @property
    def identity(self) -> Identity:
        """Who the node is."""
        return Identity(self.node.network, self.node.role, self.node.number)

    @property
    def state(self) -> Path:
        """Folder of what the node writes down."""
        return self.folder / self.node.state

    def check_files(self) -> None:
        """Refuse to start without files that the configuration names."""
        for name in ("data", "test"):
            given = getattr(self, name, "")
            if given and not (self.folder / given).is_file():
                way_out = "put it there" if name == "data" else "put it there, or leave the line out"
                raise ConfigError(f"{name} = {given!r}: there is no file {self.folder / given}: {way_out}")

    def credentials(self) -> Credentials:
        """Key and certificates of the node; they must name the node that the configuration names."""
        credentials = Credentials.of(self.folder / self.node.credentials)
        credentials.check(self.identity)
        return credentials


@dataclass(frozen=True)
class Waits:
    """How long to wait, in seconds.

    ``patience``: for a station that is away before it misses a round; connecting anew does not renew it. ``start``: for
    all members before the first round. ``answer``: for sums and the like, and for silent members before a training ends
    without them. ``again``: before a request is sent once more. ``forget``: for a silent terminal before its share is
    taken out (0: never, an operator decides). ``asleep``: for terminals that rest, before a certificate is given up.
    ``link``: for what the link of a terminal owes, a handshake or the answer to a ping.
    """

    patience: float = 60.0
    start: float = 120.0
    answer: float = 30.0
    again: float = 5.0
    forget: float = 0.0
    asleep: float = 0.0
    link: float = 5.0

    def __post_init__(self) -> None:
        """Refuse what nobody can wait for."""
        check_numbers(self, 0.0, "patience", "answer", "again", above=True)
        check_numbers(self, 0.0, "start", "forget", "asleep")
        check_numbers(self, 0.0, "link", most=LONGEST_LINK_S, above=True)


@dataclass(frozen=True)
class Limits:
    """What a peer may do before it is dropped.

    A message may have ``message_bytes`` (0: four times the largest that the shapes call for), ``messages`` of them may
    come in a second. ``norm`` bounds an update, and a share, per sample of its sender, ``weight`` the mean weight of
    its samples. After a fault a peer is not let in for ``quarantine`` seconds. ``connections`` are held at once, of
    whomever they are; fewer where the process may not open so many files.
    """

    message_bytes: int = 0
    messages: float = 2000.0
    samples: int = 1_000_000
    norm: float = 1000.0
    weight: float = 1.0
    quarantine: float = 10.0
    connections: int = 4096

    def __post_init__(self) -> None:
        """Refuse limits that would let nobody do anything."""
        check_numbers(self, 0, "message_bytes", most=LARGEST_MESSAGE)
        check_numbers(self, 1, "messages", "samples", "connections")
        check_numbers(self, 0.0, "norm", "weight", above=True)
        check_numbers(self, 0.0, "quarantine")


@dataclass(frozen=True)
class StationConfig(Config):
    """Configuration of a base station; ``test`` is a file with X and y, where test rows lie here."""

    cloud: str
    test: str = ""
    waits: Waits = field(default_factory=Waits)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Refuse a station that nobody could reach, or that could reach nobody."""
        split_address(self.cloud, "cloud")
        split_address(self.node.listen, "node.listen")


@dataclass(frozen=True)
class TerminalConfig(Config):
    """Configuration of a terminal: its station, its own rows (X and y), and what it lets itself be asked for.

    ``data`` is an .npz file with X and y, or a .csv file: ``columns`` of it are the features, the other is the label.
    ``kernel`` is "auto" (compiled where numba is installed), "compiled" or "numpy". After it has answered an order the
    terminal ends its connection for ``sleep`` seconds. Over a metered link may go ``byte_budget`` bytes, both ways
    together (0: any number), in ``budget_days`` days (0: ever); what does not fit is not sent.
    Whatever its station asks for, it takes orders of ``least_steps`` (0: one pass over its rows) to ``most_steps``, no
    more than ``steps_per_day`` (UTC) and ``most_updates`` ever (0: any number), of ``algorithms`` (none named: of any).
    With a ``least_summed`` of 2 or more it works only where sums over so many terminals are masked, with an
    ``epsilon`` (and ``delta``) only while noise keeps all that ever left within that bound.
    The order in which it visits rows comes from a secret of its own, which it makes; a ``row_seed`` of 0 or more is
    known to others instead, for comparisons with a simulation.
    ``link`` is as in `Waits`.
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
    kernel: str = AUTO
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
        """Refuse rules that say nothing, and a station that cannot be reached."""
        check_number(self.station, STATION)
        split_address(self.address, "address")
        check_numbers(self, 0, "least_steps", "steps_per_day", "most_updates", "least_summed")
        check_numbers(self, max(1, self.least_steps), "most_steps")
        check_numbers(self, 0, "sleep", "byte_budget", "budget_days", "epsilon")
        check_numbers(self, 0.0, "link", most=LONGEST_LINK_S, above=True)
        check_numbers(self, -1, "row_seed")
        check_numbers(self, 0.0, "delta", most=1.0, above=True)


@dataclass(frozen=True)
class OperatorConfig(Config):
    """Configuration of an operator: where the cloud is."""

    cloud: str

    def __post_init__(self) -> None:
        """Refuse an address that is none."""
        split_address(self.cloud, "cloud")


C = TypeVar("C", bound=Config)


def read(cls: type[C], role: str, path: Path) -> C:
    """Read the configuration of a node of this role."""
    table = toml.read(path)
    try:
        found = table["node"].get("role") if isinstance(table.get("node"), dict) else None
        if found not in (None, role):
            raise ConfigError(f"this is the configuration of a {found}, a {role} was to be started")
        _refuse_misplaced(cls, table)
        config = toml.build(cls, table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    object.__setattr__(config, "folder", path.parent)
    return config


def _refuse_misplaced(cls: type[Config], table: dict[str, Any]) -> None:
    """Say where a setting belongs that stands under a [table]: who adds a line to the end of a file puts it there."""
    for part in (name for name, value in table.items() if isinstance(value, dict)):
        inner = getattr(get_type_hints(cls).get(part), "__dataclass_fields__", {})
        for name in table[part]:
            if name in cls.__dataclass_fields__ and name not in inner:
                raise ConfigError(f"{name} stands under [{part}]: write it above the first [table]")


read_operator = partial(read, OperatorConfig, OPERATOR)
read_station = partial(read, StationConfig, STATION)
read_terminal = partial(read, TerminalConfig, TERMINAL)


def bind(address: str) -> str:
    """Where to listen for callers of an address: a local one stays local, for another all interfaces are open."""
    host, _, port = address.rpartition(":")
    return address if host in (LOCAL, "localhost", "[::1]") else f"0.0.0.0:{port}"
