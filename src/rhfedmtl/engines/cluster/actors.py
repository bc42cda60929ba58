"""Shards as actors of a Ray cluster, which may die: what is said to them is numbered, written down and said again.

A call has a number, one more than the call before. An actor that is told a number again gives the same answer again,
and one that was restarted does not know the number before: it is then made anew from the latest snapshot of its shard
and what was said since. Shards are deterministic, so the result is that of an undisturbed run, to the bit.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from llvmlite.binding import get_host_cpu_name

from rhfedmtl.algorithms.method import Method
from rhfedmtl.engines.cluster.session import MIB, ClusterNode
from rhfedmtl.engines.cluster.shard import Part, RowSource, Shard, Snapshot
from rhfedmtl.engines.cluster.sharded import Calls
from rhfedmtl.errors import ClusterError, RHFedMTLError
from rhfedmtl.provenance import versions

START_SECONDS = 600.0
"""How long actors may take to start and to read their rows."""
GIVE_UP_SECONDS = 300.0
"""How long an actor may be away, and be restarted, before the run is given up."""
SNAPSHOT_SECONDS = 30.0
SNAPSHOT_BYTES = 64 * MIB
"""Shards are put away every so many seconds, or when so much was said to one: this is what is done again at most."""
SMALL = 1 << 16
"""What has up to so many bytes travels as bytes, which Ray hands on as they are."""
SAME = "all machines of the cluster need the same rhfedmtl"

Command = tuple[str, tuple[Any, ...]]
logger = logging.getLogger(__name__)


class ActorPlan(NamedTuple):
    """What an actor is to be: a part, where its rows are, the method, seed and threads, and the bytes that it takes."""

    part: Part
    source: RowSource
    method: Method
    seed: int
    threads: int
    bytes: int

    def shard(self) -> Shard:
        """The shard at its start."""
        return Shard(self.part, self.source, self.method, seed=self.seed, threads=self.threads)


class Reply(NamedTuple):
    """What an actor answers: a value, an error raised on purpose, or that it does not know what came before."""

    value: Any = None
    error: RHFedMTLError | None = None
    lost: bool = False


class Worker:
    """An actor: a shard, and which call it has answered last. It starts with nothing, also where it is restarted."""

    def __init__(self) -> None:
        atexit.register(os._exit, 0)  # what Ray does after this may hang, and the process is left over
        self._shard: Shard | None = None
        self._number = -1
        self._reply = Reply()

    def restore(self, plan: ActorPlan, number: int, snapshot: Snapshot | None, said: Sequence[Command]) -> Reply:
        """Become the shard as it was after call ``number``: from a snapshot, or the start, and what was said since."""
        try:
            shard = plan.shard()
            if snapshot is not None:
                shard.restore(snapshot)
            for name, given in said:
                getattr(shard, name)(*given)
        except RHFedMTLError as error:
            return Reply(error=error)
        self._shard, self._number = shard, number
        return Reply(kind())

    def call(self, number: int, message: Any) -> Any:
        """Carry out commands, once for each number; the answer is that of the last."""
        return packed(self._answer(number, unpacked(message)))

    def _answer(self, number: int, commands: Sequence[Command]) -> Reply:
        if number == self._number and self._shard is not None:
            return self._reply
        if number != self._number + 1 or self._shard is None:
            return Reply(lost=True)
        try:
            answers = [getattr(self._shard, name)(*given) for name, given in commands]
            self._reply = Reply(answers[-1])
        except RHFedMTLError as error:
            self._reply = Reply(error=error)
        self._number = number
        return self._reply


class RayActors:
    """The actors of one run, and what was said to them since they were put away."""

    def __init__(self, ray: Any, plans: Sequence[ActorPlan], places: Sequence[ClusterNode]) -> None:
        self._ray = ray
        self._plans, self._places = plans, places
        self._actors = [self._actor(plan, node) for plan, node in zip(plans, places, strict=True)]
        n = len(plans)
        self._numbers = [0] * n
        self._posted: list[list[Command]] = [[] for _ in range(n)]
        self._said: list[list[Command]] = [[] for _ in range(n)]
        self._said_bytes = [0] * n
        self._saved: list[Any] = [None] * n
        self._next_save = time.monotonic() + SNAPSHOT_SECONDS
        self._start()

    def post(self, shard: int, name: str, *given: Any) -> None:
        """Say something that needs no answer: it goes with the next question."""
        self._posted[shard].append((name, given))

    def ask(self, name: str, calls: Calls, *, changes: bool = False) -> dict[int, Any]:
        """Ask several shards at once; whoever dies over it is made anew and asked again."""
        batches: dict[int, list[Command]] = {}
        for s, given in calls.items():
            batches[s] = [*self._posted[s], (name, given)]
            self._posted[s] = []
            self._numbers[s] += 1
        sent = {s: self._send(s, commands) for s, commands in batches.items()}
        found = {s: self._answer(s, sent[s], commands) for s, commands in batches.items()}
        for s, commands in batches.items():
            self._write_down(s, commands if changes else commands[:-1])
        return found

    def rest(self) -> None:
        """Put the shards away if it is time."""
        if time.monotonic() < self._next_save and max(self._said_bytes) < SNAPSHOT_BYTES:
            return
        for s in range(len(self._actors)):
            # The copy here outlives the machine of the actor.
            self._saved[s] = self._ray.put(self.ask("snapshot", {s: ()})[s])
            self._said[s], self._said_bytes[s] = [], 0
        self._next_save = time.monotonic() + SNAPSHOT_SECONDS

    def close(self) -> None:
        """End the actors; a cluster that is gone has none."""
        for actor in self._actors:
            with contextlib.suppress(self._ray.exceptions.RayError, RuntimeError):
                self._ray.kill(actor)
        self._actors, self._saved = [], []

    def _actor(self, plan: ActorPlan, node: ClusterNode) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote = self._ray.remote(Worker).options(
            num_cpus=0,  # so that a lost machine's shards fit on the others
            memory=plan.bytes,
            max_restarts=-1,
            max_task_retries=0,  # calls are said again here, where what came before is known
            enable_task_events=False,  # nobody looks at a list of all calls, and it takes time to keep
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=True),
        )
        return remote.remote()

    def _start(self) -> None:
        sent = [self._restore(s, 0) for s in range(len(self._actors))]
        for s, (ref, node) in enumerate(zip(sent, self._places, strict=True)):
            try:
                reply: Reply = self._ray.get(ref, timeout=START_SECONDS)
            except self._ray.exceptions.GetTimeoutError:
                raise ClusterError(
                    f"shard {s + 1} of {len(sent)} did not start within {START_SECONDS:.0f} s: the cluster may have no "
                    "room for it (see `ray status`), or reading the rows takes too long"
                ) from None
            except self._ray.exceptions.RayTaskError as error:
                raise ClusterError(f"shard {s + 1} cannot start on {node.address}: {last_line(error)}") from error
            except self._ray.exceptions.RayError as error:
                _check_hope(error)
                reply = self._recovered(s, 0)
            check_start(reply, node)

    def _restore(self, shard: int, number: int) -> Any:
        return self._actors[shard].restore.remote(self._plans[shard], number, self._saved[shard], self._said[shard])

    def _send(self, shard: int, commands: Sequence[Command]) -> Any:
        return self._actors[shard].call.remote(self._numbers[shard], packed(commands))

    def _answer(self, shard: int, ref: Any, commands: Sequence[Command]) -> Any:
        """The answer to the present call of a shard, however often the actor has to be made anew for it."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while True:
            reply = reply_of(self._ray, ref)
            if reply is not None and not reply.lost:
                if reply.error is not None:
                    raise reply.error
                return reply.value
            if time.monotonic() > deadline:
                raise ClusterError(f"shard {shard + 1} died again and again over one call; see Ray's logs for why")
            self._recovered(shard, self._numbers[shard] - 1)
            ref = self._send(shard, commands)

    def _recovered(self, shard: int, number: int) -> Reply:
        """Make a shard anew as it was after call ``number``, wherever its actor is now."""
        logger.warning("shard %d was lost after call %d: it is made anew", shard + 1, number)
        deadline, pause = time.monotonic() + GIVE_UP_SECONDS, 0.05
        while True:
            reply = reply_of(self._ray, self._restore(shard, number))
            if reply is not None:
                if reply.error is not None:
                    raise reply.error
                return reply
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"shard {shard + 1} has been away for {GIVE_UP_SECONDS:.0f} s: is there a machine left with "
                    f"{self._plans[shard].bytes / MIB:,.0f} MiB for it? see `ray status`"
                )
            time.sleep(pause)
            pause = min(2.0 * pause, 5.0)

    def _write_down(self, shard: int, commands: Sequence[Command]) -> None:
        self._said[shard] += commands
        self._said_bytes[shard] += sum(_size(part) for _, given in commands for part in given)


def reply_of(ray: Any, sent: Any) -> Reply | None:
    """What an actor says; None if it, its machine or its answer is gone."""
    try:
        reply: Reply = unpacked(ray.get(sent))
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        _check_hope(error)
        return None
    return reply


def check_start(reply: Reply, node: ClusterNode) -> None:
    """Refuse an actor that could not become its shard, or whose machine would give other numbers."""
    if reply.error is not None:
        raise type(reply.error)(f"on node {node.address}: {reply.error}")
    check_kind(reply.value, node.address)


def kind() -> dict[str, str]:
    """Versions of what can change a number, and the kind of CPU, for which kernels are compiled."""
    return {**versions(), "cpu": str(get_host_cpu_name())}


def check_kind(theirs: Mapping[str, str], address: str) -> None:
    """Refuse a machine with other versions, and warn of one with another kind of CPU."""
    own = kind()
    if theirs["cpu"] != own["cpu"]:
        text = "node %s has another kind of CPU (%s, here %s): last digits may differ from those of one machine"
        logger.warning(text, address, theirs["cpu"], own["cpu"])
    other = {name: own.get(name) for name, value in theirs.items() if value != own.get(name) and name != "cpu"}
    if other:
        found = "; ".join(f"{name} {theirs[name]}, here {here}" for name, here in other.items())
        raise ClusterError(f"node {address} has other versions, and would give other numbers: {found}")


def packed(value: Any) -> Any:
    """A small message as bytes: Ray's own way to write objects costs more than the rest of a call."""
    return pickle.dumps(value, protocol=5) if _size(value) <= SMALL else value


def unpacked(message: Any) -> Any:
    """What was packed."""
    return pickle.loads(message) if isinstance(message, bytes) else message


def _size(value: Any) -> int:
    """About how many bytes an argument takes."""
    if isinstance(value, tuple | list):
        return sum(map(_size, value))
    return 64 + int(getattr(value, "nbytes", 0))


def _check_hope(error: Exception) -> None:
    """Refuse to wait for an actor that cannot come to life where Ray put it: no try would end otherwise."""
    if getattr(error, "actor_init_failed", False):
        raise ClusterError(f"an actor cannot start: {last_line(error)}; {SAME}") from error


def last_line(error: Exception) -> str:
    """What matters of an error of Ray, and the machine that it came from, which is somewhere in its text."""
    text = str(error).strip()
    place = re.search(r"\bip=([^,)\s]+)", text)
    return text.splitlines()[-1].strip() + (f" (on node {place[1]})" if place else "")
