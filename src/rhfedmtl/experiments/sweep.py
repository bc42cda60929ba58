"""Many runs: shared out over processes, each recorded once, and continued where they stopped.

A run's record is a file named by the run's key, written in one piece: a sweep that is killed leaves whole records or
none, and the next one makes only what is missing. Neither workers nor their order change a number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.data.threads import cores
from rhfedmtl.errors import BudgetError, ConfigError
from rhfedmtl.experiments import records
from rhfedmtl.experiments.configs import RunConfig

FORMAT = 1
Record = dict[str, Any]
Watch = Callable[[int, int], None]


class Store:
    """A folder of records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot write to {folder}: {error.strerror}; choose another folder with --out"
            ) from error

    def read(self, key: str) -> Record | None:
        """The record of a run; None where it is not there, or was written by another version."""
        path = self.folder / f"{key}.json"
        try:
            record: Record = json.loads(path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        same = record.get("format") == FORMAT and record.get("versions") == records.versions()
        return record if same else None

    def write(self, key: str, record: Record) -> None:
        """Write a record in one piece."""
        path, draft = self.folder / f"{key}.json", self.folder / f".{key}.{os.getpid()}.tmp"
        draft.write_text(json.dumps(record, allow_nan=False))
        draft.replace(path)


def execute(config: RunConfig) -> Record:
    """Carry out one run and record it; a budget that pays no round is a result, not a failure."""
    federation = _federation(config.request, config.seed)
    record = {
        "format": FORMAT,
        "versions": records.versions(),
        "config": records.plain(config.to_dict()),
        "fingerprint": federation.fingerprint(),
    }
    try:
        result = config.run(federation, threads=1)
    except BudgetError as error:
        return {**record, "refused": str(error), "result": None}
    return {
        **record,
        "result": records.summary(result),
        "tasks": records.plain(records.by_task(federation, result)),
        "history": records.plain(result.history),
    }


@lru_cache(maxsize=4)
def _federation_of(text: str, seed: int) -> Federation:
    return Request(**json.loads(text)).federation(seed)


def _federation(request: Request, seed: int) -> Federation:
    """Neighbouring runs of a sweep share their data."""
    fields = request.to_dict()
    if isinstance(request.tasks, tuple):
        return request.federation(seed)
    return _federation_of(json.dumps(fields, sort_keys=True), seed)


def sweep(
    configs: Iterable[RunConfig], store: Store, *, workers: int | None = None, watch: Watch | None = None
) -> list[Record]:
    """Records of all runs, in their order; those that the store has are not made again."""
    wanted = list(configs)
    for config in wanted:
        config.check()
    keys = [config.key for config in wanted]
    missing = {key: config for key, config in zip(keys, wanted, strict=True) if store.read(key) is None}
    done = len(set(keys)) - len(missing)
    workers = cores() if workers is None else workers
    if workers <= 1 or len(missing) <= 1:
        for key, config in missing.items():
            store.write(key, execute(config))
            done = _report(done, len(set(keys)), watch)
    else:
        with ProcessPoolExecutor(workers) as pool:
            jobs = {pool.submit(execute, config): key for key, config in missing.items()}
            for job in as_completed(jobs):
                store.write(jobs[job], job.result())
                done = _report(done, len(set(keys)), watch)
    return [store.read(key) or {} for key in keys]


def _report(done: int, total: int, watch: Watch | None) -> int:
    if watch is not None:
        watch(done + 1, total)
    return done + 1


def interval(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Mean, and half of its 95 % interval (Student's t); the half is 0 for a single value."""
    n = len(values)
    if n < 2:
        return float(values.mean()), 0.0
    return float(values.mean()), float(stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n))
