"""A reader chooses budget, metric, seed and task, and takes charts along as files, all without a request."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.browser.test_report_page import BEYOND, Open, _unfold, opened
from tests.report.small_results import SEEDS

from rhfedmtl.report import along
from rhfedmtl.report.folder import read

__all__ = ["opened"]
PNG = b"\x89PNG\r\n\x1a\n"
ALONG = "#grid-along"


def _open(opened: Open, **more: Any) -> Any:
    page = opened(**more)
    _unfold(page)
    return page


def _saved(page: Any, figure: str, kind: str) -> tuple[str, bytes]:
    with page.expect_download() as download:
        page.locator(figure).locator(".save button", has_text=kind).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def _rows(page: Any, figure: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(_saved(page, figure, "CSV")[1].decode("utf-8-sig"))))


def _last(rows: list[list[str]], name: str) -> float:
    return float([row for row in rows if row[1] == name][-1][3])


def test_choices_show_what_the_records_say(opened: Open, page_file: Path) -> None:
    """Another budget, seed, metric and task draw the values of those very runs."""
    grid = next(result for result in read(page_file.parent) if result.study.name == "grid")
    page = _open(opened)
    figure = f"{ALONG} figure >> nth=0"
    assert _last(_rows(page, figure), "HFedMTL") == pytest.approx(_mean(grid, (2, 400), "accuracy"), rel=1e-3)
    page.locator("#grid-choose select").nth(1).select_option("100")
    assert _last(_rows(page, figure), "HFedMTL") == pytest.approx(_mean(grid, (2, 100), "accuracy"), rel=1e-3)
    page.locator("#grid-choose-seed").select_option("2")
    assert _last(_rows(page, figure), "HFedMTL") == pytest.approx(_mean(grid, (2, 100), "accuracy", [2]), rel=1e-3)
    page.locator("#grid-choose-metric").select_option("AUC")
    task = page.locator("#grid-choose-task option").nth(2).inner_text()
    page.locator("#grid-choose-task").select_option(task)
    assert page.locator(f"{ALONG} h4").first.inner_text() == f"AUC of {task} over spending"
    record = grid.record("hfedmtl", {"data.terminals": 2, "budget.energy": 100}, 2)
    assert _last(_rows(page, figure), "HFedMTL") == pytest.approx(
        record.by_task["auc"][record.tasks.index(task)], rel=1e-3
    )
    assert page.locator(f"{ALONG} .by-task thead").inner_text().strip().split("\t")[-4:] == ["mean", *record.tasks]
    assert page.evaluate(BEYOND) == []


def _mean(grid: Any, place: tuple[int, int], metric: str, seeds: list[int] | None = None) -> float:
    at = dict(zip(("data.terminals", "budget.energy"), place, strict=True))
    traces = [along.trace(grid.record("hfedmtl", at, seed), metric, "energy") for seed in seeds or range(SEEDS)]
    return float(np.mean([trace.y[-1] for trace in traces]))


def test_a_redrawn_chart_answers_as_before(opened: Open) -> None:
    """Values by key, series switched off, and the interval of the page's own drawing are the same after a choice."""
    page = _open(opened)
    figure = page.locator(f"{ALONG} figure").first
    before = _rows(page, f"{ALONG} figure >> nth=0")
    page.locator("#grid > .legend .key", has_text="HFedMTL").click()
    budget = page.locator("#grid-choose select").nth(1)
    for value in ("100", "400"):  # there and back
        budget.select_option(value)
    assert not figure.locator('.series[data-series="HFedMTL"]').first.is_visible()
    after = _rows(page, f"{ALONG} figure >> nth=0")
    ends = [[next(r for r in rows[::-1] if r[1] == "HFedMTL")[2:] for rows in (before, after)]]
    for old, new in ends:
        assert [float(v) for v in new] == pytest.approx([float(v) for v in old], rel=2e-3)
    figure.locator(".plot").focus()
    page.keyboard.press("End")
    assert "all data in one place" in page.locator(".tip").inner_text()
    assert "HFedMTL" not in page.locator(".tip").inner_text()


def test_a_redrawn_accuracy_spans_ten_points(browser: Any, page_file: Path, tmp_path: Path) -> None:
    """A choice keeps the rule for the axis of an accuracy, here for values within a tenth of a point."""

    def squeezed(menu: re.Match[str]) -> str:
        facts = json.loads(menu[1])
        for run in facts["runs"]:
            run[5][0] = [[0.95 + 0.001 * value for value in row] for row in run[5][0]]
        return f'class="choices">{json.dumps(facts)}</script>'

    text = re.sub(r'class="choices">(.*?)</script>', squeezed, page_file.read_text(encoding="utf-8"))
    (tmp_path / "close.html").write_text(text, encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "close.html").as_uri())
    _unfold(page)
    page.locator("#faulty-choose-seed").select_option("1")
    figure = page.locator("#faulty-along figure").first
    ticks = [float(text) for text in figure.locator('.tick[text-anchor="end"]').all_text_contents()]
    heights = figure.locator("line.rule").evaluate_all("lines => lines.map((line) => Number(line.getAttribute('y1')))")
    assert 320 * (ticks[-1] - ticks[0]) / (heights[0] - heights[-1]) == pytest.approx(0.1)
    page.close()


def test_a_gap_has_a_log_scale_and_no_tasks(opened: Open) -> None:
    """The certified gap is one of the problem: a task cannot be chosen for it."""
    page = _open(opened)
    page.locator("#grid-choose-metric").select_option("relative duality gap (log scale)")
    assert page.locator("#grid-choose-task").is_disabled()
    assert page.locator(f"{ALONG} .y-label").first.inner_text() == "relative duality gap (log scale)"
    assert page.locator(f"{ALONG} figure").first.locator("path.line[d*=L]").first.get_attribute("d").count("L") > 1


@pytest.mark.parametrize("figure", ["#grid-values-chart", "#faulty-bill-energy-chart", "#faulty-ties-learned-chart"])
def test_every_chart_can_be_saved(opened: Open, figure: str, tmp_path: Path) -> None:
    """CSV has the numbers; SVG stands alone, styles and all; PNG is a picture that is not empty."""
    page = _open(opened, theme="dark")
    assert page.locator("figure.chart").count() == page.locator("figure.chart .save").count()
    name, text = _saved(page, figure, "SVG")
    assert name == figure[1:].replace("-chart", ".svg")
    drawn = ET.fromstring(text.decode())
    assert b"var(" not in text
    assert b"light-dark" not in text
    assert b"color(" not in text
    assert not re.search(rb'(?:href|src)="(?!#)', text)
    labels = {node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")}
    shown = page.locator(f"{figure} .x-label, {figure} .heat-scale").first.inner_text().split(":")[0].split()
    assert any(shown[0] in (label or "") for label in labels)
    if figure == "#grid-values-chart":
        assert "HFedMTL" in labels, "a saved chart has the legend of the page"
        assert page.locator(f"{figure} .legend").count() == 0
    alone = page.context.new_page()
    (tmp_path / "chart.svg").write_bytes(text)
    alone.goto((tmp_path / "chart.svg").as_uri())
    marks = "line, rect, path, use"
    assert alone.locator(marks).count() > 5
    boxes = alone.locator("path, rect").evaluate_all("nodes => nodes.map((n) => n.getBoundingClientRect().width)")
    assert max(boxes[1:]) > 20.0
    name, data = _saved(page, figure, "PNG")
    assert name.endswith(".png")
    assert data.startswith(PNG)
    assert len(data) > 5_000
    rows = _rows(page, figure)
    assert all(len(row) == len(rows[0]) for row in rows)
    assert any(re.fullmatch(r"-?[\d.e-]+", cell) for cell in rows[1])


def test_names_do_nothing_in_files(opened: Open) -> None:
    """A hostile name is text in a saved picture, and a table of numbers quotes it."""
    page = _open(opened)
    text = _saved(page, "#grid-values-chart", "SVG")[1].decode()
    assert not [node for node in ET.fromstring(text).iter() if node.tag.endswith("img")]
    assert "onerror" in text
    assert any("onerror" in row[1] for row in _rows(page, "#grid-values-chart"))


def test_the_values_of_a_page_have_a_bound(page_file: Path) -> None:
    """All that can be chosen makes a page larger by what was agreed, not by the number of runs."""
    found = re.findall(r'class="choices">(.*?)</script>', page_file.read_text(encoding="utf-8"))
    assert len(found) == 2
    for text in found:
        facts = json.loads(text)
        assert len(text) < 300_000
        assert {len(run) for run in facts["runs"]} == {6}
