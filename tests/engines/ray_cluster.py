"""A real Ray cluster on this machine, bound to 127.0.0.1, and ways to hurt it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Told before Ray is imported: no telemetry, and 127.0.0.1 stays 127.0.0.1.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
STORE = 80 * 2**20


@contextmanager
def cluster(n: int = 3) -> Iterator[Any]:
    """``n`` nodes with one core each, of which the first is the head."""
    from ray.cluster_utils import Cluster

    place = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": STORE}
    made = Cluster(initialize_head=True, head_node_args={**place, "include_dashboard": False})
    try:
        for _ in range(n - 1):
            made.add_node(**place)
        yield made
    finally:
        made.shutdown()


def children(parent: int, title: str = "") -> list[int]:
    """Processes that a process has started and whose title starts so."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            shown = (folder / "cmdline").read_bytes().decode(errors="replace")
        except (OSError, IndexError):
            continue
        if folder.name.isdigit() and int(fields[1]) == parent and fields[0] != "Z" and shown.startswith(title):
            found.append(int(folder.name))
    return found


def raylet(node: Any) -> int:
    """The process that is a node."""
    return int(node.all_processes["raylet"][0].process.pid)


def actors(node: Any) -> list[int]:
    """Processes of our actors on a node."""
    return children(raylet(node), "ray::Worker")


def kill(*processes: int) -> None:
    """As hard as it gets."""
    for process in processes:
        os.kill(process, signal.SIGKILL)


def kill_node(made: Any, node: Any) -> None:
    """End a node with all of its processes at once, as a machine that loses its power."""
    main = raylet(node)
    kill(main, *children(main))
    made.worker_nodes.discard(node)


class Assassin:
    """Kills when the calls of a chosen round are under way; where they are answered already, those of the next one.

    On a busy machine this process may be put aside until a whole round is over: that is no middle of a round.
    """

    def __init__(self, monkeypatch: Any, strikes: dict[int, Any]) -> None:
        from rhfedmtl.engines.cluster import actors

        self.struck: list[int] = []
        self._round = 0
        ask, reply_of = actors.RayActors.ask, actors.reply_of

        def asked(shards: Any, name: str, calls: Any, **more: Any) -> Any:
            self._round = calls[0][0] if name == "round" else 0
            return ask(shards, name, calls, **more)

        def replied(ray: Any, sent: Any) -> Any:
            if self._round in strikes:
                strike = strikes.pop(self._round)
                if ray.wait([sent], timeout=0)[0]:
                    strikes[next(n for n in range(self._round + 1, self._round + 100) if n not in strikes)] = strike
                else:
                    self.struck.append(self._round)
                    strike()
            return reply_of(ray, sent)

        monkeypatch.setattr(actors.RayActors, "ask", asked)
        monkeypatch.setattr(actors, "reply_of", replied)
