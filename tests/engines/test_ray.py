"""Engine ray in small: errors that say what to do and, with ``make test-ray``, a local Ray with a killed actor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import weakref
from concurrent.futures import Future
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.engines.ray_cluster import Assassin, children, kill
from tests.runs.test_sweep import without_seconds
from typer.testing import CliRunner

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.cli.main import app
from rhfedmtl.data.outline import Outline, Recipe, facts
from rhfedmtl.data.request import Request
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.engines.cluster import actors as ray_actors
from rhfedmtl.engines.cluster import session as ray_session
from rhfedmtl.engines.cluster.session import ClusterNode, session
from rhfedmtl.engines.cluster.shard import RowBatch, Shard
from rhfedmtl.engines.cluster.sharded import share_out
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ClusterError, ConfigError, DataError, DivergenceError
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.runs.sweep import Store, sweep
from rhfedmtl.testing.runs import COST, FAULTS, same
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'rhfedmtl[ray]'")

SLOW_ROUNDS = Request(data="synthetic", tasks=3, terminals=40, settings={"samples": 200, "features": 100, "test": 10})
NODE = ClusterNode("a", "10.0.0.1", 2.0, 1e6)


def learn(engine: str, data: Any, steps: int = 2000) -> Result:
    """A run whose rounds take long enough to be hit in their middle."""
    built = build("hfedmtl", Options(local_steps=steps, station_rounds=2, cloud_rounds=5), "binary")
    settings = Settings(certify_every=3, execution=Execution(engine, threads=1, actors=2 if engine == "ray" else None))
    return train(data, built.method, built.policy, settings, ledger=Ledger(COST), faults=FAULTS["comings and goings"])


def test_a_local_ray_gives_the_same_numbers_and_passes_errors_on() -> None:
    """A short run equals the in-process engine; an error in an actor arrives with its own type."""
    data = Request(data="synthetic", tasks=3, settings={"classes": 0, "test": 5}).federation(0)
    diverging = build("fedavg", Options.of(step=1e90, local_steps=5, cloud_rounds=50, loss="squared"), "regression")
    steady = build("hfedmtl", Options(cloud_rounds=3), "regression")
    with session():
        runs = [
            train(data, steady.method, steady.policy, Settings(execution=Execution(engine)))
            for engine in ("inprocess", "ray")
        ]
        same(*runs)
        with pytest.raises(DivergenceError, match="take a smaller step") as caught:
            train(data, diverging.method, diverging.policy, Settings(scale="none", execution=Execution(engine="ray")))
    assert type(caught.value) is DivergenceError


@pytest.mark.ray
@pytest.mark.slow
def test_a_local_ray_gives_the_same_numbers_though_an_actor_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the middle of a round; terminals move between actors; a sweep and the command line too; nothing is left."""
    data = SLOW_ROUNDS.federation(0)
    whole = learn("inprocess", data)
    configs = [
        RunConfig("hfedmtl", Request(tasks=2), cost=("energy=0.1,10",), budget=("energy=60",), seed=s) for s in (0, 1)
    ]
    words = [
        "train",
        "--tasks",
        "3",
        "--faults",
        "moves=0.5",
        "--budget",
        "energy=300",
        "--json",
        "--out",
        str(tmp_path),
    ]
    here = json.loads(CliRunner().invoke(app, words).stdout)
    with session() as ray:
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
        node = ray._private.worker.global_worker.node
        raylet, folder = node.all_processes["raylet"][0].process.pid, Path(node.get_session_dir_path())
        assert folder.exists()
        assassin = Assassin(monkeypatch, {3: lambda: kill(children(raylet, "ray::Worker")[0])})
        same(whole, learn("ray", data))
        assert len(assassin.struck) == 1
        answer = CliRunner().invoke(app, [*words, "--engine", "ray", "--actors", "1"])
        assert answer.exit_code == 0, answer.output
        there = json.loads(answer.stdout)
        from rhfedmtl.engines.cluster.ray import Pool

        with Pool() as pool:
            spread = sweep(configs, Store(tmp_path / "spread"), workers=pool)
    for printed in (here, there):
        del printed["seconds"], printed["saved"]
    assert here == there
    local = sweep(configs, Store(tmp_path / "local"), workers=1)
    assert without_seconds(spread) == without_seconds(local)
    assert not ray.is_initialized()
    assert not children(raylet)
    assert not folder.parent.exists()


def test_ray_is_imported_by_nobody_who_does_not_use_it() -> None:
    """Neither by the package, nor by the command line, nor by the engines."""
    code = "import sys, rhfedmtl.cli.main, rhfedmtl.training.run, rhfedmtl.runs.session as _"
    code += "; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("address", "answer"),
    [
        ("127.0.0.1:1", "no Ray cluster at '127.0.0.1:1' .*ray start --head"),
        ("nonsense", "auto, or HOST:PORT"),
        ("ray://127.0.0.1:10001", "auto, or HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there_is_named(address: str, answer: str) -> None:
    """At once, with the way to start one."""
    with pytest.raises(ClusterError, match=answer), session(address):
        pass


def hidden(reason: str) -> Exception:
    """The error of a connection, as Ray raises it: what happened is in the text of another one."""
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    error.__cause__ = RuntimeError(f"Failed to connect to GCS. Last connection error: Traceback: {reason}")
    return error


class FakeRay:
    """The part of Ray that connects, failing as it does."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def is_initialized(self) -> bool:
        """Never."""
        return False

    def init(self, *_: Any, **__: Any) -> None:
        """Fail."""
        raise self.error


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (RuntimeError("Version mismatch: The cluster was started with:\n  Ray: 2.61"), "other versions .*Ray: 2.61"),
        (RuntimeError("no luck\nat all"), "cannot use the cluster at auto: no luck$"),
        (ConnectionError("Could not find any running Ray instance."), "no Ray cluster at 'auto'"),
        (hidden("AuthenticationError: the token is missing"), "the cluster at auto asks for its token: .*MODE=token"),
        ("AuthenticationError", "the cluster at auto asks for its token: .*RAY_AUTH_TOKEN"),
    ],
)
def test_what_ray_says_when_it_cannot_connect_is_passed_on_plainly(
    monkeypatch: pytest.MonkeyPatch, error: Exception | str, answer: str
) -> None:
    """One line, with what to do."""
    import ray.exceptions

    if isinstance(error, str):
        error = getattr(ray.exceptions, error)("no token")
    monkeypatch.setattr(ray_session, "ray_module", lambda **_: FakeRay(error))
    with pytest.raises(ClusterError, match=answer), session("auto"):
        pass
    assert ray_session.PORT_WAIT not in os.environ


class SlowRay(FakeRay):
    """A Ray that is not up in time, as often as it is told."""

    def __init__(self, late: int) -> None:
        super().__init__(Exception("The current node timed out during startup.\nMore."))
        self.late, self.folders, self.shut = late, list[str](), 0

    def init(self, *_: Any, _temp_dir: str, **__: Any) -> None:
        """Fail, until there is time."""
        self.folders.append(_temp_dir)
        if len(self.folders) <= self.late:
            super().init()

    def shutdown(self) -> None:
        """Count."""
        self.shut += 1


def test_a_local_ray_that_is_late_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time in a folder of its own, of which nothing stays; in the end one line says that the machine is busy."""
    for late in (1, 2, 3):
        slow = SlowRay(late)
        monkeypatch.setattr(ray_session, "ray_module", lambda slow=slow, **_: slow)
        refused = pytest.raises(ClusterError, match=r"tried 3 times: The current node timed out.*; is it very busy\?$")
        with refused if late == 3 else nullcontext(), session():
            assert Path(slow.folders[-1]).exists()
        assert len(slow.folders) == slow.shut == min(late + 1, 3)
        assert not any(Path(folder).exists() for folder in slow.folders)


def test_nodes_with_other_versions_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """They would give other numbers, or none; with another CPU only the last digits may differ, which is said."""
    ray_actors.check_start(ray_actors.Reply(ray_actors.kind()), NODE)
    with pytest.raises(ClusterError, match=r"node 10.0.0.1 has other versions.*numpy 0.1, here"):
        ray_actors.check_start(ray_actors.Reply({**ray_actors.kind(), "numpy": "0.1"}), NODE)
    with caplog.at_level("WARNING"):
        ray_actors.check_start(ray_actors.Reply({**ray_actors.kind(), "cpu": "another"}), NODE)
    assert "node 10.0.0.1 has another kind of CPU (another, here" in caplog.text
    with pytest.raises(DataError, match=r"on node 10.0.0.1: no such file"):
        ray_actors.check_start(ray_actors.Reply(error=DataError("no such file")), NODE)


def test_calls_of_a_machine_that_differs_or_fails_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep takes no record that was made with other versions, and shows no traceback of Ray."""
    import ray

    from rhfedmtl.engines.cluster import ray as engine
    from rhfedmtl.engines.cluster.ray import Answer

    made: Future[Any]
    called = SimpleNamespace(remote=lambda *_: SimpleNamespace(future=lambda: made))
    remote = SimpleNamespace(options=lambda **_: called)
    monkeypatch.setattr(
        engine, "ray_module", lambda: SimpleNamespace(remote=lambda _: remote, exceptions=ray.exceptions)
    )
    pool = engine.Pool()
    lost = ray.exceptions.RaySystemError("ray::_call() (pid=7, ip=10.0.0.3)\nNo module named 'rhfedmtl'")
    answers = [
        (Answer(7, None, ray_actors.kind(), "10.0.0.1"), None),
        (Answer(7, None, {**ray_actors.kind(), "sources": "0"}, "10.0.0.2"), "node 10.0.0.2 has .*sources 0, here"),
        (Answer(None, DataError("no such file"), ray_actors.kind(), "10.0.0.1"), "^no such file$"),
        (lost, r"No module named 'rhfedmtl' \(on node 10.0.0.3\); all machines of the cluster need the same rhfedmtl"),
    ]
    for answer, said in answers:
        made = Future()
        made.set_exception(answer) if isinstance(answer, Exception) else made.set_result(answer)
        with pytest.raises((ClusterError, DataError), match=said) if said else nullcontext():
            assert pool.submit(len, ()).result() == 7


def test_an_actor_that_cannot_be_made_is_not_waited_for() -> None:
    """One that was lost comes back; one whose machine has no rhfedmtl never does."""
    import ray

    def failing(error: Exception) -> Any:
        return SimpleNamespace(exceptions=ray.exceptions, get=raiser(error))

    assert ray_actors.reply_of(failing(ray.exceptions.RayActorError("a", "it is gone")), None) is None
    failed = ray.exceptions.RayActorError("a", "in its creation:\nno module rhfedmtl", actor_init_failed=True)
    with pytest.raises(ClusterError, match="an actor cannot start: no module rhfedmtl; all machines"):
        ray_actors.reply_of(failing(failed), None)


def raiser(error: Exception) -> Any:
    """A function that fails so."""

    def fail(*_: Any) -> None:
        raise error

    return fail


def test_a_local_ray_has_a_token_of_its_own_and_writes_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unless there is one already: then that is used, as a cluster may ask for it later."""
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    monkeypatch.setenv("HOME", str(tmp_path))
    kept = tmp_path / ".ray" / "auth_token"
    kept.parent.mkdir()
    for given in (*names, "file", ""):
        for name in names:
            monkeypatch.delenv(name, raising=False)
        kept.write_text("token") if given == "file" else kept.unlink(missing_ok=True)
        if given in names:
            monkeypatch.setenv(given, "given")
        ray_session.keep_to_this_machine()
        found = {name: os.environ[name] for name in names if name in os.environ}
        if not given:
            assert found.pop("RAY_AUTH_MODE") == "token"
            assert len(found.pop("RAY_AUTH_TOKEN")) == 64
        assert found == ({given: "given"} if given in names else {})


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_until_ray_is_up() -> None:
    """It is not lost, either; whoever handled interrupts before does so again."""
    before, done = signal.getsignal(signal.SIGINT), []

    def start() -> None:
        with ray_session.interrupts_wait():
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert done
    with ray_session.interrupts_wait():
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_a_shard_holds_its_rows_once() -> None:
    """Own rows are scaled where they lie; those of shared memory are let go once they are scaled."""
    data = Request(data="synthetic", tasks=2, terminals=2).federation(0)
    (part,) = share_out(data, [1.0], np.diff(data.terminal_offsets))
    method = build("hfedmtl", Options(), "binary").method
    scalers = [Scaler(np.ones(data.n_features), np.full(data.n_features, 2.0)), Scaler(unit=True)]
    halves = np.split(np.array(data.X), [data.terminal_offsets[2]])
    wanted = np.concatenate([scaler.transform(half) for scaler, half in zip(scalers, halves, strict=True)])
    for own in (True, False):
        rows = np.array(data.X)
        rows.flags.writeable = own
        given = [rows]  # whoever takes them has them alone
        shard = Shard(part, SimpleNamespace(rows=lambda *_, given=given: RowBatch(given.pop(), data.y, None)), method)
        shard.scale(scalers)
        np.testing.assert_array_equal(rows, wanted if own else data.X)
        gone = weakref.ref(rows)
        del rows
        assert (gone() is None) != own
        for found, half in zip(shard.moments(), np.split(wanted, [data.terminal_offsets[2]]), strict=True):
            np.testing.assert_allclose(found.mean, half.mean(axis=0), rtol=1e-5, atol=1e-7)


def test_too_little_memory_is_said_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine for shared memory, and on a node for the rows of its stations."""
    from rhfedmtl.engines.cluster import ray as engine

    monkeypatch.setattr(ray_session, "memory", lambda: 2.0**30)
    said = r"rows take 1,000 MiB of shared memory, more than 30% of the 1,024 MiB"
    with pytest.raises(ClusterError, match=said), session(store=1000 * ray_session.MIB):
        pass
    data = Request(data="synthetic", tasks=2, terminals=2).federation(0)
    (part,) = engine.share_out(data, [1.0], np.diff(data.terminal_offsets))
    plan = ray_actors.ActorPlan(part, None, None, 0, 1, engine.bytes_of(data, part))  # type: ignore[arg-type]
    engine.check_room([plan], [NODE])
    with pytest.raises(ClusterError, match=r"node 10.0.0.1 take about 0 MiB, and it has 0 MiB"):
        engine.check_room([plan, plan], [NODE._replace(memory=1.5 * plan.bytes)] * 2)
    known, recipe = facts(data), Recipe(Request(), 0)
    reading, mapped = (Outline.from_facts({**known, "mapped": m}, recipe, lambda: data.sizes) for m in (False, True))
    assert engine.bytes_of(reading, part) - engine.bytes_of(mapped, part) == data.X.nbytes


def test_actors_are_placed_where_the_cores_are() -> None:
    """One on each node, the larger ones first where there are fewer, and round again where there are more."""
    from rhfedmtl.engines.cluster.ray import places_for

    small, large = NODE, ClusterNode("b", "10.0.0.2", 8.0, 1e6)
    assert places_for([small, large], None, 9) == [small, large]
    assert places_for([small, large], 1, 9) == [large]
    assert places_for([small, large], 3, 9) == [small, large, large]
    assert places_for([small, large], 5, 2) == [small, large]


def test_an_old_ray_and_words_for_others_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the command that helps."""
    import ray

    monkeypatch.setattr(ray, "__version__", "2.9.1")
    with pytest.raises(ClusterError, match=r"Ray 2.9.1 is too old: pip install -U 'ray>=2.60'"):
        ray_session.ray_module()
    with pytest.raises(ConfigError, match="for engines on a cluster, as ray, not for inprocess"):
        Execution(address="auto")
    answer = CliRunner().invoke(app, ["compare", "--engine", "ray", "--workers", "2", "--out", str(tmp_path)])
    assert isinstance(answer.exception, ConfigError)
    answer = CliRunner().invoke(app, ["compare", "--address", "10.0.0.1:6379", "--out", str(tmp_path)])
    assert "--address 10.0.0.1:6379 is for --engine ray" in str(answer.exception)
