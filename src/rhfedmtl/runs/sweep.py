"""Many runs: shared out over processes, each recorded once, and continued where they stopped.

A run's record is a file named by the run's key, written in one piece: a sweep that is killed leaves whole records or
none, and the next one makes only what is missing. Neither workers nor their order change a number.
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
_MOST_BYTES = 1 << 28  # rows before the split are kept from seed to seed, unless they are more
Watch = Callable[[int, int], None]
Workers = int | Executor | None
"""Who makes the runs: so many processes here (None: as many as there are cores), or an executor, as of a cluster."""


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

    def read(self, config: RunConfig) -> Record | None:
        """The record of a run; None where it is not there, or came from another version or other data."""
        try:
            record = records.load(self.folder / f"{config.key}.json")
        except ConfigError:
            return None
        known = record.versions, record.file
        return record if known == (versions(), digest(config.request.path)) else None

    def write(self, record: Record) -> None:
        """Write a record in one piece."""
        text = json.dumps(record.to_dict(), allow_nan=False)
        write_whole(self.folder / f"{record.key}.json", text)


def digest(path: str | None) -> str | None:
    """What the file with the data holds, in a word; None where the data is in no single file."""
    if path is None or not Path(path).expanduser().is_file():
        return None
    facts = Path(path).expanduser().stat()
    return _digest(path, facts.st_mtime_ns, facts.st_size)


@cache
def _digest(path: str, _changed: int, _size: int) -> str:
    return sha256(Path(path).expanduser())[:20]


def execute(config: RunConfig) -> Record:
    """Carry out one run as `train` does and record it. A refused budget or a diverging method is a result too."""
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
    if source.X.nbytes > _MOST_BYTES:
        _source_of.cache_clear()
    return request.federation(seed, source)


@lru_cache(maxsize=1)
def _source_of(text: str, _file: str | None) -> Source:
    return read(Request, json.loads(text)).source()


def _federation(request: Request, seed: int) -> Federation:
    """Neighbouring runs of a sweep share their data."""
    return _federation_of(request.key, seed, digest(request.path))


def sweep(
    configs: Iterable[RunConfig], store: Store, *, workers: Workers = None, watch: Watch | None = None
) -> list[Record]:
    """Records of all runs, in their order; those that the store has are not made again."""
    wanted = list(configs)
    for config in wanted:
        config.check()
    by_key = {config.key: config for config in wanted}
    known = {key: record for key, config in by_key.items() if (record := store.read(config)) is not None}
    missing = [config for key, config in by_key.items() if key not in known]
    _check_data(missing)
    progress.count(store.folder, len(known), len(by_key))
    with closing(made(execute, missing, workers)) as found:
        for record in found:
            store.write(record)
            known[record.key] = record
            progress.count(store.folder, len(known), len(by_key))
            if watch is not None:
                watch(len(known), len(by_key))
    return [known[config.key] for config in wanted]


def made(make: Callable[[T], R], wanted: Sequence[T], workers: Workers) -> Generator[R, None, None]:
    """What is made of each, as soon as it is, in whatever order; processes here end with whoever wants it."""
    workers = cores() if workers is None else workers
    if isinstance(workers, Executor):
        yield from (job.result() for job in as_completed([workers.submit(make, each) for each in wanted]))
    elif workers <= 1 or len(wanted) <= 1:
        yield from map(make, wanted)
    else:
        here, there = multiprocessing.Pipe(duplex=False)
        with here, ProcessPoolExecutor(workers, initializer=_ends_with, initargs=(here, there)) as pool, there:
            try:
                yield from made(make, wanted, pool)
                pool.shutdown()
            except BrokenProcessPool as error:
                raise ClusterError(
                    "a process that makes runs was ended from outside, perhaps for want of memory: what is finished is "
                    f"kept, and the same command goes on from there; fewer than {workers} --workers take less memory"
                ) from error


def _ends_with(here: Connection, there: Connection) -> None:
    """Let a worker end, in the middle of a run too, once its parent closes the other end of a pipe or is gone itself.

    Ctrl-C ends it as well: caught there, it would end one run and let the next begin.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    there.close()

    def watch() -> None:
        here.poll(None)  # nothing is ever said
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _check_data(configs: Iterable[RunConfig]) -> None:
    """Refuse a split that the data does not allow before the first run, not in the middle of them."""
    firsts: dict[str, RunConfig] = {}
    for config in configs:
        firsts.setdefault(config.request.key, config)
    for config in firsts.values():
        _federation(config.request, config.seed)
