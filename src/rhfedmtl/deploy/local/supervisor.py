"""Run all nodes of a network as processes on this machine: `rhfedmtl network up --local`, and tests.

`bring_up` starts the processes, orders a training, and stops everything at its end. `Supervisor` starts and restarts
the processes. Real networks use containers or systemd instead (`local.templates`).
"""

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
from rhfedmtl.features.encoder import PLACES
from rhfedmtl.files import Lock
from rhfedmtl.maths.kernels.kernel import NUMPY

PROGRAM = "rhfedmtl.deploy.terminal.program"
PRELOAD = "rhfedmtl.deploy.local.preload"
DRAIN_S = 15.0
"""Time for all processes to end after a signal; then they are killed."""
WAIT_S = 60.0
"""Time until the cloud must answer."""
STEADY_S, FIRST_RESTART_S, LONGEST_RESTART_S = 2.0, 0.1, 5.0
"""A process that ends before ``STEADY_S`` starts again after a wait. The wait doubles with each failure, from
``FIRST_RESTART_S`` to ``LONGEST_RESTART_S``."""


class LightProcess:
    """A process of `rhfedmtl-terminal serve`, with the interface of `multiprocessing.Process` that `Supervisor` uses.

    The program ends when its standard input closes, so it ends with the supervisor.
    """

    def __init__(self, paths: list[Path], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", PROGRAM, "serve", "--while-open", *map(str, paths)]
        with log.open("ab") as file:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file)
        self.pid, self.kill = self._process.pid, self._process.kill

    @property
    def exitcode(self) -> int | None:
        """Exit status of the process; None while it runs."""
        return self._process.poll()

    def is_alive(self) -> bool:
        """Return True while the process runs."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the process, for at most ``timeout`` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        if not self.is_alive() and self._process.stdin is not None:
            self._process.stdin.close()


class Supervisor:
    """Starts the nodes of a network, restarts failed nodes (`keep_up`), and ends all of them.

    Use it as a context manager. If the supervisor is killed, the nodes notice it and end too.

    Parameters
    ----------
    folder : Path
        Folder of the network. A lock on its logs allows a single supervisor.
    grouped : int
        Number of terminals that share a process.
    """

    def __init__(self, folder: Path, grouped: int = 1) -> None:
        self.folder = folder
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload(["__main__", PRELOAD])
        # The matrices are small: more threads of the linear algebra library would only slow each other down.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        self._parts = _parts(node_folders(folder), grouped)
        self._lock = Lock(folder / "logs")
        self.processes: dict[str, BaseProcess | LightProcess] = {}
        self._began: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}

    @property
    def names(self) -> list[str]:
        """Names of the processes: cloud first, then stations, then terminals."""
        return list(self._parts)

    def start(self, names: Iterable[str] | None = None) -> None:
        """Start these processes, or all processes."""
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
        """Restart the processes that have failed, and return their names.

        The first restart is immediate; later restarts of the same process come after growing waits. Raise a
        `ConfigError` with the reason if a node cannot run at all.
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
        """Return True if a failed process should start again now."""
        now = time.monotonic()
        if name not in self._due:
            steady = now - self._began[name] > STEADY_S
            failures = self._failures[name] = 1 if steady else self._failures.get(name, 0) + 1
            wait = 0.0 if failures == 1 else min(FIRST_RESTART_S * 2.0 ** min(failures - 2, 10), LONGEST_RESTART_S)
            self._due[name] = now + wait
        if now < self._due[name]:
            return False
        del self._due[name]
        return True

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process, if it runs."""
        pid = self.processes[name].pid
        if pid is not None and self.processes[name].is_alive():
            os.kill(pid, number)

    def stop(self) -> None:
        """End all processes, terminals first and the cloud last; after some time kill the rest."""
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
        """Return the path of the log of a process."""
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
    """Start all nodes, train, stop all nodes, and return the facts of the training.

    A training that was interrupted is stopped first, and the new order continues it.

    Parameters
    ----------
    folder : Path
        Folder of the network.
    budget, target_gap, privacy
        Arguments of the order; None takes the value of the configuration.
    show : Callable
        Called with the status about ten times a second.
    """
    with Supervisor(folder) as supervisor:
        supervisor.start()
        operator = Operator(folder)
        status = operator.wait_for_cloud(WAIT_S, supervisor.keep_up)

        def at_rest(status: dict[str, Any], states: tuple[str, ...] = UNDER_WAY) -> dict[str, Any]:
            """Show the status and keep the nodes running until the training leaves these states."""
            while status["training"]["state"] in states:
                show(status)
                supervisor.keep_up()
                time.sleep(0.1)
                status = _status(operator, status)
            show(status)
            return status

        # 1. Let the cloud replay its journal: only then its state says if a training was interrupted.
        status = at_rest(status, (RECOVERING,))
        # 2. Stop an interrupted training; the new order continues it.
        if status["training"]["state"] in UNDER_WAY:
            operator.command("stop")
            at_rest(status)
        # 3. Train.
        operator.command("train", budget=budget, target_gap=target_gap, privacy=privacy)
        training: dict[str, Any] = at_rest(operator.command("status"))["training"]
        if training["state"] != "ended":
            raise ConfigError(
                f"the training has {training['state']}: {training.get('error', '')}; see {folder / 'logs'}"
            )
        return training


def _status(operator: Operator, last: dict[str, Any]) -> dict[str, Any]:
    """Return the status; while the cloud restarts, the last status in the state *recovering*."""
    try:
        return operator.command("status")
    except ConfigError:
        return last | {"training": last["training"] | {"state": RECOVERING}}


def _parts(nodes: dict[str, Path], grouped: int) -> dict[str, tuple[str, list[Path]]]:
    """Return role and configuration files of each process; terminals that have left the network get no process."""
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
        group = terminals[i : i + grouped]
        name = group[0].name if grouped == 1 else f"terminals-{i}"
        parts[name] = TERMINAL, [folder / "terminal.toml" for folder in group]
    return parts


def _armed() -> dict[str, str]:
    """Return the variables that may have changed since the fork server started, and that nodes need."""
    return {name: os.environ.get(name, "") for name in (failpoints.VARIABLE, PLACES)}
