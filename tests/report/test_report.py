"""The report: one file that asks for nothing, says what the records say, and takes names as text."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.report import small_results
from typer.testing import CliRunner

from rhfedmtl import report
from rhfedmtl.algorithms.options import Options
from rhfedmtl.cli.main import app
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError
from rhfedmtl.report import along, figures, folder, tables, views
from rhfedmtl.report.charts import Heat, LineChart, Styles
from rhfedmtl.report.findings import findings
from rhfedmtl.report.sections import chapter
from rhfedmtl.report.tables import TableCell
from rhfedmtl.runs import lookup
from rhfedmtl.runs.records import Record, load
from rhfedmtl.studies import cost_figure
from rhfedmtl.studies.planned import run_all, side_by_side
from rhfedmtl.studies.study import StudyResult
from rhfedmtl.training.config import RunConfig

VOID = {"meta", "link", "br", "img", "input", "line", "rect", "circle", "path", "use"}


class Outline(HTMLParser):
    """Tags must close in their order; collects tags, identifiers and headings."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag opens; none may run a script."""
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that closes itself."""
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """A tag closes: the last that was opened."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text, of interest in headings."""
        if self.open and self.open[-1] in ("h1", "h2", "h3", "h4"):
            self.headings.append(data)


SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small studies and the cost figure, as `reproduce` leaves them."""
    out = tmp_path_factory.mktemp("results")
    small_results.make(out)
    cost_figure.save(out)
    return out


@pytest.fixture(scope="module")
def page(results: Path) -> str:
    """The report of both."""
    return report.write(results, draw=False).path.read_text()


@pytest.fixture(scope="module")
def grid(results: Path) -> StudyResult:
    """The study with a grid."""
    return StudyResult.load(results, "grid")


def outline(page: str) -> Outline:
    """The page, parsed."""
    found = Outline()
    found.feed(page)
    assert found.open == []
    return found


def charts(page: str) -> list[dict[str, Any]]:
    """Data of all line charts, as the script reads it."""
    return [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]


def test_the_page_is_whole_and_asks_for_nothing(page: str) -> None:
    """All tags close, identifiers are unique, and nothing in it leads outside of the file."""
    found = outline(page)
    assert len(set(found.ids)) == len(found.ids)
    assert "img" not in found.tags
    links = re.findall(r"""(?:href|src)=["']([^"']*)["']""", page)
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert {link[1:] for link in links if link.startswith("#")} <= set(found.ids)
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org/2000/svg)", page)
    assert len(page) < 1_000_000


def test_sections_of_the_issue_are_there(page: str) -> None:
    """Every section that these runs have the data for has its heading."""
    headings = outline(page).headings
    for wanted in (
        "Accuracy by budget and number of terminals",
        "Accuracy over budget (energy units)",
        "All cells",
        "Chosen work",
        "Task by task",
        "During the run",
        "Relative gap over spending",
        "Chosen H over rounds",
        "Where the energy went",
        "Where the time went",
        "Received updates",
        "Worst task, and spread between tasks",
        "Task relationship",
        "Tests of all differences",
        "Repeat",
        "Settings",
        "K and cost over H, and the three budget cases",
    ):
        assert wanted in headings, wanted


def test_a_study_has_a_legend_and_plus_minus_is_explained_once(page: str) -> None:
    """Charts of methods have no legend of their own; a chart of tasks has, because its series are others."""
    studies = page.split('<section class="study"')[1:]
    for study in studies:
        assert study.index('<ul class="legend">') < study.index("<figure")
    for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL):
        of_tasks = re.search(r'id="grid-tasks-(rounds|spent)-chart"', figure)
        assert ('<ul class="legend">' in figure) == bool(of_tasks)
    assert page.count("95 % interval of a mean over seeds") == 1
    assert page.count("± is") == 1


def test_sections_without_data_are_left_out(page: str, results: Path) -> None:
    """A study without learned ties or lost updates has no picture of them; its grid is not shown as a ranking."""
    of_grid = page[page.index('<section class="study" id="grid"') : page.index("</main>")]
    headings = outline(of_grid).headings
    assert "Task relationship" not in headings
    assert "Answers by station" not in of_grid
    assert "Every terminal answered every request." in of_grid
    assert "Side by side" not in headings


def test_the_paper_comes_before_the_rest(page: str) -> None:
    """Chapters are the paper's tables, its figures, and then all others by their names."""
    assert re.findall(r'<section class="study" id="([^"]+)"', page) == ["fig-cost", "faulty", "grid"]


def test_names_are_taken_as_text(page: str) -> None:
    """A label with markup in it is shown as it was written, in text, attributes and data, and never as markup."""
    assert "<img" not in page
    assert small_results.HOSTILE in unescape(page)
    assert any(s["name"] == small_results.HOSTILE for chart in charts(page) for s in chart["series"])


def test_lines_show_the_cells_of_the_study(page: str, grid: StudyResult) -> None:
    """Points and intervals of the main chart are the means and intervals of the study, panel by panel."""
    panels = [c for c in charts(page) if c["x"]["label"] == "budget (energy units)" and c["y"]["label"] == "accuracy"]
    assert len(panels) == 2
    for terminals, panel in zip(grid.study.axes["data.terminals"], panels, strict=True):
        series = {s["name"]: s for s in panel["series"]}
        for name, label in grid.labels.items():
            places = [{"data.terminals": terminals, "budget.energy": b} for b in grid.study.axes["budget.energy"]]
            cells = [grid.cell(name, at) for at in places]
            assert series[label]["y"] == pytest.approx([c.mean for c in cells], rel=1e-3)
            assert series[label]["low"] == pytest.approx([c.mean - c.half for c in cells], rel=1e-3)


def test_printed_values_are_hollow_markers(page: str) -> None:
    """What the paper prints stands beside ours, in a group of its own."""
    hollow = [s for chart in charts(page) for s in chart["series"] if s.get("group") == "printed in the paper"]
    assert [s["y"] for s in hollow] == small_results.PRINTED
    assert "paper 0.61" in page


def test_the_table_marks_the_best_and_tests_differences(grid: StudyResult) -> None:
    """In every column one competitor is marked, the one with the best mean; signs are the verdicts of paired tests."""
    table = tables.grid(grid)
    names = list(grid.labels)
    for (_, rows), terminals in zip(table.groups, grid.study.axes["data.terminals"], strict=True):
        for column, budget in enumerate(grid.study.axes["budget.energy"], 1):
            at = {"data.terminals": terminals, "budget.energy": budget}
            assert [names[i] for i, row in enumerate(rows) if row[column].best] == [grid.best(at)]
            for name, row in zip(names, rows, strict=True):
                assert row[column].sign == tables.SIGNS[grid.cell(name, at).verdict]


def test_every_difference_is_said_in_words(grid: StudyResult) -> None:
    """Each comparison with the reference is listed with its verdict; what cannot be told apart is said to be so."""
    table = tables.differences(grid)
    assert table is not None
    told = [row[2].text for _, rows in table.groups for row in rows]
    cells = [c for at in grid.places for name in list(grid.labels) if (c := grid.cell(name, at)).against is not None]
    assert told == [c.verdict for c in cells]
    assert set(told) <= {"better", "worse", "not distinguishable"}


def test_gaps_are_shares_of_the_objective(grid: StudyResult) -> None:
    """The chart and its menu end at the relative gap of each run, as methods have different objectives."""
    of_grid = chapter(grid, Styles())
    chart = next(c for c in of_grid.charts if c.key == "relative-gap-spent")
    assert isinstance(chart, LineChart)
    ends = {series.label: series.y[-1] for series in chart.series}
    menu = next(section.choices for section in of_grid.sections if section.choices)
    assert menu["metrics"][-1]["key"] == "relative_gap"
    names = list(grid.labels)
    at = grid.places[1]
    for name in grid.running:
        gaps = [record.result.relative_gap for record in grid.records(name, at) if record.result]
        assert ends[grid.labels[name]] == pytest.approx(statistics.median(g or 0.0 for g in gaps), rel=1e-6)
        in_menu = [run[5][-1][0][-1] for run in menu["runs"] if (run[0], run[1]) == (names.index(name), 1)]
        assert sorted(in_menu) == pytest.approx(sorted(g or 0.0 for g in gaps), rel=1e-3)


def test_bars_add_up_to_what_was_spent(results: Path) -> None:
    """The pieces of a bar are the tiers of the bill, and together all that the ledger has."""
    faulty = StudyResult.load(results, "faulty")
    for name in list(faulty.labels):
        many = faulty.records(name, {})
        bill = along.bill(many)
        for kind, tiers in bill.items():
            spent = sum(record.result.spent[kind] for record in many if record.result) / len(many)
            assert sum(tiers.values()) == pytest.approx(spent)


def test_lost_updates_are_counted(results: Path) -> None:
    """With updates that get lost, fewer answer than were asked, station by station."""
    faulty = StudyResult.load(results, "faulty")
    many = faulty.records("rhfedmtl", {})
    asked, came = along.answered(many)
    assert 0 < came < asked
    assert many[0].rounds is not None
    columns, shares = along.answered_by_station(many[0].rounds)
    assert (len(shares), len(shares[0])) == (4, len(columns))
    assert any(share is not None and share < 1.0 for row in shares for share in row)


def test_findings_of_the_study_come_first_and_contradictions_stand_out(results: Path, tmp_path: Path) -> None:
    """The sentences that a study holds are shown as they are; one at odds with the paper is marked."""
    shutil.copytree(results, tmp_path / "out")
    path = tmp_path / "out" / "studies" / "grid.json"
    described = json.loads(path.read_text())
    failed = "The paper says: A. Fails: −1.0 ± 0.1 points."
    described["findings"] = ["More budget helps.", "This contradicts the paper: FedAvg is better than printed.", failed]
    path.write_text(json.dumps(described))
    text = report.write(tmp_path / "out", draw=False).path.read_text()
    assert '<p class="finding">More budget helps.</p>' in text
    assert '<li class="odds">This contradicts the paper: FedAvg is better than printed.</li>' in text
    assert '<li class="odds">The paper says: A. Fails: ' in text


def test_the_first_sentence_says_who_is_ahead(results: Path) -> None:
    """It names the next best and the difference; a study along another axis also has its best and worst place."""
    faulty = StudyResult.load(results, "faulty")
    silent = StudyResult(replace(faulty.study, findings=[]), results)
    (text,) = findings(silent)
    best = silent.best({})
    assert best is not None
    leads = {name: silent.difference(best, {}, name) for name in silent.running if name != best}
    rival = min(leads, key=lambda name: leads[name][0])  # type: ignore[index]
    lead, half = leads[rival]  # type: ignore[misc]
    assert half is not None
    assert silent.labels[best] in text
    assert silent.labels[rival] in text
    assert f"by {100 * lead:.1f} ± {100 * half:.1f} points of accuracy (95 % interval, paired over 3 seeds)" in text
    assert ("is ahead of" in text) == (lead > half)
    study = StudyResult.load(results, "grid").study
    along_terminals = StudyResult(replace(study, findings=[], x="data.terminals"), results)
    first, second = findings(along_terminals)
    assert "on average over 4 settings" in first
    text = report.write(results, draw=False).path.read_text()
    (after,) = re.findall(r'<section class="study" id="faulty">.*?</h2>(.{60})', text)
    assert after.startswith('<p class="finding">'), "the finding is the first sentence of a chapter"
    assert "<dt>question</dt><dd>Who holds up when updates get lost?</dd>" in text
    assert second.startswith("At budget 400, ")
    assert re.search(r"its best accuracy at [23] terminals .* and its worst at [23] terminals", second)


def test_refused_runs_are_shown_as_such(tmp_path: Path) -> None:
    """A budget that pays no round leaves a dash with its reason, not a failure."""
    document = {**small_results.GRID, "axes": {"data.terminals": [2], "budget.energy": [1, 400]}, "paper": []}
    run_all([small_results.study("poor", document, 1)], tmp_path, workers=1)
    made = report.write(tmp_path, draw=False)
    assert (made.runs, made.refused) == (3, 2)  # a yardstick pays nothing
    text = made.path.read_text()
    assert "no round paid" in text
    assert "cannot pay one round" in text
    assert f"{made.runs} runs, {made.refused} refused or diverged" in text
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--no-figures"])
    assert f"{made.runs} runs; {made.refused} more were refused or diverged" in done.output
    assert "A single seed, so no tests." in text


def test_runs_that_diverged_are_shown_as_such(tmp_path: Path) -> None:
    """The page says so in the cell, and in a sentence which method it was, and where; the others are drawn."""
    request = Request(data="synthetic", tasks=2, terminals=2, settings={"test": 20})
    base = RunConfig(request=request, cost=("energy=0.1,10",), options=Options.of(loss="squared-hinge", step=3000.0))
    side_by_side(base, ["rhfedmtl", "fedavg"], [100.0, 1400.0], range(2), "accuracy").run(tmp_path, workers=1)
    made = report.write(tmp_path)
    assert (made.runs, made.refused) == (6, 2)
    text = made.path.read_text()
    assert ">diverged<" in text
    assert "take a smaller step (fedavg at budget 1400)" in text


def test_errors_are_better_when_smaller(tmp_path: Path) -> None:
    """For regression the smallest error is marked, and ranked first."""
    document: dict[str, Any] = {
        "metric": "rmse",
        "data": {"name": "synthetic", "tasks": 2, "terminals": 2, "set": {"classes": 0, "test": 30}},
        "budget": {"energy": 300},
        "methods": [{"algorithm": "hfedmtl"}, {"algorithm": "rhfedmtl"}],
    }
    (result,) = run_all([small_results.study("numbers", document, 2)], tmp_path, workers=1)
    ((_, rows),) = tables.ranking(result, {}).groups
    means = [float(row[1].text.split()[0]) for row in rows]
    assert means == sorted(means)
    assert [row[1].best for row in rows] == [True, False]


def _runs(folder: Path, *more: str) -> None:
    words = ["train", "--data", "synthetic", "--set", "test=30", "--tasks", "2", "--out", str(folder), *more]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


def _metric(record: Record, metric: str) -> float:
    assert record.result is not None
    return record.result.metrics[metric] or 0.0


def test_single_runs_are_gathered_by_what_they_differ_in(tmp_path: Path) -> None:
    """Seeds make intervals, budgets an axis, methods and settings variants; missing seeds are paired without."""
    for seed in "01":
        for budget in ("200", "400"):
            _runs(tmp_path, "--seed", seed, "--budget", f"energy={budget}")
    _runs(tmp_path, "--seed", "1", "--budget", "energy=400", "--algorithm", "hfedmtl")
    _runs(tmp_path, "--seed", "1", "--budget", "energy=400", "--lambda2", "0.5")
    (found,) = folder.read(tmp_path)
    assert found.study.axes == {"budget.energy": [200.0, 400.0]}
    assert set(found.labels) == {"rhfedmtl", "hfedmtl", "rhfedmtl, lambda2 0.5"}
    at = {"budget.energy": 400.0}
    assert found.cell("rhfedmtl", at).seeds == 2
    assert found.cell("hfedmtl", {"budget.energy": 200.0}).mean is None
    difference = found.difference("hfedmtl", at, "rhfedmtl")
    first, second, *_ = found.labels
    mine, theirs = (_metric(found.record(name, at, 1), found.study.metric) for name in (second, first))
    assert difference == (pytest.approx(mine - theirs), None) or difference == (pytest.approx(theirs - mine), None)
    assert found.cell("hfedmtl", at).half is None
    assert report.write(tmp_path, draw=False).runs == 6


def test_runs_without_the_metric_say_so_and_runs_of_other_labels_are_not_ranked(tmp_path: Path) -> None:
    """A dash names its true reason, settings in labels have their names, and other labels are another question."""
    for more in ((), ("--algorithm", "hfedmtl", "--relationship", "learned")):
        _runs(tmp_path, "--budget", "energy=200", *more)
    _runs(tmp_path, "--budget", "energy=300")
    (ranked,) = folder.read(tmp_path)
    assert set(ranked.labels) == {"rhfedmtl, relationship mean", "hfedmtl, relationship learned"}
    assert ranked.best({"budget.energy": 200.0}) is not None
    assert _reasons(ranked) == {"no run"}
    _runs(tmp_path, "--budget", "energy=300", "--set", "classes=0")
    (found,) = folder.read(tmp_path)
    assert _reasons(found) == {"no run", "no balanced accuracy"}
    assert found.best({"budget.energy": 300.0}) is None


def _reasons(result: StudyResult) -> set[str]:
    """Why cells of the table hold nothing."""
    return {cell.note for _, rows in tables.grid(result).groups for row in rows for cell in row if cell.text == "–"}


def test_long_names_fit_into_figures(tmp_path: Path) -> None:
    """Names of runs that differ in much are broken into lines of the legend: no text is wider than the figure."""
    long = ("--class-weight", "balanced", "--relationship", "learned", "--scale", "standard", "--merge", "average")
    for more in ((), ("--algorithm", "hfedmtl"), long):
        _runs(tmp_path, "--budget", "energy=200", *more)
    (found,) = folder.read(tmp_path)
    charts = [chart for chart in chapter(found, Styles()).charts if not isinstance(chart, Heat)]
    assert len(charts) > 2
    for chart in charts:
        root = ElementTree.fromstring(figures.draw(chart))
        width, height = (float(root.attrib[side]) for side in ("width", "height"))
        entries = root.findall(f"{SVG}g")
        words = " ".join(text.text or "" for entry in entries for text in entry.findall(f"{SVG}text"))
        assert all(series.label in words for series in getattr(chart, "series", ()))
        for entry in entries:
            x, y = map(float, re.findall(r"[0-9.]+", entry.attrib["transform"]))
            for text in entry.findall(f"{SVG}text"):
                # Letters of this font are at most 5 pixels wide on average.
                assert x + float(text.attrib["x"]) + 5.0 * len(text.text or "") <= width
                assert y + float(text.attrib["y"]) <= height


def test_a_cell_without_a_run_is_not_called_a_refusal(tmp_path: Path) -> None:
    """Where nobody ran anything there is no run, and no bar; where a run has no such metric, that is said."""
    _runs(tmp_path, "--budget", "energy=400")
    _runs(tmp_path, "--budget", "energy=200", "--set", "classes=0")
    (found,) = folder.read(tmp_path)
    notes = {cell.note for _, rows in tables.grid(found).groups for row in rows for cell in row[1:]}
    assert notes == {"", "no run", "no balanced accuracy"}
    (bars,) = views.bills(found)
    assert len(bars.rows) == 1


def test_overlaid_runs_stand_for_themselves(tmp_path: Path) -> None:
    """Each has its own line in every chart, whatever they differ in, and the shortest name that tells it apart."""
    for more in (("energy=200",), ("energy=400",), ("energy=400", "--seed", "1"), ("energy=400",)):
        _runs(tmp_path, "--budget", *more)
    runs = lookup.readable(tmp_path)[0]
    found = folder.overlaid([{name: run} for name, run in runs.items()], tmp_path)
    alone = {"energy 200, seed 0", "energy 400, seed 1"}
    twins = set(found.labels) - alone
    assert len(twins) == 2
    assert all(name.startswith("energy 400, seed 0, 2") for name in twins)
    charts = {chart.key: chart for chart in chapter(found, Styles()).charts}
    for key in ("balanced-accuracy-spent", "relative-gap-spent", "steps"):
        chart = charts[key]
        assert isinstance(chart, LineChart)
        assert {series.label for series in chart.series} == alone | twins


def test_overlaid_runs_of_several_data_sets_are_not_ranked(tmp_path: Path) -> None:
    """All are drawn over what they share, those that cannot be are named, and nothing compares them."""
    _runs(tmp_path, "--budget", "energy=200")
    _runs(tmp_path, "--cost", "time=1,1", "--algorithm", "hfedmtl", "--cloud-rounds", "3")
    _runs(tmp_path, "--cost", "time=1,1", "--algorithm", "hfedmtl", "--cloud-rounds", "1")
    known = lookup.readable(tmp_path)[0]
    first, *others = known
    known[first] = replace(known[first], data=replace(known[first].data, name="other"))
    result = folder.overlaid([{name: run} for name, run in known.items()], tmp_path)
    found = chapter(result, Styles())
    assert (found.findings, result.best({}), result.cell(result.study.reference, {}).against) == ((), None, None)
    (chart,) = (chart for chart in found.charts if chart.key == "balanced-accuracy-spent")
    assert isinstance(chart, LineChart)
    assert (len(chart.series), chart.x.label) == (2, "round (BS iteration)")
    assert "Not drawn" in chart.note
    (along,) = (section.choices for section in found.sections if section.choices)
    assert along["tasks"] == []
    assert "not ranked" in found.reading
    alike = folder.overlaid([{name: known[name]} for name in others], tmp_path)
    assert alike.best({}) is not None


def test_runs_that_fill_no_grid_are_reported(tmp_path: Path) -> None:
    """Two resources with budgets that differ together leave places without any run, and a report all the same."""
    for energy, time in (("200", "900"), ("400", "30")):
        cost = ("--cost", "energy=0.1,10", "--cost", "time=0.01,1,2")
        _runs(tmp_path, *cost, "--budget", f"energy={energy}", "--budget", f"time={time}")
    made = report.write(tmp_path, draw=False)
    headings = outline(made.path.read_text()).headings
    assert made.runs == 2
    assert "All cells" in headings
    assert "Received updates" not in headings


def test_one_run_has_a_report(tmp_path: Path) -> None:
    """The folder of a single run gives its tasks, its way and the command to repeat it."""
    _runs(tmp_path, "--budget", "energy=300")
    (run,) = tmp_path.iterdir()
    made = report.write(run, draw=False)
    text = made.path.read_text()
    assert (made.path.parent, made.studies, made.runs) == (run, 1, 1)
    assert "Result by task" in outline(text).headings
    (chart,) = (each for each in charts(text) if each.get("y", {}).get("label") == "H (local steps per round)")
    assert chart["series"][0]["y"] == json.loads((run / "run.json").read_text())["result"]["local_steps"]
    assert json.loads((run / "run.json").read_text())["command"] in unescape(text)


def test_a_run_without_a_budget_has_each_figure_once(tmp_path: Path) -> None:
    """Every figure of a report has a file of its own, even if the run has no costs to draw over."""
    _runs(tmp_path)
    names = [path.name for path in report.write(tmp_path).figures]
    assert "run-tasks-rounds.svg" in names
    assert "run-tasks-spent.svg" not in names
    assert len(names) == len(set(names))


def methods(folder_of_runs: Path) -> tuple[tuple[TableCell, ...], ...]:
    """Rows of the table of methods."""
    (result,) = folder.read(folder_of_runs)
    table = tables.methods(result)
    assert table is not None
    ((_, rows),) = table.groups
    return rows


def test_methods_show_the_weights_that_runs_used(tmp_path: Path) -> None:
    """The report of a run shows the λ₂ that it chose and the reason; the report of a comparison shows the range."""
    words = ["--tasks", "40", "--terminals", "5", "--set", "relatedness=1", "--out", str(tmp_path / "runs"), "--json"]
    train = ["train", "--algorithm", "hfedmtl", "--budget", "energy=12000", *words]
    facts = json.loads(CliRunner().invoke(app, train).stdout)
    assert facts["weights"]["lambda2"] == 0.1, "the usual value is 0.01"
    (row,) = methods(Path(facts["saved"]))
    assert [cell.text for cell in row[:3]] == ["hfedmtl", "0.001", "0.1"]
    assert row[2].note == "chosen on 20 % held-out rows"
    compared = ["compare", "--algorithms", "hfedmtl,fedu,local", "--seeds", "1", "--workers", "1"]
    words[-2] = str(tmp_path / "compared")
    json.loads(CliRunner().invoke(app, [*compared, "--budgets", "500,12000", *words]).stdout)
    rows = methods(tmp_path / "compared")
    assert [row[2].text for row in rows] == ["0.01 to 0.1", "0.01", "–"]


def test_methods_of_a_tuned_study_show_what_tuning_chose(tmp_path: Path) -> None:
    """The table shows the chosen weights instead of the weights before tuning."""
    words = ["compare", "--tasks", "2", "--terminals", "2", "--algorithms", "rhfedmtl", "--tune", "--budgets", "200"]
    CliRunner().invoke(app, [*words, "--seeds", "1", "--workers", "1", "--out", str(tmp_path)])
    (record,) = [load(path) for path in (tmp_path / "runs").glob("*.json")]
    assert record.tuning is not None
    chosen = record.tuning.chosen
    (row,) = methods(tmp_path)
    assert [cell.text for cell in row[1:3]] == [f"{chosen[name]:.3g}" for name in ("lambda1", "lambda2")]


def test_methods_show_their_work_and_who_moves_data(tmp_path: Path) -> None:
    """H is a range over all runs, solvers have their share of the rounds, and tables mark methods that move data."""
    words = ["compare", "--tasks", "3", "--set", "test=20", "--seeds", "2", "--workers", "1", "--out", str(tmp_path)]
    words += ["--algorithms", "rhfedmtl,hfedmtl,fedavg,mocha,pooled", "--budgets", "200,3000"]
    assert CliRunner().invoke(app, words).exit_code == 0
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in methods(tmp_path)}
    runs = [record.result for record in lookup.readable(tmp_path)[0].values() if record.result]
    assert rows["hfedmtl"][2:] == ["2", "dual ascent", "no"]
    assert rows["fedavg"] == ["0.001", "–", "2", "SGD", "no"]
    assert [name for name, row in rows.items() if row[-1] == "yes"] == ["mocha", "pooled"]
    (result,) = folder.read(tmp_path)
    own = [record.result for at in result.places for record in result.records("rhfedmtl", at) if record.result]
    assert len(own) == 4 < len(runs)
    H = [steps for run in own for steps in run.local_steps]
    assert rows["rhfedmtl"][2] == " to ".join(str(steps) for steps in dict.fromkeys((min(H), max(H))))
    newton, ascent = (sum(run.rounds_by_solver.get(name, 0) for run in own) for name in ("quasi-newton", "dual-ascent"))
    assert min(newton, ascent) > 0
    shares = sorted(((newton, "quasi-Newton"), (ascent, "dual ascent")), reverse=True)
    text = ", ".join(f"{name} {100 * rounds / (newton + ascent):.0f} %" for rounds, name in shares)
    assert rows["rhfedmtl"][3] == text
    for table in (tables.grid(result), tables.complete_axis(result), tables.ranking(result, result.places[-1])):
        assert table is not None
        marked = {row[0].text for _, group in table.groups for row in group if "moves data" in row[0].note}
        assert marked - {"pooled"} == {"mocha"}
    table = tables.across([result, StudyResult(replace(result.study, name="again"), result.folder)])
    assert table is not None
    assert [name for name in table.head if "moves data" in name] == ["mocha (moves data)"]


def test_command_prints_where_the_report_is(results: Path, tmp_path: Path) -> None:
    """In words, and as one object for machines; the file is written where it was asked for."""
    out = tmp_path / "new" / "page.html"
    words = ["report", str(results), "--out", str(out), "--no-figures"]
    assert str(out) in CliRunner().invoke(app, words).output.replace("\n", "")
    facts = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert facts == {"report": str(out), "figures": [], "studies": 2, "runs": 48, "refused": 0}
    assert out.is_file()
    assert report.write(results, tmp_path / "folder", draw=False).path == tmp_path / "folder" / "report.html"


def test_what_cannot_be_reported_is_refused_plainly(results: Path, tmp_path: Path) -> None:
    """No folder, no records, a damaged study or record, and a place that cannot be written: each is named."""
    with pytest.raises(ConfigError, match=r"no folder .*nowhere"):
        report.write(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no records in"):
        report.write(tmp_path)
    shutil.copytree(results, tmp_path / "out")
    study = tmp_path / "out" / "studies" / "grid.json"
    whole = study.read_text()
    study.write_text(whole[:100])
    with pytest.raises(ConfigError, match=r"grid\.json"):
        report.write(tmp_path / "out", draw=False)
    study.write_text(whole)
    record = next((tmp_path / "out" / "runs").glob("*.json"))
    record.write_text("{")
    with pytest.raises(ConfigError, match=record.name):
        report.write(tmp_path / "out", draw=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write the report"):
        report.write(results, tmp_path / "file" / "report.html", draw=False)


def test_every_chart_becomes_a_figure(results: Path, tmp_path: Path) -> None:
    """Each chart of the page is a whole SVG file, of every kind, and the same records give the same bytes."""
    shutil.copytree(results, tmp_path / "out")
    made = report.write(tmp_path / "out")
    names = {path.name for path in made.figures}
    assert {"grid-values.svg", "grid-bill-energy.svg", "faulty-ties-learned.svg"} <= names
    page, before = made.path.read_text(), made.figures[0].read_bytes()
    assert len(names) == len(made.figures) == page.count("<figure")
    for path in made.figures:
        text = path.read_text()
        root = ElementTree.fromstring(text)
        assert root.tag == f"{SVG}svg"
        assert not re.search(r"var\(|light-dark|https?://(?!www\.w3\.org/2000/svg)", text.replace("--v:", ""))
        # A marker is drawn by its name, so the file must have it.
        shapes = {f"#{node.attrib['id']}" for node in root.iter(f"{SVG}g") if "id" in node.attrib}
        assert {node.attrib["href"] for node in root.iter(f"{SVG}use")} <= shapes
    # The lines of a figure are those of the page, in another width.
    drawn_charts = chapter(StudyResult.load(results, "grid"), Styles()).charts
    chart = next(chart for chart in drawn_charts if chart.key == "relative-gap-spent")
    drawn = figures.draw(chart)
    assert drawn.count('class="line"') > len(chart.series)
    assert drawn.count("<use") >= sum(len(series.marked) for series in chart.fitted().series)
    assert figures.save([chart], tmp_path / "again", "grid")[0].read_text() == drawn
    assert report.write(tmp_path / "out").figures[0].read_bytes() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write figures"):
        figures.save([chart], tmp_path / "file" / "figures", "grid")
