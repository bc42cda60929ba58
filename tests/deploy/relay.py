"""Links whose bytes are counted as sockets see them, with all that TLS, HTTP/2 and gRPC put around messages."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from pathlib import Path

from rhfedmtl.deploy.cloud.config import read_cloud
from rhfedmtl.deploy.node.config import read_station


class Relay:
    """Passes on what comes to a port, both ways, and counts it."""

    def __init__(self, listen: int, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._above = host, int(port)
        self.n_bytes = self.n_connections = 0
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", listen))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no new connections."""
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                below, _ = self._server.accept()
                above = socket.create_connection(self._above)
            except OSError:
                if self._server.fileno() < 0:
                    return
                below.close()  # who calls too early calls again
                continue
            self.n_connections += 1
            for ends in ((below, above), (above, below)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    self.n_bytes += len(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            target.close()


def counted(folder: Path, stations: int) -> list[Relay]:
    """Relays in front of the cloud and of every station: nodes below are told the relays' addresses."""
    cloud = read_cloud(folder / "cloud" / "cloud.toml").node.listen
    port = int(cloud.rpartition(":")[2]) + 100
    made = [_in_front_of(cloud, port, folder.glob("station-*/station.toml"))]
    for b in range(stations):
        address = read_station(folder / f"station-{b}" / "station.toml").node.listen
        made.append(_in_front_of(address, port + 1 + b, folder.glob("terminal-*/terminal.toml")))
    return made


def passed(relays: list[Relay]) -> tuple[int, int]:
    """Bytes and connections of all relays so far."""
    return sum(relay.n_bytes for relay in relays), sum(relay.n_connections for relay in relays)


def _in_front_of(address: str, port: int, below: Iterable[Path]) -> Relay:
    for path in below:
        path.write_text(path.read_text().replace(address, f"127.0.0.1:{port}"))
    return Relay(port, address)
