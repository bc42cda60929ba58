"""The live page without a browser: who may look, what the table, a run and a plan show, what a run leaves behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from tests.dashboard.pages import Page, served
from tests.waiting import wait_for
from typer.testing import CliRunner

from rhfedmtl.cli.main import app
from rhfedmtl.dashboard import network, whatif
from rhfedmtl.dashboard.index import INTERRUPTED, RUNNING, Index, Row, grouped
from rhfedmtl.dashboard.pages import RunQuery, one_run, runs
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.intervals import interval
from rhfedmtl.plain import plain
from rhfedmtl.runs import lookup, progress, session
from rhfedmtl.runs.sweep import Store, sweep
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.result import Progress

NASTY = '<img src=x onerror="alert(1)">'


def _train(out: Path, seed: int = 0) -> Path:
    run = session.begin(RunConfig(budget=("energy=600",), seed=seed), Execution(threads=1), out)
    run.finish(run.run())
    return run.folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that ended, one that was killed, and a file that is none."""
    out = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        _train(out, seed)
    (out / "bad").mkdir()
    (out / "bad" / "run.json").write_text("{")
    return out


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Page]:
    """The page of these runs."""
    with served(folder) as found:
        yield found


def test_without_the_token_nothing_is_shown(page: Page) -> None:
    """Every path is closed to those who have neither token nor cookie; the cookie alone opens them."""
    for path in ("/", "/whatif", "/events", "/static/style.css", "/nothing"):
        assert page.get(path, cookie="none=1")[0] == 403
    status, _, headers = page.get("/")
    cookie = headers["set-cookie"]
    assert status == 200
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert page.get("/", cookie=cookie.split(";")[0])[0] == 200
    assert page.get("/", cookie=cookie.split("=")[0] + "=wrong")[0] == 403


def test_foreign_pages_and_names_are_refused(page: Page) -> None:
    """Another origin, another name of this machine, and anything but looking is refused, token or not."""
    assert page.get("/", origin="http://evil.example")[0] == 403
    assert page.get("/", host="evil.example")[0] == 403
    assert page.get("/", method="POST")[0] == 403
    assert page.get("/", origin=f"http://{page.host}")[0] == 200


def test_rules_for_browsers_are_strict(page: Page) -> None:
    """No script but our own, nothing from outside, on every answer."""
    for path in ("/", "/static/dashboard.js", "/nothing"):
        policy = page.get(path)[2]["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
    assert "<script>" not in page.get("/")[1]
    assert not re.search(r'(src|href)="(https?:)?//', page.get("/")[1])


def test_the_table_sorts_and_filters(page: Page) -> None:
    """Words narrow the table, columns sort it; a file that cannot be read has a line that says so."""
    text = page.get("/?single=1")[1]
    assert text.count('class="state done"') == 2
    assert "unreadable" in text
    text = page.get("/?q=seed=1+done")[1]
    assert len(re.findall(r'<th scope="row">', text)) == 1
    addresses = (f"/?q=done&single=1&sort={name}" for name in ("seed", "-seed"))
    up, down = (re.findall(r'href="/run/([^"]+)"', page.get(address)[1]) for address in addresses)
    assert up == down[::-1]
    assert page.get("/?sort=nonsense&page=99999999999")[0] == 200


def test_a_run_and_an_overlay_are_reports(page: Page) -> None:
    """A run shows its certificate, charts, bill and tasks by name; two of them share their charts."""
    names = re.findall(r'href="/run/([^"]+rhfedmtl[^"]+)"', page.get("/?single=1")[1])
    text = page.get(f"/run/{names[0]}")[1]
    for part in ("of the best possible", "Relative gap over spending", "Where the energy went", "task"):
        assert part in text
    text = page.get(f"/overlay?run={names[0]}&run={names[1]}")[1]
    assert "2 runs" in text
    assert "<figure" in text
    assert page.get("/run/none")[0] == 404
    assert page.get("/overlay")[0] == 200


def test_seeds_of_a_configuration_have_a_line(tmp_path: Path) -> None:
    """The line has their mean with an interval, λ2, H, solvers and the weakest certificate, and links to each seed."""
    for seed in range(3):
        _train(tmp_path, seed)
    run = session.begin(RunConfig(budget=("energy=400",)), Execution(threads=1), tmp_path)
    run.finish(run.run())
    index = Index(tmp_path)
    index.refresh()
    records = [index.record(row.name) for row in index.rows if row.budget == "energy=600"]
    results = [record.result for record in records if record.result]
    rows = {row.budget: row for row in grouped(index.rows)}
    row = rows["energy=600"]
    assert len(rows) == 2
    assert len(row.members) == 3
    mean, half = interval(np.array([result.metrics["balanced_accuracy"] for result in results]))
    assert (row.value, row.half) == (pytest.approx(mean), pytest.approx(half))
    assert row.relative_gap == max(result.relative_gap or 0.0 for result in results)
    steps = [H for result in results for H in result.local_steps]
    assert row.local_steps == (min(steps), max(steps))
    assert row.lambda2 == (records[0].weights["lambda2"],) * 2
    assert sum(row.rounds_by_solver.values()) == sum(result.rounds for result in results)
    assert rows["energy=400"].members == ()
    with served(tmp_path) as page:
        text = unescape(page.get("/")[1]).replace("\u00a0", " ")
        assert f"{mean:.3f} ± {half:.3f}" in text
        assert row.solver in text
        (single,) = re.findall(r'<a href="(/[^"]+)">3 runs</a><small>0 to 2</small>', text)
        assert len(re.findall(r'href="/run/', page.get(single)[1])) == 3
        (overlay,) = re.findall(r'href="(/overlay[?]group=[^"]+)"', text)
        text = page.get(overlay)[1]
        assert "Means over 3 seeds" in text
        assert text.count("95 % interval of a mean over seeds") == 1
        two_lines = page.get(f"{overlay}&run={rows['energy=400'].name}")[1]
        assert "4 runs" in two_lines
        assert "energy 400" in two_lines


def test_a_repeated_seed_counts_once(tmp_path: Path) -> None:
    """The newest run of a seed has its place in the mean; older runs stay in the list."""
    older, newer = (
        Row(name, "done", at, seed=0, metric="accuracy", value=value, group="g")
        for name, at, value in (("a", 1.0, 0.5), ("b", 2.0, 0.7))
    )
    second = replace(newer, name="c", seed=1, value=0.9)
    (row,) = grouped([newer, older, second])
    assert row.value == pytest.approx(0.8)
    assert len(row.members) == 3


def test_the_head_of_a_record_has_its_weights(tmp_path: Path) -> None:
    """They are at the end of the file, behind the rounds; a record without them has an empty cell."""
    path = _train(tmp_path) / "run.json"
    record = json.loads(path.read_text())
    weights = record.pop("weights")
    record["rounds"]["padding"] = [0.0] * 20_000
    path.write_text(json.dumps(record))
    index = Index(tmp_path)
    index.refresh()
    assert [(row.state, row.lambda2) for row in index.rows] == [("done", None)]
    path.write_text(json.dumps({**record, "weights": weights}) + "\n")
    index.refresh()
    assert [row.lambda2 for row in index.rows] == [(weights["lambda2"],) * 2]


def test_names_are_text(tmp_path: Path) -> None:
    """HTML in the names of tasks, data and runs stays text everywhere."""
    made = _train(tmp_path)
    path = made / "run.json"
    known = json.loads(path.read_text())
    known["tasks"] = [NASTY] * len(known["tasks"])
    known["data"]["name"] = known["configuration"]["algorithm"] = NASTY
    path.write_text(json.dumps(known))
    made.rename(tmp_path / "a'<b>&\"")
    with served(tmp_path) as page:
        assert "<img" not in page.get("/")[1]
        name = re.findall(r'href="/run/([^"]+)"', page.get("/")[1])[0]
        status, text, _ = page.get(f"/run/{name}")
        assert status == 200
        assert "<img" not in text


def _answer(command: str) -> dict[str, object]:
    """What the command line says."""
    words = shlex.split(command)
    assert words[:2] == ["rhfedmtl", "plan"]
    done = CliRunner().invoke(app, [*words[1:], "--json"])
    assert done.exit_code == 0, (command, done.exception)
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def pilot(folder: Path) -> str:
    """A pilot in the folder of runs, with a name that a shell must not take apart."""
    path = folder / "my own.pilot"
    words = ["--data", "synthetic", "--budget", "energy=1400", "--pilot", str(path), "--json"]
    assert CliRunner().invoke(app, ["plan", *words]).exit_code == 0
    return path.stem


ENOUGH = {"time": 60.0, "bytes": 1e6, "epsilon": 1.0, "dropout": 0.3}
MOVED = [{slider.name: f"{ENOUGH.get(slider.name, 2 * slider.start):g}"} for slider in whatif.SLIDERS]
MOVED += [{"time": "60", "time_step": "0.02"}, {"epsilon": "3", "delta": "1e-5", "dropout": "0.3"}]


@pytest.mark.parametrize("query", [*MOVED, {"energy": "5000", "dropout": "0.5", "pilot": "my own"}], ids=str)
def test_what_if_answers_as_plan_does(query: dict[str, str], folder: Path, pilot: str) -> None:
    """Whatever is moved, the command beside the answer gives the same answer."""
    asked = whatif.Scenario.of(query, folder)
    assert (asked.pilot is None) == ("pilot" not in query)
    report, told = plain(whatif.plan_of(asked)), _answer(asked.command_line())
    assert {name: told[name] for name in report} == json.loads(json.dumps(report))
    assert (told["predicted_gap"] is None) == (asked.pilot is None)
    assert asked.command_line() in unescape("".join(whatif.answer(asked)))


def test_what_if_refuses_in_words(page: Page, folder: Path, pilot: str) -> None:
    """What makes no sense is refused in words, or brought in range; a pilot is one of this folder, or none."""
    assert 'class="finding odds"' in page.get("/whatif?energy=10&terminals=2000&samples=100000")[1]
    told = unescape(page.get("/whatif?energy=nan&tasks=2.4&terminals=1e99&dropout=2&delta=1&time=&samples=70")[1])
    assert re.findall(r'odds">(.*?)</p>', told)[:5] == [
        "tasks 2.4 is not an integer: using 2",
        "terminals 1e99 is out of range: using 2000",
        "energy nan is not a number: using 1400",
        "dropout 2 is out of range: using 0.9",
        "delta 1 is out of range: using 0.01",
    ]
    assert 'name="energy" value="1400" min="10" max="1e+08"' in told
    assert "leave out the pilot or privacy" in page.get(f"/whatif?pilot={quote(pilot)}&epsilon=1")[1]
    text = page.get(f"/whatif?pilot={quote(pilot)}")[1]
    assert "<dt>final gap</dt>" in text
    assert 'id="tasks"' not in text
    assert whatif.Scenario.of({"pilot": "../my own"}, folder).pilot is None
    (folder / "bad.pilot").write_text("{")
    assert "is not a pilot" in page.get("/whatif?pilot=bad")[1]


def test_a_run_shows_the_weight_that_it_chose(tmp_path: Path) -> None:
    """The page of a run has the chosen λ₂ with the reason, during the run and after it."""
    request = Request("synthetic", tasks=40, terminals=5, settings={"relatedness": 1.0})
    config = RunConfig("hfedmtl", request, budget=("energy=12000",))
    run, index, pages = session.begin(config, Execution(threads=1), tmp_path), Index(tmp_path), []

    def watch(now: Progress) -> None:
        index.refresh()
        pages.extend(one_run(row.name, index.record(row.name), row, index.place(row.name)) for row in index.rows)

    run.finish(run.run(watch))
    assert run.chosen.selection is not None
    assert run.chosen.selection.chosen == {"lambda2": 0.1}
    watch(None)  # type: ignore[arg-type]
    assert ">0.1<small>chosen on 20 % held-out rows</small></td>" in pages[-1]
    assert ">0.01</td>" not in "".join(pages)


def test_a_sweep_is_counted_while_it_goes_on(tmp_path: Path) -> None:
    """Its runs so far, of how many; interrupted where its process is gone, and done once all are there."""
    out, index, seen = tmp_path / "a b", Index(tmp_path), []
    configs = [RunConfig(budget=("energy=600",), seed=seed) for seed in range(3)]

    def watch(done: int, total: int, run: str) -> None:
        assert run == f"rhfedmtl energy=600 seed {done - 1}"
        index.refresh()
        seen.extend((line.name, line.state, line.done, line.total) for line in index.sweeps)
        assert f"{done} of {total} runs" in runs(index, RunQuery())

    store = Store(out / "runs")
    sweep(configs, store, workers=1, watch=watch)
    assert seen == [("a b", RUNNING, 1, 3), ("a b", RUNNING, 2, 3), ("a b", "done", 3, 3)]
    asked = RunQuery(f"sweep={index.sweeps[0].name} seed=1")
    assert [row.seed for row in asked.chosen(index.rows)] == [1]
    (store.folder / progress.SWEEP).write_text(json.dumps({"done": 3, "total": 9, "pid": _ended_process()}))
    index.refresh()
    assert [(line.state, line.done, line.total) for line in index.sweeps] == [(INTERRUPTED, 3, 9)]
    key = index.rows[0].name
    shown = unescape(one_run(key, index.record(key), index.row(key), index.place(key)))
    assert f"rhfedmtl report {shlex.quote(str(out))}" in shown


def test_a_run_is_seen_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is under way has its rounds, one whose process was killed is interrupted, one that ended is done."""
    monkeypatch.setattr(progress, "LINES_PER_SECOND", 1e9)
    run = session.begin(RunConfig(budget=("energy=600",)), Execution(threads=1), tmp_path)
    index, seen, told = Index(tmp_path), [], []

    def watch(now: Progress) -> None:
        assert now.certificate is not None
        told.append(now.certificate.gap)
        index.refresh()
        seen.extend(row.state for row in index.rows)

    result = run.run(watch)
    assert set(seen) == {RUNNING}
    path = run.folder / progress.PROGRESS_FILE
    so_far = progress.load(path).record
    assert so_far.rounds is not None
    assert so_far.result is not None
    assert so_far.result.rounds_by_solver == result.rounds_by_solver
    assert so_far.rounds.round == list(range(1, result.rounds + 1))
    assert so_far.result.gap == pytest.approx(told[-1], rel=1e-9)
    assert result.history[-1].gap <= told[-1]  # the last certificate of all comes when nobody watches any more
    shown = CliRunner().invoke(app, ["runs", "show", str(run.folder)])
    assert "still running; results so far" in shown.output
    assert lookup.pick(tmp_path, run.folder.name).result == so_far.result
    _claim(path, _ended_process())
    index.refresh()
    assert [row.state for row in index.rows] == [INTERRUPTED]
    run.finish(result)
    index.refresh()
    assert [row.state for row in index.rows] == ["done"]
    assert not path.exists()


def _claim(path: Path, pid: int) -> None:
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(head), "pid": pid}), *lines]) + "\n")


def _ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_half_a_line_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still being written does not count, what is no progress is refused in a line."""
    monkeypatch.setattr(progress, "LINES_PER_SECOND", 1e9)
    run = session.begin(RunConfig(budget=("energy=600",)), Execution(threads=1), tmp_path)
    run.run()
    path = run.folder / progress.PROGRESS_FILE
    whole = progress.load(path).record.rounds
    path.write_text(path.read_text()[:-20])
    part = progress.load(path).record.rounds
    assert whole is not None
    assert part is not None
    assert part.round == whole.round[:-1]
    path.write_text("[]\n")
    with pytest.raises(ConfigError, match="progress"):
        progress.load(path)


def test_changes_come_as_events(folder: Path) -> None:
    """A page that is open hears of a new run."""
    with served(folder) as page, urllib.request.urlopen(page.address("/events"), timeout=30) as stream:
        assert stream.readline() == b"retry: 1000\n"
        made = _train(folder, 7)
        wait_for(lambda: stream.readline() == b"event: changed\n")
        assert wait_for(lambda: made.name in page.get("/?single=1")[1])


def test_a_folder_may_vanish_and_come_back(tmp_path: Path) -> None:
    """The page says that there is nothing, and goes on looking."""
    folder = tmp_path / "runs"
    _train(folder)
    with served(folder) as page:
        assert "1 run<" in page.get("/")[1]
        folder.rename(tmp_path / "elsewhere")
        assert wait_for(lambda: "no runs in" in page.get("/")[1])
        (tmp_path / "elsewhere").rename(folder)
        assert wait_for(lambda: "1 run<" in page.get("/")[1])


def test_pages_of_many_runs() -> None:
    """The table is cut into pages whose addresses keep the order; what has no value comes last."""
    rows = [Row(f"run-{i}", "done", float(i), value=None if i % 2 else float(i)) for i in range(6)]
    asked = RunQuery.of({"page": "2", "sort": "-value"})
    assert asked.href(page=3) == "/?sort=-value&page=3"
    assert [row.name for row in asked.chosen(rows)] == ["run-4", "run-2", "run-0", "run-1", "run-3", "run-5"]


def _status(**changes: object) -> dict[str, object]:
    terminal = {"terminal": 3, "connected": True, "samples": 10, "spent": {"energy": 1.5, "bytes": 2048.0}}
    station = {"station": 0, "task": NASTY, "round": 4, "connected": True, "last_error": "", "terminals": [terminal]}
    training = {"state": "running", "round": 4, "local_steps": 5, "spent": {"energy": 40.0}, "left": {"energy": 60.0}}
    return {"network": "net", "training": training, "stations": [station], "last_error": "", **changes}


def test_what_happens_in_a_network_is_told() -> None:
    """Nodes that go and come back, moves and states are told once; texts of nodes stay text."""
    first, second = _status(), _status()
    second["stations"][0]["terminals"][0]["connected"] = False  # type: ignore[index]
    assert network.changes({}, first) == []
    assert network.changes(first, second) == ["terminal 3: away"]
    answers = iter([first, second, second])
    watched = network.NetworkWatcher(Path("net"), lambda _: next(answers))
    for _ in range(3):
        watched.poll()
    assert [event.text for event in watched.events] == ["terminal 3: away"]
    text = network.view(watched)
    assert "<img" not in text
    assert "terminal 3, 10 samples, energy 1.5, bytes 2,048" in text
    assert "rhfedmtl network train net --budget energy=200" in text


def test_a_network_that_does_not_answer_is_said() -> None:
    """The page stands, and says what to do."""

    def ask(_: str) -> dict[str, object]:
        raise ConfigError("no answer from 127.0.0.1:1")

    watched = network.NetworkWatcher(Path("net"), ask)
    watched.poll()
    assert "no answer from 127.0.0.1:1" in network.view(watched)
    assert "rhfedmtl network up net --local" in network.view(watched)


def test_files_of_others_are_not_served(page: Page) -> None:
    """Only the files that a page needs."""
    for path in ("/static/../server.py", "/static/%2e%2e%2fserver.py", "/static/server.py", "/run/..%2f..%2fetc"):
        assert page.get(path)[0] == 404
    assert os.sep not in page.access.token


def test_a_large_budget_is_planned_to_the_last_digit_and_told_without_needless_ones(tmp_path: Path) -> None:
    """Above six digits it was rounded up; 0 % or 1.2e-10 % of what there is to gain says too much."""
    told = "".join(whatif.answer(whatif.Scenario.of({"energy": "1234567"}, tmp_path)))
    assert "--budget energy=1234567" in told
    assert "Less than 0.01 % of the initial suboptimality" in told


def test_what_is_said_of_a_private_plan_knows_of_the_noise(tmp_path: Path) -> None:
    asked = {"epsilon": "1", "terminals": "1500", "samples": "32000", "energy": "1e6"}
    told = "".join(whatif.answer(whatif.Scenario.of(asked, tmp_path)))
    assert "points of accuracy.</p>" in told
    assert "the initial suboptimality" not in told
    assert "Remaining suboptimality over H" not in told
