"""A run that was put away and taken up again is the run that was never interrupted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.turns import in_turn

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import ALGORITHMS, is_yardstick
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.network import Later
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.maths.relationships import Clusters, Learned, Safe
from rhfedmtl.resources.costs import read_resources
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.testing.runs import BUDGET, COST, FAULTS, federation
from rhfedmtl.training import checkpoint
from rhfedmtl.training.checkpoint import Keeper
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.packing import BestEffort, Packer, Unpacker
from rhfedmtl.training.result import Progress, Result
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings


def learn(
    name: str, weather: str = "calm", options: Options | None = None, *, engine: str = "inprocess", **more: Any
) -> Result:
    """A run of an algorithm by name at a small budget."""
    data = federation()
    built = build(name, options or Options(), data.kind)
    ledger = Ledger({}) if is_yardstick(name) else Ledger(COST, BUDGET)
    gap = 1e-3 if is_yardstick(name) else 0.0
    settings = Settings(certify_every=5, target_relative_gap=gap, max_rounds=60, execution=Execution(engine=engine))
    faults = Faults() if is_yardstick(name) else FAULTS[weather]
    return train(
        built.regroup(data), built.method, built.policy, settings, ledger=ledger, faults=faults, judged=data, **more
    )


def until(round_: int) -> Any:
    """A watcher that ends a run after a BS iteration."""
    return lambda progress: progress.round < round_


def assert_same(left: Result, right: Result) -> None:
    """Equal to the bit in everything but the clock."""
    np.testing.assert_array_equal(left.models, right.models)
    assert left.ledger == right.ledger
    assert left.ledger.totals("tier", "terminal") == right.ledger.totals("tier", "terminal")
    assert (left.rounds, left.terminal_steps, left.stopped) == (right.rounds, right.terminal_steps, right.stopped)
    assert len(left.history) == len(right.history)
    for a, b in zip(left.history, right.history, strict=True):
        np.testing.assert_equal(vars(a), vars(b))
    for a, b in zip(left.observed, right.observed, strict=True):
        np.testing.assert_equal(a, b)


@pytest.mark.parametrize(("name", "weather"), in_turn(ALGORITHMS, ["calm", "everything"]))
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(name: str, weather: str, tmp_path: Path) -> None:
    """Interrupted twice, in the middle of server iterations too: models, bill, history and certificate are the same."""
    whole = learn(name, weather)
    keep = Keeper(tmp_path / "checkpoint")
    rounds = [round_ for round_ in (1, whole.rounds // 2) if 0 < round_ < whole.rounds]
    for i, round_ in enumerate(rounds):
        start = checkpoint.read(keep.path) if i else None
        assert learn(name, weather, watch=until(round_), keep=keep, start=start).stopped == "interrupted"
    if rounds:
        assert_same(whole, learn(name, weather, start=checkpoint.read(keep.path)))


@pytest.mark.parametrize(
    ("relationship", "station_rounds"), [("learned", 3), ("graph", 2), ("clusters", 2), ("mean", 7)]
)
def test_what_the_cloud_has_learned_is_put_away_too(relationship: str, station_rounds: int, tmp_path: Path) -> None:
    """Relationships learned so far, and a server iteration of several rounds that is under way."""
    options = Options(relationship=relationship, station_rounds=station_rounds, local_steps=2)
    whole = learn("hfedmtl", "drop-outs", options)
    keep = Keeper(tmp_path / "checkpoint")
    learn("hfedmtl", "drop-outs", options, watch=until(whole.rounds - 3), keep=keep)
    resumed = learn("hfedmtl", "drop-outs", options, start=checkpoint.read(keep.path))
    assert_same(whole, resumed)


def test_a_run_is_put_away_while_it_goes_on(tmp_path: Path) -> None:
    """What the latest checkpoint of a run that was killed has is enough to go on."""
    kept: list[int] = []

    class Counting(Keeper):
        def keep(self, run: Any) -> None:
            super().keep(run)
            kept.append(run.state.round)

    class KilledError(Exception):
        pass

    def killed(progress: Progress) -> None:
        if progress.round == 5:
            raise KilledError

    path = tmp_path / "checkpoint"
    with pytest.raises(KilledError):
        learn("hfedmtl", "everything", watch=killed, keep=Counting(path, seconds=0.0))
    assert kept
    assert kept[-1] < 5
    assert_same(learn("hfedmtl", "everything"), learn("hfedmtl", "everything", start=checkpoint.read(path)))


def test_an_engine_without_checkpoints_says_so(tmp_path: Path) -> None:
    """Messages under way between roles are in no checkpoint."""
    with pytest.raises(ConfigError, match="'message-passing' keeps no checkpoints"):
        learn("rhfedmtl", engine="message-passing", keep=Keeper(tmp_path / "checkpoint", seconds=0.0))


@pytest.mark.parametrize("place", [0, 25, 3000, -1])
def test_a_damaged_checkpoint_is_refused(place: int, tmp_path: Path) -> None:
    """One byte that is not as it was written, anywhere."""
    path = tmp_path / "checkpoint"
    learn("rhfedmtl", watch=until(3), keep=Keeper(path))
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"damaged|not a checkpoint"):
        checkpoint.read(path)


@pytest.mark.parametrize("length", [0, 10, 40, -1])
def test_a_checkpoint_that_was_cut_short_is_refused(length: int, tmp_path: Path) -> None:
    """As are files that were never checkpoints, and places where there is none."""
    path = tmp_path / "checkpoint"
    learn("rhfedmtl", watch=until(3), keep=Keeper(path))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match=r"damaged|not a checkpoint"):
        checkpoint.read(path)
    with pytest.raises(DataError, match="there is no checkpoint"):
        checkpoint.read(tmp_path / "nothing")


def test_whoever_is_killed_while_writing_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    """A new checkpoint takes the place of the old one only when it is whole."""
    path = tmp_path / "checkpoint"
    checkpoint.write(path, {"number": 1}, {})

    def killed(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(path, {"number": 2}, {"alpha": Later((4, 1), killed)})
    assert checkpoint.read(path).notes == {"number": 1}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error says where, and leaves nothing behind."""
    with pytest.raises(ConfigError, match="cannot write the checkpoint"):
        checkpoint.write(tmp_path / "no folder" / "checkpoint", {}, {})


def test_values_and_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    """Types, NaN, shared objects, constant arrays, arrays that are written piece by piece, and large ones."""
    shared, inner = np.arange(6.0).reshape(2, 3), Learned(1e-3, 1e-2, np.array([[2.0, 0.5], [0.5, 1.0]]))

    def fill(out: Any) -> None:
        for i in range(len(out)):
            out[i] = i

    large = np.random.default_rng(0).random((checkpoint.MAPPED // 8, 1))
    values = {
        "plain": [1, 2.5, "x", None, True, (1, (2,)), {3: "y", (1, "z"): 4}],
        "odd": [float("nan"), float("inf"), -float("inf"), np.float64(0.1), np.int64(7), np.bool_(True), 1e-320, 2**70],
        "arrays": [shared, shared, np.zeros((3, 0)), np.full((2, 2), np.nan), np.ones(5, dtype=bool), np.arange(3)],
        "objects": [inner, inner, Safe(inner), Clusters(groups=(0, 1, 0))],
        "later": Later((3, 2), fill),
        "large": large,
    }
    checkpoint.write(tmp_path / "file", {}, values)
    back = checkpoint.read(tmp_path / "file").state({})
    np.testing.assert_equal(back["plain"], values["plain"])
    np.testing.assert_equal(back["odd"], values["odd"])
    assert [type(x) for x in back["odd"]] == [type(x) for x in values["odd"]]
    np.testing.assert_equal(back["arrays"], values["arrays"])
    assert [a.dtype for a in back["arrays"]] == [a.dtype for a in values["arrays"]]
    assert back["arrays"][0] is back["arrays"][1]
    first, second, safe, clusters = back["objects"]
    assert first is second
    np.testing.assert_array_equal(first.omega, inner.omega)
    assert isinstance(safe, Safe)
    assert clusters == Clusters(groups=(0, 1, 0))
    np.testing.assert_array_equal(back["later"], [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(back["large"], large)


def test_nothing_but_records_of_this_package_is_written_or_made() -> None:
    """Neither objects of others, nor classes of ours that are no records, nor anything else that has a name."""
    with pytest.raises(ConfigError, match="Path cannot be written"):
        Packer().pack(Path("x"))
    with pytest.raises(ConfigError, match="cannot be written"):
        Packer().pack(Ledger({}))
    assert Packer().pack(BestEffort({"good": 1, "bad": Path("x")})) == {"dict": [["good", 1]]}
    for name in (
        "os:system",
        "rhfedmtl.cli.main:main",
        "rhfedmtl.resources.ledger:Ledger",
        "rhfedmtl.cli.main:typer.Exit",
    ):
        with pytest.raises(DataError, match="not a record of this version"):
            Unpacker([], [(name, {})]).unpack({"object": 0})


def test_checkpoints_of_another_format_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a later version wrote is not guessed at."""
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    checkpoint.write(tmp_path / "file", {}, {})
    monkeypatch.undo()
    with pytest.raises(DataError, match="has format 99"):
        checkpoint.read(tmp_path / "file")


def test_long_checkpoints_get_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where writing takes a second, the next checkpoint is at least twenty seconds away."""
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(checkpoint, "write", lambda *_: now.__setitem__(0, now[0] + 1.0))

    monkeypatch.setattr(checkpoint.snapshot, "take", lambda run: {})
    run = SimpleNamespace(ledger=None, noise_key=None)
    keep = Keeper(tmp_path / "file", seconds=5.0)
    assert not keep.due
    now[0] = 5.0
    assert keep.due
    keep.keep(run)  # type: ignore[arg-type]
    now[0] = 25.9
    assert not keep.due
    now[0] = 26.0
    assert keep.due


def test_what_is_set_aside_for_the_last_certificate_is_put_away_too(tmp_path: Path) -> None:
    """Where terminals come and go its price changes; a run that goes on keeps to the one it began with."""
    data, keep = federation(), Keeper(tmp_path / "checkpoint")
    built = build("hfedmtl", Options(local_steps=2), data.kind)

    def bytes_only(**more: Any) -> Result:
        ledger, faults = Ledger(*read_resources([], ["bytes=100000"])), Faults(churn=0.3, absence=3.0)
        return train(
            data, built.method, built.policy, Settings(certify_every=100), ledger=ledger, faults=faults, **more
        )

    whole = bytes_only()
    for round_ in (1, 4, 9):
        bytes_only(watch=until(round_), keep=keep)
        assert_same(whole, bytes_only(start=checkpoint.read(keep.path)))


def test_reports_that_were_heard_are_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put away right after a certificate, a run goes on with the very questions that it would have had next."""
    asked: list[int] = []
    plain = InProcess.reports

    def reports(self: InProcess, cloud_round: int) -> Any:
        asked.append(cloud_round)
        return plain(self, cloud_round)

    monkeypatch.setattr(InProcess, "reports", reports)
    options = Options(local_steps=5, station_rounds=1)
    learn("hfedmtl", "calm", options)
    whole, kept = list(asked), []

    class Counting(Keeper):
        def keep(self, run: Any) -> None:
            if run.state.round == 5:  # a certificate is due, and the server iteration has no more rounds
                super().keep(run)
                kept.append(len(asked))

    asked.clear()
    learn("hfedmtl", "calm", options, keep=Counting(tmp_path / "checkpoint", seconds=0.0))
    asked.clear()
    learn("hfedmtl", "calm", options, start=checkpoint.read(tmp_path / "checkpoint"))
    assert asked == whole[kept[0] :]
