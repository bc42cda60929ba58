"""Rows and dual variables of all terminals in arrays, and the compiled kernel that works on them.

Engine `inprocess` asks it for the work of all terminals at once. It knows nothing of anchors and factors; those belong
to the stations in `engines.inprocess`. An engine with rows elsewhere replaces it: see `engines.gpu.terminals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.centring import label_sums
from rhfedmtl.data.federation import Federation, FloatArray, offsets
from rhfedmtl.data.mapped import buffer_like
from rhfedmtl.data.scaling import Moments, RowMap, Scaler
from rhfedmtl.data.sums import station_moments
from rhfedmtl.engines.network import Float64Array, IntArray
from rhfedmtl.maths.kernels import compiled_kernel, loops, rounds
from rhfedmtl.maths.kernels.kernel import gradients
from rhfedmtl.maths.objective import Points
from rhfedmtl.roles.channel import kept_back, settled
from rhfedmtl.roles.round_zero import Spreads, together


class Cohort(NamedTuple):
    """Terminals that work in a round.

    ``requested`` holds the steps that the round asked for, ``steps`` those of terminals that take part, and ``worked``
    the terminals with steps. ``station`` is the station of each of these; ``counts`` and ``samples`` are totals per
    station.
    """

    requested: IntArray
    steps: IntArray
    worked: IntArray | slice
    station: IntArray
    counts: IntArray
    samples: list[float]


class BatchedTerminals:
    """Terminals of some stations, with their rows, dual variables and residuals.

    Parameters
    ----------
    federation : Federation
        Training rows.
    method : Method
        Method of the training.
    threads : int
        Threads of the kernel.
    present : array, optional
        Rows of each terminal that are present at the start; by default all.
    ids : array, optional
        Ids of the terminals, part of the address of all random draws.
    constant : float
        Value of the intercept's feature until rows are scaled.
    """

    _sorted: rounds.Layout | None

    def __init__(
        self,
        federation: Federation,
        method: Method,
        *,
        threads: int = 1,
        present: IntArray | None = None,
        ids: IntArray | None = None,
        constant: float = 1.0,
    ) -> None:
        self.method, self.threads = method, threads
        self.home = federation.terminal_task.astype(np.int64)
        self._n_stations = federation.n_tasks
        weight = federation.sample_weight
        rows = rounds.make_rows(
            federation.X,
            federation.targets(),
            np.asarray(federation.terminal_offsets, dtype=np.int64),
            ids=ids,
            weight=None if weight is None else np.asarray(weight, dtype=np.float64),
            constant=constant * method.intercept,
            norms=loops.row_norms,
        )
        self.ends = rows.ends  # with the rows that are still to arrive
        self.rows = rows if present is None else rounds.with_sizes(rows, present)
        self.duals = rounds.make_duals(self.rows)
        self.shape = self.rows.y.shape[1], method.width(federation.n_features)
        # Each terminal's residual, and its next value if the terminal's update is applied with factor 1.
        matrix = method.rows(self.shape[0]), self.shape[1]
        self.residual = np.zeros((len(self.home), *matrix)) if method.channel.keeps_residual else None
        self._sent_residual = None if self.residual is None else np.zeros_like(self.residual)
        self.set_stations(self.home)

    def set_stations(self, station: IntArray) -> None:
        """Take the station of every terminal, −1 for a terminal under no station."""
        self._station = station
        self._sorted = None

    @property
    def layout(self) -> rounds.Layout:
        """Terminals sorted by station, and cut into blocks; made again after a change."""
        if self._sorted is None:
            self._sorted = rounds.make_layout(self._station, self._n_stations, self.rows.ids)
        return self._sorted

    @property
    def alpha(self) -> Float64Array:
        """Dual variables of all rows, with nothing pending."""
        compiled_kernel.settle(self.rows, self.layout, self.duals)
        return self.duals.alpha

    def set_duals(self, alpha: Float64Array) -> None:
        """Replace all dual variables; nothing is pending afterwards."""
        compiled_kernel.settle(self.rows, self.layout, self.duals)
        self.duals.alpha[:] = alpha

    def share(self, terminal: int) -> Float64Array:
        """Return u_t = X_tᵀα_t, with nothing pending."""
        single = rounds.Layout(*(np.array(part) for part in ([terminal], [0, 1], [0], [0, 1])))
        return np.asarray(self.method.shares(compiled_kernel, self.rows, single, self.duals, self.shape[1])[0])

    def station_shares(self) -> Float64Array:
        """Return Σ_t X_tᵀα_t of every station."""
        U = np.zeros((self._n_stations, self.method.rows(self.shape[0]), self.shape[1]))
        shares = compiled_kernel.shares(self.rows, self.layout, self.duals, self.shape[1])
        np.add.at(U, self._station[self.layout.order], shares)
        return U

    def leave_residual(self, terminal: int, share: Float64Array) -> Float64Array:
        """Return the part of a share that the station has, for a terminal that leaves; its residual ends."""
        if self.residual is None:
            return share
        residual = self.method.kept(self.residual[terminal], 1.0)
        self.residual[terminal] = 0.0
        return share if residual is None else share - residual

    def work(self, orders: rounds.Orders) -> rounds.Answers:
        """Return the updates of all terminals, summed by station."""
        if not self.method.channel.identity:
            return self._work_through_channel(orders)
        return self.method.work(compiled_kernel, self.rows, self.layout, self.duals, orders, self.threads)

    def _work_through_channel(self, orders: rounds.Orders) -> rounds.Answers:
        """Send each terminal's update through the channel, as terminals do, and then add the updates up."""
        method, layout = self.method, self.layout
        separate = (self.rows, layout.per_terminal, self.duals)
        answers = method.work(compiled_kernel, *separate, orders, self.threads)
        works = orders.steps[layout.order] > 0
        places = slice(None) if works.all() else np.flatnonzero(works)
        worked, residual = layout.order[places], self.residual
        channel = method.channel.for_gradients if orders.gradient.all() else method.channel
        sent = channel.send(answers.delta[places], None if residual is None else residual[worked])
        answers.delta[places] = sent.delta
        if self._sent_residual is not None and sent.residual is not None:
            self._sent_residual[worked] = sent.residual
        clipped = sent.factor < 1.0
        if clipped.any():
            loops.scale_rows(self.duals.pending, self.rows.starts, self.rows.ends, worked, sent.factor)
            if method.profile_length:
                changed = np.flatnonzero(works)[clipped]
                answers.profile[changed] = method.profiles(compiled_kernel, *separate)[changed]
        curve = answers.gains.shape[1] if method.channel.tells_gains else 0
        rounded = answers._replace(
            gains=method.channel.counted(answers.gains[:, :curve]), profile=method.sent_profile(answers.profile)
        )
        by_block = loops.add_answers(rounded, layout.blocks, quadratic=method.loss.quadratic)
        total = loops.add_answers(by_block, layout.starts, quadratic=method.loss.quadratic)
        return total if curve else total._replace(gains=np.zeros((len(total.delta), answers.gains.shape[1])))

    def tell(self, cohort: Cohort, factor: Float64Array) -> None:
        """Pass the factors of the merges to the terminals that worked; they settle when they work next."""
        applied = self.method.settled(factor)[cohort.station]
        self.duals.settle[cohort.worked] = applied
        if self.residual is not None and self._sent_residual is not None:
            old, new = self.residual[cohort.worked], self._sent_residual[cohort.worked]
            self.residual[cohort.worked] = settled(old, new, applied[:, None, None])

    def add_up(self, points: Points) -> tuple[Float64Array, Float64Array]:
        """Return losses at each of the points, and dual terms, summed by station."""
        loss, rows, layout = self.method.loss, self.rows, self._summed
        duals = self.duals if self.method.has_duals else rounds.make_duals(rows)
        models, combinations = points.models, points.combinations
        losses, terms = compiled_kernel.sums(loss, rows, layout, duals, models, combinations, threads=self.threads)
        return self._counted(losses), self._counted(terms)

    def gradients(self, models: Float64Array) -> Float64Array:
        """Return −Σ s L′(z) x of every station under its model."""
        slopes = gradients(compiled_kernel, self.method.loss, self.rows, self._summed, models, threads=self.threads)
        return self._counted(slopes)

    def residual_sums(self, residual: Float64Array, models: Float64Array) -> Float64Array:
        """Return norms and products of the terminals' residuals, summed by station."""
        layout = self.layout
        parts = kept_back(residual[layout.order], models[:, self._station[layout.order]])
        by_block = loops.add_blocks(self.method.channel.counted(parts), layout.blocks)
        return loops.add_blocks(by_block, layout.starts)

    @property
    def _summed(self) -> rounds.Layout:
        """Terminals by station; each terminal separately if its numbers are rounded before they are added up."""
        return self.layout.per_terminal if self.method.channel.sums_only else self.layout

    def _counted(self, parts: Float64Array) -> Float64Array:
        """Return sums of every station from results for `_summed`."""
        if not self.method.channel.sums_only:
            return parts
        total = np.zeros((self._n_stations, *parts.shape[1:]))
        np.add.at(total, self._station[self.layout.order], self.method.channel.counted(parts))
        return total

    def moments(self, mappings: Sequence[RowMap] | None = None) -> list[Moments]:
        """Return the moments of the present training rows of every station, as its mapping makes them."""
        X, (terminals, tasks) = self.rows.X[self._present()], self._present_offsets()
        if mappings is not None:
            by_station = pairwise(terminals[tasks].tolist())
            parts = [mapping.transform(X[a:b]) for mapping, (a, b) in zip(mappings, by_station, strict=True)]
            X = np.concatenate(parts)
        if not self.method.channel.sums_only:
            return station_moments(X, terminals, tasks, self.method.channel.moments_dtype)
        by_terminal = station_moments(X, terminals, np.arange(len(terminals)))
        return [together(Spreads.of_moments(by_terminal[a:b])).moments for a, b in pairwise(tasks)]

    def labels(self) -> Float64Array:
        """Return the label sums of the present rows of every station."""
        present, (terminals, tasks) = self._present(), self._present_offsets()
        labels = self.rows.y[present, 0], self.rows.weight[present], terminals
        if not self.method.channel.sums_only:
            return label_sums(*labels, tasks)
        by_terminal = label_sums(*labels, np.arange(len(terminals)))
        return np.array([together(Spreads.of_labels(by_terminal[a:b])).labels for a, b in pairwise(tasks)])

    def _present(self) -> slice | IntArray:
        """Return the rows that have arrived, in their order."""
        if self.rows.sizes.sum() == len(self.rows.X):
            return slice(None)
        return np.concatenate([np.arange(a, b) for a, b in zip(self.rows.starts, self.rows.ends, strict=True)])

    def _present_offsets(self) -> tuple[IntArray, IntArray]:
        """Return the offsets of present rows by terminal, and of terminals by their first station."""
        terminals = np.bincount(self.home, minlength=self._n_stations)
        return offsets(self.rows.sizes), offsets(terminals)

    def centre(self, levels: Float64Array) -> None:
        """Subtract the level of its task from every label."""
        level = np.repeat(levels[self.home], self.ends - self.rows.starts)
        self._replace(self.rows.X, self.rows.y - level[:, None], self.rows.constant)

    def scale(self, scalers: list[Scaler]) -> None:
        """Scale the rows of every station, in a copy. Rows that need no scaling are not copied."""
        old, first = self.rows, scalers[0]
        if all(scaler is first for scaler in scalers):
            X = first.transform(old.X)
        else:
            X = buffer_like(old.X, None if first.mapping is None else first.mapping.columns)
            for b, scaler in enumerate(scalers):
                own = self.home == b
                span = slice(old.starts[own].min(), self.ends[own].max())
                scaler.transform(old.X[span], out=X[span])
        self._replace(X, old.y, first.constant(X.shape[1]) * self.method.intercept)

    def _replace(self, X: FloatArray, y: Float64Array, constant: float) -> None:
        """Take these rows and labels, with the same terminals, weights and sizes."""
        old = self.rows
        rows = rounds.make_rows(
            X,
            y,
            np.append(old.starts, len(X)),
            ids=old.ids,
            weight=old.weight,
            constant=constant,
            norms=loops.row_norms,
        )
        self.rows = rounds.with_sizes(rows, old.sizes)
