"""Studies and their specifications: grids, paired differences, printed values, and errors that point at the line."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.waiting import wait_for
from typer.testing import CliRunner

from rhfedmtl.algorithms.registry import ALGORITHMS
from rhfedmtl.cli.main import app
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError, RHFedMTLError
from rhfedmtl.maths.intervals import interval
from rhfedmtl.runs.sweep import execute
from rhfedmtl.studies import cost_figure
from rhfedmtl.studies import spec as specs
from rhfedmtl.studies.findings import findings
from rhfedmtl.studies.overall import overall
from rhfedmtl.studies.planned import side_by_side
from rhfedmtl.studies.reproduce import GROUPS, Reproduced, expand, folder, names, reproduce, summaries
from rhfedmtl.studies.study import StudyResult, place
from rhfedmtl.training.config import RunConfig

SMALL = Request(data="synthetic", tasks=2, terminals=2, settings={"test": 20})
BASE = RunConfig(request=SMALL, cost=("energy=0.1,10",))
COMPARE = ["compare", "--tasks", "2", "--terminals", "2", "--workers", "1", "--algorithms", "rhfedmtl,local"]
SPEC = """\
title = "A small study"
seeds = 2
metric = "accuracy"
x = "budget.energy"

[data]
name = "synthetic"
tasks = 2
terminals = 2

[data.set]
test = 20

[learning]
lambda1 = 1e-3

[cost.energy]
step = 0.1
station = 10

[axes]
"data.terminals" = [2, 3]
"budget.energy" = [60, 100]

[[methods]]
algorithm = "rhfedmtl"

[[methods]]
algorithm = "hfedmtl"
local-steps = 3

[[methods]]
algorithm = "pooled"

[[paper]]
method = "rhfedmtl"
values = [[0.1, 0.2], [0.3, 1.4]]
"""


def written(tmp_path: Path, text: str) -> Path:
    """A specification in a file."""
    path = tmp_path / "small.toml"
    path.write_text(text)
    return path


def test_a_specification_spans_its_grid(tmp_path: Path) -> None:
    """Methods × grid × seeds; a method's own words count; yardsticks are the same run at every budget."""
    study, configs = specs.read(written(tmp_path, SPEC))
    assert len(study.points) == 3 * 4 * 2
    at = {"data.terminals": 3, "budget.energy": 100}
    ours = configs[next(p.run for p in study.points if p.variant == "hfedmtl" and p.at == at)]
    assert ours.request.terminals == 3
    assert ours.options.local_steps == 3
    assert ours.resources()[1]["energy"] == 100
    assert len({p.run for p in study.points if p.variant == "pooled"}) == 2 * 2


def test_a_study_is_read_back_with_its_cells(tmp_path: Path) -> None:
    """Means, intervals, printed values and paired differences, the same from the folder as from the run."""
    specs.read(written(tmp_path, SPEC)).run(tmp_path, workers=1)
    result = StudyResult.load(tmp_path, "small")
    cell = result.cell("rhfedmtl", {"data.terminals": 2, "budget.energy": 100})
    values = result.values("rhfedmtl", cell.at)
    assert values is not None
    assert (cell.mean, cell.half) == interval(values)
    assert cell.paper == 0.2
    with (tmp_path / "small.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["algorithm", "n_terminals", "budget", "accuracy", "ci95", "paper"]
    assert len(rows) == 12
    with (tmp_path / "small-seeds.csv").open() as file:
        runs = [row for row in csv.DictReader(file) if row["algorithm"] == "rhfedmtl" and row["n_terminals"] == "2"]
    assert [float(row["accuracy"]) for row in runs if row["budget"] == "100"] == values.tolist()
    record = result.record("rhfedmtl", cell.at, 0)
    assert record.result is not None
    assert [float(row["relative_gap"]) for row in runs if row["run"] == record.key] == [record.result.relative_gap]
    assert findings(result)[0].startswith("hfedmtl is ")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "lambda1 = 1e-3",
            "lamda1 = 1e-3",
            r"small.toml:15: unknown key 'lamda1' in \[learning\]; did you mean lambda1",
        ),
        ("lambda1 = 1e-3", 'lambda1 = "small"', r"small.toml:15: lambda1 must be float or 'auto', got 'small'"),
        ("lambda1 = 1e-3", "lambda1 = -1.0", r"small.toml:25: method 'rhfedmtl': .*lambda"),
        ('name = "synthetic"', 'name = "sinthetic"', r"small.toml:7: unknown data set 'sinthetic'.*synthetic"),
        (
            '"data.terminals" = [2, 3]',
            '"data.name" = ["watch", "wotch"]',
            r"small.toml:22: unknown data set 'wotch'.*watch",
        ),
        ("seeds = 2", "seeds = 0", r"small.toml:2: 0 seeds"),
        ("seeds = 2", "seeds = true", r"small.toml:2: seeds must be int, got True"),
        ("seeds = 2", "seed = 2", r"small.toml:2: unknown key 'seed'; did you mean seeds"),
        ('"accuracy"', '"accurate"', r"small.toml:3: no metric 'accurate'"),
        ('x = "budget.energy"', 'x = "budget.time"', r"small.toml:4: x = 'budget.time' is none of the axes"),
        ('"data.terminals" = [2, 3]', '"data.terminal" = [2, 3]', r"small.toml:22: axis 'data.terminal': unknown key"),
        ('"data.terminals" = [2, 3]', '"data.terminals" = 2', r"small.toml:22: axis 'data.terminals' needs a list"),
        ('"data.terminals" = [2, 3]', '"data.terminals" = [2, "x"]', r"small.toml:22: terminals must be int, got 'x'"),
        (
            '"data.terminals" = [2, 3]',
            '"data.terminals" = [2, 2]',
            r"small.toml:22: axis 'data.terminals' has a value twice",
        ),
        ('"budget.energy" = [60, 100]', '"budget.energy" = [-5, 100]', r"small.toml:25: method 'rhfedmtl': .*-5"),
        ('"budget.energy" = [60, 100]', '"budget.money" = [60, 100]', r"small.toml:4: x"),
        (
            'algorithm = "hfedmtl"',
            'algorithm = "hfedmlt"',
            r"small.toml:28: method 'hfedmlt': unknown algorithm .*hfedmtl",
        ),
        ('algorithm = "hfedmtl"', 'algorithm = "rhfedmtl"', r"two methods have one name"),
        ("local-steps = 3", "mu = 0.5", r"small.toml:28: method 'hfedmtl': mu has no effect on hfedmtl: leave it out"),
        (
            'algorithm = "rhfedmtl"',
            'algorithm = "rhfedmtl"\nlocal-steps = 3',
            r"small.toml:25: method 'rhfedmtl': policy 'measured' decides H",
        ),
        ("lambda1 = 1e-3", "mu = 0.5", r"small.toml:15: mu has no effect on any of the methods: leave it out"),
        (
            '"data.terminals" = [2, 3]',
            '"learning.mu" = [0.1, 0.5]',
            r"small.toml:22: mu has no effect on any of the methods",
        ),
        ("values = [[0.1, 0.2], [0.3, 1.4]]", "values = [0.1]", r"small.toml:35: printed values: .* 4 values, got 1"),
        ("[learning]", "[learning", r"small.toml is not valid TOML: .*line 14"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Unknown keys, bad values and impossible grids are refused before anything runs, each with where it stands."""
    assert old in SPEC
    with pytest.raises(ConfigError, match=message):
        specs.read(written(tmp_path, SPEC.replace(old, new)))


def test_every_specification_of_the_repository_is_valid() -> None:
    """What the wheel carries along can be read, and all names are known to `reproduce`."""
    for group in GROUPS.values():
        for path in (folder() / group).glob("*.toml"):
            assert specs.read(path, seeds=1).configs
            assert path.stem in names(group)
    compared = {variant.algorithm for variant in specs.read(folder() / "baselines/har.toml").study.variants}
    paper = {variant.algorithm for variant in specs.read(folder() / "paper/table3.toml").study.variants}
    assert compared | paper == set(ALGORITHMS)
    assert set(expand(["all"])) == set(names("paper"))
    with pytest.raises(ConfigError, match="did you mean table3"):
        expand(["tabel3"])


def test_a_list_of_algorithms_is_a_method_each(tmp_path: Path) -> None:
    """With the same settings, and with the lines of the list in what is refused."""
    several = SPEC[: SPEC.index("[[methods]]")] + '[[methods]]\nalgorithm = ["rhfedmtl", "fedavg"]\ntune = true\n'
    found = specs.read(written(tmp_path, several)).study.variants
    assert [(variant.name, variant.algorithm, variant.tuned) for variant in found] == [
        ("rhfedmtl", "rhfedmtl", True),
        ("fedavg", "fedavg", True),
    ]
    number = several.splitlines().index("[[methods]]") + 1
    with pytest.raises(ConfigError, match=rf":{number}: method 'fedavgg': unknown algorithm"):
        specs.read(written(tmp_path, several.replace('"fedavg"', '"fedavgg"')))


def test_a_cell_that_cannot_be_paid_stays_empty(tmp_path: Path) -> None:
    """The others are filled, and there is no best where nobody could pay."""
    study = side_by_side(BASE, ["rhfedmtl", "hfedmtl"], [15.0, 100.0], range(1), "accuracy")
    found = study.run(tmp_path, workers=1)
    assert found.cell("rhfedmtl", {"budget.energy": 15.0}).mean is None
    assert found.cell("rhfedmtl", {"budget.energy": 100.0}).mean is not None
    assert found.best({"budget.energy": 15.0}) is None


def test_one_seed_and_a_cell_without_a_result_have_no_interval(tmp_path: Path) -> None:
    """Neither in the tables nor in what programs read: 0 would be a claim."""
    words = [*COMPARE, "--seeds", "1", "--budgets", "15,100"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [cell["half"] for cell in found["cells"]] == [None] * 4
    assert [cell["against"] and cell["against"][1:] for cell in found["cells"]] == [None, None, None, [None]]
    for name, count in (("compare", 4), ("compare-differences", 1)):
        with (tmp_path / f"{name}.csv").open() as file:
            assert [row["ci95"] for row in csv.DictReader(file)] == [""] * count


def test_areas_of_one_seed_have_no_interval(tmp_path: Path) -> None:
    """All budgets at once, too."""
    found = side_by_side(BASE, ["rhfedmtl", "local"], [60.0, 100.0], range(1), "accuracy").run(tmp_path, workers=1)
    rows = {row.variant: row for row in overall(found, {})}
    assert {row.half for row in rows.values()} == {None}
    assert rows["local"].against == (pytest.approx(rows["local"].area - rows["rhfedmtl"].area), None)
    assert all(cell.verdict == "" for cell in found.cells)


def test_runs_that_diverge_are_named_and_the_others_shown(tmp_path: Path) -> None:
    """Method and budget, and the seed where others have a result; the same again from what is recorded."""
    words = [*COMPARE[:-1], "rhfedmtl,fedavg", "--loss", "squared-hinge", "--step", "3000", "--budgets", "100,1400"]
    words += ["--seeds", "2", "--out", str(tmp_path)]
    first, again = (CliRunner().invoke(app, words) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert first.output == again.output
    told = " ".join(first.output.split())
    assert "the method diverged, take a smaller step (fedavg at budget 1400)" in told
    assert "rhfedmtl,1400.0,0." in (tmp_path / "compare.csv").read_text()
    assert "fedavg,1400.0,,\n" in (tmp_path / "compare.csv").read_text()
    found = StudyResult.load(tmp_path, "compare")
    (summary,) = summaries(Reproduced([found], False, {}), tmp_path)
    assert summary.runs == 6
    assert summary.findings[-1].startswith("Not run: ")
    elsewhere = shutil.copytree(tmp_path, tmp_path / "copy")
    path = elsewhere / "runs" / f"{found.runs['fedavg', place({'budget.energy': 1400.0}), 0]}.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "refused": None}))
    (reason,) = StudyResult.load(elsewhere, "compare").refusals()
    assert reason.endswith("(fedavg at budget 1400, seed 1)")


def test_a_comparison_that_replaces_another_says_so(tmp_path: Path) -> None:
    """One that goes on says nothing; the runs of the earlier one are kept."""
    words = [*COMPARE, "--seeds", "1", "--out", str(tmp_path), "--budgets"]
    first, again, other = (CliRunner().invoke(app, [*words, budget]).output for budget in ("60", "60", "100"))
    assert first == again
    assert "replaced" not in first
    assert "replaced the tables of an earlier comparison with other settings; its runs remain" in " ".join(
        other.split()
    )
    assert len(list((tmp_path / "runs").glob("*.json"))) == 4
    planned = specs.read(written(tmp_path, SPEC))
    planned.run(tmp_path, workers=1)
    assert not planned.replaces(tmp_path)
    assert specs.read(written(tmp_path, SPEC), seeds=1).replaces(tmp_path)


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    """The difference to the reference is that of each seed, with its own interval."""
    found = side_by_side(BASE, ["hfedmtl", "local"], [100.0], range(3), "accuracy").run(tmp_path, workers=1)
    values = {name: [_accuracy(name, seed) for seed in range(3)] for name in ("hfedmtl", "local")}
    cell = found.cell("local", {"budget.energy": 100.0})
    assert cell.against == interval(np.array(values["local"]) - values["hfedmtl"])


def _accuracy(algorithm: str, seed: int) -> float | None:
    record = execute(RunConfig(algorithm, SMALL, cost=BASE.cost, budget=("energy=100",), seed=seed))
    assert record.result is not None
    return record.result.metrics["accuracy"]


def test_the_command_prints_a_table_and_writes_a_csv(tmp_path: Path) -> None:
    """`compare` shows every method, marks the best, and leaves a file for other programs."""
    words = ["compare", "--tasks", "2", "--terminals", "2", "--seeds", "2", "--algorithms", "rhfedmtl,local"]
    result = CliRunner().invoke(app, [*words, "--budgets", "60,100", "--workers", "1", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "rhfedmtl" in result.output
    assert "*" in result.output
    assert len((tmp_path / "compare.csv").read_text().splitlines()) == 5
    assert (tmp_path / "compare.csv").read_text().startswith("algorithm,budget,balanced_accuracy,ci95\n")
    assert len((tmp_path / "compare-seeds.csv").read_text().splitlines()) == 9


def test_tables_and_sentences_mark_methods_that_move_data(tmp_path: Path) -> None:
    """`mocha` puts all rows of a station on a single terminal; `local` leaves them where they are."""
    words = [*COMPARE[:-1], "rhfedmtl,local,mocha,pooled", "--seeds", "2", "--budgets", "60,100"]
    words += ["--out", str(tmp_path)]
    printed = CliRunner().invoke(app, words)
    assert printed.exit_code == 0, printed.output
    lines = printed.output.splitlines()
    marked = [above.split()[1] for above, line in pairwise(lines) if line.startswith("│ (moves data)")]
    assert sorted(marked) == ["mocha", "mocha", "pooled"]  # the second table is of methods that pay
    assert "(moves data) pools rows of several terminals" in " ".join(printed.output.split())
    assert "; mocha (moves data) " in " ".join(printed.output.split())
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).output)["moves_data"] == ["mocha", "pooled"]


def test_the_first_sentence_after_the_tables_is_the_finding(tmp_path: Path) -> None:
    """Then the differences of single methods follow."""
    words = [*COMPARE[:-1], "rhfedmtl,local,fedavg", "--seeds", "2", "--budgets", "60,100", "--out", str(tmp_path)]
    printed = CliRunner().invoke(app, words).output
    finding = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)["finding"]
    assert finding
    sentences = " ".join(printed.rpartition("┘")[2].split())
    assert sentences.startswith(f"{finding} Mean differences to rhfedmtl, paired over 2 seeds: local ")


def test_a_specification_runs_from_the_command_line(tmp_path: Path) -> None:
    """`compare FILE` runs the study in it."""
    path = written(tmp_path, SPEC)
    result = CliRunner().invoke(app, ["compare", str(path), "--seeds", "1", "--workers", "1", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "small.csv").is_file()


def test_a_killed_sweep_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    """SIGKILL in the middle, continued: every table is byte for byte that of a sweep that nobody disturbed."""
    path = written(tmp_path, SPEC)
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    specs.read(path, seeds=6).run(whole, workers=1)
    words = [sys.executable, "-c", "from rhfedmtl.cli.main import main; main()", "compare", str(path)]
    words += ["--seeds", "6", "--workers", "2", "--out", str(torn)]
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as running:
        wait_for(lambda: len(list(torn.glob("runs/*.json"))) >= 5 or running.poll() is not None)
        os.killpg(running.pid, signal.SIGKILL)
    done = len(list(torn.glob("runs/*.json")))
    assert 5 <= done < len(list(whole.glob("runs/*.json")))
    specs.read(path, seeds=6).run(torn, workers=2)
    for name in ("small.csv", "small-seeds.csv", "small-differences.csv", "studies/small.json"):
        assert (torn / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_sweep_makes_no_more_runs(tmp_path: Path) -> None:
    """Ctrl-C ends the workers with the command, which says what is kept, and the runs that wait are not made."""
    path, out = written(tmp_path, SPEC), tmp_path / "out"
    words = [sys.executable, "-c", "from rhfedmtl.cli.main import main; main()", "compare", str(path)]
    words += ["--seeds", "100", "--workers", "2", "--out", str(out)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as running:
        wait_for(lambda: len(list(out.glob("runs/*.json"))) >= 5 or running.poll() is not None)
        os.killpg(running.pid, signal.SIGINT)
        said, err = running.communicate()
    assert (running.returncode, said) == (130, b"")
    assert err == b"interrupted: finished runs are saved; repeat the command to continue\n"
    assert 5 <= len(list(out.glob("runs/*.json"))) < 4 * 100


def test_the_cost_figure_shows_the_three_cases(tmp_path: Path) -> None:
    """The authors' curve is the published one, and every curve has a starved, a just sufficient and a rich budget."""
    cost_figure.save(tmp_path)
    curves = cost_figure.load(tmp_path)
    assert curves == cost_figure.compute()
    authors = next(curve for curve in curves if (curve.formula, curve.epsilon) == ("drawn", 1e-4))
    assert authors.rounds[:10] == [14, 13, 13, 12, 12, 11, 11, 10, 10, 9]
    for curve in curves:
        assert [chosen.case for chosen in curve.chosen] == ["starved", "enough", "surplus"]


def test_the_paper_is_reproduced_on_real_data(tmp_path: Path, real_file: Callable[[str], Path]) -> None:
    """A figure from HAR: values for every cell, findings in words, and rounds of all runs in one file."""
    found = reproduce(["fig-lambda2", "fig-cost"], tmp_path, path=real_file("har.npz"), seeds=1, workers=1)
    (study,) = found.studies
    assert all(cell.mean is not None for cell in study.cells)
    assert all((cell.mean or 0.0) > 0.8 for cell in study.cells if cell.variant != "rhfedmtl-paper")
    assert study.study.findings
    assert (tmp_path / "rounds.parquet").is_file()
    assert (tmp_path / "fig-cost.csv").is_file()


def test_data_that_is_not_at_hand_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The authors' protocol without their file says which file to give."""
    monkeypatch.setenv("RHFEDMTL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RHFedMTLError, match=r"small\.mat"):
        reproduce(["authors"], tmp_path / "out", seeds=1)


def test_a_comparison_with_two_prices_says_so() -> None:
    """Budgets of a comparison limit a single resource type."""
    base = RunConfig(cost=("energy=0.1,10", "time=0.001,0.1"))
    with pytest.raises(ConfigError, match="got energy, time: name it"):
        side_by_side(base, ["rhfedmtl"], [100.0], range(1), "accuracy")
