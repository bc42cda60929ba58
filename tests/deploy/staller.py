"""A node with good credentials that keeps others waiting: ``python -m tests.deploy.staller CONFIG KIND``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deploy.programs import end, program

from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.node.serve import serve
from rhfedmtl.deploy.nodes import ROLES
from rhfedmtl.deploy.station.requests import Requests
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.roles.terminal import Terminal


def refused() -> None:
    """A station whose answers to rounds are refused."""
    honest = Requests.send

    def say(self: Requests, answer: wire.Answer) -> None:
        if answer.HasField("round"):
            answer.round.factor = -1.0
        honest(self, answer)

    Requests.send = say  # type: ignore[method-assign]


def without(body: str) -> None:
    """A station that says every second that it is there, and never gives an answer of this kind."""
    honest = Requests.send

    def say(self: Requests, answer: wire.Answer) -> None:
        if not answer.HasField(body):
            honest(self, answer)

    Requests.send = say  # type: ignore[method-assign]


def mute() -> None:
    """A station that does rounds and never answers one."""
    without("round")


def no_rows() -> None:
    """A station that tells nothing of its rows."""
    without("moments")


def breaks() -> None:
    """A station that ends its stream before it answers a round, and connects again."""
    honest = Requests.send

    def say(self: Requests, answer: wire.Answer) -> None:
        self._link.reconnect() if answer.HasField("round") else honest(self, answer)

    Requests.send = say  # type: ignore[method-assign]


def no_probe() -> None:
    """A terminal that answers orders and no probe."""
    Terminal.probe = lambda *_: None  # type: ignore[method-assign,assign,return-value]


def no_work() -> None:
    """A terminal that answers no order."""
    Terminal.work = lambda *_: None  # type: ignore[method-assign,assign,return-value]


_KINDS = (refused, mute, no_rows, breaks, no_probe, no_work)
KINDS: dict[str, Callable[[], Any]] = {kind.__name__: kind for kind in _KINDS}


@contextmanager
def staller(folder: Path, supervisor: Supervisor, name: str, kind: str) -> Iterator[None]:
    """Somebody who stalls in the place of a node, and then the node again."""
    end(supervisor, name)
    role = name.partition("-")[0]
    with program("tests.deploy.staller", str(folder / name / f"{role}.toml"), kind):
        yield
    supervisor.start([name])


if __name__ == "__main__":
    KINDS[sys.argv[2]]()
    path = Path(sys.argv[1])
    serve(ROLES[path.stem](), [path])
