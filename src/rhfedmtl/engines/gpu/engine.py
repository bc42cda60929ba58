"""Everything on one GPU: rows and duals stay on the card, a round is a few launches; stations are as in `inprocess`.

Rows are held in single precision, duals and sums in double. Numbers are those of engine `inprocess` on the same rows in
single precision up to rounding: the sums have another order. On one kind of card they are the same in every run.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import Moments, Scaler
from rhfedmtl.engines.inprocess import Cohort, InProcess
from rhfedmtl.engines.network import Float64Array, IntArray
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError, MissingExtraError
from rhfedmtl.maths.kernels import rounds
from rhfedmtl.maths.kernels.rounds import CURVE, FACTORS, THETAS, Answers, FloatArray, Layout, Orders
from rhfedmtl.maths.losses import has_corners
from rhfedmtl.maths.objective import Points

# Rows are moved and scaled this many numbers at a time.
CHUNK = 2**27
# Numbers of visited rows that are drawn ahead, at most.
VISITS = 2**26
# Models of more features than this do not fit into the registers of a program.
FEATURES = 2**14
LANES = 32
# Rows of a terminal whose deck fits into one number.
SMALL = 16
# Terminals for which a program draws rows, one to a lane.
DECKS = 128
# Rows on their way to a program, and registers of a lane by the features of a model's main part: few enough that many
# programs wait for memory at once.
STAGES = 4
REGISTERS = {16: 64, 32: 64, 64: 64, 128: 64, 256: 96, 512: 128}
# Blocks that a program adds up.
ADDENDS = 128


def torch() -> Any:
    """PyTorch with a GPU, or an error that says what is missing.

    Triton's interpreter (TRITON_INTERPRET=1) stands in for a GPU: slow, for tests.
    """
    try:
        import torch as library
        import triton  # noqa: F401
    except ImportError:
        raise MissingExtraError("engine 'gpu' needs PyTorch and Triton: pip install 'rhfedmtl[gpu]'") from None
    if not (library.cuda.is_available() or interpreted()):
        raise ConfigError(
            "engine 'gpu' needs a GPU that PyTorch can use, and torch.cuda.is_available() says there is none: "
            "use engine 'inprocess'"
        )
    return library


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class CardLayout:
    """How rows and models lie on the card: ``stride`` numbers a row, held as ``main`` and ``rest``."""

    features: int
    constant: float
    """Value of the feature that stands for the intercept; on the card a model holds their product."""

    @property
    def intercept(self) -> bool:
        """Whether models have one."""
        return self.constant > 0.0

    @property
    def stride(self) -> int:
        """Numbers of a row, padded with zeros: whole lines of memory, except for short rows."""
        line = 32 if self.features > 64 else 16
        return -(-self.features // line) * line

    @property
    def filled(self) -> int:
        """Numbers of a row that are read."""
        return min(self.stride, -(-self.features // 8) * 8)

    @property
    def width(self) -> int:
        """Numbers of a model; the intercept comes after the padding."""
        return self.stride + self.intercept

    @property
    def main(self) -> int:
        """Largest power of two that a row fills."""
        return max(16, int(2 ** math.floor(math.log2(self.filled))))

    @property
    def rest(self) -> int:
        """Power of two that holds the others; 0 if there are none."""
        left = self.filled - self.main
        return int(2 ** math.ceil(math.log2(left))) if left > 0 else 0

    @property
    def warps(self) -> int:
        """Warps of a program: 16 features of the model to a lane."""
        return max(1, min(16, self.main // (16 * LANES)))

    def pad(self, models: FloatArray, dtype: Any) -> Any:
        """Models as the card wants them."""
        padded = np.zeros((*models.shape[:-1], self.width), dtype)
        padded[..., : self.features] = models[..., : self.features]
        if self.intercept:
            padded[..., -1] = models[..., -1] * self.constant
        return padded

    def cut(self, sums: Float64Array) -> Float64Array:
        """What the card returned, without the padding."""
        own = [sums[..., -1:] * self.constant] if self.intercept else []
        return np.concatenate([sums[..., : self.features], *own], axis=-1)


class Gpu(InProcess):
    """Engine `inprocess` with its arrays on a card."""

    def __init__(
        self, federation: Federation, method: Method, *, seed: int = 0, present: IntArray | None = None
    ) -> None:
        self._torch = torch()
        from rhfedmtl.engines.gpu import kernels as gpu_kernels
        from rhfedmtl.engines.gpu import losses as gpu_losses

        self._kernels = gpu_kernels
        loss = gpu_losses.code(method.loss)
        if not isinstance(method, DualMethod) or loss is None:
            raise ConfigError(
                f"engine 'gpu' learns by dual coordinate ascent with the losses of the library, not "
                f"{type(method).__name__} with {type(method.loss).__name__}: use engine 'inprocess'"
            )
        if has_corners(method.loss) and not method.uniform:
            raise ConfigError(
                f"engine 'gpu' deals rows before they are visited, and a pass of {type(method.loss).__name__} leaves "
                "out those that rest: use --loss smoothed-hinge, --uniform, or engine 'inprocess'"
            )
        if not method.channel.identity:
            raise ConfigError(
                f"engine 'gpu' adds up updates on the card, where channel {type(method.channel).__name__} cannot see "
                "them one by one: use engine 'inprocess'"
            )
        super().__init__(federation, method, seed=seed, present=present)
        bounds = np.asarray(federation.terminal_offsets)[federation.task_offsets]
        self._home_rows = [slice(a, b) for a, b in pairwise(bounds.tolist())]
        self._loss = {"LOSS": loss, "WEIGHTED": federation.sample_weight is not None}
        self._card_shape = CardLayout(federation.n_features, float(method.intercept))
        self._refuse_size()
        self._device = "cpu" if interpreted() else "cuda"
        self._gamma = self._send(np.array([gpu_losses.gamma(method.loss)]))
        self._sent: _Layout | None = None
        self._sent_cohort: _CardCohort | None = None
        warps = self._card_shape.warps
        self._tuned = {"num_warps": warps, "THREADS": warps * LANES, "STAGES": STAGES}
        registers = REGISTERS.get(self._card_shape.main)
        self._tuned |= {"maxnreg": registers} if registers and not interpreted() else {}
        self._load(np.diff(federation.terminal_offsets))

    @property
    def alpha(self) -> Float64Array:
        """Dual variables of all rows, with everything settled."""
        return np.asarray(self._card_alpha.cpu().numpy())

    def station_shares(self) -> Float64Array:
        """Σ_t X_tᵀα_t of every station, while all terminals are at home."""
        return np.array([self._products(rows) for rows in self._home_rows])

    def moments(self) -> list[Moments]:
        """Moments of the training rows of every station, as far as they are here."""
        self.need_start("take moments")
        if self.sizes.sum() < len(self.rows.X):
            return super().moments()
        return [self._moments(rows) for rows in self._home_rows]

    def centre(self, levels: Float64Array) -> None:
        """Subtract the level of its task from every label, on the card too."""
        super().centre(levels)
        self._y = self._send(np.asarray(self.rows.y, np.float32))

    def scale_rows(self, scalers: list[Scaler]) -> None:
        """Scale all rows where they lie."""
        if all(scaler is scalers[0] for scaler in scalers):
            self._scale(slice(0, len(self._X)), scalers[0])
        else:
            for rows, scaler in zip(self._home_rows, scalers, strict=True):
                self._scale(rows, scaler)
        constant = scalers[0].constant(self._card_shape.features) * self.method.intercept
        self._card_shape = replace(self._card_shape, constant=constant)
        self._measure()

    def _refuse_size(self) -> None:
        """Refuse what does not fit on the card or into a program."""
        shape, rows = self._card_shape, self.rows
        if shape.stride > FEATURES:
            raise ConfigError(f"engine 'gpu' takes up to {FEATURES} features, not {shape.features}: use 'inprocess'")
        need = len(rows.X) * (4 * shape.stride + 8 + (16 + 8) * self.shape[0])
        free = self._torch.cuda.mem_get_info()[0] if not interpreted() else need
        if need > free:
            raise ConfigError(
                f"engine 'gpu' keeps all rows on the card: they need {need / 2**30:.1f} GiB and {free / 2**30:.1f} GiB "
                "are free; use engine 'inprocess', which also takes data larger than the memory"
            )

    def _load(self, capacity: IntArray) -> None:
        """Copy rows, labels and weights to the card, piece by piece; duals at zero."""
        rows, like = self.rows, {"device": self._device}
        n, stride = len(rows.X), self._card_shape.stride
        self._X = self._torch.zeros((n, stride), dtype=self._torch.float32, **like)
        for part in _pieces(slice(0, n), stride):
            self._X[part, : rows.X.shape[1]] = self._torch.tensor(rows.X[part].astype(np.float32), **like)
        self._y, self._weight = (self._send(np.asarray(part, np.float32)) for part in (rows.y, rows.weight))
        self._card_alpha, self._pending = (
            self._torch.zeros(rows.y.shape, dtype=self._torch.float64, **like) for _ in "ab"
        )
        within = np.arange(n, dtype=np.int32) - np.repeat(rows.starts, capacity).astype(np.int32)
        self._deck = self._send(within)
        self._row_terminal = self._send(np.repeat(np.arange(len(capacity), dtype=np.int32), capacity))
        self._starts, self._ids = self._send(rows.starts), self._send(rows.ids)
        self._measure()

    def _measure(self) -> None:
        """‖x‖² of all rows, with the constant feature."""
        self._norm = self._torch.empty(len(self._X), dtype=self._torch.float32, device=self._device)
        for part in _pieces(slice(0, len(self._X)), self._card_shape.stride):
            self._norm[part] = (self._X[part].double().square().sum(1) + self._card_shape.constant**2).float()

    def _moments(self, rows: slice) -> Moments:
        total: Moments | None = None
        for part in _pieces(rows, self._card_shape.stride):
            X = self._X[part, : self._card_shape.features].double()
            mean = X.mean(0)
            found = self._torch.stack([mean, (X - mean).square().sum(0)]).cpu().numpy()
            moments = Moments(len(X), found[0], found[1])
            total = moments if total is None else total + moments
        assert total is not None, "a task without rows is refused before"
        return total

    def _scale(self, rows: slice, scaler: Scaler) -> None:
        features = self._card_shape.features
        for part in _pieces(rows, self._card_shape.stride):
            X = self._X[part, :features].double()
            if scaler.mean is not None and scaler.scale is not None:
                X = (X - self._send(scaler.mean)) / self._send(scaler.scale)
            if scaler.unit:
                norms = X.square().sum(1, keepdim=True).sqrt()
                X = X / self._torch.where(norms > 0.0, norms, 1.0)
            self._X[part, :features] = X.float()

    def set_duals(self, alpha: Float64Array) -> None:
        """Take these dual variables in place of all."""
        self._card_alpha.copy_(self._send(alpha))
        self._pending.zero_()

    def share(self, terminal: int) -> Float64Array:
        """What a terminal has in its station's U."""
        start = int(self.rows.starts[terminal])
        return self._products(slice(start, start + int(self.sizes[terminal])))

    def _products(self, rows: slice) -> Float64Array:
        """Xᵀα over some rows, piece by piece."""
        total = np.zeros(self.shape)
        for part in _pieces(rows, self._card_shape.stride):
            X, alpha = self._X[part, : self._card_shape.features].double(), self._card_alpha[part]
            own = self._card_shape.constant * alpha.sum(0)[:, None]
            products = [(alpha.T @ X), *([own] if self._card_shape.intercept else [])]
            total += self._torch.cat(products, 1).cpu().numpy()
        return total

    def _send(self, array: Any) -> Any:
        return self._torch.tensor(np.ascontiguousarray(array), device=self._device)

    def _on_card(self) -> _Layout:
        """Who is under which station and how many rows they have, sent when it has changed."""
        layout, ends = self.layout, self.rows.ends
        if self._sent is None or self._sent.sizes is not ends or self._sent.layout is not layout:
            parts = (ends, np.maximum(self.station, 0), layout.order, layout.blocks, layout.station)
            sums = [self._send(starts) for starts in _groups(layout.starts)]
            small = self.rows.largest <= SMALL
            self._sent = _Layout(layout, ends, small, sums, *(self._send(part) for part in parts))
        return self._sent

    def work(self, orders: Orders) -> Answers:
        """The work of all terminals: draws, then steps, a stretch of blocks at a time; sums by station."""
        card, shape, columns = self._on_card(), self._card_shape, self.shape[0]
        cohort = self._card_cohort(card, orders.steps)
        base, models = self._send(_first_key(orders)), self._send(shape.pad(orders.models, np.float32))
        per_scales = self._send(np.where(orders.gradient, 0.0, 1.0 / orders.scale))
        for part in cohort.stretches:
            n, n_visits = (which.stop - which.start for which in (part.terminals, part.visits))
            visits = self._torch.empty(n_visits, dtype=self._torch.int32, device=self._device)
            self._kernels.draw_rows[(-(-n // DECKS),)](
                base, self._ids, self._starts, card.ends, cohort.order, cohort.offsets, self._deck, visits,
                part.terminals.start, part.terminals.stop, part.visits.start, UNIFORM=bool(orders.uniform),
                SMALL=card.small, N=DECKS, num_warps=DECKS // LANES,
            )  # fmt: skip
            self._kernels.ascend[(part.blocks.stop - part.blocks.start, columns)](
                self._X, self._y, self._weight, self._norm, self._card_alpha, self._pending, cohort.offsets, visits,
                cohort.blocks, card.station_of_block, models, per_scales, cohort.sums, self._gamma, columns,
                shape.features, part.blocks.start, part.visits.start, **self._loss, **self._tuned,
                STRIDE=shape.stride, WIDTH=shape.width, INTERCEPT=shape.intercept, FILLED=shape.filled,
                MAIN=shape.main, REST=shape.rest, CONSTANT_SQUARED=shape.constant**2, CURVE=CURVE,
                ONCE=cohort.once and not orders.uniform,
            )  # fmt: skip
        profile = self._profiles(card, cohort)
        by_station = self._by_station(card, cohort.sums)
        return Answers(shape.cut(by_station[..., : shape.width]), by_station[..., shape.width :].sum(1), profile)

    def _card_cohort(self, card: _Layout, steps: IntArray) -> _CardCohort:
        """Terminals that have work, in the order of the layout; the same again while nothing else is asked."""
        if self._sent_cohort is None or self._sent_cohort.asked is not steps or self._sent_cohort.layout is not card:
            order = card.layout.order
            works = steps[order] > 0
            blocks = np.concatenate([[0], np.cumsum(works)])[card.layout.blocks]
            order = order[works]
            offsets = np.concatenate([[0], np.cumsum(steps[order])])
            sent = (self._send(part) for part in (order, offsets, blocks))
            once = bool((steps <= np.minimum(self.sizes, LANES)).all())
            self._sent_cohort = None  # its room is free for the new one
            sums = self._room(card.n_blocks, self.shape[0], self._card_shape.width + CURVE)
            self._sent_cohort = _CardCohort(card, steps, once, _stretches(blocks, offsets), sums, *sent)
        return self._sent_cohort

    def _profiles(self, card: _Layout, cohort: _CardCohort) -> Float64Array:
        """Line profiles of all stations, or nothing where no line is searched."""
        length, columns = self.method.profile_length, self.shape[0]
        if not length:
            return np.empty((len(self._home_rows), 0))
        parts = self._room(card.n_blocks, columns, length)
        quadratic = self.method.loss.quadratic
        self._kernels.follow_profile[(card.n_blocks, columns)](
            self._y, self._weight, self._card_alpha, self._pending, self._starts, card.ends, cohort.order,
            cohort.blocks, self._send(FACTORS), parts, self._gamma, columns, length, **self._loss, QUADRATIC=quadratic,
            FACTORS=2 ** math.ceil(math.log2(length)), N=LANES, num_warps=1 if quadratic else 4,
        )  # fmt: skip
        sums: Float64Array = self._by_station(card, parts).sum(1)
        if quadratic:
            room = parts[:, :, 2].amin(1).cpu().numpy()
            sums[:, 2] = np.inf
            np.minimum.at(sums[:, 2], card.layout.station, room)
        return sums

    def tell(self, cohort: Cohort, factor: Float64Array) -> None:
        """Apply to the duals what became of the updates, at once."""
        card, n = self._on_card(), self._pending.numel()
        factors = self._send(factor)[card.station]
        self._kernels.settle[(-(-n // 1024),)](
            self._card_alpha, self._pending, factors, self._row_terminal, n, self.shape[0], N=1024
        )

    def add_up(self, points: Points) -> tuple[Float64Array, Float64Array]:
        """Losses at each of the points, and dual terms, summed by station."""
        models = np.stack([points.at(k) for k in range(len(points.combinations))])
        if not self.method.loss.quadratic:
            values = [self._losses(models[:1], theta)[1] for theta in THETAS[:-1]]
            losses, last = self._losses(models)
            return losses, np.column_stack([*values, last])
        _, half = self._losses(models[:1], 0.5)
        losses, whole = self._losses(models)
        quadratic = 4.0 * (2.0 * half - whole)  # f(θ) = linear θ − quadratic θ²/2, known at ½ and 1
        return losses, np.column_stack([whole + quadratic / 2.0, quadratic])

    def _losses(self, models: Float64Array, theta: float = 1.0) -> tuple[Float64Array, Float64Array]:
        """Losses under each of the models, and dual terms of θα, summed by station."""
        card, shape, columns = self._on_card(), self._card_shape, self.shape[0]
        losses, duals = self._room(card.n_blocks, columns, len(models)), self._room(card.n_blocks, columns, 1)
        self._kernels.add_up[(len(models), card.n_blocks, columns)](
            self._X, self._y, self._weight, theta * self._card_alpha, self._starts, card.ends, card.order, card.blocks,
            card.station_of_block, self._send(shape.pad(models, np.float64)), losses, duals, self._gamma, columns,
            len(self._home_rows), **self._loss, INTERCEPT=shape.intercept, STRIDE=shape.stride, WIDTH=shape.width,
            N=16, D=min(128, shape.main),
        )  # fmt: skip
        return self._by_station(card, losses).sum(1), self._by_station(card, duals).sum((1, 2))

    def _room(self, *shape: int) -> Any:
        return self._torch.zeros(shape, dtype=self._torch.float64, device=self._device)

    def _by_station(self, card: _Layout, parts: Any) -> Float64Array:
        """Sums of the blocks of each station, by way of groups of blocks where a station has many."""
        width = math.prod(parts.shape[1:])
        for starts in card.sums:
            sums = self._room(len(starts) - 1, *parts.shape[1:])
            self._kernels.add_blocks[(len(sums), -(-width // 16))](parts, starts, sums, width, N=ADDENDS, D=16)
            parts = sums
        return np.asarray(parts.cpu().numpy())


@dataclass(frozen=True, eq=False)
class _Layout:
    """A layout with the ends of the terminals' rows, whether all have few, and on the card what kernels need of it."""

    layout: Layout
    sizes: IntArray
    small: bool
    sums: list[Any]
    ends: Any
    station: Any
    order: Any
    blocks: Any
    station_of_block: Any

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return len(self.layout.station)


class _Stretch(NamedTuple):
    """Blocks that are run in one launch, their terminals that work, and the visits of these."""

    blocks: slice
    terminals: slice
    visits: slice


@dataclass(frozen=True, eq=False)
class _CardCohort:
    """Steps asked of the terminals of a layout, and on the card those who have some, in the layout's blocks.

    ``offsets`` says where the visits of each begin, ``once`` that none makes more than a pass, or than 32 steps.
    ``sums`` is room for what their blocks answer; those without work stay at zero.
    """

    layout: _Layout
    asked: IntArray
    once: bool
    stretches: list[_Stretch]
    sums: Any
    order: Any
    offsets: Any
    blocks: Any


def _groups(starts: IntArray) -> list[IntArray]:
    """Where to cut blocks so that no sum has many addends: groups of blocks, then the groups of each station."""
    counts = np.diff(starts)
    n_groups = -(-counts // ADDENDS)
    if (n_groups <= 1).all():
        return [starts]
    of_station = np.concatenate([[0], np.cumsum(n_groups)])
    station = np.repeat(np.arange(len(counts)), n_groups)
    within = np.arange(of_station[-1]) - of_station[station]
    return [np.append(starts[station] + within * ADDENDS, starts[-1]), of_station]


def _stretches(blocks: IntArray, offsets: IntArray) -> list[_Stretch]:
    """Blocks in stretches of a bearable number of visits, but of one block at least."""
    visits, cuts, n_blocks = offsets[blocks], [0], len(blocks) - 1
    while cuts[-1] < n_blocks:
        within = int(np.searchsorted(visits, visits[cuts[-1]] + VISITS, side="right")) - 1
        cuts.append(min(max(within, cuts[-1] + 1), n_blocks))
    scales = (np.arange(n_blocks + 1), blocks, visits)
    parts = [_Stretch(*(slice(int(by[a]), int(by[b])) for by in scales)) for a, b in pairwise(cuts)]
    return [part for part in parts if part.visits.stop > part.visits.start]


def _pieces(rows: slice, width: int) -> list[slice]:
    step = max(1, CHUNK // width)
    return [slice(a, min(a + step, rows.stop)) for a in range(rows.start, rows.stop, step)]


def _first_key(orders: Orders) -> IntArray:
    """What the streams of all terminals in a round have in common, as bits: see `rounds.stream`."""
    seed, number = np.array([orders.seed]), np.array([orders.round])
    with np.errstate(over="ignore"):
        return np.asarray(rounds.mix(rounds.mix(seed + rounds.GOLDEN) + number * rounds.GOLDEN)).view(np.int64)


def network(federation: Federation, method: Method, *, seed: int, present: IntArray, execution: Execution) -> Gpu:
    """Engine ``gpu``."""
    return Gpu(federation, method, seed=seed, present=present)
