"""Models of all tasks with everything that is needed to use them: `TaskModels`.

A run, an estimator or `load` creates them. They predict raw rows, and can be saved (`model_file`), exported to ONNX
(`onnx`), certified on other data (`certify`) and released with noise (`release`). They are immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl import array_file
from rhfedmtl.data.federation import Federation
from rhfedmtl.display import facts_html
from rhfedmtl.errors import DataError, nearest
from rhfedmtl.maths.losses import Loss
from rhfedmtl.maths.probabilities import ProbabilityCurves
from rhfedmtl.models import adaptation, model_file
from rhfedmtl.models import onnx as onnx_export
from rhfedmtl.models.coefficients import coefficients, importances
from rhfedmtl.models.model_file import VERSION, model_path
from rhfedmtl.models.predictor import Predictor, UnseenModel
from rhfedmtl.models.release import Releases, noised
from rhfedmtl.training.privacy import STATEMENT, Privacy
from rhfedmtl.training.result import Result

Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]


class Extras(NamedTuple):
    """Model for unseen tasks and probability curves, which a run without a budget adds to its models."""

    unseen: UnseenModel | None = None
    curves: ProbabilityCurves | None = None


class TaskModels(Predictor):
    """A linear model for every task, with its scaling and its origin: a `Predictor` that can be trained and saved."""

    @classmethod
    def from_result(
        cls,
        federation: Federation,
        result: Result,
        loss: Loss | None = None,
        provenance: Mapping[str, Any] | None = None,
        extras: Extras | None = None,
    ) -> TaskModels:
        """Build the models of a run, with its certificate and the totals of its ledger, for ``federation``."""
        origin = federation.origin
        data = {
            "name": origin.name,
            "licence": origin.licence,
            "rows": np.diff(federation.terminal_offsets[federation.task_offsets]).tolist(),
            "weighted": federation.sample_weight is not None,
        }
        if result.private is None or result.private.simulation:  # a fingerprint tells two sets of terminals apart
            data["fingerprint"] = federation.fingerprint()
        return cls(
            result.models,
            tuple(result.scalers),
            np.array(federation.task_names),
            np.array(federation.class_names, dtype=np.str_),
            federation.n_features,
            loss,
            federation.feature_names,
            result.certificate,
            ledger_totals(result),
            {"rhfedmtl": VERSION, "data": data, "stopped": result.stopped, **(provenance or {}), **_statement(result)},
            federation.preparation,
            **(extras or Extras())._asdict(),
        )

    def updated(self, result: Result) -> TaskModels:
        """Return the models after the run was continued, without the curves of the earlier models."""
        provenance = {**self.provenance, "stopped": result.stopped, **_statement(result)}
        return replace(
            self,
            models=result.models,
            certificate=result.certificate,
            ledger=ledger_totals(result),
            provenance=provenance,
            curves=None,
        )

    def release(self, epsilon: float, delta: float = 1e-6, *, address: tuple[int, ...] | None = None) -> TaskModels:
        """Return models for other people: noise hides every training row, and a statement replaces all other records.

        Certificate, costs and fingerprint depend on the rows and are left out. The privacy losses of several releases
        of the same models add up; the statement contains the total. ``address`` makes the noise reproducible for
        experiments: such releases are not counted, and not private.
        """
        models, statement = noised(self, Privacy(epsilon, delta), address)
        statement = statement if address else self.releases.charge(statement)
        data = {name: self.provenance["data"][name] for name in ("name", "licence", "rows")}
        provenance = {"rhfedmtl": VERSION, "data": data, "privacy": statement}
        return replace(
            self,
            models=models,
            certificate=None,
            ledger={},
            provenance=provenance,
            releases=Releases(),
            unseen=None,
            curves=None,
        )

    def adapt(
        self, X: Any, y: Any, *, task: Any, sample_weight: Any = None, groups: Any = None, lambda2: float | None = None
    ) -> TaskModels:
        """Return the models with a new task, learned from a few rows; all other models stay the same to the bit.

        The new model minimises loss(w) + λ1/2 ‖w‖² + λ2/2 ‖w − r‖² with the scaling and λ1 of the run. The reference r
        does not change: the model for unseen tasks, or the mean model. Held-out rows of the new task choose r and λ2,
        and they can keep the reference. The record in ``adapted`` has the weights and the duality gap.

        Parameters
        ----------
        X : array-like or dataframe of shape (n_samples, n_features)
            Rows of the new task, at least two.
        y : array-like of shape (n_samples,)
            Labels, of two classes or more; or numbers for a regression.
        task : str or number
            Name of the new task.
        sample_weight, groups : array-like of shape (n_samples,), optional
            Weights of rows, and groups of rows that belong together (overlapping windows).
        lambda2 : float, optional
            Weight of the distance to the mean model, instead of a choice on held-out rows.

        Returns
        -------
        TaskModels
            The models and the new task, which is the last.
        """
        X, filled = self._rows(X)
        adaptation.refuse_new_gaps(filled, "the frame")
        more = {"sample_weight": sample_weight, "groups": groups, "lambda2": lambda2}
        adapted: TaskModels = adaptation.adapted(self, X, y, task, **more)
        return adapted

    def only(self, task: Any = None) -> TaskModels:
        """Return the model of a single task; without a name, the only model or the model for unseen tasks.

        The certificate covers all models together, so it is left out if there are other tasks.
        """
        b = -1 if task is None else int(self.find(task)[0])
        if task is not None and b < 0:
            names = [str(name) for name in self.tasks.tolist()]
            choices = ", ".join(names[:12]) + (f" … ({len(names)} in all)" if len(names) > 12 else "")
            raise DataError(f"unknown task {str(task)!r}: choose from {choices}{nearest(str(task), names)}")
        if len(self.tasks) == 1:
            return self
        scaler, model = self.model_of(b)
        name = self.tasks[b : b + 1] if b >= 0 else np.array(["reference"])
        curves = None if self.curves is None else self.curves.only(b)
        adapted = tuple(record for record in self.adapted if record.task == str(name[0]))
        return replace(
            self,
            models=model[None],
            scalers=(scaler,),
            tasks=name,
            certificate=None,
            unseen=None,
            curves=curves,
            adapted=adapted,
        )

    def importances(self, X: Any, task: Any = None, *, repeats: int = 5, seed: int = 0) -> Any:
        """Return how much each column of ``X`` moves the scores of each task (`rhfedmtl.models.coefficients`).

        It works behind feature maps too, and a table has an entry for each of its own columns. No labels are needed.
        The result is a pandas frame, or a dict of arrays without pandas.

        Parameters
        ----------
        X : array-like or dataframe of shape (n_samples, n_features)
            Rows, at least two of each task that is named.
        task : str or array-like of shape (n_samples,), optional
            Task of each row, or of all rows.
        repeats : int, default=5
            Numbers of exchanges of each column.
        seed : int, default=0
            Seed of the exchanges.
        """
        rows, _ = self._rows(X)
        return importances(self, rows, self.task_of(task, len(rows)), repeats, seed)

    def coefficients(self) -> Any:
        """Return the weights in the units of the features: a pandas frame, or a dict of arrays without pandas.

        The table has a row per task and class, a column for every feature, and the intercept. If the scaling divides
        rows by their norm, the weights apply to a row of usual norm (`rhfedmtl.models.coefficients`).
        """
        return coefficients(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain values."""
        d = self.width
        tasks = {}
        for b, name in enumerate(map(str, self.tasks.tolist())):
            scaler, model = self.model_of(b)
            tasks[name] = {
                "weights": model[:, :d].tolist(),
                "intercept": (model[:, d] if self.intercept else np.zeros(len(model))).tolist(),
                "mean": None if scaler.mean is None else scaler.mean.tolist(),
                "scale": None if scaler.scale is None else scaler.scale.tolist(),
                "unit": scaler.unit,
                **({} if self.curves is None else {"curve": self.curves.curves[b].tolist()}),
            }
            if scaler.mapping is not None:
                tasks[name]["mapping"] = scaler.mapping.to_dict()
        if self.curves is not None and self.curves.bend.size:
            starts, slopes = self.curves.bend.tolist()
            tasks = {name: {**parts, "bend": {"knots": starts[1:], "slopes": slopes}} for name, parts in tasks.items()}
        return {**model_file.header(self), "classes": self.classes.tolist(), "tasks": tasks}

    def to_onnx(self, path: str | Path, task: Any = None, *, dtype: str = "float64") -> None:
        """Write the model of a task as ONNX; without a name, the only model or the model for unseen tasks."""
        single = self.only(task)
        d, model = self.width, single.models[0]
        intercept = model[:, d] if self.intercept else np.zeros(len(model))
        linear = onnx_export.Linear(
            single.scalers[0], model[:, :d], intercept, self.classes, self.log_odds, self.preparation, single.curves
        )
        facts = {"task": str(single.tasks[0]), "rhfedmtl": VERSION, **onnx_export.inputs(linear, self.feature_names)}
        with array_file.writing(Path(path)):
            onnx_export.save(linear, Path(path), dtype=dtype, facts=facts)

    def save(self, path: str | Path) -> None:
        """Write everything into a single file, atomically."""
        model_file.write(self, Path(path))
        self.releases.follow(Path(path))

    @classmethod
    def load(cls, path: str | Path) -> TaskModels:
        """Read a file that `save` wrote, or the model in the folder of a run; refuse all other files."""
        path = model_path(path)
        header, arrays = model_file.read(path)
        try:
            return cls(**model_file.fields(header, arrays), releases=Releases(path))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DataError(f"{path} is not a model that this version can use: {error}") from error

    def __repr__(self) -> str:
        certificate = "" if self.certificate is None else f"; {self.certificate.words}"
        adapted = f", {len(self.adapted)} adapted" if self.adapted else ""
        return f"<TaskModels: {len(self.tasks)} tasks{adapted}, {self.n_features} features, {self.kind}{certificate}>"

    def _repr_html_(self) -> str:
        words = None if self.certificate is None else self.certificate.words
        facts = {"tasks": len(self.tasks), "features": self.n_features, "kind": self.kind, "certificate": words}
        return facts_html("Models by task", facts)


def _statement(result: Result) -> dict[str, Any]:
    """Return the statement on the privacy of a run; empty if the run was not private."""
    if result.private is None:
        return {}
    return {STATEMENT: result.private.statement(interrupted=result.stopped == "interrupted")}


def ledger_totals(result: Result) -> dict[str, Any]:
    """Return the costs of each type, the limits, and the costs by tier."""
    ledger = result.ledger
    return {"spent": ledger.spent, "budget": dict(ledger.budget), "by_tier": ledger.totals("tier")}
