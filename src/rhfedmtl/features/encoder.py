"""Columns of a frozen encoder: an ONNX file that ONNX Runtime runs on the terminal.

The file stays where it is. Records, models and messages name it by its file name, its SHA-256 and its number of
columns, so stations and the cloud need no copy. A terminal looks for the file in the current folder and in the places
that the environment variable ``RHFEDMTL_ENCODERS`` lists, and takes it only if the SHA-256 is the same.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.errors import ConfigError, DataError, MissingExtraError
from rhfedmtl.features.base import FeatureMap, FloatArray, Function, Graph, Statistics

PLACES = "RHFEDMTL_ENCODERS"
"""Environment variable with files, or folders of files, separated as in PATH."""
NUMBERS = {"tensor(float)": np.float32, "tensor(double)": np.float64}
"""Types of rows that an encoder may read."""
_named: dict[str, Path] = {}
"""Files that this process got by their path, by SHA-256."""


@dataclass(frozen=True)
class Encoder(FeatureMap):
    """First output of an ONNX file for standardised rows.

    The user gives a path. `pinned` is the file name with ``digest`` (SHA-256) and ``size`` (number of columns).
    """

    file: str = ""
    digest: str = ""
    size: int = 0

    def __post_init__(self) -> None:
        """Read the file if the text has its path alone, and refuse a file that is no encoder."""
        file, digest = str(self.file), str(self.digest)
        if not file:
            raise ConfigError("onnx: name the file, as onnx=encoder.onnx")
        if digest and not re.fullmatch("[0-9a-f]{64}", digest):
            raise ConfigError(f"onnx={file}:{digest}: the text after the file name is no SHA-256; write onnx={file}")
        if not isinstance(self.size, int) or self.size < 0:
            raise ConfigError(f"onnx={file}: {self.size!r} is no number of columns; write onnx={file}")
        if not digest:
            path = Path(file).expanduser()
            if not path.is_file():
                raise ConfigError(f"onnx={file}: there is no such file; give the path of an ONNX file")
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            _named[digest] = path.resolve()
        object.__setattr__(self, "file", Path(file).name)
        object.__setattr__(self, "digest", digest)
        if not self.size:
            object.__setattr__(self, "size", _session(self.file, digest).get_outputs()[0].shape[1])

    @property
    def pinned(self) -> str:
        """File name, SHA-256 and number of columns."""
        return f"{self.file}:{self.digest}:{self.size}"

    def columns(self, n_columns: int) -> int:
        """Return ``size``."""
        return self.size

    def function(self, statistics: Statistics) -> Function:
        """Return the output of the encoder, which reads single rows: batches may round differently."""
        session = self._checked(statistics)
        source, output = session.get_inputs()[0], session.get_outputs()[0].name
        kind = NUMBERS[source.type]

        def encode(rows: FloatArray) -> FloatArray:
            result = np.empty((len(rows), self.size))
            for i in range(len(rows)):
                result[i] = session.run([output], {source.name: rows[i : i + 1].astype(kind)})[0][0]
            if not np.isfinite(result).all():
                raise DataError(f"the encoder onnx={self.file} gives a value that is no finite number: check its file")
            return result

        return encode

    def add_nodes(self, graph: Graph, rows: str, statistics: Statistics) -> str:
        """Add the graph of the file."""
        if isinstance(self._checked(statistics).get_inputs()[0].shape[0], int):
            raise ConfigError(
                f"onnx={self.file} takes a single row at a time, so an exported model would: save the file with a "
                "dynamic first axis, and train again"
            )
        return graph.embed(_bytes(self.file, self.digest), rows)

    def _checked(self, statistics: Statistics) -> Any:
        """Return the session; refuse a file for rows of another width, or with another number of columns."""
        session = _session(self.file, self.digest)
        width, size = session.get_inputs()[0].shape[1], session.get_outputs()[0].shape[1]
        if isinstance(width, int) and width != statistics.n_columns:
            raise ConfigError(
                f"onnx={self.file} reads rows of {width} columns, the data has {statistics.n_columns}: take an encoder "
                "for these columns"
            )
        if size != self.size:
            raise ConfigError(f"onnx={self.file} gives {size} columns, not {self.size}: write onnx={self.file}")
        return session


def _bytes(name: str, digest: str) -> bytes:
    """Return the file with this SHA-256."""
    places = [Path(place).expanduser() for place in os.environ.get(PLACES, "").split(os.pathsep) if place]
    candidates = [Path(name), *(place / name if place.is_dir() else place for place in places)]
    different = []
    for path in [*([_named[digest]] if digest in _named else []), *candidates]:
        if path.is_file():
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() == digest:
                return content
            different.append(str(path))
    hint = f"{' and '.join(different)} has another SHA-256; " if different else ""
    raise ConfigError(
        f"the encoder {name} with SHA-256 {digest} is not on this machine: {hint}put the file into the current "
        f"folder, or name it or its folder in the environment variable {PLACES}"
    )


@lru_cache(maxsize=8)
def _session(name: str, digest: str) -> Any:
    """Return a session of ONNX Runtime for the file with this SHA-256, with a single thread: results do not change."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("features onnx=FILE need onnxruntime: pip install 'rhfedmtl[onnx]'") from error
    content, options = _bytes(name, digest), onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # ONNX Runtime has an exception class for each kind of problem, without a common one.
        raise ConfigError(f"onnx={name} is no model that ONNX Runtime can run from a single file: {error}") from None
    sources, output = session.get_inputs(), session.get_outputs()[0]
    if len(sources) != 1 or sources[0].type not in NUMBERS or len(sources[0].shape) != 2:
        inputs = ", ".join(f"{source.name}: {source.type} {source.shape}" for source in sources) or "none"
        raise ConfigError(
            f"onnx={name} needs a single input, rows × columns of float or double numbers; it has {inputs}"
        )
    if isinstance(sources[0].shape[0], int) and sources[0].shape[0] != 1:
        raise ConfigError(
            f"onnx={name} takes {sources[0].shape[0]} rows at a time: save it with a dynamic first axis, or with 1"
        )
    if output.type not in NUMBERS or len(output.shape) != 2 or not isinstance(output.shape[1], int):
        raise ConfigError(
            f"onnx={name} has the first output {output.name}: {output.type} {output.shape}; it needs rows × a fixed "
            "number of float or double columns"
        )
    return session
