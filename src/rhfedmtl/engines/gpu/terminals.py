"""Rows and dual variables of all terminals on a graphics card: a round is a few launches of kernels.

Rows are in single precision, dual variables and sums in double. The numbers equal those of engine `inprocess` for the
same rows in single precision, up to rounding: the order of sums differs. On the same kind of card they are equal in
every run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import Moments, RowMap, Scaler
from rhfedmtl.engines.batched_terminals import BatchedTerminals, Cohort
from rhfedmtl.engines.gpu import card
from rhfedmtl.engines.gpu.card import CardCohort, CardLayout, SentLayout
from rhfedmtl.engines.network import Float64Array, IntArray
from rhfedmtl.errors import ConfigError, MissingExtraError
from rhfedmtl.maths.kernels.rounds import CURVE, FACTORS, THETAS, Answers, Orders
from rhfedmtl.maths.losses import has_corners
from rhfedmtl.maths.objective import Points

FEATURES = 2**14
"""Largest number of features; models of more do not fit into the registers of a program."""
SMALL_DECK = 16
"""Largest number of rows of a terminal for which a single number holds the deck."""
DECKS = 128
"""Terminals for which a program draws rows: a terminal per lane."""
STAGES = 4
REGISTERS = {16: 64, 32: 64, 64: 64, 128: 64, 256: 96, 512: 128}
"""Registers of a lane, by the features of a model's main part. With these and `STAGES` rows on their way, many programs
wait for memory at the same time."""


def torch() -> Any:
    """Return PyTorch with a GPU, or raise an error that names the missing part.

    Triton's interpreter (TRITON_INTERPRET=1) replaces a GPU in tests; it is slow.
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
    """Return True if Triton runs its kernels in Python."""
    return os.environ.get("TRITON_INTERPRET") == "1"


class CardTerminals(BatchedTerminals):
    """`BatchedTerminals` with its arrays on a card."""

    def __init__(self, federation: Federation, method: Method, *, present: IntArray | None = None) -> None:
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
                "out rows that rest: use --loss smoothed-hinge, --uniform, or engine 'inprocess'"
            )
        if not method.channel.identity:
            raise ConfigError(
                f"engine 'gpu' adds up updates on the card, where channel {type(method.channel).__name__} cannot see "
                "each of them: use engine 'inprocess'"
            )
        super().__init__(federation, method, present=present)
        bounds = np.asarray(federation.terminal_offsets)[federation.task_offsets]
        self._home_rows = [slice(a, b) for a, b in pairwise(bounds.tolist())]
        self._loss = {"LOSS": loss, "WEIGHTED": federation.sample_weight is not None}
        self._card_shape = CardLayout(method.features.columns(federation.n_features), float(method.intercept))
        self._refuse_size()
        self._device = "cpu" if interpreted() else "cuda"
        self._gamma = self._send(np.array([gpu_losses.gamma(method.loss)]))
        self._sent: SentLayout | None = None
        self._sent_cohort: CardCohort | None = None
        warps = self._card_shape.warps
        self._tuned = {"num_warps": warps, "THREADS": warps * card.LANES, "STAGES": STAGES}
        registers = REGISTERS.get(self._card_shape.main)
        self._tuned |= {"maxnreg": registers} if registers and not interpreted() else {}
        self._capacity = np.diff(federation.terminal_offsets)
        if not method.features:  # mapped rows go to the card, and no others
            self._load(self._capacity)

    @property
    def alpha(self) -> Float64Array:
        """Dual variables of all rows, with nothing pending."""
        return np.asarray(self._card_alpha.cpu().numpy())

    def station_shares(self) -> Float64Array:
        """Return Σ_t X_tᵀα_t of every station, if all terminals are under their first station."""
        return np.array([self._products(rows) for rows in self._home_rows])

    def moments(self, mappings: Sequence[RowMap] | None = None) -> list[Moments]:
        """Return the moments of the present training rows of every station, as its mapping makes them."""
        if self.method.features or self.rows.sizes.sum() < len(self.rows.X):
            return super().moments(mappings)
        moments = []
        for rows in self._home_rows:
            total: Moments | None = None
            for part in card.pieces(rows, self._card_shape.stride):
                X = self._X[part, : self._card_shape.features].double()
                mean = X.mean(0)
                sums = self._torch.stack([mean, (X - mean).square().sum(0)]).cpu().numpy()
                piece = Moments(len(X), sums[0], sums[1])
                total = piece if total is None else total + piece
            assert total is not None, "a task without rows is refused before"
            moments.append(total)
        return moments

    def centre(self, levels: Float64Array) -> None:
        """Subtract the level of its task from every label, also on the card."""
        super().centre(levels)
        if self.method.features:
            return
        self._y = self._send(np.asarray(self.rows.y, np.float32))

    def scale(self, scalers: list[Scaler]) -> None:
        """Scale all rows in place, or map and scale them in main memory."""
        if self.method.features:
            super().scale(scalers)
            self._card_shape = replace(self._card_shape, constant=self.rows.constant)
            self._load(self._capacity)
            return
        if all(scaler is scalers[0] for scaler in scalers):
            self._scale(slice(0, len(self._X)), scalers[0])
        else:
            for rows, scaler in zip(self._home_rows, scalers, strict=True):
                self._scale(rows, scaler)
        constant = scalers[0].constant(self._card_shape.features) * self.method.intercept
        self._card_shape = replace(self._card_shape, constant=constant)
        self._measure()

    def _refuse_size(self) -> None:
        """Refuse data that does not fit on the card or into a program."""
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
        """Copy rows, labels and weights to the card, piece by piece, with dual variables at zero."""
        rows, like = self.rows, {"device": self._device}
        n, stride = len(rows.X), self._card_shape.stride
        self._X = self._torch.zeros((n, stride), dtype=self._torch.float32, **like)
        for part in card.pieces(slice(0, n), stride):
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
        """Compute ‖x‖² of all rows, with the constant feature."""
        self._norm = self._torch.empty(len(self._X), dtype=self._torch.float32, device=self._device)
        for part in card.pieces(slice(0, len(self._X)), self._card_shape.stride):
            self._norm[part] = (self._X[part].double().square().sum(1) + self._card_shape.constant**2).float()

    def _scale(self, rows: slice, scaler: Scaler) -> None:
        features = self._card_shape.features
        for part in card.pieces(rows, self._card_shape.stride):
            X = self._X[part, :features].double()
            if scaler.mean is not None and scaler.scale is not None:
                X = (X - self._send(scaler.mean)) / self._send(scaler.scale)
            if scaler.unit:
                norms = X.square().sum(1, keepdim=True).sqrt()
                X = X / self._torch.where(norms > 0.0, norms, 1.0)
            self._X[part, :features] = X.float()

    def set_duals(self, alpha: Float64Array) -> None:
        """Replace all dual variables; nothing is pending afterwards."""
        self._card_alpha.copy_(self._send(alpha))
        self._pending.zero_()

    def share(self, terminal: int) -> Float64Array:
        """Return u_t = X_tᵀα_t."""
        start = int(self.rows.starts[terminal])
        return self._products(slice(start, start + int(self.rows.sizes[terminal])))

    def _products(self, rows: slice) -> Float64Array:
        """Return Xᵀα over some rows, piece by piece."""
        total = np.zeros(self.shape)
        for part in card.pieces(rows, self._card_shape.stride):
            X, alpha = self._X[part, : self._card_shape.features].double(), self._card_alpha[part]
            intercept = self._card_shape.constant * alpha.sum(0)[:, None]
            products = [(alpha.T @ X), *([intercept] if self._card_shape.intercept else [])]
            total += self._torch.cat(products, 1).cpu().numpy()
        return total

    def _send(self, array: Any) -> Any:
        return self._torch.tensor(np.ascontiguousarray(array), device=self._device)

    def _on_card(self) -> SentLayout:
        """Return the layout on the card; it is sent again after a change of stations or sizes."""
        layout, ends = self.layout, self.rows.ends
        if self._sent is None or self._sent.sizes is not ends or self._sent.layout is not layout:
            parts = (ends, np.maximum(self._station, 0), layout.order, layout.blocks, layout.station)
            sums = [self._send(starts) for starts in card.groups(layout.starts)]
            small = self.rows.largest <= SMALL_DECK
            self._sent = SentLayout(layout, ends, small, sums, *(self._send(part) for part in parts))
        return self._sent

    def work(self, orders: Orders) -> Answers:
        """Return the updates of all terminals, summed by station.

        Each stretch of blocks first draws its rows, and then takes its steps.
        """
        sent, shape, columns = self._on_card(), self._card_shape, self.shape[0]
        cohort = self._card_cohort(sent, orders.steps)
        base, models = self._send(card.first_key(orders)), self._send(shape.pad(orders.models, np.float32))
        per_scales = self._send(np.where(orders.gradient, 0.0, 1.0 / orders.scale))
        for part in cohort.stretches:
            n, n_visits = (places.stop - places.start for places in (part.terminals, part.visits))
            visits = self._torch.empty(n_visits, dtype=self._torch.int32, device=self._device)
            self._kernels.draw_rows[(-(-n // DECKS),)](
                base, self._ids, self._starts, sent.ends, cohort.order, cohort.offsets, self._deck, visits,
                part.terminals.start, part.terminals.stop, part.visits.start, UNIFORM=bool(orders.uniform),
                SMALL=sent.small, N=DECKS, num_warps=DECKS // card.LANES,
            )  # fmt: skip
            self._kernels.ascend[(part.blocks.stop - part.blocks.start, columns)](
                self._X, self._y, self._weight, self._norm, self._card_alpha, self._pending, cohort.offsets, visits,
                cohort.blocks, sent.station_of_block, models, per_scales, cohort.sums, self._gamma, columns,
                shape.features, part.blocks.start, part.visits.start, **self._loss, **self._tuned,
                STRIDE=shape.stride, WIDTH=shape.width, INTERCEPT=shape.intercept, FILLED=shape.filled,
                MAIN=shape.main, REST=shape.rest, CONSTANT_SQUARED=shape.constant**2, CURVE=CURVE,
                ONCE=cohort.once and not orders.uniform,
            )  # fmt: skip
        profile = self._profiles(sent, cohort)
        by_station = self._by_station(sent, cohort.sums)
        return Answers(shape.cut(by_station[..., : shape.width]), by_station[..., shape.width :].sum(1), profile)

    def _card_cohort(self, sent: SentLayout, steps: IntArray) -> CardCohort:
        """Return the terminals with steps, in the order of the layout; the same object again for the same steps."""
        last = self._sent_cohort
        if last is None or last.requested is not steps or last.layout is not sent:
            order = sent.layout.order
            works = steps[order] > 0
            blocks = np.concatenate([[0], np.cumsum(works)])[sent.layout.blocks]
            order = order[works]
            offsets = np.concatenate([[0], np.cumsum(steps[order])])
            arrays = (self._send(part) for part in (order, offsets, blocks))
            once = bool((steps <= np.minimum(self.rows.sizes, card.LANES)).all())
            self._sent_cohort = last = None  # frees its memory for the new cohort
            sums = self._zeros(sent.n_blocks, self.shape[0], self._card_shape.width + CURVE)
            last = CardCohort(sent, steps, once, card.stretches(blocks, offsets), sums, *arrays)
            self._sent_cohort = last
        return last

    def _profiles(self, sent: SentLayout, cohort: CardCohort) -> Float64Array:
        """Return line profiles of all stations; empty without a line search."""
        length, columns = self.method.profile_length, self.shape[0]
        if not length:
            return np.empty((len(self._home_rows), 0))
        parts = self._zeros(sent.n_blocks, columns, length)
        quadratic = self.method.loss.quadratic
        self._kernels.follow_profile[(sent.n_blocks, columns)](
            self._y, self._weight, self._card_alpha, self._pending, self._starts, sent.ends, cohort.order,
            cohort.blocks, self._send(FACTORS), parts, self._gamma, columns, length, **self._loss, QUADRATIC=quadratic,
            FACTORS=2 ** math.ceil(math.log2(length)), N=card.LANES, num_warps=1 if quadratic else 4,
        )  # fmt: skip
        sums: Float64Array = self._by_station(sent, parts).sum(1)
        if quadratic:
            room = parts[:, :, 2].amin(1).cpu().numpy()
            sums[:, 2] = np.inf
            np.minimum.at(sums[:, 2], sent.layout.station, room)
        return sums

    def tell(self, cohort: Cohort, factor: Float64Array) -> None:
        """Apply the factors of the merges to the dual variables, at once."""
        sent, n = self._on_card(), self._pending.numel()
        factors = self._send(factor)[sent.station]
        self._kernels.settle[(-(-n // 1024),)](
            self._card_alpha, self._pending, factors, self._row_terminal, n, self.shape[0], N=1024
        )

    def add_up(self, points: Points) -> tuple[Float64Array, Float64Array]:
        """Return losses at each of the points, and dual terms, summed by station."""
        models = np.stack([points.at(k) for k in range(len(points.combinations))])
        if not self.method.loss.quadratic:
            values = [self._losses(models[:1], theta)[1] for theta in THETAS[:-1]]
            losses, last = self._losses(models)
            return losses, np.column_stack([*values, last])
        _, at_half = self._losses(models[:1], 0.5)
        losses, at_one = self._losses(models)
        quadratic = 4.0 * (2.0 * at_half - at_one)  # f(θ) = linear θ − quadratic θ²/2, from its values at ½ and 1
        return losses, np.column_stack([at_one + quadratic / 2.0, quadratic])

    def gradients(self, models: Float64Array) -> Float64Array:
        """Return −Σ s L′(z) x of every station under its model: the sum of a gradient pass from α = 0."""
        alpha, pending = self._card_alpha, self._pending
        self._card_alpha, self._pending = self._torch.zeros_like(alpha), self._torch.zeros_like(pending)
        every = np.ones(len(models))
        steps = np.where(self._station >= 0, self.rows.sizes, 0)
        try:
            return self.work(Orders(models, every, steps, np.uint64(0), np.uint64(0), False, every > 0.0)).delta
        finally:
            self._card_alpha, self._pending = alpha, pending

    def _losses(self, models: Float64Array, theta: float = 1.0) -> tuple[Float64Array, Float64Array]:
        """Return losses under each of the models, and dual terms of θα, summed by station."""
        sent, shape, columns = self._on_card(), self._card_shape, self.shape[0]
        losses, duals = self._zeros(sent.n_blocks, columns, len(models)), self._zeros(sent.n_blocks, columns, 1)
        self._kernels.add_up[(len(models), sent.n_blocks, columns)](
            self._X, self._y, self._weight, theta * self._card_alpha, self._starts, sent.ends, sent.order, sent.blocks,
            sent.station_of_block, self._send(shape.pad(models, np.float64)), losses, duals, self._gamma, columns,
            len(self._home_rows), **self._loss, INTERCEPT=shape.intercept, STRIDE=shape.stride, WIDTH=shape.width,
            N=16, D=min(128, shape.main),
        )  # fmt: skip
        return self._by_station(sent, losses).sum(1), self._by_station(sent, duals).sum((1, 2))

    def _zeros(self, *shape: int) -> Any:
        return self._torch.zeros(shape, dtype=self._torch.float64, device=self._device)

    def _by_station(self, sent: SentLayout, parts: Any) -> Float64Array:
        """Return the sum of each station's blocks; a station with many blocks first adds up groups of them."""
        width = math.prod(parts.shape[1:])
        for starts in sent.sums:
            sums = self._zeros(len(starts) - 1, *parts.shape[1:])
            self._kernels.add_blocks[(len(sums), -(-width // 16))](parts, starts, sums, width, N=card.ADDENDS, D=16)
            parts = sums
        return np.asarray(parts.cpu().numpy())
