"""Tables that others printed: the protocols are theirs, and the table has a line for each printed figure."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rhfedmtl.errors import ConfigError
from rhfedmtl.studies import published

DATA = Path(os.environ.get("RHFEDMTL_DATA", "nowhere"))
HEART = DATA / published.HEART
needs_heart = pytest.mark.skipif(not HEART.is_file(), reason="RHFEDMTL_DATA has no heart.csv")


@needs_heart
def test_heart_has_the_rows_and_columns_of_flamby() -> None:
    """740 patients of four centres, 13 columns, 66 % for training, standardised there."""
    rows = published._heart(HEART, 0)
    assert rows.X.shape == (740, 13)
    np.testing.assert_array_equal(np.bincount(rows.task), [303, 261, 46, 130])
    np.testing.assert_array_equal(np.bincount(rows.task[~rows.test]), [199, 172, 30, 85])
    np.testing.assert_allclose(rows.X[(rows.task == 0) & ~rows.test].mean(axis=0), 0.0, atol=1e-12)


@needs_heart
@pytest.mark.slow
def test_the_table_has_every_printed_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours stands beside those that we have a method for; on the heart we are at or above the best that was printed."""
    heart = replace(published.TABLES[2], printed={"FedYogi": (73.1, "fedyogi"), "a network": (68.5, None)})
    monkeypatch.setattr(published, "TABLES", (heart,))
    seen: list[tuple[int, int]] = []
    lines = published.table(DATA, 2, tmp_path, workers=1, watch=lambda done, total, _: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [line.method for line in lines] == ["FedYogi", "a network", "rhfedmtl (beside the best printed)"]
    assert lines[0].ours is not None
    assert lines[1].ours is None
    assert lines[2].ours is not None
    assert lines[2].ours >= 73.1
    assert published.table(DATA, 2, tmp_path, workers=1, watch=lambda *_: pytest.fail("made again")) == lines
    with published.save(lines, tmp_path).open(newline="") as file:
        assert next(csv.reader(file)) == ["source", "data", "method", "printed", "ours", "half_width"]
    assert set(published.DIFFERENCES) == {"FedU", "MOCHA", "FLamby"}


def test_a_table_has_no_fewer_splits_than_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MOCHA's has ten, however few seeds are asked for; with more all have as many."""
    for name in (published.HAR, published.HEART):
        (tmp_path / name).touch()
    asked: list[published.PublishedRun] = []

    def known(runs: Sequence[published.PublishedRun], *_: object) -> dict[published.PublishedRun, float]:
        asked[:] = runs
        return dict.fromkeys(runs, 1.0)

    monkeypatch.setattr(published, "_percents", known)
    for seeds, splits in ((2, [2, 10, 2]), (12, [12, 12, 12])):
        published.table(tmp_path, seeds, tmp_path)
        assert [len({run.seed for run in asked if run.table == k}) for k in range(3)] == splits


def test_data_that_is_missing_is_named(tmp_path: Path) -> None:
    """With the way out."""
    with pytest.raises(ConfigError, match=r"har.npz is not there; give --path"):
        published.table(tmp_path, 1, tmp_path)
