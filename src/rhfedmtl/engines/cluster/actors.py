"""Shards as actors of a Ray cluster. Actors may die at any time, and the run continues.

**Theory of operation.** `RayActors` numbers its calls of each actor, and records the commands. If an actor receives a
number again, it returns the same answer again. An actor that was restarted does not know the number before. It is then
restored from the latest snapshot of its shard, and the commands since then are replayed. Shards are deterministic, so
the result equals the result of an undisturbed run, to the bit.
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
"""Time limit for actors to start and to read their rows."""
GIVE_UP_SECONDS = 300.0
"""The run fails if an actor is away for this long."""
SNAPSHOT_SECONDS = 30.0
SNAPSHOT_BYTES = 64 * MIB
"""Take snapshots after this time, or after commands of this size to an actor: the limit of a replay."""
SMALL_BYTES = 1 << 16
"""Messages up to this size are pickled here; Ray passes bytes on unchanged."""
SAME = "all machines of the cluster need the same rhfedmtl"

Command = tuple[str, tuple[Any, ...]]
logger = logging.getLogger(__name__)


class ActorPlan(NamedTuple):
    """Settings of an actor: part, source of rows, method, seed, threads, and the bytes that it needs."""

    part: Part
    source: RowSource
    method: Method
    seed: int
    threads: int
    bytes: int

    def shard(self) -> Shard:
        """Return the shard at its start."""
        return Shard(self.part, self.source, self.method, seed=self.seed, threads=self.threads)


class Reply(NamedTuple):
    """Answer of an actor: a value, an error of this package, or ``lost`` if it does not know the call before."""

    value: Any = None
    error: RHFedMTLError | None = None
    lost: bool = False


class Worker:
    """An actor: a shard, and the number of its last call. It starts empty, also after a restart by Ray."""

    def __init__(self) -> None:
        atexit.register(os._exit, 0)  # Ray's own shutdown may hang and leave the process behind
        self._shard: Shard | None = None
        self._number = -1
        self._reply = Reply()

    def restore(self, plan: ActorPlan, number: int, snapshot: Snapshot | None, replay: Sequence[Command]) -> Reply:
        """Restore the shard after call ``number``, from a snapshot or from the start, by a replay of commands."""
        try:
            shard = plan.shard()
            if snapshot is not None:
                shard.restore(snapshot)
            for name, args in replay:
                getattr(shard, name)(*args)
        except RHFedMTLError as error:
            return Reply(error=error)
        self._shard, self._number = shard, number
        return Reply(kind())

    def call(self, number: int, message: Any) -> Any:
        """Execute commands, once for each number, and return the answer of the last command."""
        return packed(self._answer(number, unpacked(message)))

    def _answer(self, number: int, commands: Sequence[Command]) -> Reply:
        if number == self._number and self._shard is not None:
            return self._reply
        if number != self._number + 1 or self._shard is None:
            return Reply(lost=True)
        try:
            answers = [getattr(self._shard, name)(*args) for name, args in commands]
            self._reply = Reply(answers[-1])
        except RHFedMTLError as error:
            self._reply = Reply(error=error)
        self._number = number
        return self._reply


class RayActors:
    """The actors of a run, with snapshots of their shards and the commands since then."""

    def __init__(self, ray: Any, plans: Sequence[ActorPlan], places: Sequence[ClusterNode]) -> None:
        self._ray = ray
        self._plans, self._places = plans, places
        self._actors = [self._actor(plan, node) for plan, node in zip(plans, places, strict=True)]
        n = len(plans)
        self._numbers = [0] * n
        self._posted: list[list[Command]] = [[] for _ in range(n)]
        self._replay: list[list[Command]] = [[] for _ in range(n)]  # commands since the snapshot
        self._replay_bytes = [0] * n
        self._snapshots: list[Any] = [None] * n
        self._next_snapshot = time.monotonic() + SNAPSHOT_SECONDS
        self._start()

    def post(self, shard: int, name: str, *args: Any) -> None:
        """Record a command that needs no answer; it is sent with the next `ask`."""
        self._posted[shard].append((name, args))

    def ask(self, name: str, calls: Calls, *, changes: bool = False) -> dict[int, Any]:
        """Call several shards at once; a shard that dies is restored and called again."""
        batches: dict[int, list[Command]] = {}
        for s, args in calls.items():
            batches[s] = [*self._posted[s], (name, args)]
            self._posted[s] = []
            self._numbers[s] += 1
        sent = {s: self._send(s, commands) for s, commands in batches.items()}
        answers = {s: self._answer(s, sent[s], commands) for s, commands in batches.items()}
        for s, commands in batches.items():
            changing = commands if changes else commands[:-1]
            self._replay[s] += changing
            self._replay_bytes[s] += sum(_size(part) for _, args in changing for part in args)
        return answers

    def rest(self) -> None:
        """Take snapshots if they are due."""
        if time.monotonic() < self._next_snapshot and max(self._replay_bytes) < SNAPSHOT_BYTES:
            return
        for s in range(len(self._actors)):
            # This process owns the copy, so it outlives the machine of the actor.
            self._snapshots[s] = self._ray.put(self.ask("snapshot", {s: ()})[s])
            self._replay[s], self._replay_bytes[s] = [], 0
        self._next_snapshot = time.monotonic() + SNAPSHOT_SECONDS

    def close(self) -> None:
        """End the actors, unless the cluster has stopped."""
        for actor in self._actors:
            with contextlib.suppress(self._ray.exceptions.RayError, RuntimeError):
                self._ray.kill(actor)
        self._actors, self._snapshots = [], []

    def _actor(self, plan: ActorPlan, node: ClusterNode) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote = self._ray.remote(Worker).options(
            num_cpus=0,  # then the shards of a lost machine fit on other machines
            memory=plan.bytes,
            max_restarts=-1,
            max_task_retries=0,  # this class repeats calls, because it knows the commands before them
            enable_task_events=False,  # the list of all calls is not used, and costs time
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
        return self._actors[shard].restore.remote(
            self._plans[shard], number, self._snapshots[shard], self._replay[shard]
        )

    def _send(self, shard: int, commands: Sequence[Command]) -> Any:
        return self._actors[shard].call.remote(self._numbers[shard], packed(commands))

    def _answer(self, shard: int, ref: Any, commands: Sequence[Command]) -> Any:
        """Return the answer to the current call of a shard; restore the actor as often as necessary."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while True:
            reply = reply_of(self._ray, ref)
            if reply is not None and not reply.lost:
                if reply.error is not None:
                    raise reply.error
                return reply.value
            if time.monotonic() > deadline:
                raise ClusterError(f"shard {shard + 1} died again and again in the same call; see Ray's logs for why")
            self._recovered(shard, self._numbers[shard] - 1)
            ref = self._send(shard, commands)

    def _recovered(self, shard: int, number: int) -> Reply:
        """Restore a shard after call ``number``, on the current machine of its actor."""
        logger.warning("shard %d was lost after call %d: restoring it", shard + 1, number)
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


def reply_of(ray: Any, sent: Any) -> Reply | None:
    """Return the answer of an actor, unless the actor, its machine or the answer is lost."""
    try:
        reply: Reply = unpacked(ray.get(sent))
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        _check_hope(error)
        return None
    return reply


def check_start(reply: Reply, node: ClusterNode) -> None:
    """Refuse an actor that could not start its shard, or a machine with other versions."""
    if reply.error is not None:
        raise type(reply.error)(f"on node {node.address}: {reply.error}")
    check_kind(reply.value, node.address)


def kind() -> dict[str, str]:
    """Return the versions that may change numbers, and the kind of CPU, for which kernels are compiled."""
    return {**versions(), "cpu": str(get_host_cpu_name())}


def check_kind(remote: Mapping[str, str], address: str) -> None:
    """Refuse a machine with other versions, and warn of another kind of CPU."""
    local = kind()
    if remote["cpu"] != local["cpu"]:
        text = "node %s has another kind of CPU (%s, here %s): last digits may differ from a run on this machine"
        logger.warning(text, address, remote["cpu"], local["cpu"])
    different = [name for name, value in remote.items() if value != local.get(name) and name != "cpu"]
    if different:
        versions_of = "; ".join(f"{name} {remote[name]}, here {local.get(name)}" for name in different)
        raise ClusterError(f"node {address} has other versions, and would give other numbers: {versions_of}")


def packed(value: Any) -> Any:
    """Return a small message as bytes: Ray's own serialisation costs more than the rest of a call."""
    return pickle.dumps(value, protocol=5) if _size(value) <= SMALL_BYTES else value


def unpacked(message: Any) -> Any:
    """Return the message from the result of `packed`."""
    return pickle.loads(message) if isinstance(message, bytes) else message


def _size(value: Any) -> int:
    """Return the approximate size of an argument in bytes."""
    if isinstance(value, tuple | list):
        return sum(map(_size, value))
    return 64 + int(getattr(value, "nbytes", 0))


def _check_hope(error: Exception) -> None:
    """Raise an error if the actor cannot start on its machine; retries would never end."""
    if getattr(error, "actor_init_failed", False):
        raise ClusterError(f"an actor cannot start: {last_line(error)}; {SAME}") from error


def last_line(error: Exception) -> str:
    """Return the last line of an error of Ray, with the machine that its text names."""
    text = str(error).strip()
    place = re.search(r"\bip=([^,)\s]+)", text)
    return text.splitlines()[-1].strip() + (f" (on node {place[1]})" if place else "")
