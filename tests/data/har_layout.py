"""Writes HAR in the official layout: folder, zip, and the zip-in-zip that UCI serves."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = "UCI HAR Dataset"
ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")


def tiny(seed: int = 0, features: int = 4) -> dict[str, Any]:
    """Three subjects, the second of them in the test part, six activities, two windows each."""
    rng = np.random.default_rng(seed)
    subject = np.repeat([1, 2, 3], 12)
    return {
        "X": rng.uniform(-1, 1, size=(36, features)).astype(np.float32),
        "y": np.tile(np.repeat(np.arange(1, 7), 2), 3),
        "subject": subject,
        "chain": np.arange(36) // 2,
        "uci_test": (subject == 2).astype(int),
        "feature_names": np.array([f"feature-{j}()" for j in range(features)]),
        "activity_names": np.array(ACTIVITIES),
    }


def write_folder(data: dict[str, Any], parent: Path, signals: bool = False) -> Path:
    """Official folder with the rows of ``data`` in their order; with raw windows on demand."""
    root = parent / FOLDER
    for part, chosen in (("train", data["uci_test"] == 0), ("test", data["uci_test"] == 1)):
        (root / part / "Inertial Signals").mkdir(parents=True)
        np.savetxt(root / part / f"X_{part}.txt", data["X"][chosen], fmt="% .8e")
        for name, column in (("y", "y"), ("subject", "subject")):
            np.savetxt(root / part / f"{name}_{part}.txt", data[column][chosen], fmt="%d")
        if signals:
            raw = windows(data["chain"][chosen])
            np.savetxt(root / part / "Inertial Signals" / f"total_acc_x_{part}.txt", raw, fmt="% .7e")
    for file, names in (("features.txt", "feature_names"), ("activity_labels.txt", "activity_names")):
        lines = [f"{number} {name}" for number, name in enumerate(data[names], start=1)]
        (root / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


def windows(chain: np.ndarray, length: int = 8) -> np.ndarray:
    """Raw windows that overlap by half within a chain, and not between chains."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(len(chain), length))
    for i in range(1, len(chain)):
        if chain[i] == chain[i - 1]:
            rows[i, : length // 2] = rows[i - 1, length // 2 :]
    return rows


def zip_bytes(root: Path) -> bytes:
    """Zip of the folder, with the debris that the official one has."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            archive.write(file, f"{FOLDER}/{file.relative_to(root).as_posix()}")
        archive.writestr(f"__MACOSX/{FOLDER}/._train", b"debris")
    return buffer.getvalue()


def zip_in_zip(inner: bytes) -> bytes:
    """Zip as UCI serves it: a list of names beside the real archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("UCI HAR Dataset.names", "a description")
        archive.writestr(f"{FOLDER}.zip", inner)
    return buffer.getvalue()
