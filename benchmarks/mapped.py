"""A run over more data than the process may have in memory: rows on disk, scaled into a file beside them.

    systemd-run --scope -p MemoryMax=1500M python benchmarks/mapped.py [--terminals N] [--folder FOLDER]

or under any other limit of memory. The data is made first and put out of the memory; then it is trained on for three
rounds, and certified. It takes twice its size on the disk meanwhile: 4.1 GB unless told otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.speed_timing import resident

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.loaders.saved import load, save
from rhfedmtl.data.loaders.synthetic import Synthetic, make
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings

PER_TASK = 1_000


def put_away(folder: Path, terminals: int) -> None:
    """Make the data on disk, and let the memory forget it."""
    save(make(Synthetic(terminals // PER_TASK, PER_TASK, samples=16, features=128, test=20), folder=folder), folder)
    for file in folder.glob("*.npy"):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def train(folder: Path) -> dict[str, float]:
    """Seconds to load and scale, and of three rounds with a certificate; memory at the end."""
    data = load(folder)
    start = time.perf_counter()
    run = Run(data, DualMethod(relationship=MeanRegularised(1e-3, 1e-3)), Settings(), Ledger({}))
    loaded = time.perf_counter()
    run.learn(Fixed(16, 1, 3))
    gap = run.certify().relative_gap
    return {
        "terminals": data.n_terminals,
        "data_gb": data.X.nbytes / 1e9,
        "loading_s": loaded - start,
        "rounds_s": time.perf_counter() - loaded,
        "relative_gap": gap,
        "resident_gb": resident() / 1e9,
        "not_from_files_gb": resident("RssAnon") / 1e9,
    }


def main() -> None:
    """Make the data, train, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--terminals", type=int, default=500_000, help="in thousands; 16 rows of 128 features each")
    parser.add_argument("--folder", type=Path, help="where the data is made; a folder for temporary files unless told")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        put_away(Path(folder), options.terminals)
        print(json.dumps(train(Path(folder)), indent=1))


if __name__ == "__main__":
    main()
