"""Frozen results of many small runs: a change of any number must be intended.

`frozen.json` holds two things for every run. The numbers (objective, dual, gap, costs, H of every round, metrics and
some weights) are compared with a tolerance on every CPU. Digests of the whole result are compared on the CPU that they
were made on, because another CPU adds in another order.

``python -m tests.conformance.test_frozen`` writes the file. Explain in the commit why numbers change.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
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
from rhfedmtl.runs.recording import record
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.result import Result

FILE = Path(__file__).with_name("frozen.json")
DIGITS = 9
UNFROZEN = ("versions", "key", "command", "weights")
NESTED = ("seconds", "solver", "rounds_by_solver")
"""Left out of digests at every level."""
TOLERANCE = 1e-7
"""Relative; a gap is compared relative to the objective, weights and metrics relative to the largest of their row."""
WEIGHTS = 5
"""Weights of each model that are kept, spread evenly over its entries."""
FAULTS = {"calm": "", "faults": "dropout=0.2,moves=0.3,churn=0.1,late_rows=0.3,late_until=6"}


def cases() -> dict[str, RunConfig]:
    """Return every algorithm with and without faults, and every merge × relationship and merge × loss."""
    configs = {
        f"{name} {sky}": _config(name, Options(cloud_rounds=12 if name == "constant" else None), faults)
        for name in ALGORITHMS.own
        for sky, faults in FAULTS.items()
        if not (faults and name in ("pooled", "constant"))
    }
    for merge in MERGES.own:
        for relationship in RELATIONSHIPS.own:
            options = Options(merge=merge, relationship=relationship, lambda2=1e-2)
            configs[f"rhfedmtl {merge} {relationship}"] = _config("rhfedmtl", options, FAULTS["faults"])
        for loss in LOSSES.own:
            configs[f"rhfedmtl {merge} {loss}"] = _config("rhfedmtl", Options(merge=merge, loss=loss), "")
    return configs


def _config(algorithm: str, options: Options, faults: str) -> RunConfig:
    classes = {"squared": 0, "hinge": 2}.get(options.loss or "", 3)
    settings = {"unequal": 0.5, "test": 20, "features": 24, "classes": classes}
    request = Request(data="synthetic", tasks=3, terminals=3, settings=settings)
    cost = ("energy=0.1,10,1", "time=0.01,0.1", "bytes=0,0")
    return RunConfig(algorithm, request, options, cost, ("energy=250", "time=30"), faults, certify_every=2)


@cache
def _federation(text: str) -> Federation:
    return Request(**json.loads(text)).federation(0)


def cpu_name() -> str:
    """Name of the CPU that kernels are compiled for."""
    return str(numba.config.CPU_NAME or binding.get_host_cpu_name())


def rounded(value: Any) -> Any:
    """Return the same structure with every float rounded to `DIGITS` digits."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items() if name not in NESTED}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    return float(f"{value:.{DIGITS}g}") + 0.0 if isinstance(value, float) else value


@cache
def _outcome(name: str, engine: str) -> tuple[Result, dict[str, Any]]:
    config = CASES[name]
    federation = _federation(json.dumps(config.request.to_dict()))
    result = config.run(federation, execution=Execution(engine=engine, threads=1))
    return result, record(config, federation, result).to_dict()


def digests(name: str, engine: str) -> dict[str, str]:
    """Return a digest each of the models, the ledger and the record of a run."""
    result, whole = _outcome(name, engine)
    parts = {
        "models": result.models.tolist(),
        "ledger": result.ledger.totals("tier"),
        "record": {key: part for key, part in whole.items() if key not in UNFROZEN},
    }
    return {key: hashlib.sha256(json.dumps(rounded(part)).encode()).hexdigest()[:16] for key, part in parts.items()}


def numbers(name: str, engine: str) -> dict[str, list[float]]:
    """Return the numbers of a run that are compared on every CPU, as named rows."""
    result, whole = _outcome(name, engine)
    summary, flat = whole["result"], result.models.reshape(len(result.models), -1)
    kept = np.linspace(0, flat.shape[1] - 1, WEIGHTS).astype(int)
    rows = {
        "objective": [summary["primal"], summary["dual"], summary["gap"]],
        "rounds": [summary["rounds"], summary["cloud_rounds"], summary["terminal_steps"]],
        "cloud round of every round": whole["rounds"]["cloud_round"],
        "mean H of every round": np.mean(whole["rounds"]["local_steps"], axis=1).tolist(),
        **{f"spent {kind}": [amount] for kind, amount in summary["spent"].items()},
        **{f"{metric} by task": values for metric, values in whole["by_task"].items()},
        **{f"weights of task {b}": model[kept].tolist() for b, model in enumerate(flat)},
    }
    return {key: [float("nan") if x is None else float(x) for x in row] for key, row in rows.items()}


def differences(actual: dict[str, list[float]], frozen: dict[str, list[float | None]]) -> list[str]:
    """Return a line for each row that differs by more than the tolerance."""
    if actual.keys() != frozen.keys():
        return [f"rows {sorted(actual)} instead of {sorted(frozen)}"]
    lines = []
    for key, row in actual.items():
        expected = [float("nan") if x is None else x for x in frozen[key]]
        size = np.nanmax(np.abs([*expected, 0.0]))
        if not np.allclose(row, expected, rtol=0.0, atol=TOLERANCE * size, equal_nan=True):
            lines.append(f"{key}: {row} instead of {expected}")
    return lines


CASES = cases()


# Engines agree to the bit, as other tests check, so each case runs on one of them in turn.
@pytest.mark.parametrize(("name", "engine"), in_turn(CASES, LOCAL))
def test_results_are_the_frozen_ones(name: str, engine: str) -> None:
    """Numbers agree to a relative 1e-7 on every CPU; digests agree on the CPU that they were made on."""
    frozen = json.loads(FILE.read_text())
    assert differences(numbers(name, engine), frozen["numbers"][name]) == []
    if frozen["cpu"] == cpu_name():
        assert digests(name, engine) == frozen["digests"][name]


def test_a_changed_number_is_noticed() -> None:
    """A change of 1e-6 in one weight, or a missing row, fails the comparison."""
    name = next(iter(CASES))
    frozen = json.loads(FILE.read_text())["numbers"][name]
    changed = {**frozen, "weights of task 0": [x * (1 + 1e-6) for x in frozen["weights of task 0"]]}
    assert differences(changed, frozen)
    assert differences({key: row for key, row in frozen.items() if key != "objective"}, frozen)
    assert not differences(frozen, frozen)


def freeze() -> dict[str, Any]:
    """Return what `frozen.json` holds, from runs of the first engine."""
    kept = {name: numbers(name, LOCAL[0]) for name in CASES}
    plain = {
        name: {key: [None if math.isnan(x) else float(f"{x:.12g}") for x in row] for key, row in rows.items()}
        for name, rows in kept.items()
    }
    return {"cpu": cpu_name(), "digests": {name: digests(name, LOCAL[0]) for name in CASES}, "numbers": plain}


if __name__ == "__main__":
    text = json.dumps(freeze(), indent=1)
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda row: "[" + re.sub(r"\s+", " ", row.group(1)) + "]", text)
    FILE.write_text(text + "\n")
