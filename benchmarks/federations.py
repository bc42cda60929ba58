"""Federations of many kinds, to tune a planner on some of them and to test it on others.

Drawn ones: 5 to 150 tasks of 10 to 1,000 rows, equal to very unequal, 5 to 600 features, independent to strongly
correlated, separable to noisy, classes or numbers, 1 to 1,500 terminals a task, λ2/λ1 from 1 to 10⁴, a step at 0.01 to
1 where a round of a station costs 10. A number draws a federation; below 300,000, even numbers are for tuning, odd
numbers for testing. The kind of labels follows from the number too, unless the caller names a kind. Real data: HAR,
watch, Landmine, heart, and sets of scikit-learn cut into tasks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.data.federation import Federation, Source
from rhfedmtl.data.request import Request
from rhfedmtl.data.split import Split, federate

DATA = Path(os.environ.get("RHFEDMTL_DATA", "."))
MOST_NUMBERS = 200_000
TEST_ROWS = 3_000
RARE = 100
"""Numbers from here on have a rare class, unless the caller names a kind."""
KINDS = ("balanced", "rare", "numbers")
"""Labels: two classes of about the same size, a rare class and a frequent class, or real numbers."""


@dataclass(frozen=True)
class Problem:
    """A federation by seed, the weights to learn with, the price of a step, and the metric to judge by."""

    name: str
    make: Callable[[int], Federation]
    lambda1: float = 1e-3
    lambda2: float = 1e-3
    step_price: float = 0.1
    metric: str = "accuracy"
    features: str = "none"


@dataclass(frozen=True)
class Drawn:
    """What a number stands for."""

    tasks: int
    rows: int
    features: int
    terminals: int
    regression: bool
    noise: float
    unequal: float
    related: float
    correlated: float
    lambda1: float
    ratio: float
    step_price: float
    positive: float = 0.5

    @classmethod
    def number(cls, number: int, kind: str = "") -> Drawn:
        """Draw the federation of this number, of a kind out of ``KINDS``; a third have a single terminal per task."""
        rng = np.random.default_rng([16, number])

        def between(low: float, high: float) -> float:
            return float(np.exp(rng.uniform(np.log(low), np.log(high))))

        tasks, rows, terminals = round(between(5, 150)), round(between(10, 1000)), between(1, 1500)
        features = round(between(5, min(600.0, max(6.0, MOST_NUMBERS / tasks / rows))))
        rows = max(10, min(rows, MOST_NUMBERS // tasks // features))
        alone, regression = rng.random() < 1 / 3, bool(rng.random() < 0.3)
        each = cls(
            tasks,
            rows,
            features,
            1 if alone else max(1, min(round(terminals), rows // 2)),
            regression,
            noise=float(rng.uniform(0.0, 1.0 if regression else 0.25)),
            unequal=float(rng.uniform(0.0, 1.5)),
            related=float(rng.uniform(0.3, 1.0)),
            correlated=float(rng.uniform(0.0, 2.0)),
            lambda1=between(1e-4, 1e-2),
            ratio=between(1, 1e4),
            step_price=between(0.01, 1.0),
        )
        if not kind:
            return each if number < RARE else replace(each, regression=False, positive=between(0.03, 0.3))
        noise = float(rng.uniform(0.0, 1.0 if kind == "numbers" else 0.25))
        positive = between(0.03, 0.3) if kind == "rare" else 0.5
        return replace(each, regression=kind == "numbers", noise=noise, positive=positive)

    def name(self, number: int) -> str:
        """In words."""
        kind = "numbers" if self.regression else "classes" if number < RARE else f"{self.positive:.0%} positive,"
        size = f"{self.tasks} tasks x {self.terminals} terminals, {self.rows} rows, d {self.features}"
        return f"{number:3d} {kind} {size}, l1 {self.lambda1:.0e}, l2/l1 {self.ratio:.0e}, step {self.step_price:.2g}"

    def federation(self, seed: int) -> Federation:
        """Linear tasks with a common part; rows have a few common directions beside their own spread."""
        rng = np.random.default_rng([seed, self.tasks, self.rows, self.features])
        common = rng.normal(size=self.features)
        own = rng.normal(size=(self.tasks, self.features))
        models = np.sqrt(self.related) * common + np.sqrt(1.0 - self.related) * own
        directions = rng.normal(size=(3, self.features)) * self.correlated
        share = rng.lognormal(sigma=self.unequal, size=self.tasks)
        sizes = np.clip(np.round(self.rows * share / share.mean()), max(4, self.terminals), 3000).astype(int)
        tests = np.full(self.tasks, max(20, TEST_ROWS // self.tasks))
        parts = [len(part) for n in sizes for part in np.array_split(np.arange(n), self.terminals)]
        X, y = self._rows(rng, models, directions, sizes)
        test_X, test_y = self._rows(rng, models, directions, tests)
        return Federation(
            X,
            y,
            np.append(0, np.cumsum(parts)),
            np.arange(self.tasks + 1) * self.terminals,
            test_X,
            test_y,
            np.append(0, np.cumsum(tests)),
            tuple(f"task-{b}" for b in range(self.tasks)),
            class_names=() if self.regression else ("no", "yes"),
        )

    def _rows(self, rng: Any, models: Any, directions: Any, sizes: Any) -> tuple[Any, Any]:
        task = np.repeat(np.arange(self.tasks), sizes)
        X = rng.normal(size=(len(task), self.features)) + rng.normal(size=(len(task), 3)) @ directions
        score = np.sum(X * models[task], axis=1)
        score /= score.std()
        if self.regression:
            return X, 5.0 * models[task, 0] + score + self.noise * rng.normal(size=len(task))
        if self.positive < 0.5:
            score += 4.0 * self.noise * rng.normal(size=len(task))
            return X, (score > np.quantile(score, 1.0 - self.positive)).astype(np.int16)
        flipped = rng.random(len(task)) < self.noise
        return X, ((score > 0.0) ^ flipped).astype(np.int16)


def drawn(numbers: Iterable[int]) -> list[Problem]:
    """The federations of these numbers."""
    found = []
    for number in numbers:
        each = Drawn.number(number)
        metric = "rmse" if each.regression else "accuracy" if number < RARE else "auc"
        weights = each.lambda1, each.lambda1 * each.ratio
        found.append(Problem(each.name(number), each.federation, *weights, each.step_price, metric))
    return found


def real() -> list[Problem]:
    """Data sets that nobody drew; those whose files are not there are left out."""
    har = Request("har", str(DATA / "har.npz"), tasks=5, samples_per_task=70, positive="SITTING", test_rest=True)
    heart = Request("table", str(DATA / "heart.csv"), settings={"label": "num", "task": "center"}, test_fraction=0.3)
    asked = [
        *((f"har N_b={n}", replace(har, terminals=n), "balanced_accuracy", 1e-4, 1e-3, 0.1) for n in (1, 5, 15)),
        ("har N_b=1, λ2 1", replace(har, terminals=1), "balanced_accuracy", 1e-4, 1.0, 0.1),
        ("watch", Request("watch", terminals=5), "balanced_accuracy", 1e-3, 1e-3, 0.1),
        ("landmine", Request("landmine", str(DATA / "landmine.npz"), terminals=5), "auc", 1e-4, 1e-2, 0.02),
        ("landmine, λ2 1", Request("landmine", str(DATA / "landmine.npz"), terminals=1), "auc", 1e-3, 1.0, 0.5),
    ]
    found = [
        Problem(name, request.federation, lambda1, lambda2, price, metric)
        for name, request, metric, lambda1, lambda2, price in asked
        if request.path is None or Path(request.path).exists()
    ]
    if (DATA / "heart.csv").exists():
        found.append(Problem("heart", lambda seed: _heart(heart, seed), 1e-2, 1e-1, 0.1, "balanced_accuracy"))
    return [*found, *_scikit_learn()]


def _heart(request: Request, seed: int) -> Federation:
    """Ill or not, of four centres, those without a test row of both classes included."""
    source = request.source()
    ill = (np.asarray(source.y) != list(source.class_names).index("0")).astype(np.int16)
    return federate(replace(source, y=ill, class_names=("no", "yes")), replace(request.split(), terminals=3), seed)


def _scikit_learn() -> list[Problem]:
    """Breast cancer and diabetes by quarters of a column, digits (odd or even) by clusters of their images."""
    return [
        Problem("breast cancer", lambda seed: _cut("breast_cancer", 2, seed), 1e-3, 1e-2, 0.1),
        Problem("digits", lambda seed: _cut("digits", 4, seed), 1e-3, 1e-1, 0.02),
        Problem("diabetes", lambda seed: _cut("diabetes", 1, seed), 1e-2, 1.0, 0.5, "rmse"),
    ]


@cache
def _cut(name: str, terminals: int, seed: int) -> Federation:
    from sklearn import datasets
    from sklearn.cluster import KMeans

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    if name == "digits":
        y, task = y % 2, KMeans(8, random_state=0, n_init=1).fit_predict(X)
    else:
        column = X[:, 0 if name == "diabetes" else 1]
        task = np.searchsorted(np.quantile(column, (0.25, 0.5, 0.75)), column)
    classes = () if name == "diabetes" else ("no", "yes")
    names = tuple(f"part {k}" for k in range(int(task.max()) + 1))
    labels = y.astype(np.float64 if name == "diabetes" else np.int16)
    source = Source(X, labels, task, names, classes, small_tasks="keep")
    return federate(source, Split(terminals=terminals, test_fraction=0.4), seed)
