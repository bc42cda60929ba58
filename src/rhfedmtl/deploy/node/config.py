"""Configuration files of cloud, stations and terminals: TOML, checked word by word before anything starts."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from rhfedmtl.algorithms.options import Options
from rhfedmtl.deploy.node.credentials import CLOUD, OPERATOR, STATION, TERMINAL, Credentials, Identity
from rhfedmtl.errors import ConfigError, nearest
from rhfedmtl.training.config import PRECISION

T = TypeVar("T")
LOCAL = "127.0.0.1"


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


@dataclass(frozen=True)
class Learning:
    """What the network learns; the cloud tells the others.

    ``test_rows`` says where rows for evaluation lie: "station" or "terminal". ``least_steps`` is the smallest H that is
    ever asked for: with H = 1 an update is a scaled data row. ``precision`` is that of orders and updates. A training
    ends at either target; with a ``target_relative_gap`` of 0 it goes on while its budget lasts, for members to come.
    """

    features: int
    tasks: tuple[str, ...]
    classes: tuple[str, ...] = ()
    algorithm: str = "rhfedmtl"
    options: Mapping[str, Any] = field(default_factory=dict)
    scale: str = ""
    seed: int = 0
    certify_every: int = 1
    target_gap: float = 0.0
    target_relative_gap: float = PRECISION
    max_rounds: int = 1_000_000
    least_steps: int = 1
    precision: str = "float64"
    test_rows: str = STATION

    def __post_init__(self) -> None:
        """Refuse what no node could follow."""
        _choose("precision", self.precision, ("float64", "float32"))
        _choose("test_rows", self.test_rows, (STATION, TERMINAL))
        for name in ("features", "least_steps", "certify_every", "max_rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        self.chosen()

    def chosen(self) -> Options:
        """The options as the algorithms know them."""
        return options_of(self.options)


@dataclass(frozen=True)
class Resources:
    """Prices and limits, as on the command line, and which types are measured instead.

    ``measured`` may name ``time`` (seconds, elapsed), ``bytes`` and ``energy`` (joules: the powers below, in watts,
    times the seconds that were measured). Their prices are first guesses, and follow what is measured.
    ``deadline`` is how long, in seconds, a station waits for its terminals; terminals that would need longer get a
    smaller H.
    """

    cost: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    terminal_watts: float = 0.0
    station_watts: float = 0.0
    deadline: float = 30.0

    def __post_init__(self) -> None:
        """Refuse types that nobody can measure."""
        for name in self.measured:
            _choose("measured", name, ("time", "bytes", "energy"))
        if not (math.isfinite(self.deadline) and self.deadline > 0.0):
            raise ConfigError(f"deadline must be a positive number of seconds, got {self.deadline}")


@dataclass(frozen=True)
class Waits:
    """How long to wait, in seconds.

    ``patience``: for a station that is away before it misses a round. ``start``: for all members before the first
    round. ``answer``: for sums and the like. ``again``: before a request is sent once more. ``forget``: for a silent
    terminal before its share is taken out (0: never, an operator decides).
    """

    patience: float = 60.0
    start: float = 120.0
    answer: float = 30.0
    again: float = 5.0
    forget: float = 0.0


@dataclass(frozen=True)
class Limits:
    """What a peer may do before it is dropped.

    A message may have ``message_bytes`` (0: four times the largest that the shapes call for), ``messages`` of them may
    come in a second. ``norm`` bounds an update, and a share, per sample of its sender. After a fault a peer is not let
    in for ``quarantine`` seconds.
    """

    message_bytes: int = 0
    messages: float = 2000.0
    samples: int = 1_000_000
    norm: float = 1000.0
    quarantine: float = 10.0


@dataclass(frozen=True)
class Enrolment:
    """Where the cloud hands out certificates for tokens; without an address it does not.

    ``address`` is how others reach it, ``authority`` the folder with the key of the certificate authority.
    """

    listen: str = ""
    address: str = ""
    authority: str = ""


@dataclass(frozen=True)
class StationEntry:
    """What the cloud knows of a station: the address for its terminals, and who they are."""

    address: str
    terminals: tuple[int, ...] = ()


@dataclass(frozen=True)
class CloudConfig:
    """Configuration of the cloud; a journal longer than ``journal_bytes`` is replaced by a checkpoint."""

    node: NodeConfig
    learning: Learning
    stations: tuple[StationEntry, ...]
    resources: Resources = field(default_factory=Resources)
    waits: Waits = field(default_factory=Waits)
    limits: Limits = field(default_factory=Limits)
    enrolment: Enrolment = field(default_factory=Enrolment)
    journal_bytes: int = 1 << 26
    folder: Path = Path()

    def __post_init__(self) -> None:
        """Refuse a network that does not add up."""
        if len(self.stations) != len(self.learning.tasks):
            raise ConfigError(f"{len(self.stations)} stations for {len(self.learning.tasks)} tasks: one for each")
        ids = [t for entry in self.stations for t in entry.terminals]
        if len(set(ids)) < len(ids):
            raise ConfigError("a terminal is under two stations: ids are global, each belongs to one")


@dataclass(frozen=True)
class StationConfig:
    """Configuration of a base station; ``test`` is a file with X and y, where test rows lie here."""

    node: NodeConfig
    cloud: str
    test: str = ""
    waits: Waits = field(default_factory=Waits)
    limits: Limits = field(default_factory=Limits)
    folder: Path = Path()


@dataclass(frozen=True)
class TerminalConfig:
    """Configuration of a terminal: its station, its own rows (X and y), and the H that it answers to."""

    node: NodeConfig
    station: int
    address: str
    data: str
    test: str = ""
    least_steps: int = 1
    most_steps: int = 10_000_000
    folder: Path = Path()


@dataclass(frozen=True)
class OperatorConfig:
    """Configuration of an operator: where the cloud is."""

    node: NodeConfig
    cloud: str
    folder: Path = Path()


def read_operator(path: Path) -> OperatorConfig:
    """Read ``operator.toml``."""
    return _read(OperatorConfig, path, OPERATOR)


def read_cloud(path: Path) -> CloudConfig:
    """Read ``cloud.toml``."""
    return _read(CloudConfig, path, CLOUD)


def read_station(path: Path) -> StationConfig:
    """Read ``station.toml``."""
    return _read(StationConfig, path, STATION)


def read_terminal(path: Path) -> TerminalConfig:
    """Read ``terminal.toml``."""
    return _read(TerminalConfig, path, TERMINAL)


def bind(address: str) -> str:
    """Where to listen for callers of an address: a local one stays local, for another all interfaces are open."""
    host, _, port = address.rpartition(":")
    return address if host in (LOCAL, "localhost", "[::1]") else f"0.0.0.0:{port}"


def identity_of(node: NodeConfig) -> Identity:
    """Who a node is."""
    return Identity(node.network, node.role, node.number)


def credentials_of(node: NodeConfig, folder: Path) -> Credentials:
    """Key and certificates of a node; they must name the node that the configuration names."""
    credentials = Credentials.of(folder / node.credentials)
    credentials.check(identity_of(node))
    return credentials


def options_of(table: Mapping[str, Any]) -> Options:
    """Options from plain values; words that are none are refused."""
    return Options.of(**table)


def to_toml(config: Any) -> str:
    """The text of a configuration; what has its default is left out."""
    lines: list[str] = []
    _tables(_changed(config), (), lines)
    return "\n".join(lines) + "\n"


def _read(cls: type[T], path: Path, role: str) -> T:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    try:
        found = table["node"].get("role") if isinstance(table.get("node"), dict) else None
        if found not in (None, role):
            raise ConfigError(f"this is the configuration of a {found}, a {role} was to be started")
        config: Any = _build(cls, table, "")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    object.__setattr__(config, "folder", path.parent)
    return config  # type: ignore[no-any-return]


def _build(cls: Any, table: Any, where: str) -> Any:
    """A dataclass from a table: every word must be known, every value of its kind."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table, got {table!r}")
    hints = get_type_hints(cls)
    known = {each.name: each for each in fields(cls) if each.name != "folder"}
    for name in table:
        if name not in known:
            raise ConfigError(f"unknown setting {where}{name}{nearest(name, known)}")
    given = {name: _value(hints[name], value, f"{where}{name}") for name, value in table.items()}
    for name, each in known.items():
        if name not in given and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{where}{name} is missing")
    return cls(**given)


def _value(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        return _build(kind, value, f"{where}.")
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where} must be a list, got {value!r}")
        return tuple(_value(get_args(kind)[0], each, f"{where}[{i}]") for i, each in enumerate(value))
    if get_origin(kind) is not None:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{where} must be of type {kind.__name__}, got {value!r}")
    return value


def _changed(config: Any) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for each in fields(config):
        value = getattr(config, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if each.name == "folder" or (default is not MISSING and value == default):
            continue
        table[each.name] = _changed(value) if is_dataclass(value) else _plain(value)
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [asdict(each) if isinstance(each, StationEntry) else each for each in value]
    return value


def _tables(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    """Plain values first, then the tables within."""
    for name, value in table.items():
        if not _is_table(value):
            lines.append(f"{name} = {_toml(value)}")
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{'.'.join((*path, name))}]"]
            _tables(value, (*path, name), lines)
        elif _is_table(value):
            for each in value:
                lines += ["", f"[[{'.'.join((*path, name))}]]"]
                _tables(each, (*path, name), lines)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return repr(value)


def _choose(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} = {value!r}: choose from {', '.join(known)}{nearest(value, known)}")
