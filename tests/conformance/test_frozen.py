"""Numbers that only a change which means to may change: digests of models, ledgers and records of many small runs.

``python -m tests.conformance.test_frozen`` writes the list anew; the commit that does so says why.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from llvmlite import binding
from tests.engines.shards import LOCAL
from tests.turns import in_turn

from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import ALGORITHMS, MERGES
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.maths.registry import LOSSES, RELATIONSHIPS
from rhfedmtl.runs.records import record
from rhfedmtl.training.config import RunConfig

FILE = Path(__file__).with_name("frozen.json")
DIGITS = 9
UNFROZEN = ("versions", "key", "command")
FAULTS = {"calm": "", "faults": "dropout=0.2,moves=0.3,churn=0.1,late_rows=0.3,late_until=6"}


def cases() -> dict[str, RunConfig]:
    """Every algorithm with its defaults, calm and with faults; every merge × relationship × loss of rhfedmtl."""
    known = {
        f"{name} {sky}": _config(name, Options(cloud_rounds=12 if name == "constant" else None), faults)
        for name in ALGORITHMS.own
        for sky, faults in FAULTS.items()
        if not (faults and name in ("pooled", "constant"))
    }
    for merge in MERGES.own:
        for relationship in RELATIONSHIPS.own:
            options = Options(merge=merge, relationship=relationship, lambda2=1e-2)
            known[f"rhfedmtl {merge} {relationship}"] = _config("rhfedmtl", options, FAULTS["faults"])
        for loss in LOSSES.own:
            known[f"rhfedmtl {merge} {loss}"] = _config("rhfedmtl", Options(merge=merge, loss=loss), "")
    return known


def _config(algorithm: str, options: Options, faults: str) -> RunConfig:
    classes = {"squared": 0, "hinge": 2}.get(options.loss or "", 3)
    settings = {"unequal": 0.5, "test": 20, "features": 24, "classes": classes}
    request = Request(data="synthetic", tasks=3, terminals=3, settings=settings)
    cost = ("energy=0.1,10,1", "time=0.01,0.1", "bytes=0,0")
    return RunConfig(algorithm, request, options, cost, ("energy=250", "time=30"), faults, certify_every=2)


@cache
def _federation(text: str) -> Federation:
    return Request(**json.loads(text)).federation(0)


def rounded(value: Any) -> Any:
    """The same with every number to so many digits."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items() if name != "seconds"}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    return float(f"{value:.{DIGITS}g}") + 0.0 if isinstance(value, float) else value


def digests(config: RunConfig, engine: str) -> dict[str, str]:
    """What a run leaves behind, each in a word."""
    federation = _federation(json.dumps(config.request.to_dict()))
    result = config.run(federation, execution=Execution(engine=engine, threads=1))
    made = record(config, federation, result)
    left = {
        "models": result.models.tolist(),
        "ledger": result.ledger.totals("tier"),
        "record": {name: part for name, part in made.to_dict().items() if name not in UNFROZEN},
    }
    return {name: hashlib.sha256(json.dumps(rounded(part)).encode()).hexdigest()[:16] for name, part in left.items()}


CASES = cases()


# Engines agree to the bit, as other tests see, so each case passes through one of them in its turn.
@pytest.mark.parametrize(("name", "engine"), in_turn(CASES, LOCAL))
def test_models_ledgers_and_records_are_as_they_were(name: str, engine: str) -> None:
    """To nine digits, through every engine that needs no cluster."""
    frozen = json.loads(FILE.read_text())
    if frozen["cpu"] != binding.get_host_cpu_name():
        pytest.skip(f"frozen on {frozen['cpu']}: this CPU adds in another order")
    assert digests(CASES[name], engine) == frozen["digests"][name]


if __name__ == "__main__":
    found = {name: digests(config, LOCAL[0]) for name, config in CASES.items()}
    FILE.write_text(json.dumps({"cpu": binding.get_host_cpu_name(), "digests": found}, indent=1) + "\n")
