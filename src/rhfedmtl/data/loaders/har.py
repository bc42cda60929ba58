"""UCI *Human Activity Recognition Using Smartphones*: 30 people, 6 activities, 561 features; each person is a task.

The loader reads the official folder, its zip, the zip-in-zip that UCI serves, or an ``.npz`` with the arrays ``X, y,
subject`` and optionally ``chain``. Rows are sorted by subject and activity, and then in the order of recording.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rhfedmtl import unpacking
from rhfedmtl.data import cache
from rhfedmtl.data.federation import Origin, Source
from rhfedmtl.errors import DataError
from rhfedmtl.files import replacing

URL = "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip"
SHA256 = "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031"
ARCHIVE = "human+activity+recognition+using+smartphones.zip"
FOLDER = "UCI HAR Dataset"
PARSED = "har.npz"
OFFLINE = (
    "give a copy with --path (the folder 'UCI HAR Dataset', its zip, or an .npz), "
    "or work offline with --data watch or --data synthetic"
)
LICENCE = "CC BY 4.0 by the UCI page; the original read-me asks for citation and excludes commercial use"
CITATION = (
    "D. Anguita, A. Ghio, L. Oneto, X. Parra, J. L. Reyes-Ortiz: A Public Domain Dataset for Human Activity "
    "Recognition Using Smartphones. ESANN 2013"
)

Root: TypeAlias = Path | zipfile.Path


def load(path: Path | None = None) -> Source:
    """Load the source from ``path``; without ``path``, from ``RHFEDMTL_DATA``, the cache, or the UCI server."""
    if path is None:
        path = cache.find([PARSED, FOLDER, f"{FOLDER}.zip"]) or fetch()
    cache.existing(path)
    if path.is_dir():
        return read_folder(_root(path, str(path)), str(path))
    if path.suffix == ".npz":
        return read_npz(path)
    if zipfile.is_zipfile(path):
        return read_zip(path)
    raise DataError(f"{path} is neither the folder '{FOLDER}', nor a zip of it, nor an .npz")


def fetch() -> Path:
    """Download the official archive into the cache, parse it, and return the parsed file."""
    parsed = cache.cache_folder() / PARSED
    if parsed.exists():
        return parsed
    source = read_zip(cache.download(URL, ARCHIVE, SHA256, OFFLINE))
    with replacing(parsed) as stream:
        np.savez(
            stream,
            X=source.X,
            y=source.y + 1,
            subject=np.array([int(name.removeprefix("subject-")) for name in source.task_names])[source.task],
            chain=np.asarray(source.group),
            feature_names=np.array(source.feature_names),
            activity_names=np.array(source.class_names),
        )
    return parsed


def read_npz(path: Path) -> Source:
    """Load the source from an ``.npz``."""
    names = ("X", "y", "subject", "feature_names", "activity_names", "chain")
    try:
        data = unpacking.read_npz(path, names)
    except DataError:
        raise
    except unpacking.READING as error:
        raise DataError(f"{path} cannot be read as .npz ({unpacking.why(error)}): fetch it again") from error
    missing = [name for name in names[:-1] if name not in data]
    if missing:
        raise DataError(f"{path} lacks the array {', '.join(missing)}: it must hold {', '.join(names[:-1])}")
    return _source(data, str(path))


def read_zip(path: Path) -> Source:
    """Load the source from a zip of the official folder, or from a zip that contains this zip."""
    try:
        unpacking.check_zip(path)
        with zipfile.ZipFile(path) as outer:
            inner = [n for n in outer.namelist() if n.endswith(f"{FOLDER}.zip") and not n.startswith("__MACOSX")]
            if not inner:
                return read_folder(_root(zipfile.Path(outer), str(path)), str(path))
            with zipfile.ZipFile(io.BytesIO(outer.read(inner[0]))) as archive:
                unpacking.check_parts(path, archive)
                return read_folder(_root(zipfile.Path(archive), str(path)), str(path))
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is a broken zip ({error}): download it again") from error


def read_folder(root: Root, where: str) -> Source:
    """Load the source from the official text layout under ``root``."""
    parts = []
    for part in ("train", "test"):
        X = _numbers(root / part / f"X_{part}.txt", where, np.float32)
        y = _numbers(root / part / f"y_{part}.txt", where, np.int64)[:, 0]
        subject = _numbers(root / part / f"subject_{part}.txt", where, np.int64)[:, 0]
        if not len(X) == len(y) == len(subject):
            raise DataError(
                f"{where}, {part}: {len(X)} rows, {len(y)} labels and {len(subject)} subjects must be as many"
            )
        raw = root / part / "Inertial Signals" / f"total_acc_x_{part}.txt"
        signal = _numbers(raw, where, np.float64) if raw.is_file() else None
        if signal is not None and len(signal) != len(X):
            raise DataError(f"{where}: {raw.name} has {len(signal)} rows for {len(X)} rows of features")
        parts.append({"X": X, "y": y, "subject": subject, "chain": chains(subject, y, signal)})
    columns = {name: np.concatenate([part[name] for part in parts]) for name in ("X", "y", "subject")}
    first, second = (part["chain"] for part in parts)
    columns["chain"] = np.concatenate([first, second + 1 + first.max(initial=-1)])
    columns["feature_names"] = _names(root / "features.txt", where)
    columns["activity_names"] = _names(root / "activity_labels.txt", where)
    return _source(columns, where)


def chains(subject: npt.NDArray[Any], y: npt.NDArray[Any], signal: npt.NDArray[Any] | None) -> npt.NDArray[np.int64]:
    """Return for each row the number of its stretch of overlapping windows; rows must have the order of the files.

    A stretch ends at a change of subject or activity. If the raw windows are available, it also ends if the second half
    of a window differs from the first half of the next window.
    """
    breaks = (np.diff(subject) != 0) | (np.diff(y) != 0)
    if signal is not None:
        half = signal.shape[1] // 2
        breaks |= (signal[:-1, half:] != signal[1:, :half]).any(axis=1)
    return np.concatenate([[0], np.cumsum(breaks)]).astype(np.int64)


def _source(data: dict[str, npt.NDArray[Any]], where: str) -> Source:
    X, y, subject = data["X"], data["y"].astype(np.int64), data["subject"].astype(np.int64)
    if not len(X) == len(y) == len(subject):
        raise DataError(f"{where}: {len(X)} rows, {len(y)} labels and {len(subject)} subjects must be as many")
    group = data.get("chain")
    order = np.lexsort((np.arange(len(y)), y, subject))
    if not np.array_equal(order, np.arange(len(y))):
        X, y, subject = X[order], y[order], subject[order]
        group = None if group is None else group[order]
    numbers, task = np.unique(subject, return_inverse=True)
    return Source(
        X=X,
        y=(y - 1).astype(np.int16),
        task=task.astype(np.int16),
        task_names=tuple(f"subject-{number}" for number in numbers),
        class_names=tuple(data["activity_names"].tolist()),
        feature_names=tuple(data["feature_names"].tolist()),
        group=group,
        origin=Origin("har", where, LICENCE, CITATION),
    )


def _root(root: Root, where: str) -> Root:
    """Return the folder that holds ``train/`` and ``test/``: ``root`` itself or ``UCI HAR Dataset`` in it."""
    for candidate in (root, root / FOLDER):
        if (candidate / "train").is_dir() and (candidate / "test").is_dir():
            return candidate
    raise DataError(f"{where} does not hold '{FOLDER}/train' and '{FOLDER}/test': is it another archive?")


def _numbers(file: Root, where: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    if not file.is_file():
        raise DataError(f"{where} lacks {file.name}: unpack the whole archive")
    try:
        with file.open("rb") as stream:
            return np.loadtxt(stream, dtype=dtype, ndmin=2)
    except ValueError as error:
        raise DataError(f"{where}, {file.name}: {error}; the file is damaged, fetch it again") from error


def _names(file: Root, where: str) -> npt.NDArray[np.str_]:
    """Return the second column of a file of numbered names."""
    if not file.is_file():
        raise DataError(f"{where} lacks {file.name}: unpack the whole archive")
    lines = [line.split(maxsplit=1) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return np.array([line[-1].strip() for line in lines])
