"""The algorithm behind a job, by the registry of algorithms; nodes without it are given another way to a method."""

from __future__ import annotations

import json

from rhfedmtl.algorithms.method import Method
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import Algorithm, is_yardstick, unchanged
from rhfedmtl.data.federation import kind_of
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError


def algorithm_of(job: wire.Job) -> Algorithm:
    """The algorithm of a job; one that shares tasks out anew cannot run where data stays where it is."""
    try:
        algorithm = build(job.algorithm, Options.of(**json.loads(job.options)), kind_of(tuple(job.classes)))
    except (ValueError, TypeError, ConfigError) as error:
        raise PeerError(f"a job that cannot be done here: {error}") from None
    if algorithm.regroup is not unchanged or is_yardstick(job.algorithm):
        raise ConfigError(
            f"{job.algorithm} moves rows between terminals or tasks: in a network they stay where they are"
        )
    return algorithm


def method_of(job: wire.Job) -> Method:
    """What terminals compute and stations merge."""
    return algorithm_of(job).method
