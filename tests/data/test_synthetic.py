"""Synthetic federations: every terminal from its own address, and every control does what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rhfedmtl.data import threads
from rhfedmtl.data.loaders import saved as storage
from rhfedmtl.data.loaders.synthetic import Synthetic, load, make, task_models, terminal_rows
from rhfedmtl.errors import ConfigError

CASES = [
    Synthetic(),
    Synthetic(classes=0, features=7, unequal=1.0),
    Synthetic(classes=4, tasks=3, terminals=2, clusters=2, unequal=0),
    Synthetic(features=1, samples=1, rows=13, terminals=4, test=0),
]


@pytest.mark.parametrize("settings", CASES, ids=repr)
def test_any_terminal_can_be_made_alone(settings: Synthetic) -> None:
    """A terminal made by itself equals the same terminal of the whole to the bit."""
    federation = make(settings, seed=5)
    for terminal in (0, federation.n_terminals // 2, federation.n_terminals - 1):
        X, y = terminal_rows(settings, 5, terminal)
        rows = slice(federation.terminal_offsets[terminal], federation.terminal_offsets[terminal + 1])
        assert (federation.X[rows] == X).all()
        assert (y == federation.y[rows]).all()


def test_seed_decides_and_cores_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed gives the same federation on any number of cores, another seed another one."""
    first = make(seed=1).fingerprint()
    monkeypatch.setattr(threads, "cores", lambda: 1)
    assert make(seed=1).fingerprint() == first
    assert make(seed=2).fingerprint() != first


def test_a_larger_federation_begins_like_a_smaller_one() -> None:
    """More tasks leave the rows of the first ones as they were."""
    few, many = make(Synthetic(tasks=2)), make(Synthetic(tasks=6))
    assert (many.X[: len(few.X)] == few.X).all()
    assert (few.test_X == many.test_X[: len(few.test_X)]).all()


@pytest.mark.parametrize("relatedness", [0.0, 0.5, 1.0])
def test_relatedness_is_the_correlation_of_models_within_a_cluster(relatedness: float) -> None:
    """True models of one cluster correlate as asked, those of different clusters not at all."""
    models = task_models(Synthetic(tasks=4, features=20_000, relatedness=relatedness, clusters=2), 3, range(4))[:, 0]
    correlation = np.corrcoef(models)
    assert abs(correlation[0, 2] - relatedness) < 0.03
    assert abs(correlation[0, 1]) < 0.03


def test_rows_and_labels_follow_the_stated_law() -> None:
    """Rows are standard normal without heterogeneity, labels are the signs of scores except for the noise."""
    settings = Synthetic(tasks=2, terminals=4, samples=5000, features=6, heterogeneity=0, unequal=0, noise=0.1)
    federation = make(settings, seed=4)
    assert np.abs(federation.X.mean(axis=0)).max() < 0.03
    np.testing.assert_allclose(np.cov(federation.X.T), np.eye(6), atol=0.03)
    models = task_models(settings, 4, range(2))[:, 0]
    scores = np.einsum("ij,ij->i", federation.X, models[federation.row_task])
    assert abs(np.mean((scores > 0) != federation.y) - 0.1) < 0.01


def test_noise_of_classes_falls_on_all_others_alike() -> None:
    """A noisy label is any other class with the same probability."""
    settings = Synthetic(tasks=1, terminals=1, samples=20_000, classes=4, features=5, noise=0.3, heterogeneity=0)
    federation = make(settings, seed=1)
    true = np.argmax(federation.X @ task_models(settings, 1, [0])[0].T, axis=1)
    wrong = (federation.y - true) % 4
    assert np.abs(np.bincount(wrong, minlength=4) / len(wrong) - [0.7, 0.1, 0.1, 0.1]).max() < 0.01


def test_regression_labels_are_scores_plus_noise() -> None:
    """Residuals of the true model have the asked standard deviation."""
    settings = Synthetic(tasks=1, terminals=2, samples=5000, classes=0, noise=0.5)
    federation = make(settings, seed=2)
    residual = federation.y - federation.X @ task_models(settings, 2, [0])[0, 0]
    assert federation.kind == "regression"
    assert abs(residual.std() - 0.5) < 0.02


def test_heterogeneity_moves_terminals_apart() -> None:
    """Means of terminals spread as asked, and test rows come from the same mixture."""
    federation = make(Synthetic(tasks=1, terminals=200, samples=100, heterogeneity=1.0, unequal=0, test=4000), seed=1)
    means = federation.X.reshape(200, 100, -1).mean(axis=1)
    assert abs(means.std() - 1.0) < 0.05
    assert abs(federation.test_X.std() - np.sqrt(2)) < 0.05


def test_sizes_are_exact_per_task_and_unequal_on_demand() -> None:
    """Each task holds exactly the rows asked for, spread over terminals as evenly as asked."""
    for unequal in (0.0, 1.5):
        federation = make(Synthetic(tasks=3, terminals=7, rows=100, unequal=unequal), seed=3)
        sizes = np.diff(federation.terminal_offsets).reshape(3, 7)
        assert (sizes.sum(axis=1) == 100).all()
        assert sizes.min() >= 1
        assert (np.ptp(sizes) <= 1) == (unequal == 0)


def test_rows_can_be_made_on_disk(tmp_path: Path) -> None:
    """With a folder the rows are memory-mapped there, are the same, and can be loaded again."""
    made = load(tmp_path, Synthetic(), 3)
    assert made.fingerprint() == make(seed=3).fingerprint() == storage.load(tmp_path).fingerprint()
    assert isinstance(made.X.base, np.memmap) or isinstance(made.X.base.base, np.memmap)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tasks": 0}, "tasks >= 1"),
        ({"classes": 1}, "two or more classes"),
        ({"relatedness": 1.5}, "correlation"),
        ({"noise": 2.0}, "share of labels"),
        ({"heterogeneity": -1.0}, "heterogeneity must be at least 0"),
        ({"rows": 3}, "3 training rows cannot fill 5 terminals"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float], words: str) -> None:
    """Each refused setting is named with its value."""
    with pytest.raises(ConfigError, match=words):
        Synthetic(**settings)  # type: ignore[arg-type]
