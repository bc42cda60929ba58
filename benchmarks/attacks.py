"""Strangers at the doors of a real network: whether it lives, what it takes, and who still gets in.

``python benchmarks/attacks.py [--seconds 25] [--descriptors 1024]`` lets a small network learn, each node in a process
of its own, attacks a station and the cloud, restarts dead nodes, and prints a line for each attack. Every attack
has a control: the same call, small and from a node with the right to it, must succeed before the attack begins.
"""

from __future__ import annotations

import argparse
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from rhfedmtl.data.request import Request
from rhfedmtl.deploy.cloud.config import Resources
from rhfedmtl.deploy.local.provision import Blueprint, make_network
from rhfedmtl.deploy.node.config import StationConfig, Waits, read_station
from rhfedmtl.deploy.node.credentials import Credentials, Identity
from rhfedmtl.deploy.node.link import SERVICE, channel_options
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire

CROWD, CALLERS, LARGE = 1100, 4, 250 << 20
STATION, CLOUD = "station-0", "cloud"
START = "from rhfedmtl.cli.main import main; main()"


class Node:
    """A process of a node with so many descriptors, started again whenever it ends."""

    def __init__(self, folder: Path, name: str, descriptors: int, more: tuple[str, ...] = ()) -> None:
        self._folder, self._name, self._descriptors, self._more = folder, name, descriptors, more
        self.deaths = 0
        self._log = (folder / f"{name}.log").open("ab")
        self._start()

    def _start(self) -> None:
        role = self._name.partition("-")[0]
        limit = f'ulimit -n {self._descriptors}; exec "$@"'
        words = ["sh", "-c", limit, "sh", sys.executable, "-c", START, "serve", role]
        for name in (self._name, *self._more):
            words += ["--config", f"{self._folder / name / role}.toml"]
        self.process = subprocess.Popen(words, stderr=self._log)

    def look(self) -> tuple[int, int]:
        """Megabytes and descriptors now; starts the process again if it is dead."""
        if self.process.poll() is not None:
            self.deaths += 1
            self._start()
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
            return pages * resource.getpagesize() >> 20, len([*Path(f"/proc/{self.process.pid}/fd").iterdir()])
        except (OSError, IndexError):
            return 0, 0

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(30)


def config_of(folder: Path) -> StationConfig:
    """Configuration of the attacked station."""
    return read_station(folder / STATION / "station.toml")


def address(folder: Path) -> tuple[str, int]:
    """Where the station listens."""
    host, port = config_of(folder).node.listen.split(":")
    return host, int(port)


@contextmanager
def crowd(folder: Path) -> Iterator[None]:
    """Plain, silent connections that are made again as soon as they are cut."""
    stop = threading.Event()
    held: list[socket.socket] = []

    def hold() -> None:
        while not stop.is_set():
            alive = []
            for each in held:
                try:
                    alive.append(each) if each.recv(1) else each.close()
                except BlockingIOError:
                    alive.append(each)
                except OSError:
                    each.close()
            held[:] = alive
            while len(held) < CROWD and not stop.is_set():
                try:
                    each = socket.create_connection(address(folder), 0.2)
                except OSError:
                    break
                each.setblocking(False)
                held.append(each)
            stop.wait(0.2)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for each in held:
            each.close()


@contextmanager
def large_messages(folder: Path, target: str, method: str, caller: str) -> Iterator[None]:
    """Callers that may not speak there send a quarter of a gigabyte each, again and again."""
    stop, data = threading.Event(), b"\0" * LARGE
    above = Identity(folder.name, CLOUD) if target == CLOUD else Identity(folder.name, "station", 0)
    config = read_station(folder / STATION / "station.toml")
    where = config.cloud if target == CLOUD else config.node.listen

    def call() -> None:
        while not stop.is_set():
            options = channel_options(above, 1 << 20)
            with grpc.secure_channel(where, Credentials.of(folder / caller).client(), options=options) as channel:
                try:
                    for _ in channel.stream_stream(f"/{SERVICE}.{method}")(iter([data]), timeout=10):
                        pass
                except grpc.RpcError:
                    stop.wait(0.1)

    threads = [threading.Thread(target=call) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def many_connections(folder: Path) -> Iterator[None]:
    """A thousand connections of the same certificate, each with a stream that sends no greeting."""
    above, where = Identity(folder.name, "station", 0), read_station(folder / STATION / "station.toml").node.listen
    credentials, channels = Credentials.of(folder / "terminal-1").client(), []
    calls = []
    hello = greeting(folder)
    for i in range(1000):
        channel = grpc.secure_channel(where, credentials, options=channel_options(above, 1 << 20))
        channels.append(channel)
        calls.append(channel.stream_stream(f"/{SERVICE}.Station/Attach")(iter([hello] if i % 2 else []), timeout=600))
    try:
        yield
    finally:
        for channel in channels:
            channel.close()


def greeting(folder: Path, node: int = 1, protocol: int = codec.PROTOCOL, up: Any = wire.TerminalUp) -> bytes:
    """First message of a terminal or station, in the protocol of the product."""
    hello = wire.Hello(oldest=protocol, newest=protocol, network=config_of(folder).node.network, node=node)
    message: bytes = up(hello=hello).SerializeToString()
    return message


def gets_in(folder: Path, protocol: int = codec.PROTOCOL) -> bool:
    """Return True if the station welcomes terminal 1 now."""
    config = config_of(folder)
    return answered(
        Identity(config.node.network, "station", 0),
        config.node.listen,
        folder / "terminal-1",
        "Station/Attach",
        greeting(folder, protocol=protocol),
        wire.TerminalDown,
    )


def answered(above: Identity, where: str, caller: Path, method: str, data: bytes, down: Any) -> bool:
    """Return True if a node with the credentials in the folder ``caller`` is welcomed."""
    options = channel_options(above, 1 << 20)
    with grpc.secure_channel(where, Credentials.of(caller).client(), options=options) as channel:
        call = channel.stream_stream(f"/{SERVICE}.{method}")(iter([data]), timeout=3, wait_for_ready=True)
        try:
            return bool(down.FromString(next(call)).WhichOneof("body") == "welcome")
        except (grpc.RpcError, StopIteration):
            return False


def must(control: bool, name: str) -> None:
    """End with an error if the control of an attack failed: a refusal after it would prove nothing."""
    if not control:
        raise SystemExit(f"the control of {name!r} failed: refusals of this attack prove nothing")


def within(folder: Path, seconds: float) -> bool:
    """Return True as soon as a good terminal gets in; after an attack the last one may leave a queue."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if gets_in(folder):
            return True
    return False


def speaks_where_it_may(folder: Path, target: str, method: str) -> bool:
    """Return True if the method that strangers flood answers a small message of a node that may call it."""
    if method == "Control/Command":
        return bool(Operator(folder).command("status"))
    if target == STATION:
        return gets_in(folder)
    config = config_of(folder)
    above, hello = Identity(config.node.network, CLOUD), greeting(folder, up=wire.StationUp)
    return answered(above, config.cloud, folder / "station-1", method, hello, wire.StationDown)


def measure(name: str, node: Node, folder: Path, attack: Callable[[], object], seconds: float) -> None:
    """Measure an attack: deaths, most memory and descriptors, and how often a good terminal got in."""
    operator = Operator(folder)
    must(within(folder, 30.0), name)
    (before, _), deaths, seen, tries, entered = node.look(), node.deaths, [(0, 0)], 0, 0
    first = operator.command("status")["training"]["round"]
    with attack():  # type: ignore[attr-defined]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            seen.append(node.look())
            tries += 1
            entered += gets_in(folder)
            time.sleep(0.2)
    rounds = operator.command("status")["training"]["round"] - first
    most, descriptors = (max(values) for values in zip(*seen, strict=True))
    print(
        f"{name:<42} deaths {node.deaths - deaths}, {before} -> {most} MB, {descriptors} descriptors at most, "
        f"a good terminal got in {entered} of {tries} times, {rounds / seconds:.1f} rounds a second"
    )


def main() -> None:
    """Attack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--descriptors", type=int, default=1024)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "attacked"
        made = Request("synthetic", tasks=2, terminals=2, samples_per_task=40).federation(0)
        learning = {"algorithm": "hfedmtl", "target_relative_gap": 0.0}
        options = {"policy": "fixed", "local_steps": 5, "lambda1": 1e-6, "lambda2": 1e-6}
        resources = Resources(cost=("energy=0.1,10",))
        make_network(
            folder,
            Blueprint("attacked", made, {**learning, "options": options}, resources, Waits(start=15.0), observed=False),
        )
        cloud, station = (Node(folder, name, given.descriptors) for name in (CLOUD, STATION))
        Operator(folder).wait_for_cloud(60.0)
        # A node that runs twice is heard once, so this control comes before the station itself.
        must(speaks_where_it_may(folder, CLOUD, "Cloud/Attach"), "4 x 250 MB to the cloud as a station")
        other = Node(folder, "station-1", given.descriptors)
        # Terminal 1 stays away: its credentials are those that try to get in.
        terminals = Node(folder, "terminal-0", given.descriptors, ("terminal-2", "terminal-3"))
        try:
            operator = Operator(folder)
            operator.wait_for_cloud(60.0)
            operator.command("train", budget=["energy=1000000000"])
            while not operator.command("status")["training"].get("round"):
                time.sleep(0.2)
            measure(f"{CROWD} plain connections", station, folder, lambda: crowd(folder), given.seconds)
            measure(
                "one certificate, 1000 connections", station, folder, lambda: many_connections(folder), given.seconds
            )
            for name, target, method, caller in (
                ("4 x 250 MB to the cloud as a command", CLOUD, "Control/Command", "terminal-1"),
                ("4 x 250 MB to the cloud as a station", CLOUD, "Cloud/Attach", "terminal-1"),
                ("4 x 250 MB to the station, a stranger", STATION, "Station/Attach", "station-1"),
                ("4 x 250 MB to the station, a member", STATION, "Station/Attach", "terminal-1"),
            ):
                node = cloud if target == CLOUD else station
                must(method == "Cloud/Attach" or speaks_where_it_may(folder, target, method), name)
                attack = lambda t=target, m=method, c=caller: large_messages(folder, t, m, c)  # noqa: E731
                measure(name, node, folder, attack, min(given.seconds, 8.0))
        finally:
            for node in (terminals, other, station, cloud):
                node.end()


if __name__ == "__main__":
    main()
