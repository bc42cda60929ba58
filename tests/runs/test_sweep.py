"""Sweeps and comparisons: recorded once, continued where they stopped, the same whatever the workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ClusterError, ConfigError
from rhfedmtl.runs import sweep as sweeps
from rhfedmtl.runs.sweep import Store, execute, in_parallel, sweep
from rhfedmtl.training.config import RunConfig

SMALL = Request(data="synthetic", tasks=2, terminals=2, settings={"test": 20})
BASE = RunConfig(request=SMALL, cost=("energy=0.1,10",), budget=("energy=100",))


def configs(n: int = 3) -> list[RunConfig]:
    """A few runs that differ by their seed."""
    return [RunConfig(request=SMALL, cost=BASE.cost, budget=BASE.budget, seed=seed) for seed in range(n)]


def without_seconds(records: list[sweeps.Record]) -> list[sweeps.Record]:
    """Records without what a clock says."""
    return [replace(r, result=r.result and replace(r.result, seconds=0.0)) for r in records]


def test_workers_do_not_change_a_number(tmp_path: Path) -> None:
    """One process or two give the same records."""
    one = sweep(configs(), Store(tmp_path / "one"), workers=1)
    two = sweep(configs(), Store(tmp_path / "two"), workers=2)
    assert without_seconds(one) == without_seconds(two)


def test_finished_runs_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that goes on makes only the runs that are missing, and returns all of them in their order."""
    store = Store(tmp_path)
    first = sweep(configs(2), store, workers=1)
    made = []
    monkeypatch.setattr(sweeps, "execute", lambda config: (made.append(config.seed), execute(config))[1])
    again = sweep(configs(4), store, workers=1)
    assert made == [2, 3]
    assert again[:2] == first
    assert [record.configuration.seed for record in again] == [0, 1, 2, 3]


def test_a_run_that_diverges_is_a_result_and_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record says why, as that of a budget that pays nothing does, and it is not made again."""
    options = Options.of(loss="squared-hinge", step=3000.0)
    wild = replace(BASE, algorithm="fedavg", options=options, budget=("energy=1400",))
    wanted = [wild, *configs(1)]
    first = sweep(wanted, Store(tmp_path), workers=1)
    assert [record.result is None for record in first] == [True, False]
    assert [record.diverged for record in first] == [True, False]
    assert "the method diverged, take a smaller step" in (first[0].refused or "")
    assert "diverged" not in first[1].to_dict()
    monkeypatch.setattr(sweeps, "execute", None)
    assert sweep(wanted, Store(tmp_path), workers=1) == first


def test_a_torn_record_is_made_again(tmp_path: Path) -> None:
    """What a killed process left behind in a record's place is no record."""
    store = Store(tmp_path)
    whole = sweep(configs(1), store, workers=1)
    key = configs(1)[0].key
    (tmp_path / f"{key}.json").write_text(json.dumps(whole[0].to_dict())[:100])
    assert without_seconds(sweep(configs(1), store, workers=1)) == without_seconds(whole)


def test_runs_of_another_version_are_not_mixed_in(tmp_path: Path) -> None:
    """A record that another version wrote is made anew."""
    store = Store(tmp_path)
    (record,) = sweep(configs(1), store, workers=1)
    config = configs(1)[0]
    store.write(replace(record, versions={**record.versions, "numpy": "0.1"}))
    assert store.read(config) is None


def test_runs_on_other_data_are_not_mixed_in(tmp_path: Path) -> None:
    """A record is made anew where the file of the data has changed since, whatever its name."""
    path = tmp_path / "rows.csv"
    rows = ["a,b,y,task", *(f"{i % 7},{i % 3},{i % 2},t{i % 4 // 2}" for i in range(80))]
    path.write_text("\n".join(rows))
    config = RunConfig(request=Request("table", str(path), terminals=2), cost=BASE.cost, budget=BASE.budget)
    store = Store(tmp_path / "runs")
    sweep([config], store, workers=1)
    assert store.read(config) is not None
    path.write_text("\n".join(rows[:-4]))
    assert store.read(config) is None


def test_a_file_is_read_once_for_all_seeds_and_again_once_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that differ in their seed split the same rows; another file in the same place is another one."""
    path = tmp_path / "own.csv"
    rows = [f"{i % 3},{i % 2},{0.1 * i * (-1) ** i},{i % 7}" for i in range(60)]
    path.write_text("\n".join(["site,label,a,b", *rows]))
    request = Request("table", str(path), settings={"label": "label", "task": "site"})
    wanted = [RunConfig(request=request, cost=BASE.cost, budget=BASE.budget, seed=seed) for seed in range(3)]
    source, reads = Request.source, []
    monkeypatch.setattr(Request, "source", lambda self: (reads.append(self), source(self))[1])
    first = sweep(wanted, Store(tmp_path / "runs"), workers=1)
    assert len(reads) == 1
    for config, record in zip(wanted, first, strict=True):
        assert record.data.fingerprint == request.federation(config.seed).fingerprint()
    path.write_text("\n".join(["site,label,a,b", *rows, "0,1,9,9"]))
    again = sweep(wanted[:1], Store(tmp_path / "runs"), workers=1)
    assert again[0].data.fingerprint != first[0].data.fingerprint


def test_a_split_that_the_data_does_not_allow_is_refused_before_any_run(tmp_path: Path) -> None:
    """Too many tasks in one of many runs stop the sweep before the first."""
    good = configs(1)[0]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["a,y,task", *(f"{i},{i % 2},t{i % 4 // 2}" for i in range(40))]))
    bad = RunConfig(request=Request("table", str(path), tasks=200), cost=BASE.cost, budget=BASE.budget)
    with pytest.raises(ConfigError, match="200"):
        sweep([good, bad], Store(tmp_path / "runs"), workers=1)
    assert not list((tmp_path / "runs").glob("*.json"))


def test_every_setting_is_in_the_key() -> None:
    """Two runs that differ in anything have different keys; the same run has the same."""
    others = [
        RunConfig(request=SMALL, cost=BASE.cost, budget=("energy=101",)),
        RunConfig(request=SMALL, cost=("energy=0.2,10",), budget=BASE.budget),
        RunConfig("hfedmtl", SMALL, cost=BASE.cost, budget=BASE.budget),
        RunConfig(request=SMALL, cost=BASE.cost, budget=BASE.budget, faults="dropout=0.1"),
        RunConfig(request=SMALL, cost=BASE.cost, budget=BASE.budget, seed=1),
        RunConfig(request=SMALL, cost=BASE.cost, budget=BASE.budget, tune="auc"),
    ]
    assert len({config.key for config in (BASE, *others)}) == 7
    assert BASE.key == RunConfig(request=SMALL, cost=("energy=step:0.1,station:10",), budget=("energy=100.0",)).key


def test_nothing_runs_before_all_of_a_sweep_is_checked(tmp_path: Path) -> None:
    """An unknown algorithm among many runs is refused before the first of them."""
    bad = RunConfig("nothing", SMALL, cost=BASE.cost, budget=BASE.budget)
    with pytest.raises(ConfigError, match="unknown algorithm 'nothing'"):
        sweep([*configs(1), bad], Store(tmp_path), workers=1)
    assert not list(tmp_path.glob("*.json"))


_BUSY = """
import os, time
from rhfedmtl.runs.sweep import in_parallel

def busy(number):
    os.write(1, b"%d\\n" % number)  # one write: two workers share the pipe
    time.sleep(1e6)

if __name__ == "__main__":
    list(in_parallel(busy, range(8), 2))
"""


@pytest.mark.parametrize("signals", ["INT", "INT INT", "TERM", "KILL"])
def test_no_worker_outlives_whoever_wants_its_runs(tmp_path: Path, signals: str) -> None:
    """Whatever ends the parent, and the parent alone: workers in the middle of runs end too, and it does not wait."""
    script = tmp_path / "busy.py"
    script.write_text(_BUSY)
    reset = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    words = [sys.executable, "-c", f"{reset}runpy.run_path({str(script)!r}, run_name='__main__')"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as parent:
        assert parent.stdout is not None
        try:
            assert {parent.stdout.readline(), parent.stdout.readline()} == {b"0\n", b"1\n"}
            for name in signals.split():
                parent.send_signal(signal.Signals[f"SIG{name}"])
            assert parent.communicate(timeout=90)[0] == b""  # workers have its output open as long as there are any
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
    assert parent.returncode != 0


def _end(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_process_that_is_ended_from_outside_is_told_in_a_line() -> None:
    """As where memory runs out; those before it are there."""
    found = []
    with pytest.raises(
        ClusterError, match=r"because memory ran out: .*the same command continues.*fewer than 2 --workers"
    ):
        found.extend(in_parallel(_end, range(200), 2))
    assert 3 not in found
