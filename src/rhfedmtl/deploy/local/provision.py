"""Provision a network: `rhfedmtl network init` writes its complete folder, and other commands maintain it.

`make_network` turns a `Blueprint` into keys, configurations and data of every node, plus files for containers and
services. The folder can be started on this machine, or its parts copied to other machines. `rotate` renews credentials,
and `forget_all` removes the learned state. Nothing here talks to a running node.

The layout of the folder: ``ca`` (authority), ``cloud``, ``operator``, ``station-0`` …, ``terminal-0`` …, each with a
configuration file and credentials.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl import toml
from rhfedmtl.data.federation import Federation
from rhfedmtl.deploy.cloud.config import CloudConfig, Enrolment, Learning, Resources, StationEntry
from rhfedmtl.deploy.cloud.registry import REGISTRY
from rhfedmtl.deploy.local.templates import write_compose, write_units
from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.audit import AUDIT, AuditTrail, local_user
from rhfedmtl.deploy.node.config import (
    LOCAL,
    Config,
    Limits,
    NodeConfig,
    OperatorConfig,
    StationConfig,
    TerminalConfig,
    Waits,
    bind,
)
from rhfedmtl.deploy.node.credentials import (
    CLOUD,
    OPERATOR,
    STATION,
    TERMINAL,
    Authority,
    Credentials,
    Identity,
    PeerCertificate,
    new_key,
)
from rhfedmtl.deploy.node.state import StateFile
from rhfedmtl.deploy.terminal.owner import ACCOUNT, WISHES
from rhfedmtl.deploy.terminal.site import STATE, forget_learned
from rhfedmtl.errors import ConfigError
from rhfedmtl.files import PRIVATE, PUBLIC_MODE, Lock, write_whole
from rhfedmtl.maths.kernels.kernel import AUTO_KERNEL, NUMPY

FIRST_PORT, LAST_PORT = 7400, 65_535
_ENROLMENT, _STATIONS = 1, 2


@dataclass(frozen=True)
class Blueprint:
    """Description of a new network for `make_network`.

    Attributes
    ----------
    name : str
        Name of the network.
    federation : Federation
        Rows of all terminals, and test rows.
    learning : Mapping[str, Any]
        Settings of `cloud.config.Learning` that differ from the federation and the defaults.
    resources, waits, limits
        Sections of the configurations.
    cloud_host, station_hosts
        Hosts of the nodes; the last station host is used for all further stations.
    port : int
        First port; 0 takes the first free block.
    observed : bool
        Nodes serve metrics and health for operators.
    light : bool
        Terminals run `rhfedmtl-terminal`, without a compiler and without metrics and health.
    cloud_signs : bool
        The cloud signs certificate requests with the authority's key. Otherwise it never has the key.
    fsync : bool, optional
        Force state files to disk. By default the cloud does, and the other nodes do not.
    row_seed : int
        From 0 on, terminals visit their rows as in a simulation with this seed, for comparisons.
    owners_least_steps : int
        Above 0, write the line ``least_steps`` with which an owner allows less than a pass, for comparisons.
    """

    name: str
    federation: Federation
    learning: Mapping[str, Any] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    waits: Waits = field(default_factory=Waits)
    limits: Limits = field(default_factory=Limits)
    cloud_host: str = LOCAL
    station_hosts: tuple[str, ...] = ()
    port: int = 0
    observed: bool = True
    light: bool = False
    cloud_signs: bool = False
    fsync: bool | None = None
    row_seed: int = -1
    owners_least_steps: int = 0

    def hosts(self) -> tuple[str, ...]:
        """Return the host of each station; the last host in the list serves the further stations."""
        hosts = self.station_hosts or (self.cloud_host,)
        if len(hosts) > self.federation.n_tasks:
            raise ConfigError(
                f"--station-hosts {','.join(hosts)}: {len(hosts)} hosts for {self.federation.n_tasks} stations; name "
                "at most one host for each station; the last host serves the rest"
            )
        return tuple(hosts[min(b, len(hosts) - 1)] for b in range(self.federation.n_tasks))


class Ports:
    """Ports of all nodes: a block of consecutive numbers that are free now.

    Parameters
    ----------
    first : int
        First port; 0 searches for a free block.
    fixed : int
        Number of ports for cloud, enrolment and stations, at the start of the block.
    windows : int
        Number of processes with two ports each, for metrics and health.
    """

    def __init__(self, first: int, fixed: int, windows: int) -> None:
        count = fixed + 2 * windows
        if first + count - 1 > LAST_PORT:
            raise ConfigError(
                f"--port {first}: this network needs {count} ports from there on, and the last port is {LAST_PORT}: "
                f"give {LAST_PORT + 1 - count} at most"
            )
        self.first = first or _free_block(count)
        self._next = self.first + fixed

    def window(self) -> tuple[str, str]:
        """Return the addresses for metrics and health of the next process."""
        self._next += 2
        return f"{LOCAL}:{self._next - 2}", f"{LOCAL}:{self._next - 1}"


def make_network(folder: Path, plan: Blueprint) -> None:
    """Write authority, certificates, configurations and data of every node into ``folder``, which must be new or empty.

    An error leaves no folder behind.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: choose another name, or remove it")
    writer = _Writer(folder, plan)  # checks the blueprint before anything is written
    try:
        writer.authority()
        writer.cloud()
        for b in range(plan.federation.n_tasks):
            writer.station(b)
        for t in range(plan.federation.n_terminals):
            writer.terminal(t)
        writer.finish()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # an incomplete network would block the next attempt
        raise


class _Writer:
    """Checks a blueprint, derives ports, addresses and limits from it, and writes the files of each node."""

    def __init__(self, folder: Path, plan: Blueprint) -> None:
        self._folder, self._plan, self._data = folder, plan, plan.federation
        self._authority, self._key = Authority.make(plan.name)
        self._issued: dict[str, list[str]] = {}
        nodes = 1 + self._data.n_tasks + self._data.n_terminals
        windows = nodes - self._data.n_terminals * plan.light
        self._ports = Ports(plan.port, _STATIONS + self._data.n_tasks, windows * plan.observed)
        self._learning = Learning(
            **{
                "features": self._data.n_features,
                "tasks": self._data.task_names,
                "classes": self._data.class_names,
                "feature_names": self._data.feature_names,
                **plan.learning,
            }
        )
        job = self._learning.job()
        method = method_of(job)
        method.check(self._data)
        self._least_summed, private = method.channel.summed, bool(self._learning.privacy)
        if self._data.preparation is not None and (self._least_summed or private):
            self._data.preparation.refuse_disclosure("--masked" if self._least_summed else "--privacy", means=private)
        bytes_ = plan.limits.message_bytes or jobs.message_limit(job, method, plan.limits)
        norm = plan.limits.norm * _largest(self._data, self._learning.scale)
        weight = plan.limits.weight * _heaviest(self._data)
        self._limits = replace(plan.limits, message_bytes=bytes_, norm=norm, weight=weight)
        self._cloud_limits = replace(self._limits, message_bytes=plan.limits.message_bytes)
        self._cloud = f"{plan.cloud_host}:{self._ports.first}"
        self._stations = [f"{host}:{self._ports.first + _STATIONS + b}" for b, host in enumerate(plan.hosts())]

    def authority(self) -> None:
        """Write certificate and key of the authority."""
        folder = self._folder / "ca"
        folder.mkdir(mode=0o700, parents=True)
        write_whole(folder / "ca.crt", self._authority.certificate, force=True, mode=PUBLIC_MODE)
        write_whole(folder / "ca.key", self._key, force=True, mode=PRIVATE)

    def cloud(self) -> None:
        """Write the cloud, and an operator."""
        port = self._ports.first + _ENROLMENT
        authority = "../ca" if self._plan.cloud_signs else ""
        enrolment = Enrolment(bind(f"{self._plan.cloud_host}:{port}"), f"{self._plan.cloud_host}:{port}", authority)
        tasks = self._data.terminal_task
        entries = tuple(
            StationEntry(address, tuple(np.flatnonzero(tasks == b).tolist()))
            for b, address in enumerate(self._stations)
        )
        fsync = True if self._plan.fsync is None else self._plan.fsync
        node = self._node(CLOUD, 0, listen=bind(self._cloud), fsync=fsync)
        config = CloudConfig(
            node, self._learning, entries, self._plan.resources, self._plan.waits, self._cloud_limits, enrolment
        )
        self._write("cloud", config)
        operator = NodeConfig(self._plan.name, OPERATOR)
        self._write("operator", OperatorConfig(operator, self._cloud))

    def station(self, b: int) -> None:
        """Write a station, with the test rows of its task if stations have test rows."""
        node = self._node(STATION, b, listen=bind(self._stations[b]), fsync=bool(self._plan.fsync))
        at_station = self._learning.test_rows == STATION
        config = StationConfig(node, self._cloud, "test.npz" if at_station else "", self._plan.waits, self._limits)
        self._write(f"station-{b}", config)
        if at_station:
            X, y = self._data.test_rows(b)
            np.savez(self._folder / f"station-{b}" / "test.npz", X=X, y=y)

    def terminal(self, t: int) -> None:
        """Write a terminal with its rows, and with a part of the test rows if terminals have test rows."""
        data, name = self._data, f"terminal-{t}"
        b = int(data.terminal_task[t])
        node = self._node(TERMINAL, t, fsync=bool(self._plan.fsync))
        tests = self._learning.test_rows == TERMINAL
        config = TerminalConfig(
            node,
            b,
            self._stations[b],
            "data.npz",
            "test.npz" if tests else "",
            least_steps=self._plan.owners_least_steps,
            kernel=NUMPY if self._plan.light else AUTO_KERNEL,
            row_seed=self._plan.row_seed,
            least_summed=self._least_summed,
            **self._learning.terminal_bound,
        )
        self._write(name, config)
        rows = slice(int(data.terminal_offsets[t]), int(data.terminal_offsets[t + 1]))
        arrays: dict[str, Any] = {"X": data.X[rows], "y": data.y[rows]}
        if data.sample_weight is not None:
            arrays["weight"] = data.sample_weight[rows]
        np.savez(self._folder / name / "data.npz", **arrays)
        if tests:
            X, y = data.test_rows(b)
            mates = np.flatnonzero(data.terminal_task == b)
            part = slice(int(np.flatnonzero(mates == t)[0]), None, len(mates))
            np.savez(self._folder / name / "test.npz", X=X[part], y=y[part])

    def finish(self) -> None:
        """Write the list of certificates, and the files for containers and services."""
        (self._folder / "ca" / "issued.json").write_text(json.dumps(self._issued, indent=1) + "\n")
        names = ["cloud", *(f"station-{b}" for b in range(self._data.n_tasks))]
        names += [f"terminal-{t}" for t in range(self._data.n_terminals)]
        write_compose(self._folder, self._plan.name, names, cloud_signs=self._plan.cloud_signs)
        write_units(self._folder, self._plan.name, names, light=self._plan.light)

    def _node(self, role: str, number: int, **more: Any) -> NodeConfig:
        """Return the section ``node`` of a configuration, with the next ports for metrics and health."""
        observed = self._plan.observed and not (self._plan.light and role == TERMINAL)
        metrics, health = self._ports.window() if observed else ("", "")
        return NodeConfig(self._plan.name, role, number, metrics=metrics, health=health, **more)

    def _write(self, name: str, config: Config) -> None:
        """Write configuration and credentials of a node into its folder."""
        folder, identity = self._folder / name, config.identity
        folder.mkdir(mode=0o700)
        (folder / f"{identity.role}.toml").write_text(toml.write(config))
        self._issued[f"{identity.role}/{identity.number}"] = [write_credentials(self._authority, identity, folder)]


def write_credentials(authority: Authority, identity: Identity, folder: Path) -> str:
    """Write a new key and certificate of a node in a single step, and return the serial number."""
    key, secret = new_key()
    certificate = authority.issue(identity, key.public_key())
    Credentials.of(folder).write(secret, certificate, authority.certificate)
    return PeerCertificate.read(certificate).serial


def node_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of a network's nodes, by name: cloud first, then stations, then terminals."""
    if not (folder / "cloud" / "cloud.toml").exists():
        raise ConfigError(f"{folder} is no network: make a network with `rhfedmtl network init {folder}`")
    nodes = {"cloud": folder / "cloud"}
    for role in (STATION, TERMINAL):
        paths = [path for path in folder.glob(f"{role}-*") if (path / f"{role}.toml").exists()]
        nodes |= {path.name: path for path in sorted(paths, key=lambda path: int(path.name.rpartition("-")[2]))}
    return nodes


def issued_by(folder: Path) -> dict[str, list[str]]:
    """Return the serial numbers of all certificates issued in a network's folder, by node."""
    path = folder / "ca" / "issued.json"
    serials: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
    return serials


def rotate(folder: Path, names: Sequence[str] = ()) -> dict[str, str]:
    """Write new keys and certificates for nodes of a network's folder, and return their serial numbers.

    ``names`` are the nodes; empty for all nodes and the operator. It also replaces lost credentials. Running nodes
    reload their credentials.
    """
    authority = Authority.load(folder / "ca")
    nodes = {**node_folders(folder), "operator": folder / "operator"}
    if unknown := sorted(set(names) - set(nodes)):
        raise ConfigError(f"no node {unknown[0]!r} in {folder}: there are {', '.join(nodes)}")
    issued = issued_by(folder)
    done = {}
    for name, identity in {name: _identity(nodes[name], name) for name in names or nodes}.items():
        done[name] = write_credentials(authority, identity, nodes[name])
        issued.setdefault(f"{identity.role}/{identity.number}", []).append(done[name])
    write_whole(folder / "ca" / "issued.json", json.dumps(issued, indent=1) + "\n", force=True, mode=PRIVATE)
    note(folder, "keys rotated", certificates=done)
    return done


def _identity(folder: Path, name: str) -> Identity:
    """Return the identity of a node from its configuration, because its certificate may be lost."""
    node = toml.build(NodeConfig, toml.read(folder / f"{name.partition('-')[0]}.toml").get("node", {}))
    return Identity(node.network, node.role, node.number)


def note(folder: Path, event: str, **facts: Any) -> None:
    """Write an operation on a network's folder into the audit trail of its cloud."""
    AuditTrail(folder / "cloud" / "state" / AUDIT).add(event, local_user(), **facts)


def forget_all(folder: Path) -> int:
    """Remove everything that the nodes have learned and spent, and return the number of nodes; no node may run.

    Audit trails, the stations of terminals, revocations, and the accounts and wishes of owners stay.
    """
    states = [path / "state" for path in node_folders(folder).values()]
    for state in states:
        Lock(state).release()
    for state in states:
        for path in list(state.iterdir()):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name == STATE:
                forget_learned(StateFile(path, fsync=True))
            elif path.name not in (AUDIT, REGISTRY, ACCOUNT, *WISHES):
                path.unlink()
    note(folder, "reset", nodes=len(states))
    return len(states)


def _largest(data: Federation, scale: str) -> float:
    """Return a bound on a sample's share, relative to a scaled row of a class: from labels, and from unscaled rows."""
    label = 1.0 if data.class_names else 2.0 * float(np.abs(data.y).max(initial=0.0))  # centred, it may be twice as far
    row = float(np.sqrt(np.square(data.X, dtype=np.float64).sum(axis=1)).max(initial=0.0)) if scale == "none" else 1.0
    return max(1.0, label) * max(1.0, row)


def _heaviest(data: Federation) -> float:
    """Return the bound on the mean weight of a terminal's samples: twice the present maximum, and at least 1."""
    if data.sample_weight is None:
        return 1.0
    ends = zip(data.terminal_offsets[:-1], data.terminal_offsets[1:], strict=True)
    return max(1.0, *(2.0 * float(data.sample_weight[a:b].mean()) for a, b in ends if b > a))


def _free_block(count: int) -> int:
    for first in range(FIRST_PORT, 30_000, max(count, 64)):
        if all(is_free(port) for port in range(first, first + count)):
            return first
    raise ConfigError(f"no {count} free ports in a row: name the first port with --port")


def is_free(port: int) -> bool:
    """Return True if no process listens on a port of this machine."""
    with socket.socket() as probe:
        try:
            probe.bind((LOCAL, port))
        except OSError:
            return False
    return True
