"""Parts of a deployment on their own: messages, credentials, configurations, rounding, the journal of a training."""

from __future__ import annotations

import asyncio
import json
import shutil
import stat
import threading
import tomllib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.deploy import nets

from rhfedmtl import toml
from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.deploy.cloud.active_stations import Overhead
from rhfedmtl.deploy.cloud.config import Learning, Resources, read_cloud
from rhfedmtl.deploy.cloud.journal import ClosingError, TrainingJournal
from rhfedmtl.deploy.cloud.measured_run import LimitedPolicy, MeasuredAccounting
from rhfedmtl.deploy.cloud.prices import MeasuredPrices
from rhfedmtl.deploy.cloud.registry import NodeRegistry
from rhfedmtl.deploy.cloud.remote_network import Round
from rhfedmtl.deploy.methods import algorithm_of
from rhfedmtl.deploy.node.config import Waits, read_station, read_terminal
from rhfedmtl.deploy.node.credentials import Authority, Credentials, Identity, PeerCertificate, new_key, signing_request
from rhfedmtl.deploy.node.enrolment import Token
from rhfedmtl.deploy.node.job import Agreement, load_rows
from rhfedmtl.deploy.node.serve import serve
from rhfedmtl.deploy.node.state import CorruptError
from rhfedmtl.deploy.nodes import ROLES
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, DataError, PeerError
from rhfedmtl.maths.quasi_newton import GRADIENT
from rhfedmtl.policies.base import ONE_PASS, Situation
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.costs import Cost, fits
from rhfedmtl.resources.events import Placement
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.prices import Prices
from rhfedmtl.roles import messages as said
from rhfedmtl.roles.message_sizes import message_sizes
from rhfedmtl.roles.roster import Member, StationState
from rhfedmtl.roles.secure import masking
from rhfedmtl.roles.station import BaseStation
from rhfedmtl.roles.terminal import Phase, Terminal, TerminalState

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)
ARRAYS = hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, max_side=5), elements=FLOATS)
VERDICT = said.Verdict(3, 0.25, 5, 2)
X = np.arange(6.0).reshape(2, 3)
MAPPING = said.FeatureMapping(b"splines=3+pairs", X[0], X[1], False, np.arange(45.0).reshape(3, 15), 7)
PUBLIC = said.FeatureMapping(b"fourier=4", np.empty(0), np.empty(0), True, np.empty((3, 0)), 0, np.dtype(np.float32))
KEY = masking.Key(7, bytes(range(32)), b"proof")
MESSAGES = [
    VERDICT,
    said.Anchor(1, 2, X, 0.5),
    said.Anchor(1, 2, X, 0.5, work=GRADIENT),
    said.Anchor(1, 2, X, 0.5, origin=X + 1.0),
    said.WorkOrder(4, 7, X, 1.5, 20, VERDICT),
    said.WorkOrder(4, 7, X, 1.5, 20, VERDICT, work=GRADIENT),
    said.Update(4, 7, X, X[0], np.array([np.inf, 1.0])),
    said.Probe(7, 3, X[None], X, True, VERDICT),
    said.Sums(7, 3, X[0], X[1], X),
    said.Sums(7, 3, X[0], X[1], X, X[1]),
    said.Report(1, 2, 4, X, 30, 5),
    said.StationSums(2, 4, X[0], X[1], X, 30, 5),
    said.StationSums(2, 4, X[0], X[1], X, 30, 5, X[0]),
    said.StationSums(2, 4, X[0], X[1], X, 30, 5, None, X[0], (7, 300)),
    said.Join(7, 2, 15, X),
    said.Release(7, VERDICT),
    said.Leave(7, 2, X),
    said.Goodbye(7, 2),
    said.MomentsReport(7, 15, X[0], X[1]),
    said.MomentsReport(7, 15, X[0], X[1], np.dtype(np.float32)),
    said.RowProbe(True, X[0]),
    said.RowProbe(False, X[0], MAPPING),
    MAPPING,
    PUBLIC,
    said.MomentsRequest(),
    said.MomentsRequest(MAPPING),
    said.MomentsRequest(PUBLIC),
    said.ShareProbe(7, 3, VERDICT),
    said.Trial(9, X),
    said.Scaling(X[0], X[1], True),
    said.Scaling(X[0], X[1], True, np.dtype(np.float32)),
    said.Scaling(np.zeros(15), np.ones(15), True, np.dtype(np.float32), MAPPING),
    said.Scaling(np.empty(0), np.empty(0), True, mapping=PUBLIC),
    said.LabelsReport(7, X[1]),
    said.Centring(-2.5),
    said.Noising(0.3, 0.7, 1e-6),
    said.ColumnsReport(7, X[0], X[1], b"words"),
    said.ColumnsAgreed(X[0], X[1], b"words"),
    KEY,
    masking.Circle(9, (KEY, masking.Key(8, KEY.public[::-1], b"")), masking.to_groups([frozenset({5, 7, 30})])),
    masking.Circle(9, (), b""),
    masking.Deal(7, 9, bytes(range(64)), bytes(range(32))),
    masking.Partners(9, masking.to_bits([5, 7, 30]), bytes(range(20)), bytes(range(64))),
    masking.Partners(9, masking.to_bits([5, 7]), b"", b""),
    masking.Masked(7, 9, np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)),
    masking.Unmask(9, masking.to_bits([0, 1000])),
    masking.Opened(7, 9, bytes(range(48))),
    Member(15, X, 2, 3, 0.25),
    TerminalState(X, X, said.Update(4, 7, X, X[0], X[1]), 4, Phase.LEAVING, 2),
    TerminalState(X, X, None, 4, Phase.ATTACHED, 2),
    TerminalState(X, X, said.Update(4, 7, X, X[0], X[1]), 4, Phase.PENDING, 2, X, X + 1.0),
]


def plain(value: Any) -> Any:
    """A message in values that can be compared."""
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    if isinstance(value, type) or not is_dataclass(value):
        return value
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda x: type(x).__name__)
def test_messages_survive_the_wire(message: Any) -> None:
    """Every field of every message, and of what is written down, comes back to the bit."""
    sent = codec.to_wire(message)
    read = codec.from_wire(type(message), type(sent).FromString(sent.SerializeToString()))
    np.testing.assert_equal(plain(read), plain(message))


def test_what_is_agreed_on_keeps_its_precision_in_greetings_and_files() -> None:
    """A scaling in four bytes a number is passed on, and written down, in four bytes a number."""
    told = wire.Welcome(scaling=codec.to_wire(said.Scaling(X[0], X[1], True, np.dtype(np.float32))))
    for carrier in (wire.Welcome(), wire.StationFile(), wire.TerminalFile()):
        Agreement.read(told).write(carrier)
        assert carrier.scaling == told.scaling
    assert len(told.scaling.mean.data) == 4 * X.shape[1]


def test_every_message_of_the_roles_has_its_form() -> None:
    """What the roles say, all of it can be sent."""
    assert {type(message) for message in MESSAGES} == set(codec.FORMS) - {StationState}
    assert set(said.Message.__subclasses__()) <= set(codec.FORMS)


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (said.Verdict, wire.Verdict(factor=np.nan)),
        (said.Anchor, wire.Anchor(center=codec.tensor(X), lam=np.nan)),
        (said.Anchor, wire.Anchor(center=codec.tensor(X), lam=-np.inf)),
        (said.Anchor, wire.Anchor(center=codec.tensor(X), lam=np.inf)),
        (said.Anchor, wire.Anchor(center=codec.tensor(X), lam=np.inf, work=wire.GRADIENT)),
        (said.Anchor, wire.Anchor(center=codec.tensor(X))),
        (said.Anchor, wire.Anchor(center=codec.tensor(X), lam=-0.5, work=wire.GRADIENT)),
        (said.WorkOrder, wire.WorkOrder(model=codec.tensor(X), scale=np.nan)),
        (said.WorkOrder, wire.WorkOrder(model=codec.tensor(X), scale=-np.inf)),
        (said.WorkOrder, wire.WorkOrder(model=codec.tensor(X), scale=np.inf)),
        (said.WorkOrder, wire.WorkOrder(model=codec.tensor(X), verdict=wire.Verdict(factor=np.inf))),
        (said.Update, wire.Update(delta=codec.tensor(X), gains=codec.tensor([np.inf]), profile=codec.tensor(X))),
        (said.Update, wire.Update(delta=codec.tensor(X), gains=codec.tensor(X), profile=codec.tensor([np.nan]))),
        (said.Sums, wire.Sums(losses=codec.tensor(X[0]), dual=codec.tensor([np.nan]), gradient=codec.tensor([]))),
        (said.Sums, wire.Sums(losses=codec.tensor(X[0]), dual=codec.tensor(X[0]), gradient=codec.tensor([np.inf]))),
        (said.LabelsReport, wire.LabelsReport(sums=codec.tensor([0.0, 1.0, 1.0]))),
        (said.LabelsReport, wire.LabelsReport(sums=codec.tensor([1.0, 1.0, -1.0]))),
        (said.LabelsReport, wire.LabelsReport(sums=codec.tensor([1.0, np.nan, 1.0]))),
        (said.LabelsReport, wire.LabelsReport(sums=codec.tensor([1.0, 1.0]))),
        (said.Centring, wire.Centring(level=np.inf)),
        (said.MomentsReport, wire.MomentsReport(count=3, mean=codec.tensor(X[0]), spread=codec.tensor(-X[0]))),
        (said.MomentsReport, wire.MomentsReport(count=0, mean=codec.tensor(X[0]), spread=codec.tensor(X[0]))),
        (said.MomentsReport, wire.MomentsReport(count=3, mean=codec.tensor(X[0]), spread=codec.tensor(X[0, :2]))),
        (said.Scaling, wire.Scaling(mean=codec.tensor(X[0]), scale=codec.tensor(X[0]))),
        (said.Scaling, wire.Scaling(mean=codec.tensor(X), scale=codec.tensor(X + 1.0))),
        (masking.Key, wire.Key(terminal=7, public=bytes(31))),
        (masking.Circle, wire.Circle(slot=1, keys=[wire.Key(terminal=7, public=bytes(33))])),
        (masking.Circle, wire.Circle(slot=1, keys=[wire.Key(terminal=7, public=bytes(32))] * 2)),
        (masking.Circle, wire.Circle(slot=1, groups=b"\x09\x00\x00")),
        (masking.Deal, wire.Deal(shares=bytes(64), backup=bytes(64))),
        (masking.Deal, wire.Deal(shares=bytes(30), backup=bytes(15))),
        (masking.Partners, wire.Partners(everyone=b"", seats=bytes(20), shares=bytes(64))),
        (masking.Partners, wire.Partners(everyone=masking.to_bits([1]), seats=bytes(21), shares=bytes(64))),
        (masking.Partners, wire.Partners(everyone=masking.to_bits([1]), seats=bytes(20), shares=bytes(32))),
        (masking.Masked, wire.Masked(terminal=7, words=b"")),
        (masking.Masked, wire.Masked(terminal=7, words=bytes(17))),
        (masking.Unmask, wire.Unmask(slot=1, arrived=bytes(4))),
        (masking.Opened, wire.Opened(terminal=7, shares=bytes(15))),
        (masking.Opened, wire.Opened(terminal=7)),
    ],
)
def test_bad_messages_are_refused(kind: Any, bad: Any) -> None:
    """Numbers that are not finite, and parts that do not fit together, do not get past the reader."""
    with pytest.raises(PeerError):
        codec.from_wire(kind, bad)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (said.Anchor, wire.Anchor(center=codec.tensor(X), lam=0.5, work=7)),
        (said.WorkOrder, wire.WorkOrder(model=codec.tensor(X), scale=1.5, work=7)),
    ],
)
def test_work_that_this_version_does_not_know_is_refused_by_name(kind: Any, message: Any) -> None:
    """It would be taken for another kind of work."""
    with pytest.raises(PeerError, match=rf"work of {kind.__name__} is 7: choose from dual-ascent, gradient"):
        codec.from_wire(kind, message)


@given(ARRAYS)
def test_numbers_survive_the_wire(values: Any) -> None:
    """Arrays come back with shape and bits; in single precision, rounded once."""
    np.testing.assert_array_equal(codec.array(codec.tensor(values), "x"), values)
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if np.isfinite(single).all():
        rounded = codec.tensor(single.astype(np.float64), np.dtype(np.float32))
        assert len(rounded.data) == 4 * values.size
        np.testing.assert_array_equal(codec.array(rounded, "x"), single.astype(np.float64))


@pytest.mark.parametrize(
    "bad",
    [
        wire.Tensor(shape=[3], data=b"\0" * 16),
        wire.Tensor(shape=[1 << 31, 1 << 31], data=b""),
        wire.Tensor(shape=[1, 1, 1, 1, 1], data=b"\0" * 8),
        wire.Tensor(shape=[1], precision=7, data=b"\0" * 8),
        codec.tensor([np.nan]),
        codec.tensor([np.inf]),
    ],
)
def test_bad_numbers_are_refused(bad: Any) -> None:
    """Sizes that do not fit and numbers that are none do not get past the reader."""
    with pytest.raises(PeerError):
        codec.array(bad, "a vector")


def test_a_terminal_whose_station_forgot_everything_joins_with_what_it_knows() -> None:
    """Abandoned in the middle of a round, a terminal drops what is pending, and a new station's sum is right."""
    method = DualMethod(intercept=True)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 3))
    terminal = Terminal(0, rows, rng.choice([-1.0, 1.0], size=(6, 1)), method)
    for lost in range(2):
        station = BaseStation(0, terminal.shape, method)
        station.roster.admit(terminal.join())
        station.receive_anchor(said.Anchor(1, 0, np.zeros(terminal.shape), 0.1))
        for number in (1, 2):
            for order in station.open_round(number, {0: 5}):
                update = terminal.work(order)
                assert update is not None
                if number == 1:
                    station.receive(update)
            if number == 1:
                station.close_round()
        assert terminal.pending is not None
        full = np.column_stack([rows, np.ones(6)])
        np.testing.assert_allclose(station.U, terminal.state.alpha.T @ full, atol=1e-12)
        terminal.abandon()
        assert terminal.pending is None
        assert terminal.phase is Phase.DETACHED
        assert terminal.incarnation == lost + 1


# Credentials.


def test_credentials_say_who_they_are_for(tmp_path: Path) -> None:
    """Certificates carry role and number, keys are for their owner alone, and one that is not is refused."""
    authority, _ = Authority.make("test-net")
    identity = Identity("test-net", "terminal", 7)
    key, secret = new_key()
    credentials = Credentials.of(tmp_path)
    credentials.write(secret, authority.issue_for(identity, signing_request(key)), authority.certificate)
    assert credentials.peer.identity == identity
    assert stat.S_IMODE((tmp_path / "node.pem").stat().st_mode) == 0o600
    (tmp_path / "node.pem").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        credentials.client()


@pytest.mark.parametrize("uri", ["http://a/terminal/1", "rhfedmtl://a/terminal/x", "rhfedmtl://a/king/1", "rhfedmtl:"])
def test_names_that_are_none_are_refused(uri: str) -> None:
    """A certificate that names no node lets nobody in."""
    with pytest.raises(PeerError):
        Identity.parse(uri)


def test_only_real_requests_are_signed() -> None:
    """What is no signing request gets no certificate."""
    authority, _ = Authority.make("test-net")
    with pytest.raises(PeerError):
        authority.issue_for(Identity("test-net", "terminal", 1), b"no request")
    with pytest.raises(PeerError):
        PeerCertificate.read(authority.certificate)


def test_everything_secret_is_for_its_owner_alone(tmp_path: Path) -> None:
    """All keys of a new network have mode 0600, and configurations are as they were written."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40), waits=Waits(forget=60.0))
    secret = [*folder.glob("*/node.pem"), folder / "ca" / "ca.key"]
    assert len(secret) == 1 + 1 + 1 + 2 + 4
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secret)
    cloud = read_cloud(folder / "cloud" / "cloud.toml")
    assert toml.write(cloud) == (folder / "cloud" / "cloud.toml").read_text()
    assert [entry.terminals for entry in cloud.stations] == [(0, 1), (2, 3)]
    station = read_station(folder / "station-1" / "station.toml")
    assert station.waits.forget == 60.0
    assert station.credentials().peer.identity == station.identity
    for name in ("compose.yaml", "Dockerfile", "systemd/rhfedmtl-station@.service"):
        assert (folder / name).exists()
    with pytest.raises(ConfigError, match="not empty"):
        nets.build(folder, nets.small(2, 2, 40))
    with pytest.raises(ConfigError, match="the command starts a station"):
        read_station(folder / "cloud" / "cloud.toml")


def test_every_text_is_written_as_it_is_read() -> None:
    """Names of tasks come from people's tables: with line breaks, quotes, brackets and worse."""
    names = ("a\nb", 'c"]\n[node]', "d\\", "\x7f\x00\r\t", "Köln 🙂", "e\u2028f")
    learning = Learning(features=1, tasks=names)
    assert toml.build(Learning, tomllib.loads(toml.write(learning))) == learning


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("station = 0", "staton = 0"), "did you mean station"),
        (("station = 0", 'station = "zero"'), "must be of type int"),
        (("station = 0", ""), "station is missing"),
        (("[node]", "[node"), "not valid TOML"),
        (("[node]", "[node]\nsteps_per_day = 100"), r"steps_per_day stands under \[node\]: write it above the first"),
    ],
)
def test_configurations_are_read_word_by_word(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    """A wrong word, a wrong kind of value and a missing one are named."""
    folder = nets.build(tmp_path / "net", nets.small(1, 2, 40))
    path = folder / "terminal-0" / "terminal.toml"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ConfigError, match=reason):
        read_terminal(path)


def test_a_folder_without_credentials_of_an_operator_is_named(tmp_path: Path) -> None:
    """With what to name instead."""
    with pytest.raises(ConfigError, match=r"nonet is no network.*`rhfedmtl network init` made, or its operator/"):
        Operator(tmp_path / "nonet")


@pytest.mark.parametrize(
    ("role", "lines", "reason"),
    [
        ("cloud", "[limits]\nmessages = 0", r"limits: messages = 0.0: give a number from 1"),
        ("cloud", "[limits]\nnorm = nan", r"limits: norm = nan: give a number above 0"),
        ("cloud", "[limits]\nconnections = 0", r"limits: connections = 0"),
        ("cloud", "[limits]\nmessage_bytes = 5_000_000_000", r"limits: message_bytes = .* to 2.14748e\+09"),
        ("cloud", "[waits]\npatience = nan", r"waits: patience = nan: give a number above 0"),
        ("cloud", "[waits]\nforget = -1", r"waits: forget = -1.0: give a number from 0"),
        ("cloud", "[resources]\ncost = ['energy=-1,10']", r"resources: cost = .*energy=-1,10"),
        ("cloud", "[resources]\nbudget = ['energy=nan']", r"resources: budget = .*energy=nan"),
        ("cloud", "[resources]\nstation_watts = -1", r"station_watts = -1.0"),
        ("cloud", "[learning]\ntarget_gap = nan", r"learning: target_gap = nan"),
        ("cloud", "[learning]\nscale = 'nit'", r"learning: scale = 'nit': choose from .*did you mean unit"),
        ("cloud", "[enrolment]\naddress = 'here'", r"enrolment: address = 'here' is no address"),
        ("cloud", "[enrolment]\nauthority = '../sealed'", r"authority = '../sealed': there is no file"),
        ("station", "[waits]\nlink = 0", r"waits: link = 0.0: give a number above 0"),
        ("station", "[node]\nlisten = '127.0.0.1:70000'", r"node: listen = '127.0.0.1:70000' is no address"),
        ("station", "test = 'nope.npz'", r"test = 'nope.npz': there is no file .*nope.npz: put it there, or leave"),
        ("terminal", "byte_budget = -1", r"byte_budget = -1: give a number from 0"),
        ("terminal", "sleep = -5", r"sleep = -5.0: give a number from 0"),
        ("terminal", "epsilon = nan", r"epsilon = nan"),
        ("terminal", "steps_per_day = -1", r"steps_per_day = -1"),
        ("terminal", "least_steps = 9\nmost_steps = 5", r"most_steps = 5: give a number from 9"),
        ("terminal", "address = 'station'", r"address = 'station' is no address: write it as 127.0.0.1:7000"),
        ("terminal", "data = 'gone.npz'", r"data = 'gone.npz': there is no file"),
    ],
)
def test_values_that_cannot_work_are_refused_before_a_node_starts(
    whole: Path, tmp_path: Path, role: str, lines: str, reason: str
) -> None:
    """The setting, its value and the way out are named."""
    name = role if role == "cloud" else f"{role}-0"
    shutil.copytree(whole / name, tmp_path / name)
    shutil.copytree(whole / "ca", tmp_path / "ca")
    path = tmp_path / name / f"{role}.toml"
    table, changed = tomllib.loads(path.read_text()), tomllib.loads(lines)
    for key, value in changed.items():
        table[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
    text: list[str] = []
    toml._write_table(table, (), text)
    path.write_text("\n".join(text))
    with pytest.raises(ConfigError, match=reason):
        serve(ROLES[role](), [path])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that is not started."""
    return nets.build(tmp_path_factory.mktemp("parts") / "net", nets.small(1, 2, 40))


@pytest.mark.parametrize(
    "wrong",
    [
        {"precision": "float16"},
        {"least_steps": -1},
        {"test_rows": "cloud"},
        {"options": {"lamda1": 1.0}},
        {"options": {"lambda2": "auto"}},
        {"algorithm": "mocha"},
        {"algorithm": "pooled"},
    ],
)
def test_jobs_that_cannot_be_done_are_refused(wrong: dict[str, Any]) -> None:
    """What no node could follow, or what would move rows, is refused when the network is made."""
    with pytest.raises(ConfigError):
        algorithm_of(Learning(**{"features": 2, "tasks": ("a",), "classes": ("n", "p"), **wrong}).job())


@pytest.mark.parametrize("wrong", [{"measured": ("money",)}, {"deadline": 0.0}])
def test_resources_that_nobody_can_measure_are_refused(wrong: dict[str, Any]) -> None:
    """Only time, bytes and energy are measured; a deadline is a time."""
    with pytest.raises(ConfigError):
        Resources(**wrong)


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """A terminal's file must have the features and classes of the job."""
    np.savez(tmp_path / "a.npz", X=np.zeros((3, 2)), y=np.array([0, 1, 5]))
    for features, classes in ((3, ("n", "p")), (2, ("n", "p"))):
        with pytest.raises(DataError):
            load_rows(tmp_path / "a.npz", features, classes)
    with pytest.raises(DataError, match="cannot be read"):
        load_rows(tmp_path / "none.npz", 2, ())


def test_rows_of_a_terminal_may_be_a_table(tmp_path: Path) -> None:
    """Features by their names, in the order of the network; labels by the names of classes, or as numbers."""
    path = tmp_path / "mine.csv"
    path.write_text("state,b,a\nquiet,2,1\nalarm,4,3\n")
    rows = load_rows(path, 2, ("alarm", "quiet"), ("a", "b"))
    np.testing.assert_array_equal(rows.X, [[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(rows.y, [1, 0])
    path.write_text("a,b,y\n1,2,0.5\n")
    np.testing.assert_array_equal(load_rows(path, 2, ()).y, [0.5])
    np.savez(tmp_path / "named.npz", X=np.ones((2, 2)), y=["quiet", "alarm"])
    np.testing.assert_array_equal(load_rows(tmp_path / "named.npz", 2, ("alarm", "quiet")).y, [1, 0])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b,state\n1,,quiet\n", "column 'b' holds '', no number"),
        ("a,b,state\n1,2,quiet\n1,nan,quiet\n", "row 1 of .*mine.csv, column 'b' holds nan"),
        ("a,c,state\n1,2,quiet\n", "no column 'b', which is among the network's 2 features"),
        ("a,b,state,site\n1,2,quiet,x\n", "state, site besides the features"),
        ("a,b\n1,2\n", "nothing besides the features"),
        ("a,b,state\n1,2,loud\n", "label 'loud': the classes of the network are alarm, quiet"),
        ("a,b,state\n1,2,quiet\n3,4\n", "row 2 has not 3 cells"),
        ("a,b,state\n", "has no rows"),
        ("", "cannot be read as a table"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    """By what is wrong with them."""
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(DataError, match=reason):
        load_rows(tmp_path / "mine.csv", 2, ("alarm", "quiet"), ("a", "b"))


def test_tokens_count_once(tmp_path: Path) -> None:
    """A token is known by its hash, works once, and survives a restart of the cloud until then."""
    folder = nets.build(tmp_path / "net", nets.small(1, 2, 40))
    config = read_cloud(folder / "cloud" / "cloud.toml")
    registry = NodeRegistry.open(config)
    secret, number = registry.invite("terminal", None, 0)
    assert number == 2
    assert registry.allowed(0) == [0, 1, 2]
    assert secret not in json.dumps(registry.tokens)
    again = NodeRegistry.open(config)
    assert again.find(secret) == ("terminal", 2)
    again.redeem(secret, "abc1")
    with pytest.raises(PeerError, match="used already"):
        NodeRegistry.open(config).redeem(secret, "abc2")
    token = Token("terminal", 2, "test-net", "127.0.0.1:1", "pem", secret)
    assert Token.parse(token.text()) == token
    with pytest.raises(ConfigError, match="no token"):
        Token.parse("abc")
    with pytest.raises(ConfigError, match="name its station"):
        registry.invite("terminal", 9, None)


# Planning, and the journal.


def situation(prices: str, budget: str) -> Situation:
    """Two stations with two terminals each."""
    layout = Placement(np.array([0, 0, 1, 1]), 2)
    return Situation(np.full(4, 20), layout, Ledger(prices.split(), budget), lam=0.1, gamma=1.0)


@pytest.mark.parametrize("policy", [Fixed(1), Measured(least_steps=5)])
def test_no_plan_goes_below_the_least_steps(policy: Any) -> None:
    """Whatever a policy would like, terminals are asked for enough steps to hide their rows."""
    for budget in (30.0, 100.0, 1000.0):
        plan = LimitedPolicy(policy, 5).plan(situation("energy=0.1,10", f"energy={budget}"))
        assert plan is None or plan.local_steps.min() >= 5


SIZES = np.array([3, 20, 7, 12])


@pytest.mark.parametrize("prices", ["energy=0.1,10", "energy=0.1,10 time=0.01,1"])
@pytest.mark.parametrize("policy", [Fixed(1), Measured(least_steps=ONE_PASS)])
def test_a_pass_over_its_own_rows_is_the_least_of_every_terminal(policy: Any, prices: str) -> None:
    """The planner knows it: what it plans can be paid, and is not the most of all terminals."""
    for budget in (13.0, 30.0, 100.0, 1000.0):
        limits = f"energy={budget}" + (" time=500" if "time" in prices else "")
        layout = Placement(np.array([0, 0, 1, 1]), 2)
        found = Situation(SIZES, layout, Ledger(prices.split(), limits.split()), lam=0.1, gamma=1.0)
        plan = LimitedPolicy(policy, ONE_PASS).plan(found)
        if budget < 20.0 + 0.1 * SIZES.sum() and isinstance(policy, Measured):
            assert plan is None
            continue
        assert plan is not None
        assert (plan.local_steps >= SIZES).all()
        if isinstance(policy, Measured):
            assert fits(event_totals(found.prices, found.round_event(plan.local_steps)), found.ledger.remaining)
    if isinstance(policy, Fixed):
        assert plan is not None
        np.testing.assert_array_equal(plan.local_steps, SIZES)


def test_every_question_of_a_round_can_be_sent_again(tmp_path: Path) -> None:
    """Set aside is what goes down once more, an order that named a model in full, and what comes up once."""
    config = read_cloud(nets.build(tmp_path / "net", nets.small(2, 2, 40)) / "cloud" / "cloud.toml")
    config = replace(config, resources=replace(config.resources, measured=("bytes",)))
    s = situation("energy=0.1,10 bytes=byte:1", "bytes=9000")
    sizes = message_sizes((1, 1001), 1, 0)
    s = replace(s, bytes=sizes)
    network: Any = SimpleNamespace(message_sizes=sizes, station=s.layout.terminal_task)
    accounting = MeasuredAccounting(config, network, s.ledger)
    named = replace(s.round_event(5), bytes_down=float(sizes.named))
    asked, told = sizes.request + 2 * sizes.each_request, sizes.result + 2 * sizes.each_result
    assert accounting.worst(named, s.cloud_event()) == {
        "energy": pytest.approx(4 * 5 * 0.1 + 2 * 10),
        "bytes": 4 * (sizes.named + sizes.order + sizes.update)
        + 2 * (2 * (asked + sizes.anchor) + told + sizes.report),
    }
    accounting.update_prices()
    overhead = Overhead(2)
    overhead.bytes += asked + told + sizes.anchor + sizes.report
    accounting._prices.link_charges(1, s.layout, overhead, None)  # a round as it was planned makes none dearer
    assert not accounting.update_prices()
    assert accounting.planning_prices["bytes"].station_byte_down == 1.0


def test_slow_terminals_get_fewer_steps() -> None:
    """With a deadline, a straggler's H is what it can do in time, and the others keep theirs."""
    s = situation("time=step:0.01/0.01/0.1/0.01,adds:elapsed", "time=1000")
    plan = LimitedPolicy(Fixed(50), 1, 1.0).plan(s)
    assert plan is not None
    assert plan.local_steps.tolist() == [50, 50, 10, 50]
    alike = LimitedPolicy(Fixed(50), 1, 1.0, equal_work=True).plan(s)
    assert alike is not None
    assert alike.local_steps.tolist() == [10, 10, 10, 10]


def slow_third(seconds: float) -> Situation:
    """Terminals of 3, 20, 7 and 12 rows, of which the third takes so long for a step."""
    prices = f"time=step:0.01/0.01/{seconds}/0.01,adds:elapsed"
    layout = Placement(np.array([0, 0, 1, 1]), 2)
    return Situation(SIZES, layout, Ledger([prices], "time=1000"), lam=0.1, gamma=1.0)


@pytest.mark.parametrize("masked", [False, True])
def test_a_straggler_that_cannot_do_a_pass_in_time_sits_out(masked: bool) -> None:
    """Ask for a pass at least; under masks all terminals that work take as many whole passes, or steps."""
    careful = LimitedPolicy(Fixed(50), ONE_PASS, 1.0, equal_work=masked)
    out, slow = careful.plan(slow_third(0.2)), careful.plan(slow_third(0.1))
    assert out is not None
    assert out.local_steps.tolist() == [50, 50, 0, 50]
    assert slow is not None
    assert slow.local_steps.tolist() == ([3, 20, 7, 12] if masked else [50, 50, 10, 50])


def test_the_deadline_decides_if_no_terminal_could_by_the_prices() -> None:
    """Allow for prices that are first guesses: a network of many rows would never begin."""
    s = replace(slow_third(1.0), ledger=Ledger(["time=step:1,adds:elapsed"], "time=1000"))
    plan = LimitedPolicy(Fixed(50), ONE_PASS, 1.0).plan(s)
    assert plan is not None
    assert plan.local_steps.tolist() == [50, 50, 50, 50]


def test_a_straggler_is_tried_again() -> None:
    """Its price falls to the median while it has no order, and rises at once when it is slow again."""
    prices = MeasuredPrices(Resources(measured=("time",)), Cost({"time": Prices(adds="elapsed")}))

    def after(*efforts: tuple[int, float]) -> np.ndarray:
        efforts_by_id = {t: wire.Effort(terminal=t, local_steps=1, answered=True, work_seconds=s) for t, s in efforts}
        prices.learn(Round({}, efforts_by_id, frozenset()))
        return np.asarray(prices.planning(3, 1.0, 1.0)["time"].terminal_step).copy()

    prices.planning(3, 1.0, 1.0)
    slow = after((0, 0.1), (1, 0.1), (2, 9.0))
    later = [after((0, 0.1), (1, 0.1)) for _ in range(20)]
    assert slow[2] > later[0][2] > later[5][2] > later[-1][2]
    assert later[-1][2] < 1.2 * later[-1][0]
    assert later[-1][0] == slow[0]
    assert after((0, 0.1), (1, 0.1), (2, 9.0))[2] == slow[2]


class Loop:
    """An event loop in a thread, and stations that answer with how often they were asked."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.asked = 0

    async def ask(self, requests: Any, seconds: float) -> dict[int, wire.Answer]:
        """Answer everybody."""
        self.asked += 1
        return {b: wire.Answer(report=wire.Report(round=self.asked)) for b in requests}

    def close(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def script(journal: TrainingJournal, rounds: int) -> list[int]:
    """A training of so many rounds; what came back."""
    assert journal.next_order() == "{}"
    found = []
    for number in range(rounds):
        answers = journal.ask("round", [number], {0: wire.Request(), 1: wire.Request()}, 1.0)
        found.append(int(answers[1].report.round))
        found.append(journal.write_once("news", lambda: len(found)))
    return found


def test_a_training_comes_out_the_same_from_its_journal(tmp_path: Path) -> None:
    """Killed after any step, a training that goes through its journal sees what it saw, and asks only what is open."""
    world = Loop()
    journal = TrainingJournal(tmp_path / "journal", world.ask, world.loop, fsync=False)
    journal.order("{}")
    first = script(journal, 4)
    assert world.asked == 4
    again = TrainingJournal(tmp_path / "journal", world.ask, world.loop, fsync=False)
    assert script(again, 4) == first
    assert world.asked == 4
    assert not again.replaying
    once_more = TrainingJournal(tmp_path / "journal", world.ask, world.loop, fsync=False)
    with pytest.raises(CorruptError, match="changed since"):
        once_more.next_order() and once_more.ask("round", [9], {}, 1.0)
    world.close()


def test_a_journal_that_is_closed_gives_no_order(tmp_path: Path) -> None:
    """Whoever waits for one when the cloud goes down hears of that."""
    journal = TrainingJournal(tmp_path / "journal", None, None, fsync=False)  # type: ignore[arg-type]
    journal.order("{}")
    journal.close()
    with pytest.raises(ClosingError):
        journal.next_order()
