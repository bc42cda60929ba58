"""Disclosure control of a terminal: the limits that the owner's rules, masks and noise set to answers about its rows.

The terminal itself checks each request, so these limits do not depend on the honesty of its station.
"""

from __future__ import annotations

import hashlib

import numpy as np

from rhfedmtl.deploy.node.config import TerminalConfig
from rhfedmtl.deploy.terminal.memory import TerminalMemory
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError, RHFedMTLError
from rhfedmtl.features.base import PASSES, Statistics, normal_quantiles
from rhfedmtl.roles.messages import Probe, Sums

MOST_MAPPINGS = 4 * (1 + PASSES)
"""Feature maps for which a terminal sends moments or counts: those of a round zero, which may fail three times."""


class Disclosure:
    """Decides if a terminal may answer a request of its station.

    `RowAnswers` and `MeteredLink` ask it before anything about rows is sent. A ``refuses_…`` method returns the reason,
    which the terminal sends as "declined". A ``refuse_…`` method raises an error that ends the stream. It never
    computes an answer and never sends a message.
    """

    def __init__(self, config: TerminalConfig, memory: TerminalMemory) -> None:
        self._config, self._memory = config, memory

    @property
    def noised(self) -> bool:
        """True if the network adds noise, or if the owner allows only sums with noise."""
        return self._memory.terminal.method.channel.noised or self._config.epsilon > 0.0

    def refuses_job(self, job: wire.Job) -> str:
        """Return why the owner does not allow this job, or an empty string if the owner does."""
        role = self._memory.terminal
        method = role.method
        refusal = self._memory.site.refuses_job(job, role.n_samples, method.channel, uniform=method.uniform)
        return refusal or self._memory.site.refuses_features(method.features.text)

    def lacks_map(self) -> str:
        """Return why this machine cannot compute the feature map of the job, such as a missing file, or nothing."""
        role = self._memory.terminal
        try:
            role.method.features.function(Statistics(normal_quantiles(role.rows.X.shape[1])))
        except RHFedMTLError as error:
            return str(error)
        return ""

    def refuses(self, steps: int) -> str:
        """Return why the owner does not allow an order of so many steps, or an empty string if the owner does."""
        memory, role = self._memory, self._memory.terminal
        assert memory.job is not None
        price = role.method.channel.price
        return self.refuses_job(memory.job) or memory.site.refuses(steps, role.n_samples, price)

    def refuses_certificate(self, probe: Probe, sums: Sums) -> str:
        """Charge a private certificate before it is sent; return why the owner does not allow it, or an empty string.

        A repetition of the same certificate is free, because it reveals nothing new.
        """
        memory = self._memory
        parts = probe.models, np.float64(probe.noise), sums.losses
        digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
        if digest != memory.certified:
            price = memory.terminal.certificate_price(probe)
            if refusal := memory.site.refuses_cost(price):
                return refusal
            memory.site.charge(price)
            memory.certified = digest
        memory.save()
        return ""

    def refuse_other_noise(self, probe: Probe) -> None:
        """Refuse a probe without noise if updates are noised, and a probe with noise if they are not.

        With noise, only the loss of a single model may leave for a certificate.
        """
        single = probe.points.tolist() == [[1.0]] and not probe.gradient
        if self.noised != (probe.noise is not None) or (self.noised and not single):
            raise PeerError(f"a probe with noise {probe.noise}, where updates are noised: {self.noised}")

    def refuse_alone(self, subject: str) -> None:
        """Refuse an answer about this terminal alone if sums are masked or noised."""
        if self._memory.masks is not None or self.noised:
            raise PeerError(f"sums of this network are masked or noised: {subject} of a single terminal are not sent")

    def note_mapping(self, mapping: wire.FeatureMapping) -> None:
        """Remember a map whose moments are about to leave, and refuse further maps when there were too many.

        Each map of the counts tells how many rows lie below other values. A repetition tells nothing new.
        """
        memory, digest = self._memory, hashlib.sha256(mapping.SerializeToString(deterministic=True)).digest()
        if digest in memory.mapped:
            return
        if len(memory.mapped) >= MOST_MAPPINGS:
            raise PeerError(
                f"moments behind more than {MOST_MAPPINGS} feature maps: start over with `rhfedmtl network reset`"
            )
        memory.mapped = (*memory.mapped, digest)
        memory.save()

    def refuse_noised(self, subject: str) -> None:
        """Refuse a sum without noise if sums are noised."""
        if self.noised:
            raise PeerError(f"sums of this network are noised: {subject} are not sent")
