"""Records: everything about a run in plain values, one row per BS iteration and task, and how to repeat it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from rhfedmtl.algorithms.options import Options
from rhfedmtl.cli.main import app
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.runs import lookup, recording, records
from rhfedmtl.training.config import RunConfig

SMALL = Request(data="synthetic", tasks=3, terminals=2, settings={"test": 20})
CONFIG = RunConfig(
    "hfedmtl",
    SMALL,
    Options(local_steps=3, station_rounds=2, intercept=False, lambda2=0.05),
    cost=("energy=0.1,10,1",),
    budget=("energy=300",),
    faults="dropout=0.4",
    seed=2,
)


def made() -> records.Record:
    """The record of a small run with drop-outs and K = 2."""
    federation = CONFIG.federation()
    return recording.record(CONFIG, federation, CONFIG.run(federation, execution=Execution(threads=1)))


def result_of(known: records.Record) -> records.Summary:
    """What came out of a run that was not refused."""
    assert known.result is not None
    return known.result


def test_every_bs_iteration_has_a_row_for_each_task() -> None:
    """Rounds × tasks rows, certified ones and others, with what was spent until then and who answered."""
    known = made()
    rows = list(records.round_rows(known))
    assert len(rows) == result_of(known).rounds * 3
    assert [row["round"] for row in rows[::3]] == list(range(1, result_of(known).rounds + 1))
    spent = [row["spent_energy"] for row in rows]
    assert spent == sorted(spent)
    assert spent[-1] == result_of(known).spent["energy"] <= 300
    assert all(row["answered"] <= row["ordered"] == 2 for row in rows)
    assert any(row["answered"] < row["ordered"] for row in rows)
    assert all(row["gap"] >= 0 and 0 <= row["accuracy"] <= 1 for row in rows)


def test_the_last_row_is_the_result() -> None:
    """The mean over tasks in the last round is the accuracy of the run, and its gap the certificate's."""
    known = made()
    rows = list(records.round_rows(known))[-3:]
    assert np.mean([row["accuracy"] for row in rows]) == pytest.approx(result_of(known).metrics["accuracy"])
    assert rows[0]["gap"] == result_of(known).gap


def test_rounds_between_certificates_have_no_metrics() -> None:
    """Every second round certified: the others say what was spent and done, and leave gap and metrics empty."""
    federation = CONFIG.federation()
    config = RunConfig("hfedmtl", SMALL, cost=CONFIG.cost, budget=CONFIG.budget, certify_every=2)
    table = recording.record(config, federation, config.run(federation, execution=Execution(threads=1))).rounds
    assert table is not None
    known = [gap is not None for gap in table.gap]
    assert known[:4] == [False, True, False, True]
    assert known[-1]
    assert [values is not None for values in table.metrics["accuracy"]] == known


def test_the_bill_adds_up() -> None:
    """What the tiers took is what was spent."""
    known = made()
    assert sum(line.amount for line in known.bill) == pytest.approx(result_of(known).spent["energy"])
    assert {line.tier for line in known.bill} == {"terminal", "station", "cloud"}


def test_rounds_are_saved_as_parquet(tmp_path: Path) -> None:
    """The file holds one row per run, BS iteration and task."""
    known = made()
    path = records.save_rounds(tmp_path, [known, known])
    table = parquet.read_table(path)
    assert table.num_rows == 2 * 3 * result_of(known).rounds
    assert {"run", "round", "task", "accuracy", "gap", "spent_energy", "local_steps", "answered"} <= set(
        table.column_names
    )


def test_without_pyarrow_rounds_are_saved_as_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base installation writes the same rows as text."""
    monkeypatch.setattr(records, "find_spec", lambda name: None)
    known = made()
    path = records.save_rounds(tmp_path, [known])
    assert path.name == "rounds.csv"
    assert len(path.read_text().splitlines()) == 1 + 3 * result_of(known).rounds


def test_the_command_of_a_record_repeats_the_run(tmp_path: Path) -> None:
    """Typed as it stands, it gives the same configuration and the same numbers."""
    known = made()
    words = shlex.split(known.command)[1:]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    (folder,) = tmp_path.iterdir()
    again = records.load(folder / "run.json")
    assert again.key == known.key
    assert again.rounds == known.rounds


def test_a_damaged_record_is_refused_by_name(tmp_path: Path) -> None:
    """Torn, foreign and old files are no records, and the error names the file."""
    for text in ('{"format": 2, "conf', "[]", '{"format": 1}'):
        path = tmp_path / "run.json"
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"run\.json"):
            records.load(path)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("result", "gap"), "small", "result.gap must be float, got 'small'"),
        (("configuration", "seed"), None, "configuration.seed must be int, got 'None'"),
        (("rounds", "local_steps"), 3, "rounds.local_steps must be list, got '3'"),
        (("configuration", "options"), [], r"configuration.options must be a table, got '\[\]'"),
    ],
)
def test_a_record_of_another_shape_is_refused_with_the_place(
    tmp_path: Path, place: tuple[str, str], value: object, message: str
) -> None:
    """Whoever edits a record by hand is told in a line which entry is of another type."""
    table = made().to_dict()
    table[place[0]][place[1]] = value
    (tmp_path / "run.json").write_text(json.dumps(table))
    with pytest.raises(ConfigError, match=rf"run\.json cannot be read as the record of a run: {message}"):
        records.load(tmp_path / "run.json")


def test_a_record_is_the_same_before_it_is_written_and_after_it_is_read(tmp_path: Path) -> None:
    """Numbers and tables of a method by SGD, certified too; one without P(0) is from an earlier version."""
    federation = CONFIG.federation()
    config = RunConfig("fedavg", SMALL, cost=CONFIG.cost, budget=CONFIG.budget, certify_every=5)
    known = recording.record(config, federation, config.run(federation, execution=Execution(threads=1)))
    (tmp_path / "run.json").write_text(json.dumps(known.to_dict(), allow_nan=False))
    assert records.load(tmp_path / "run.json") == known
    assert known.rounds.gap[3] is None
    found, table = result_of(known), known.to_dict()
    assert found.gap == known.rounds.gap[-1]
    assert found.gap is not None
    assert 0.0 <= found.gap <= found.primal  # type: ignore[operator]
    assert found.primal_at_zero == 0.5
    del table["result"]["primal_at_zero"], table["selection"]
    (tmp_path / "old.json").write_text(json.dumps(table))
    assert result_of(records.load(tmp_path / "old.json")).primal_at_zero is None


def test_a_damaged_run_is_named_and_the_others_are_listed(tmp_path: Path) -> None:
    """One torn run.json breaks neither `runs list` nor `runs show` of another run."""
    for name, text in (
        ("good", json.dumps(made().to_dict())),
        ("torn", '{"format": 2, "conf'),
        ("old", '{"format": 1}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    listed = CliRunner().invoke(app, ["runs", "list", "--folder", str(tmp_path), "--json"])
    assert CliRunner().invoke(app, ["runs", "list", str(tmp_path), "--json"]).stdout == listed.stdout
    facts = json.loads(listed.output)
    assert [line["name"] for line in facts["runs"]] == ["good"]
    assert [Path(line.split()[0]).parent.name for line in facts["unreadable"]] == ["old", "torn"]
    printed = CliRunner().invoke(app, ["runs", "list", str(tmp_path)])
    assert printed.exit_code == 0
    assert printed.stdout.splitlines()[1].startswith("good")
    assert printed.stderr.count("unreadable: ") == 2
    assert CliRunner().invoke(app, ["runs", "show", "good", "--folder", str(tmp_path)]).exit_code == 0


def test_runs_are_found_shown_and_compared(tmp_path: Path) -> None:
    """`runs list`, `show` and `compare` on what `train` left behind."""
    runner, folder = CliRunner(), str(tmp_path)
    for steps in ("2", "5"):
        words = ["train", "--tasks", "2", "--terminals", "2", "--algorithm", "hfedmtl", "--cloud-rounds", "3"]
        assert runner.invoke(app, [*words, "--local-steps", steps, "--out", folder, "--json"]).exit_code == 0
    listed = json.loads(runner.invoke(app, ["runs", "list", "--folder", folder, "--json"]).output)["runs"]
    assert [line["algorithm"] for line in listed] == ["hfedmtl", "hfedmtl"]
    assert "result: balanced accuracy\n" in runner.invoke(app, ["runs", "list", "--folder", folder]).output
    names = [line["name"] for line in listed]
    shown = runner.invoke(app, ["runs", "show", names[0], "--folder", folder])
    assert "rhfedmtl train" in shown.output
    latest = json.loads(runner.invoke(app, ["runs", "show", folder, "--json"]).output)
    assert latest["configuration"]["options"]["local_steps"] == 5
    compared = runner.invoke(app, ["runs", "compare", *names, "--folder", folder, "--json"])
    assert json.loads(compared.output)["settings"] == {"options.local_steps": [2, 5]}


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    """An unknown name, and a folder that is not there, are answered with what there is."""
    with pytest.raises(ConfigError, match="none of 0 runs fits"):
        lookup.pick(tmp_path, "nothing")
    with pytest.raises(ConfigError, match="no folder"):
        lookup.find(tmp_path / "nowhere")
