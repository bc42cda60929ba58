"""Two base stations and a few terminals over a link that loses, delays, repeats and reorders; and what must hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.maths.kernels.rounds import dual_sums
from rhfedmtl.roles.messages import Anchor, Goodbye, Join, Leave, Probe, Release, Sums, Update, WorkOrder
from rhfedmtl.roles.roster import Member, StationState
from rhfedmtl.roles.station import BaseStation
from rhfedmtl.roles.terminal import Phase, Terminal, TerminalState

D = 3
SEED = 5
# Where probes look: at both of two models, and between them.
POINTS = np.array([[1.0, 0.0], [0.0, 1.0], [0.3, 0.5]])


class World:
    """Carries messages as a network would, and knows what every sum must be."""

    def __init__(self, method: DualMethod, n_stations: int = 2, sizes: tuple[int, ...] = (3, 5, 2, 4)) -> None:
        self.method = method
        self.rng = np.random.default_rng(SEED)
        self.stations = [BaseStation(b, (1, D + method.intercept), method) for b in range(n_stations)]
        self.saved_stations: list[StationState] = [station.state for station in self.stations]
        self.rows = [self.new_rows(n) for n in sizes]
        self.terminals = [self._terminal(t) for t in range(len(sizes))]
        self.saved_terminals: list[TerminalState] = [terminal.state for terminal in self.terminals]
        # The station a terminal talks to; None where it may choose.
        self.home: list[int | None] = [0 if t < 3 else 1 for t in range(len(sizes))]
        # Terminals that lost their state, by (id, incarnation): their share is still in some sum.
        self.lost: dict[tuple[int, int], Terminal] = {}
        # Every message ever sent: (to a terminal?, address, message). Any of them may arrive at any time, or never.
        self.log: list[tuple[bool, int, Any]] = []
        self.open: set[int] = set()
        self.sums: list[list[Sums]] = [[] for _ in self.stations]
        self.models: list[Any] = [None] * n_stations
        for b in range(n_stations):
            self.anchor(b)
            self.saved_stations[b] = self.stations[b].state

    def new_rows(self, n: int) -> tuple[Any, Any]:
        """Rows and labels of a terminal."""
        return self.rng.normal(size=(n, D)) + 1.0, self.rng.choice([-1.0, 1.0], size=(n, 1))

    def _terminal(self, t: int, incarnation: int = 0) -> Terminal:
        return Terminal(t, *self.rows[t], self.method, seed=SEED, incarnation=incarnation)

    # What the engine of a deployment does. A role's state is saved before a message that rests on it goes out.

    def anchor(self, b: int) -> None:
        """A new anchor from the cloud."""
        station = self.stations[b]
        number = 1 if station.anchor is None else station.anchor.cloud_round + 1
        center = 0.3 * self.rng.normal(size=station.shape)
        station.receive_anchor(Anchor(number, b, center, float(10.0 ** self.rng.uniform(-3.0, -0.5))))

    def open_round(self, b: int, members: list[int], skip: int, steps: int) -> None:
        """Orders to some members; stations number their rounds as they like."""
        station = self.stations[b]
        orders = station.open_round(station.round + 1 + skip, dict.fromkeys(members, steps))
        self.open.add(b)
        self._from_station(b, orders)

    def close_round(self, b: int) -> None:
        """Merge; at a fixed anchor the dual must not fall under average and add, unless updates are rounded."""
        before = self.dual(b)
        self.stations[b].close_round()
        self.open.discard(b)
        if not (self.method.merge.line_search or self.method.channel.keeps_residual):
            assert self.dual(b) >= before - 1e-12, f"the dual of station {b} fell from {before} to {self.dual(b)}"

    def probe(self, b: int) -> None:
        """Ask all members for their sums."""
        self.models[b] = self.rng.normal(size=(2, *self.stations[b].shape))
        self.sums[b] = []
        self._from_station(b, self.stations[b].probes(self.models[b], POINTS, gradient=True))

    def release(self, t: int) -> None:
        """Terminal t asks its station to let it go."""
        b = self.home[t]
        assert b is not None
        self._from_station(b, [self.stations[b].roster.release(t, self.stations[b].round)])

    def join(self, t: int, b: int) -> None:
        """Terminal t presents itself to its station, or to the one it chose."""
        self.home[t] = b
        message = self.terminals[t].join()
        self._save(t)
        self.log.append((False, b, message))

    def may_join(self, t: int) -> bool:
        """Whether terminal t may present itself."""
        return self.terminals[t].phase is not Phase.LEAVING and self.terminals[t].state.update is None

    def may_ask_to_leave(self, t: int) -> bool:
        """Whether the station of terminal t knows it, and has time."""
        b = self.home[t]
        if b is None or b in self.open:
            return False
        return t in self.stations[b].members or t in self.stations[b].state.departed

    def deliver(self, index: int) -> None:
        """One message arrives, perhaps not for the first time. A station with an open round lets some wait."""
        to_terminal, address, message = self.log[index]
        if to_terminal:
            self._to_terminal(address, message)
        elif address not in self.open or not isinstance(message, Join | Leave):
            self._to_station(address, message)

    def exchange(self, start: int, arrives: int) -> None:
        """Carry the messages from number ``start`` on, and the answers to them; a bit says which of them arrive."""
        index = start
        while index < len(self.log):
            if arrives >> (index - start) % 12 & 1:
                self.deliver(index)
            index += 1

    def restart_terminal(self, t: int) -> None:
        """Go on from saved state."""
        self.terminals[t] = self._terminal(t)
        self.terminals[t].restore(self.saved_terminals[t])

    def lose_terminal(self, t: int) -> None:
        """All state is gone: a new incarnation, which must speak to the station that knew the old one."""
        old = self.terminals[t]
        self.lost.setdefault((t, old.incarnation), old)
        self.terminals[t] = self._terminal(t, old.incarnation)
        self._save(t)

    def restart_station(self, b: int) -> None:
        """Go on from what was saved before the last message went out."""
        self.stations[b].restore(self.saved_stations[b])
        self.open.discard(b)

    def add_rows(self, t: int, n: int) -> None:
        """A terminal between two stations takes in rows."""
        X, y = self.new_rows(n)
        self.terminals[t].add_rows(X, y)
        self.rows[t] = np.concatenate([self.rows[t][0], X]), np.concatenate([self.rows[t][1], y])
        self._save(t)

    def _save(self, t: int) -> None:
        self.saved_terminals[t] = self.terminals[t].state

    def _from_station(self, b: int, messages: list[Any]) -> None:
        self.saved_stations[b] = self.stations[b].state
        self.log += [(True, message.terminal, message) for message in messages]

    def _to_station(self, b: int, message: Any) -> None:
        station = self.stations[b]
        if isinstance(message, Update):
            station.receive(message)
        elif isinstance(message, Join):
            station.roster.admit(message)
        elif isinstance(message, Leave):
            self._from_station(b, [station.roster.remove(message)])
        else:
            self.sums[b].append(message)
            self.check_sums(b)

    def _to_terminal(self, t: int, message: Any) -> None:
        terminal = self.terminals[t]
        answer: Any = None
        home = self.home[t]
        if isinstance(message, WorkOrder):
            answer = terminal.work(message)
        elif isinstance(message, Probe):
            answer = terminal.probe(message)
        elif isinstance(message, Release):
            answer = terminal.leave(message)
        elif isinstance(message, Goodbye):
            terminal.goodbye(message)
            if terminal.phase is Phase.DETACHED and (t, terminal.incarnation) not in self.lost:
                self.home[t] = None
        self._save(t)
        if answer is not None:
            assert home is not None
            self.log.append((False, home, answer))

    # What must hold.

    def owner(self, t: int, member: Member) -> Terminal:
        """The terminal that a station's record speaks of: the living one, or one that lost its state."""
        return self.lost.get((t, member.incarnation), self.terminals[t])

    def alpha(self, t: int, member: Member) -> Any:
        """Dual variables as the station counts them: a pending update is in, if the station applied it."""
        state = self.owner(t, member).state
        applied = state.update is not None and state.update.round == member.applied_round
        return state.alpha + (member.applied_factor if applied else 0.0) * state.pending

    def share(self, t: int, member: Member) -> Any:
        """X_tᵀα_t."""
        alpha = self.alpha(t, member)
        return alpha.T @ self.full_rows(t)[: len(alpha)]

    def residual(self, t: int, member: Member) -> Any:
        """What the terminal keeps back, as the station counts it."""
        state = self.owner(t, member).state
        if state.residual is None:
            return 0.0
        applied = state.update is not None and state.update.round == member.applied_round
        factor = member.applied_factor if applied else 0.0
        return (1.0 - factor) * state.residual + (factor * state.sent_residual if applied else 0.0)

    def full_rows(self, t: int) -> Any:
        """Rows with the constant feature, where models have one."""
        X = self.rows[t][0]
        return np.column_stack([X, np.ones(len(X))]) if self.method.intercept else X

    def dual(self, b: int) -> float:
        """D_b at the present anchor, from the dual variables themselves."""
        station = self.stations[b]
        assert station.anchor is not None
        total, v = 0.0, np.zeros(station.shape)
        for t, member in station.members.items():
            alpha = self.alpha(t, member)
            total -= sum(
                self.method.loss.conjugate(a, y) for a, y in zip(alpha[:, 0], self.rows[t][1][:, 0], strict=False)
            )
            v += self.share(t, member)
        n = max(station.n_samples, 1)
        v /= n
        lam, center = station.anchor.lam, station.anchor.center
        return float(total / n - np.sum(v * v) / (2 * lam) - np.sum(center * v))

    def check(self) -> None:
        """U_b + residuals = Σ_t X_tᵀα_t over the members, n_b is theirs, and what is stored of each is right."""
        for b, station in enumerate(self.stations):
            total, count = np.zeros(station.shape), 0
            for t, member in station.members.items():
                share = self.share(t, member) - self.residual(t, member)
                total += share
                count += member.n_samples
                assert member.n_samples == len(self.owner(t, member).state.alpha)
                assert np.allclose(member.share, share, rtol=1e-10, atol=1e-10), f"share of terminal {t} at {b}"
            assert station.n_samples == count
            assert np.allclose(station.U, total, rtol=1e-10, atol=1e-10), f"sum of station {b}"

    def check_sums(self, b: int) -> None:
        """Sums that a station accepts are those of its members' dual variables as they stand, for its last probe."""
        station = self.stations[b]
        result = station.add_sums(self.sums[b])
        if result is None:
            return
        loss, models = self.method.loss, np.einsum("km,mcd->kcd", POINTS, self.models[b])
        dual, losses, gradient = 0.0, np.zeros(len(models)), np.zeros(station.shape)
        for t, member in station.members.items():
            y = self.rows[t][1][:, 0]
            dual -= sum(loss.conjugate(a, label) for a, label in zip(self.alpha(t, member)[:, 0], y, strict=True))
            for m, model in enumerate(models):
                losses[m] += sum(loss.value(z, label) for z, label in zip(self.full_rows(t) @ model[0], y, strict=True))
            slopes = [-loss.slope(z, label) for z, label in zip(self.full_rows(t) @ models[0, 0], y, strict=True)]
            gradient[0] += np.array(slopes) @ self.full_rows(t)
        assert np.isclose(dual_sums(result.dual[None])[0], dual, rtol=1e-10, atol=1e-10)
        assert np.allclose(result.losses, losses, rtol=1e-10, atol=1e-10)
        assert np.allclose(result.gradient, gradient, rtol=1e-10, atol=1e-10)
