"""What a method must say so that roles and engines can carry it out: what terminals compute, how stations merge.

A station keeps a matrix U of ``rows`` × features, a terminal answers an order with a matrix of the same shape, and
merging is U += factor · Σ answers, whatever the method. What U means, the model that orders carry, and what goes up to
the cloud and comes down from it, is up to the method.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.merges import Arrived
from rhfedmtl.data.federation import Federation, check_finite
from rhfedmtl.errors import DataError
from rhfedmtl.maths.kernels.kernel import Kernel
from rhfedmtl.maths.kernels.rounds import FACTORS, Answers, Duals, Layout, Orders, Rows
from rhfedmtl.maths.losses import Loss, SmoothedHinge, check_loss
from rhfedmtl.maths.relationships import Relationship

FloatArray = npt.NDArray[np.float64]


class Sent(NamedTuple):
    """Updates as a channel sends them, one for each terminal: terminals × rows × features.

    ``factor`` is what the channel did to each terminal's Δα. ``residual`` is what the terminal would keep back if its
    update were applied wholly; None where a channel keeps nothing back.
    """

    delta: FloatArray
    factor: FloatArray
    residual: FloatArray | None = None


@dataclass(frozen=True)
class Channel:
    """What happens to updates and models between terminals and station. This one changes nothing; see `roles.channel`.

    ``dtype`` is how the numbers of an update cross the wire, ``model_dtype`` those of a model, ``report_dtype`` those
    of a station's report, ``moments_dtype`` (float64 or float32) those of moments and scaling; without ``tells_gains``
    the gain curve is zeros; with ``sums_only`` a station sees sums, and nothing of one terminal; ``noised`` sums are
    hidden in noise. A channel is without state: what is kept from one message to the next is handed in and out.
    """

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float64)
    model_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float64)
    report_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float64)
    moments_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float64)
    identity: ClassVar[bool] = True
    keeps_residual: ClassVar[bool] = False
    tells_gains: ClassVar[bool] = True
    sums_only: ClassVar[bool] = False
    noised: ClassVar[bool] = False

    @property
    def for_gradients(self) -> Channel:
        """The channel of updates of a gradient round: a search needs more of their digits."""
        return self

    @property
    def price(self) -> float:
        """What an update tells of its terminal, as μ² of Gaussian privacy."""
        return math.inf

    @property
    def sealed(self) -> bool:
        """Whether no share goes into a sum, or out of it, by itself: the difference would be the share."""
        return self.sums_only or self.noised

    @property
    def least(self) -> int:
        """Terminals that must have answered for a round to count."""
        return 1

    @property
    def summed(self) -> int:
        """Terminals that every sum hides; 0 where updates are told one by one."""
        return self.least if self.sums_only else 0

    def masked_among(self, members: npt.NDArray[np.int64]) -> int:
        """Terminals of the largest station, by which masks are charged; 0 where there are none."""
        return int(members.max(initial=0)) if self.sums_only else 0

    def send(self, delta: FloatArray, residual: FloatArray | None) -> Sent:
        """What is sent of these updates, with what each terminal kept back before."""
        return Sent(delta, np.ones(len(delta)))

    def models(self, wanted: FloatArray, told: FloatArray) -> FloatArray:
        """What stations, one in each row, send of these models to terminals that were told others before."""
        return wanted

    def reported(self, v: FloatArray) -> FloatArray:
        """What stations tell the cloud of v, and make their own models from, so that both know the same."""
        with np.errstate(over="ignore"):  # the cloud refuses what is not finite
            return v.astype(self.report_dtype, copy=False).astype(np.float64, copy=False)

    def counted(self, values: FloatArray) -> FloatArray:
        """Numbers other than updates, of one terminal in each row, as they are added up."""
        return values

    def received(self, total: FloatArray, address: tuple[int, ...] | None, answers: int) -> FloatArray:
        """What the station makes of the sum of so many updates.

        What it draws for that has an address (seed, round, station), or none.
        """
        return total

    def noise_variance(self, answers: npt.ArrayLike) -> FloatArray:
        """Of each number in the sum of so many updates."""
        return np.zeros(np.shape(answers))


@dataclass(frozen=True)
class Method(ABC):
    """A loss, and how it is learned; how much work to do is the policy's business.

    ``uniform`` draws rows with replacement instead of in passes over a shuffled deck. Functions that take ``U`` and
    ``n`` work on one station or on all of them at once (a leading axis of stations).
    """

    loss: Loss = field(default_factory=SmoothedHinge)
    intercept: bool = field(default=True, kw_only=True)
    uniform: bool = field(default=False, kw_only=True)
    channel: Channel = field(default_factory=Channel, kw_only=True)

    has_duals: ClassVar[bool] = False
    """Whether U_b = Σ_t X_tᵀα_t, with α in the dual box of the loss; else sums of α mean nothing to a certificate."""

    def __post_init__(self) -> None:
        """Refuse a loss whose parameters make no sense."""
        check_loss(self.loss)

    @property
    def task_coupling(self) -> Relationship | None:
        """The relationship with which the method couples tasks, if it couples them."""
        return None

    def hidden(self, channel: Channel) -> Self:
        """The same through a channel that adds noise, merged so that nothing but the noisy sum has a say."""
        return replace(self, channel=channel)

    @property
    def tells_residual(self) -> bool:
        """Whether a certificate has to count what the channel keeps back."""
        return self.has_duals and self.channel.keeps_residual

    @property
    def profile_length(self) -> int:
        """How many numbers a terminal adds to its answer for the merge."""
        return 0

    def rows(self, columns: int) -> int:
        """Rows of U for so many columns of labels."""
        return columns

    def shared_rows(self, columns: int) -> int:
        """Rows that travel between station and cloud: the first so many."""
        return columns

    @abstractmethod
    def work(
        self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, orders: Orders, threads: int = 1
    ) -> Answers:
        """One round of all terminals with steps > 0; the sums of each station."""

    @property
    def masked_profile(self) -> npt.NDArray[np.bool_]:
        """Which numbers of a profile are added up where sums are masked: those of factors up to 1, in every box."""
        if self.loss.quadratic:
            return np.arange(self.profile_length) < 2  # the third, the way out of the box, is a least one and no sum
        return FACTORS[: self.profile_length] <= 1.0

    def told_profile(self, profile: FloatArray) -> FloatArray:
        """Profiles, of one terminal in each row, as they are added up: under masks a factor of 1 is the largest."""
        if not (self.channel.sums_only and self.profile_length):
            return profile
        beyond = 1.0 if self.loss.quadratic else -np.inf
        return np.where(self.masked_profile, self.channel.counted(profile), beyond)

    def profiles(self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals) -> FloatArray:
        """What each terminal of the layout adds to its answer for the merge, along its pending change."""
        return np.empty((len(layout.order), 0))

    @abstractmethod
    def shares(self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, width: int) -> FloatArray:
        """What each terminal of the layout has in its station's U, and takes with it when it leaves."""

    @abstractmethod
    def kept(self, delta: FloatArray, factor: float) -> FloatArray | None:
        """What an update that was merged by ``factor`` adds to its terminal's share; None for nothing."""

    def settled(self, factor: Any) -> Any:
        """Factor on a terminal's pending change of its duals, once its update was merged by ``factor``."""
        return factor

    @abstractmethod
    def start(self, U: FloatArray, n: Any, center: FloatArray) -> FloatArray:
        """U at the start of a server iteration, with the anchor that came from the cloud."""

    def merged(self, U: FloatArray, delta: FloatArray, factor: Any, center: FloatArray) -> FloatArray:
        """U after a round, from the sum of the updates that arrived; a factor of 0 means none."""
        return np.asarray(U + wide(factor) * delta)

    @abstractmethod
    def model(self, U: FloatArray, n: Any, center: FloatArray, lam: Any, origin: Any = 0.0) -> FloatArray:
        """Model that orders carry: to the bit the centre, where `report` gives the origin or λ is ∞."""

    @abstractmethod
    def report(self, U: FloatArray, n: Any) -> FloatArray:
        """What a station tells the cloud."""

    @abstractmethod
    def scale(self, lam: float, n: float, members: int, number: int) -> float:
        """The positive number that orders of round ``number`` carry."""

    @abstractmethod
    def factor(self, arrived: Arrived) -> float:
        """Factor on the sum of updates."""

    def check(self, federation: Federation) -> None:
        """Refuse data that this loss cannot learn from; names the task and terminal of the first bad row."""
        if self.loss.classifier and federation.kind == "regression":
            raise DataError(
                f"{type(self.loss).__name__} needs classes, but the labels of {federation.origin.name!r} are "
                "numbers: use loss 'squared' for regression, or name the classes"
            )
        names = federation.task_names
        empty = np.flatnonzero(np.diff(federation.terminal_offsets) == 0)
        if len(empty):
            task = names[federation.terminal_task[empty[0]]]
            raise DataError(f"terminal {empty[0]} of task {task!r} has no rows: leave it out, or give it at least one")
        few = np.flatnonzero(np.diff(federation.task_offsets) < self.channel.least)
        if self.channel.least > 1 and len(few):
            raise DataError(
                f"task {names[few[0]]!r} has {np.diff(federation.task_offsets)[few[0]]} terminals: sums that hide them "
                f"need {self.channel.least} at least; give it more, or lower least_summed"
            )
        idle = np.flatnonzero(np.diff(federation.task_offsets) == 0)
        if len(idle):
            raise DataError(f"task {names[idle[0]]!r} has no terminals: leave it out, or give it training rows")

        def where(row: int) -> str:
            terminal = int(np.searchsorted(federation.terminal_offsets, row, side="right")) - 1
            return f" (terminal {terminal} of task {names[federation.terminal_task[terminal]]!r})"

        _check_rows(federation.X, federation.feature_names, where)
        _check_rows(federation.test_X, federation.feature_names, lambda row: " of the test rows")
        _check_weights(federation.sample_weight, len(federation.X), where)

    def check_terminal(
        self, terminal: int, X: npt.NDArray[Any], y: npt.NDArray[Any], weight: npt.NDArray[Any] | None
    ) -> None:
        """Refuse rows of one terminal that this loss cannot learn from; ``y`` has a column for each model."""

        def where(row: int) -> str:
            return f" of terminal {terminal}"

        if len(X) == 0:
            raise DataError(f"terminal {terminal} has no rows: leave it out, or give it at least one")
        if X.ndim != 2 or y.ndim != 2 or len(y) != len(X):
            raise DataError(
                f"terminal {terminal} has rows of shape {X.shape} and labels of {y.shape}: two tables needed"
            )
        _check_rows(X, (), where)
        allowed = np.abs(y) == 1.0 if self.loss.classifier else np.isfinite(y)
        if not allowed.all():
            row, column = (int(i) for i in np.argwhere(~allowed)[0])
            needed = "-1 or +1" if self.loss.classifier else "a finite number"
            name = type(self.loss).__name__
            raise DataError(f"row {row}{where(row)} has the label {y[row, column]}: {name} needs {needed}")
        _check_weights(weight, len(X), where)


def wide(x: Any) -> Any:
    """A number as it is, numbers of all stations as a column before rows and features."""
    return x[:, None, None] if np.ndim(x) else x


def _check_rows(X: npt.NDArray[Any], feature_names: tuple[str, ...], where: Callable[[int], str]) -> None:
    if X.dtype not in (np.float32, np.float64):
        raise DataError(f"rows are of type {X.dtype}: the kernels compute in float32 or float64, convert them first")
    check_finite(X, feature_names, where)


def _check_weights(weight: npt.NDArray[Any] | None, n_rows: int, where: Callable[[int], str]) -> None:
    if weight is None:
        return
    if weight.shape != (n_rows,):
        raise DataError(f"sample weights of shape {weight.shape} for {n_rows} rows{where(0)}")
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0.0)))
    if len(bad):
        row = int(bad[0])
        raise DataError(f"row {row}{where(row)} has the weight {weight[row]}: weights are finite and not negative")
