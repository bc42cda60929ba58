"""Federations on disk: written whole or not at all, and read back as they were."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.data.conftest import numbered

from rhfedmtl.data.loaders.saved import INDEX, load, save
from rhfedmtl.data.split import Split, federate
from rhfedmtl.errors import DataError


def test_a_saved_federation_comes_back_as_it_was(tmp_path: Path) -> None:
    """All arrays, names and the origin survive, and rows are memory-mapped."""
    federation = federate(numbered(terminals=3))
    save(federation, tmp_path)
    back = load(tmp_path)
    assert back.fingerprint() == federation.fingerprint()
    assert back.terminal_names == federation.terminal_names
    assert back.origin == federation.origin
    save(back, tmp_path)
    assert load(tmp_path).fingerprint() == federation.fingerprint()


def test_a_federation_without_test_rows_can_be_saved(tmp_path: Path) -> None:
    """Empty arrays, which cannot be memory-mapped, are stored all the same."""
    federation = federate(numbered(), Split(test_fraction=0))
    save(federation, tmp_path)
    assert load(tmp_path).fingerprint() == federation.fingerprint()


def test_a_folder_that_was_never_finished_is_not_data(tmp_path: Path) -> None:
    """Without its index, written last, a folder is refused."""
    save(federate(numbered()), tmp_path)
    (tmp_path / INDEX).unlink()
    with pytest.raises(DataError, match="never finished"):
        load(tmp_path)


def test_damage_is_named(tmp_path: Path) -> None:
    """A wrong shape, a broken file and a foreign index are refused with the file's name."""
    save(federate(numbered()), tmp_path)
    np.save(tmp_path / "y.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"y.npy has shape \(3,\)"):
        load(tmp_path)
    (tmp_path / "y.npy").write_bytes(b"not an array")
    with pytest.raises(DataError, match=r"y.npy cannot be read"):
        load(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"format": 99, "arrays": {}}))
    with pytest.raises(DataError, match="not of format"):
        load(tmp_path)
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path)
