"""Attacks on a real network by strangers, and on the rows of a terminal by its station.

``python benchmarks/attacks.py doors [--seconds 25] [--descriptors 1024]`` lets a small network learn, each node in
a process. It attacks a station and the cloud, restarts dead nodes, and prints a line for each attack. Every attack has
a control: the same call, small and from a node with the right to it, must succeed before the attack begins.

``python benchmarks/attacks.py rows [--updates 2000]`` reconstructs rows from updates, as a curious station can. Updates
are D = A X, where A has zeros for rows without a step. Sparse vectors in the column space of D are columns of A, and
these give X. The controls have less than a full pass, and every row must come out. Then all losses follow at a full
pass, in trainings and under models that move.
"""

from __future__ import annotations

import argparse
import math
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
from unittest import mock

import grpc
import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.request import Request
from rhfedmtl.deploy.cloud.config import Resources
from rhfedmtl.deploy.local.provision import Blueprint, make_network
from rhfedmtl.deploy.node.config import StationConfig, Waits, read_station
from rhfedmtl.deploy.node.credentials import Credentials, Identity
from rhfedmtl.deploy.node.link import SERVICE, channel_options
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.engines.registry import Execution
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT, WORKS, Work
from rhfedmtl.policies.base import MOST_COUNT
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.messages import Update, Verdict, WorkOrder
from rhfedmtl.roles.terminal import Terminal
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

FloatArray = npt.NDArray[np.float64]

CROWD, CALLERS, LARGE = 1100, 4, 250 << 20
EXACT = 1e-9
"""Singular values below this share of the largest count as zero."""
ALIKE = 0.9999
"""Cosine from which a candidate counts as a row."""
STRETCHES = (3, 10, 30, 100, 300, 1000)
"""Lengths of stretches of updates that are tried besides all of them."""
SEEDS = 3
NEUTRAL = 0.3
"""Length of a true model, by √features, that leaves no row for good at a bound of its dual variable."""
LOSSES = ("smoothed-hinge", "hinge", "squared-hinge", "logistic")
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


def sparse_columns(basis: FloatArray, tries: int, random: np.random.Generator) -> FloatArray:
    """Coordinates of exactly sparse vectors in the span of a basis: ℓ4 start, reweighted ℓ1, exact null vector."""
    rank, columns = basis.shape[1], list[FloatArray]()
    for _ in range(tries):
        q = random.normal(size=rank)
        for _ in range(60):
            q = basis.T @ (basis @ q) ** 3
            q /= np.linalg.norm(q)
        blur = float(np.abs(basis @ q).max())
        for _ in range(60):
            weight = 1.0 / ((basis @ q) ** 2 + blur * blur)
            weighted = (basis * weight[:, None]).T @ basis
            q = np.linalg.solve(weighted + 1e-14 * np.trace(weighted) / rank * np.eye(rank), q)
            q /= np.linalg.norm(q)
            blur = max(0.6 * blur, 1e-12)
        values = np.abs(basis @ q)
        zeros = basis[values < 1e-6 * values.max()]
        if len(zeros) <= rank:
            continue
        _, singular, right = np.linalg.svd(zeros, full_matrices=False)
        exact = singular[-1] < EXACT * singular[0] and singular[-2] > 1e-6 * singular[0]
        if exact and all(abs(right[-1] @ column) < 1.0 - 1e-6 for column in columns):
            columns.append(right[-1])
            if len(columns) == rank:
                break
    return np.array(columns).reshape(-1, rank)


def rows_of_columns(columns: FloatArray, basis: FloatArray, reports: FloatArray) -> FloatArray:
    """Rows, up to their length, of the columns of A: updates count in which the other rows have no part."""
    A, weight, blur = basis @ columns.T, np.ones(len(reports)), 0.0
    rows = np.zeros((len(columns), reports.shape[1]))
    for _ in range(100):
        weighted = (A * weight[:, None]).T
        square = weighted @ A
        rows = np.linalg.solve(square + 1e-15 * np.trace(square) * np.eye(len(square)), weighted @ reports)
        rest = np.linalg.norm(reports - A @ rows, axis=1)
        blur = max(0.7 * blur, EXACT) if blur else max(float(rest.max()), EXACT)
        weight = 1.0 / np.hypot(rest, blur)
    return rows


def reconstruct(updates: FloatArray, constant: float, length: float, tries: int = 40) -> FloatArray:
    """Return directions that are rows by the station's own check, from the updates of a terminal in their order.

    The station knows the constant feature and that rows have unit length. Besides sparse columns it tries single
    updates, and directions that the spans of two stretches of updates share.
    """
    random = np.random.default_rng(0)
    lengths = np.linalg.norm(updates, axis=1)
    D = updates[lengths > 0.0] / lengths[lengths > 0.0, None]
    if not len(D):
        return D
    total, guesses, spans = len(D), [D], list[FloatArray]()
    for size in dict.fromkeys((total, *(size for size in STRETCHES if size < total))):
        for start in np.unique(np.linspace(0, total - size, min(40, total // size)).astype(int)):
            factors, singular, right = np.linalg.svd(D[start : start + size], full_matrices=False)
            rank = int((singular > EXACT * singular[0]).sum())
            spans.append(right[:rank])
            if rank > 1 and size >= max(4 * rank, STRETCHES[2]):
                basis, reports = factors[:, :rank], factors[:, :rank] * singular[:rank]
                columns = sparse_columns(basis, tries if size == total else tries // 6, random)
                if len(columns):
                    guesses.append(rows_of_columns(columns, basis, reports) @ right[:rank])
    spans = sorted((span for span in spans if len(span) < D.shape[1]), key=len)[:150]
    for i, span in enumerate(spans):
        for second in spans[i + 1 :]:
            directions, cosines, _ = np.linalg.svd(span @ second.T)
            if int((cosines > 1.0 - EXACT).sum()) == 1:
                guesses.append(directions[:, :1].T @ span)
    candidates = np.concatenate(guesses)
    candidates /= np.maximum(np.linalg.norm(candidates, axis=1, keepdims=True), 1e-300)
    right_length = np.abs(np.abs(candidates[:, -1]) - constant / math.hypot(constant, length)) < 1e-6
    rows = list[FloatArray]()
    for candidate in candidates[right_length]:
        if all(abs(candidate @ row) < 1.0 - 1e-6 for row in rows):
            rows.append(candidate)
    return np.array(rows).reshape(-1, D.shape[1])


def recovered(updates: FloatArray, rows: FloatArray) -> tuple[int, int]:
    """Return how many of the rows (constant feature last) come out of updates, and how many candidates are no row."""
    length = float(np.linalg.norm(rows[0, :-1]))
    candidates = reconstruct(updates, float(rows[0, -1]), length)[:, :-1]
    if not len(candidates):
        return 0, 0
    cosines = np.abs(candidates @ rows[:, :-1].T) / length / np.linalg.norm(candidates, axis=1, keepdims=True)
    return int((cosines.max(axis=0) > ALIKE).sum()), int((cosines.max(axis=1) < 0.99).sum())


def make_terminal(loss: str, n: int, features: int, size: float = 3.0, seed: int = 5) -> tuple[Terminal, FloatArray]:
    """A terminal with unit rows and a secret order, and its rows with the constant feature.

    Labels follow a true model of length ``size`` times √features, plus noise.
    """
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, features))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    margin = X @ true_model(features, size) + 0.3 * size * random.normal(size=n)
    method = Options.of(loss=loss, merge="add").method("classification")
    terminal = Terminal(0, X, np.sign(margin)[:, None], method, seed=b"a secret of the terminal's own..")
    terminal.join()
    return terminal, np.column_stack([X, np.ones(n)])


def true_model(features: int, size: float) -> FloatArray:
    """Model that labels follow."""
    return size * np.random.default_rng(1).normal(size=features)


def under_moving_models(
    terminal: Terminal, steps: int, updates: int, drift: float, *, size: float = 3.0, order: Work = ASCENT
) -> FloatArray:
    """Updates of an honest station's rounds while other terminals move the model about the true one."""
    random = np.random.default_rng(2)
    features = terminal.shape[1]
    centre = np.append(true_model(features - 1, size), 0.0)
    model, verdict, reports = centre.copy(), Verdict(incarnation=1), []
    for number in range(1, updates + 1):
        model = centre + 0.9 * (model - centre) + drift * size * random.normal(size=features)
        update = terminal.work(WorkOrder(number, 0, model[None].copy(), 1.4, steps, verdict, work=order))
        assert update is not None
        reports.append(update.delta[0])
        verdict = Verdict(number, 1.0, number, 1)
    return np.array(reports[1:])


def of_training(
    loss: str, weight: float, updates: int, steps: int | None = None, merge: str = "add", seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Updates and rows of the largest terminal in a training of 3 tasks × 4 terminals; H is a pass over its rows."""
    settings = {"features": 40}
    made = Request("synthetic", tasks=3, terminals=4, samples_per_task=75, settings=settings).federation(seed)
    largest, reports, rows = int(np.argmax(made.sizes)), list[FloatArray](), list[FloatArray]()
    work = Terminal.work

    def watched(terminal: Terminal, order: WorkOrder) -> Update | None:
        if isinstance(terminal.seed, int):
            terminal.seed = bytes([terminal.identity]) * 32
        update = work(terminal, order)
        if update is not None and terminal.identity == largest:
            reports.append(update.delta[0].copy())
            if not rows:
                rows.append(np.column_stack([terminal.rows.X, np.full(terminal.n_samples, terminal.rows.constant)]))
        return update

    method = Options.of(loss=loss, lambda1=weight, lambda2=weight, merge=merge).method("classification")
    run = Settings(certify_every=MOST_COUNT, max_rounds=updates, execution=Execution("message-passing"))
    with mock.patch.object(Terminal, "work", watched):
        train(made, method, Fixed(steps or int(made.sizes.max()), 1), run, ledger=Ledger({}))
    return np.array(reports), rows[0]


def attack_rows(updates: int) -> None:
    """Print controls, then every loss at a full pass."""
    for n, steps, rounds in ((7, 2, 150), (14, 2, 200), (14, 5, 200)):
        terminal, rows = make_terminal(LOSSES[0], n, 40, size=NEUTRAL)
        out, wrong = recovered(under_moving_models(terminal, steps, rounds, 3.0, size=NEUTRAL), rows)
        print(f"control, H = {steps}, {rounds} updates: {out} of {n} rows, {wrong} false", flush=True)
        must(out == n, f"rows at H = {steps}")
    reports, rows = of_training(LOSSES[0], 0.01, 600, steps=2)
    out, wrong = recovered(reports, rows)
    print(f"control in a training, H = 2, {len(reports)} updates: {out} of {len(rows)} rows, {wrong} false", flush=True)
    must(2 * out > len(rows), "rows of a training at H = 2")
    for loss, steps in ((LOSSES[0], 2), (LOSSES[0], 5), (LOSSES[0], 14), ("logistic", 14)):
        out, wrong = of_group(loss, steps, 500)
        print(f"sums over three under masks, {loss}, H = {steps}: {out} of 42 rows, {wrong} false", flush=True)
        must(steps > 2 or out > 0, "rows of sums over three at H = 2")
    for loss in LOSSES:
        for weight in (0.1, 0.01, 0.001):
            for merge in ("add", "auto"):
                results = [recovered(*of_training(loss, weight, updates, None, merge, seed)) for seed in range(SEEDS)]
                print(f"training, {loss}, {merge}, λ = {weight}: {counts(results)}", flush=True)
    for loss in LOSSES:
        for size, drift in ((NEUTRAL, 3.0), (3.0, 0.3), (3.0, 0.03), (3.0, 0.003)):
            for order in WORKS:
                results = []
                for seed in range(SEEDS):
                    terminal, rows = make_terminal(loss, 14, 40, size, seed)
                    moved = under_moving_models(terminal, 14, updates, drift, size=size, order=order)
                    results.append(recovered(moved, rows))
                kind = "gradients" if order == GRADIENT else "steps"
                print(f"moving models, {loss}, size {size}, drift {drift}, {kind}: {counts(results)}", flush=True)


def of_group(loss: str, steps: int, updates: int) -> tuple[int, int]:
    """Attack what masks leave to the station: sums over a group of three terminals of 14 rows."""
    sums, every = np.zeros((updates - 1, 61)), list[FloatArray]()
    for seed in range(3):
        terminal, rows = make_terminal(loss, 14, 60, NEUTRAL, seed)
        terminal.seed = bytes([seed]) * 32
        sums += under_moving_models(terminal, steps, updates, 3.0, size=NEUTRAL)
        every.append(rows)
    return recovered(sums, np.concatenate(every))


def counts(results: list[tuple[int, int]]) -> str:
    """Rows and false rows of every seed, as text."""
    rows, wrong = zip(*results, strict=True)
    return f"{', '.join(map(str, rows))} rows, {sum(wrong)} false"


def main() -> None:
    """Attack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("doors", "rows"), nargs="?", default="doors")
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--descriptors", type=int, default=1024)
    given = parser.parse_args()
    if given.what == "rows":
        attack_rows(given.updates)
    else:
        attack_doors(given.seconds, given.descriptors)


def attack_doors(seconds: float, descriptors: int) -> None:
    """Let a network learn, and attack its station and its cloud."""
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
        cloud, station = (Node(folder, name, descriptors) for name in (CLOUD, STATION))
        Operator(folder).wait_for_cloud(60.0)
        # A node that runs twice is heard once, so this control comes before the station itself.
        must(speaks_where_it_may(folder, CLOUD, "Cloud/Attach"), "4 x 250 MB to the cloud as a station")
        other = Node(folder, "station-1", descriptors)
        # Terminal 1 stays away: its credentials are those that try to get in.
        terminals = Node(folder, "terminal-0", descriptors, ("terminal-2", "terminal-3"))
        try:
            operator = Operator(folder)
            operator.wait_for_cloud(60.0)
            operator.command("train", budget=["energy=1000000000"])
            while not operator.command("status")["training"].get("round"):
                time.sleep(0.2)
            measure(f"{CROWD} plain connections", station, folder, lambda: crowd(folder), seconds)
            measure("one certificate, 1000 connections", station, folder, lambda: many_connections(folder), seconds)
            for name, target, method, caller in (
                ("4 x 250 MB to the cloud as a command", CLOUD, "Control/Command", "terminal-1"),
                ("4 x 250 MB to the cloud as a station", CLOUD, "Cloud/Attach", "terminal-1"),
                ("4 x 250 MB to the station, a stranger", STATION, "Station/Attach", "station-1"),
                ("4 x 250 MB to the station, a member", STATION, "Station/Attach", "terminal-1"),
            ):
                node = cloud if target == CLOUD else station
                must(method == "Cloud/Attach" or speaks_where_it_may(folder, target, method), name)
                attack = lambda t=target, m=method, c=caller: large_messages(folder, t, m, c)  # noqa: E731
                measure(name, node, folder, attack, min(seconds, 8.0))
        finally:
            for node in (terminals, other, station, cloud):
                node.end()


if __name__ == "__main__":
    main()
