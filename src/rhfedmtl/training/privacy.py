"""Differential privacy of terminals: plan a private run, charge it and certify it (`docs/privacy_reference.md`).

`private` plans a run and its noisy channel, `certificate` certifies it, and the ledger charges μ² as a resource type.

The unit of privacy is a terminal with all of its rows: neighbouring data sets differ in a single terminal, which sends
zeros instead. Under a bound (ε, δ) only two things leave a terminal. The first are updates in R rounds, clipped to C
and hidden in the noise of their sum; R is fixed in advance. The second is a single certificate at the end. The plan
uses only public numbers: the numbers of terminals, rows and features, and the work that the budget pays for.

The deciding quantity is the distance B/N_b that a terminal may move its station's model in a round. C is B/N_b times
λ_b n_b. The noise of the model after R rounds has the norm √d R B/(N_b μ), which does not depend on λ_b.
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
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.costs import Cost, times_affordable
from rhfedmtl.resources.events import Placement
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.prices import Prices
from rhfedmtl.resources.steps import steps_affordable
from rhfedmtl.roles.certificates import NoisedCertificate
from rhfedmtl.roles.channel import NoisedSums, standard_normal, with_noise
from rhfedmtl.roles.message_sizes import message_sizes

if TYPE_CHECKING:
    from rhfedmtl.engines.network import Network
    from rhfedmtl.maths.coupling import Relationship

RESOURCE = "privacy"
"""The type of the ledger that counts μ²."""
# Share of μ² that goes to the certificate.
# Measured: benchmarks/results/constants.md; ×0.5: +0.01 ± 0.01 points;
# ×2: −0.01 ± 0.01 points.
CERTIFICATE_SHARE = 0.05
# Probability that a certificate is wrong: half for the noise in its own release, half for the noise in the models.
CERTIFICATE_FAILURE = 1e-6
# Share of the accuracy that `PrivatePlan.enough_terminals` would lose.
ACCEPTED_LOSS = 0.01
# A plan from sizes alone assumes this many features.
ASSUMED_FEATURES = 32
TERMINALS_LIMIT = 10**9
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
    """The bound (ε, δ) on what anyone can learn about a terminal; C and R are planned unless they are set here."""

    epsilon: float
    delta: float = 1e-6
    clip: float | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        """Refuse values outside their domain."""
        check(self.epsilon, self.delta)
        for name in ("clip", "rounds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"privacy {name}={value:g} must be a finite number > 0")

    @classmethod
    def parse(cls, text: str) -> Privacy:
        """Read a bound from ``epsilon=1,delta=1e-6``, with ``clip=0.5`` and ``rounds=8`` as options."""
        names = [entry.name for entry in fields(cls)]
        values: dict[str, float | int] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, value = part.partition("=")
            if name not in names:
                raise ConfigError(
                    f"unknown {name!r} in --privacy {text}: choose from {', '.join(names)}{nearest(name, names)}"
                )
            try:
                values[name] = int(value) if name == "rounds" else float(value)
            except ValueError:
                raise ConfigError(f"--privacy {name} needs a number, got {value!r}") from None
        if "epsilon" not in values:
            raise ConfigError(f"--privacy {text!r} has no epsilon: write it as in epsilon=1,delta=1e-6")
        return cls(**values)  # type: ignore[arg-type]

    @property
    def mu(self) -> float:
        """The bound as μ of Gaussian differential privacy: the total privacy loss that may be spent."""
        return mu_of(self.epsilon, self.delta)

    def spent(self, squared: float) -> float:
        """Return the ε, at this δ, of a spent μ²; at most the ε of the bound if μ² exceeds it only by rounding."""
        epsilon = epsilon_of(math.sqrt(squared), self.delta)
        return min(epsilon, self.epsilon) if squared <= self.mu**2 * (1.0 + 1e-9) else epsilon


@dataclass(frozen=True, eq=False)
class Released:
    """The releases of a private run by its end: the inputs of its certificate.

    ``V`` is the noisy value that the cloud holds. ``noise`` is the variance Σ η² s² of the noise in each station's U,
    summed over the rounds that added noise. ``seed`` is the address of the certificate's noise in a simulation, unless
    the channel has a secret key.
    """

    method: Method
    relationship: Relationship
    V: npt.NDArray[np.float64]
    noise: npt.NDArray[np.float64]
    seed: int


@dataclass(frozen=True)
class PrivatePlan:
    """Plan of a private run: R rounds of H steps, updates clipped to C, and noise of standard deviation s on the sum.

    ``update_price`` and ``certificate_price`` are μ² of a round and of the certificate, ``spent`` is the amount for all
    rounds and the certificate. ``predicted_noise`` is b of the certificate: the noise alone keeps the objective at most
    this far from its best value, except with a probability of 1e-6. With ``enough_terminals`` under each station, the
    run loses about a point of accuracy compared with a run without privacy. ``buys`` is the estimated loss of the
    present terminals, as a share of rows, at this and other ε (`lost_share`). ``shadow_price`` is the fall of ln b per
    unit of μ² (key ``privacy``) and of ε (key ``epsilon``). ``notes`` list assumptions and warnings. ``simulation`` is
    True if the run draws its noise from its seed.
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
        """The bound of the plan."""
        return Privacy(self.epsilon, self.delta)

    def ledger(self, ledger: Ledger) -> Ledger:
        """Return an empty ledger with the same prices and limits, and with μ² as a further type.

        Like time, μ² adds up over rounds and not over the terminals of a round.
        """
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
        """Return the statement for the model file: words, and the privacy bound of a terminal."""
        if self.simulation:
            return {"words": SIMULATION, "private": False}
        words = f"(epsilon, delta) = ({self.epsilon:g}, {self.delta:g}) for all rows of any one terminal"
        if interrupted:
            words += "; the checkpoint of this run still holds the key of the noise: keep it secret, or delete it"
        return {"words": words, "private": True, "epsilon": self.epsilon, "delta": self.delta, "mu": self.privacy.mu}

    def applied(self, built: Algorithm, station_rounds: int = 1) -> Algorithm:
        """Return the algorithm with a channel that clips and adds noise, and with the steps and rounds of the plan."""
        method = built.method.hidden(with_noise(built.method.channel, self.clip, self.noise))
        policy = Fixed(self.local_steps, station_rounds, -(-self.rounds // station_rounds))
        return built._replace(method=method, policy=policy)


def private(
    name: str, options: Options, federation: Federation, ledger: Ledger, privacy: Privacy
) -> tuple[Algorithm, PrivatePlan]:
    """Return a private version of an algorithm, and its plan for the sizes of a federation and a budget."""
    built = build(name, options, federation.kind)
    if federation.sample_weight is not None:
        raise ConfigError("row weights are not public, and privacy gives each row the weight 1: leave the weights out")
    data = built.regroup(federation)
    columns = len(data.class_names) if data.kind == "classes" else 1
    method = built.method
    shape = method.rows(columns), method.width(data.n_features)
    sizes = message_sizes(shape, method.shared_rows(columns), method.profile_length, method.channel)
    layout = Placement(data.terminal_task.astype(np.int64), data.n_tasks)
    # A plan may use only sizes, prices and limits.
    start = Situation(np.asarray(data.sizes), layout, ledger, lam=0.0, gamma=method.loss.smoothness, bytes=sizes)
    return planned(name, options, data.kind, start, privacy, (columns, shape[1]))


def planned(
    name: str, options: Options, kind: str, start: Situation, privacy: Privacy, shape: tuple[int, int]
) -> tuple[Algorithm, PrivatePlan]:
    """Return a private version of an algorithm, and its plan for a situation: a network has no federation."""
    options, plan = design(name, options, kind, start, privacy, shape)
    return plan.applied(build(name, options, kind), options.station_rounds or 1), plan


def design(
    name: str, options: Options, kind: str, start: Situation, privacy: Privacy, shape: tuple[int, int]
) -> tuple[Options, PrivatePlan]:
    """Choose R, H, C, s, and λ1 and λ2 unless the user set them, together and only from public numbers."""
    built = build(name, options, kind)
    check_loss(built.method.loss)
    numbers, notes = shape[0] * shape[1], []
    if not start.bytes.update:  # the plan knows only sizes, and not the number of features
        numbers, notes = shape[0] * (ASSUMED_FEATURES + 1), [f"{ASSUMED_FEATURES} features assumed: give --n-features"]
    share = CERTIFICATE_SHARE if isinstance(built.method, DualMethod) else 0.0
    mu = privacy.mu * math.sqrt(1.0 - share)
    terminals, rows = float(start.members.min()), float(start.samples.sum() / start.members.sum())
    group = built.method.channel.summed
    strength = _strength(terminals, mu, numbers, group)
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
        deviation = np.full(len(start.samples), _excess(terminals, group) * clip * rounds / mu)
        predicted = noise_bound(method.relationship, deviation, start.samples, numbers)
    total, certificate = privacy.mu**2, privacy.mu**2 * share
    sizes = rows, numbers // shape[0], max(shape[0], 2)
    lost = {
        epsilon: lost_share(strength * mu_of(epsilon, privacy.delta) / privacy.mu, terminals, *sizes)
        for epsilon in (factor * privacy.epsilon for factor in (0.5, 1.0, 2.0, 4.0))
    }
    required = 1 + bisect_left(
        range(1, TERMINALS_LIMIT),
        True,
        key=lambda n: lost_share(_strength(n, mu, numbers, group), n, *sizes) <= ACCEPTED_LOSS,
    )
    if terminals < required:
        notes.append(
            f"{terminals:.0f} terminals under a station are few for epsilon={privacy.epsilon:g}: about {required:,} "
            "would lose a point of accuracy, fewer lose more"
        )
    if shape[0] > 2:
        notes.append("the loss is estimated for two classes: more classes may lose up to five points more")
    if privacy.delta * start.members.sum() >= 1.0:
        notes.append(
            f"delta={privacy.delta:g} is too large for {int(start.members.sum()):,} terminals: it does not rule out "
            "that one of them is revealed completely; take a delta far below 1 / their number, such as delta=1e-6"
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
        required,
        [{"epsilon": epsilon, "lost": min(share, 0.5)} for epsilon, share in lost.items()],
        {RESOURCE: 1.0 / total, "epsilon": _shadow_price(privacy)},
        notes,
    )


def _excess(terminals: float, group: int) -> float:
    """Return actual by required noise of masked sums: ``group`` parts suffice, but all ``terminals`` add a part."""
    return math.sqrt(terminals / group) if group else 1.0


def _strength(terminals: float, mu: float, numbers: int, group: int) -> float:
    """Return N_b μ/√d, divided by `_excess`: the distance that models are moved, per norm of the noise in them."""
    return terminals * mu / (math.sqrt(numbers) * _excess(terminals, group))


def lost_share(strength: float, terminals: float, rows: float, features: int, classes: int) -> float:
    """Estimate the share of test rows that private models classify wrong beyond the errors of models without privacy.

    A model of n rows deviates from the best model by an angle of about θ = 0.9 √(d/n). Noise turns the model by
    r = atan 1/(strength c), at a right angle to this deviation. Here c is the cosine between the update of a terminal
    and the sum of all updates: c² = q/(1 + q) with q = 2m/(πd) for m rows of a terminal. Clipping adds 0.7 θ(1 − c).
    With two classes, a turn by an angle moves the share angle/π of the rows across the boundary. With more classes, the
    share grows with the number of rows whose two highest scores are close to each other.

    0.9 and 0.7 were fitted on synthetic federations, on which the estimate was compared with runs
    (`benchmarks/results/privacy.md`).
    """
    q = 2.0 * rows / (math.pi * features)
    aligned = math.sqrt(q / (1.0 + q))
    start = 0.9 * math.sqrt(features / (rows * terminals))
    turned = math.hypot(start, math.atan(1.0 / (strength * aligned))) - start + 0.7 * start * (1.0 - aligned)
    score, weight = np.polynomial.hermite.hermgauss(20)  # value of the highest two scores if they are equal: N(0, 1/2)
    close = classes * (classes - 1) / 2.0 * float(weight @ ndtr(score) ** (classes - 2)) / math.sqrt(math.pi)
    return close * turned / math.pi


def _travel(strength: float) -> tuple[float, int]:
    """Return the total distance that a model may be moved, R B, and the number of rounds R.

    Both depend on the noise per unit of distance, √d/(N_b μ) = 1/``strength``. The function was fitted on synthetic
    federations: weaker noise permits more rounds.
    """
    travel = float(np.clip(3.5 * strength**0.3, 12.0, 20.0))
    return travel, round(2.0 * travel)


def _weights(
    method: Method, options: Options, kind: str, start: Situation, rows: float, noise: float
) -> tuple[Options, float]:
    """Return options with λ1 for few rounds and λ2 for this noise, and the distance that a row's step moves U.

    With λ_b n_b/σ′ of about a sixth, the rows of a terminal converge within the available rounds. A larger value
    impairs the models, and the optimum of a smaller value is not reached. λ2 couples the tasks as strongly as noise of
    this squared norm hides their differences.
    """
    if not isinstance(method, DualMethod):
        return options, 1.0
    if options.lambda1 == DEFAULTS["lambda1"]:
        options = options.changed(lambda1=float(np.clip(0.5 / rows, 1e-3, 0.1)) / 3.0)
    if options.lambda2 == DEFAULTS["lambda2"]:
        options = options.changed(lambda2=float(options.weight("lambda1") * np.clip(noise, 1e-6, 1e3)))
    zeros = np.zeros((len(start.samples), 1, 1))
    return options, float(options.method(kind).relationship.anchors(zeros, zeros, start.samples).lam.min())


def _affordable(start: Situation, steps: int, rounds: int) -> tuple[int, int]:
    """Return H and R within the budget; reduce the rounds before a round gets less than half of its steps."""
    remaining, cloud = start.ledger.remaining, event_totals(start.prices, start.cloud_event())
    while True:
        per_round = {name: limit / rounds - cloud[name] for name, limit in remaining.items()}
        affordable = steps_affordable(start.prices, start.round_event(1), per_round, steps)
        if affordable >= max(1, steps // 2) or rounds == 1:
            break
        smallest = event_totals(start.prices, start.cloud_event(), start.round_event(max(1, steps // 2)))
        rounds = max(1, min(rounds - 1, times_affordable(smallest, remaining, rounds)))
    return max(affordable, 1), rounds


def noise_bound(
    relationship: Relationship, deviation: npt.NDArray[np.float64], n: npt.NDArray[np.float64], numbers: int
) -> float:
    """Return an upper bound on b = (1/2N) tr(Ξ̄ G Ξ̄ᵀ).

    It fails with a probability of at most half of `CERTIFICATE_FAILURE`. ``deviation`` is the standard deviation of
    the noise in each U_b.
    """
    root = deviation / n
    return noise_energy(root[:, None] * relationship.dense(len(n)).G * root, numbers, CERTIFICATE_FAILURE / 2) / (
        2.0 * len(n)
    )


def _shadow_price(privacy: Privacy) -> float:
    """Return the fall of ln b per unit of ε, as a slope over ±10 %; b is proportional to 1/μ²."""
    more, less = (mu_of(privacy.epsilon * factor, privacy.delta) for factor in (1.1, 0.9))
    return 2.0 * math.log(more / less) / (0.2 * privacy.epsilon)


def check_loss(loss: Loss) -> None:
    """Refuse a loss whose sum a single row can change without bound: no noise would hide the row in a certificate."""
    if not isinstance(loss, BOUNDED):
        raise ConfigError(
            f"loss {type(loss).__name__} grows without bound, and so does the possible contribution of a terminal: "
            "take --loss smoothed-hinge, hinge or logistic, with classes as labels"
        )


def certificate(plan: PrivatePlan, released: Released, network: Network) -> NoisedCertificate:
    """Return the only certificate of a private run: e + (√a + √b)² at W = Ṽ G, where a = 0.

    e = (1/N) Σ_b (1/n_b) Σ_i [L(z_i) + L*(−α_i) + α_i z_i] does not depend on Ξ, and is released with noise of its own.
    Each station's sum gets separate noise, because a terminal contributes to the sum of a single station. The bound on
    b uses the distribution of Ξ, which is public, as are the numbers of rows of the terminals. The residual of rounding
    counts as a part of Ξ.
    """
    models, method = released.relationship.solve(released.V), released.method
    largest = np.zeros(len(models))
    np.maximum.at(largest, network.station[network.station >= 0], network.sizes[network.station >= 0])
    radius = Scaler(unit=True).radius(models.shape[2], intercept=method.intercept)
    tau = np.array([largest_terms(method.loss, model, radius) for model in models])
    deviation = largest * tau / math.sqrt(plan.certificate_price)
    noised = _noised_terms(network, models, deviation, released)
    n, members = noised.n_samples, np.bincount(network.station[network.station >= 0], minlength=len(models))
    spread = deviation * np.sqrt(method.channel.noise_variance(members.astype(np.float64))) / plan.noise
    s = float(np.linalg.norm(spread / n)) / len(n)
    e = float(np.mean(noised.terms / n)) + s * float(ndtri(1.0 - CERTIFICATE_FAILURE / 2))
    b = noise_bound(released.relationship, np.sqrt(released.noise), n, models[0].size)
    if isinstance(method.channel, NoisedSums):
        residual = members * method.channel.rounding(models[0].size) / n
        G = released.relationship.dense(len(n)).G
        b = (math.sqrt(b) + math.sqrt(float(np.linalg.eigvalsh(G)[-1] * (residual @ residual)) / (2.0 * len(n)))) ** 2
    zero = method.loss.value(0.0, 1.0) * models.shape[1]
    return NoisedCertificate.made(noised.round, models, max(e, 0.0) + b, 1.0 - CERTIFICATE_FAILURE, zero)


def _noised_terms(
    network: Network, models: npt.NDArray[np.float64], deviation: npt.NDArray[np.float64], released: Released
) -> NoisedTerms:
    """Return Σ_i [L(z_i) + L*(−α_i) + α_i z_i] of every station, with noise.

    A network that implements `TellsNoised` adds the noise itself. For other networks this function draws the noise.
    """
    if isinstance(network, TellsNoised):
        return network.noised_terms(models, deviation)
    assert isinstance(network, ShareSums)
    sums = [entry for entry in network.sums(Points(models[None], np.ones((1, 1)))) if entry is not None]
    n = np.array([float(max(entry.n_samples, 1)) for entry in sums])
    terms = np.array([entry.losses[0] for entry in sums]) - dual_sums(np.array([entry.dual for entry in sums]))
    terms = terms + np.einsum("bcd,bcd->b", models, network.station_shares())
    key = getattr(released.method.channel, "key", None)
    if key is None:
        normal = np.random.default_rng([released.seed, *b"certificate"]).standard_normal(len(n))
    else:
        normal = standard_normal((len(n),), (released.seed, sums[0].round, _CERTIFICATE), key)
    return NoisedTerms(sums[0].round, terms + deviation * normal, n)
