"""What a network learns, as it is told from node to node: shapes, sizes of messages, and rows that fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import as_rows, check_labels
from rhfedmtl.deploy.node.config import Limits
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import DataError, PeerError
from rhfedmtl.maths.kernels.rounds import CURVE

_OVERHEAD = 1 << 14
MethodOf = Callable[[wire.Job], Method]
"""Finds the method of a job: what terminals compute and stations merge."""


class NodeRows(NamedTuple):
    """Rows of one node: features, labels (codes or numbers), and weights where there are any."""

    X: npt.NDArray[np.floating[Any]]
    y: npt.NDArray[Any]
    weight: npt.NDArray[np.float64] | None


def shape_of(job: wire.Job, method: Method) -> tuple[int, int]:
    """Columns × features of a model of this job."""
    columns = len(job.classes) if len(job.classes) > 2 else 1
    if not 0 < job.features < 1 << 24 or len(job.classes) == 1 or len(job.classes) > 1 << 16:
        raise PeerError(f"a job with {job.features} features and {len(job.classes)} classes")
    return columns, job.features + method.intercept


def matrix_of(job: wire.Job, method: Method) -> tuple[tuple[int, int], int]:
    """Shape of orders and updates, and how many of its rows travel to the cloud."""
    columns, width = shape_of(job, method)
    return (method.rows(columns), width), method.shared_rows(columns)


def message_limit(job: wire.Job, method: Method, limits: Limits) -> int:
    """Bytes of the largest message: four times what the shapes call for, unless told."""
    (rows, width), _ = matrix_of(job, method)
    return limits.message_bytes or 4 * (8 * rows * width + 8 * (CURVE + method.profile_length)) + _OVERHEAD


def load_rows(path: Path, features: int, classes: tuple[str, ...]) -> NodeRows:
    """Rows from an .npz file with X, y and perhaps weight; checked before anything is learned from them."""
    try:
        with np.load(path, allow_pickle=False) as file:
            X, y = as_rows(file["X"]), file["y"]
            weight = np.asarray(file["weight"], dtype=np.float64) if "weight" in file else None
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} cannot be read as X and y in an .npz file: {error}") from None
    if X.shape[1] != features or len(X) != len(y):
        raise DataError(f"{path} has rows of shape {X.shape} and {len(y)} labels; the job has {features} features")
    check_labels(y, classes)
    return NodeRows(X, y, weight)
