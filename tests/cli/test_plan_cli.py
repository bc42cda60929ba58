"""The command line of `plan` and `calibrate`: one JSON object, tables of 80 columns, clear errors, light imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rhfedmtl.cli.main import app
from rhfedmtl.errors import BudgetError, ConfigError, DataError, RHFedMTLError
from rhfedmtl.resources.costs import Cost

SMALL = ["--data", "synthetic", "--tasks", "2", "--terminals", "3", "--samples-per-task", "40", "--set", "features=5"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "100"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return found


def narrow(text: str) -> bool:
    return max(len(line) for line in text.splitlines()) <= 80


def test_plan_from_numbers() -> None:
    """The command of the issue prints one JSON object with H, K, M, cost, range, case and curve."""
    sizes = ["--tasks", "5", "--terminals", "5", "--samples-per-task", "70"]
    found = as_json(
        "plan", *sizes, "--budget", "energy=1400", "--cost", "energy=0.1,10", "--policy", "paper", "--bound", "text"
    )
    assert (found["local_steps"], found["station_rounds"], found["case"], found["binding"]) == (
        1,
        9,
        "surplus",
        "energy",
    )
    assert found["cost"]["energy"] <= 1400
    assert found["feasible_steps"]["energy"] == [[1, 45]]
    assert found["curve"][0]["cost"]["energy"] == pytest.approx(found["curve"][0]["bound_rounds"] * 52.5)
    assert found["federation"]["train_rows"] == 260
    assert found["configuration"]["cost"]["energy"]["terminal_step"] == 0.1


@pytest.mark.parametrize("policy", ["fixed", "paper", "measured"])
def test_every_policy_prints_a_table(policy: str) -> None:
    """Tables fit 80 columns and name what binds, for several types at once."""
    budgets = ["--budget", "energy=1400", "--budget", "time=60"]
    text = run("plan", "--policy", policy, *budgets, "--cost", "energy=0.1,10", "--cost", "time=0.01,1")
    assert narrow(text)
    assert "binding      energy" in text


def test_plan_with_data_predicts_the_gap() -> None:
    """With data the plan has a predicted gap, and `--pilot-rounds 0` leaves it out."""
    found = as_json("plan", *SMALL, "--budget", "energy=1000", "--merge", "average")
    gap = found["predicted_gap"]
    assert 0 < gap["low"] < gap["expected"] < gap["high"]
    assert found["federation"]["from"] == "data"
    text = run("plan", *SMALL, "--budget", "energy=1000")
    assert "final gap" in text
    assert narrow(text)
    assert as_json("plan", *SMALL, "--budget", "energy=1000", "--pilot-rounds", "0")["predicted_gap"] is None


def test_target_with_data() -> None:
    """`--target` prints the curve, its Pareto points and the smallest budget."""
    options = [*SMALL, "--lambda1", "0.01", "--target", "gap=0.05", "--seeds", "2", "--points", "8"]
    found = as_json("plan", *options)
    assert found["reached"]
    assert found["budget"] == min(p["budget"] for p in found["curve"] if p["reached"])
    assert found["curve"][0]["pareto"]
    assert found["seeds"] == 2
    text = run("plan", *options)
    assert "smallest budget that reached it" in text
    assert narrow(text)


def test_target_without_data() -> None:
    """Theory gives the necessary and the guaranteed budget of a gap."""
    found = as_json("plan", "--target", "gap=1e-3")
    assert set(found["bounds"]) == {"text", "sound"}
    assert narrow(
        run("plan", "--target", "gap=1e-3", "--policy", "paper", "--bound", "drawn", "--budget", "energy=1400")
    )


def test_calibrate_writes_a_file_that_plan_and_train_read(tmp_path: Path) -> None:
    """Prices that were measured, with links, are the prices of a plan and of a run."""
    out = tmp_path / "prices.toml"
    options = ["--n-features", "5", "--rows", "8", "--repeats", "3", "--terminal-up", "1e6,10,0.2", "--out", str(out)]
    found = as_json("calibrate", *options)
    assert found["saved"] == str(out)
    assert Cost.from_toml(out).to_dict() == found["cost"]
    assert found["cost"]["time"]["terminal_byte_up"] > 0
    planned = as_json("plan", "--cost", str(out), "--n-features", "5", "--budget", "bytes=2e5")
    assert planned["cost"]["bytes"] <= 2e5
    limits = ["--budget", "bytes=5e4", "--budget", "energy=2000"]
    fixed = ["--algorithm", "hfedmtl"]
    trained = as_json("train", *SMALL, *fixed, "--cost", str(out), *limits, "--out", str(tmp_path))
    assert trained["spent"]["bytes"] <= 5e4
    assert narrow(run("calibrate", *options))


def test_links_of_every_terminal_come_from_a_file(tmp_path: Path) -> None:
    """A CSV gives each terminal a price of its own."""
    table = tmp_path / "links.csv"
    table.write_text(
        "terminal,bandwidth_hz,snr_db,power_w\n" + "".join(f"{t},{(t + 1) * 1e6},10,0.2\n" for t in range(6))
    )
    out = tmp_path / "prices.toml"
    options = ["--n-features", "5", "--rows", "8", "--repeats", "3", "--links", str(table), "--out", str(out)]
    prices = as_json("calibrate", *options)["cost"]["time"]["terminal_byte_up"]
    assert prices == sorted(prices, reverse=True)
    assert len(prices) == 6
    assert narrow(run("calibrate", *options))
    assert as_json("plan", *SMALL, "--cost", str(out), "--budget", "bytes=1e5", "--pilot-rounds", "0")["rounds"] > 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--budget", "energy=40"], BudgetError, "cheapest feasible plan"),
        (["--budget", "energy=nan"], BudgetError, "finite number"),
        (["--budget", "money=3", "--cost", "energy=1,2"], BudgetError, "no price"),
        (["--budget", "energy=9", "--cost", "energy=-1,2"], ConfigError, "price is a finite number"),
        (["--budget", "energy=1400", "--tasks", "0"], ConfigError, "tasks"),
        (["--budget", "energy=1400", "--terminals", "60"], ConfigError, "52 training rows for 60 terminals"),
        (["--budget", "energy=1400", "--path", "x.npz"], DataError, "x.npz"),
        (["--budget", "energy=1400", "--positive", "a"], ConfigError, "--data"),
        (["--budget", "energy=1400", "--set", "features=3"], ConfigError, "--data"),
        (["--budget", "energy=1400", "--policy", "best"], ConfigError, "unknown policy"),
        (["--budget", "energy=1400", "--lambda1", "nan"], ConfigError, "lambda1"),
        (["--budget", "energy=1400", "--cost", "a.toml", "--cost", "b.toml"], ConfigError, "one file"),
        (["--budget", "energy=1400", "--cost", "a.toml"], ConfigError, "cannot read"),
        (["--budget", "bytes=1400", "--cost", "bytes=byte:1"], ConfigError, "features"),
        ([], BudgetError, "plans for a budget"),
        (["--target", "accuracy=0.9"], ConfigError, "without data only a gap"),
        (["--target", "accuracy=0.9", "--budget", "time=2", "--cost", "energy=1,1"], BudgetError, "no price"),
        ([*SMALL, "--budget", "energy=1400", "--n-features", "3"], ConfigError, "without data"),
        ([*SMALL, "--budget", "energy=1"], BudgetError, "cheapest feasible plan"),
        (["--data", "har", "--path", "nowhere.npz", "--budget", "energy=1400"], DataError, "nowhere.npz"),
    ],
)
def test_absurd_plans_are_refused(arguments: list[str], error: type[RHFedMTLError], message: str) -> None:
    """Each mistake is an error of the library that names it."""
    with pytest.raises(error, match=message):
        run("plan", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n-features", "0"], "features"),
        (["--dtype", "int8"], "dtype"),
        (["--terminal-watts", "-1"], "terminal_watts"),
        (["--terminal-up", "fast"], "BANDWIDTH_HZ"),
        (["--terminal-up", "1e6,10", "--links", "x.csv"], "one of them"),
        (["--out", "no/such/folder/prices.toml"], "no folder"),
    ],
)
def test_absurd_calibrations_are_refused(arguments: list[str], message: str) -> None:
    """Mistakes are found before anything is measured."""
    with pytest.raises(ConfigError, match=message):
        run("calibrate", *arguments)


def test_help_shows_examples() -> None:
    """Both commands say what they do and how they are called."""
    assert "rhfedmtl plan --tasks 5" in run("plan", "--help")
    assert "rhfedmtl calibrate --n-features" in run("calibrate", "--help")


def test_importing_the_command_line_is_light() -> None:
    """Neither numba nor scipy nor the engines are loaded before a command needs them."""
    code = (
        "import sys, rhfedmtl.cli.plan as c; assert c.plan; "
        "heavy = [m for m in ('numba', 'scipy', 'sklearn', 'rhfedmtl.training.run') if m in sys.modules]; "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_pilot_is_kept_and_planned_from(tmp_path: Path) -> None:
    """With data it is written, without it is read; sizes and weights are its own.

    With data a run this small is simulated whole; what the pilot alone predicts is wider, and holds that.
    """
    path = str(tmp_path / "small.pilot")
    made = as_json("plan", *SMALL, "--budget", "energy=400", "--pilot", path)
    again = as_json("plan", "--budget", "energy=400", "--pilot", path)
    assert again["federation"] == {**made["federation"], "from": "a stored pilot"}
    assert again["predicted_gap"]["low"] <= made["predicted_gap"]["low"] < made["predicted_gap"]["high"]
    assert made["predicted_gap"]["high"] <= again["predicted_gap"]["high"]
    for words in (["--tasks", "3"], ["--lambda1", "0.1"], ["--n-features", "9"]):
        with pytest.raises(ConfigError, match="fixes"):
            run("plan", "--budget", "energy=400", "--pilot", path, *words)
    with pytest.raises(ConfigError, match="leave out --privacy"):
        run("plan", "--budget", "energy=400", "--pilot", path, "--privacy", "epsilon=1")
    with pytest.raises(DataError, match=r"no pilot .*none\.pilot: there is no such file"):
        run("plan", "--budget", "energy=400", "--pilot", str(tmp_path / "none.pilot"))


def test_help_lists_what_a_plan_heeds() -> None:
    """Options of other algorithms are not listed; those that every method has are."""
    text = run("plan", "--help")
    assert "--lambda2" in text
    assert not any(name in text for name in ("--mu", "--phi", "--server-step"))


def test_a_plan_states_its_weights(tmp_path: Path) -> None:
    """A plan has a line with λ1 and λ2: from the defaults, from the command line, or from the file of a pilot."""
    small, pilot = ["plan", "--budget", "energy=1400"], str(tmp_path / "kept.pilot")
    data = ["--data", "synthetic", "--tasks", "2", "--pilot", pilot]
    for words, weights in (
        (small, "lambda1 0.001, lambda2 0.01"),
        ([*small, "--lambda2", "0.5"], "lambda1 0.001, lambda2 0.5"),
        ([*small, *data, "--lambda2", "0.2"], "lambda1 0.001, lambda2 0.2"),
        ([*small, "--pilot", pilot], "lambda1 0.001, lambda2 0.2"),
        ([*small, "--relationship", "none"], "lambda1 0.001"),
    ):
        printed = CliRunner().invoke(app, words)
        assert f"weights      {weights}\n" in printed.output, printed.output
    target = [*small[:1], *data[:4], "--target", "accuracy=0.6", "--points", "2", "--seeds", "2", "--lambda2", "0.3"]
    facts = json.loads(CliRunner().invoke(app, [*target, "--json"]).output)
    assert {value for point in facts["curve"] for value in point["lambda2"]} == {0.3}
    assert "lambda2 of the runs: 0.3" in facts["notes"]
