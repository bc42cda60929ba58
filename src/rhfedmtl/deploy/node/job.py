"""What a network learns, as it is told from node to node, and the objects behind it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.algorithms.options import build
from rhfedmtl.algorithms.registry import Algorithm, as_it_is, is_yardstick
from rhfedmtl.data.federation import as_rows, check_labels, encode, kind_of
from rhfedmtl.deploy.node.config import Learning, Limits, options_of
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, DataError, PeerError
from rhfedmtl.maths.rounds import CURVE

_OVERHEAD = 1 << 14


class NodeRows(NamedTuple):
    """Rows of one node: features, labels (codes or numbers), and weights where there are any."""

    X: npt.NDArray[np.floating[Any]]
    y: npt.NDArray[Any]
    weight: npt.NDArray[np.float64] | None


def job_of(learning: Learning) -> wire.Job:
    """What the cloud tells the stations, and they their terminals."""
    options = learning.chosen()
    return wire.Job(
        algorithm=learning.algorithm,
        options=json.dumps(options.to_dict(), sort_keys=True),
        classes=learning.classes,
        features=learning.features,
        seed=learning.seed,
        precision=wire.FLOAT32 if learning.precision == "float32" else wire.FLOAT64,
        least_steps=learning.least_steps,
    )


def algorithm_of(job: wire.Job) -> Algorithm:
    """The algorithm of a job; one that shares tasks out anew cannot run where data stays where it is."""
    try:
        options = options_of(json.loads(job.options))
        algorithm = build(job.algorithm, options, kind_of(tuple(job.classes)))
    except (ValueError, TypeError, ConfigError) as error:
        raise PeerError(f"a job that cannot be done here: {error}") from None
    if algorithm.regroup is not as_it_is or is_yardstick(job.algorithm):
        raise ConfigError(
            f"{job.algorithm} moves rows between terminals or tasks: in a network they stay where they are"
        )
    return algorithm


def method_of(job: wire.Job) -> Method:
    """What terminals compute and stations merge."""
    return algorithm_of(job).method


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


def targets(rows: NodeRows, classes: tuple[str, ...]) -> npt.NDArray[np.float64]:
    """Labels as the losses want them."""
    return encode(rows.y, classes)
