"""Short runs of algorithms by name, for tests that look at what comes out."""

from __future__ import annotations

from typing import Any

from rhfedmtl.algorithms.method import Method
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.registry import Execution
from rhfedmtl.policies.base import Policy
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings


def _settings(engine: str = "inprocess", **settings: Any) -> Settings:
    return Settings(**{"scale": "none", "seed": 5, "execution": Execution(engine)} | settings)


def run(data: Federation, method: Method, policy: Policy | None = None, **settings: Any) -> Result:
    """Learn on rows as they are, without prices."""
    return train(data, method, policy or Fixed(3, 1, 6), _settings(**settings))


def run_built(data: Federation, built: Algorithm, ledger: Ledger | None = None, **settings: Any) -> Result:
    """Learn as an algorithm regroups and plans."""
    return train(built.regroup(data), built.method, built.policy, _settings(**settings), ledger=ledger, judged=data)


def run_named(data: Federation, name: str, **options: Any) -> Result:
    """Learn with an algorithm by its name, six server iterations of three steps unless said."""
    return run_built(data, build(name, Options.of(**{"local_steps": 3, "cloud_rounds": 6} | options), data.kind))
