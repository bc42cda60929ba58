"""A terminal that is removed: how near the models are to those that never saw it, in writing, and held to it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy import nets
from typer.testing import CliRunner

from rhfedmtl.algorithms.options import Options
from rhfedmtl.cli.main import app
from rhfedmtl.data.federation import Federation
from rhfedmtl.errors import ConfigError
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.privacy import Privacy

GONE, GAP = 1, 1e-5
OPTIONS = {"lambda1": 0.01, "lambda2": 0.05}


def without(data: Federation, terminal: int) -> Federation:
    """The same data, which never had a terminal."""
    start, end = (int(each) for each in data.terminal_offsets[terminal : terminal + 2])
    keep = np.r_[0:start, end : len(data.X)]
    counts = np.delete(np.diff(data.terminal_offsets), terminal)
    offsets = np.where(data.task_offsets > terminal, data.task_offsets - 1, data.task_offsets)
    return replace(
        data,
        X=data.X[keep],
        y=data.y[keep],
        terminal_offsets=np.concatenate([[0], np.cumsum(counts)]),
        task_offsets=offsets,
    )


def apart(one: Any, other: Any) -> float:
    """‖W − W′‖_Q."""
    W = (one - other).reshape(len(one), -1)
    Q = Options.of(**OPTIONS).chosen_relationship().dense(len(one)).Q
    return math.sqrt(float(np.einsum("bd,bc,cd->", W, Q, W)))


@pytest.mark.parametrize(
    ("gap_before", "light"), [(1e-3, False), (1e-7, False), pytest.param(1e-7, True, marks=pytest.mark.slow)]
)
def test_models_are_as_near_as_is_stated_to_those_that_never_saw_it(
    tmp_path: Path, gap_before: float, light: bool
) -> None:
    """Against a run in one process without its rows; the models from before its removal are not that near."""
    federation = nets.small(2, 4, 60)
    folder = nets.build(tmp_path / "net", federation, learning={"options": OPTIONS, "scale": "unit"}, light=light)
    out = tmp_path / "out"
    words = ["--target-gap", str(GAP), "--privacy", "epsilon=1,delta=1e-6", "--out", str(out), "--json"]
    with nets.running(folder) as (_, operator):
        nets.trained(operator, budget=["energy=1e6"], target_gap=gap_before)
        operator.export(tmp_path / "before")
        found = CliRunner().invoke(app, ["network", "forget", str(folder), str(GONE), *words])
    assert found.exit_code == 0, found.output
    statement = json.loads(found.output)
    assert json.loads((out / "removal.json").read_text()) == statement
    assert statement["words"] in (out / "removal.txt").read_text()
    assert statement["distance"] == pytest.approx(math.sqrt(2 * 2 * GAP))
    models, before = (TaskModels.load(each / "model.npz").models for each in (out, tmp_path / "before"))
    options = Options.of(**OPTIONS)
    never = RunConfig(options=options, scale="unit", target_gap=1e-12).run(without(federation, GONE))
    best = never.models
    slack = math.sqrt(2 * 2 * max(never.certificate.gap, 0.0))
    assert apart(models, best) <= statement["distance"] + slack
    assert apart(before, best) > statement["distance"] + slack
    noised = TaskModels.load(out / "released.npz")
    assert noised.certificate is None
    assert statement["noise"] == pytest.approx(2.0 * statement["distance"] / Privacy(1.0, 1e-6).mu)
    assert 0.0 < apart(noised.models, models) < 12.0 * statement["noise"] * math.sqrt(models.size)


def test_what_cannot_be_stated_is_refused_before_anything_is_removed(tmp_path: Path) -> None:
    """Scaling and a learned relationship remember the rows of everybody; a gap that is not reached proves nothing."""
    folder = nets.build(tmp_path / "net", nets.small(1, 4, 60))
    with nets.running(folder) as (_, operator):
        nets.trained(operator, budget=["energy=200"])
        with pytest.raises(ConfigError, match="--scale unit"):
            operator.command("forget", terminal=GONE, certified=True)
        seats = operator.command("status")["stations"][0]["terminals"]
        assert all(seat["member"] for seat in seats)
    found = CliRunner().invoke(app, ["network", "forget", str(folder), "1", "--privacy", "epsilon=1"])
    assert "give --target-gap too" in str(found.exception)
