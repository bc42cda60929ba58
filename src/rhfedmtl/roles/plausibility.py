"""Check messages against bounds that hold for every honest terminal, from its rows and the dual box of the loss.

Stations check terminals, and the cloud checks stations. The bounds are inequalities, not guesses. Let S be the weight
of the terminal's rows, R the norm of the longest row, B the end of the dual box, and E the loss at the zero model
(known from S for classes). Then

* ‖u_t‖ ≤ B S R in every column, and the same for an update;
* −ΣL*(−θα) ≤ E, and by Fenchel and Young ΣL(w) ≥ −ΣL*(−α) − ⟨w, u_t⟩ for every w;
* |ΣL(w) − E| ≤ B S R ‖w‖, as the end of the box is the Lipschitz constant of the loss;
* ΣL(w) of classes is at most S times the loss of a row with score −R ‖w‖;
* the gain of H steps is not negative, grows with H, and ‖XᵀΔα‖² ≤ 2 H scale · gain, as every step is optimal.

Let f be Σ −s L*(−α/s). In the box it lies between its minimum and E. The station knows the model w of the order and
δ = XᵀΔα, so it computes the quadratic part of a gain itself: q = ⟨w, δ⟩ + ‖δ‖²/(2 scale). Then

* f(α+Δα) − f(α) = gain + q, which is at most E minus the minimum;
* where f is quadratic in the box, f(α+ηΔα) − f(α) = linear η − bend η²/2 with linear − bend/2 = gain + q;
* bend = γ Σ s d² ≥ γ‖δ‖²/(R² S) by Cauchy and Schwarz, and bend ≤ 2 v · gain if no row is visited more than v times;
* at α itself bend ≥ γ‖u_t‖²/(R² S), and for classes Σ s |α/s| = linear, so ‖u_t‖ ≤ R · linear;
* f is concave along Δα.

A clipped or rounded update is not XᵀΔα. For it only the bounds without δ hold.

Moments of features and labels have no such bounds. They are compared with the quantiles of other terminals, and only
extreme moments are refused. A false message within the bounds, for example from flipped labels, cannot be detected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.scaling import Moments, RowMap
from rhfedmtl.errors import DivergenceError, PeerError
from rhfedmtl.maths.gaussian_privacy import largest_terms
from rhfedmtl.maths.kernels.rounds import FACTORS
from rhfedmtl.maths.losses import Loss
from rhfedmtl.maths.quasi_newton import ASCENT
from rhfedmtl.roles.messages import LabelsReport, Sums, Update, Vector, WorkOrder

EXACT, ROUNDED = 1.01, 2.0
"""Factors by which rounding may exceed a bound: rounding of numbers, and of a channel with a residual."""
SINGLE = float(np.finfo(np.float32).eps)
"""Relative rounding error of a step in single precision."""
SHARE_PRECISION = 1e-5
"""Error of sums in single precision, relative to their largest possible value."""
FAR = 100.0
"""Largest noise on a sum, in standard deviations."""
FAR_OUT = (0.5, 20.0), (0.1, 100.0), (0.0, 1000.0)
"""(share of features, factor): rows may exceed the usual distance by the factor in at most this share of features."""
LARGE_FACTOR = 1000.0
"""Largest number of rows, relative to other terminals."""
ALIKE, TYPICAL_BOUNDS = 1e-9, 0.75
"""Features that vary by less than this part of their mean are constant; this quantile of terminals is usual."""
REFERENCE_ROWS, REFERENCE_TERMINALS = 5, 3
"""Rows that a terminal needs to serve as reference, and the number of such terminals that a comparison needs."""
LARGEST = 1e100
"""Updates must be below this. Their squares then stay finite."""
LARGEST_MODEL = 1e38
"""Models must be below this to be evaluated in single precision."""


class ImplausibleError(PeerError):
    """A terminal, or a station, sent a message that no honest node can send."""

    def __init__(self, terminal: int, reason: str, role: str = "terminal") -> None:
        super().__init__(f"{role} {terminal} told {reason}")
        self.terminal, self.reason = terminal, reason


def dual_box(loss: Loss) -> float:
    """Return the largest |α/s| with a finite conjugate, up to a factor of two; infinite without a box."""
    ends = (1.0, -1.0)
    bounded = all(math.isinf(loss.conjugate(sign * 2.0**40, y)) for sign in ends for y in ends)
    if not bounded:
        return math.inf
    inside = (b for b in 2.0 ** np.arange(40) if any(math.isinf(loss.conjugate(s * 1.001 * b, s)) for s in ends))
    return float(next(inside))


@dataclass(frozen=True)
class Bounds:
    """Bounds on the messages of a terminal, from its station's record; see the top of the module.

    The same bounds hold for the sum over all terminals of a station. ``role`` names the sender in errors.
    """

    terminal: int
    method: Method
    columns: int
    weight: float
    row_norm: float
    largest: float = math.inf
    """Largest norm of a column of a share, for any loss."""
    role: str = "terminal"
    rows: int = 0
    """Rows of the terminal; 0 if their number is unknown, or if the bounds are for a sum."""

    @property
    def box(self) -> float:
        """B."""
        return dual_box(self.method.loss)

    @property
    def zero_loss(self) -> float:
        """E; infinite if it depends on labels, which are unknown."""
        loss = self.method.loss
        if not loss.classifier or loss.value(0.0, 1.0) != loss.value(0.0, -1.0):
            return math.inf
        return loss.value(0.0, 1.0) * self.weight * self.columns

    @property
    def reach(self) -> float:
        """B S R."""
        reach = self.weight * self.row_norm * self.box if self.weight else 0.0
        slack = ROUNDED if self.method.channel.keeps_residual else EXACT
        return slack * min(reach, self.largest)

    @property
    def least_dual(self) -> float:
        """Minimum of −ΣL*(−α) in the box; a convex function is largest at an end."""
        if math.isinf(self.box):
            return -math.inf
        return -self.weight * self.columns * max(0.0, self.method.loss.conjugate(1.0, 1.0))

    def most_losses(self, models: Vector, points: Vector) -> Vector:
        """Return the largest loss sums at combinations of models; infinite if labels, rows or duals have no bound.

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
        """Return the error that names the terminal."""
        return ImplausibleError(self.terminal, reason, self.role)

    def check_share(self, share: Vector, name: str = "a share") -> None:
        """Refuse u_t that no dual variables in the box can give."""
        norm = _longest(share)
        if not norm <= self.reach:
            raise self.refuse(f"{name} of norm {norm:.3g}, where {self.reach:.3g} is possible")

    def check_update(self, update: Update, share: Vector, order: WorkOrder) -> None:
        """Refuse an update that H steps from the order's model cannot give."""
        parts = update.delta, update.gains
        if not all(np.isfinite(part).all() for part in parts) or np.isnan(update.profile).any():
            raise self.refuse("an update that is not finite")
        if not self.method.has_duals:
            return
        self.check_share(update.delta, "an update")
        self.check_share(share + update.delta)
        slack = SHARE_PRECISION * self._scale(order.model)
        # Single precision loses a part of the terms of a gain in every step.
        terms = float(np.abs(order.model * update.delta).sum() + np.square(update.delta).sum() * order.per_scale)
        slack = slack + (SHARE_PRECISION + order.local_steps * SINGLE) * terms
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
        slack = SHARE_PRECISION * (1.0 + self._finite(self.zero_loss) + self._finite(self.reach) * lengths)
        dual = self._check_dual(sums.dual, share, float(slack[-1] if not lengths[-1] else slack.min()))
        self._check_largest(sums.losses, np.sqrt(np.square(at).sum(axis=2)))
        if np.isfinite(self.zero_loss) and np.isfinite(self.box):
            change = np.abs(sums.losses - self.zero_loss) - slack
            if (change > np.multiply(self.reach, lengths, where=lengths > 0.0, out=np.zeros_like(lengths))).any():
                k = int(np.argmax(change))
                raise self.refuse(f"a loss of {sums.losses[k]:.3g}, where the zero model has {self.zero_loss:.3g}")
        if share is not None and self.method.has_duals and not self.method.channel.keeps_residual:
            lowest = dual - np.einsum("kcd,cd->k", at, share)
            if (sums.losses < lowest - slack).any():
                raise self.refuse("losses below what its dual variables prove")
        if sums.gradient.size:
            self.check_share(sums.gradient, "a gradient")
        if sums.residual is not None:
            self._check_residual(sums.residual, models)

    def _check_largest(self, losses: Vector, lengths: Vector) -> None:
        """Refuse losses above the largest possible for rows of norm up to R, at models with columns of these norms."""
        loss = self.method.loss
        if not (loss.classifier and math.isfinite(self.row_norm)):
            return
        ends = (self.row_norm * length for length in lengths.ravel().tolist())
        values = [max(loss.value(z, 1.0), loss.value(-z, 1.0)) for z in ends]
        largest = self.weight * np.reshape(values, lengths.shape).sum(axis=1)
        if (losses > EXACT * largest + SHARE_PRECISION).any():
            k = int(np.argmax(losses - largest))
            raise self.refuse(f"a loss of {losses[k]:.3g}, where {largest[k]:.3g} is possible")

    def check_term(self, sums: Sums, model: Vector, noise: float = 0.0) -> None:
        """Refuse an impossible Σ L(z) + L*(−α) + αz, given the standard deviation of its noise."""
        term, largest = float(sums.losses[0]), self.weight * largest_terms(self.method.loss, model, self.row_norm)
        slack = SHARE_PRECISION * (1.0 + largest) + FAR * noise
        if not -slack <= term <= largest + slack:
            raise self.refuse(f"{term:.3g} for a certificate, where {largest:.3g} is possible")

    def _check_residual(self, residual: Vector, models: Vector) -> None:
        """Refuse products with the models that exceed the product of the norms."""
        if not np.isfinite(residual).all():
            raise self.refuse("a residual that is not finite")
        lengths = np.sqrt(np.square(models).sum(axis=(1, 2)))
        norm, products = residual[0], residual[1:]
        if norm < 0.0 or (np.abs(products) > EXACT * norm * lengths + SHARE_PRECISION * (1.0 + lengths)).any():
            raise self.refuse(f"a residual of norm {norm:.3g}, and products with models that it cannot have")

    def _check_dual(self, sums: Vector, share: Vector | None, slack: float) -> float:
        """Return −ΣL*(−α); refuse it if it exceeds E for a share θ of α, or does not fit u_t."""
        if len(sums) == 2:
            linear, bend = (float(x) for x in sums)
            if self.method.has_duals and not self._fits_line(linear, bend, slack):
                raise self.refuse(f"dual sums of {linear:.3g} and {bend:.3g}, which no dual variables in the box have")
            if share is not None and self.method.has_duals and not self.method.channel.keeps_residual:
                self._check_against_share(linear, bend, share, slack)
            theta = min(1.0, max(0.0, linear / bend)) if bend > 0.0 else 1.0
            values = np.array([theta * linear - theta * theta * bend / 2.0, linear - bend / 2.0])
            if bend < -slack:
                raise self.refuse(f"a dual sum that bends upwards, by {-bend:.3g}")
        else:
            values = sums
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
        """Refuse line-search numbers outside the box, not concave, or of another update than gain and delta."""
        profile, gain = update.profile, float(update.gains[-1])
        if self.method.loss.quadratic:
            linear, bend, room = (float(x) for x in profile)
            wrong = not (math.isfinite(linear) and math.isfinite(bend)) or room < 1.0 - 1e-9
            wrong = wrong or not self._fits_line(linear, bend, slack)
            rise, bent = linear - bend / 2.0, float(np.square(update.delta).sum()) * self._least_bend
            if self._exact:
                wrong = wrong or bend * EXACT < bent - slack
            if self.method.channel.tells_gains:
                # A pass visits all rows before it visits a row again.
                single = not self.rows or self.method.uniform
                visits = order.local_steps if single else math.ceil(order.local_steps / self.rows)
                wrong = wrong or bend > 2.0 * visits * (max(gain, 0.0) + slack) + slack
        else:
            inside, values = FACTORS <= 1.0, profile[FACTORS <= 1.0]
            wrong = not np.isfinite(values).all() or profile.max() > self.zero_loss + slack
            wrong = wrong or values.min() < self.least_dual - slack
            steps = np.diff(FACTORS[inside])
            wrong = wrong or bool((np.diff(np.diff(values) / steps) > 4.0 * slack / steps[:-1]).any())
            # f is concave, so a chord through the first two factors, extended to 0, lies above f(α).
            first, second = FACTORS[:2].tolist()
            at_zero = values[0] - first * (values[1] - values[0]) / (second - first)
            rise = float(values[-1] - at_zero)
        if wrong or not self._is_rise(rise, update, order, slack):
            raise self.refuse(f"{profile.tolist()[:3]} for a line search, which cannot be")

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
        """True if the update is exactly XᵀΔα of the steps with this gain: no rounding, no clipping, no sum."""
        return self.method.channel.identity and self.rows > 0

    @property
    def _span(self) -> float:
        """Largest change of f in the box."""
        return EXACT * (self.zero_loss - self.least_dual)

    @property
    def _least_bend(self) -> float:
        """γ/(R² S); 0 without a bound on R, S or γ."""
        squares = self.weight * self.row_norm**2
        return self.method.loss.line(0.0, 1.0, 1.0)[1] / squares if 0.0 < squares < math.inf else 0.0

    @staticmethod
    def _quadratic(delta: Vector, order: WorkOrder) -> float:
        """Return ⟨w, δ⟩ + ‖δ‖²/(2 scale)."""
        return float((order.model * delta).sum() + np.square(delta).sum() * order.per_scale / 2.0)

    def _scale(self, model: Vector) -> float:
        """Return the largest possible size of losses, gains and dual sums at a model."""
        lengths = float(np.sqrt(np.square(model).sum(axis=1)).sum())
        return 1.0 + self._finite(self.zero_loss) + self._finite(self.reach) * (1.0 + lengths)

    def _finite(self, value: float) -> float:
        """Return the bound, or, without a bound, a large value relative to the weight."""
        return value if math.isfinite(value) else 1e6 * max(1.0, self.weight)


def odd_moments(moments: Mapping[int, Moments], rows: Mapping[int, int]) -> dict[int, str]:
    """Return the terminals with impossible or extreme moments, each with a reason.

    Moments are impossible if they do not count the rows that joined. They are extreme if the rows lie far from the rows
    of other terminals. The distance is measured in each feature from the median of the terminals' means, relative to
    the distance that three of four terminals do not exceed. ``FAR_OUT`` holds the limits.
    """
    odd = {}
    for t, reported in moments.items():
        if not (np.isfinite(reported.mean).all() and np.isfinite(reported.spread).all()):
            odd[t] = "moments that are not finite"
        elif reported.count != rows[t]:
            odd[t] = f"moments of {reported.count} rows, having joined with {rows[t]}"
        elif reported.spread.min(initial=0.0) < 0.0:
            odd[t] = f"a spread of {reported.spread.min():.3g}"
    plausible = {t: reported for t, reported in moments.items() if t not in odd}
    references = [reported for reported in plausible.values() if reported.count >= REFERENCE_ROWS]
    if len(references) < REFERENCE_TERMINALS:
        return odd
    middle = np.median([reported.mean for reported in references], axis=0)
    distance = np.quantile(
        [_squares(reported, middle) for reported in references], TYPICAL_BOUNDS, axis=0, method="lower"
    )
    varied = distance > np.square(ALIKE * middle)
    many = LARGE_FACTOR * np.quantile([reported.count for reported in references], TYPICAL_BOUNDS, method="lower")
    for t, reported in plausible.items():
        if reported.count > many:
            odd[t] = f"moments of {reported.count} rows, {LARGE_FACTOR:g} times as many as other terminals"
        out = np.sqrt(_squares(reported, middle)[varied] / distance[varied])
        if any((out > factor).mean() > part for part, factor in FAR_OUT if varied.any()):
            odd[t] = f"moments of rows that lie up to {out.max():.3g} times as far out as the rows of other terminals"
    return odd


def odd_mapped_moments(moments: Mapping[int, Moments], rows: Mapping[int, int], mapping: RowMap) -> dict[int, str]:
    """Return the terminals with impossible or extreme moments of mapped rows, each with a reason.

    Columns of the map are not compared with other terminals: a terminal may have all its rows beyond the other rows.
    """
    reasons = {t: impossible_columns(reported, mapping) for t, reported in moments.items()}
    first = 0 if mapping.features.is_counts else mapping.statistics.n_columns
    own = {t: Moments(m.count, m.mean[:first], m.spread[:first]) for t, m in moments.items()}
    return {t: reason for t, reason in reasons.items() if reason} | odd_moments(own, rows)


def impossible_columns(moments: Moments, mapping: RowMap) -> str:
    """Return why no rows within the bounds of a map have these moments; empty if some have.

    Numbers between a and b of mean m have a variance of at most (b − m)(m − a).
    """
    low, high = mapping.features.bounds(mapping.statistics.n_columns)
    room = (EXACT - 1.0) * (high - low)
    low, high = low - room, high + room
    with np.errstate(over="ignore", invalid="ignore"):
        largest = (high - moments.mean) * (moments.mean - low) * moments.count
        possible = (low <= moments.mean) & (moments.mean <= high) & (moments.spread <= largest)
    if possible.all():
        return ""
    j = int(np.argmin(possible))
    return (
        f"a mean of {moments.mean[j]:.6g} and a spread of {moments.spread[j]:.6g} of {moments.count} rows in column "
        f"{j} behind {mapping.features.text!r}, whose values lie between {low[j]:.3g} and {high[j]:.3g}"
    )


def odd_labels(
    reports: Mapping[int, LabelsReport], rows: Mapping[int, int], weights: Mapping[int, float]
) -> dict[int, str]:
    """Return the terminals with impossible or extreme label sums, each with a reason.

    The weight must be the weight of the rows. Mean and spread are checked like a feature (`odd_moments`).
    """
    moments, odd = {}, {}
    for t, report in reports.items():
        weight, mean, spread = report.sums
        moments[t] = Moments(rows[t], np.array([mean]), np.array([spread * rows[t] / weight]))
        if not math.isclose(weight, weights[t], rel_tol=SHARE_PRECISION):
            odd[t] = f"label sums of weight {weight:.6g}, having joined with {weights[t]:.6g}"
    return odd_moments({t: part for t, part in moments.items() if t not in odd}, rows) | odd


def _squares(moments: Moments, middle: Vector) -> Vector:
    """Return the mean squared distance of a terminal's rows from the middle, by feature."""
    with np.errstate(over="ignore"):
        return np.asarray(moments.spread / moments.count + np.square(moments.mean - middle))


def _longest(matrix: Vector) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.square(matrix).sum(axis=-1)).max(initial=0.0))


def refuse_divergence(delta: Vector, number: int, *, largest: float = LARGEST) -> None:
    """Raise `DivergenceError` if updates are not finite, or so large that their squares soon will not be."""
    if not np.abs(delta).max(initial=0.0) < largest:
        raise DivergenceError(f"updates of round {number} are not finite: the method diverged, take a smaller step")
