"""Differential privacy of whole terminals: what is planned, released and charged (`docs/privacy_reference.md`).

Neighbouring data sets differ in one terminal, which sends zeros instead. Under a bound (ε, δ) only two things leave a
terminal: updates, clipped to C and hidden in the noise of their sum, in R rounds that are fixed beforehand; and one
certificate at the end. The plan is made from public numbers alone: how many terminals, rows and features there are, and
what the budget pays.

How far a terminal may move its station's model in a round, B/N_b, is what decides: C is that times λ_b n_b, and the
noise of the model after R rounds has the norm √d R B/(N_b μ), whatever λ_b is.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.method import Method
from rhfedmtl.algorithms.options import DEFAULTS, Options, build
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.engines.network import NoisedTerms, ShareSums, TellsNoised
from rhfedmtl.errors import ConfigError, nearest
from rhfedmtl.maths.gaussian_privacy import check, epsilon_of, largest_terms, mu_of, noise_energy
from rhfedmtl.maths.kernels.rounds import dual_sums
from rhfedmtl.maths.losses import Hinge, Logistic, Loss, SmoothedHinge
from rhfedmtl.maths.objective import Points
from rhfedmtl.policies.base import Situation
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.resources.billing import Placement, event_totals, steps_affordable
from rhfedmtl.resources.costs import Cost, Prices, times_affordable
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.channel import NoisedSums, standard_normal, with_noise
from rhfedmtl.roles.cloud import NoisedCertificate
from rhfedmtl.roles.messages import message_sizes

if TYPE_CHECKING:
    from rhfedmtl.engines.network import Network
    from rhfedmtl.maths.coupling import Relationship

RESOURCE = "privacy"
"""The type of the ledger that counts μ²."""
CERTIFICATE_SHARE = 0.05
"""Share of μ² that goes to the certificate."""
CHANCE = 1e-6
"""Chance that a certificate is wrong: half for the noise in its own release, half for that in the models."""
POINT = 0.01
"""What `PrivatePlan.enough_terminals` would lose."""
ASSUMED_FEATURES = 32
MANY = 10**9
"""More terminals than any station has."""
BOUNDED = (SmoothedHinge, Hinge, Logistic)
SIMULATION = "simulation: the noise can be recomputed from the seed, so this model is not private"
"""Statement on a private run that draws its noise from a seed: printed, and stored."""
STATEMENT = "terminal_privacy"
"""Name of the statement in the model file of a private run."""
KEY_BYTES = 32
"""Length of the secret key that a private run draws its noise from."""
_CERTIFICATE = -1
"""Replaces the station in the address of the noise on a certificate."""


@dataclass(frozen=True)
class Privacy:
    """The bound (ε, δ) on what anybody learns of a terminal; C and R are planned unless they are given."""

    epsilon: float
    delta: float = 1e-6
    clip: float | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        """Refuse what bounds nothing."""
        check(self.epsilon, self.delta)
        for name in ("clip", "rounds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"privacy {name}={value:g} must be a finite number > 0")

    @classmethod
    def parse(cls, text: str) -> Privacy:
        """From ``epsilon=1,delta=1e-6``, and where wanted ``clip=0.5`` and ``rounds=8``."""
        known = [each.name for each in fields(cls)]
        given: dict[str, float | int] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, value = part.partition("=")
            if name not in known:
                raise ConfigError(
                    f"unknown {name!r} in --privacy {text}: choose from {', '.join(known)}{nearest(name, known)}"
                )
            try:
                given[name] = int(value) if name == "rounds" else float(value)
            except ValueError:
                raise ConfigError(f"--privacy {name} needs a number, got {value!r}") from None
        if "epsilon" not in given:
            raise ConfigError(f"--privacy {text!r} bounds nothing: write it as in epsilon=1,delta=1e-6")
        return cls(**given)  # type: ignore[arg-type]

    @property
    def mu(self) -> float:
        """All that may be spent, as μ of Gaussian privacy."""
        return mu_of(self.epsilon, self.delta)

    def spent(self, squared: float) -> float:
        """ε at the given δ of what was spent of μ²; the bound itself where it is spent to the last digit."""
        found = epsilon_of(math.sqrt(squared), self.delta)
        return min(found, self.epsilon) if squared <= self.mu**2 * (1.0 + 1e-9) else found


@dataclass(frozen=True, eq=False)
class Released:
    """What a private run has released by its end, and what its certificate rests on.

    ``V`` as the cloud has it, noise and all; ``noise`` is the variance Σ η² s² of the noise in each station's U, over
    the rounds in which it was added. ``seed`` is the address of the noise on the certificate of a simulation, unless
    the channel has a secret key.
    """

    method: Method
    relationship: Relationship
    V: npt.NDArray[np.float64]
    noise: npt.NDArray[np.float64]
    seed: int


@dataclass(frozen=True)
class PrivatePlan:
    """R rounds of H steps, updates clipped to C (``clip``), noise of standard deviation s on the sum (``noise``).

    ``predicted_noise`` is b of the certificate: by so much, but for a chance of one in a million, the noise alone may
    keep the objective from its best. ``enough_terminals`` under each station would lose about a point of accuracy
    against learning without privacy, and ``buys`` says what those who are there lose, as a share of rows, at this and
    other ε (`lost_share`). ``spent`` is the amount for all rounds and the certificate. ``notes`` list the assumptions.
    ``simulation`` is True if the run draws its noise from its seed.
    """

    epsilon: float
    delta: float
    rounds: int
    local_steps: int
    clip: float
    noise: float
    lambda1: float | None
    lambda2: float | None
    update_price: float
    certificate_price: float
    spent: dict[str, float]
    predicted_noise: float | None
    enough_terminals: int
    buys: list[dict[str, float]]
    shadow_price: dict[str, float]
    notes: list[str] = field(default_factory=list)
    simulation: bool = False

    @property
    def privacy(self) -> Privacy:
        """The bound."""
        return Privacy(self.epsilon, self.delta)

    def ledger(self, ledger: Ledger) -> Ledger:
        """The same prices and limits, and μ² beside them; terminals side by side count once, as time does."""
        if RESOURCE in ledger.cost or RESOURCE in ledger.budget:
            raise ConfigError(
                f"{RESOURCE} is limited by --privacy epsilon=…,delta=…: leave it out of prices and budgets"
            )
        price = Prices(station_round=self.update_price, adds="elapsed")
        limits = {**ledger.budget, RESOURCE: self.privacy.mu**2}
        return Ledger(Cost({**ledger.cost.types, RESOURCE: price}), limits)

    def simulated(self) -> PrivatePlan:
        """Return the plan with the note that the run draws its noise from its seed."""
        return replace(self, simulation=True, notes=[*self.notes, SIMULATION])

    def statement(self, *, interrupted: bool = False) -> dict[str, Any]:
        """Return the statement for the model file: words, and the bound on the privacy of a terminal."""
        if self.simulation:
            return {"words": SIMULATION, "private": False}
        words = f"(epsilon, delta) = ({self.epsilon:g}, {self.delta:g}) for all rows of any one terminal"
        if interrupted:
            words += "; the checkpoint of this run still holds the key of the noise: keep it secret, or delete it"
        return {"words": words, "private": True, "epsilon": self.epsilon, "delta": self.delta, "mu": self.privacy.mu}

    def applied(self, built: Algorithm, station_rounds: int = 1) -> Algorithm:
        """The algorithm through a channel that clips and adds noise, with the work of the plan."""
        method = built.method.hidden(with_noise(built.method.channel, self.clip, self.noise))
        policy = Fixed(self.local_steps, station_rounds, -(-self.rounds // station_rounds))
        return built._replace(method=method, policy=policy)


def private(
    name: str, options: Options, federation: Federation, ledger: Ledger, privacy: Privacy
) -> tuple[Algorithm, PrivatePlan]:
    """An algorithm made private, and its plan, for the sizes of a federation and what a budget pays."""
    built = build(name, options, federation.kind)
    if federation.sample_weight is not None:
        raise ConfigError("row weights are not public, and privacy counts rows as one each: leave the weights out")
    data = built.regroup(federation)
    columns = len(data.class_names) if data.kind == "classes" else 1
    start = _situation(data, built.method, ledger, columns)
    return planned(name, options, data.kind, start, privacy, (columns, data.n_features + options.intercept))


def planned(
    name: str, options: Options, kind: str, start: Situation, privacy: Privacy, shape: tuple[int, int]
) -> tuple[Algorithm, PrivatePlan]:
    """The same, for what a network knows of itself."""
    options, found = design(name, options, kind, start, privacy, shape)
    return found.applied(build(name, options, kind), options.station_rounds or 1), found


def design(
    name: str, options: Options, kind: str, start: Situation, privacy: Privacy, shape: tuple[int, int]
) -> tuple[Options, PrivatePlan]:
    """R, H, C, s, and λ1 and λ2 unless they were given, chosen together from public numbers."""
    built = build(name, options, kind)
    check_loss(built.method.loss)
    numbers, notes = shape[0] * shape[1], []
    if not start.bytes.update:  # a plan from sizes alone, of which the width is none
        numbers, notes = shape[0] * (ASSUMED_FEATURES + 1), [f"{ASSUMED_FEATURES} features assumed: give --features"]
    share = CERTIFICATE_SHARE if isinstance(built.method, DualMethod) else 0.0
    mu = privacy.mu * math.sqrt(1.0 - share)
    terminals, rows = float(start.members.min()), float(start.samples.sum() / start.members.sum())
    hidden = built.method.channel.summed
    strength = _strength(terminals, mu, numbers, hidden)
    travel, rounds = _travel(strength)
    if privacy.rounds is not None or options.cloud_rounds is not None:
        rounds = privacy.rounds or (options.cloud_rounds or 1) * (options.station_rounds or 1)
    local_steps, rounds = _affordable(start, options.local_steps or max(1, round(rows)), rounds)
    options, scale = _weights(built.method, options, kind, start, rows, (0.5 * travel / strength) ** 2)
    clip = privacy.clip or travel / rounds * rows * scale
    price = mu**2 / rounds
    method = build(name, options, kind).method
    predicted = None
    if isinstance(method, DualMethod):
        deviation = np.full(len(start.samples), _excess(terminals, hidden) * clip * rounds / mu)
        predicted = noise_bound(method.relationship, deviation, start.samples, numbers)
    total, certificate = privacy.mu**2, privacy.mu**2 * share
    of_columns = rows, numbers // shape[0], max(shape[0], 2)
    lost = {
        epsilon: lost_share(strength * mu_of(epsilon, privacy.delta) / privacy.mu, terminals, *of_columns)
        for epsilon in (factor * privacy.epsilon for factor in (0.5, 1.0, 2.0, 4.0))
    }
    enough = 1 + bisect_left(
        range(1, MANY),
        True,
        key=lambda n: lost_share(_strength(n, mu, numbers, hidden), n, *of_columns) <= POINT,
    )
    if terminals < enough:
        notes.append(
            f"{terminals:.0f} terminals under a station are few for epsilon={privacy.epsilon:g}: about {enough:,} "
            "would lose a point of accuracy, fewer lose more"
        )
    if shape[0] > 2:
        notes.append("what is lost is estimated for two classes: with more, up to five points more are")
    if privacy.delta * start.members.sum() >= 1.0:
        notes.append(
            f"delta={privacy.delta:g} is too large for {int(start.members.sum()):,} terminals: it lets one of them be "
            "told outright; take far less than one in their number, as delta=1e-6"
        )
    return options, PrivatePlan(
        privacy.epsilon,
        privacy.delta,
        rounds,
        local_steps,
        clip,
        clip / math.sqrt(price),
        options.weight("lambda1") if isinstance(method, DualMethod) else None,
        options.weight("lambda2") if isinstance(method, DualMethod) else None,
        price,
        certificate,
        {RESOURCE: price * rounds + certificate, "epsilon": privacy.spent(price * rounds + certificate)},
        predicted if start.bytes.update else None,
        enough,
        [{"epsilon": epsilon, "lost": min(share, 0.5)} for epsilon, share in lost.items()],
        {RESOURCE: 1.0 / total, "epsilon": _shadow_price(privacy)},
        notes,
    )


def _excess(terminals: float, hidden: int) -> float:
    """Noise by what is needed, where each of the terminals brings a part of which few would do."""
    return math.sqrt(terminals / hidden) if hidden else 1.0


def _strength(terminals: float, mu: float, numbers: int, hidden: int) -> float:
    """N_b μ/√d: how far models are moved, by the norm of the noise in them."""
    return terminals * mu / (math.sqrt(numbers) * _excess(terminals, hidden))


def lost_share(strength: float, terminals: float, rows: float, features: int, classes: int) -> float:
    """Share of test rows that private models get wrong and others of the same rows would not, about.

    Models of n rows are about θ = 0.9 √(d/n) from the best, as an angle. Noise turns them by r = atan 1/(strength c) at
    a right angle to that, where c is the cosine of one terminal's update to the sum of all: c² = q/(1 + q) with
    q = 2m/(πd) for m rows. Clipping costs another 0.7 θ(1 − c). A turn takes its π-th part of rows across where there
    are two classes; of more, as many more as have their two highest scores close to each other.

    0.9 and 0.7 were fitted on synthetic federations, on which all of it was held against runs
    (`benchmarks/results/privacy.md`).
    """
    q = 2.0 * rows / (math.pi * features)
    aligned = math.sqrt(q / (1.0 + q))
    start = 0.9 * math.sqrt(features / (rows * terminals))
    turned = math.hypot(start, math.atan(1.0 / (strength * aligned))) - start + 0.7 * start * (1.0 - aligned)
    at, weight = np.polynomial.hermite.hermgauss(20)  # scores in which the highest two are equal: N(0, 1/2)
    close = classes * (classes - 1) / 2.0 * float(weight @ ndtr(at) ** (classes - 2)) / math.sqrt(math.pi)
    return close * turned / math.pi


def _travel(strength: float) -> tuple[float, int]:
    """How far a model may be moved in all, R B, and in how many rounds, for √d/(N_b μ) of noise by unit moved.

    Fitted on synthetic federations: more rounds where the noise leaves room for them.
    """
    travel = float(np.clip(3.5 * strength**0.3, 12.0, 20.0))
    return travel, round(2.0 * travel)


def _weights(
    method: Method, options: Options, kind: str, start: Situation, rows: float, noise: float
) -> tuple[Options, float]:
    """λ1 with which few rounds suffice, λ2 as the noise alone asks for; and what one row's step moves in U.

    λ_b n_b/σ′ of about a sixth lets a terminal's rows settle in the rounds that there are: more hinders the models, and
    less is not reached. Tasks are drawn to each other as much as noise of this square norm hides their differences.
    """
    if not isinstance(method, DualMethod):
        return options, 1.0
    if options.lambda1 == DEFAULTS["lambda1"]:
        options = options.changed(lambda1=float(np.clip(0.5 / rows, 1e-3, 0.1)) / 3.0)
    if options.lambda2 == DEFAULTS["lambda2"]:
        options = options.changed(lambda2=float(options.weight("lambda1") * np.clip(noise, 1e-6, 1e3)))
    nothing = np.zeros((len(start.samples), 1, 1))
    return options, float(options.method(kind).relationship.anchors(nothing, nothing, start.samples).lam.min())


def _affordable(start: Situation, steps: int, rounds: int) -> tuple[int, int]:
    """H and R within the budget: fewer rounds rather than less than half of the steps in each."""
    room, cloud = start.ledger.remaining, event_totals(start.prices, start.cloud_event())
    while True:
        each = {name: limit / rounds - cloud[name] for name, limit in room.items()}
        paid = steps_affordable(start.prices, start.round_event(1), each, steps)
        if paid >= max(1, steps // 2) or rounds == 1:
            break
        least = event_totals(start.prices, start.cloud_event(), start.round_event(max(1, steps // 2)))
        rounds = max(1, min(rounds - 1, times_affordable(least, room, rounds)))
    return max(paid, 1), rounds


def noise_bound(
    relationship: Relationship, deviation: npt.NDArray[np.float64], n: npt.NDArray[np.float64], numbers: int
) -> float:
    """b = (1/2N) tr(Ξ̄ G Ξ̄ᵀ) is at most this, but for half of `CHANCE`, where U_b has noise of these deviations."""
    root = deviation / n
    return noise_energy(root[:, None] * relationship.dense(len(n)).G * root, numbers, CHANCE / 2) / (2.0 * len(n))


def _shadow_price(privacy: Privacy) -> float:
    """Fall of ln b by unit of ε, as a slope over ±10 %: b is proportional to 1/μ²."""
    more, less = (mu_of(privacy.epsilon * factor, privacy.delta) for factor in (1.1, 0.9))
    return 2.0 * math.log(more / less) / (0.2 * privacy.epsilon)


def _situation(data: Federation, method: Method, ledger: Ledger, columns: int) -> Situation:
    """What a plan may know of a federation: sizes, prices, limits."""
    shape = method.rows(columns), data.n_features + method.intercept
    sizes = message_sizes(shape, method.shared_rows(columns), method.profile_length, method.channel)
    layout = Placement(data.terminal_task.astype(np.int64), data.n_tasks)
    return Situation(np.asarray(data.sizes), layout, ledger, lam=0.0, gamma=method.loss.smoothness, bytes=sizes)


def check_loss(loss: Loss) -> None:
    """Refuse a loss of which one row can make any sum: no noise would hide it in a certificate."""
    if not isinstance(loss, BOUNDED):
        raise ConfigError(
            f"loss {type(loss).__name__} grows without bound, and so does what one terminal tells: take --loss "
            "smoothed-hinge, hinge or logistic, with classes as labels"
        )


def certificate(plan: PrivatePlan, released: Released, network: Network) -> NoisedCertificate:
    """The one certificate of a private run: e + (√a + √b)² at W = Ṽ G, where a = 0; e is hidden in noise of its own.

    e = (1/N) Σ_b (1/n_b) Σ_i [L(z_i) + L*(−α_i) + α_i z_i] needs no Ξ. Each station's sum is hidden by itself, as one
    terminal is in one of them; of b the law of Ξ is public, and so is how many rows a terminal has. What rounding keeps
    back counts as a part of Ξ.
    """
    models, method = released.relationship.solve(released.V), released.method
    largest = np.zeros(len(models))
    np.maximum.at(largest, network.station[network.station >= 0], network.sizes[network.station >= 0])
    radius = Scaler(unit=True).radius(models.shape[2], intercept=method.intercept)
    tau = np.array([largest_terms(method.loss, model, radius) for model in models])
    deviation = largest * tau / math.sqrt(plan.certificate_price)
    told = _noised_terms(network, models, deviation, released)
    n, members = told.n_samples, np.bincount(network.station[network.station >= 0], minlength=len(models))
    spread = deviation * np.sqrt(method.channel.noise_variance(members.astype(np.float64))) / plan.noise
    s = float(np.linalg.norm(spread / n)) / len(n)
    e = float(np.mean(told.terms / n)) + s * float(ndtri(1.0 - CHANCE / 2))
    b = noise_bound(released.relationship, np.sqrt(released.noise), n, models[0].size)
    if isinstance(method.channel, NoisedSums):
        kept = members * method.channel.rounding(models[0].size) / n
        G = released.relationship.dense(len(n)).G
        b = (math.sqrt(b) + math.sqrt(float(np.linalg.eigvalsh(G)[-1] * (kept @ kept)) / (2.0 * len(n)))) ** 2
    zero = method.loss.value(0.0, 1.0) * models.shape[1]
    return NoisedCertificate.made(told.round, models, max(e, 0.0) + b, 1.0 - CHANCE, zero)


def _noised_terms(
    network: Network, models: npt.NDArray[np.float64], deviation: npt.NDArray[np.float64], released: Released
) -> NoisedTerms:
    """Σ_i [L(z_i) + L*(−α_i) + α_i z_i] of every station, in noise: its own, or what a simulation draws for it."""
    if isinstance(network, TellsNoised):
        return network.noised_terms(models, deviation)
    assert isinstance(network, ShareSums)
    sums = [told for told in network.sums(Points(models[None], np.ones((1, 1)))) if told is not None]
    n = np.array([float(max(told.n_samples, 1)) for told in sums])
    terms = np.array([told.losses[0] for told in sums]) - dual_sums(np.array([told.dual for told in sums]))
    terms = terms + np.einsum("bcd,bcd->b", models, network.station_shares())
    key = getattr(released.method.channel, "key", None)
    if key is None:
        normal = np.random.default_rng([released.seed, *b"certificate"]).standard_normal(len(n))
    else:
        normal = standard_normal((len(n),), (released.seed, sums[0].round, _CERTIFICATE), key)
    return NoisedTerms(sums[0].round, terms + deviation * normal, n)
