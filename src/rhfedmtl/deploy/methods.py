"""Return the algorithm or the method of a job, from the registry of algorithms.

Cloud, stations and terminals of the full program call it. Terminals of the light program `rhfedmtl-terminal` have no
registry and find their method in another way.
"""

from __future__ import annotations

import json

from rhfedmtl.algorithms.method import Method
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import Algorithm, is_yardstick, unchanged
from rhfedmtl.data.federation import kind_of
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError


def algorithm_of(job: wire.Job) -> Algorithm:
    """Return the algorithm of a job; refuse unknown algorithms, and algorithms that move rows between terminals."""
    try:
        algorithm = build(job.algorithm, Options.of(**json.loads(job.options)), kind_of(tuple(job.classes)))
    except (ValueError, TypeError, ConfigError) as error:
        raise PeerError(f"this node cannot run the job: {error}") from None
    if algorithm.regroup is not unchanged or is_yardstick(job.algorithm):
        raise ConfigError(
            f"{job.algorithm} moves rows between terminals or tasks, but in a network rows stay on their terminal: "
            "choose another algorithm"
        )
    return algorithm


def method_of(job: wire.Job) -> Method:
    """Return the method of a job: terminals compute with it, and stations merge its updates."""
    return algorithm_of(job).method
