"""What a terminal can say: bounds that hold for every honest terminal, from its rows and the dual box of the loss.

All of them are inequalities, not guesses. With S the weight of the terminal's rows, R the norm of the longest, B the
end of the dual box and E its loss at models that are zero (known from S for classes):

* ‖u_t‖ ≤ B S R in every column, and the same for an update;
* −ΣL*(−θα) ≤ E, and by Fenchel and Young ΣL(w) ≥ −ΣL*(−α) − ⟨w, u_t⟩ for every w;
* |ΣL(w) − E| ≤ B S R ‖w‖, as the end of the box is the Lipschitz constant of the loss;
* ΣL(w) of classes is at most S times the loss of the farthest row, at a score of −R ‖w‖;
* the gain of H steps is not negative, grows with them, and ‖XᵀΔα‖² ≤ 2 H scale · gain, as every step is the best one.

Let f be Σ −s L*(−α/s). In the box it lies between its least value and E. The station knows the model w of the order and
δ = XᵀΔα, so it computes the quadratic part of a gain itself: q = ⟨w, δ⟩ + ‖δ‖²/(2 scale). Then

* f(α+Δα) − f(α) = gain + q, which is no more than E minus the least value;
* where f is quadratic in the box, f(α+ηΔα) − f(α) = linear η − bend η²/2 with linear − bend/2 = gain + q;
* bend = γ Σ s d² ≥ γ‖δ‖²/(R² S) by Cauchy and Schwarz, and bend ≤ 2 v · gain if no row is visited more than v times;
* at α itself bend ≥ γ‖u_t‖²/(R² S), and for classes Σ s |α/s| = linear, so ‖u_t‖ ≤ R · linear;
* f is concave along Δα.

A clipped or rounded update is not XᵀΔα. For it only the bounds without δ hold.

Moments of features and labels have no such bounds. They are compared across terminals, by quantiles, and only those off
by far are refused.
What is told within the bounds cannot be told from honest data, such as flipped labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.scaling import Moments
from rhfedmtl.errors import DivergenceError, PeerError
from rhfedmtl.maths.gaussian_privacy import largest_terms
from rhfedmtl.maths.kernels.rounds import FACTORS
from rhfedmtl.maths.losses import Loss
from rhfedmtl.maths.quasi_newton import ASCENT
from rhfedmtl.roles.messages import LabelsReport, Sums, Update, Vector, WorkOrder

EXACT, ROUNDED = 1.01, 2.0
"""How far beyond a bound rounding may lead: of numbers, and of a channel that keeps back what it rounds."""
SINGLE = float(np.finfo(np.float32).eps)
"""Part of the model that a step in single precision rounds away."""
PRECISION = 1e-5
"""Of sums that are made in single precision, beside the largest that they can be."""
FAR = 100.0
"""Standard deviations of noise by which a sum may be off."""
FAR_OUT = (0.5, 20.0), (0.1, 100.0), (0.0, 1000.0)
"""In no more than this part of the features may rows lie so many times as far out as those of other terminals."""
MANY = 1000.0
"""Times as many rows as other terminals have."""
ALIKE, USUAL = 1e-9, 0.75
"""Features that vary by less than this part of their mean do not vary; what most terminals stay below is usual."""
REFERENCE_ROWS, REFERENCE_TERMINALS = 5, 3
"""Terminals of so many rows are compared with, if there are so many of them."""
LARGEST = 1e100
"""Updates must be below this, so that their squares stay finite."""
LARGEST_MODEL = 1e38
"""Models must be below this to be evaluated in single precision."""


class ImplausibleError(PeerError):
    """A terminal, or a station, told what no honest one can have found."""

    def __init__(self, terminal: int, reason: str, role: str = "terminal") -> None:
        super().__init__(f"{role} {terminal} told {reason}")
        self.terminal, self.reason = terminal, reason


def dual_box(loss: Loss) -> float:
    """Largest |α/s| at which the conjugate is finite, up to a factor of two; infinite where there is no box."""
    ends = (1.0, -1.0)
    bounded = all(math.isinf(loss.conjugate(sign * 2.0**40, y)) for sign in ends for y in ends)
    if not bounded:
        return math.inf
    inside = (b for b in 2.0 ** np.arange(40) if any(math.isinf(loss.conjugate(s * 1.001 * b, s)) for s in ends))
    return float(next(inside))


@dataclass(frozen=True)
class Bounds:
    """What one terminal can say, from what its station knows of it; see the top of the module.

    The same bounds hold for all terminals of a station together. ``role`` names the sender in errors.
    """

    terminal: int
    method: Method
    columns: int
    weight: float
    row_norm: float
    largest: float = math.inf
    """No column of a share may be longer, whatever the loss."""
    role: str = "terminal"
    rows: int = 0
    """Rows of the terminal; 0 if they are unknown, or the bounds are for a sum."""

    @property
    def box(self) -> float:
        """B."""
        return dual_box(self.method.loss)

    @property
    def zero_loss(self) -> float:
        """E; unknown, so infinite, where it depends on labels."""
        loss = self.method.loss
        if not loss.classifier or loss.value(0.0, 1.0) != loss.value(0.0, -1.0):
            return math.inf
        return loss.value(0.0, 1.0) * self.weight * self.columns

    @property
    def reach(self) -> float:
        """B S R."""
        known = self.weight * self.row_norm * self.box if self.weight else 0.0
        slack = ROUNDED if self.method.channel.keeps_residual else EXACT
        return slack * min(known, self.largest)

    @property
    def least_dual(self) -> float:
        """Least −ΣL*(−α) in the box; a convex function is largest at an end."""
        if math.isinf(self.box):
            return -math.inf
        return -self.weight * self.columns * max(0.0, self.method.loss.conjugate(1.0, 1.0))

    def most_losses(self, models: Vector, points: Vector) -> Vector:
        """Largest loss sums at combinations of models; infinite if nothing bounds the labels, the rows or the duals.

        A loss is convex in the score, so it is largest at a score of ±R‖w‖.
        """
        loss = self.method.loss
        if not (loss.classifier and math.isfinite(self.row_norm) and math.isfinite(self.box)):
            return np.full(len(points), math.inf)
        at = np.einsum("km,mcd->kcd", points, models)
        scores = self.row_norm * np.sqrt(np.square(at).sum(axis=2))
        ends = [(sign, label) for sign in (1.0, -1.0) for label in (1.0, -1.0)]
        largest = [[max(loss.value(s * z, y) for s, y in ends) for z in row] for row in scores.tolist()]
        return np.asarray(self.weight * np.array(largest).sum(axis=1))

    def refuse(self, reason: str) -> ImplausibleError:
        """The error that names the terminal."""
        return ImplausibleError(self.terminal, reason, self.role)

    def check_share(self, share: Vector, what: str = "a share") -> None:
        """Refuse u_t that no dual variables in the box can give."""
        norm = _longest(share)
        if not norm <= self.reach:
            raise self.refuse(f"{what} of norm {norm:.3g}, where {self.reach:.3g} is possible")

    def check_update(self, update: Update, share: Vector, order: WorkOrder) -> None:
        """Refuse an update that H steps from the order's model cannot have come to."""
        parts = update.delta, update.gains
        if not all(np.isfinite(part).all() for part in parts) or np.isnan(update.profile).any():
            raise self.refuse("an update that is not finite")
        if not self.method.has_duals:
            return
        self.check_share(update.delta, "an update")
        self.check_share(share + update.delta)
        slack = PRECISION * self._scale(order.model)
        slack = slack + (PRECISION + order.local_steps * SINGLE) * self._moved(update, order)
        if self.method.channel.tells_gains:
            self._check_gains(update, order, slack)
        if len(update.profile):
            self._check_profile(update, order, slack)

    def check_sums(self, sums: Sums, models: Vector, points: Vector, share: Vector | None) -> None:
        """Refuse losses and dual sums that do not fit the rows, the box, a known share, or each other."""
        if not all(np.isfinite(part).all() for part in (sums.losses, sums.dual, sums.gradient)):
            raise self.refuse("sums that are not finite")
        if (sums.losses < 0.0).any():
            raise self.refuse(f"a loss of {sums.losses.min():.3g}")
        at = np.einsum("km,mcd->kcd", points, models)
        lengths = np.sqrt(np.square(at).sum(axis=2)).sum(axis=1)
        slack = PRECISION * (1.0 + self._finite(self.zero_loss) + self._finite(self.reach) * lengths)
        dual = self._check_dual(sums.dual, share, float(slack[-1] if not lengths[-1] else slack.min()))
        self._check_largest(sums.losses, np.sqrt(np.square(at).sum(axis=2)))
        if np.isfinite(self.zero_loss) and np.isfinite(self.box):
            away = np.abs(sums.losses - self.zero_loss) - slack
            if (away > np.multiply(self.reach, lengths, where=lengths > 0.0, out=np.zeros_like(lengths))).any():
                k = int(np.argmax(away))
                raise self.refuse(f"a loss of {sums.losses[k]:.3g}, where that of zero is {self.zero_loss:.3g}")
        if share is not None and self.method.has_duals and not self.method.channel.keeps_residual:
            lowest = dual - np.einsum("kcd,cd->k", at, share)
            if (sums.losses < lowest - slack).any():
                raise self.refuse("losses below what its dual variables prove")
        if sums.gradient.size:
            self.check_share(sums.gradient, "a gradient")
        if sums.residual is not None:
            self._check_residual(sums.residual, models)

    def _check_largest(self, losses: Vector, lengths: Vector) -> None:
        """Refuse losses above the largest of rows no longer than R, at models whose columns have these lengths."""
        loss = self.method.loss
        if not (loss.classifier and math.isfinite(self.row_norm)):
            return
        ends = (self.row_norm * length for length in lengths.ravel().tolist())
        values = [max(loss.value(z, 1.0), loss.value(-z, 1.0)) for z in ends]
        largest = self.weight * np.reshape(values, lengths.shape).sum(axis=1)
        if (losses > EXACT * largest + PRECISION).any():
            k = int(np.argmax(losses - largest))
            raise self.refuse(f"a loss of {losses[k]:.3g}, where {largest[k]:.3g} is possible")

    def check_term(self, sums: Sums, model: Vector, noise: float = 0.0) -> None:
        """Refuse Σ L(z) + L*(−α) + αz, hidden in noise of this deviation or not, that rows and box do not allow."""
        told, most = float(sums.losses[0]), self.weight * largest_terms(self.method.loss, model, self.row_norm)
        slack = PRECISION * (1.0 + most) + FAR * noise
        if not -slack <= told <= most + slack:
            raise self.refuse(f"{told:.3g} for a certificate, where {most:.3g} is possible")

    def _check_residual(self, told: Vector, models: Vector) -> None:
        """Refuse products with the models that are more than those of the lengths."""
        if not np.isfinite(told).all():
            raise self.refuse("a residual that is not finite")
        lengths = np.sqrt(np.square(models).sum(axis=(1, 2)))
        if told[0] < 0.0 or (np.abs(told[1:]) > EXACT * told[0] * lengths + PRECISION * (1.0 + lengths)).any():
            raise self.refuse(f"a residual of norm {told[0]:.3g}, and products with models that it cannot have")

    def _check_dual(self, told: Vector, share: Vector | None, slack: float) -> float:
        """−ΣL*(−α), once no share θ of α makes it more than E, and u_t fits it."""
        if len(told) == 2:
            linear, bend = (float(x) for x in told)
            if self.method.has_duals and not self._fits_line(linear, bend, slack):
                raise self.refuse(f"dual sums of {linear:.3g} and {bend:.3g}, which no dual variables in the box have")
            if share is not None and self.method.has_duals and not self.method.channel.keeps_residual:
                self._check_against_share(linear, bend, share, slack)
            theta = min(1.0, max(0.0, linear / bend)) if bend > 0.0 else 1.0
            values = np.array([theta * linear - theta * theta * bend / 2.0, linear - bend / 2.0])
            if bend < -slack:
                raise self.refuse(f"a dual sum that bends upwards, by {-bend:.3g}")
        else:
            values = told
        if values.max() > self.zero_loss + slack or values[-1] < self.least_dual - slack:
            raise self.refuse(f"a dual sum of {values.max():.3g}, where {self.zero_loss:.3g} is possible")
        return float(values[-1])

    def _check_against_share(self, linear: float, bend: float, share: Vector, slack: float) -> None:
        """Refuse dual sums that are too small for u_t."""
        lengths = np.sqrt(np.square(share).sum(axis=1))
        squared, room = float(np.square(lengths).sum()), slack * (1.0 + self._least_bend)
        small = squared * self._least_bend > EXACT * bend + room
        if self.method.loss.classifier and math.isfinite(self.row_norm):
            small = small or float(lengths.sum()) > EXACT * self.row_norm * (linear + room)
        if small:
            length = math.sqrt(squared)
            raise self.refuse(f"dual sums of {linear:.3g} and {bend:.3g}, too small for a share of norm {length:.3g}")

    def _check_gains(self, update: Update, order: WorkOrder, slack: float) -> None:
        gains, gain = update.gains, float(update.gains[-1])
        smallest, largest = -self._span, self._span
        if self._exact:
            quadratic = self._quadratic(update.delta, order)
            smallest, largest = smallest - quadratic, largest - quadratic
        else:
            largest += self._finite(self.reach) * float(np.sqrt(np.square(order.model).sum(axis=1)).sum())
        if gains.min() < -slack or (np.diff(gains) < -slack).any() or not smallest - slack <= gain <= largest + slack:
            raise self.refuse(f"a gain of {gain:.3g}, or a gain that falls, where {largest:.3g} is possible")
        steep = (
            self.weight * self.row_norm**2 / self.method.loss.smoothness if self.method.loss.smoothness else math.inf
        )
        firm = min(order.scale, steep) if order.work == ASCENT else steep
        longest = 2.0 * order.local_steps * firm * (max(gain, 0.0) + slack)
        squared = float(np.square(update.delta).sum())
        if not self.method.channel.keeps_residual and squared > EXACT * longest:
            raise self.refuse(f"an update of norm {math.sqrt(squared):.3g} for a gain of {gain:.3g}")

    def _check_profile(self, update: Update, order: WorkOrder, slack: float) -> None:
        """The numbers of a line search: in the box, concave, and of the same update as gain and delta."""
        profile, gain = update.profile, float(update.gains[-1])
        if self.method.loss.quadratic:
            linear, bend, room = (float(x) for x in profile)
            wrong = not (math.isfinite(linear) and math.isfinite(bend)) or room < 1.0 - 1e-9
            wrong = wrong or not self._fits_line(linear, bend, slack)
            rise, bent = linear - bend / 2.0, float(np.square(update.delta).sum()) * self._least_bend
            if self._exact:
                wrong = wrong or bend * EXACT < bent - slack
            if self.method.channel.tells_gains:
                wrong = wrong or bend > 2.0 * self._visits(order) * (max(gain, 0.0) + slack) + slack
        else:
            inside, values = FACTORS <= 1.0, profile[FACTORS <= 1.0]
            wrong = not np.isfinite(values).all() or profile.max() > self.zero_loss + slack
            wrong = wrong or values.min() < self.least_dual - slack
            steps = np.diff(FACTORS[inside])
            wrong = wrong or bool((np.diff(np.diff(values) / steps) > 4.0 * slack / steps[:-1]).any())
            rise = self._rise(values)
        if wrong or not self._is_rise(rise, update, order, slack):
            raise self.refuse(f"{profile.tolist()[:3]} for a line search, which cannot be")

    def _rise(self, values: Vector) -> float:
        """Least f(α+Δα) − f(α) from f(α+ηΔα) at η up to 1: as f is concave, a chord that goes on to 0 lies above it."""
        first, second = FACTORS[:2].tolist()
        at_zero = values[0] - first * (values[1] - values[0]) / (second - first)
        return float(values[-1] - at_zero)

    def _is_rise(self, rise: float, update: Update, order: WorkOrder, slack: float) -> bool:
        """Return True if f(α+Δα) − f(α) fits the box, and the gain and the update where both are exact."""
        if rise > self._span + slack or (self.method.loss.quadratic and rise < -self._span - slack):
            return False
        if not (self._exact and self.method.channel.tells_gains):
            return True
        expected = float(update.gains[-1]) + self._quadratic(update.delta, order)
        if self.method.loss.quadratic:
            return abs(rise - expected) <= slack
        return rise <= expected + 4.0 * slack

    def _fits_line(self, linear: float, bend: float, slack: float) -> bool:
        """Return True if duals in the box can have such a linear and a quadratic term."""
        if bend < -slack:
            return False
        if math.isinf(self.box):
            return True
        (slope, curvature, _), (end, _, _) = (self.method.loss.line(a, 1.0, 1.0) for a in (0.0, self.box))
        widest = self.weight * self.columns * self.box
        largest = EXACT * widest * max(abs(slope), abs(end)) + slack
        return abs(linear) <= largest and bend <= EXACT * widest * self.box * curvature + slack

    @property
    def _exact(self) -> bool:
        """True if an update is XᵀΔα of the steps whose gain goes with it: no rounding, no clipping, and no sum."""
        return self.method.channel.identity and self.rows > 0

    @property
    def _span(self) -> float:
        """The most that f can change in the box."""
        return EXACT * (self.zero_loss - self.least_dual)

    @property
    def _least_bend(self) -> float:
        """γ/(R² S), 0 if any of them has no bound."""
        squares = self.weight * self.row_norm**2
        return self.method.loss.line(0.0, 1.0, 1.0)[1] / squares if 0.0 < squares < math.inf else 0.0

    def _visits(self, order: WorkOrder) -> int:
        """The most visits of a row: passes go through all rows before a row comes again."""
        if not self.rows or self.method.uniform:
            return order.local_steps
        return math.ceil(order.local_steps / self.rows)

    @staticmethod
    def _quadratic(delta: Vector, order: WorkOrder) -> float:
        """⟨w, δ⟩ + ‖δ‖²/(2 scale)."""
        return float((order.model * delta).sum() + np.square(delta).sum() * order.per_scale / 2.0)

    @staticmethod
    def _moved(update: Update, order: WorkOrder) -> float:
        """Size of the terms of a gain: single precision loses a part of them in every step."""
        return float(np.abs(order.model * update.delta).sum() + np.square(update.delta).sum() * order.per_scale)

    def _scale(self, model: Vector) -> float:
        """The largest that losses, gains and dual sums of this terminal can be at a model."""
        lengths = float(np.sqrt(np.square(model).sum(axis=1)).sum())
        return 1.0 + self._finite(self.zero_loss) + self._finite(self.reach) * (1.0 + lengths)

    def _finite(self, value: float) -> float:
        """A bound where there is one; else what single precision loses of anything."""
        return value if math.isfinite(value) else 1e6 * max(1.0, self.weight)


def odd_moments(told: Mapping[int, Moments], rows: Mapping[int, int]) -> dict[int, str]:
    """Terminals whose moments cannot be those of the rows they joined with, or are far from all others', and why.

    How far out a terminal is in a feature: the distance of its rows from the median of the terminals' means, by that of
    the terminal that three of four do not exceed. ``FAR_OUT`` says what is too far.
    """
    found = {t: _odd_alone(each, rows[t]) for t, each in told.items()}
    odd = {t: reason for t, reason in found.items() if reason}
    sound = {t: each for t, each in told.items() if t not in odd}
    known = [each for each in sound.values() if each.count >= REFERENCE_ROWS]
    if len(known) < REFERENCE_TERMINALS:
        return odd
    middle = np.median([each.mean for each in known], axis=0)
    usual = np.quantile([_squares(each, middle) for each in known], USUAL, axis=0, method="lower")
    varied = usual > np.square(ALIKE * middle)
    many = MANY * np.quantile([each.count for each in known], USUAL, method="lower")
    for t, each in sound.items():
        if each.count > many:
            odd[t] = f"moments of {each.count} rows, {MANY:g} times as many as other terminals"
        out = np.sqrt(_squares(each, middle)[varied] / usual[varied])
        if any((out > factor).mean() > part for part, factor in FAR_OUT if varied.any()):
            odd[t] = f"moments of rows that lie up to {out.max():.3g} times as far out as those of other terminals"
    return odd


def odd_labels(
    told: Mapping[int, LabelsReport], rows: Mapping[int, int], weights: Mapping[int, float]
) -> dict[int, str]:
    """The same of label sums: their weight is that of the rows, and their mean and spread are those of one feature."""
    moments, odd = {}, {}
    for t, each in told.items():
        total, mean, spread = each.sums
        moments[t] = Moments(rows[t], np.array([mean]), np.array([spread * rows[t] / total]))
        if not math.isclose(total, weights[t], rel_tol=PRECISION):
            odd[t] = f"label sums of weight {total:.6g}, having joined with {weights[t]:.6g}"
    return odd_moments({t: each for t, each in moments.items() if t not in odd}, rows) | odd


def _odd_alone(told: Moments, rows: int) -> str:
    if not (np.isfinite(told.mean).all() and np.isfinite(told.spread).all()):
        return "moments that are not finite"
    if told.count != rows:
        return f"moments of {told.count} rows, having joined with {rows}"
    if told.spread.min(initial=0.0) < 0.0:
        return f"a spread of {told.spread.min():.3g}"
    return ""


def _squares(told: Moments, middle: Vector) -> Vector:
    """Mean squared distance of a terminal's rows from the middle, by feature."""
    with np.errstate(over="ignore"):
        return np.asarray(told.spread / told.count + np.square(told.mean - middle))


def _longest(matrix: Vector) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.square(matrix).sum(axis=-1)).max(initial=0.0))


def refuse_divergence(delta: Vector, number: int, *, largest: float = LARGEST) -> None:
    """Raise `DivergenceError` if updates are not finite, or so large that their squares soon will not be."""
    if not np.abs(delta).max(initial=0.0) < largest:
        raise DivergenceError(f"updates of round {number} are not finite: the method diverged, take a smaller step")
