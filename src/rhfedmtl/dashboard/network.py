"""View of a network: a thread asks the cloud for its status, and every browser sees the same answer.

`NetworkWatcher` stores the last status, curves since the page was opened, and events. `view` turns them into HTML. The
page only shows; it prints the commands that act on the network.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from pathlib import Path
from shlex import quote
from typing import Any

from rhfedmtl.dashboard.pages import meter
from rhfedmtl.display import METRICS, short
from rhfedmtl.errors import RHFedMTLError
from rhfedmtl.report.charts import Axis, LineChart, Series, Style, thinned
from rhfedmtl.report.page import commands_html, figure_html
from rhfedmtl.report.sections import Section
from rhfedmtl.report.words import GAP_AXIS, metric_axis
from rhfedmtl.roles.words import in_words
from rhfedmtl.studies.words import metric_name

PERIOD_S = 0.5
MOST_EVENTS = 200
MOST_CHART_POINTS = 4000
SHOWN = 24
"""Terminals of a station that are shown individually."""
DRAWN = 240

Facts = dict[str, Any]


@dataclass(frozen=True)
class NetworkEvent:
    """An event with its time."""

    at: float
    text: str


@dataclass
class NetworkWatcher:
    """State of a network: the last status, curves since the page was opened, and events."""

    place: Path
    ask: Callable[[str], Facts]
    last_result: Callable[[Path], Facts | None] = lambda _: None
    finished: Facts | None = None
    """Result of the last training, after the network has stopped."""
    status: Facts = field(default_factory=dict)
    trouble: str = ""
    curve: list[tuple[float, Facts]] = field(default_factory=list)
    events: deque[NetworkEvent] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    _closing: threading.Event = field(default_factory=threading.Event)

    def start(self, changed: Callable[[], None]) -> None:
        """Ask from now on, and call ``changed`` after every change; fetch earlier rounds once."""
        self.poll()
        if self.status:
            self._remember()
        threading.Thread(target=self._follow, args=(changed,), daemon=True, name="network").start()

    def close(self) -> None:
        """Stop asking."""
        self._closing.set()

    def _follow(self, changed: Callable[[], None]) -> None:
        while not self._closing.wait(PERIOD_S):
            before = self.status, self.trouble, self.finished
            self.poll()
            if (self.status, self.trouble, self.finished) != before:
                changed()

    def _remember(self) -> None:
        """Fetch the rounds before this page was opened."""
        with contextlib.suppress(RHFedMTLError):
            self.curve = [(0.0, facts) for facts in self.ask("curve")["rounds"]]

    def poll(self) -> None:
        """Ask for the status once."""
        try:
            status, self.trouble = self.ask("status"), ""
        except RHFedMTLError as error:
            self.finished = self.last_result(self.place)
            if str(error) != self.trouble:
                self._add_events(["the network has finished" if self.finished else "the cloud does not answer"])
            self.trouble = str(error)
            return
        self.finished = None
        self._add_events(changes(self.status, status))
        self.status, training = status, status["training"]
        last = self.curve[-1][1] if self.curve else {}
        if training.get("round") and training.get("round") != last.get("round"):
            if training["round"] < last.get("round", 0):
                self.curve.clear()
            self.curve.append((time.time(), training))
            if len(self.curve) > MOST_CHART_POINTS:
                del self.curve[1::2]

    def _add_events(self, texts: list[str]) -> None:
        self.events.extendleft(NetworkEvent(time.time(), text) for text in texts)


def changes(before: Facts, now: Facts) -> list[str]:
    """Return the differences of two status reports: new, moved and lost nodes, errors, state of the training."""
    if not before:
        return []
    texts = []
    if before["training"]["state"] != now["training"]["state"]:
        texts.append(f"training: {now['training']['state']}")
    if now.get("last_error") and now.get("last_error") != before.get("last_error"):
        texts.append(str(now["last_error"]))
    old, new = dict(_nodes(before)), dict(_nodes(now))
    for name, (where, state) in new.items():
        if name not in old:
            texts.append(f"{name} is new, {where}")
        elif old[name][0] != where:
            texts.append(f"{name} moved: {where}")
        elif old[name][1] != state:
            texts.append(f"{name}: {state}")
    return [*texts, *(f"{name} is gone" for name in old if name not in new)]


def _nodes(facts: Facts) -> Iterator[tuple[str, tuple[str, str]]]:
    for station in facts["stations"]:
        number = station["station"]
        yield f"station {number}", ("", _state(station))
        for terminal in station["terminals"]:
            yield f"terminal {terminal['terminal']}", (f"at station {number}", _state(terminal))


def _state(node: Facts) -> str:
    if node.get("quarantined"):
        return "quarantined"
    if node.get("declined"):
        return "declined"
    return "connected" if node["connected"] else "away"


def view(network: NetworkWatcher) -> str:
    """Return the complete view."""
    if network.finished is not None:
        training = network.finished["training"]
        words = ['<span class="state ended">finished</span>', *_progress(training)]
        export, *more = reversed(_actions(network))
        return (
            f'<h1>{escape(network.finished["network"])}</h1><p class="text">{" · ".join(words)}</p>{_charts(network)}'
            f'<section class="part" id="actions"><h2>Commands</h2>{commands_html([export, *more], "more")}</section>'
            f'<section class="part" id="events"><h2>Events</h2>{_events(network)}</section>'
        )
    if not network.status:
        return (
            f'<h1>Network</h1><p class="finding odds">{escape(network.trouble)}</p>{commands_html(_actions(network))}'
        )
    status, training = network.status, network.status["training"]
    trouble = f'<p class="finding odds">{escape(network.trouble)}</p>' if network.trouble else ""
    state, age = ("away", '<p class="text">Last known state.</p>') if network.trouble else ("connected", "")
    stations = status["stations"]
    present = sum(station["connected"] for station in stations)
    cloud = f"cloud, round {training.get('round') or 0}, {present} of {len(stations)} stations"
    missing = ", ".join(training.get("waits_for") or [])
    below = "".join(_station(station) for station in stations)
    return (
        f"<h1>{escape(status['network'])}</h1>{trouble}{_training(network)}{_charts(network)}"
        f'<section class="part" id="nodes"><h2>Nodes</h2>{age}<p class="state {state}">{cloud}</p>'
        f"{_small(f'waiting for {missing}' if missing else '', status.get('last_error'))}"
        f'<ul class="tree{" past" if network.trouble else ""}">{below}</ul></section>'
        f'<section class="part" id="events"><h2>Events</h2>{_events(network)}</section>'
        '<section class="part" id="actions"><h2>Commands</h2><p class="text">This page is read-only.</p>'
        f"{commands_html(_actions(network), 'more')}</section>"
    )


def _training(network: NetworkWatcher) -> str:
    training = network.status["training"]
    state = escape(training["state"])
    words = [f'<span class="state {state}">{state}</span>' if not network.trouble else f"last known state: {state}"]
    words += _progress(training)
    spent, remaining = training.get("spent") or {}, training.get("left") or {}
    limits = {name: spent[name] + remaining[name] for name in spent if remaining.get(name) is not None}
    bars = "".join(meter(name, spent[name], limit, _until(network, name)) for name, limit in limits.items())
    return f'<p class="text">{" · ".join(words)}</p>{bars}'


def _progress(training: Facts) -> list[str]:
    """Return round, metric, certificate and error of a training."""
    words = []
    if training.get("round"):
        words.append(f"round {training['round']:,} with {training['local_steps']} local steps (H)")
    words += [f"{metric_name(n).lower()} {training[n]:.3f}" for n in METRICS[:1] if training.get(n) is not None]
    if training.get("gap") is not None:
        words.append(escape(in_words(training.get("relative_gap"), training.get("dual"))))
    if training.get("error"):
        words.append(escape(str(training["error"])))
    return words


def _until(network: NetworkWatcher, name: str) -> str:
    """Return the time at which a budget will be spent, by the rate of the last rounds."""
    recent = [(at, facts["left"].get(name)) for at, facts in network.curve[-50:] if at and facts.get("left")]
    if network.trouble or network.status["training"]["state"] != "running" or len(recent) < 2:
        return ""
    (first, much), (last, little) = recent[0], recent[-1]
    if much is None or little is None or much <= little or last <= first:
        return ""
    end = last + little * (last - first) / (much - little)
    return f", spent at about {datetime.fromtimestamp(end).strftime('%H:%M:%S')}"


def _charts(network: NetworkWatcher) -> str:
    facts = [entry for _, entry in network.curve]
    facts = [facts[i] for i in thinned(len(facts), DRAWN)]
    if len(facts) < 2:
        return ""
    rounds, x = [float(entry["round"]) for entry in facts], Axis("round (BS iteration)", integer=True)
    metric = next((name for name in METRICS if facts[-1].get(name) is not None), None)
    parts = [("relative_gap", "Relative gap", Axis(GAP_AXIS, "log"), "line")]
    parts = [*([(metric, metric_name(metric).capitalize(), metric_axis(metric), "line")] if metric else []), *parts]
    parts.append(("local_steps", "Chosen H", Axis("H (local steps per round)", low=0.0), "steps"))
    drawn = []
    for i, (name, title, y, kind) in enumerate(parts):
        values = [entry.get(name) for entry in facts]
        if sum(value is not None for value in values) > 1:
            series = (Series(title, rounds, values, style=Style(i), kind=kind),)
            chart = LineChart(name.replace("_", "-"), title, x, y, series)
            drawn.append(figure_html("network", Section("curves", "", paired=True), chart))
    return f'<div class="charts">{"".join(drawn)}</div>'


def _small(*texts: Any) -> str:
    return "".join(f"<small>{escape(str(text)[:200])}</small>" for text in texts if text)


def _station(station: Facts) -> str:
    terminals = station["terminals"]
    connected = sum(terminal["connected"] for terminal in terminals)
    attention = [terminal for terminal in terminals if _state(terminal) != "connected"]
    listed = terminals if len(terminals) <= SHOWN else attention[:SHOWN]
    words = [f"station {station['station']} {station['task']}", f"round {station['round']}"]
    words += [f"{connected} of {len(terminals)} terminals", *_spending(station)]
    if station.get("heard_seconds") is not None:
        words.append(f"last heartbeat {station['heard_seconds']:.0f} s ago")
    rows = "".join(_terminal(terminal) for terminal in listed)
    line = f'<span class="state {_state(station)}">{escape(", ".join(words))}</span>'
    return f"<li>{line}{_small(station.get('last_error'))}<ul>{rows}</ul></li>"


def _spending(node: Facts) -> list[str]:
    """Return the spending of a node by type."""
    return [f"{name} {short(amount)}" for name, amount in (node.get("spent") or {}).items()]


def _terminal(terminal: Facts) -> str:
    words = [f"terminal {terminal['terminal']}"]
    words.append("not a member" if terminal.get("samples") is None else f"{terminal['samples']} samples")
    why = _small(terminal.get("quarantined") or terminal.get("declined") or terminal.get("waits"))
    state = f'<span class="state {_state(terminal)}">{escape(", ".join([*words, *_spending(terminal)]))}</span>'
    return f"<li>{state}{why}</li>"


def _events(network: NetworkWatcher) -> str:
    if not network.events:
        return '<p class="text">no events since this page was opened</p>'
    rows = "".join(
        f"<li><time>{datetime.fromtimestamp(event.at).strftime('%H:%M:%S')}</time>{escape(event.text[:300])}</li>"
        for event in network.events
    )
    return f'<ul class="happened" tabindex="0" aria-label="Events">{rows}</ul>'


def _actions(network: NetworkWatcher) -> list[tuple[str, str]]:
    """Return commands that are useful now; if the cloud does not answer, the first command starts it."""
    place, training = quote(str(network.place)), (network.finished or network.status).get("training", {})
    spent, remaining = training.get("spent") or {"energy": 700.0}, training.get("left") or {}
    limits = {name: amount + (remaining.get(name) or 0.0) for name, amount in spent.items()}
    more = " ".join(f"--budget {name}={2 * limit:.0f}" for name, limit in limits.items())
    export = f"rhfedmtl network export {place} --out {quote(f'{network.place.name}-model')}"
    if network.trouble:
        up = ("Start the network on this machine, and train", f"rhfedmtl network up {place} --local {more}")
        return [up, *([("Fetch the models", f"{export} --offline")] if training else [])]
    return [
        ("Continue training with a larger budget", f"rhfedmtl network train {place} {more}"),
        ("Stop the training after the current round", f"rhfedmtl network stop {place}"),
        ("Move a terminal to another station", f"rhfedmtl network move {place} TERMINAL STATION"),
        ("Fetch the models", export),
    ]
