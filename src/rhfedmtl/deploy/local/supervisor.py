"""`rhfedmtl network up --local`: all nodes of a network as processes on this machine, for trying out and for tests."""

from __future__ import annotations

import contextlib
import json
import multiprocessing as mp
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rhfedmtl import failpoints
from rhfedmtl.deploy.local.child import run_node
from rhfedmtl.deploy.local.provision import node_folders
from rhfedmtl.deploy.node.config import read_terminal
from rhfedmtl.deploy.node.credentials import TERMINAL
from rhfedmtl.deploy.operator import RECOVERING, UNDER_WAY, Operator
from rhfedmtl.deploy.terminal.owner import Owner
from rhfedmtl.deploy.terminal.program import CANNOT_RUN
from rhfedmtl.errors import ConfigError
from rhfedmtl.files import Lock
from rhfedmtl.maths.kernels.kernel import NUMPY

PROGRAM = "rhfedmtl.deploy.terminal.program"
PRELOAD = "rhfedmtl.deploy.local.preload"
DRAIN_S = 15.0
WAIT_S = 60.0
STEADY_S, FIRST_WAIT_S, LONGEST_WAIT_S = 2.0, 0.1, 5.0
"""A process that lived shorter is started again after a wait, which doubles from time to time."""


class LightProcess:
    """`rhfedmtl-terminal serve`, with what `Supervisor` needs of a process; it ends when its standard input does."""

    def __init__(self, paths: list[Path], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", PROGRAM, "serve", "--while-open", *map(str, paths)]
        with log.open("ab") as file:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file)
        self.pid, self.kill = self._process.pid, self._process.kill

    @property
    def exitcode(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, so long at most."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        if not self.is_alive() and self._process.stdin is not None:
            self._process.stdin.close()


class Supervisor:
    """Starts nodes, starts them again when they end by themselves, and ends them all.

    ``grouped`` terminals share a process. Nodes notice when the supervisor is gone, and end too.
    """

    def __init__(self, folder: Path, grouped: int = 1) -> None:
        self.folder = folder
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload(["__main__", PRELOAD])
        # Small matrices: threads of the linear algebra library only get into each other's way.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        self._parts = _parts(node_folders(folder), grouped)
        self._lock = Lock(folder / "logs")
        self.processes: dict[str, BaseProcess | LightProcess] = {}
        self._began: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}

    @property
    def names(self) -> list[str]:
        """Processes: cloud first, then stations, then terminals."""
        return list(self._parts)

    def start(self, names: Iterable[str] | None = None) -> None:
        """Start these processes, or all."""
        for name in self.names if names is None else names:
            role, paths = self._parts[name]
            self._began[name] = time.monotonic()
            if role == TERMINAL and read_terminal(paths[0]).kernel == NUMPY:
                self.processes[name] = LightProcess(paths, self.log_of(name))
                continue
            process = self._context.Process(target=run_node, args=(role, paths, self.log_of(name), _armed()), name=name)
            process.start()
            self.processes[name] = process

    def add(self, folder: Path) -> None:
        """Start a terminal that joined the network later."""
        self._parts[folder.name] = TERMINAL, [folder / "terminal.toml"]
        self.start([folder.name])

    def keep_up(self) -> list[str]:
        """Start again what has ended by itself; returns the names. What cannot run ends everything, with its reason.

        One that ends again and again is started at once the first time, and then after longer and longer waits.
        """
        ended = [name for name, process in self.processes.items() if process.exitcode not in (None, 0)]
        for name in ended:
            self.processes[name].join()
            if self.processes[name].exitcode == CANNOT_RUN:
                try:
                    reason = str(json.loads(self.log_of(name).read_text().splitlines()[-1])["reason"])
                except (IndexError, KeyError, ValueError):
                    reason = f"see {self.log_of(name)}"
                raise ConfigError(f"{name} cannot run: {reason}")
        due = [name for name in ended if self._is_due(name)]
        self.start(due)
        return due

    def _is_due(self, name: str) -> bool:
        """Whether a process that has ended is to be started now."""
        now = time.monotonic()
        if name not in self._due:
            steady = now - self._began[name] > STEADY_S
            failures = self._failures[name] = 1 if steady else self._failures.get(name, 0) + 1
            wait = 0.0 if failures == 1 else min(FIRST_WAIT_S * 2.0 ** min(failures - 2, 10), LONGEST_WAIT_S)
            self._due[name] = now + wait
        if now < self._due[name]:
            return False
        del self._due[name]
        return True

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to one process."""
        pid = self.processes[name].pid
        if pid is not None and self.processes[name].is_alive():
            os.kill(pid, number)

    def stop(self) -> None:
        """End all processes: terminals first, the cloud last; who does not end in time is killed."""
        for name in reversed(self.processes):
            self.kill(name, signal.SIGCONT)
            self.kill(name, signal.SIGTERM)
        until = time.monotonic() + DRAIN_S
        for process in self.processes.values():
            process.join(max(0.1, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self.processes.clear()

    def log_of(self, name: str) -> Path:
        """Where a process writes its log."""
        return self.folder / "logs" / f"{name}.log"

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._lock.release()


def bring_up(
    folder: Path,
    budget: list[str] | None,
    target_gap: float | None,
    show: Callable[[dict[str, Any]], None],
    *,
    privacy: str | None = None,
) -> dict[str, Any]:
    """Start all, train, end all; what the training came to. ``show`` is called with the status as it goes."""
    with Supervisor(folder) as supervisor:
        supervisor.start()
        operator = Operator(folder)
        status = operator.wait_for_cloud(WAIT_S, supervisor.keep_up)

        def rest(status: dict[str, Any], states: tuple[str, ...] = UNDER_WAY) -> dict[str, Any]:
            while status["training"]["state"] in states:
                show(status)
                supervisor.keep_up()
                time.sleep(0.1)
                status = _status(operator, status)
            show(status)
            return status

        status = rest(status, (RECOVERING,))  # of a training that had ended there is nothing to stop
        if status["training"]["state"] in UNDER_WAY:
            operator.command("stop")  # a training that was interrupted: this one goes on from where it was
            rest(status)
        operator.command("train", budget=budget, target_gap=target_gap, privacy=privacy)
        training: dict[str, Any] = rest(operator.command("status"))["training"]
        if training["state"] != "ended":
            raise ConfigError(
                f"the training has {training['state']}: {training.get('error', '')}; see {folder / 'logs'}"
            )
        return training


def _status(operator: Operator, before: dict[str, Any]) -> dict[str, Any]:
    """Status now; as it was where the cloud is just starting again."""
    try:
        return operator.command("status")
    except ConfigError:
        return before | {"training": before["training"] | {"state": RECOVERING}}


def _parts(nodes: dict[str, Path], grouped: int) -> dict[str, tuple[str, list[Path]]]:
    parts: dict[str, tuple[str, list[Path]]] = {}
    terminals = []
    for name, folder in nodes.items():
        role = name.partition("-")[0]
        if role == TERMINAL:
            if not Owner(read_terminal(folder / "terminal.toml").state).withdrawn_on:
                terminals.append(folder)
        else:
            parts[name] = role, [folder / f"{role}.toml"]
    for i in range(0, len(terminals), grouped):
        some = terminals[i : i + grouped]
        name = some[0].name if grouped == 1 else f"terminals-{i}"
        parts[name] = TERMINAL, [folder / "terminal.toml" for folder in some]
    return parts


def _armed() -> dict[str, str]:
    """What the server that forks does not know of the environment of its supervisor."""
    return {failpoints.VARIABLE: os.environ.get(failpoints.VARIABLE, "")}
