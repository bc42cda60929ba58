"""What a user may say about learning, in plain values, and how it becomes objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.merges import MERGES
from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation
from rhfedmtl.errors import ConfigError, nearest
from rhfedmtl.maths.coupling import LAMBDA1, LAMBDA2
from rhfedmtl.maths.losses import LOSSES, Loss
from rhfedmtl.maths.relationships import RELATIONSHIPS, Relationship
from rhfedmtl.policies.base import Policy
from rhfedmtl.policies.registry import POLICIES

T = TypeVar("T")


def as_it_is(federation: Federation) -> Federation:
    """The federation as it is."""
    return federation


class Algorithm(NamedTuple):
    """What is learned, how much work is spent on it, and how the algorithm regroups tasks and terminals first.

    A ``yardstick`` is not charged and knows no budget: it is solved until its gap is ``target_gap``.
    """

    method: Method
    policy: Policy
    regroup: Callable[[Federation], Federation] = as_it_is
    yardstick: bool = False


@dataclass(frozen=True)
class Options:
    """Settings of all algorithms; None leaves a choice to the algorithm or to the data."""

    loss: str | None = None
    gamma: float = 1.0
    relationship: str = "mean"
    lambda1: float = LAMBDA1
    lambda2: float = LAMBDA2
    merge: str = "auto"
    intercept: bool = True
    uniform: bool = False
    policy: str | None = None
    local_steps: int | None = None
    station_rounds: int | None = None
    cloud_rounds: int | None = None
    epsilon: float | None = None
    step: float = 0.5
    decay: float = 0.0
    mu: float | None = None
    components: int | None = None
    phi: float | None = None

    def given(self) -> list[str]:
        """Names of the settings that are not as if they had never been set."""
        return [each.name for each in fields(self) if getattr(self, each.name) != each.default]

    def without(self, names: Iterable[str]) -> Options:
        """The same with these settings as if they had never been set."""
        unset: dict[str, Any] = {each.name: each.default for each in fields(self) if each.name in set(names)}
        return replace(self, **unset)

    def sgd(self, kind: str) -> dict[str, Any]:
        """Settings that all methods by gradient steps share."""
        return {
            "loss": self.chosen_loss(kind),
            "intercept": self.intercept,
            "uniform": self.uniform,
            "lambda1": self.lambda1,
            "relationship": self.chosen_relationship(),
            "step": self.step,
            "decay": self.decay,
        }

    def method(self, kind: str) -> DualMethod:
        """Method for labels of this kind (binary, classes or regression)."""
        return DualMethod(
            loss=self.chosen_loss(kind),
            intercept=self.intercept,
            uniform=self.uniform,
            relationship=self.chosen_relationship(),
            merge=pick("merge", self.merge, MERGES),
        )

    def fixed_policy(self, station_rounds: int | None = None) -> Policy:
        """H, K and M as given, for an algorithm that decides nothing itself."""
        if self.policy not in (None, "fixed"):
            raise ConfigError(f"this algorithm has fixed H and K: use rhfedmtl for policy {self.policy!r}")
        if station_rounds is None:
            station_rounds = 1 if self.station_rounds is None else self.station_rounds
        elif self.station_rounds not in (None, station_rounds):
            raise ConfigError(
                f"this algorithm has {station_rounds} station round in a server iteration, not {self.station_rounds}: "
                "leave station_rounds out, or take hfedmtl or hierfavg"
            )
        return POLICIES["fixed"](
            local_steps=2 if self.local_steps is None else self.local_steps,
            station_rounds=station_rounds,
            cloud_rounds=self.cloud_rounds,
        )

    def chosen_policy(self, default: str) -> Policy:
        """Policy by name."""
        name = default if self.policy is None else self.policy
        build = pick("policy", name, POLICIES)
        if name == "fixed":
            return self.fixed_policy()
        if self.local_steps is not None or self.station_rounds is not None or self.cloud_rounds is not None:
            raise ConfigError(
                f"policy {name!r} decides H, K and M itself: leave out local_steps, station_rounds and cloud_rounds, "
                "or take policy 'fixed'"
            )
        if self.epsilon is not None and name == "measured":
            raise ConfigError("policy 'measured' has no epsilon: it goes as far as the budget; use a target gap")
        return build() if self.epsilon is None else build(epsilon=self.epsilon)

    def chosen_relationship(self) -> Relationship:
        """How tasks are coupled; for a method that couples them otherwise, the problem that it is certified for."""
        return pick("relationship", self.relationship, RELATIONSHIPS)(self.lambda1, self.lambda2)

    def chosen_loss(self, kind: str) -> Loss:
        """Loss by name, or by the kind of labels."""
        name = self.loss or ("squared" if kind == "regression" else "smoothed-hinge")
        build = pick("loss", name, LOSSES)
        return build(self.gamma) if name == "smoothed-hinge" else build()


def pick(what: str, name: str, known: Mapping[str, T]) -> T:
    """Entry of a registry; an unknown name is answered with the known ones and the nearest."""
    if name in known:
        return known[name]
    raise ConfigError(f"unknown {what} {name!r}: choose from {', '.join(known)}{nearest(name, known)}")
