"""Many runs: divide them among processes, record each run once, and continue after an interruption.

`planned.run_all` calls `sweep` for studies. The record of a run is a file named by the run's key and written
atomically. A sweep that is killed therefore leaves only complete records, and the next sweep makes only the missing
runs. Neither the number of workers nor their order changes a number.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import cache, lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from rhfedmtl.data.cache import sha256
from rhfedmtl.data.federation import Federation, Source
from rhfedmtl.data.registry import DATASETS
from rhfedmtl.data.request import Request
from rhfedmtl.data.threads import cores
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import BudgetError, ClusterError, ConfigError, DivergenceError
from rhfedmtl.files import write_whole
from rhfedmtl.plain import read
from rhfedmtl.provenance import versions
from rhfedmtl.runs import progress, recording, records
from rhfedmtl.runs.records import Record
from rhfedmtl.selection.weights import choose_settings
from rhfedmtl.training.config import RunConfig

T = TypeVar("T")
R = TypeVar("R")
_MAX_BYTES = 1 << 28  # larger rows before the split are not cached between seeds
Watch = Callable[[int, int, str], None]
"""Receives the numbers of finished and of all runs, and the name of the last run: method, budget and seed."""
Workers = int | Executor | None
"""Number of processes on this machine (None: the number of cores), or an executor such as a cluster's pool."""


class Store:
    """A folder of records, by the key of each run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot write to {folder}: {error.strerror}; choose another folder with --out"
            ) from error

    def read(self, config: RunConfig) -> Record | None:
        """Return the record of a run; None if it is missing, or comes from another version or other data."""
        try:
            record = records.load(self.folder / f"{config.key}.json")
        except ConfigError:
            return None
        origin = record.versions, record.file
        return record if origin == (versions(), digest(config.request.path)) else None

    def write(self, record: Record) -> None:
        """Write a record atomically."""
        text = json.dumps(record.to_dict(), allow_nan=False)
        write_whole(self.folder / f"{record.key}.json", text)


def digest(path: str | None) -> str | None:
    """Return a digest of the data file; None if the data is not a single file."""
    if path is None or not Path(path).expanduser().is_file():
        return None
    facts = Path(path).expanduser().stat()
    return _digest(path, facts.st_mtime_ns, facts.st_size)


@cache
def _digest(path: str, _changed: int, _size: int) -> str:
    return sha256(Path(path).expanduser())[:20]


def execute(config: RunConfig) -> Record:
    """Make a run as `train` does, and record it. A refused budget and a diverged method are results too."""
    federation = _federation(config.request, config.seed)
    file = digest(config.request.path)
    try:
        chosen = choose_settings(config, federation, execution=Execution(threads=1))
        result = chosen.config.run(federation, before=chosen.before, execution=Execution(threads=1))
    except (BudgetError, DivergenceError) as error:
        diverged = isinstance(error, DivergenceError)
        return recording.record(config, federation, None, refused=str(error), diverged=diverged, file=file)
    return recording.record(config, federation, result, tuning=chosen.tuning, selection=chosen.selection, file=file)


@lru_cache(maxsize=4)
def _federation_of(text: str, seed: int, file: str | None) -> Federation:
    request = read(Request, json.loads(text))
    if DATASETS[request.data].federated:
        return request.federation(seed)
    rows = Request(request.data, request.path, settings=request.settings)
    source = _source_of(rows.key, file)
    if source.X.nbytes > _MAX_BYTES:
        _source_of.cache_clear()
    return request.federation(seed, source)


@lru_cache(maxsize=1)
def _source_of(text: str, _file: str | None) -> Source:
    return read(Request, json.loads(text)).source()


def _federation(request: Request, seed: int) -> Federation:
    """Return the data of a run; consecutive runs of a sweep share it."""
    return _federation_of(request.key, seed, digest(request.path))


def sweep(
    configs: Iterable[RunConfig], store: Store, *, workers: Workers = None, watch: Watch | None = None
) -> list[Record]:
    """Return the records of all runs, in their order; runs that the store has are not made again."""
    runs = list(configs)
    for config in runs:
        config.check()
    by_key = {config.key: config for config in runs}
    finished = {key: record for key, config in by_key.items() if (record := store.read(config)) is not None}
    missing = [config for key, config in by_key.items() if key not in finished]
    _check_data(missing)
    progress.count(store.folder, len(finished), len(by_key))
    with closing(in_parallel(execute, missing, workers)) as new_records:
        for record in new_records:
            store.write(record)
            finished[record.key] = record
            progress.count(store.folder, len(finished), len(by_key))
            if watch is not None:
                config = by_key[record.key]
                name = " ".join([config.algorithm, *config.budget, f"seed {config.seed}"])
                watch(len(finished), len(by_key), name)
    return [finished[config.key] for config in runs]


def in_parallel(work: Callable[[T], R], items: Sequence[T], workers: Workers) -> Generator[R, None, None]:
    """Yield the result of ``work`` for each item in order of completion; closing the generator ends its processes."""
    workers = cores() if workers is None else workers
    if isinstance(workers, Executor):
        yield from (job.result() for job in as_completed([workers.submit(work, item) for item in items]))
    elif workers <= 1 or len(items) <= 1:
        yield from map(work, items)
    else:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        processes = ProcessPoolExecutor(workers, initializer=_end_with_parent, initargs=(receiver, sender))
        with receiver, processes as pool, sender:
            try:
                yield from in_parallel(work, items, pool)
                pool.shutdown()
            except BrokenProcessPool as error:
                raise ClusterError(
                    "a process that makes runs was killed, perhaps because memory ran out: finished runs are recorded, "
                    f"and the same command continues from there; fewer than {workers} --workers take less memory"
                ) from error


def _end_with_parent(receiver: Connection, sender: Connection) -> None:
    """Let a worker exit, even in the middle of a run, once its parent closes the other end of a pipe or dies.

    Ctrl-C ends the worker too: if it were caught, it would end only this run and the next run would start.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sender.close()

    def watch() -> None:
        receiver.poll(None)  # nothing is ever sent, so this returns when the pipe closes
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _check_data(configs: Iterable[RunConfig]) -> None:
    """Refuse a split that the data does not allow before the first run starts."""
    firsts: dict[str, RunConfig] = {}
    for config in configs:
        firsts.setdefault(config.request.key, config)
    for config in firsts.values():
        _federation(config.request, config.seed)
