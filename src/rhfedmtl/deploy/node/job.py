"""The learning job of a network: shapes of models, message limits, agreements of round zero, and rows that fit.

The cloud sends the job (``wire.Job``) to its stations, and they pass it on to their terminals. Stations and terminals
use this module to derive shapes and limits from the job, and to load and check their rows against it.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl import unpacking
from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import as_rows, check_finite, check_labels
from rhfedmtl.deploy.node.config import Limits
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, DataError, PeerError
from rhfedmtl.features.maps import MOST_COLUMNS, Features
from rhfedmtl.maths.kernels.rounds import CURVE
from rhfedmtl.roles.messages import Centring, Noising, Scaling

TABLE = ".csv"
_OVERHEAD = 1 << 14
_NAMES = "; write one of these names (numbers are labels of regressions)"
MethodOf = Callable[[wire.Job], Method]
"""Returns the method of a job: the computations of terminals, and the merge of stations."""


class NodeRows(NamedTuple):
    """Rows of a node: features, labels (codes or numbers), and weights or None."""

    X: npt.NDArray[np.floating[Any]]
    y: npt.NDArray[Any]
    weight: npt.NDArray[np.float64] | None

    @property
    def digest(self) -> bytes:
        """SHA-256 over features, labels and weights in their order."""
        parts = (np.ascontiguousarray(part if part is not None else ()).data for part in self)
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


AGREED: dict[str, type] = {"scaling": Scaling, "centring": Centring, "noising": Noising}
Carrier = wire.Welcome | wire.StationFile | wire.TerminalFile


@dataclass
class Agreement:
    """Agreements of a station and its terminals before the first round. Once made, an agreement never changes."""

    scaling: Scaling | None = None
    centring: Centring | None = None
    noising: Noising | None = None

    @classmethod
    def read(cls, carrier: Carrier) -> Agreement:
        """Read the agreements that a message or a file carries."""
        kinds = {name: kind for name, kind in AGREED.items() if carrier.HasField(name)}
        return cls(**{name: codec.from_wire(kind, getattr(carrier, name)) for name, kind in kinds.items()})

    def write(self, to: Carrier, *, private_only: bool = False) -> None:
        """Write the agreements into a message or a file; with ``private_only``, only the noise that hides sums."""
        for name in ("noising",) if private_only else AGREED:
            if (part := getattr(self, name)) is not None:
                getattr(to, name).CopyFrom(codec.to_wire(part))


def shape_of(job: wire.Job, method: Method) -> tuple[int, int]:
    """Return columns × features of a model, with the intercept among the features."""
    columns = len(job.classes) if len(job.classes) > 2 else 1
    if not 0 < job.features < 1 << 24 or len(job.classes) == 1 or len(job.classes) > 1 << 16:
        raise PeerError(f"a job with {job.features} features and {len(job.classes)} classes")
    check_columns(method.features, job.features)
    return columns, method.width(job.features)


def matrix_of(job: wire.Job, method: Method) -> tuple[tuple[int, int], int]:
    """Return the shape of orders and updates, and the number of rows that go to the cloud."""
    columns, width = shape_of(job, method)
    return (method.rows(columns), width), method.shared_rows(columns)


def message_limit(job: wire.Job, method: Method, limits: Limits) -> int:
    """Return the limit for a message in bytes: as configured, or four times the largest message of these shapes."""
    (rows, width), _ = matrix_of(job, method)
    numbers = max(rows * width, method.features.most_numbers(job.features))
    return limits.message_bytes or 4 * (8 * numbers + 8 * (CURVE + method.profile_length)) + _OVERHEAD


def check_columns(features: Features, n_columns: int) -> None:
    """Refuse feature maps of more columns than nodes compute."""
    if features and (columns := features.columns(n_columns)) > MOST_COLUMNS:
        raise ConfigError(
            f"features {features.text!r} make {columns:,} columns of {n_columns:,}, and a network computes at most "
            f"{MOST_COLUMNS:,}: give the maps fewer"
        )


def load_rows(path: Path, features: int, classes: tuple[str, ...], columns: tuple[str, ...] = ()) -> NodeRows:
    """Read rows with `read_rows`, turn class names into codes, and check shapes, labels and finite values."""
    X, y, weight = read_rows(path, columns)
    if X.shape[1] != features or len(X) != len(y):
        raise DataError(f"{path} has rows of shape {X.shape} and {len(y)} labels; the job has {features} features")
    if y.dtype.kind == "U" and not classes:
        y = np.array([_number(path, "label", word) for word in y.tolist()])
    elif y.dtype.kind == "U":
        if unknown := sorted(set(y.tolist()) - set(classes)):
            names = ", ".join(classes)
            raise DataError(f"{path} has the label {unknown[0]!r}: the classes of the network are {names}{_NAMES}")
        y = np.array([classes.index(word) for word in y.tolist()])
    check_labels(y, classes)
    check_finite(X, columns, lambda _: f" of {path}")
    return NodeRows(X, y, weight)


def read_rows(path: Path, columns: tuple[str, ...] = ()) -> NodeRows:
    """Read rows from an .npz file with X, y and optionally weight, or from a .csv file with names in its first line.

    In a .csv file, ``columns`` are the features and the remaining column is the label. If ``columns`` is empty, the
    last column is the label.
    """
    if path.suffix == TABLE:
        return _read_table(path, columns)
    try:
        file = unpacking.read_npz(path, ("X", "y", "weight"))
        weight = np.asarray(file["weight"], dtype=np.float64) if "weight" in file else None
        return NodeRows(as_rows(file["X"]), file["y"], weight)
    except (*unpacking.READING, TypeError) as error:
        raise DataError(
            f"{path} cannot be read as X and y in an .npz file: {unpacking.why(error)}; "
            "numpy.savez('rows.npz', X=X, y=y) writes one, and a .csv file with names in its first line will do"
        ) from None


def _read_table(path: Path, columns: tuple[str, ...]) -> NodeRows:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            names, *lines = [line for line in csv.reader(file) if line]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from None
    if missing := [name for name in columns if name not in names]:
        raise DataError(f"{path} has no column {missing[0]!r}, which is among the network's {len(columns)} features")
    labels = [name for name in names if name not in columns]
    if columns and len(labels) != 1:
        extra = ", ".join(labels) or "nothing"
        raise DataError(f"{path} has {extra} besides the features: it needs a single further column, the label")
    torn = [f": row {i} has not {len(names)} cells" for i, line in enumerate(lines, 1) if len(line) != len(names)]
    if torn or not lines:
        raise DataError(f"{path}{torn[0] if torn else ' has no rows'}")
    features, label = [names.index(name) for name in columns or names[:-1]], names.index(labels[-1])
    X = [[_number(path, names[i], line[i]) for i in features] for line in lines]
    return NodeRows(as_rows(np.array(X)), np.array([line[label] for line in lines]), None)


def _number(path: Path, name: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise DataError(f"{path}, column {name!r} holds {cell!r}, no number: fill or drop such rows") from None
