"""What nodes write down is whole, or is known not to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhfedmtl.deploy import store
from rhfedmtl.deploy.store import CorruptError, Journal, Lock, StateFile
from rhfedmtl.errors import ConfigError


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


def test_a_torn_entry_of_a_journal_never_happened(tmp_path: Path) -> None:
    """Cut anywhere, a journal gives the entries that are whole, and goes on after them."""
    path = tmp_path / "journal"
    journal = Journal(path, fsync=True)
    for payload in (b"one", b"two" * 50, b"three"):
        journal.append(payload, force=True)
    journal.close()
    whole = path.read_bytes()
    sizes = [len(whole)] + [at for at in range(len(whole)) if at % 7 == 0]
    for size in sizes:
        path.write_bytes(whole[:size])
        journal = Journal(path, fsync=False)
        entries = journal.entries()
        assert entries == [b"one", b"two" * 50, b"three"][: len(entries)]
        journal.append(b"more")
        journal.close()
        assert Journal(path, fsync=False).entries() == [*entries, b"more"]


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
