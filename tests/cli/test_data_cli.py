"""The command line for data: one JSON object on demand, the data options of other commands, pictures, light imports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tests.data.conftest import numbered
from typer.testing import CliRunner

from rhfedmtl.cli.data import app, request_from_options, with_data_options
from rhfedmtl.data.loaders import saved as storage
from rhfedmtl.data.loaders.synthetic import Synthetic, make
from rhfedmtl.data.partition import Blocks, Dirichlet, PowerLaw
from rhfedmtl.data.picture import draw
from rhfedmtl.data.registry import DATASETS, load
from rhfedmtl.data.request import Request, parse_partition, parse_tasks
from rhfedmtl.data.split import Split, federate
from rhfedmtl.errors import ConfigError, DataError, RHFedMTLError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return found


def test_list_names_every_data_set_with_licence_and_settings() -> None:
    """The catalogue says how to come by each data set, its licence, and its own settings."""
    facts = as_json("list")["datasets"]
    assert set(facts) == set(DATASETS)
    assert facts["synthetic"]["settings"]["relatedness"] == Synthetic.relatedness
    text = run("list")
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "relatedness=" in text


def test_describe_har_gives_the_published_facts(real_file: Callable[[str], Path]) -> None:
    """`rhfedmtl data describe har --path … --json` prints one object with rows, tasks and classes."""
    facts = as_json("describe", "har", "--path", str(real_file("har.npz")))
    assert (facts["rows"], facts["tasks"], facts["labels"]["SITTING"]) == (10299, 30, 1777)


def test_synthetic_needs_no_other_word() -> None:
    """`synthetic` alone is a small binary federation of several tasks and terminals."""
    facts = as_json("describe", "synthetic")
    assert (facts["tasks"], facts["terminals"], facts["kind"]) == (5, 25, "binary")
    federation = request_from_options().federation(0)
    assert federation.origin.name == "synthetic"
    assert (federation.task_offsets[1], federation.n_tasks) == (5, 5)


def test_sizes_of_synthetic_follow_the_words_of_a_split() -> None:
    """Tasks, terminals and samples per task mean the same for made data as for split data."""
    options = ["--tasks", "3", "--terminals", "4", "--samples-per-task", "40", "--set", "features=7", "--seed", "2"]
    facts = as_json("split", "synthetic", *options)
    assert (facts["tasks"], facts["terminals"], facts["features"]) == (3, 12, 7)
    assert (facts["train_rows"], facts["test_rows"]) == (90, 30)
    assert facts["fingerprint"] == make(Synthetic(3, 4, features=7, rows=30, test=10), 2).fingerprint()


def test_split_saves_and_draws(tmp_path: Path) -> None:
    """A split can be saved, drawn, and used again by path with the same fingerprint."""
    table = tmp_path / "t.csv"
    lines = [f"{'ab'[i % 2]},{i % 3},{i * 0.5},{'no' if i % 5 else 'yes'}" for i in range(60)]
    table.write_text("site,device,x,y\n" + "\n".join(lines))
    options = ["--path", str(table), "--label", "y", "--task", "site", "--terminal", "device"]
    facts = as_json("split", "table", *options, "--out", str(tmp_path / "f"), "--plot", str(tmp_path / "p.png"))
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert facts["terminals"] == 6
    again = as_json("split", "saved", "--path", str(tmp_path / "f"))
    assert again["fingerprint"] == facts["fingerprint"] == storage.load(tmp_path / "f").fingerprint()
    text = run("split", "saved", "--path", str(tmp_path / "f"))
    assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.parametrize("name", ["describe", "split"])
def test_help_shows_examples_and_all_options(name: str) -> None:
    """Help on each command has an example and the data options."""
    text = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output
    assert f"rhfedmtl data {name} har" in text
    for option in ("--tasks", "--partition", "--positive", "--label", "--set"):
        assert option in text


def test_a_command_takes_the_shared_options_beside_its_own() -> None:
    """A decorated command gets a request from the shared options, and keeps its own arguments and options."""
    seen: list[Any] = []
    other = typer.Typer()

    @other.command()
    @with_data_options
    def train(request: Request, where: str, seed: int = 0) -> None:
        seen.append((request, where, seed))

    arguments = ["there", "--data", "har", "--tasks", "5", "--test-rest", "--unbalanced", "--seed", "3"]
    result = CliRunner().invoke(other, [*arguments, "--partition", "dirichlet:0.3"])
    assert result.exit_code == 0, result.output
    expected = Request(data="har", tasks=5, test_rest=True, balanced=False, partition="dirichlet:0.3")
    assert seen == [(expected, "there", 3)]


def test_requests_become_splits() -> None:
    """Names and numbers of a request become the objects of a split."""
    request = Request(data="har", tasks=("a", "b"), terminals=3, partition="powerlaw:1.5", grouped=True)
    assert request.split() == Split(tasks=("a", "b"), terminals=3, partition=PowerLaw(1.5), grouped=True)
    assert parse_partition("blocks") == Blocks()
    assert parse_partition("dirichlet:0.1") == Dirichlet(0.1)
    assert parse_tasks("7") == 7
    assert parse_tasks("a, b,c") == ("a", "b", "c")
    assert parse_tasks("7,") == ("7",)
    assert json.loads(json.dumps(request.to_dict()))["tasks"] == ["a", "b"]


@pytest.mark.parametrize("names", [("01, CH",), ("01, CH", "2"), ('the "old" one', "b"), ("7",)])
def test_any_task_can_be_named(names: tuple[str, ...]) -> None:
    """One that holds a comma or looks like a number, too; the words that repeat a run name the same."""
    words = list(Request(tasks=names).words())
    assert parse_tasks(words[words.index("--tasks") + 1]) == names


def test_a_task_that_was_not_understood_is_answered_with_how_to_name_it(tmp_path: Path) -> None:
    """A comma in a name parts it, and a number is a count: error and note say what to write instead."""
    rows = [f'"{name}",{i * i % 7},{i % 2}' for name in ("01, CH", "1", "2") for i in range(12)]
    (table := tmp_path / "t.csv").write_text("\n".join(["task,a,y", *rows]))
    with pytest.raises(ConfigError, match="""stands in quotes: --tasks '"01, CH"'"""):
        request_from_options(path=str(table), tasks="01, CH").federation(0)
    assert request_from_options(path=str(table), tasks='"01, CH",2').federation(0).task_names == ("01, CH", "2")
    notes = request_from_options(path=str(table), tasks="1").federation(0).notes
    assert "1 of 3 tasks drawn; for the task called 1: --tasks 1," in notes
    assert request_from_options(path=str(table), tasks="1,").federation(0).task_names == ("1",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": "hra"}, "unknown data set 'hra'.*did you mean har"),
        ({"data": "har", "label": "y"}, "--label is an option for tables"),
        ({"set": ["relatedness"]}, "needs NAME=VALUE"),
        ({"set": ["colour=red"]}, "no setting 'colour' here: there is classes, clusters"),
        ({"set": ["features=many"]}, "features needs a number, got 'many'"),
        ({"data": "har", "path": "nowhere.npz"}, "no such file or folder: nowhere.npz"),
        ({"data": "har", "partition": "fair"}, "no partition 'fair'"),
        ({"data": "har", "partition": "iid:3"}, "iid has no parameter"),
        ({"data": "har", "partition": "dirichlet:x"}, "needs a number after the colon"),
        ({"data": "har", "partition": "dirichlet:-1"}, "needs alpha > 0"),
        ({"positive": "class-1"}, "synthetic comes with its tasks and terminals: leave out --positive"),
        ({"tasks": "a,b"}, "give their number, not names"),
        ({"test_fraction": 0.5}, "needs samples-per-task"),
        ({"data": "saved", "path": "x", "tasks": "3"}, "saved comes with its tasks and terminals: leave out --tasks"),
        ({"data": "saved"}, "needs --path FOLDER"),
        ({"data": "table"}, "needs --path FILE"),
    ],
)
def test_options_that_cannot_work_are_refused_in_one_line(options: dict[str, Any], words: str) -> None:
    """Errors of the command line name the option and the way out."""
    with pytest.raises(RHFedMTLError, match=words) as caught:
        request_from_options(**options).federation(0)
    assert len(str(caught.value).splitlines()) == 1


def test_what_cannot_be_fetched_says_where_to_get_it() -> None:
    """Data without a download says how to come by it."""
    with pytest.raises(DataError, match=r"give --path LandmineData\.mat"):
        run("fetch", "landmine")
    with pytest.raises(ConfigError, match="no rows before a split"):
        request_from_options().source()


def test_fetch_prints_where_the_file_lies(no_data: Path) -> None:
    """A data set that is in the cache is not fetched again."""
    no_data.mkdir()
    (no_data / "har.npz").touch()
    assert as_json("fetch", "har") == {"name": "har", "path": str(no_data / "har.npz")}


@pytest.mark.parametrize(
    "federation",
    [
        lambda: federate(numbered()),
        lambda: federate(numbered(classes=0), Split(terminals=2)),
        lambda: federate(numbered(n_tasks=15, classes=12, rows=60), Split(test_fraction=0)),
        lambda: make(Synthetic(tasks=50, terminals=3, test=0)),
    ],
    ids=["bars", "regression", "map", "many tasks"],
)
def test_pictures_are_drawn_for_every_shape(federation, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Few and many tasks, classes and numbers, with and without test rows can all be drawn."""
    draw(federation(), tmp_path / "new" / "p.png")
    assert (tmp_path / "new" / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_an_unknown_format_is_refused(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(DataError, match=r"cannot draw into .*p\.xyz"):
        draw(federate(numbered()), tmp_path / "p.xyz")


def test_loading_by_name_takes_settings() -> None:
    """The library's own face: a name and settings."""
    assert load("synthetic", seed=3, tasks=2, test=0).fingerprint() == make(Synthetic(tasks=2, test=0), 3).fingerprint()


def test_importing_the_command_line_is_light() -> None:
    """Neither numpy nor anything heavier is imported before a command runs."""
    heavy = "('numpy', 'numba', 'pooch')"
    code = f"import sys, rhfedmtl.cli.data, rhfedmtl.data; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_classes_can_weigh_the_same() -> None:
    """The words of a request ask for it again; what cannot be weighted is refused."""
    request = request_from_options(tasks="2", terminals=3, class_weight="balanced")
    federation = request.federation(0)
    assert federation.sample_weight is not None
    for task in range(2):
        own = federation.row_task == task
        weight = np.bincount(federation.y[own], federation.sample_weight[own])
        np.testing.assert_allclose(weight, own.sum() / 2)
    assert list(request.words())[-2:] == ["--class-weight", "balanced"]
    with pytest.raises(ConfigError, match="no class weight 'even'"):
        request_from_options(class_weight="even").federation(0)
    with pytest.raises(ConfigError, match="these labels are numbers"):
        request_from_options(class_weight="balanced", set=["classes=0"]).federation(0)
