"""Interface of a method: the work of terminals and the merge at stations, for roles and engines to carry out.

A station keeps a matrix U of ``rows`` × features, a terminal answers an order with a matrix of the same shape, and
merging is U += factor · Σ answers for every method. The method defines the meaning of U, the model that orders carry,
and the vectors that travel between station and cloud.
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
from rhfedmtl.features.maps import Features
from rhfedmtl.maths.kernels.kernel import Kernel
from rhfedmtl.maths.kernels.rounds import FACTORS, Answers, Duals, Layout, Orders, Rows
from rhfedmtl.maths.losses import Loss, SmoothedHinge, check_loss
from rhfedmtl.maths.relationships import Relationship

FloatArray = npt.NDArray[np.float64]


class Sent(NamedTuple):
    """Updates in the form in which a channel sends them: terminals × rows × features.

    ``factor`` is the factor that the channel applied to each terminal's Δα. ``residual`` is the part that the terminal
    would keep back if its update were applied in full; None if the channel keeps nothing back.
    """

    delta: FloatArray
    factor: FloatArray
    residual: FloatArray | None = None


@dataclass(frozen=True)
class Channel:
    """Transformation of updates and models between terminals and station; this class changes nothing.

    `roles.channel` has the others. ``dtype`` is the type of an update's numbers on the wire, ``model_dtype`` of a
    model's, ``report_dtype`` of a station report's, ``moments_dtype`` (float64 or float32) of moments and scaling.
    Without ``tells_gains`` the gain curve is zeros. With ``sums_only`` a station sees sums, and nothing of a single
    terminal. ``noised`` sums are hidden in noise.

    A channel has no state: callers pass the residuals from each message to the next.
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
        """Channel of the updates of a gradient round: a search needs more digits of gradients."""
        return self

    @property
    def price(self) -> float:
        """Privacy loss of a terminal by an update, as μ² of Gaussian privacy."""
        return math.inf

    @property
    def sealed(self) -> bool:
        """True if no share enters or leaves a sum alone: the difference of two sums would reveal it."""
        return self.sums_only or self.noised

    @property
    def least(self) -> int:
        """Minimum number of terminals that must answer for a round to count."""
        return 1

    @property
    def summed(self) -> int:
        """Minimum number of terminals that every sum hides; 0 if stations see single updates."""
        return self.least if self.sums_only else 0

    def masked_among(self, members: npt.NDArray[np.int64]) -> int:
        """Return the number of terminals of the largest station, which sets the price of masks; 0 without masks."""
        return int(members.max(initial=0)) if self.sums_only else 0

    def send(self, delta: FloatArray, residual: FloatArray | None) -> Sent:
        """Return these updates in the form in which they are sent; ``residual`` is the part kept back so far."""
        return Sent(delta, np.ones(len(delta)))

    def models(self, target: FloatArray, current: FloatArray) -> FloatArray:
        """Return the models that stations (a row each) send to terminals that hold ``current``."""
        return target

    def reported(self, v: FloatArray) -> FloatArray:
        """Return v as stations report it; they make their own models from the same numbers as the cloud."""
        with np.errstate(over="ignore"):  # the cloud refuses what is not finite
            return v.astype(self.report_dtype, copy=False).astype(np.float64, copy=False)

    def counted(self, values: FloatArray) -> FloatArray:
        """Return numbers other than updates, a terminal in each row, in the form in which they are added up."""
        return values

    def received(self, total: FloatArray, address: tuple[int, ...] | None, answers: int) -> FloatArray:
        """Return the station's value for the sum of this many updates.

        Random numbers for it have the address (seed, round, station), or no address.
        """
        return total

    def noise_variance(self, answers: npt.ArrayLike) -> FloatArray:
        """Return the variance of each number in the sum of this many updates."""
        return np.zeros(np.shape(answers))


@dataclass(frozen=True)
class Method(ABC):
    """A loss and a way to learn it; the policy decides how much work to do.

    ``uniform`` draws rows with replacement instead of in passes over a shuffled deck. Functions that take ``U`` and
    ``n`` work on a single station or on all stations at once (a leading axis of stations).
    """

    loss: Loss = field(default_factory=SmoothedHinge)
    intercept: bool = field(default=True, kw_only=True)
    uniform: bool = field(default=False, kw_only=True)
    channel: Channel = field(default_factory=Channel, kw_only=True)
    features: Features = field(default_factory=Features, kw_only=True)

    has_duals: ClassVar[bool] = False
    """True if U_b = Σ_t X_tᵀα_t, with α in the dual box of the loss; else sums of α mean nothing to a certificate."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a loss with invalid parameters."""
        check_loss(self.loss)

    @property
    def task_coupling(self) -> Relationship | None:
        """Relationship by which the method couples tasks, if it couples them."""
        return None

    def hidden(self, channel: Channel) -> Self:
        """Return the method with a channel that adds noise, and with a merge that uses only the noisy sum."""
        return replace(self, channel=channel)

    @property
    def tells_residual(self) -> bool:
        """True if a certificate must count the part that the channel keeps back."""
        return self.has_duals and self.channel.keeps_residual

    @property
    def profile_length(self) -> int:
        """Count of numbers that a terminal adds to its answer for the merge."""
        return 0

    def width(self, n_columns: int) -> int:
        """Return the number of features of a model for rows of ``n_columns`` columns, with the intercept's."""
        return self.features.columns(n_columns) + self.intercept

    def rows(self, columns: int) -> int:
        """Return the number of rows of U for this many columns of labels."""
        return columns

    def shared_rows(self, columns: int) -> int:
        """Return the number of rows that travel between station and cloud: the first rows of U."""
        return columns

    @abstractmethod
    def work(
        self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, orders: Orders, threads: int = 1
    ) -> Answers:
        """Run a round of all terminals with steps > 0; return the sums of each station."""

    @property
    def masked_profile(self) -> npt.NDArray[np.bool_]:
        """Mask of the profile numbers that masked sums add up: factors up to 1, which lie in every box."""
        if self.loss.quadratic:
            return np.arange(self.profile_length) < 2  # the third, η_max, is a minimum and not a sum
        return FACTORS[: self.profile_length] <= 1.0

    def sent_profile(self, profile: FloatArray) -> FloatArray:
        """Return profiles, a terminal in each row, in the form in which they are added up.

        Under masks the largest factor is 1.
        """
        if not (self.channel.sums_only and self.profile_length):
            return profile
        beyond = 1.0 if self.loss.quadratic else -np.inf
        return np.where(self.masked_profile, self.channel.counted(profile), beyond)

    def profiles(self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals) -> FloatArray:
        """Return the numbers for the merge along the pending change of each terminal of the layout."""
        return np.empty((len(layout.order), 0))

    @abstractmethod
    def shares(self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, width: int) -> FloatArray:
        """Return the part of each terminal in its station's U, which it takes along when it leaves."""

    @abstractmethod
    def kept(self, delta: FloatArray, factor: float) -> FloatArray | None:
        """Return the change of a terminal's share when its update is merged by ``factor``; None for no change."""

    def settled(self, factor: Any) -> Any:
        """Return the factor on a terminal's pending dual change after its update was merged by ``factor``."""
        return factor

    @abstractmethod
    def start(self, U: FloatArray, n: Any, center: FloatArray) -> FloatArray:
        """Return U at the start of a server iteration, with the anchor that came from the cloud."""

    def merged(self, U: FloatArray, delta: FloatArray, factor: Any, center: FloatArray) -> FloatArray:
        """Return U after a round, from the sum of the updates that arrived; a factor of 0 means no update."""
        return np.asarray(U + wide(factor) * delta)

    @abstractmethod
    def model(self, U: FloatArray, n: Any, center: FloatArray, lam: Any, origin: Any = 0.0) -> FloatArray:
        """Return the model that orders carry; it is the centre to the bit if `report` gives the origin or λ is ∞."""

    @abstractmethod
    def report(self, U: FloatArray, n: Any) -> FloatArray:
        """Return a station's report to the cloud."""

    @abstractmethod
    def scale(self, lam: float, n: float, members: int, number: int) -> float:
        """Return the positive number that orders of round ``number`` carry."""

    @abstractmethod
    def factor(self, arrived: Arrived) -> float:
        """Return the factor on the sum of updates."""

    def check(self, federation: Federation) -> None:
        """Raise DataError for data that this loss cannot learn, with the task and terminal of the first bad row."""
        if self.loss.classifier and federation.kind == "regression":
            raise DataError(
                f"{type(self.loss).__name__} needs classes, but the labels of {federation.origin.name!r} are "
                "numbers: use loss 'squared' for regression, or name the classes"
            )
        names = federation.task_names
        empty = np.flatnonzero(np.diff(federation.terminal_offsets) == 0)
        if len(empty):
            task = names[federation.terminal_task[empty[0]]]
            raise DataError(f"terminal {empty[0]} of task {task!r} has no rows: leave it out, or give it a row")
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
        """Raise DataError for rows of a terminal that this loss cannot learn; ``y`` has a column for each model."""

        def where(row: int) -> str:
            return f" of terminal {terminal}"

        if len(X) == 0:
            raise DataError(f"terminal {terminal} has no rows: leave it out, or give it a row")
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
    """Return a number unchanged, and numbers of all stations as an array that broadcasts over rows and features."""
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
