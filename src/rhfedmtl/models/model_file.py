"""File format of the models of all tasks: arrays with names, scaling, certificate and origin.

`TaskModels.save` and `TaskModels.load` call this module. It is built on `array_file`, so a file loads without pickle
and an unknown format is refused. To add a field, extend `header` or ``MODEL`` and `fields`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl import array_file
from rhfedmtl.data.preparation import Preparation
from rhfedmtl.data.scaling import RowMap, Scaler
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.maths.losses import Loss
from rhfedmtl.maths.probabilities import ProbabilityCurves
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.models.adaptation import Adaptation
from rhfedmtl.plain import plain
from rhfedmtl.roles.certificates import Certificate, NoisedCertificate

Array = npt.NDArray[Any]
Models = Any
"""`TaskModels`. Its module imports this module, so the type cannot be named here."""

VERSION = version("rhfedmtl")
FILE = "model.npz"
"""Name of the model file in the folder of a run."""
MODEL = array_file.Kind(
    "model of rhfedmtl",
    3,
    (
        *("models", "tasks", "classes", "mean", "scale", "station_primal", "station_dual"),
        *("unseen", "unseen_mean", "unseen_scale", "curves", "curve_rows", "curve_bend"),
    ),
)
"""A file of format 1 has no model for unseen tasks: the mean model predicts their rows. Format 2 has no curves."""


def write(models: Models, path: Path) -> None:
    """Write the models; if the write is interrupted, the old file remains."""
    arrays: dict[str, Array] = {"models": models.models, "tasks": _plain_names(models.tasks, "task")}
    arrays["classes"] = _plain_names(models.classes, "class")
    scalers = models.scalers[:1] if share_scaler(models.scalers) else models.scalers
    if scalers[0].mean is not None:
        arrays["mean"] = np.array([scaler.mean for scaler in scalers])
        arrays["scale"] = np.array([scaler.scale for scaler in scalers])
    if models.unseen is not None:
        scaler, arrays["unseen"] = models.unseen
        if scaler.mean is not None and scaler.scale is not None:
            arrays["unseen_mean"], arrays["unseen_scale"] = scaler.mean, scaler.scale
    if models.curves is not None:
        arrays["curves"], arrays["curve_rows"] = models.curves.curves, models.curves.rows
        arrays["curve_bend"] = models.curves.bend
    if models.certificate is not None:
        arrays["station_primal"] = np.asarray(models.certificate.station_primal, dtype=np.float64)
        arrays["station_dual"] = np.asarray(models.certificate.station_dual, dtype=np.float64)
    array_file.write(path, MODEL, header(models), arrays)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return header and arrays of a file."""
    if not path.exists():
        raise DataError(f"no such model: {path}; name a file, or the folder of a run")
    return array_file.read(path, MODEL)


def fields(header: dict[str, Any], arrays: dict[str, Array]) -> dict[str, Any]:
    """Return the fields of `TaskModels` from header and arrays of a file."""
    tasks, loss, unit, unseen = arrays["tasks"], header["loss"], bool(header["unit"]), None
    scalers = [Scaler(unit=unit)]
    if "mean" in arrays:
        scalers = [Scaler(mean, scale, unit) for mean, scale in zip(arrays["mean"], arrays["scale"], strict=True)]
    maps = [None if each is None else RowMap.from_dict(each) for each in header.get("maps", [])]
    if maps:
        scalers = [replace(scaler, mapping=each) for scaler, each in zip(scalers, maps, strict=False)]
    if "unseen" in arrays:
        mapping = maps[-1] if maps else None
        unseen = Scaler(arrays.get("unseen_mean"), arrays.get("unseen_scale"), unit, mapping), arrays["unseen"]
    preparation, curves = header.get("preparation"), None
    adapted = tuple(map(Adaptation.from_dict, header.get("adapted", ())))
    if "curves" in arrays:
        curves = ProbabilityCurves(arrays["curves"], arrays["curve_rows"], str(header["curves"]), arrays["curve_bend"])
    return {
        "models": arrays["models"],
        "scalers": tuple(scalers * len(tasks) if len(scalers) == 1 else scalers),
        "tasks": tasks,
        "classes": arrays["classes"],
        "n_features": int(header["n_features"]),
        "loss": None if loss is None else LOSSES[loss["name"]](**{k: v for k, v in loss.items() if k != "name"}),
        "feature_names": tuple(header["feature_names"]),
        "certificate": _certificate(header["certificate"], arrays, len(tasks) - len(adapted)),
        "ledger": header["ledger"],
        "provenance": header["provenance"],
        "preparation": None if preparation is None else Preparation.from_dict(preparation),
        "unseen": unseen,
        "curves": curves,
        "adapted": adapted,
    }


def header(models: Models) -> dict[str, Any]:
    """Return all fields that are not arrays, as plain values."""
    loss = models.loss
    return {
        "kind": models.kind,
        "n_features": models.n_features,
        "unit": models.scalers[0].unit,
        **({} if (maps := _maps(models)) is None else {"maps": maps}),
        "loss": None if loss is None else {"name": loss_name(loss), **loss._asdict()},
        "feature_names": list(models.feature_names),
        "certificate": None if models.certificate is None else _numbers(models.certificate),
        "ledger": dict(models.ledger),
        "provenance": dict(models.provenance),
        "preparation": None if models.preparation is None else models.preparation.to_dict(),
        **({} if models.curves is None else {"curves": models.curves.words}),
        **({"adapted": [record.to_dict() for record in models.adapted]} if models.adapted else {}),
    }


def _maps(models: Models) -> list[Any] | None:
    """Return the maps of the scalers that the file has, and of the model for unseen tasks; None if there is no map."""
    scalers = list(models.scalers[:1] if share_scaler(models.scalers) else models.scalers)
    if scalers[0].mapping is None:
        return None
    last = scalers[0] if models.unseen is None else models.unseen[0]
    return [None if scaler.mapping is None else scaler.mapping.to_dict() for scaler in (*scalers, last)]


def share_scaler(scalers: Sequence[Scaler]) -> bool:
    """Return True if all tasks share a scaler."""
    return all(scaler is scalers[0] for scaler in scalers)


def loss_name(loss: Loss) -> str:
    """Return the name of a loss in its registry."""
    return next(name for name, entry in LOSSES.items() if entry.maker is type(loss))


def _plain_names(names: Array, kind: str) -> Array:
    """Return names in a type that needs no pickle: text or numbers."""
    if names.dtype.kind in "biufU":
        return names
    if not all(isinstance(name, str) for name in names.tolist()):
        raise ConfigError(
            f"{kind} names of mixed types cannot be saved: give text or numbers, got {names[:3].tolist()}"
        )
    return names.astype(np.str_)


def _numbers(certificate: Certificate) -> dict[str, float | int | None]:
    """Return the numbers of a certificate; infinite numbers become null."""
    names = ["primal", "dual", "zero"]
    names += ["bound", "probability"] if isinstance(certificate, NoisedCertificate) else []
    numbers = plain({name: float(getattr(certificate, name)) for name in names})
    absent = {"absent": [int(t) for t in certificate.absent]} if certificate.absent else {}
    return {"round": int(certificate.round), **numbers, **absent}


def _certificate(numbers: dict[str, Any] | None, arrays: dict[str, Array], n_trained: int) -> Certificate | None:
    """Return the certificate of the trained tasks, which are the first; None without numbers."""
    if numbers is None:
        return None
    trained = arrays["models"][:n_trained]
    if "probability" in numbers:
        bound, zero = (math.inf if numbers[name] is None else numbers[name] for name in ("bound", "zero"))
        return NoisedCertificate.made(numbers["round"], trained, bound, numbers["probability"], zero)
    dual = -math.inf if numbers["dual"] is None else numbers["dual"]
    return Certificate(
        numbers["round"],
        numbers["primal"],
        dual,
        trained,
        arrays["station_primal"],
        arrays["station_dual"],
        zero=math.inf if numbers["zero"] is None else numbers["zero"],
        found=numbers["round"],
        absent=tuple(numbers.get("absent", ())),
    )


def model_path(path: str | Path) -> Path:
    """Return the model file for a path: the file itself, the model in a run's folder, or of the latest run in it."""
    folder = Path(path)
    if not folder.is_dir() or (folder / FILE).exists():
        return folder / FILE if folder.is_dir() else folder
    return max(folder.glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime_ns, default=folder / FILE)
