"""Engine ray on a cluster of three nodes: every algorithm, and the result of an undisturbed run whoever is killed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.test_methods import learn
from tests.engines.ray_cluster import Assassin, actors, children, cluster, kill, kill_node, raylet
from tests.runs.test_sweep import without_seconds
from tests.waiting import wait_for
from typer.testing import CliRunner

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import ALGORITHMS
from rhfedmtl.cli.main import app
from rhfedmtl.data.request import Request
from rhfedmtl.engines.cluster import actors as ray_actors
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import DataError
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.runs.sweep import Store, sweep
from rhfedmtl.testing.runs import FAULTS, same
from rhfedmtl.training import checkpoint
from rhfedmtl.training.checkpoint import Keeper
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.result import Progress, Result
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'rhfedmtl[ray]'"),
]
BIG = Request(data="synthetic", tasks=6, terminals=40, settings={"samples": 200, "features": 100, "test": 20})
WORDS = shlex.split(
    "--data synthetic --tasks 6 --terminals 30 --set samples=40 --set features=60 --algorithm hfedmtl --local-steps 20 "
    "--station-rounds 7 --cloud-rounds 100 --certify-every 3 --seed 1 "
    "--faults dropout=0.2,moves=0.2,churn=0.02,late_rows=0.2"
)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Three nodes, to which this process is connected; a node that was killed is replaced."""
    import ray

    with cluster(3) as made:
        ray.init(made.address, logging_level="ERROR", log_to_driver=False)
        yield made
        ray.shutdown()


@pytest.fixture
def three(nodes: Any) -> Any:
    """The cluster with all of its nodes, whatever happened to them before."""
    import ray

    while len(nodes.worker_nodes) < 2:
        nodes.add_node(num_cpus=1, node_ip_address="127.0.0.1", object_store_memory=80 * 2**20)
    wait_for(lambda: sum(node["Alive"] for node in ray.nodes()) == 3)
    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
    return nodes


def long_run(engine: str, data: Any, name: str = "hfedmtl", **more: Any) -> Result:
    """A run whose rounds take long enough to be hit in their middle; terminals move from node to node."""
    several = {"station_rounds": 2, "cloud_rounds": 6} if name == "hfedmtl" else {"cloud_rounds": 12}
    built = build(name, Options.of(local_steps=3000, **several), "binary")
    settings = Settings(certify_every=3, execution=Execution(engine=engine, threads=1))
    faults = FAULTS["comings and goings"]
    return train(data, built.method, built.policy, settings, ledger=Ledger("energy=0.1,10"), faults=faults, **more)


@pytest.mark.parametrize("weather", ["calm", "everything"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_gives_the_numbers_of_one_process(three: Any, name: str, weather: str) -> None:
    """One actor on each of three nodes; models, bill and metrics are the same to the bit."""
    same(learn(name, weather), learn(name, weather, "ray"))


@pytest.mark.parametrize("weather", FAULTS)
def test_every_kind_of_fault_and_any_number_of_actors(three: Any, weather: str) -> None:
    """Two actors, with three classes."""
    same(learn("rhfedmtl", weather, classes=3), learn("rhfedmtl", weather, "ray", classes=3, actors=2))


@pytest.mark.parametrize("name", ["hfedmtl", "ditto"])
def test_killed_actors_and_nodes_do_not_show_in_the_result(
    three: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """kill -9 of an actor's process, and of a whole node, in the middle of rounds; what they did is done again."""
    data = BIG.federation(0)
    whole = long_run("inprocess", data, name)
    first, second = sorted(three.worker_nodes, key=raylet)
    strikes = {3: lambda: kill(*actors(first)), 5: lambda: kill_node(three, second), 7: lambda: kill(*actors(first))}
    monkeypatch.setattr(ray_actors, "SNAPSHOT_SECONDS", 0.0)  # the second life starts from snapshots
    assassin = Assassin(monkeypatch, strikes)
    same(whole, long_run("ray", data, name))
    assert len(assassin.struck) == 3


def test_what_was_said_since_the_start_is_enough_without_a_snapshot(
    three: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three actors are killed between rounds, and again in one; they replay everything."""
    data = BIG.federation(0)
    whole = long_run("inprocess", data)

    def everybody(progress: Progress) -> None:
        if progress.round == 4:
            kill(*(process for node in (three.head_node, *three.worker_nodes) for process in actors(node)))

    victim = next(iter(three.worker_nodes))
    assassin = Assassin(monkeypatch, {6: lambda: kill(*actors(victim))})
    same(whole, long_run("ray", data, watch=everybody))
    assert len(assassin.struck) == 1


def test_a_checkpoint_moves_between_engines(three: Any, tmp_path: Path) -> None:
    """Begun on the cluster and ended in this process, and the other way round."""
    data = BIG.federation(0)
    whole = long_run("inprocess", data)
    for first, second in (("ray", "inprocess"), ("inprocess", "ray")):
        keep = Keeper(tmp_path / first)
        long_run(first, data, watch=lambda progress: progress.round < 5, keep=keep)
        same(whole, long_run(second, data, start=checkpoint.read(keep.path)))


def command(*words: str, folder: Path) -> list[str]:
    """A command line for a process of its own."""
    code = "from rhfedmtl.cli.main import main; main()"
    return [sys.executable, "-c", code, "train", *words, "--json", "--out", str(folder)]


def outcome(text: str) -> dict[str, Any]:
    """What a run printed, without what the clock and the folder say."""
    facts: dict[str, Any] = json.loads(text)
    return {name: value for name, value in facts.items() if name not in ("seconds", "saved")}


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_driver_is_resumed(three: Any, tmp_path: Path, end: signal.Signals) -> None:
    """By its folder alone, on the same cluster and after other actors; Ctrl-C says so, kill -9 cannot."""
    whole = subprocess.run(command(*WORDS, folder=tmp_path / "whole"), capture_output=True, text=True, check=True)
    words = [*WORDS, "--engine", "ray", "--address", three.address, "--checkpoint-every", "0.5"]
    driver = subprocess.Popen(
        command(*words, folder=tmp_path / "runs"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        (kept,) = wait_for(lambda: list((tmp_path / "runs").glob("*/checkpoint")))
        written = kept.stat().st_ino
        wait_for(lambda: kept.stat().st_ino != written)
        os.kill(driver.pid, end)
        _, said = driver.communicate(timeout=120)
    finally:
        driver.kill()
    if end == signal.SIGINT:
        assert driver.returncode == 130
        assert f"with: rhfedmtl train --resume {kept.parent}" in said
    again = subprocess.run(
        command("--resume", str(kept.parent), folder=tmp_path)[:-2], capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    assert outcome(again.stdout) == outcome(whole.stdout)
    assert not kept.exists()
    assert (kept.parent / "run.json").exists()


def test_a_run_whose_head_node_is_lost_goes_on_elsewhere(tmp_path: Path) -> None:
    """Ray ends the driver with its cluster; what it was told at the start is how to go on."""
    whole = subprocess.run(command(*WORDS, folder=tmp_path / "whole"), capture_output=True, text=True, check=True)
    with cluster(2) as doomed:
        words = [*WORDS, "--engine", "ray", "--address", doomed.address, "--checkpoint-every", "0.2"]
        driver = subprocess.Popen(
            command(*words, folder=tmp_path / "runs"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            (kept,) = wait_for(lambda: list((tmp_path / "runs").glob("*/checkpoint")))
            head = doomed.head_node
            services = [entry.process.pid for entries in head.all_processes.values() for entry in entries]
            kill(*children(raylet(head)), *services)
            _, said = driver.communicate(timeout=300)
        finally:
            driver.kill()
    assert driver.returncode not in (0, None)
    assert f"with: rhfedmtl train --resume {kept.parent}" in said
    words = command("--resume", str(kept.parent), "--engine", "inprocess", folder=tmp_path)[:-2]
    again = subprocess.run(words, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert outcome(again.stdout) == outcome(whole.stdout)


def test_a_sweep_survives_a_lost_node(three: Any, tmp_path: Path) -> None:
    """Records are those that this machine makes; runs lost with a node are made elsewhere."""
    from rhfedmtl.engines.cluster.ray import Pool

    request = Request(data="synthetic", tasks=4, terminals=20, settings={"samples": 50})
    configs = [
        RunConfig("hfedmtl", request, cost=("energy=0.1,10",), budget=("energy=6000",), seed=seed) for seed in range(8)
    ]
    victim = next(iter(three.worker_nodes))
    seen: list[int] = []

    def strike() -> None:
        wait_for(lambda: children(raylet(victim), "ray::_call"))
        kill_node(three, victim)

    thread = threading.Thread(target=strike)
    thread.start()
    with Pool() as pool:
        spread = sweep(configs, Store(tmp_path / "spread"), workers=pool, watch=lambda done, *_: seen.append(done))
    thread.join()
    here = sweep(configs, Store(tmp_path / "here"), workers=1)
    assert without_seconds(spread) == without_seconds(here)
    assert seen == list(range(1, 9))


def test_a_comparison_is_spread_over_the_cluster(three: Any, tmp_path: Path) -> None:
    """The command prints the same cells as with the processes of one machine."""
    words = ["compare", "--tasks", "2", "--terminals", "2", "--seeds", "2", "--algorithms", "rhfedmtl,local"]
    words += ["--budgets", "60,100", "--json", "--out"]
    answers = [
        CliRunner().invoke(app, [*words, str(tmp_path / name), *more])
        for name, more in (("here", ["--workers", "1"]), ("there", ["--engine", "ray", "--address", three.address]))
    ]
    cells = [json.loads(answer.stdout)["cells"] for answer in answers]
    assert cells[0] == cells[1]


def test_rows_are_read_where_the_actors_live(three: Any, tmp_path: Path) -> None:
    """The driver of a command never holds a training row: a saved federation is mapped by the actors alone."""
    from rhfedmtl.engines.cluster.ray import outline

    folder = tmp_path / "saved"
    Request(data="synthetic", path=str(folder), tasks=3, terminals=50, settings={"samples": 20}).federation(3)
    request = Request(data="saved", path=str(folder))
    seen = outline(request, 0)
    assert seen.X.strides == (0, 0)
    assert seen.fingerprint() == request.federation(0).fingerprint()
    built = build("hfedmtl", Options(cloud_rounds=5), "binary")
    results = [
        train(
            data,
            built.method,
            built.policy,
            Settings(execution=Execution(engine=engine)),
            faults=FAULTS["comings and goings"],
        )
        for data, engine in ((seen, "ray"), (request.federation(0), "inprocess"))
    ]
    same(*results)


def test_data_that_a_node_does_not_have_is_named(three: Any, tmp_path: Path) -> None:
    """The loader's own words."""
    from rhfedmtl.engines.cluster.ray import outline

    with pytest.raises(DataError, match="is not a saved federation"):
        outline(Request(data="saved", path=str(tmp_path)), 0)


@pytest.mark.parametrize(
    ("name", "options", "iterations", "most"),
    [
        ("hfedmtl", Options(), 10, 1.0),
        ("rhfedmtl", Options(merge="add"), 10, 1.0),
        # Passes over rows of which some terminals have more than others: what each does and pays, once for all rounds.
        ("rhfedmtl", Options(), 10, 40.0),
        ("rhfedmtl", Options(), 20, 40.0),
    ],
)
def test_memory_of_a_driver_hardly_grows_with_the_number_of_terminals(
    three: Any, monkeypatch: pytest.MonkeyPatch, name: str, options: Options, iterations: int, most: float
) -> None:
    """What a whole run takes here, with certificates and snapshots, for each of 45,000 more terminals."""
    import tracemalloc

    from rhfedmtl.engines.cluster.ray import outline

    monkeypatch.setattr(ray_actors, "SNAPSHOT_SECONDS", 0.0)

    def peak(terminals: int) -> int:
        settings = {"samples": 5, "features": 40, "test": 5}
        seen = outline(Request(data="synthetic", tasks=3, terminals=terminals, settings=settings), 0)
        built = build(name, options, "binary")
        budget = {"energy": iterations * (3 * terminals * 0.1 * 3 + 30)}
        tracemalloc.start()
        train(
            seen,
            built.method,
            built.policy,
            Settings(execution=Execution(engine="ray")),
            ledger=Ledger("energy=0.1,10", budget),
        )
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return int(found)

    peak(100)
    growth = (peak(20_000) - peak(5_000)) / (3 * 15_000)
    assert growth < most, f"{growth:.1f} bytes for each terminal"
