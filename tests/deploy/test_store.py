"""What nodes write down is whole, or is known not to be."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest

from rhfedmtl.deploy.node import state as store
from rhfedmtl.deploy.node.state import CorruptError, Journal, StateFile
from rhfedmtl.errors import ConfigError
from rhfedmtl.files import Lock

HEAD = store._JOURNAL.size


def test_a_state_file_gives_back_what_was_written(tmp_path: Path) -> None:
    """The last payload is read; without a file there is none."""
    file = StateFile(tmp_path / "a" / "state", fsync=True)
    assert file.read() is None
    for payload in (b"", b"one", b"x" * 3_000_000):
        file.write(payload)
        assert StateFile(tmp_path / "a" / "state", fsync=False).read() == payload


@pytest.mark.parametrize("fsync", [False, True])
def test_every_damage_to_a_state_file_is_noticed(tmp_path: Path, fsync: bool) -> None:
    """Whatever bit flips, and wherever the file is cut, nothing of it is used."""
    path = tmp_path / "state"
    StateFile(path, fsync=fsync).write(b"some state", fsync=fsync)
    whole = path.read_bytes()
    for i in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[i // 8] ^= 1 << i % 8
        path.write_bytes(bytes(damaged))
        with pytest.raises(CorruptError):
            StateFile(path, fsync=fsync).read()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptError):
            StateFile(path, fsync=fsync).read()
    assert StateFile(path, fsync=fsync).set_aside().exists()
    assert not path.exists()


def test_state_that_was_not_forced_to_disk_is_not_trusted_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the machine started anew only a file that was forced to disk counts."""
    monkeypatch.setattr(store, "boot", lambda: b"first start")
    loose, forced = StateFile(tmp_path / "loose", fsync=False), StateFile(tmp_path / "forced", fsync=True)
    loose.write(b"a")
    forced.write(b"b")
    assert loose.read() == b"a"
    monkeypatch.setattr(store, "boot", lambda: b"second start")
    assert forced.read() == b"b"
    with pytest.raises(CorruptError, match="may be old"):
        loose.read()


@pytest.mark.parametrize("fsync", [False, True])
def test_a_torn_entry_of_a_journal_never_happened(tmp_path: Path, fsync: bool) -> None:
    """Killed while it writes an entry, a journal goes on after those before it, and says how much it took off."""
    path = tmp_path / "journal"
    journal = Journal(path, fsync=fsync)
    for payload in (b"one", b"two" * 50):
        journal.append(payload, force=True)
    before, head = journal.size, path.read_bytes()[:HEAD]
    journal.append(b"three")
    whole = head + path.read_bytes()[HEAD:]  # the head is written after the entry
    for size in range(before, len(whole)):
        path.write_bytes(whole[:size])
        journal = Journal(path, fsync=False)
        assert journal.cut == size - before
        assert journal.entries() == [b"one", b"two" * 50]
        journal.append(b"more")
        journal.close()
        assert Journal(path, fsync=False).entries() == [b"one", b"two" * 50, b"more"]


@pytest.mark.parametrize("closed", [False, True])
def test_a_journal_that_was_cut_is_refused(tmp_path: Path, closed: bool) -> None:
    """Half a journal is no journal, also where it ends between two entries: what was spent must not be guessed."""
    path = tmp_path / "journal"
    journal = Journal(path, fsync=True)
    for payload in (b"one", b"two" * 50, b"three"):
        journal.append(payload, force=True)
    if closed:
        journal.close()
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptError, match="was cut" if size >= HEAD else "at its beginning"):
            Journal(path, fsync=True)


@pytest.mark.parametrize("left", [0, 1, 30, 200])
def test_blocks_that_a_crash_left_blank_never_happened(tmp_path: Path, left: int) -> None:
    """A crash of the machine may leave zeros for the last entry; what is forced before it stays."""
    path = tmp_path / "journal"
    journal = Journal(path, fsync=True)
    journal.append(b"one", force=True)
    before = journal.size
    journal.append(b"\1" * 3000)
    whole = path.read_bytes()
    path.write_bytes(whole[: before + left] + bytes(len(whole) - before - left))
    journal = Journal(path, fsync=True)
    assert journal.entries() == [b"one"]
    assert journal.size == before


def test_half_an_entry_on_a_full_disk_is_taken_back(tmp_path: Path) -> None:
    """An entry that does not fit is refused whole, and what comes later is read."""
    path = tmp_path / "journal"
    journal = Journal(path, fsync=False)
    journal.append(b"one")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (journal.size + 100, limits[1]))
        with pytest.raises(OSError, match="large"):
            journal.append(b"x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    journal.append(b"two")
    assert Journal(path, fsync=False).entries() == [b"one", b"two"]


def test_a_journal_that_was_not_forced_to_disk_is_not_trusted_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries may be missing from its end: what was spent is not guessed. One that was closed well is whole."""
    path = tmp_path / "journal"
    monkeypatch.setattr(store, "boot", lambda: b"first start")
    Journal(path, fsync=False).append(b"one")
    monkeypatch.setattr(store, "boot", lambda: b"second start")
    with pytest.raises(CorruptError, match="before the machine went down"):
        Journal(path, fsync=False)
    monkeypatch.setattr(store, "boot", lambda: b"first start")
    Journal(path, fsync=False).close()
    monkeypatch.setattr(store, "boot", lambda: b"second start")
    assert Journal(path, fsync=False).entries() == [b"one"]


def test_a_journal_is_replaced_in_one_step(tmp_path: Path) -> None:
    """Other entries stand in place of those that were there, and more can follow."""
    journal = Journal(tmp_path / "journal", fsync=True)
    journal.append(b"x" * 5000)
    journal.replace([b"short", b"story"])
    journal.append(b"goes on")
    assert journal.size < 1000
    assert Journal(tmp_path / "journal", fsync=True).entries() == [b"short", b"story", b"goes on"]


def test_no_older_state_is_taken_for_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first write after one that was forced to disk is forced too: a crash cannot bring the older one back."""
    forced: list[str] = []
    monkeypatch.setattr(store.os, "fsync", lambda _: forced.append("disk"))
    file = StateFile(tmp_path / "state", fsync=False)
    file.write(b"closed well", fsync=True)
    file = StateFile(tmp_path / "state", fsync=False)
    forced.clear()
    file.write(b"newer")
    assert forced == ["disk", "disk"]  # the file, and the folder with its name
    file.write(b"newest")
    assert len(forced) == 2


def test_few_damaged_files_are_kept(tmp_path: Path) -> None:
    """The latest damaged files are there to be looked at, and do not fill the disk."""
    file = StateFile(tmp_path / "state", fsync=False)
    for i in range(store.KEPT + 5):
        file.write(str(i).encode())
        last = file.set_aside()
    assert len(list(tmp_path.glob("state.damaged-*"))) == store.KEPT
    assert last.exists()


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    """A flipped bit, also in a length, is never taken for the end: what was spent must not be guessed."""
    path = tmp_path / "journal"
    journal = Journal(path, fsync=False)
    for payload in (b"one", b"two", b"three"):
        journal.append(payload)
    journal.close()
    whole = path.read_bytes()
    for i in range(0, len(whole) * 8, 3):
        damaged = bytearray(whole)
        damaged[i // 8] ^= 1 << i % 8
        path.write_bytes(bytes(damaged))
        with pytest.raises(CorruptError, match="network reset"):
            Journal(path, fsync=False)


def test_a_state_folder_serves_one_process(tmp_path: Path) -> None:
    """A second process on the same state is refused."""
    lock = Lock(tmp_path)
    with pytest.raises(ConfigError, match="running already"):
        Lock(tmp_path)
    lock.release()
    Lock(tmp_path).release()
