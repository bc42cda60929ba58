"""What a node lets in: connections, bytes, names and numbers all have a limit before anybody is believed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.deploy import nets
from tests.deploy.inside import make_cloud, make_station, run
from tests.deploy.intruder import Intruder, credentials_for, hello, station
from tests.deploy.test_intruders import corpus, spoil
from tests.waiting import wait_for

from rhfedmtl.deploy.cloud.config import read_cloud
from rhfedmtl.deploy.cloud.registry import NodeRegistry
from rhfedmtl.deploy.local import supervisor as supervisor_module
from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.node import log as logs
from rhfedmtl.deploy.node import serve, server
from rhfedmtl.deploy.node.acceptor import GREETING_BYTES, STREAMS
from rhfedmtl.deploy.node.audit import AUDIT, verified
from rhfedmtl.deploy.node.config import Waits
from rhfedmtl.deploy.node.credentials import MOST_NODES, Authority, Credentials, Identity, PeerCertificate, new_key
from rhfedmtl.deploy.node.link import MAX_QUEUED, SERVICE, Outbox, channel_options
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError

CROWD = 1100
FEW = 600
"""Descriptors of a station under attack: fewer than there are callers."""
MEMBER = Identity("test-net", "terminal", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that is not started."""
    return nets.build(tmp_path_factory.mktemp("gates") / "net", nets.small(2, 2, 40))


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Let this process open few files for a while."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def attacked(folder: Path, tmp_path: Path, attack: Callable[[], Any], make: Any = make_station) -> Any:
    """What comes of an attack, from another thread, on a station, or cloud, that really listens in this process."""

    async def body() -> Any:
        service = make(folder, tmp_path)
        serving = asyncio.create_task(service.run())
        try:
            await asyncio.to_thread(wait_for, lambda: serving.done() or _answers(service.config.node.listen))
            return await asyncio.to_thread(attack)
        finally:
            await service.close()
            await asyncio.wait([serving])

    return run(body)


def _answers(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


# Connections.


def test_a_crowd_without_certificates_does_not_end_a_station(folder: Path) -> None:
    """1,100 plain connections to a process that may open 600 files: it lives, has descriptors left, and lets in."""
    address, above = station(folder)
    host, port = address.split(":")
    words = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW}, {FEW}))\n"
    words += "from rhfedmtl.cli.main import main; main()"
    serve = ["serve", "station", "--config", str(folder / "station-0" / "station.toml")]
    process = subprocess.Popen([sys.executable, "-c", words, *serve], stderr=subprocess.DEVNULL)
    held: list[socket.socket] = []
    try:
        wait_for(lambda: _answers(address))
        held.extend(socket.create_connection((host, int(port))) for _ in range(CROWD))
        descriptors = Path(f"/proc/{process.pid}/fd")
        wait_for(lambda: len([*descriptors.iterdir()]) > FEW // 4)
        assert len([*descriptors.iterdir()]) < FEW - server.RESERVE // 2
        # Who does not shake hands is cut after seconds, and there is room again.
        intruder = Intruder(address, above, credentials_for(Authority.load(folder / "ca"), MEMBER))
        wait_for(lambda: "not heard from the cloud" in intruder.say("Station", [hello(0)]))
        assert process.poll() is None
    finally:
        for each in held:
            each.close()
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_the_window_for_metrics_has_few_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes when there are many is sent away, who asks nothing is after a while; then there is room again."""
    monkeypatch.setattr(logs, "SHOW_S", 1.0)
    host, port = "127.0.0.1", nets.port()

    def crowd() -> tuple[int, bytes]:
        held = [socket.create_connection((host, port)) for _ in range(logs.CALLERS + 30)]
        sent_away = sum(ended(each) for each in held)
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
            return sent_away, answer.read()

    def ended(each: socket.socket) -> bool:
        with each, contextlib.suppress(ConnectionError):
            return each.recv(1) == b""
        return True

    async def body() -> tuple[int, bytes]:
        window = logs.Window(logs.Meters(exported=True), f"{host}:{port}", "")
        await window.open()
        try:
            return await asyncio.to_thread(crowd)
        finally:
            await window.close()

    sent_away, told = run(body)
    assert sent_away == logs.CALLERS + 30
    assert b"rhfedmtl_connects_total" in told


def test_descriptors_are_raised_and_some_are_kept() -> None:
    """A node takes as many descriptors as it may, and gives callers all but those that it needs itself."""
    with few_descriptors():
        assert server.connections(10_000) == FEW - server.RESERVE
        assert server.connections(7) == 7
        assert server.raise_descriptors() > FEW
        assert server.connections(FEW) == FEW
    resource_limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource_limits[1]))
        with pytest.raises(ConfigError, match="ulimit"):
            server.connections(10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, resource_limits)


def test_large_buffers_have_pages_of_their_own() -> None:
    """Where no free place is large enough; small ones share pages as before."""
    program = """if True:
        import ctypes
        from rhfedmtl.deploy.node.server import spare_pages
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        spare_pages()
        places = [[libc.malloc(size) % 4096 for _ in range(100)] for size in (17_408, 8_192)]
        own = [each.count(16) for each in places]  # so far from the start of a page lies what has pages of its own
        assert own[0] > 50 > own[1], own
    """
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_outbox_writes_in_order_and_nothing_after_a_write_that_failed() -> None:
    """No task is left while nothing waits; a peer that reads too slowly is told from one that is gone."""
    written: list[bytes] = []

    async def write(data: bytes) -> None:
        await asyncio.sleep(0)
        if data == b"bad":
            raise OSError
        written.append(data)

    async def scenario() -> None:
        outbox = Outbox(write)
        outbox.put("early", b"1")
        assert len(asyncio.all_tasks()) == 1
        outbox.open()
        outbox.put("next", b"2")
        await outbox.close(1.0)
        assert written == [b"1", b"2"]
        assert len(asyncio.all_tasks()) == 1
        outbox.open()
        outbox.put("breaks", b"bad")
        await asyncio.sleep(0.01)
        assert [outbox.put("later", b"3") for _ in range(MAX_QUEUED + 1)] == [True] * MAX_QUEUED + [False]
        await outbox.close(1.0)
        assert written == [b"1", b"2"]

    asyncio.run(scenario())


def test_one_certificate_has_few_streams(folder: Path, tmp_path: Path) -> None:
    """Of many streams of one certificate all but a few end at once; others get in meanwhile."""
    authority, (address, above) = Authority.load(folder / "ca"), station(folder)
    mine = credentials_for(authority, MEMBER)

    def attack() -> tuple[list[str], str]:
        release = threading.Event()

        def silent() -> Iterator[bytes]:
            release.wait(60)
            yield from ()

        with ThreadPoolExecutor(20) as pool:
            ends = [pool.submit(Intruder(address, above, mine).say, "Station", silent()) for _ in range(20)]
            wait_for(lambda: sum(end.done() for end in ends) >= len(ends) - STREAMS, 60)
            reasons = [end.result() for end in ends if end.done()]
            other = credentials_for(authority, Identity("test-net", "terminal", 1))
            answer = Intruder(address, above, other).say("Station", [hello(1), b"\xff" * 9])
            release.set()
        return reasons, answer

    reasons, answer = attacked(folder, tmp_path, attack)
    assert sum("streams open already" in reason for reason in reasons) >= 18
    assert "are no TerminalUp" in answer  # it was let in, and then spoke nonsense


def connections_at(port: int) -> int:
    """Connections of this process whose own end is a port."""
    found = 0
    for each in server.sockets():
        with contextlib.suppress(OSError):
            found += each.getpeername() != "" and each.getsockname()[1] == port
    return found


@pytest.mark.parametrize(("name", "method"), [("station", "Station/Attach"), ("cloud", "Control/Command")])
def test_one_certificate_holds_few_connections(tmp_path: Path, name: str, method: str) -> None:
    """A connection ends with its stream: nobody keeps many by opening stream after stream on each."""
    folder = nets.build(tmp_path / "net", nets.small(1, 2, 40), waits=Waits(link=120.0))
    address, above = station(folder)
    if name == "cloud":
        address, above = read_cloud(folder / "cloud" / "cloud.toml").node.listen, Identity("test-net", "cloud")
    credentials = credentials_for(Authority.load(folder / "ca"), MEMBER)
    port = int(address.rpartition(":")[2])

    def attack() -> None:
        channels = [grpc.secure_channel(address, credentials, channel_options(above, 1 << 20)) for _ in range(20)]
        try:
            for call in [each.stream_stream(f"/{SERVICE}.{method}")(iter([b""]), timeout=60) for each in channels]:
                with contextlib.suppress(grpc.RpcError):
                    next(call)
            wait_for(lambda: connections_at(port) <= STREAMS, 60.0)
        finally:
            for channel in channels:
                channel.close()

    attacked(folder, tmp_path / "state", attack, make_station if name == "station" else make_cloud)


def test_a_long_greeting_is_refused(folder: Path, tmp_path: Path) -> None:
    """Before a peer is known, it may say little."""
    authority = Authority.load(folder / "ca")
    intruder = Intruder(*station(folder), credentials_for(authority, MEMBER))
    long = wire.TerminalUp(hello=wire.Hello(software="x" * GREETING_BYTES)).SerializeToString()
    assert f"it may have {GREETING_BYTES}" in attacked(folder, tmp_path, lambda: intruder.say("Station", [long]))


def test_a_command_of_a_stranger_is_not_read(folder: Path, tmp_path: Path) -> None:
    """What is no operator's is refused before a byte of it is taken in, however much it announces."""
    address, above = read_cloud(folder / "cloud" / "cloud.toml").node.listen, Identity("test-net", "cloud")
    credentials = credentials_for(Authority.load(folder / "ca"), MEMBER)

    def ask() -> str:
        with grpc.secure_channel(address, credentials, options=channel_options(above, 1 << 20)) as channel:
            release = threading.Event()

            def nothing() -> Iterator[bytes]:
                release.wait(60)
                yield b""

            call = channel.stream_unary(f"/{SERVICE}.Control/Command")
            try:  # the answer comes although the command never does
                return str(wire.Reply.FromString(call(nothing(), timeout=30, wait_for_ready=True)).trouble)
            finally:
                release.set()

    assert "no operator" in attacked(folder, tmp_path, ask, make_cloud)


def test_the_cloud_takes_messages_by_the_shape_of_the_job(folder: Path, tmp_path: Path) -> None:
    """A station cannot send what no answer of this job can be, without a number in the configuration."""
    assert read_cloud(folder / "cloud" / "cloud.toml").limits.message_bytes == 0
    credentials = credentials_for(Authority.load(folder / "ca"), Identity("test-net", "station", 0))
    up = wire.StationUp(
        hello=wire.Hello(oldest=codec.PROTOCOL, newest=codec.PROTOCOL, network="test-net")
    ).SerializeToString()

    address = read_cloud(folder / "cloud" / "cloud.toml").node.listen
    intruder = Intruder(address, Identity("test-net", "cloud"), credentials)
    said = attacked(folder, tmp_path, lambda: intruder.say("Cloud", [up, b"\0" * (3 << 20)]), make_cloud)
    assert "larger than max" in said


# Names and certificates.


def test_a_node_that_runs_twice_is_heard_once(folder: Path, tmp_path: Path) -> None:
    """A second process with the same credentials is refused while the first is there; the first may connect anew."""
    address, above = station(folder)
    credentials = credentials_for(Authority.load(folder / "ca"), MEMBER)

    def greeting(process: str) -> bytes:
        said = wire.Hello(oldest=codec.PROTOCOL, newest=codec.PROTOCOL, network="test-net", node=0, process=process)
        return wire.TerminalUp(hello=said).SerializeToString()

    def attack() -> tuple[str, str, str]:
        stay = threading.Event()

        def first() -> Iterator[bytes]:
            yield greeting("a")
            stay.wait(60)

        with grpc.secure_channel(address, credentials, options=channel_options(above, 1 << 20)) as channel:
            call = channel.stream_stream(f"/{SERVICE}.Station/Attach")(first(), timeout=60)
            welcome = wire.TerminalDown.FromString(next(call)).WhichOneof("body")
            second = Intruder(address, above, credentials).say("Station", [greeting("b")])
            again = Intruder(address, above, credentials).say("Station", [greeting("a")])
            stay.set()
        return welcome, second, again

    welcome, second, again = attacked(folder, tmp_path, attack)
    assert welcome == "welcome"
    assert "does it run twice" in second
    assert again == "not refused"


def test_a_stream_ends_with_its_certificate(folder: Path, tmp_path: Path) -> None:
    """Whose certificate expires while it is connected is cut off, and cannot command on an old connection either."""
    soon = credentials_for(Authority.load(folder / "ca"), MEMBER, lasts=timedelta(seconds=3))
    address, above = station(folder)

    async def body() -> str:
        service = make_station(folder, tmp_path)
        serving = asyncio.create_task(service.run())

        def stay() -> str:
            with grpc.secure_channel(address, soon, options=channel_options(above, 1 << 20)) as channel:
                release = threading.Event()

                def first() -> Iterator[bytes]:
                    yield hello(0)
                    release.wait(60)

                call = channel.stream_stream(f"/{SERVICE}.Station/Attach")(first(), timeout=60)
                try:
                    for _ in call:
                        pass
                except grpc.RpcError as error:
                    return str(error.details())  # type: ignore[attr-defined]
                finally:
                    release.set()
            return "not ended"

        staying = asyncio.create_task(asyncio.to_thread(stay))
        while not staying.done():
            service.renew()  # as the process does twice a second
            await asyncio.sleep(0.05)
        await service.close()
        await asyncio.wait([serving])
        return staying.result()

    assert "has expired" in run(body)


def test_an_expired_caller_is_none() -> None:
    """A certificate is looked at whenever its holder says something, and not only by TLS."""
    from rhfedmtl.deploy.node.credentials import caller

    authority, _ = Authority.make("test-net")
    key, _ = new_key()
    old = authority.issue(MEMBER, key.public_key(), lasts=timedelta(days=-1))
    with pytest.raises(PeerError, match="expired"):
        caller({"x509_pem_cert": [old]})


def test_a_clock_that_is_behind_does_not_keep_a_new_node_out(tmp_path: Path) -> None:
    """Certificates count from a day ago."""
    from cryptography import x509

    authority, _ = Authority.make("test-net")
    key, _ = new_key()
    for made in (authority.certificate, authority.issue(MEMBER, key.public_key())):
        begins = x509.load_pem_x509_certificate(made).not_valid_before_utc
        assert begins < datetime.now(UTC) - timedelta(hours=23)


# Numbers, and what is written down.


@pytest.mark.parametrize("number", [5_000_000_000, 20_000_000, MOST_NODES, -5, 1.5, "a", True])
def test_numbers_that_are_none_change_nothing(folder: Path, number: Any, tmp_path: Path) -> None:
    """A number that no node can have is refused before anything is written, by every command."""

    async def body() -> None:
        cloud = make_cloud(folder, tmp_path)
        before = cloud.registry.file.path.exists()
        commands: list[tuple[str, dict[str, Any]]] = [
            ("invite", {"number": number, "station": 0}),
            ("invite", {"station": number}),
            ("invite", {"role": "station", "number": number}),
            ("move", {"terminal": number, "station": 1}),
            ("move", {"terminal": 0, "station": number}),
            ("leave", {"terminal": number}),
            ("forget", {"terminal": number}),
        ]
        for name, arguments in commands:
            with pytest.raises(ConfigError):
                await cloud.commands.run(name, **arguments)
        assert cloud.registry.file.path.exists() == before
        assert not cloud.registry.tokens
        cloud._welcome(0, wire.Hello())  # what is told to a station can still be written

    run(body)


def test_a_full_disk_changes_nothing_in_memory(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be written down does not count: a terminal stays where it was, a token is not used up."""
    config = read_cloud(folder / "cloud" / "cloud.toml")
    object.__setattr__(config.node, "state", str(tmp_path))
    registry = NodeRegistry.open(config)
    secret, _ = registry.invite("terminal", None, 1)

    def state() -> Any:
        return (registry.station, registry.before, registry.tokens, registry.issued, registry.revoked)

    before = state()

    def full(_: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(registry.file, "write", full)
    for change in (
        lambda: registry.place(0, 1),
        lambda: registry.invite("terminal", None, 0),
        lambda: registry.redeem(secret, "abc1"),
        lambda: registry.revoke("terminal/0", ["abc2"]),
    ):
        with pytest.raises(OSError, match="No space"):
            change()
        assert state() == before
    assert registry.allowed(0) == [0, 1]


# Tokens.


def test_strangers_do_not_lock_newcomers_out(folder: Path, tmp_path: Path) -> None:
    """However many wrong tokens come, who has a right one gets its certificate; the log stays short."""

    class Context:
        def __init__(self, message: wire.Enrol, address: str) -> None:
            self._message, self._address = message, address

        async def read(self) -> bytes:
            return self._message.SerializeToString()

        def peer(self) -> str:
            return self._address

    async def body() -> None:
        from rhfedmtl.deploy.node.credentials import signing_request

        cloud = make_cloud(folder, tmp_path)
        request = signing_request(new_key()[0])

        async def tried(token: str, address: str) -> wire.Enrolled:
            return wire.Enrolled.FromString(
                await cloud.enrolment.enrol(None, Context(wire.Enrol(token=token, request=request), address))
            )

        troubles = [(await tried(f"wrong {i}", f"ipv4:10.0.0.1:{i}")).trouble for i in range(100)]
        assert "too many" in troubles[-1]
        assert "not known" in (await tried("wrong", "ipv4:10.0.0.2:1")).trouble  # another address has its own tries
        assert any(
            each["event"] == "enrolment refused" for each in verified((tmp_path / AUDIT).read_bytes().splitlines())
        )
        assert cloud._log.last_error == ""  # strangers have no say in what operators are shown
        secret, _ = cloud.registry.invite("terminal", None, 0)
        given = await tried(secret, "ipv4:10.0.0.1:5")
        assert PeerCertificate.read(given.certificate).identity.number == 4
        assert not given.trouble

    run(body)


def test_refusals_do_not_fill_the_log(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what strangers cause, some lines are written, and then how many were left out."""
    now = [1000.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    log = Log("test")
    for _ in range(1000):
        log.seldom("refused", "warning", reason="stranger")
    assert len(capsys.readouterr().err.splitlines()) == logs.LINES
    now[0] += 2.0 * logs.WHILE_S
    log.seldom("refused", "warning", reason="stranger")
    assert f'"left_out": {1000 - logs.LINES}' in capsys.readouterr().err
    assert log.last_error == "refused: stranger"
    log("disk full", "error")
    log.seldom("refused", "warning", reason="another")
    now[0] += 2.0 * logs.FADES_S
    assert log.last_error == "disk full"  # a stranger of this morning is no trouble of now


def test_the_cloud_is_not_revoked(folder: Path, tmp_path: Path) -> None:
    """No node below would heed it: who asks for it is told what helps, and nothing changes."""

    async def body() -> None:
        cloud = make_cloud(folder, tmp_path)
        own = Credentials.of(folder / "cloud").peer.serial
        for node, serials in (("cloud/0", ["ab"]), ("cloud/0", []), (own, [])):
            with pytest.raises(ConfigError, match=r"no node has a list of revoked clouds.* make a new network"):
                await cloud.commands.run("revoke", node=node, serials=serials)
        assert not cloud.registry.revoked

    run(body)


# Ports.


def test_a_port_that_is_taken_for_a_moment_is_waited_for(folder: Path, tmp_path: Path) -> None:
    """A station that finds its port taken tries again, and serves once it is free."""
    address, above = station(folder)
    host, port = address.split(":")
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind((host, int(port)))
    taken.listen()
    intruder = Intruder(address, above, credentials_for(Authority.load(folder / "ca"), MEMBER))

    def attack() -> str:
        taken.close()
        return str(wait_for(lambda: (said := intruder.say("Station", [hello(9)])).startswith("PERM") and said))

    assert "says that it is" in attacked(folder, tmp_path, attack)


def test_an_address_of_another_machine_is_refused_at_once() -> None:
    """Waiting helps only where something else has the port."""
    with pytest.raises(ConfigError, match="address of this machine"):
        asyncio.run(server.free("192.0.2.1:7000", Log("test", "error")))


# Code, tokens and processes that end again and again.


def test_compiled_code_of_a_node_is_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of a user share what one has compiled, without a home each has its own; others can never write there."""
    from rhfedmtl.deploy.node.serve import own_kernels

    (tmp_path / "file").touch()
    homes = {tmp_path / "cache": tmp_path / "cache" / "rhfedmtl" / "kernels", tmp_path / "file": tmp_path / "kernels"}
    for home, found in homes.items():
        monkeypatch.setenv("XDG_CACHE_HOME", str(home))
        monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
        own_kernels(tmp_path / "station.toml")
        assert os.environ["NUMBA_CACHE_DIR"] == str(found)
        assert found.stat().st_mode & 0o777 == 0o700
    shared = tmp_path / "shared"
    shared.mkdir()
    for mode in (0o777, 0o1777, 0o750):
        shared.chmod(mode)
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(shared))
        with pytest.raises(ConfigError, match="compiled code"):
            own_kernels(tmp_path / "station.toml")
    words = [sys.executable, "-m", "rhfedmtl.deploy.terminal.program", "serve", str(tmp_path)]
    small = subprocess.run(words, capture_output=True, text=True, check=False)
    assert small.returncode == 2, small.stderr
    assert "compiled code" in small.stderr
    (tmp_path / "link").symlink_to(tmp_path / "kernels")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "link"))
    with pytest.raises(ConfigError, match="compiled code"):
        own_kernels(tmp_path / "station.toml")


def test_tokens_are_not_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of neither program: it comes from a file, standard input or the environment, alone or with what surrounds it."""
    from rhfedmtl.deploy.node.enrolment import read_token
    from rhfedmtl.deploy.terminal import program

    printed = tmp_path / "invitation"
    for text in ("abc=", "token      abc=\nrole       terminal\n", '{"token": "abc=", "role": "terminal"}'):
        printed.write_text(text)
        assert read_token(str(printed)) == "abc="
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert read_token("-") == "abc="
    monkeypatch.setenv("RHFEDMTL_TOKEN", "abc=")
    assert read_token("") == "abc="
    for word in ("eyJyb2xlIjog", "x" * 2000):
        with pytest.raises(ConfigError, match="other users of this machine could read"):
            read_token(word)
        with pytest.raises(SystemExit, match="2"):
            program.main(["join", word, "--folder", str(tmp_path / "new")])
        assert "other users of this machine could read" in capsys.readouterr().err


def test_what_ends_again_and_again_is_started_less_and_less(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time at once, then after waits that double; one that has run for a while begins from the start."""
    now = [100.0]
    monkeypatch.setattr(supervisor_module.time, "monotonic", lambda: now[0])
    with Supervisor(folder) as supervisor:
        waits = []
        for _ in range(8):
            supervisor._began["cloud"], began = now[0], now[0]
            while not supervisor._is_due("cloud"):
                now[0] += 0.01
            waits.append(round(now[0] - began, 1))
        assert waits[:5] == [0.0, 0.1, 0.2, 0.4, 0.8]
        assert waits[-1] == supervisor_module.LONGEST_RESTART_S
        supervisor._began["cloud"] = now[0]
        now[0] += 60.0
        assert supervisor._is_due("cloud")


def test_errors_that_nobody_waits_for_are_lines_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """A task that fails unheard is told as an event, and not as a text that no reader of logs can parse."""
    from rhfedmtl.deploy.node.serve import _log_unexpected

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(partial(_log_unexpected, Log("test")))

        async def fails() -> None:
            raise ValueError("unheard")

        task = asyncio.create_task(fails())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task
        gc.collect()

    asyncio.run(body())
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["reason"] for line in lines] == ["ValueError: unheard"]


# Spoiled messages over the wire, each from somebody else.


def fuzzed(folder: Path, tmp_path: Path, count: int) -> None:
    """Let so many terminals with good credentials say one spoiled message each: nothing changes, nothing breaks."""
    authority, (address, above) = Authority.load(folder / "ca"), station(folder)
    rng, unexpected = random.Random(11), []

    def one(i: int, data: bytes) -> str:
        credentials = credentials_for(authority, Identity("test-net", "terminal", 100 + i))
        return Intruder(address, above, credentials).say("Station", [hello(100 + i), data])

    def attack() -> Counter[str]:
        with ThreadPoolExecutor(4) as pool:
            made = [corpus(100 + i, np.random.default_rng(i))[i % 7] for i in range(count)]
            said = pool.map(one, range(count), [spoil(data, rng) for data in made])
            return Counter(each.partition(":")[0] for each in said)

    async def body() -> None:
        service = make_station(folder, tmp_path)
        service.memory.allowed |= {100 + i for i in range(count)}
        service.members.attendance.acceptor._log = Heard(unexpected)  # type: ignore[assignment]
        before = service.memory.record().SerializeToString(deterministic=True)
        serving = asyncio.create_task(service.run())
        await asyncio.to_thread(wait_for, lambda: _answers(address))
        ends = await asyncio.to_thread(attack)
        assert service.memory.record().SerializeToString(deterministic=True) == before
        assert set(ends) == {"PERMISSION_DENIED", "not refused"}, ends
        assert ends["PERMISSION_DENIED"] > count // 2
        await service.close()
        await asyncio.wait([serving])

    run(body)
    assert unexpected == []


class Heard(Log):
    """Keeps what nobody expected."""

    def __init__(self, unexpected: list[Any]) -> None:
        super().__init__("fuzz", "error")
        self._unexpected = unexpected

    def seldom(self, event: str, level: str = "info", **facts: Any) -> None:
        """Keep it."""
        if event == "unexpected":
            self._unexpected.append(facts)


def test_spoiled_messages_over_the_wire(folder: Path, tmp_path: Path) -> None:
    """Some hundred, each with a certificate of its own, so that no quarantine hides them."""
    fuzzed(folder, tmp_path, 300)


@pytest.mark.slow
def test_ten_thousand_spoiled_messages_over_the_wire(folder: Path, tmp_path: Path) -> None:
    """The same, ten thousand times."""
    fuzzed(folder, tmp_path, 10_000)


class Clinging:
    """A node that somebody keeps from taking leave."""

    healthy = True

    async def run(self) -> None:
        """Is told to end at once."""
        signal.raise_signal(signal.SIGTERM)
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Never comes to an end."""
        await asyncio.Event().wait()

    def renew(self) -> None:
        """Nothing to renew."""


def test_a_node_that_is_kept_from_taking_leave_ends_all_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "DRAIN_S", 0.05)

    def made(_config: Any, _log: Log, _meters: Meters) -> serve.Service:
        return Clinging()

    cloud = serve.Role("cloud", read_cloud, made)
    assert serve.serve(cloud, [folder / "cloud" / "cloud.toml"])["ended"] == "stopped"


def test_a_node_that_breaks_off_says_why_before_it_takes_leave(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "DRAIN_S", 0.05)

    class Broken(Clinging):
        async def run(self) -> None:
            raise ConfigError("rows that do not fit")

    def made(_config: Any, _log: Log, _meters: Meters) -> serve.Service:
        return Broken()

    with pytest.raises(ConfigError, match="do not fit"):
        serve.serve(serve.Role("cloud", read_cloud, made), [folder / "cloud" / "cloud.toml"])
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [each["event"] for each in told] == ["started", "breaks off", "draining", "ended"]
    assert told[1]["reason"] == "rows that do not fit"


def test_only_the_connection_of_a_peer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC calls a peer that is gone "unknown": no socket has that name, least of all those that wake an event loop."""
    monkeypatch.setattr(server, "CUT_S", 0.01)

    async def cut() -> tuple[bytes, bytes]:
        one, other = socket.socketpair()
        listening = socket.create_server(("127.0.0.1", 0))
        peer = socket.create_connection(listening.getsockname())
        accepted, (host, port) = listening.accept()
        with one, other, listening, peer, accepted:
            cutter = server.Cutter()
            cutter.add("unknown")
            cutter.add(f"ipv4:{host}:{port}")
            await asyncio.sleep(0.1)
            one.sendall(b"x")
            return other.recv(1), peer.recv(1)

    assert asyncio.run(cut()) == (b"x", b"")
