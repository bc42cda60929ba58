"""Progression of diabetes (Efron et al. 2004), from the copy inside scikit-learn."""

from __future__ import annotations

from pathlib import Path

from sklearn.datasets import load_diabetes

from rhfedmtl.data.federation import Origin, Source


def load(path: Path | None = None) -> Source:
    """442 patients; the two sexes are two tasks."""
    data = load_diabetes(scaled=False)
    sex = data.feature_names.index("sex")
    others = [i for i in range(data.data.shape[1]) if i != sex]
    column = data.data[:, sex]
    return Source(
        X=data.data[:, others],
        y=data.target,
        task=(column > column.min()).astype(int),
        task_names=("sex-1", "sex-2"),
        feature_names=tuple(data.feature_names[i] for i in others),
        origin=Origin("diabetes", "scikit-learn", citation="Efron et al. 2004, Least angle regression"),
    )
