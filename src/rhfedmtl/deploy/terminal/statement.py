"""The statement that `rhfedmtl-terminal account` prints for the owner: messages, bytes, byte budget and privacy."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rhfedmtl.deploy.node.config import TerminalConfig
from rhfedmtl.deploy.terminal.account import CONTENTS, DOWN, UP, Account, add_up, read
from rhfedmtl.deploy.terminal.owner import ACCOUNT, Owner
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.maths.gaussian_privacy import epsilon_of


def statement(config: TerminalConfig, state: wire.TerminalFile, *, by_day: bool) -> tuple[dict[str, Any], str]:
    """Return the statement as facts for JSON and as text. With ``by_day``, it has a line for each day and station."""
    path, owner = config.state / ACCOUNT, Owner(config.state)
    budget = Account(path, config.byte_budget, config.budget_days)
    lines = add_up(read(path), by_day=by_day)
    withdrawal = owner.withdrawn_on
    standing = f"withdrawn on {withdrawal}" if withdrawal else "paused" if owner.paused else "takes part"
    privacy: dict[str, Any] = {"epsilon": None}
    if state.HasField("noising") and not math.isinf(state.privacy):  # infinite if something left without noise
        privacy = {"epsilon": epsilon_of(state.privacy**0.5, state.noising.delta), "delta": state.noising.delta}
    facts: dict[str, Any] = {"terminal": str(config.identity.uri), "standing": standing}
    facts["lines"] = [asdict(line) for line in lines]
    facts |= {"used": budget.used, "byte_budget": config.byte_budget, **privacy}
    text = [f"{config.identity} of {config.identity.network}: {standing}", ""]
    for direction, title in ((UP, "left this machine"), (DOWN, "came in")):
        messages = [line for line in lines if line.way == direction]
        text.append(f"{title:<17} {'messages':>9} {'bytes':>12}  from … to (UTC)")
        for line in messages:
            text.append(f"  {line.kind:<15} {line.messages:>9,} {line.bytes:>12,}  {line.first} … {line.last}")
            if direction == UP and not by_day:
                text.append(f"  {'':<15} {CONTENTS.get(line.kind, '')}")
        total, n_bytes = sum(line.messages for line in messages), sum(line.bytes for line in messages)
        text += [f"  {'all':<15} {total:>9,} {n_bytes:>12,}", ""]
    if config.byte_budget:
        text.append(f"byte budget: {budget.in_words}")
    text += [
        f"ε: {privacy['epsilon']:.4g} at δ = {privacy['delta']:g} for everything that left, through the noise in it."
        if privacy["epsilon"] is not None
        else "ε: none. Messages are exact, without noise: a long series of updates can reveal information about rows.",
        f"Rows ({config.data}) and their dual variables never left.",
    ]
    return facts, "\n".join(text) + "\n"
