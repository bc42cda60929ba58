"""Use the rows of a file: find the features and the task of each row, and labels to measure or to adapt.

`rhfedmtl predict` and `rhfedmtl adapt` build `NewRows` from a path and their options. All errors name the file, the
column and the row.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.data.federation import class_weights
from rhfedmtl.data.loaders import cells, table, table_files
from rhfedmtl.data.loaders.table import Columns
from rhfedmtl.errors import ConfigError, DataError, nearest
from rhfedmtl.maths import metrics
from rhfedmtl.models.adaptation import refuse_new_gaps
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.training.result import mean


def label_column(models: TaskModels) -> str | None:
    """Return the column of labels of the training, if the models record it."""
    request = models.provenance.get("configuration", {}).get("request", {})
    default = Columns.label if request.get("data") == "table" else None
    column: str | None = request.get("settings", {}).get("label", default)
    return column


class NewRows:
    """Rows of a file, with the columns of tasks, labels and features.

    After `predict`, ``without_task`` lists the rows with an empty task, and ``filled`` the columns with gaps although
    they had no gap in training. ``same`` maps tasks whose number is written differently to their name in training.
    """

    def __init__(
        self,
        models: TaskModels,
        path: Path,
        task_column: str | None,
        task: str | None,
        label: str | None,
        drop: list[str],
    ) -> None:
        if task is not None and task_column is not None:
            raise ConfigError("--task names the task of all rows, --task-column a column of tasks: give one of them")
        self.models, self.where, self.task, self.label, self.drop = models, str(path), task, label, drop
        self.filled: list[str] = []
        self.same: dict[str, str] = {}
        self.without_task: list[int] = []
        request = models.provenance.get("configuration", {}).get("request", {})
        learned = models.provenance.get("estimator", {}).get("task")  # a column that an estimator found in its frame
        self.column = task_column or request.get("settings", {}).get("task") or learned or "task"
        self.balanced = request.get("class_weight") == "balanced"
        preparation = models.preparation
        texts = [] if preparation is None else [preparation.columns[j] for j in preparation.texts]
        gaps = cells.GAPS if preparation is None else cells.GAPS | set(preparation.gap_words)
        self.read = table_files.read(path, [name for name in (self.column, label, *texts) if name is not None], gaps)
        self.table, self.place = self.read.columns, self.read.place
        for name in [*([task_column] if task_column else []), *([label] if label else []), *drop]:
            if name not in self.table:
                hint = nearest(name, self.table)
                raise DataError(f"{path} has no column {name!r}: it has {table.listing(list(self.table))}{hint}")

    def predict(self) -> dict[str, Any]:
        """Return the columns of the answer: task, prediction, scores and probabilities, if the models have them."""
        models, tasks, X = self.models, self._tasks(), self._features()
        scores = models.scores(X, tasks)
        answer: dict[str, Any] = {"task": tasks if isinstance(tasks, list) else [tasks] * len(X)}
        answer["prediction"] = models.labels(scores)
        names = ["score"] if scores.shape[1] == 1 else [f"score_{name}" for name in models.classes.tolist()]
        if models.kind != "regression":
            answer |= dict(zip(names, scores.T, strict=True))
        if models.has_probabilities:
            odds = models.probabilities(scores, tasks)
            answer |= {f"probability_{name}": odds[:, k] for k, name in enumerate(models.classes.tolist())}
        return answer

    def adapted(self, group: str | None, lambda2: float | None) -> TaskModels:
        """Return the models with the tasks of the file, adapted to the models of the run."""
        if self.label is None:
            raise ConfigError("the models do not record the column of their labels: name the column with --label")
        X, y = self._features(), self._labels(self.label)
        refuse_new_gaps(self.filled, self.where)
        groups = None if group is None else cells.factorised(cells.spelled(self.table[group]))[0]
        models, names = self.models, np.array([self.task or ""] * len(X))
        if self.task is None and self.column not in self.table:
            raise DataError(
                f"{self.where} has no column {self.column!r} that names each row's task: name it with --task-column, "
                "or give the name of the new task with --task"
            )
        if self.task is None:
            words = cells.spelled(self.table[self.column])
            if None in words:
                place = self.place(words.index(None))
                raise DataError(f"{self.where}, column {self.column!r}, {place} is empty: fill it or drop the row")
            names = np.array(words, dtype=np.str_)
        for name in dict.fromkeys(names.tolist()):
            own = names == name
            codes, part = y[own], None if groups is None else groups[own]
            weight = class_weights(codes, np.zeros(len(codes), dtype=np.int64)) if self.balanced else None
            labels = models.classes[codes] if len(models.classes) else codes
            models = models.adapt(X[own], labels, task=name, sample_weight=weight, groups=part, lambda2=lambda2)
        return models

    def facts(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the tasks that training did not include, gaps, and metrics if there are labels."""
        tasks = sorted(set(answer["task"]) - {""})
        unknown = [name for name, b in zip(tasks, self.models.find(tasks).tolist(), strict=True) if b < 0]
        return {
            "tasks": len(tasks),
            "unknown_tasks": unknown,
            "unseen_model": self.models.unseen_kind,
            "without_task": len(self.without_task),
            "filled": self.filled,
            **({} if self.models.kind == "regression" else {"probabilities": self.models.probability_words}),
            "metrics": {} if self.label is None else self._metrics(answer, self.label),
        }

    def _tasks(self) -> Any:
        """Return the task of every row, empty if its cell is empty; or the task of all rows."""
        models = self.models
        if self.task is not None:
            if self.task in self.table and models.find(self.task)[0] < 0:
                raise DataError(
                    f"--task {self.task} names one task for all rows; for a column: --task-column {self.task}"
                )
            return str(models.only(self.task).tasks[0])
        if self.column in self.table:
            words = cells.spelled(self.table[self.column])
            self.without_task = [row for row, word in enumerate(words) if word is None]
            # The same number may be written in another way in the training data.
            numbers = {str(name): cells.plain_number(str(name)) for name in models.tasks.tolist()}
            count = Counter(numbers.values())
            unique = {number: name for name, number in numbers.items() if count[number] == 1}
            strange = sorted({word for word in words if word is not None} - numbers.keys())
            self.same = {word: unique[number] for word in strange if (number := cells.plain_number(word)) in unique}
            return ["" if word is None else self.same.get(word, word) for word in words]
        if len(models.tasks) == 1:
            return str(models.tasks[0])
        raise DataError(
            f"{self.where} has no column {self.column!r} that names each row's task: name it with --task-column, or "
            "give a task for all rows with --task"
        )

    def _features(self) -> Any:
        """Return the features in the order of the models."""
        models, columns = self.models, list(self.models.feature_names)
        unnamed = [f"X{j}" for j in range(models.n_features)]
        in_order = self.where.endswith(".npz") and f"X{models.n_features}" not in self.table
        if in_order and self.table.keys() >= set(unnamed) and not self.table.keys() & set(columns):
            columns = unnamed  # an array X has no column names
        else:
            columns = columns or [n for n in self.table if n not in {self.column, self.label, *self.drop}]
            if len(columns) > models.n_features:
                columns = [name for name in columns if not table.is_index(name, self.table[name])]
        if models.preparation is not None or columns == list(models.feature_names):
            X, self.filled = models.prepared(self.read, self.where)
            return X
        if len(columns) != models.n_features:
            raise DataError(
                f"{self.where} has {len(columns)} features ({table.listing(columns)}), the models were learned from "
                f"{models.n_features}: leave other columns out with --drop"
            )
        return np.column_stack([self._numbers(name) for name in columns])

    def _numbers(self, name: str) -> Any:
        where = f"{self.where}, column {name!r}"
        return cells.needed_numbers(self.table[name], self.read.notation, where, self.place)

    def _metrics(self, answer: dict[str, Any], label: str) -> dict[str, float | None]:
        """Return the mean over tasks of each metric."""
        models, truth = self.models, self._labels(label)
        if models.kind == "regression":
            scores = answer["prediction"][:, None]
        else:
            scores = np.column_stack([values for name, values in answer.items() if name.split("_")[0] == "score"])
        task = np.array(answer["task"])
        names = [name for name in np.unique(task) if name]  # rows without a task do not count in the mean over tasks
        parts = [metrics.measure(truth[task == name], scores[task == name], len(models.classes)) for name in names]
        means = {name: mean(np.array([part[name] for part in parts])) for name in (parts[0] if parts else ())}
        return {name: None if np.isnan(value) else value for name, value in means.items()}

    def _labels(self, label: str) -> Any:
        """Return the labels of all rows: numbers, or the codes of their classes."""
        models = self.models
        if models.kind == "regression":
            return self._numbers(label)
        where, words = f"{self.where}, column {label!r}", cells.spelled(self.table[label])
        if None in words:
            raise DataError(f"{where}, {self.place(words.index(None))} is empty: fill it or drop the row")
        labels = [str(word) for word in words]
        codes = {str(name): k for k, name in enumerate(models.classes.tolist())}
        # Whole-number labels are matched by value, because files write them in different ways.
        spelt = {name: name if name in codes else cells.plain_number(name) for name in set(labels)}
        strange = sorted(name for name in spelt if spelt[name] not in codes)
        if strange:
            raise DataError(f"{where} holds the label {strange[0]!r}, the models know {table.listing(list(codes))}")
        return np.array([codes[spelt[name]] for name in labels])
