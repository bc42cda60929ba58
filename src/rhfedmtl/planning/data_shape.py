"""Describe a federation by its sizes: enough to price a run without any data.

A plan without data starts from a `DataShape`; a plan with data starts from a federation. Both become the `Situation`
from which a policy plans. This module charges round zero to that situation, but it never trains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.partition import Blocks, Column, Iid, Partition, TaskRows, even
from rhfedmtl.data.split import TO_TERMINALS
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.kernels.rounds import dual_length
from rhfedmtl.policies.base import Situation
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.events import Event, Placement, round_zero_events
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.sizes import CertificateSizes, MessageSizes
from rhfedmtl.roles.cloud import most_candidates
from rhfedmtl.roles.message_sizes import certificate_sizes, message_sizes, round_zero_bytes
from rhfedmtl.training.clouds import regularisation
from rhfedmtl.training.settings import Settings

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DataShape:
    """Numbers of tasks, terminals and rows; terminals get their rows as in a split.

    ``samples_per_task`` counts training and test rows together. ``features`` and ``columns`` (models per task: 1, or
    the number of classes) are needed only if bytes have a price.
    """

    tasks: int = 5
    terminals: int = 5
    samples_per_task: int = 70
    test_fraction: float = 0.25
    features: int | None = None
    columns: int = 1
    partition: Partition | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse shapes that no split can have."""
        for name in ("tasks", "terminals", "samples_per_task", "columns"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {count!r}")
        if self.features is not None and self.features < 1:
            raise ConfigError(f"features must be at least 1, got {self.features}")
        if not 0.0 <= self.test_fraction < 1.0:
            raise ConfigError(f"test_fraction must lie in [0, 1), got {self.test_fraction}")
        if isinstance(self.partition, Column):
            raise ConfigError("partition 'column' takes the terminals from data: give --data, or another partition")
        if self.train_rows < self.terminals:
            raise ConfigError(
                f"{self.samples_per_task} samples per task leave {self.train_rows} training rows for "
                f"{self.terminals} terminals: ask for fewer terminals or more samples per task"
            )

    @property
    def train_rows(self) -> int:
        """Training rows of a task, after the split has rounded the number of test rows."""
        return self.samples_per_task - int(np.floor(self.samples_per_task * self.test_fraction + 0.5))

    def sizes(self) -> IntArray:
        """Return the rows of every terminal, ordered by task; a partition by class sees two equal classes."""
        deal = self.partition or Iid()
        if isinstance(deal, Iid | Blocks):
            return np.tile(even(self.train_rows, self.terminals), self.tasks)
        rows = TaskRows("of this shape", np.arange(self.train_rows) % 2)
        dealt = [
            deal.assign(rows, self.terminals, np.random.default_rng([self.seed, TO_TERMINALS, task]))
            for task in range(self.tasks)
        ]
        return np.concatenate([np.bincount(terminal, minlength=self.terminals) for terminal in dealt])


def situation_of(subject: Federation | DataShape, method: DualMethod, settings: Settings, cost: Cost) -> Situation:
    """Return the situation before the first round: round zero is charged, and there is no budget."""
    ledger = Ledger(cost)
    features, columns = width_of(subject, cost)
    shape = (method.rows(columns), method.width(features))
    shared = method.shared_rows(columns)
    layout = _layout(subject)
    among = method.channel.masked_among(layout.members)
    for event in opening(subject, method, settings, cost):
        ledger.charge(event)
    rows = subject.sizes() if isinstance(subject, DataShape) else np.diff(subject.terminal_offsets).astype(np.int64)
    lam, coupling = regularisation(method, layout.n_tasks)
    situation = Situation(
        rows,
        layout,
        ledger,
        lam=lam,
        gamma=method.loss.smoothness,
        coupling=coupling,
        bytes=message_sizes(shape, shared, method.profile_length, method.channel, among)
        if features
        else MessageSizes(),
        certificate_bytes=certificate_sizes(
            (columns, shape[1]),
            *most_candidates(),
            dual_length(method.loss),
            method.channel,
            residual=method.tells_residual,
            masked_among=among,
        )
        if features
        else CertificateSizes(),
        certify_every=settings.certify_every,
        seed=settings.seed,
    )
    ledger.charge(situation.certificate_event())  # A run reserves its last certificate at the start.
    return situation


def opening(subject: Federation | DataShape, method: DualMethod, settings: Settings, cost: Cost) -> list[Event]:
    """Return the messages of round zero, as a run charges them; an empty list if their sizes are not needed."""
    features, _ = width_of(subject, cost)
    if not features:
        return []
    layout = _layout(subject)
    if isinstance(subject, Federation):
        preparation, numbers = subject.preparation, subject.kind == "regression"
    else:
        preparation, numbers = None, not method.loss.classifier
    labels = method.intercept and numbers
    among = method.channel.masked_among(layout.members)
    station_bytes, cloud_bytes = round_zero_bytes(
        features,
        scale=settings.scale,
        labels=labels,
        preparation=preparation,
        masked_among=among,
        channel=method.channel,
        maps=method.features,
    )
    return round_zero_events(layout, station_bytes, cloud_bytes)


def cheapest_plan(start: Situation, local_steps: int = 1) -> dict[str, float]:
    """Return the cost per type of the smallest possible run: round zero and a server iteration of a single round."""
    price = event_totals(start.prices, start.cloud_event(), start.round_event(local_steps))
    return {name: amount + start.ledger.spent[name] for name, amount in price.items()}


def width_of(subject: Federation | DataShape, cost: Cost) -> tuple[int, int]:
    """Return the number of features and of models per task; 0 features if the number is unknown and not needed."""
    if isinstance(subject, Federation):
        return subject.n_features, len(subject.class_names) if subject.kind == "classes" else 1
    if subject.features is None:
        if cost.has_bytes(cost):
            raise ConfigError("bytes have a price, so messages must have a size: give the number of features")
        return 0, subject.columns
    return subject.features, subject.columns


def _layout(subject: Federation | DataShape) -> Placement:
    if isinstance(subject, DataShape):
        return Placement(np.repeat(np.arange(subject.tasks), subject.terminals), subject.tasks)
    return Placement(subject.terminal_task.astype(np.int64), subject.n_tasks)
