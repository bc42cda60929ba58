"""Small files cannot fill the memory, and damaged files are refused without NumPy's advice to unpickle them."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from rhfedmtl import unpacking
from rhfedmtl.data.loaders import har, landmine, saved, table_files
from rhfedmtl.deploy.node.job import read_rows
from rhfedmtl.errors import DataError
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.resources.links import read_links

MANY = 3 * unpacking.SMALL_FILE
LIMITED = """
import resource, sys
from pathlib import Path
from rhfedmtl.data.loaders import table_files
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    table_files.read(Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def packed(path: Path, piece: bytes, size: int, start: bytes = b"") -> Path:
    """Write so many bytes of repeated pieces through gzip."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(start)
        for _ in range(size // len(piece)):
            file.write(piece)
    return path


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"", b"a" * 2**20),
        (b"", b"," * 2**20),
        (b"a,b\n", (b"x" * 1020 + b",0\n") * 2**10),
        pytest.param(b"a,b\n", b"0,0\n" * 2**18, marks=pytest.mark.slow),
        (b"a,b\n", b"," * 2**20),
    ],
)
def test_a_bomb_of_a_table_is_refused_early(tmp_path: Path, start: bytes, piece: bytes) -> None:
    """A huge line, a header of millions of columns, many rows and a huge row leave the memory bounded."""
    path = packed(tmp_path / "t.csv.gz", piece, 4 * unpacking.SMALL_FILE, start)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    message, memory = done.stdout.strip().rsplit("\n", 1)
    assert message.startswith("DataError")
    assert "unpacks to more than" in message or "has a line of" in message
    assert int(memory) < 10 * unpacking.SMALL_FILE


def test_an_honest_packed_table_is_read(tmp_path: Path) -> None:
    """A sparse table packs far better than the limit on growth, and is small enough."""
    path = packed(tmp_path / "t.csv.gz", b"0,0\n", 2**20, b"a,b\n")
    assert path.stat().st_size * unpacking.RATIO < 2**20 < unpacking.SMALL_FILE
    assert len(table_files.read(path).columns["a"]) == 2**18


def bomb_npz(path: Path, **names: int) -> Path:
    """Write compressed arrays of zeros."""
    np.savez_compressed(path, **{name: np.zeros(count) for name, count in names.items()})
    return path


READERS: dict[str, Any] = {
    "table": table_files.read,
    "har": har.load,
    "landmine": landmine.load,
    "rows of a terminal": lambda path: read_rows(path, ()),
    "model": TaskModels.load,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_bomb_of_arrays_is_refused(tmp_path: Path, reader: str) -> None:
    """Tables, data sets, rows of a terminal, models: before anything is unpacked."""
    path = bomb_npz(tmp_path / "t.npz", X=MANY // 8, y=8, task=8, weight=8)
    if reader == "model":
        path = bomb_npz(tmp_path / "t.npz", models=MANY // 8, header=8)
    with pytest.raises(DataError, match=r"unpacks to more than|compressed"):
        READERS[reader](path)


def test_a_bomb_of_a_parquet_table_is_refused(tmp_path: Path) -> None:
    """A constant column takes no room in the file, and all of its rows in memory."""
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"a": np.zeros(MANY // 8), "b": np.zeros(MANY // 8)}), path)
    with pytest.raises(DataError, match="write it as CSV"):
        table_files.read(path)


def test_a_bomb_of_a_data_set_is_refused(tmp_path: Path) -> None:
    """MATLAB elements, a zip of folders, and a zip in a zip."""
    savemat(tmp_path / "l.mat", {"feature": np.zeros(MANY // 8)}, do_compression=True)
    with pytest.raises(DataError, match="save it without compression"):
        landmine.load(tmp_path / "l.mat")
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{har.FOLDER}/features.txt", bytes(MANY))
    (tmp_path / "inner.zip").write_bytes(inner.getvalue())
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
        archive.writestr(f"{har.FOLDER}.zip", inner.getvalue())
    for name in ("inner.zip", "outer.zip"):
        with pytest.raises(DataError, match="unpack it first"):
            har.load(tmp_path / name)


def test_a_packed_trace_is_not_unpacked_at_all(tmp_path: Path) -> None:
    """Traces of links are plain CSV."""
    with pytest.raises(DataError, match="cannot read"):
        read_links(packed(tmp_path / "links.csv.gz", b"0," * 2**19, 2**27))


@pytest.mark.parametrize("reader", READERS)
def test_no_message_advises_to_unpickle(tmp_path: Path, reader: str) -> None:
    """Objects in place of numbers, and arrays whose bytes were changed."""
    path, names = tmp_path / "t.npz", ("X", "y", "task") if reader != "model" else ("models", "header")
    np.savez(path, **{name: np.array([{}], dtype=object) for name in names})
    refused = [path.read_bytes()]
    np.savez(path, **{name: np.arange(3.0) for name in names})
    content = path.read_bytes()
    places = (0, content.index(b"\x93NUMPY"), content.index(b"descr"), content.index(b"<f8"), len(content) // 2)
    refused += [content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :] for place in places]
    refused += [content[: len(content) // 2], b"", b"\x80\x04garbage"]
    for data in refused:
        path.write_bytes(data)
        with pytest.raises(DataError) as caught:
            READERS[reader](path)
        assert "allow_pickle" not in str(caught.value)


def test_a_damaged_saved_federation_does_not_advise_to_unpickle(tmp_path: Path) -> None:
    """Its arrays are files of their own."""
    from rhfedmtl.data.request import Request

    data = Request(data="synthetic", tasks=2, terminals=2).federation(0)
    saved.save(data, tmp_path / "f")
    (tmp_path / "f" / "X.npy").write_bytes(b"\x80\x04garbage")
    with pytest.raises(DataError, match="damaged, or holds Python objects") as caught:
        saved.load(tmp_path / "f")
    assert "allow_pickle" not in str(caught.value)
