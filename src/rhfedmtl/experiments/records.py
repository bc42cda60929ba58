"""A run as plain values, and as a folder: configuration, versions, data fingerprint, result, model, ledger."""

from __future__ import annotations

import csv
import json
import math
import platform
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.training import Result, mean
from rhfedmtl.errors import ConfigError
from rhfedmtl.resources.costs import binding


def summary(result: Result) -> dict[str, Any]:
    """The result of a run in plain values: metrics (mean over tasks, and worst task), certificate, what was spent."""
    certificate, ledger = result.certificate, result.ledger
    metrics = {name: mean(values) for name, values in result.metrics.items()}
    worst = {name: _worst(name, values) for name, values in result.metrics.items()}
    facts = {
        **metrics,
        "worst_task": worst,
        "primal": certificate.primal,
        "dual": certificate.dual,
        "gap": certificate.gap,
        "relative_gap": certificate.relative_gap,
        "rounds": result.rounds,
        "cloud_rounds": result.cloud_rounds,
        "terminal_steps": result.terminal_steps,
        "local_steps": result.local_steps,
        "stopped": result.stopped,
        "spent": ledger.spent,
        "budget": dict(ledger.budget),
        "binding": binding(ledger.spent, dict(ledger.budget)),
        "seconds": result.seconds,
    }
    return plain(facts)  # type: ignore[no-any-return]


def plain(value: Any) -> Any:
    """The same without NaN and infinity, which JSON has no word for: they become null."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _worst(name: str, values: npt.NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    if not len(known):
        return float("nan")
    return float(known.max() if name == "rmse" else known.min())


def versions() -> dict[str, str]:
    """Versions of all that can change a number."""
    packages = ("rhfedmtl", "numpy", "scipy", "numba", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def new_folder(root: Path, name: str) -> Path:
    """Make a folder of its own for a run: date, time and name; never one that exists."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for attempt in range(1000):
        folder = root / (f"{stamp}-{name}" if attempt == 0 else f"{stamp}-{name}-{attempt + 1}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot write to {root}: {error.strerror}; choose another folder with --out") from error
        return folder
    raise ConfigError(f"no free folder name like {stamp}-{name} in {root}")


def save(folder: Path, configuration: dict[str, Any], federation: Federation, result: Result) -> None:
    """Write run.json, history.csv, ledger.json and model.npz into ``folder``."""
    run = {
        "configuration": configuration,
        "versions": versions(),
        "data": {"name": federation.origin.name, "fingerprint": federation.fingerprint()},
        "result": {**summary(result), "tasks": by_task(federation, result)},
    }
    (folder / "run.json").write_text(json.dumps(plain(run), indent=2, allow_nan=False) + "\n")
    with (folder / "history.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(result.history[0]))
        table.writeheader()
        table.writerows(result.history)
    result.ledger.save(folder / "ledger.json")
    _save_model(folder / "model.npz", federation, result)


def by_task(federation: Federation, result: Result) -> dict[str, dict[str, float]]:
    """Metrics of every task."""
    return {
        name: {metric: float(values[b]) for metric, values in result.metrics.items()}
        for b, name in enumerate(federation.task_names)
    }


def _save_model(path: Path, federation: Federation, result: Result) -> None:
    """Models and scalers as plain arrays: `numpy.load` reads them without pickle."""
    scalers = result.scalers
    arrays: dict[str, Any] = {
        "models": result.models,
        "reference": result.reference,
        "task_names": np.array(federation.task_names),
        "class_names": np.array(federation.class_names, dtype=np.str_),
        "unit": np.array([scaler.unit for scaler in scalers]),
    }
    if scalers[0].mean is not None:
        arrays["mean"] = np.array([scaler.mean for scaler in scalers])
        arrays["scale"] = np.array([scaler.scale for scaler in scalers])
    np.savez(path, **arrays)
