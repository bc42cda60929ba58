"""Networks behind feature maps: same numbers as a simulation after kills, and refusals of terminals."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy import inside, nets
from tests.deploy.test_network import TOLERANCE, assert_same, double, in_process
from tests.features.examples import encoder

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.scaling import Moments, RowMap, Scaler
from rhfedmtl.deploy.cloud.checks import AnswerChecks
from rhfedmtl.deploy.cloud.config import Learning, read_cloud
from rhfedmtl.deploy.local.provision import forget_all
from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node.config import Limits, TerminalConfig
from rhfedmtl.deploy.node.enrolment import enrol
from rhfedmtl.deploy.node.job import message_limit
from rhfedmtl.deploy.terminal.disclosure import MOST_MAPPINGS
from rhfedmtl.deploy.terminal.service import TerminalService
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError
from rhfedmtl.features.base import LEVELS, Statistics, normal_quantiles
from rhfedmtl.features.encoder import PLACES
from rhfedmtl.features.maps import COUNTS, MOST_COLUMNS, Features
from rhfedmtl.features.registry import FEATURES
from rhfedmtl.features.splines import Splines
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.roles.messages import FeatureMapping, MomentsReport, MomentsRequest, Probe, RowProbe, Scaling, Verdict
from rhfedmtl.roles.messages import WorkOrder as Order
from rhfedmtl.roles.plausibility import odd_mapped_moments
from rhfedmtl.roles.summed import content_of

ALL = "splines=3+pairs=4+fourier=4+sparse-fourier=4"
ROUND_ZERO = (
    "cloud.journal-moments-before",
    "terminal.send-moments-before",
    "station.send-question moments-before",
    "terminal.send-scaled-before",
    "cloud.journal-scale-before",
)


def kept(folder: Path) -> set[str]:
    """Kinds of messages that left the first terminal."""
    from rhfedmtl.deploy.terminal.account import read

    return {line.kind for line in read(folder / "terminal-0" / "state" / "account.csv") if line.way == "up"}


def test_whoever_is_killed_a_mapped_network_gives_the_numbers_of_one_process(
    tmp_path: Path, places: Path, terminals: str
) -> None:
    """Every role is killed in round zero and later; a terminal maps the rows that it reads again. Bits are equal."""
    federation = double(nets.small(2, 3, 60))
    learning = {"algorithm": "hfedmtl", "seed": 3, "options": {"features": ALL, "policy": "fixed", "local_steps": 10}}
    folder = nets.build(tmp_path / "net", federation, learning=learning)
    nets.shorten_journals(folder, 25_000)
    for place in ROUND_ZERO:
        (places / place).touch()
    with nets.running(folder) as (supervisor, operator):
        operator.command("train", budget=["energy=1100"])
        for number, name in ((5, "cloud"), (10, "terminal-1"), (20, "station-0"), (30, "cloud")):
            nets.wait(operator, lambda s, k=number: (s["training"].get("round") or 0) >= k, supervisor.keep_up)  # type: ignore[misc]
            nets.restart(supervisor, name)
        status = nets.wait(operator, nets.at_rest, supervisor.keep_up)
        assert status["training"]["state"] == "ended", status["training"]
        operator.export(tmp_path / "out")
    assert not [place for place in ROUND_ZERO if (places / place).exists()]
    options = Options.of(**learning["options"])  # type: ignore[arg-type]
    result = in_process(federation, "energy=1100", algorithm="hfedmtl", options=options, seed=3)
    assert_same(tmp_path / "out", result, TOLERANCE[terminals])
    assert nets.assert_invariant(folder, 2) == 6
    models = TaskModels.load(tmp_path / "out" / "model.npz")
    X, y = federation.test_rows(0)
    right = models.predict(X, np.repeat(models.tasks[:1], len(X))) == models.classes[y]
    assert right.mean() == pytest.approx(result.metrics["accuracy"][0])


SLOW = [pytest.param(scale, marks=pytest.mark.slow) for scale in ("unit", "none")]


@pytest.mark.parametrize("scale", ["standard-unit", *SLOW])
def test_a_masked_mapped_network_gives_the_numbers_of_one_process(tmp_path: Path, scale: str, terminals: str) -> None:
    """Counts and moments of mapped rows leave under masks alone; sums equal a simulation to the bit."""
    federation = double(nets.small(2, 4, 60))
    options = {"channel": "masked", "features": ALL}
    folder = nets.build(tmp_path / "net", federation, learning={"options": options, "scale": scale})
    with nets.running(folder) as (_, operator):
        nets.trained(operator, budget=["energy=300"])
        operator.export(tmp_path / "out")
    result = in_process(federation, "energy=300", options=Options.of(**options), scale=scale)
    assert_same(tmp_path / "out", result, TOLERANCE[terminals])
    assert kept(folder) == {"connection", "hello", "key", "join", "scaled", "deal", "masked", "opened"}


@pytest.mark.parametrize("channel", ["identity", "masked"])
def test_only_noised_sums_leave_a_private_mapped_network(tmp_path: Path, channel: str, terminals: str) -> None:
    """Knots are public, and rows have norm 1: no moments and no counts leave."""
    options = {"features": "splines=3+pairs=4"} | ({"channel": channel} if channel != "identity" else {})
    learning = {"options": options, "scale": "unit", "privacy": "epsilon=8,delta=1e-6"}
    folder = nets.build(tmp_path / "net", nets.small(1, 4, 60, features=6), learning=learning)
    with nets.running(folder) as (_, operator):
        training = nets.trained(operator, budget=["energy=4000"])
        operator.export(tmp_path / "out")
    assert np.isfinite(training["gap"])
    answers = {"deal", "key", "masked", "opened"} if channel == "masked" else {"sums", "update"}
    assert kept(folder) == {"connection", "hello", "join", "scaled", "noised"} | answers
    scaler = TaskModels.load(tmp_path / "out" / "model.npz").scalers[0]
    assert scaler.unit
    assert scaler.mapping is not None
    assert scaler.mean is scaler.mapping.first.mean is None
    np.testing.assert_array_equal(scaler.mapping.statistics.quantiles, normal_quantiles(6, 1.0 / np.sqrt(6)))
    assert not nets.terminal_file(folder, 0).mapped


def test_single_precision_carries_the_map_as_in_one_process(tmp_path: Path) -> None:
    """Edges, means and scales cross the wire in float32, exactly."""
    federation = nets.small(2, 2, 40)
    learning = {"precision": "float32", "options": {"features": "splines=3"}}
    folder = nets.build(tmp_path / "net", federation, learning=learning)
    with nets.running(folder) as (_, operator):
        nets.trained(operator, budget=["energy=100"])
        operator.export(tmp_path / "out")
    simulated = in_process(federation, "energy=100", options=Options.of(channel="float32", features="splines=3"))
    for a, b in zip(TaskModels.load(tmp_path / "out" / "model.npz").scalers, simulated.scalers, strict=True):
        np.testing.assert_array_equal([a.mean, a.scale], [b.mean, b.scale])
        assert a.mapping is not None
        assert b.mapping is not None
        quantiles = a.mapping.statistics.quantiles
        np.testing.assert_array_equal(quantiles, b.mapping.statistics.quantiles)
        np.testing.assert_array_equal(quantiles.astype(np.float32), quantiles)
    scaling = nets.terminal_file(folder, 0).scaling
    assert scaling.mapping.quantiles.precision == scaling.mapping.mean.precision == wire.FLOAT32


def test_rows_of_a_newcomer_are_mapped(tmp_path: Path) -> None:
    """A terminal that joins after round zero gets the map with its welcome, and learns with the others."""
    folder = nets.build(tmp_path / "net", nets.small(1, 3, 45), learning={"options": {"features": "splines=3"}})
    rows = np.load(folder / "terminal-0" / "data.npz")
    with nets.running(folder) as (supervisor, operator):
        nets.trained(operator, budget=["energy=300"])
        invited = operator.command("invite", station=0)
        np.savez(tmp_path / "rows.npz", X=rows["X"][:7] + 0.1, y=rows["y"][:7])
        enrol(invited["token"], folder / "terminal-3", tmp_path / "rows.npz")
        nets.owner_allows(folder / "terminal-3")
        supervisor.add(folder / "terminal-3")
        nets.wait(operator, lambda s: len(s["stations"][0]["terminals"]) == 4 and nets.all_connected(s))
        nets.trained(operator, budget=["energy=900"])
    assert codec.array(nets.terminal_file(folder, 3).alpha, "duals").any()
    shutil.copy(tmp_path / "rows.npz", folder / "terminal-3" / "data.npz")
    assert nets.assert_invariant(folder, 1) == 4


# Refusals of a terminal and its owner.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of which nothing runs."""
    learning = {"options": {"features": "splines=3"}}
    return nets.build(tmp_path_factory.mktemp("maps") / "net", nets.small(2, 2, 40, features=5), learning=learning)


def row_map(text: str = "splines=3", columns: int = 5, unit: bool = False, seed: int = 0) -> RowMap:
    """A map of rows."""
    first = Scaler(unit=True) if unit else Scaler(np.zeros(columns), np.ones(columns))
    return RowMap(Features(text), first, Statistics(normal_quantiles(columns), seed))


def mapping(text: str = "splines=3", **more: Any) -> wire.FeatureMapping:
    """A map of rows on the wire."""
    form: wire.FeatureMapping = codec.to_wire(FeatureMapping.of(row_map(text, **more)))
    return form


def test_the_allowed_maps_are_all_that_need_no_file(folder: Path) -> None:
    """The owner must allow a map from another package, or a map that runs a file."""
    allowed = TerminalConfig.__dataclass_fields__["features"].default
    assert set(allowed) == {name for name in FEATURES.own if name != "onnx"}
    service = inside.make_terminal(folder, folder / "state")
    service.memory.begin(inside.job(folder))
    assert not service.disclosure.refuses_job(inside.job(folder))


@pytest.mark.parametrize(
    ("allowed", "reason"),
    [
        (("pairs", "fourier"), "the feature map splines, where pairs, fourier is allowed: only the owner may allow it"),
        ((), "the feature map splines, where none is allowed: only the owner may allow it, by features in terminal"),
    ],
)
def test_an_owner_refuses_a_map_by_name(tmp_path: Path, folder: Path, allowed: tuple[str, ...], reason: str) -> None:
    """The station hears why, and nothing about rows leaves."""

    async def declines() -> None:
        service = inside.make_terminal(folder, tmp_path / "state")
        object.__setattr__(service.config, "features", allowed)
        sent: list[dict[str, Any]] = []
        service.link.uplink.hello()
        service.link.uplink.send = lambda **body: bool(sent.append(body)) or True  # type: ignore[method-assign]
        await service.handle("welcome", wire.Welcome(job=inside.job(folder), epoch="e"))
        await service.handle("ask_moments", wire.MomentsRequest())
        assert [[*body] for body in sent] == [["declined"]]
        assert sent[0]["declined"].reason.startswith(reason)

    inside.run(declines)


def test_a_machine_without_the_file_of_a_map_declines(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The station hears what is missing, before any survey."""

    def missing(*_: Any) -> Any:
        raise ConfigError("the encoder e.onnx is not on this machine: put it into the current folder")

    monkeypatch.setattr(Splines, "function", missing)

    async def declines() -> None:
        sent: list[Any] = []
        await begun(folder, tmp_path / "state", sent)
        assert sent[0]["declined"].reason.startswith("the encoder e.onnx is not on this machine")

    inside.run(declines)


async def begun(folder: Path, state: Path, sent: list[Any]) -> TerminalService:
    """A terminal that has its job."""
    service = inside.make_terminal(folder, state)
    service.link.uplink.hello()
    service.link.uplink.send = lambda **body: bool(sent.append(body)) or True  # type: ignore[method-assign]
    await service.handle("welcome", wire.Welcome(job=inside.job(folder), epoch="e"))
    return service


def test_a_terminal_maps_nothing_but_what_its_job_says(tmp_path: Path, folder: Path) -> None:
    """Another map, other columns, scaling without the map, and work before it: refused, and nothing is sent."""

    async def attempts() -> None:
        sent: list[Any] = []
        service = await begun(folder, tmp_path / "state", sent)
        role, model = service.memory.terminal, np.zeros((1, 5 + 15 + 1))
        n_sent = len(sent)
        order = Order(1, 0, model, 1.0, 20, Verdict(0, 0.0, 0, role.incarnation))
        probe = Probe(0, 1, model[None], np.ones((1, 1)), False, order.verdict)
        for name, content, reason in (
            ("order", codec.to_wire(order), "the feature map comes first"),
            ("probe", codec.to_wire(probe), "the feature map comes first"),
            ("ask_moments", wire.MomentsRequest(mapping=mapping("pairs=4")), "'pairs=4', where terminal 0 learns"),
            ("ask_moments", wire.MomentsRequest(mapping=mapping("splines=4")), "'splines=4', where terminal 0"),
            ("ask_moments", wire.MomentsRequest(mapping=mapping(columns=4)), "a feature map of 4 columns"),
            ("scaling", codec.to_wire(Scaling(np.zeros(5), np.ones(5), True)), "scaling without a feature map"),
            (
                "scaling",
                codec.to_wire(Scaling.of(Scaler(mapping=row_map(COUNTS)))),
                "'counts', where terminal 0 learns",
            ),
        ):
            with pytest.raises(PeerError, match=reason):
                await service.handle(name, content)
        assert len(sent) == n_sent
        await service.handle("scaling", codec.to_wire(Scaling.of(Scaler(unit=True, mapping=row_map()))))
        await service.handle("order", codec.to_wire(order))
        assert next(iter(sent[-1])) == "update"
        with pytest.raises(PeerError, match="has mapped its rows already"):
            await service.handle("ask_moments", wire.MomentsRequest(mapping=mapping()))
        again = inside.make_terminal(folder, tmp_path / "state").memory.terminal
        np.testing.assert_array_equal(again.rows.X, role.rows.X)
        assert again.rows.X.shape[1] == 20

    inside.run(attempts)


def test_counts_of_rows_are_told_a_few_times_only(tmp_path: Path, folder: Path) -> None:
    """Counts below ever other values would tell the rows; a repetition is free, also after a restart."""

    async def attempts() -> None:
        sent: list[Any] = []
        service = await begun(folder, tmp_path / "state", sent)
        for i in range(MOST_MAPPINGS):
            for _ in range(2):
                await service.handle("ask_moments", wire.MomentsRequest(mapping=mapping(COUNTS, seed=i)))
        reports = [codec.read(body["moments"]) for body in sent if "moments" in body]
        assert [report.mean.shape for report in reports] == [(5 * len(LEVELS),)] * 2 * MOST_MAPPINGS
        service = await begun(folder, tmp_path / "state", sent)
        await service.handle("ask_moments", wire.MomentsRequest(mapping=mapping(COUNTS, seed=0)))
        with pytest.raises(PeerError, match="start over with `rhfedmtl network reset`"):
            await service.handle("ask_moments", wire.MomentsRequest(mapping=mapping(COUNTS, seed=99)))

    inside.run(attempts)


def test_masks_rest_on_the_map() -> None:
    """A station that surveys a terminal below other values than the rest of its group gets no sum."""
    base, about = row_map(COUNTS), np.empty(0)
    other = replace(base, statistics=replace(base.statistics, quantiles=base.statistics.quantiles - 9.0))
    scaled = replace(base, first=Scaler(np.ones(5), np.ones(5)))
    maps = [base, other, scaled, row_map(COUNTS, seed=1), row_map(COUNTS, unit=True), row_map("splines=3")]
    probes = [RowProbe(False, about, FeatureMapping.of(mapped)) for mapped in maps]
    digests = {content_of(probe) for probe in (RowProbe(False, about), *probes)}
    assert len(digests) == 1 + len(maps)
    assert content_of(RowProbe(False, about, FeatureMapping.of(row_map(COUNTS)))) in digests


# Malformed and false messages.


def nan(form: wire.FeatureMapping) -> None:
    """Quantiles that are no numbers."""
    form.quantiles.data = np.full((5, len(LEVELS)), np.nan).tobytes()


def short(form: wire.FeatureMapping) -> None:
    """Fewer quantiles than levels."""
    form.quantiles.CopyFrom(codec.tensor(np.zeros((5, 3))))


def negative(form: wire.FeatureMapping) -> None:
    """A scale below zero."""
    form.scale.CopyFrom(codec.tensor(-np.ones(5)))


def unequal(form: wire.FeatureMapping) -> None:
    """Means of other columns."""
    form.mean.CopyFrom(codec.tensor(np.zeros(4)))


def unknown(form: wire.FeatureMapping) -> None:
    """A map that no node has."""
    form.features = b"wavelets=3"


def no_text(form: wire.FeatureMapping) -> None:
    """A name that is no text."""
    form.features = b"\xff\xfe"


def bad_parameter(form: wire.FeatureMapping) -> None:
    """A parameter that the map refuses."""
    form.features = b"splines=1"


def too_wide(form: wire.FeatureMapping) -> None:
    """Give more columns than a node computes."""
    form.features = f"fourier={MOST_COLUMNS}".encode()


def without_quantiles(form: wire.FeatureMapping) -> None:
    """A map without the statistics that it needs."""
    form.quantiles.CopyFrom(codec.tensor(np.zeros((5, 0))))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (nan, "not finite"),
        (short, r"quantiles of shape \(5, 3\)"),
        (negative, "must be positive"),
        (unequal, r"of 5 columns behind means \(4,\)"),
        (unknown, "does not have: .*wavelets"),
        (no_text, "does not have"),
        (bad_parameter, "give 2 to 1000 pieces"),
        (too_wide, "at most 65,536 are computed"),
        (without_quantiles, "without quantiles"),
    ],
)
def test_malformed_maps_are_refused(spoil: Callable[[wire.FeatureMapping], None], reason: str) -> None:
    """Wherever they come: with a request, with a masked sum, with the scaling."""
    form = mapping()
    assert codec.from_wire(FeatureMapping, form).mapping.columns == 20
    spoil(form)
    scaling = wire.Scaling(mean=codec.tensor([]), scale=codec.tensor([]), mapping=form)
    probe = wire.RowProbe(about=codec.tensor([]), mapping=form)
    for kind, message in ((MomentsRequest, wire.MomentsRequest(mapping=form)), (Scaling, scaling), (RowProbe, probe)):
        with pytest.raises(PeerError, match=reason):
            codec.from_wire(kind, message)


def test_a_scaling_has_the_columns_of_its_map() -> None:
    """Means of the rows before the map are refused."""
    scaling = Scaling.of(Scaler(np.zeros(20), np.ones(20), True, row_map()))
    assert codec.from_wire(Scaling, codec.to_wire(scaling)).scaler.columns(5) == 20
    with pytest.raises(PeerError, match="5 means behind a feature map of 20 columns"):
        codec.from_wire(Scaling, codec.to_wire(replace(scaling, mean=np.zeros(5), scale=np.ones(5))))


def test_a_message_without_a_map_has_the_bytes_of_before() -> None:
    """A request for moments is empty, so nothing changes on the wire without feature maps."""
    assert codec.to_wire(MomentsRequest()).SerializeToString() == b""
    assert codec.from_wire(MomentsRequest, wire.MomentsRequest()).row_map is None


def test_configurations_of_too_many_columns_are_refused() -> None:
    """Errors come before anything is written, with the way out; counts are no map for a user."""
    for text, reason in ((f"fourier={MOST_COLUMNS}", "give the maps fewer"), (COUNTS, "unknown feature map 'counts'")):
        with pytest.raises(ConfigError, match=reason):
            Learning(features=20, tasks=("a",), classes=("n", "p"), options={"features": text})


@pytest.mark.parametrize("channel", ["identity", "masked"])
@pytest.mark.parametrize(("features", "columns"), [("pairs=2", 1000), ("fourier=2", 3000), ("splines=8", 40)])
def test_messages_of_round_zero_fit_into_the_limit(features: str, columns: int, channel: str) -> None:
    """Counts have more numbers than the models of a narrow map."""
    options = {"features": features, "channel": channel}
    job = Learning(features=columns, tasks=("a",), classes=("n", "p"), options=options).job()
    limit, used = message_limit(job, method_of(job), Limits()), row_map(features, columns)
    for surveyed in (RowMap(Features(COUNTS), used.first, used.statistics), used):
        numbers = np.zeros(surveyed.columns)
        form = FeatureMapping.of(surveyed)
        for message in (
            MomentsReport(0, 1, numbers, numbers),
            MomentsRequest(form),
            RowProbe(False, numbers, form),
            Scaling(numbers, numbers + 1.0, True, mapping=form),
        ):
            assert len(codec.to_wire(message).SerializeToString()) < limit
        assert 8 * 3 * (1 + surveyed.columns) < limit  # masked words


def moments_of(rows: Any, used: RowMap) -> Moments:
    """Moments as they cross the wire in single precision."""
    return used.moments(rows).rounded(np.dtype(np.float32))


@pytest.mark.parametrize("text", [COUNTS, *ALL.split("+")])
def test_no_honest_terminal_is_quarantined_for_mapped_moments(text: str) -> None:
    """A terminal may have all its rows beyond the rows of the others: its counts are then 0 and 1."""
    random, used = np.random.default_rng(0), row_map(text)
    shifts = [0.0] * 6 + [-4.0, 4.0]
    rows = {t: random.normal(size=(9, 5)) + shift for t, shift in enumerate(shifts)}
    rows[5] = np.zeros((9, 5))  # constants
    moments = {t: moments_of(X, used) for t, X in rows.items()}
    assert not odd_mapped_moments(moments, dict.fromkeys(rows, 9), used)


@pytest.mark.parametrize("text", [COUNTS, *ALL.split("+")])
def test_false_moments_of_mapped_rows_are_found_out(text: str) -> None:
    """Means outside the range of the map, and spreads that no rows in it have."""
    random, used = np.random.default_rng(0), row_map(text)
    moments = {t: used.moments(random.normal(size=(9, 5))) for t in range(4)}
    last = np.eye(used.columns)[-1]
    for lie, reason in (
        (replace(moments[2], mean=moments[2].mean + 9.0 * last), "a mean of"),
        (replace(moments[2], spread=moments[2].spread + 99.0 * last), "a spread of"),
        (replace(moments[2], count=8), "moments of 8 rows"),
        (replace(moments[2], mean=moments[2].mean * np.nan), "not finite|a mean of nan"),
    ):
        odd = odd_mapped_moments(moments | {2: lie}, dict.fromkeys(moments, 9), used)
        assert [*odd] == [2], (lie, odd)
        assert re.search(reason, odd[2])


def test_the_cloud_refuses_false_moments_of_a_station(folder: Path) -> None:
    """The number of columns must fit the request, and the numbers must be possible."""
    config = read_cloud(folder / "cloud" / "cloud.toml")
    checks, used = AnswerChecks(config.learning.job(), Limits(), 10.0), row_map(COUNTS)
    request = wire.Request(moments=codec.to_wire(MomentsRequest.of(used, np.dtype(np.float64))))

    def answer(mean: Any, n_bytes: int = 100_000) -> None:
        report = MomentsReport(0, 9, mean, np.zeros(len(mean)))
        checks.answer(0, request, wire.Answer(moments=codec.to_wire(report), bytes_below=n_bytes), {0: 0, 1: 0})

    answer(np.full(75, 0.5))
    with pytest.raises(PeerError, match=r"moments of \(20,\) columns, where 75 were asked for"):
        answer(np.full(20, 0.5))
    with pytest.raises(PeerError, match=r"a mean of 1\.5"):
        answer(np.full(75, 1.5))
    with pytest.raises(PeerError, match="bytes to and from terminals"):
        answer(np.zeros(75), n_bytes=0)


@pytest.mark.parametrize(("scale", "from_rows"), [("unit", False), ("none", True), ("standard", True)])
def test_a_map_with_statistics_of_rows_has_no_certified_removal(scale: str, from_rows: bool) -> None:
    """Its knots depend on the rows of the terminal, although the scaling behind it does not."""
    result = in_process(nets.small(1, 2, 40), "energy=100", scale=scale, options=Options.of(features="splines=3"))
    assert result.scalers[0].from_rows is from_rows


def test_an_encoder_runs_in_a_network_whose_owners_allow_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminals and stations find their copy by its SHA-256; the file is never sent."""
    (tmp_path / "models").mkdir()
    file = encoder(tmp_path / "models" / "e.onnx")
    federation = nets.small(1, 2, 40, features=6)
    features = f"onnx={file}+splines=2"
    monkeypatch.setenv(PLACES, str(file.parent))
    folder = nets.build(tmp_path / "net", federation, learning={"options": {"features": features}})
    with nets.running(folder) as (_, operator):
        operator.command("train", budget=["energy=100"])
        refused = nets.wait(operator, lambda s: any(t.get("declined") for t in s["stations"][0]["terminals"]))
        words = next(t["declined"] for t in refused["stations"][0]["terminals"] if t.get("declined"))
        assert "the feature map onnx, where splines, pairs, fourier, sparse-fourier is allowed" in words
        operator.command("stop")
    for t in range(2):
        path = folder / f"terminal-{t}" / "terminal.toml"
        path.write_text('features = ["onnx", "splines"]\n' + path.read_text())
    forget_all(folder)
    with nets.running(folder) as (_, operator):
        nets.trained(operator, budget=["energy=100"])
        operator.export(tmp_path / "out")
    assert_same(tmp_path / "out", in_process(federation, "energy=100", options=Options.of(features=features)))
