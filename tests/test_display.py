"""Objects show themselves: short words, a table in a notebook, charts in scikit-learn's manner."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from rhfedmtl import BudgetDisplay, LearningCurveDisplay, Request, RHFedMTLClassifier, RunConfig
from rhfedmtl.display import facts_html
from rhfedmtl.errors import ConfigError
from rhfedmtl.planning import plan as planner
from rhfedmtl.planning.data_shape import DataShape
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.runs import recording


@pytest.fixture(scope="module")
def fitted() -> RHFedMTLClassifier:
    """An estimator under a budget."""
    rng = np.random.default_rng(0)
    X, task = rng.normal(size=(120, 4)), np.repeat(["a", "b", "<c>"], 40)
    return RHFedMTLClassifier(budget={"energy": 400.0}).fit(X, (X[:, 0] > 0).astype(int), task=task)


def test_objects_are_tables_in_a_notebook(fitted: RHFedMTLClassifier) -> None:
    """Results, certificates, ledgers, models, plans and federations; names of tasks stay text."""
    federation = Request("synthetic").federation(0)
    budget = Ledger(Cost.of(["energy=0.1,10"]), {"energy": 1400.0})
    plan = planner.plan(DataShape(), ledger=budget)
    result = fitted.result_
    for shown in (result, result.certificate, result.ledger, fitted.models_, plan, federation):
        text = shown._repr_html_()
        assert text.startswith("<table")
        assert text.count("<tr>") >= 2
        assert len(repr(shown)) < 300
    assert "of the best possible" in result._repr_html_()
    assert "energy" in result._repr_html_()
    assert "<c>" not in facts_html("<c>", {"<c>": "<c>"})


def test_curves_and_bars_are_drawn(fitted: RHFedMTLClassifier) -> None:
    """What is drawn is what was measured: the last point is the result, the bars add up to what was spent."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    result = fitted.result_
    shown = fitted.plot()
    assert len(shown.axes_) == 1  # there are no test rows
    x, gap = shown.axes_[0].lines[0].get_data()
    assert gap[-1] == pytest.approx(result.history[-1].gap)
    assert x[-1] == pytest.approx(result.ledger.spent["energy"])
    bars = fitted.plot_budget()
    heights = [bar.get_height() for bar in bars.axes_[0].patches]
    assert heights[-1] == pytest.approx(sum(heights[:-1]))
    assert heights[-1] == pytest.approx(result.ledger.spent["energy"])
    bars.figure_.canvas.draw()
    assert bars.axes_[0].get_legend().get_window_extent().y0 >= bars.axes_[0].bbox.y1  # it covers no line
    again = BudgetDisplay.from_result(result).plot(bars.axes_)
    assert again.figure_ is bars.figure_
    with pytest.raises(ConfigError, match="1 axes are needed, got 2"):
        result.plot([*bars.axes_, *bars.axes_])
    with pytest.raises(ConfigError, match="no metric 'f1'"):
        LearningCurveDisplay.from_estimator(fitted, metric="f1")


def test_records_share_a_chart() -> None:
    """One curve for each record; a run that was refused has none."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    known = []
    for seed in range(2):
        config = RunConfig(budget=("energy=400",), seed=seed)
        federation = config.federation()
        known.append(recording.record(config, federation, config.run(federation)))
    refused = recording.record(config, federation, None, refused="too little")
    shown = LearningCurveDisplay.from_records([*known, refused]).plot()
    assert len(shown.axes_) == 2
    assert [curve.label for curve in shown.curves] == ["rhfedmtl, seed 0", "rhfedmtl, seed 1"]
    assert shown.axes_[0].get_legend() is not None
    with pytest.raises(ConfigError, match="nothing to draw"):
        LearningCurveDisplay.from_records([refused])


def test_verbose_is_a_bar_in_a_notebook(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One display that moves as the budget is spent, and no line is printed; without a notebook, or unasked, no bar."""
    shell, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell.get_ipython = type("ZMQInteractiveShell", (), {})  # type: ignore[attr-defined]
    shown: list[str] = []

    class Bar:
        def update(self, html: str) -> None:
            shown.append(html)

    def first(html: str, display_id: bool) -> Bar:
        assert not shown
        shown.append(html)
        return Bar()

    display.HTML, display.display = str, first  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    rng = np.random.default_rng(0)
    X, y, task = rng.normal(size=(60, 4)), rng.integers(0, 2, 60), np.repeat(["a", "b"], 30)
    RHFedMTLClassifier(budget={"energy": 300}).fit(X, y, task=task)
    assert not shown
    RHFedMTLClassifier(budget={"energy": 300}, verbose=1).fit(X, y, task=task)
    assert shown[0].startswith('<progress value="0.')
    assert "round 1" in shown[0]
    assert capsys.readouterr().out == ""


def test_names_that_load_late_are_completed() -> None:
    """What is imported when it is used stands in ``dir`` all the same, for Tab and for readers."""
    import rhfedmtl

    assert set(rhfedmtl.__all__) <= set(dir(rhfedmtl))
